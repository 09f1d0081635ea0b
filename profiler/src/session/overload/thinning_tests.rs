//! Tests of estimates from thinned samples, compared with the true values.

use heapbpf_base::ids::{HookId, StackId, Tid};
use heapbpf_ledger::confidence::{Estimate, least_weights};
use heapbpf_ledger::ingest::event::{Event, Free};
use heapbpf_ledger::totals::Totals;
use heapbpf_ledger::{Ledger, LiveAllocation};
use profiler_common::sampling::SamplingRate;
use proptest::prelude::*;

use super::*;

const PID: Pid = Pid(7);
const HEAP: HeapId = HeapId(0);

/// SplitMix64, as in the module, for the sampling decisions.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.0)
    }
}

fn thinned(seed: u64, intervals: &[u32]) -> Thinnings {
    let mut thinnings = Thinnings::new(seed);
    for (time, &interval) in (1..).zip(intervals) {
        thinnings.thin(HEAP, MonotonicNanos(time * 1_000_000_000), Interval::nearest(interval));
    }
    thinnings
}

fn block(size_bytes: u64, time_ns: u64, interval: u32) -> LiveBlock {
    LiveBlock::new(size_bytes, time_ns, 1, Interval::nearest(interval), HEAP.0)
}

/// Enters the allocation of a block that was sampled at this interval, one of each microsecond.
fn allocate(ledger: &mut Ledger, number: u64, size_bytes: u64, interval: Interval) -> LiveAllocation {
    let (address, time, stack) = (TargetAddr(number * 16), MonotonicNanos(number * 1000), StackId(1));
    ledger.enter(Event::Alloc(Allocation {
        pid: PID,
        tid: Tid(1),
        address,
        size_bytes,
        time,
        stack,
        interval,
        hook: HookId(0),
        heap: HEAP,
        has_replaced: false,
    }));
    LiveAllocation { address, size_bytes, interval, stack, heap: HEAP, time }
}

/// Samples blocks at one interval and thins the ledger to others. Returns the totals, and the true count and bytes.
#[expect(clippy::cast_possible_truncation, reason = "random bits")]
fn run(seed: u64, blocks: u64, from: u32, to: &[u32]) -> (Totals, f64, f64) {
    let (rate, thinnings) = (SamplingRate::new(Interval::nearest(from)), thinned(seed ^ 99, to));
    let mut random = Random(seed);
    let mut ledger = Ledger::new(PID);
    let mut bytes = 0;
    for number in 1..=blocks {
        let size_bytes = (16 << (random.next() % 6)) + random.next() % 16;
        bytes += size_bytes;
        if !rate.samples(size_bytes, || random.next() as u32) {
            continue;
        }
        let live = allocate(&mut ledger, number, size_bytes, Interval::nearest(from));
        let interval = thinnings.interval(PID, live.address, &block(size_bytes, live.time.0, from));
        ledger.thin(&live, interval);
    }
    #[expect(clippy::cast_precision_loss, reason = "small")]
    (*ledger.totals(), blocks as f64, bytes as f64)
}

#[test]
fn thinned_estimates_are_unbiased_and_within_four_sigma() {
    for (from, to) in [(1, &[512][..]), (64, &[4096]), (256, &[512, 1024, 8192]), (1024, &[256])] {
        let (mut mean_bytes, mut mean_count, mut outside) = (0.0, 0.0, 0);
        let runs = 100u32;
        for seed in 0..runs {
            let (totals, count, bytes) = run(1000 + u64::from(seed), 5000, from, to);
            let sigmas = |estimate: f64, truth: f64, variance: f64| (estimate - truth) / variance.sqrt().max(1e-6);
            let variance = totals.live_variance;
            let off = [
                sigmas(totals.live_bytes().to_f64(), bytes, variance.bytes.to_f64()),
                sigmas(totals.live_count().to_f64(), count, variance.count.to_f64()),
            ];
            outside += off.iter().filter(|off| off.abs() > 4.0).count();
            mean_bytes += (totals.live_bytes().to_f64() / bytes - 1.0) / f64::from(runs);
            mean_count += (totals.live_count().to_f64() / count - 1.0) / f64::from(runs);
            assert_eq!(totals.live_bytes(), totals.alloc_bytes, "nothing was freed");
            assert_eq!(totals.live_variance, totals.alloc_variance);
        }
        assert!(outside <= 1, "{outside} of {runs} runs beyond 4 sigma, {from} to {to:?}");
        assert!(mean_bytes.abs() < 0.03 && mean_count.abs() < 0.06, "{mean_bytes} {mean_count}, {from} to {to:?}");
    }
}

/// Thins 5000 blocks. One third is live, one is freed before it is read, and one after that. Returns the totals, and the true
/// allocated and freed bytes.
#[expect(clippy::cast_precision_loss, reason = "small")]
fn run_with_frees(seed: u64, is_reweighed: bool) -> (Totals, [f64; 2]) {
    let thinnings = thinned(seed ^ 99, &[2048]);
    let mut random = Random(seed);
    let mut ledger = Ledger::new(PID);
    let (mut bytes, mut freed_bytes) = (0, 0);
    for number in 1..=5000u64 {
        let size_bytes = (16 << (random.next() % 6)) + random.next() % 16;
        bytes += size_bytes;
        let live = allocate(&mut ledger, number, size_bytes, Interval::EXACT);
        let address = live.address;
        let remains = thinnings.interval(PID, address, &block(size_bytes, live.time.0, 1));
        let free = Free { pid: PID, tid: Tid(1), address, time: MonotonicNanos(2_000_000_000), age_us: 2_000_000 };
        match random.next() % 3 {
            0 => ledger.thin(&live, remains),
            1 => {
                freed_bytes += size_bytes;
                ledger.enter(Event::Free(free));
            }
            _ => {
                freed_bytes += size_bytes;
                let freed = ledger.about_to_be_freed(&free).expect("it is live");
                ledger.enter(Event::Free(free));
                if is_reweighed || remains.is_none() {
                    ledger.thin_freed(&live, &freed, remains);
                }
            }
        }
    }
    (*ledger.totals(), [bytes as f64, freed_bytes as f64])
}

#[test]
fn blocks_that_are_freed_during_a_thinning_leave_totals_unbiased() {
    let off = |is_reweighed: bool| {
        let mut off = [0.0; 2];
        let mut variance = 0.0;
        for seed in 0..50 {
            let (totals, truth) = run_with_frees(7000 + seed, is_reweighed);
            off[0] += totals.alloc_bytes.to_f64() - truth[0];
            off[1] += totals.free_bytes.to_f64() - truth[1];
            variance += totals.alloc_variance.bytes.to_f64();
        }
        off.map(|off| off.abs() / variance.sqrt())
    };
    let (kept, left) = (off(true), off(false));
    assert!(kept.iter().all(|&sigmas| sigmas < 4.0), "{kept:?} sigma");
    assert!(left.iter().all(|&sigmas| sigmas > 8.0), "half a decision is seen: {left:?} sigma");
}

#[test]
fn the_95_percent_intervals_of_thinned_estimates_contain_the_true_values() {
    let runs = 1000;
    let mut held = [0; 2];
    for seed in 0..runs {
        let (totals, count, bytes) = run(50_000 + seed, 2000, 64, &[1024, 4096]);
        let live = totals.live();
        let [least_bytes, least_count] = least_weights(4096, live.samples);
        let intervals = [
            (Estimate::of_bytes(&live).interval_95(least_bytes), bytes),
            (Estimate::of_count(&live).interval_95(least_count), count),
        ];
        for (held, ([low, high], truth)) in held.iter_mut().zip(intervals) {
            *held += u64::from((low..=high).contains(&truth));
        }
    }
    assert!(held.iter().all(|held| (930..=970).contains(held)), "bytes and blocks: {held:?} of {runs}");
}

#[test]
fn a_later_thinning_to_a_smaller_interval_keeps_the_larger_one() {
    let thinnings = thinned(5, &[8192, 1024]);
    let at = |seconds: u64| block(8191, seconds * 1_000_000_000 + 500_000_000, 1);
    let interval = |block: &LiveBlock| {
        // Nearly all blocks of this size remain.
        (0..50).find_map(|number| thinnings.interval(PID, TargetAddr(number * 16), block)).map(Interval::bytes)
    };
    assert_eq!(interval(&at(0)), Some(8192), "older than both");
    assert_eq!(interval(&at(1)), Some(1024), "allocated between them");
    assert_eq!(interval(&at(2)), Some(1), "allocated since");
}

proptest! {
    /// A block that remains at a larger interval remains at a smaller one, and intermediate thinnings change nothing.
    #[test]
    fn thinning_is_monotone_and_idempotent(
        seed: u64, address: u64, size_bytes in 1u64..100_000, time_us in 0u64..900_000,
        from in 0u32..10, first in 0u32..20, second in 0u32..20,
    ) {
        let (small, large) = (1 << first.min(second), 1 << first.max(second));
        let block = block(size_bytes, time_us * 1000, 1 << from);
        let interval = |to: &[u32]| thinned(seed, to).interval(PID, TargetAddr(address), &block);
        if interval(&[large]).is_some() {
            prop_assert!(interval(&[small]).is_some());
        }
        prop_assert_eq!(interval(&[small, large]), interval(&[large]));
        prop_assert_eq!(interval(&[large, small]), interval(&[large]));
    }
}
