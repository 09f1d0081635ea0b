//! Tests of ledgers that are corrected after records were dropped.

use super::*;

fn live(address: u64, size_bytes: u64, stack: u64) -> LiveAllocation {
    (&allocation(address, size_bytes, stack, 1)).into()
}

/// Resyncs the ledger after these events with what is live in the kernel. Checks live bytes and blocks, allocated, freed and peak
/// bytes, and the numbers of inserted, removed and replaced blocks.
#[track_caller]
fn check(events: &[Event], kernel: &[LiveAllocation], touched: &[u64], expected: ([u64; 5], [u64; 3])) {
    let mut ledger = ledger(events.iter().cloned());
    let is_touched = |address: TargetAddr| touched.contains(&address.0);
    let reconciled = ledger.reconcile(kernel.iter().copied(), is_touched);
    let totals = ledger.totals();
    let bytes = [
        totals.live_bytes().rounded(),
        totals.live_count().rounded(),
        totals.alloc_bytes.rounded(),
        totals.free_bytes.rounded(),
        totals.peak_bytes.rounded(),
    ];
    assert_eq!((bytes, [reconciled.inserted, reconciled.removed, reconciled.replaced]), expected);
    let again = ledger.reconcile(kernel.iter().copied(), is_touched);
    assert_eq!(again, Reconciled::default(), "once is enough");
}

#[test]
fn a_ledger_without_losses_is_not_changed() {
    check(&[alloc(1, 10, 7), alloc(2, 20, 8)], &[live(2, 20, 8), live(1, 10, 7)], &[], ([30, 2, 30, 0, 30], [0, 0, 0]));
}

#[test]
fn dropped_allocations_and_frees_are_applied() {
    let events = [alloc(1, 10, 7), alloc(2, 20, 8)];
    check(&events, &[live(1, 10, 7), live(3, 5, 9)], &[], ([15, 2, 35, 20, 30], [1, 1, 0]));
    check(&events, &[], &[], ([0, 0, 30, 30, 30], [0, 2, 0]));
}

#[test]
fn a_block_replaces_one_with_a_dropped_free() {
    let events = [alloc(1, 10, 7)];
    for other in [live(1, 11, 7), live(1, 10, 8), LiveAllocation { heap: HeapId(1), ..live(1, 10, 7) }] {
        let size = other.size_bytes;
        check(&events, &[other], &[], ([size, 1, 10 + size, 10, 10.max(size)], [0, 0, 1]));
    }
    let later = LiveAllocation { time: MonotonicNanos(1 << 30), ..live(1, 10, 7) };
    check(&events, &[later], &[], ([10, 1, 20, 10, 10], [0, 0, 1]));
}

#[test]
fn later_events_take_precedence() {
    check(&[alloc(1, 10, 7)], &[live(2, 20, 7)], &[1, 2], ([10, 1, 10, 0, 10], [0, 0, 0]));
    check(&[alloc(1, 10, 7)], &[live(1, 99, 7)], &[1], ([10, 1, 10, 0, 10], [0, 0, 0]));
}

#[test]
fn thinned_blocks_keep_their_interval() {
    let mut ledger = ledger([Event::Alloc(allocation(1, 10, 7, 4096))]);
    let of_interval = |bytes| LiveAllocation { interval: Interval::nearest(bytes), ..live(1, 10, 7) };
    assert_eq!(ledger.reconcile([of_interval(1024)], |_| false).total(), 0);
    assert_eq!(ledger.live().next().map(|block| block.interval), Some(Interval::nearest(4096)));
    assert_eq!(ledger.reconcile([of_interval(8192)], |_| false), Reconciled { replaced: 1, ..Reconciled::default() });
}

#[test]
fn mapped_memory_is_not_changed() {
    let map = Event::Remap(Remap {
        pid: PID,
        tid: Tid(1),
        old_address: TargetAddr(0),
        old_bytes: 0,
        new_address: TargetAddr(0x1000),
        new_bytes: 0x1000,
        began: MonotonicNanos(1),
        ended: MonotonicNanos(2),
        stack: StackId(7),
        hook: HookId(0),
        heap: HeapId(1),
    });
    check(&[map], &[], &[], ([0x1000, 1, 0x1000, 0, 0x1000], [0, 0, 0]));
}

#[test]
fn inherited_blocks_are_recognized() {
    let parent = ledger([alloc(1, 10, 7), alloc(99_999_999, 20, 8)]);
    let mut child = parent.fork(Pid(2));
    // The kernel's live set has the times of inherited blocks in microseconds.
    let microseconds = |time: MonotonicNanos| MonotonicNanos(time.0 / 1000 * 1000);
    let kernel: Vec<_> = child.live().map(|block| LiveAllocation { time: microseconds(block.time), ..block }).collect();
    assert_eq!(child.reconcile(kernel, |_| false), Reconciled::default());
}
