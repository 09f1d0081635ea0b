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

/// Fails unless all reports about a program are right. It is run often, because what goes wrong may depend on who is faster.
#[track_caller]
fn check_often(text: &str, times: u64) {
    let plan = Plan::parse(text);
    let (mut failures, mut log): (Vec<String>, _) = (Vec::new(), String::new());
    for judgement in (0..times).map(|_| attempt(&plan)) {
        if !judgement.failures.is_empty() {
            log.clone_from(&judgement.log);
        }
        failures.extend(judgement.failures.iter().map(|it| format!("{}: {}", it.kind, it.text)));
    }
    let text = failures.join("\n");
    assert!(failures.is_empty(), "{} failures in {times} times: {plan}{text}\n{log}", failures.len());
}

#[test]
fn children_keep_stubs_of_parents_that_execute_another_program_before_the_children_are_targets() {
    check_often(
        "seed 0, Attached { has_inventory: false }, --interval 1 --engine inline --on-overload drop; features attach,exec,fork,inline,inline-fork,stall
        0 alloc deep_memalign 9 1024
        0 alloc deep_realloc 16 100
        0 alloc deep_calloc 16 40
        0 free oldest 10
        sync attach
        sync stop
        fork held 0
        0 alloc deep_memalign 90 1024
        0 alloc deep_realloc 16 100
        0 alloc deep_calloc 160 40
        0 free oldest 100
        }
        exec free
        sync go",
        3,
    );
}

/// The links of the main thread's time are closed after those of the new program have been attached.
#[test]
fn calls_are_sampled_once_after_an_exec_by_another_thread() {
    check_often(
        "seed 0, Attached { has_inventory: false }, --interval 64 --on-overload drop; features attach,exec,fork,leader,sampled
        sync attach
        leave
        fork held 0
        }
        reap
        exec held
        0 alloc deep_calloc 3380 40",
        2,
    );
}

#[test]
fn blocks_from_before_are_counted_or_missed_if_the_process_exits_or_executes_another_program_meanwhile() {
    let program = |first: &str, last: &str| {
        format!(
            "seed 0, Attached {{ has_inventory: true }}, {first}--interval 1 --on-overload drop; features attach,early,exec,inventory
            0 churn deep_memalign 180 1024 50
            0 alloc deep_malloc 20000 24
            sync attach
            {last}"
        )
    };
    check_often(&program("", "exec held"), 2);
    check_often(&program("exits first, ", ""), 2);
}

/// Nothing comes after the drops that could have the kernel side send the stacks again.
#[test]
fn intervals_of_functions_include_blocks_whose_stacks_were_dropped() {
    check_often(
        "seed 0, Attached { has_inventory: false }, --interval 64 --on-overload drop --ring-size 512KiB; features attach,sampled,stall
        sync attach
        sync stop
        &1 churn flat_aligned 55348 8 0
        &1 alloc flat_aligned 5534 8
        join
        sync go",
        2,
    );
}

#[test]
fn ledgers_of_programs_that_execute_others_after_drops_are_corrected() {
    check_often(
        "seed 0, Attached { has_inventory: false }, --interval 64 --on-overload drop --ring-size 512KiB; features attach,exec,sampled,stall
        0 alloc flat_malloc 30 1000
        sync attach
        0 alloc flat_memalign 3000 1000
        sync stop
        1 churn flat_posix 55348 8 0
        0 free newest 2500
        sync go
        exec held
        exec held",
        3,
    );
}

/// The pass after the drops finds the child's ledger without the blocks in the live set.
#[test]
fn children_that_are_followed_after_drops_keep_their_inherited_blocks() {
    check_often(
        "seed 0, Attached { has_inventory: false }, --interval 1 --on-overload drop --ring-size 512KiB; features attach,exec,fork,stall
        sync attach
        0 churn nested_aligned 804 4000 3
        fork held 0
        0 churn flat_aligned 692 40 3
        }
        sync stop
        &1 churn flat_posix 40932 8 100
        &2 churn nested_realloc 44970 1000 100
        join
        sync go
        exec held",
        4,
    );
}

/// The fork comes before the probes of the parent's new program are attached, or before heapbpf has read of its exec.
#[test]
fn children_of_programs_that_have_just_begun_are_recorded() {
    let program = |before: &str, after: &str, features: &str| {
        format!(
            "seed 0, Attached {{ has_inventory: false }}, --interval 1 --on-overload drop; features attach,exec,fork,{features}
            sync attach{before}
            exec free
            0 alloc deep_memalign 161 20000
            fork held 0
            0 alloc flat_posix 200 5000
            1 churn nested_aligned 1020 333 3
            }}{after}"
        )
    };
    check_often(&program("", "", "unheld"), 5);
    check_often(&program("\nsync stop", "\nsync go", "stall,unheld"), 2);
}

#[test]
fn processes_that_end_in_the_memory_of_others_are_in_the_verdict() {
    check_often(
        "seed 0, Launched, --interval 1 --on-overload drop; features share
        0 alloc deep_calloc 20 40
        share deep_calloc 37 40
        0 free newest 3",
        2,
    );
}

#[test]
fn children_whose_first_calls_are_missing_are_in_the_verdict() {
    check_often(
        "seed 0, Launched, --interval 1 --on-overload drop; features fork,unheld
        fork wait 0
        0 alloc nested_malloc 2300 20000
        }",
        3,
    );
}

#[test]
#[ignore = "part of `cargo xtask nightly`: repeats a program that has failed, of a file"]
fn a_program_of_a_file_is_counted_right() {
    let Some(path) = variable("HEAPBPF_MODEL_FILE") else { return };
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    check_often(&text, number("HEAPBPF_MODEL_TIMES").unwrap_or(10));
}

#[test]
#[ignore = "part of `cargo xtask nightly`: 2,000 programs take half an hour"]
fn random_programs_are_counted_right() {
    let first = number("HEAPBPF_MODEL_SEED").or_else(|| number("PROPTEST_RNG_SEED")).unwrap_or(1);
    let count = number("HEAPBPF_MODEL_PROGRAMS").unwrap_or(2000);
    check(first..first + count, &variable("HEAPBPF_MODEL_FEATURES").unwrap_or_default());
}
