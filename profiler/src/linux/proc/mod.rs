//! What `/proc` tells about a process, reduced to what heapbpf needs. Nothing here opens what a process has mapped: that
//! is [`object`](crate::object)'s part.

use std::io;

use crate::ids::Pid;

pub(crate) mod auxv;
pub(crate) mod cgroup_memory;
pub(crate) mod cgroups;
pub(crate) mod executable;
pub(crate) mod kept;
pub(crate) mod limits;
pub(crate) mod maps;
pub(crate) mod process;
pub(crate) mod regions;
pub(crate) mod stat;
pub(crate) mod tasks;

/// Why a file of `/proc/PID` could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ProcError {
    /// There is no such process, or it ended while it was read.
    #[error("no process `{pid}`: it does not exist or has ended; `ps -e` lists what runs")]
    NoSuchProcess {
        /// The process asked for.
        pid: Pid,
    },
    /// The kernel refuses: the process belongs to somebody else, or is protected.
    #[error("cannot read `/proc/{pid}/{entry}`: permission denied; run as root or with CAP_SYS_PTRACE")]
    Permission {
        /// The process asked for.
        pid: Pid,
        /// The entry in its directory.
        entry: &'static str,
    },
    /// Anything else, such as `/proc` not being mounted.
    #[error("cannot read `/proc/{pid}/{entry}`: {source}; see that /proc is mounted with `mount -t proc proc /proc`")]
    Io {
        /// The process asked for.
        pid: Pid,
        /// The entry in its directory.
        entry: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// It has more mappings than are read; `vm.max_map_count` allows 65,530 as it comes.
    #[error(
        "process `{pid}` has more than {max} mappings, which is more than heapbpf reads; see `sysctl vm.max_map_count`"
    )]
    TooManyMappings {
        /// The process asked for.
        pid: Pid,
        /// Most that are read.
        max: usize,
    },
    /// The processes cannot be listed.
    #[error("cannot list `/proc`: {0}; see that it is mounted with `mount -t proc proc /proc`")]
    List(io::Error),
    /// An entry does not have the form that every kernel since 5.15 gives it.
    #[error("cannot understand `/proc/{pid}/{entry}`; `cat` it and report what is odd")]
    Malformed {
        /// The process asked for.
        pid: Pid,
        /// The entry in its directory.
        entry: &'static str,
    },
}

impl ProcError {
    /// Sorts what the kernel said. A process that ends between opening and reading gives `ESRCH`, not `ENOENT`.
    fn from_io(pid: Pid, entry: &'static str, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::PermissionDenied => Self::Permission { pid, entry },
            io::ErrorKind::NotFound if process::exists(pid) => Self::Io { pid, entry, source },
            io::ErrorKind::NotFound => Self::NoSuchProcess { pid },
            _ if source.raw_os_error() == Some(libc::ESRCH) => Self::NoSuchProcess { pid },
            _ => Self::Io { pid, entry, source },
        }
    }
}
