//! Tests of callsites by thread.

use super::*;

fn made(address: u64, size_bytes: u64, tid: u32) -> Event {
    Event::Alloc(Allocation { tid: Tid(tid), ..allocation(address, size_bytes, 1, 1) })
}

/// Returns of each callsite the thread, the live bytes, the allocated bytes, and whether it was inherited.
fn told(ledger: &Ledger) -> Vec<(Option<u32>, u64, u64, bool)> {
    let callsites = ledger.snapshot(MonotonicNanos(0)).callsites;
    let told = callsites.iter().map(|callsite| {
        let totals = &callsite.totals;
        let (live, alloc) = (totals.live_bytes().rounded(), totals.alloc_bytes.rounded());
        (callsite.thread.map(|tid| tid.0), live, alloc, callsite.inherited)
    });
    told.collect()
}

#[test]
fn threads_are_distinguished_on_request_only() {
    let events = [made(1, 10, 5), made(2, 20, 6), made(3, 30, 5), free(1), free(2)];
    let together = ledger(events.clone());
    assert_eq!(told(&together), [(None, 30, 60, false)]);
    let mut apart = Ledger::new(PID);
    apart.distinguish_threads();
    events.into_iter().for_each(|event| apart.enter(event));
    assert_eq!(told(&apart), [(Some(5), 30, 40, false), (Some(6), 0, 20, false)]);
    assert_eq!(apart.totals(), together.totals());

    // Blocks that a child inherits still belong to the thread that made them.
    let mut child = apart.fork(Pid(2));
    child.enter(made(4, 7, 8));
    assert_eq!(told(&child), [(Some(5), 30, 0, true), (Some(8), 7, 7, false)]);
    let mut next = apart.succeed();
    next.enter(made(4, 7, 5));
    assert_eq!(told(&next), [(Some(5), 7, 7, false)]);
}

#[test]
fn earlier_blocks_have_no_thread() {
    let mut ledger = ledger([made(1, 10, 5)]);
    ledger.distinguish_threads();
    [made(2, 20, 5), free(1)].into_iter().for_each(|event| ledger.enter(event));
    assert_eq!(told(&ledger), [(None, 0, 10, false), (Some(5), 20, 20, false)]);
}

#[test]
fn the_number_of_distinguished_threads_is_bounded() {
    let mut ledger = Ledger::new(PID);
    ledger.distinguish_threads();
    (1..=10_000).for_each(|tid| ledger.enter(made(tid, 1, u32::try_from(tid).expect("small"))));
    let told = told(&ledger);
    assert_eq!(told.len(), 2049);
    assert_eq!(told.last(), Some(&(None, 10_000 - 2048, 10_000 - 2048, false)));
}
