//! A thread that is traced (`ptrace(2)`): stopped at system calls, execs and its end, asked for its registers, and let run
//! again. What a stop means is the caller's to say.
//!
//! `libc` is called itself: the safe wrapper crates know no real-time signals, which a program may be sent as it starts,
//! and have no `PTRACE_LISTEN`.

#![expect(unsafe_code, reason = "rustix has no ptrace")]

use std::io;
use std::marker::PhantomData;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::process::{Signal, WaitOptions, kill_process, waitpid};

use super::pid;
use crate::ids::{Pid, Tid};

mod registers;
mod syscall;

pub(crate) use registers::Registers;
pub(crate) use syscall::SyscallPhase;

/// Why a traced process does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It is about to make a system call, or has made one: [`Tracee::syscall_info`] tells.
    Syscall,
    /// It has called exec: nothing of the new program has run.
    Exec,
    /// A signal has come and is delivered only if it is handed back.
    Signal(i32),
    /// A signal has stopped the whole process, as Ctrl-Z does.
    GroupStop,
    /// It was asked to stop, or SIGCONT has ended a group stop; or it is new, and has run nothing yet.
    Trap,
    /// It has made a thread, which is traced too and stops before it runs anything:
    /// [`event_message`](Tracee::event_message) is its number.
    Clone,
    /// It has made a process, by fork or vfork, as of [`Clone`](Self::Clone).
    Fork,
    /// It is about to end, and everything of it is there still: [`event_message`](Tracee::event_message) is its status.
    Exiting,
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
            libc::PTRACE_EVENT_CLONE => Self::Clone,
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => Self::Fork,
            libc::PTRACE_EVENT_EXIT => Self::Exiting,
            EVENT_STOP if signal == libc::SIGTRAP => Self::Trap,
            EVENT_STOP => Self::GroupStop,
            0 if signal == libc::SIGTRAP | 0x80 => Self::Syscall,
            0 => Self::Signal(signal),
            _ => Self::Trap,
        }
    }
}

/// At which stops a thread is held, and what becomes of it when its tracer ends. At execs it always is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options(libc::c_int);

impl Options {
    /// Threads that it makes are traced with the same options: [`Stop::Clone`]. A process is meant too that it makes by
    /// `clone` without a signal of its end, and so are those of [`FORKS`](Self::FORKS).
    pub(crate) const THREADS: Self = Self(libc::PTRACE_O_TRACECLONE);
    /// [`Stop::Exiting`].
    pub(crate) const EXIT: Self = Self(libc::PTRACE_O_TRACEEXIT);
    /// It is killed when its tracer ends.
    pub(crate) const KILLED: Self = Self(libc::PTRACE_O_EXITKILL);

    /// These and those.
    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn raw(self) -> usize {
        (self.0 | libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_TRACESYSGOOD) as usize
    }
}

/// A traced thread; a process, where it has one. The kernel lets only the thread that took hold of it ask anything, so this
/// cannot be sent to another.
///
/// A thread that is killed while it is stopped is no longer there to be asked or let run; then requests succeed and do
/// nothing, and [`wait`](Self::wait) tells its end. When the tracing thread ends, whatever the reason, the kernel lets go of
/// all that it holds, which runs on. A clone is the same thread, held once.
#[derive(Clone, Debug)]
pub(crate) struct Tracee {
    pid: Pid,
    of_this_thread: PhantomData<*const ()>,
}

impl Tracee {
    /// Takes hold of a process with one thread, without stopping it; of others, of the first thread. It stops from now on
    /// when it calls exec and when a signal comes.
    ///
    /// # Errors
    ///
    /// `EPERM` where tracing is forbidden, or another tracer has it, or it has ended and was not waited for; `ESRCH` where
    /// there is none; `ENOSYS` and others where a filter says so.
    pub(crate) fn seize(pid: Pid) -> io::Result<Self> {
        Self::seize_thread(Tid(pid.0), Options::default())
    }

    /// Takes hold of any thread, without stopping it.
    pub(crate) fn seize_thread(tid: Tid, options: Options) -> io::Result<Self> {
        let tracee = Self::of(tid);
        tracee.request(libc::PTRACE_SEIZE, 0, options.raw())?;
        Ok(tracee)
    }

    /// A thread of which the kernel took hold for this one, because what made it is traced: of a [`Stop::Clone`] or
    /// [`Stop::Fork`].
    pub(crate) fn of(tid: Tid) -> Self {
        Self { pid: Pid(tid.0), of_this_thread: PhantomData }
    }

    /// Its number as that of a process, which it is for the first thread of one.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Its number.
    pub(crate) fn tid(&self) -> Tid {
        Tid(self.pid.0)
    }

    /// Kills a process. Its end comes as any stop.
    pub(crate) fn kill(&self) -> io::Result<()> {
        match pid::raw(self.pid).map(|pid| kill_process(pid, Signal::KILL)) {
            None | Some(Ok(()) | Err(rustix::io::Errno::SRCH)) => Ok(()),
            // One that may be traced can be killed this way.
            Some(Err(_)) => unless_gone(self.request(libc::PTRACE_KILL, 0, 0)),
        }
    }

    /// At which stops it is held from now on. Possible at a stop only.
    pub(crate) fn set_options(&self, options: Options) -> io::Result<()> {
        unless_gone(self.request(libc::PTRACE_SETOPTIONS, 0, options.raw()))
    }

    /// What belongs to a stop: the number of a new thread or process, the status of one that ends, the former number of the
    /// thread that called exec. `None` if it was killed meanwhile.
    ///
    /// # Errors
    ///
    /// `EINVAL` at stops without.
    pub(crate) fn event_message(&self) -> io::Result<Option<u64>> {
        let mut message: libc::c_ulong = 0;
        let address = (&raw mut message).expose_provenance();
        Ok(self.ask(libc::PTRACE_GETEVENTMSG, 0, address)?.then_some(message))
    }

    /// The next stop, once it comes; `None` if none does in time.
    ///
    /// `waitpid` has no time limit, and the signal that announces a stop may go to any thread: so this asks again and
    /// again, at first without a pause, because a stop at a system call is microseconds away.
    ///
    /// # Errors
    ///
    /// `ECHILD` if the process was reaped elsewhere.
    pub(crate) fn wait(&self, limit: Duration) -> io::Result<Option<Stop>> {
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
    pub(crate) fn stopped(&self) -> io::Result<Option<Stop>> {
        reap(self.pid)
    }

    /// Lets it run to its next system call. What made it stop is handed back: a signal is delivered.
    ///
    /// # Errors
    ///
    /// `ESRCH` never, see [`Tracee`]; others should not happen.
    pub(crate) fn run_to_syscall(&self, stop: Stop) -> io::Result<()> {
        self.resume(libc::PTRACE_SYSCALL, stop)
    }

    /// Lets it run to its next exec or signal.
    pub(crate) fn run(&self, stop: Stop) -> io::Result<()> {
        self.resume(libc::PTRACE_CONT, stop)
    }

    /// Lets go of it: it runs, or stays stopped where a signal has stopped the whole process. Possible at a stop only.
    pub(crate) fn detach(&self, stop: Stop) -> io::Result<()> {
        if matches!(stop, Stop::Ended(_)) {
            return Ok(());
        }
        unless_gone(self.request(libc::PTRACE_DETACH, 0, stop.signal().unsigned_abs() as usize))
    }

    /// Asks a running process to stop. Another stop may come first.
    pub(crate) fn interrupt(&self) -> io::Result<()> {
        unless_gone(self.request(libc::PTRACE_INTERRUPT, 0, 0))
    }

    fn resume(&self, how: libc::c_uint, stop: Stop) -> io::Result<()> {
        match stop {
            Stop::Ended(_) => Ok(()),
            // Only this leaves the process stopped, and tells when it is continued.
            Stop::GroupStop => unless_gone(self.request(libc::PTRACE_LISTEN, 0, 0)),
            _ => unless_gone(self.request(how, 0, stop.signal().unsigned_abs() as usize)),
        }
    }

    /// As [`request`](Self::request); false if the thread was killed meanwhile.
    fn ask(&self, request: libc::c_uint, address: usize, data: usize) -> io::Result<bool> {
        match self.request(request, address, data) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// `data` is a number, or the address of what the kernel reads from or writes to.
    fn request(&self, request: libc::c_uint, address: usize, data: usize) -> io::Result<()> {
        let pid = libc::pid_t::try_from(self.pid.0).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
        // SAFETY: where the kernel reads or writes memory of this process, `data` is the address of a value, or of a buffer's
        // description, that lives longer than the call, and of the size that the request or `address` says. No request
        // writes to memory of the traced process.
        let result = unsafe { libc::ptrace(request, pid, address, data) };
        if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// The end of a child that is not traced, if it has ended: it is reaped, so this tells it once.
///
/// # Errors
///
/// `ECHILD` if it is no child, or was reaped before.
pub(crate) fn try_reap(pid: Pid) -> io::Result<Option<ExitStatus>> {
    Ok(reap(pid)?.and_then(|stop| match stop {
        Stop::Ended(status) => Some(status),
        _ => None,
    }))
}

/// What has become of a process that is traced or a child, if there is news. Does not wait for any.
fn reap(pid: Pid) -> io::Result<Option<Stop>> {
    let pid = pid::raw(pid).ok_or_else(|| io::Error::from_raw_os_error(libc::ECHILD))?;
    // Without `__WALL`, threads are not told of, nor processes whose end makes no SIGCHLD.
    let options = WaitOptions::NOHANG | WaitOptions::from_bits_retain(libc::__WALL.unsigned_abs());
    let news = rustix::io::retry_on_intr(|| waitpid(Some(pid), options))?;
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
pub(crate) struct Pause {
    round: u32,
    deadline: Instant,
}

impl Pause {
    /// For no longer than this.
    pub(crate) fn new(limit: Duration) -> Self {
        Self { round: 0, deadline: Instant::now() + limit }
    }

    /// False when the time is over.
    pub(crate) fn wait(&mut self) -> bool {
        self.round = self.round.saturating_add(1);
        match self.round {
            0..200 => std::thread::yield_now(),
            200..300 => std::thread::sleep(Duration::from_micros(50)),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
        Instant::now() < self.deadline
    }
}

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
            (0x057f | (3 << 16), Stop::Clone),
            (0x057f | (1 << 16), Stop::Fork),
            (0x057f | (2 << 16), Stop::Fork),
            (0x057f | (6 << 16), Stop::Exiting),
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
