//! Limits on the cost of profiling: they are enforced, and reports contain when and how.

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::kernel::{assert_no_probes, changed_code};
use heapbpf_tests::report::{Reached, Report};
use heapbpf_tests::target::Target;

/// Starts a target that allocates as fast as it can.
fn flat_out() -> Target {
    let mut target = Target::start("flatout.c");
    let _ = target.work("start");
    target
}

/// Measures its pairs of allocation and free per millisecond of CPU time.
fn rate(target: &mut Target) -> u64 {
    target.work("rate").by_function()["rate"].alloc_bytes
}

/// Returns the only limit that was reached.
#[track_caller]
fn reached(report: &Report) -> &Reached {
    let [reached] = report.health.guardrails.reached.as_slice() else { panic!("{:?}", report.health.guardrails) };
    assert!((report.started_unix_ns..=report.ended_unix_ns).contains(&reached.unix_ns), "{reached:?}");
    reached
}

#[test]
fn a_target_whose_probes_cost_too_much_is_detached() {
    let mut target = flat_out();
    let before = rate(&mut target);
    // Nothing is left to record, so the recording ends.
    let mut heapbpf = Heapbpf::of(target.pid(), "--max-overhead 1% -o out.json");
    let outcome = heapbpf.start().wait().expect_code(3);
    assert_no_probes(target.pid());
    let after = rate(&mut target);
    // Probes make it tens of times slower.
    assert!(after > before / 5, "it makes {after} pairs in a millisecond, before it was {before}");

    let report = heapbpf.report("out.json");
    let process = report.process(target.pid());
    let reached = reached(&report);
    assert_eq!((reached.limit.as_str(), reached.action.as_str()), ("overhead", "detached"));
    assert_eq!(reached.pid, Some(target.pid()));
    assert!(reached.percent.is_some_and(|percent| percent > 30.0), "{reached:?}");
    assert!(!process.exited && process.detached_unix_ns.is_some_and(|time| time <= reached.unix_ns), "{process:?}");
    // The report covers the time until then, and no more: a pair takes at least a microsecond.
    let overhead = process.overhead.as_ref().expect("it was measured");
    let estimates = process.estimates_under(|function| function == "churns");
    assert!(estimates.alloc_count > 1000.0, "{estimates:?}");
    #[expect(clippy::cast_precision_loss, reason = "seconds in nanoseconds")]
    let pairs_max = (overhead.cpu_ns as f64 + 1e9) / 100.0;
    assert!(estimates.alloc_count < pairs_max, "{estimates:?} in {overhead:?}");
    assert!(estimates.live_count < 0.01 * estimates.alloc_count + 5000.0, "{estimates:?}");
    for text in ["detached after", "health: incomplete: 1 process detached by a limit"] {
        assert!(outcome.stdout.contains(text), "{}", outcome.stdout);
    }
    assert!(outcome.stderr.contains("detached from process"), "{}", outcome.stderr);
}

#[test]
fn a_limit_that_is_not_reached_changes_nothing() {
    let target = flat_out();
    let mut heapbpf = Heapbpf::of(
        target.pid(),
        "--max-overhead 1000% --max-memory 2GiB --max-cpu 1000% --interval 512KiB --duration 6s -o out.json",
    );
    let _ = heapbpf.run().expect_code(0);
    let report = heapbpf.report("out.json");
    let guardrails = &report.health.guardrails;
    assert!(guardrails.reached.is_empty(), "{guardrails:?}");
    let highest = guardrails.memory_bytes_highest.expect("memory was measured");
    assert!((32 << 20..1 << 30).contains(&highest), "{highest}");
    let process = report.process(target.pid());
    assert_eq!(process.detached_unix_ns, None);
    let overhead = process.overhead.as_ref().expect("it was measured");
    // All but a hundredth of its calls trap; the cost of a trap was measured at another time.
    assert!((25.0..400.0).contains(&overhead.percent), "{overhead:?}");
    // Other processes may use the CPUs too.
    assert!(overhead.cpu_ns > 50_000_000, "{overhead:?}");
}

#[test]
fn other_targets_continue_after_one_is_detached() {
    let dear = flat_out();
    let mut cheap = Target::start("service.c");
    let (one, other) = (dear.pid().to_string(), cheap.pid().to_string());
    // Drops of the expensive target are irrelevant here; the records of the cheap one must be complete.
    let arguments = ["--max-overhead", "10", "--interval", "1", "--on-overload", "drop", "-o", "out.json"];
    let mut heapbpf = Heapbpf::new(["--pid", &one, "--pid", &other].into_iter().chain(arguments));
    let mut session = heapbpf.start();
    session.wait_for("detached from process");
    // At once, and not when heapbpf exits.
    assert_no_probes(dear.pid());
    assert!(!changed_code(cheap.pid()).is_empty(), "it was detached, too");
    let ledger = cheap.work("keep 100 50");
    let _ = session.interrupt().expect_code(3);
    let report = heapbpf.report("out.json");
    report.process(cheap.pid()).assert_matches(&ledger);
    assert_eq!(reached(&report).pid, Some(dear.pid()));
    assert_eq!(report.process(cheap.pid()).detached_unix_ns, None);
    assert!(report.process(dear.pid()).detached_unix_ns.is_some());
}

#[test]
fn maps_larger_than_the_limit_are_wrong_usage() {
    let target = Target::start("service.c");
    let check = |arguments: &str, option: &str| {
        let error = Heapbpf::of(target.pid(), arguments).run().expect_error(2);
        assert!(error.contains(option) && error.contains("--max-memory"), "{error}");
    };
    check("--max-memory 20MiB --unwind fp --live-blocks 1000000 --ring-size 64KiB", "`--live-blocks`");
    check("--max-memory 200MiB --ring-size 256MiB", "`--ring-size`");
}

#[test]
fn a_recording_that_exceeds_the_memory_limit_ends_with_a_report() {
    const BLOCKS: u64 = 900_000;
    let mut target = Target::start("flatout.c");
    // The ring buffer is large enough for all records, so that none is dropped however late it is read.
    let arguments = "--max-memory 220MiB --ring-size 64MiB --on-overload drop --unwind fp --interval 1 -o out.json";
    let mut heapbpf = Heapbpf::of(target.pid(), arguments);
    let session = heapbpf.start();
    let _ = target.work(&format!("keep {BLOCKS}"));
    let outcome = session.wait().expect_code(3);
    target.assert_running();
    let report = heapbpf.report("out.json");
    let reached = reached(&report);
    assert_eq!((reached.limit.as_str(), reached.action.as_str()), ("memory", "stopped"));
    assert!(reached.bytes.is_some_and(|bytes| bytes > 220 << 20), "{reached:?}");
    assert_eq!(report.health.guardrails.memory_bytes_highest, reached.bytes);
    assert!(report.health.lost.is_empty(), "{:?}", report.health.lost);
    let counts = report.process(target.pid()).exact_under(|function| function == "keeps");
    assert!((50_000..=BLOCKS).contains(&counts.live_count), "{counts:?}");
    assert_eq!((counts.live_bytes, counts.free_count), (100 * counts.live_count, 0));
    assert!(outcome.stderr.contains("recording ends: heapbpf and its kernel maps use"), "{}", outcome.stderr);
}

#[test]
fn an_agent_that_exceeds_the_cpu_limit_samples_less() {
    let target = flat_out();
    let mut heapbpf = Heapbpf::of(target.pid(), "--max-cpu 2% --interval 1 -o out.json");
    let mut session = heapbpf.start();
    session.wait_for("all intervals are raised");
    let _ = session.interrupt();
    let report = heapbpf.report("out.json");
    let first = &report.health.guardrails.reached[0];
    assert_eq!((first.limit.as_str(), first.action.as_str()), ("cpu", "intervals_raised"));
    assert!(first.percent.is_some_and(|percent| percent > 2.0), "{first:?}");
}

#[test]
fn an_agent_that_always_exceeds_the_cpu_limit_stops() {
    let target = Target::start("service.c");
    // Periodic wakeups alone exceed the limit.
    let mut heapbpf = Heapbpf::of(target.pid(), "--max-cpu 0.001% -o out.json");
    let _ = heapbpf.run().expect_code(3);
    let report = heapbpf.report("out.json");
    let actions: Vec<&str> = report.health.guardrails.reached.iter().map(|reached| reached.action.as_str()).collect();
    assert!(actions.len() > 1, "{actions:?}");
    assert_eq!(actions.last(), Some(&"stopped"));
    assert!(actions.iter().rev().skip(1).all(|action| *action == "intervals_raised"), "{actions:?}");
}
