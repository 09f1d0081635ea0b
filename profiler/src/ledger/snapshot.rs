//! The ledger's state at an instant. Addresses only: names come later.

use std::sync::Arc;

use profiler_common::stack::StackEnd;

use super::totals::Totals;
use crate::address::TargetAddr;
use crate::ids::{HeapId, Pid};

/// One target at an instant. Immutable.
#[derive(Clone, Debug)]
pub struct TargetSnapshot {
    /// The process.
    pub pid: Pid,
    /// Over everything.
    pub totals: Totals,
    /// By heap, in the order of their ids.
    pub heaps: Vec<(HeapId, Totals)>,
    /// By stack and heap.
    pub callsites: Vec<CallsiteSnapshot>,
}

/// One callsite at an instant.
#[derive(Clone, Debug)]
pub struct CallsiteSnapshot {
    /// Its stack; `None` when the frames were lost on the way from the kernel.
    pub stack: Option<Stack>,
    /// The heap it allocated from.
    pub heap: HeapId,
    /// What it did.
    pub totals: Totals,
}

/// A stack's frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Return addresses, the direct caller of the hooked function first.
    pub frames: Arc<[TargetAddr]>,
    /// Why it ends where it does.
    pub end: StackEnd,
}
