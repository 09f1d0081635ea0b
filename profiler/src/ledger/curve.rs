//! How the totals of a target went up and down, at evenly spaced moments and in little memory. By the times of events alone,
//! so that whoever enters the same events gets the same curve: a session and the replay of its recording.
//!
//! ```text
//!   first event ─ 10 ms ─ 20 ms ─ 30 ms ─ …  at most 512; then every other one goes, and the next come half as often
//! ```
//!
//! A moment tells what was held after all events that were entered before the first later one. Moments in which nothing
//! happened are entered with the next event. A target takes 32 bytes for each moment, 16 KiB at most. The highest moment is
//! kept by itself, so that it is there whatever is forgotten.

use serde::{Deserialize, Serialize};

use super::Ledger;
use super::held::Held;
use super::totals::Totals;
use crate::units::{EstimatedBytes, EstimatedCount, MonotonicNanos};

/// Moments that are kept at most.
pub(crate) const MOMENTS_MAX: usize = 512;

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

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Curve {
    /// Just before the first event.
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
    pub(crate) fn is_due(&self, time: MonotonicNanos) -> bool {
        time > self.due
    }

    /// Time goes on to `time`, and until then this is held.
    pub(crate) fn pass(&mut self, time: MonotonicNanos, held: Held) {
        if self.held.is_empty() {
            self.origin = MonotonicNanos(time.0.saturating_sub(1));
            self.held.push(held);
        }
        // The grid is never behind: either moments are entered up to this time, or there is no room for so many.
        while self.index_of(time) >= MOMENTS_MAX {
            self.halve();
        }
        let count = self.index_of(time).max(self.held.len() - 1) + 1;
        if count > self.held.capacity() {
            let room = count.next_power_of_two().min(MOMENTS_MAX);
            self.held.reserve_exact(room - self.held.len());
        }
        self.held.resize(count, held);
        self.due = self.time_of(self.held.len());
    }

    /// The place of the latest moment that is earlier than a time.
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
    fn moments(&self, until: MonotonicNanos, held: Held) -> Vec<Moment> {
        let mut moments: Vec<Moment> = Vec::new();
        let noted = (0..).zip(&self.held).map(|(index, &held)| Moment { time: self.time_of(index), held });
        let due = (!self.held.is_empty()).then(|| Moment { time: self.time_of(self.held.len()), held });
        let last = Moment { time: until, held };
        for moment in noted.chain(due).filter(|moment| moment.time < until).chain([last]) {
            match moments.as_mut_slice() {
                [.., before, last] if before.held == moment.held && last.held == moment.held => *last = moment,
                _ => moments.push(moment),
            }
        }
        moments
    }

    /// Whether it holds together: what was read from a file need not.
    pub(crate) fn is_sound(&self) -> bool {
        self.held.len() <= MOMENTS_MAX
            && self.held.iter().all(Held::is_sound)
            && (PERIOD_NS..u64::MAX / 4).contains(&self.period_ns)
    }

    /// Bytes that it takes.
    #[cfg(test)]
    pub(crate) fn memory_bytes(&self) -> usize {
        self.held.capacity() * size_of::<Held>()
    }
}

/// What there was beside live bytes when those were at their highest.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Highest {
    live_count: EstimatedCount,
    alloc_bytes: EstimatedBytes,
    alloc_count: EstimatedCount,
}

impl Highest {
    /// Now that these totals are higher than ever.
    pub(super) fn of(totals: &Totals) -> Self {
        Self { live_count: totals.live_count(), alloc_bytes: totals.alloc_bytes, alloc_count: totals.alloc_count }
    }

    /// Whether no sum is near the end of its number.
    pub(super) fn is_sound(&self) -> bool {
        self.live_count.is_sound() && self.alloc_bytes.is_sound() && self.alloc_count.is_sound()
    }
}

impl Ledger {
    /// Time goes on to that of the next event.
    #[inline]
    pub(super) fn pass(&mut self, time: MonotonicNanos) {
        if self.curve.is_due(time) {
            self.curve.pass(time, Held::of(&self.totals));
        }
        self.latest = self.latest.max(time);
    }

    /// What there was at evenly spaced moments since the first event, and at the peak, up to `until`, which is now, or when the
    /// books were closed. In the order of time, at most [`MOMENTS_MAX`] and 3; within a time without change there are none.
    pub fn moments(&self, until: MonotonicNanos) -> Vec<Moment> {
        let mut moments = self.curve.moments(until, Held::of(&self.totals));
        if let Some(peak) = self.highest_moment().filter(|peak| peak.time <= until) {
            let behind = moments.partition_point(|moment| moment.time < peak.time);
            if moments[behind..].first() != Some(&peak) {
                moments.insert(behind, peak);
            }
        }
        moments
    }

    /// The moment at which live bytes were at their highest; `None` when that was the beginning.
    fn highest_moment(&self) -> Option<Moment> {
        let held = Held {
            live_bytes: self.totals.peak_bytes.to_f64(),
            live_count: self.highest.live_count.to_f64(),
            alloc_bytes: self.highest.alloc_bytes.to_f64(),
            alloc_count: self.highest.alloc_count.to_f64(),
        };
        self.totals.peak_time.map(|time| Moment { time, held })
    }
}

#[cfg(test)]
mod tests;
