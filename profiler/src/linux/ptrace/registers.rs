//! What a stopped thread's registers hold, and the signals that it blocks.

use std::io;

use super::Tracee;

/// The general registers of a stopped thread, in the kernel's order (`struct user_regs_struct` of
/// <https://github.com/torvalds/linux/blob/v5.15/arch/x86/include/asm/user_64.h#L69-L97>).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Registers {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    /// The number of the system call that was interrupted, or a negative number.
    pub orig_rax: u64,
    /// Next instruction.
    pub rip: u64,
    pub cs: u64,
    pub eflags: u64,
    /// Where the stack ends.
    pub rsp: u64,
    pub ss: u64,
    /// The thread's control block.
    pub fs_base: u64,
    pub gs_base: u64,
    pub ds: u64,
    pub es: u64,
    pub fs: u64,
    pub gs: u64,
}

const _: () = assert!(size_of::<Registers>() == 27 * 8);

/// System calls that fail with `EINTR` when a tracer stops them, though no signal has come: the kernel makes those that it
/// restarts itself again ([signal(7)](https://man7.org/linux/man-pages/man7/signal.7.html), "Interruption of system calls
/// and library functions by stop signals").
const NOT_RESTARTED: [libc::c_long; 22] = [
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    libc::SYS_io_uring_enter,
    libc::SYS_read,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_accept4,
    // The same with other names, and sockets with a time limit (`SO_RCVTIMEO`, `SO_SNDTIMEO`). `connect` is not made again: it
    // fails while the first one is under way.
    libc::SYS_accept,
    libc::SYS_recvmmsg,
    libc::SYS_readv,
    libc::SYS_preadv2,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    // Memory without a disk only.
    libc::SYS_fallocate,
];

/// `ERESTARTNOHAND`: the kernel makes the system call again unless a signal's handler is to run
/// (<https://github.com/torvalds/linux/blob/v5.15/include/linux/errno.h#L11-L22>).
const RESTART_UNLESS_HANDLED: i64 = -514;

/// The vector registers' state is no larger than this in any processor so far: AMX's tiles take 8 KiB.
const EXTENDED_BYTES_MAX: usize = 16 << 10;

impl Registers {
    /// All words that may be pointers: the sixteen general registers.
    pub(crate) fn general(&self) -> [u64; 16] {
        [
            self.rax, self.rbx, self.rcx, self.rdx, self.rsi, self.rdi, self.rbp, self.rsp, self.r8, self.r9, self.r10,
            self.r11, self.r12, self.r13, self.r14, self.r15,
        ]
    }

    /// Whether the thread was in a system call when it stopped.
    pub(crate) fn is_in_syscall(&self) -> bool {
        self.orig_rax.cast_signed() >= 0
    }

    /// The same, but that a system call which the stop alone has made fail is made again when the thread runs. `None` where
    /// there is nothing to change. To be asked at a [`Stop::Trap`](super::Stop::Trap) that is no signal's.
    pub(crate) fn undisturbed(&self) -> Option<Self> {
        let interrupted = self.rax.cast_signed() == -i64::from(libc::EINTR);
        let fails = NOT_RESTARTED.contains(&self.orig_rax.cast_signed());
        (interrupted && fails).then(|| Self { rax: RESTART_UNLESS_HANDLED.cast_unsigned(), ..*self })
    }
}

/// What the kernel is told about a buffer: `struct iovec`.
#[repr(C)]
struct Buffer {
    address: usize,
    size_bytes: usize,
}

impl Buffer {
    fn of<T>(value: &mut T) -> Self {
        Self { address: std::ptr::from_mut(value).expose_provenance(), size_bytes: size_of::<T>() }
    }
}

impl Tracee {
    /// The general registers of a stopped thread; `None` if it was killed meanwhile.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a thread in 32-bit mode.
    pub(crate) fn registers(&self) -> io::Result<Option<Registers>> {
        let mut registers = Registers::default();
        let filled = self.register_set(libc::PTRACE_GETREGSET, libc::NT_PRSTATUS, &mut Buffer::of(&mut registers))?;
        match filled {
            None => Ok(None),
            Some(bytes) if bytes == size_of::<Registers>() => Ok(Some(registers)),
            Some(_) => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        }
    }

    /// Sets the general registers of a stopped thread.
    ///
    /// # Errors
    ///
    /// `EIO` where the kernel refuses a value, as of a segment.
    pub(crate) fn set_registers(&self, registers: &Registers) -> io::Result<()> {
        let mut registers = *registers;
        self.register_set(libc::PTRACE_SETREGSET, libc::NT_PRSTATUS, &mut Buffer::of(&mut registers)).map(drop)
    }

    /// All words of a stopped thread's floating-point and vector registers, as the processor saves them (`XSAVE`), with what
    /// says which are in use among them; empty if it was killed meanwhile.
    ///
    /// # Errors
    ///
    /// `ENODEV` on processors without.
    pub(crate) fn extended_words(&self) -> io::Result<Vec<u64>> {
        let mut words = vec![0_u64; EXTENDED_BYTES_MAX / 8];
        let address = words.as_mut_ptr().expose_provenance();
        let mut buffer = Buffer { address, size_bytes: EXTENDED_BYTES_MAX };
        let filled = self.register_set(libc::PTRACE_GETREGSET, NT_X86_XSTATE, &mut buffer)?;
        words.truncate(filled.unwrap_or(0) / 8);
        Ok(words)
    }

    /// The signals that a stopped thread blocks, signal n as bit n − 1; `None` if it was killed meanwhile.
    pub(crate) fn blocked_signals(&self) -> io::Result<Option<u64>> {
        let mut set = 0_u64;
        let address = (&raw mut set).expose_provenance();
        Ok(self.ask(libc::PTRACE_GETSIGMASK, size_of::<u64>(), address)?.then_some(set))
    }

    /// Has a stopped thread block these signals. SIGKILL and SIGSTOP are left out by the kernel.
    pub(crate) fn block_signals(&self, set: u64) -> io::Result<()> {
        let mut set = set;
        let address = (&raw mut set).expose_provenance();
        self.ask(libc::PTRACE_SETSIGMASK, size_of::<u64>(), address).map(drop)
    }

    /// Bytes that were copied, if it is still there.
    fn register_set(
        &self,
        request: libc::c_uint,
        which: libc::c_int,
        buffer: &mut Buffer,
    ) -> io::Result<Option<usize>> {
        let address = std::ptr::from_mut(buffer).expose_provenance();
        Ok(self.ask(request, which.unsigned_abs() as usize, address)?.then_some(buffer.size_bytes))
    }
}

/// `NT_X86_XSTATE`.
const NT_X86_XSTATE: libc::c_int = 0x202;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_fails_by_a_stop_is_made_again() {
        let check = |number: libc::c_long, error: i32| {
            let registers = Registers {
                orig_rax: number.cast_unsigned(),
                rax: i64::from(-error).cast_unsigned(),
                ..Default::default()
            };
            registers.undisturbed().map(|registers| registers.rax.cast_signed())
        };
        assert_eq!(check(libc::SYS_epoll_wait, libc::EINTR), Some(-514));
        assert_eq!(check(libc::SYS_sendto, libc::EINTR), Some(-514));
        assert_eq!(check(libc::SYS_connect, libc::EINTR), None, "it is under way");
        assert_eq!(check(libc::SYS_epoll_wait, libc::EBADF), None);
        assert_eq!(check(libc::SYS_epoll_wait, 512), None, "the kernel does it");
        assert_eq!(check(libc::SYS_close, libc::EINTR), None, "it has closed");
        assert_eq!(check(-1, libc::EINTR), None, "no system call");
    }
}
