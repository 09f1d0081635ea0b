//! Raises counters.

use core::arch::asm;

use profiler_common::counter::Counter;

use crate::maps::COUNTERS;

/// Adds one, atomically: the counter is this CPU's, but another program can preempt this one between read and write.
#[inline(always)]
pub(crate) fn raise(counter: Counter) {
    if let Some(value) = COUNTERS.get_ptr_mut(counter as u32) {
        // SAFETY: the pointer comes from a successful lookup, to an aligned word.
        unsafe { asm!("lock *(u64 *)({value} + 0) += {one}", value = in(reg) value, one = in(reg) 1_u64) };
    }
}
