//! Targets of a heapbpf that was killed together with its keeper: they work on, and the next heapbpf restores their slots.

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::kernel::keeper;
use heapbpf_tests::report::Counts;
use heapbpf_tests::stubs::{assert_restored, slots_to_stubs};
use heapbpf_tests::target::Target;
use rustix::process::{Pid, Signal, kill_process};

use super::{EXACT, assert_unharmed, finish, start, wait_until};

fn is_patched(pid: u32) -> bool {
    !slots_to_stubs(pid).expect("it runs").is_empty()
}

#[track_caller]
fn kill(pid: u32) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("small")).expect("not 0");
    kill_process(pid, Signal::KILL).expect("it runs");
}

/// A target whose slots lead to the stubs of a heapbpf that no longer exists.
#[track_caller]
fn abandoned(arguments: &str) -> Target {
    let mut target = Target::start("service.c");
    let (_heapbpf, session) = start(&target, arguments);
    target.work("churn 100 1000");
    target.work("keep 40 10");
    let keeper = keeper(session.pid()).expect("it runs");
    // It must not notice that its keeper has ended.
    session.halt();
    kill(keeper);
    session.kill();
    assert!(is_patched(target.pid()), "nobody has restored them");
    let ledger = target.work("churn 100 100000");
    assert_eq!(ledger.site("churns").counts.free_count, 100_000, "it works on");
    target.work("drop");
    target
}

/// Both kinds of calls, of which the session's end must leave nothing.
#[track_caller]
fn assert_next_session_restores(arguments: &str) {
    for abandoned_by in [EXACT, "--engine inline --interval 512KiB -o out.json"] {
        let mut target = abandoned(abandoned_by);
        let (heapbpf, session) = start(&target, arguments);
        target.work("keep 100 30");
        let report = finish(&heapbpf, session, &mut target);
        assert_eq!(report.process(target.pid()).exact_by_leaf()["keeps"], Counts::kept(30, 3000));
        target.work("churn 100 1000");
        assert_unharmed(&mut target);
    }
}

#[test]
fn the_next_session_of_the_inline_engine_restores_slots() {
    assert_next_session_restores(EXACT);
}

#[test]
fn the_next_session_of_the_trap_engine_restores_slots() {
    assert_next_session_restores("--engine trap --interval 1 -o out.json");
}

#[test]
fn doctor_restores_slots_and_reports_them() {
    let mut target = abandoned(EXACT);
    let outcome = Heapbpf::new(["doctor", "--pid", &target.pid().to_string()]).run();
    assert_restored(target.pid());
    assert!(outcome.stdout.contains("stubs"), "{outcome:?}");
    assert_unharmed(&mut target);
}

/// heapbpf ends then, and starts another keeper that removes what is left.
#[test]
fn slots_are_restored_when_the_keeper_alone_is_killed() {
    let mut target = Target::start("service.c");
    let (_heapbpf, session) = start(&target, EXACT);
    target.work("churn 100 1000");
    kill(keeper(session.pid()).expect("it runs"));
    let outcome = session.wait().expect_code(3);
    assert!(outcome.stderr.contains("keeper"), "{}", outcome.stderr);
    target.work("churn 100 1000");
    assert_unharmed(&mut target);
}

#[test]
fn slots_are_restored_when_the_agent_alone_is_killed() {
    let mut target = Target::start("service.c");
    let (_heapbpf, session) = start(&target, EXACT);
    target.work("churn 100 1000");
    session.kill();
    wait_until("the keeper restores them", || !is_patched(target.pid()));
    target.work("churn 100 1000");
    assert_unharmed(&mut target);
}

/// Its own blocks, too: the first session's filter still has them, and no program counts their frees.
#[test]
fn blocks_of_the_killed_session_are_nobodys() {
    let mut target = Target::start("service.c");
    let (_heapbpf, session) = start(&target, EXACT);
    target.work("keep 40 500");
    let keeper = keeper(session.pid()).expect("it runs");
    session.halt();
    kill(keeper);
    session.kill();
    let (heapbpf, session) = start(&target, EXACT);
    target.work("drop");
    target.work("keep 100 30");
    let report = finish(&heapbpf, session, &mut target);
    let totals = report.process(target.pid()).totals.exact();
    assert_eq!(totals, Counts::kept(30, 3000));
}
