//! A stopped process, and errors while it is inspected.

use std::fmt::Debug;
use std::io;
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::{Pid, Tid};
use heapbpf_base::memory::Span;
use heapbpf_linux::arch::{self, FRAME_POINTER_INDEX, RED_ZONE_BYTES};
use heapbpf_linux::proc::ProcError;
use heapbpf_linux::proc::maps::Region;
use heapbpf_linux::ptrace::{Stop, Tracee};
use heapbpf_linux::signals;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadState {
    pub tid: Tid,
    pub registers: Vec<u64>,
    pub instruction: TargetAddr,
    /// Lowest used address of the thread's stack.
    pub stack_pointer: TargetAddr,
    /// Thread pointer, next to the thread's control block and its thread-local storage (`fs_base`, `TPIDR_EL0`).
    pub thread_pointer: TargetAddr,
    /// Whether the thread waits in a system call, or was stopped at the return from one.
    pub in_syscall: bool,
    /// Wait status of the process, if the thread is held at the exit of the process.
    pub exit_status: Option<i32>,
}

impl ThreadState {
    pub(crate) fn frame_pointer(&self) -> Option<u64> {
        self.registers.get(FRAME_POINTER_INDEX).copied()
    }

    /// The part of the thread's static thread-local storage that is nearest to its control block.
    pub(crate) fn storage(&self, size_bytes: u64) -> Span {
        let range = arch::storage(self.thread_pointer.0, size_bytes);
        TargetAddr(range.start)..TargetAddr(range.end)
    }

    /// Address of a word of the thread's static thread-local storage. The word nearest to its control block is 1.
    pub(crate) fn storage_word(&self, nth: u64) -> Option<TargetAddr> {
        arch::storage_word(self.thread_pointer.0, nth).map(TargetAddr)
    }

    /// Lowest address of the thread's stack that code may use without moving the stack pointer.
    pub(crate) fn stack_start(&self) -> TargetAddr {
        TargetAddr(self.stack_pointer.0.saturating_sub(RED_ZONE_BYTES))
    }

    /// Name of the signal that kills the process.
    pub(crate) fn fatal_signal(&self) -> Option<String> {
        self.exit_status.map(|status| status & 0x7f).filter(|number| *number != 0).map(signals::name)
    }
}

/// Limit of the time for which a process is stopped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StopLimit {
    limit: Duration,
    begun: Instant,
}

impl StopLimit {
    pub(crate) fn begin(limit: Duration) -> Self {
        Self { limit, begun: Instant::now() }
    }

    pub(crate) fn check(&self, pid: Pid) -> Result<(), CollectError> {
        if self.begun.elapsed() < self.limit { Ok(()) } else { Err(CollectError::StoppedForLong(pid, self.limit)) }
    }
}

#[derive(Debug)]
pub(crate) struct StoppedThread {
    pub tracee: Tracee,
    pub stop: Stop,
    pub release: Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// The thread is detached, as if nothing had happened.
    Detach,
    /// The thread was held before, and its holder resumes it.
    Keep,
}

/// A stopped process, whose tracing thread may belong to the keeper. Dropping it resumes the process.
pub(crate) trait StoppedProcess {
    fn living_thread(&self) -> Pid;

    fn limit(&self) -> Option<StopLimit> {
        None
    }

    fn states(&self) -> Result<Vec<ThreadState>, CollectError>;

    fn fork(&mut self, mapped: &[Region]) -> Result<Box<dyn ProcessCopy>, CollectError>;

    /// Resumes the process. Fails when the tracing thread has exited, at which the kernel resumes the process.
    fn release(self: Box<Self>) -> Result<Duration, CollectError>;
}

/// A copy of a process that does not run. Dropping it ends the copy.
pub(crate) trait ProcessCopy: Debug + Send + Sync {
    fn pid(&self) -> Pid;

    fn has_ended(&self) -> bool;
}

/// Reason why a process could not be inspected. The process continues to run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CollectError {
    #[error(
        "process `{0}` exited during the inspection; start it with `heapbpf leaks -- COMMAND` to have it checked at its exit"
    )]
    Ended(Pid),
    #[error("process `{0}` is a kernel thread and has no heap; `ps -e` lists running processes")]
    Kernel(Pid),
    #[error(
        "`/proc` belongs to another PID namespace than heapbpf, in which process `{0}` is a different one; mount it again (`mount -t proc proc /proc`), or run heapbpf on the host"
    )]
    Elsewhere(Pid),
    #[error("the inspection of process `{0}` was interrupted because heapbpf exits; the process continues to run")]
    Interrupted(Pid),
    #[error("process `{0}` is heapbpf itself, which cannot stop itself; give another to `--pid`")]
    Itself(Pid),
    #[error("thread `{}` of process `{pid}` is already traced by `{}` (thread `{}`), and a thread can have only one tracer; detach or end that one first", tid.0, name.escape_debug(), tracer.0)]
    Traced { pid: Pid, tid: Tid, tracer: Tid, name: String },
    #[error(
        "stopping process `{0}` is not permitted: it belongs to another user or is protected; run as root or with CAP_SYS_PTRACE (see `sysctl kernel.yama.ptrace_scope`)"
    )]
    NotPermitted(Pid),
    #[error(
        "reading `/proc/{0}/pagemap` is not permitted: it belongs to another user; run as root, or with CAP_DAC_READ_SEARCH beside CAP_SYS_PTRACE"
    )]
    PagemapNotPermitted(Pid),
    #[error("thread `{}` of process `{pid}` (state `{state}`) did not stop within {seconds} s; it may wait for a device or in vfork (`cat /proc/{pid}/task/{}/stack`); try again later", tid.0, tid.0)]
    Stuck { pid: Pid, tid: Tid, state: char, seconds: u64 },
    #[error("process `{pid}` still created threads after {seconds} s; try again when it is less busy")]
    StillForking { pid: Pid, seconds: u64 },
    #[error("process `{0}` was stopped for {1:?} and continues to run: there was no time left to inspect it")]
    StoppedForLong(Pid, Duration),
    #[error(
        "thread `{}` of process `{pid}` cannot be stopped now: it waits for a child of `vfork` or for a device, or its control group is frozen", tid.0
    )]
    Waiting { pid: Pid, tid: Tid },
    #[error(
        "heapbpf was suspended (by SIGSTOP) while process `{0}` was stopped, which was resumed therefore; try again, and do not suspend heapbpf"
    )]
    Suspended(Pid),
    #[error("process `{0}` runs 32-bit code; only 64-bit programs can be checked")]
    Is32Bit(Pid),
    #[error(
        "copying process `{pid}` requires {}, but only {} of the free memory may be used on this machine and in heapbpf's control group; use `--snapshot fork`, which copies only what changes", ByteSize(*needed_bytes).display().iec(), ByteSize(*allowed_bytes).display().iec()
    )]
    TooLarge { pid: Pid, needed_bytes: u64, allowed_bytes: u64 },
    #[error(transparent)]
    Fork(#[from] ForkError),
    #[error(transparent)]
    Proc(#[from] ProcError),
    #[error(
        "the copy of process `{0}` was killed before it was read completely: out of memory (`dmesg`), or somebody killed it or the keeper process; try again, or use `--snapshot read`"
    )]
    CopyKilled(Pid),
    #[error("{0}")]
    Keeper(String),
    #[error("cannot {what} process `{pid}`: {source}; `heapbpf doctor` reports what this system allows")]
    Refused { pid: Pid, what: &'static str, source: io::Error },
}

impl CollectError {
    /// Whether addresses that were free are occupied now, perhaps by the process itself.
    pub(crate) fn is_occupied(&self) -> bool {
        matches!(self, Self::Fork(ForkError::Trace(_, error)) if error.kind() == io::ErrorKind::AlreadyExists)
    }

    /// Converts the error to a reason why a process keeps the trap engine: nothing was to be inspected.
    pub(crate) fn of_engine(self) -> Self {
        let reason = match self {
            Self::Ended(pid) => format!("process `{pid}` exited"),
            Self::Interrupted(_) => "heapbpf exits".to_owned(),
            Self::Is32Bit(pid) => format!("process `{pid}` runs 32-bit code; stubs are for 64-bit programs"),
            Self::StoppedForLong(pid, limit) => {
                format!(
                    "a thread of process `{pid}` did not stop within {limit:?}: it waits for a child of `vfork`, or for a device"
                )
            }
            Self::Itself(pid) => format!("process `{pid}` is heapbpf itself, which cannot stop itself"),
            Self::Fork(error) => error.of_engine(),
            other => return other,
        };
        Self::Keeper(reason)
    }

    pub(crate) fn refused(pid: Pid, what: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| match source.raw_os_error() {
            Some(libc::ESRCH) => Self::Ended(pid),
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted(pid),
            _ => Self::Refused { pid, what, source },
        }
    }
}

/// Reason why a process could not be copied by a fork. The process is unchanged.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ForkError {
    #[error(
        "process `{0}` cannot be made to fork now: none of its threads is in a state that allows it (the process is stopped, exits, or runs in 32-bit mode); use `--snapshot read`"
    )]
    NoThread(Pid),
    #[error(
        "process `{0}` cannot be made to make system calls now: none of its threads waits on a stack that is known to have unused space; use `--snapshot read`"
    )]
    NoStack(Pid),
    #[error("process `{0}` cannot be made to fork: {1}; use `--snapshot read`")]
    Impossible(Pid, &'static str),
    #[error(
        "process `{0}` cannot be made to fork: {1}; it may be at a limit of processes or memory (`pids.max`, `ulimit -u`, `vm.overcommit_memory`); use `--snapshot read`"
    )]
    Refused(Pid, io::Error),
    #[error("cannot make process `{0}` fork: {1}; use `--snapshot read`")]
    Trace(Pid, io::Error),
    #[error(
        "process `{0}` exited while it was copied; start it with `heapbpf leaks -- COMMAND` to have it checked at its exit"
    )]
    Ended(Pid),
    #[error(transparent)]
    Proc(#[from] ProcError),
}

impl ForkError {
    /// Converts the error to a reason why a process keeps the trap engine: nothing was to be forked.
    fn of_engine(&self) -> String {
        let reason = match self {
            Self::NoThread(_) => {
                "none is in a state that allows it (it is stopped, exits, or runs in 32-bit mode)".to_owned()
            }
            Self::NoStack(_) => "none waits on a stack that is known to have unused space".to_owned(),
            Self::Impossible(_, reason) => (*reason).to_owned(),
            Self::Refused(_, error) | Self::Trace(_, error) => error.to_string(),
            Self::Ended(pid) => return format!("process `{pid}` exited"),
            Self::Proc(error) => return error.to_string(),
        };
        format!("its threads cannot be made to map stubs: {reason}")
    }
}
