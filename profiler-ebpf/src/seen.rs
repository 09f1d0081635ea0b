//! What the agent has: frames of stacks, code of interpreters, and first touches of memory, by their ids.

use profiler_common::limits::STACK_WAYS;
use profiler_common::stack::seen_bucket;

use crate::asm::masked;
use crate::maps::STACKS;

/// Whether this must be sent; marks it as sent. The mark replaces another one if the bucket is full, and concurrent
/// calls may overwrite each other's: then it is sent again, which is harmless.
#[inline(always)]
pub(crate) fn is_new(id: u64) -> bool {
    let Some(bucket) = STACKS.get_ptr_mut(seen_bucket(id)) else {
        return true;
    };
    let mut free = masked::<{ STACK_WAYS as u64 - 1 }>(id >> 32) as usize;
    for way in 0..STACK_WAYS {
        // SAFETY: the pointer comes from a successful lookup, and the index is below the array's length.
        let seen = unsafe { bucket.cast::<u64>().add(way).read_volatile() };
        if seen == id {
            return false;
        }
        if seen == 0 {
            free = way;
        }
    }
    // SAFETY: as above.
    unsafe { bucket.cast::<u64>().add(free).write_volatile(id) };
    true
}

/// Has the next event send this again, because it was dropped.
#[inline(always)]
pub(crate) fn forget(id: u64) {
    let Some(bucket) = STACKS.get_ptr_mut(seen_bucket(id)) else {
        return;
    };
    for way in 0..STACK_WAYS {
        // SAFETY: as in `is_new`.
        let seen = unsafe { bucket.cast::<u64>().add(way) };
        // SAFETY: as in `is_new`.
        if unsafe { seen.read_volatile() } == id {
            // SAFETY: as in `is_new`.
            unsafe { seen.write_volatile(0) };
        }
    }
}
