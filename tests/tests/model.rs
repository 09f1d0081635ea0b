//! Random programs whose counts are known, against reports (`heapbpf_tests::model`).
//!
//! The gate takes thirty, always the same. At night there are 2,000 others (`cargo xtask nightly --suite model`). CONTRIBUTING.md has the
//! commands that repeat one. Variables:
//!
//! - `HEAPBPF_MODEL_SEED`, `HEAPBPF_MODEL_PROGRAMS`: the first seed, and how many
//! - `HEAPBPF_MODEL_FEATURES`: what programs may do, as `features` reads it: `all`, `threads,fork`, `+stall,-exec`
//! - `HEAPBPF_MODEL_ATTEMPTS`: how often a failing program is run to reduce it

use std::fmt::Write as _;
use std::ops::Range;
use std::time::{Duration, Instant};

use heapbpf_tests::model::{Coverage, Plan, attempt, features, reduced};

/// Attempts to reduce a failing program, and time for them.
const ATTEMPTS_MAX: u32 = 60;
const REDUCED_WITHIN: Duration = Duration::from_secs(90);

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn number(name: &str) -> Option<u64> {
    variable(name).map(|value| value.parse().unwrap_or_else(|error| panic!("{name}={value}: {error}")))
}

/// Fails unless the reports about all programs are right.
#[track_caller]
#[expect(
    clippy::print_stdout,
    reason = "failures are shown when they are found, which may be half an hour before the end"
)]
fn check(seeds: Range<u64>, list: &str) {
    let features = features(list);
    println!("features {features:?}, seeds {seeds:?}");
    let attempts_max = number("HEAPBPF_MODEL_ATTEMPTS").and_then(|it| u32::try_from(it).ok()).unwrap_or(ATTEMPTS_MAX);
    let (mut failures, mut count, mut failed) = (String::new(), 0, 0);
    let (mut incomplete, mut coverage) = (0, Coverage::default());
    for seed in seeds {
        let plan = Plan::draw(seed, &features);
        let judgement = attempt(&plan);
        count += 1;
        incomplete += u32::from(!judgement.is_complete);
        coverage.intervals += judgement.coverage.intervals;
        coverage.covering += judgement.coverage.covering;
        failed += u32::from(!judgement.failures.is_empty());
        for failure in &judgement.failures {
            let begun = Instant::now();
            let (plan, failure) = reduced(&plan, failure, attempts_max, |plan| {
                if begun.elapsed() < REDUCED_WITHIN { attempt(plan).failures } else { Vec::new() }
            });
            let text = format!("{}: {plan}{:.4000}\n", failure.kind, failure.text);
            println!("{text}");
            writeln!(failures, "{text}").expect("a string takes all");
        }
    }
    let Coverage { intervals, covering } = coverage;
    println!("{count} programs: {failed} failed, {incomplete} incomplete; {covering} of {intervals} intervals cover");
    assert!(failures.is_empty(), "{failures}");
}

#[test]
fn programs_1_to_10_are_counted_right() {
    check(1..11, "");
}

#[test]
fn programs_11_to_20_are_counted_right() {
    check(11..21, "");
}

#[test]
fn programs_21_to_30_are_counted_right() {
    check(21..31, "");
}

#[test]
#[ignore = "part of `cargo xtask nightly`: 2,000 programs take half an hour"]
fn random_programs_are_counted_right() {
    let first = number("HEAPBPF_MODEL_SEED").or_else(|| number("PROPTEST_RNG_SEED")).unwrap_or(1);
    let count = number("HEAPBPF_MODEL_PROGRAMS").unwrap_or(2000);
    check(first..first + count, &variable("HEAPBPF_MODEL_FEATURES").unwrap_or_default());
}
