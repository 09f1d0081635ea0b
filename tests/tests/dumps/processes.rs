//! Windows of targets that come and go.

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::report::Report;
use heapbpf_tests::target::Target;

use super::{dump, flow, name};

#[test]
fn who_has_ended_is_in_the_window_of_its_end_and_in_no_later_one() {
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
    // The agent sees the end at its own time.
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
fn a_child_begins_its_window_with_what_it_inherited() {
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
