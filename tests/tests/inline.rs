//! The inline engine: slots of the global offset tables lead to stubs, which pass only sampled calls to the kernel side.
//!
//! Every test ends with an unharmed target: its slots are as they were, its code equals its files, and it works.
//! `matrix.rs` runs its allocators with this engine, too, and `faults.rs` kills processes at random times.

mod estimates;
mod handed_over;
mod interposed;
mod interrupted;
mod killed;
mod modules;
mod processes;
mod refusals;
mod reloaded;
mod repeated;
mod stacks;
mod stacks_untouched;

use std::fs;

use heapbpf_tests::heapbpf::{Heapbpf, Session};
use heapbpf_tests::kernel::{assert_no_probes, tasks, wait_until};
use heapbpf_tests::report::{InlineEngine, Ledger, Report};
use heapbpf_tests::stubs::assert_restored;
use heapbpf_tests::target::Target;

/// Every call is an event.
const EXACT: &str = "--engine inline --interval 1 -o out.json";
/// Largest share of calls that may pass no slot.
const TRAPPED_MAX: f64 = 0.01;

/// Starts a session of a target with these arguments.
#[track_caller]
fn start(target: &Target, arguments: &str) -> (Heapbpf, Session) {
    let mut heapbpf = Heapbpf::of(target.pid(), arguments);
    let session = heapbpf.start();
    (heapbpf, session)
}

/// Ends a session, which must have dropped nothing, and returns its report.
#[track_caller]
fn finish(heapbpf: &Heapbpf, session: Session, target: &mut Target) -> Report {
    finish_but_for(&[], heapbpf, session, target)
}

/// Ends a session, which may have dropped events for these reasons alone, and returns its report.
#[track_caller]
fn finish_but_for(permitted: &[&str], heapbpf: &Heapbpf, session: Session, target: &mut Target) -> Report {
    let outcome = session.interrupt().expect_counted();
    assert!(!outcome.stderr.contains("stubs of heapbpf remain"), "{}", outcome.stderr);
    assert_unharmed(target);
    let report = heapbpf.report("out.json");
    report.assert_nothing_lost_but(permitted);
    report
}

/// As [`finish`], of a target that executes programs: those that ran before their probes were attached are the only losses.
#[track_caller]
fn finish_programs(heapbpf: &Heapbpf, session: Session, target: &mut Target) -> Report {
    let outcome = session.interrupt();
    assert!(matches!(outcome.status.code(), Some(0 | 3)), "{outcome:?}");
    assert_unharmed(target);
    let report = heapbpf.report("out.json");
    report.assert_complete_but_for_programs();
    report
}

/// Records one command from start to end.
#[track_caller]
fn record(target: &mut Target, arguments: &str, line: &str) -> (Report, Ledger) {
    let (heapbpf, session) = start(target, arguments);
    let ledger = target.work(line);
    (finish(&heapbpf, session, target), ledger)
}

/// Fails unless a target runs, and nothing is left in it.
#[track_caller]
fn assert_unharmed(target: &mut Target) {
    let pid = target.pid();
    target.assert_running();
    assert_no_probes(pid);
    assert_restored(pid);
    wait_until("nobody traces it", || !is_traced(pid));
}

/// Whether a thread is traced. Threads may end meanwhile.
fn is_traced(pid: u32) -> bool {
    let tracer = |task: u32| -> Option<bool> {
        let status = fs::read_to_string(format!("/proc/{pid}/task/{task}/status")).ok()?;
        Some(status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?.trim() != "0")
    };
    tasks(pid).into_iter().any(|task| tracer(task) == Some(true))
}

/// Facts about the engine.
#[track_caller]
fn engine(report: &Report) -> &InlineEngine {
    report.health.inline_engine.as_ref().expect("the engine was requested")
}

/// Fails unless so many targets were recorded by stubs, which nearly all of their calls passed.
#[track_caller]
#[expect(clippy::cast_precision_loss, reason = "a share")]
fn assert_passed(report: &Report, targets: u64) {
    let engine = engine(report);
    assert_eq!((engine.targets, engine.refused.len()), (targets, 0), "{engine:?}");
    let trapped = engine.trapped_calls as f64 / (engine.passed_calls + engine.trapped_calls) as f64;
    assert!(trapped <= TRAPPED_MAX, "{engine:?}");
}

#[test]
fn all_kinds_of_calls_are_counted_to_the_byte() {
    let mut target = Target::start("exact.c");
    // Its child is a target only if it lives until it is found.
    let (report, ledger) = record(&mut target, &format!("{EXACT} --no-follow-fork"), "go");
    let process = report.process(target.pid());
    process.assert_matches(&ledger);
    assert_eq!(process.totals.exact(), ledger.sum());
    assert_passed(&report, 1);
    let calls = engine(&report).passed_calls + engine(&report).trapped_calls;
    assert!(calls >= ledger.sum().alloc_count, "{:?}", engine(&report));
}

/// Half of them free each other's blocks.
#[test]
fn threads_are_counted_to_the_byte() {
    let mut target = Target::start("threads.c");
    let (report, ledger) = record(&mut target, EXACT, "go");
    report.process(target.pid()).assert_matches(&ledger);
    assert_passed(&report, 1);
}
