//! Raises counters.

use profiler_common::counter::Counter;

use crate::maps::COUNTERS;

/// Adds one. A preemption between read and write by another program on the same CPU can lose an increment; an atomic
/// add would cost every event for a count that is off by less than one in a million.
#[inline(always)]
pub(crate) fn raise(counter: Counter) {
    if let Some(value) = COUNTERS.get_ptr_mut(counter as u32) {
        // SAFETY: the pointer comes from a successful lookup and stays valid for the program's run.
        unsafe { *value += 1 };
    }
}
