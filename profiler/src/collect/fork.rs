//! Copies of stopped processes by a fork. Processes that could notice it are refused. A released copy exits by itself, also when
//! heapbpf is killed: a parent might take a child that was killed for a crash (PostgreSQL's postmaster ends all others then). A
//! direct child would be visible to the process's `wait` calls, and remain as a zombie: so an intermediate process
//! (`clone(CLONE_VM)`, killed and reaped during the stop) creates the copy, which init or a subreaper adopts. If heapbpf is
//! killed before the intermediate process has `PTRACE_O_EXITKILL`, that process dies at its first use of the stack, which it
//! lacks, with all signals blocked. Descriptors are shared, so that a file that the process closes is closed.

use std::io;
use std::time::{Duration, Instant};

use heapbpf_base::ids::{Pid, Tid};
use heapbpf_linux::pidfd::PidFd;
use heapbpf_linux::proc::maps::Region;
use heapbpf_linux::proc::{process, stat, writable};
use heapbpf_linux::ptrace::{Options, Pause, Stop, Tracee};

use super::inject::{InjectedThread, inject};
use super::process::{ForkError, StoppedThread};

const ADOPTS: &str = "it adopts orphans (as the first process of a container, or by PR_SET_CHILD_SUBREAPER), and would see the copy exit";
const END_WAIT: Duration = Duration::from_secs(1);

/// Stack pointer of the created processes: invalid.
const NO_STACK: u64 = 8;

/// A copy of a process. Dropping it on the thread that created it, or the exit of that thread, makes the copy exit.
#[derive(Debug)]
pub(crate) struct ForkCopy {
    of: Pid,
    pid: Pid,
    pidfd: PidFd,
    #[cfg(test)]
    between: Pid,
}

impl ForkCopy {
    /// Copies a process. `threads` are all threads, which are held, also afterwards. Takes 10 ms per GiB, for page tables.
    pub(crate) fn make(pid: Pid, threads: &[StoppedThread], mapped: &[Region]) -> Result<Self, ForkError> {
        if is_first_of_namespace(pid) {
            return Err(ForkError::Impossible(pid, ADOPTS));
        }
        inject(pid, threads, mapped, &mut |thread| copy_with(pid, thread))
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    #[cfg(test)]
    pub(crate) fn pids(&self) -> [Pid; 2] {
        [self.between, self.pid]
    }
}

impl Drop for ForkCopy {
    fn drop(&mut self) {
        // This is the tracing thread, or the tracing thread has exited.
        if let Err(error) = Tracee::of(Tid(self.pid.0)).detach(Stop::Trap) {
            tracing::debug!("process {}, a copy of {}: {error}", self.pid, self.of);
        }
        let mut pause = Pause::new(END_WAIT);
        while self.pidfd.has_ended().is_ok_and(|ended| !ended) {
            if !pause.wait() {
                let killed = self.pidfd.kill();
                tracing::debug!("process {}, a copy of {}, was killed: {killed:?}", self.pid, self.of);
                return;
            }
        }
    }
}

/// Whether a process is the init process of a PID namespace, to which orphans are reparented.
fn is_first_of_namespace(pid: Pid) -> bool {
    let status = process::status(pid).unwrap_or_default();
    // The line has the PIDs in all namespaces, the last one in the process's own.
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.and_then(|numbers| numbers.split_ascii_whitespace().next_back()) == Some("1")
}

fn copy_with(pid: Pid, thread: &mut InjectedThread) -> Result<ForkCopy, ForkError> {
    let flags = (libc::CLONE_VM | libc::CLONE_FILES).unsigned_abs();
    let (between, number) = make_child(pid, thread, flags)?;
    let copied = copy_from(pid, thread, &between);
    let killed = between.kill().and_then(|()| wait_for_end(&between));
    killed.map_err(|error| ForkError::Trace(pid, error))?;
    wait_in(pid, thread, number)?;
    let (copy, number) = copied?;
    let parent = stat::status(copy.pid, Tid(copy.pid.0)).map(|status| status.parent);
    if parent == Some(pid) {
        drop(copy);
        wait_in(pid, thread, number)?;
        return Err(ForkError::Impossible(pid, ADOPTS));
    }
    Ok(copy)
}

/// Reaps an exited child in the process. `number` is the child's PID in the process's namespace. Does not block.
fn wait_in(pid: Pid, thread: &mut InjectedThread, number: u64) -> Result<(), ForkError> {
    let options = (libc::__WALL | libc::WNOHANG).unsigned_abs();
    let waited = thread.call(libc::SYS_wait4, [number, 0, options.into(), 0, 0, 0], &mut |_| {});
    let reaped = waited.map_err(|error| ForkError::Trace(pid, error))?.ok_or(ForkError::Ended(pid))?;
    if reaped != number.cast_signed() {
        tracing::debug!("process {pid}: injected wait4 returned {reaped}");
    }
    Ok(())
}

/// Makes the intermediate process create the copy. Returns the copy, which exits when it is detached, and its PID in the
/// process's namespace.
fn copy_from(pid: Pid, thread: &InjectedThread, between: &Tracee) -> Result<(ForkCopy, u64), ForkError> {
    let failed = |error| ForkError::Trace(pid, error);
    between.set_options(Options::THREADS.and(Options::KILLED)).map_err(failed)?;
    let mut maker = thread.child(between);
    let (copy, number) = make_child(pid, &mut maker, libc::CLONE_FILES.unsigned_abs())?;
    let prepared = thread.child(&copy).prepare(libc::SYS_exit_group, [0; 6]);
    let prepared = prepared.and_then(|()| copy.set_options(Options::default())).and_then(|()| PidFd::open(copy.pid()));
    let pidfd = prepared.map_err(|error| {
        let _ = copy.kill().and_then(|()| wait_for_end(&copy));
        failed(error)
    })?;
    // Pages written from now on exist twice: if memory runs out, the copy is killed, and not the process.
    let _ = writable::write(copy.pid(), "oom_score_adj", "1000");
    let forked = ForkCopy {
        of: pid,
        pid: copy.pid(),
        pidfd,
        #[cfg(test)]
        between: between.pid(),
    };
    Ok((forked, number))
}

/// Creates a child, and waits until it is stopped before its first instruction. Also returns its PID in the process's namespace.
fn make_child(pid: Pid, maker: &mut InjectedThread, flags: u32) -> Result<(Tracee, u64), ForkError> {
    let failed = |error| ForkError::Trace(pid, error);
    let mut child = None;
    let arguments = [u64::from(flags), NO_STACK, 0, 0, 0, 0];
    let made = maker.call(libc::SYS_clone, arguments, &mut |made| child = Some(Tracee::of(made)));
    let number = made.map_err(failed)?.ok_or(ForkError::Ended(pid))?;
    if number < 0 {
        let code = i32::try_from(-number).unwrap_or(libc::EINVAL);
        return Err(ForkError::Refused(pid, io::Error::from_raw_os_error(code)));
    }
    let child = child.ok_or_else(|| failed(io::Error::other("no ptrace event for the created process")))?;
    match child.wait(END_WAIT).map_err(failed)? {
        Some(Stop::Ended(_)) => Err(ForkError::Ended(pid)),
        Some(_) => Ok((child, number.unsigned_abs())),
        None => Err(failed(io::ErrorKind::TimedOut.into())),
    }
}

fn wait_for_end(tracee: &Tracee) -> io::Result<()> {
    let deadline = Instant::now() + END_WAIT;
    loop {
        match tracee.wait(deadline.saturating_duration_since(Instant::now()))? {
            Some(Stop::Ended(_)) => return Ok(()),
            Some(stop) => tracee.run(stop)?,
            None => return Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

#[cfg(test)]
mod tests;
