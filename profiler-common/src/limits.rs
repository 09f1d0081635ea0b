//! Limits that both sides rely on.

/// Maximum number of frames of a stack, the caller of the hooked function first. Deeper stacks end with
/// [`StackEnd::Truncated`](crate::stack::StackEnd::Truncated). (`bpf_get_stack` stops at 127 by default.)
pub const STACK_FRAMES_MAX: usize = 1024;

/// Heaps (named groups of hooks) in one session.
pub const HEAPS_MAX: u32 = 64;

/// Maximum mean distance between samples, in bytes. Bounds the rounding error of the sampling arithmetic: see
/// [`sampling`](crate::sampling).
pub const INTERVAL_BYTES_MAX: u64 = 1 << 30;

/// Hooks of a session: a cookie stores their number in 16 bits.
pub const HOOKS_MAX: u32 = 1 << 16;

/// Buckets of hooked calls between entry and return, over all targets; a power of two. A thread has at most one such call.
pub const INFLIGHT_BUCKETS: u32 = 1 << 14;

/// Calls in a bucket. More fail to be stored.
pub const INFLIGHT_WAYS: usize = 4;

/// Hooked calls between entry and return where they are in a hash map: see
/// [`PROBES_MAX`].
pub const INFLIGHT_CALLS_MAX: u32 = 1 << 14;

/// Probed instructions of all targets together, where links carry no cookies (before Linux 5.15).
pub const PROBES_MAX: u32 = 1 << 16;

/// Default capacity of the live set.
pub const LIVE_BLOCKS_DEFAULT: u32 = 1 << 20;

/// Slots of the filter in front of the live set; a power of two. Two megabytes in the kernel: nearly all frees of blocks that
/// are not live end there, without a search.
pub const LIVE_FILTER_SLOTS: u32 = 1 << 18;

/// Buckets of ids of stacks whose frames have been sent; a power of two.
pub const STACK_BUCKETS: u32 = 1 << 16;

/// Ids in a bucket; a power of two. Further ids replace others, whose frames are then sent again.
pub const STACK_WAYS: usize = 4;

/// Processes whose last exec is remembered for the other copies of the program. Exceeds the number of tasks that can be in an
/// exec at once on one machine.
pub const EXECS_SEEN: u32 = 4096;

/// Scratch areas for unwinding that all CPUs share, in addition to one per CPU; a power of two. Programs can be preempted, and
/// each holds an area until it ends, so the number of threads, not of CPUs, bounds the areas in use.
pub const SCRATCH_SHARED: u32 = 256;

/// Shared areas that a program tries before it gives up.
pub const SCRATCH_TRIES: u32 = 8;

/// Distance between the shared areas that a program tries; odd. Threads of one process mostly have consecutive ids and start
/// at consecutive areas, so the next try must not be the start of another thread.
pub const SCRATCH_STRIDE: u32 = 37;

/// Maximum pages of a raw stack copy: 128 KiB. An interpreter needs most of it for 170 frames.
pub const RAW_STACK_PAGES_MAX: usize = 32;

/// Maximum pages of the copy of a stack whose walk ended in code that is not registered: 64 KiB. A quarter of the ring buffer
/// holds 60 of them.
pub const STACK_COPY_PAGES_MAX: u64 = 16;

/// Executable mappings of all targets together.
pub const MAPPINGS_MAX: u32 = 65_536;

/// Executable mappings of one target: limited by the steps of the binary search, and far more than programs have.
pub const PROCESS_MAPPINGS_MAX: usize = 1 << 15;

pub const PROCESSES_MAX: u32 = 16_384;

/// Mappings that are sent per process and period: a program that does nothing but load and unload plugins makes half as many. One that maps
/// files all the time must not fill the ring buffer.
pub const MAPPED_PER_PERIOD: u32 = 1 << 15;

/// Binary logarithm of the period in nanoseconds: 1.07 s.
pub const MAPPED_PERIOD_SHIFT: u32 = 30;

/// Files whose unwind tables the kernel side finds by itself when they are mapped again.
pub const CODE_FILES_MAX: u32 = 16_384;

/// Processes that are targets at once, including forks that the agent has not processed yet.
pub const TARGETS_MAX: u32 = 16_384;

/// Pages of 64 KiB of code that have unwind rows: 8 GiB.
pub const UNWIND_PAGES_MAX: u32 = 1 << 17;

/// Slots of the cache of unwind rules, each for one address of one process; a power of two.
pub const RULE_CACHE_SLOTS: u32 = 1 << 15;

/// Rules that all unwind tables share: a row stores 16-bit rule numbers.
pub const UNWIND_RULES_MAX: u32 = 1 << 16;

/// Interpreters of processes whose frames the kernel side unwinds, and as many virtual machines; forked children share that of their
/// parent.
pub const RUNTIMES_MAX: u32 = 4096;

/// Code that the kernel side sends per process and [`CODE_PERIOD_SHIFT`]: a program with 10,000 functions starts in a few seconds. One
/// that pretends to have new code in each frame must not fill the ring buffer.
pub const CODE_PER_PERIOD: u32 = 4096;

/// Binary logarithm of the period in nanoseconds: 1.07 s.
pub const CODE_PERIOD_SHIFT: u32 = 30;

/// Counters of sent code, by the low bits of the process id; a power of two.
pub const CODE_RATES: u32 = 1 << 12;

/// Maximum bytes of a line table in a record. The rest has no lines: fewer than one module in a thousand has a longer one.
pub const INTERPRETED_CODE_BYTES_MAX: usize = 8192;

/// Smallest size of a page on any processor, in bytes; larger ones are multiples. Unit in which stacks are read and copied.
pub const PAGE_BYTES: u64 = 4096;

const _: () = assert!(INTERVAL_BYTES_MAX <= u32::MAX as u64, "records carry the interval in 32 bits");
const _: () = assert!(LIVE_FILTER_SLOTS.is_power_of_two());
const _: () = assert!(INFLIGHT_BUCKETS.is_power_of_two());
const _: () = assert!(STACK_BUCKETS.is_power_of_two() && STACK_WAYS.is_power_of_two());
const _: () = assert!(RULE_CACHE_SLOTS.is_power_of_two());
const _: () = assert!(CODE_RATES.is_power_of_two());
const _: () = assert!(SCRATCH_SHARED.is_power_of_two());
const _: () = assert!(STACK_FRAMES_MAX <= u16::MAX as usize, "records carry the depth in 16 bits");
const _: () = assert!(HEAPS_MAX <= u8::MAX as u32 + 1, "records carry the heap in 8 bits");
