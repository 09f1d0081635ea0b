//! Tests of detaching from processes in an uninterruptible wait.

use std::fs::read_to_string;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use heapbpf_base::ids::Pid;

use crate::process::launch::{Launch, LaunchError, retry_releases, shell_code};
use heapbpf_base::testing::Workshop;

/// A program that waits in `vfork` until its input ends.
const VFORKS: &str = "#include <unistd.h>\n\
    int main(void) { char c; if (vfork() == 0) { read(0, &c, 1); _exit(0); } return 4; }";

fn vforks(workshop: &Workshop) -> std::path::PathBuf {
    workshop.compile("gcc", "vforks.c", VFORKS, &[])
}

fn wait_in_kernel(pid: u32) {
    let state = || read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    while !state().contains(") D ") {
        std::thread::yield_now();
    }
}

fn start(program: &Path) -> Child {
    let child = Command::new(program).stdin(Stdio::piped()).spawn().expect("it was compiled");
    wait_in_kernel(child.id());
    child
}

fn is_held(pid: u32) -> bool {
    !read_to_string(format!("/proc/{pid}/status")).expect("it lives").contains("TracerPid:\t0")
}

fn retry() {
    while retry_releases() > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn a_process_in_an_uninterruptible_wait_is_detached_when_it_wakes_up() {
    let mut child = start(&vforks(&Workshop::new()));
    let held = Launch::hold(Pid(child.id()));
    assert!(matches!(held, Err(LaunchError::Unstoppable(_))), "{held:?}");
    assert_eq!(retry_releases(), 1);
    assert!(is_held(child.id()));
    drop(child.stdin.take());
    retry();
    assert_eq!(child.wait().expect("it is a child").code(), Some(4));
}

#[test]
fn a_followed_program_is_detached_when_it_wakes_up() {
    for dropped in [false, true] {
        let workshop = Workshop::new();
        let script = "exec \"$0\" <\"$1\"";
        let (program, pipe) = (vforks(&workshop), workshop.path("pipe"));
        workshop.run("mkfifo", &["pipe"]);
        let command = ["sh".as_ref(), "-c".as_ref(), script.as_ref(), program.as_os_str(), pipe.as_os_str()];
        let inherited = heapbpf_linux::signals::Inherited::now();
        let mut launch = Launch::start(&command.map(Into::into), inherited).expect("started");
        let pid = launch.pid();
        launch.follow_execs().expect("held");
        // Opening succeeds when the shell opens the pipe, before it executes the program.
        let input = std::fs::File::options().write(true).open(&pipe).expect("a pipe");
        while !launch.next_exec().expect("followed") {
            std::thread::yield_now();
        }
        launch.follow_execs().expect("held");
        wait_in_kernel(pid.0);
        assert!(matches!(launch.release(), Err(LaunchError::Unstoppable(_))));
        assert!(matches!(launch.release(), Err(LaunchError::Unstoppable(_))), "again");
        assert!(is_held(pid.0));
        if dropped {
            drop(launch);
            assert_eq!(retry_releases(), 1);
            drop(input);
            retry();
            let mut status = None;
            while status.is_none() {
                status = heapbpf_linux::ptrace::try_reap(pid).expect("a child");
            }
            assert_eq!(status.map(shell_code), Some(4));
        } else {
            drop(input);
            let mut status = None;
            while status.is_none() {
                status = launch.try_reap();
            }
            assert_eq!(status.map(shell_code), Some(4));
            assert_eq!(retry_releases(), 0);
        }
    }
}

#[test]
fn a_process_that_is_killed_during_its_wait_is_gone() {
    let mut child = start(&vforks(&Workshop::new()));
    drop(Launch::hold(Pid(child.id())));
    child.kill().expect("it lives");
    drop(child.stdin.take());
    retry();
    // This process is the program's tracer and its parent, so that the program has been reaped already.
    child.wait().expect_err("it is gone");
}
