//! What the agent sets before the programs are loaded. Read-only from then on, so the verifier sees constants.

use core::ptr;

/// Random per session, so that a target cannot aim for clashing stack ids.
#[unsafe(no_mangle)]
static STACK_SEED: u64 = 0;

/// Unread bytes in the ring at which the agent is woken; below, it comes by itself.
#[unsafe(no_mangle)]
static WAKEUP_BYTES: u64 = 0;

/// Possible CPUs of the machine: each has one scratch area.
#[unsafe(no_mangle)]
static CPUS: u32 = 0;

/// 1 to unwind by tables, 0 by frame pointers.
#[unsafe(no_mangle)]
static UNWIND_BY_TABLES: u32 = 0;

/// 1 to send a copy of each sampled call's stack, for checking the unwinder; else 0, and the verifier drops the code.
#[unsafe(no_mangle)]
static RAW_STACKS: u32 = 0;

/// Where a `struct task_struct` has `tgid`, in bytes. Meaningless, like the next, unless processes are watched.
#[unsafe(no_mangle)]
static TASK_TGID_OFFSET: u32 = 0;

/// Where it has `mm`.
#[unsafe(no_mangle)]
static TASK_MM_OFFSET: u32 = 0;

/// Where it has `signal`, what its threads share; 0 when that is not known.
#[unsafe(no_mangle)]
static TASK_SIGNAL_OFFSET: u32 = 0;

/// Where a `struct signal_struct` has `live`, the number of threads that have not ended.
#[unsafe(no_mangle)]
static SIGNAL_LIVE_OFFSET: u32 = 0;

/// 1 to tell of the execs of all processes, 0 of those of targets.
#[unsafe(no_mangle)]
static WATCH_EXECS: u32 = 0;

/// From this many requested bytes on, a function that may throw is taken to do so.
#[unsafe(no_mangle)]
static THROW_SAFE_BYTES: u64 = 0;

/// Always 0. The compiler does not know, so it keeps the code behind it; the verifier knows, and drops the code.
#[unsafe(no_mangle)]
static TAIL_CALL: u32 = 0;

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
pub(crate) fn cpus() -> u32 {
    read(&CPUS)
}

#[inline(always)]
pub(crate) fn raw_stacks() -> bool {
    read(&RAW_STACKS) != 0
}

#[inline(always)]
pub(crate) fn unwind_by_tables() -> bool {
    read(&UNWIND_BY_TABLES) != 0
}

#[inline(always)]
pub(crate) fn task_tgid_offset() -> u64 {
    u64::from(read(&TASK_TGID_OFFSET))
}

#[inline(always)]
pub(crate) fn task_mm_offset() -> u64 {
    u64::from(read(&TASK_MM_OFFSET))
}

#[inline(always)]
pub(crate) fn task_signal_offset() -> u64 {
    u64::from(read(&TASK_SIGNAL_OFFSET))
}

#[inline(always)]
pub(crate) fn signal_live_offset() -> u64 {
    u64::from(read(&SIGNAL_LIVE_OFFSET))
}

#[inline(always)]
pub(crate) fn watch_execs() -> bool {
    read(&WATCH_EXECS) != 0
}

#[inline(always)]
pub(crate) fn throw_safe_bytes() -> u64 {
    read(&THROW_SAFE_BYTES)
}

#[inline(always)]
pub(crate) fn tail_call() -> bool {
    read(&TAIL_CALL) != 0
}
