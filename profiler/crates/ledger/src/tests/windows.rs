//! Tests of windows between two snapshots, and of the state at the peak.

use super::*;
use crate::ingest::event::Event;
use crate::snapshot::TargetSnapshot;

const NOW: MonotonicNanos = MonotonicNanos(1 << 40);

/// Returns the live, allocated and freed bytes of a window, and how many more bytes are live than at its beginning.
fn window(totals: &Totals) -> [i64; 4] {
    let signed = |bytes: EstimatedBytes| {
        let size = |bytes: EstimatedBytes| i64::try_from(bytes.rounded()).expect("it is small");
        size(bytes) - size(EstimatedBytes::ZERO - bytes)
    };
    [totals.live_bytes(), totals.alloc_bytes, totals.free_bytes, totals.delta_bytes()].map(signed)
}

/// Returns stack, bytes and blocks at the peak; the sums of all stacks come first.
fn at_peak(snapshot: &TargetSnapshot) -> Vec<(u64, u64)> {
    let amounts = |totals: &Totals| (totals.live_bytes().rounded(), totals.live_count().rounded());
    let sites = snapshot.callsites.iter().map(|site| amounts(&site.totals));
    std::iter::once(amounts(&snapshot.totals)).chain(sites).collect()
}

#[test]
fn windows_have_live_amounts_and_differences() {
    let mut ledger = Ledger::new(PID);
    let mut base = ledger.snapshot(NOW);
    let mut windows = Vec::new();
    for events in [vec![alloc(1, 1000, 7)], vec![], vec![free(1)], vec![]] {
        events.into_iter().for_each(|event| ledger.enter(event));
        let now = ledger.snapshot(NOW);
        let since = now.since(&base);
        windows
            .push((window(&since.totals), since.callsites.iter().map(|site| window(&site.totals)).collect::<Vec<_>>()));
        base = now;
    }
    let kept = |window: [i64; 4]| (window, vec![window]);
    assert_eq!(
        windows,
        [kept([1000, 1000, 0, 1000]), kept([1000, 0, 0, 0]), kept([0, 0, 1000, -1000]), ([0, 0, 0, 0], vec![]),]
    );
}

#[test]
fn callsites_keep_their_index() {
    let mut ledger = ledger([alloc(1, 10, 7), alloc(2, 20, 8), free(1)]);
    let base = ledger.snapshot(NOW);
    [alloc(3, 30, 9), alloc(4, 40, 7)].into_iter().for_each(|event| ledger.enter(event));
    let since = ledger.snapshot(NOW).since(&base);
    let sites: Vec<_> = since.callsites.iter().map(|site| (site.index, window(&site.totals))).collect();
    assert_eq!(sites, [(0, [40, 40, 0, 40]), (1, [20, 0, 0, 0]), (2, [30, 30, 0, 30])]);
}

#[test]
fn the_opening_balance_of_a_child_is_what_it_inherited() {
    let parent = ledger([alloc(1, 10, 7)]);
    let child = parent.fork(Pid(2));
    let nothing = Ledger::new(Pid(2)).snapshot(NOW);
    let since = child.snapshot(NOW).since(&nothing);
    assert_eq!((since.totals.opening_bytes.rounded(), window(&since.totals)), (10, [10, 0, 0, 0]));
}

#[test]
fn the_variance_of_a_window_is_a_difference() {
    let sampled = |address| Event::Alloc(allocation(address, 100, 7, 4096));
    let mut ledger = ledger([sampled(1), sampled(2)]);
    let base = ledger.snapshot(NOW);
    [sampled(3), free(1)].into_iter().for_each(|event| ledger.enter(event));
    let since = ledger.snapshot(NOW).since(&base).totals;
    let one = Amounts::of(100, Interval::nearest(4096));
    assert_eq!((since.alloc_samples, since.live_samples), (1, 2));
    assert_eq!(since.alloc_variance.bytes, one.variance.bytes);
    assert_eq!(since.live_variance.bytes, one.variance.bytes + one.variance.bytes);
}

#[test]
fn the_state_at_the_peak_is_kept() {
    let events = [alloc(1, 10, 7), free(1), alloc(2, 15, 7), alloc(3, 15, 8), free(3), alloc(4, 5, 9), free(4)];
    let peaks = [vec![10, 10], vec![10, 10], vec![15, 15], vec![30, 15, 15], vec![30, 15, 15], vec![30, 15, 15]];
    for (entered, expected) in (1..).zip(peaks) {
        let peak = ledger(events.iter().take(entered).cloned()).snapshot(NOW).at_peak();
        let bytes: Vec<u64> = at_peak(&peak).into_iter().map(|(bytes, _)| bytes).collect();
        assert_eq!(bytes, expected, "after {entered} events");
    }
}

#[test]
fn a_childs_first_peak_is_its_initial_state() {
    let parent = ledger([alloc(1, 10, 7), alloc(2, 90, 8), free(2)]);
    let mut child = parent.fork(Pid(2));
    [free(1), alloc(3, 9, 7)].into_iter().for_each(|event| child.enter(event));
    let peak = child.snapshot(NOW).at_peak();
    assert_eq!(at_peak(&peak), [(10, 1), (10, 1)]);
    assert_eq!((peak.totals.opening_bytes.rounded(), peak.callsites[0].inherited), (10, true));
    child.enter(alloc(4, 2, 7));
    assert_eq!(at_peak(&child.snapshot(NOW).at_peak()), [(11, 2), (11, 2)]);
    assert_eq!(parent.succeed().snapshot(NOW).totals.at_peak, Amounts::default());
}

#[test]
fn a_restored_block_can_make_the_peak() {
    let back = Event::Restore(allocation(1, 100, 7, 1));
    let snapshot = ledger([alloc(1, 100, 7), free(1), alloc(2, 30, 8), back]).snapshot(NOW);
    assert_eq!((snapshot.totals.peak_bytes.rounded(), snapshot.totals.peak_time), (130, Some(MonotonicNanos(2))));
    assert_eq!(at_peak(&snapshot.at_peak()), [(130, 2), (100, 1), (30, 1)]);
}
