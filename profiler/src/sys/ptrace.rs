//! A process that is traced (`ptrace(2)`): stopped at system calls and execs, and let run again. What a stop means is the
//! caller's to say.
//!
//! `libc` is called itself: the safe wrapper crates know no real-time signals, which a program may be sent as it starts,
//! and have no `PTRACE_LISTEN`.

#![expect(unsafe_code, reason = "rustix has no ptrace")]

use std::io;
use std::marker::PhantomData;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::process::{WaitOptions, waitpid};

use super::pid;
use crate::ids::Pid;

/// Why a traced process does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It is about to make a system call, or has made one: [`Tracee::syscall_info`] tells.
    Syscall,
    /// It has called exec: nothing of the new program has run.
    Exec,
    /// A signal has come and is delivered only if it is handed back.
    Signal(i32),
    /// A signal has stopped the whole process, as Ctrl-Z does.
    GroupStop,
    /// It was asked to stop, or SIGCONT has ended a group stop.
    Trap,
    /// It has ended and is reaped.
    Ended(ExitStatus),
}

impl Stop {
    /// The signal to hand back for the process to notice nothing; 0 for none.
    fn signal(self) -> i32 {
        match self {
            Self::Signal(signal) => signal,
            _ => 0,
        }
    }

    fn from_status(status: i32) -> Self {
        let signal = (status >> 8) & 0xff;
        match status >> 16 {
            _ if status & 0x7f != 0x7f => Self::Ended(ExitStatus::from_raw(status)),
            libc::PTRACE_EVENT_EXEC => Self::Exec,
            EVENT_STOP if signal == libc::SIGTRAP => Self::Trap,
            EVENT_STOP => Self::GroupStop,
            0 if signal == libc::SIGTRAP | 0x80 => Self::Syscall,
            0 => Self::Signal(signal),
            _ => Self::Trap,
        }
    }
}

/// A system call, seen from its stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyscallInfo {
    /// `AUDIT_ARCH_*`: which instruction set's system call it is, and the process's.
    pub arch: u32,
    /// Address behind the instruction that makes it.
    pub instruction: u64,
    /// Before or after it.
    pub phase: SyscallPhase,
}

/// Before or after a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyscallPhase {
    /// The stop is at no system call.
    None,
    /// Before.
    Entry {
        /// Which one.
        number: u64,
        /// Its arguments.
        arguments: [u64; 6],
    },
    /// After: what it returned, an error as a small negative number.
    Exit(i64),
}

/// A traced process. The kernel lets only the thread that took hold of it ask anything, so this cannot be sent to another.
///
/// A process that is killed while it is stopped is no longer there to be asked or let run; then requests succeed and do
/// nothing, and [`wait`](Self::wait) tells its end. When the thread ends, whatever the reason, the kernel lets go of the
/// process and it runs on. A clone is the same process, held once.
#[derive(Clone, Debug)]
pub struct Tracee {
    pid: Pid,
    of_this_thread: PhantomData<*const ()>,
}

impl Tracee {
    /// Takes hold of a child of this process, without stopping it. It stops from now on when it calls exec and when a
    /// signal comes.
    ///
    /// # Errors
    ///
    /// `EPERM` where tracing is forbidden, or another tracer has it; `ENOSYS` and others where a filter says so.
    pub fn seize(pid: Pid) -> io::Result<Self> {
        let tracee = Self { pid, of_this_thread: PhantomData };
        tracee.request(libc::PTRACE_SEIZE, 0, (libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_TRACESYSGOOD) as usize)?;
        Ok(tracee)
    }

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// The next stop, once it comes; `None` if none does in time.
    ///
    /// `waitpid` has no time limit, and the signal that announces a stop may go to any thread: so this asks again and
    /// again, at first without a pause, because a stop at a system call is microseconds away.
    ///
    /// # Errors
    ///
    /// `ECHILD` if the process was reaped elsewhere.
    pub fn wait(&self, limit: Duration) -> io::Result<Option<Stop>> {
        let mut pause = Pause::new(limit);
        loop {
            let stop = self.stopped()?;
            if stop.is_some() {
                return Ok(stop);
            }
            if !pause.wait() {
                // On a busy machine the pause may have been long, and the stop has come meanwhile.
                return self.stopped();
            }
        }
    }

    /// The next stop if it has come already.
    ///
    /// # Errors
    ///
    /// As of [`wait`](Self::wait).
    pub fn stopped(&self) -> io::Result<Option<Stop>> {
        reap(self.pid)
    }

    /// Lets it run to its next system call. What made it stop is handed back: a signal is delivered.
    ///
    /// # Errors
    ///
    /// `ESRCH` never, see [`Tracee`]; others should not happen.
    pub fn run_to_syscall(&self, stop: Stop) -> io::Result<()> {
        self.resume(libc::PTRACE_SYSCALL, stop)
    }

    /// Lets it run to its next exec or signal.
    ///
    /// # Errors
    ///
    /// As of [`run_to_syscall`](Self::run_to_syscall).
    pub fn run(&self, stop: Stop) -> io::Result<()> {
        self.resume(libc::PTRACE_CONT, stop)
    }

    /// Lets go of it: it runs, or stays stopped where a signal has stopped the whole process. Possible at a stop only.
    ///
    /// # Errors
    ///
    /// As of [`run_to_syscall`](Self::run_to_syscall).
    pub fn detach(&self, stop: Stop) -> io::Result<()> {
        if matches!(stop, Stop::Ended(_)) {
            return Ok(());
        }
        unless_gone(self.request(libc::PTRACE_DETACH, 0, stop.signal().unsigned_abs() as usize))
    }

    /// Asks a running process to stop. Another stop may come first.
    ///
    /// # Errors
    ///
    /// As of [`run_to_syscall`](Self::run_to_syscall).
    pub fn interrupt(&self) -> io::Result<()> {
        unless_gone(self.request(libc::PTRACE_INTERRUPT, 0, 0))
    }

    /// At which system call the process is stopped; `None` if it was killed meanwhile.
    ///
    /// # Errors
    ///
    /// `EIO` or `EINVAL` before Linux 5.3.
    pub fn syscall_info(&self) -> io::Result<Option<SyscallInfo>> {
        let mut raw = RawSyscallInfo::default();
        let address = (&raw mut raw).expose_provenance();
        match self.request(libc::PTRACE_GET_SYSCALL_INFO, size_of::<RawSyscallInfo>(), address) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
            Err(error) => return Err(error),
        }
        let [number, ref arguments @ .., _] = raw.words;
        let phase = match raw.phase {
            SYSCALL_INFO_ENTRY => SyscallPhase::Entry { number, arguments: *arguments },
            SYSCALL_INFO_EXIT => SyscallPhase::Exit(number.cast_signed()),
            _ => SyscallPhase::None,
        };
        Ok(Some(SyscallInfo { arch: raw.arch, instruction: raw.instruction, phase }))
    }

    fn resume(&self, how: libc::c_uint, stop: Stop) -> io::Result<()> {
        match stop {
            Stop::Ended(_) => Ok(()),
            // Only this leaves the process stopped, and tells when it is continued.
            Stop::GroupStop => unless_gone(self.request(libc::PTRACE_LISTEN, 0, 0)),
            _ => unless_gone(self.request(how, 0, stop.signal().unsigned_abs() as usize)),
        }
    }

    /// `data` is a number, or the address of what the kernel writes to.
    fn request(&self, request: libc::c_uint, address: usize, data: usize) -> io::Result<()> {
        let pid = libc::pid_t::try_from(self.pid.0).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
        // SAFETY: the kernel writes memory for `PTRACE_GET_SYSCALL_INFO` alone, of which `address` is the size and `data`
        // the address of a `RawSyscallInfo` that lives longer than the call. Nothing is written to the process's memory.
        let result = unsafe { libc::ptrace(request, pid, address, data) };
        if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// The end of a child that is not traced, if it has ended: it is reaped, so this tells it once.
///
/// # Errors
///
/// `ECHILD` if it is no child, or was reaped before.
pub fn try_reap(pid: Pid) -> io::Result<Option<ExitStatus>> {
    Ok(reap(pid)?.and_then(|stop| match stop {
        Stop::Ended(status) => Some(status),
        _ => None,
    }))
}

/// What has become of a process that is traced or a child, if there is news. Does not wait for any.
fn reap(pid: Pid) -> io::Result<Option<Stop>> {
    let pid = pid::raw(pid).ok_or_else(|| io::Error::from_raw_os_error(libc::ECHILD))?;
    let news = rustix::io::retry_on_intr(|| waitpid(Some(pid), WaitOptions::NOHANG))?;
    Ok(news.map(|(_, status)| Stop::from_status(status.as_raw())))
}

fn unless_gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        result => result,
    }
}

/// Waits between two questions: not at all at first, then longer and longer.
#[derive(Debug)]
pub(super) struct Pause {
    round: u32,
    deadline: Instant,
}

impl Pause {
    pub(super) fn new(limit: Duration) -> Self {
        Self { round: 0, deadline: Instant::now() + limit }
    }

    /// False when the time is over.
    pub(super) fn wait(&mut self) -> bool {
        self.round = self.round.saturating_add(1);
        match self.round {
            0..200 => std::thread::yield_now(),
            200..300 => std::thread::sleep(Duration::from_micros(50)),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
        Instant::now() < self.deadline
    }
}

/// `struct ptrace_syscall_info` with the longest member of its union
/// (<https://github.com/torvalds/linux/blob/v5.15/include/uapi/linux/ptrace.h#L78-L103>).
#[derive(Default)]
#[repr(C)]
struct RawSyscallInfo {
    phase: u8,
    padding: [u8; 3],
    arch: u32,
    instruction: u64,
    stack: u64,
    words: [u64; 8],
}

const _: () = assert!(size_of::<RawSyscallInfo>() == 88);

/// `PTRACE_SYSCALL_INFO_ENTRY` and `PTRACE_SYSCALL_INFO_EXIT`.
const SYSCALL_INFO_ENTRY: u8 = 1;
const SYSCALL_INFO_EXIT: u8 = 2;

/// `PTRACE_EVENT_STOP`.
const EVENT_STOP: i32 = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_statuses_become_stops() {
        let ended = |status| Stop::Ended(ExitStatus::from_raw(status));
        for (status, stop) in [
            (7 << 8, ended(7 << 8)),
            (9, ended(9)),
            (0x057f | (4 << 16), Stop::Exec),
            (0x857f, Stop::Syscall),
            (0x057f, Stop::Signal(libc::SIGTRAP)),
            (0x7f | (40 << 8), Stop::Signal(40)),
            (0x7f | (libc::SIGTSTP << 8) | (128 << 16), Stop::GroupStop),
            (0x057f | (128 << 16), Stop::Trap),
        ] {
            assert_eq!(Stop::from_status(status), stop, "{status:#x}");
        }
    }

    #[test]
    fn a_process_that_is_no_child_cannot_be_reaped() {
        assert_eq!(try_reap(Pid(1)).expect_err("no child").raw_os_error(), Some(libc::ECHILD));
    }
}
