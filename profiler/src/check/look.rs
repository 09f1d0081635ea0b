//! A look at a process: what was collected of it, and what was known of its blocks at that instant.

use std::thread;
use std::time::Duration;

use crate::address::TargetAddr;
use crate::collect::Collected;
use crate::snapshot::Snapshot;
use crate::units::MonotonicNanos;
use crate::walk::{Scene, Walk, walk};

/// See the module. Can be sent: checking goes on while the process does.
pub struct Look {
    /// The process.
    pub collected: Collected,
    /// What its allocators' own bookkeeping says.
    pub walks: Vec<Walk>,
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

/// Most looks at a process whose allocator is found in the middle of its work each time.
pub(crate) const TRIES_MAX: u32 = 8;

/// A process that was stopped for longer, all looks together, is not stopped again.
const PAUSES_MAX: Duration = Duration::from_secs(1);

/// How long the process gets between two looks, the first time; then longer and longer.
const BETWEEN_TRIES: Duration = Duration::from_millis(1);

/// Collects a process and walks its heaps, again where that met an allocator at work: a block is then in no list for a moment, or in two. The
/// last try counts, whatever it met, and the pauses of all of them. There is none after a second of pauses.
///
/// # Errors
///
/// Those of `collect`.
pub(crate) fn collect_at_rest<E>(
    tries_max: u32,
    mut collect: impl FnMut() -> Result<Collected, E>,
) -> Result<(Collected, Vec<Walk>), E> {
    let (mut tries, mut pause) = (0, Duration::ZERO);
    loop {
        let mut collected = collect()?;
        pause += collected.pause;
        collected.pause = pause;
        let walks =
            walk(&Scene { memory: &*collected.memory, regions: &collected.regions, threads: &collected.threads });
        tries += 1;
        if tries >= tries_max || pause >= PAUSES_MAX || !walks.iter().any(|walk| walk.busy) {
            return Ok((collected, walks));
        }
        drop(collected);
        thread::sleep(BETWEEN_TRIES * (1 << tries));
    }
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
    pub fn new(address: TargetAddr, size_bytes: u64, callsite: u32, born: MonotonicNanos) -> Self {
        let born_ticks = u32::try_from(born.0 / TICK_NS).unwrap_or(u32::MAX);
        Self { address, size_bytes, callsite, born_ticks }
    }

    /// When it was made, right to half a tick, 8.4 ms.
    pub fn born(&self) -> MonotonicNanos {
        MonotonicNanos(u64::from(self.born_ticks) * TICK_NS + TICK_NS / 2)
    }
}

const _: () = assert!(size_of::<WatchedBlock>() == 24);

const _: fn() = || {
    fn is_send<T: Send + 'static>() {}
    is_send::<Look>();
};
