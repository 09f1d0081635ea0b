//! The ledger's state at an instant. Addresses only: names come later.

use super::totals::Totals;
use crate::ids::{HeapId, Pid};
pub use crate::ingest::event::Stack;

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
    /// Its blocks are copies of a parent's, made by the fork.
    pub inherited: bool,
    /// What it did.
    pub totals: Totals,
}
