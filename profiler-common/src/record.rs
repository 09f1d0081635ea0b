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
}

impl RecordKind {
    /// The kind for a wire value, or `None` for one that this version does not know.
    #[must_use]
    pub const fn from_wire(value: u8) -> Option<Self> {
        Some(match value {
            1 => Self::Alloc,
            2 => Self::Free,
            3 => Self::Restore,
            4 => Self::Stack,
            5 => Self::RawStack,
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
    #[must_use]
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
    /// Always 0.
    pub reserved: u32,
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

const _: () = assert!(size_of::<RecordHeader>() == 8);
const _: () = assert!(size_of::<AllocRecord>() == 48);
const _: () = assert!(size_of::<FreeRecord>() == 32);
const _: () = assert!(size_of::<StackHeader>() == 24);
const _: () = assert!(size_of::<RawStackHeader>() == 48);
