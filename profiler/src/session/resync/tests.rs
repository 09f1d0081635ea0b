//! Tests of the schedule of passes, of the classification of blocks, and of whole passes over ledgers with dropped records.

use heapbpf_base::ids::{HookId, Tid};
use heapbpf_ledger::Ledger;
use heapbpf_ledger::ingest::event::{Allocation, Event, Free};
use profiler_common::interval::Interval;
use proptest::prelude::*;

use super::*;

const PID: Pid = Pid(7);

fn at(ms: u64) -> MonotonicNanos {
    MonotonicNanos(ms * 1_000_000)
}

/// Returns the milliseconds until `until` at which passes begin, when records are dropped at the times in `drops` and a pass
/// takes `took`.
fn passes(drops: impl Fn(u64) -> bool, took: u64, until: u64) -> Vec<u64> {
    let (mut schedule, mut dropped, mut began) = (Schedule::default(), 0, Vec::new());
    let mut ends = None;
    for ms in 0..until {
        dropped += u64::from(drops(ms));
        schedule.note_drops(dropped, at(ms));
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
fn without_drops_there_is_no_pass() {
    assert!(passes(|_| false, 10, 10_000).is_empty());
}

#[test]
fn one_burst_is_resynced_at_once_and_after_it_has_ended() {
    let began = passes(|ms| (1000..1100).contains(&ms), 10, 10_000);
    assert_eq!(began.first(), Some(&1000));
    let last = began.last().copied().unwrap_or(0);
    assert!((1349..1750).contains(&last), "{began:?}");
    assert!(began.len() <= 4, "{began:?}");
}

#[test]
fn during_drops_passes_take_a_tenth_of_the_time() {
    for took in [1, 30, 500] {
        let began = passes(|ms| ms < 60_000, took, 60_000);
        let share = began.len() as u64 * took;
        assert!(share <= 60_000 / 10 + took, "{} passes of {took} ms", began.len());
        assert!(began.len() >= 2);
        let after = passes(|ms| ms < 60_000, took, 70_000);
        let last = after.last().copied().unwrap_or(0);
        assert!((60_249..61_000).contains(&last), "one is due after the end, within a second: {last}");
    }
}

#[test]
fn a_requested_pass_is_made_once() {
    let mut schedule = Schedule { requested: true, ..Schedule::default() };
    assert!(schedule.is_due(at(1)) && !schedule.is_needed());
    schedule.begin(at(1));
    schedule.end(Duration::from_millis(1));
    assert!(!schedule.is_due(at(10_000)));
}

fn block(time: u64) -> LiveBlock {
    LiveBlock::new(100, time, 1, Interval::EXACT, 0)
}

#[test]
fn a_reading_separates_targets_strays_and_recent_blocks() {
    let program = |started| Program { opened: Instant::now(), started: MonotonicNanos(started) };
    let targets = [(PID, program(0)), (Pid(8), program(5000))].into();
    let sieve = Sieve { since: MonotonicNanos(9000), targets, thinnings: Thinnings::new(1) };
    let mut reading = Reading::default();
    for (pid, address, time) in [(7, 16, 1000), (7, 32, 9000), (8, 48, 4000), (8, 64, 6000), (9, 80, 1000)] {
        assert!(reading.take(&sieve, Pid(pid), TargetAddr(address), block(time)), "nothing is thinned");
    }
    let live = |pid| reading.live(Pid(pid)).map(|block| block.address.0).collect::<Vec<_>>();
    assert_eq!((live(7), live(8), live(9)), (vec![16], vec![64], vec![]));
    assert_eq!(reading.strays, [(Pid(8), TargetAddr(48)), (Pid(9), TargetAddr(80))]);
    assert!(reading.recent.contains(&(PID, TargetAddr(32))) && !reading.recent.contains(&(PID, TargetAddr(16))));
    assert_eq!(reading.thinned(PID).count(), 0);
}

/// An allocation at one of a few addresses, or the free of the block there.
#[derive(Clone, Copy, Debug)]
struct Step {
    address: u64,
    is_dropped: bool,
}

fn steps(count: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = (1u64..13, prop::bool::weighted(0.3));
    prop::collection::vec(step.prop_map(|(address, is_dropped)| Step { address, is_dropped }), 0..count)
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
                has_replaced: false,
            })
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Records are dropped, and others are still in the ring buffer when a pass begins, which reads each address at a different time:
    /// afterwards the ledger has exactly the live blocks. Among those in the ring buffer, records are dropped only if the pass
    /// begins late enough.
    #[test]
    fn after_a_pass_without_drops_the_ledger_equals_the_live_set(
        before in steps(60),
        waiting in steps(40),
        is_late: bool,
        during in prop::collection::vec(1u64..13, 0..40),
        times in prop::collection::vec(0usize..40, 12),
        delay in 0usize..40,
    ) {
        let (mut kernel, mut ledger) = (BTreeMap::new(), Ledger::new(PID));
        let mut time = 1;
        for step in before {
            let event = carry_out(step, time, &mut kernel);
            time += 1;
            if !step.is_dropped {
                ledger.enter(event);
            }
        }
        let mut ring = std::collections::VecDeque::new();
        for step in waiting {
            let event = carry_out(step, time, &mut kernel);
            time += 1;
            if !(step.is_dropped && is_late) {
                ring.push_back(event);
            }
        }
        if is_late {
            time += 1 + u64::try_from(QUIET.as_micros()).expect("less than a second");
        }
        let targets = [(PID, Program { opened: Instant::now(), started: MonotonicNanos(0) })].into();
        let since = MonotonicNanos(time * 1000);
        let sieve = Sieve { since, targets, thinnings: Thinnings::new(1) };
        let (mut reading, mut notes) = (Reading::default(), Notes::new(since));
        for step_number in 0..=40 {
            for address in (1u64..).zip(&times).filter(|(_, at)| **at == step_number).map(|(address, _)| address) {
                if let Some(&block) = kernel.get(&address) {
                    reading.take(&sieve, PID, TargetAddr(address), block);
                }
            }
            if let Some(&address) = during.get(step_number) {
                ring.push_back(carry_out(Step { address, is_dropped: false }, time, &mut kernel));
                time += 1;
            }
            if step_number >= delay && let Some(event) = ring.pop_front() {
                notes.touch(&event);
                ledger.enter(event);
            }
        }
        for event in ring {
            notes.touch(&event);
            ledger.enter(event);
        }
        let is_touched = |address| {
            notes.touched.contains(&(PID, address)) || reading.recent.contains(&(PID, address))
        };
        ledger.reconcile(reading.live(PID), is_touched);
        let mut blocks: Vec<(u64, u64)> = ledger.live().map(|block| (block.address.0, block.size_bytes)).collect();
        blocks.sort_unstable();
        let truth: Vec<(u64, u64)> = kernel.iter().map(|(&address, block)| (address, block.size_bytes())).collect();
        prop_assert_eq!(blocks, truth);
        let bytes: u64 = kernel.values().map(LiveBlock::size_bytes).sum();
        prop_assert_eq!(ledger.totals().live_bytes(), heapbpf_base::units::EstimatedBytes::exact(bytes));
    }
}
