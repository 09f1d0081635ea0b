//! A look at a process: what was collected of it, and what was known of its blocks at that instant.

use crate::address::TargetAddr;
use crate::collect::Collected;
use crate::snapshot::Snapshot;
use crate::units::MonotonicNanos;

/// See the module. Can be sent: checking goes on while the process does.
pub struct Look {
    /// The process.
    pub collected: Collected,
    /// What is known of it, as its only target.
    pub snapshot: Snapshot,
    /// When it was stopped.
    pub now: MonotonicNanos,
    /// Blocks that were seen to be made and not to be freed.
    pub watched: Vec<WatchedBlock>,
    /// How they were watched; `None` where nobody did.
    pub watching: Option<Watching>,
    /// The program has ended, and only its memory is left.
    pub at_exit: bool,
}

/// How blocks were watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watching {
    /// For how long, in nanoseconds.
    pub duration_ns: u64,
    /// From the first call on, each of them, and nothing was lost: what is no watched block is no block.
    pub is_complete: bool,
}

/// A block that was seen to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchedBlock {
    /// Where it is.
    pub address: TargetAddr,
    /// Bytes that were asked for.
    pub size_bytes: u64,
    /// The index of its callsite in the books.
    pub callsite: u32,
    /// When it was made, in ticks of [`TICK_NS`].
    born_ticks: u32,
}

/// Ten million blocks are known by their ticks: 32 bits of them reach two years.
const TICK_NS: u64 = 1 << 24;

impl WatchedBlock {
    /// A block.
    #[must_use]
    pub fn new(address: TargetAddr, size_bytes: u64, callsite: u32, born: MonotonicNanos) -> Self {
        let born_ticks = u32::try_from(born.0 / TICK_NS).unwrap_or(u32::MAX);
        Self { address, size_bytes, callsite, born_ticks }
    }

    /// When it was made, right to half a tick, 8.4 ms.
    #[must_use]
    pub fn born(&self) -> MonotonicNanos {
        MonotonicNanos(u64::from(self.born_ticks) * TICK_NS + TICK_NS / 2)
    }
}

const _: () = assert!(size_of::<WatchedBlock>() == 24);

const _: fn() = || {
    fn is_send<T: Send + 'static>() {}
    is_send::<Look>();
};
