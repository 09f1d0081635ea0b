//! Tests of the orders in which events can come.
//!
//! The records of one address come in the order in which the target saw them: an allocation's is written before its call
//! returns, a free's before the real free. Nothing else is promised, so legal are all orders that keep each address's own.

use super::*;
use crate::snapshot::TargetSnapshot;

const NOW: MonotonicNanos = MonotonicNanos(1 << 40);

/// Operations on three addresses, of which one is used twice, with two stacks. In the end 15 bytes of stack 8 are live. `None` is
/// a dump.
fn operations() -> [Option<Event>; 8] {
    [
        Some(alloc(1, 10, 7)),
        Some(free(1)),
        Some(alloc(1, 15, 8)),
        Some(alloc(2, 15, 7)),
        Some(free(2)),
        Some(alloc(3, 2, 8)),
        Some(free(3)),
        None,
    ]
}

/// Returns all orders of 8 things (Heap's algorithm).
fn permutations() -> Vec<[usize; 8]> {
    fn generate(size: usize, order: &mut [usize; 8], all: &mut Vec<[usize; 8]>) {
        if size <= 1 {
            return all.push(*order);
        }
        for i in 0..size {
            generate(size - 1, order, all);
            order.swap(if size.is_multiple_of(2) { i } else { 0 }, size - 1);
        }
    }
    let mut all = Vec::new();
    generate(8, &mut [0, 1, 2, 3, 4, 5, 6, 7], &mut all);
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 40_320);
    all
}

/// Returns whether the events of each address come in their own order.
fn is_legal(order: &[usize; 8]) -> bool {
    let place = |operation| order.iter().position(|&other| other == operation);
    [(0, 1), (1, 2), (3, 4), (5, 6)].iter().all(|&(first, second)| place(first) < place(second))
}

/// Enters the operations in this order; returns the dump as well.
fn run(order: &[usize; 8]) -> (Ledger, TargetSnapshot) {
    let operations = operations();
    let mut ledger = Ledger::new(PID);
    let mut dump = None;
    for &operation in order {
        match operations[operation].clone() {
            Some(event) => ledger.enter(event),
            None => dump = Some(ledger.snapshot(NOW)),
        }
    }
    (ledger, dump.expect("one operation is a dump"))
}

/// Live bytes by stack, which callsites have in the order of their index: all stacks are known by their first allocation.
fn live_bytes(ledger: &Ledger) -> [u64; 2] {
    let mut bytes = [0; 2];
    for block in ledger.live() {
        bytes[usize::from(block.stack == StackId(8))] += block.size_bytes;
    }
    bytes
}

#[track_caller]
fn is_consistent(ledger: &Ledger, dump: &TargetSnapshot, order: &[usize; 8]) {
    let end = ledger.snapshot(NOW);
    let blocks: u64 = ledger.live().map(|block| block.size_bytes).sum();
    assert_eq!(end.totals.live_bytes(), EstimatedBytes::exact(blocks), "{order:?}");
    assert_eq!(end.totals.live_count(), EstimatedCount::exact(ledger.live_blocks() as u64), "{order:?}");
    assert_eq!(end.totals.alloc_bytes, EstimatedBytes::exact(42), "{order:?}");
    for snapshot in [dump, &end] {
        let sites = || snapshot.callsites.iter().map(|site| site.totals);
        assert_eq!(sites().map(|totals| totals.live_bytes()).sum::<EstimatedBytes>(), snapshot.totals.live_bytes());
        assert!(
            sites()
                .all(|totals| totals.live_bytes() >= EstimatedBytes::ZERO && totals.free_bytes >= EstimatedBytes::ZERO)
        );
        assert!(snapshot.totals.free_bytes <= snapshot.totals.alloc_bytes, "{order:?}");
    }
    let window = end.since(dump);
    assert_eq!(window.totals.opening_bytes, dump.totals.live_bytes(), "{order:?}");
    assert_eq!(window.totals.live_bytes(), end.totals.live_bytes(), "{order:?}");
}

#[test]
fn all_1680_orders_that_preserve_each_addresss_order_give_the_same_result() {
    let legal: Vec<_> = permutations().into_iter().filter(is_legal).collect();
    assert_eq!(legal.len(), 1680);
    for order in legal {
        let (ledger, dump) = run(&order);
        is_consistent(&ledger, &dump, &order);
        let totals = ledger.totals();
        assert_eq!(
            (totals.free_bytes.rounded(), ledger.frees_unknown(), live_bytes(&ledger)),
            (27, 0, [0, 15]),
            "{order:?}"
        );
    }
}

#[test]
fn all_40320_orders_stay_consistent_and_agree_after_a_resync() {
    for order in permutations() {
        let (mut ledger, dump) = run(&order);
        is_consistent(&ledger, &dump, &order);
        // Events in a wrong order give a wrong ledger, but the kernel's live set knows.
        ledger.reconcile([(&allocation(1, 15, 8, 1)).into()], |_| false);
        assert_eq!((live_bytes(&ledger), ledger.live_blocks()), ([0, 15], 1), "{order:?}");
        assert_eq!(ledger.totals().live_bytes(), EstimatedBytes::exact(15), "{order:?}");
        ledger.enter(free(1));
        assert_eq!((ledger.totals().live_bytes(), ledger.live_blocks()), (EstimatedBytes::ZERO, 0), "{order:?}");
    }
}

/// Checks bytes allocated, freed, live and at the peak, and blocks at the peak.
#[track_caller]
fn check(events: impl IntoIterator<Item = Event>, expected: [u64; 5]) {
    let totals = ledger(events).snapshot(NOW).totals;
    let bytes = [totals.alloc_bytes, totals.free_bytes, totals.live_bytes(), totals.at_peak.bytes];
    let [allocated, freed, live, peak] = bytes.map(EstimatedBytes::rounded);
    assert_eq!([allocated, freed, live, peak, totals.at_peak.count.rounded()], expected);
    assert_eq!(totals.peak_bytes, totals.at_peak.bytes);
}

#[test]
fn heapprofds_test_program_is_exact() {
    check([alloc(1, 10, 7), free(1), alloc(2, 15, 7), alloc(3, 15, 7), free(2)], [40, 25, 15, 30, 2]);
}

#[test]
fn the_peak_is_the_first_maximum() {
    let up_and_down = [alloc(1, 5, 7), alloc(2, 2, 8), free(2), free(1), alloc(3, 3, 7)];
    check(up_and_down.clone(), [10, 7, 3, 7, 2]);
    let again = up_and_down.into_iter().chain([alloc(4, 1, 8), alloc(5, 1, 8), alloc(6, 2, 8)]);
    check(again.clone(), [14, 7, 7, 7, 2]);
    check(again.chain([alloc(7, 1, 7)]), [15, 7, 8, 8, 5]);
}

#[test]
fn a_second_insert_overwrites_and_a_second_free_does_nothing() {
    check([alloc(1, 10, 7), alloc(1, 20, 8)], [30, 10, 20, 20, 1]);
    let twice = [alloc(1, 10, 7), free(1), free(1), free(2)];
    check(twice.clone(), [10, 10, 0, 10, 1]);
    assert_eq!(ledger(twice).frees_unknown(), 2);
}

#[test]
fn ledgers_are_independent() {
    let first = ledger([alloc(1, 5, 7)]);
    drop(ledger([alloc(1, 2, 7), free(1)]));
    assert_eq!(live_bytes(&first), [5, 0]);
}
