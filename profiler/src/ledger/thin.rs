//! Thins the books out, as the kernel's live set was: fewer samples stay, and each stands for more.

use profiler_common::interval::Interval;

use super::corrections::Correction;
use super::journal::Movement;
use super::live::LiveBlock;
use super::{Ledger, LiveAllocation};
use crate::address::TargetAddr;
use crate::units::Weight;

impl Ledger {
    /// A live block that was sampled is taken as what it would be at the larger interval `to`: as sampled at that, or, with `None`, as
    /// not sampled. `block` is as the kernel's live set has it; where the books have another block at its address (of another size,
    /// stack, heap, or tick), or none, nothing happens.
    ///
    /// It is what was allocated that changes, or was inherited, as if all had been sampled at that interval from the first; nothing
    /// counts as freed. Who leaves blocks out must do so by chance alone, with what [`Weight::of`] the larger interval implies.
    /// Peaks stay.
    pub fn thin(&mut self, block: &LiveAllocation, to: Option<Interval>) {
        let Some(known) = self.live.get(block.address) else { return };
        let facts = |block: &LiveAllocation| (block.size_bytes, block.stack, block.heap);
        if to.is_some_and(|to| to.bytes() <= known.interval.bytes()) {
            return;
        }
        let is_same = facts(&self.allocation(block.address, known)) == facts(block);
        if !is_same || !self.live.is_same_time(known.time, block.time) {
            return;
        }
        self.note(Correction::Thinned(block.address, to.map(Interval::code)));
        self.reweigh(block.address, known, to);
    }

    /// Has the block that is here count with another interval, or not at all.
    pub(super) fn reweigh(&mut self, address: TargetAddr, known: LiveBlock, to: Option<Interval>) {
        let callsite = known.callsite;
        let from = Weight::of(known.size_bytes, known.interval);
        self.live.remove(address);
        let weight = to.map(|interval| {
            self.live.insert(address, LiveBlock { interval, ..known });
            Weight::of(known.size_bytes, interval)
        });
        // The frees of what is left out will not be told.
        self.sampled.insert(self.callsites[callsite as usize].heap);
        let to = weight.unwrap_or_default();
        self.change(callsite, Movement::Reweighed { from, to }, self.latest);
    }
}
