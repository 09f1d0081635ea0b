//! Tests of stops at an exec, by offsets of the kernel that runs.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, ChildStdout, Command, Stdio};

use heapbpf_base::ids::{Pid, Tid};
use heapbpf_linux::exec_stop::{self, ExecStop, StopNote};
use heapbpf_linux::proc::stat;
use heapbpf_linux::spawn::resume_with_parent;

use crate::bpf::kernel_types::TaskLayout;

/// A shell that executes `cat` for a line. Killed when dropped.
struct Shell(Child, BufReader<ChildStdout>);

impl Shell {
    fn command() -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo up; read line; exec cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    fn resumed() -> Self {
        let mut command = Self::command();
        resume_with_parent(&mut command);
        Self::of(command)
    }

    fn of(mut command: Command) -> Self {
        let mut child = command.spawn().expect("there is a shell");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let mut shell = Self(child, output);
        assert_eq!(shell.line(), "up\n");
        shell
    }

    fn pid(&self) -> Pid {
        Pid(self.0.id())
    }

    fn write(&mut self, line: &str) {
        self.0.stdin.as_mut().expect("piped").write_all(line.as_bytes()).expect("it reads");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).expect("text");
        line
    }

    fn state(&self) -> char {
        stat::status(self.pid(), Tid(self.pid().0)).expect("it is not reaped").state
    }

    fn wait_until_stopped(&self) {
        while self.state() != 'T' {
            std::thread::yield_now();
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // It may have exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn attach(pid: Pid) -> (OwnedFd, StopNote) {
    let layout = TaskLayout::of_kernel().expect("there is BTF").exec_stop.expect("its members");
    exec_stop::attach(pid, &layout).expect("root may attach it; Linux 5.5 or later")
}

#[test]
fn a_process_is_stopped_before_its_new_program_runs() {
    let (mut shell, mut other) = (Shell::resumed(), Shell::resumed());
    let (link, note) = attach(shell.pid());
    let stop = ExecStop::new(
        link,
        StopNote::new(shell.pid(), note.as_fd().try_clone_to_owned().expect("open")).expect("runs"),
    );
    for shell in [&mut shell, &mut other] {
        shell.write("exec\nfirst\n");
    }
    assert_eq!(other.line(), "first\n", "other processes are not stopped");
    shell.wait_until_stopped();
    assert!(note.is_set());
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", shell.pid())).expect("it is there");
    assert!(maps.contains("/cat") && !maps.contains("/libc.so"), "none of its instructions has run: {maps}");
    note.resume();
    assert!(!note.is_set());
    assert_eq!(shell.line(), "first\n");
    drop(stop);
    shell.write("second\n");
    assert_eq!(shell.line(), "second\n");
}

#[test]
fn a_process_that_is_stopped_at_the_end_is_resumed() {
    let mut shell = Shell::resumed();
    let (link, note) = attach(shell.pid());
    let stop = ExecStop::new(link, note);
    shell.write("exec\nfirst\n");
    shell.wait_until_stopped();
    drop(stop);
    assert_eq!(shell.line(), "first\n");
}

#[test]
fn a_process_that_its_user_has_stopped_stays_stopped() {
    let shell = Shell::resumed();
    let (link, note) = attach(shell.pid());
    let stop = ExecStop::new(link, note);
    let pid = rustix::process::Pid::from_child(&shell.0);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("it runs");
    shell.wait_until_stopped();
    drop(stop);
    assert_eq!(shell.state(), 'T');
}

#[test]
fn a_process_that_the_kernel_would_not_resume_is_not_stopped() {
    let mut shell = Shell::of(Shell::command());
    let (_link, note) = attach(shell.pid());
    shell.write("exec\nfirst\n");
    assert_eq!(shell.line(), "first\n");
    assert!(!note.is_set());
}

/// A stop would discard a pending SIGCONT, and the resumption a pending SIGTSTP.
#[test]
fn a_process_with_a_pending_signal_of_job_control_is_not_stopped() {
    for number in [libc::SIGCONT, libc::SIGTSTP] {
        let mut command = Command::new("python3");
        let script = "import os, signal, sys; n = int(sys.argv[1]); signal.signal(n, signal.SIG_DFL); \
             signal.pthread_sigmask(signal.SIG_BLOCK, [n]); os.kill(os.getpid(), n); print('up', flush=True); \
             os.read(0, 5); os.execvp('grep', ['grep', '^ShdPnd', '/proc/self/status'])";
        command.args(["-c", script, &number.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        resume_with_parent(&mut command);
        let mut program = Shell::of(command);
        let (_link, note) = attach(program.pid());
        program.write("exec\n");
        assert_eq!(program.line(), format!("ShdPnd:\t{:016x}\n", 1_u64 << (number - 1)));
        assert!(!note.is_set());
    }
}

#[test]
fn a_process_of_another_parent_is_not_stopped() {
    // The shell that waits for it is its parent.
    let mut outer = Command::new("sh");
    outer.args(["-c", "setpriv --pdeathsig CONT sh -c 'echo $$; echo up; read line; exec cat' <&0; exit"]);
    outer.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = outer.spawn().expect("there is a shell");
    let mut output = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    output.read_line(&mut line).expect("text");
    let pid = Pid(line.trim().parse().expect("a number"));
    let mut shell = Shell(child, output);
    assert_eq!(shell.line(), "up\n");
    let (_link, note) = attach(pid);
    shell.write("exec\nfirst\n");
    assert_eq!(shell.line(), "first\n");
    assert!(!note.is_set());
    // It ends with its input.
    drop(shell.0.stdin.take());
}
