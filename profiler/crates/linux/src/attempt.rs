//! System calls that are made for the kernel's answer alone: evidence of who refuses what.

#![expect(unsafe_code, reason = "system calls with arguments that no library would pass")]

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;

use aya_obj::generated::{bpf_cmd, bpf_insn, bpf_map_type, bpf_prog_type};

use super::bpf::{attributes, command, owned};

/// An attempted system call. The first three have arguments that the kernel refuses before it checks permissions: another answer
/// than the expected one is not of Linux, but of a seccomp filter or of an emulated kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Attempt {
    /// `bpf` with arguments larger than a page (`bpf_check_uarg_tail_zero` in kernel/bpf/syscall.c).
    ReachBpf,
    /// `perf_event_open` with all flags (`SYSCALL_DEFINE5(perf_event_open)` in kernel/events/core.c).
    ReachPerfEventOpen,
    /// `ptrace` of process -1 (`SYSCALL_DEFINE4(ptrace)` in kernel/ptrace.c).
    ReachPtrace,
    LoadProgram,
    /// Loads a program that calls `bpf_probe_read_kernel`, which kernel lockdown withdraws
    /// (`bpf_tracing_func_proto` in kernel/trace/bpf_trace.c).
    ReadKernelMemory,
    /// Creates a map larger than the default RLIMIT_MEMLOCK, which limits maps before Linux 5.11.
    CreateMap,
}

impl Attempt {
    pub const ALL: [Self; 6] = [
        Self::ReachBpf,
        Self::ReachPerfEventOpen,
        Self::ReachPtrace,
        Self::LoadProgram,
        Self::ReadKernelMemory,
        Self::CreateMap,
    ];

    pub fn describe(self) -> &'static str {
        match self {
            Self::ReachBpf => "bpf(2) with a size of 1 MiB",
            Self::ReachPerfEventOpen => "perf_event_open(2) with unknown flags",
            Self::ReachPtrace => "ptrace(2) of process -1",
            Self::LoadProgram => "bpf(BPF_PROG_LOAD)",
            Self::ReadKernelMemory => "bpf(BPF_PROG_LOAD) with bpf_probe_read_kernel",
            Self::CreateMap => "bpf(BPF_MAP_CREATE)",
        }
    }

    /// Error that Linux returns; `None` if the call succeeds where it is permitted.
    pub fn expected(self) -> Option<i32> {
        match self {
            Self::ReachBpf => Some(libc::E2BIG),
            Self::ReachPerfEventOpen => Some(libc::EINVAL),
            Self::ReachPtrace => Some(libc::ESRCH),
            Self::LoadProgram | Self::ReadKernelMemory | Self::CreateMap => None,
        }
    }

    pub fn uses_bpf(self) -> bool {
        !matches!(self, Self::ReachPerfEventOpen | Self::ReachPtrace)
    }

    pub fn make(self) -> io::Result<()> {
        match self {
            Self::ReachBpf => {
                // SAFETY: the kernel refuses the size before it reads from the address, which is not a valid one.
                checked(unsafe { libc::syscall(libc::SYS_bpf, bpf_cmd::BPF_OBJ_GET as u64, NOWHERE, 1u64 << 20) })
            }
            Self::ReachPerfEventOpen => {
                let (own, any_cpu, no_group) = (0, -1, -1);
                // SAFETY: the kernel refuses the flags before it reads from the address, which is not a valid one.
                checked(unsafe {
                    libc::syscall(libc::SYS_perf_event_open, NOWHERE, own, any_cpu, no_group, libc::c_ulong::MAX)
                })
            }
            Self::ReachPtrace => {
                // SAFETY: there is no such process, and the kernel writes to the address only after reading from one.
                checked(unsafe { libc::syscall(libc::SYS_ptrace, libc::c_long::from(libc::PTRACE_PEEKDATA), -1, 0, 0) })
            }
            // `r0 = 0; exit`
            Self::LoadProgram => load(PROGRAM, &end()).map(drop),
            // `r1 = r10; r1 += -8; r2 = 8; r3 = 0; call bpf_probe_read_kernel; r0 = 0; exit`
            Self::ReadKernelMemory => {
                let call = [
                    bpf_insn { _bitfield_1: bpf_insn::new_bitfield_1(1, 10), ..instruction(0xbf, 0, 0) },
                    instruction(0x07, 1, -8),
                    instruction(0xb7, 2, 8),
                    instruction(0xb7, 3, 0),
                    instruction(0x85, 0, PROBE_READ_KERNEL),
                ];
                load(PROGRAM, &[&call[..], &end()].concat()).map(drop)
            }
            Self::CreateMap => create_map(ARRAY, [4, 4096, MAP_BYTES / 4096], 0).map(drop),
        }
    }
}

/// Number of the helper `BPF_FUNC_probe_read_kernel` in include/uapi/linux/bpf.h.
const PROBE_READ_KERNEL: i32 = 113;

const NOWHERE: libc::c_ulong = 0;

/// Size of a map that exceeds the default RLIMIT_MEMLOCK, which is 64 KiB before Linux 5.16, and 8 MiB since.
const MAP_BYTES: u32 = 16 << 20;

/// Type of the programs, and of the map.
const PROGRAM: bpf_prog_type = bpf_prog_type::BPF_PROG_TYPE_KPROBE;
const ARRAY: bpf_map_type = bpf_map_type::BPF_MAP_TYPE_ARRAY;

/// An instruction that writes to register `to`, with a constant.
pub(super) fn instruction(code: u8, to: u8, imm: i32) -> bpf_insn {
    bpf_insn { code, _bitfield_align_1: [], _bitfield_1: bpf_insn::new_bitfield_1(to, 0), off: 0, imm }
}

/// Instructions that end a program: `r0 = 0; exit`.
pub(super) fn end() -> [bpf_insn; 2] {
    [instruction(0xb7, 0, 0), instruction(0x95, 0, 0)]
}

/// Checks a call, and closes a descriptor that it returns.
fn checked(result: libc::c_long) -> io::Result<()> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

pub(super) fn load(kind: bpf_prog_type, instructions: &[bpf_insn]) -> io::Result<OwnedFd> {
    let mut attr = attributes();
    // SAFETY: a structure of integers.
    let load = unsafe { &mut attr.__bindgen_anon_3 };
    load.prog_type = kind as u32;
    load.insn_cnt = u32::try_from(instructions.len()).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?;
    load.insns = instructions.as_ptr() as u64;
    load.license = c"GPL".as_ptr() as u64;
    // SAFETY: the instructions outlive the call, with their number; the kernel writes nothing. The result is a new descriptor.
    unsafe { command(bpf_cmd::BPF_PROG_LOAD, &mut attr).and_then(|result| owned(result)) }
}

/// Creates a map. The sizes are those of a key and a value, in bytes, and of the map.
pub(super) fn create_map(
    kind: bpf_map_type,
    [key_size, value_size, max_entries]: [u32; 3],
    flags: u32,
) -> io::Result<OwnedFd> {
    let mut attr = attributes();
    // SAFETY: a structure of integers.
    let map = unsafe { &mut attr.__bindgen_anon_1 };
    (map.map_type, map.map_flags) = (kind as u32, flags);
    (map.key_size, map.value_size, map.max_entries) = (key_size, value_size, max_entries);
    // SAFETY: `attr` contains no pointers; the result is a new descriptor.
    unsafe { command(bpf_cmd::BPF_MAP_CREATE, &mut attr).and_then(|result| owned(result)) }
}

/// A kernel's answer as `EPERM (Operation not permitted)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// Text of a system call's error; other errors have no number.
    pub fn text(error: &io::Error) -> String {
        error.raw_os_error().map_or_else(|| error.to_string(), |number| Self(number).to_string())
    }

    /// Name of the error; `None` for numbers that no system call of heapbpf is known to return.
    pub fn name(self) -> Option<&'static str> {
        NAMES.iter().find(|(number, _)| *number == self.0).map(|(_, name)| *name)
    }
}

const NAMES: [(i32, &str); 16] = [
    (libc::E2BIG, "E2BIG"),
    (libc::EACCES, "EACCES"),
    (libc::EBADF, "EBADF"),
    (libc::EBUSY, "EBUSY"),
    (libc::EFAULT, "EFAULT"),
    (libc::EINVAL, "EINVAL"),
    (libc::EIO, "EIO"),
    (libc::EMFILE, "EMFILE"),
    (libc::ENODEV, "ENODEV"),
    (libc::ENOENT, "ENOENT"),
    (libc::ENOMEM, "ENOMEM"),
    (libc::ENOSYS, "ENOSYS"),
    (libc::ENOTDIR, "ENOTDIR"),
    (libc::EOPNOTSUPP, "EOPNOTSUPP"),
    (libc::EPERM, "EPERM"),
    (libc::ESRCH, "ESRCH"),
];

impl fmt::Display for Errno {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = io::Error::from_raw_os_error(self.0).to_string();
        match (self.name(), text.split(" (os error").next()) {
            (Some(name), Some(meaning)) => write!(out, "{name} ({meaning})"),
            _ => out.write_str(&text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_answers_as_expected() {
        for attempt in Attempt::ALL {
            let answer = attempt.make().err().and_then(|error| error.raw_os_error());
            if let Some(expected) = attempt.expected() {
                assert_eq!(answer, Some(expected), "{}", attempt.describe());
            }
        }
    }

    #[test]
    fn attempts_have_names() {
        for attempt in Attempt::ALL {
            let name: &str = attempt.into();
            assert_eq!(name.parse(), Ok(attempt));
        }
    }

    #[test]
    fn errors_have_the_names_that_manuals_use() {
        assert_eq!(Errno(libc::EPERM).to_string(), "EPERM (Operation not permitted)");
        assert_eq!(Errno(libc::ENOTTY).to_string(), "Inappropriate ioctl for device (os error 25)");
        assert_eq!(Errno::text(&io::Error::other("closed")), "closed");
    }
}
