//! What each thread did last, to tell which blocks were temporary, and to take a free back that was none.

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::live::LiveBlock;
use crate::address::TargetAddr;
use crate::ids::{HeapId, Tid};
use crate::ingest::event::Free;

/// Threads and heaps that are kept. Threads end unseen; when there are more, all are forgotten and it begins anew.
const THREADS_MAX: usize = 4096;

/// The last allocation and the last free of each thread, on each heap.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Threads {
    latest: FxHashMap<(Tid, HeapId), Latest>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Latest {
    /// The last block it made, while it is live.
    made: Option<TargetAddr>,
    freed: Option<(TargetAddr, Lived)>,
}

/// What a free tells of its block's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lived {
    /// As it was in the books.
    pub(super) block: LiveBlock,
    pub(super) lifetime_us: u64,
    /// The thread that made it freed it before it made another one.
    pub(super) temporary: bool,
}

impl Threads {
    pub(super) fn allocate(&mut self, tid: Tid, heap: HeapId, address: TargetAddr) {
        self.latest(tid, heap).made = Some(address);
    }

    /// Returns what to tell of the block's life.
    pub(super) fn free(&mut self, free: &Free, heap: HeapId, block: LiveBlock) -> Lived {
        let lifetime_us = match free.age_us {
            u32::MAX => (free.time.0.saturating_sub(block.time.0) / 1000).max(u64::from(u32::MAX)),
            age_us => u64::from(age_us),
        };
        let latest = self.latest(free.tid, heap);
        let temporary = latest.made.take_if(|made| *made == free.address).is_some();
        let lived = Lived { block, lifetime_us, temporary };
        latest.freed = Some((free.address, lived));
        lived
    }

    /// The thread's last free was none. Returns what was told of it.
    pub(super) fn restore(&mut self, tid: Tid, heap: HeapId, address: TargetAddr) -> Option<Lived> {
        let latest = self.latest(tid, heap);
        let (_, lived) = latest.freed.take_if(|(freed, _)| *freed == address)?;
        if lived.temporary {
            latest.made = Some(address);
        }
        Some(lived)
    }

    /// The callsites of all that was freed last.
    pub(super) fn callsites(&self) -> impl Iterator<Item = u32> {
        self.latest.values().filter_map(|latest| latest.freed.as_ref()).map(|(_, lived)| lived.block.callsite)
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
    fn only_so_many_threads_are_kept() {
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
