//! Overload policy: doubles heaps' sampling intervals while ring buffer or live set fill, and later halves them again.
//!
//! Thins the live set when it fills. The effect of a step is predicted from the sizes of the sampled blocks: doubling T
//! keeps all blocks larger than T.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::{HeapId, Pid};
use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::ingest::event::Allocation;
use heapbpf_ledger::model::ChangeReason;
use profiler_common::interval::Interval;
use profiler_common::live::LiveBlock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverloadPolicy {
    Drop,
    /// Raise the interval, up to this maximum.
    Adapt(Interval),
}

impl OverloadPolicy {
    /// Binary logarithm of the largest interval in bytes that the kernel side may raise others to by itself; 0 if it may not.
    pub(super) fn back_pressure_max(self) -> u32 {
        match self {
            Self::Drop => 0,
            Self::Adapt(interval_max) => interval_max.bytes().max(1).ilog2(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) time: MonotonicNanos,
    pub(super) fill_bytes: u64,
    pub(super) ring_dropped: u64,
    pub(super) live_blocks: u64,
    pub(super) live_dropped: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RateChange {
    pub(super) time: MonotonicNanos,
    pub(super) heap: HeapId,
    pub(super) from: Interval,
    pub(super) to: Interval,
    pub(super) reason: ChangeReason,
}

#[derive(Debug)]
pub(super) struct Overload {
    pub(super) policy: OverloadPolicy,
    pub(super) ring_bytes: u64,
    pub(super) live_max: u64,
    heaps: Vec<Heap>,
    /// Traffic since the last congestion or rate change: the previous and the current period of [`PERIOD`].
    before: Traffic,
    now: Traffic,
    /// Highest bytes per second of a period and highest ring fill since the last congestion or rate change.
    rate_max: f64,
    fill_max: u64,
    ring_dropped: u64,
    live_dropped: u64,
    changed: MonotonicNanos,
    congested: MonotonicNanos,
    /// Time of the last halving, until a relapse.
    lowered: Option<MonotonicNanos>,
    thinned: Option<MonotonicNanos>,
    thin_period: Duration,
    patience: Duration,
}

#[derive(Debug)]
struct Heap {
    requested: Interval,
    now: Interval,
    largest: Interval,
    /// Whether all calls are recorded, whatever the rate.
    is_fixed: bool,
    /// Sizes sampled since the last congestion or rate change.
    sizes: Sizes,
}

/// Traffic through the ring buffer in a period.
#[derive(Clone, Copy, Debug, Default)]
struct Traffic {
    started: MonotonicNanos,
    bytes: u64,
    records: u64,
    dropped: u64,
}

pub(super) type LiveSizes = BTreeMap<(HeapId, Interval), Sizes>;

/// Longest expected pause between drains: the agent wakes at a quarter, but competes for CPUs and attaches probes.
const PAUSE: Duration = Duration::from_millis(100);

/// Minimum time to measure a rate. Also excludes records sampled before a rate change.
const SETTLE: Duration = Duration::from_millis(20);
const PERIOD: Duration = Duration::from_millis(100);

/// Quiet time required before the first halving, and between two halvings.
const PATIENCE: Duration = Duration::from_secs(3);
const PATIENCE_MAX: Duration = Duration::from_secs(120);
const PATIENCE_NEXT: Duration = Duration::from_secs(1);

/// Congestion within this time after a halving is attributed to it.
const RELAPSE: Duration = Duration::from_secs(10);

/// Minimum time between thinnings. Doubles after each one without effect: planning one scans all live blocks while the
/// ring buffer is not drained.
const THIN_PERIOD: Duration = Duration::from_millis(100);
const THIN_PERIOD_MAX: Duration = Duration::from_secs(10);

impl Overload {
    pub(super) fn new(time: MonotonicNanos) -> Self {
        let traffic = Traffic { started: time, ..Traffic::default() };
        Self {
            policy: OverloadPolicy::Drop,
            ring_bytes: 0,
            live_max: 0,
            heaps: Vec::new(),
            before: traffic,
            now: traffic,
            rate_max: 0.0,
            fill_max: 0,
            ring_dropped: 0,
            live_dropped: 0,
            changed: MonotonicNanos(0),
            congested: time,
            lowered: None,
            thinned: None,
            thin_period: THIN_PERIOD,
            patience: PATIENCE,
        }
    }

    pub(super) fn add_heap(&mut self, requested: Interval, is_fixed: bool) {
        self.heaps.push(Heap { requested, now: requested, largest: requested, is_fixed, sizes: Sizes::default() });
    }

    /// Changes the interval to which a heap falls back. Returns the interval to sample at, which is larger during
    /// overload.
    pub(super) fn request(&mut self, id: HeapId, requested: Interval) -> Interval {
        let Some(heap) = self.heaps.get_mut(usize::from(id.0)) else { return requested };
        heap.requested = requested;
        heap.now = heap.now.max(requested);
        heap.largest = heap.largest.max(heap.now);
        heap.now
    }

    pub(super) fn now(&self, heap: HeapId) -> Option<Interval> {
        self.heaps.get(usize::from(heap.0)).map(|heap| heap.now)
    }

    pub(super) fn largest(&self, heap: HeapId) -> Option<Interval> {
        self.heaps.get(usize::from(heap.0)).map(|heap| heap.largest)
    }

    pub(super) fn count_record(&mut self, bytes: usize) {
        const HEADER_BYTES: u64 = 8;
        self.now.bytes += HEADER_BYTES + bytes.next_multiple_of(8) as u64;
        self.now.records += 1;
    }

    pub(super) fn count_block(&mut self, heap: HeapId, size_bytes: u64) {
        if let Some(heap) = self.heaps.get_mut(usize::from(heap.0)) {
            heap.sizes.add(size_bytes);
        }
    }

    /// Returns a change of the interval if this block was sampled at a larger one than any before: the kernel side has raised it by
    /// itself.
    pub(super) fn note_back_pressure(&mut self, block: &Allocation) -> Option<RateChange> {
        let heap = self.heaps.get_mut(usize::from(block.heap.0))?;
        if block.interval.bytes() <= heap.largest.bytes() {
            return None;
        }
        heap.largest = block.interval;
        let reason = ChangeReason::RingFilling;
        Some(RateChange { time: block.time, heap: block.heap, from: heap.now, to: block.interval, reason })
    }

    /// Takes the current load and returns the rate changes that it requires; none with [`OverloadPolicy::Drop`].
    pub(super) fn observe(&mut self, load: &Load) -> Vec<RateChange> {
        let OverloadPolicy::Adapt(interval_max) = self.policy else { return Vec::new() };
        let dropped = load.ring_dropped.saturating_sub(self.ring_dropped);
        self.ring_dropped = self.ring_dropped.max(load.ring_dropped);
        self.now.dropped += dropped;
        self.fill_max = self.fill_max.max(load.fill_bytes);
        if dropped > 0 || load.fill_bytes > self.ring_bytes / 2 {
            self.congested = load.time;
            if load.time.since(self.changed) < SETTLE {
                return Vec::new();
            }
            let reason = if dropped > 0 { ChangeReason::RingFull } else { ChangeReason::RingFilling };
            return self.raise(load.time, interval_max, reason);
        }
        self.roll(load.time);
        self.lower(load)
    }

    pub(super) fn wants_thinning(&mut self, load: &Load) -> bool {
        let dropped = load.live_dropped > self.live_dropped;
        self.live_dropped = load.live_dropped;
        let due = self.thinned.is_none_or(|thinned| load.time.since(thinned) >= self.thin_period);
        let full = dropped || load.live_blocks > self.live_max / 10 * 9;
        if full {
            self.congested = load.time;
        }
        full && due && self.policy != OverloadPolicy::Drop
    }

    /// Returns the intervals, by heap, at which half of the live set remains, and the rate changes; both empty if
    /// thinning has no effect.
    pub(super) fn thin(&mut self, load: &Load, live: &LiveSizes) -> (Vec<(HeapId, Interval)>, Vec<RateChange>) {
        let OverloadPolicy::Adapt(interval_max) = self.policy else { return Default::default() };
        self.thinned = Some(load.time);
        let left = |heap: usize, to: Interval| -> f64 {
            let of_heap = live.iter().filter(|((id, _), _)| usize::from(id.0) == heap);
            of_heap.map(|(&(_, from), sizes)| sizes.expected(from, from.max(to))).sum()
        };
        #[expect(clippy::cast_precision_loss, reason = "a prediction")]
        let wanted = self.live_max as f64 / 2.0;
        let to = self.double_largest(interval_max, wanted, left);
        let ids = (0u8..).map(HeapId);
        let floors: Vec<(HeapId, Interval)> = ids
            .zip(to)
            .filter(|(id, to)| live.keys().any(|(heap, from)| heap == id && from.bytes() < to.bytes()))
            .collect();
        let longer = (self.thin_period * 2).min(THIN_PERIOD_MAX);
        self.thin_period = if floors.is_empty() { longer } else { THIN_PERIOD };
        let changes = floors
            .iter()
            .filter_map(|&(heap, to)| self.change(load.time, heap, to, ChangeReason::LiveSetFilling))
            .collect();
        (floors, changes)
    }

    fn raise(&mut self, time: MonotonicNanos, interval_max: Interval, reason: ChangeReason) -> Vec<RateChange> {
        let traffic = if time.since(self.now.started) < SETTLE { self.before.joined(&self.now) } else { self.now };
        let rate = traffic.bytes_per_second(time);
        // At most half of the current traffic, even if the measured rate looks sustainable: it was too much.
        let wanted = (self.rate_sustainable() / rate).min(0.5);
        let all: f64 = self.heaps.iter().map(|heap| heap.sizes.total()).sum();
        let left = |heap: usize, to: Interval| self.heaps[heap].sizes.expected(self.heaps[heap].now, to);
        let to = self.double_largest(interval_max, all * wanted, left);
        if self.lowered.is_some_and(|lowered| time.since(lowered) < RELAPSE) {
            self.patience = (self.patience * 2).min(PATIENCE_MAX);
            self.lowered = None;
        }
        (0u8..).map(HeapId).zip(to).filter_map(|(heap, to)| self.change(time, heap, to, reason)).collect()
    }

    /// Repeatedly doubles the interval of the heap with the most expected samples, until their sum is at most `wanted`.
    fn double_largest(
        &self,
        interval_max: Interval,
        wanted: f64,
        expected: impl Fn(usize, Interval) -> f64,
    ) -> Vec<Interval> {
        let mut to: Vec<Interval> = self.heaps.iter().map(|heap| heap.now).collect();
        loop {
            let left: Vec<f64> = to.iter().enumerate().map(|(heap, &to)| expected(heap, to)).collect();
            if left.iter().sum::<f64>() <= wanted {
                return to;
            }
            let can_rise = |heap: &usize| !self.heaps[*heap].is_fixed && to[*heap].bytes() < interval_max.bytes();
            let largest = (0..to.len()).filter(can_rise).max_by(|&a, &b| left[a].total_cmp(&left[b]));
            let Some(heap) = largest else { return to };
            to[heap] = Interval::nearest(to[heap].bytes().saturating_mul(2).min(interval_max.bytes()));
        }
    }

    fn lower(&mut self, load: &Load) -> Vec<RateChange> {
        let quiet = load.time.since(self.congested);
        if quiet < self.patience || load.time.since(self.changed) < PATIENCE_NEXT {
            return Vec::new();
        }
        let factor = |heap: &usize| self.heaps[*heap].now.bytes() / self.heaps[*heap].requested.bytes().max(1);
        let is_raised = |heap: &usize| self.heaps[*heap].now.bytes() > self.heaps[*heap].requested.bytes();
        let mut raised: Vec<usize> = (0..self.heaps.len()).filter(is_raised).collect();
        raised.sort_by_key(|heap| std::cmp::Reverse(factor(heap)));
        if raised.is_empty() {
            return Vec::new();
        }
        let half = |heap: usize| {
            let Heap { requested, now, .. } = self.heaps[heap];
            Interval::nearest((now.bytes() / 2).max(requested.bytes()))
        };
        let step =
            raised.into_iter().map(|heap| (heap, half(heap))).find(|&(heap, to)| self.is_sustainable(load, heap, to));
        let Some((heap, half)) = step else {
            self.start_over(load.time);
            self.changed = load.time;
            return Vec::new();
        };
        let Ok(id) = u8::try_from(heap) else { return Vec::new() };
        self.lowered = Some(load.time);
        self.change(load.time, HeapId(id), half, ChangeReason::Quiet).into_iter().collect()
    }

    fn is_sustainable(&self, load: &Load, heap: usize, to: Interval) -> bool {
        let Heap { now, ref sizes, .. } = self.heaps[heap];
        let all: f64 = self.heaps.iter().map(|heap| heap.sizes.total()).sum();
        let more = if all > 0.0 { 1.0 + (sizes.expected(now, to) - sizes.total()) / all } else { 2.0 };
        #[expect(clippy::cast_precision_loss, reason = "a prediction")]
        let (fill, ring) = (self.fill_max as f64 * more, self.ring_bytes as f64);
        self.rate_max * more <= self.rate_sustainable() / 2.0
            && fill <= ring / 4.0
            && load.live_blocks <= self.live_max / 10 * 4
    }

    fn change(&mut self, time: MonotonicNanos, id: HeapId, to: Interval, reason: ChangeReason) -> Option<RateChange> {
        let heap = self.heaps.get_mut(usize::from(id.0))?;
        let from = heap.now;
        if from == to {
            return None;
        }
        heap.now = to;
        heap.largest = heap.largest.max(to);
        self.changed = time;
        self.start_over(time);
        Some(RateChange { time, heap: id, from, to, reason })
    }

    fn start_over(&mut self, time: MonotonicNanos) {
        self.heaps.iter_mut().for_each(|heap| heap.sizes = Sizes::default());
        self.now = Traffic { started: time, ..Traffic::default() };
        self.before = self.now;
        (self.rate_max, self.fill_max) = (0.0, 0);
    }

    fn roll(&mut self, time: MonotonicNanos) {
        if time.since(self.now.started) >= PERIOD {
            self.rate_max = self.rate_max.max(self.now.bytes_per_second(time));
            self.before = std::mem::replace(&mut self.now, Traffic { started: time, ..Traffic::default() });
        }
    }

    /// Bytes per second that fill at most half of the ring buffer during a pause of the agent.
    #[expect(clippy::cast_precision_loss, reason = "a prediction")]
    fn rate_sustainable(&self) -> f64 {
        self.ring_bytes as f64 / 2.0 / PAUSE.as_secs_f64()
    }
}

impl Traffic {
    fn joined(&self, later: &Self) -> Self {
        Self {
            started: self.started,
            bytes: self.bytes + later.bytes,
            records: self.records + later.records,
            dropped: self.dropped + later.dropped,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a prediction")]
    fn bytes_per_second(&self, time: MonotonicNanos) -> f64 {
        let seconds = time.since(self.started).as_secs_f64().max(1e-3);
        let dropped = 1.0 + self.dropped as f64 / (self.records as f64).max(1.0);
        self.bytes as f64 * dropped / seconds
    }
}

/// Size classes, one per power of two: more than a block can have.
const SIZE_CLASSES: usize = 45;

/// Histogram of sampled block sizes, from which sample counts at other intervals are predicted.
#[derive(Clone, Debug)]
pub(super) struct Sizes {
    count: [u32; SIZE_CLASSES],
    bytes: [u64; SIZE_CLASSES],
}

impl Default for Sizes {
    fn default() -> Self {
        Self { count: [0; SIZE_CLASSES], bytes: [0; SIZE_CLASSES] }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a prediction")]
fn probability(size_bytes: u64, interval: Interval) -> f64 {
    let (size_bytes, interval_bytes) = (size_bytes.max(1), u64::from(interval.bytes()));
    if size_bytes >= interval_bytes { 1.0 } else { -(-(size_bytes as f64) / interval_bytes as f64).exp_m1() }
}

impl Sizes {
    pub(super) fn add(&mut self, size_bytes: u64) {
        let class = ((u64::BITS - size_bytes.leading_zeros()) as usize).min(SIZE_CLASSES - 1);
        self.count[class] = self.count[class].saturating_add(1);
        self.bytes[class] = self.bytes[class].saturating_add(size_bytes);
    }

    fn total(&self) -> f64 {
        self.count.iter().copied().map(f64::from).sum()
    }

    fn expected(&self, from: Interval, to: Interval) -> f64 {
        let classes = self.count.iter().zip(self.bytes).filter(|(count, _)| **count > 0);
        classes
            .map(|(&count, bytes)| {
                let size_bytes = bytes / u64::from(count);
                f64::from(count) * probability(size_bytes, to) / probability(size_bytes, from)
            })
            .sum()
    }
}

/// Thinning of the live set: a pure decision by the block and the intervals that its heap was thinned to.
///
/// A block of s bytes sampled at T₀ remains at T′ with probability p(s, T′) / p(s, T₀), and thus with p(s, T′) overall:
/// it has the weight and the variance of T′. The random number that decides belongs to the block, so thinning to T′ and
/// then to 2 T′ equals thinning once to 2 T′. The kernel's entries keep the interval that they were sampled at.
#[derive(Clone, Debug)]
pub(super) struct Thinnings {
    seed: u64,
    /// Thinnings of each heap, in order of time, with decreasing intervals. The largest interval of thinnings later
    /// than a block applies to it.
    floors: BTreeMap<HeapId, Vec<(MonotonicNanos, Interval)>>,
}

impl Thinnings {
    /// `seed` must not be known to targets.
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, floors: BTreeMap::new() }
    }

    /// Thins all blocks of a heap allocated before `time` to this interval. Calls must be in order of time.
    pub(super) fn thin(&mut self, heap: HeapId, time: MonotonicNanos, interval: Interval) {
        let floors = self.floors.entry(heap).or_default();
        floors.retain(|(_, earlier)| earlier.bytes() > interval.bytes());
        floors.push((time, interval));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.floors.is_empty()
    }

    /// Returns the interval that determines the block's weight; `None` if the block does not remain.
    pub(super) fn interval(&self, pid: Pid, address: TargetAddr, block: &LiveBlock) -> Option<Interval> {
        let sampled = block.interval();
        let Some(floors) = self.floors.get(&HeapId(block.heap())) else { return Some(sampled) };
        let covering = floors.iter().filter(|(time, _)| block.time_ns() < time.0).map(|(_, interval)| *interval);
        let Some(floor) = covering.max_by_key(|interval| interval.bytes()) else { return Some(sampled) };
        if floor.bytes() <= sampled.bytes() {
            return Some(sampled);
        }
        let remains = probability(block.size_bytes(), floor) / probability(block.size_bytes(), sampled);
        (self.random(pid, address, block) < remains).then_some(floor)
    }

    /// Interval of a block that a failed `realloc` restores to the live set, and that may have been thinned before.
    pub(super) fn of_restored(&self, block: &Allocation) -> Interval {
        let Allocation { pid, address, size_bytes, time, stack, interval, heap, .. } = *block;
        let live = LiveBlock::new(size_bytes, time.0, stack.0, interval, heap.0);
        self.interval(pid, address, &live).unwrap_or(interval)
    }

    /// Random number in [0, 1) of a block. Depends on the process: the copy of a block in a forked child must be
    /// sampled independently.
    #[expect(clippy::cast_precision_loss, reason = "53 bits")]
    fn random(&self, pid: Pid, address: TargetAddr, block: &LiveBlock) -> f64 {
        let mut state = self.seed;
        for word in [address.0, block.time_ns(), u64::from(pid.0)] {
            state = mixed(state ^ word);
        }
        (mixed(state) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// One step of `SplitMix64` (Steele, Lea and Flood, 2014): each output bit depends on all input bits.
fn mixed(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number that targets cannot guess: the standard library seeds hash maps from the system's random source.
pub(super) fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod thinning_tests;
