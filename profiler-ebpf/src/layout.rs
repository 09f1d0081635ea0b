//! Types of map values that only the kernel side reads and writes.

use profiler_common::limits::{PAGE_BYTES, RAW_STACK_PAGES_MAX, STACK_FRAMES_MAX};
use profiler_common::live::LiveBlock;
use profiler_common::record::{RawStackHeader, StackHeader};
use profiler_common::unwind::ProcessMapping;

/// A hooked call between entry and return.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Inflight {
    /// Stack pointer at entry; at the return it is 8 higher.
    pub(crate) sp: u64,
    /// Requested size in bytes.
    pub(crate) size_bytes: u64,
    /// Address that the result is stored at (`posix_memalign`), or the old block (`realloc`); else 0.
    pub(crate) pointer: u64,
    /// The stack, if sampled.
    pub(crate) stack_id: u64,
    /// The old block as it was in the live set, if `old_tracked`. Mapping calls store other words here.
    pub(crate) old: LiveBlock,
    /// Code of the sampling interval, or 0 if the call was not sampled.
    pub(crate) interval_code: u32,
    pub(crate) hook: u16,
    /// A [`CallShape`](profiler_common::hook::CallShape).
    pub(crate) shape: u8,
    /// 1 if `old` was live and sampled.
    pub(crate) old_tracked: u8,
}

/// State of the unwinder between frames.
#[repr(C)]
pub(crate) struct Walk {
    pub(crate) ip: u64,
    pub(crate) sp: u64,
    pub(crate) bp: u64,
    /// Frames written so far.
    pub(crate) depth: u64,
    /// The last frame's mapping: usually the next frame's too.
    pub(crate) mapping: ProcessMapping,
    pub(crate) mapping_first: u32,
    pub(crate) mapping_count: u32,
    /// Hash of the frames so far.
    pub(crate) hash: u64,
    /// 1 if `ip` is a return address.
    pub(crate) is_return_address: u32,
    pub(crate) reserved: u32,
}

/// A stack record under construction.
#[repr(C)]
pub(crate) struct StackRecord {
    pub(crate) header: StackHeader,
    pub(crate) frames: [u64; STACK_FRAMES_MAX],
}

/// Words of the target's stack that are buffered at once: two pages.
pub(crate) const WINDOW_WORDS: usize = 1024;

/// A scratch area: memory that is too large for the 512-byte BPF stack.
#[repr(C)]
pub(crate) struct Scratch {
    /// 0 if free.
    pub(crate) claimed: u64,
    pub(crate) walk: Walk,
    /// Address of the window's first word.
    pub(crate) window_start: u64,
    /// Valid words of the window.
    pub(crate) window_words: u64,
    pub(crate) window: [u64; WINDOW_WORDS],
    pub(crate) record: StackRecord,
}

/// A raw stack record under construction.
#[repr(C)]
pub(crate) struct RawRecord {
    pub(crate) header: RawStackHeader,
    pub(crate) pages: [[u8; PAGE_BYTES as usize]; RAW_STACK_PAGES_MAX],
}

const _: () = assert!(STACK_FRAMES_MAX.is_power_of_two() && WINDOW_WORDS.is_power_of_two());
