//! Why a process could not be collected.

use std::io;

use bytesize::ByteSize;

use crate::ids::{Pid, Tid};
use crate::linux::proc::ProcError;

/// Why a process could not be collected. It runs on as if nothing had been.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CollectError {
    /// It ended before all was read.
    #[error(
        "process `{0}` ended while it was being looked at; start it with `heapbpf leaks -- COMMAND` to have it checked at its exit"
    )]
    Ended(Pid),
    /// It is a part of the kernel.
    #[error("process `{0}` is a thread of the kernel and has no heap; `ps -e` lists what runs")]
    Kernel(Pid),
    /// `/proc` tells of others.
    #[error(
        "the processes in `/proc` are not those of the PID namespace that heapbpf runs in, so that another than process `{0}` would be stopped; mount it anew (`mount -t proc proc /proc`), or run heapbpf on the host"
    )]
    Elsewhere(Pid),
    /// The agent has exited.
    #[error("looking at process `{0}` was broken off, because heapbpf is to end; it runs on")]
    Interrupted(Pid),
    /// It is heapbpf.
    #[error("process `{0}` is heapbpf itself, which cannot stop itself; give another to `--pid`")]
    Itself(Pid),
    /// A debugger has it.
    #[error("thread `{}` of process `{pid}` is traced already, by `{}` (thread `{}`), and has no second tracer; detach or end that one first", tid.0, name.escape_debug(), tracer.0)]
    Traced {
        /// The process.
        pid: Pid,
        /// Its thread.
        tid: Tid,
        /// Who traces it.
        tracer: Tid,
        /// What that one is called.
        name: String,
    },
    /// The kernel refuses.
    #[error(
        "stopping process `{0}` is not permitted: it is somebody else's, or protected; run as root or with CAP_SYS_PTRACE (`sysctl kernel.yama.ptrace_scope` says what is permitted without)"
    )]
    NotPermitted(Pid),
    /// Its owner alone may read which of its memory is in use.
    #[error(
        "reading `/proc/{0}/pagemap` is not permitted: it belongs to another user; run as root, or with CAP_DAC_READ_SEARCH beside CAP_SYS_PTRACE"
    )]
    PagemapNotPermitted(Pid),
    /// A thread does not stop.
    #[error("thread `{}` of process `{pid}` (state `{state}`) did not stop within {seconds} s, as one that waits for a device or in vfork; `cat /proc/{pid}/task/{}/stack` says where it waits; try again later", tid.0, tid.0)]
    Stuck {
        /// The process.
        pid: Pid,
        /// The thread.
        tid: Tid,
        /// As in `/proc/PID/stat`.
        state: char,
        /// How long was waited.
        seconds: u64,
    },
    /// It makes threads faster than they can be stopped.
    #[error("process `{pid}` still made new threads after {seconds} s; try again when it does less")]
    Restless {
        /// The process.
        pid: Pid,
        /// How long was tried.
        seconds: u64,
    },
    /// It is a program of 32 bits.
    #[error("process `{0}` runs 32-bit code, which is not understood; only 64-bit programs can be checked")]
    Narrow(Pid),
    /// The copy does not fit into memory.
    #[error(
        "process `{pid}` holds {} that would have to be copied, and {} is what may be taken of the memory that is free, on this machine and in heapbpf's control group; use `--snapshot fork`, which copies only what changes", ByteSize(*needed_bytes).display().iec(), ByteSize(*allowed_bytes).display().iec()
    )]
    TooLarge {
        /// The process.
        pid: Pid,
        /// What it has.
        needed_bytes: u64,
        /// What may be copied.
        allowed_bytes: u64,
    },
    /// No copy of it can be made.
    #[error(transparent)]
    Fork(#[from] super::fork::ForkError),
    /// What `/proc` tells of it cannot be read.
    #[error(transparent)]
    Proc(#[from] ProcError),
    /// Its copy was killed.
    #[error(
        "the copy of process `{0}` was killed before it was read whole: memory ran out (`dmesg`), or somebody ended it or the keeper process; try again, or use `--snapshot read`"
    )]
    CopyKilled(Pid),
    /// The keeper's reason: the text of one of these.
    #[error("{0}")]
    Keeper(String),
    /// The kernel refuses what it should not.
    #[error("cannot {what} process `{pid}`: {source}; `heapbpf doctor` says what this system allows")]
    Refused {
        /// The process.
        pid: Pid,
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl CollectError {
    /// What the kernel said when this was tried.
    pub(super) fn refused(pid: Pid, what: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| match source.raw_os_error() {
            Some(libc::ESRCH) => Self::Ended(pid),
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted(pid),
            _ => Self::Refused { pid, what, source },
        }
    }
}
