//! What the callsites of one target held in the course of a recording, at few instants and in little memory.
//!
//! ```text
//!   times      0 s   1 s   2 s   3 s  …  at most 64; then every other one goes, and the next come half as often
//!   callsite 0  ●     ●                  changed at 0 s and 1 s only: it holds the same ever since
//!   callsite 1        ●     ●     ●
//! ```
//!
//! A callsite costs 16 bytes for each instant at which it had changed, 1 KiB at most; one that rests costs nothing more.

use serde::{Deserialize, Serialize};

use crate::ledger::Ledger;
use crate::ledger::totals::Totals;
use crate::units::MonotonicNanos;

/// Instants that are kept at most.
pub const POINTS_MAX: usize = 64;

/// Nanoseconds between the first instants.
const PERIOD_NS: u64 = 1_000_000_000;

/// What a callsite held at an instant, and since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// Bytes: an estimate.
    pub live_bytes: f32,
    /// The variance of that.
    pub live_variance: f32,
    /// Blocks allocated until then.
    pub alloc_count: f32,
}

impl Held {
    /// What these totals say of now.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "estimates; seven digits are more than they are worth")]
    pub fn of(totals: &Totals) -> Self {
        Self {
            live_bytes: totals.live_bytes().to_f64() as f32,
            live_variance: totals.live_variance.bytes.to_f64() as f32,
            alloc_count: totals.alloc_count.to_f64() as f32,
        }
    }
}

/// A change: at which instant, and what is held since.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Change {
    point: u8,
    held: Held,
}

const _: () = assert!(size_of::<Change>() == 16 && POINTS_MAX <= u8::MAX as usize + 1);

/// See the module.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Timeline {
    times: Vec<MonotonicNanos>,
    period_ns: u64,
    /// By the callsite's index in the books.
    callsites: Vec<Vec<Change>>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { times: Vec::new(), period_ns: PERIOD_NS, callsites: Vec::new() }
    }
}

impl Timeline {
    /// Notes what is held now, if it is time for that. Returns whether it was.
    pub fn note(&mut self, now: MonotonicNanos, ledger: &Ledger) -> bool {
        let is_due = self.is_due(now);
        if is_due {
            self.enter(now, ledger.callsite_totals().map(Held::of));
        }
        is_due
    }

    /// Whether it holds together: what was read from a file need not.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let points = self.times.len();
        let is_known = |change: &Change| usize::from(change.point) < points;
        points <= POINTS_MAX
            && self.times.is_sorted()
            && self.period_ns < u64::MAX / 4
            && self.callsites.iter().flatten().all(is_known)
    }

    fn is_due(&self, now: MonotonicNanos) -> bool {
        self.times.last().is_none_or(|last| now.0.saturating_sub(last.0) >= self.period_ns)
    }

    /// Enters what each callsite holds now, in the order of their indices.
    pub(super) fn enter(&mut self, now: MonotonicNanos, held: impl Iterator<Item = Held>) {
        if self.times.len() == POINTS_MAX {
            self.halve();
        }
        #[expect(clippy::cast_possible_truncation, reason = "below POINTS_MAX")]
        let point = self.times.len() as u8;
        self.times.push(now);
        for (index, held) in held.enumerate() {
            if index == self.callsites.len() {
                self.callsites.push(Vec::new());
            }
            let changes = &mut self.callsites[index];
            if changes.last().map_or(Held::default(), |last| last.held) != held {
                changes.push(Change { point, held });
            }
        }
    }

    /// Forgets every other instant.
    fn halve(&mut self) {
        let mut index = 0..;
        self.times.retain(|_| index.next().is_some_and(|index: usize| index.is_multiple_of(2)));
        self.period_ns *= 2;
        for changes in &mut self.callsites {
            let mut kept: Vec<Change> = Vec::with_capacity(changes.len() / 2 + 1);
            for change in changes.iter() {
                // What came at an instant that goes is there at the next that stays.
                let point = change.point.div_ceil(2);
                match kept.last_mut() {
                    Some(last) if last.point == point => last.held = change.held,
                    _ => kept.push(Change { point, held: change.held }),
                }
            }
            // A change after the last instant that stays belongs to one that is yet to come.
            *changes = kept;
        }
    }

    /// The instants.
    #[must_use]
    pub fn times(&self) -> &[MonotonicNanos] {
        &self.times
    }

    /// What a callsite held at each instant.
    pub fn series(&self, callsite: usize) -> impl Iterator<Item = Held> {
        let mut changes = self.callsites.get(callsite).map_or(&[][..], Vec::as_slice).iter().peekable();
        let mut held = Held::default();
        (0..self.times.len()).map(move |point| {
            while let Some(change) = changes.next_if(|change| usize::from(change.point) <= point) {
                held = change.held;
            }
            held
        })
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let changes: usize = self.callsites.iter().map(|changes| changes.capacity() * size_of::<Change>()).sum();
        changes + self.callsites.capacity() * size_of::<Vec<Change>>() + self.times.capacity() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    #[expect(clippy::cast_precision_loss, reason = "small")]
    fn held(bytes: u64) -> Held {
        Held { live_bytes: bytes as f32, ..Held::default() }
    }

    /// Has the timeline look at each instant, as a session does.
    fn noted(steps: &[Vec<u64>]) -> Timeline {
        let mut timeline = Timeline::default();
        for (second, bytes) in (0..).zip(steps) {
            let now = MonotonicNanos(second * SECOND);
            if timeline.is_due(now) {
                timeline.enter(now, bytes.iter().map(|&bytes| held(bytes)));
            }
        }
        timeline
    }

    #[test]
    fn what_does_not_change_takes_no_memory() {
        let timeline = noted(&vec![vec![7; 1000]; 50]);
        let before = timeline.memory_bytes();
        assert!(before < 1000 * (24 + 4 * 16) + 8192, "{before}");
        assert!(timeline.callsites.iter().all(|changes| changes.len() == 1));
    }

    #[test]
    fn a_long_recording_has_few_instants_evenly_apart() {
        for seconds in [63, 64, 65, 128, 129, 1000, 86_400] {
            let timeline = noted(&(0..=seconds).map(|second| vec![second]).collect::<Vec<_>>());
            let apart: Vec<u64> = timeline.times.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
            assert!(apart.iter().all(|span| *span == apart[0]), "{apart:?}");
            let count = timeline.times.len();
            assert!(seconds < 64 || (32..=64).contains(&count), "{count} of {seconds}");
        }
    }

    proptest! {
        #[test]
        fn each_instant_tells_what_was_held_then(
            steps in prop::collection::vec(prop::collection::vec(0u64..4, 3), 1..300)
        ) {
            let timeline = noted(&steps);
            prop_assert!(timeline.times.len() <= POINTS_MAX);
            for callsite in 0..3 {
                let series: Vec<Held> = timeline.series(callsite).collect();
                prop_assert_eq!(series.len(), timeline.times.len());
                for (time, held_then) in timeline.times.iter().zip(series) {
                    let step = &steps[usize::try_from(time.0 / SECOND).expect("small")];
                    prop_assert_eq!(held_then, held(step[callsite]), "at {:?}", time);
                }
            }
        }
    }
}
