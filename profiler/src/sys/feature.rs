//! What this kernel can do, found out by trying. Versions say little: distributions backport, and administrators lock down.

#![expect(unsafe_code, reason = "the system calls are made with nothing in between that could hide why they fail")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use super::bpf::{AttachType, supports};

/// Where the kernel lists the perf event source for uprobes.
const UPROBE_SOURCE: &str = "/sys/bus/event_source/devices/uprobe/type";

/// The kernel's own type information.
const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

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
            Self::Cookies => load_program().and_then(|program| link(&program, &uprobe_event(offset)?)).map(drop),
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

/// Sizes and numbers are those of
/// <https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/bpf.h> and
/// <https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/perf_event.h>.
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_PROG_TYPE_KPROBE: u32 = 2;
const BPF_PERF_EVENT: u32 = 41;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;

/// The part of `union bpf_attr` for loading programs that every kernel has.
#[repr(C)]
struct LoadAttr {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buffer: u64,
    kernel_version: u32,
    flags: u32,
}

/// The part of `union bpf_attr` for linking to perf events.
#[repr(C)]
struct LinkAttr {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    cookie: u64,
}

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

const _: () = assert!(size_of::<EventAttr>() == 72 && size_of::<LoadAttr>() == 48 && size_of::<LinkAttr>() == 24);

/// Loads a program that returns 0.
fn load_program() -> io::Result<OwnedFd> {
    // `r0 = 0; exit`: opcode, registers, offset, and the immediate.
    let instructions: [[u8; 8]; 2] = [[0xb7, 0, 0, 0, 0, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
    let attr = LoadAttr {
        kind: BPF_PROG_TYPE_KPROBE,
        instruction_count: 2,
        instructions: instructions.as_ptr() as u64,
        license: c"Dual MIT/GPL".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buffer: 0,
        kernel_version: 0,
        flags: 0,
    };
    // SAFETY: `attr` and the instructions and the license that it points to outlive the call, which only reads them.
    unsafe { owned(libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, &raw const attr, size_of::<LoadAttr>())) }
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

/// Links a program to a probe, with a cookie.
fn link(program: &OwnedFd, event: &OwnedFd) -> io::Result<OwnedFd> {
    let attr = LinkAttr {
        program: program.as_raw_fd().unsigned_abs(),
        target: event.as_raw_fd().unsigned_abs(),
        attach_type: BPF_PERF_EVENT,
        flags: 0,
        cookie: 1,
    };
    // SAFETY: `attr` outlives the call, which only reads it.
    unsafe { owned(libc::syscall(libc::SYS_bpf, BPF_LINK_CREATE, &raw const attr, size_of::<LinkAttr>())) }
}

/// The descriptor that a system call has returned, or why it has not.
///
/// # Safety
///
/// The result must be that of a system call that returns a new descriptor.
unsafe fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    match RawFd::try_from(result) {
        // SAFETY: the caller vouches that it is new, so nobody else owns it.
        Ok(descriptor @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        _ => Err(io::Error::last_os_error()),
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
