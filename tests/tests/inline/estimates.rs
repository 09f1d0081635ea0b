//! Estimates of programs whose threads are preempted, moved between CPUs and interrupted by signals: unbiased, and exact at an
//! interval of 1.

use std::collections::BTreeMap;
use std::process::Command;

use heapbpf_tests::report::{Counts, Process};
use heapbpf_tests::sampling::{Errors, Expected, SAMPLES_MIN, assert_unbiased};
use heapbpf_tests::target::{Target, build};

use super::{EXACT, assert_passed, assert_unharmed, finish, record, start};

const THREADS: u64 = 16;
/// Allocations by all threads; `HEAPBPF_INLINE_ALLOCATIONS` overrides it.
const ALLOCATIONS: u64 = 20_000_000;
/// Maximum number for one command.
const PART: u64 = 100_000_000;
/// Few samples, so that the agent receives all events of many allocations.
const ARGUMENTS: &str = "--engine inline --interval 512KiB --on-overload drop -o out.json";
const INTERVAL_BYTES: f64 = 524_288.0;

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

/// Errors of the estimates of all functions, of blocks of one size each.
#[track_caller]
#[expect(clippy::cast_precision_loss, reason = "counts and bytes here are far below 2^53")]
fn errors(process: &Process, sites: &Sites) -> Errors {
    let (mut sum, mut errors) = (Expected::default(), Errors::default());
    for (site, counts) in sites {
        let count = counts.alloc_count as f64;
        let expected = Expected::blocks(count, counts.alloc_bytes as f64 / count, INTERVAL_BYTES);
        assert!(expected.samples >= SAMPLES_MIN, "too few allocations in {site}");
        let got = process.estimates_under(|function| function == site);
        errors.note(site, &expected, got.alloc_count, got.alloc_bytes);
        sum.add(expected);
    }
    // Starting threads allocates as well, a millionth of the bytes.
    let got = process.estimates_under(|function| sites.contains_key(function));
    errors.note("all", &sum, got.alloc_count, got.alloc_bytes);
    errors
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
fn estimate(environment: Option<(&str, &str)>, threads: u64) -> Errors {
    let mut target = migrating(environment);
    let (heapbpf, session) = start(&target, ARGUMENTS);
    let sites = run(&mut target, threads);
    let report = finish(&heapbpf, session, &mut target);
    assert_passed(&report, 1);
    let process = report.process(target.pid());
    let live = process.estimates_under(|function| sites.contains_key(function));
    assert_eq!((live.live_count, live.live_bytes), (0.0, 0.0), "all blocks were freed");
    errors(process, &sites)
}

#[track_caller]
fn check(environment: Option<(&str, &str)>, threads: u64) {
    assert_unbiased(&format!("{threads} threads, {environment:?}"), || estimate(environment, threads));
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
    assert_unbiased("interrupted threads", || {
        let (heapbpf, session) = start(&target, ARGUMENTS);
        let sites = run(&mut target, THREADS);
        target.work("handled");
        let report = finish(&heapbpf, session, &mut target);
        errors(report.process(target.pid()), &sites)
    });
    target.work("alarm 0");
    assert_unharmed(&mut target);
}
