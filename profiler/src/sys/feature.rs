//! What this kernel can do, found out by trying. Versions say little: distributions backport, and administrators lock down.

#![expect(unsafe_code, reason = "the system calls are made with nothing in between that could hide why they fail")]

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use super::bpf::{AttachType, link_perf, load_nothing, owned, supports};

/// Where the kernel lists the perf event source for uprobes.
const UPROBE_SOURCE: &str = "/sys/bus/event_source/devices/uprobe/type";

/// Where the kernel puts its own type information (Linux 5.4).
pub const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

/// The answer to whether something is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// It is: it was tried.
    Yes,
    /// It is not, for this reason.
    No(String),
    /// It could not be tried, for this reason.
    Unknown(String),
}

/// Something that kernels have or have not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
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
    pub const ALL: [Self; 6] =
        [Self::BpfPrograms, Self::KernelBtf, Self::Uprobes, Self::Cookies, Self::UprobeMulti, Self::UprobeSession];

    /// Tries it. `offset` is that of an instruction in this program's own file, to put a probe on.
    #[must_use]
    pub fn support(self, offset: u64) -> Support {
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

/// `PERF_FLAG_FD_CLOEXEC`
/// (<https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/perf_event.h>).
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;

/// `struct perf_event_attr`, second version (`PERF_ATTR_SIZE_VER1`), with the names that uprobes give its fields.
#[repr(C)]
struct EventAttr {
    kind: u32,
    size: u32,
    config: u64,
    sample: [u64; 3],
    flags: u64,
    wakeup: [u32; 2],
    path: u64,
    offset: u64,
}

const _: () = assert!(size_of::<EventAttr>() == 72);

/// Loads a program that returns 0.
fn load_program() -> io::Result<OwnedFd> {
    load_nothing(AttachType::PerfEvent).map_err(|refused| refused.error)
}

/// Opens a probe on an instruction of this program, for this process.
fn uprobe_event(offset: u64) -> io::Result<OwnedFd> {
    let kind = std::fs::read_to_string(Path::new(UPROBE_SOURCE))?;
    let path = CString::from(c"/proc/self/exe");
    let attr = EventAttr {
        kind: kind.trim().parse().map_err(io::Error::other)?,
        size: 72,
        config: 0,
        sample: [0; 3],
        flags: 0,
        wakeup: [0; 2],
        path: path.as_ptr() as u64,
        offset,
    };
    let (this_process, any_cpu, no_group): (libc::c_int, libc::c_int, libc::c_int) = (0, -1, -1);
    // SAFETY: `attr` and the path that it points to outlive the call, which only reads them.
    unsafe {
        owned(libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attr,
            this_process,
            any_cpu,
            no_group,
            PERF_FLAG_FD_CLOEXEC,
        ))
    }
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
