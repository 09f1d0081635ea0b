//! Bounds that the verifier can see.
//!
//! The optimiser removes a mask that a comparison has made redundant, or compares another register than the one that is
//! used; the verifier, which knows each register by itself, then finds an index without bounds. A mask that is spelled
//! out stays where it is put.

use core::arch::asm;

/// `value & MASK`.
#[inline(always)]
pub(crate) fn masked<const MASK: u64>(value: u64) -> u64 {
    let mut value = value;
    // SAFETY: arithmetic on a register.
    unsafe {
        asm!("{value} &= {mask}", value = inout(reg) value, mask = const MASK, options(pure, nomem, nostack, preserves_flags));
    }
    value
}
