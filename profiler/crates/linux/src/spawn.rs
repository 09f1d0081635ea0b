//! Starts a program so that it can be traced from its first instruction. The child waits for `PTRACE_SEIZE`: with
//! `PTRACE_TRACEME`, a signal before exec deadlocks with the parent, a parent killed during the exec leaves a SIGTRAP
//! that kills the child, and group-stops cannot be distinguished from signal delivery.

#![expect(unsafe_code, reason = "runs code between fork and exec")]

use std::io::{self, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use heapbpf_base::ids::Pid;
use rustix::process::{Signal, set_parent_process_death_signal};

use super::ptrace::{Pause, Stop, Tracee};
use super::signals::Inherited;

/// A child that waits before its exec until it is traced. Dropping it makes the child exit without exec.
#[derive(Debug)]
pub struct Spawned {
    pid: Pid,
    /// Pipe to the child, which continues at the first byte, and exits when the pipe is closed.
    start_exec: Option<PipeWriter>,
    /// Result of `Command::spawn`, which returns only after the exec; the PID is needed before.
    spawner: Option<Receiver<io::Result<Child>>>,
}

/// Starts a child, which inherits streams, process group, environment and working directory of heapbpf, and the given signals and
/// limits.
pub fn spawn(command: Command, inherited: Inherited) -> io::Result<Spawned> {
    start(command, inherited, false)
}

/// Like [`spawn`]. If the child is stopped when this process exits for whatever reason, the kernel resumes it.
pub fn spawn_resumed(mut command: Command, inherited: Inherited) -> io::Result<Spawned> {
    resume_with_parent(&mut command);
    start(command, inherited, true)
}

/// Makes the kernel send SIGCONT to the child when the thread that starts it exits (`PR_SET_PDEATHSIG`). Programs with more
/// rights than their caller's, and children, do not inherit that.
pub fn resume_with_parent(command: &mut Command) {
    let before_exec = || Ok(set_parent_process_death_signal(Some(Signal::CONT))?);
    // SAFETY: the closure makes one system call on plain numbers.
    unsafe { command.pre_exec(before_exec) };
}

/// Starts a child. With `stays`, the thread that starts the child exits with this process.
fn start(mut command: Command, inherited: Inherited, stays: bool) -> io::Result<Spawned> {
    let (mut pid_reader, mut pid_writer) = io::pipe()?;
    let (mut may_exec, start_exec) = io::pipe()?;
    let parents_end = start_exec.as_raw_fd();
    let before_exec = move || {
        // SAFETY: the number is that of this process's copy, which nothing uses again: its owner is a value of the
        // parent. The copy would keep the pipe open after the parent's death.
        unsafe { rustix::io::close(parents_end) };
        inherited.restore_signals();
        inherited.set_streams()?;
        pid_writer.write_all(&std::process::id().to_ne_bytes())?;
        may_exec.read_exact(&mut [0])?;
        // Limits come last: the program's limit may not allow another descriptor.
        inherited.restore_limits();
        Ok(())
    };
    // SAFETY: the closure makes system calls on what it owns and on plain numbers. It allocates no memory, takes no
    // lock, and its errors are error numbers.
    unsafe { command.pre_exec(before_exec) };
    let (sender, spawner) = mpsc::channel();
    thread::spawn(move || {
        let started = command.spawn();
        let has_started = started.is_ok();
        // The receiver may be dropped after errors.
        let _ = sender.send(started);
        if stays && has_started {
            loop {
                thread::park();
            }
        }
    });
    let mut bytes = [0; 4];
    if let Err(error) = pid_reader.read_exact(&mut bytes) {
        return Err(failure(&spawner).unwrap_or(error));
    }
    Ok(Spawned { pid: Pid(u32::from_ne_bytes(bytes)), start_exec: Some(start_exec), spawner: Some(spawner) })
}

impl Spawned {
    pub fn pid(&self) -> Pid {
        self.pid
    }

    pub fn start_exec(&mut self) {
        if let Some(mut start_exec) = self.start_exec.take() {
            // A child that was killed does not read the byte.
            let _ = start_exec.write_all(&[1]);
        }
    }

    /// Waits until the child has called exec or exited, and returns an error of its exec: requires `start_exec`, and that the
    /// tracer resumes it.
    pub fn exec_error(&mut self) -> Option<io::Error> {
        self.spawner.take().as_ref().and_then(failure)
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        self.start_exec = None;
        self.exec_error();
    }
}

/// Runs a traced process to its exec, or its exit if it is killed before. Fails when `is_wanted` returns false.
pub fn run_to_exec(tracee: &Tracee, is_wanted: &dyn Fn() -> bool) -> io::Result<Stop> {
    let mut pause = Pause::new(Duration::ZERO);
    loop {
        match tracee.stopped()? {
            None => {}
            Some(stop @ (Stop::Exec | Stop::Ended(_))) => return Ok(stop),
            Some(stop) => tracee.run(stop)?,
        }
        if !is_wanted() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        pause.wait();
    }
}

fn failure(spawner: &Receiver<io::Result<Child>>) -> Option<io::Error> {
    match spawner.recv() {
        Ok(result) => result.err(),
        Err(_) => Some(io::Error::other("the thread that starts programs has panicked")),
    }
}
