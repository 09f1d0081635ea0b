//! Records of the ring buffer, as the kernel side writes them. Native byte order, no implicit padding.
//!
//! Order in the ring: a block's [`Alloc`](RecordKind::Alloc) is written before the allocating call returns, its
//! [`Free`](RecordKind::Free) before the real free, so one address's records are in the order in which the target saw
//! them. The frames of a stack ([`Stack`](RecordKind::Stack)) may come after the first record that names it, when two
//! threads meet the same new stack at once.

use crate::live::LiveBlock;

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// A sampled block was allocated: [`AllocRecord`].
    Alloc = 1,
    /// A live sampled block is about to be freed: [`FreeRecord`].
    Free = 2,
    /// A realloc failed after its [`Free`](Self::Free) had been written: the block lives on. An [`AllocRecord`] with
    /// the block's original facts.
    Restore = 3,
    /// The frames of a stack: [`StackHeader`], then `depth` addresses of 8 bytes, the direct caller first.
    Stack = 4,
    /// A copy of the stack's memory, for checking the unwinder: [`RawStackHeader`], then the memory. Written by request
    /// only, for each sampled call.
    RawStack = 5,
    /// A target has made a process: [`ForkRecord`].
    Fork = 6,
    /// A process runs another program from now on: [`ExecRecord`].
    Exec = 7,
    /// Memory was mapped, unmapped or moved: [`RemapRecord`].
    Remap = 8,
}

impl RecordKind {
    /// The kind for a wire value, or `None` for one that this version does not know.
    pub const fn from_wire(value: u8) -> Option<Self> {
        Some(match value {
            1 => Self::Alloc,
            2 => Self::Free,
            3 => Self::Restore,
            4 => Self::Stack,
            5 => Self::RawStack,
            6 => Self::Fork,
            7 => Self::Exec,
            8 => Self::Remap,
            _ => return None,
        })
    }
}

/// The start of every record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct RecordHeader {
    /// A [`RecordKind`].
    pub kind: u8,
    /// Always 0.
    pub reserved: [u8; 3],
    /// The process, as the initial PID namespace numbers it.
    pub tgid: u32,
}

impl RecordHeader {
    /// A header of this kind for process `tgid`.
    #[inline(always)]
    pub const fn new(kind: RecordKind, tgid: u32) -> Self {
        Self { kind: kind as u8, reserved: [0; 3], tgid }
    }
}

/// An allocation, or the restoration of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct AllocRecord {
    /// Kind `Alloc` or `Restore`.
    pub header: RecordHeader,
    /// The block's address.
    pub address: u64,
    /// The thread.
    pub tid: u32,
    /// The hook that saw it: an index into the session's list.
    pub hook: u16,
    /// Always 0.
    pub reserved: u16,
    /// The block, as entered into the live set.
    pub block: LiveBlock,
}

/// A free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct FreeRecord {
    /// Kind `Free`.
    pub header: RecordHeader,
    /// The block's address.
    pub address: u64,
    /// When the free was entered, in nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The thread that frees.
    pub tid: u32,
    /// How long the block has lived, in microseconds; `u32::MAX` (71 minutes) for that and more.
    pub age_us: u32,
}

impl FreeRecord {
    /// How long a block has lived that was made at `born_us` and is freed at `now_us`, as a record has it.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "what does not fit is cut before")]
    pub const fn age_us(born_us: u64, now_us: u64) -> u32 {
        let age_us = now_us.saturating_sub(born_us);
        if age_us > u32::MAX as u64 { u32::MAX } else { age_us as u32 }
    }
}

/// The fixed part of a stack record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct StackHeader {
    /// Kind `Stack`.
    pub header: RecordHeader,
    /// The stack's id.
    pub stack_id: u64,
    /// Number of addresses that follow.
    pub depth: u16,
    /// A [`StackEnd`](crate::stack::StackEnd).
    pub end: u8,
    /// Always 0.
    pub reserved: [u8; 5],
}

/// The fixed part of a raw stack record: the registers at the call's entry, and what memory follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct RawStackHeader {
    /// Kind `RawStack`.
    pub header: RecordHeader,
    /// The id of the stack that was unwound from the same registers and memory.
    pub stack_id: u64,
    /// Stack pointer: the return address is on top.
    pub sp: u64,
    /// Frame pointer, or whatever the caller keeps in rbp.
    pub bp: u64,
    /// Address of the first byte that follows: where the page of `sp` begins.
    pub start: u64,
    /// Bytes that follow: whole pages, up to the first that is not there.
    pub length: u64,
}

/// A fork, written before the child runs, by the thread that forks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ForkRecord {
    /// Kind `Fork`; the process is the parent.
    pub header: RecordHeader,
    /// When, in nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The new process.
    pub child: u32,
    /// 1 when the child runs in the parent's own memory (`vfork`, `CLONE_VM`), 0 when it has a copy.
    pub shares_memory: u32,
}

/// An exec that has succeeded, written before the new program's first instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ExecRecord {
    /// Kind `Exec`.
    pub header: RecordHeader,
    /// When, in nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The thread that called, by the number that it had before: an exec makes it the first one, if it was another.
    pub tid: u32,
    /// Always 0.
    pub reserved: u32,
}

/// A change of what is mapped: `old` is gone, `new` is there. Either may be empty. Written when the call has succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct RemapRecord {
    /// Kind `Remap`.
    pub header: RecordHeader,
    /// Start of the range that is gone.
    pub old_address: u64,
    /// Its length in bytes.
    pub old_bytes: u64,
    /// Start of the range that is there now.
    pub new_address: u64,
    /// Its length in bytes.
    pub new_bytes: u64,
    /// When the call began, in nanoseconds of `CLOCK_MONOTONIC`: what was mapped at `old` later is not meant.
    pub began_ns: u64,
    /// When it ended.
    pub ended_ns: u64,
    /// The stack that called.
    pub stack_id: u64,
    /// The thread.
    pub tid: u32,
    /// The hook that saw it.
    pub hook: u16,
    /// Its heap.
    pub heap: u8,
    /// Always 0.
    pub reserved: u8,
}

const _: () = assert!(size_of::<ForkRecord>() == 24);
const _: () = assert!(size_of::<ExecRecord>() == 24);
const _: () = assert!(size_of::<RemapRecord>() == 72);
const _: () = assert!(size_of::<RecordHeader>() == 8);
const _: () = assert!(size_of::<AllocRecord>() == 48);
const _: () = assert!(size_of::<FreeRecord>() == 32);
const _: () = assert!(size_of::<StackHeader>() == 24);
const _: () = assert!(size_of::<RawStackHeader>() == 48);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_saturate_at_both_ends() {
        for (born_us, now_us, age_us) in [
            (5, 5, 0),
            (5, 1_005, 1000),
            (5, 4, 0),
            (0, 4_294_967_294, u32::MAX - 1),
            (0, 4_294_967_295, u32::MAX),
            (0, u64::MAX, u32::MAX),
        ] {
            assert_eq!(FreeRecord::age_us(born_us, now_us), age_us, "{born_us} to {now_us}");
        }
    }
}
