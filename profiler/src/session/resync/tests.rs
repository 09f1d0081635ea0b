//! When passes are due, what a reading is made of, and whole passes over books that have missed records.

use profiler_common::interval::Interval;
use proptest::prelude::*;

use super::*;
use crate::ids::{HookId, Tid};
use crate::ingest::event::{Allocation, Event, Free};
use crate::ledger::Ledger;

const PID: Pid = Pid(7);

fn at(ms: u64) -> MonotonicNanos {
    MonotonicNanos(ms * 1_000_000)
}

/// Milliseconds at which passes begin, of `until`, when losses rise at the times in `losses` and a pass takes `took`.
fn passes(losses: impl Fn(u64) -> bool, took: u64, until: u64) -> Vec<u64> {
    let (mut schedule, mut lost, mut began) = (Schedule::default(), 0, Vec::new());
    let mut ends = None;
    for ms in 0..until {
        lost += u64::from(losses(ms));
        schedule.lose(lost, at(ms));
        if ends == Some(ms) {
            schedule.end(Duration::from_millis(took));
            ends = None;
        }
        if ends.is_none() && schedule.is_due(at(ms)) {
            schedule.begin(at(ms));
            began.push(ms);
            ends = Some(ms + took);
        }
    }
    began
}

#[test]
fn without_losses_there_is_no_pass() {
    assert!(passes(|_| false, 10, 10_000).is_empty());
}

#[test]
fn one_burst_is_put_right_at_once_and_after_it_has_ended() {
    let began = passes(|ms| (1000..1100).contains(&ms), 10, 10_000);
    assert_eq!(began.first(), Some(&1000));
    let last = began.last().copied().unwrap_or(0);
    assert!((1100..1500).contains(&last), "{began:?}");
    assert!(began.len() <= 3, "{began:?}");
}

#[test]
fn while_losses_go_on_passes_take_a_tenth_of_the_time() {
    for took in [1, 30, 500] {
        let began = passes(|ms| ms < 60_000, took, 60_000);
        let share = began.len() as u64 * took;
        assert!(share <= 60_000 / 10 + took, "{} passes of {took} ms", began.len());
        assert!(began.len() >= 2);
        let after = passes(|ms| ms < 60_000, took, 70_000);
        let last = after.last().copied().unwrap_or(0);
        assert!((60_000..61_000).contains(&last), "one is due after the end, within a second: {last}");
    }
}

#[test]
fn a_pass_that_is_asked_for_is_made_once() {
    let mut schedule = Schedule::default();
    schedule.ask();
    assert!(schedule.is_due(at(1)) && !schedule.is_uncovered());
    schedule.begin(at(1));
    schedule.end(Duration::from_millis(1));
    assert!(!schedule.is_due(at(10_000)));
}

fn block(time: u64) -> LiveBlock {
    LiveBlock::new(100, time, 1, Interval::EXACT, 0)
}

#[test]
fn a_reading_parts_targets_from_strays_and_leaves_what_is_new() {
    let beginning = |program| Beginning { opened: Instant::now(), program: MonotonicNanos(program) };
    let targets = [(PID, beginning(0)), (Pid(8), beginning(5000))].into();
    let sieve = Sieve { since: MonotonicNanos(9000), targets, thinnings: Thinnings::new(1) };
    let mut reading = Reading::default();
    for (pid, address, time) in [(7, 16, 1000), (7, 32, 9000), (8, 48, 4000), (8, 64, 6000), (9, 80, 1000)] {
        assert!(reading.take(&sieve, Pid(pid), TargetAddr(address), block(time)), "nothing is thinned");
    }
    let live = |pid| reading.live(Pid(pid)).map(|block| block.address.0).collect::<Vec<_>>();
    assert_eq!((live(7), live(8), live(9)), (vec![16], vec![64], vec![]));
    assert_eq!(reading.strays, [(Pid(8), TargetAddr(48)), (Pid(9), TargetAddr(80))]);
    assert!(reading.is_recent(PID, TargetAddr(32)) && !reading.is_recent(PID, TargetAddr(16)));
    assert_eq!(reading.thinned(PID).count(), 0);
}

/// What a target does with one of a few addresses: allocates there, or frees, whichever is possible.
#[derive(Clone, Copy, Debug)]
struct Step {
    address: u64,
    /// Its record finds no room.
    is_lost: bool,
}

fn steps(count: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = (0u64..12, prop::bool::weighted(0.3));
    prop::collection::vec(step.prop_map(|(address, is_lost)| Step { address, is_lost }), 0..count)
}

fn carry_out(step: Step, time: u64, kernel: &mut BTreeMap<u64, LiveBlock>) -> Event {
    let address = TargetAddr(step.address);
    match kernel.remove(&step.address) {
        Some(block) => {
            let age_us = u32::try_from(time - block.time_ns() / 1000).unwrap_or(u32::MAX);
            Event::Free(Free { pid: PID, tid: Tid(1), address, time: MonotonicNanos(time * 1000), age_us })
        }
        None => {
            let size_bytes = 1 + time;
            let block = LiveBlock::new(size_bytes, time * 1000, time % 5, Interval::EXACT, 0);
            kernel.insert(step.address, block);
            Event::Alloc(Allocation {
                pid: PID,
                tid: Tid(1),
                address,
                size_bytes,
                time: MonotonicNanos(time * 1000),
                stack: StackId(time % 5),
                interval: Interval::EXACT,
                hook: HookId(0),
                heap: HeapId(0),
            })
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Records are lost, then none while a pass is made that reads each address at a moment of its own: afterwards the books have
    /// what is live, to the byte.
    #[test]
    fn after_a_pass_without_losses_the_books_are_right(
        before in steps(60),
        during in prop::collection::vec(0u64..12, 0..40),
        moments in prop::collection::vec(0usize..40, 12),
    ) {
        let (mut kernel, mut ledger) = (BTreeMap::new(), Ledger::new(PID));
        let mut time = 1;
        for step in before {
            let event = carry_out(step, time, &mut kernel);
            time += 1;
            if !step.is_lost {
                ledger.enter(event);
            }
        }
        let targets = [(PID, Beginning { opened: Instant::now(), program: MonotonicNanos(0) })].into();
        let sieve = Sieve { since: MonotonicNanos(time * 1000), targets, thinnings: Thinnings::new(1) };
        let (mut reading, mut touched) = (Reading::default(), FxHashSet::default());
        for moment in 0..=40 {
            for address in (0u64..).zip(&moments).filter(|(_, at)| **at == moment).map(|(address, _)| address) {
                if let Some(&block) = kernel.get(&address) {
                    reading.take(&sieve, PID, TargetAddr(address), block);
                }
            }
            let Some(&address) = during.get(moment) else { continue };
            ledger.enter(carry_out(Step { address, is_lost: false }, time, &mut kernel));
            touched.insert(TargetAddr(address));
            time += 1;
        }
        ledger.reconcile(reading.live(PID), |address| touched.contains(&address));
        let mut books: Vec<(u64, u64)> = ledger.live().map(|block| (block.address.0, block.size_bytes)).collect();
        books.sort_unstable();
        let truth: Vec<(u64, u64)> = kernel.iter().map(|(&address, block)| (address, block.size_bytes())).collect();
        prop_assert_eq!(books, truth);
        let bytes: u64 = kernel.values().map(LiveBlock::size_bytes).sum();
        prop_assert_eq!(ledger.totals().live_bytes(), crate::units::EstimatedBytes::exact(bytes));
    }
}
