//! What the agent sets before the programs are loaded. Read-only from then on, so the verifier sees constants.

use core::ptr;

/// Random per session, so that a target cannot aim for clashing stack ids.
#[unsafe(no_mangle)]
static STACK_SEED: u64 = 0;

/// Unread bytes in the ring at which the agent is woken; below, it comes by itself.
#[unsafe(no_mangle)]
static WAKEUP_BYTES: u64 = 0;

/// Scratch areas: CPUs times [`SCRATCH_PER_CPU`](profiler_common::limits::SCRATCH_PER_CPU).
#[unsafe(no_mangle)]
static SCRATCH_AREAS: u32 = 0;

/// 1 to unwind by tables, 0 by frame pointers.
#[unsafe(no_mangle)]
static UNWIND_BY_TABLES: u32 = 0;

/// 1 to send a copy of each sampled call's stack, for checking the unwinder; else 0, and the verifier drops the code.
#[unsafe(no_mangle)]
static RAW_STACKS: u32 = 0;

/// Reads a global that the loader may have overwritten, which the compiler cannot know.
#[inline(always)]
fn read<T: Copy>(global: &'static T) -> T {
    // SAFETY: a shared reference is valid for reads.
    unsafe { ptr::read_volatile(global) }
}

#[inline(always)]
pub(crate) fn stack_seed() -> u64 {
    read(&STACK_SEED)
}

#[inline(always)]
pub(crate) fn wakeup_bytes() -> u64 {
    read(&WAKEUP_BYTES)
}

#[inline(always)]
pub(crate) fn scratch_areas() -> u32 {
    read(&SCRATCH_AREAS)
}

#[inline(always)]
pub(crate) fn raw_stacks() -> bool {
    read(&RAW_STACKS) != 0
}

#[inline(always)]
pub(crate) fn unwind_by_tables() -> bool {
    read(&UNWIND_BY_TABLES) != 0
}
