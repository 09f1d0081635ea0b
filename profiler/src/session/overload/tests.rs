//! Tests of the overload policy on a ring buffer that is simulated millisecond by millisecond.

use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;

fn overload(policy: OverloadPolicy, ring_bytes: u32, live_max: u64) -> Overload {
    Overload { policy, ring_bytes: ring_bytes.into(), live_max, ..Overload::new(MonotonicNanos(0)) }
}

/// Size of the two records of a block, including their headers.
const BLOCK_BYTES: f64 = 104.0;

/// Workload that allocates this many blocks of 64 bytes, 1 KiB and 16 KiB per millisecond.
#[derive(Clone, Copy, Debug)]
struct Workload([f64; 3]);

const SIZES_BYTES: [u64; 3] = [64, 1 << 10, 16 << 10];

/// Ring buffer, the workloads that fill it, and an agent that drains it.
struct Ring {
    overload: Overload,
    capacity: f64,
    fill: f64,
    dropped: f64,
    ms: u64,
    read_at: u64,
    workloads: Vec<Workload>,
    made: Vec<[f64; 3]>,
    changes: Vec<RateChange>,
    random: u64,
    live_blocks: u64,
}

impl Ring {
    fn new(capacity: u32, policy: OverloadPolicy, requested: u32, workloads: Vec<Workload>) -> Self {
        let mut overload = overload(policy, capacity, 1 << 20);
        workloads.iter().for_each(|_| overload.add_heap(Interval::nearest(requested), false));
        let made = vec![[0.0; 3]; workloads.len()];
        let capacity = f64::from(capacity);
        Self {
            overload,
            capacity,
            fill: 0.0,
            dropped: 0.0,
            ms: 0,
            read_at: 20,
            workloads,
            made,
            changes: Vec::new(),
            random: 1,
            live_blocks: 0,
        }
    }

    /// Returns a random number below `below`.
    fn random(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    fn step(&mut self) {
        self.ms += 1;
        for (heap, workload) in self.workloads.iter().enumerate() {
            let interval = self.overload.heaps[heap].now;
            for (made, (rate, size)) in self.made[heap].iter_mut().zip(workload.0.iter().zip(SIZES_BYTES)) {
                let blocks = rate * probability(size, interval);
                let room = ((self.capacity - self.fill) / BLOCK_BYTES).max(0.0);
                *made += blocks.min(room);
                self.fill += blocks.min(room) * BLOCK_BYTES;
                self.dropped += 2.0 * (blocks - room).max(0.0);
            }
        }
        // The agent wakes at a quarter, after a scheduling delay.
        if self.fill >= self.capacity / 4.0 {
            let delay = self.random(6);
            self.read_at = self.read_at.min(self.ms + delay);
        }
        if self.ms >= self.read_at {
            self.read();
            self.read_at = self.ms + if self.random(200) == 0 { 60 } else { 20 };
        }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
    fn read(&mut self) {
        let fill_bytes = self.fill as u64;
        for heap in 0..self.made.len() {
            for (made, size) in self.made[heap].iter_mut().zip(SIZES_BYTES) {
                let blocks = made.floor();
                *made -= blocks;
                for _ in 0..blocks as u64 {
                    self.overload.count_record(48);
                    self.overload.count_record(40);
                    self.overload.count_block(HeapId(heap as u8), size);
                }
            }
        }
        self.fill = 0.0;
        let time = MonotonicNanos(self.ms * MS);
        let load = Load {
            time,
            fill_bytes,
            ring_dropped: self.dropped as u64,
            live_blocks: self.live_blocks,
            live_dropped: 0,
        };
        let changes = self.overload.observe(&load);
        self.changes.extend(changes);
    }

    fn run(&mut self, ms: u64) {
        (0..ms).for_each(|_| self.step());
    }

    fn intervals(&self) -> Vec<u32> {
        self.overload.heaps.iter().map(|heap| heap.now.bytes()).collect()
    }
}

const ADAPT: OverloadPolicy = OverloadPolicy::Adapt(MAX);
const MAX: Interval = Interval::nearest(16 << 20);

/// A workload of half a million small blocks a second.
const FLOOD: Workload = Workload([400.0, 90.0, 10.0]);
const TRICKLE: Workload = Workload([0.5, 0.05, 0.005]);

#[test]
fn a_flood_in_a_small_ring_settles_within_a_second() {
    let mut ring = Ring::new(64 << 10, ADAPT, 1, vec![FLOOD]);
    ring.run(1000);
    let (dropped, changes) = (ring.dropped, ring.changes.len());
    assert!(dropped > 0.0, "the first burst overflows the ring");
    assert!(changes <= 5, "{:?}", ring.changes);
    ring.run(30_000);
    assert!(ring.dropped <= dropped, "{} dropped after the first second", ring.dropped - dropped);
    assert_eq!(ring.changes.len(), changes, "the interval oscillates: {:?}", ring.changes);
}

#[test]
fn after_the_flood_the_interval_returns_to_the_requested_one() {
    let mut ring = Ring::new(64 << 10, ADAPT, 64, vec![FLOOD]);
    ring.run(5000);
    let raised = ring.intervals()[0];
    assert!(raised > 64, "{raised}");
    assert_eq!(ring.overload.largest(HeapId(0)), Some(Interval::nearest(raised)));
    ring.workloads[0] = TRICKLE;
    ring.run(60_000);
    assert_eq!(ring.intervals(), [64]);
    let lowered: Vec<&RateChange> = ring.changes.iter().filter(|change| change.reason == ChangeReason::Quiet).collect();
    assert!(lowered.iter().all(|change| change.to.bytes() * 2 == change.from.bytes()), "{lowered:?}");
    assert_eq!(ring.overload.largest(HeapId(0)), Some(Interval::nearest(raised)), "it was that large once");
}

#[test]
fn only_the_flooding_heap_is_sampled_less() {
    let mut ring = Ring::new(64 << 10, ADAPT, 1, vec![TRICKLE, FLOOD]);
    ring.run(5000);
    let intervals = ring.intervals();
    assert_eq!(intervals[0], 1, "{intervals:?}");
    assert!(intervals[1] > 1, "{intervals:?}");
    assert!(ring.changes.iter().all(|change| change.heap == HeapId(1)));
}

#[test]
fn the_drop_policy_changes_nothing() {
    let mut ring = Ring::new(64 << 10, OverloadPolicy::Drop, 1, vec![FLOOD]);
    ring.run(2000);
    assert!(ring.dropped > 0.0);
    assert_eq!((ring.intervals(), ring.changes.len()), (vec![1], 0));
    let full = Load { time: MonotonicNanos(0), fill_bytes: 0, ring_dropped: 0, live_blocks: 1 << 20, live_dropped: 9 };
    assert!(!ring.overload.wants_thinning(&full));
}

#[test]
fn intervals_fall_back_to_the_last_requested_one() {
    let mut overload = overload(ADAPT, 1 << 20, 1 << 20);
    overload.add_heap(Interval::EXACT, false);
    let [small, large] = [64, 4096].map(Interval::nearest);
    assert_eq!(overload.request(HeapId(0), Interval::EXACT), Interval::EXACT);
    assert_eq!(overload.request(HeapId(0), small), small);
    assert_eq!(overload.largest(HeapId(0)), Some(small));
    overload.heaps[0].now = large;
    let requested = Interval::nearest(128);
    assert_eq!(overload.request(HeapId(0), requested), large, "it stays at the raised interval");
    assert_eq!(overload.heaps[0].requested, requested);
}

#[test]
fn a_ring_with_room_changes_nothing() {
    let mut ring = Ring::new(16 << 20, ADAPT, 1, vec![FLOOD]);
    ring.run(10_000);
    assert_eq!((ring.dropped, ring.changes.len()), (0.0, 0));
}

#[test]
fn alternating_load_lowers_the_interval_less_and_less_often() {
    let mut ring = Ring::new(64 << 10, ADAPT, 1, vec![TRICKLE]);
    let mut changes = Vec::new();
    for _ in 0..4 {
        let before = ring.changes.len();
        // The quiet time in between is long enough for the interval to be lowered several times.
        for _ in 0..10 {
            ring.workloads[0] = FLOOD;
            ring.run(100);
            ring.workloads[0] = TRICKLE;
            ring.run(5900);
        }
        changes.push(ring.changes.len() - before);
    }
    assert!(changes[3] * 2 <= changes[0], "{changes:?}");
}

fn live(heap: u8, interval: u32, sizes: &[(u64, u32)]) -> LiveSizes {
    let mut all = Sizes::default();
    sizes.iter().for_each(|&(size, count)| (0..count).for_each(|_| all.add(size)));
    [((HeapId(heap), Interval::nearest(interval)), all)].into()
}

#[test]
fn a_nearly_full_live_set_is_thinned_by_half() {
    let mut overload = overload(ADAPT, 16 << 20, 100_000);
    overload.add_heap(Interval::EXACT, false);
    overload.add_heap(Interval::EXACT, false);
    let load =
        |live_blocks| Load { time: MonotonicNanos(MS), fill_bytes: 0, ring_dropped: 0, live_blocks, live_dropped: 0 };
    assert!(!overload.wants_thinning(&load(89_000)));
    assert!(overload.wants_thinning(&load(91_000)));
    let mut sizes = live(0, 1, &[(64, 90_000)]);
    sizes.extend(live(1, 1, &[(1 << 20, 1000)]));
    let (floors, changes) = overload.thin(&load(91_000), &sizes);
    let [(heap, interval)] = floors[..] else { panic!("{floors:?}") };
    let left = 90_000.0 * probability(64, interval);
    assert_eq!(heap, HeapId(0), "the other has few blocks");
    assert!((20_000.0..50_000.0).contains(&left), "{left}");
    assert_eq!(changes.len(), 1);
    assert_eq!((changes[0].to, changes[0].reason), (interval, ChangeReason::LiveSetFilling));
    assert!(!overload.wants_thinning(&load(91_000)), "not again at once");
}

#[test]
fn blocks_sampled_finer_are_thinned_to_the_current_interval() {
    let mut overload = overload(ADAPT, 16 << 20, 100_000);
    overload.add_heap(Interval::nearest(4096), false);
    let load = Load { time: MonotonicNanos(MS), fill_bytes: 0, ring_dropped: 0, live_blocks: 95_000, live_dropped: 0 };
    let (floors, changes) = overload.thin(&load, &live(0, 1, &[(64, 95_000)]));
    assert_eq!(floors, [(HeapId(0), Interval::nearest(4096))]);
    assert_eq!(changes, [], "the rate is that already");
}

#[test]
fn large_blocks_are_not_thinned_beyond_the_largest_interval() {
    let mut overload = overload(ADAPT, 16 << 20, 1000);
    overload.add_heap(Interval::EXACT, false);
    overload.add_heap(Interval::EXACT, true);
    let load = Load { time: MonotonicNanos(MS), fill_bytes: 0, ring_dropped: 0, live_blocks: 1000, live_dropped: 5 };
    let (floors, _) = overload.thin(&load, &live(0, 1, &[(64 << 20, 1000)]));
    assert_eq!(floors, [(HeapId(0), MAX)], "and no heap that is fixed");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Whatever the load, drops stop soon and intervals stay between the requested and the maximum one.
    #[test]
    fn arbitrary_floods_stop_dropping_records(
        rates in prop::collection::vec((0.0f64..600.0, 0.0f64..200.0, 0.0f64..20.0), 1..4),
        ring_pages in 4u32..10,
        requested in 0u32..14,
        seed in 1u64..,
    ) {
        let workloads = rates.iter().map(|&(small, middle, large)| Workload([small, middle, large])).collect();
        let mut ring = Ring::new(4096 << ring_pages, ADAPT, 1 << requested, workloads);
        ring.random = seed;
        ring.run(1000);
        let dropped = ring.dropped;
        ring.run(8000);
        prop_assert!(ring.dropped <= dropped, "{} dropped, {:?}", ring.dropped - dropped, ring.changes);
        for heap in &ring.overload.heaps {
            prop_assert!((heap.requested..=MAX).contains(&heap.now));
            prop_assert!(heap.largest >= heap.now);
        }
        for change in &ring.changes {
            prop_assert_ne!(change.from, change.to);
        }
    }
}

#[test]
fn a_heap_that_cannot_be_lowered_does_not_block_others() {
    // Halving the interval adds no samples of blocks larger than the interval, and doubles those of small ones.
    let mut overload = overload(ADAPT, 64 << 10, 1 << 20);
    overload.add_heap(Interval::EXACT, false);
    overload.add_heap(Interval::EXACT, false);
    (overload.heaps[0].now, overload.heaps[1].now) = (Interval::nearest(1 << 20), Interval::nearest(4));
    let mut changes = Vec::new();
    for ms in 0..10_000 {
        // The workload is a third of the sustainable rate, and nearly all of it is small blocks of the first heap.
        overload.count_record(80);
        overload.count_block(HeapId(u8::from(ms % 100 == 0)), 64);
        let load =
            Load { time: MonotonicNanos(ms * MS), fill_bytes: 0, ring_dropped: 0, live_blocks: 0, live_dropped: 0 };
        changes.extend(overload.observe(&load));
    }
    let intervals: Vec<u32> = overload.heaps.iter().map(|heap| heap.now.bytes()).collect();
    assert_eq!(intervals, [1 << 20, 1], "{changes:?}");
}

#[test]
fn ineffective_thinning_is_tried_less_and_less_often() {
    let mut overload = overload(ADAPT, 16 << 20, 1000);
    overload.add_heap(MAX, false);
    let mut scans = 0;
    for ms in 0..60_000 {
        let time = MonotonicNanos(ms * MS);
        let load = Load { time, fill_bytes: 0, ring_dropped: 0, live_blocks: 1000, live_dropped: ms };
        if overload.wants_thinning(&load) {
            scans += 1;
            assert_eq!(overload.thin(&load, &live(0, 16 << 20, &[(64 << 20, 1000)])), (vec![], vec![]));
        }
    }
    assert!((5..=20).contains(&scans), "all live blocks were scanned {scans} times in a minute");
}

#[test]
fn doubling_the_interval_halves_small_samples_and_keeps_large_ones() {
    let mut sizes = Sizes::default();
    (0..1000).for_each(|_| sizes.add(64));
    (0..10).for_each(|_| sizes.add(1 << 20));
    let at = |bytes| sizes.expected(Interval::EXACT, Interval::nearest(bytes));
    assert!((at(1) - 1010.0).abs() < 1e-9);
    assert!((at(64) - 1010.0).abs() < 1e-9, "at an interval of their size all are sampled");
    // The number is 1000 · (1 − e^(−1/64)), and ten blocks that are always sampled.
    assert!((at(4096) - 25.5).abs() < 0.1, "{}", at(4096));
    assert!((sizes.expected(Interval::nearest(4096), Interval::nearest(2048)) - 1994.5).abs() < 1.0);
}
