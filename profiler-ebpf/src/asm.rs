//! BPF instructions that Rust cannot express, or that the optimiser would remove.

use core::arch::asm;

use profiler_common::interpreter::AddressRange;

/// `value & MASK`, as an instruction that the verifier sees.
///
/// The optimiser removes a mask that a comparison has made redundant, or compares another register than the one that is
/// used. The verifier tracks each register separately and would then find an index without bounds.
#[inline(always)]
pub(crate) fn masked<const MASK: u64>(value: u64) -> u64 {
    let mut value = value;
    // SAFETY: arithmetic on a register.
    unsafe {
        asm!("{value} &= {mask}", value = inout(reg) value, mask = const MASK, options(pure, nomem, nostack, preserves_flags));
    }
    value
}

/// Atomically adds to `*target`, an aligned word in a map value.
#[inline(always)]
pub(crate) fn atomic_add(target: *mut u64, change: i64) {
    // SAFETY: the callers' pointers come from successful lookups.
    unsafe { asm!("lock *(u64 *)({target} + 0) += {change}", target = in(reg) target, change = in(reg) change) };
}

/// Atomically replaces `*target`, an aligned word in a map value, and returns the previous value. Rust has no atomics
/// with a result on this target.
#[inline(always)]
pub(crate) fn exchange(target: *mut u64, value: u64) -> u64 {
    let mut value = value;
    // SAFETY: the callers' pointers come from successful lookups.
    unsafe {
        asm!("{value} = xchg_64({target} + 0, {value})", value = inout(reg) value, target = in(reg) target);
    }
    value
}

/// Atomically replaces `*target`, an aligned word in a map value, by `value` if it is 0. Returns whether it was.
#[inline(always)]
pub(crate) fn claim(target: *mut u64, value: u64) -> bool {
    let mut previous = 0u64;
    // SAFETY: the callers' pointers come from successful lookups.
    unsafe {
        asm!("r0 = cmpxchg_64({target} + 0, r0, {value})", inout("r0") previous, target = in(reg) target, value = in(reg) value);
    }
    previous == 0
}

/// Stores an aligned word in a map value after all accesses before it: the optimiser moves none past it.
#[inline(always)]
pub(crate) fn store(target: *mut u64, value: u64) {
    // SAFETY: the callers' pointers come from successful lookups.
    unsafe { asm!("*(u64 *)({target} + 0) = {value}", target = in(reg) target, value = in(reg) value) };
}

/// Sets words to 0. The optimiser turns other loops, and assignments of arrays, into calls of `memset`, which writes byte by byte.
#[inline(always)]
pub(crate) fn zero(words: &mut [u64]) {
    words.iter_mut().for_each(|word| store(word, 0));
}

/// Copies ranges, for the same reason.
#[inline(always)]
pub(crate) fn copy_ranges<const N: usize>(target: &mut [AddressRange; N], source: &[AddressRange; N]) {
    for (target, source) in target.iter_mut().zip(source) {
        store(&mut target.start, source.start);
        store(&mut target.bytes, source.bytes);
    }
}
