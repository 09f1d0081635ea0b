//! x86-64.

#![expect(unsafe_code, reason = "zeroes registers, and declares functions that are defined in assembly")]

use std::arch::global_asm;
use std::io;
use std::ops::Range;

use heapbpf_base::ids::Pid;

use super::Interruption;
use super::restart::is_not_restarted;
use crate::ptrace::Tracee;

pub const SYSCALL_INSTRUCTION: [u8; 2] = [0x0f, 0x05];

/// Machine code of a system call and a return.
pub const SYSCALL_AND_RETURN: [u8; 3] = [0x0f, 0x05, 0xc3];

/// Machine code of the system call `rt_sigreturn`: the end of each signal handler, in glibc and in musl.
pub const RETURN_FROM_SIGNAL: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];

pub const INSTRUCTION_ALIGNMENT: usize = 1;

pub const AUDIT_ARCH: u32 = 0xc000_003e;

/// End of the addresses of user processes. `[vsyscall]` above it belongs to the kernel and cannot make system calls.
pub const ADDRESS_END: u64 = 1 << 56;

/// Removes the tag of an address. On this processor, addresses have no tags.
#[inline]
pub const fn untagged(word: u64) -> u64 {
    word
}

/// Bytes below the stack pointer that a leaf function may use (<https://gitlab.com/x86-psABIs/x86-64-ABI>).
pub const RED_ZONE_BYTES: u64 = 128;

/// Offsets in glibc's `struct pthread`, the same in all versions: they follow a header of 704 bytes.
pub const PTHREAD_LIST_OFFSET: u64 = 0x2c0;
pub const PTHREAD_TID_OFFSET: u64 = 0x2d0;

/// Offset in `struct pthread` of a line with two words that are the structure's own address. The other constants are the line's
/// size, both words' numbers in it, and their value.
pub const MARK_OFFSET: u64 = 0;
pub const MARK_LINE_WORDS: usize = 8;
pub const MARK_WORDS: [usize; 2] = [0, 2];
pub const MARK_TARGET: u64 = 0;

/// Maximum size of a control block at the top of a stack.
pub const CONTROL_BLOCK_TOP_BYTES_MAX: u64 = 8192;

/// The control block of a running thread.
pub fn control_block(thread_pointer: u64, word: &dyn Fn(u64) -> Option<u64>) -> Option<u64> {
    is_control_block(thread_pointer, word).then_some(thread_pointer)
}

/// Whether a thread has its control block at this address: in glibc and musl, it begins with a pointer to itself.
pub fn is_control_block(start: u64, word: &dyn Fn(u64) -> Option<u64>) -> bool {
    word(start) == Some(start)
}

/// Range of an exited thread's control block that is used later: a pointer to itself and the pointer to the DTV, which the next
/// thread on the stack reuses; and the return value, until the thread is joined or detached.
pub fn kept_of_ended(block: u64, _distance: Option<u64>, is_released: bool) -> Range<u64> {
    block..if is_released { block.saturating_add(16) } else { u64::MAX }
}

pub const SECCOMP_ARCH: seccompiler::TargetArch = seccompiler::TargetArch::x86_64;

pub const LEGACY_SYSCALLS_ALLOWED: [libc::c_long; 4] =
    [libc::SYS_poll, libc::SYS_stat, libc::SYS_lstat, libc::SYS_readlink];

/// The legacy system call that opens files, and the index of its flags.
pub const LEGACY_OPEN: Option<(libc::c_long, u8)> = Some((libc::SYS_open, 1));

pub fn is_legacy_loader_syscall(number: libc::c_long) -> bool {
    matches!(
        number,
        libc::SYS_open
            | libc::SYS_access
            | libc::SYS_stat
            | libc::SYS_lstat
            | libc::SYS_readlink
            | libc::SYS_arch_prctl
    )
}

/// Whether the kernel's trampolines for probes make this system call: they may already be attached.
pub fn is_probe_syscall(number: u64) -> bool {
    matches!(number, 335 | 336)
}

/// Registers of a stopped thread. `orig_rax` is the number of the interrupted system call, or negative, and `fs_base` the thread
/// pointer.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Registers(libc::user_regs_struct);

/// Kinds of the register sets, and their sizes in bytes.
pub const REGISTER_SETS: [(libc::c_int, usize); 1] = [(libc::NT_PRSTATUS, size_of::<Registers>())];

impl Default for Registers {
    fn default() -> Self {
        // SAFETY: a structure of integers.
        Self(unsafe { std::mem::zeroed() })
    }
}

/// System calls that `pause` and `epoll_wait` make.
#[cfg(any(test, feature = "testing"))]
pub const SLEEPING: [libc::c_long; 2] = [libc::SYS_pause, libc::SYS_epoll_wait];

#[cfg(any(test, feature = "testing"))]
impl PartialEq for Registers {
    fn eq(&self, other: &Self) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }
}

/// `ERESTARTNOHAND` (include/linux/errno.h): the kernel restarts the system call unless a signal handler is to run.
const RESTART_UNLESS_HANDLED: i64 = -514;

/// Upper bound of the XSAVE area on any processor so far: AMX tiles take 8 KiB.
const EXTENDED_WORDS_MAX: usize = 2048;

/// Words of the `XSAVE` area; empty if the thread was killed meanwhile. Errors: `ENODEV` on processors without XSAVE.
pub fn extended_words(tracee: &Tracee) -> io::Result<Vec<u64>> {
    const NT_X86_XSTATE: libc::c_int = 0x202;
    tracee.register_words(NT_X86_XSTATE, EXTENDED_WORDS_MAX)
}

/// Restores registers that system calls discard. On this processor there are none.
pub fn restore_discarded(_tracee: &Tracee, _extended: &[u64]) -> io::Result<()> {
    Ok(())
}

pub type WaitingCall = ();

/// The system call in which a thread waits. It is not needed: a stop changes none of the arguments of a system call.
pub fn waiting_call(_pid: Pid) -> Option<WaitingCall> {
    None
}

/// First argument of a system call that a stop has interrupted. Fails, because it is among the registers.
pub fn first_argument(_tracee: &Tracee) -> io::Result<u64> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Whether a system call would discard registers that cannot be restored. On this processor it would not.
pub fn discards_registers(_tracee: &Tracee) -> bool {
    false
}

/// Whether returning to an address that no call has pushed fails. `status` is the text of `/proc/PID/task/TID/status`.
pub fn has_shadow_stack(status: &str, _tracee: &Tracee) -> bool {
    let features = status.lines().find_map(|line| line.strip_prefix("x86_Thread_features:"));
    features.is_some_and(|features| features.contains("shstk"))
}

/// The part of a thread's static thread-local storage that is nearest to its control block. The storage ends at the thread
/// pointer.
pub fn storage(thread_pointer: u64, size_bytes: u64) -> Range<u64> {
    thread_pointer.saturating_sub(size_bytes)..thread_pointer
}

/// Address of a word of the static thread-local storage; the nearest word is 1.
pub fn storage_word(thread_pointer: u64, nth: u64) -> Option<u64> {
    thread_pointer.checked_sub(nth.checked_mul(8)?)
}

/// Index of rbp in [`Registers::general`].
pub const FRAME_POINTER_INDEX: usize = 6;

const TRAP_FLAG: u64 = 1 << 8;

impl Registers {
    /// All registers that may contain pointers.
    pub fn general(&self) -> [u64; 17] {
        let libc::user_regs_struct { rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp, .. } = self.0;
        // The base of the segment that the C library leaves to programs (`arch_prctl(ARCH_SET_GS)`).
        let libc::user_regs_struct { r8, r9, r10, r11, r12, r13, r14, r15, gs_base, .. } = self.0;
        [rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp, r8, r9, r10, r11, r12, r13, r14, r15, gs_base]
    }

    pub fn instruction(&self) -> u64 {
        self.0.rip
    }

    pub fn stack_pointer(&self) -> u64 {
        self.0.rsp
    }

    pub fn thread_pointer(&self) -> u64 {
        self.0.fs_base
    }

    pub fn syscall(&self) -> Option<libc::c_long> {
        Some(self.0.orig_rax.cast_signed()).filter(|&number| number >= 0)
    }

    /// Whether the thread is in a system call that is not among the registers. On this processor it never is.
    pub fn is_beside_syscall(&self, _is_call: &dyn Fn(u64) -> bool) -> bool {
        false
    }

    pub fn interruption(&self, _is_call: &dyn Fn(u64) -> bool) -> Interruption {
        Interruption::Visible
    }

    /// Returns the registers for restarting a system call. `None` if no system call failed only because of the stop. Valid at a
    /// `Stop::Trap` that no signal has caused.
    pub fn with_syscall_restarted(&self, _tracee: &Tracee) -> Option<Self> {
        self.restarted()
    }

    fn restarted(&self) -> Option<Self> {
        let interrupted = self.0.rax.cast_signed() == -i64::from(libc::EINTR);
        let number = self.0.orig_rax.cast_signed();
        let fails = number == libc::SYS_epoll_wait || is_not_restarted(number);
        let rax = RESTART_UNLESS_HANDLED.cast_unsigned();
        (interrupted && fails).then_some(Self(libc::user_regs_struct { rax, ..self.0 }))
    }

    /// Registers for making this system call by the instruction at `instruction`. Keeps stack, thread pointer and segments.
    pub fn for_syscall(&self, instruction: u64, number: libc::c_long, arguments: [u64; 6]) -> Self {
        let old = self.0;
        let Self(mut new) = Self::default();
        (new.rsp, new.fs_base, new.gs_base) = (old.rsp, old.fs_base, old.gs_base);
        (new.cs, new.ss, new.ds, new.es, new.fs, new.gs) = (old.cs, old.ss, old.ds, old.es, old.fs, old.gs);
        (new.rip, new.eflags) = (instruction, old.eflags & !TRAP_FLAG);
        // The registers have no interrupted system call that the kernel would restart.
        (new.rax, new.orig_rax) = (number.cast_unsigned(), u64::MAX);
        [new.rdi, new.rsi, new.rdx, new.r10, new.r8, new.r9] = arguments;
        Self(new)
    }
}

impl Registers {
    /// Registers for returning to a restorer by way of the [signal frame](Self::signal_frame) at `address`.
    pub fn with_way_back(mut self, address: u64, _restorer: u64) -> Self {
        self.0.rsp = address;
        self
    }

    /// First argument of the interrupted system call. `None`, because it is among the registers.
    pub fn first_argument(&self) -> Option<u64> {
        None
    }

    pub fn with_first_argument(self, _argument: u64) -> Self {
        self
    }

    /// Registers to restore at a stop that has not interrupted the same system call: these registers have the interrupted one.
    pub fn at_other_stop(&self) -> Self {
        *self
    }

    /// Registers of a stop at the exit of a system call, which hides no register.
    pub fn at_exit(self, _before: &Self, _first_argument: u64) -> Self {
        self
    }

    /// Registers with which the kernel would continue the thread: an interrupted system call is about to be made again. A system
    /// call with a timeout starts anew, because `rt_sigreturn` makes the kernel forget how much of it is left.
    fn continued(&self) -> libc::user_regs_struct {
        /// Errors of system calls that the kernel restarts: `ERESTARTSYS`, `ERESTARTNOINTR`, and `ERESTART_RESTARTBLOCK`
        /// (include/linux/errno.h).
        const RESTARTED: [i64; 4] = [-512, -513, RESTART_UNLESS_HANDLED, -516];
        let Self(mut registers) = self.restarted().unwrap_or(*self);
        if let Some(number) = self.syscall().filter(|_| RESTARTED.contains(&registers.rax.cast_signed())) {
            registers.rax = number.cast_unsigned();
            registers.rip -= SYSCALL_INSTRUCTION.len() as u64;
        }
        registers
    }

    /// A frame as the kernel writes it for a signal handler (`struct rt_sigframe` in arch/x86/include/asm/sigframe.h), at
    /// `address`: a `ret` with the stack pointer there restores these registers, the signal mask, and the XSAVE area
    /// `extended`, by way of `restorer`. `None` if the area is not of a known form.
    pub fn signal_frame(&self, address: u64, restorer: u64, blocked: u64, extended: &[u64]) -> Option<Vec<u64>> {
        /// Flags of a frame with an XSAVE area and the stack segment (`UC_FP_XSTATE`, `UC_SIGCONTEXT_SS`,
        /// `UC_STRICT_RESTORE_SS`).
        const FLAGS: u64 = 7;
        /// Invalid stack, which the kernel ignores, so that the alternate stack stays as it is (`restore_altstack` in
        /// kernel/signal.c).
        const INVALID_STACK: u64 = 0x7fff_ffff;
        let libc::user_regs_struct { rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp, rip, eflags, cs, ss, .. } =
            self.continued();
        let libc::user_regs_struct { r8, r9, r10, r11, r12, r13, r14, r15, .. } = self.0;
        let area = extended_area(extended)?;
        let mut words = vec![restorer, FLAGS, 0, 0, INVALID_STACK, 0, r8, r9, r10, r11, r12, r13, r14, r15];
        words.extend([rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, eflags, cs | ss << 48, 0, 0, 0, 0]);
        words.extend([address + 8 * FRAME_WORDS as u64]);
        words.extend([0; 8]);
        words.push(blocked);
        words.resize(FRAME_WORDS, 0);
        words.extend(area);
        Some(words)
    }
}

/// Alignment of a signal frame: that of an XSAVE area, which follows its words.
pub const FRAME_ALIGNMENT: u64 = 64;
const FRAME_WORDS: usize = 56;
const _: () = assert!((FRAME_WORDS as u64 * 8).is_multiple_of(FRAME_ALIGNMENT));

/// The XSAVE area with the marks that the kernel expects (`struct _fpx_sw_bytes` in arch/x86/include/uapi/asm/sigcontext.h).
fn extended_area(words: &[u64]) -> Option<Vec<u64>> {
    const MAGIC: [u64; 2] = [0x4650_5853, 0x4650_5845];
    const FEATURES: usize = 464 / 8;
    const USED: usize = 512 / 8;
    const WORDS_MIN: usize = 576 / 8;
    /// Feature bit of the tiles of AMX, which a thread has only after a request for them, and which are at the end.
    const TILES: u64 = 1 << 18;
    const WITHOUT_TILES: usize = 2816 / 8;
    let features = *words.get(FEATURES)?;
    let has_tiles = words.get(USED)? & TILES != 0;
    let (length, features) = match words.len() {
        length if features & TILES != 0 && !has_tiles => (length.min(WITHOUT_TILES), features & !TILES),
        length => (length, features),
    };
    if length < WORDS_MIN {
        return None;
    }
    let bytes = 8 * length as u64;
    let mut area = words[..length].to_vec();
    area[FEATURES] = MAGIC[0] | (bytes + 4) << 32;
    area[FEATURES + 1] = features;
    area[FEATURES + 2] = bytes;
    area[FEATURES + 3..USED].fill(0);
    area.push(MAGIC[1]);
    Some(area)
}

/// Defines a function for `doctor` to probe, from instructions in AT&T syntax.
macro_rules! function {
    ($name:literal, $($instruction:literal),+) => {
        global_asm!(
            ".pushsection .text.heapbpf_calibration, \"ax\", @progbits",
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ", @function"),
            ".p2align 4",
            concat!($name, ":"),
            $($instruction,)+
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
            options(att_syntax)
        );
    };
}

// Each function does nothing and returns. The first instruction matters: the kernel emulates `push` and single-steps `test` (see
// `probe::place`). There are two of each: one for an entry probe alone, one for a return probe as well.
function!("heapbpf_emulated", "push %rbx", "pop %rbx", "ret");
function!("heapbpf_emulated_returning", "push %rbx", "pop %rbx", "ret");
function!("heapbpf_stepped", "test %rdi, %rdi", "ret");
function!("heapbpf_stepped_returning", "test %rdi, %rdi", "ret");

// SAFETY: the functions above follow the C calling convention: they change only the flags.
unsafe extern "C" {
    pub safe fn heapbpf_emulated(argument: u64);
    pub safe fn heapbpf_emulated_returning(argument: u64);
    pub safe fn heapbpf_stepped(argument: u64);
    pub safe fn heapbpf_stepped_returning(argument: u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_system_calls_interrupted_by_the_stop_are_restarted() {
        let check = |number: libc::c_long, error: i32| {
            let mut registers = Registers::default();
            registers.0.orig_rax = number.cast_unsigned();
            registers.0.rax = i64::from(-error).cast_unsigned();
            registers.restarted().map(|registers| registers.0.rax.cast_signed())
        };
        assert_eq!(check(libc::SYS_epoll_wait, libc::EINTR), Some(-514));
        assert_eq!(check(libc::SYS_sendto, libc::EINTR), Some(-514));
        assert_eq!(check(libc::SYS_connect, libc::EINTR), None, "the connection is in progress");
        assert_eq!(check(libc::SYS_epoll_wait, libc::EBADF), None);
        assert_eq!(check(libc::SYS_epoll_wait, 512), None, "the kernel restarts it");
        assert_eq!(check(libc::SYS_close, libc::EINTR), None, "the descriptor is closed");
        assert_eq!(check(-1, libc::EINTR), None, "not in a system call");
    }
}
