//! aarch64.

#![expect(unsafe_code, reason = "declares functions that are defined in assembly")]

use std::arch::global_asm;
use std::io;

use heapbpf_base::ids::Pid;

use crate::proc::process::{self, entry_path};
use crate::ptrace::Tracee;

mod registers;
mod threads;

use registers::Call;
pub use registers::{
    FRAME_ALIGNMENT, FRAME_POINTER_INDEX, REGISTER_SETS, RETURN_FROM_SIGNAL, Registers, SYSCALL_INSTRUCTION, uses_sve,
};
pub use threads::*;

use super::Interruption;
use super::restart::is_not_restarted;

/// Machine code of a system call and a return.
pub const SYSCALL_AND_RETURN: [u8; 8] = [0x01, 0x00, 0x00, 0xd4, 0xc0, 0x03, 0x5f, 0xd6];

pub const INSTRUCTION_ALIGNMENT: usize = 4;

pub const AUDIT_ARCH: u32 = 0xc000_00b7;

/// End of the addresses of user processes, at most 52 bits.
pub const ADDRESS_END: u64 = 1 << 56;

/// Removes the tag of an address: the processor ignores the upper byte of an address
/// (Documentation/arch/arm64/tagged-pointers.rst), in which the Memory Tagging Extension and sanitizers store one.
#[inline]
pub const fn untagged(word: u64) -> u64 {
    word & (ADDRESS_END - 1)
}

/// Size of the red zone. The procedure call standard (<https://github.com/ARM-software/abi-aa/blob/2024Q3/aapcs64/aapcs64.rst>)
/// has none.
pub const RED_ZONE_BYTES: u64 = 0;

pub const SECCOMP_ARCH: seccompiler::TargetArch = seccompiler::TargetArch::aarch64;

/// Legacy system calls. There are none: the list of system calls is that of new processors (include/uapi/asm-generic/unistd.h).
pub const LEGACY_SYSCALLS_ALLOWED: [libc::c_long; 0] = [];

/// The legacy system call that opens files, and the index of its flags.
pub const LEGACY_OPEN: Option<(libc::c_long, u8)> = None;

/// Whether a system call replaces one of the legacy calls that dynamic linkers make elsewhere.
pub fn is_legacy_loader_syscall(number: libc::c_long) -> bool {
    matches!(number, libc::SYS_faccessat | libc::SYS_readlinkat)
}

/// System calls that `pause` and `epoll_wait` make.
#[cfg(any(test, feature = "testing"))]
pub const SLEEPING: [libc::c_long; 2] = [libc::SYS_ppoll, libc::SYS_epoll_pwait];

/// Whether the kernel's trampolines for probes make this system call. This processor has no such trampolines.
pub fn is_probe_syscall(_number: u64) -> bool {
    false
}

/// System calls that wait, and whose restart depends on the signal: with `ERESTARTSYS`, `ERESTARTNOHAND` or
/// `ERESTART_RESTARTBLOCK` (include/linux/errno.h). They create no process and no mapping.
const WAITING: [libc::c_long; 46] = [
    libc::SYS_restart_syscall,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_futex,
    FUTEX_WAIT,
    libc::SYS_futex_waitv,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_rt_sigsuspend,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_tee,
    libc::SYS_vmsplice,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_flock,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_msgrcv,
    libc::SYS_msgsnd,
    libc::SYS_mq_timedreceive,
    libc::SYS_mq_timedsend,
    IO_PGETEVENTS,
    libc::SYS_getrandom,
    libc::SYS_keyctl,
];

/// Numbers of system calls that `libc` lacks.
const IO_PGETEVENTS: libc::c_long = 292;
const FUTEX_WAIT: libc::c_long = 455;

impl Registers {
    /// Whether the thread is in a system call that a stop has interrupted: then the kernel has moved it back to the instruction, or
    /// behind it with an error (`arch_do_signal_or_restart` in arch/arm64/kernel/signal.c). `is_call` is whether there is such an
    /// instruction at an address.
    pub fn is_beside_syscall(&self, is_call: &dyn Fn(u64) -> bool) -> bool {
        is_call(self.instruction()) || self.is_behind(is_call)
    }

    fn is_behind(&self, is_call: &dyn Fn(u64) -> bool) -> bool {
        is_call(self.instruction().wrapping_sub(SYSCALL_INSTRUCTION.len() as u64))
    }

    pub fn interruption(&self, is_call: &dyn Fn(u64) -> bool) -> Interruption {
        if self.has_failed() && is_not_restarted(self.number()) && self.is_behind(is_call) {
            Interruption::Failed
        } else if WAITING.contains(&self.number()) && is_call(self.instruction()) {
            Interruption::Rewound
        } else {
            Interruption::Visible
        }
    }

    /// Returns the registers for restarting a system call. `None` if no system call failed only because of the stop, or if a
    /// signal will call a handler, which has to interrupt it. Valid at a `Stop::Trap` that no signal has caused.
    pub fn with_syscall_restarted(&self, tracee: &Tracee) -> Option<Self> {
        let fails = self.interruption(&|address| tracee.is_call(address)) == Interruption::Failed;
        if !fails || is_handler_pending(tracee).unwrap_or(true) {
            return None;
        }
        Some(self.with_first_argument(first_argument(tracee).ok()?).at_other_stop())
    }
}

/// A system call in which a thread waits for something else than a stop. If it fails because of a stop, the registers lack its
/// first argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingCall {
    call: Call,
    /// Number of times that the thread has waited so far.
    waits: u64,
}

/// Maximum number of attempts to read the system call of a thread that begins or ends it meanwhile.
const READS_MAX: u32 = 3;

/// The system call in which a thread waits, if a stop makes it fail.
pub fn waiting_call(pid: Pid) -> Option<WaitingCall> {
    let mut waits = waits(pid)?;
    for _ in 0..READS_MAX {
        let call = Call::parse(&std::fs::read_to_string(entry_path(pid, "syscall")).ok()?)?;
        if !is_not_restarted(call.number()) {
            return None;
        }
        let now = self::waits(pid)?;
        if now == waits {
            return Some(WaitingCall { call, waits });
        }
        waits = now;
    }
    None
}

/// Number of voluntary context switches of a thread.
fn waits(pid: Pid) -> Option<u64> {
    let status = process::status(pid).ok()?;
    status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok())
}

/// First argument of a system call that a stop has interrupted. It is that of the call in which the thread waited before, if the
/// thread has not waited in another since; the stop itself counts as one wait.
pub fn first_argument(tracee: &Tracee) -> io::Result<u64> {
    let waited = tracee.waiting().ok_or(io::ErrorKind::InvalidData)?;
    let registers = tracee.registers()?.ok_or(io::ErrorKind::NotFound)?;
    let is_next = waits(tracee.pid()) == Some(waited.waits + 1);
    let argument = registers.first_argument_of(&waited.call).filter(|_| is_next);
    argument.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Whether a signal for which the program has a handler waits to be delivered to a thread.
fn is_handler_pending(tracee: &Tracee) -> io::Result<bool> {
    let status = process::status(tracee.pid())?;
    let set = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        u64::from_str_radix(line.trim(), 16).unwrap_or(0)
    };
    Ok((set("SigPnd:") | set("ShdPnd:")) & !set("SigBlk:") & set("SigCgt:") != 0)
}

/// Whether returning to an address that no call has pushed fails (Guarded Control Stack, Linux 6.13).
pub fn has_shadow_stack(_status: &str, tracee: &Tracee) -> bool {
    const NT_ARM_GCS: libc::c_int = 0x410;
    let features = tracee.register_words(NT_ARM_GCS, 3);
    features.is_ok_and(|words| words.first().is_some_and(|features| features & 1 != 0))
}

const NT_ARM_SVE: libc::c_int = 0x405;
const NT_ARM_SSVE: libc::c_int = 0x40b;

/// Maximum number of words of the vector registers: those of the Scalable Vector Extension with vectors of 256 bytes, which is
/// the limit of the processor architecture.
const EXTENDED_WORDS_MAX: usize = 2048;

/// Floating-point and vector registers; those of the Scalable Vector Extension only while the thread uses them. Empty if the
/// thread was killed meanwhile.
pub fn extended_words(tracee: &Tracee) -> io::Result<Vec<u64>> {
    // A processor without the extension has no such register set.
    match tracee.register_words(NT_ARM_SVE, EXTENDED_WORDS_MAX) {
        Ok(words) if uses_sve(&words) => Ok(words),
        _ => tracee.register_words(libc::NT_PRFPREG, EXTENDED_WORDS_MAX),
    }
}

/// Restores registers that system calls discard: those of the Scalable Vector Extension beyond the registers of every processor
/// (Documentation/arch/arm64/sve.rst).
pub fn restore_discarded(tracee: &Tracee, extended: &[u64]) -> io::Result<()> {
    if !uses_sve(extended) {
        return Ok(());
    }
    let mut bytes: Vec<u8> = extended.iter().flat_map(|word| word.to_ne_bytes()).collect();
    tracee.set_register_set(NT_ARM_SVE, &mut bytes)
}

/// Whether a system call would discard registers that cannot be restored: those of the streaming mode of the Scalable Matrix
/// Extension (Documentation/arch/arm64/sme.rst).
pub fn discards_registers(tracee: &Tracee) -> bool {
    tracee.register_words(NT_ARM_SSVE, EXTENDED_WORDS_MAX).is_ok_and(|words| uses_sve(&words))
}

/// Defines a function for `doctor` to probe.
macro_rules! function {
    ($name:literal, $($instruction:literal),+) => {
        global_asm!(
            ".pushsection .text.heapbpf_calibration, \"ax\", %progbits",
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ", %function"),
            ".p2align 4",
            concat!($name, ":"),
            $($instruction,)+
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
        );
    };
}

// Each function does nothing and returns. The first instruction matters: the kernel simulates branches and single-steps `cmp` out
// of line (arch/arm64/kernel/probes/decode-insn.c). There are two of each: one for an entry probe alone, one for a return probe
// as well.
function!("heapbpf_emulated", "b 1f", "1: ret");
function!("heapbpf_emulated_returning", "b 1f", "1: ret");
function!("heapbpf_stepped", "cmp x0, #0", "ret");
function!("heapbpf_stepped_returning", "cmp x0, #0", "ret");

// SAFETY: the functions above follow the C calling convention: they change only the flags.
unsafe extern "C" {
    pub safe fn heapbpf_emulated(argument: u64);
    pub safe fn heapbpf_emulated_returning(argument: u64);
    pub safe fn heapbpf_stepped(argument: u64);
    pub safe fn heapbpf_stepped_returning(argument: u64);
}
