//! Targets and surroundings out of the ordinary: heapbpf ends in bounded time, with a correct report or an error that names
//! the reason, and the target is unharmed.
//!
//! Steps of the system's clock are left out: they would hit everything else that runs on the machine. A target in a time
//! namespace, whose clocks differ from heapbpf's by days, takes their place.

#[path = "special_targets/confined.rs"]
mod confined;
#[path = "special_targets/halted.rs"]
mod halted;
#[path = "special_targets/limits.rs"]
mod limits;
#[path = "special_targets/sessions.rs"]
mod sessions;
#[path = "special_targets/size.rs"]
mod size;

use heapbpf_tests::heapbpf::{Heapbpf, Outcome, binary};
use heapbpf_tests::kernel::{assert_no_probes, tasks, tracer};
use heapbpf_tests::report::{Counts, Process};
use heapbpf_tests::target::Target;

/// Exit codes of heapbpf.
const FAILED: i32 = 1;
const LEAKS_FOUND: i32 = 4;

/// 25 blocks of 1000 bytes, kept: what `keep 1000 25` does.
const KEPT: Counts = Counts::kept(25, 25_000);

#[track_caller]
fn assert_keeps(process: &Process) {
    assert_eq!(process.exact_by_leaf().get("keeps"), Some(&KEPT), "{:#?}", process.callsites);
}

/// Records all that a target allocates for one line; the report must be exact.
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

/// Fails unless a target works on: neither stopped nor traced, and with its own code.
#[track_caller]
fn assert_unharmed(target: &mut Target) {
    let pid = target.pid();
    assert!(tasks(pid).len() > 5000 || tasks(pid).into_iter().all(|task| tracer(task).is_none()), "{pid} is traced");
    assert_no_probes(pid);
    assert_eq!(target.work("keep 10 2").site("keeps").counts.alloc_bytes, 20);
    target.assert_running();
}

/// heapbpf started by a shell, which first does what `preparation` says.
fn prepared(preparation: &str, pid: u32, arguments: &str) -> Heapbpf {
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &format!("{preparation}; exec {} --pid {pid} {arguments}", binary().display())]);
    Heapbpf::with_command(command)
}
