//! The latest allocation and free of each thread, to detect temporary blocks and to undo the free of a failed
//! realloc.

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::live::LiveBlock;
use crate::address::TargetAddr;
use crate::ids::{HeapId, Tid};
use crate::ingest::event::Free;

/// Maximum number of (thread, heap) entries. Thread exits are not observed, so all entries are dropped when the table
/// is full.
const THREADS_MAX: usize = 4096;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Threads {
    latest: FxHashMap<(Tid, HeapId), Latest>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Latest {
    /// The thread's latest block, while it is live.
    made: Option<TargetAddr>,
    freed: Option<(TargetAddr, FreedBlock)>,
}

/// A freed block and its lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FreedBlock {
    /// As the ledger had it.
    pub(super) block: LiveBlock,
    pub(super) lifetime_us: u64,
    /// Freed by the allocating thread before its next allocation.
    pub(super) temporary: bool,
}

impl Threads {
    pub(super) fn allocate(&mut self, tid: Tid, heap: HeapId, address: TargetAddr) {
        self.latest(tid, heap).made = Some(address);
    }

    /// Records a free and returns the block's lifetime.
    pub(super) fn free(&mut self, free: &Free, heap: HeapId, block: LiveBlock) -> FreedBlock {
        let lifetime_us = match free.age_us {
            u32::MAX => (free.time.0.saturating_sub(block.time.0) / 1000).max(u64::from(u32::MAX)),
            age_us => u64::from(age_us),
        };
        let latest = self.latest(free.tid, heap);
        let temporary = latest.made.take_if(|made| *made == free.address).is_some();
        let freed = FreedBlock { block, lifetime_us, temporary };
        latest.freed = Some((free.address, freed));
        freed
    }

    /// Undoes the thread's latest free and returns what [`free`](Self::free) returned.
    pub(super) fn restore(&mut self, tid: Tid, heap: HeapId, address: TargetAddr) -> Option<FreedBlock> {
        let latest = self.latest(tid, heap);
        let (_, freed) = latest.freed.take_if(|(freed, _)| *freed == address)?;
        if freed.temporary {
            latest.made = Some(address);
        }
        Some(freed)
    }

    /// Returns the callsites of all freed blocks in the table.
    pub(super) fn callsites(&self) -> impl Iterator<Item = u32> {
        self.latest.values().filter_map(|latest| latest.freed.as_ref()).map(|(_, freed)| freed.block.callsite)
    }

    fn latest(&mut self, tid: Tid, heap: HeapId) -> &mut Latest {
        if self.latest.len() >= THREADS_MAX && !self.latest.contains_key(&(tid, heap)) {
            self.latest.clear();
        }
        self.latest.entry((tid, heap)).or_default()
    }
}

#[cfg(test)]
mod tests {
    use profiler_common::interval::Interval;

    use super::*;
    use crate::ids::Pid;
    use crate::units::MonotonicNanos;

    #[test]
    fn the_number_of_threads_is_bounded() {
        const BLOCK: LiveBlock =
            LiveBlock { size_bytes: 1, interval: Interval::EXACT, callsite: 0, time: MonotonicNanos(0) };
        let (address, time) = (TargetAddr(1), MonotonicNanos(0));
        let mut threads = Threads::default();
        for tid in 0..100_000 {
            threads.allocate(Tid(tid), HeapId(0), address);
            assert!(threads.latest.len() <= THREADS_MAX);
        }
        let mut frees =
            |tid| threads.free(&Free { pid: Pid(1), tid: Tid(tid), address, time, age_us: 0 }, HeapId(0), BLOCK);
        assert!(frees(99_999).temporary);
        assert!(!frees(0).temporary, "it is forgotten");
    }
}
