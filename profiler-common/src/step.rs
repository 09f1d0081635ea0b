//! One unwind step: from the registers of a frame to those of its caller. The kernel side and the tests run this code.
//!
//! It reads the target's memory through [`ReadMemory`] only, has no loops and cannot panic: all arithmetic wraps, because the
//! target controls registers and memory. The caller's limit of frames bounds a walk.
//!
//! The frame chain and the kernel's signal frame depend on the processor: see [`arch`](crate::arch).

pub use crate::arch::{step, step_by_frame_pointer};
use crate::stack::StackEnd;

/// Access to the target's memory.
pub trait ReadMemory {
    /// The 8 bytes at `address`, or `None` if they are unreadable.
    fn read_u64(&self, address: u64) -> Option<u64>;
}

/// The registers that unwinding tracks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    pub ip: u64,
    pub sp: u64,
    /// Frame pointer (rbp, x29), or any value that the code keeps in its register.
    pub bp: u64,
    /// aarch64, of a frame that was interrupted: the link register (x30). Otherwise 0.
    pub link: u64,
    /// Whether `ip` is a return address rather than the next instruction of a frame that was interrupted.
    pub is_return_address: bool,
}

impl Registers {
    /// The address to search for. A return address is that of the next instruction, which may have another rule or, after a
    /// call that never returns, belong to another function.
    #[inline(always)]
    pub const fn lookup_address(&self) -> u64 {
        if self.is_return_address { self.ip.wrapping_sub(1) } else { self.ip }
    }
}

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The caller's registers.
    Caller(Registers),
    /// There is no further frame.
    End(StackEnd),
}

/// Accepts the caller unless the walk makes no progress. Stack pointers need not increase: code that runs a call on another
/// stack (the recursion guard of rustc, `ffi` trampolines, coroutines) keeps the old stack pointer in rbp or memory.
#[inline(always)]
pub(crate) fn outwards(registers: &Registers, caller: Registers) -> Step {
    if caller.ip == 0 {
        // Thread entry code pushes this as its own return address.
        return Step::End(StackEnd::Complete);
    }
    if caller.sp == registers.sp {
        return Step::End(StackEnd::BrokenChain);
    }
    Step::Caller(caller)
}
