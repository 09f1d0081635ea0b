//! Processes that fork and execute programs while slots lead to stubs.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use heapbpf_tests::kernel::{assert_no_probes, state, tasks};
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::report::{Counts, Process};
use heapbpf_tests::stubs::{assert_restored, mapped, slots_to_stubs};
use heapbpf_tests::target::{Target, build};

use super::{
    EXACT, assert_passed, assert_unharmed, engine, finish, finish_but_for, finish_programs, start, wait_until,
};

/// Messages about each target; debug messages include when its slots lead to stubs.
const VERBOSE: &str = "-vv --engine inline --interval 1 -o out.json";

fn kept(process: &Process) -> Counts {
    process.exact_by_leaf().get("keeps").copied().unwrap_or_default()
}

#[test]
fn a_forked_child_has_its_parents_stubs() {
    let mut target = Target::start("family.c");
    let (heapbpf, mut session) = start(&target, VERBOSE);
    target.work("keep 100 30");
    target.work("fork");
    let child = target.child_pid();
    assert!(!slots_to_stubs(child).expect("it runs").is_empty(), "it has a copy of its parent's memory");
    session.wait_for("lead to stubs, as in its parent");
    // The child answers from here on.
    target.work("keep 7 500");
    target.work("drop");
    target.work("keep 9 4");
    target.begin_exit(0);
    target.work("keep 11 2");
    let report = finish(&heapbpf, session, &mut target);
    assert_passed(&report, 2);
    assert_eq!(kept(report.process(target.pid())), Counts::kept(32, 30 * 100 + 2 * 11));
    let child = report.child_of(target.pid());
    let totals = child.totals.exact();
    assert_eq!(child.totals.inherited_count.as_u64(), Some(30));
    assert_eq!((totals.alloc_count, totals.alloc_bytes), (504, 500 * 7 + 4 * 9));
    assert_eq!((totals.free_count, totals.free_bytes), (530, 3000 + 500 * 7), "its parent's blocks are its own");
    assert_eq!((totals.live_count, totals.live_bytes), (4, 36));
}

/// What it does before it is followed counts, too.
#[test]
fn a_forked_child_that_ends_at_once_is_counted() {
    let mut target = Target::start("family.c");
    let (heapbpf, session) = start(&target, VERBOSE);
    for _ in 0..20 {
        target.work("keep 100 3");
        target.work("fork");
        target.work("drop");
        target.work("keep 7 5");
        target.begin_exit(0);
        target.work("drop");
    }
    // It is incomplete if nearly all children have ended before they could be recorded.
    let outcome = session.interrupt();
    assert!(matches!(outcome.status.code(), Some(0 | 3)), "{outcome:?}");
    assert!(!outcome.stderr.contains("stubs of heapbpf remain"), "{}", outcome.stderr);
    assert_unharmed(&mut target);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    let parent = report.process(target.pid()).totals.exact();
    assert_eq!((parent.alloc_count, parent.alloc_bytes), (60, 6000));
    // The last line of each round is the parent's: it frees what it has kept.
    assert_eq!((parent.free_count, parent.live_bytes), (60, 0));
}

/// The agent may have read the mappings of the parent before it had stubs. Children have it copied.
#[test]
fn children_of_a_program_that_was_idle_are_restored() {
    let mut target = Target::start("family.c");
    let (heapbpf, mut session) = start(&target, VERBOSE);
    let mut pids = vec![target.pid()];
    for _ in 0..4 {
        target.work("fork");
        pids.push(target.child_pid());
        session.wait_for("lead to stubs, as in its parent");
    }
    // Answered by the innermost child.
    target.work("keep 7 500");
    let outcome = session.interrupt().expect_counted();
    assert!(!outcome.stderr.contains("stubs of heapbpf remain"), "{}", outcome.stderr);
    pids.iter().for_each(|&pid| assert_unharmed_child(pid));
    assert_passed(&heapbpf.report("out.json"), 5);
}

/// Descriptors that pass stubs to the process exist while no thread runs.
#[test]
fn files_that_a_program_opens_have_the_numbers_that_they_would_have() {
    let mut target = Target::start("waiting_for_child.c");
    target.work("open");
    for _ in 0..8 {
        let (heapbpf, session) = start(&target, EXACT);
        let count = mapped(target.pid());
        let _ = session.interrupt().expect_code(0);
        // It exits if a file has another number; then it has no mappings either.
        target.assert_running();
        assert!(count > 0, "{:?}", engine(&heapbpf.report("out.json")));
    }
    target.work("close");
    assert_unharmed(&mut target);
}

/// A thread in `vfork` cannot be stopped. The others are not to wait for it.
#[test]
fn a_program_that_waits_for_a_child_of_vfork_is_recorded_by_probes() {
    let mut target = Target::start("waiting_for_child.c");
    target.work("suspend");
    let (heapbpf, session) = start(&target, EXACT);
    target.work("keep 25");
    target.work("resume");
    let report = finish(&heapbpf, session, &mut target);
    let (reason, count) = engine(&report).refused.iter().next().expect("it has no stubs");
    assert!(reason.contains("waits for a child of `vfork`") && *count == 1, "{reason}");
    assert_eq!(report.process(target.pid()).exact_by_leaf()["keeps"], Counts::kept(25, 2500));
}

/// At the end of a recording neither: its slots stay as they are, which a warning and the next recording know.
#[test]
fn the_end_of_a_recording_stops_no_thread_of_a_program_that_waits_for_a_child_of_vfork() {
    let mut target = Target::start("waiting_for_child.c");
    let (heapbpf, session) = start(&target, EXACT);
    target.work("keep 25");
    target.work("suspend");
    let pid = target.pid();
    let is_over = AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        let watched = scope.spawn(|| {
            let mut stopped = 0;
            while !is_over.load(Ordering::Relaxed) {
                stopped += tasks(pid).into_iter().filter(|&tid| state(tid) == 't').count();
            }
            stopped
        });
        let outcome = session.interrupt();
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(watched.join().expect("it does not panic"), 0, "threads were stopped");
        outcome
    });
    let outcome = outcome.expect_code(0);
    assert!(outcome.stderr.contains("stubs of heapbpf remain in process"), "{}", outcome.stderr);
    assert_eq!(heapbpf.report("out.json").process(pid).exact_by_leaf()["keeps"], Counts::kept(25, 2500));
    assert!(!slots_to_stubs(pid).expect("it runs").is_empty());
    target.work("keep 25");
    target.work("resume");
    let (_heapbpf, session) = start(&target, EXACT);
    let _ = session.interrupt().expect_code(0);
    assert_unharmed(&mut target);
}

/// A child that is not followed must be as fast as without heapbpf, or correct at least: its stubs sample nothing for long.
#[test]
fn a_child_that_is_not_followed_outlives_the_session() {
    let mut target = Target::start("family.c");
    let (heapbpf, session) = start(&target, &format!("{EXACT} --no-follow-fork"));
    target.work("keep 100 30");
    target.work("fork");
    let child = target.child_pid();
    target.work("keep 7 500");
    target.work("drop");
    assert!(!slots_to_stubs(child).expect("it runs").is_empty(), "it has a copy of its parent's memory");
    let _ = session.interrupt().expect_code(0);
    assert_restored(child);
    assert_eq!(target.work("keep 9 400").site("keeps").counts, Counts::kept(400, 3600), "the child works");
    target.work("drop");
    assert_no_probes(child);
    target.begin_exit(0);
    target.work("keep 11 2");
    assert_unharmed(&mut target);
    let report = heapbpf.report("out.json");
    assert_eq!(report.targets.len(), 1, "{:?}", report.targets.iter().map(|target| target.pid).collect::<Vec<_>>());
    assert_eq!(kept(report.process(target.pid())), Counts::kept(30, 3000), "until the end of the session");
}

/// It shares the memory, stubs included, until it ends.
#[test]
fn a_vfork_child_counts_nothing_and_changes_nothing() {
    let mut target = Target::start("family.c");
    let (heapbpf, session) = start(&target, EXACT);
    for _ in 0..30 {
        target.work("keep 100 10");
        target.work("vfork 500");
        target.work("drop");
    }
    let report = finish_but_for(&["memory_borrowed"], &heapbpf, session, &mut target);
    assert_eq!(report.health.lost.get("memory_borrowed"), Some(&30));
    assert_passed(&report, 1);
    let process = report.process(target.pid());
    assert_eq!(
        process.totals.exact(),
        Counts { free_count: 300, free_bytes: 30_000, live_count: 0, live_bytes: 0, ..Counts::kept(300, 30_000) }
    );
}

#[test]
fn programs_started_by_vfork_and_exec_have_no_stubs_of_their_parent() {
    let mut target = Target::start("spawner.c");
    let (heapbpf, session) = start(&target, EXACT);
    assert_eq!(target.work("spawn 100 30").site("keeps").counts.alloc_count, 30);
    target.exec(&format!("launch {}", build("service.c").display()));
    let child = target.child_pid();
    assert_eq!(target.work("churn 10 1000").site("churns").counts.alloc_count, 1000);
    let report = finish_programs(&heapbpf, session, &mut target);
    assert_unharmed_child(child);
    assert_eq!(
        kept(report.process(target.pid())),
        Counts { free_count: 30, free_bytes: 3000, live_count: 0, live_bytes: 0, ..Counts::kept(30, 3000) }
    );
}

/// Nothing is left in a process that another answers for.
#[track_caller]
fn assert_unharmed_child(pid: u32) {
    assert_no_probes(pid);
    assert_restored(pid);
}

/// The new program has another memory: its slots are found anew.
#[test]
fn an_executed_program_gets_stubs_of_its_own() {
    for how in ["exec", "thread-exec"] {
        let mut target = Target::start("family.c");
        let (heapbpf, mut session) = start(&target, VERBOSE);
        target.work("keep 100 30");
        target.exec(&format!("{how} {}", build("service.c").display()));
        session.wait_for("pointers lead to stubs");
        target.work("churn 10 2000");
        target.work("keep 9 4");
        assert!(mapped(target.pid()) > 0, "{how}: its stubs are mapped");
        let report = finish_programs(&heapbpf, session, &mut target);
        let [before, after] = report.targets.as_slice() else { panic!("{how}: {:?}", report.targets) };
        assert!(before.replaced, "{how}");
        assert_eq!(kept(before), Counts::kept(30, 3000), "{how}");
        assert_eq!(kept(after), Counts::kept(4, 36), "{how}");
        let churned = after.exact_by_leaf()["churns"];
        assert_eq!((churned.alloc_count, churned.free_bytes), (2000, 20_000), "{how}");
        assert_eq!(engine(&report).targets, 2, "{how}: {:?}", engine(&report));
    }
}

/// Their thread pointers, CPUs and stacks are new; some begin or end while slots are changed.
#[test]
fn threads_start_and_end_while_slots_are_changed() {
    let mut target = Target::spawn(&mut Command::new(Recipe::of("migrating.c").build()));
    target.work("load 6");
    for interval in ["1", "64KiB", "1", "512KiB", "4KiB"] {
        let arguments = format!("--engine inline --interval {interval} --on-overload drop -o out.json");
        let (heapbpf, session) = start(&target, &arguments);
        target.work("rounds 20");
        let outcome = session.interrupt();
        // At an interval of 1 so many calls may exceed the ring buffer.
        assert!(matches!(outcome.status.code(), Some(0 | 3)), "{outcome:?}");
        assert_unharmed(&mut target);
        let report = heapbpf.report("out.json");
        // Six threads make 300 blocks in each of 20 rounds, and each starts another one that makes as many.
        assert!(engine(&report).passed_calls > 6 * 20 * 600 / 2, "{:?}", engine(&report));
        target.work("rounds 20");
    }
    target.work("load 0");
    assert_restored(target.pid());
    wait_until("its threads have ended", || tasks(target.pid()).len() == 1);
}
