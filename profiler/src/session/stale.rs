//! Stale blocks: blocks allocated before recording started that the process has freed before they were inserted into
//! the live set.
//!
//! The kernel side has reported frees of stale blocks as those of unknown blocks. Until the agent has read such a
//! report and removes the block, calls of the process meet it: an allocation replaces it and counts its free as missed,
//! and the free of a block that was not sampled is reported as its free. Records contain what calls have met: times do
//! not show it, because the agent inserts and removes many blocks at once. And where the process has allocated
//! meanwhile, the agent removes a newer block, which must be inserted again.
//!
//! A block may have been inserted later than calls whose records are read afterwards: the process has freed it, allocated
//! there and freed again, and only then was it inserted. So an allocation that has met nothing does not show that the
//! block is gone: each further free at the address may be the one before the insertion.

use heapbpf_base::address::TargetAddr;
use heapbpf_ledger::ingest::event::{Allocation, Free};
use rustc_hash::{FxHashMap, FxHashSet};

/// The stale blocks of one inventory.
#[derive(Debug, Default)]
pub(super) struct StaleBlocks {
    marks: FxHashMap<TargetAddr, Mark>,
    /// Blocks that were not inserted, because the live set had others at their addresses.
    refused: FxHashSet<TargetAddr>,
    /// Addresses of inserted blocks that no call has met yet, although the process has allocated there since: newer blocks that
    /// were inserted again, and blocks inserted after the records of their free and of an allocation were written.
    unmet: FxHashSet<TargetAddr>,
}

/// What has happened to a stale block.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    /// Whether its removal has begun.
    is_removed: bool,
    /// Whether the process has replaced it since then.
    is_replaced: bool,
}

impl StaleBlocks {
    /// Notes blocks that were not inserted.
    pub(super) fn refuse(&mut self, addresses: Vec<TargetAddr>) {
        self.refused.extend(addresses);
    }

    /// Notes that a block of the ledger was freed while the live set did not contain it. Unless the block was refused,
    /// the live set contains it by now.
    pub(super) fn note_free(&mut self, address: TargetAddr, is_earlier: bool) {
        if is_earlier && !self.refused.contains(&address) || self.unmet.contains(&address) {
            self.marks.entry(address).or_default();
        }
    }

    /// Whether an allocation has met a stale block, which the kernel side counts as a missed free.
    pub(super) fn is_met_by_allocation(&mut self, allocation: &Allocation) -> bool {
        match self.marks.get_mut(&allocation.address) {
            // The newer block may have been removed instead.
            Some(mark) if mark.is_removed => allocation.has_replaced && !std::mem::replace(&mut mark.is_replaced, true),
            Some(_) => {
                self.marks.remove(&allocation.address);
                if allocation.has_replaced {
                    self.unmet.remove(&allocation.address);
                } else {
                    self.unmet.insert(allocation.address);
                }
                allocation.has_replaced
            }
            None => false,
        }
    }

    /// Whether a free of a block that is in the live set but not in the ledger has met a stale block: the block that
    /// was allocated there was not sampled.
    pub(super) fn is_met_by_free(&mut self, free: &Free) -> bool {
        self.unmet.remove(&free.address);
        match self.marks.get_mut(&free.address) {
            // A newer block may have been removed instead.
            Some(mark) if mark.is_removed => !std::mem::replace(&mut mark.is_replaced, true),
            Some(_) => self.marks.remove(&free.address).is_some(),
            None => false,
        }
    }

    /// Whether a free at this address may be older than the block that was inserted there.
    pub(super) fn is_unmet(&self, address: TargetAddr) -> bool {
        self.unmet.contains(&address)
    }

    /// Takes the blocks to remove from the live set now.
    pub(super) fn take(&mut self) -> Vec<TargetAddr> {
        let Self { marks, unmet, .. } = self;
        let left = marks.iter_mut().filter(|(_, mark)| !mark.is_removed);
        left.map(|(address, mark)| {
            mark.is_removed = true;
            unmet.remove(address);
            *address
        })
        .collect()
    }

    pub(super) fn has_removed(&self) -> bool {
        self.marks.values().any(|mark| mark.is_removed)
    }

    /// Takes the addresses of removed blocks, where newer ones may have been removed instead.
    pub(super) fn take_removed(&mut self) -> Vec<TargetAddr> {
        let removed = self.marks.iter().filter(|(_, mark)| mark.is_removed);
        let removed: Vec<TargetAddr> = removed.map(|(address, _)| *address).collect();
        self.marks.retain(|_, mark| !mark.is_removed);
        removed
    }

    /// Notes blocks that were inserted again.
    pub(super) fn restore(&mut self, addresses: impl IntoIterator<Item = TargetAddr>) {
        self.unmet.extend(addresses);
    }
}

#[cfg(test)]
mod tests {
    use heapbpf_base::ids::{HeapId, HookId, Pid, StackId, Tid};
    use heapbpf_base::units::MonotonicNanos;
    use profiler_common::interval::Interval;

    use super::*;

    const A: TargetAddr = TargetAddr(16);

    fn allocation(has_replaced: bool) -> Allocation {
        Allocation {
            pid: Pid(1),
            tid: Tid(1),
            address: A,
            size_bytes: 10,
            time: MonotonicNanos(9),
            stack: StackId(7),
            interval: Interval::EXACT,
            hook: HookId(0),
            heap: HeapId(0),
            has_replaced,
        }
    }

    const FREE: Free = Free { pid: Pid(1), tid: Tid(1), address: A, time: MonotonicNanos(9), age_us: 0 };

    fn inserted_and_freed() -> StaleBlocks {
        let mut stale = StaleBlocks::default();
        stale.note_free(A, true);
        stale
    }

    #[test]
    fn an_allocation_that_replaces_a_stale_block_has_met_it() {
        let mut stale = inserted_and_freed();
        assert!(stale.is_met_by_allocation(&allocation(true)));
        assert!(!stale.is_met_by_allocation(&allocation(true)), "the newer block is there, whose free was missed");
        assert!(stale.take().is_empty(), "the newer block stays");

        let mut stale = inserted_and_freed();
        assert!(!stale.is_met_by_allocation(&allocation(false)));
        assert!(stale.take().is_empty(), "nothing was there, so the newer block stays");
    }

    /// Freed, allocated, freed, inserted, allocated: all records but the last are older than the insertion.
    #[test]
    fn a_block_that_was_inserted_after_its_address_was_used_again_is_met_later() {
        let mut stale = inserted_and_freed();
        assert!(!stale.is_met_by_allocation(&allocation(false)));
        for _ in 0..2 {
            assert!(stale.is_unmet(A));
            stale.note_free(A, false);
            assert!(!stale.is_met_by_allocation(&allocation(false)), "not inserted yet either");
        }
        stale.note_free(A, false);
        assert!(stale.is_met_by_allocation(&allocation(true)));
        assert!(!stale.is_unmet(A) && stale.take().is_empty(), "nothing is left of it");

        let mut stale = inserted_and_freed();
        assert!(!stale.is_met_by_allocation(&allocation(false)));
        stale.note_free(A, false);
        assert_eq!(stale.take(), [A], "no later record shows that it was met");
        assert!(!stale.is_unmet(A), "it has been removed");
        stale.note_free(A, false);
        assert!(stale.is_met_by_allocation(&allocation(true)), "before the removal");
        assert_eq!(stale.take_removed(), [A], "the newer block may have been removed");
    }

    #[test]
    fn a_block_that_replaces_a_stale_one_during_its_removal_is_inserted_again() {
        let mut stale = inserted_and_freed();
        assert_eq!(stale.take(), [A]);
        assert!(stale.is_met_by_allocation(&allocation(true)), "at any time before the removal itself");
        assert!(!stale.is_met_by_allocation(&allocation(true)), "once");
        assert_eq!(stale.take_removed(), [A], "the newer block may have been removed");
        assert!(stale.take_removed().is_empty());
    }

    #[test]
    fn a_free_that_meets_a_stale_block_is_not_one_of_the_ledgers() {
        let mut stale = inserted_and_freed();
        assert!(stale.is_met_by_free(&FREE));
        assert!(!stale.is_met_by_free(&FREE), "it is gone");
        stale.note_free(A, true);
        stale.take();
        assert!(stale.is_met_by_free(&FREE), "it was in the live set, so it was not removed yet");
        assert!(!stale.is_met_by_free(&FREE), "once");
        assert_eq!(stale.take_removed(), [A], "a newer block may have been removed");
    }

    #[test]
    fn refused_and_later_blocks_are_not_stale_and_restored_ones_can_be() {
        let mut stale = StaleBlocks::default();
        stale.refuse(vec![A]);
        stale.note_free(A, true);
        assert!(stale.take().is_empty(), "it was not inserted");
        stale.note_free(TargetAddr(32), false);
        assert!(stale.take().is_empty(), "the kernel side has removed it");
        stale.restore([TargetAddr(32)]);
        assert!(stale.is_unmet(TargetAddr(32)));
        stale.note_free(TargetAddr(32), false);
        assert_eq!(stale.take(), [TargetAddr(32)]);
    }
}
