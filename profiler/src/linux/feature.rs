//! What this kernel can do, found out by trying. Versions say little: distributions backport, and administrators lock down.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use super::bpf::{AttachType, link_perf, load_nothing, supports};
use super::perf_event::open_uprobe;
use crate::ids::Pid;

/// Where the kernel puts its own type information (Linux 5.4).
pub(crate) const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

/// The answer to whether something is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Support {
    /// It is: it was tried.
    Yes,
    /// It is not, for this reason.
    No(String),
    /// It could not be tried, for this reason.
    Unknown(String),
}

/// Something that kernels have or have not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feature {
    /// The `bpf` system call, allowed to load a program for probes.
    BpfPrograms,
    /// The kernel's own type information.
    KernelBtf,
    /// Perf events for uprobes.
    Uprobes,
    /// Links between programs and perf events that carry a cookie (Linux 5.15).
    Cookies,
    /// One link for many uprobes (Linux 6.6).
    UprobeMulti,
    /// One program for entry and return, which says whether the return is wanted (Linux 6.13).
    UprobeSession,
}

impl Feature {
    /// All of them.
    pub(crate) const ALL: [Self; 6] =
        [Self::BpfPrograms, Self::KernelBtf, Self::Uprobes, Self::Cookies, Self::UprobeMulti, Self::UprobeSession];

    /// Tries it. `offset` is that of an instruction in this program's own file, to put a probe on.
    pub(crate) fn support(self, offset: u64) -> Support {
        let tried = match self {
            Self::BpfPrograms => load_program().map(drop),
            Self::KernelBtf => std::fs::metadata(KERNEL_BTF).map(drop),
            Self::Uprobes => uprobe_event(offset).map(drop),
            Self::Cookies => load_program().and_then(|program| link_perf(program, uprobe_event(offset)?, 1)).map(drop),
            Self::UprobeMulti => has_links(AttachType::UprobeMulti),
            Self::UprobeSession => has_links(AttachType::UprobeSession),
        };
        tried.map_or_else(|error| judge(&error), |()| Support::Yes)
    }
}

fn has_links(attach_type: AttachType) -> io::Result<()> {
    if supports(attach_type)? { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EINVAL)) }
}

/// Without the right to try, a failure says nothing of the kernel.
fn judge(error: &io::Error) -> Support {
    match error.kind() {
        io::ErrorKind::PermissionDenied => Support::Unknown(error.to_string()),
        _ => Support::No(error.to_string()),
    }
}

/// Loads a program that returns 0.
fn load_program() -> io::Result<OwnedFd> {
    load_nothing(AttachType::PerfEvent).map_err(|refused| refused.error)
}

/// Opens a probe on an instruction of this program, for this process.
fn uprobe_event(offset: u64) -> io::Result<OwnedFd> {
    open_uprobe(Path::new("/proc/self/exe"), offset, Pid(std::process::id()), false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_allowed_is_not_taken_for_missing() {
        let judge = |errno| judge(&io::Error::from_raw_os_error(errno));
        assert!(matches!(judge(libc::EPERM), Support::Unknown(_)));
        assert!(matches!(judge(libc::EACCES), Support::Unknown(_)));
        assert!(matches!(judge(libc::ENOSYS), Support::No(_)));
        assert!(matches!(judge(libc::EINVAL), Support::No(_)));
    }
}
