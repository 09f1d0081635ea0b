//! Sampling cases: gperftools' 8000 blocks, its mix of large and small ones, Chrome's test driver and its count of
//! samples.
//!
//! Like gperftools, these tests allow four standard deviations.

use std::ops::RangeInclusive;

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::kernel::changed_code;
use heapbpf_tests::report::Report;
use heapbpf_tests::sampling::{Errors, Expected, SIGMAS, assert_unbiased};
use heapbpf_tests::target::Target;
use serde_json::Value;

use super::json;

/// Standard deviations in half a 95 % interval.
const HALF_95: f64 = 1.96;

/// Samples one command. Returns the report, typed and as JSON.
#[track_caller]
fn profile(source: &str, line: &str, interval_bytes: u64) -> (Report, Value, Target) {
    let mut target = Target::start(source);
    let mut heapbpf = Heapbpf::of(target.pid(), &format!("--interval {interval_bytes} -o out.json"));
    let session = heapbpf.start();
    target.work(line);
    let _ = session.interrupt().expect_code(0);
    target.assert_running();
    let report = heapbpf.report("out.json");
    report.assert_complete();
    assert_eq!(report.interval_bytes, interval_bytes);
    (report, json(&heapbpf, "out.json"), target)
}

/// Returns both bounds of an interval in the report.
#[track_caller]
fn bounds(interval: &Value) -> RangeInclusive<f64> {
    let end = |place: usize| interval[place].as_f64().unwrap_or_else(|| panic!("`{interval}` is not an interval"));
    end(0)..=end(1)
}

#[test]
fn eight_thousand_blocks_of_ten_thousand_bytes_at_512_kib() {
    const INTERVAL: f64 = 524_288.0;
    const TRUTH: f64 = 80e6;
    /// gperftools requires 50 MB to 110 MB.
    const ALLOWED: f64 = 30e6;
    let expected = Expected::blocks(8000.0, 10_000.0, INTERVAL);
    assert_unbiased("8000 blocks", || {
        let (report, json, target) = profile("service.c", "keep 10000 8000", 512 << 10);
        let mut errors = Errors::default();
        let totals = report.process(target.pid()).totals.estimates();
        for (what, bytes) in [("alloc_bytes", totals.alloc_bytes), ("live_bytes", totals.live_bytes)] {
            let interval = bounds(&json["targets"][0]["totals"][format!("{what}_95")]);
            let half = (interval.end() - interval.start()) / 2.0;
            assert!(interval.contains(&bytes), "{what}: {bytes} is not in {interval:?}");
            let off = bytes - TRUTH;
            errors.note_sigmas(&format!("{what}, by its interval"), off / (half / HALF_95));
            errors.note_sigmas(&format!("{what}, by the bound of gperftools"), SIGMAS * off / ALLOWED);
            let in_theory = HALF_95 * (INTERVAL * TRUTH).sqrt();
            assert!((half / in_theory - 1.0).abs() <= 0.25, "{what}: {half} to either side, in theory {in_theory}");
        }
        errors.note("allocated", &expected, totals.alloc_count, totals.alloc_bytes);
        errors.note("live", &expected, totals.live_count, totals.live_bytes);
        errors
    });
}

/// gperftools counts samples of the large blocks, too; here all are sampled, because they exceed the interval.
#[test]
fn large_and_small_blocks_are_near_their_truth_when_mixed() {
    const INTERVAL: f64 = 524_288.0;
    const LARGE: f64 = 128.0 * 4.0 * 8.0;
    assert_unbiased("a mix", || {
        let (report, _, target) = profile("drawn.c", "mixed 4096", 512 << 10);
        let functions = report.process(target.pid()).estimates_by_leaf();
        let (large, small) = (functions["draws_large"], functions["draws_small"]);
        assert_eq!((large.alloc_count, large.alloc_bytes), (LARGE, LARGE * 1_056_769.0));
        let expected = Expected::blocks(LARGE * 129.0, 8192.0, INTERVAL);
        let totals = report.process(target.pid()).totals.estimates();
        assert_eq!((totals.live_count, totals.live_bytes), (0.0, 0.0), "what is freed is taken away to the last bit");
        let mut errors = Errors::default();
        errors.note("small", &expected, small.alloc_count, small.alloc_bytes);
        errors
    });
}

#[test]
fn chromes_test_driver_at_777_bytes() {
    const INTERVAL: f64 = 777.0;
    let mut bystander = Target::start("drawn.c");
    assert_unbiased("Chrome's driver", || {
        let (report, _, target) = profile("drawn.c", "driver", 777);
        let mut errors = Errors::default();
        let functions = report.process(target.pid()).estimates_by_leaf();
        let mut variadic = Expected::default();
        (700..1700).for_each(|size| variadic.add(Expected::blocks(1.0, f64::from(size), INTERVAL)));
        for (function, expected) in [
            ("draws_700", Expected::blocks(1570.0, 700.0, INTERVAL)),
            ("draws_variadic", variadic),
            ("draws_200", Expected::blocks(2000.0, 200.0, INTERVAL)),
        ] {
            let got = functions[function];
            // The bound of Chrome.
            assert!(
                (0.5..=2.0).contains(&(got.alloc_count / expected.count)),
                "{function}: {} blocks",
                got.alloc_count
            );
            assert!((0.5..=2.0).contains(&(got.alloc_bytes / expected.bytes)), "{function}: {} bytes", got.alloc_bytes);
            errors.note(&format!("{function} allocated"), &expected, got.alloc_count, got.alloc_bytes);
            errors.note(&format!("{function} live"), &expected, got.live_count, got.live_bytes);
        }
        assert_eq!(report.targets.len(), 1, "{:?}", report.targets);
        assert_eq!(report.targets[0].pid, target.pid());
        errors
    });
    assert!(changed_code(bystander.pid()).is_empty());
    bystander.work("driver");
    bystander.assert_running();
}

/// Chrome simulates fifty rounds of 10,000,000 bytes and counts samples at an interval of 10,000: a thousand on
/// average, ±10 %. A block with two sample points is one sample, so blocks that are not tiny give slightly fewer.
#[test]
fn a_thousand_samples_in_a_thousand_intervals() {
    const INTERVAL: f64 = 10_000.0;
    const ROUNDS: f64 = 50.0;
    const BLOCKS: f64 = 40_000.0 * ROUNDS;
    assert_unbiased("two million points", || {
        let (_, json, _) = profile("drawn.c", "points 2000000", 10_000);
        let samples = json["targets"][0]["totals"]["alloc_samples"].as_f64().expect("a number");
        let per_round = samples / ROUNDS;
        assert!((900.0..=1100.0).contains(&per_round), "{per_round} samples");
        let taken = 1.0 - (-250.0 / INTERVAL).exp();
        let sigma = (BLOCKS * taken * (1.0 - taken)).sqrt();
        let mut errors = Errors::default();
        errors.note_sigmas("samples", (samples - BLOCKS * taken) / sigma);
        errors
    });
}
