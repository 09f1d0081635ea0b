//! Tests of sizes, ages, lifetimes and temporary blocks.

use super::*;
use crate::details::{Details, Histogram};

const SECOND_NS: u64 = 1_000_000_000;
/// Half a tick, which is the largest error of an age.
const HALF_TICK_NS: u64 = 1 << 23;

fn alloc_at(address: u64, size_bytes: u64, time_ns: u64, tid: u32) -> Event {
    Event::Alloc(Allocation { time: MonotonicNanos(time_ns), tid: Tid(tid), ..allocation(address, size_bytes, 7, 1) })
}

fn free_by(address: u64, tid: u32, time_ns: u64, age_us: u32) -> Event {
    let (address, time) = (TargetAddr(address), MonotonicNanos(time_ns));
    Event::Free(Free { pid: PID, tid: Tid(tid), address, time, age_us })
}

fn details(ledger: &Ledger, now_ns: u64) -> Details {
    let snapshot = ledger.snapshot(MonotonicNanos(now_ns));
    Details::sum(snapshot.callsites.iter().map(|site| &site.details))
}

fn buckets(histogram: &Histogram) -> Vec<(u64, u64)> {
    histogram.iter().map(|(value, count)| (value, count.rounded())).collect()
}

#[test]
fn ages_are_accurate_to_a_tick() {
    let times = [5, 6, 8, 65].map(|seconds| seconds * SECOND_NS);
    let mut ledger = ledger((1..).zip(times).map(|(address, time)| alloc_at(address, 10, time, 1)));
    let ages = details(&ledger, 105 * SECOND_NS).ages;
    assert!(ages.oldest_ns.is_some_and(|oldest| oldest.abs_diff(100 * SECOND_NS) <= HALF_TICK_NS), "{ages:?}");
    // 97, 99 and 100 s lie in the bucket from 67 s on, 40 s in the one before.
    assert!(ages.median_ns().is_some_and(|median| (67 * SECOND_NS..=100 * SECOND_NS).contains(&median)), "{ages:?}");
    assert_eq!(ages.histogram.iter().map(|(_, count)| count.rounded()).collect::<Vec<_>>(), [1, 3]);
    (1..=4).for_each(|address| ledger.enter(free(address)));
    assert_eq!(details(&ledger, 105 * SECOND_NS).ages.oldest_ns, None);
}

#[test]
fn lifetimes_and_ages_are_summed() {
    let mut ledger = ledger([alloc_at(1, 10, 0, 1), alloc_at(2, 10, 0, 1), free_by(1, 1, 5_000_000, 5_000)]);
    let known = details(&ledger, 105 * SECOND_NS);
    assert_eq!(known.lifetime_total, EstimatedMicros::exact(5_000));
    assert!(known.ages.total.rounded().abs_diff(105_000_000) <= HALF_TICK_NS.div_ceil(1000), "{known:?}");
    // The restored block had not been freed.
    ledger.enter(Event::Restore(Allocation { time: MonotonicNanos(0), ..allocation(1, 10, 7, 1) }));
    assert_eq!(details(&ledger, 0).lifetime_total, EstimatedMicros::ZERO);
    let sampled = allocation(9, 100, 7, 4096);
    ledger.enter(Event::Alloc(sampled));
    ledger.enter(free_by(9, 1, 2_009, 2));
    assert_eq!(details(&ledger, 0).lifetime_total, Amounts::of(100, sampled.interval).count.lasting(2));
}

#[test]
fn ages_are_frozen_when_the_ledger_is_closed() {
    let mut ledger = ledger([alloc_at(1, 10, SECOND_NS, 1), alloc_at(2, 10, 11 * SECOND_NS, 1)]);
    // The process did nothing in its last nine seconds.
    ledger.close(MonotonicNanos(20 * SECOND_NS));
    let oldest = details(&ledger, 1000 * SECOND_NS).ages.oldest_ns;
    assert!(oldest.is_some_and(|oldest| oldest.abs_diff(19 * SECOND_NS) <= HALF_TICK_NS), "{oldest:?}");
}

#[test]
fn temporary_blocks_are_unknown_in_thinned_heaps() {
    let mut ledger = ledger([alloc(1, 100, 1), alloc(2, 100, 1)]);
    assert_eq!(details(&ledger, 0).temporary_count, Some(0));
    let blocks: Vec<_> = ledger.live().collect();
    ledger.thin(&blocks[0], None);
    assert_eq!(details(&ledger, 0).temporary_count, None, "its free will not be recorded");
}

#[test]
fn lifetimes_and_sizes_are_counted_by_window() {
    let mut ledger = ledger([alloc_at(1, 100, 0, 1), alloc_at(2, 5000, 0, 1), free_by(1, 1, 3_000_000, 3000)]);
    let base = ledger.snapshot(MonotonicNanos(0));
    assert_eq!(buckets(&base.callsites[0].details.sizes), [(64, 1), (4096, 1)]);
    assert_eq!(buckets(&base.callsites[0].details.lifetimes), [(2048, 1)]);
    [alloc_at(3, 100, 0, 1), free_by(2, 1, 0, 0)].into_iter().for_each(|event| ledger.enter(event));
    let window = ledger.snapshot(MonotonicNanos(0)).since(&base);
    assert_eq!(buckets(&window.callsites[0].details.sizes), [(64, 1)]);
    assert_eq!(buckets(&window.callsites[0].details.lifetimes), [(0, 1)]);
}

#[test]
fn lifetimes_beyond_the_range_of_a_record_come_from_the_ledger() {
    const DAY_NS: u64 = 86_400 * SECOND_NS;
    let ledger = ledger([alloc_at(1, 1, SECOND_NS, 1), free_by(1, 1, SECOND_NS + DAY_NS, u32::MAX)]);
    // 86,400,000,000 µs lie between 2^36 and 2^37.
    assert_eq!(buckets(&details(&ledger, 0).lifetimes), [(1 << 36, 1)]);
}

#[test]
fn details_are_weighted() {
    let event = Event::Alloc(allocation(1, 100, 7, 4096));
    let ledger = ledger([event, free_by(1, 1, 0, 0)]);
    let details = details(&ledger, 0);
    // 1 / (1 - exp(-100/4096)) = 41.46 blocks.
    assert_eq!((buckets(&details.sizes), buckets(&details.lifetimes)), (vec![(64, 41)], vec![(0, 41)]));
    assert_eq!(details.temporary_count, None, "the thread's next allocation may not be known");
}

/// Checks how many blocks are temporary.
#[track_caller]
fn check(events: impl IntoIterator<Item = Event>, expected: u64) {
    assert_eq!(details(&ledger(events), 0).temporary_count, Some(expected));
}

#[test]
fn temporary_blocks_are_freed_before_the_threads_next_allocation() {
    let (one, two) = (alloc_at(1, 1, 0, 1), alloc_at(2, 1, 0, 1));
    check([one.clone(), free_by(1, 1, 0, 0)], 1);
    check([one.clone(), two.clone(), free_by(1, 1, 0, 0)], 0);
    check([one.clone(), two.clone(), free_by(2, 1, 0, 0), free_by(1, 1, 0, 0)], 1);
    check([one.clone(), alloc_at(2, 1, 0, 9), free_by(1, 1, 0, 0), free_by(2, 9, 0, 0)], 2);
    check([one.clone(), free_by(1, 9, 0, 0)], 0);
    check([one.clone(), free_by(1, 1, 0, 0), one.clone(), free_by(1, 1, 0, 0)], 2);
    // The block's `realloc` failed, so that it lives on, and is freed later.
    let back = Event::Restore(Allocation { time: MonotonicNanos(0), ..allocation(1, 1, 7, 1) });
    check([one.clone(), free_by(1, 1, 0, 0), back.clone()], 0);
    check([one.clone(), free_by(1, 1, 0, 0), back, free_by(1, 1, 0, 0)], 1);
}

#[test]
fn a_failed_realloc_of_a_parents_block_leaves_it_the_parents() {
    let mut child = ledger([alloc(1, 100, 7)]).fork(Pid(2));
    [free_by(1, 1, 0, 5), Event::Restore(allocation(1, 100, 7, 1))].into_iter().for_each(|event| child.enter(event));
    let snapshot = child.snapshot(MonotonicNanos(0));
    assert_eq!(snapshot.callsites.len(), 1);
    let site = &snapshot.callsites[0];
    assert_eq!(
        (site.inherited, site.totals.live_bytes(), site.totals.free_bytes),
        (true, EstimatedBytes::exact(100), EstimatedBytes::ZERO)
    );
    assert!(site.details.lifetimes.is_empty());
}
