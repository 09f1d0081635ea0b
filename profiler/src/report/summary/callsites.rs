//! The list of callsites that matter most.
//!
//! Callsites that look the same in one line are one row: what cannot be told apart is no use apart.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::grid::Column;
use super::{HEADING, PLAIN, Page};
use crate::ids::Pid;
use crate::ledger::ages::Ages;
use crate::model::Profile;
use crate::report::chain::chain;
use crate::report::roots::group_of;
use crate::report::{Group, View, describe, text};
use crate::units::{EstimatedBytes, EstimatedCount};

/// Where memory comes from, as a row can show it.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Place<'a> {
    pid: Pid,
    heap: &'a str,
    /// Empty where threads are not told apart.
    thread: String,
    chain: String,
}

/// What callsites at one place did together.
#[derive(Default)]
struct Sums {
    view: u64,
    live_bytes: EstimatedBytes,
    live_count: EstimatedCount,
    alloc_bytes: EstimatedBytes,
    alloc_count: EstimatedCount,
    ages: Ages,
}

impl Page {
    /// Lists the places with the most of the view's quantity.
    pub(super) fn callsites(&mut self, profile: &Profile, view: View, top: usize) {
        let places = places(profile, view);
        let which = match places.len() {
            all if all > top => format!("largest {top} of {} callsites", text::count(all as u64)),
            all => text::counted(all as u64, "callsite"),
        };
        let estimated = if profile.is_exact() { "" } else { " (estimates)" };
        self.line(HEADING, &format!("{which} by {}{estimated}", describe::title(profile, view)));

        let several_targets = profile.targets.len() > 1;
        let several_heaps = profile.targets.iter().any(|target| target.heaps.len() > 1);
        let live = matches!(view, View::LiveBytes | View::LiveCount);
        let quantities = if live { ["live", "blocks", "allocated"] } else { ["allocated", "blocks", "live"] };
        let mut columns: Vec<Column> = quantities.map(Column::Right).into();
        columns.push(Column::Right("share"));
        // What is live for long is what does not come back; what was allocated has no age.
        let aged = live && places.iter().any(|(_, sums)| sums.ages.median_ns().is_some());
        columns.extend(aged.then_some(Column::Right("median age")));
        columns.extend(several_targets.then_some(Column::Right("pid")));
        columns.extend(several_heaps.then_some(Column::Left("heap")));
        let by_thread = places.iter().any(|(place, _)| !place.thread.is_empty());
        columns.extend(by_thread.then_some(Column::Left("thread")));
        columns.push(Column::Left("where"));

        let whole = describe::total(profile, view);
        let rows = places.into_iter().take(top).map(|(place, sums)| {
            let size = |bytes: EstimatedBytes| text::size(bytes.rounded());
            let count = |count: EstimatedCount| text::count(count.rounded());
            let mut cells = if live {
                vec![size(sums.live_bytes), count(sums.live_count), size(sums.alloc_bytes)]
            } else {
                vec![size(sums.alloc_bytes), count(sums.alloc_count), size(sums.live_bytes)]
            };
            cells.push(share(sums.view, whole));
            cells.extend(aged.then(|| sums.ages.median_ns().map_or(String::new(), text::duration)));
            cells.extend(several_targets.then(|| place.pid.to_string()));
            cells.extend(several_heaps.then(|| text::printable(place.heap).into_owned()));
            cells.extend(by_thread.then(|| text::printable(&place.thread).into_owned()));
            cells.push(place.chain);
            cells
        });
        let rows = rows.collect();
        self.table(&columns, rows);
        if describe::folded(profile, view).is_some() {
            let share = share(view.rounded(&profile.others.folded_totals), whole);
            let processes = describe::folded_processes(profile);
            self.line(PLAIN, &format!("  {share} belongs to {processes}, of which sums alone are kept"));
        }
    }
}

/// All places of which the view has something to say, those with the most first.
fn places(profile: &Profile, view: View) -> Vec<(Place<'_>, Sums)> {
    let mut places: BTreeMap<Place<'_>, Sums> = BTreeMap::new();
    for target in &profile.targets {
        for callsite in &target.callsites {
            let value = view.of_callsite(callsite);
            if value == 0 {
                continue;
            }
            let heap = target.heaps.get(callsite.heap).map_or("", |heap| heap.name.as_str());
            let mut chain = chain(profile, &callsite.stack, callsite.end);
            if callsite.inherited {
                chain.push(' ');
                chain.push_str(describe::INHERITED);
            }
            let thread = callsite.thread.map(|_| group_of(Group::Thread, target, callsite)).unwrap_or_default();
            let sums = places.entry(Place { pid: target.pid, heap, thread, chain }).or_default();
            sums.view = sums.view.saturating_add(value);
            let live = callsite.older.unwrap_or_else(|| callsite.totals.live());
            sums.live_bytes += live.bytes;
            sums.live_count += live.count;
            sums.alloc_bytes += callsite.totals.alloc_bytes;
            sums.alloc_count += callsite.totals.alloc_count;
            sums.ages.add(&callsite.details.ages);
        }
    }
    let mut places: Vec<_> = places.into_iter().collect();
    places.sort_by_key(|(_, sums)| Reverse(sums.view));
    places
}

#[expect(clippy::cast_precision_loss, reason = "for a percentage")]
fn share(part: u64, whole: u64) -> String {
    text::share(part as f64, whole as f64)
}
