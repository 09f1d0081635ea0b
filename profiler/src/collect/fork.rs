//! A copy of a stopped process that keeps its memory as it is now: the kernel copies a page when the process next writes to it.
//! The process is made to fork by one of its threads, which notices nothing. The copy runs nothing but its own `exit_group(0)`, once it is
//! no longer held: whoever adopts it may take a child that was killed for a crash, and end all its others (PostgreSQL's first process
//! does). That is so when heapbpf is killed, too. Refuses where something in the process would notice.
//!
//! ```text
//! thread ─clone(CLONE_VM)─▶ go-between ─clone()─▶ copy
//!        ◀─wait4()─ it is killed          └──▶ child of init
//! ```
//! A child that the thread made itself would stay the process's own until its end, which any of its calls of `wait` could see, and
//! would be left a zombie behind. The go-between lives and is waited for while the process stands still; the copy becomes the child of
//! whoever adopts orphans, which must not be the process itself. Were heapbpf killed in the microseconds before the go-between is bound to
//! die with it, it would run into its first use of the stack, which it has none of, with all signals blocked, and die of that.
//! The descriptors are shared, not copied, so that a file that the process closes is closed.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use super::Span;
use crate::ids::{Pid, Tid};
use crate::linux::pidfd::PidFd;
use crate::linux::proc::ProcError;
use crate::linux::proc::regions::{Region, regions};
use crate::linux::proc::tasks;
use crate::linux::ptrace::{Options, Pause, Stop, Tracee};

mod borrowed;
pub(crate) mod flags;
mod instruction;
mod memory;

use borrowed::Borrowed;
pub(crate) use memory::ForkMemory;

/// Longest wait for what is killed to be gone.
const END_WAIT: Duration = Duration::from_secs(1);

/// Where the stacks of what is made are said to be: nowhere.
const NO_STACK: u64 = 8;

/// Why no copy could be made. The process is as it was.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ForkError {
    /// No thread can be made to fork.
    #[error(
        "process `{0}` cannot be made to fork now: none of its threads stands where it can be borrowed (it is stopped, ends, or runs in 32-bit mode); use `--snapshot read`"
    )]
    NoThread(Pid),
    /// The kernel would end a thread for what it does.
    #[error(
        "process `{0}` cannot be made to fork: {1} decides which system calls its threads may make; use `--snapshot read`"
    )]
    Filtered(Pid, &'static str),
    /// There is no instruction to make system calls with.
    #[error(
        "process `{0}` cannot be made to fork: no `syscall` instruction was found in its code; use `--snapshot read`"
    )]
    NoInstruction(Pid),
    /// The kernel makes no copy.
    #[error(
        "process `{0}` cannot be made to fork: {1}; it may be at a limit of processes or memory (`pids.max`, `ulimit -u`, `vm.overcommit_memory`); use `--snapshot read`"
    )]
    Refused(Pid, io::Error),
    /// Tracing has failed.
    #[error("cannot make process `{0}` fork: {1}; use `--snapshot read`")]
    Trace(Pid, io::Error),
    /// It ended.
    #[error(
        "process `{0}` ended while a copy of it was made; start it with `heapbpf leaks -- COMMAND` to have it checked at its exit"
    )]
    Ended(Pid),
    /// The copy would become its child.
    #[error(
        "process `{0}` cannot be made to fork: it adopts orphans (it is the first process of a container, or PR_SET_CHILD_SUBREAPER is set), and would see the copy's end; use `--snapshot read`"
    )]
    Adopts(Pid),
    /// What `/proc` tells of it cannot be read.
    #[error(transparent)]
    Proc(#[from] ProcError),
}

/// A thread that is held by the calling thread, and may be made to fork.
#[derive(Clone, Debug)]
pub(crate) struct Lender {
    /// The thread.
    pub tracee: Tracee,
    /// Why it is held. Only one at a [`Stop::Trap`] can be borrowed.
    pub stop: Stop,
    /// Threads that it makes are traced already; else they are while it is borrowed.
    pub traces_threads: bool,
}

/// A copy of a process, of which nothing runs. Dropping it ends it, on the thread that has made it. It ends too when that thread ends.
#[derive(Debug)]
pub(crate) struct Forked {
    of: Pid,
    pid: Pid,
    pidfd: PidFd,
    /// The process that made it and has ended.
    #[cfg(test)]
    between: Pid,
}

impl Forked {
    /// Makes a copy of a process all of whose threads are held, these among them; `mapped` is what it has mapped. The threads are
    /// held as before when this returns. Takes some 10 ms for each GiB, most of it to copy the tables of its pages.
    ///
    /// # Errors
    ///
    /// When it cannot be made to fork, see [`ForkError`].
    pub(crate) fn make(pid: Pid, lenders: &[Lender], mapped: &[Region]) -> Result<Self, ForkError> {
        if is_first_of_namespace(pid) {
            return Err(ForkError::Adopts(pid));
        }
        let lender = choose(pid, lenders)?;
        let instruction = instruction::find(pid, &lender.tracee, mapped)?.ok_or(ForkError::NoInstruction(pid))?;
        let failed = |error| ForkError::Trace(pid, error);
        if !lender.traces_threads {
            lender.tracee.set_options(Options::THREADS).map_err(failed)?;
        }
        let mut thread =
            Borrowed::take(pid, &lender.tracee, instruction).map_err(failed)?.ok_or(ForkError::Ended(pid))?;
        let made = copy_with(pid, &mut thread);
        let given_back = thread.give_back();
        if !lender.traces_threads {
            lender.tracee.set_options(Options::default()).map_err(failed)?;
        }
        let forked = made?;
        given_back.map_err(failed)?;
        Ok(forked)
    }

    /// The copy. Its memory can be read as that of any process.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Whether it was killed.
    pub(crate) fn has_ended(&self) -> bool {
        self.pidfd.has_ended().unwrap_or(true)
    }

    /// The processes that were made: the go-between, which has ended, and the copy.
    #[cfg(test)]
    pub(crate) fn pids(&self) -> [Pid; 2] {
        [self.between, self.pid]
    }
}

/// What a process had mapped, readable and its own, and is not in its copy, because it has asked for that (`MADV_DONTFORK`,
/// `MADV_WIPEONFORK`); neighbours are joined. To be asked when the process runs again: it takes as long as the copying.
///
/// # Errors
///
/// When `/proc` does not tell.
pub(super) fn left_out(copy: Pid, mapped: &[Region]) -> Result<Vec<Span>, ForkError> {
    let copied: BTreeSet<_> = regions(copy)?.into_iter().map(|region| (region.start, region.end)).collect();
    let wiped = flags::wiped(copy)?;
    let mut left_out: Vec<Span> = Vec::new();
    for region in mapped.iter().filter(|region| region.readable && !region.shared) {
        if copied.contains(&(region.start, region.end)) && !wiped.contains(&region.start) {
            continue;
        }
        match left_out.last_mut() {
            Some(last) if last.end == region.start => last.end = region.end,
            _ => left_out.push(region.start..region.end),
        }
    }
    Ok(left_out)
}

impl Drop for Forked {
    fn drop(&mut self) {
        // The tracing thread is this one, or has exited.
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

/// The thread to be borrowed, one that makes a system call if there is any: no other thing can be under way there.
fn choose(pid: Pid, lenders: &[Lender]) -> Result<&Lender, ForkError> {
    let failed = |error| ForkError::Trace(pid, error);
    let mut filter = None;
    let mut running = None;
    for lender in lenders.iter().filter(|lender| lender.stop == Stop::Trap) {
        // A thread in 32-bit mode has no such registers.
        let Some(registers) = lender.tracee.registers().ok().flatten() else { continue };
        if let Some(found) = filter_of(pid, &lender.tracee).map_err(failed)? {
            filter = Some(found);
        } else if registers.is_in_syscall() {
            return Ok(lender);
        } else if running.is_none() && !borrowed::is_in_restartable(&lender.tracee, &registers).map_err(failed)? {
            running = Some(lender);
        }
    }
    match (running, filter) {
        (Some(lender), _) => Ok(lender),
        (None, Some(filter)) => Err(ForkError::Filtered(pid, filter)),
        (None, None) => Err(ForkError::NoThread(pid)),
    }
}

/// What decides about a thread's system calls.
fn filter_of(pid: Pid, tracee: &Tracee) -> io::Result<Option<&'static str>> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/task/{}/status", tracee.tid().0))?;
    let seccomp = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
    if seccomp.is_some_and(|mode| mode.trim() != "0") {
        return Ok(Some("a seccomp filter"));
    }
    Ok(tracee.dispatches_syscalls()?.then_some("the program itself (PR_SET_SYSCALL_USER_DISPATCH)"))
}

/// Whether a process is the first one of a container, which every orphan there becomes a child of.
fn is_first_of_namespace(pid: Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    // Its numbers, the last of them in its own namespace.
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.and_then(|numbers| numbers.split_ascii_whitespace().next_back()) == Some("1")
}

/// Has a borrowed thread make the go-between, and that the copy.
fn copy_with(pid: Pid, thread: &mut Borrowed) -> Result<Forked, ForkError> {
    let flags = (libc::CLONE_VM | libc::CLONE_FILES).unsigned_abs();
    let (between, number) = make_child(pid, thread, flags)?;
    let copied = copy_from(pid, thread, &between);
    let killed = between.kill().and_then(|()| wait_for_end(&between));
    killed.map_err(|error| ForkError::Trace(pid, error))?;
    wait_in(pid, thread, number)?;
    let (copy, number) = copied?;
    let parent = tasks::status(copy.pid, Tid(copy.pid.0)).map(|status| status.parent);
    if parent == Some(pid) {
        drop(copy);
        wait_in(pid, thread, number)?;
        return Err(ForkError::Adopts(pid));
    }
    Ok(copy)
}

/// Has a borrowed thread wait for a child that has ended, whose number is as the process itself sees it. So nothing is waited for.
fn wait_in(pid: Pid, thread: &mut Borrowed, number: u64) -> Result<(), ForkError> {
    let options = (libc::__WALL | libc::WNOHANG).unsigned_abs();
    let waited = thread.call(libc::SYS_wait4, [number, 0, options.into(), 0, 0, 0], &mut |_| {});
    let reaped = waited.map_err(|error| ForkError::Trace(pid, error))?.ok_or(ForkError::Ended(pid))?;
    if reaped != number.cast_signed() {
        tracing::debug!("process {pid}: wait4 for what it was made to make returned {reaped}");
    }
    Ok(())
}

/// The copy, which ends by itself when it is let go; and its number as the process sees it.
fn copy_from(pid: Pid, thread: &Borrowed, between: &Tracee) -> Result<(Forked, u64), ForkError> {
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
    // What the process writes to from now on is there twice: where memory runs out, the copy is to end, and not the process.
    let _ = std::fs::write(format!("/proc/{}/oom_score_adj", copy.pid()), "1000");
    let forked = Forked {
        of: pid,
        pid: copy.pid(),
        pidfd,
        #[cfg(test)]
        between: between.pid(),
    };
    Ok((forked, number))
}

/// Makes a process and waits until it stands still, before its first instruction; and its number as its maker sees it.
fn make_child(pid: Pid, maker: &mut Borrowed, flags: u32) -> Result<(Tracee, u64), ForkError> {
    let failed = |error| ForkError::Trace(pid, error);
    let mut child = None;
    let arguments = [u64::from(flags), NO_STACK, 0, 0, 0, 0];
    let made = maker.call(libc::SYS_clone, arguments, &mut |made| child = Some(Tracee::of(made)));
    let number = made.map_err(failed)?.ok_or(ForkError::Ended(pid))?;
    if number < 0 {
        let code = i32::try_from(-number).unwrap_or(libc::EINVAL);
        return Err(ForkError::Refused(pid, io::Error::from_raw_os_error(code)));
    }
    let child = child.ok_or_else(|| failed(io::Error::other("the kernel did not tell what was made")))?;
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
