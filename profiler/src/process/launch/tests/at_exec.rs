//! Tests with programs that the kernel side stops at their execs, while nobody traces them.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

use heapbpf_base::ids::{Pid, Tid};
use heapbpf_linux::exec_stop::{StopNote, attach};
use heapbpf_linux::proc::stat;
use heapbpf_linux::spawn::resume_with_parent;
use rustix::process::Signal;

use super::{code, send, start, step, step_with_exec};
use crate::bpf::kernel_types::TaskLayout;
use crate::process::launch::{Launch, StartUpEnd};
use heapbpf_base::testing::Workshop;

/// A program that executes itself after a line of input, with SIGCONT blocked on request. Then it exits with 5, if the signal is
/// still as it was.
const EXECUTES: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(int count, char **arguments) {
    int blocks = !strcmp(arguments[1], "blocks");
    sigset_t set, pending;
    if (count == 2) {
        sigemptyset(&set);
        sigaddset(&set, SIGCONT);
        if (blocks) sigprocmask(SIG_BLOCK, &set, 0);
        getchar();
        execl(arguments[0], arguments[0], arguments[1], "again", (char *)0);
    }
    sigprocmask(SIG_BLOCK, 0, &set);
    sigpending(&pending);
    if (sigismember(&pending, SIGCONT)) return 1;
    return sigismember(&set, SIGCONT) == blocks ? 5 : 2;
}
"#;

fn state(pid: Pid) -> char {
    stat::status(pid, Tid(pid.0)).expect("it is not reaped").state
}

fn attach_to(pid: Pid) -> (OwnedFd, StopNote) {
    let layout = TaskLayout::of_kernel().expect("there is BTF").exec_stop.expect("its members");
    attach(pid, &layout).expect("root may attach it; Linux 5.5 or later")
}

/// Makes a program execute itself. Returns its pid, the link by which it is stopped at its exec, and the note of the stop.
#[expect(clippy::zombie_processes, reason = "the launch that holds it reaps it")]
fn stopped(program: &Path, how: &str) -> (Pid, OwnedFd, StopNote) {
    let mut command = Command::new(program);
    resume_with_parent(&mut command);
    let mut child = command.arg(how).stdin(Stdio::piped()).spawn().expect("it was compiled");
    let pid = Pid(child.id());
    let (link, note) = attach_to(pid);
    child.stdin.take().expect("piped").write_all(b"\n").expect("it reads");
    while !note.is_set() {
        std::thread::yield_now();
    }
    (pid, link, note)
}

#[test]
fn a_program_is_stepped_from_its_first_instruction_and_notices_nothing() {
    let workshop = Workshop::new();
    for flags in [&[][..], &["-static"]] {
        let program = workshop.compile("gcc", &format!("executes{}.c", flags.len()), EXECUTES, flags);
        // The program is held while it is about to stop, or when it has stopped.
        for (how, waits) in [("blocks", false), ("blocks", true), ("no", false), ("no", true)] {
            let (pid, _link, note) = stopped(&program, how);
            while waits && state(pid) != 'T' {
                std::thread::yield_now();
            }
            let mut launch = Launch::hold_at_exec(pid, &note).expect("it can be held");
            assert!(!note.is_set());
            let mut at_exec = Vec::new();
            assert_eq!(step_with_exec(&mut launch, |exec| at_exec.push(exec)).end, StartUpEnd::Loaded, "{flags:?}");
            assert!(at_exec[0] && !at_exec[1..].contains(&true), "{flags:?} {how} {waits}: {at_exec:?}");
            assert_eq!(code(&mut launch), 5, "{flags:?} {how} {waits}");
        }
    }
}

#[test]
fn a_program_that_is_killed_at_its_exec_is_reaped() {
    let workshop = Workshop::new();
    let program = workshop.compile("gcc", "executes.c", EXECUTES, &[]);
    for signal in [Signal::KILL, Signal::TERM] {
        let (pid, _link, note) = stopped(&program, "no");
        send(pid, signal);
        // The signal takes effect at the end of the stop or before.
        match Launch::hold_at_exec(pid, &note) {
            Ok(mut launch) => assert_eq!(code(&mut launch), 128 + signal.as_raw()),
            Err(error) => {
                assert!(signal == Signal::KILL, "{error}");
                while heapbpf_linux::ptrace::try_reap(pid).expect("a child").is_none() {}
            }
        }
    }
}

/// The user has resumed the program, so that it is not stopped when it is held.
#[test]
fn a_program_that_runs_is_held_like_any_other() {
    let workshop = Workshop::new();
    let text = "#include <unistd.h>\nint main(int count, char **arguments) { if (count > 2) pause(); char c; read(0, &c, 1);\n\
                execl(arguments[0], arguments[0], arguments[1], \"again\", (char *)0); return 1; }";
    let program = workshop.compile("gcc", "pauses.c", text, &[]);
    let (pid, _link, note) = stopped(&program, "no");
    send(pid, Signal::CONT);
    while state(pid) != 'S' {
        std::thread::yield_now();
    }
    let mut launch = Launch::hold_at_exec(pid, &note).expect("it can be held");
    let mut at_exec = Vec::new();
    step_with_exec(&mut launch, |exec| at_exec.push(exec));
    assert_eq!(at_exec, [false]);
    send(pid, Signal::TERM);
    assert_eq!(code(&mut launch), 143);
}

#[test]
fn a_program_that_is_traced_is_not_stopped_by_the_kernel_side() {
    let mut launch = start(&["sh", "-c", "exec /bin/false"]);
    let (_link, note) = attach_to(launch.pid());
    step(&mut launch, || {});
    launch.follow_execs().expect("held");
    while !launch.next_exec().expect("followed") {
        std::thread::yield_now();
    }
    assert!(!note.is_set());
    assert_eq!(step(&mut launch, || {}).end, StartUpEnd::Loaded);
    assert_eq!(code(&mut launch), 1);
}
