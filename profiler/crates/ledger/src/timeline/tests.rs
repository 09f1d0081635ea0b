//! Tests of points of a timeline against the state at their times.

use std::collections::BTreeMap;

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::{HeapId, HookId, Pid, StackId, Tid};
use profiler_common::interval::Interval;
use proptest::prelude::*;

use super::*;
use crate::ingest::event::{Allocation, Event, Free};

const SECOND: u64 = 1_000_000_000;
const PID: Pid = Pid(1);

#[expect(clippy::cast_precision_loss, reason = "small")]
fn holding(bytes: u64) -> Sample {
    let held = HeapUsage { live_bytes: bytes as f64, ..HeapUsage::default() };
    Sample { held, ..Sample::default() }
}

fn periodic(second: u64) -> TimelinePoint {
    TimelinePoint { time: MonotonicNanos(second * SECOND), trigger: None }
}

fn dump(second: u64, number: u32) -> TimelinePoint {
    TimelinePoint { time: MonotonicNanos(second * SECOND), trigger: Some(SampleTrigger::Dump(number)) }
}

/// Returns a timeline to which a point was added after each step if it was due.
fn noted(steps: &[Vec<u64>]) -> Timeline {
    let mut timeline = Timeline::default();
    for (second, bytes) in (0..).zip(steps) {
        let instant = periodic(second);
        if timeline.is_due(instant.time) {
            timeline.add(instant, bytes.iter().map(|&bytes| holding(bytes)));
        }
    }
    timeline
}

fn occasions(timeline: &Timeline) -> Vec<SampleTrigger> {
    timeline.points.iter().filter_map(|instant| instant.trigger).collect()
}

#[test]
fn constant_callsites_take_no_memory() {
    let timeline = noted(&vec![vec![7; 1000]; 50]);
    let before = timeline.memory_bytes();
    assert!(before < 1000 * (24 + 4 * 40) + 8192, "{before}");
    assert!(timeline.callsites.iter().all(|changes| changes.len() == 1));
}

#[test]
fn memory_of_a_changing_callsite_is_bounded() {
    let mut timeline = Timeline::default();
    for step in 0..10_000u32 {
        let second = u64::from(step);
        timeline.add(dump(second, step), std::iter::once(holding(second + 1)));
        if timeline.is_due(periodic(second).time) {
            timeline.add(periodic(second), std::iter::once(holding(second + 2)));
        }
    }
    assert!(timeline.callsites[0].len() <= 2 * POINTS_MAX);
    assert!(timeline.memory_bytes() <= 5 * 1024 + 4096, "{}", timeline.memory_bytes());
    assert!(timeline.is_sound());
}

#[test]
fn a_long_recording_has_few_evenly_spaced_points() {
    for seconds in [63, 64, 65, 128, 129, 1000, 86_400] {
        let timeline = noted(&(0..=seconds).map(|second| vec![second]).collect::<Vec<_>>());
        let apart: Vec<u64> = timeline.points.windows(2).map(|pair| pair[1].time.0 - pair[0].time.0).collect();
        assert!(apart.iter().all(|span| *span == apart[0]), "{apart:?}");
        let count = timeline.points.len();
        assert!(seconds < 64 || (32..=64).contains(&count), "{count} of {seconds}");
    }
}

#[test]
fn occasions_are_kept_when_periodic_points_are_dropped() {
    let mut timeline = Timeline::default();
    for second in 0..10_000u32 {
        let time = u64::from(second);
        if timeline.is_due(periodic(time).time) {
            timeline.add(periodic(time), std::iter::once(holding(time)));
        }
        if second % 200 == 7 {
            timeline.add(dump(time, second / 200), std::iter::once(holding(time)));
        }
    }
    let expected: Vec<_> = (0..50).map(SampleTrigger::Dump).collect();
    assert_eq!(occasions(&timeline), expected);
    let periodic = timeline.points.len() - expected.len();
    assert!((32..=64).contains(&periodic), "{periodic}");
}

#[test]
fn occasions_are_thinned_evenly_except_the_last() {
    let mut timeline = Timeline::default();
    for number in 0..1000 {
        timeline.add(dump(u64::from(number), number), std::iter::empty());
        let kept = occasions(&timeline);
        assert!(kept.len() <= POINTS_MAX);
        assert_eq!(kept.last(), Some(&SampleTrigger::Dump(number)));
        let numbers: Vec<u32> =
            kept.iter().map(|it| if let SampleTrigger::Dump(number) = it { *number } else { 0 }).collect();
        let even: Vec<u32> = numbers[..numbers.len() - 1].windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(even.iter().all(|apart| *apart == even[0]), "{numbers:?}");
        assert!(number < 64 || numbers.len() >= POINTS_MAX / 2, "{numbers:?}");
    }
}

/// An event of the target, with its stack or address.
#[derive(Clone, Copy, Debug)]
enum Act {
    Allocate { stack: u64, address: u64, size_bytes: u64 },
    Free { address: u64 },
    Look,
    Dump,
    Mark,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..4u64, 1..12u64, 1..1000u64)
            .prop_map(|(stack, address, size_bytes)| Act::Allocate { stack, address, size_bytes }),
        2 => (1..12u64).prop_map(|address| Act::Free { address }),
        3 => Just(Act::Look),
        1 => Just(Act::Dump),
        1 => Just(Act::Mark),
    ]
}

/// Reference implementation that keeps what callsites hold, by their stacks, without a ledger.
#[derive(Clone, Debug, Default)]
struct Naive {
    live: BTreeMap<u64, (u64, u64)>,
    made: BTreeMap<u64, (u64, u64)>,
}

impl Naive {
    #[expect(clippy::cast_precision_loss, reason = "small")]
    fn held(&self, stack: u64) -> HeapUsage {
        let live = self.live.values().filter(|(of, _)| *of == stack);
        let (made_count, made_bytes) = self.made.get(&stack).copied().unwrap_or_default();
        HeapUsage {
            live_bytes: live.clone().map(|(_, size_bytes)| size_bytes).sum::<u64>() as f64,
            live_count: live.count() as f64,
            alloc_bytes: made_bytes as f64,
            alloc_count: made_count as f64,
        }
    }
}

/// Enters the acts, one a second. Returns the timeline, and the naive state at each of its points.
fn played(acts: &[Act]) -> (Timeline, Vec<u64>, Vec<(TimelinePoint, Naive)>) {
    let (mut ledger, mut timeline) = (Ledger::new(PID), Timeline::default());
    let (mut naive, mut order, mut all) = (Naive::default(), Vec::new(), Vec::new());
    for (second, act) in (1..).zip(acts) {
        let time = MonotonicNanos(second * SECOND);
        let trigger = match *act {
            Act::Allocate { stack, address, size_bytes } => {
                let interval = Interval::EXACT;
                ledger.enter(Event::Alloc(Allocation {
                    pid: PID,
                    tid: Tid(1),
                    address: TargetAddr(address),
                    size_bytes,
                    time,
                    stack: StackId(stack),
                    interval,
                    hook: HookId(0),
                    heap: HeapId(0),
                    has_replaced: false,
                }));
                naive.live.insert(address, (stack, size_bytes));
                let made = naive.made.entry(stack).or_default();
                *made = (made.0 + 1, made.1 + size_bytes);
                if !order.contains(&stack) {
                    order.push(stack);
                }
                continue;
            }
            Act::Free { address } => {
                ledger.enter(Event::Free(Free {
                    pid: PID,
                    tid: Tid(1),
                    address: TargetAddr(address),
                    time,
                    age_us: 0,
                }));
                naive.live.remove(&address);
                continue;
            }
            Act::Look => None,
            Act::Dump => Some(SampleTrigger::Dump(u32::try_from(second).expect("small"))),
            Act::Mark => Some(SampleTrigger::Mark),
        };
        let instant = TimelinePoint { time, trigger };
        timeline.note(instant, &ledger);
        all.push((instant, naive.clone()));
    }
    (timeline, order, all)
}

proptest! {
    #[test]
    fn series_have_the_state_of_each_point(acts in prop::collection::vec(act(), 1..600)) {
        let (timeline, order, all) = played(&acts);
        prop_assert!(timeline.is_sound());
        let naive_at = |instant: &TimelinePoint| all.iter().find(|(known, _)| known == instant).map(|(_, naive)| naive);
        for (index, stack) in order.iter().enumerate() {
            let series: Vec<Sample> = timeline.series(index).collect();
            prop_assert_eq!(series.len(), timeline.points.len());
            for (instant, noted) in timeline.points.iter().zip(series) {
                prop_assert_eq!(noted.held, naive_at(instant).expect("it was noted").held(*stack), "at {:?}", instant);
            }
        }
        let there_were: Vec<TimelinePoint> = all.iter().map(|(it, _)| *it).filter(|it| it.trigger.is_some()).collect();
        let kept: Vec<TimelinePoint> = timeline.points.iter().copied().filter(|it| it.trigger.is_some()).collect();
        if there_were.len() <= POINTS_MAX {
            prop_assert_eq!(kept, there_were);
        } else {
            prop_assert_eq!(kept.last(), there_were.last());
        }
        prop_assert!(timeline.points.len() <= 2 * POINTS_MAX);
    }
}
