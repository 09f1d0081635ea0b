//! Decides at which interval each heap is sampled while there is more than can be followed: up by doublings when the ring or the
//! live set fills, back by halves when it has been quiet. Pure: fed with times and numbers, it answers with intervals.
//!
//! What a step would bring is predicted from the sizes of what was sampled: to double T makes half as few of small blocks and no
//! fewer of those that are larger than T, so that a step of one doubling would often do nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use profiler_common::interval::Interval;

use crate::ids::HeapId;
use crate::model::ChangeReason;
use crate::units::MonotonicNanos;
pub(super) use sizes::{Sizes, chance};

mod sizes;

/// What to do when there is more than can be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverloadPolicy {
    /// Nothing: what finds no room is lost, and counted.
    Drop,
    /// Sample less, at intervals of at most this.
    Adapt(Interval),
}

/// What was found when the ring was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    /// When.
    pub(super) time: MonotonicNanos,
    /// Unread bytes in the ring before it was read.
    pub(super) fill_bytes: u64,
    /// Records that have found no room in the ring since the recording began.
    pub(super) ring_lost: u64,
    /// Blocks in the live set.
    pub(super) live_blocks: u64,
    /// Blocks that have found no room in it since the recording began.
    pub(super) live_lost: u64,
}

/// A heap's interval has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) time: MonotonicNanos,
    pub(super) heap: HeapId,
    pub(super) from: Interval,
    pub(super) to: Interval,
    pub(super) reason: ChangeReason,
}

#[derive(Debug)]
pub(super) struct Overload {
    policy: OverloadPolicy,
    ring_bytes: u64,
    live_max: u64,
    heaps: Vec<Heap>,
    /// What has come since the ring was last in trouble, or a rate last changed; in stretches, of which this is the last but one.
    before: Window,
    now: Window,
    /// The fastest that bytes came in a stretch since then, per second, and the fullest that the ring was.
    rate_max: f64,
    fill_max: u64,
    ring_lost: u64,
    live_lost: u64,
    /// When a rate last changed, and when there was trouble last.
    changed: MonotonicNanos,
    troubled: MonotonicNanos,
    fallen: Option<MonotonicNanos>,
    thinned: Option<MonotonicNanos>,
    /// After which time it may be thinned again.
    thin_period: Duration,
    patience: Duration,
}

#[derive(Debug)]
struct Heap {
    asked: Interval,
    now: Interval,
    largest: Interval,
    /// Its calls are all taken, whatever the rate.
    is_fixed: bool,
    /// What was sampled since trouble or a change.
    sizes: Sizes,
}

/// What has come through the ring in a stretch of time.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    began: MonotonicNanos,
    bytes: u64,
    records: u64,
    lost: u64,
}

/// How live blocks are spread: by heap and by the interval that they count with.
pub(super) type LiveSizes = BTreeMap<(HeapId, Interval), Sizes>;

/// The agent may be kept from reading for so long, and the ring is to have been half full at most: it wakes when a quarter is, but
/// others want the processors too, and placing probes takes its time.
const AWAY: Duration = Duration::from_millis(100);

/// What has come in less than this says nothing of a rate; nor do records that were drawn before the rate was changed.
const SETTLE: Duration = Duration::from_millis(20);

/// A stretch over which rates are taken.
const STRETCH: Duration = Duration::from_millis(100);

/// It must have been quiet for so long before the first step back, and for so long before the next.
const PATIENCE: Duration = Duration::from_secs(3);
const PATIENCE_MAX: Duration = Duration::from_secs(120);
const PATIENCE_NEXT: Duration = Duration::from_secs(1);

/// Trouble so soon after a step back is that step's doing.
const RELAPSE: Duration = Duration::from_secs(10);

/// Between two thinnings of the live set. Twice as long each time that one comes to nothing: to find that out, all live blocks are
/// looked at, while the ring is not read.
const THIN_PERIOD: Duration = Duration::from_millis(100);
const THIN_PERIOD_MAX: Duration = Duration::from_secs(10);

impl Overload {
    pub(super) fn new(policy: OverloadPolicy, ring_bytes: u32, live_max: u32, time: MonotonicNanos) -> Self {
        let window = Window { began: time, ..Window::default() };
        Self {
            policy,
            ring_bytes: u64::from(ring_bytes),
            live_max: u64::from(live_max),
            heaps: Vec::new(),
            before: window,
            now: window,
            rate_max: 0.0,
            fill_max: 0,
            ring_lost: 0,
            live_lost: 0,
            changed: MonotonicNanos(0),
            troubled: time,
            fallen: None,
            thinned: None,
            thin_period: THIN_PERIOD,
            patience: PATIENCE,
        }
    }

    /// How many heaps it knows.
    pub(super) fn heaps(&self) -> usize {
        self.heaps.len()
    }

    /// The next heap is sampled at this interval. `is_fixed` says that all its calls are taken whatever the rate.
    pub(super) fn add_heap(&mut self, asked: Interval, is_fixed: bool) {
        self.heaps.push(Heap { asked, now: asked, largest: asked, is_fixed, sizes: Sizes::default() });
    }

    /// A heap is asked to be sampled at another interval than before, by whoever limits what profiling may cost, and is now. Returns
    /// the interval that it is to be sampled at, if that is a larger one.
    pub(super) fn ask(&mut self, id: HeapId, asked: Interval) -> Option<Interval> {
        let heap = self.heaps.get_mut(usize::from(id.0)).filter(|heap| heap.asked != asked)?;
        heap.asked = asked;
        heap.now = heap.now.max(asked);
        heap.largest = heap.largest.max(heap.now);
        (heap.now != asked).then_some(heap.now)
    }

    /// The largest interval that a heap has had; `None` for one that is not known.
    pub(super) fn largest(&self, heap: HeapId) -> Option<Interval> {
        self.heaps.get(usize::from(heap.0)).map(|heap| heap.largest)
    }

    /// A record was read.
    pub(super) fn take_record(&mut self, bytes: usize) {
        const HEADER_BYTES: u64 = 8;
        self.now.bytes += HEADER_BYTES + bytes.next_multiple_of(8) as u64;
        self.now.records += 1;
    }

    /// A block was sampled.
    pub(super) fn take_block(&mut self, heap: HeapId, size_bytes: u64) {
        if let Some(heap) = self.heaps.get_mut(usize::from(heap.0)) {
            heap.sizes.add(size_bytes);
        }
    }

    /// Takes note of the load, and says which rates are to change for it. With [`Drop`](OverloadPolicy::Drop) none is.
    pub(super) fn observe(&mut self, load: &Load) -> Vec<Change> {
        let OverloadPolicy::Adapt(interval_max) = self.policy else { return Vec::new() };
        let lost = load.ring_lost.saturating_sub(self.ring_lost);
        self.ring_lost = self.ring_lost.max(load.ring_lost);
        self.now.lost += lost;
        self.fill_max = self.fill_max.max(load.fill_bytes);
        if lost > 0 || load.fill_bytes > self.ring_bytes / 2 {
            self.troubled = load.time;
            if since(self.changed, load.time) < SETTLE {
                return Vec::new();
            }
            let reason = if lost > 0 { ChangeReason::RingFull } else { ChangeReason::RingFilling };
            return self.raise(load.time, interval_max, reason);
        }
        self.roll(load.time);
        self.fall(load)
    }

    /// Whether the live set is to be thinned.
    pub(super) fn wants_thinning(&mut self, load: &Load) -> bool {
        let lost = load.live_lost > self.live_lost;
        self.live_lost = load.live_lost;
        let due = self.thinned.is_none_or(|thinned| since(thinned, load.time) >= self.thin_period);
        let full = lost || load.live_blocks > self.live_max / 10 * 9;
        if full {
            self.troubled = load.time;
        }
        full && due && self.policy != OverloadPolicy::Drop
    }

    /// The intervals to which the live set is to be thinned, so that about half of it is left, by heap; and the rates that are to
    /// change, because what is sampled from now on would fill it as before. None where that would come to nothing.
    pub(super) fn thin(&mut self, load: &Load, live: &LiveSizes) -> (Vec<(HeapId, Interval)>, Vec<Change>) {
        let OverloadPolicy::Adapt(interval_max) = self.policy else { return Default::default() };
        self.thinned = Some(load.time);
        let mut to: Vec<Interval> = self.heaps.iter().map(|heap| heap.now).collect();
        let left = |heap: usize, to: Interval| -> f64 {
            let of_heap = live.iter().filter(|((id, _), _)| usize::from(id.0) == heap);
            of_heap.map(|(&(_, from), sizes)| sizes.expected(from, from.max(to))).sum()
        };
        #[expect(clippy::cast_precision_loss, reason = "a prediction")]
        let wanted = self.live_max as f64 / 2.0;
        loop {
            let expected: Vec<f64> = to.iter().enumerate().map(|(heap, &to)| left(heap, to)).collect();
            if expected.iter().sum::<f64>() <= wanted {
                break;
            }
            let can_rise = |heap: &usize| !self.heaps[*heap].is_fixed && to[*heap].bytes() < interval_max.bytes();
            let Some(heap) = (0..to.len()).filter(can_rise).max_by(|&a, &b| expected[a].total_cmp(&expected[b])) else {
                break;
            };
            to[heap] = doubled(to[heap], interval_max);
        }
        let ids = (0u8..).map(HeapId);
        let floors: Vec<(HeapId, Interval)> = ids
            .zip(to)
            .filter(|(id, to)| live.keys().any(|(heap, from)| heap == id && from.bytes() < to.bytes()))
            .collect();
        let vain = (self.thin_period * 2).min(THIN_PERIOD_MAX);
        self.thin_period = if floors.is_empty() { vain } else { THIN_PERIOD };
        let changes = floors
            .iter()
            .filter_map(|&(heap, to)| self.change(load.time, heap, to, ChangeReason::LiveSetFilling))
            .collect();
        (floors, changes)
    }

    /// Doubles intervals until what comes is as little as it should be.
    fn raise(&mut self, time: MonotonicNanos, interval_max: Interval, reason: ChangeReason) -> Vec<Change> {
        let window = if since(self.now.began, time) < SETTLE { self.before.joined(&self.now) } else { self.now };
        let rate = window.bytes_per_second(time);
        // Half of what comes at least, however little it seems: there was no room for it.
        let wanted = (self.rate_bearable() / rate).min(0.5);
        let before: Vec<Interval> = self.heaps.iter().map(|heap| heap.now).collect();
        let expected = |heap: &Heap, to: Interval| heap.sizes.expected(heap.now, to);
        let all: f64 = self.heaps.iter().map(|heap| heap.sizes.total()).sum();
        let mut to = before.clone();
        loop {
            let left: Vec<f64> = self.heaps.iter().zip(&to).map(|(heap, &to)| expected(heap, to)).collect();
            if left.iter().sum::<f64>() <= all * wanted {
                break;
            }
            let can_rise = |heap: &usize| !self.heaps[*heap].is_fixed && to[*heap].bytes() < interval_max.bytes();
            let Some(heap) = (0..to.len()).filter(can_rise).max_by(|&a, &b| left[a].total_cmp(&left[b])) else { break };
            to[heap] = doubled(to[heap], interval_max);
        }
        if self.fallen.is_some_and(|fallen| since(fallen, time) < RELAPSE) {
            self.patience = (self.patience * 2).min(PATIENCE_MAX);
            self.fallen = None;
        }
        (0u8..).map(HeapId).zip(to).filter_map(|(heap, to)| self.change(time, heap, to, reason)).collect()
    }

    /// Takes one heap a step back, when it has been quiet for long and would stay so.
    fn fall(&mut self, load: &Load) -> Vec<Change> {
        let quiet = since(self.troubled, load.time);
        if quiet < self.patience || since(self.changed, load.time) < PATIENCE_NEXT {
            return Vec::new();
        }
        let factor = |heap: &usize| self.heaps[*heap].now.bytes() / self.heaps[*heap].asked.bytes().max(1);
        let is_raised = |heap: &usize| self.heaps[*heap].now.bytes() > self.heaps[*heap].asked.bytes();
        let mut raised: Vec<usize> = (0..self.heaps.len()).filter(is_raised).collect();
        raised.sort_by_key(|heap| std::cmp::Reverse(factor(heap)));
        if raised.is_empty() {
            return Vec::new();
        }
        let step =
            raised.into_iter().map(|heap| (heap, self.step_back(heap))).find(|&(heap, to)| self.bears(load, heap, to));
        let Some((heap, half)) = step else {
            // What it was like in the meantime is no longer of interest.
            self.start_over(load.time);
            self.changed = load.time;
            return Vec::new();
        };
        let Ok(id) = u8::try_from(heap) else { return Vec::new() };
        self.fallen = Some(load.time);
        self.change(load.time, HeapId(id), half, ChangeReason::Quiet).into_iter().collect()
    }

    /// Half of what a heap has, as far as that was asked for.
    fn step_back(&self, heap: usize) -> Interval {
        let Heap { asked, now, .. } = self.heaps[heap];
        Interval::nearest((now.bytes() / 2).max(asked.bytes()))
    }

    /// Whether there is room for what a heap would come to at this interval.
    fn bears(&self, load: &Load, heap: usize, to: Interval) -> bool {
        let Heap { now, ref sizes, .. } = self.heaps[heap];
        let all: f64 = self.heaps.iter().map(|heap| heap.sizes.total()).sum();
        let more = if all > 0.0 { 1.0 + (sizes.expected(now, to) - sizes.total()) / all } else { 2.0 };
        #[expect(clippy::cast_precision_loss, reason = "a prediction")]
        let (fill, ring) = (self.fill_max as f64 * more, self.ring_bytes as f64);
        self.rate_max * more <= self.rate_bearable() / 2.0
            && fill <= ring / 4.0
            && load.live_blocks <= self.live_max / 10 * 4
    }

    /// Sets a heap's interval, if it is another one.
    fn change(&mut self, time: MonotonicNanos, id: HeapId, to: Interval, reason: ChangeReason) -> Option<Change> {
        let heap = self.heaps.get_mut(usize::from(id.0))?;
        let from = heap.now;
        if from == to {
            return None;
        }
        heap.now = to;
        heap.largest = heap.largest.max(to);
        self.changed = time;
        self.start_over(time);
        Some(Change { time, heap: id, from, to, reason })
    }

    fn start_over(&mut self, time: MonotonicNanos) {
        self.heaps.iter_mut().for_each(|heap| heap.sizes = Sizes::default());
        self.now = Window { began: time, ..Window::default() };
        self.before = self.now;
        (self.rate_max, self.fill_max) = (0.0, 0);
    }

    /// Begins a new stretch when the last is over.
    fn roll(&mut self, time: MonotonicNanos) {
        if since(self.now.began, time) >= STRETCH {
            self.rate_max = self.rate_max.max(self.now.bytes_per_second(time));
            self.before = std::mem::replace(&mut self.now, Window { began: time, ..Window::default() });
        }
    }

    /// Bytes per second that leave half of the ring free when the agent is away.
    #[expect(clippy::cast_precision_loss, reason = "a prediction")]
    fn rate_bearable(&self) -> f64 {
        self.ring_bytes as f64 / 2.0 / AWAY.as_secs_f64()
    }
}

impl Window {
    fn joined(&self, later: &Self) -> Self {
        Self {
            began: self.began,
            bytes: self.bytes + later.bytes,
            records: self.records + later.records,
            lost: self.lost + later.lost,
        }
    }

    /// What came, with what found no room.
    #[expect(clippy::cast_precision_loss, reason = "a prediction")]
    fn bytes_per_second(&self, time: MonotonicNanos) -> f64 {
        let seconds = since(self.began, time).as_secs_f64().max(1e-3);
        let lost = 1.0 + self.lost as f64 / (self.records as f64).max(1.0);
        self.bytes as f64 * lost / seconds
    }
}

/// Twice the interval, as far as that goes.
fn doubled(interval: Interval, interval_max: Interval) -> Interval {
    Interval::nearest(interval.bytes().saturating_mul(2).min(interval_max.bytes()))
}

fn since(earlier: MonotonicNanos, later: MonotonicNanos) -> Duration {
    Duration::from_nanos(later.0.saturating_sub(earlier.0))
}

#[cfg(test)]
mod tests;
