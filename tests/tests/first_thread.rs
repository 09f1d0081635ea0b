//! Processes that run on after their first thread has exited, by which the kernel finds their memory.

use std::path::PathBuf;
use std::process::Command;

use heapbpf_tests::heapbpf::{Heapbpf, Session};
use heapbpf_tests::kernel;
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::report::{Counts, Report};
use heapbpf_tests::target::{Target, copy_program};
use tempfile::tempdir;

const BACKENDS: [&str; 3] = ["session", "multi", "perf"];
/// Logged when a target is found to have no first thread any more.
const SHARED: &str = "its main thread has exited, so its probes are shared";

fn program() -> PathBuf {
    Recipe::of("departing.c").libraries("-pthread -ldl").build()
}

/// A target whose first thread exits at a command.
fn staying() -> Target {
    Target::spawn(&mut Command::new(program()))
}

/// A target whose first thread has exited.
fn departed() -> Target {
    Target::spawn(Command::new(program()).env("DEPARTED", "1"))
}

fn plugin() -> PathBuf {
    Recipe::of("plugin.c").flags("-shared -fPIC -Wl,-Bsymbolic").build()
}

fn start(target: &Target, arguments: &str) -> (Heapbpf, Session) {
    let arguments = format!("-v --on-overload drop --interval 1 -o out.json {arguments}");
    let mut heapbpf = Heapbpf::of(target.pid(), &arguments);
    let session = heapbpf.start();
    (heapbpf, session)
}

#[track_caller]
fn assert_kept(report: &Report, target: &Target, function: &str, kept: Counts) {
    let counts = report.process(target.pid()).exact_by_leaf();
    assert_eq!(counts.get(function).copied().unwrap_or_default(), kept, "{function} of {counts:?}");
}

#[test]
fn a_process_without_its_first_thread_is_recorded_with_every_backend() {
    for backend in BACKENDS {
        let mut target = departed();
        let (heapbpf, session) = start(&target, &format!("--backend {backend}"));
        target.work("keep 100 30");
        let _ = session.interrupt().expect_code(0);
        let report = heapbpf.report("out.json");
        report.assert_complete();
        assert_kept(&report, &target, "keeps", Counts::kept(30, 3000));
        kernel::assert_no_probes(target.pid());
        target.exit(0);
    }
}

#[test]
fn a_process_without_its_first_thread_is_found_by_its_name() {
    let directory = tempdir().expect("there is a directory for temporary files");
    let name = format!("departed-{}", std::process::id());
    let copy = directory.path().join(&name);
    copy_program(program(), &copy);
    let mut target = Target::spawn(Command::new(&copy).env("DEPARTED", "1"));
    let mut heapbpf = Heapbpf::new(["--cmdline", &name, "--interval", "1", "-o", "out.json"]);
    let session = heapbpf.start();
    target.work("keep 100 30");
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    assert_kept(&report, &target, "keeps", Counts::kept(30, 3000));
}

#[test]
fn a_process_that_loses_its_first_thread_stays_recorded() {
    for backend in BACKENDS {
        let mut target = staying();
        let (heapbpf, mut session) = start(&target, &format!("--backend {backend}"));
        target.work("keep 100 30");
        target.work("depart");
        session.wait_for(SHARED);
        target.work("keep 100 12");
        let outcome = session.interrupt();
        let report = heapbpf.report("out.json");
        assert_kept(&report, &target, "keeps", Counts::kept(42, 4200));
        // Only links of sessions are known to record it in between.
        let code = if backend == "session" { 0 } else { 3 };
        assert_eq!(outcome.status.code(), Some(code), "{backend}: {outcome:?}");
        kernel::assert_no_probes(target.pid());
    }
}

#[test]
fn a_library_that_is_loaded_without_the_first_thread_is_recorded() {
    for leaves_while_recorded in [false, true] {
        let mut target = if leaves_while_recorded { staying() } else { departed() };
        let (heapbpf, mut session) = start(&target, "");
        target.work("keep 100 3");
        if leaves_while_recorded {
            target.work("depart");
        }
        target.work(&format!("load {}", plugin().display()));
        session.wait_for("more hooks");
        target.work("use 64 20");
        target.work("keep 100 4");
        let _ = session.interrupt().expect_code(0);
        let report = heapbpf.report("out.json");
        assert_kept(&report, &target, "plugin_keeps", Counts::kept(20, 1280));
        assert_kept(&report, &target, "keeps", Counts::kept(7, 700));
    }
}

#[test]
fn the_inline_engine_records_a_process_that_loses_its_first_thread() {
    let mut target = staying();
    let (heapbpf, mut session) = start(&target, "--engine inline");
    target.work("keep 100 30");
    target.work("depart");
    session.wait_for(SHARED);
    target.work("keep 100 12");
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    assert_kept(&report, &target, "keeps", Counts::kept(42, 4200));
    target.exit(0);
}

#[test]
fn what_a_process_without_its_first_thread_forks_and_executes_is_recorded() {
    let mut target = departed();
    let (heapbpf, mut session) = start(&target, "");
    target.work("fork");
    session.wait_for("is being recorded");
    target.work("end");
    target.exec("exec");
    session.wait_for("is being recorded");
    target.work("keep 100 9");
    let _ = session.interrupt();
    let report = heapbpf.report("out.json");
    let of = |pid: u32| report.targets.iter().filter(move |process| process.pid == pid);
    let kept: Vec<u64> =
        of(target.pid()).filter_map(|process| Some(process.exact_by_leaf().get("keeps")?.alloc_count)).collect();
    assert_eq!(kept, [9], "by the program that it has executed");
    assert_eq!(report.child_of(target.pid()).exact_by_leaf()["keeps"].alloc_count, 5);
}

/// When the probes of the child are detached, the kernel removes the breakpoints from processes that nobody seems to record.
#[test]
fn a_process_without_its_first_thread_keeps_its_breakpoints_when_its_child_exits() {
    let mut target = staying();
    let (heapbpf, mut session) = start(&target, "");
    target.work("fork");
    session.wait_for("is being recorded");
    // Both are noticed at once.
    session.halt();
    target.work("depart");
    target.work("end");
    session.resume();
    let mut count = 0;
    while !session.printed().contains(SHARED) {
        target.work("keep 100 1");
        count += 1;
    }
    let _ = session.interrupt().expect_code(0);
    assert_kept(&heapbpf.report("out.json"), &target, "keeps", Counts::kept(count, 100 * count));
}

/// Other processes have the breakpoints too, and are not recorded.
#[test]
fn only_the_target_is_recorded_by_shared_probes() {
    let (mut target, mut other) = (departed(), staying());
    let (heapbpf, session) = start(&target, "");
    other.work("keep 100 500");
    target.work("keep 100 30");
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    assert_eq!(report.targets.len(), 1);
    assert_kept(&report, &target, "keeps", Counts::kept(30, 3000));
}
