//! Stale blocks: blocks from before the recording that the process has freed before they were inserted into the live set.
//!
//! The kernel side has reported their frees as those of unknown blocks. Until the agent has read that and removes them, calls of the
//! process meet them: an allocation counts their free as missed, and the free of a block that was not sampled is reported as theirs.
//! And where the process has allocated meanwhile, the agent removes a newer block, which must be inserted again.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::address::TargetAddr;
use crate::ingest::event::{Allocation, Free};
use crate::units::MonotonicNanos;

/// The stale blocks of one inventory.
#[derive(Debug, Default)]
pub(super) struct StaleBlocks {
    marks: FxHashMap<TargetAddr, Mark>,
    /// Blocks that were not inserted, because the live set had others at their addresses.
    refused: FxHashSet<TargetAddr>,
    /// Newer blocks that were inserted again.
    restored: FxHashSet<TargetAddr>,
    /// When the last insertion began.
    inserted: MonotonicNanos,
}

#[derive(Clone, Copy, Debug)]
struct Mark {
    inserted: MonotonicNanos,
    /// When the removal began.
    removed: Option<MonotonicNanos>,
    is_counted: bool,
}

impl StaleBlocks {
    pub(super) fn begin_insertion(&mut self, now: MonotonicNanos) {
        self.inserted = now;
    }

    /// Notes blocks that were not inserted.
    pub(super) fn refuse(&mut self, addresses: Vec<TargetAddr>) {
        self.refused.extend(addresses);
    }

    /// Notes that a block of the ledger was freed while the live set did not contain it. Unless it was refused, it does by now.
    pub(super) fn note_free(&mut self, address: TargetAddr, is_earlier: bool) {
        if is_earlier && !self.refused.contains(&address) || self.restored.contains(&address) {
            self.marks.insert(address, Mark { inserted: self.inserted, removed: None, is_counted: false });
        }
    }

    /// Whether an allocation has met a stale block, which the kernel side counts as a missed free.
    pub(super) fn is_met_by_allocation(&mut self, allocation: &Allocation) -> bool {
        let Some(mark) = self.marks.get_mut(&allocation.address) else { return false };
        if allocation.time < mark.inserted || mark.is_counted || mark.removed.is_some_and(|at| at <= allocation.time) {
            return false;
        }
        if mark.removed.is_some() {
            // The newer block has been removed instead.
            mark.is_counted = true;
        } else {
            self.marks.remove(&allocation.address);
        }
        true
    }

    /// Whether a free of a block that the ledger lacks has met a stale block: what was allocated there was not sampled.
    pub(super) fn is_met_by_free(&mut self, free: &Free) -> bool {
        let is_met = |mark: &Mark| mark.removed.is_none_or(|at| free.time < at);
        let is_met = self.marks.get(&free.address).is_some_and(is_met);
        if is_met {
            self.marks.remove(&free.address);
        }
        is_met
    }

    /// Whether this is the free of a block that may have been inserted again after it.
    pub(super) fn is_restored(&self, address: TargetAddr) -> bool {
        self.restored.contains(&address)
    }

    /// Returns the blocks to remove from the live set now.
    pub(super) fn take(&mut self, now: MonotonicNanos) -> Vec<TargetAddr> {
        let left = self.marks.iter_mut().filter(|(_, mark)| mark.removed.is_none());
        left.map(|(address, mark)| {
            mark.removed = Some(now);
            *address
        })
        .collect()
    }

    pub(super) fn has_removed(&self) -> bool {
        self.marks.values().any(|mark| mark.removed.is_some())
    }

    /// Returns the addresses of removed blocks, where newer ones may have been removed instead.
    pub(super) fn take_removed(&mut self) -> Vec<TargetAddr> {
        let removed = self.marks.iter().filter(|(_, mark)| mark.removed.is_some());
        let removed: Vec<TargetAddr> = removed.map(|(address, _)| *address).collect();
        self.marks.retain(|_, mark| mark.removed.is_none());
        removed
    }

    /// Notes blocks that were inserted again.
    pub(super) fn restore(&mut self, addresses: impl IntoIterator<Item = TargetAddr>) {
        self.restored.extend(addresses);
    }
}

#[cfg(test)]
mod tests {
    use profiler_common::interval::Interval;

    use super::*;
    use crate::ids::{HeapId, HookId, Pid, StackId, Tid};

    const A: TargetAddr = TargetAddr(16);

    fn allocation(time: u64) -> Allocation {
        Allocation {
            pid: Pid(1),
            tid: Tid(1),
            address: A,
            size_bytes: 10,
            time: MonotonicNanos(time),
            stack: StackId(7),
            interval: Interval::EXACT,
            hook: HookId(0),
            heap: HeapId(0),
        }
    }

    fn free(time: u64) -> Free {
        Free { pid: Pid(1), tid: Tid(1), address: A, time: MonotonicNanos(time), age_us: 0 }
    }

    fn inserted_and_freed() -> StaleBlocks {
        let mut stale = StaleBlocks::default();
        stale.begin_insertion(MonotonicNanos(10));
        stale.note_free(A, true);
        stale
    }

    #[test]
    fn an_allocation_meets_a_stale_block_until_it_is_removed() {
        let mut stale = inserted_and_freed();
        assert!(!stale.is_met_by_allocation(&allocation(9)), "it was inserted later");
        assert!(stale.is_met_by_allocation(&allocation(11)));
        assert!(!stale.is_met_by_allocation(&allocation(12)), "the newer block is there");
        assert!(stale.take(MonotonicNanos(20)).is_empty(), "the newer block stays");

        let mut stale = inserted_and_freed();
        assert_eq!(stale.take(MonotonicNanos(20)), [A]);
        assert!(!stale.is_met_by_allocation(&allocation(20)));
        assert!(stale.is_met_by_allocation(&allocation(19)));
        assert!(!stale.is_met_by_allocation(&allocation(19)), "once");
        assert_eq!(stale.take_removed(), [A], "the newer block has been removed");
        assert!(stale.take_removed().is_empty());
    }

    #[test]
    fn a_free_that_meets_a_stale_block_is_not_one_of_the_ledgers() {
        let mut stale = inserted_and_freed();
        assert!(stale.is_met_by_free(&free(11)));
        assert!(!stale.is_met_by_free(&free(12)), "it is gone");
        let mut stale = inserted_and_freed();
        stale.take(MonotonicNanos(20));
        assert!(!stale.is_met_by_free(&free(20)));
        assert!(stale.is_met_by_free(&free(19)));
    }

    #[test]
    fn refused_and_later_blocks_are_not_stale_and_restored_ones_can_be() {
        let mut stale = StaleBlocks::default();
        stale.refuse(vec![A]);
        stale.note_free(A, true);
        assert!(stale.take(MonotonicNanos(1)).is_empty(), "it was not inserted");
        stale.note_free(TargetAddr(32), false);
        assert!(stale.take(MonotonicNanos(1)).is_empty(), "the kernel side has removed it");
        stale.restore([TargetAddr(32)]);
        assert!(stale.is_restored(TargetAddr(32)));
        stale.note_free(TargetAddr(32), false);
        assert_eq!(stale.take(MonotonicNanos(1)), [TargetAddr(32)]);
    }
}
