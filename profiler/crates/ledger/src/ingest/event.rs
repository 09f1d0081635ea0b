//! Events of targets: what ledgers are made of. From here on a recording can replace the kernel.

use std::sync::Arc;

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::{HeapId, HookId, Pid, StackId, Tid};
use heapbpf_base::units::MonotonicNanos;
use profiler_common::interval::Interval;
use profiler_common::stack::StackEnd;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A change of a ledger; a recording contains all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Alloc(Allocation),
    Free(Free),
    /// Undoes the preceding free, which was part of a failed realloc.
    Restore(Allocation),
    /// The frames of a stack. May arrive after events that refer to it.
    Stack(Pid, StackId, Stack),
    Remap(Remap),
}

impl Event {
    pub fn pid(&self) -> Pid {
        match self {
            Self::Alloc(allocation) | Self::Restore(allocation) => allocation.pid,
            Self::Free(free) => free.pid,
            Self::Remap(remap) => remap.pid,
            Self::Stack(pid, ..) => *pid,
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
