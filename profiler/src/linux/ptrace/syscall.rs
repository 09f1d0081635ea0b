//! The system call at which a traced thread is stopped.

use std::io;

use super::Tracee;

/// A system call, seen from its stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SyscallInfo {
    /// `AUDIT_ARCH_*`: which instruction set's system call it is, and the process's.
    pub arch: u32,
    /// Address behind the instruction that makes it.
    pub instruction: u64,
    /// Before or after it.
    pub phase: SyscallPhase,
}

/// Before or after a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyscallPhase {
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

impl Tracee {
    /// At which system call the process is stopped; `None` if it was killed meanwhile.
    ///
    /// # Errors
    ///
    /// `EIO` or `EINVAL` before Linux 5.3.
    pub(crate) fn syscall_info(&self) -> io::Result<Option<SyscallInfo>> {
        let mut raw = RawSyscallInfo::default();
        let address = (&raw mut raw).expose_provenance();
        if !self.ask(libc::PTRACE_GET_SYSCALL_INFO, size_of::<RawSyscallInfo>(), address)? {
            return Ok(None);
        }
        let [number, ref arguments @ .., _] = raw.words;
        let phase = match raw.phase {
            SYSCALL_INFO_ENTRY => SyscallPhase::Entry { number, arguments: *arguments },
            SYSCALL_INFO_EXIT => SyscallPhase::Exit(number.cast_signed()),
            _ => SyscallPhase::None,
        };
        Ok(Some(SyscallInfo { arch: raw.arch, instruction: raw.instruction, phase }))
    }

    /// Whether a stopped thread has the system calls that it makes sent back to it as signals (Linux 5.11); false where the
    /// kernel does not tell (before Linux 6.4).
    pub(crate) fn dispatches_syscalls(&self) -> io::Result<bool> {
        let mut raw = [0_u64; 4];
        let told = self.unless_unknown(PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, &mut raw)?;
        Ok(told && raw[0] != 0)
    }

    /// Where a stopped thread says in which restartable sequence it is (`struct rseq`); `None` if it has none, or the kernel does not tell
    /// (before Linux 5.13).
    pub(crate) fn restartable_area(&self) -> io::Result<Option<u64>> {
        let mut raw = [0_u64; 3];
        let told = self.unless_unknown(PTRACE_GET_RSEQ_CONFIGURATION, &mut raw)?;
        Ok(Some(raw[0]).filter(|&area| told && area != 0))
    }

    /// Asks for a structure of words; false where the kernel does not know the question, or the thread is gone.
    fn unless_unknown<const N: usize>(&self, request: libc::c_uint, words: &mut [u64; N]) -> io::Result<bool> {
        let size_bytes = size_of::<[u64; N]>();
        match self.ask(request, size_bytes, words.as_mut_ptr().expose_provenance()) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL)) => Ok(false),
            result => result,
        }
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

/// `PTRACE_GET_RSEQ_CONFIGURATION` and `PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG`: the structure's size is given, and it is filled.
const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4211;
