//! Synthetic allocations and frees that add up to what a callsite did.
//!
//! The Firefox Profiler works with single blocks: a block is retained if it was allocated and not freed. The sums of a callsite become
//! few blocks: one for everything allocated by one point in time and freed by another.

use crate::model::history::Change;
use crate::model::{CallsiteProfile, Profile, TargetProfile};
use crate::report::dumps::rounded;
use crate::report::presentation::View;
use crate::report::{caption, describe};
use crate::units::MonotonicNanos;

/// The time that a profile covers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span<'a> {
    profile: &'a Profile,
    /// The profile is not of a window.
    pub(super) is_whole: bool,
    pub(super) start_unix_ns: u64,
    pub(super) duration_ns: u64,
}

impl<'a> Span<'a> {
    pub(super) fn of(profile: &'a Profile) -> Self {
        Self {
            profile,
            is_whole: profile.window.is_none(),
            start_unix_ns: caption::start_unix_ns(profile),
            duration_ns: describe::duration_ns(profile),
        }
    }

    /// Nanoseconds since the start, clamped to the span.
    pub(super) fn since(&self, time: MonotonicNanos) -> u64 {
        self.profile.unix_ns(time).saturating_sub(self.start_unix_ns).min(self.duration_ns)
    }
}

/// Bytes that were allocated and freed at the same times, in nanoseconds since the start of the profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Allocation {
    /// `None` if the bytes existed before the start.
    pub(super) from_ns: Option<u64>,
    /// `None` if the bytes are live at the end.
    pub(super) until_ns: Option<u64>,
    pub(super) bytes: u64,
}

/// The allocations of a callsite. Live ones add up to its live bytes, allocated ones to its allocated bytes, freed ones to its freed
/// bytes. Exception: inherited bytes that were not freed count as allocated, because the profiler must show them as retained. If the
/// profile shows old blocks only, young ones are left out.
pub(super) fn allocations(span: &Span, target: &TargetProfile, callsite: &CallsiteProfile) -> Vec<Allocation> {
    let totals = &callsite.totals;
    let live = View::LiveBytes.of_callsite(callsite);
    let freed = totals.free_bytes.rounded();
    let temporary = totals.alloc_bytes.rounded().saturating_sub(live).min(freed);
    let whole = Sums { allocated: temporary.saturating_add(live), freed: temporary };
    let is_of_all = span.is_whole && callsite.older.is_none() && totals.opening_bytes.rounded() == 0;
    let mut sums = if is_of_all { history(span, target, callsite, whole) } else { Vec::new() };
    if sums.is_empty() {
        // Most was allocated by the time of the peak; if that is unknown or outside of the span, use the start.
        let time_ns = totals.peak_time.map_or(0, |time| span.since(time));
        sums.push((time_ns, Sums { allocated: whole.allocated, freed: 0 }));
    }
    sums.push((span.duration_ns, whole));
    let mut allocations = matched(&sums);
    allocations.push(Allocation { from_ns: None, until_ns: Some(span.duration_ns), bytes: freed - temporary });
    allocations.retain(|allocation| allocation.bytes > 0);
    allocations
}

/// Cumulative sums at a point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    allocated: u64,
    freed: u64,
}

/// The cumulative sums of a callsite whenever they changed: never decreasing, never above the final ones.
fn history(span: &Span, target: &TargetProfile, callsite: &CallsiteProfile, whole: Sums) -> Vec<(u64, Sums)> {
    let mut last = (0, Sums::default());
    let sums_at = |change: &Change| {
        let instant = target.history.instants.get(change.instant as usize)?;
        let allocated = rounded(change.held.alloc_bytes).clamp(last.1.allocated, whole.allocated);
        let freed = rounded(change.held.alloc_bytes - change.held.live_bytes);
        let freed = freed.clamp(last.1.freed, whole.freed.max(last.1.freed)).min(allocated);
        last = (span.since(instant.time).max(last.0), Sums { allocated, freed });
        Some(last)
    };
    callsite.history.iter().filter_map(sums_at).collect()
}

/// Matches each free with the latest allocations, because most blocks die young.
fn matched(sums: &[(u64, Sums)]) -> Vec<Allocation> {
    let mut live: Vec<Allocation> = Vec::new();
    let mut freed_allocations = Vec::new();
    let mut before = Sums::default();
    for &(time_ns, sums) in sums {
        let bytes = sums.allocated.saturating_sub(before.allocated);
        live.push(Allocation { from_ns: Some(time_ns), until_ns: None, bytes });
        let mut freed = sums.freed.saturating_sub(before.freed);
        while freed > 0
            && let Some(mut youngest) = live.pop()
        {
            let bytes = youngest.bytes.min(freed);
            freed -= bytes;
            freed_allocations.push(Allocation { until_ns: Some(time_ns), bytes, ..youngest });
            youngest.bytes -= bytes;
            if youngest.bytes > 0 {
                live.push(youngest);
            }
        }
        before = sums;
    }
    freed_allocations.append(&mut live);
    freed_allocations
}
