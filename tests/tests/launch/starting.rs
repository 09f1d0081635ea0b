//! Errors and signals while a command is being started.

use std::fs;
use std::process::Command;

use heapbpf_tests::heapbpf::{Heapbpf, binary};
use heapbpf_tests::kernel::commands;
use heapbpf_tests::target::build;
use rustix::process::{Pid, Signal};

use super::launched::{status, wait_until};

fn pid_of(number: u32) -> Pid {
    i32::try_from(number).ok().and_then(Pid::from_raw).expect("pids are positive")
}

fn has_child(heapbpf: u32) -> bool {
    !commands(heapbpf).is_empty()
}

fn listens_for_sigterm(heapbpf: u32) -> bool {
    let caught = u64::from_str_radix(&status(pid_of(heapbpf), "SigCgt"), 16).expect("hexadecimal");
    caught & 1 << (Signal::TERM.as_raw() - 1) != 0
}

#[test]
fn sigterm_during_the_start_leaves_nothing_running() {
    let start = |is_time: fn(u32) -> bool| {
        let mut heapbpf = Heapbpf::new(["-o", "out.json", "--", "sh", "-c", "touch started; exec sleep 1000"]);
        let session = heapbpf.spawn();
        wait_until("its time", || is_time(session.pid()));
        let outcome = session.terminate();
        (outcome.status.code(), heapbpf.file("started").exists())
    };
    // The command exists: the signal ends it.
    assert_eq!(start(has_child).0, Some(143));
    // It probably does not exist yet.
    let outcome = start(listens_for_sigterm);
    assert!(outcome == (Some(130), false) || outcome.0 == Some(143), "{outcome:?}");
}

#[test]
fn a_command_that_cannot_be_traced_is_reported() {
    let mut command = Command::new(build("without_syscall_info.c"));
    command.arg(binary()).args(["-o", "out.json", "--", "sh", "-c", "echo $$ >pid.part; mv pid.part pid"]);
    let mut heapbpf = Heapbpf::with_command(command);
    let error = heapbpf.run().expect_code(1).stderr;
    wait_until("the command", || heapbpf.file("pid").exists());
    let pid = fs::read_to_string(heapbpf.file("pid")).expect("it is there");
    assert!(
        error.contains(&format!("process `{}` was started and continues without being profiled", pid.trim())),
        "{error}"
    );
    assert!(error.contains("cannot hold `sh`"), "{error}");
}
