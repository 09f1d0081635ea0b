//! What a callsite did, as single allocations and frees that add up to it.
//!
//! The Firefox Profiler knows single blocks: one is retained if it was allocated and not freed. A callsite's sums are told
//! as few blocks, one for all that was allocated by the same instant and freed by the same other one.

use crate::model::history::Change;
use crate::model::{CallsiteProfile, Profile, TargetProfile};
use crate::report::{View, describe};
use crate::units::MonotonicNanos;

/// Bytes that were allocated and freed at the same times, in nanoseconds since the profile's beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// `None` for what was there before.
    pub(super) from_ns: Option<u64>,
    /// `None` for what is live.
    pub(super) until_ns: Option<u64>,
    pub(super) bytes: u64,
}

/// The time that a profile is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span<'a> {
    profile: &'a Profile,
    pub(super) start_unix_ns: u64,
    pub(super) duration_ns: u64,
}

impl<'a> Span<'a> {
    pub(super) fn of(profile: &'a Profile) -> Self {
        let start_unix_ns = profile.window.as_ref().map_or(profile.started_unix_ns, |window| window.start_unix_ns);
        Self { profile, start_unix_ns, duration_ns: describe::duration_ns(profile) }
    }

    /// Nanoseconds since its beginning; what was before or after is put at its ends.
    pub(super) fn since(&self, time: MonotonicNanos) -> u64 {
        self.profile.unix_ns(time).saturating_sub(self.start_unix_ns).min(self.duration_ns)
    }
}

/// A callsite's. Those that are live add up to its live bytes, those that begin to what it allocated, those that end to what it
/// freed. Only where more was there before than was freed, what is left of that counts as allocated: it has to be retained.
/// Of old blocks alone, young ones are left out.
pub(super) fn pieces(span: &Span, target: &TargetProfile, callsite: &CallsiteProfile) -> Vec<Piece> {
    let totals = &callsite.totals;
    let live = View::LiveBytes.of_callsite(callsite);
    let freed = totals.free_bytes.rounded();
    let temporary = totals.alloc_bytes.rounded().saturating_sub(live).min(freed);
    let whole = Sums { allocated: temporary.saturating_add(live), freed: temporary };
    let is_of_all = span.profile.window.is_none() && callsite.older.is_none() && totals.opening_bytes.rounded() == 0;
    let mut sums = if is_of_all { history(span, target, callsite, whole) } else { Vec::new() };
    if sums.is_empty() {
        // By its peak it had allocated most; where that is not known, or was elsewhere, from the beginning.
        let time_ns = totals.peak_time.map_or(0, |time| span.since(time));
        sums.push((time_ns, Sums { allocated: whole.allocated, freed: 0 }));
    }
    sums.push((span.duration_ns, whole));
    let mut pieces = matched(&sums);
    pieces.push(Piece { from_ns: None, until_ns: Some(span.duration_ns), bytes: freed - temporary });
    pieces.retain(|piece| piece.bytes > 0);
    pieces
}

/// Until a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    allocated: u64,
    freed: u64,
}

/// The callsite's sums at the instants at which they had changed: never less than before, never more than at the end.
fn history(span: &Span, target: &TargetProfile, callsite: &CallsiteProfile, whole: Sums) -> Vec<(u64, Sums)> {
    let mut last = (0, Sums::default());
    let sums_at = |change: &Change| {
        let instant = target.history.instants.get(change.instant as usize)?;
        let allocated = whole_number(change.held.alloc_bytes).clamp(last.1.allocated, whole.allocated);
        let freed = whole_number(change.held.alloc_bytes - change.held.live_bytes);
        let freed = freed.clamp(last.1.freed, whole.freed.max(last.1.freed)).min(allocated);
        last = (span.since(instant.time).max(last.0), Sums { allocated, freed });
        Some(last)
    };
    callsite.history.iter().filter_map(sums_at).collect()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates, and takes no number for 0"
)]
fn whole_number(amount: f64) -> u64 {
    amount.round() as u64
}

/// Frees end what was allocated last: most blocks die young.
fn matched(sums: &[(u64, Sums)]) -> Vec<Piece> {
    let mut live: Vec<Piece> = Vec::new();
    let mut ended = Vec::new();
    let mut before = Sums::default();
    for &(time_ns, sums) in sums {
        let bytes = sums.allocated.saturating_sub(before.allocated);
        live.push(Piece { from_ns: Some(time_ns), until_ns: None, bytes });
        let mut freed = sums.freed.saturating_sub(before.freed);
        while freed > 0
            && let Some(mut youngest) = live.pop()
        {
            let bytes = youngest.bytes.min(freed);
            freed -= bytes;
            ended.push(Piece { until_ns: Some(time_ns), bytes, ..youngest });
            youngest.bytes -= bytes;
            if youngest.bytes > 0 {
                live.push(youngest);
            }
        }
        before = sums;
    }
    ended.append(&mut live);
    ended
}
