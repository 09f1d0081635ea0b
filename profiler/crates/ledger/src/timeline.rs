//! Usage of each callsite over the course of a recording, for reports (`symbolize/profile.rs`) and leak candidates.
//!
//! There are at most 64 periodic points: then every other one is dropped and the period doubles. There are at most 64 triggered
//! points (dumps and marks): then every other one is dropped, and every other one of the next is kept; the latest one is always
//! kept. The two kinds do not displace each other. Only changes are stored: 40 bytes each, 5 KiB per callsite at most.

use heapbpf_base::units::MonotonicNanos;
use serde::{Deserialize, Serialize};

use super::curve::every_other;
use super::ledger::Ledger;
use super::totals::{HeapUsage, Totals};

pub(crate) const POINTS_MAX: usize = 64;
const PERIOD_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelinePoint {
    pub time: MonotonicNanos,
    /// Cause of the point; `None` for a periodic point.
    pub trigger: Option<SampleTrigger>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SampleTrigger {
    /// The window with this number ended.
    Dump(u32),
    Mark,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    pub held: HeapUsage,
    pub live_variance: f32,
}

impl Sample {
    #[expect(clippy::cast_possible_truncation, reason = "seven digits of a variance are more than it is worth")]
    pub fn of(totals: &Totals) -> Self {
        Self { held: HeapUsage::of(totals), live_variance: totals.live_variance.bytes.to_f64() as f32 }
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Change {
    held: HeapUsage,
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
    points: Vec<TimelinePoint>,
    period_ns: u64,
    /// Number of triggered points, including dropped ones.
    triggered: u64,
    /// One of this many triggered points is kept, besides the latest.
    stride: u64,
    /// Changes of each callsite, by the callsite's index in the ledger.
    callsites: Vec<Vec<Change>>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { points: Vec::new(), period_ns: PERIOD_NS, triggered: 0, stride: 1, callsites: Vec::new() }
    }
}

impl Timeline {
    /// Adds a point on a trigger, or if a periodic point [is due](Self::is_due).
    pub fn note(&mut self, point: TimelinePoint, ledger: &Ledger) {
        if point.trigger.is_some() || self.is_due(point.time) {
            self.add(point, ledger.callsite_totals().map(Sample::of));
        }
    }

    pub fn is_due(&self, now: MonotonicNanos) -> bool {
        let last = self.points.iter().rev().find(|point| point.trigger.is_none());
        last.is_none_or(|last| now.0.saturating_sub(last.time.0) >= self.period_ns)
    }

    pub fn is_sound(&self) -> bool {
        let is_known = |change: &Change| usize::from(change.point) < self.points.len() && change.held.is_sound();
        self.count(true) <= POINTS_MAX
            && self.count(false) <= POINTS_MAX
            && self.points.is_sorted_by_key(|point| point.time)
            && self.period_ns < u64::MAX / 4
            && self.triggered < u64::MAX / 4
            && (1..u64::MAX / 4).contains(&self.stride)
            && self.callsites.iter().all(|changes| changes.is_sorted_by_key(|change| change.point))
            && self.callsites.iter().flatten().all(is_known)
    }

    fn count(&self, triggered: bool) -> usize {
        self.points.iter().filter(|point| point.trigger.is_some() == triggered).count()
    }

    /// Adds a point. `samples` are in the order of callsite indices.
    fn add(&mut self, mut point: TimelinePoint, samples: impl Iterator<Item = Sample>) {
        match point.trigger {
            Some(_) => self.make_room_for_triggered(),
            None => self.make_room(),
        }
        // The clock of a session is monotonic; a file may contain any time.
        point.time = point.time.max(self.points.last().map_or(MonotonicNanos(0), |last| last.time));
        #[expect(clippy::cast_possible_truncation, reason = "below twice POINTS_MAX")]
        let index = self.points.len() as u8;
        self.points.push(point);
        for (callsite, sample) in samples.enumerate() {
            if callsite == self.callsites.len() {
                self.callsites.push(Vec::new());
            }
            let changes = &mut self.callsites[callsite];
            match changes.last_mut() {
                Some(last) if last.sample() == sample => {}
                None if sample == Sample::default() => {}
                Some(last) if last.point == index => *last = Change::new(index, sample),
                _ => changes.push(Change::new(index, sample)),
            }
        }
    }

    fn make_room(&mut self) {
        if self.count(false) < POINTS_MAX {
            return;
        }
        self.period_ns = self.period_ns.saturating_mul(2);
        let mut keeps = every_other();
        self.retain(|point| point.trigger.is_some() || keeps());
    }

    /// Makes space for a triggered point. The previous point is kept only if it is on the stride.
    fn make_room_for_triggered(&mut self) {
        let number = self.triggered;
        self.triggered += 1;
        let last = self.points.iter().rposition(|point| point.trigger.is_some());
        if let Some(last) = last.filter(|_| !number.saturating_sub(1).is_multiple_of(self.stride)) {
            let mut index = 0..;
            self.retain(|_| index.next() != Some(last));
        }
        if self.count(true) == POINTS_MAX {
            self.stride = self.stride.saturating_mul(2);
            let mut keeps = every_other();
            self.retain(|point| point.trigger.is_none() || keeps());
        }
    }

    fn retain(&mut self, mut stays: impl FnMut(&TimelinePoint) -> bool) {
        // A change at a dropped point moves to the next kept point, which may be the one about to be added.
        let mut places = Vec::with_capacity(self.points.len());
        let mut kept = 0u8;
        self.points.retain(|point| {
            let stays = stays(point);
            places.push(kept);
            kept += u8::from(stays);
            stays
        });
        places.push(kept);
        for changes in &mut self.callsites {
            let mut thinned: Vec<Change> = Vec::with_capacity(changes.len() / 2 + 1);
            for change in changes.iter() {
                let change = Change { point: places[usize::from(change.point)], ..*change };
                match thinned.last_mut() {
                    Some(last) if last.point == change.point => *last = change,
                    _ => thinned.push(change),
                }
            }
            *changes = thinned;
        }
    }

    pub fn points(&self) -> &[TimelinePoint] {
        &self.points
    }

    pub fn series(&self, callsite: usize) -> impl Iterator<Item = Sample> {
        let mut changes = self.callsites.get(callsite).into_iter().flatten().peekable();
        let mut sample = Sample::default();
        (0..self.points.len()).map(move |point| {
            while let Some(change) = changes.next_if(|change| usize::from(change.point) <= point) {
                sample = change.sample();
            }
            sample
        })
    }

    /// Changes of a callsite: index of the point, and the state since, in ascending order.
    pub fn changes(&self, callsite: usize) -> impl Iterator<Item = (usize, HeapUsage)> {
        let changes = self.callsites.get(callsite).into_iter().flatten();
        changes.map(|change| (usize::from(change.point), change.held))
    }

    pub fn memory_bytes(&self) -> usize {
        let changes: usize = self.callsites.iter().map(|changes| changes.capacity() * size_of::<Change>()).sum();
        let lists = self.callsites.capacity() * size_of::<Vec<Change>>();
        changes + lists + self.points.capacity() * size_of::<TimelinePoint>()
    }
}

#[cfg(test)]
mod tests;
