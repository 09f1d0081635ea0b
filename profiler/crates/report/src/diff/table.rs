//! The printed difference. Callsites whose lines would be the same are one row, as in the summary of one profile.

use std::collections::BTreeMap;

use super::comparison::{Callsite, Delta, Diff};
use super::describe as words;
use crate::function::chain;
use crate::page::{Column, HEADING, PLAIN, Page, WARNING};
use crate::{View, describe, text};

#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Row<'a> {
    pub(super) program: Option<usize>,
    pub(super) heap: Option<&'a str>,
    pub(super) chain: String,
}

/// Lists up to `top` callsites that grew, and as many that shrank, by at least `threshold` bytes or blocks.
pub fn table(diff: &Diff<'_>, view: View, top: usize, threshold: u64, width: Option<usize>, colour: bool) -> String {
    let mut page = Page::new(width, colour);
    page.compared(diff, view);
    page.gap();
    page.change_of_all(diff);
    page.gap();
    page.changed(diff, view, top, threshold);
    page.gap();
    if diff.incomplete() {
        page.line(WARNING, "health: the compared profiles are incomplete");
        words::losses(diff).iter().for_each(|line| page.line(WARNING, &format!("  {line}")));
    } else {
        page.line(HEADING, "health: both are complete");
    }
    page.text
}

impl Page {
    fn compared(&mut self, diff: &Diff<'_>, view: View) {
        let [before, after] = [diff.before, diff.after].map(words::name);
        let subject = words::subject(diff);
        self.line(HEADING, &format!("growth of {} of {subject} · {before} → {after}", view.title()));
        self.line(PLAIN, &format!("before: {}", words::side(diff.before.profile)));
        self.line(PLAIN, &format!("after:  {}", words::side(diff.after.profile)));
        words::notes(diff, view).iter().for_each(|line| self.line(PLAIN, line));
    }

    fn change_of_all(&mut self, diff: &Diff<'_>) {
        let total = diff.total();
        let about = describe::about(diff.is_exact());
        let rows = View::ALL.map(|view| {
            let [before, after] = [&total.before, &total.after].map(|side| view.amount(view.rounded(side)));
            let growth = words::signed(view, total.growth(view));
            let range = words::range(view, &total).unwrap_or_default();
            vec![
                view.title().to_owned(),
                format!("{about}{before}"),
                format!("{about}{after}"),
                format!("{about}{growth}"),
                range,
            ]
        });
        let mut columns =
            vec![Column::Left(""), Column::Right("before"), Column::Right("after"), Column::Right("growth")];
        let mut rows = rows.to_vec();
        if diff.is_exact() {
            rows.iter_mut().for_each(|row| row.truncate(columns.len()));
        } else {
            columns.push(Column::Left("95 %"));
        }
        self.table(&columns, rows);
    }

    fn changed(&mut self, diff: &Diff<'_>, view: View, top: usize, threshold: u64) {
        let rows = rows(diff, view);
        let changed = || rows.iter().filter(|(_, delta)| delta.growth(view) != 0.0);
        if changed().next().is_none() {
            return self.line(PLAIN, &words::nothing(diff, view));
        }
        let is_small = |delta: &Delta| delta.growth(view).abs() < threshold as f64;
        let noise: Vec<_> = changed().filter(|(_, delta)| delta.is_noise(view)).collect();
        let small = changed().filter(|(_, delta)| !delta.is_noise(view) && is_small(delta)).count();
        let listed = || changed().filter(|(_, delta)| !delta.is_noise(view) && !is_small(delta));
        let (grew, shrank): (Vec<_>, Vec<_>) = listed().partition(|(_, delta)| delta.growth(view) > 0.0);
        for (verb, rows) in [("grew", &grew), ("shrank", &shrank)] {
            if !rows.is_empty() {
                if verb == "shrank" && !grew.is_empty() {
                    self.gap();
                }
                self.listed(diff, view, verb, rows, top);
            }
        }
        if grew.is_empty() && shrank.is_empty() && small == 0 {
            self.line(PLAIN, "No callsite changed by more than the noise of sampling.");
        }
        if !(grew.is_empty() && shrank.is_empty()) && (small > 0 || !noise.is_empty()) {
            self.gap();
        }
        if !noise.is_empty() {
            let sum: f64 = noise.iter().map(|(_, delta)| delta.growth(view)).sum();
            let (count, sum) = (text::counted(noise.len() as u64, "callsite"), words::signed(view, sum));
            self.line(PLAIN, &format!("within the noise of sampling: {count}, {sum} together"));
        }
        if small > 0 {
            let (count, limit) = (text::counted(small as u64, "callsite"), view.amount(threshold));
            self.line(PLAIN, &format!("below the threshold of {limit}: {count}"));
        }
    }

    fn listed(&mut self, diff: &Diff<'_>, view: View, verb: &str, rows: &[&(Row<'_>, Delta)], top: usize) {
        let which = match rows.len() {
            all if all > top => format!("largest {top} of {} callsites that {verb}", text::count(all as u64)),
            all => format!("{} that {verb}", text::counted(all as u64, "callsite")),
        };
        let estimated = if diff.is_exact() { "" } else { " (estimates)" };
        self.line(HEADING, &format!("{which}, by {}{estimated}", view.title()));
        let several_programs = diff.programs.len() > 1;
        let several_heaps = rows.iter().any(|(row, _)| row.heap != rows[0].0.heap);
        let mut columns = vec![Column::Right("growth")];
        columns.extend((!diff.is_exact()).then_some(Column::Left("95 %")));
        columns.extend(["before", "after", "share"].map(Column::Right));
        columns.extend(several_programs.then_some(Column::Left("program")));
        columns.extend(several_heaps.then_some(Column::Left("heap")));
        columns.push(Column::Left("where"));
        let whole: f64 = rows.iter().map(|(_, delta)| delta.growth(view)).sum();
        let cells = rows.iter().take(top).map(|(row, delta)| {
            let mut cells = vec![words::signed(view, delta.growth(view))];
            cells.extend((!diff.is_exact()).then(|| words::range(view, delta).unwrap_or_else(|| "exact".to_owned())));
            cells.extend([&delta.before, &delta.after].map(|side| view.amount(view.rounded(side))));
            cells.push(text::share(delta.growth(view).abs(), whole.abs()));
            cells.extend(several_programs.then(|| {
                let name = row.program.map(|program| diff.programs[program].name()).unwrap_or_default();
                text::printable(&name).into_owned()
            }));
            cells.extend(several_heaps.then(|| text::printable(row.heap.unwrap_or_default()).into_owned()));
            cells.push(row.chain.clone());
            cells
        });
        let cells = cells.collect();
        if top > 0 {
            self.table(&columns, cells);
        }
    }
}

/// The largest changes first.
pub(super) fn changed_rows<'a>(diff: &'a Diff<'_>, view: View) -> Vec<(Row<'a>, Delta)> {
    let mut rows = rows(diff, view);
    rows.retain(|(_, delta)| delta.growth(view) != 0.0);
    rows
}

fn rows<'a>(diff: &'a Diff<'_>, view: View) -> Vec<(Row<'a>, Delta)> {
    let mut rows: BTreeMap<Row<'a>, Delta> = BTreeMap::new();
    for Callsite { stack, delta } in diff.by_growth(view) {
        let row = match stack {
            None => Row { program: None, heap: None, chain: words::FOLDED.to_owned() },
            Some(stack) => {
                let chain = chain(stack.profile, stack.frames, stack.end, stack.inherited);
                Row { program: Some(stack.program), heap: stack.heap, chain }
            }
        };
        rows.entry(row).and_modify(|merged| merged.add(delta)).or_insert(*delta);
    }
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by(|(_, a), (_, b)| b.growth(view).abs().total_cmp(&a.growth(view).abs()));
    rows
}
