//! System calls that a stopped thread makes for this process. The thread's registers, signal mask and interrupted system call are
//! restored; if this process is killed meanwhile, the thread restores them itself. Nothing else in the process changes: see
//! [`place`] and [`own`].

use std::io;
use std::time::{Duration, Instant};

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::{Pid, Tid};
use heapbpf_linux::arch::{self, ADDRESS_END, Registers, SYSCALL_INSTRUCTION};
use heapbpf_linux::pidfd::raw_pid;
use heapbpf_linux::proc::maps::{Region, RegionKind, region_of};
use heapbpf_linux::proc::process;
use heapbpf_linux::ptrace::{Options, Stop, SyscallPhase, Tracee};
use rustix::process::{Signal, kill_process};

use self::code::{BYTES_MAX, read, search};
use super::process::{ForkError, Release, StoppedThread};

mod code;
mod interrupted;
mod own;
pub(super) mod place;
mod way_back;

pub(super) use way_back::WayBack;

/// Makes one of these threads, which are all of the process, make system calls.
pub(super) fn inject<T>(
    pid: Pid,
    threads: &[StoppedThread],
    mapped: &[Region],
    work: &mut dyn FnMut(&mut InjectedThread) -> Result<T, ForkError>,
) -> Result<T, ForkError> {
    let stopped = choose(pid, threads)?;
    let failed = |error| ForkError::Trace(pid, error);
    let way_back = WayBack::find(pid, &stopped.tracee, mapped).map_err(failed)?;
    let instruction = match &way_back {
        Some(way_back) => way_back.instruction,
        None => find_syscall_instruction(pid, &stopped.tracee, mapped)?
            .ok_or(ForkError::Impossible(pid, "no instruction that makes a system call was found in its code"))?,
    };
    if stopped.release == Release::Detach {
        stopped.tracee.set_options(Options::THREADS).map_err(failed)?;
    }
    let mut thread =
        InjectedThread::take(pid, &stopped.tracee, instruction).map_err(failed)?.ok_or(ForkError::Ended(pid))?;
    let find = |size_bytes: u64| place::find(stopped, threads, mapped, size_bytes);
    let entered = thread.enter(way_back.as_ref(), &find);
    let worked = entered.and_then(|()| work(&mut thread));
    let restored = thread.leave();
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
        // A thread in 32-bit mode has no registers of this kind.
        let Some(registers) = stopped.tracee.registers().ok().flatten() else { continue };
        if let Some(found) = filter_of(pid, &stopped.tracee).map_err(failed)? {
            filter = Some(found);
        } else if stopped.tracee.is_in_syscall(&registers) {
            return Ok(stopped);
        } else if running.is_none()
            && !arch::discards_registers(&stopped.tracee)
            && !is_in_rseq(&stopped.tracee, &registers).map_err(failed)?
        {
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
    let status = process::thread_status(pid, tracee.tid())?;
    let seccomp = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
    if seccomp.is_some_and(|mode| mode.trim() != "0") {
        return Ok(Some("a seccomp filter restricts the system calls of its threads"));
    }
    const DISPATCH: &str =
        "the program itself (PR_SET_SYSCALL_USER_DISPATCH) restricts the system calls of its threads";
    Ok(tracee.dispatches_syscalls()?.then_some(DISPATCH))
}

/// Time limit of an injected system call: a fork of a TiB takes about ten seconds.
const CALL_WAIT: Duration = Duration::from_secs(20);

pub(super) const ALL_SIGNALS: u64 = u64::MAX;

/// A thread that makes system calls by an existing instruction; registers, signal mask and an interrupted system call are
/// restored.
#[derive(Debug)]
pub(crate) struct InjectedThread {
    pid: Pid,
    tracee: Tracee,
    instruction: u64,
    saved: Registers,
    /// Floating-point and vector registers.
    extended: Vec<u64>,
    blocked: u64,
    /// Address of the frame with which the thread restores itself when it returns, and of the code to which it returns.
    way_back: Option<(u64, u64)>,
    /// Address and size of the frame for the first and the last call.
    outer: Option<(u64, u64)>,
    /// Address and size of the mapping with the other frame and space for arguments.
    own: Option<(u64, u64)>,
    /// Whether the thread is held at the exit of the system call in which it was interrupted.
    at_exit: bool,
    has_blocked: bool,
    ran: bool,
    /// Whether the thread has not stopped since a call timed out, as every call does in a frozen control group.
    runs: bool,
    /// Whether SIGSTOP has arrived, which cannot be blocked.
    sigstop_arrived: bool,
}

impl InjectedThread {
    /// Takes a thread that is held at a [`Stop::Trap`]. `None` if it was killed.
    pub(super) fn take(pid: Pid, tracee: &Tracee, instruction: u64) -> io::Result<Option<Self>> {
        let (Some(saved), Some(blocked)) = (tracee.registers()?, tracee.blocked_signals()?) else { return Ok(None) };
        let mut taken = Self {
            pid,
            tracee: tracee.clone(),
            instruction,
            saved,
            extended: Vec::new(),
            blocked,
            way_back: None,
            outer: None,
            own: None,
            at_exit: false,
            has_blocked: false,
            ran: false,
            runs: false,
            sigstop_arrived: false,
        };
        if !taken.reveal_restart()? {
            return Ok(None);
        }
        taken.extended = arch::extended_words(tracee).unwrap_or_default();
        Ok(Some(taken))
    }

    /// Makes a system call. Fails with its error.
    pub(crate) fn checked(&mut self, number: libc::c_long, arguments: [u64; 6]) -> io::Result<u64> {
        let result = self.call(number, arguments, &mut |_| ())?.ok_or(io::ErrorKind::NotFound)?;
        u64::try_from(result)
            .map_err(|_| io::Error::from_raw_os_error(i32::try_from(result.wrapping_neg()).unwrap_or(libc::EINVAL)))
    }

    /// Makes the system call `mmap` at this address.
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

    pub(super) fn child(&self, tracee: &Tracee) -> Self {
        Self {
            tracee: tracee.clone(),
            extended: Vec::new(),
            // A created process has no way back: nothing may continue it. It inherits the signal mask.
            way_back: None,
            outer: None,
            own: None,
            at_exit: false,
            has_blocked: true,
            ran: false,
            runs: false,
            sigstop_arrived: false,
            ..*self
        }
    }

    pub(super) fn prepare(&self, number: libc::c_long, arguments: [u64; 6]) -> io::Result<()> {
        let registers = self.saved.for_syscall(self.instruction, number, arguments);
        self.tracee.set_registers(&match self.way_back {
            Some((address, restorer)) => registers.with_way_back(address, restorer),
            None => registers,
        })
    }

    /// Makes a system call; `None` if the thread was killed. Calls `made` with the TID of what the call creates.
    pub(super) fn call(
        &mut self,
        number: libc::c_long,
        arguments: [u64; 6],
        made: &mut dyn FnMut(Tid),
    ) -> io::Result<Option<i64>> {
        self.prepare(number, arguments)?;
        // Signals are blocked after the registers are set: from then on, the thread restores the mask itself if this process is
        // killed.
        if !self.has_blocked {
            self.tracee.block_signals(ALL_SIGNALS)?;
            self.has_blocked = true;
        }
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
                    // This is the exit of the call in which the thread was stopped.
                    Some(SyscallPhase::Exit(_)) => {}
                    Some(_) => {
                        return Err(io::Error::other("the thread made another system call than the injected one"));
                    }
                },
                _ => {}
            }
        }
    }

    /// Restores the thread, which is held as before. The kernel restarts an interrupted call only after a `PTRACE_INTERRUPT`
    /// stop, so the thread gets one.
    fn restore(&mut self) -> io::Result<()> {
        if let Some(argument) = self.saved.first_argument()
            && self.at_exit
            && !self.runs
        {
            self.restore_at_exit(argument)?;
            return self.send_sigstop();
        }
        if self.ran || self.at_exit {
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
        // The mask is restored before the registers, for the same reason.
        self.tracee.block_signals(self.blocked)?;
        self.tracee.set_registers(&self.saved.at_other_stop())?;
        arch::restore_discarded(&self.tracee, &self.extended)?;
        self.send_sigstop()
    }

    fn send_sigstop(&self) -> io::Result<()> {
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

/// Finds a system call instruction in mappings of the kernel, at the place of the thread's last system call, and in all other
/// code.
fn find_syscall_instruction(pid: Pid, tracee: &Tracee, mapped: &[Region]) -> Result<Option<u64>, ForkError> {
    let runs = |region: &&Region| region.executable && region.readable && region.end.0 < ADDRESS_END;
    let registers = tracee.registers().map_err(|error| ForkError::Trace(pid, error))?.ok_or(ForkError::Ended(pid))?;
    let (kernel, others): (Vec<&Region>, Vec<&Region>) =
        mapped.iter().filter(runs).partition(|region| region.kind == RegionKind::Kernel);
    // The first thread may have exited, and has no memory then.
    let living = tracee.pid();
    let mut left_bytes = BYTES_MAX;
    if let Some(found) = kernel.iter().find_map(|region| search(living, region, &SYSCALL_INSTRUCTION, &mut left_bytes))
    {
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
    Ok(others.iter().find_map(|region| search(living, region, &SYSCALL_INSTRUCTION, &mut left_bytes)))
}

#[cfg(test)]
mod tests;
