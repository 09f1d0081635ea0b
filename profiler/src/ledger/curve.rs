//! How the totals of a target went up and down, at evenly spaced moments and in little memory. By the times of events alone,
//! so that whoever enters the same events gets the same curve: a session and the replay of its recording.
//!
//! ```text
//!   first event ─ 10 ms ─ 20 ms ─ 30 ms ─ …  at most 512; then every other one goes, and the next come half as often
//! ```
//!
//! A moment tells what was held after all events that were entered before the first later one. Moments in which nothing
//! happened are entered with the next event. A target takes 32 bytes for each moment, 16 KiB at most.

use serde::{Deserialize, Serialize};

use super::held::Held;
use crate::units::MonotonicNanos;

/// Moments that are kept at most.
pub const MOMENTS_MAX: usize = 512;

/// Nanoseconds between the first moments.
const PERIOD_NS: u64 = 10_000_000;

/// The totals of a target at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moment {
    /// When.
    pub time: MonotonicNanos,
    /// What there was.
    pub held: Held,
}

/// See the module.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Curve {
    /// When the first event was.
    origin: MonotonicNanos,
    period_ns: u64,
    /// What there was at the origin, and each period later.
    held: Vec<Held>,
    /// An event that is later than this has a moment entered first.
    due: MonotonicNanos,
}

impl Default for Curve {
    fn default() -> Self {
        Self { origin: MonotonicNanos(0), period_ns: PERIOD_NS, held: Vec::new(), due: MonotonicNanos(0) }
    }
}

impl Curve {
    /// Whether [`pass`](Self::pass) is to be called before an event of this time is entered.
    #[must_use]
    pub fn is_due(&self, time: MonotonicNanos) -> bool {
        time > self.due
    }

    /// Time goes on to `time`, and until then this is held.
    pub fn pass(&mut self, time: MonotonicNanos, held: Held) {
        if self.held.is_empty() {
            self.origin = time;
            self.held.push(held);
        }
        // The grid is never behind: either moments are entered up to this time, or there is no room for so many.
        while self.index_of(time) >= MOMENTS_MAX {
            self.halve();
        }
        self.held.resize(self.index_of(time).max(self.held.len() - 1) + 1, held);
        self.due = self.time_of(self.held.len());
    }

    /// The place of the latest moment that is not behind a time, and earlier than it if an event has that.
    fn index_of(&self, time: MonotonicNanos) -> usize {
        let since_ns = time.0.saturating_sub(self.origin.0).saturating_sub(1);
        usize::try_from(since_ns / self.period_ns).unwrap_or(usize::MAX)
    }

    fn time_of(&self, index: usize) -> MonotonicNanos {
        MonotonicNanos(self.origin.0.saturating_add(self.period_ns.saturating_mul(index as u64)))
    }

    fn halve(&mut self) {
        self.period_ns *= 2;
        let mut index = 0..;
        self.held.retain(|_| index.next().is_some_and(|index: usize| index.is_multiple_of(2)));
    }

    /// The moments, of which those within a time without change are left out, up to `until`, when `held` is what there is.
    /// The last one is that.
    #[must_use]
    pub fn moments(&self, until: MonotonicNanos, held: Held) -> Vec<Moment> {
        let mut moments: Vec<Moment> = Vec::new();
        let noted = (0..).zip(&self.held).map(|(index, &held)| Moment { time: self.time_of(index), held });
        let due = Moment { time: self.due, held };
        let last = Moment { time: until, held };
        let due = (!self.held.is_empty()).then_some(due);
        for moment in noted.chain(due).filter(|moment| moment.time < until).chain([last]) {
            match moments.as_mut_slice() {
                [.., before, last] if before.held == moment.held && last.held == moment.held => *last = moment,
                _ => moments.push(moment),
            }
        }
        moments
    }

    /// Whether it holds together: what was read from a file need not.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.held.len() <= MOMENTS_MAX
            && self.held.iter().all(Held::is_sound)
            && (PERIOD_NS..u64::MAX / 4).contains(&self.period_ns)
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.held.capacity() * size_of::<Held>()
    }
}

#[cfg(test)]
mod tests;
