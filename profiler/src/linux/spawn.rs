//! A program started in such a way that it is traced before its first instruction, by this process or another.
//!
//! The child waits between fork and exec until it is held (`PTRACE_SEIZE`). The other way, in which the child asks to be
//! traced (`PTRACE_TRACEME`), has three faults: a signal between that and exec stops the child while the parent waits for
//! its exec, so that neither goes on; a parent that is killed while the child stops at its exec leaves it a SIGTRAP, and it
//! dies; and the stops of job control cannot be told from the delivery of their signals.

#![expect(unsafe_code, reason = "code between fork and exec cannot be checked")]

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{WaitId, WaitIdOptions, waitid};

use super::inherited::Inherited;
use super::pid;
use super::ptrace::{Pause, Stop, Tracee};
use crate::ids::Pid;

/// A child that waits before its exec until it is traced. Dropping it has the child exit without exec.
#[derive(Debug)]
pub(crate) struct Spawned {
    pid: Pid,
    /// The child goes on at the first byte, and exits when this is closed.
    tell_held: Option<PipeWriter>,
    /// `Command::spawn` returns after the exec, but the child's number is needed before.
    spawner: Option<JoinHandle<io::Result<Child>>>,
}

/// Starts a process for a program. It inherits what heapbpf has: standard streams, process group, environment, working folder; and
/// the given signals and limits.
///
/// # Errors
///
/// When there is no process to run it in.
pub(crate) fn spawn(mut command: Command, inherited: Inherited) -> io::Result<Spawned> {
    let (mut number, mut tell_number) = io::pipe()?;
    let (mut held, tell_held) = io::pipe()?;
    let parents_end = tell_held.as_raw_fd();
    let before_exec = move || {
        close(parents_end);
        inherited.signals.restore();
        tell_number.write_all(&std::process::id().to_ne_bytes())?;
        wait_for_byte(&mut held)?;
        // Last: with the limit that the program is to have, there may be no room for another descriptor.
        inherited.limits.restore();
        Ok(())
    };
    // SAFETY: the closure makes system calls on what it owns and on plain numbers. It allocates no memory, takes no lock,
    // and its errors are numbers.
    unsafe { command.pre_exec(before_exec) };
    // Any thread may be the parent.
    let spawner = thread::spawn(move || command.spawn());
    let mut bytes = [0; 4];
    if let Err(error) = number.read_exact(&mut bytes) {
        return Err(failure(spawner).unwrap_or(error));
    }
    Ok(Spawned { pid: Pid(u32::from_ne_bytes(bytes)), tell_held: Some(tell_held), spawner: Some(spawner) })
}

impl Spawned {
    /// The child.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Has the child call exec, now that it is traced.
    pub(crate) fn go_on(&mut self) {
        if let Some(mut tell_held) = self.tell_held.take() {
            // A child that was killed does not read it.
            let _ = tell_held.write_all(&[1]);
        }
    }

    /// Why the program cannot be run (`execvp`), if so. Waits until the child has called exec or ended, which it does only after
    /// [`go_on`](Self::go_on), and only once its tracer lets it.
    pub(crate) fn exec_error(&mut self) -> Option<io::Error> {
        self.spawner.take().and_then(failure)
    }

    /// Whether the child is past its exec, or will never call it.
    fn is_past_exec(&self) -> bool {
        self.spawner.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        self.tell_held = None;
        self.exec_error();
    }
}

/// Runs a traced process to its exec, or its end where it is killed before. A child of this process is given as `spawned`.
/// `is_wanted` is called again and again.
///
/// # Errors
///
/// When the process cannot be traced, the child cannot call exec, or the stop is not wanted any more.
pub(crate) fn run_to_exec(
    tracee: &Tracee,
    mut spawned: Option<&mut Spawned>,
    is_wanted: &dyn Fn() -> bool,
) -> io::Result<Stop> {
    let mut pause = Pause::new(Duration::ZERO);
    loop {
        // The end of a child that could not exec belongs to `Command::spawn`, which panics if it is reaped elsewhere.
        let is_past_exec = spawned.as_ref().is_none_or(|spawned| spawned.is_past_exec());
        if is_past_exec && let Some(error) = spawned.as_mut().and_then(|spawned| spawned.exec_error()) {
            return Err(error);
        }
        match peek(tracee.pid(), is_past_exec) {
            Ok(true) => match tracee.stopped()? {
                None => {}
                Some(stop @ (Stop::Exec | Stop::Ended(_))) => return Ok(stop),
                Some(stop) => tracee.run(stop)?,
            },
            Ok(false) => {}
            Err(_) if !is_past_exec => {}
            Err(error) => return Err(error),
        }
        if !is_wanted() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        pause.wait();
    }
}

/// Whether the process has stopped, or, where that is asked for, ended.
fn peek(pid: Pid, ended: bool) -> io::Result<bool> {
    let pid = pid::raw(pid).ok_or_else(|| io::Error::from_raw_os_error(libc::ECHILD))?;
    let mut options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    options.set(WaitIdOptions::EXITED, ended);
    Ok(rustix::io::retry_on_intr(|| waitid(WaitId::Pid(pid), options))?.is_some())
}

/// What `Command::spawn` said, if it failed.
fn failure(spawner: JoinHandle<io::Result<Child>>) -> Option<io::Error> {
    match spawner.join() {
        Ok(result) => result.err(),
        Err(_) => Some(io::Error::other("the thread that starts programs has panicked")),
    }
}

/// In the child. Its copy of the parent's end would keep the pipe open after the parent's death.
fn close(fd: RawFd) {
    // SAFETY: the number is that of this process's copy, which nothing uses again: the value that owns it is the parent's.
    unsafe { rustix::io::close(fd) };
}

/// In the child. Fails if the other end is closed instead.
fn wait_for_byte(pipe: &mut PipeReader) -> io::Result<()> {
    match pipe.read(&mut [0]) {
        Ok(1) => Ok(()),
        Ok(_) => Err(io::Error::from_raw_os_error(libc::ECANCELED)),
        // Signals have their default actions here: one that interrupts a call and does not kill is SIGCONT.
        Err(error) if error.kind() == io::ErrorKind::Interrupted => wait_for_byte(pipe),
        Err(error) => Err(error),
    }
}
