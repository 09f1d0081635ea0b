//! The decisions, with a ring that is simulated millisecond by millisecond.

use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;

/// Bytes of a block's two records, headers with them.
const BLOCK_BYTES: f64 = 104.0;

/// A heap that makes so many blocks of 64 bytes, 1 KiB and 16 KiB each millisecond.
#[derive(Clone, Copy, Debug)]
struct Maker([f64; 3]);

const MADE_BYTES: [u64; 3] = [64, 1 << 10, 16 << 10];

/// A ring, those who fill it, and an agent that reads it.
struct Ring {
    overload: Overload,
    capacity: f64,
    fill: f64,
    lost: f64,
    ms: u64,
    read_at: u64,
    makers: Vec<Maker>,
    made: Vec<[f64; 3]>,
    changes: Vec<Change>,
    random: u64,
    live_blocks: u64,
}

impl Ring {
    fn new(capacity: u32, policy: OverloadPolicy, asked: u32, makers: Vec<Maker>) -> Self {
        let mut overload = Overload::new(policy, capacity, 1 << 20, MonotonicNanos(0));
        makers.iter().for_each(|_| overload.add_heap(Interval::nearest(asked), false));
        let made = vec![[0.0; 3]; makers.len()];
        let capacity = f64::from(capacity);
        Self {
            overload,
            capacity,
            fill: 0.0,
            lost: 0.0,
            ms: 0,
            read_at: 20,
            makers,
            made,
            changes: Vec::new(),
            random: 1,
            live_blocks: 0,
        }
    }

    /// A number below `below`.
    fn random(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    fn step(&mut self) {
        self.ms += 1;
        for (heap, maker) in self.makers.iter().enumerate() {
            let interval = self.overload.heaps[heap].now;
            for (made, (rate, size)) in self.made[heap].iter_mut().zip(maker.0.iter().zip(MADE_BYTES)) {
                let blocks = rate * chance(size, interval);
                let room = ((self.capacity - self.fill) / BLOCK_BYTES).max(0.0);
                *made += blocks.min(room);
                self.fill += blocks.min(room) * BLOCK_BYTES;
                self.lost += 2.0 * (blocks - room).max(0.0);
            }
        }
        // A quarter wakes the agent, which others may keep from running for a while.
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
            for (made, size) in self.made[heap].iter_mut().zip(MADE_BYTES) {
                let blocks = made.floor();
                *made -= blocks;
                for _ in 0..blocks as u64 {
                    self.overload.take_record(48);
                    self.overload.take_record(40);
                    self.overload.take_block(HeapId(heap as u8), size);
                }
            }
        }
        self.fill = 0.0;
        let time = MonotonicNanos(self.ms * MS);
        let load = Load { time, fill_bytes, ring_lost: self.lost as u64, live_blocks: self.live_blocks, live_lost: 0 };
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

/// Half a million small blocks a second.
const FLOOD: Maker = Maker([400.0, 90.0, 10.0]);
const TRICKLE: Maker = Maker([0.5, 0.05, 0.005]);

#[test]
fn a_flood_in_a_small_ring_is_met_within_a_second_and_once() {
    let mut ring = Ring::new(64 << 10, ADAPT, 1, vec![FLOOD]);
    ring.run(1000);
    let (lost, changes) = (ring.lost, ring.changes.len());
    assert!(lost > 0.0, "there is no room for what comes first");
    assert!(changes <= 5, "{:?}", ring.changes);
    ring.run(30_000);
    assert!(ring.lost <= lost, "{} are lost after the first second", ring.lost - lost);
    assert_eq!(ring.changes.len(), changes, "it swings: {:?}", ring.changes);
}

#[test]
fn when_the_flood_is_over_the_interval_is_what_was_asked_for() {
    let mut ring = Ring::new(64 << 10, ADAPT, 64, vec![FLOOD]);
    ring.run(5000);
    let raised = ring.intervals()[0];
    assert!(raised > 64, "{raised}");
    assert_eq!(ring.overload.largest(HeapId(0)), Some(Interval::nearest(raised)));
    ring.makers[0] = TRICKLE;
    ring.run(60_000);
    assert_eq!(ring.intervals(), [64]);
    let falls: Vec<&Change> = ring.changes.iter().filter(|change| change.reason == ChangeReason::Quiet).collect();
    assert!(falls.iter().all(|change| change.to.bytes() * 2 == change.from.bytes()), "{falls:?}");
    assert_eq!(ring.overload.largest(HeapId(0)), Some(Interval::nearest(raised)), "it was that large once");
}

#[test]
fn only_the_heap_that_floods_is_sampled_less() {
    let mut ring = Ring::new(64 << 10, ADAPT, 1, vec![TRICKLE, FLOOD]);
    ring.run(5000);
    let intervals = ring.intervals();
    assert_eq!(intervals[0], 1, "{intervals:?}");
    assert!(intervals[1] > 1, "{intervals:?}");
    assert!(ring.changes.iter().all(|change| change.heap == HeapId(1)));
}

#[test]
fn drop_changes_nothing() {
    let mut ring = Ring::new(64 << 10, OverloadPolicy::Drop, 1, vec![FLOOD]);
    ring.run(2000);
    assert!(ring.lost > 0.0);
    assert_eq!((ring.intervals(), ring.changes.len()), (vec![1], 0));
    let full = Load { time: MonotonicNanos(0), fill_bytes: 0, ring_lost: 0, live_blocks: 1 << 20, live_lost: 9 };
    assert!(!ring.overload.wants_thinning(&full));
}

#[test]
fn an_interval_that_others_raise_is_what_it_falls_back_to() {
    let mut overload = Overload::new(ADAPT, 1 << 20, 1 << 20, MonotonicNanos(0));
    overload.add_heap(Interval::EXACT, false);
    let [small, large] = [64, 4096].map(Interval::nearest);
    assert_eq!(overload.ask(HeapId(0), Interval::EXACT), None);
    assert_eq!(overload.ask(HeapId(0), small), None, "it is sampled at that already");
    assert_eq!(overload.largest(HeapId(0)), Some(small));
    overload.heaps[0].now = large;
    let asked = Interval::nearest(128);
    assert_eq!(overload.ask(HeapId(0), asked), Some(large), "it stays at what it was raised to");
    assert_eq!(overload.ask(HeapId(0), asked), None);
}

#[test]
fn a_ring_that_has_room_is_let_be() {
    let mut ring = Ring::new(16 << 20, ADAPT, 1, vec![FLOOD]);
    ring.run(10_000);
    assert_eq!((ring.lost, ring.changes.len()), (0.0, 0));
}

#[test]
fn a_load_that_comes_and_goes_has_it_fall_back_less_and_less_often() {
    let mut ring = Ring::new(64 << 10, ADAPT, 1, vec![TRICKLE]);
    let mut changes = Vec::new();
    for _ in 0..4 {
        let before = ring.changes.len();
        // Long enough in between to fall back a good deal.
        for _ in 0..10 {
            ring.makers[0] = FLOOD;
            ring.run(100);
            ring.makers[0] = TRICKLE;
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
fn a_live_set_that_is_nearly_full_is_thinned_by_half() {
    let mut overload = Overload::new(ADAPT, 16 << 20, 100_000, MonotonicNanos(0));
    overload.add_heap(Interval::EXACT, false);
    overload.add_heap(Interval::EXACT, false);
    let load = |live_blocks| Load { time: MonotonicNanos(MS), fill_bytes: 0, ring_lost: 0, live_blocks, live_lost: 0 };
    assert!(!overload.wants_thinning(&load(89_000)));
    assert!(overload.wants_thinning(&load(91_000)));
    let mut sizes = live(0, 1, &[(64, 90_000)]);
    sizes.extend(live(1, 1, &[(1 << 20, 1000)]));
    let (floors, changes) = overload.thin(&load(91_000), &sizes);
    let [(heap, interval)] = floors[..] else { panic!("{floors:?}") };
    let left = 90_000.0 * chance(64, interval);
    assert_eq!(heap, HeapId(0), "the other has few blocks");
    assert!((20_000.0..50_000.0).contains(&left), "{left}");
    assert_eq!(changes.len(), 1);
    assert_eq!((changes[0].to, changes[0].reason), (interval, ChangeReason::LiveSetFilling));
    assert!(!overload.wants_thinning(&load(91_000)), "not again at once");
}

#[test]
fn what_was_sampled_finer_is_thinned_to_what_holds_now() {
    let mut overload = Overload::new(ADAPT, 16 << 20, 100_000, MonotonicNanos(0));
    overload.add_heap(Interval::nearest(4096), false);
    let load = Load { time: MonotonicNanos(MS), fill_bytes: 0, ring_lost: 0, live_blocks: 95_000, live_lost: 0 };
    let (floors, changes) = overload.thin(&load, &live(0, 1, &[(64, 95_000)]));
    assert_eq!(floors, [(HeapId(0), Interval::nearest(4096))]);
    assert_eq!(changes, [], "the rate is that already");
}

#[test]
fn large_blocks_are_not_thinned_beyond_the_largest_interval() {
    let mut overload = Overload::new(ADAPT, 16 << 20, 1000, MonotonicNanos(0));
    overload.add_heap(Interval::EXACT, false);
    overload.add_heap(Interval::EXACT, true);
    let load = Load { time: MonotonicNanos(MS), fill_bytes: 0, ring_lost: 0, live_blocks: 1000, live_lost: 5 };
    let (floors, _) = overload.thin(&load, &live(0, 1, &[(64 << 20, 1000)]));
    assert_eq!(floors, [(HeapId(0), MAX)], "and no heap that is fixed");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Whatever comes: soon nothing is lost any more, and intervals stay between what was asked for and the largest.
    #[test]
    fn floods_of_all_kinds_are_met(
        rates in prop::collection::vec((0.0f64..600.0, 0.0f64..200.0, 0.0f64..20.0), 1..4),
        ring_pages in 4u32..10,
        asked in 0u32..14,
        seed in 1u64..,
    ) {
        let makers = rates.iter().map(|&(small, middle, large)| Maker([small, middle, large])).collect();
        let mut ring = Ring::new(4096 << ring_pages, ADAPT, 1 << asked, makers);
        ring.random = seed;
        ring.run(1000);
        let lost = ring.lost;
        ring.run(8000);
        prop_assert!(ring.lost <= lost, "{} lost, {:?}", ring.lost - lost, ring.changes);
        for heap in &ring.overload.heaps {
            prop_assert!((heap.asked..=MAX).contains(&heap.now));
            prop_assert!(heap.largest >= heap.now);
        }
        for change in &ring.changes {
            prop_assert_ne!(change.from, change.to);
        }
    }
}

#[test]
fn a_heap_that_must_stay_does_not_keep_others_from_falling_back() {
    // Of blocks that are sampled at any of these intervals, half as large a one brings nothing more; of small ones, twice as many.
    let mut overload = Overload::new(ADAPT, 64 << 10, 1 << 20, MonotonicNanos(0));
    overload.add_heap(Interval::EXACT, false);
    overload.add_heap(Interval::EXACT, false);
    (overload.heaps[0].now, overload.heaps[1].now) = (Interval::nearest(1 << 20), Interval::nearest(4));
    let mut changes = Vec::new();
    for ms in 0..10_000 {
        // A third of what is bearable, nearly all of it small blocks of the first heap.
        overload.take_record(80);
        overload.take_block(HeapId(u8::from(ms % 100 == 0)), 64);
        let load = Load { time: MonotonicNanos(ms * MS), fill_bytes: 0, ring_lost: 0, live_blocks: 0, live_lost: 0 };
        changes.extend(overload.observe(&load));
    }
    let intervals: Vec<u32> = overload.heaps.iter().map(|heap| heap.now.bytes()).collect();
    assert_eq!(intervals, [1 << 20, 1], "{changes:?}");
}

#[test]
fn thinning_that_comes_to_nothing_is_tried_less_and_less_often() {
    let mut overload = Overload::new(ADAPT, 16 << 20, 1000, MonotonicNanos(0));
    overload.add_heap(MAX, false);
    let mut looks = 0;
    for ms in 0..60_000 {
        let time = MonotonicNanos(ms * MS);
        let load = Load { time, fill_bytes: 0, ring_lost: 0, live_blocks: 1000, live_lost: ms };
        if overload.wants_thinning(&load) {
            looks += 1;
            assert_eq!(overload.thin(&load, &live(0, 16 << 20, &[(64 << 20, 1000)])), (vec![], vec![]));
        }
    }
    assert!((5..=20).contains(&looks), "all live blocks were looked at {looks} times in a minute");
}
