//! Windows of targets that start and exit.

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::report::{Process, Report};
use heapbpf_tests::target::{Target, build};
use rustix::process::Signal;

use super::{dump, flow, name};

#[test]
fn an_exited_process_is_only_in_windows_until_its_exit() {
    let (mut stays, mut goes) = (Target::start("slots.c"), Target::start("slots.c"));
    let pids = [stays.pid().to_string(), goes.pid().to_string()];
    let mut heapbpf = Heapbpf::new(["--pid", &pids[0], "--pid", &pids[1], "--interval", "1", "-o", "out.json"]);
    let mut session = heapbpf.start();
    stays.work("+0:100");
    goes.work("+0:7");
    dump(&mut session, 1);
    stays.work("+1:10");
    goes.work("+1:1");
    goes.exit(0);
    // The agent notices the exit later.
    let has = |report: &Report, target: &Target| report.targets.iter().any(|process| process.pid == target.pid());
    let has_ended = |report: &Report| report.process(goes.pid()).exited;
    let mut last = 1;
    loop {
        last += 1;
        dump(&mut session, last);
        if has_ended(&heapbpf.report(&name(last))) {
            break;
        }
    }
    dump(&mut session, last + 1);
    let _ = session.interrupt().expect_code(0);

    let first = heapbpf.report(&name(1));
    assert_eq!(flow(first.process(goes.pid())), [0, 7, 0, 7]);
    assert_eq!(flow(first.process(stays.pid())), [0, 100, 0, 100]);
    let second = heapbpf.report(&name(2));
    assert_eq!(flow(second.process(goes.pid()))[..2], [7, 1]);
    assert_eq!(flow(second.process(stays.pid())), [100, 10, 0, 110]);
    for number in [last + 1, last + 2] {
        let report = heapbpf.report(&name(number));
        assert!(!has(&report, &goes), "window {number}: {report:?}");
        assert_eq!(flow(report.process(stays.pid())), [110, 0, 0, 110]);
    }
    let whole = heapbpf.report("out.json");
    assert_eq!(whole.process(goes.pid()).totals.exact().alloc_bytes, 8);
    assert!(whole.process(goes.pid()).exited);
}

#[test]
fn a_childs_first_window_starts_with_inherited_blocks() {
    let mut parent = Target::start("family.c");
    let mut heapbpf = Heapbpf::of(parent.pid(), "--interval 1 -o out.json");
    let mut session = heapbpf.start();
    parent.work("keep 1000 5");
    dump(&mut session, 1);
    parent.work("fork");
    dump(&mut session, 2);
    let _ = session.interrupt().expect_code(0);
    let second = heapbpf.report(&name(2));
    assert_eq!(flow(second.process(parent.pid()))[0], 5000);
    let child = second.child_of(parent.pid());
    assert_eq!(flow(child)[0], 5000, "copies of what was live");
    assert!(child.callsites.iter().any(|callsite| callsite.inherited));
}

/// Blocks that are live at an exec have an age, like those live at an exit.
#[test]
fn old_blocks_are_reported_at_an_exec() {
    let mut target = Target::start("family.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "-v --interval 1 --older-than 1ms -o out.json");
    let mut session = heapbpf.start();
    target.work("keep 1000 5");
    let older = |process: &Process| -> u64 {
        let of = process.callsites.iter().filter(|callsite| callsite.has(|function| function == "keeps"));
        of.filter_map(|callsite| callsite.older_count.as_ref()?.as_u64()).sum()
    };
    let mut number = 0;
    loop {
        number += 1;
        dump(&mut session, number);
        if older(heapbpf.report(&name(number)).process(target.pid())) == 5 {
            break;
        }
    }
    target.exec(&format!("exec {}", build("family.c").display()));
    let again = format!("process {} (family) is being recorded", target.pid());
    session.wait_for(&again);
    dump(&mut session, number + 1);
    let _ = session.interrupt().expect_counted();
    for report in [heapbpf.report(&name(number + 1)), heapbpf.report("out.json")] {
        let before = report.targets.iter().find(|process| process.replaced).expect("it was another program");
        assert_eq!((before.exact_by_leaf()["keeps"].live_count, older(before)), (5, 5));
    }
}

/// The notification of the exec and the request to stop arrive together.
#[test]
fn an_exec_at_the_end_of_the_recording_is_reported() {
    let mut target = Target::start("family.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o out.json");
    let mut session = heapbpf.start();
    target.work("keep 1000 5");
    dump(&mut session, 1);
    target.work("keep 10 3");
    session.halt();
    target.exec(&format!("exec {}", build("family.c").display()));
    session.signal(Signal::INT);
    session.resume();
    let _ = session.wait().expect_counted();
    for (report, allocated) in [(heapbpf.report("out.json"), 5030), (heapbpf.report(&name(2)), 30)] {
        let before = report.targets.iter().find(|process| process.replaced).expect("it was another program");
        assert_eq!(before.exact_by_leaf()["keeps"].alloc_bytes, allocated);
    }
}
