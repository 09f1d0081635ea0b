//! What the callsites of one target held over the course of a recording, at few points in time and with bounded
//! memory. Used by reports (`report/history.rs`) and leak candidates (`leak/growth.rs`).
//!
//! ```text
//!   periodic   0 s   1 s   2 s   3 s  …  at most 64; then every other one is dropped and the period doubles
//!   occasions           dump 1     mark  …  at most 64; then every other one is dropped, and of the next every other one is kept_count
//!   callsite 0  ●     ●                  changed at 0 s and 1 s only, constant since then
//!   callsite 1        ●     ●     ●
//! ```
//!
//! The two kinds do not displace each other. The latest occasion is always kept_count. A callsite takes 40 bytes for each
//! point at which it had changed, 5 KiB at most.

use serde::{Deserialize, Serialize};

use super::ledger::Ledger;
use super::totals::{Held, Totals};
use crate::units::MonotonicNanos;

/// Maximum number of periodic points, and of occasions.
pub(crate) const POINTS_MAX: usize = 64;

/// Initial period.
const PERIOD_NS: u64 = 1_000_000_000;

/// A point in time at which all callsites were sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instant {
    pub time: MonotonicNanos,
    /// `None` for a periodic point.
    pub occasion: Option<Occasion>,
}

/// Why callsites were sampled outside the period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Occasion {
    /// The window with this number ended.
    Dump(u32),
    Mark,
}

/// What a callsite holds, with the variance of the estimate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    pub held: Held,
    /// Variance of the live bytes.
    pub live_variance: f32,
}

impl Sample {
    #[expect(clippy::cast_possible_truncation, reason = "seven digits of a variance are more than it is worth")]
    pub fn of(totals: &Totals) -> Self {
        Self { held: Held::of(totals), live_variance: totals.live_variance.bytes.to_f64() as f32 }
    }
}

/// A change: the index of its point, and the state since.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Change {
    held: Held,
    live_variance: f32,
    point: u8,
}

impl Change {
    fn new(point: u8, Sample { held, live_variance }: Sample) -> Self {
        Self { held, live_variance, point }
    }

    fn sample(&self) -> Sample {
        Sample { held: self.held, live_variance: self.live_variance }
    }
}

const _: () = assert!(size_of::<Change>() == 40 && 2 * POINTS_MAX <= u8::MAX as usize + 1);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Timeline {
    instants: Vec<Instant>,
    period_ns: u64,
    /// Number of occasions so far, including dropped ones.
    occasions: u64,
    /// One of this many occasions is kept_count, besides the latest.
    stride: u64,
    /// By the callsite's index in the ledger.
    callsites: Vec<Vec<Change>>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { instants: Vec::new(), period_ns: PERIOD_NS, occasions: 0, stride: 1, callsites: Vec::new() }
    }
}

impl Timeline {
    /// Samples all callsites now: on an occasion, or if a periodic point [is due](Self::is_due).
    pub fn note(&mut self, instant: Instant, ledger: &Ledger) {
        if instant.occasion.is_some() || self.is_due(instant.time) {
            self.enter(instant, ledger.callsite_totals().map(Sample::of));
        }
    }

    /// Returns whether a periodic point is due.
    pub fn is_due(&self, now: MonotonicNanos) -> bool {
        let last = self.instants.iter().rev().find(|instant| instant.occasion.is_none());
        last.is_none_or(|last| now.0.saturating_sub(last.time.0) >= self.period_ns)
    }

    /// Validates a timeline that was read from a file.
    pub fn is_sound(&self) -> bool {
        let points = self.instants.len();
        let is_known = |change: &Change| usize::from(change.point) < points && change.held.is_sound();
        let occasions = self.instants.iter().filter(|instant| instant.occasion.is_some()).count();
        occasions <= POINTS_MAX
            && points - occasions <= POINTS_MAX
            && self.instants.is_sorted_by_key(|instant| instant.time)
            && self.period_ns < u64::MAX / 4
            && self.occasions < u64::MAX / 4
            && (1..u64::MAX / 4).contains(&self.stride)
            && self.callsites.iter().all(|changes| changes.is_sorted_by_key(|change| change.point))
            && self.callsites.iter().flatten().all(is_known)
    }

    /// Adds a point with the state of each callsite, in the order of their indices.
    fn enter(&mut self, mut instant: Instant, sample: impl Iterator<Item = Sample>) {
        match instant.occasion {
            Some(_) => self.make_room_for_occasion(),
            None => self.make_room(),
        }
        // The clock of a session is monotonic; a file may contain any time.
        instant.time = instant.time.max(self.instants.last().map_or(MonotonicNanos(0), |last| last.time));
        #[expect(clippy::cast_possible_truncation, reason = "below twice POINTS_MAX")]
        let point = self.instants.len() as u8;
        self.instants.push(instant);
        for (index, sample) in sample.enumerate() {
            if index == self.callsites.len() {
                self.callsites.push(Vec::new());
            }
            let changes = &mut self.callsites[index];
            match changes.last_mut() {
                Some(last) if last.sample() == sample => {}
                None if sample == Sample::default() => {}
                Some(last) if last.point == point => *last = Change::new(point, sample),
                _ => changes.push(Change::new(point, sample)),
            }
        }
    }

    /// Drops periodic points if there is no room for another one.
    fn make_room(&mut self) {
        let periodic = self.instants.iter().filter(|instant| instant.occasion.is_none()).count();
        if periodic < POINTS_MAX {
            return;
        }
        self.period_ns = self.period_ns.saturating_mul(2);
        let mut at = 0..;
        self.retain(|instant| instant.occasion.is_some() || at.next().is_some_and(|at: usize| at.is_multiple_of(2)));
    }

    /// Drops occasions if there is no room for another one. The previous one is kept_count only if it is on the stride.
    fn make_room_for_occasion(&mut self) {
        let number = self.occasions;
        self.occasions += 1;
        let last = self.instants.iter().rposition(|instant| instant.occasion.is_some());
        if let Some(last) = last.filter(|_| !number.saturating_sub(1).is_multiple_of(self.stride)) {
            let mut at = 0..;
            self.retain(|_| at.next() != Some(last));
        }
        if self.instants.iter().filter(|instant| instant.occasion.is_some()).count() == POINTS_MAX {
            self.stride = self.stride.saturating_mul(2);
            let mut at = 0..;
            self.retain(|instant| {
                instant.occasion.is_none() || at.next().is_some_and(|at: usize| at.is_multiple_of(2))
            });
        }
    }

    /// Drops points.
    fn retain(&mut self, mut stays: impl FnMut(&Instant) -> bool) {
        // A change at a dropped point moves to the next kept_count point, which may be the one about to be added.
        let mut points = Vec::with_capacity(self.instants.len());
        let mut kept_count = 0u8;
        self.instants.retain(|instant| {
            let stays = stays(instant);
            points.push(kept_count);
            kept_count += u8::from(stays);
            stays
        });
        points.push(kept_count);
        for changes in &mut self.callsites {
            let mut thinned: Vec<Change> = Vec::with_capacity(changes.len() / 2 + 1);
            for change in changes.iter() {
                let change = Change { point: points[usize::from(change.point)], ..*change };
                match thinned.last_mut() {
                    Some(last) if last.point == change.point => *last = change,
                    _ => thinned.push(change),
                }
            }
            *changes = thinned;
        }
    }

    pub fn instants(&self) -> &[Instant] {
        &self.instants
    }

    /// Returns the state of a callsite at each point.
    pub fn series(&self, callsite: usize) -> impl Iterator<Item = Sample> {
        let mut changes = self.callsites.get(callsite).map_or(&[][..], Vec::as_slice).iter().peekable();
        let mut sample = Sample::default();
        (0..self.instants.len()).map(move |point| {
            while let Some(change) = changes.next_if(|change| usize::from(change.point) <= point) {
                sample = change.sample();
            }
            sample
        })
    }

    /// Returns the changes of a callsite: index of the point, and the state since, in ascending order.
    pub fn changes(&self, callsite: usize) -> impl Iterator<Item = (usize, Held)> {
        let changes = self.callsites.get(callsite).map_or(&[][..], Vec::as_slice);
        changes.iter().map(|change| (usize::from(change.point), change.held))
    }

    pub fn memory_bytes(&self) -> usize {
        let changes: usize = self.callsites.iter().map(|changes| changes.capacity() * size_of::<Change>()).sum();
        let lists = self.callsites.capacity() * size_of::<Vec<Change>>();
        changes + lists + self.instants.capacity() * size_of::<Instant>()
    }
}

#[cfg(test)]
mod tests;
