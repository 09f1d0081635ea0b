//! What events reveal about a reading of the live set during which they arrive.

use std::time::Duration;

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::Pid;
use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::ingest::event::{Allocation, Event, Free};
use heapbpf_ledger::{FreedBlock, Ledger};
use rustc_hash::{FxHashMap, FxHashSet};

/// Drops have ended after this time without any. An allocation is written, and enters the live set, within this time after the
/// one that its record has: its thread can lose its processor between the two.
pub(super) const QUIET: Duration = Duration::from_millis(250);

pub(super) type Touched = FxHashSet<(Pid, TargetAddr)>;

/// What events that arrive during a reading reveal about it.
pub(super) struct Notes {
    /// Start of the reading.
    since: MonotonicNanos,
    /// Addresses of events that may be later than the reading of their block.
    pub(super) touched: Touched,
    /// Blocks that were freed since the reading began, if live blocks have been thinned.
    pub(super) freed: FxHashMap<(Pid, TargetAddr), FreedBlock>,
}

impl Notes {
    pub(super) fn new(since: MonotonicNanos) -> Self {
        Self { since, touched: Touched::default(), freed: FxHashMap::default() }
    }

    /// Notes an event whose block may have been read before. A free has the time after its block left the live set, an
    /// allocation has the time before its block entered it, and a restored block has the time of its allocation.
    pub(super) fn touch(&mut self, event: &Event) {
        let (pid, address, is_later) = match event {
            Event::Alloc(Allocation { pid, address, time, .. }) => (*pid, *address, self.since.since(*time) <= QUIET),
            Event::Restore(Allocation { pid, address, .. }) => {
                self.freed.remove(&(*pid, *address));
                (*pid, *address, true)
            }
            Event::Free(free) => (free.pid, free.address, free.time >= self.since),
            _ => return,
        };
        if is_later {
            self.touched.insert((pid, address));
        }
    }

    /// Notes a freed block, which `ledger` still has. Of several blocks at an address, the one that was live when the
    /// reading began is the only one that can have been read, and the first that is freed afterwards.
    pub(super) fn free(&mut self, free: &Free, ledger: &Ledger) {
        if free.time >= self.since
            && let Some(block) = ledger.about_to_be_freed(free)
        {
            self.freed.entry((free.pid, free.address)).or_insert(block);
        }
    }
}
