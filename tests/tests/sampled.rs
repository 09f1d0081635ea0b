//! Sampled profiles against the truth: within 10 %, and within five standard deviations of what sampling theory gives.
//!
//! A block of s < T bytes is taken with probability p = 1 − e^(−s/T), independently of all others, and then stands for
//! s/p bytes and 1/p blocks. One block's estimate so has the variance s²·(1−p)/p in bytes and (1−p)/p in blocks, and
//! n blocks n times that. Blocks of T or more are always taken, with no variance. (`mixed.c` has one function per size, so
//! that its ledger says all that these sums need.)
//!
//! A bound of 5σ fails once in two million runs where the sum is near normal. With few samples it is not (the fewer, the
//! longer its upper tail), so single functions are held to it only where 100 or more samples are expected: there, a
//! Poisson count exceeds 5σ with a probability below 2·10⁻⁵. A run checks some 40 such sums.

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::report::{Estimates, Ledger};
use heapbpf_tests::target::Target;

/// Standard deviations that an estimate may be off.
const SIGMAS: f64 = 5.0;

/// Samples from which on an estimate is taken to be near normal.
const SAMPLES_MIN: f64 = 100.0;

/// A sum over functions of what is true, and the variance of its estimate.
#[derive(Clone, Copy, Debug, Default)]
struct Expected {
    count: f64,
    count_variance: f64,
    bytes: f64,
    bytes_variance: f64,
    samples: f64,
}

impl Expected {
    /// `count` blocks of `size` bytes, sampled at `interval`.
    fn blocks(count: f64, size: f64, interval: f64) -> Self {
        let taken = if size >= interval { 1.0 } else { -(-size / interval).exp_m1() };
        let variance = count * (1.0 - taken) / taken;
        Self {
            count,
            count_variance: variance,
            bytes: count * size,
            bytes_variance: variance * size * size,
            samples: count * taken,
        }
    }

    fn add(&mut self, other: Self) {
        self.count += other.count;
        self.count_variance += other.count_variance;
        self.bytes += other.bytes;
        self.bytes_variance += other.bytes_variance;
        self.samples += other.samples;
    }

    fn assert_near(&self, what: &str, count: f64, bytes: f64) {
        let allowed = |variance: f64, truth: f64| SIGMAS * variance.sqrt() + 1e-6 * truth;
        let (count_allowed, bytes_allowed) =
            (allowed(self.count_variance, self.count), allowed(self.bytes_variance, self.bytes));
        assert!((count - self.count).abs() <= count_allowed, "{what}: {count} blocks, not {self:?} ± {count_allowed}");
        assert!((bytes - self.bytes).abs() <= bytes_allowed, "{what}: {bytes} bytes, not {self:?} ± {bytes_allowed}");
    }
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
    assert!(ledger.sum().alloc_bytes >= 500 << 20, "too little was allocated to tell");

    let process = report.process(target.pid());
    let functions = process.estimates_by_leaf();
    let (mut allocated, mut live) = (Expected::default(), Expected::default());
    for (function, expected_allocated, expected_live) in expected(&ledger, f64::from(interval_bytes)) {
        let got = functions.get(&function).copied().unwrap_or_default();
        if expected_allocated.samples >= SAMPLES_MIN {
            expected_allocated.assert_near(&format!("{function} allocated"), got.alloc_count, got.alloc_bytes);
        }
        if expected_live.samples >= SAMPLES_MIN {
            expected_live.assert_near(&format!("{function} live"), got.live_count, got.live_bytes);
        }
        allocated.add(expected_allocated);
        live.add(expected_live);
    }

    let Estimates { alloc_count, alloc_bytes, live_count, live_bytes } = process.totals.estimates();
    allocated.assert_near("all allocated", alloc_count, alloc_bytes);
    live.assert_near("all live", live_count, live_bytes);
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

/// A call that the library makes inside another one is the same block's: drawing for both would count it twice, and at any
/// interval but 1 nothing else would show it.
#[test]
fn calls_inside_calls_are_drawn_for_once() {
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
            assert!(live.samples >= SAMPLES_MIN, "{function} is called too seldom to tell");
            let got = functions.get(&function).copied().unwrap_or_default();
            allocated.assert_near(&format!("{backend}: {function} allocated"), got.alloc_count, got.alloc_bytes);
            live.assert_near(&format!("{backend}: {function} live"), got.live_count, got.live_bytes);
        }
    }
}

#[test]
fn the_interval_is_4_kib_unless_told() {
    let mut target = Target::start("service.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "-o out.json");
    let session = heapbpf.start();
    let truth = target.work("keep 5000 100").site("keeps").counts;
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    assert_eq!(report.interval_bytes, 4096);
    // Each block is larger than the interval, so nothing is left to chance.
    let keeps = report.process(target.pid()).estimates_by_leaf()["keeps"];
    assert_eq!((keeps.alloc_count, keeps.alloc_bytes), (100.0, 500_000.0));
    assert_eq!((truth.alloc_count, truth.alloc_bytes), (100, 500_000));
}
