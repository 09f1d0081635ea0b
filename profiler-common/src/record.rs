//! Records of the ring buffer, as the kernel side writes them. Native byte order, no implicit padding.
//!
//! Order in the ring buffer: a block's [`Alloc`](RecordKind::Alloc) is written before the allocating call returns, its
//! [`Free`](RecordKind::Free) before the real free, so the records of one address are in the order in which the target used
//! it. The frames of a stack ([`Stack`](RecordKind::Stack)) may follow the first record that refers to it, if two threads
//! capture the same new stack at once.

use crate::limits::PAGE_BYTES;
use crate::live::LiveBlock;
use crate::mapped::FileKey;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// A sampled block was allocated: [`AllocRecord`].
    Alloc = 1,
    /// A live sampled block is about to be freed: [`FreeRecord`].
    Free = 2,
    /// A realloc failed after its [`Free`](Self::Free) had been written: the block stays live. An [`AllocRecord`] with the
    /// block's original data.
    Restore = 3,
    /// The frames of a stack: [`StackHeader`], then `depth` addresses of 8 bytes, the direct caller first.
    Stack = 4,
    /// A copy of the stack's memory, for checking the unwinder: [`RawStackHeader`], then the memory. Written on request only,
    /// for each sampled call.
    RawStack = 5,
    /// A target has forked: [`ForkRecord`].
    Fork = 6,
    /// A process has executed another program: [`ExecRecord`].
    Exec = 7,
    /// Memory was mapped, unmapped or moved: [`RemapRecord`].
    Remap = 8,
    /// A page of a stack whose walk ended at an address outside the registered mappings, because they have changed:
    /// [`StackPageRecord`]. The pages of a stack are written by rising address, followed by its [`Stack`](Self::Stack), so
    /// that the agent can continue the walk. No other call has this stack's id.
    StackPage = 9,
    /// A block that is not in the live set is about to be freed: a [`FreeRecord`] of age 0. Only of targets that
    /// [report frees](crate::target::REPORTS_FREES).
    UnknownFree = 10,
    /// Interpreted code that a stack contains: a [`CodeRecord`](crate::interpreter::CodeRecord), short or long.
    Code = 11,
    /// Code that a stack contains, whose names the agent reads: a [`CodePlaceRecord`](crate::interpreter::CodePlaceRecord).
    CodePlace = 12,
    /// A Ruby instruction sequence that a stack contains: a [`RubyCodeRecord`](crate::ruby::RubyCodeRecord).
    RubyCode = 13,
    /// A function of PHP that a stack contains: a [`PhpCodeRecord`](crate::php::PhpCodeRecord).
    PhpCode = 14,
    /// A target has mapped a library, or something else where it had code of a file: [`MappedRecord`]. Written before new code can run there, and
    /// so before the stacks through it.
    Mapped = 15,
    /// A target has touched a range of memory for the first time: a [`RangeRecord`]. Written before the memory is there.
    Range = 16,
}

impl RecordKind {
    /// The kind for a wire value, or `None` if this version does not define it.
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
            9 => Self::StackPage,
            10 => Self::UnknownFree,
            11 => Self::Code,
            12 => Self::CodePlace,
            13 => Self::RubyCode,
            14 => Self::PhpCode,
            15 => Self::Mapped,
            16 => Self::Range,
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
    /// Always 0. Not an array, which the kernel side's compiler would clear byte by byte in a subprogram.
    pub reserved: u8,
    /// Always 0.
    pub reserved_too: u16,
    /// Process id in the initial PID namespace.
    pub tgid: u32,
}

impl RecordHeader {
    #[inline(always)]
    pub const fn new(kind: RecordKind, tgid: u32) -> Self {
        Self { kind: kind as u8, reserved: 0, reserved_too: 0, tgid }
    }
}

/// No block has this address.
pub const UNKNOWN_ADDRESS: u64 = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct AllocRecord {
    /// Kind `Alloc` or `Restore`.
    pub header: RecordHeader,
    /// [`UNKNOWN_ADDRESS`] if the hook knows none: then the block is not in the live set.
    pub address: u64,
    pub tid: u32,
    /// Hook of the call: an index into the session's list.
    pub hook: u16,
    /// 1 if the block has replaced one of the live set, whose free was missed; otherwise 0.
    pub has_replaced: u16,
    /// The block, as entered into the live set.
    pub block: LiveBlock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct FreeRecord {
    /// Kind `Free` or `UnknownFree`.
    pub header: RecordHeader,
    pub address: u64,
    /// Time at the entry of the free, in nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    pub tid: u32,
    /// Lifetime of the block in microseconds, saturated at `u32::MAX` (71 minutes).
    pub age_us: u32,
}

impl FreeRecord {
    /// Lifetime of a block that was allocated at `born_us` and is freed at `now_us`, as in a record.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "saturated before")]
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
    pub stack_id: u64,
    /// Number of addresses that follow.
    pub depth: u16,
    /// A [`StackEnd`](crate::stack::StackEnd).
    pub end: u8,
    /// Always 0. Not an array: see [`RecordHeader`].
    pub reserved: u8,
    /// Always 0.
    pub reserved_too: u32,
}

/// The fixed part of a raw stack record: the registers at the call's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct RawStackHeader {
    /// Kind `RawStack`.
    pub header: RecordHeader,
    /// Id of the stack that was unwound from the same registers and memory.
    pub stack_id: u64,
    /// Stack pointer, at the function's entry.
    pub sp: u64,
    /// Frame pointer, or any value that the caller keeps in its register.
    pub bp: u64,
    /// Return address, from the stack or from a register. 0 if it could not be read.
    pub caller: u64,
    /// Address of the first byte that follows: start of the page of `sp`.
    pub start: u64,
    /// Bytes that follow: whole pages, up to the first unmapped one.
    pub length: u64,
}

#[expect(clippy::cast_possible_truncation, reason = "a few thousand")]
const STACK_PAGE_BYTES: usize = PAGE_BYTES as usize;

/// A page of a stack, and the registers of the last frame that was unwound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct StackPageRecord {
    /// Kind `StackPage`.
    pub header: RecordHeader,
    pub stack_id: u64,
    /// The frame's address, which is the last one of the stack's record.
    pub ip: u64,
    pub sp: u64,
    pub bp: u64,
    /// The link register, on processors that have one.
    pub link: u64,
    /// 1 if `ip` is a return address.
    pub is_return_address: u64,
    /// Address of the page: in the first record that of `sp`.
    pub start: u64,
    pub page: [u8; STACK_PAGE_BYTES],
}

/// A fork, written before the child runs, by the forking thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ForkRecord {
    /// Kind `Fork`; `tgid` is the parent.
    pub header: RecordHeader,
    /// In nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    pub child: u32,
    /// 1 if the child runs in the parent's memory (`vfork`, `CLONE_VM`), 0 if it has a copy.
    pub shares_memory: u32,
}

/// A successful exec, written before the new program's first instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ExecRecord {
    /// Kind `Exec`.
    pub header: RecordHeader,
    /// In nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The calling thread, by its id before the exec, which makes it the first thread.
    pub tid: u32,
    /// Always 0.
    pub reserved: u32,
}

/// A change of mappings: `old` was unmapped, `new` mapped. Either may be empty. Written after the call has succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct RemapRecord {
    /// Kind `Remap`.
    pub header: RecordHeader,
    pub old_address: u64,
    pub old_bytes: u64,
    pub new_address: u64,
    pub new_bytes: u64,
    /// Start of the call, in nanoseconds of `CLOCK_MONOTONIC`: later mappings at `old` are not affected.
    pub began_ns: u64,
    pub ended_ns: u64,
    pub stack_id: u64,
    pub tid: u32,
    pub hook: u16,
    pub heap: u8,
    /// Always 0.
    pub reserved: u8,
}

/// A mapping that a process is about to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct MappedRecord {
    /// Kind `Mapped`.
    pub header: RecordHeader,
    pub start: u64,
    /// Exclusive.
    pub end: u64,
    /// Offset in the file of the first byte.
    pub offset: u64,
    /// The file; all 0 for memory without a file, and if it is not known.
    pub file: FileKey,
    /// Number of this change among those of the process that are sent: from 1 on.
    pub number: u32,
    /// 1 if the rows of the process have this mapping with its table, so that the agent has nothing to do for unwinding.
    pub is_corrected: u16,
    /// 1 if there was code of another file.
    pub has_replaced: u16,
}

/// The first touch of a range of 2 to the power of [`RANGE_SHIFT`](crate::pages::RANGE_SHIFT) bytes, which may make all of its pages
/// resident at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct RangeRecord {
    /// Kind `Range`.
    pub header: RecordHeader,
    /// Address of the page that was touched.
    pub page: u64,
    /// In nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    pub stack_id: u64,
    pub tid: u32,
    /// As in [`range_id`](crate::pages::range_id).
    pub memory: u32,
}

const _: () = assert!(size_of::<RangeRecord>() == 40);
const _: () = assert!(size_of::<MappedRecord>() == 56);
const _: () = assert!(size_of::<ForkRecord>() == 24);
const _: () = assert!(size_of::<ExecRecord>() == 24);
const _: () = assert!(size_of::<RemapRecord>() == 72);
const _: () = assert!(size_of::<RecordHeader>() == 8);
const _: () = assert!(size_of::<AllocRecord>() == 48);
const _: () = assert!(size_of::<FreeRecord>() == 32);
const _: () = assert!(size_of::<StackHeader>() == 24);
const _: () = assert!(size_of::<RawStackHeader>() == 56);
const _: () = assert!(size_of::<StackPageRecord>() == 64 + STACK_PAGE_BYTES);

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
