//! Input and output of walks.

use crate::address::TargetAddr;
use crate::collect::{Span, ThreadState};
use crate::linux::proc::maps::Region;
use crate::memory::Memory;

/// Input of a walk.
#[derive(Clone, Copy)]
pub struct Scene<'a> {
    pub memory: &'a dyn Memory,
    /// The mappings by ascending address.
    pub regions: &'a [Region],
    pub threads: &'a [ThreadState],
}

/// Result of walking one allocator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Walk {
    /// Name of the heap, as in hooks (`libc`, `jemalloc`, …).
    pub heap: &'static str,
    /// Allocated blocks by ascending address, without overlaps.
    pub blocks: Vec<WalkedBlock>,
    /// Memory whose allocated blocks are all known: the rest of it is free, or the allocator's own.
    pub areas: Vec<Span>,
    /// What could not be walked, and why. Its memory is not in `areas`.
    pub gaps: Vec<String>,
    /// A thread was running allocator code, so some of the result may be wrong: worth another try later.
    pub busy: bool,
}

/// An allocated block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkedBlock {
    /// The pointer that the program has.
    pub start: TargetAddr,
    /// Usable size.
    pub size_bytes: u64,
}

/// Returns whether a range is mapped completely, and privately.
pub(super) fn covered(regions: &[Region], span: &Span) -> bool {
    let first = regions.partition_point(|region| region.end <= span.start);
    let mut end = span.start;
    for region in &regions[first..] {
        if region.start > end || region.shared {
            return false;
        }
        end = region.end;
        if end >= span.end {
            return true;
        }
    }
    false
}
