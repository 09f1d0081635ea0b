//! What is printed after a run: what was watched, totals, the callsites that matter, and how far to trust it.
//!
//! Owns the words for people. Nothing here is stable: programs read the JSON report.

use std::cmp::Reverse;

use anstyle::{AnsiColor, Style};

use self::grid::Column;
use super::{View, describe, text, window};
use crate::model::{Profile, TargetProfile};
use crate::units::{EstimatedBytes, EstimatedCount};

mod callsites;
pub(crate) mod grid;
pub(super) mod guardrails;
mod health;
mod leaks;

/// Targets that are listed.
const TARGETS_MAX: usize = 10;

/// Columns below which lines stop shrinking.
const WIDTH_MIN: usize = 80;

pub(super) const HEADING: Style = Style::new().bold();
pub(super) const WARNING: Style = AnsiColor::Yellow.on_default().bold();
pub(super) const PLAIN: Style = Style::new();

/// The text to print, with `\n` after each line. `top` is how many callsites are listed. `width` is the terminal's, in columns; without one, lines are as long
/// as they need to be. `colour` lets it use ANSI escapes.
pub fn summary(profile: &Profile, view: View, top: usize, width: Option<usize>, colour: bool) -> String {
    let mut page = Page::new(width, colour);
    page.header(profile);
    if describe::total(profile, View::AllocCount) > 0 {
        match profile.targets.as_slice() {
            [target] if profile.others.folded_count == 0 => page.totals_of_one(profile, target),
            _ => page.totals_of_several(profile, view),
        }
        page.gap();
    }
    if !describe::has_stacks(profile, view) {
        describe::nothing(profile, view).iter().for_each(|line| page.line(PLAIN, line));
        page.gap();
    } else if top > 0 {
        page.callsites(profile, view, top);
        page.gap();
    }
    page.leaks(profile);
    page.health(profile, view);
    page.text
}

/// Text as it grows.
pub(super) struct Page {
    pub(super) text: String,
    width: Option<usize>,
    colour: bool,
}

impl Page {
    /// An empty one. `width` is the terminal's, in columns; `colour` lets it use ANSI escapes.
    pub(super) fn new(width: Option<usize>, colour: bool) -> Self {
        Self { text: String::new(), width: width.map(|width| width.max(WIDTH_MIN)), colour }
    }

    pub(super) fn line(&mut self, style: Style, line: &str) {
        if self.colour && style != PLAIN {
            self.text.push_str(&format!("{style}{line}{style:#}\n"));
        } else {
            self.text.push_str(line);
            self.text.push('\n');
        }
    }

    pub(super) fn gap(&mut self) {
        self.text.push('\n');
    }

    pub(super) fn table(&mut self, columns: &[Column], rows: Vec<Vec<String>>) {
        let indent = "  ";
        let width = self.width.map(|width| width - indent.len());
        for line in grid::lines(columns, rows, width) {
            self.line(PLAIN, &format!("{indent}{line}"));
        }
    }

    fn header(&mut self, profile: &Profile) {
        let parts = [
            describe::subject(profile),
            format!("watched for {}", text::duration(describe::duration_ns(profile))),
            describe::interval(profile),
        ];
        self.line(HEADING, &parts.join(" · "));
        if let [target] = profile.targets.as_slice() {
            let command = text::printable(&target.command);
            let line = format!("command: {command}{}", exit(target));
            self.line(PLAIN, &text::cut(&line, self.width.unwrap_or(usize::MAX)));
        }
        if profile.window.is_some() {
            self.line(PLAIN, &format!("part of the recording: {}", window::outcome(profile)));
        }
        describe::beginnings(profile).iter().for_each(|line| self.line(PLAIN, line));
        self.gap();
    }

    fn totals_of_one(&mut self, profile: &Profile, target: &TargetProfile) {
        let about = describe::about(profile.is_exact_of(target));
        let totals = &target.totals;
        let row = |name: &str, bytes: EstimatedBytes, last: String| {
            vec![name.to_owned(), format!("{about}{}", text::size(bytes.rounded())), last]
        };
        let blocks = |count: EstimatedCount| format!("{about}{}", text::counted(count.rounded(), "block"));
        let when = totals.peak_time.map(|time| profile.unix_ns(time).saturating_sub(profile.started_unix_ns));
        let rows = vec![
            row("allocated", totals.alloc_bytes, blocks(totals.alloc_count)),
            row("freed", totals.free_bytes, blocks(totals.free_count)),
            row("live", totals.live_bytes(), blocks(totals.live_count())),
            row(
                "peak",
                totals.peak_bytes,
                when.map_or(String::new(), |nanos| format!("after {}", text::duration(nanos))),
            ),
        ];
        let inherited = (totals.opening_count > EstimatedCount::ZERO).then(|| {
            row(
                if profile.window.is_some() { "at the start" } else { "inherited" },
                totals.opening_bytes,
                blocks(totals.opening_count),
            )
        });
        let rows = inherited.into_iter().chain(rows).collect();
        self.table(&[Column::Left(""), Column::Right(""), Column::Right("")], rows);
    }

    fn totals_of_several(&mut self, profile: &Profile, view: View) {
        let size = |bytes: EstimatedBytes, is_exact: bool| {
            format!("{}{}", describe::about(is_exact), text::size(bytes.rounded()))
        };
        let mut targets: Vec<&TargetProfile> = profile.targets.iter().collect();
        targets.sort_by_key(|target| (Reverse(view.rounded(&target.totals)), target.pid));
        let mut rows: Vec<Vec<String>> = targets
            .iter()
            .take(TARGETS_MAX)
            .map(|target| {
                let totals = &target.totals;
                let sizes = [totals.alloc_bytes, totals.free_bytes, totals.live_bytes(), totals.peak_bytes];
                let sizes = sizes.map(|bytes| size(bytes, profile.is_exact_of(target)));
                let name = format!("{}{}", describe::target(target), exit(target));
                sizes.into_iter().chain([name]).collect()
            })
            .collect();
        if targets.len() > TARGETS_MAX {
            let more = format!("and {} more", text::count((targets.len() - TARGETS_MAX) as u64));
            rows.push(["".into(), "".into(), "".into(), "".into(), more].into());
        }
        let folded = &profile.others.folded_totals;
        if profile.others.folded_count > 0 {
            let sizes = [folded.alloc_bytes, folded.free_bytes, folded.live_bytes()];
            let sizes = sizes.map(|bytes| size(bytes, profile.is_exact_of_folded()));
            let name = describe::folded_processes(profile);
            rows.push(sizes.into_iter().chain([String::new(), name]).collect());
        }
        let all = describe::totals(profile);
        let sizes = [all.alloc_bytes, all.free_bytes, all.live_bytes()].map(|bytes| size(bytes, profile.is_exact()));
        // Peaks are of different moments: their sum means nothing.
        rows.push(sizes.into_iter().chain([String::new(), "all together".to_owned()]).collect());
        let numbers = ["allocated", "freed", "live", "peak"].map(Column::Right);
        self.table(&[numbers.as_slice(), &[Column::Left("process")]].concat(), rows);
    }
}

/// How the target ended, if it did.
fn exit(target: &TargetProfile) -> String {
    match (target.exited, target.exit_code) {
        (false, _) if target.detached.is_some() => ", let go".to_owned(),
        (false, _) if target.replaced => ", became another program".to_owned(),
        (false, _) => String::new(),
        (true, None) => ", exited".to_owned(),
        (true, Some(status)) => format!(", exited with {status}"),
    }
}
