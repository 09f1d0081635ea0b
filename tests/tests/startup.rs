//! Startup of a real program that heapbpf did not start: redis, whose allocator is in a library.

#![expect(clippy::print_stderr, clippy::cast_precision_loss, reason = "prints figures with --nocapture")]

use std::collections::BTreeSet;

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::redis::{self, Redis};
use heapbpf_tests::report::{Process, Report};

/// Functions of redis that allocate at startup, directly or indirectly.
const START_UP: [&str; 4] = ["initServerConfig", "populateCommandTable", "initServer", "createSharedObjects"];

/// Maximum number of attempts until a process was held in time.
const STARTS_MAX: u32 = 20;

/// Returns a unique name.
fn name(word: &str) -> String {
    format!("{word}-redis-of-{}", std::process::id())
}

/// Reports a redis that is started independently of heapbpf and exits.
fn of_a_pattern(name: &str, hold: &str) -> Report {
    let mut heapbpf = Heapbpf::new(["-v", "--interval", "1", "--hold", hold, "--cmdline", name, "-o", "out.json"]);
    let mut session = heapbpf.start();
    let redis = if hold == "never" { Redis::start_as(name) } else { Redis::start_held_as(name) };
    let pid = redis.pid();
    session.wait_for(&format!("process {pid} "));
    redis.shut_down();
    // A process that is not held runs while its unwind tables are built.
    let _ = session.interrupt().expect_counted();
    let report = heapbpf.report("out.json");
    report.assert_complete();
    assert_eq!((report.targets.len(), report.targets[0].pid), (1, pid));
    assert_eq!(report.targets[0].beginning.origin, "exec");
    assert!(report.targets[0].exited);
    report
}

/// Reports a redis that is started by heapbpf and exits.
fn of_a_launch() -> Report {
    let directory = tempfile::tempdir().expect("there is a directory for temporary files");
    let mut arguments: Vec<String> =
        ["--interval", "1", "-o", "out.json", "--", "redis-server"].map(str::to_owned).to_vec();
    arguments.extend(redis::arguments(directory.path()));
    let mut heapbpf = Heapbpf::new(arguments);
    let session = heapbpf.spawn();
    redis::wait_until_ready(directory.path());
    redis::shut_down(directory.path());
    let _ = session.wait().expect_code(0);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    assert!(report.targets[0].beginning.from_first_call, "{:?}", report.targets[0].beginning);
    report
}

fn functions(process: &Process) -> BTreeSet<&str> {
    process
        .callsites
        .iter()
        .flat_map(|callsite| &callsite.stack)
        .filter_map(|frame| frame.function.as_deref())
        .collect()
}

fn allocations(process: &Process, function: &str) -> u64 {
    process.exact_under(|name| name == function).alloc_count
}

#[test]
fn a_program_started_later_is_recorded_from_its_first_allocations() {
    let launched = of_a_launch();
    let launched = &launched.targets[0];
    let all = launched.totals.exact().alloc_count;
    for function in START_UP {
        assert!(allocations(launched, function) > 0, "`{function}` is not among {:?}", functions(launched));
    }
    // On a busy machine, its loader may not map the allocator within heapbpf's time limit; the report has whether it did.
    let held = (0..STARTS_MAX).any(|start| {
        let found = of_a_pattern(&name(&format!("held{start}")), "execs");
        let found = &found.targets[0];
        let seen = found.totals.exact().alloc_count;
        let is_whole = found.beginning.from_first_call;
        eprintln!("start {start}: {seen} blocks of {all}, from the first call on: {is_whole}");
        for function in START_UP.into_iter().filter(|_| is_whole) {
            let (own, others) = (allocations(found, function), allocations(launched, function));
            assert_eq!(own, others, "{function}: {:?}", found.beginning);
        }
        // Its activity ten times per second depends on its run time.
        assert!(!is_whole || seen.abs_diff(all) * 100 <= all, "{seen} of {all}: {:?}", found.beginning);
        assert!(seen <= all + all / 100, "{seen} of {all}: {:?}", found.beginning);
        is_whole
    });
    assert!(held, "none of {STARTS_MAX} starts was seen from its first call on");
}

#[test]
fn a_process_that_is_not_held_reports_the_start_of_its_recording() {
    let report = of_a_pattern(&name("free"), "never");
    let found = &report.targets[0];
    let delay_ns = found.beginning.delay_ns.expect("its exec was seen");
    eprintln!("not held: {:.1} ms late", delay_ns as f64 / 1e6);
    assert!(allocations(found, "main") > 0, "tables come with the probes: {:?}", report.health.unwind);
    assert!(delay_ns > 0 && delay_ns < 60_000_000_000, "{:?}", found.beginning);
    assert!(found.beginning.unix_ns >= report.started_unix_ns && found.beginning.unix_ns <= report.ended_unix_ns);
    // Some may still be recorded from the first call: then all calls are in the report.
    if found.beginning.from_first_call {
        let launched = of_a_launch();
        let whole = allocations(&launched.targets[0], "createSharedObjects");
        assert_eq!(allocations(found, "createSharedObjects"), whole);
    }
}
