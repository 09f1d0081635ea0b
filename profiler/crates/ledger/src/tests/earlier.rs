//! Tests of blocks from before the recording.

use heapbpf_base::ids::LedgerId;

use super::*;
use crate::inventory::{is_stack, stack_id};

fn earlier(address: u64, size_bytes: u64) -> LiveAllocation {
    LiveAllocation {
        address: TargetAddr(address),
        size_bytes,
        interval: Interval::EXACT,
        stack: stack_id(size_bytes),
        heap: HeapId(0),
        time: MonotonicNanos(5),
    }
}

/// Returns the opening, allocated, freed and live bytes, and the peak.
fn bytes(totals: &Totals) -> [u64; 5] {
    let bytes = [totals.opening_bytes, totals.alloc_bytes, totals.free_bytes, totals.live_bytes(), totals.peak_bytes];
    bytes.map(EstimatedBytes::rounded)
}

#[test]
fn earlier_blocks_are_live_from_the_start_and_were_not_allocated() {
    let mut ledger = ledger([alloc(1, 100, 7)]);
    [earlier(2, 40), earlier(3, 60), earlier(4, 1000)].iter().for_each(|block| ledger.enter_earlier(block));
    ledger.enter_earlier(&earlier(1, 50));
    assert_eq!(bytes(ledger.totals()), [1100, 100, 0, 1200, 1200], "the block at 1 is a newer one");
    ledger.enter(free(3));
    ledger.enter(alloc(2, 10, 7));
    assert_eq!(bytes(ledger.totals()), [1100, 110, 100, 1110, 1200], "40 and 60 bytes were freed");
    let snapshot = ledger.snapshot(MonotonicNanos(100));
    let of_inventory: Vec<_> = snapshot.callsites.iter().filter(|it| it.stack.as_ref().is_some_and(is_stack)).collect();
    let sums: Vec<_> = of_inventory.iter().map(|callsite| bytes(&callsite.totals)).collect();
    assert_eq!(sums, [[100, 0, 100, 0, 100], [1000, 0, 0, 1000, 1000]], "two size classes");
    assert!(of_inventory.iter().all(|callsite| callsite.details.sizes == Default::default()));
    let at_peak = snapshot.at_peak();
    assert_eq!(bytes(&at_peak.totals), [1100, 100, 0, 1200, 1200]);
}

#[test]
fn a_curve_begins_with_them() {
    let event = |address: u64, time: u64| {
        Event::Alloc(Allocation { time: MonotonicNanos(time), ..allocation(address, 100, 7, 1) })
    };
    let mut ledger = ledger([event(1, 1_000), event(2, 50_000_000), event(3, 100_000_000)]);
    ledger.enter_earlier(&earlier(4, 1000));
    let curve = ledger.curve_points(MonotonicNanos(200_000_000));
    let live: Vec<f64> = curve.iter().map(|point| point.held.live_bytes).collect();
    assert_eq!((live[0], live.last()), (1000.0, Some(&1300.0)));
    assert!(live.is_sorted() && live.contains(&1100.0), "{live:?}");
    assert_eq!(curve[0].held.alloc_bytes, 0.0);
}

#[test]
fn earlier_blocks_that_were_replaced_do_not_raise_the_peak() {
    let mut ledger = ledger([alloc(1, 100, 7)]);
    ledger.enter_freed(&earlier(2, 80));
    assert_eq!(bytes(ledger.totals()), [80, 100, 80, 100, 100]);
    let snapshot = ledger.snapshot(MonotonicNanos(100));
    let of_inventory = snapshot.callsites.iter().find(|it| it.stack.as_ref().is_some_and(is_stack)).expect("it is one");
    assert_eq!(bytes(&of_inventory.totals)[..4], [80, 0, 80, 0]);
    assert_eq!(ledger.totals().live(), Amounts::of(100, Interval::EXACT), "samples and variance too");
}

#[test]
fn a_recording_has_every_change_that_they_cause() {
    let mut ledger = ledger([alloc(1, 100, 7)]);
    let mut replayed = Ledger::new(PID);
    ledger.record_as(LedgerId(1));
    replayed.enter(alloc(1, 100, 7));
    ledger.enter_freed(&earlier(2, 80));
    ledger.enter_earlier(&earlier(3, 500));
    ledger.thin(&earlier(3, 500), None);
    for correction in ledger.take_corrections() {
        replayed.correct(&correction);
    }
    assert_eq!(replayed.totals(), ledger.totals());
}

#[test]
fn failed_reallocs_thinning_and_forks_keep_them() {
    let mut ledger = ledger([]);
    ledger.enter_earlier(&earlier(2, 1000));
    ledger.enter_earlier(&earlier(3, 500));
    ledger.enter(free(2));
    ledger.enter(Event::Restore(Allocation {
        stack: stack_id(1000),
        time: MonotonicNanos(5),
        ..allocation(2, 1000, 0, 1)
    }));
    assert_eq!(bytes(ledger.totals()), [1500, 0, 0, 1500, 1500]);
    assert_eq!(bytes(ledger.fork(Pid(2)).totals()), [1500, 0, 0, 1500, 1500]);
    ledger.thin(&earlier(3, 500), None);
    assert_eq!(bytes(ledger.totals())[..4], [1000, 0, 0, 1000]);
    let found = ledger.reconcile([earlier(2, 1000)], |_| false);
    assert_eq!(found, Reconciled::default(), "the block is known");
    let found = ledger.reconcile([earlier(2, 1000), earlier(9, 7)], |_| false);
    assert_eq!((found.inserted, bytes(ledger.totals())[..4].to_vec()), (1, vec![1007, 0, 0, 1007]));
}

#[test]
fn a_replay_repeats_them() {
    let mut recorded = Ledger::new(PID);
    recorded.record_as(heapbpf_base::ids::LedgerId(1));
    recorded.enter_earlier(&earlier(2, 1000));
    recorded.enter_earlier(&earlier(3, 30));
    let mut replayed = Ledger::new(PID);
    recorded.take_corrections().iter().for_each(|correction| replayed.correct(correction));
    let now = MonotonicNanos(100);
    assert_eq!(format!("{:?}", replayed.snapshot(now)), format!("{:?}", recorded.snapshot(now)));
}
