//! Tests of ledgers with limited numbers of callsites.

use super::*;
use crate::limit;
use crate::resync::Reconciled;

fn limited(max: u32) -> Ledger {
    let mut ledger = Ledger::new(PID);
    ledger.limit_callsites(&CallsiteLimit::new(max));
    ledger
}

fn stack(id: u64) -> Event {
    Event::Stack(PID, StackId(id), Stack { frames: Arc::new([TargetAddr(id)]), end: StackEnd::Complete })
}

/// Returns of each callsite whether it is the shared one, and its allocated and live bytes.
fn callsites(ledger: &Ledger) -> Vec<(bool, u64, u64)> {
    let callsites = ledger.snapshot(MonotonicNanos(0)).callsites;
    let of = callsites.iter().map(|it| {
        let is_shared = it.stack.as_ref().is_some_and(limit::is_stack);
        (is_shared, it.totals.alloc_bytes.rounded(), it.totals.live_bytes().rounded())
    });
    of.collect()
}

#[test]
fn further_callsites_share_one() {
    let events: Vec<Event> = (1..=10).flat_map(|id| [stack(id), alloc(id, 100 + id, id)]).collect();
    let (mut few, mut all) = (limited(3), limited(10));
    events.iter().cloned().for_each(|event| few.enter(event));
    events.into_iter().for_each(|event| all.enter(event));
    let sum = (4..=10).map(|id| 100 + id).sum::<u64>();
    assert_eq!(callsites(&few), [(false, 101, 101), (false, 102, 102), (false, 103, 103), (true, sum, sum)]);
    assert_eq!((callsites(&all).len(), few.totals()), (10, all.totals()));

    // A known callsite is found, and a block is removed where it was added.
    [alloc(11, 1, 2), free(10), free(3)].into_iter().for_each(|event| few.enter(event));
    let sums = [(false, 101, 101), (false, 103, 103), (false, 103, 0), (true, sum, sum - 110)];
    assert_eq!(callsites(&few), sums);
    assert_eq!(few.blocks_without_frames(), 0);
}

#[test]
fn each_heap_has_a_shared_callsite() {
    let mut ledger = limited(1);
    for id in 1..=6 {
        let heap = HeapId(u8::try_from(id % 2).expect("small"));
        ledger.enter(Event::Alloc(Allocation { heap, ..allocation(id, 10, id, 1) }));
    }
    assert_eq!(callsites(&ledger), [(false, 10, 10), (true, 30, 30), (true, 20, 20)]);
}

/// The kernel's live set has the stacks that the ledger has not.
#[test]
fn shared_callsites_equal_those_of_the_live_set() {
    let mut ledger = limited(1);
    (1..=4).for_each(|id| ledger.enter(alloc(id, 10, id)));
    let before = *ledger.totals();
    let live: Vec<LiveAllocation> = (1..=4).map(|id| (&allocation(id, 10, id, 1)).into()).collect();
    let reconciled = ledger.reconcile(live, |_| false);
    assert_eq!(reconciled, Reconciled::default());
    assert_eq!(ledger.totals(), &before);
}

#[test]
fn stacks_without_callsites_are_limited() {
    let mut ledger = limited(10);
    (1..=20).for_each(|id| ledger.enter(alloc(id, 10, id)));
    (1..=100_000).for_each(|id| ledger.enter(stack(id)));
    assert!(ledger.has_stack(StackId(10)) && !ledger.has_stack(StackId(50_000)));
}

/// Together, the targets have more callsites than the limit.
#[test]
fn all_targets_share_a_limit() {
    let limit = CallsiteLimit::new(10);
    let ledgers: Vec<Ledger> = (0..10)
        .map(|_| {
            let mut ledger = Ledger::new(PID);
            ledger.limit_callsites(&limit);
            (1..=20).for_each(|id| ledger.enter(alloc(id, 10, id)));
            ledger
        })
        .collect();
    let counts: Vec<usize> = ledgers.iter().map(|ledger| callsites(ledger).len()).collect();
    assert_eq!(counts, [11, 11, 11, 11, 11, 11, 11, 11, 1, 1]);
    assert!(!ledgers[0].exceeds_callsites());
    let child = ledgers[0].fork(Pid(2));
    assert!(child.exceeds_callsites(), "it has as many as its parent");
    drop((child, ledgers));
    let mut next = Ledger::new(PID);
    next.limit_callsites(&limit);
    (1..=20).for_each(|id| next.enter(alloc(id, 10, id)));
    assert_eq!(callsites(&next).len(), 11, "there is room again");
}

#[test]
fn blocks_without_frames_are_counted() {
    let mut ledger = limited(10);
    let events = [stack(1), alloc(1, 10, 1), alloc(2, 10, 2), alloc(3, 10, 2), alloc(4, 10, 3), free(3)];
    events.into_iter().for_each(|event| ledger.enter(event));
    assert_eq!(ledger.blocks_without_frames(), 3);
    assert_eq!(ledger.fork(Pid(8)).blocks_without_frames(), 2, "those that are live");
    ledger.enter(stack(2));
    assert_eq!(ledger.blocks_without_frames(), 1);
}
