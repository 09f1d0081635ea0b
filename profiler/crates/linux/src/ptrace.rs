//! Traced threads (`ptrace(2)`). Calls `libc`: the safe wrapper crates have neither real-time signals, which a program
//! may receive as it starts, nor `PTRACE_LISTEN`.

#![expect(unsafe_code, reason = "rustix has no ptrace")]

use std::cell::Cell;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::rc::Rc;
use std::time::{Duration, Instant};

use heapbpf_base::ids::{Pid, Tid};
use rustix::process::{Signal, WaitOptions, kill_process, waitpid};

use crate::arch::{self, Registers};
use crate::pidfd::raw_pid;
use crate::process_memory;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    Syscall,
    /// The thread has called exec. No instruction of the new program has run.
    Exec,
    /// A signal has arrived, and is delivered only if it is passed on when the thread resumes.
    Signal(i32),
    /// A signal has stopped the whole process, as Ctrl-Z does (group-stop).
    Group,
    /// The cause is `PTRACE_INTERRUPT`, SIGCONT ending a group-stop, or a new thread that has run nothing yet.
    Trap,
    /// The thread has created another thread, which stops before its first instruction; [`event_message`](Tracee::event_message)
    /// is its TID.
    Clone,
    /// The thread has created a process by fork or vfork; otherwise like [`Clone`](Self::Clone).
    Fork,
    /// The thread is about to exit; its memory still exists. [`event_message`](Tracee::event_message) is the wait status.
    Exiting,
    /// The thread has exited and is reaped.
    Ended(ExitStatus),
}

impl Stop {
    /// Returns the signal to pass on when the thread resumes; 0 for none.
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
            EVENT_STOP => Self::Group,
            0 if signal == libc::SIGTRAP | 0x80 => Self::Syscall,
            0 => Self::Signal(signal),
            _ => Self::Trap,
        }
    }
}

/// Ptrace options: additional stops, and what happens to the thread when its tracer exits. Execs always stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options(libc::c_int);

impl Options {
    /// Traces created threads with the same options, and processes that `clone` creates without a termination signal.
    pub const THREADS: Self = Self(libc::PTRACE_O_TRACECLONE);
    pub const EXIT: Self = Self(libc::PTRACE_O_TRACEEXIT);
    pub const KILLED: Self = Self(libc::PTRACE_O_EXITKILL);

    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn raw(self) -> usize {
        (self.0 | libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_TRACESYSGOOD) as usize
    }
}

/// A traced thread. Not `Send`: the kernel accepts requests from the tracing thread alone, and detaches when that exits. Requests
/// about a thread that is killed while it is stopped succeed without effect, and [`wait`](Self::wait) returns its exit.
#[derive(Clone, Debug)]
pub struct Tracee {
    pid: Pid,
    /// The system call in which the thread waited before the last request of a stop.
    waiting: Rc<Cell<Option<arch::WaitingCall>>>,
}

impl Tracee {
    /// Attaches to the first thread of a process without stopping it. Errors: `EPERM` where tracing is forbidden,
    /// another tracer is attached, or it is a zombie; `ESRCH`; `ENOSYS` and others under a seccomp filter.
    pub fn seize(pid: Pid) -> io::Result<Self> {
        Self::seize_thread(Tid(pid.0), Options::default())
    }

    pub fn seize_thread(tid: Tid, options: Options) -> io::Result<Self> {
        let tracee = Self::of(tid);
        tracee.request(libc::PTRACE_SEIZE, 0, options.raw())?;
        Ok(tracee)
    }

    /// A thread that the kernel attached automatically because its creator is traced: [`Stop::Clone`], [`Stop::Fork`].
    pub fn of(tid: Tid) -> Self {
        Self { pid: Pid(tid.0), waiting: Rc::default() }
    }

    /// TID of the thread as a PID, which it is for the first thread of a process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    pub fn tid(&self) -> Tid {
        Tid(self.pid.0)
    }
    pub fn waiting(&self) -> Option<arch::WaitingCall> {
        self.waiting.get()
    }

    /// Kills the process. Its exit arrives as a stop.
    pub fn kill(&self) -> io::Result<()> {
        match raw_pid(self.pid).map(|pid| kill_process(pid, Signal::KILL)) {
            None | Some(Ok(()) | Err(rustix::io::Errno::SRCH)) => Ok(()),
            // Killing a process of another user requires only the permission to trace it.
            Some(Err(_)) => unless_gone(self.request(libc::PTRACE_KILL, 0, 0)),
        }
    }

    /// Sends SIGCONT: ends the group-stop of the process, and discards stop signals that are pending (`prepare_signal` in
    /// kernel/signal.c). A held thread stays held.
    pub fn end_group_stop(&self) -> io::Result<()> {
        match raw_pid(self.pid).map(|pid| kill_process(pid, Signal::CONT)) {
            None | Some(Ok(()) | Err(rustix::io::Errno::SRCH)) => Ok(()),
            Some(Err(error)) => Err(error.into()),
        }
    }

    /// Changes the options. Requires that the thread is stopped.
    pub fn set_options(&self, options: Options) -> io::Result<()> {
        unless_gone(self.request(libc::PTRACE_SETOPTIONS, 0, options.raw()))
    }

    /// Value that belongs to the stop: PID or TID of what was created, wait status of an exit, former TID of the thread
    /// that called exec. `None` if the thread was killed meanwhile. Errors: `EINVAL` at stops without a value.
    pub fn event_message(&self) -> io::Result<Option<u64>> {
        let mut message: libc::c_ulong = 0;
        let address = (&raw mut message).expose_provenance();
        Ok(self.ask(libc::PTRACE_GETEVENTMSG, 0, address)?.then_some(message))
    }

    /// Waits for a stop; `None` after the limit. Polls, because `waitpid` has no limit and any thread may receive SIGCHLD; first
    /// without a pause, because a system call is microseconds away. Errors: `ECHILD` if another caller has reaped the process.
    pub fn wait(&self, limit: Duration) -> io::Result<Option<Stop>> {
        let mut pause = Pause::new(limit);
        loop {
            let stop = self.stopped()?;
            if stop.is_some() {
                return Ok(stop);
            }
            if !pause.wait() {
                // On a busy machine the pause may have been long, and the stop has occurred meanwhile.
                return self.stopped();
            }
        }
    }

    pub fn stopped(&self) -> io::Result<Option<Stop>> {
        reap(self.pid)
    }

    pub fn run_to_syscall(&self, stop: Stop) -> io::Result<()> {
        self.resume(libc::PTRACE_SYSCALL, stop)
    }

    pub fn run(&self, stop: Stop) -> io::Result<()> {
        self.resume(libc::PTRACE_CONT, stop)
    }

    /// Detaches: the thread runs, or stays in a group-stop. Requires that it is stopped.
    pub fn detach(&self, stop: Stop) -> io::Result<()> {
        if matches!(stop, Stop::Ended(_)) {
            return Ok(());
        }
        unless_gone(self.request(libc::PTRACE_DETACH, 0, stop.signal().unsigned_abs() as usize))
    }

    /// Restarts a system call that failed because of a [`Stop::Trap`].
    pub fn restart_syscall(&self, stop: Stop) -> io::Result<()> {
        if stop == Stop::Trap
            && let Ok(Some(registers)) = self.registers()
            && let Some(restarted) = registers.with_syscall_restarted(self)
        {
            self.set_registers(&restarted)?;
        }
        Ok(())
    }

    /// Requests a stop. Another stop may occur first.
    pub fn interrupt(&self) -> io::Result<()> {
        self.waiting.set(arch::waiting_call(self.pid));
        unless_gone(self.request(libc::PTRACE_INTERRUPT, 0, 0))
    }

    fn resume(&self, how: libc::c_uint, stop: Stop) -> io::Result<()> {
        match stop {
            Stop::Ended(_) => Ok(()),
            // `PTRACE_LISTEN` alone keeps the process in its group-stop and reports when it continues.
            Stop::Group => unless_gone(self.request(libc::PTRACE_LISTEN, 0, 0)),
            _ => unless_gone(self.request(how, 0, stop.signal().unsigned_abs() as usize)),
        }
    }

    /// Like [`request`](Self::request); false if the thread was killed meanwhile.
    fn ask(&self, request: libc::c_uint, address: usize, data: usize) -> io::Result<bool> {
        match self.request(request, address, data) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes a ptrace request. `data` is a number, or the address of memory that the kernel reads or writes.
    fn request(&self, request: libc::c_uint, address: usize, data: usize) -> io::Result<()> {
        let pid = libc::pid_t::try_from(self.pid.0).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
        // SAFETY: where the kernel reads or writes memory of this process, `data` is the address of a value, or of a
        // buffer's description, that outlives the call and has the size that the request or `address` states. No
        // request writes to memory of the traced process.
        let result = unsafe { libc::ptrace(request, pid, address, data) };
        if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Reaps a child that is not traced, if it has exited. Errors: `ECHILD` if it is no child, or was reaped before.
pub fn try_reap(pid: Pid) -> io::Result<Option<ExitStatus>> {
    Ok(reap(pid)?.and_then(|stop| match stop {
        Stop::Ended(status) => Some(status),
        _ => None,
    }))
}

fn reap(pid: Pid) -> io::Result<Option<Stop>> {
    let pid = raw_pid(pid).ok_or_else(|| io::Error::from_raw_os_error(libc::ECHILD))?;
    // Without `__WALL`, threads and processes without a SIGCHLD at exit are not reported.
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

/// Polling interval that grows: no pause at first, then up to 1 ms.
#[derive(Debug)]
pub struct Pause {
    round: u32,
    deadline: Instant,
}

impl Pause {
    pub fn new(limit: Duration) -> Self {
        Self { round: 0, deadline: Instant::now() + limit }
    }

    pub fn wait(&mut self) -> bool {
        self.round = self.round.saturating_add(1);
        match self.round {
            0..200 => std::thread::yield_now(),
            200..300 => std::thread::sleep(Duration::from_micros(50)),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
        Instant::now() < self.deadline
    }
}

const EVENT_STOP: i32 = 128;

impl Tracee {
    /// Reads the registers. `None` if the thread was killed meanwhile. Errors: `EINVAL` for a thread in 32-bit mode.
    pub fn registers(&self) -> io::Result<Option<Registers>> {
        let mut registers = Registers::default();
        let mut base = (&raw mut registers).cast::<libc::c_void>();
        for (which, size_bytes) in arch::REGISTER_SETS {
            let mut buffer = libc::iovec { iov_base: base, iov_len: size_bytes };
            match self.register_set(libc::PTRACE_GETREGSET, which, &mut buffer)? {
                None => return Ok(None),
                Some(bytes) if bytes == size_bytes => base = base.wrapping_byte_add(size_bytes),
                Some(_) => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
            }
        }
        Ok(Some(registers))
    }

    /// Sets the registers in one step: only the first set, which has all registers that a system call changes. Errors: `EIO`
    /// where the kernel refuses a value, such as a segment.
    pub fn set_registers(&self, registers: &Registers) -> io::Result<()> {
        let mut registers = *registers;
        let (which, size_bytes) = arch::REGISTER_SETS[0];
        let mut buffer = libc::iovec { iov_base: (&raw mut registers).cast(), iov_len: size_bytes };
        self.register_set(libc::PTRACE_SETREGSET, which, &mut buffer).map(drop)
    }

    /// The words of a register set, up to a limit; empty if the thread was killed meanwhile. Errors: `EINVAL` and `ENODEV` on
    /// processors without the set.
    pub(super) fn register_words(&self, which: libc::c_int, words_max: usize) -> io::Result<Vec<u64>> {
        let mut words = vec![0_u64; words_max];
        let mut buffer = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: 8 * words_max };
        let filled = self.register_set(libc::PTRACE_GETREGSET, which, &mut buffer)?;
        words.truncate(filled.unwrap_or(0) / 8);
        Ok(words)
    }

    pub fn set_register_set(&self, which: libc::c_int, bytes: &mut [u8]) -> io::Result<()> {
        let mut buffer = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        self.register_set(libc::PTRACE_SETREGSET, which, &mut buffer).map(drop)
    }

    /// Whether the thread waits in a system call, or was stopped at the return from one.
    pub fn is_in_syscall(&self, registers: &Registers) -> bool {
        registers.syscall().is_some() || registers.is_beside_syscall(&|address| self.is_call(address))
    }

    /// Whether there is an instruction at an address that makes a system call.
    pub fn is_call(&self, address: u64) -> bool {
        self.has_code(address, &arch::SYSCALL_INSTRUCTION)
    }

    /// Whether these bytes are at an address.
    fn has_code(&self, address: u64, code: &[u8]) -> bool {
        let mut bytes = vec![0; code.len()];
        process_memory::read(self.pid, &[(address, bytes.len())], &mut bytes).is_ok() && bytes == code
    }

    /// Signal mask of a stopped thread, signal n as bit n − 1; `None` if the thread was killed meanwhile.
    pub fn blocked_signals(&self) -> io::Result<Option<u64>> {
        let mut set = 0_u64;
        let address = (&raw mut set).expose_provenance();
        Ok(self.ask(libc::PTRACE_GETSIGMASK, size_of::<u64>(), address)?.then_some(set))
    }

    /// Sets the signal mask of a stopped thread. The kernel ignores SIGKILL and SIGSTOP.
    pub fn block_signals(&self, set: u64) -> io::Result<()> {
        let mut set = set;
        let address = (&raw mut set).expose_provenance();
        self.ask(libc::PTRACE_SETSIGMASK, size_of::<u64>(), address).map(drop)
    }

    /// Reads or writes a register set. Returns the number of bytes copied; `None` if the thread was killed meanwhile.
    fn register_set(
        &self,
        request: libc::c_uint,
        which: libc::c_int,
        buffer: &mut libc::iovec,
    ) -> io::Result<Option<usize>> {
        let address = std::ptr::from_mut(buffer).expose_provenance();
        Ok(self.ask(request, which.unsigned_abs() as usize, address)?.then_some(buffer.iov_len))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyscallInfo {
    /// `AUDIT_ARCH_*`: the instruction set of the system call and of the process.
    pub arch: u32,
    /// Address after the system call instruction.
    pub instruction: u64,
    pub phase: SyscallPhase,
}

/// Phase of a system call. An exit has the return value; an error is a small negative number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyscallPhase {
    None,
    Entry { number: u64, arguments: [u64; 6] },
    Exit(i64),
}

impl Tracee {
    /// Information about the system call at which the thread is stopped. `None` if the thread was killed meanwhile. Errors: `EIO`
    /// or `EINVAL` before Linux 5.3.
    pub fn syscall_info(&self) -> io::Result<Option<SyscallInfo>> {
        let mut raw = RawSyscallInfo::default();
        let address = (&raw mut raw).expose_provenance();
        if !self.ask(libc::PTRACE_GET_SYSCALL_INFO, size_of::<RawSyscallInfo>(), address)? {
            return Ok(None);
        }
        let [number, ref arguments @ .., _] = raw.words;
        let phase = match raw.phase {
            libc::PTRACE_SYSCALL_INFO_ENTRY => SyscallPhase::Entry { number, arguments: *arguments },
            libc::PTRACE_SYSCALL_INFO_EXIT => SyscallPhase::Exit(number.cast_signed()),
            _ => SyscallPhase::None,
        };
        Ok(Some(SyscallInfo { arch: raw.arch, instruction: raw.instruction, phase }))
    }

    /// Whether syscall user dispatch is on (Linux 5.11); false where the kernel cannot report it (before Linux 6.4).
    pub fn dispatches_syscalls(&self) -> io::Result<bool> {
        let mut raw = [0_u64; 4];
        let reported = self.ask_if_supported(libc::PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, &mut raw)?;
        Ok(reported && raw[0] != 0)
    }

    /// Address of the thread's `struct rseq`; `None` if it has none, or the kernel cannot report it (before Linux 5.13).
    pub fn rseq_area(&self) -> io::Result<Option<u64>> {
        let mut raw = [0_u64; 3];
        let reported = self.ask_if_supported(PTRACE_GET_RSEQ_CONFIGURATION, &mut raw)?;
        Ok(Some(raw[0]).filter(|&area| reported && area != 0))
    }

    /// Reads a structure of words; false where the kernel does not support the request, or the thread is gone.
    fn ask_if_supported<const N: usize>(&self, request: libc::c_uint, words: &mut [u64; N]) -> io::Result<bool> {
        let size_bytes = size_of::<[u64; N]>();
        match self.ask(request, size_bytes, words.as_mut_ptr().expose_provenance()) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL)) => Ok(false),
            result => result,
        }
    }
}

/// Number of a request that `libc` has for some processors only (include/uapi/linux/ptrace.h).
const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;

/// Layout of `struct ptrace_syscall_info`, with the longest member of its union (include/uapi/linux/ptrace.h).
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
            (0x7f | (libc::SIGTSTP << 8) | (128 << 16), Stop::Group),
            (0x057f | (128 << 16), Stop::Trap),
        ] {
            assert_eq!(Stop::from_status(status), stop, "{status:#x}");
        }
    }

    #[test]
    fn a_process_that_is_not_a_child_cannot_be_reaped() {
        assert_eq!(try_reap(Pid(1)).expect_err("no child").raw_os_error(), Some(libc::ECHILD));
    }
}
