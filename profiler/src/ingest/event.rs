//! What happened in a target. From here on a recording can stand in for the kernel.

use std::sync::Arc;

use profiler_common::interval::Interval;
use profiler_common::stack::StackEnd;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::address::TargetAddr;
use crate::ids::{HeapId, HookId, Pid, StackId, Tid};
use crate::units::MonotonicNanos;

/// One event of one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A sampled block was allocated.
    Alloc(Allocation),
    /// A sampled block is about to be freed.
    Free(Free),
    /// The free before was of a realloc that failed: the block lives on.
    Restore(Allocation),
    /// The frames of a stack. May come after events that name it.
    Stack(Pid, StackId, Stack),
    /// A target has made a process, which does not run yet.
    Fork(Fork),
    /// A process runs another program from now on.
    Exec(Exec),
    /// Memory was mapped, unmapped or moved.
    Remap(Remap),
    /// The memory that a stack was unwound from. Comes by request only, and may come before the frames.
    RawStack(Pid, StackId, RawStack),
}

impl Event {
    /// The target.
    pub fn pid(&self) -> Pid {
        match self {
            Self::Alloc(allocation) | Self::Restore(allocation) => allocation.pid,
            Self::Free(free) => free.pid,
            Self::Fork(fork) => fork.parent,
            Self::Exec(exec) => exec.pid,
            Self::Remap(remap) => remap.pid,
            Self::Stack(pid, ..) | Self::RawStack(pid, ..) => *pid,
        }
    }
}

/// A sampled block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The target.
    pub pid: Pid,
    /// The thread that allocated.
    pub tid: Tid,
    /// Where the block is.
    pub address: TargetAddr,
    /// Bytes that were asked for.
    pub size_bytes: u64,
    /// When the call returned.
    pub time: MonotonicNanos,
    /// The stack that made it.
    pub stack: StackId,
    /// The interval it was sampled at.
    pub interval: Interval,
    /// The hook that saw it.
    pub hook: HookId,
    /// The heap of the hook.
    pub heap: HeapId,
}

/// The end of a sampled block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Free {
    /// The target.
    pub pid: Pid,
    /// The thread that frees.
    pub tid: Tid,
    /// Where the block is.
    pub address: TargetAddr,
    /// When the free was entered.
    pub time: MonotonicNanos,
    /// How long the block has lived, in microseconds, as the kernel side knows it; `u32::MAX` (71 minutes) for that and more.
    pub age_us: u32,
}

/// A fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fork {
    /// The target.
    pub parent: Pid,
    /// The new process.
    pub child: Pid,
    /// When.
    pub time: MonotonicNanos,
    /// The child runs in the parent's own memory until it calls exec (`vfork`), not in a copy.
    pub shares_memory: bool,
}

/// An exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exec {
    /// The process.
    pub pid: Pid,
    /// It was another thread than the first that called. Links that are of one process alone are lost then: the kernel ties
    /// them to the first thread, which is gone.
    pub by_other_thread: bool,
    /// When.
    pub time: MonotonicNanos,
}

/// A change of what is mapped: one range gone, another there. Either may be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remap {
    /// The target.
    pub pid: Pid,
    /// The thread.
    pub tid: Tid,
    /// Start of the range that is gone.
    pub old_address: TargetAddr,
    /// Its length.
    pub old_bytes: u64,
    /// Start of the range that is there now.
    pub new_address: TargetAddr,
    /// Its length.
    pub new_bytes: u64,
    /// When the call began: what was mapped at the old range later is not meant.
    pub began: MonotonicNanos,
    /// When it ended.
    pub ended: MonotonicNanos,
    /// The stack that called.
    pub stack: StackId,
    /// The hook that saw it.
    pub hook: HookId,
    /// The heap of the hook.
    pub heap: HeapId,
}

/// A stack's frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stack {
    /// Return addresses, the direct caller of the hooked function first.
    pub frames: Arc<[TargetAddr]>,
    /// Why it ends where it does.
    #[serde(serialize_with = "write_end", deserialize_with = "read_end")]
    pub end: StackEnd,
}

fn write_end<S: Serializer>(end: &StackEnd, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u8(*end as u8)
}

fn read_end<'de, D: Deserializer<'de>>(deserializer: D) -> Result<StackEnd, D::Error> {
    let end = u8::deserialize(deserializer)?;
    StackEnd::from_wire(end).ok_or_else(|| serde::de::Error::custom("no stack ends in this way"))
}

/// A copy of a stack, and the registers at the entry of the hooked function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawStack {
    /// Stack pointer: the return address is on top.
    pub sp: TargetAddr,
    /// What rbp held.
    pub bp: u64,
    /// Address of the copy's first byte: where the page of `sp` begins.
    pub start: TargetAddr,
    /// The memory.
    pub bytes: Arc<[u8]>,
}

impl RawStack {
    /// The 8 bytes at `address`, or `None` where the copy does not reach.
    pub fn word(&self, address: u64) -> Option<u64> {
        let offset = usize::try_from(address.checked_sub(self.start.0)?).ok()?;
        self.bytes.get(offset..)?.first_chunk().map(|word| u64::from_ne_bytes(*word))
    }
}
