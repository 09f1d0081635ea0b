//! Unusual targets and environments: heapbpf exits in bounded time, with a correct report or an error with the reason,
//! and the target is unharmed.
//!
//! Steps of the system clock are not tested: they would affect the whole machine. Instead, there is a target in a time
//! namespace, whose clocks differ from heapbpf's by days.

mod limits;
mod scale;
mod seccomp;
mod sessions;
mod stopped;

use heapbpf_tests::heapbpf::{Heapbpf, Outcome, binary};
use heapbpf_tests::kernel::{assert_no_probes, tasks, tracer};
use heapbpf_tests::report::{Counts, Process};
use heapbpf_tests::target::Target;

/// Exit codes of heapbpf.
const FAILED: i32 = 1;
const LEAKS_FOUND: i32 = 4;

/// The result of `keep 1000 25`: 25 blocks of 1000 bytes.
const KEPT: Counts = Counts::kept(25, 25_000);

#[track_caller]
fn assert_keeps(process: &Process) {
    assert_eq!(process.exact_by_leaf().get("keeps"), Some(&KEPT), "{:#?}", process.callsites);
}

/// Records all allocations of one command; the report must be exact.
#[track_caller]
fn record_exactly(target: &mut Target) {
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o out.json");
    let session = heapbpf.start();
    target.work("keep 1000 25");
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    assert_keeps(report.process(target.pid()));
}

/// Runs `heapbpf leaks` to its end.
#[track_caller]
fn leaks(pid: u32, arguments: &str) -> Outcome {
    Heapbpf::new(["leaks", "--pid", &pid.to_string()].into_iter().chain(arguments.split_ascii_whitespace())).run()
}

/// Fails unless a target works: neither stopped nor traced, and without probes.
#[track_caller]
fn assert_unharmed(target: &mut Target) {
    let pid = target.pid();
    assert!(tasks(pid).len() > 5000 || tasks(pid).into_iter().all(|task| tracer(task).is_none()), "{pid} is traced");
    assert_no_probes(pid);
    assert_eq!(target.work("keep 10 2").site("keeps").counts.alloc_bytes, 20);
    target.assert_running();
}

/// Starts heapbpf from a shell that runs `preparation` first.
fn prepared(preparation: &str, pid: u32, arguments: &str) -> Heapbpf {
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &format!("{preparation}; exec {} --no-inventory --pid {pid} {arguments}", binary().display())]);
    Heapbpf::with_command(command)
}
