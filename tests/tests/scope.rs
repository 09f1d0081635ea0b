//! Probes of single processes, and probes that all processes share. One test at a time: shared probes are in every process.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use heapbpf_tests::heapbpf::{Heapbpf, Outcome, Session};
use heapbpf_tests::kernel::{assert_no_probes, changed_code, version};
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::report::Report;
use heapbpf_tests::target::{Target, build, run};

/// Enough that probes of their own cost more than shared ones cost two CPUs of other work.
const MANY: usize = 120;

fn service(name: &str) -> Target {
    Target::spawn(Command::new(build("service.c")).arg0(name))
}

fn heapbpf(name: &str, arguments: &[&str]) -> Heapbpf {
    let all = ["-v", "--cmdline", name, "--interval", "1", "-o", "out.json"];
    Heapbpf::new(all.iter().chain(arguments))
}

#[track_caller]
fn kept(report: &Report, target: &Target) -> u64 {
    report.process(target.pid()).exact_by_leaf().get("keeps").map_or(0, |counts| counts.alloc_count)
}

#[track_caller]
fn wait_until_recorded(session: &mut Session, target: &Target) {
    session.wait_for(&format!("process {} ", target.pid()));
}

#[test]
fn targets_are_moved_to_shared_probes_without_missing_a_call() {
    let name = format!("moved-{}", std::process::id());
    let (mut first, other) = (service(&name), service("not-a-target"));
    let mut heapbpf = heapbpf(&name, &[]);
    let mut session = heapbpf.start();
    assert!(changed_code(other.pid()).is_empty(), "one target has probes of its own");
    first.work("keep 100 3");
    // It allocates and frees all the time, also while it is moved.
    let is_moved = Arc::new(AtomicBool::new(false));
    let has_moved = Arc::clone(&is_moved);
    let worker = thread::spawn(move || {
        let mut churned = 0;
        while !has_moved.load(Ordering::SeqCst) {
            first.work("churn 100 500");
            churned += 500;
            // The agent keeps up.
            thread::sleep(Duration::from_millis(20));
        }
        (first, churned)
    });
    let _others: Vec<Target> = (1..MANY).map(|_| service(&name)).collect();
    session.wait_for("share its probes");
    is_moved.store(true, Ordering::SeqCst);
    let (mut first, churned): (Target, u64) = worker.join().expect("it does not panic");
    first.work("keep 100 4");
    assert!(!changed_code(other.pid()).is_empty(), "shared probes are in every process");
    let mut later = service(&name);
    wait_until_recorded(&mut session, &later);
    later.work("keep 100 5");
    let outcome = session.interrupt().expect_code(0);
    assert!(outcome.stdout.contains("probes: shared by all processes that map a hooked file"), "{}", outcome.stdout);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    let counts = report.process(first.pid()).exact_by_leaf();
    assert_eq!((counts["keeps"].alloc_count, counts["churns"].alloc_count), (7, churned));
    assert_eq!((counts["churns"].free_count, counts["churns"].live_count), (churned, 0));
    assert_eq!(kept(&report, &later), 5);
    let scope = report.health.scope.as_ref().expect("is known");
    assert_eq!(scope.kind, "inode");
    assert!(scope.reason.contains("sharing is cheaper"), "{}", scope.reason);
    assert!(scope.other_processes.is_some_and(|others| others >= 1));
    assert_no_probes(first.pid());
    assert_no_probes(other.pid());
}

#[test]
fn calls_of_other_processes_are_counted_and_not_recorded() {
    let name = format!("shared-{}", std::process::id());
    let (mut target, mut other) = (service(&name), service("not-a-target"));
    let mut heapbpf = heapbpf(&name, &["--scope", "inode"]);
    let session = heapbpf.start();
    assert!(!changed_code(other.pid()).is_empty(), "shared probes are in every process");
    target.work("keep 100 3");
    other.work("churn 100 1000");
    let outcome = session.interrupt().expect_code(0);
    assert!(outcome.stdout.contains("of processes that are not targets met them"), "{}", outcome.stdout);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    assert_eq!((report.targets.len(), kept(&report, &target)), (1, 3));
    let scope = report.health.scope.as_ref().expect("is known");
    assert_eq!((scope.kind.as_str(), scope.reason.as_str()), ("inode", "--scope"));
    assert!(scope.foreign_calls >= 1000, "{}", scope.foreign_calls);
    assert_no_probes(other.pid());
}

#[test]
fn probes_of_other_tools_on_hooked_functions_are_reported() {
    // A private copy of a program with an allocator: no other test has probes there.
    let folder = tempfile::tempdir().expect("there is a directory for temporary files");
    let program = folder.path().join("pooled");
    // By another process: a file that is open for writing cannot be executed, and other threads fork.
    run(Command::new("cp").arg(Recipe::of("pooled.c").flags("-DINSIDE").build()).arg(&program));
    let target = || Target::spawn(&mut Command::new(&program));
    let hooks = ["pool_get(size=arg2, ptr=ret)", "pool_put(old=arg2)"].map(|hook| format!("pool=pooled:{hook}"));
    let heapbpf = |target: &Target| {
        let pid = target.pid().to_string();
        let selected = ["--pid", &pid, "--heap", "pool", "--hook", &hooks[0], "--hook", &hooks[1], "-o", "out.json"];
        Heapbpf::new(selected)
    };
    let foreign = |heapbpf: &Heapbpf| heapbpf.report("out.json").health.scope.expect("is known").foreign_probes;
    // Linux 6.8 lists where links have probes.
    let expected = |count: u64| (version() >= (6, 8)).then_some(count);
    let (first, second) = (target(), target());
    let (mut of_first, mut of_second) = (heapbpf(&first), heapbpf(&second));
    let (session, other) = (of_first.start(), of_second.start());
    // The first was attached before the second: it finds the other probes at the end.
    for (heapbpf, session) in [(&of_first, session), (&of_second, other)] {
        let Outcome { stdout, stderr, .. } = session.interrupt().expect_code(0);
        assert_eq!(foreign(heapbpf), expected(2), "{stderr}");
        if expected(2).is_some() {
            let warnings: Vec<&str> = stderr.lines().filter(|line| line.contains("other tools")).collect();
            let [warning] = warnings.as_slice() else { panic!("not one warning: {stderr}") };
            for part in ["2 probes", "`pool_get`", "`pool_put`", &program.display().to_string(), "bpftool link show"] {
                assert!(warning.contains(part), "no `{part}`: {warning}");
            }
            assert!(stdout.contains("other tools: 2 probes"), "{stdout}");
        }
    }
    let mut alone = heapbpf(&second);
    let Outcome { stdout, stderr, .. } = alone.start().interrupt().expect_code(0);
    assert_eq!(foreign(&alone), expected(0), "{stderr}");
    assert!(!stderr.contains("other tools") && !stdout.contains("other tools"), "{stderr}{stdout}");
}

#[test]
fn on_request_every_target_has_its_own() {
    let name = format!("own-{}", std::process::id());
    let (mut targets, other): (Vec<Target>, Target) = ((0..MANY).map(|_| service(&name)).collect(), service("other"));
    let mut heapbpf = heapbpf(&name, &["--scope", "process"]);
    let session = heapbpf.start();
    assert!(changed_code(other.pid()).is_empty(), "it is not a target");
    targets.iter_mut().for_each(|target| drop(target.work("keep 100 2")));
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    targets.iter().for_each(|target| assert_eq!(kept(&report, target), 2));
    let scope = report.health.scope.as_ref().expect("is known");
    assert_eq!((scope.kind.as_str(), scope.foreign_calls), ("process", 0));
}

#[test]
fn what_cannot_be_shared_is_refused() {
    let target = service("refused");
    let run = |arguments: &str| Heapbpf::of(target.pid(), arguments).run().expect_error(1);
    let error = run("--scope inode --backend perf");
    assert!(error.contains("perf events cannot be attached to all processes at once"), "{error}");
    if version() >= (6, 6) {
        let error = run("--scope inode --max-overhead 50");
        assert!(error.contains("--max-overhead detaches from single processes"), "{error}");
    }
    assert!(changed_code(target.pid()).is_empty());
}
