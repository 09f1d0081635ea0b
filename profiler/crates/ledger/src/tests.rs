//! Tests of ledgers against their events.

mod accuracy;
mod apart;
mod details;
mod earlier;
mod journal;
mod limits;
mod mapped;
mod model;
mod orders;
mod reconciling;
mod windows;

use std::sync::Arc;

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::{HeapId, HookId, Pid, StackId, Tid};
use heapbpf_base::units::{Amounts, EstimatedBytes, EstimatedCount, EstimatedMicros, MonotonicNanos};
use profiler_common::interval::Interval;
use profiler_common::stack::StackEnd;
use proptest::prelude::*;

use super::totals::Totals;
use super::*;
use crate::ingest::event::{Allocation, Event, Free, Remap, Stack};

const PID: Pid = Pid(1);

fn allocation(address: u64, size_bytes: u64, stack: u64, interval_bytes: u32) -> Allocation {
    Allocation {
        pid: PID,
        tid: Tid(1),
        address: TargetAddr(address),
        size_bytes,
        time: MonotonicNanos(address),
        stack: StackId(stack),
        interval: Interval::nearest(interval_bytes),
        hook: HookId(0),
        heap: HeapId(0),
        has_replaced: false,
    }
}

fn alloc(address: u64, size_bytes: u64, stack: u64) -> Event {
    Event::Alloc(allocation(address, size_bytes, stack, 1))
}

fn free(address: u64) -> Event {
    Event::Free(Free { pid: PID, tid: Tid(1), address: TargetAddr(address), time: MonotonicNanos(0), age_us: 0 })
}

fn ledger(events: impl IntoIterator<Item = Event>) -> Ledger {
    let mut ledger = Ledger::new(PID);
    events.into_iter().for_each(|event| ledger.enter(event));
    ledger
}

/// Checks live bytes, live blocks, allocated bytes, freed bytes and peak bytes.
fn check(events: impl IntoIterator<Item = Event>, expected: [u64; 5]) {
    let totals = *ledger(events).totals();
    let got = [
        totals.live_bytes().rounded(),
        totals.live_count().rounded(),
        totals.alloc_bytes.rounded(),
        totals.free_bytes.rounded(),
        totals.peak_bytes.rounded(),
    ];
    assert_eq!(got, expected);
}

#[test]
fn blocks_that_are_not_freed_are_live() {
    check([alloc(1, 100, 7), alloc(2, 50, 7), free(1)], [50, 1, 150, 100, 150]);
}

#[test]
fn blocks_without_an_address_are_never_live() {
    // Such blocks count as freed, and do not raise the peak.
    check([alloc(0, 100, 7), alloc(1, 10, 7), alloc(0, 1000, 8), free(0)], [10, 1, 1110, 1100, 10]);
}

#[test]
fn an_address_can_be_reused() {
    check([alloc(1, 100, 7), free(1), alloc(1, 30, 8)], [30, 1, 130, 100, 100]);
}

#[test]
fn reuse_of_an_address_implies_a_dropped_free() {
    check([alloc(1, 100, 7), alloc(1, 30, 8)], [30, 1, 130, 100, 100]);
}

#[test]
fn frees_of_unknown_blocks_are_counted_only() {
    let ledger = ledger([alloc(1, 100, 7), free(2)]);
    assert_eq!(ledger.frees_unknown(), 1);
    assert_eq!(ledger.totals().live_bytes().rounded(), 100);
}

#[test]
fn a_failed_realloc_leaves_no_trace() {
    let events = [alloc(1, 100, 7), free(1), Event::Restore(allocation(1, 100, 7, 1)), free(1)];
    check(events.clone().into_iter().take(3), [100, 1, 100, 0, 100]);
    check(events, [0, 0, 100, 100, 100]);
}

#[test]
fn empty_blocks_count_as_blocks() {
    check([alloc(1, 0, 7)], [0, 1, 0, 0, 0]);
}

#[test]
fn callsites_are_distinguished_by_stack_and_heap() {
    let other_heap = Event::Alloc(Allocation { heap: HeapId(1), ..allocation(3, 5, 7, 1) });
    let snapshot = ledger([alloc(1, 100, 7), alloc(2, 10, 8), other_heap]).snapshot(MonotonicNanos(1 << 40));
    let bytes: Vec<_> = snapshot.callsites.iter().map(|site| site.totals.alloc_bytes.rounded()).collect();
    assert_eq!(bytes, [100, 10, 5]);
    let heaps: Vec<_> = snapshot.heaps.iter().map(|(heap, totals)| (heap.0, totals.alloc_bytes.rounded())).collect();
    assert_eq!(heaps, [(0, 110), (1, 5)]);
}

#[test]
fn frames_may_arrive_after_the_first_event_with_their_stack() {
    let stack = Stack { frames: Arc::from([TargetAddr(0x1000)]), end: StackEnd::Complete };
    let snapshot = ledger([alloc(1, 1, 7), alloc(2, 1, 8), Event::Stack(PID, StackId(7), stack.clone())])
        .snapshot(MonotonicNanos(1 << 40));
    assert_eq!(snapshot.callsites[0].stack, Some(stack));
    assert_eq!(snapshot.callsites[1].stack, None, "frames that never came are not made up");
}

#[test]
fn the_peak_has_its_time() {
    let totals = *ledger([alloc(10, 100, 7), alloc(20, 50, 7), free(10), alloc(30, 60, 7)]).totals();
    assert_eq!((totals.peak_bytes.rounded(), totals.peak_time), (150, Some(MonotonicNanos(20))));
    assert_eq!(totals.peak_count, EstimatedCount::exact(2));
}

proptest! {
    /// Whatever is allocated and freed, in whatever order: the totals agree with a plain list of blocks, callsites add
    /// up to the target, and freeing the rest leaves exactly nothing, at any interval.
    #[test]
    fn totals_balance(
        operations in proptest::collection::vec((1u64..20, 0u64..10_000, 0u64..4, any::<bool>()), 0..300),
        interval_bytes in prop_oneof![Just(1u32), 2u32..100_000],
    ) {
        let mut ledger = Ledger::new(PID);
        let mut blocks = std::collections::BTreeMap::new();
        for (address, size, stack, is_free) in operations {
            if is_free {
                ledger.enter(free(address));
                blocks.remove(&address);
            } else {
                ledger.enter(Event::Alloc(allocation(address, size, stack, interval_bytes)));
                blocks.insert(address, size);
            }
        }
        let live: EstimatedBytes = blocks.values().map(|&size| Amounts::of(size, Interval::nearest(interval_bytes)).bytes).sum();
        prop_assert_eq!(ledger.totals().live_bytes(), live);
        let snapshot = ledger.snapshot(MonotonicNanos(1 << 40));
        let sites: EstimatedBytes = snapshot.callsites.iter().map(|site| site.totals.live_bytes()).sum();
        prop_assert_eq!(sites, live);
        blocks.keys().for_each(|&address| ledger.enter(free(address)));
        prop_assert_eq!(ledger.totals().live_bytes(), EstimatedBytes::ZERO);
        prop_assert_eq!(ledger.totals().live_count(), EstimatedCount::ZERO);
    }
}
