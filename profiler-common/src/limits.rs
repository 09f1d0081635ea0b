//! Every bound that both sides rely on.

/// Frames kept of one stack, the caller of the hooked function first. Deeper stacks end with
/// [`StackEnd::Truncated`](crate::stack::StackEnd::Truncated). (`bpf_get_stack` stops at 127 by default.)
pub const STACK_FRAMES_MAX: usize = 1024;

/// Heaps (named groups of hooks) in one session.
pub const HEAPS_MAX: u32 = 64;

/// Largest mean distance between samples, in bytes. Bounds the rounding error of the sampling maths: see
/// [`sampling`](crate::sampling).
pub const INTERVAL_BYTES_MAX: u64 = 1 << 30;

/// Hooked calls that may be between entry and return at once, over all targets. One per thread.
pub const INFLIGHT_MAX: u32 = 65_536;

/// Live sampled blocks that the kernel can hold, unless the user asks for another number.
pub const LIVE_BLOCKS_DEFAULT: u32 = 1 << 20;

/// Places that live blocks are counted in; a power of two. Half a megabyte in the kernel: a free of what is not live
/// mostly ends there, without a search.
pub const LIVE_PLACES: u32 = 1 << 16;

/// Stacks whose frames have crossed the ring. The table evicts the least recently used, which only costs sending
/// those frames again.
pub const STACKS_SEEN: u32 = 65_536;

/// Processes whose last exec is remembered while the copies of a program run that handle it. More than tasks that can be in
/// an exec at once on one machine.
pub const EXECS_SEEN: u32 = 4096;

/// Scratch areas for unwinding that all CPUs share, beside one per CPU; a power of two. Programs can be preempted, and
/// each holds an area until it ends, so the number of areas in use is bounded by the number of threads, not of CPUs.
pub const SCRATCH_SHARED: u32 = 256;

/// Shared areas that a program tries before it gives up.
pub const SCRATCH_TRIES: u32 = 8;

/// Distance between the shared areas that a program tries; odd. Threads of one process mostly have consecutive numbers and
/// begin at consecutive areas, so the next try of another process's thread has to be elsewhere.
pub const SCRATCH_STRIDE: u32 = 37;

/// Pages of one stack that a raw copy holds at most: 128 KiB. An interpreter needs most of it for 170 frames.
pub const RAW_STACK_PAGES_MAX: usize = 32;

/// Executable mappings of all targets together.
pub const MAPPINGS_MAX: u32 = 65_536;

/// Executable mappings of one target: what a search of that many steps can tell apart, and far more than programs have.
pub const PROCESS_MAPPINGS_MAX: usize = 1 << 15;

/// Processes that have unwind tables at once.
pub const PROCESSES_MAX: u32 = 16_384;

/// Processes that are targets at once, together with forks of theirs that the agent has not met yet.
pub const TARGETS_MAX: u32 = 16_384;

/// Pages of 64 KiB of code that have unwind rows: 8 GiB.
pub const UNWIND_PAGES_MAX: u32 = 1 << 17;

/// Rules that all unwind tables share: a row numbers them in 16 bits.
pub const UNWIND_RULES_MAX: u32 = 1 << 16;

/// Page size that page-rounding allocation functions (`pvalloc`) round up to, in bytes.
pub const PAGE_BYTES: u64 = 4096;

const _: () = assert!(INTERVAL_BYTES_MAX <= u32::MAX as u64, "records carry the interval in 32 bits");
const _: () = assert!(LIVE_PLACES.is_power_of_two());
const _: () = assert!(SCRATCH_SHARED.is_power_of_two());
const _: () = assert!(STACK_FRAMES_MAX <= u16::MAX as usize, "records carry the depth in 16 bits");
const _: () = assert!(HEAPS_MAX <= u8::MAX as u32 + 1, "records carry the heap in 8 bits");
