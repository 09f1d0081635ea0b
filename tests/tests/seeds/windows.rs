//! heapprofd's cases of dumps while recording: consecutive windows, also where all is freed, and the peak.

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::target::Target;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{assert_multiple, json};

/// Bytes of a window: live at its start, allocated, freed, live at its end.
type Flow = [u64; 4];

/// Returns the windows' reports and bytes in order. Fails unless they are consecutive, each starting with what was live
/// at the end of the one before, and together equal the whole recording.
#[track_caller]
fn windows(heapbpf: &Heapbpf) -> Vec<(Value, Flow)> {
    let whole = json(heapbpf, "out.json");
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("`{value}` is not a number"));
    let files: Vec<String> = heapbpf.files().into_iter().filter(|file| file.starts_with("out.0")).collect();
    let (mut start, mut live, mut allocated) = (whole["started_unix_ns"].clone(), 0, 0);
    let mut windows = Vec::new();
    for file in files {
        let report = json(heapbpf, &file);
        assert_eq!(report["window"]["start_unix_ns"], start, "{file} begins elsewhere");
        start = report["window"]["end_unix_ns"].clone();
        let totals = &report["targets"][0]["totals"];
        let flow = ["live_start_bytes", "alloc_bytes", "free_bytes", "live_bytes"].map(|name| number(&totals[name]));
        let [at_start, alloc, free, at_end] = flow;
        assert_eq!(at_start, live, "{file} begins with something else");
        assert_eq!(at_start + alloc, free + at_end, "{file}: {flow:?}");
        assert_eq!(totals["delta_bytes"].as_i64(), Some(at_end.cast_signed() - at_start.cast_signed()), "{file}");
        (live, allocated) = (at_end, allocated + alloc);
        windows.push((report, flow));
    }
    assert_eq!(start, whole["ended_unix_ns"], "the last one ends elsewhere");
    assert_eq!(allocated, number(&whole["targets"][0]["totals"]["alloc_bytes"]));
    windows
}

#[test]
fn windows_are_consecutive_and_end_with_one_block_or_none() {
    let mut target = Target::start("ticking.c");
    target.work("size 1024");
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 --dump-every 100ms -o out.json");
    let mut session = heapbpf.start();
    for number in 1..=10 {
        session.wait_for(&format!("out.{number:04}.json"));
        target.work("ticks 1");
    }
    let _ = session.interrupt().expect_code(0);
    target.assert_running();
    let windows = windows(&heapbpf);
    assert!(windows.len() >= 11, "{} windows", windows.len());
    for (report, [_, allocated, freed, live]) in &windows {
        let count = |name: &str| report["targets"][0]["totals"][name].as_u64().expect("it is exact");
        assert_multiple(*allocated, count("alloc_count"), 1024);
        assert_multiple(*freed, count("free_count"), 1024);
        assert!([0, 1024].contains(live), "{live} bytes live");
    }
    assert!(windows.iter().map(|(_, flow)| flow[1]).sum::<u64>() >= 10 * 1024);
}

/// Retained and freed bytes are distinguished even if nothing remains.
#[test]
fn a_thousand_bytes_are_retained_and_then_freed() {
    let mut target = Target::start("service.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o out.json");
    let mut session = heapbpf.start();
    for (number, line) in (1..).zip(["keep 1000 1", "churn 300 7", "drop"]) {
        target.work(line);
        let pid = i32::try_from(session.pid()).ok().and_then(Pid::from_raw).expect("pids are positive");
        kill_process(pid, Signal::USR1).expect("it runs");
        session.wait_for(&format!("out.{number:04}.json"));
    }
    let _ = session.interrupt().expect_code(0);
    target.assert_running();
    let flows: Vec<Flow> = windows(&heapbpf).into_iter().map(|(_, flow)| flow).collect();
    let expected = [[0, 1000, 0, 1000], [1000, 2100, 2100, 1000], [1000, 0, 1000, 0], [0, 0, 0, 0]];
    assert_eq!(flows, expected);
}

/// heapprofd's five calls: a peak of 30 bytes in two blocks, of its own heap.
#[test]
fn the_peak_of_a_heap_that_the_program_brings_is_30_bytes_in_two_blocks() {
    let mut target = Target::start("accurate.c");
    let hooks = ["get(size=arg1,ptr=ret)", "put(old=arg1)"].map(|hook| format!("--hook first=accurate:first_{hook}"));
    let arguments = format!("--interval 1 --dump-at-peak -o out.json {}", hooks.join(" "));
    let mut heapbpf = Heapbpf::of(target.pid(), &arguments);
    let session = heapbpf.start();
    target.work("run first 1 vfork");
    let _ = session.interrupt().expect_code(0);
    target.assert_running();
    assert_eq!(heapbpf.files(), ["out.json", "out.peak.json"]);
    let totals = &json(&heapbpf, "out.peak.json")["targets"][0]["totals"];
    assert_eq!((totals["live_bytes"].as_u64(), totals["live_count"].as_u64()), (Some(30), Some(2)));
}
