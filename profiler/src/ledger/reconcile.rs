//! Puts the books right after loss, by the kernel's live set: what is in it is live, and nothing else is.

use super::corrections::Correction;
use super::journal::Movement;
use super::live::LiveBlock;
use super::{Ledger, LiveAllocation};
use crate::address::TargetAddr;
use crate::ingest::event::Allocation;
use crate::units::Weight;

/// What [`Ledger::reconcile`] has changed, in sampled blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// Live, and not in the books until now: the records of their allocations were lost. Counted as allocated.
    pub inserted: u64,
    /// In the books, and not live any more: the records of their frees were lost. Counted as freed.
    pub removed: u64,
    /// Another block is live at the address of one in the books. Counted as freed and allocated.
    pub replaced: u64,
}

impl Reconciled {
    /// Blocks of which the books were wrong.
    pub const fn total(&self) -> u64 {
        self.inserted + self.removed + self.replaced
    }
}

impl std::ops::AddAssign for Reconciled {
    fn add_assign(&mut self, other: Self) {
        self.inserted += other.inserted;
        self.removed += other.removed;
        self.replaced += other.replaced;
    }
}

impl Ledger {
    /// Makes what is live right again. `kernel` is what the kernel's live set has of this process, each address once.
    /// `is_touched` tells the addresses of which an event was entered since reading that set began: there it may have been read
    /// before or after the event, so the books, which have the event, stay as they are.
    ///
    /// Two blocks are the same if address, size, stack and heap are, if they were made in the same tick (16.8 ms), and if the
    /// books' interval is not smaller than the kernel's: it is larger where the books were thinned out after the block was
    /// taken. Whoever thins out the books alone must leave what was dropped out of `kernel` too, or it comes back.
    ///
    /// What is inserted counts as allocated, and what is removed as freed, because it was: so
    /// live = opening + allocated − freed holds as before. Not known are lifetimes of what is removed, blocks that were both
    /// allocated and freed unseen, and a peak that was reached meanwhile; one that was reached because frees were missed stays.
    /// Mapped memory is not in the kernel's live set, and is left alone.
    ///
    /// No event may be entered out of the order of its address afterwards: records that were written before the set was read
    /// must have been entered, or be among those that `is_touched` tells of.
    pub fn reconcile(
        &mut self,
        kernel: impl IntoIterator<Item = LiveAllocation>,
        is_touched: impl Fn(TargetAddr) -> bool,
    ) -> Reconciled {
        let mut reconciled = Reconciled::default();
        let mut missing = Vec::new();
        for block in kernel {
            if is_touched(block.address) {
                continue;
            }
            match self.live.get(block.address) {
                Some(known) if self.is_same(known, &block) => self.live.see(block.address),
                Some(_) => {
                    reconciled.replaced += 1;
                    missing.push(block);
                }
                None => {
                    reconciled.inserted += 1;
                    missing.push(block);
                }
            }
        }
        // What is gone goes first, or both would make a peak that never was.
        let gone = self.live.sweep(is_touched);
        reconciled.removed = (gone.len() as u64).saturating_sub(reconciled.replaced);
        for (address, block) in gone {
            self.note(Correction::Gone(address));
            self.forget(block);
        }
        missing.iter().for_each(|block| self.find(block));
        reconciled
    }

    /// Whether a block of the books is one that the kernel tells of: see [`reconcile`](Self::reconcile).
    pub(super) fn is_same(&self, known: LiveBlock, block: &LiveAllocation) -> bool {
        let callsite = &self.callsites[known.callsite as usize];
        (known.size_bytes, callsite.stack, callsite.heap) == (block.size_bytes, block.stack, block.heap)
            && known.interval.bytes() >= block.interval.bytes()
            && self.live.is_same_time(known.time, block.time)
    }

    /// A block is not live any more, and was taken out.
    pub(super) fn forget(&mut self, block: LiveBlock) {
        let weight = Weight::of(block.size_bytes, block.interval);
        self.change(block.callsite, Movement::Out(weight), self.latest);
    }

    /// Enters a block whose allocation was not seen.
    pub(super) fn find(&mut self, block: &LiveAllocation) {
        self.note(Correction::Found(*block));
        // Twice in one set would be the kernel's defect; the books stay sound.
        self.remove(block.address);
        self.latest = self.latest.max(block.time);
        // The kernel's live set does not tell which thread it was.
        self.enter_new(block, self.latest, None);
    }
}

impl From<&Allocation> for LiveAllocation {
    fn from(allocation: &Allocation) -> Self {
        let Allocation { address, size_bytes, interval, stack, heap, time, .. } = *allocation;
        Self { address, size_bytes, interval, stack, heap, time }
    }
}
