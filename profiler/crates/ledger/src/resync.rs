//! Corrects a ledger by the kernel's live set, after dropped records and when live blocks are thinned.

use derive_more::AddAssign;
use heapbpf_base::address::TargetAddr;
use heapbpf_base::units::Amounts;
use profiler_common::interval::Interval;

use super::ledger::Ledger;
use super::live::{Correction, FreedBlock, LiveAllocation, LiveBlock, lifetime_us};
use super::totals::Movement;
use crate::ingest::event::Free;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, AddAssign)]
pub struct Reconciled {
    /// Number of blocks whose allocation records were dropped. They count as allocated.
    pub inserted: u64,
    /// Number of blocks whose free records were dropped. They count as freed.
    pub removed: u64,
    /// Number of blocks whose address another live block has. They count as freed, and the others as allocated.
    pub replaced: u64,
}

impl Reconciled {
    pub const fn total(&self) -> u64 {
        self.inserted + self.removed + self.replaced
    }
}

impl Ledger {
    /// Makes the live blocks those of `kernel`, the process's live set with each address once. Records written before
    /// it was read must have been entered, or their addresses be touched: `is_touched` selects addresses with an event
    /// since reading began. The set may precede or follow that event, so the ledger keeps those.
    ///
    /// Two blocks are the same if address, size, stack and heap are equal, if they were allocated in the same tick
    /// (16.8 ms), and if the ledger's interval is not smaller than the kernel's: it is larger if the ledger was thinned
    /// after the block was sampled. A caller that thins the ledger alone must leave dropped blocks out of `kernel` too,
    /// or they are inserted again.
    ///
    /// Inserted blocks count as allocated, and removed ones as freed, so live = opening + allocated − freed still
    /// holds. Unknown remain the lifetimes of removed blocks, blocks both allocated and freed meanwhile, and a peak
    /// reached meanwhile; a peak caused by missing frees remains. Mapped memory is not changed.
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
                Some(known) if self.is_same(known, &block) => self.live.mark_seen(block.address),
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
        // Removals come first: otherwise, both together would cause a peak that never was.
        let gone = self.live.sweep(is_touched);
        reconciled.removed = (gone.len() as u64).saturating_sub(reconciled.replaced);
        for (address, block) in gone {
            self.record(Correction::Removed(address));
            let weight = Amounts::of(block.size_bytes, block.interval);
            self.change(block.callsite, Movement::Out(weight), self.latest);
        }
        missing.iter().for_each(|block| self.insert_found(block));
        reconciled
    }

    /// Enters a block of the kernel's live set whose record was dropped. It counts as allocated.
    pub fn insert_found(&mut self, block: &LiveAllocation) {
        self.record(Correction::Inserted(*block));
        // An address that is twice in the set would be a defect of the kernel side; keep the ledger consistent.
        self.remove(block.address);
        self.latest = self.latest.max(block.time);
        // The kernel's live set does not contain the thread.
        self.insert(block, self.latest, None);
    }

    /// Changes the weight of a live block to that at the larger interval `to`, or, with `None`, to not sampled. `block`
    /// is as in the kernel's live set; if the ledger has another block at its address (of another size, stack, heap, or
    /// tick), or none, nothing happens. Amounts change as if all blocks had been sampled at that interval from the
    /// start; nothing counts as freed, and peaks are kept. Callers must drop blocks at random, with the probability
    /// that [`Amounts::of`] the larger interval implies.
    pub fn thin(&mut self, block: &LiveAllocation, to: Option<Interval>) {
        let Some(known) = self.live.get(block.address) else { return };
        if to.is_some_and(|to| to.bytes() <= known.interval.bytes()) || !self.was_read(known, block) {
            return;
        }
        self.record(Correction::Thinned(block.address, to.map(Interval::code)));
        self.reweigh(block.address, known, to);
    }

    /// Whether a block of the kernel's live set is `known`. The interval of `read` is that of its sampling.
    fn was_read(&self, known: LiveBlock, read: &LiveAllocation) -> bool {
        (known.size_bytes, self.callsites[known.callsite as usize].heap) == (read.size_bytes, read.heap)
            && self.is_of_stack(known.callsite, read.stack)
            && self.live.is_same_time(known.time, read.time)
    }

    /// Returns the block that this free will remove, for [`thin_freed`](Self::thin_freed).
    pub fn about_to_be_freed(&self, free: &Free) -> Option<FreedBlock> {
        let block = self.live.get(free.address)?;
        Some(FreedBlock { block, lifetime_us: lifetime_us(free, &block), temporary: false })
    }

    /// Changes a weight like [`thin`](Self::thin), for a block that was freed after it had been read from the kernel's live set:
    /// allocated and freed amounts change by the same weight. If another block was freed there, nothing happens.
    pub fn thin_freed(&mut self, block: &LiveAllocation, freed: &FreedBlock, to: Option<Interval>) {
        let known = freed.block;
        if to.is_some_and(|to| to.bytes() <= known.interval.bytes()) || !self.was_read(known, block) {
            return;
        }
        self.record(Correction::FreedThinned(*freed, to.map(Interval::code)));
        self.reweigh_freed(freed, to);
    }

    fn reweigh_freed(&mut self, freed: &FreedBlock, to: Option<Interval>) {
        let FreedBlock { block: LiveBlock { size_bytes, interval, callsite: index, .. }, lifetime_us, .. } = *freed;
        // A recording can have any number as an index.
        let Some(callsite) = self.callsites.get_mut(index as usize) else { return };
        let from = Amounts::of(size_bytes, interval);
        let to = to.map(|interval| Amounts::of(size_bytes, interval)).unwrap_or_default();
        callsite.remove_lifetime(lifetime_us, from.count);
        callsite.add_lifetime(lifetime_us, to.count);
        self.sampled.insert(callsite.heap);
        self.change(index, Movement::FreedReweighed { from, to }, self.latest);
    }

    fn reweigh(&mut self, address: TargetAddr, known: LiveBlock, to: Option<Interval>) {
        let callsite = known.callsite;
        let from = Amounts::of(known.size_bytes, known.interval);
        self.live.remove(address);
        let weight = to.map(|interval| {
            self.live.insert(address, LiveBlock { interval, ..known });
            Amounts::of(known.size_bytes, interval)
        });
        // The frees of dropped blocks will not be recorded.
        self.sampled.insert(self.callsites[callsite as usize].heap);
        let to = weight.unwrap_or_default();
        self.change(callsite, Movement::Reweighed { from, to }, self.latest);
    }

    pub fn correct(&mut self, correction: &Correction) {
        match correction {
            Correction::Removed(address) => {
                self.remove(*address);
            }
            Correction::Inserted(block) => self.insert_found(block),
            Correction::Thinned(address, to) => {
                if let Some(known) = self.live.get(*address) {
                    self.reweigh(*address, known, to.map(Interval::from_code));
                }
            }
            Correction::FreedThinned(freed, to) => self.reweigh_freed(freed, to.map(Interval::from_code)),
            Correction::EnteredFreed(block) => self.enter_freed(block),
            Correction::Opened(block) => self.enter_open(block),
        }
    }
}
