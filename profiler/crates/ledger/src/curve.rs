//! Totals of a target at evenly spaced points: at most 512, then every other one is dropped and the period doubles.
//! Depends on event timestamps alone, so that a session and the replay of its recording produce the same curve. A point
//! is the state after all events entered before the first later one; points of an idle period are added with the next
//! event. The peak is stored separately and never dropped.

use heapbpf_base::units::{Amounts, EstimatedBytes, EstimatedCount, MonotonicNanos};
use serde::{Deserialize, Serialize};

use super::totals::{HeapUsage, Totals};

pub(crate) const POINTS_MAX: usize = 512;
const PERIOD_NS: u64 = 10_000_000;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CurvePoint {
    pub time: MonotonicNanos,
    pub held: HeapUsage,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Curve {
    /// Time just before the first event.
    origin: MonotonicNanos,
    period_ns: u64,
    /// States at the origin and after each period.
    held: Vec<HeapUsage>,
    due: MonotonicNanos,
}

impl Default for Curve {
    fn default() -> Self {
        Self { origin: MonotonicNanos(0), period_ns: PERIOD_NS, held: Vec::new(), due: MonotonicNanos(0) }
    }
}

impl Curve {
    /// Whether points are due: [`advance`](Self::advance) must be called before an event of this time is entered.
    pub(crate) fn is_due(&self, time: MonotonicNanos) -> bool {
        time > self.due
    }

    /// Adds the points up to `time`, at which `held` was the state.
    pub(crate) fn advance(&mut self, time: MonotonicNanos, held: HeapUsage) {
        if self.held.is_empty() {
            self.origin = MonotonicNanos(time.0.saturating_sub(1));
            self.held.push(held);
        }
        // The grid either covers this time or has too many points for it.
        while self.index_of(time) >= POINTS_MAX {
            self.halve();
        }
        let count = self.index_of(time).max(self.held.len() - 1) + 1;
        if count > self.held.capacity() {
            let room = count.next_power_of_two().min(POINTS_MAX);
            self.held.reserve_exact(room - self.held.len());
        }
        self.held.resize(count, held);
        self.due = self.time_of(self.held.len());
    }

    /// Adds a block that has been live since before the origin.
    pub(super) fn raise(&mut self, block: &Amounts) {
        let (bytes, count) = (block.bytes.to_f64(), block.count.to_f64());
        for held in &mut self.held {
            held.live_bytes += bytes;
            held.live_count += count;
        }
    }

    fn index_of(&self, time: MonotonicNanos) -> usize {
        let since_ns = time.0.saturating_sub(self.origin.0).saturating_sub(1);
        usize::try_from(since_ns / self.period_ns).unwrap_or(usize::MAX)
    }

    fn time_of(&self, index: usize) -> MonotonicNanos {
        MonotonicNanos(self.origin.0.saturating_add(self.period_ns.saturating_mul(index as u64)))
    }

    fn halve(&mut self) {
        self.period_ns *= 2;
        let mut keeps = every_other();
        self.held.retain(|_| keeps());
    }

    /// All points up to `until`; the last one is the current state `held`. Points within an idle period are left out.
    pub(super) fn points(&self, until: MonotonicNanos, held: HeapUsage) -> Vec<CurvePoint> {
        let mut points: Vec<CurvePoint> = Vec::new();
        let past = (0..).zip(&self.held).map(|(index, &held)| CurvePoint { time: self.time_of(index), held });
        let due = (!self.held.is_empty()).then(|| CurvePoint { time: self.time_of(self.held.len()), held });
        let last = CurvePoint { time: until, held };
        for point in past.chain(due).filter(|point| point.time < until).chain([last]) {
            match points.as_mut_slice() {
                [.., before, last] if before.held == point.held && last.held == point.held => *last = point,
                _ => points.push(point),
            }
        }
        points
    }

    pub(crate) fn is_sound(&self) -> bool {
        self.held.len() <= POINTS_MAX
            && self.held.iter().all(HeapUsage::is_sound)
            && (PERIOD_NS..u64::MAX / 4).contains(&self.period_ns)
    }

    #[cfg(test)]
    pub(crate) fn memory_bytes(&self) -> usize {
        self.held.capacity() * size_of::<HeapUsage>()
    }
}

/// Returns a function that returns true at its first call, and then alternates.
pub(super) fn every_other() -> impl FnMut() -> bool {
    let mut keeps = false;
    move || {
        keeps = !keeps;
        keeps
    }
}

/// Totals other than live bytes at the peak of live bytes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct PeakDetails {
    live_count: EstimatedCount,
    alloc_bytes: EstimatedBytes,
    alloc_count: EstimatedCount,
}

impl PeakDetails {
    pub(super) fn of(totals: &Totals) -> Self {
        Self { live_count: totals.live_count(), alloc_bytes: totals.alloc_bytes, alloc_count: totals.alloc_count }
    }

    pub(super) fn at(&self, time: MonotonicNanos, live_bytes: EstimatedBytes) -> CurvePoint {
        let held = HeapUsage {
            live_bytes: live_bytes.to_f64(),
            live_count: self.live_count.to_f64(),
            alloc_bytes: self.alloc_bytes.to_f64(),
            alloc_count: self.alloc_count.to_f64(),
        };
        CurvePoint { time, held }
    }
}

#[cfg(test)]
mod tests;
