//! A program started in such a way that it is traced before its first instruction.
//!
//! The child waits between fork and exec until it is held (`PTRACE_SEIZE`). The other way, in which the child asks to be
//! traced (`PTRACE_TRACEME`), has three faults: a signal between that and exec stops the child while the parent waits for
//! its exec, so that neither goes on; a parent that is killed while the child stops at its exec leaves it a SIGTRAP, and it
//! dies; and the stops of job control cannot be told from the delivery of their signals.

#![expect(unsafe_code, reason = "code between fork and exec cannot be checked")]

use std::io::{self, PipeReader, Read, Write};
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

/// Why a program was not started.
#[derive(Debug)]
pub enum SpawnError {
    /// There is no process to run it in.
    Fork(io::Error),
    /// The process may not be traced.
    Trace(io::Error),
    /// The program cannot be run: what `execvp` said.
    Exec(io::Error),
}

/// Starts a program and stops it at its exec, or before where it is killed: see the stop. It inherits what heapbpf has:
/// standard streams, process group, environment, working folder; and the given signals and limits.
///
/// # Errors
///
/// See [`SpawnError`]. Nothing is left behind.
pub fn spawn_held(mut command: Command, inherited: Inherited) -> Result<(Tracee, Stop), SpawnError> {
    let (mut number, mut tell_number) = io::pipe().map_err(SpawnError::Fork)?;
    let (mut held, mut tell_held) = io::pipe().map_err(SpawnError::Fork)?;
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
    // `Command::spawn` returns after the exec, but the child needs this thread before. Any thread may be its parent.
    let spawner = thread::spawn(move || command.spawn());
    let mut bytes = [0; 4];
    if let Err(error) = number.read_exact(&mut bytes) {
        return Err(SpawnError::Fork(failure(spawner).unwrap_or(error)));
    }
    let tracee = match Tracee::seize(Pid(u32::from_ne_bytes(bytes))) {
        Ok(tracee) => tracee,
        Err(error) => {
            // The child sees the pipe's end and gives up.
            drop(tell_held);
            drop(failure(spawner));
            return Err(SpawnError::Trace(error));
        }
    };
    // A child that was killed has no use for it, and its end is seen below.
    let _ = tell_held.write_all(&[1]);
    drop(tell_held);
    first_stop(&tracee, spawner).map(|stop| (tracee, stop))
}

/// Runs the child to its exec.
fn first_stop(tracee: &Tracee, spawner: JoinHandle<io::Result<Child>>) -> Result<Stop, SpawnError> {
    let mut pause = Pause::new(Duration::ZERO);
    let mut spawner = Some(spawner);
    loop {
        // The end of a child that could not exec belongs to `Command::spawn`, which panics if it is reaped elsewhere.
        if let Some(done) = spawner.take_if(|spawner| spawner.is_finished())
            && let Some(error) = failure(done)
        {
            return Err(SpawnError::Exec(error));
        }
        match peek(tracee.pid(), spawner.is_none()) {
            Ok(true) => match tracee.stopped().map_err(SpawnError::Trace)? {
                None => {}
                Some(stop @ (Stop::Exec | Stop::Ended(_))) => return Ok(stop),
                Some(stop) => tracee.run(stop).map_err(SpawnError::Trace)?,
            },
            Ok(false) => {}
            Err(_) if spawner.is_some() => {}
            Err(error) => return Err(SpawnError::Trace(error)),
        }
        pause.wait();
    }
}

/// Whether the child has stopped, or, where that is asked for, ended.
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
