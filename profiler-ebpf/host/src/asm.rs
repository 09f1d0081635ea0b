//! Of [`asm.rs`](../../src/asm.rs): instructions that need no assembly here.

use profiler_common::interpreter::AddressRange;

pub(crate) fn masked<const MASK: u64>(value: u64) -> u64 {
    value & MASK
}

/// Tests walk one stack at a time.
pub(crate) fn store(target: *mut u64, value: u64) {
    // SAFETY: as the callers of the original guarantee.
    unsafe { target.write(value) };
}

pub(crate) fn zero(words: &mut [u64]) {
    words.fill(0);
}

pub(crate) fn copy_ranges<const N: usize>(target: &mut [AddressRange; N], source: &[AddressRange; N]) {
    *target = *source;
}
