//! Concurrent sessions, and reused PIDs.

use std::path::{Path, PathBuf};
use std::process::Command;

use heapbpf_tests::heapbpf::{Heapbpf, Session};
use heapbpf_tests::kernel::{changed_code, version};
use heapbpf_tests::report::{Callsite, Counts, Frame, Process, Report};
use heapbpf_tests::target::{Target, build};

use super::{assert_sites, copy, kept};

/// Stacks by function and line with their counts, which are equal in two reports of one process.
fn contents(process: &Process) -> Vec<(Vec<String>, String, Counts)> {
    let stack = |callsite: &Callsite| {
        let frame = |frame: &Frame| format!("{:?} {:?} {}", frame.function, frame.line, frame.address);
        callsite.stack.iter().map(frame).collect::<Vec<String>>()
    };
    let mut callsites: Vec<_> = process
        .callsites
        .iter()
        .map(|callsite| (stack(callsite), callsite.heap.clone(), callsite.totals.exact()))
        .collect();
    callsites.sort_by(|one, other| one.0.cmp(&other.0));
    callsites
}

/// Starts heapbpf on a target, recording every allocation.
fn record(pid: u32) -> (Heapbpf, Session) {
    let mut heapbpf = Heapbpf::of(pid, "--interval 1 -o out.json");
    let session = heapbpf.start();
    (heapbpf, session)
}

fn finish(heapbpf: &Heapbpf, session: Session) -> Report {
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    report
}

#[test]
fn two_sessions_on_one_target_have_equal_counts() {
    let mut target = Target::start("exact.c");
    let (first, first_session) = record(target.pid());
    let (second, second_session) = record(target.pid());
    let ledger = target.work("go");
    let reports = [finish(&first, first_session), finish(&second, second_session)];
    let processes = reports.each_ref().map(|report| report.process(target.pid()));
    processes.iter().for_each(|process| process.assert_matches(&ledger));
    assert_eq!(contents(processes[0]), contents(processes[1]));
}

#[test]
fn one_session_ends_and_the_other_continues() {
    let mut target = Target::start("service.c");
    let (first, first_session) = record(target.pid());
    let (second, second_session) = record(target.pid());
    target.work("keep 1000 25");
    // It ends at some point during this.
    let ended = std::thread::spawn(move || finish(&first, first_session));
    target.work("churn 100 50000");
    let first = ended.join().expect("it ended well");
    assert!(!changed_code(target.pid()).is_empty(), "the second one's probes are still there");
    target.work("keep 7 5");
    let second = finish(&second, second_session);
    assert_eq!(first.process(target.pid()).exact_by_leaf()["keeps"], kept(25, 1000));
    let sites = second.process(target.pid()).exact_by_leaf();
    assert_eq!(sites["keeps"], Counts { alloc_bytes: 25_035, live_bytes: 25_035, ..kept(30, 0) });
    let churned = sites["churns"];
    assert_eq!((churned.alloc_count, churned.free_count, churned.live_bytes), (50_000, 50_000, 0));
}

#[test]
fn sessions_on_two_targets_are_independent() {
    let mut targets = [Target::start("service.c"), Target::start("service.c")];
    let watched = targets.each_ref().map(|target| record(target.pid()));
    for (target, count) in targets.iter_mut().zip([25, 3]) {
        target.work(&format!("keep 1000 {count}"));
    }
    for ((target, count), (heapbpf, session)) in targets.iter().zip([25, 3]).zip(watched) {
        let report = finish(&heapbpf, session);
        assert_eq!(report.targets.iter().map(|process| process.pid).collect::<Vec<_>>(), [target.pid()]);
        assert_sites(&report.targets[0], &[("keeps", kept(count, 1000))]);
    }
}

/// A service with a unique name.
struct Named {
    folder: tempfile::TempDir,
}

impl Named {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("there is a directory for temporary files");
        let named = Self { folder };
        copy(build("service.c"), &named.program());
        named
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join("service")
    }

    fn pattern(&self) -> String {
        self.program().to_str().expect("plain").to_owned()
    }

    /// Starts it.
    fn start(&self) -> Target {
        Target::spawn(&mut Command::new(self.program()))
    }
}

/// Starts a program under the PID of an exited process.
fn start_as(pid: u32, program: &Path) -> Target {
    let target = Target::spawn(Command::new(build("numbered.c")).arg(pid.to_string()).arg(program));
    assert_eq!(target.child_pid(), pid);
    target
}

/// The same, with the addresses that each such process has.
fn start_at_fixed_addresses_as(pid: u32, program: &Path) -> Target {
    let mut command = Command::new("setarch");
    let target = Target::spawn(command.arg("-R").arg(build("numbered.c")).arg(pid.to_string()).arg(program));
    assert_eq!(target.child_pid(), pid);
    target
}

/// Fails unless these are the targets, which used one PID one after the other and kept these numbers of 1000-byte
/// blocks.
#[track_caller]
fn assert_one_after_the_other(report: &Report, pid: u32, counts: [u64; 2]) {
    let [before, after] = report.targets.as_slice() else { panic!("{:#?}", report.targets) };
    assert_eq!((before.pid, after.pid), (pid, pid));
    assert!(before.exited && !before.replaced, "the first one ended: {before:?}");
    assert!(!after.exited && !after.replaced, "the second one runs: {after:?}");
    assert_sites(before, &[("keeps", kept(counts[0], 1000))]);
    assert_sites(after, &[("keeps", kept(counts[1], 1000))]);
}

#[test]
fn a_pid_is_reused_by_another_matching_process() {
    let named = Named::new();
    let mut first = named.start();
    let pid = first.pid();
    let mut heapbpf = Heapbpf::new(["-v", "--cmdline", &named.pattern(), "--interval", "1", "-o", "out.json"]);
    let mut session = heapbpf.start();
    first.work("keep 1000 25");
    first.exit(0);
    let mut second = start_as(pid, &named.program());
    session.wait_for("is being recorded");
    second.work("keep 1000 3");
    assert_one_after_the_other(&finish(&heapbpf, session), pid, [25, 3]);
    second.assert_running();
}

#[test]
fn a_pid_is_reused_before_the_exit_is_noticed() {
    // Either event may be noticed first.
    for _ in 0..6 {
        let named = Named::new();
        let mut first = named.start();
        let pid = first.pid();
        let mut heapbpf = Heapbpf::new(["-v", "--cmdline", &named.pattern(), "--interval", "1", "-o", "out.json"]);
        let mut session = heapbpf.start();
        first.work("keep 1000 25");
        session.halt();
        first.exit(0);
        let mut second = start_as(pid, &named.program());
        session.resume();
        session.wait_for("is being recorded");
        second.work("keep 1000 3");
        assert_one_after_the_other(&finish(&heapbpf, session), pid, [25, 3]);
        second.assert_running();
    }
}

/// The stacks of both have the same ids, of which the kernel side sends the frames once.
#[test]
fn a_process_has_its_stacks_though_an_earlier_one_with_its_pid_had_the_same() {
    let named = Named::new();
    let mut ended = named.start();
    let pid = ended.pid();
    ended.exit(0);
    let mut heapbpf = Heapbpf::new(["-v", "--cmdline", &named.pattern(), "--interval", "1", "-o", "out.json"]);
    let mut session = heapbpf.start();
    let mut first = start_at_fixed_addresses_as(pid, &named.program());
    session.wait_for("is being recorded");
    first.work("keep 1000 25");
    first.exit(0);
    let mut second = start_at_fixed_addresses_as(pid, &named.program());
    session.wait_for("is being recorded");
    second.work("keep 1000 3");
    assert_one_after_the_other(&finish(&heapbpf, session), pid, [25, 3]);
    second.assert_running();
}

#[test]
fn successive_execs_are_one_target() {
    let named = Named::new();
    let mut heapbpf = Heapbpf::new(["-v", "--cmdline", &named.pattern(), "--interval", "1", "-o", "out.json"]);
    let mut session = heapbpf.start();
    session.halt();
    // Each executes the next one before heapbpf inspects it.
    let mut target = Target::spawn(Command::new("env").arg("env").arg("env").arg(named.program()));
    session.resume();
    session.wait_for("is being recorded");
    target.work("keep 1000 25");
    let report = finish(&heapbpf, session);
    let [process] = report.targets.as_slice() else { panic!("{:#?}", report.targets) };
    assert!(process.pid == target.pid() && !process.exited && !process.replaced, "{process:?}");
    assert_sites(process, &[("keeps", kept(25, 1000))]);
}

#[test]
fn a_requested_pid_is_reused_by_another_process() {
    for _ in 0..6 {
        let mut first = Target::start("service.c");
        let pid = first.pid();
        let (heapbpf, session) = record(pid);
        first.work("keep 1000 25");
        session.halt();
        first.exit(0);
        let mut second = start_as(pid, &build("service.c"));
        second.work("keep 1000 3");
        session.resume();
        // The request was for the first process, so the session ends.
        let _ = session.wait().expect_code(0);
        let report = heapbpf.report("out.json");
        report.assert_complete();
        let [process] = report.targets.as_slice() else { panic!("{:#?}", report.targets) };
        assert!(process.pid == pid && process.exited && !process.replaced, "{process:?}");
        assert_sites(process, &[("keeps", kept(25, 1000))]);
        second.assert_running();
    }
}

#[test]
fn of_three_targets_one_exits_one_is_killed_and_one_continues() {
    let mut targets = ["service.c"; 3].map(Target::start);
    let pids = targets.each_ref().map(Target::pid);
    let arguments = format!("--pid {} --pid {} --interval 1 -o out.json", pids[1], pids[2]);
    let mut heapbpf = Heapbpf::of(pids[0], &arguments);
    let session = heapbpf.start();
    for (target, count) in targets.iter_mut().zip([25, 7, 3]) {
        target.work(&format!("keep 1000 {count}"));
    }
    let [exiting, killed, living] = &mut targets;
    exiting.exit(5);
    killed.kill();
    living.work("keep 1000 1");
    let outcome = session.interrupt().expect_code(0);
    living.assert_running();

    assert_eq!(heapbpf.files(), ["out.json"]);
    for pid in pids {
        assert!(outcome.stdout.contains(&pid.to_string()), "{}", outcome.stdout);
    }
    let report = heapbpf.report("out.json");
    report.assert_complete();
    assert_eq!(report.targets.len(), 3);
    let known = version() >= (6, 15);
    for (pid, (count, exited, code)) in
        pids.into_iter().zip([(25, true, Some(5)), (7, true, Some(137)), (4, false, None)])
    {
        let process = report.process(pid);
        assert_sites(process, &[("keeps", kept(count, 1000))]);
        assert_eq!((process.exited, process.replaced), (exited, false), "{process:?}");
        assert!(process.exit_code == code || (!known && process.exit_code.is_none()), "{process:?}");
    }
}
