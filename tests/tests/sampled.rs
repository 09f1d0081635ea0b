//! Sampled profiles against the truth: within 10 %, and within five theoretical standard deviations.
//!
//! `mixed.c` has one function per size, so that its ledger has all that the theory requires
//! (`heapbpf_tests::sampling`).
//!
//! A bound of 5σ fails once in two million runs if the sum is near normal. With few samples it is not (the fewer, the
//! longer its upper tail), so single functions are checked only if 100 or more samples are expected: there, a Poisson
//! count exceeds 5σ with a probability below 2·10⁻⁵. A run checks some 40 such sums.

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::report::{Estimates, Ledger};
use heapbpf_tests::sampling::Expected;
use heapbpf_tests::target::Target;

/// Allowed error in standard deviations.
const SIGMAS: f64 = 5.0;

/// Minimum number of samples to assume a normal distribution.
const SAMPLES_MIN: f64 = 100.0;

#[track_caller]
fn assert_near(expected: &Expected, what: &str, count: f64, bytes: f64) {
    let (count_sigmas, bytes_sigmas) = expected.deviations(count, bytes);
    assert!(count_sigmas.abs() <= SIGMAS, "{what}: {count} blocks, {count_sigmas:.1} sigma from {expected:?}");
    assert!(bytes_sigmas.abs() <= SIGMAS, "{what}: {bytes} bytes, {bytes_sigmas:.1} sigma from {expected:?}");
}

#[expect(clippy::cast_precision_loss, reason = "counts and bytes here are far below 2^53")]
fn expected(ledger: &Ledger, interval: f64) -> Vec<(String, Expected, Expected)> {
    let site = |site: &heapbpf_tests::report::Site| {
        let counts = site.counts;
        let size = counts.alloc_bytes as f64 / counts.alloc_count as f64;
        let blocks = |count: u64| Expected::blocks(count as f64, size, interval);
        (site.function.clone(), blocks(counts.alloc_count), blocks(counts.live_count))
    };
    ledger.sites.iter().map(site).collect()
}

fn check(interval: &str, interval_bytes: u32) {
    let mut target = Target::start("mixed.c");
    let mut heapbpf = Heapbpf::of(target.pid(), &format!("--interval {interval} -o out.json"));
    let session = heapbpf.start();
    let ledger = target.work("go");
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    assert_eq!(report.interval_bytes, u64::from(interval_bytes));
    assert!(ledger.sum().alloc_bytes >= 500 << 20, "too few bytes for a check");

    let process = report.process(target.pid());
    let functions = process.estimates_by_leaf();
    let (mut allocated, mut live) = (Expected::default(), Expected::default());
    for (function, expected_allocated, expected_live) in expected(&ledger, f64::from(interval_bytes)) {
        let got = functions.get(&function).copied().unwrap_or_default();
        if expected_allocated.samples >= SAMPLES_MIN {
            assert_near(&expected_allocated, &format!("{function} allocated"), got.alloc_count, got.alloc_bytes);
        }
        if expected_live.samples >= SAMPLES_MIN {
            assert_near(&expected_live, &format!("{function} live"), got.live_count, got.live_bytes);
        }
        allocated.add(expected_allocated);
        live.add(expected_live);
    }

    let Estimates { alloc_count, alloc_bytes, live_count, live_bytes } = process.totals.estimates();
    assert_near(&allocated, "all allocated", alloc_count, alloc_bytes);
    assert_near(&live, "all live", live_count, live_bytes);
    for (what, expected, got) in [("allocated", allocated, alloc_bytes), ("live", live, live_bytes)] {
        let tenth = expected.bytes / 10.0;
        // If 10 % were less than 5σ, the check below would fail by chance.
        assert!(SIGMAS * expected.bytes_variance.sqrt() < tenth, "{what}: the run is too small: {expected:?}");
        assert!((got - expected.bytes).abs() <= tenth, "{what}: {got} bytes, not {} ± 10 %", expected.bytes);
    }
}

#[test]
fn at_4_kib_totals_are_near_the_truth() {
    check("4KiB", 4 << 10);
}

#[test]
fn at_512_kib_totals_are_near_the_truth() {
    check("512KiB", 512 << 10);
}

/// A nested call of the library is for the same block: sampling both would count it twice, which only shows at an
/// interval other than 1.
#[test]
fn nested_calls_are_sampled_once() {
    for backend in ["session", "multi", "perf"] {
        let mut target = Target::start("every_call.c");
        let mut heapbpf = Heapbpf::of(target.pid(), &format!("--interval 4KiB --backend {backend} -o out.json"));
        let session = heapbpf.start();
        let ledger = target.work("go");
        let _ = session.interrupt().expect_code(0);
        let report = heapbpf.report("out.json");
        report.assert_complete();
        let functions = report.process(target.pid()).estimates_by_leaf();
        for (function, allocated, live) in expected(&ledger, 4096.0) {
            assert!(live.samples >= SAMPLES_MIN, "{function} is called too rarely for a check");
            let got = functions.get(&function).copied().unwrap_or_default();
            assert_near(&allocated, &format!("{backend}: {function} allocated"), got.alloc_count, got.alloc_bytes);
            assert_near(&live, &format!("{backend}: {function} live"), got.live_count, got.live_bytes);
        }
    }
}

#[test]
fn the_default_interval_is_4_kib() {
    let mut target = Target::start("service.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "-o out.json");
    let session = heapbpf.start();
    let truth = target.work("keep 5000 100").site("keeps").counts;
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    assert_eq!(report.interval_bytes, 4096);
    // Each block exceeds the interval, so the result is deterministic.
    let keeps = report.process(target.pid()).estimates_by_leaf()["keeps"];
    assert_eq!((keeps.alloc_count, keeps.alloc_bytes), (100.0, 500_000.0));
    assert_eq!((truth.alloc_count, truth.alloc_bytes), (100, 500_000));
}
