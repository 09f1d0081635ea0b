//! Estimates of programs whose threads are preempted, moved between CPUs and interrupted by signals: unbiased, and exact at an
//! interval of 1.

use std::collections::BTreeMap;
use std::process::Command;

use heapbpf_tests::report::{Counts, Process};
use heapbpf_tests::sampling::Expected;
use heapbpf_tests::target::{Target, build};

use super::{EXACT, assert_passed, assert_unharmed, finish, record, start};

/// Allowed error in standard deviations.
const SIGMAS: f64 = 4.0;
const THREADS: u64 = 16;
/// Allocations by all threads; `HEAPBPF_INLINE_ALLOCATIONS` overrides it.
const ALLOCATIONS: u64 = 20_000_000;
/// Maximum number for one command.
const PART: u64 = 100_000_000;
/// Few samples, so that the agent receives all events of many allocations.
const ARGUMENTS: &str = "--engine inline --interval 512KiB --on-overload drop -o out.json";
const INTERVAL_BYTES: f64 = 524_288.0;
/// Minimum number of samples to assume a normal distribution.
const SAMPLES_MIN: f64 = 100.0;

/// What the functions of the target have allocated.
type Sites = BTreeMap<String, Counts>;

/// Without this, glibc registers `struct rseq`, in which stubs find the CPU.
const WITHOUT_RSEQ: (&str, &str) = ("GLIBC_TUNABLES", "glibc.pthread.rseq=0");

fn allocations() -> u64 {
    let number = std::env::var("HEAPBPF_INLINE_ALLOCATIONS").ok();
    number.map_or(ALLOCATIONS, |number| number.parse().expect("a number"))
}

fn migrating(environment: Option<(&str, &str)>) -> Target {
    Target::spawn(Command::new(build("migrating.c")).envs(environment))
}

/// Fails unless the estimates of all functions, of blocks of one size each, are within the allowed error.
#[track_caller]
#[expect(clippy::cast_precision_loss, reason = "counts and bytes here are far below 2^53")]
fn assert_estimated(process: &Process, sites: &Sites) {
    let mut sum = Expected::default();
    let (mut all, mut is_far) = (Vec::new(), false);
    let mut judge = |what: &str, expected: Expected, count: f64, bytes: f64| {
        let (of_count, of_bytes) = expected.deviations(count, bytes);
        let samples = expected.samples;
        all.push(format!("{what}: {of_count:+.2} σ of blocks, {of_bytes:+.2} σ of bytes, {samples:.0} samples"));
        is_far |= of_count.abs() > SIGMAS || of_bytes.abs() > SIGMAS;
    };
    for (site, counts) in sites {
        let count = counts.alloc_count as f64;
        let expected = Expected::blocks(count, counts.alloc_bytes as f64 / count, INTERVAL_BYTES);
        assert!(expected.samples >= SAMPLES_MIN, "too few allocations in {site}");
        let got = process.estimates_under(|function| function == site);
        judge(site, expected, got.alloc_count, got.alloc_bytes);
        sum.add(expected);
    }
    // Starting threads allocates as well, a millionth of the bytes.
    let got = process.estimates_under(|function| sites.contains_key(function));
    judge("all", sum, got.alloc_count, got.alloc_bytes);
    assert!(!is_far, "off by more than {SIGMAS} σ:\n{}", all.join("\n"));
}

/// Has threads allocate, in parts for which the target answers in time. Frees what they have kept.
#[track_caller]
fn run(target: &mut Target, threads: u64) -> Sites {
    let mut sites = Sites::new();
    let mut left = allocations();
    while left > 0 {
        let part = left.min(PART);
        left -= part;
        let ledger = target.work(&format!("run {threads} {}", part / threads));
        ledger.sites.into_iter().for_each(|site| sites.entry(site.function).or_default().add(site.counts));
        target.work("drop");
    }
    sites
}

/// Records many allocations, and their frees: a sampled block whose free passed unnoticed would remain live.
#[track_caller]
fn check(environment: Option<(&str, &str)>, threads: u64) {
    let mut target = migrating(environment);
    let (heapbpf, session) = start(&target, ARGUMENTS);
    let sites = run(&mut target, threads);
    let report = finish(&heapbpf, session, &mut target);
    assert_passed(&report, 1);
    let process = report.process(target.pid());
    assert_estimated(process, &sites);
    let live = process.estimates_under(|function| sites.contains_key(function));
    assert_eq!((live.live_count, live.live_bytes), (0.0, 0.0), "all blocks were freed");
}

#[test]
fn threads_that_move_between_cpus_are_estimated_without_bias() {
    check(None, THREADS);
}

/// Then a thread's address selects its countdown.
#[test]
fn threads_without_rseq_are_estimated_without_bias() {
    check(Some(WITHOUT_RSEQ), THREADS);
}

#[test]
fn threads_that_share_countdowns_are_estimated_without_bias() {
    check(Some(WITHOUT_RSEQ), 250);
}

#[test]
fn threads_that_move_between_cpus_are_counted_to_the_byte() {
    for environment in [None, Some(WITHOUT_RSEQ)] {
        let mut target = migrating(environment);
        let (report, ledger) = record(&mut target, EXACT, "run 16 4000");
        report.process(target.pid()).assert_matches(&ledger);
        assert_passed(&report, 1);
    }
}

/// A thousand signals of each of two kinds per second: each interrupts some instruction, in stubs too.
#[test]
fn signals_change_no_count() {
    let mut target = migrating(None);
    target.work("alarm 1000");
    let (report, ledger) = record(&mut target, EXACT, "run 4 20000");
    report.process(target.pid()).assert_matches(&ledger);
    assert_passed(&report, 1);
    let (heapbpf, session) = start(&target, ARGUMENTS);
    let sites = run(&mut target, THREADS);
    target.work("handled");
    let report = finish(&heapbpf, session, &mut target);
    assert_estimated(report.process(target.pid()), &sites);
    target.work("alarm 0");
    assert_unharmed(&mut target);
}
