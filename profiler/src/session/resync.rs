//! When the books are put right from the kernel's live set, and what was read of that.
//!
//! After loss, the live set alone knows what is live. To read a million blocks takes up to a second, and the ring is to be read
//! meanwhile, so that is done by a thread of its own: to read in pieces between two readings of the ring would hold those up as often as
//! a small ring fills. Events that come meanwhile are entered as always, and their addresses noted: there the books know better.
//!
//! [`Schedule`] is pure; what is read is sifted by [`Sieve`], which is pure too.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use profiler_common::live::LiveBlock;
use rustc_hash::{FxHashMap, FxHashSet};

use super::thinning::Thinnings;
use crate::address::TargetAddr;
use crate::bpf::live_reader::LiveReader;
use crate::ids::{HeapId, Pid, StackId};
use crate::ledger::LiveAllocation;
use crate::units::MonotonicNanos;

/// When the next pass is due.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// Losses that make books and live set differ: so far, and as of the beginning of the last pass.
    losses: u64,
    covered: u64,
    /// When they were last found risen.
    risen: MonotonicNanos,
    /// A pass is wanted though nothing was lost.
    asked: bool,
    /// When the last pass began, and how long it took.
    last: Option<(MonotonicNanos, Duration)>,
}

/// Losses have ended when there was none for so long.
const QUIET: Duration = Duration::from_millis(200);

/// While losses go on, passes take a tenth of the time at most, and begin no more often than this.
const SHARE: u32 = 10;
const PERIOD_MIN: Duration = Duration::from_millis(250);

impl Schedule {
    /// So much was lost since the recording began.
    pub(super) fn lose(&mut self, losses: u64, now: MonotonicNanos) {
        if losses > self.losses {
            (self.losses, self.risen) = (losses, now);
        }
    }

    /// Has a pass made, soon.
    pub(super) fn ask(&mut self) {
        self.asked = true;
    }

    /// Whether the books may be wrong.
    pub(super) fn is_uncovered(&self) -> bool {
        self.losses > self.covered
    }

    /// Whether anything was ever lost.
    pub(super) fn has_losses(&self) -> bool {
        self.losses > 0
    }

    /// Whether a pass is to begin now. One always does after losses have ended.
    pub(super) fn is_due(&self, now: MonotonicNanos) -> bool {
        if !(self.is_uncovered() || self.asked) {
            return false;
        }
        let Some((began, took)) = self.last else { return true };
        let since = |earlier: MonotonicNanos| Duration::from_nanos(now.0.saturating_sub(earlier.0));
        let paced = since(began) >= (took * SHARE).max(PERIOD_MIN);
        // Where losses come in bursts, a pass after each is to take two thirds of the time at most.
        let ended = since(self.risen) >= QUIET && since(began) >= took * 3 / 2;
        paced || ended
    }

    /// A pass begins; it covers what was lost until now.
    pub(super) fn begin(&mut self, now: MonotonicNanos) {
        (self.covered, self.asked) = (self.losses, false);
        self.last = Some((now, Duration::ZERO));
    }

    /// The pass has ended.
    pub(super) fn end(&mut self, took: Duration) {
        if let Some((_, last)) = &mut self.last {
            *last = took;
        }
    }

    /// The pass came to nothing.
    pub(super) fn fail(&mut self, took: Duration) {
        (self.covered, self.asked) = (0, self.losses == 0);
        self.end(took);
    }
}

/// What decides about a block that is read.
pub(super) struct Sieve {
    /// Blocks made since then are told of by events.
    pub(super) since: MonotonicNanos,
    /// The targets, each with what it could have made first.
    pub(super) targets: BTreeMap<Pid, Beginning>,
    pub(super) thinnings: Thinnings,
}

/// What tells a target from others with its number, before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Beginning {
    /// When it was first looked at.
    pub(super) opened: Instant,
    /// Its program began then, so blocks that are older were another one's.
    pub(super) program: MonotonicNanos,
}

/// What the live set had.
#[derive(Default)]
pub(super) struct Reading {
    /// Blocks of targets, with the interval that they count with.
    live: FxHashMap<Pid, Vec<(TargetAddr, LiveBlock)>>,
    /// Those that were taken out to thin the set.
    thinned: FxHashMap<Pid, Vec<(TargetAddr, LiveBlock)>>,
    /// Where blocks are that events tell of, or will.
    recent: FxHashSet<(Pid, TargetAddr)>,
    /// Blocks of processes, or of programs, that are gone.
    pub(super) strays: Vec<(Pid, TargetAddr)>,
}

impl Reading {
    /// Takes a block. Returns whether it stays in the live set.
    pub(super) fn take(&mut self, sieve: &Sieve, pid: Pid, address: TargetAddr, block: LiveBlock) -> bool {
        if block.time_ns() >= sieve.since.0 {
            self.recent.insert((pid, address));
            return true;
        }
        let known = sieve.targets.get(&pid);
        if known.is_none_or(|beginning| block.time_ns() < beginning.program.0) {
            self.strays.push((pid, address));
            return true;
        }
        match sieve.thinnings.interval(pid, address, &block) {
            Some(interval) => {
                let counted =
                    LiveBlock::new(block.size_bytes(), block.time_ns(), block.stack_id(), interval, block.heap());
                self.live.entry(pid).or_default().push((address, counted));
                true
            }
            None => {
                self.thinned.entry(pid).or_default().push((address, block));
                false
            }
        }
    }

    /// The live blocks of a target.
    pub(super) fn live(&self, pid: Pid) -> impl Iterator<Item = LiveAllocation> {
        self.live.get(&pid).into_iter().flatten().map(allocation)
    }

    /// Whether a block there is so new that the books know better of it.
    pub(super) fn is_recent(&self, pid: Pid, address: TargetAddr) -> bool {
        self.recent.contains(&(pid, address))
    }

    /// Those of a target that were taken out.
    pub(super) fn thinned(&self, pid: Pid) -> impl Iterator<Item = LiveAllocation> {
        self.thinned.get(&pid).into_iter().flatten().map(allocation)
    }
}

fn allocation(&(address, block): &(TargetAddr, LiveBlock)) -> LiveAllocation {
    LiveAllocation {
        address,
        size_bytes: block.size_bytes(),
        interval: block.interval(),
        stack: StackId(block.stack_id()),
        heap: HeapId(block.heap()),
        time: MonotonicNanos(block.time_ns()),
    }
}

/// Addresses of which events came.
pub(super) type Touched = FxHashSet<(Pid, TargetAddr)>;

/// A pass that is being made.
pub(super) struct Pass {
    pub(super) began: Instant,
    /// The targets that it is about.
    pub(super) targets: BTreeMap<Pid, Beginning>,
    /// Addresses of which events came since it began.
    touched: Touched,
    reader: JoinHandle<io::Result<Reading>>,
}

impl Pass {
    /// Begins to read. Events are to be [touched](Self::touch) from now on.
    pub(super) fn begin(reader: Arc<LiveReader>, sieve: Sieve) -> io::Result<Self> {
        let targets = sieve.targets.clone();
        let read = move || {
            let mut reading = Reading::default();
            reader.sift(|pid, address, block| reading.take(&sieve, pid, address, block))?;
            Ok(reading)
        };
        let reader = std::thread::Builder::new().name("resync".to_owned()).spawn(read)?;
        Ok(Self { began: Instant::now(), targets, touched: Touched::default(), reader })
    }

    /// An event tells of this address.
    pub(super) fn touch(&mut self, pid: Pid, address: TargetAddr) {
        self.touched.insert((pid, address));
    }

    /// Whether all is read.
    pub(super) fn is_read(&self) -> bool {
        self.reader.is_finished()
    }

    /// What was read, and of which addresses events came meanwhile. Waits until it is.
    pub(super) fn finish(self) -> (io::Result<Reading>, Touched) {
        let panicked = |_| Err(io::Error::other("the reader of the live set has panicked"));
        (self.reader.join().unwrap_or_else(panicked), self.touched)
    }
}

#[cfg(test)]
mod tests;
