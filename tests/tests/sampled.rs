//! Sampled profiles against the truth: unbiased, and within 10 %.
//!
//! `mixed.c` has one function per size, so that its ledger has all that the theory requires
//! (`heapbpf_tests::sampling`). With few samples a sum is not normal: single functions are checked only if 100 or more samples are
//! expected.

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::report::{Estimates, Ledger};
use heapbpf_tests::sampling::{Errors, Expected, SAMPLES_MIN, assert_unbiased};
use heapbpf_tests::target::Target;

/// Standard deviations that 10 % must exceed: that error has a probability below 1e-6 then.
const SIGMAS_OF_TENTH: f64 = 5.0;

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
    assert_unbiased(interval, || estimate(interval, interval_bytes));
}

fn estimate(interval: &str, interval_bytes: u32) -> Errors {
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
    let mut errors = Errors::default();
    let (mut allocated, mut live) = (Expected::default(), Expected::default());
    for (function, expected_allocated, expected_live) in expected(&ledger, f64::from(interval_bytes)) {
        let got = functions.get(&function).copied().unwrap_or_default();
        if expected_allocated.samples >= SAMPLES_MIN {
            errors.note(&format!("{function} allocated"), &expected_allocated, got.alloc_count, got.alloc_bytes);
        }
        if expected_live.samples >= SAMPLES_MIN {
            errors.note(&format!("{function} live"), &expected_live, got.live_count, got.live_bytes);
        }
        allocated.add(expected_allocated);
        live.add(expected_live);
    }

    let Estimates { alloc_count, alloc_bytes, live_count, live_bytes } = process.totals.estimates();
    errors.note("all allocated", &allocated, alloc_count, alloc_bytes);
    errors.note("all live", &live, live_count, live_bytes);
    for (what, expected, got) in [("allocated", allocated, alloc_bytes), ("live", live, live_bytes)] {
        let tenth = expected.bytes / 10.0;
        assert!(SIGMAS_OF_TENTH * expected.bytes_variance.sqrt() < tenth, "{what}: the run is too small: {expected:?}");
        assert!((got - expected.bytes).abs() <= tenth, "{what}: {got} bytes, not {} ± 10 %", expected.bytes);
    }
    errors
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
        assert_unbiased(backend, || estimate_nested(backend));
    }
}

fn estimate_nested(backend: &str) -> Errors {
    let mut target = Target::start("every_call.c");
    let mut heapbpf = Heapbpf::of(target.pid(), &format!("--interval 4KiB --backend {backend} -o out.json"));
    let session = heapbpf.start();
    let ledger = target.work("go");
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    let functions = report.process(target.pid()).estimates_by_leaf();
    let mut errors = Errors::default();
    for (function, allocated, live) in expected(&ledger, 4096.0) {
        assert!(live.samples >= SAMPLES_MIN, "{function} is called too rarely for a check");
        let got = functions.get(&function).copied().unwrap_or_default();
        errors.note(&format!("{function} allocated"), &allocated, got.alloc_count, got.alloc_bytes);
        errors.note(&format!("{function} live"), &live, got.live_count, got.live_bytes);
    }
    errors
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
