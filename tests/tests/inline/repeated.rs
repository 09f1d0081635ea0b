//! Many sessions of one process.

use std::process::Command;

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::report::Counts;
use heapbpf_tests::stubs::{mapped, relocated_pages, slots_to_stubs};
use heapbpf_tests::target::{Target, build};

use super::{EXACT, assert_unharmed, finish, start};

/// `cargo xtask faults --engine inline` makes thousands.
const SESSIONS: usize = 8;

/// Under load by threads that start and end, and interrupted by signals.
#[test]
fn sessions_leave_all_slots_as_they_were() {
    let mut target = Target::spawn(&mut Command::new(build("migrating.c")));
    target.work("alarm 1000");
    target.work("load 3");
    target.work("rounds");
    let before = relocated_pages(target.pid());
    for number in 0..SESSIONS {
        let (heapbpf, session) = start(&target, "--engine inline --interval 512KiB -o out.json");
        assert!(!slots_to_stubs(target.pid()).expect("it runs").is_empty(), "session {number} changes slots");
        target.work("rounds");
        let _ = session.interrupt().expect_code(0);
        assert_unharmed(&mut target);
        assert!(heapbpf.report("out.json").health.inline_engine.expect("it was used").passed_calls > 1000);
        let after = relocated_pages(target.pid());
        for (page, bytes) in &before {
            assert!(after.get(page) == Some(bytes), "session {number} has changed {page}");
        }
    }
    target.work("load 0");
    target.work("alarm 0");
}

/// A session may leave its stubs mapped, because the process may have copied their addresses, but not one for each session.
#[test]
fn mappings_do_not_pile_up() {
    let mut target = Target::start("service.c");
    let mut after_first = 0;
    for number in 0..6 {
        let (heapbpf, session) = start(&target, EXACT);
        target.work("keep 100 3");
        let report = finish(&heapbpf, session, &mut target);
        assert_eq!(report.process(target.pid()).exact_by_leaf()["keeps"], Counts::kept(3, 300), "session {number}");
        if number == 0 {
            after_first = mapped(target.pid());
        }
    }
    assert_eq!(mapped(target.pid()), after_first, "mappings after six sessions, and after one");
}

/// Stubs hide calls from other probes, so a second session of either engine is rejected, and changes nothing.
#[test]
fn a_second_session_is_rejected() {
    let mut target = Target::start("service.c");
    let (heapbpf, session) = start(&target, EXACT);
    for engine in ["trap", "inline"] {
        let text = Heapbpf::of(target.pid(), &format!("--engine {engine}")).run().expect_error(1);
        assert!(text.contains("another heapbpf") && text.contains("stubs"), "{text}");
    }
    target.work("keep 100 25");
    let report = finish(&heapbpf, session, &mut target);
    assert_eq!(report.process(target.pid()).exact_by_leaf()["keeps"], Counts::kept(25, 2500));
}
