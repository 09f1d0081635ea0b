//! A thread that is made to make system calls, with an instruction that is there, and is given back as it was: its registers, its
//! signals, and the system call that it was stopped in. Nothing is written to its memory but what the calls write.

use std::io;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};

use crate::ids::{Pid, Tid};
use crate::linux::pid;
use crate::linux::process_memory;
use crate::linux::ptrace::{Registers, Stop, SyscallPhase, Tracee};

/// Longest time that a system call may take: a fork of a TiB takes some ten seconds.
const CALL_WAIT: Duration = Duration::from_secs(20);

/// All signals that can be.
const ALL_SIGNALS: u64 = u64::MAX;

/// The processor stops after each instruction.
const TRAP_FLAG: u64 = 1 << 8;

#[derive(Debug)]
pub(super) struct Borrowed {
    pid: Pid,
    tracee: Tracee,
    /// The address of a `syscall`.
    instruction: u64,
    saved: Registers,
    blocked: u64,
    /// It has run since it was taken.
    ran: bool,
    /// It was not seen to stop since: a call took too long, as every call does in a frozen control group.
    runs: bool,
    /// SIGSTOP came meanwhile, which cannot be blocked.
    stopped: bool,
}

impl Borrowed {
    /// Takes a thread that is held at a [`Stop::Trap`]. `None` if it was killed.
    pub(super) fn take(pid: Pid, tracee: &Tracee, instruction: u64) -> io::Result<Option<Self>> {
        let (Some(saved), Some(blocked)) = (tracee.registers()?, tracee.blocked_signals()?) else { return Ok(None) };
        tracee.block_signals(ALL_SIGNALS)?;
        let tracee = tracee.clone();
        Ok(Some(Self { pid, tracee, instruction, saved, blocked, ran: false, runs: false, stopped: false }))
    }

    /// Another thread, which this one has made: nobody wants it back.
    pub(super) fn child(&self, tracee: &Tracee) -> Self {
        let Self { pid, instruction, saved, blocked, .. } = *self;
        Self { pid, tracee: tracee.clone(), instruction, saved, blocked, ran: false, runs: false, stopped: false }
    }

    /// Has it make this system call as soon as it runs.
    pub(super) fn prepare(&self, number: libc::c_long, arguments: [u64; 6]) -> io::Result<()> {
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        let Registers { rsp, cs, ss, fs_base, gs_base, ds, es, fs, gs, .. } = self.saved;
        self.tracee.set_registers(&Registers {
            rax: number.cast_unsigned(),
            // No system call was interrupted that the kernel would make again.
            orig_rax: u64::MAX,
            rip: self.instruction,
            eflags: self.saved.eflags & !TRAP_FLAG,
            ..Registers {
                rdi,
                rsi,
                rdx,
                r10,
                r8,
                r9,
                rsp,
                cs,
                ss,
                fs_base,
                gs_base,
                ds,
                es,
                fs,
                gs,
                ..Registers::default()
            }
        })
    }

    /// What a system call returns; `None` if the thread was killed. `made` is called with the thread or process that it makes.
    pub(super) fn call(
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
            // A signal is not handed back: all are blocked but SIGSTOP, which is sent again.
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
                    // Of a call that it was stopped in.
                    Some(SyscallPhase::Exit(_)) => {}
                    Some(_) => return Err(io::Error::other("it makes another system call than it was told to")),
                },
                _ => {}
            }
        }
    }

    /// Gives the thread back, held as it was. What the kernel does with an interrupted system call, it does behind a stop that was
    /// asked for: so the thread is brought to one again.
    pub(super) fn give_back(mut self) -> io::Result<()> {
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
        if self.stopped
            && let Some(pid) = pid::raw(self.pid)
        {
            kill_process(pid, Signal::STOP)?;
        }
        Ok(())
    }

    fn next(&mut self, deadline: Instant) -> io::Result<Stop> {
        let stop = self.tracee.wait(deadline.saturating_duration_since(Instant::now()))?;
        self.runs &= stop.is_none();
        self.stopped |= matches!(stop, Some(Stop::Signal(libc::SIGSTOP)));
        stop.ok_or_else(|| io::ErrorKind::TimedOut.into())
    }
}

/// Whether a thread that makes no system call may be within instructions that are begun anew when it is interrupted by anything
/// ([`struct rseq`](https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/rseq.h)): were it moved elsewhere, the kernel would not do that.
pub(super) fn is_in_restartable(tracee: &Tracee, registers: &Registers) -> io::Result<bool> {
    let Some(area) = tracee.restartable_area()? else { return Ok(false) };
    let word = |address: u64| {
        let mut bytes = [0; 8];
        let read = process_memory::read(tracee.pid(), &[(address, bytes.len())], &mut bytes);
        read.ok().filter(|&count| count == bytes.len()).map(|_| u64::from_le_bytes(bytes))
    };
    let Some(section) = word(area.saturating_add(8)).filter(|&section| section != 0) else { return Ok(false) };
    let (Some(start), Some(length)) = (word(section.saturating_add(8)), word(section.saturating_add(16))) else {
        return Ok(true);
    };
    Ok(registers.rip.wrapping_sub(start) < length)
}
