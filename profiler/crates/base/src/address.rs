//! Addresses, one type per address space.

use derive_more::LowerHex;
use profiler_common::interpreter::INTERPRETED;
use serde::{Deserialize, Serialize};

/// Lowest address of the kernel's code. `[vsyscall]`, which every process has, is above (`VSYSCALL_ADDR` in
/// arch/x86/include/uapi/asm/vsyscall.h).
const KERNEL_CODE: u64 = 0xffff_ffff_0000_0000;

#[derive(Clone, Copy, Debug, LowerHex, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TargetAddr(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileOffset(pub u64);

/// Address in an object's symbols and program headers, before loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LinkAddr(pub u64);

impl TargetAddr {
    /// Address inside the call of a frame. The return address itself is that of the next instruction, which may belong to another
    /// line or function. Frames of interpreted functions have no return address.
    pub fn inside_call(self) -> Self {
        if self.is_interpreted() { self } else { Self(self.0.saturating_sub(1)) }
    }

    /// Whether the address stands for a frame of an interpreted function: an
    /// [`InterpretedFrame`](profiler_common::interpreter::InterpretedFrame).
    pub fn is_interpreted(self) -> bool {
        self.0 & INTERPRETED != 0 && self.0 < KERNEL_CODE
    }
}
