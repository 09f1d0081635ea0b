//! Histories of synthetic programs against their ledgers at the same times.

use std::sync::Arc;

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::{HeapId, HookId, Pid, StackId, Tid};
use heapbpf_ledger::Ledger;
use heapbpf_ledger::ingest::event::{Allocation, Event, Free};
use heapbpf_ledger::model::{Beginning, Leaks};
use heapbpf_ledger::timeline::{SampleTrigger, Timeline};
use profiler_common::interval::Interval;

use super::super::*;
use crate::process::address_space::AddressSpace;
use crate::snapshot::TargetFacts;

const PID: Pid = Pid(1);
const SECOND: u64 = 1_000_000_000;

fn at(seconds: u64) -> MonotonicNanos {
    MonotonicNanos(seconds * SECOND)
}

/// A target as a session keeps it. Each second: a sample, its events, and a dump if requested.
struct Running {
    ledger: Ledger,
    timeline: Timeline,
    now: u64,
}

impl Running {
    fn new(ledger: Ledger) -> Self {
        Self { ledger, timeline: Timeline::default(), now: 100 }
    }

    fn look(&mut self) {
        self.now += 1;
        self.timeline.note(TimelinePoint { time: at(self.now), trigger: None }, &self.ledger);
    }

    fn allocate(&mut self, address: u64, size_bytes: u64, stack: u64) {
        self.ledger.enter(Event::Alloc(Allocation {
            pid: PID,
            tid: Tid(1),
            address: TargetAddr(address),
            size_bytes,
            time: MonotonicNanos(self.now * SECOND + 1),
            stack: StackId(stack),
            interval: Interval::EXACT,
            hook: HookId(0),
            heap: HeapId(0),
            has_replaced: false,
        }));
    }

    fn free(&mut self, address: u64) {
        let time = MonotonicNanos(self.now * SECOND + 2);
        self.ledger.enter(Event::Free(Free { pid: PID, tid: Tid(1), address: TargetAddr(address), time, age_us: 0 }));
    }

    /// A snapshot half a second later, the dump with this number.
    fn dump(&mut self, number: u32, base: Base) -> TargetState {
        let now = MonotonicNanos(self.now * SECOND + SECOND / 2);
        self.timeline.note(TimelinePoint { time: now, trigger: Some(SampleTrigger::Dump(number)) }, &self.ledger);
        self.state(now, base)
    }

    fn state(&self, until: MonotonicNanos, base: Base) -> TargetState {
        TargetState {
            threads: Arc::default(),
            facts: TargetFacts::running(PID, "app", "app", Beginning::running(at(100))),
            space: Arc::new(AddressSpace::new(PID)),
            heaps: Vec::new(),
            ledger: Arc::new(self.ledger.snapshot(until)),
            growths: Leaks::of(&self.timeline, &self.ledger, until, None),
            curve: self.ledger.curve_points(until),
            timeline: Arc::new(self.timeline.clone()),
            memory: Arc::default(),
            until,
            older: None,
            base,
        }
    }
}

/// What a callsite held at each point.
fn series(clip: &Clip<'_>, index: u32) -> Vec<HeapUsage> {
    let changes = clip.changes(index);
    assert!(changes.is_sorted_by_key(|change| change.instant));
    let held_at = |place: usize| {
        let before = changes.iter().rev().find(|change| change.instant as usize <= place);
        before.map(|change| change.held).unwrap_or_default()
    };
    (0..clip.instants.len()).map(held_at).collect()
}

fn since(later: HeapUsage, earlier: HeapUsage) -> (f64, f64) {
    (later.alloc_bytes - earlier.alloc_bytes, later.alloc_count - earlier.alloc_count)
}

fn place_of(clip: &Clip<'_>, number: u32) -> usize {
    let is_it = |instant: &TimelinePoint| instant.trigger == Some(SampleTrigger::Dump(number));
    clip.instants.iter().position(is_it).expect("the dump is a point")
}

/// Fails unless the points of two dumps agree with the window of the later one for each callsite.
#[track_caller]
fn check_window(clip: &Clip<'_>, window: &TargetSnapshot, places: [usize; 2]) {
    for callsite in &window.callsites {
        let series = series(clip, callsite.index);
        let [start, end] = places.map(|place| series[place]);
        let totals = &callsite.totals;
        assert_eq!((end.live_bytes, end.live_count), (totals.live_bytes().to_f64(), totals.live_count().to_f64()));
        assert_eq!(start.live_bytes, totals.opening_bytes.to_f64());
        assert_eq!(since(end, start), (totals.alloc_bytes.to_f64(), totals.alloc_count.to_f64()));
    }
}

#[test]
fn the_history_at_a_dump_agrees_with_its_window() {
    let mut running = Running::new(Ledger::new(PID));
    let mut base = Base::Beginning;
    let mut states = Vec::new();
    for number in 1..=30 {
        running.look();
        running.allocate(u64::from(number), 100 + u64::from(number), u64::from(number % 4));
        if number % 3 == 0 {
            running.free(u64::from(number / 3));
        }
        running.look();
        let state = running.dump(number, base);
        base = Base::At(Arc::clone(&state.ledger));
        states.push(state);
    }
    let end = running.state(at(running.now + 9), base);
    let whole = Clip::new(&end, None);
    assert_eq!(whole.instants[0], TimelinePoint { time: at(100), trigger: None });
    assert_eq!(whole.instants.last(), Some(&TimelinePoint { time: end.until, trigger: None }));
    for (number, pair) in (2..).zip(states.windows(2)) {
        let window = pair[1].ledger.since(&pair[0].ledger);
        check_window(&whole, &window, [place_of(&whole, number - 1), place_of(&whole, number)]);
        let own = Clip::new(&pair[1], Some(pair[0].until));
        check_window(&own, &window, [0, own.instants.len() - 1]);
        assert_eq!(
            own.instants[0],
            TimelinePoint { time: pair[0].until, trigger: Some(SampleTrigger::Dump(number - 1)) }
        );
        assert_eq!(place_of(&own, number), own.instants.len() - 1);
        assert_eq!(own.instants.len(), 4, "both dumps and two looks");
        let curve = own.curve();
        let totals = [&pair[0], &pair[1]].map(|state| HeapUsage::of(&state.ledger.totals));
        assert_eq!([curve[0], curve[curve.len() - 1]].map(|moment| moment.held), totals);
        assert_eq!([curve[0], curve[curve.len() - 1]].map(|moment| moment.time), [pair[0].until, pair[1].until]);
        assert!(curve.is_sorted_by_key(|moment| moment.time));
    }
}

#[test]
fn a_change_and_its_reversal_are_both_recorded() {
    let mut running = Running::new(Ledger::new(PID));
    running.allocate(1, 10, 7);
    running.look();
    running.allocate(2, 5, 7);
    // No point is added here: the state is in the window's base alone.
    let start = MonotonicNanos(running.now * SECOND + SECOND / 2);
    let base = running.state(start, Base::Beginning).ledger;
    running.free(2);
    running.look();
    let end = running.state(at(running.now), Base::At(base));
    let clip = Clip::new(&end, Some(start));
    let live: Vec<f64> = series(&clip, 0).iter().map(|held| held.live_bytes).collect();
    assert_eq!((clip.instants.len(), live), (2, vec![15.0, 10.0]));
}

#[test]
fn inherited_blocks_are_held_from_the_start() {
    let mut parent = Running::new(Ledger::new(Pid(9)));
    parent.allocate(1, 1000, 7);
    let mut child = Running::new(parent.ledger.fork(PID));
    child.look();
    child.free(1);
    child.look();
    let state = child.state(at(200), Base::Beginning);
    let clip = Clip::new(&state, None);
    let live: Vec<f64> = series(&clip, 0).iter().map(|held| held.live_bytes).collect();
    assert_eq!(live, [1000.0, 1000.0, 0.0, 0.0], "the beginning, both looks, and the end");
    assert!(series(&clip, 0).iter().all(|held| held.alloc_count == 0.0), "the parent made it");
    let curve = clip.curve();
    assert_eq!((curve[0].time, curve[0].held.live_bytes), (at(100), 1000.0));
    assert_eq!(curve[curve.len() - 1], CurvePoint { time: at(200), held: HeapUsage::default() });
}

#[test]
fn a_history_ends_with_its_target() {
    let mut running = Running::new(Ledger::new(PID));
    running.allocate(1, 10, 7);
    running.look();
    let closed = at(running.now + 1);
    running.ledger.close(closed);
    let state = running.state(closed, Base::Beginning);
    let clip = Clip::new(&state, None);
    assert_eq!(clip.instants.last().map(|instant| instant.time), Some(closed));
    assert_eq!(clip.curve().last().map(|moment| (moment.time, moment.held.live_bytes)), Some((closed, 10.0)));
}

#[test]
fn an_idle_target_has_a_start_and_an_end() {
    let state = Running::new(Ledger::new(PID)).state(at(150), Base::Beginning);
    let clip = Clip::new(&state, None);
    let history = History { curve: clip.curve(), instants: clip.instants };
    let moment = |time| CurvePoint { time, held: HeapUsage::default() };
    assert_eq!(history.curve, [moment(at(100)), moment(at(150))]);
    assert_eq!(history.instants, [at(100), at(150)].map(|time| TimelinePoint { time, trigger: None }));
}
