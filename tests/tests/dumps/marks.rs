//! Marks: later windows start there.

use std::time::SystemTime;

use rustix::process::Signal;

use super::{dump, flow, name, record, window};

#[test]
fn later_dumps_are_relative_to_the_last_mark() {
    let (mut target, heapbpf, mut session) = record("");
    target.work("+0:1000");
    session.signal(Signal::USR2);
    session.wait_for("mark set at ");
    assert_eq!(heapbpf.files().iter().filter(|file| file.starts_with("out.")).count(), 0, "a mark writes nothing");
    target.work("+1:20");
    dump(&mut session, 1);
    target.work("+2:3 -0");
    dump(&mut session, 2);
    session.signal(Signal::USR2);
    session.wait_for("mark set at ");
    target.work("-2");
    dump(&mut session, 3);
    let _ = session.interrupt().expect_code(0);

    let reports: Vec<_> = (1..=4).map(|number| heapbpf.report(&name(number))).collect();
    let flows: Vec<_> = reports.iter().map(|report| flow(report.process(target.pid()))).collect();
    assert_eq!(flows, [[1000, 20, 0, 1020], [1000, 23, 1000, 23], [23, 0, 3, 20], [23, 0, 3, 20]]);
    let windows: Vec<_> = reports.iter().map(window).collect();
    assert!(windows.iter().all(|window| window.since_mark));
    assert_eq!(windows[0].start_unix_ns, windows[1].start_unix_ns);
    assert!(windows[2].start_unix_ns > windows[1].end_unix_ns);
    assert_eq!(windows[2].start_unix_ns, windows[3].start_unix_ns);
    assert_eq!(windows[3].reason, "end");
    assert!(heapbpf.report("out.json").window.is_none());
}

#[test]
fn a_mark_after_a_time_adds_a_window_until_the_end() {
    let (mut target, heapbpf, mut session) = record("--mark 1500ms");
    target.work("+0:500");
    let taken_unix_ns = unix_ns();
    session.wait_for("mark set at ");
    target.work("+1:7");
    let outcome = session.interrupt().expect_code(0);
    let report = heapbpf.report(&name(1));
    let window = window(&report);
    assert!(window.since_mark && window.reason == "end", "{window:?}");
    assert!(window.start_unix_ns - report.started_unix_ns >= 1_500_000_000, "{window:?}");
    let flow = flow(report.process(target.pid()));
    // On a busy machine, the mark may precede the first block.
    let is_before = flow == [500, 7, 0, 507];
    assert!(is_before || (taken_unix_ns > window.start_unix_ns && flow == [0, 507, 0, 507]), "{flow:?}");
    assert!(outcome.stderr.contains("(end, from the mark at "), "{}", outcome.stderr);
}

fn unix_ns() -> u64 {
    let since = SystemTime::UNIX_EPOCH.elapsed().expect("it is later than 1970");
    u64::try_from(since.as_nanos()).expect("it is before 2554")
}
