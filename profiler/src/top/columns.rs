//! Columns of the tables: headings, texts and orders, for the screen and for scripts.

use std::cmp::Ordering;

use heapbpf_report::text;

use super::model::{CallsiteRow, TargetRow};

/// A column by which a table can be sorted.
pub(crate) trait Column: Copy + PartialEq + 'static {
    type Row;
    const ALL: &'static [Self];

    fn heading(self) -> &'static str;

    /// Width of the column on the screen, in character cells.
    fn width(self) -> u16;

    fn text(self, row: &Self::Row) -> String;

    /// Value by which rows are sorted, in descending order.
    fn value(self, row: &Self::Row) -> f64;

    /// The next or the previous one, cyclically.
    fn neighbour(self, is_next: bool) -> Self {
        let count = Self::ALL.len();
        let at = Self::ALL.iter().position(|column| *column == self).unwrap_or(0);
        Self::ALL[(at + if is_next { 1 } else { count - 1 }) % count]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetColumn {
    Pid,
    Live,
    GrowthPerSecond,
    AllocatedPerSecond,
    Rss,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallsiteColumn {
    Live,
    Growth,
    AllocatedPerSecond,
    Age,
    Temporary,
}

impl Column for TargetColumn {
    type Row = TargetRow;
    const ALL: &'static [Self] = &[Self::Pid, Self::Live, Self::GrowthPerSecond, Self::AllocatedPerSecond, Self::Rss];

    fn heading(self) -> &'static str {
        match self {
            Self::Pid => "PID",
            Self::Live => "LIVE",
            Self::GrowthPerSecond => "GROWTH/s",
            Self::AllocatedPerSecond => "ALLOC/s",
            Self::Rss => "RSS",
        }
    }

    fn width(self) -> u16 {
        match self {
            Self::Pid => 7,
            Self::GrowthPerSecond => 11,
            Self::Live | Self::AllocatedPerSecond | Self::Rss => 10,
        }
    }

    fn text(self, row: &TargetRow) -> String {
        match self {
            Self::Pid => row.key.pid.to_string(),
            Self::Live => size(row.live),
            Self::GrowthPerSecond => change(row.growth_per_s),
            Self::AllocatedPerSecond => size(row.allocated_per_s),
            Self::Rss => row.rss_bytes.map_or_else(none, text::size),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "for sorting")]
    fn value(self, row: &TargetRow) -> f64 {
        match self {
            Self::Pid => -f64::from(row.key.pid.0),
            Self::Live => row.live,
            Self::GrowthPerSecond => row.growth_per_s,
            Self::AllocatedPerSecond => row.allocated_per_s,
            Self::Rss => row.rss_bytes.map_or(-1.0, |bytes| bytes as f64),
        }
    }
}

impl Column for CallsiteColumn {
    type Row = CallsiteRow;
    const ALL: &'static [Self] = &[Self::Live, Self::Growth, Self::AllocatedPerSecond, Self::Age, Self::Temporary];

    fn heading(self) -> &'static str {
        match self {
            Self::Live => "LIVE",
            Self::Growth => "GROWTH",
            Self::AllocatedPerSecond => "ALLOC/s",
            Self::Age => "AGE",
            Self::Temporary => "TEMP",
        }
    }

    fn width(self) -> u16 {
        match self {
            Self::Live | Self::AllocatedPerSecond => 10,
            Self::Growth => 11,
            Self::Age => 7,
            Self::Temporary => 6,
        }
    }

    fn text(self, row: &CallsiteRow) -> String {
        match self {
            Self::Live => size(row.live),
            Self::Growth => change(row.growth),
            Self::AllocatedPerSecond => size(row.allocated_per_s),
            Self::Age => row.age_ns.map_or_else(none, age),
            Self::Temporary => row.temporary.map_or_else(none, |share| text::share(share, 1.0)),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "for sorting")]
    fn value(self, row: &CallsiteRow) -> f64 {
        match self {
            Self::Live => row.live,
            Self::Growth => row.growth,
            Self::AllocatedPerSecond => row.allocated_per_s,
            Self::Age => row.age_ns.map_or(-1.0, |age| age as f64),
            Self::Temporary => row.temporary.unwrap_or(-1.0),
        }
    }
}

/// The column that sorts a table, and whether ascending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order<C> {
    pub(crate) column: C,
    pub(crate) is_ascending: bool,
}

impl<C: Column> Order<C> {
    pub(crate) fn by(column: C) -> Self {
        Self { column, is_ascending: false }
    }

    pub(crate) fn compare(self, one: &C::Row, other: &C::Row) -> Ordering {
        let order = self.column.value(other).total_cmp(&self.column.value(one));
        if self.is_ascending { order.reverse() } else { order }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates; rounding errors become 0")]
pub(crate) fn size(bytes: f64) -> String {
    text::size(bytes.max(0.0).round() as u64)
}

#[expect(clippy::cast_possible_truncation, reason = "`as` saturates")]
pub(crate) fn change(bytes: f64) -> String {
    match bytes.round() as i64 {
        0 => "0 B".to_owned(),
        bytes => text::change(bytes),
    }
}

/// Text of an age with one unit, so that it fits its column: `850ms`, `42s`, `12m`, `5h`, `3d`.
fn age(nanos: u64) -> String {
    let seconds = nanos / 1_000_000_000;
    match seconds {
        0 => format!("{}ms", nanos / 1_000_000),
        1..=119 => format!("{seconds}s"),
        120..=7_199 => format!("{}m", seconds / 60),
        7_200..=172_799 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

fn none() -> String {
    "–".to_owned()
}
