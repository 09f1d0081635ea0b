//! The books of one target: every live sampled block, and what each callsite has done.
//!
//! ```text
//!   live                                   callsites                             stacks
//!   0x55d0…1040 ─ 4,096 B, T, callsite 0   0 ─ stack a, libc  alloc 9  free 7    a ─ [caller, …, main]
//!   0x55d0…20c0 ─   128 B, T, callsite 0   1 ─ stack b, libc  alloc 1  free 0    b ─ not come yet
//!   0x55d0…5560 ─    24 B, T, callsite 1
//! ```
//!
//! Mapped memory is kept by ranges of addresses instead (`ranges`), because it is unmapped in parts.
//!
//! Pure: events in, snapshots out; no clock, file or map. A callsite is a stack and a heap, and where
//! that is asked for a thread. Its stack's frames may come
//! later than the first event that names it, or never, when the ring was full.

mod age;
pub(crate) mod ages;
mod callsite;
pub(crate) mod corrections;
pub(crate) mod curve;
pub(crate) mod details;
pub(crate) mod held;
pub(crate) mod histogram;
pub(crate) mod journal;
mod live;
mod mapped;
pub(crate) mod part;
mod ranges;
mod reconcile;
pub(crate) mod snapshot;
mod soundness;
mod stacks;
mod thin;
mod threads;
pub(crate) mod timeline;
pub(crate) mod totals;

use profiler_common::interval::Interval;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};

use crate::address::TargetAddr;
use crate::ids::{HeapId, Pid, StackId, Tid};
use crate::ingest::event::{Allocation, Event, Free};
use crate::units::{MonotonicNanos, Weight};
use ages::AgesByCallsite;
use callsite::{Callsite, PeakEpoch};
use corrections::Correction;
use curve::{Curve, Highest};
use journal::{Journal, Movement};
use live::{LiveBlock, LiveBlocks};
use ranges::Ranges;
pub(crate) use reconcile::Reconciled;
use snapshot::{CallsiteSnapshot, Stack, TargetSnapshot};
use threads::{Lived, Threads};
use totals::{Amounts, Totals};

/// The books of one target.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ledger {
    pid: Pid,
    live: LiveBlocks,
    ranges: Ranges,
    callsites: Vec<Callsite>,
    callsite_ids: FxHashMap<(StackId, HeapId, Option<Tid>), u32>,
    /// Threads that callsites are told apart by; `None` where they are not.
    apart: Option<FxHashSet<Tid>>,
    stacks: FxHashMap<StackId, Stack>,
    totals: Totals,
    heaps: FxHashMap<HeapId, Totals>,
    frees_unknown: u64,
    /// See [`Ledger::number`].
    number: u32,
    /// What has become of it beside events, and was not told to the recording yet.
    #[serde(skip)]
    corrections: Vec<Correction>,
    #[serde(skip)]
    journal: Journal,
    peak: PeakEpoch,
    /// The latest time that an event told.
    latest: MonotonicNanos,
    curve: Curve,
    /// What else there was at the peak.
    highest: Highest,
    threads: Threads,
    /// Heaps of which temporary blocks cannot be told: not all allocations were taken, or they are of mapped memory.
    sampled: FxHashSet<HeapId>,
    /// Of what was live when the process ended.
    ages_at_end: Option<AgesByCallsite>,
}

/// What no peak has as its number: before anything was live, nothing was, and that is the first peak.
const BEFORE_PEAKS: PeakEpoch = 0;

/// A live block as the kernel side knows it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveAllocation {
    /// Where it is.
    pub address: TargetAddr,
    /// Bytes that were asked for.
    pub size_bytes: u64,
    /// The interval it was sampled at.
    #[serde(serialize_with = "live::write_interval", deserialize_with = "live::read_interval")]
    pub interval: Interval,
    /// The stack that made it.
    pub stack: StackId,
    /// Its heap.
    pub heap: HeapId,
    /// When it was made. The ledger knows that to a tick of 16.8 ms, and tells the middle of it.
    pub time: MonotonicNanos,
}

impl Ledger {
    /// Empty books for process `pid`.
    pub fn new(pid: Pid) -> Self {
        Self {
            pid,
            live: LiveBlocks::default(),
            ranges: Ranges::default(),
            callsites: Vec::new(),
            callsite_ids: FxHashMap::default(),
            apart: None,
            stacks: FxHashMap::default(),
            totals: Totals::default(),
            heaps: FxHashMap::default(),
            frees_unknown: 0,
            number: 0,
            corrections: Vec::new(),
            journal: Journal::default(),
            peak: BEFORE_PEAKS + 1,
            latest: MonotonicNanos(0),
            curve: Curve::default(),
            highest: Highest::default(),
            threads: Threads::default(),
            sampled: FxHashSet::default(),
            ages_at_end: None,
        }
    }

    /// The books of a child that begins as a copy of this target: what is live here is live there, marked as inherited.
    /// From now on the two have nothing to do with each other. The child's first peak is what it begins with.
    pub fn fork(&self, child: Pid) -> Self {
        Self {
            live: self.live.clone(),
            ranges: self.ranges.clone(),
            callsites: self.callsites.iter().map(|callsite| callsite.inherit(BEFORE_PEAKS)).collect(),
            stacks: self.stacks.clone(),
            totals: self.totals.inherit(),
            heaps: self.heaps.iter().map(|(&heap, totals)| (heap, totals.inherit())).collect(),
            latest: self.latest,
            sampled: self.sampled.clone(),
            ..self.empty(child)
        }
    }

    /// The books of the program that this process becomes by an exec: empty, but for frames. A stack at the same addresses
    /// has the same id, and frames are told once.
    pub fn succeed(&self) -> Self {
        Self { stacks: self.stacks.clone(), ..self.empty(self.pid) }
    }

    /// Enters an event of this target. Events of one address must come in the order in which they happened.
    pub fn enter(&mut self, event: Event) {
        match event {
            Event::Alloc(allocation) => self.allocate(&allocation),
            Event::Free(free) => self.free(&free),
            Event::Restore(allocation) => self.restore(&allocation),
            Event::Stack(_, id, stack) => {
                self.stacks.insert(id, stack);
            }
            Event::Remap(remap) => self.remap(&remap),
            // The session's to act on, or kept for whoever asked for them.
            Event::Fork(_) | Event::Exec(_) | Event::RawStack(..) => {}
        }
    }

    fn allocate(&mut self, allocation: &Allocation) {
        self.pass(allocation.time);
        // Two live blocks cannot share an address: the old one's free was lost.
        self.remove(allocation.address);
        self.enter_new(&allocation.into(), allocation.time, Some(allocation.tid));
        self.threads.allocate(allocation.tid, allocation.heap, allocation.address);
    }

    /// Enters a block that was allocated, by this thread if that is known; its address must be free.
    fn enter_new(&mut self, block: &LiveAllocation, time: MonotonicNanos, thread: Option<Tid>) {
        let callsite = self.callsite(block.stack, block.heap, thread);
        let LiveAllocation { address, size_bytes, interval, time: made, .. } = *block;
        self.live.insert(address, LiveBlock { size_bytes, interval, callsite, time: made });
        let weight = Weight::of(size_bytes, interval);
        self.callsites[callsite as usize].sizes.add(block.size_bytes, weight.count);
        self.change(callsite, Movement::In(weight), time);
        if block.interval != Interval::EXACT {
            self.sampled.insert(block.heap);
        }
    }

    fn free(&mut self, free: &Free) {
        self.pass(free.time);
        let Some((block, weight)) = self.remove(free.address) else {
            self.frees_unknown += 1;
            return;
        };
        let callsite = &mut self.callsites[block.callsite as usize];
        let lived = self.threads.free(free, callsite.heap, block);
        callsite.lived(lived.lifetime_us, weight.count);
        callsite.temporary_count += u64::from(lived.temporary);
    }

    /// Takes a live block out of the books; `None` when there is none at this address.
    fn remove(&mut self, address: TargetAddr) -> Option<(LiveBlock, Weight)> {
        let block = self.live.remove(address)?;
        let weight = Weight::of(block.size_bytes, block.interval);
        self.change(block.callsite, Movement::Out(weight), self.latest);
        Some((block, weight))
    }

    /// The free before was of a realloc that failed.
    fn restore(&mut self, allocation: &Allocation) {
        let block = LiveAllocation::from(allocation);
        if self.live.get(block.address).is_some_and(|known| self.is_same(known, &block)) {
            // The record of that free was lost.
            return;
        }
        self.remove(block.address);
        let freed = self.threads.restore(allocation.tid, block.heap, block.address);
        match freed.filter(|freed| self.is_same(freed.block, &block)) {
            Some(freed) => self.take_back(block.address, freed),
            // It was not in the books, or so long ago that it counts as a new one.
            None => self.enter_new(&block, self.latest, Some(allocation.tid)),
        }
    }

    /// Makes a block live again, as it was: the books may have it by another interval, and as a parent's.
    fn take_back(&mut self, address: TargetAddr, freed: Lived) {
        let Lived { block, lifetime_us, temporary } = freed;
        let weight = Weight::of(block.size_bytes, block.interval);
        self.live.insert(address, block);
        let callsite = &mut self.callsites[block.callsite as usize];
        callsite.lives_on(lifetime_us, weight.count);
        callsite.temporary_count -= u64::from(temporary);
        // The time of its allocation is long past.
        self.change(block.callsite, Movement::Back(weight), self.latest);
    }

    /// Changes the totals of a callsite, of its heap and of the target alike. `time` is that of a peak that is reached by it.
    fn change(&mut self, callsite: u32, movement: Movement, time: MonotonicNanos) {
        self.journal.note(callsite, movement);
        let callsite = &mut self.callsites[callsite as usize];
        let inherited = callsite.inherited;
        let change = |totals: &mut Totals| match movement {
            Movement::In(weight) => totals.allocate(weight, time),
            Movement::Out(weight) => totals.free(weight),
            Movement::Back(weight) => totals.restore(weight, time),
            Movement::Reweighed { from, to } => totals.reweigh(from, to, inherited),
        };
        change(callsite.change(self.peak));
        change(self.heaps.entry(callsite.heap).or_default());
        let peak_bytes = self.totals.peak_bytes;
        change(&mut self.totals);
        if self.totals.peak_bytes > peak_bytes {
            self.peak += 1;
            self.highest = Highest::of(&self.totals);
        }
    }

    /// Totals over everything, for the progress line. What was live at the peak is in snapshots only.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// What a recording calls these books; 0 where there is none.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Has a recording call these books so.
    pub fn set_number(&mut self, number: u32) {
        self.number = number;
    }

    /// Totals by heap, in the order of their ids.
    pub fn heaps(&self) -> Vec<(HeapId, Totals)> {
        let mut heaps: Vec<_> = self.heaps.iter().map(|(&heap, &totals)| (heap, totals)).collect();
        heaps.sort_unstable_by_key(|(heap, _)| *heap);
        heaps
    }

    /// Totals of all callsites, in the order of their indices. What they held at the peak is in snapshots only.
    pub fn callsite_totals(&self) -> impl Iterator<Item = &Totals> {
        self.callsites.iter().map(Callsite::totals_now)
    }

    /// How many sampled blocks are live.
    pub fn live_blocks(&self) -> usize {
        self.live.len()
    }

    /// All live blocks, in no order.
    pub fn live(&self) -> impl Iterator<Item = LiveAllocation> {
        self.live.iter().map(|(address, block)| self.allocation(address, block))
    }

    /// All live blocks with the index of their callsites, in no order: address, bytes, callsite, and when each was made.
    pub fn blocks(&self) -> impl Iterator<Item = (TargetAddr, u64, u32, MonotonicNanos)> {
        self.live.iter().map(|(address, block)| (address, block.size_bytes, block.callsite, block.time))
    }

    fn allocation(&self, address: TargetAddr, block: LiveBlock) -> LiveAllocation {
        let LiveBlock { size_bytes, interval, time, callsite } = block;
        let &Callsite { stack, heap, .. } = &self.callsites[callsite as usize];
        LiveAllocation { address, size_bytes, interval, stack, heap, time }
    }

    /// Whether a block is live at this address.
    pub fn is_live(&self, address: TargetAddr) -> bool {
        self.live.get(address).is_some()
    }

    /// The process is gone at `now`, and no event will come: single blocks are forgotten, sums stay. Ages are from now on those
    /// at that time.
    pub fn close(&mut self, now: MonotonicNanos) {
        if self.ages_at_end.is_none() {
            self.ages_at_end = Some(self.ages(now.max(self.latest)));
        }
        self.threads = Threads::default();
        self.live = LiveBlocks::default();
        self.ranges = Ranges::default();
        self.callsite_ids = FxHashMap::default();
    }

    /// Frees of blocks that are not in the books: their allocation's record was lost.
    pub fn frees_unknown(&self) -> u64 {
        self.frees_unknown
    }

    /// The state at `now`, which ages are counted to. Takes one pass over all live blocks, for their ages. Callsites come in the order in which they were first seen.
    pub fn snapshot(&self, now: MonotonicNanos) -> TargetSnapshot {
        let ages = self.ages_at_end.is_none().then(|| self.ages(now));
        let ages = ages.as_ref().or(self.ages_at_end.as_ref());
        let mut totals = Totals { at_peak: Amounts::default(), ..self.totals };
        let mut heaps: FxHashMap<HeapId, Totals> = self.heaps.clone();
        let mut callsites = Vec::new();
        for (index, callsite) in (0..).zip(&self.callsites) {
            let own = callsite.totals(self.peak);
            // What the parent had freed is no affair of the child's.
            if own.is_empty() {
                continue;
            }
            totals.at_peak.add(&own.at_peak);
            heaps.entry(callsite.heap).or_default().at_peak.add(&own.at_peak);
            let stack = self.stacks.get(&callsite.stack).cloned();
            let ages = ages.and_then(|ages| ages.get(&index));
            let details = callsite.details(ages, !self.sampled.contains(&callsite.heap));
            let &Callsite { heap, thread, inherited, .. } = callsite;
            callsites.push(CallsiteSnapshot { index, stack, heap, thread, inherited, totals: own, details });
        }
        let mut heaps: Vec<_> = heaps.into_iter().collect();
        heaps.sort_unstable_by_key(|(heap, _)| *heap);
        TargetSnapshot { pid: self.pid, totals, heaps, callsites }
    }
}

#[cfg(test)]
mod tests;
