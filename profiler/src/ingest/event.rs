//! Events of targets. From here on a recording can replace the kernel.

use std::sync::Arc;

use profiler_common::interval::Interval;
use profiler_common::record::RecordKind;
use profiler_common::stack::StackEnd;
use profiler_common::step::Registers;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::address::TargetAddr;
use crate::ids::{HeapId, HookId, Pid, StackId, Tid};
use crate::units::MonotonicNanos;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Alloc(Allocation),
    Free(Free),
    /// A block that is not in the kernel's live set was freed.
    UnknownFree(Free),
    /// Undoes the preceding free, which was part of a failed realloc.
    Restore(Allocation),
    /// The frames of a stack. May arrive after events that refer to it.
    Stack(Pid, StackId, Stack),
    /// A target forked; the child does not run yet.
    Fork(Fork),
    Exec(Exec),
    Remap(Remap),
    /// The memory that a stack was unwound from. Sent on request only, and possibly before the frames.
    RawStack(Pid, StackId, RawStack),
    /// A page of a stack that the kernel side did not unwind completely; all pages precede the frames.
    StackPage(Pid, StackId, StackPage),
    /// Code of an interpreter or a virtual machine that a stack contains.
    Code(RawCode),
}

impl Event {
    pub fn pid(&self) -> Pid {
        match self {
            Self::Alloc(allocation) | Self::Restore(allocation) => allocation.pid,
            Self::Free(free) | Self::UnknownFree(free) => free.pid,
            Self::Fork(fork) => fork.parent,
            Self::Exec(exec) => exec.pid,
            Self::Remap(remap) => remap.pid,
            Self::Stack(pid, ..) | Self::RawStack(pid, ..) | Self::StackPage(pid, ..) => *pid,
            Self::Code(record) => record.pid,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    pub pid: Pid,
    pub tid: Tid,
    pub address: TargetAddr,
    /// Requested size.
    pub size_bytes: u64,
    pub time: MonotonicNanos,
    pub stack: StackId,
    pub interval: Interval,
    pub hook: HookId,
    pub heap: HeapId,
    /// Whether the live set had a block with this address, whose free was missed. Recordings do not contain it.
    pub has_replaced: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Free {
    pub pid: Pid,
    pub tid: Tid,
    pub address: TargetAddr,
    pub time: MonotonicNanos,
    /// Age of the block in microseconds by the kernel side; `u32::MAX` means 71 minutes or more.
    pub age_us: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fork {
    pub parent: Pid,
    pub child: Pid,
    pub time: MonotonicNanos,
    /// The child shares the parent's memory until it calls exec (`vfork`).
    pub shares_memory: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exec {
    pub pid: Pid,
    /// Not the main thread called: per-process links, which the kernel ties to the main thread, are lost.
    pub by_other_thread: bool,
    pub time: MonotonicNanos,
}

/// A change of mappings: one range is unmapped, another one mapped. Either may be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remap {
    pub pid: Pid,
    pub tid: Tid,
    pub old_address: TargetAddr,
    pub old_bytes: u64,
    pub new_address: TargetAddr,
    pub new_bytes: u64,
    /// When the call began; later mappings in the old range are not affected.
    pub began: MonotonicNanos,
    pub ended: MonotonicNanos,
    pub stack: StackId,
    pub hook: HookId,
    pub heap: HeapId,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stack {
    /// Return addresses, the direct caller of the hooked function first.
    pub frames: Arc<[TargetAddr]>,
    #[serde(serialize_with = "write_end", deserialize_with = "read_end")]
    pub end: StackEnd,
}

fn write_end<S: Serializer>(end: &StackEnd, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u8(*end as u8)
}

fn read_end<'de, D: Deserializer<'de>>(deserializer: D) -> Result<StackEnd, D::Error> {
    let end = u8::deserialize(deserializer)?;
    StackEnd::from_wire(end).ok_or_else(|| serde::de::Error::custom("unknown stack end"))
}

/// A record of code, which its language decodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawCode {
    pub(crate) pid: Pid,
    pub(crate) kind: RecordKind,
    pub(crate) bytes: Arc<[u8]>,
}

/// A copy of a stack, with the registers at the entry of the hooked function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawStack {
    /// Stack pointer, at the function's entry.
    pub sp: TargetAddr,
    pub bp: u64,
    /// Return address. 0 if it could not be read.
    pub caller: TargetAddr,
    /// Address of the first byte: the start of the page of `sp`.
    pub start: TargetAddr,
    pub bytes: Arc<[u8]>,
}

impl RawStack {
    pub fn word(&self, address: u64) -> Option<u64> {
        let offset = usize::try_from(address.checked_sub(self.start.0)?).ok()?;
        self.bytes.get(offset..)?.first_chunk().map(|word| u64::from_ne_bytes(*word))
    }
}

/// A page of a stack, with the registers of the last frame that was unwound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackPage {
    pub registers: Registers,
    /// Address of the first byte.
    pub start: TargetAddr,
    pub bytes: Arc<[u8]>,
}
