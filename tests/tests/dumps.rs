//! Windows of a recording: when they are written, and their contents to the byte.

mod history;
#[path = "launch/launched.rs"]
mod launched;
mod marks;
mod peak;
mod processes;
mod requested;
mod triggered;
mod unwritable;

use heapbpf_tests::heapbpf::{Heapbpf, Session};
use heapbpf_tests::report::{Process, Report, Window};
use heapbpf_tests::target::Target;
use rustix::process::Signal;

/// Bytes live at the start, allocated, freed, and live at the end.
type Flow = [u64; 4];

/// Starts a target and records every allocation of it.
fn record(options: &str) -> (Target, Heapbpf, Session) {
    let target = Target::start("slots.c");
    let mut heapbpf = Heapbpf::of(target.pid(), &format!("--interval 1 -o out.json {options}"));
    let session = heapbpf.start();
    (target, heapbpf, session)
}

/// Requests a dump and waits until it is written.
#[track_caller]
fn dump(session: &mut Session, number: u32) {
    session.signal(Signal::USR1);
    session.wait_for(&name(number));
}

fn name(number: u32) -> String {
    format!("out.{number:04}.json")
}

#[track_caller]
fn window(report: &Report) -> &Window {
    report.window.as_ref().expect("it is of a window")
}

/// Fails unless the window's live bytes are consistent.
#[track_caller]
fn flow(process: &Process) -> Flow {
    let totals = &process.totals;
    let counts = totals.exact();
    let start = totals.live_start_bytes.as_ref().and_then(|number| number.as_u64()).expect("a window has it");
    let delta = totals.delta_bytes.as_ref().and_then(|number| number.as_i64()).expect("a window has it");
    assert_eq!(delta, counts.live_bytes.cast_signed() - start.cast_signed());
    let of_callsites: u64 = process.callsites.iter().map(|callsite| callsite.totals.exact().live_bytes).sum();
    assert_eq!(of_callsites, counts.live_bytes, "its callsites hold it all");
    [start, counts.alloc_bytes, counts.free_bytes, counts.live_bytes]
}

/// Fails unless the files from number 1 on are consecutive windows, the last of which ends the recording. Returns them.
#[track_caller]
fn chain(heapbpf: &Heapbpf) -> Vec<Report> {
    let whole = heapbpf.report("out.json");
    assert!(whole.window.is_none(), "the plain name is the whole recording's");
    let count = heapbpf.files().iter().filter(|file| file.starts_with("out.0") && file.ends_with(".json")).count();
    let windows: Vec<Report> = (1..).take(count).map(|number| heapbpf.report(&name(number))).collect();
    let mut start = whole.started_unix_ns;
    for (report, number) in windows.iter().zip(1..) {
        let window = window(report);
        assert_eq!((window.number, window.start_unix_ns, window.since_mark), (Some(number), start, false));
        assert_eq!((report.started_unix_ns, report.ended_unix_ns), (whole.started_unix_ns, window.end_unix_ns));
        assert!(window.end_unix_ns > start, "{window:?}");
        start = window.end_unix_ns;
    }
    assert_eq!(start, whole.ended_unix_ns, "the last window reaches to the end");
    assert_eq!(windows.last().map(|last| window(last).reason.as_str()), Some("end"));
    windows
}

/// Like [`chain`], and checks the windows of the only target.
#[track_caller]
fn assert_flows(heapbpf: &Heapbpf, target: &Target, expected: &[Flow]) {
    let windows = chain(heapbpf);
    let flows: Vec<Flow> = windows.iter().map(|report| flow(report.process(target.pid()))).collect();
    assert_eq!(flows, expected);
    let whole = heapbpf.report("out.json");
    let sum: u64 = flows.iter().map(|[_, allocated, ..]| allocated).sum();
    assert_eq!(whole.process(target.pid()).totals.exact().alloc_bytes, sum, "the windows are the whole");
}
