//! Copies of stopped processes by a fork. Processes that could notice it are refused. A released copy exits by itself,
//! also when heapbpf is killed: a parent might take a child that was killed for a crash (PostgreSQL's postmaster ends
//! all others then). A direct child would be visible to the process's `wait` calls, and remain as a zombie: so an
//! intermediate process (`clone(CLONE_VM)`, killed and reaped during the stop) creates the copy, which init or a
//! subreaper adopts. If heapbpf is killed before that has `PTRACE_O_EXITKILL`, it dies at its first use of the stack,
//! which it lacks, with all signals blocked. Descriptors are shared, so that a file that the process closes is closed.

use std::io;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};

use super::process::{ForkError, Release, StoppedThread};
use crate::address::TargetAddr;
use crate::ids::{Pid, Tid};
use crate::linux::arch::{ADDRESS_END, Registers, SYSCALL_INSTRUCTION};
use crate::linux::pidfd::{PidFd, raw_pid};
use crate::linux::proc::maps::{Region, RegionKind, region_of};
use crate::linux::proc::stat;
use crate::linux::process_memory;
use crate::linux::ptrace::{Options, Pause, Stop, SyscallPhase, Tracee};

const ADOPTS: &str = "it adopts orphans (as the first process of a container, or by PR_SET_CHILD_SUBREAPER), and would see the copy exit";
const END_WAIT: Duration = Duration::from_secs(1);

/// Stack pointer of the created processes: invalid.
const NO_STACK: u64 = 8;

/// Dropping it on the thread that created it, or the exit of that thread, makes the copy exit.
#[derive(Debug)]
pub(crate) struct ForkCopy {
    of: Pid,
    pid: Pid,
    pidfd: PidFd,
    #[cfg(test)]
    between: Pid,
}

impl ForkCopy {
    /// `threads` are some of the threads, all of which are held, also afterwards. Takes 10 ms per GiB, for page tables.
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

/// Has one of the threads, all of which are held, make system calls.
pub(super) fn inject<T>(
    pid: Pid,
    threads: &[StoppedThread],
    mapped: &[Region],
    work: &mut dyn FnMut(&mut InjectedThread) -> Result<T, ForkError>,
) -> Result<T, ForkError> {
    let stopped = choose(pid, threads)?;
    let instruction = find_syscall_instruction(pid, &stopped.tracee, mapped)?
        .ok_or(ForkError::Impossible(pid, "no `syscall` instruction was found in its code"))?;
    let failed = |error| ForkError::Trace(pid, error);
    if stopped.release == Release::Detach {
        stopped.tracee.set_options(Options::THREADS).map_err(failed)?;
    }
    let mut thread =
        InjectedThread::take(pid, &stopped.tracee, instruction).map_err(failed)?.ok_or(ForkError::Ended(pid))?;
    let worked = work(&mut thread);
    let restored = thread.restore();
    if stopped.release == Release::Detach {
        stopped.tracee.set_options(Options::default()).map_err(failed)?;
    }
    let result = worked?;
    restored.map_err(failed)?;
    Ok(result)
}

/// Selects a thread, preferably one in a system call, where nothing else can be in progress.
fn choose(pid: Pid, threads: &[StoppedThread]) -> Result<&StoppedThread, ForkError> {
    let failed = |error| ForkError::Trace(pid, error);
    let mut filter = None;
    let mut running = None;
    for stopped in threads.iter().filter(|stopped| stopped.stop == Stop::Trap) {
        // A thread in 32-bit mode has no such registers.
        let Some(registers) = stopped.tracee.registers().ok().flatten() else { continue };
        if let Some(found) = filter_of(pid, &stopped.tracee).map_err(failed)? {
            filter = Some(found);
        } else if registers.syscall().is_some() {
            return Ok(stopped);
        } else if running.is_none() && !is_in_rseq(&stopped.tracee, &registers).map_err(failed)? {
            running = Some(stopped);
        }
    }
    match (running, filter) {
        (Some(stopped), _) => Ok(stopped),
        (None, Some(filter)) => Err(ForkError::Impossible(pid, filter)),
        (None, None) => Err(ForkError::NoThread(pid)),
    }
}

fn filter_of(pid: Pid, tracee: &Tracee) -> io::Result<Option<&'static str>> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/task/{}/status", tracee.tid().0))?;
    let seccomp = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
    if seccomp.is_some_and(|mode| mode.trim() != "0") {
        return Ok(Some("a seccomp filter restricts the system calls of its threads"));
    }
    const DISPATCH: &str =
        "the program itself (PR_SET_SYSCALL_USER_DISPATCH) restricts the system calls of its threads";
    Ok(tracee.dispatches_syscalls()?.then_some(DISPATCH))
}

/// Whether a process is the init process of a PID namespace, to which orphans are reparented.
fn is_first_of_namespace(pid: Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    // PIDs in all namespaces, the last one in its own.
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

/// `number` is the PID of an exited child in the process's namespace. Does not block.
fn wait_in(pid: Pid, thread: &mut InjectedThread, number: u64) -> Result<(), ForkError> {
    let options = (libc::__WALL | libc::WNOHANG).unsigned_abs();
    let waited = thread.call(libc::SYS_wait4, [number, 0, options.into(), 0, 0, 0], &mut |_| {});
    let reaped = waited.map_err(|error| ForkError::Trace(pid, error))?.ok_or(ForkError::Ended(pid))?;
    if reaped != number.cast_signed() {
        tracing::debug!("process {pid}: injected wait4 returned {reaped}");
    }
    Ok(())
}

/// Returns the copy, which exits when it is detached, and its PID in the process's namespace.
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
    let _ = std::fs::write(format!("/proc/{}/oom_score_adj", copy.pid()), "1000");
    let forked = ForkCopy {
        of: pid,
        pid: copy.pid(),
        pidfd,
        #[cfg(test)]
        between: between.pid(),
    };
    Ok((forked, number))
}

/// Waits until the child is stopped before its first instruction. Also returns its PID in the process's namespace.
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

/// Time limit of an injected system call: a fork of a TiB takes about ten seconds.
const CALL_WAIT: Duration = Duration::from_secs(20);

const ALL_SIGNALS: u64 = u64::MAX;

/// Makes system calls by an existing instruction; registers, signal mask and an interrupted system call are restored.
#[derive(Debug)]
pub(crate) struct InjectedThread {
    pid: Pid,
    tracee: Tracee,
    instruction: u64,
    saved: Registers,
    blocked: u64,
    ran: bool,
    /// It has not stopped since: a call timed out, as every call does in a frozen control group.
    runs: bool,
    /// SIGSTOP arrived, which cannot be blocked.
    sigstop_arrived: bool,
}

impl InjectedThread {
    /// Takes a thread that is held at a [`Stop::Trap`]. `None` if it was killed.
    fn take(pid: Pid, tracee: &Tracee, instruction: u64) -> io::Result<Option<Self>> {
        let (Some(saved), Some(blocked)) = (tracee.registers()?, tracee.blocked_signals()?) else { return Ok(None) };
        tracee.block_signals(ALL_SIGNALS)?;
        let tracee = tracee.clone();
        Ok(Some(Self { pid, tracee, instruction, saved, blocked, ran: false, runs: false, sigstop_arrived: false }))
    }

    pub(crate) fn stack_pointer(&self) -> u64 {
        self.saved.stack_pointer()
    }

    /// Makes a system call. Fails with its error.
    pub(crate) fn checked(&mut self, number: libc::c_long, arguments: [u64; 6]) -> io::Result<u64> {
        let result = self.call(number, arguments, &mut |_| ())?.ok_or(io::ErrorKind::NotFound)?;
        u64::try_from(result)
            .map_err(|_| io::Error::from_raw_os_error(i32::try_from(result.wrapping_neg()).unwrap_or(libc::EINVAL)))
    }

    /// `mmap` at this address.
    pub(crate) fn map(
        &mut self,
        address: u64,
        size_bytes: u64,
        protection: libc::c_int,
        flags: libc::c_int,
        file: Option<u64>,
    ) -> io::Result<()> {
        let (protection, flags) = (protection.unsigned_abs().into(), flags.unsigned_abs().into());
        let at = self.checked(libc::SYS_mmap, [address, size_bytes, protection, flags, file.unwrap_or(u64::MAX), 0])?;
        // Before Linux 4.17, `MAP_FIXED_NOREPLACE` is only a hint.
        if at == address { Ok(()) } else { Err(io::ErrorKind::AlreadyExists.into()) }
    }

    fn child(&self, tracee: &Tracee) -> Self {
        let Self { pid, instruction, saved, blocked, .. } = *self;
        let tracee = tracee.clone();
        Self { pid, tracee, instruction, saved, blocked, ran: false, runs: false, sigstop_arrived: false }
    }

    fn prepare(&self, number: libc::c_long, arguments: [u64; 6]) -> io::Result<()> {
        self.tracee.set_registers(&self.saved.for_syscall(self.instruction, number, arguments))
    }

    /// Makes a system call; `None` if the thread was killed. Calls `made` with the TID of what the call creates.
    fn call(
        &mut self,
        number: libc::c_long,
        arguments: [u64; 6],
        made: &mut dyn FnMut(Tid),
    ) -> io::Result<Option<i64>> {
        self.prepare(number, arguments)?;
        self.ran = true;
        let deadline = Instant::now() + CALL_WAIT;
        let mut entered = false;
        loop {
            // Signals are not passed on: all are blocked but SIGSTOP, which is sent again.
            self.tracee.run_to_syscall(Stop::Trap)?;
            self.runs = true;
            match self.next(deadline)? {
                Stop::Ended(_) => return Ok(None),
                Stop::Clone | Stop::Fork => {
                    let number = self.tracee.event_message()?.and_then(|number| u32::try_from(number).ok());
                    number.into_iter().for_each(|number| made(Tid(number)));
                }
                Stop::Syscall => match self.tracee.syscall_info()?.map(|info| info.phase) {
                    None => return Ok(None),
                    Some(SyscallPhase::Entry { number: found, .. }) if found == number.cast_unsigned() => {
                        entered = true
                    }
                    Some(SyscallPhase::Exit(result)) if entered => return Ok(Some(result)),
                    // Exit of the call that it was stopped in.
                    Some(SyscallPhase::Exit(_)) => {}
                    Some(_) => {
                        return Err(io::Error::other("the thread made another system call than the injected one"));
                    }
                },
                _ => {}
            }
        }
    }

    /// Held as before. The kernel restarts an interrupted call only after a `PTRACE_INTERRUPT` stop: it gets one.
    fn restore(mut self) -> io::Result<()> {
        if self.ran {
            self.tracee.interrupt()?;
            if !self.runs {
                self.tracee.run(Stop::Syscall)?;
            }
            let deadline = Instant::now() + CALL_WAIT;
            loop {
                match self.next(deadline)? {
                    Stop::Trap => break,
                    Stop::Ended(_) => return Ok(()),
                    _ => self.tracee.run(Stop::Syscall)?,
                }
            }
        }
        self.tracee.set_registers(&self.saved)?;
        self.tracee.block_signals(self.blocked)?;
        if self.sigstop_arrived
            && let Some(pid) = raw_pid(self.pid)
        {
            kill_process(pid, Signal::STOP)?;
        }
        Ok(())
    }

    fn next(&mut self, deadline: Instant) -> io::Result<Stop> {
        let stop = self.tracee.wait(deadline.saturating_duration_since(Instant::now()))?;
        self.runs &= stop.is_none();
        self.sigstop_arrived |= matches!(stop, Some(Stop::Signal(libc::SIGSTOP)));
        stop.ok_or_else(|| io::ErrorKind::TimedOut.into())
    }
}

/// Whether a thread may be in a restartable sequence (`struct rseq`), which would not restart if it were moved.
fn is_in_rseq(tracee: &Tracee, registers: &Registers) -> io::Result<bool> {
    let Some(area) = tracee.rseq_area()? else { return Ok(false) };
    let word = |address: u64| read(tracee.pid(), address, 8).try_into().ok().map(u64::from_le_bytes);
    let Some(section) = word(area.saturating_add(8)).filter(|&section| section != 0) else { return Ok(false) };
    let (Some(start), Some(length)) = (word(section.saturating_add(8)), word(section.saturating_add(16))) else {
        return Ok(true);
    };
    Ok(registers.instruction().wrapping_sub(start) < length)
}

const BYTES_MAX: u64 = 16 << 20;

const PIECE_BYTES: u64 = 64 << 10;

/// Searches mappings of the kernel, the place of the thread's last system call, and all other code.
fn find_syscall_instruction(pid: Pid, tracee: &Tracee, mapped: &[Region]) -> Result<Option<u64>, ForkError> {
    let runs = |region: &&Region| region.executable && region.readable && region.end.0 < ADDRESS_END;
    let registers = tracee.registers().map_err(|error| ForkError::Trace(pid, error))?.ok_or(ForkError::Ended(pid))?;
    let (kernel, others): (Vec<&Region>, Vec<&Region>) =
        mapped.iter().filter(runs).partition(|region| region.kind == RegionKind::Kernel);
    // The first thread may have exited, and has no memory then.
    let living = tracee.pid();
    let mut left_bytes = BYTES_MAX;
    if let Some(found) = kernel.iter().find_map(|region| search(living, region, &mut left_bytes)) {
        return Ok(Some(found));
    }
    let last = registers.instruction().saturating_sub(SYSCALL_INSTRUCTION.len() as u64);
    let is_code = region_of(mapped, TargetAddr(last)).is_some_and(|region| runs(&region));
    if registers.syscall().is_some()
        && is_code
        && read(living, last, SYSCALL_INSTRUCTION.len() as u64) == SYSCALL_INSTRUCTION
    {
        return Ok(Some(last));
    }
    Ok(others.iter().find_map(|region| search(living, region, &mut left_bytes)))
}

fn search(pid: Pid, region: &Region, left_bytes: &mut u64) -> Option<u64> {
    let mut start = region.start.0;
    while start < region.end.0 && *left_bytes > 0 {
        let count = PIECE_BYTES.min(region.end.0 - start);
        *left_bytes = left_bytes.saturating_sub(count);
        let bytes = read(pid, start, count);
        let found = bytes.windows(SYSCALL_INSTRUCTION.len()).position(|window| window == SYSCALL_INSTRUCTION);
        if let Some(offset) = found {
            return Some(start + offset as u64);
        }
        start += count;
    }
    None
}

fn read(pid: Pid, address: u64, count: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(count).unwrap_or(0)];
    let read = process_memory::read(pid, &[(address, bytes.len())], &mut bytes).unwrap_or(0);
    bytes.truncate(read);
    bytes
}

#[cfg(test)]
mod tests;
