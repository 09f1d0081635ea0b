//! Mapped memory in the books: kept by ranges of addresses, because it is unmapped in parts.

use super::Ledger;
use super::journal::Movement;
use super::ranges::Freed;
use crate::address::TargetAddr;
use crate::ingest::event::Remap;
use crate::units::{MonotonicNanos, Weight};

impl Ledger {
    /// Memory whose mapping was not seen may be a file's, so what is unmapped of it changes nothing, and what it is moved to
    /// is not entered.
    pub(super) fn remap(&mut self, remap: &Remap) {
        self.pass(remap.ended);
        let addresses = |start: TargetAddr, bytes: u64| start.0..start.0.saturating_add(bytes);
        let old = addresses(remap.old_address, remap.old_bytes);
        let new = addresses(remap.new_address, remap.new_bytes);
        let gone = self.ranges.unmap(&old, remap.began);
        // What was displaced there is another thread's, who will yet tell, if this one's own was found.
        let old_is_known = !gone.is_empty() || self.ranges.was_displaced(&old, remap.began);
        self.strike_off(gone, remap.began);
        if new.is_empty() || !(old.is_empty() || old_is_known) {
            return;
        }
        let displaced = self.ranges.displace(&new, remap.ended);
        self.strike_off(displaced, remap.ended);
        let callsite = self.callsite(remap.stack, remap.heap, Some(remap.tid));
        let size_bytes = new.end - new.start;
        let weight = Weight::exact(size_bytes, 1);
        self.callsites[callsite as usize].sizes.add(size_bytes, weight.count);
        self.sampled.insert(remap.heap);
        self.change(callsite, Movement::In(weight), remap.ended);
        let covered = self.ranges.map(&new, remap.ended, callsite);
        self.strike_off(covered, remap.ended);
    }

    /// Pieces of mappings are gone. A mapping is freed with the last of it.
    fn strike_off(&mut self, pieces: impl IntoIterator<Item = Freed>, time: MonotonicNanos) {
        for piece in pieces {
            let weight = Weight::exact(piece.bytes, u64::from(piece.is_last));
            if piece.is_last {
                let lifetime_us = time.0.saturating_sub(piece.time.0) / 1000;
                self.callsites[piece.callsite as usize].lived(lifetime_us, weight.count);
            }
            self.change(piece.callsite, Movement::Out(weight), time);
        }
    }
}
