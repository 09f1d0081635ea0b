//! Options of how a profile is presented: view, grouping and limits, independent of the format.

use std::fmt;
use std::str::FromStr;

use heapbpf_base::units::{Amounts, EstimatedCube, EstimatedVariance, Rounding};
use heapbpf_ledger::confidence::{Estimate, least_weights};
use heapbpf_ledger::model::{CallsiteProfile, Profile, Unaccounted};
use heapbpf_ledger::totals::Totals;

use super::text;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Presentation {
    /// The quantity of formats that show one only; the one that the others show first.
    pub view: View,
    /// What stacks are grouped by, the outermost first: frames above the process's, or labels where the format has them.
    pub by: Vec<Group>,
    /// Frames below this share of the view's total are merged into `<other>` (see [`thinned`](Self::thinned)).
    pub threshold: Option<Share>,
    /// Flame graphs grow downwards, with the outermost frames at the top.
    pub icicle: bool,
    /// Name of the recorded machine, for formats that are aggregated over machines; `None` where unknown.
    pub host: Option<String>,
    /// Tables of comma-separated values have names as they are, also those that spreadsheets evaluate.
    pub csv_raw: bool,
}

impl From<View> for Presentation {
    fn from(view: View) -> Self {
        Self { view, ..Self::default() }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, strum::Display, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum View {
    /// Not freed.
    #[default]
    LiveBytes,
    LiveCount,
    /// Freed or not.
    AllocBytes,
    AllocCount,
}

impl View {
    /// In the order in which they are listed to the user.
    pub const ALL: [Self; 4] = [Self::LiveBytes, Self::LiveCount, Self::AllocBytes, Self::AllocCount];

    pub fn name(self) -> &'static str {
        self.into()
    }

    pub(super) fn field_name(self) -> String {
        self.name().replace('-', "_")
    }

    pub const fn title(self) -> &'static str {
        match self {
            Self::LiveBytes => "live bytes",
            Self::LiveCount => "live blocks",
            Self::AllocBytes => "allocated bytes",
            Self::AllocCount => "allocated blocks",
        }
    }

    pub const fn unit(self) -> &'static str {
        if self.is_bytes() { "bytes" } else { "blocks" }
    }

    pub(super) const fn is_bytes(self) -> bool {
        matches!(self, Self::LiveBytes | Self::AllocBytes)
    }

    pub(super) const fn is_live(self) -> bool {
        matches!(self, Self::LiveBytes | Self::LiveCount)
    }

    /// Whether the profile restricts this quantity to blocks above a minimum age.
    pub const fn shows_old_blocks_only(self, profile: &Profile) -> bool {
        self.is_live() && profile.older_than_ns.is_some()
    }

    /// Sample type and unit, as Go's heap profiles name them.
    pub(super) const fn sample_type(self) -> (&'static str, &'static str) {
        match self {
            Self::LiveBytes => ("inuse_space", "bytes"),
            Self::LiveCount => ("inuse_objects", "count"),
            Self::AllocBytes => ("alloc_space", "bytes"),
            Self::AllocCount => ("alloc_objects", "count"),
        }
    }

    /// Bytes and blocks of this view and of the other one of the same blocks.
    pub(super) fn amounts(self, totals: &Totals) -> Amounts {
        if self.is_live() { totals.live() } else { totals.allocated() }
    }

    pub fn rounded(self, totals: &Totals) -> u64 {
        self.rounded_of(&self.amounts(totals), Rounding::default())
    }

    fn rounded_of(self, amounts: &Amounts, rounding: Rounding) -> u64 {
        if self.is_bytes() { amounts.bytes.rounded() } else { amounts.count.rounded_with(rounding) }
    }

    /// The quantity of a callsite as shown: of live blocks, only those that are old enough. Sums of counts are those of the estimates.
    pub fn of_callsite(self, callsite: &CallsiteProfile) -> u64 {
        self.rounded_of(&self.shown(callsite), callsite.rounding)
    }

    /// The whole number next to [`Self::of_callsite`]'s estimate: an order that a report keeps.
    pub(super) fn nearest(self, callsite: &CallsiteProfile) -> u64 {
        self.rounded_of(&self.shown(callsite), Rounding::default())
    }

    fn shown(self, callsite: &CallsiteProfile) -> Amounts {
        match callsite.older {
            Some(older) if self.is_live() => older,
            _ => self.amounts(&callsite.totals),
        }
    }

    /// The quantity of exited processes that are kept as totals only; 0 where ages are needed, which totals do not have.
    pub(super) fn of_folded(self, profile: &Profile) -> u64 {
        if self.shows_old_blocks_only(profile) { 0 } else { self.rounded(&profile.others.folded_totals) }
    }

    /// The 95 % confidence interval of totals that were sampled at this interval. Live blocks are some of those that
    /// were allocated, so these show what one more sample would add.
    pub fn confidence(self, totals: &Totals, interval_bytes: u64) -> [f64; 2] {
        let allocated = totals.allocated();
        let [bytes, count] = least_weights(interval_bytes, allocated.samples);
        let least_weight = self.with_error(&allocated).weight().max(if self.is_bytes() { bytes } else { count });
        self.with_error(&self.amounts(totals)).interval_95(least_weight)
    }

    /// The interval in bytes of callsites of which nothing was sampled: that requested for all of them, or the mean one of their samples,
    /// `all`, if that has been raised.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a weight is at most 2^44")]
    pub fn interval_of_unseen(requested_bytes: u64, all: &Totals) -> u64 {
        requested_bytes.max(Estimate::of_bytes(&all.allocated()).weight() as u64)
    }

    /// As [`confidence`](Self::confidence), with what dropped records may represent. `None` if nothing limits that.
    pub(super) fn bounds(self, profile: &Profile, totals: &Totals, interval_bytes: u64) -> Option<[f64; 2]> {
        let Unaccounted { alloc_bytes, alloc_count, live_bytes, live_count, is_live_behind } =
            profile.health.unaccounted;
        if profile.health.has_lost_unsized() || self.is_live() && is_live_behind {
            return None;
        }
        let missing = match self {
            Self::LiveBytes => live_bytes,
            Self::LiveCount => live_count,
            Self::AllocBytes => alloc_bytes,
            Self::AllocCount => alloc_count,
        };
        let [low, high] = self.confidence(totals, interval_bytes);
        #[expect(clippy::cast_precision_loss, reason = "a bound")]
        let high = high + missing as f64;
        Some([low, high])
    }

    pub fn with_error(self, amounts: &Amounts) -> Estimate {
        if self.is_bytes() { Estimate::of_bytes(amounts) } else { Estimate::of_count(amounts) }
    }

    pub fn estimate(self, totals: &Totals) -> f64 {
        let amounts = self.amounts(totals);
        if self.is_bytes() { amounts.bytes.to_f64() } else { amounts.count.to_f64() }
    }

    pub fn variance(self, totals: &Totals) -> EstimatedVariance {
        let variance = self.amounts(totals).variance;
        if self.is_bytes() { variance.bytes } else { variance.count }
    }

    pub fn cube(self, totals: &Totals) -> EstimatedCube {
        let cubes = self.amounts(totals).variance.cubes;
        if self.is_bytes() { cubes.bytes } else { cubes.count }
    }

    pub fn samples(self, totals: &Totals) -> u64 {
        self.amounts(totals).samples
    }

    pub fn amount(self, rounded: u64) -> String {
        if self.is_bytes() { text::size(rounded) } else { text::counted(rounded, "block") }
    }
}

/// A share of a whole, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share(u32);

impl Share {
    pub const ZERO: Self = Self(0);
    pub const ALL: Self = Self(1_000_000);

    pub fn is_reached(self, part: u128, whole: u128) -> bool {
        // Neither product overflows: both are sums of fewer than 2^32 numbers of 64 bits.
        part.saturating_mul(Self::ALL.0.into()) >= whole.saturating_mul(self.0.into())
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (percent, rest) = (self.0 / 10_000, self.0 % 10_000);
        let rest = if rest == 0 { String::new() } else { format!(".{rest:04}") };
        write!(f, "{percent}{}%", rest.trim_end_matches('0'))
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = |why| Err(format!("`{text}` is not a valid share: {why}"));
        let Some(percent) = text.strip_suffix('%') else { return error("a share ends in `%`, as in `0.8%`") };
        // `f64` also parses signs, exponents and names.
        let is_number = percent.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let percent: f64 = match percent.parse() {
            Ok(percent) if is_number => percent,
            _ => return error("there is no number before the `%`"),
        };
        if percent > 100.0 {
            return error("it exceeds 100%");
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is from 0 to 1,000,000")]
        let millionths = (percent * 10_000.0).round() as u32;
        Ok(Self(millionths))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Group {
    Thread,
    /// The program: `argv[0]`.
    Command,
    Cgroup,
    Heap,
}

impl Group {
    pub const ALL: [Self; 4] = [Self::Thread, Self::Command, Self::Cgroup, Self::Heap];

    pub fn name(self) -> &'static str {
        self.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_parse_from_percentages() {
        for (text, expected) in
            [("0.8%", "0.8%"), ("0%", "0%"), ("100%", "100%"), ("12.50%", "12.5%"), (".01%", "0.01%")]
        {
            assert_eq!(text.parse::<Share>().map(|share| share.to_string()), Ok(expected.to_owned()));
        }
        for (text, why) in [
            ("0.8", "ends in `%`"),
            ("", "ends in `%`"),
            ("%", "no number"),
            ("-1%", "no number"),
            ("1e1%", "no number"),
            ("inf%", "no number"),
            ("1.2.3%", "no number"),
            ("100.1%", "exceeds 100%"),
        ] {
            let error = text.parse::<Share>().expect_err(text).to_string();
            assert!(error.contains(why) && error.contains(&format!("`{text}`")), "{error}");
        }
    }

    #[test]
    fn is_reached_includes_equality() {
        let share: Share = "0.8%".parse().expect("a share");
        assert!(share.is_reached(8, 1000) && !share.is_reached(7, 1000) && share.is_reached(0, 0));
        assert!(Share::ALL.is_reached(u128::from(u64::MAX), u128::from(u64::MAX)));
        assert!(!Share::ALL.is_reached(u128::from(u64::MAX) - 1, u128::from(u64::MAX)));
    }
}
