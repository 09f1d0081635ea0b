//! Forks and execs of targets.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use heapbpf_tests::heapbpf::{Heapbpf, Session, binary};
use heapbpf_tests::kernel::{self, require_root};
use heapbpf_tests::report::{Counts, Process};
use heapbpf_tests::target::{Target, build, copy_program};
use tempfile::TempDir;

/// Number of lines after the target's PID.
const ARGUMENTS: &str = "-v --interval 1 -o out.json";

/// Starts a target with these abilities, and records it at an interval of 1.
fn recorded(arguments: &str) -> (Target, Heapbpf, Session) {
    let target = Target::start("family.c");
    let mut heapbpf = Heapbpf::of(target.pid(), &format!("{ARGUMENTS} {arguments}"));
    let session = heapbpf.start();
    (target, heapbpf, session)
}

/// The same for a busy machine, without waiting: a process that does not stop within 20 ms is not held.
fn recorded_at_once(arguments: &str) -> (Target, Heapbpf, Session) {
    require_root();
    let at_once = |program: &Path| {
        let mut command = Command::new("chrt");
        command.args(["--fifo", "1"]).arg(program);
        command
    };
    let target = Target::spawn(&mut at_once(&build("family.c")));
    let mut command = at_once(&binary());
    command
        .args(["--no-inventory", "--pid", &target.pid().to_string()])
        .args(ARGUMENTS.split(' '))
        .args(arguments.split_ascii_whitespace());
    let mut heapbpf = Heapbpf::with_command(command);
    let session = heapbpf.start();
    (target, heapbpf, session)
}

fn count(process: &Process, function: &str) -> u64 {
    process.exact_by_leaf().get(function).map_or(0, |counts| counts.alloc_count)
}

#[test]
fn a_forked_childs_ledger_starts_with_its_parents_blocks() {
    let (mut target, heapbpf, mut session) = recorded("");
    target.work("keep 100 30");
    target.work("fork");
    session.wait_for("is being recorded");
    // The child answers from here on.
    target.work("keep 7 5");
    target.work("drop");
    target.work("keep 9 4");
    target.begin_exit(0);
    target.work("keep 11 2");
    let _ = session.interrupt().expect_code(0);

    let report = heapbpf.report("out.json");
    report.assert_complete();
    let parent = report.process(target.pid()).totals.exact();
    assert_eq!((parent.alloc_count, parent.free_count, parent.live_bytes), (32, 0, 30 * 100 + 2 * 11));

    let child = report.child_of(target.pid());
    let totals = child.totals.exact();
    assert_eq!(child.totals.inherited_count.as_u64(), Some(30));
    assert_eq!(child.totals.inherited_bytes.as_u64(), Some(3000));
    assert_eq!((totals.alloc_count, totals.alloc_bytes), (9, 5 * 7 + 4 * 9));
    assert_eq!((totals.free_count, totals.free_bytes), (35, 3000 + 35), "what it inherited can be freed");
    assert_eq!((totals.live_count, totals.live_bytes), (4, 36));
    assert!(child.exited && child.exit_code == Some(0), "{child:?}");
    let inherited: Vec<bool> = child.callsites.iter().map(|callsite| callsite.inherited).collect();
    assert_eq!(inherited.iter().filter(|&&inherited| inherited).count(), 1, "{inherited:?}");
    let names = child.callsites.iter().map(|callsite| callsite.stack[0].function.as_deref().unwrap_or("?"));
    assert!(names.into_iter().all(|name| name == "keeps"), "named after its end");
}

/// Number of forks until the child is observed while it is held, which takes some milliseconds.
const FORKS: u32 = 40;

/// State of a forked child before it is recorded.
struct Look {
    child: u32,
    /// The process that traces it.
    tracer: Option<u32>,
    was_held: bool,
}

/// Makes a target fork and its child free the inherited blocks: while it is held if it is found in time, else later.
#[track_caller]
fn fork_and_observe(target: &mut Target, session: &mut Session) -> Look {
    // Waits so that all of the child's events are recorded.
    session.halt();
    target.work("fork");
    let child = target.child_pid();
    let parent = target.pid();
    let is_watched = AtomicBool::new(false);
    let (mut tracer, mut was_held) = (None, false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let deadline = Instant::now() + Duration::from_secs(30);
            while !was_held && !is_watched.load(Ordering::Relaxed) && Instant::now() < deadline {
                // While a tracer attaches or detaches, the kernel can report a child's parent instead: it reads whether
                // there is a tracer and its id separately (`ptrace_parent` in include/linux/ptrace.h).
                let thread = || kernel::tracer(child).filter(|&pid| pid != parent);
                tracer = tracer.or_else(|| thread().and_then(kernel::process_of));
                if kernel::state(child) == 't' {
                    target.work("drop");
                    was_held = true;
                }
            }
        });
        session.resume();
        session.wait_for(&format!("process {child} (family) is being recorded"));
        is_watched.store(true, Ordering::Relaxed);
    });
    if !was_held {
        target.work("drop");
    }
    target.work("keep 9 4");
    target.begin_exit(0);
    target.work("keep 11 2");
    Look { child, tracer, was_held }
}

/// Fails unless a child has freed all inherited blocks, each of which was recorded, and continued.
#[track_caller]
fn assert_dropped(child: &Process, inherited: u64) {
    assert_eq!(child.beginning.origin, "fork");
    assert_eq!(child.totals.inherited_count.as_u64(), Some(inherited));
    let totals = child.totals.exact();
    assert_eq!((totals.free_count, totals.live_bytes), (inherited, 4 * 9), "{totals:?}");
    assert_eq!(count(child, "keeps"), 4);
}

#[test]
fn held_forks_are_stopped_until_their_frees_are_recorded() {
    let (mut target, heapbpf, mut session) = recorded_at_once("--hold forks");
    target.work("keep 100 1000");
    let looks: Vec<_> = (0..FORKS).map(|_| fork_and_observe(&mut target, &mut session)).collect();
    let keeper = kernel::keeper(session.pid()).expect("it runs");
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    for (inherited, look) in (1000..).step_by(2).zip(&looks) {
        assert_dropped(report.process(look.child), inherited);
        assert!(look.tracer.is_none_or(|it| it == keeper), "{:?} is not {keeper}", look.tracer);
    }
    let held = looks.iter().filter(|look| look.was_held && look.tracer.is_some()).count();
    assert!(held > 0, "none of {FORKS} children was held");
}

#[test]
fn forks_are_not_held_by_default() {
    let (mut target, heapbpf, mut session) = recorded_at_once("");
    target.work("keep 100 1000");
    let looks: Vec<_> = (0..FORKS).map(|_| fork_and_observe(&mut target, &mut session)).collect();
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    for (inherited, Look { child, tracer, was_held }) in (1000..).step_by(2).zip(looks) {
        assert_dropped(report.process(child), inherited);
        assert_eq!((tracer, was_held), (None, false));
    }
}

#[test]
fn programs_that_children_execute_before_they_are_probed_have_no_blocks_of_the_agent() {
    let mut target = Target::start("executing.c");
    let mut heapbpf = Heapbpf::of(target.pid(), ARGUMENTS);
    let session = heapbpf.start();
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("counts");
    target.work(&format!("execute 40 {}", path.display()));
    // Of the first milliseconds of a program, stacks may be cut.
    let _ = session.interrupt();
    let report = heapbpf.report("out.json");
    assert_eq!(report.health.lost.get("missed_free"), None, "{:?}", report.health.lost);
    let counts = fs::read_to_string(&path).expect("the programs write it");
    let counts = counts.lines().map(|line| line.split_once(' ').expect("a pid and a count"));
    let counts: BTreeMap<&str, u64> = counts.map(|(pid, count)| (pid, count.parse().expect("a number"))).collect();
    let programs: Vec<&Process> = report.targets.iter().filter(|it| it.beginning.origin == "exec").collect();
    assert!(programs.len() > 20, "{} of {} programs", programs.len(), counts.len());
    for program in programs.iter().filter(|it| it.beginning.from_first_call) {
        let recorded = count(program, "turn");
        assert_eq!(
            recorded,
            counts[program.pid.to_string().as_str()],
            "of a program that was recorded from its first call"
        );
    }
}

#[test]
fn forks_can_be_ignored() {
    let (mut target, heapbpf, session) = recorded("--no-follow-fork");
    target.work("keep 100 30");
    target.work("fork");
    target.work("drop");
    target.begin_exit(0);
    target.work("keep 11 2");
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    assert_eq!(report.targets.len(), 1);
    assert_eq!(report.process(target.pid()).totals.exact().live_count, 32);
}

#[test]
fn grandchildren_are_followed_and_outlive_their_parents() {
    let (mut target, heapbpf, mut session) = recorded("");
    for _ in 0..2 {
        target.work("keep 100 10");
        target.work("fork");
        session.wait_for("is being recorded");
    }
    target.work("keep 3 1");
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    let child = report.child_of(target.pid());
    let grandchild = report.child_of(child.pid);
    assert_eq!(grandchild.totals.inherited_count.as_u64(), Some(20));
    assert_eq!(grandchild.totals.exact().alloc_count, 1);
}

#[test]
fn vfork_children_and_threads_do_not_change_the_targets_ledger() {
    let (mut target, heapbpf, session) = recorded("");
    target.work("keep 10 1");
    for _ in 0..20 {
        target.work("vfork 77");
        target.work("thread 15");
    }
    target.work("keep 15 1");
    let _ = session.interrupt().expect_code(0);
    target.assert_running();
    let report = heapbpf.report("out.json");
    let statement = &report.health.verdict().statement;
    assert_eq!(statement, "complete except for 20 processes that ended in the memory of another");
    assert_eq!(report.health.lost, BTreeMap::from([("memory_borrowed".to_owned(), 20)]));
    assert_eq!(report.targets.len(), 1);
    let process = report.process(target.pid());
    assert_eq!(count(process, "keeps"), 2);
    assert_eq!(count(process, "thread_mallocs"), 20);
    assert_eq!(count(process, "vfork_mallocs"), 0, "another process, in this one's memory");
    // No other process was recorded.
    assert_eq!((report.others.short_lived_count, report.others.skipped_count), (0, 0), "{:?}", report.others);
}

/// What ended children have allocated is missing, so the verdict has them.
#[test]
fn children_that_end_before_they_are_recorded_count_in_the_verdict() {
    for (forks, options, ended, code, verdict) in [
        ("1 1", "", 2, 0, "complete except for 2 processes ended unrecorded"),
        ("1 1", "--strict", 2, 3, "incomplete: 2 processes ended unrecorded"),
        ("4 5", "", 24, 3, "incomplete: 24 processes ended unrecorded"),
    ] {
        let mut target = Target::start("forks.c");
        let mut heapbpf = Heapbpf::of(target.pid(), &format!("{ARGUMENTS} {options}"));
        let session = heapbpf.start();
        // It cannot attach to what begins and ends while it is suspended.
        session.halt();
        target.work(&format!("fork {forks}"));
        session.resume();
        let outcome = session.interrupt().expect_code(code);
        assert!(outcome.stdout.contains(&format!("health: {verdict}")), "{options}: {}", outcome.stdout);
        assert_eq!(heapbpf.report("out.json").others.short_lived_count, ended, "{options}");
    }
}

#[test]
fn an_exec_ends_the_ledger_and_starts_a_new_one() {
    for how in ["exec", "thread-exec"] {
        let (mut target, heapbpf, mut session) = recorded("--strict");
        target.work("keep 100 10");
        target.exec(&format!("{how} {}", build("family.c").display()));
        session.wait_for("is being recorded");
        let ledger = target.work("keep 50 3");
        let outcome = session.interrupt();
        target.assert_running();

        let mut report = heapbpf.report("out.json");
        // After an exec by another thread, the new program may have run before its probes were attached.
        let late = u64::from(report.targets.last().is_some_and(|program| !program.beginning.from_first_call));
        assert_eq!(report.health.lost.remove("program_late").unwrap_or(0), late, "{how}: {outcome:?}");
        let outcome = if late > 0 { outcome.expect_code(3) } else { outcome.expect_counted() };
        assert_eq!(outcome.stdout.contains("1 program recorded late"), late > 0, "{how}: {outcome:?}");
        report.assert_complete();
        let [before, after] = report.targets.as_slice() else { panic!("{how}: {:?}", report.targets) };
        assert_eq!((before.pid, after.pid), (target.pid(), target.pid()));
        assert!(before.replaced && !before.exited && !after.replaced);
        assert_eq!(before.exact_by_leaf().get("keeps"), Some(&Counts::kept(10, 1000)), "{how}");
        let totals = before.totals.exact();
        assert!(totals.free_count == 0 && (how != "exec" || totals.live_bytes == 1000), "{how}: {totals:?}");
        assert_eq!(after.exact_by_leaf().get("keeps"), Some(&ledger.site("keeps").counts), "{how}");
        assert_eq!(after.totals.inherited_count.as_u64(), Some(0), "{how}: its memory is new");
        assert_eq!(after.beginning.origin, "exec");
        assert!(!after.exited, "{how}");
        let begins = count(after, "begins");
        if how == "exec" {
            assert!(after.beginning.from_first_call, "its probes stay over an exec: {:?}", after.beginning);
        }
        // An exec by a thread other than the first removes them, and new ones may be attached too late for the first
        // calls.
        assert!(begins <= 7, "{how}: {begins} of 7");
        assert!(begins == 7 || !after.beginning.from_first_call, "{how}: {begins} of 7: {:?}", after.beginning);
        assert!(after.beginning.delay_ns.is_some(), "{:?}", after.beginning);
    }
}

/// Makes a target start this program, which answers from here on.
fn start_child(target: &mut Target) {
    target.work("fork");
    target.exec(&format!("exec {}", build("family.c").display()));
}

#[test]
fn programs_that_end_before_their_probes_are_attached_are_counted_as_missed() {
    let (mut target, heapbpf, session) = recorded("--strict");
    session.halt();
    for _ in 0..3 {
        start_child(&mut target);
        target.begin_exit(0);
        target.work("keep 100 1");
    }
    session.resume();
    let outcome = session.interrupt().expect_code(3);
    assert!(outcome.stdout.contains("health: incomplete: 3 programs missed\n"), "{}", outcome.stdout);
    let report = heapbpf.report("out.json");
    assert_eq!(report.health.lost.into_iter().collect::<Vec<_>>(), [("program_missed".to_owned(), 3)]);
    assert_eq!(report.targets.len(), 1, "{:?}", report.targets);
}

#[test]
fn programs_that_are_executed_before_their_probes_are_attached_are_counted_as_missed() {
    let (mut target, heapbpf, mut session) = recorded("--strict");
    session.halt();
    start_child(&mut target);
    target.exec(&format!("exec {}", build("family.c").display()));
    session.resume();
    session.wait_for("(family) is being recorded");
    let ledger = target.work("keep 50 3");
    let outcome = session.interrupt().expect_code(3);
    let report = heapbpf.report("out.json");
    // The first one is missed, of the second one the first blocks.
    assert!(outcome.stdout.contains("1 program missed"), "{}", outcome.stdout);
    assert_eq!(report.health.lost.get("program_missed"), Some(&1), "{:?}", report.health.lost);
    let last = report.targets.last().expect("the target itself is one");
    assert_eq!(last.exact_by_leaf().get("keeps"), Some(&ledger.site("keeps").counts));
}

#[test]
fn programs_that_match_a_pattern_are_counted_as_late_if_strict() {
    require_root();
    let folder = tempfile::tempdir().expect("there is a directory for temporary files");
    let name = format!("late-{}", std::process::id());
    let program = folder.path().join(&name);
    copy_program(build("family.c"), &program);
    for (option, late) in [("--strict", 1), ("--trim", 0)] {
        let words = ["--cmdline", &name, option].into_iter().chain(ARGUMENTS.split(' '));
        let mut heapbpf = Heapbpf::new(words);
        let mut session = heapbpf.start();
        session.halt();
        let mut target = Target::spawn(&mut Command::new(&program));
        session.resume();
        session.wait_for("is being recorded");
        target.work("keep 50 3");
        // What a forked child begins with is its parent's.
        target.work("fork");
        session.wait_for("is being recorded");
        target.work("keep 50 3");
        let outcome = session.interrupt().expect_code(if late > 0 { 3 } else { 0 });
        let verdict = if late > 0 { "incomplete: 1 program recorded late\n" } else { "complete except for the first " };
        assert!(outcome.stdout.contains(&format!("health: {verdict}")), "{}", outcome.stdout);
        let report = heapbpf.report("out.json");
        assert_eq!(report.health.lost.get("program_late").copied().unwrap_or(0), late, "{:?}", report.health.lost);
        let [first, child] = report.targets.as_slice() else { panic!("{:?}", report.targets) };
        assert_eq!((count(first, "begins"), count(first, "keeps")), (0, 3), "{:?}", first.beginning);
        assert_eq!(count(child, "keeps"), 3, "{:?}", child.beginning);
    }
}

/// Processors without 32-bit programs have none to record.
#[cfg(target_arch = "x86_64")]
#[test]
fn programs_of_32_bits_are_counted() {
    let (mut target, heapbpf, mut session) = recorded("");
    target.work("keep 50 3");
    target.work("fork");
    session.wait_for("is being recorded");
    target.exec(&format!("exec {}", build("bare32.c").display()));
    session.wait_for("a 32-bit program");
    let outcome = session.interrupt().expect_code(3);
    assert!(outcome.stdout.contains("health: incomplete: 1 32-bit program not recorded\n"), "{}", outcome.stdout);
    let report = heapbpf.report("out.json");
    assert_eq!(report.health.lost.into_iter().collect::<Vec<_>>(), [("program_32bit".to_owned(), 1)]);
}

#[test]
fn programs_that_have_run_before_their_probes_are_attached_are_counted_as_late() {
    let (mut target, heapbpf, mut session) = recorded("--strict");
    session.halt();
    start_child(&mut target);
    session.resume();
    session.wait_for("(family) is being recorded");
    target.work("keep 50 3");
    let outcome = session.interrupt().expect_code(3);
    assert!(outcome.stdout.contains("health: incomplete: 1 program recorded late\n"), "{}", outcome.stdout);
    let report = heapbpf.report("out.json");
    assert_eq!(report.health.lost.get("program_late"), Some(&1), "{:?}", report.health.lost);
    let [_, child] = report.targets.as_slice() else { panic!("{:?}", report.targets) };
    assert_eq!((count(child, "begins"), count(child, "keeps")), (0, 3), "{:?}", child.beginning);
}
