//! Targets that allocate at known rates.

use heapbpf_base::units::Amounts;
use profiler_common::interval::Interval;
use proptest::prelude::*;

use super::*;

const COSTS: CallCosts = CallCosts { alloc_ns: 600.0, free_ns: 400.0 };
const SECOND: u64 = 1_000_000_000;

/// Shares, in percent, observed each second for a target that uses `cpu_ns` and makes `pairs` allocations and frees of one byte
/// per second, all sampled.
fn shares(seconds: u64, cpu_ns: u64, pairs: u64) -> Vec<Option<f64>> {
    let (mut monitor, mut totals) = (OverheadMonitor::default(), Totals::default());
    let observe = |second| {
        let share = monitor.observe(MonotonicNanos(second * SECOND), &totals, second * cpu_ns, COSTS, f64::INFINITY);
        let weight = Amounts::of(1, Interval::EXACT);
        (0..pairs).for_each(|_| totals.allocate(weight, MonotonicNanos(0)));
        (0..pairs).for_each(|_| totals.free(weight));
        share.map(|share| share.percent())
    };
    (0..=seconds).map(observe).collect()
}

#[test]
fn share_is_calls_times_cost() {
    // 1,000 times 600 + 400 + 1,900 + 770 ns of a tenth of a second.
    assert_eq!(shares(5, SECOND / 10, 1000), [None, None, None, Some(3.67), Some(3.67), Some(3.67)]);
}

#[test]
fn a_certain_excess_is_found_before_the_window_is_full() {
    let observed_after = |ms: u64, percent_max: f64| {
        let (mut monitor, mut totals) = (OverheadMonitor::default(), Totals::default());
        monitor.observe(MonotonicNanos(0), &totals, 0, COSTS, percent_max);
        (0..100_000).for_each(|_| totals.allocate(Amounts::of(1, Interval::EXACT), MonotonicNanos(0)));
        monitor.observe(MonotonicNanos(ms * SECOND / 1000), &totals, SECOND, COSTS, percent_max)
    };
    // 100,000 times 600 + 1,900 ns are 25 % of a second.
    assert_eq!(observed_after(500, 4.0).map(|share| share.percent().round()), Some(25.0));
    assert_eq!(observed_after(500, 5.0), None);
    assert_eq!(observed_after(300, 0.1), None);
}

#[test]
fn idle_targets_have_no_share() {
    assert_eq!(shares(4, 0, 1000), [None; 5]);
    assert_eq!(shares(4, SECOND / 101, 1000), [None; 5]);
}

#[test]
fn highest_and_whole_share_are_kept() {
    let (mut monitor, mut totals) = (OverheadMonitor::default(), Totals::default());
    for second in 0..=9u64 {
        monitor.observe(MonotonicNanos(second * SECOND), &totals, second * SECOND, COSTS, f64::INFINITY);
        if second < 3 {
            (0..1000).for_each(|_| totals.allocate(Amounts::of(1, Interval::EXACT), MonotonicNanos(0)));
        }
    }
    let (highest, whole) = (monitor.highest.expect("it was busy"), monitor.whole.expect("it was observed"));
    assert_eq!((highest.cpu_ns, whole.cpu_ns), (3 * SECOND, 9 * SECOND));
    assert!((highest.probe_ns - 3000.0 * 2500.0).abs() < 1e-3 && (whole.probe_ns - highest.probe_ns).abs() < 1e-3);
}

proptest! {
    #[test]
    fn margin_shrinks_with_the_number_of_samples(samples in 1u32..2000) {
        // Blocks of 16 bytes at 4 KiB stand for 256 each.
        let (mut monitor, mut totals) = (OverheadMonitor::default(), Totals::default());
        monitor.observe(MonotonicNanos(0), &totals, 0, COSTS, f64::INFINITY);
        let weight = Amounts::of(16, Interval::nearest(4096));
        (0..samples).for_each(|_| totals.allocate(weight, MonotonicNanos(0)));
        let share = monitor.observe(MonotonicNanos(3 * SECOND), &totals, SECOND, COSTS, f64::INFINITY).expect("it is busy");
        let relative = share.margin_ns / share.probe_ns;
        let expected = 1.96 / f64::from(samples).sqrt();
        prop_assert!((0.9 * expected..=expected).contains(&relative), "{relative} {expected}");
        prop_assert!((share.percent_at_least() > 0.0) == (samples > 3), "{share:?}");
    }
}
