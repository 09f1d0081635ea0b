//! Launched programs whose calls pass no slot at first, or in part: the engine hands them back to the trap engine, and no call is
//! lost between both.

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::report::Counts;

/// Runs a command through heapbpf, which must record everything, and returns its only process's counts by leaf function.
#[track_caller]
fn record(interval: &str, words: &[String]) -> Heapbpf {
    let arguments = ["--engine", "inline", "--interval", interval, "-o", "out.json", "--"].map(str::to_owned);
    let mut heapbpf = Heapbpf::new(arguments.iter().chain(words));
    let _ = heapbpf.run().expect_counted();
    heapbpf
}

#[test]
fn calls_through_function_pointers_and_slots_are_counted() {
    let program = Recipe::of("indirect.c").build().display().to_string();
    let heapbpf = record("1", &[program]);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    let process = report.targets.last().expect("there is a target");
    let functions = process.exact_by_leaf();
    let counts = |name: &str| functions.get(name).copied().unwrap_or_default();
    let freed = |count: u64, bytes: u64| Counts {
        free_count: count,
        free_bytes: bytes,
        live_count: 0,
        live_bytes: 0,
        ..Counts::kept(count, bytes)
    };
    assert_eq!(counts("direct"), freed(20_000, 2_000_000));
    assert_eq!(counts("indirect"), freed(10_000, 2_000_000));
    assert_eq!(counts("last"), Counts::kept(250, 75_000));
}

#[test]
fn calls_through_slots_after_an_initialisation_without_slots_are_counted() {
    let program = Recipe::of("stormed.c").libraries("-ldl").build().display().to_string();
    let library = Recipe::of("storming.c").flags("-shared -fPIC").libraries("-ldl").build().display().to_string();
    let heapbpf = record("1", &[program, library]);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    let process = report.targets.last().expect("there is a target");
    let works = process.exact_by_leaf().get("works").copied().unwrap_or_default();
    assert_eq!((works.alloc_count, works.alloc_bytes, works.free_count), (1000, 100_000_000, 1000));
}
