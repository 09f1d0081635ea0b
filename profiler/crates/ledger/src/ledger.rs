//! The state of a ledger, and its changes by events.

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::{HeapId, LedgerId, Pid, StackId, Tid};
use heapbpf_base::units::{Amounts, Cubes, MonotonicNanos};
use profiler_common::interval::Interval;
use profiler_common::record::UNKNOWN_ADDRESS;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};

use super::callsite::{BEFORE_PEAKS, Callsite, PeakEpoch};
use super::curve::{Curve, PeakDetails};
use super::details::AgesByCallsite;
use super::inventory;
use super::limit::{self, CallsiteLimit};
use super::live::{Correction, FreedBlock, LiveAllocation, LiveBlock, LiveBlocks, Threads};
use super::ranges::{Freed, Ranges};
use super::totals::{Flow, HeapUsage, Movement, Totals};
use crate::ingest::event::{Allocation, Event, Free, Remap, Stack};

/// State of a target. The order of the fields is part of the recording format.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Ledger {
    pub(super) pid: Pid,
    pub(super) live: LiveBlocks,
    pub(super) ranges: Ranges,
    pub(super) callsites: Vec<Callsite>,
    pub(super) callsite_ids: FxHashMap<(StackId, HeapId, Option<Tid>), u32>,
    /// Threads that callsites distinguish; `None` if they do not distinguish threads.
    distinguished: Option<FxHashSet<Tid>>,
    pub(super) stacks: FxHashMap<StackId, Stack>,
    pub(super) totals: Totals,
    pub(super) heaps: FxHashMap<HeapId, Totals>,
    pub(super) frees_unknown: u64,
    /// Always 0: the field fills a field of the recording format that is no longer used.
    reserved: u32,
    /// Number of the ledger; `None` until a recorder has numbered it.
    #[serde(skip)]
    id: Option<LedgerId>,
    #[serde(skip)]
    limit: CallsiteLimit,
    #[serde(skip)]
    corrections: Vec<Correction>,
    /// Flows that were not taken yet; `None` if they are not recorded.
    #[serde(skip)]
    flows: Option<Vec<Flow>>,
    pub(super) peak: PeakEpoch,
    pub(super) latest: MonotonicNanos,
    pub(super) curve: Curve,
    pub(super) peak_details: PeakDetails,
    pub(super) threads: Threads,
    /// Heaps whose temporary blocks are not known: not all allocations were recorded, or they are mapped memory.
    pub(super) sampled: FxHashSet<HeapId>,
    pub(super) ages_at_end: Option<AgesByCallsite>,
}

/// Maximum number of threads that are distinguished; others share callsites without a thread. The number of threads is up to the
/// target.
const THREADS_DISTINGUISHED_MAX: usize = 2048;

impl Ledger {
    pub fn new(pid: Pid) -> Self {
        Self { pid, peak: BEFORE_PEAKS + 1, ..Self::default() }
    }

    /// Third cumulants of all totals, in an order that follows from the serialized state.
    pub fn cubes_mut(&mut self) -> impl Iterator<Item = &mut Cubes> {
        let mut heaps: Vec<_> = self.heaps.iter_mut().collect();
        heaps.sort_by_key(|(heap, _)| **heap);
        let heaps = heaps.into_iter().map(|(_, totals)| totals);
        let callsites = self.callsites.iter_mut().map(Callsite::totals_mut);
        std::iter::once(&mut self.totals).chain(heaps).chain(callsites).flat_map(Totals::cubes_mut)
    }

    pub fn empty(&self, pid: Pid) -> Self {
        let distinguished = self.distinguished.as_ref().map(|_| FxHashSet::default());
        Self { distinguished, limit: self.limit.clone(), ..Self::new(pid) }
    }

    /// Ledger of a forked child, in which live blocks are live as inherited. The child's first peak is its initial state.
    pub fn fork(&self, child: Pid) -> Self {
        let mut limit = self.limit.clone();
        limit.add(self.callsites.len());
        Self {
            limit,
            live: self.live.clone(),
            ranges: self.ranges.clone(),
            callsites: self.callsites.iter().map(Callsite::inherit).collect(),
            stacks: self.stacks.clone(),
            totals: self.totals.inherit(),
            heaps: self.heaps.iter().map(|(&heap, totals)| (heap, totals.inherit())).collect(),
            latest: self.latest,
            sampled: self.sampled.clone(),
            ..self.empty(child)
        }
    }

    /// Ledger after an exec: keeps only frames. A stack at the same addresses has the same id; the kernel side sends frames once.
    pub fn succeed(&self) -> Self {
        Self { stacks: self.stacks.clone(), ..self.empty(self.pid) }
    }

    pub fn limit_callsites(&mut self, limit: &CallsiteLimit) {
        self.limit = limit.clone();
        self.limit.add(self.callsites.len());
    }

    /// Whether all ledgers with the same limit have more callsites than they may, which only forks cause.
    pub fn exceeds_callsites(&self) -> bool {
        self.limit.is_exceeded()
    }

    /// Creates separate callsites for the threads of later allocations.
    pub fn distinguish_threads(&mut self) {
        self.distinguished.get_or_insert_default();
    }

    pub fn has_stack(&self, id: StackId) -> bool {
        self.stacks.contains_key(&id)
    }

    pub fn stacks(&self) -> impl Iterator<Item = (StackId, &Stack)> {
        self.stacks.iter().map(|(&id, stack)| (id, stack))
    }

    pub fn id(&self) -> Option<LedgerId> {
        self.id
    }

    /// Sets the number of the ledger. Also starts recording corrections for [`take_corrections`](Self::take_corrections).
    pub fn record_as(&mut self, id: LedgerId) {
        self.id = Some(id);
    }

    pub(super) fn record(&mut self, correction: Correction) {
        if self.id.is_some() {
            self.corrections.push(correction);
        }
    }

    pub fn take_corrections(&mut self) -> Vec<Correction> {
        std::mem::take(&mut self.corrections)
    }

    /// Starts recording flows for [`take_flows`](Self::take_flows). They begin with all live blocks, ordered by callsite and
    /// size, and with the remaining size of all mappings.
    pub fn record_flows(&mut self) {
        let mut blocks: Vec<_> =
            self.live.iter().map(|(_, block)| (block.callsite, block.size_bytes, block.interval.code())).collect();
        blocks.sort_unstable();
        let blocks = blocks
            .into_iter()
            .map(|(callsite, size_bytes, interval)| (callsite, Amounts::of(size_bytes, Interval::from_code(interval))));
        let mappings = self.ranges.whole().map(|(callsite, bytes)| (callsite, Amounts::exact(bytes, 1)));
        let flow = |(callsite, weight)| Flow { callsite, movement: Movement::In(weight) };
        self.flows = Some(blocks.chain(mappings).map(flow).collect());
    }

    pub fn take_flows(&mut self) -> Vec<Flow> {
        self.flows.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Enters an event. Events of one address must arrive in the order in which they happened.
    pub fn enter(&mut self, event: Event) {
        match event {
            Event::Alloc(allocation) => self.allocate(&allocation),
            Event::Free(free) => self.free(&free),
            Event::Restore(allocation) => self.restore(&allocation),
            Event::Stack(_, id, stack) => {
                let (callsites, stacks) = (self.callsites.len(), self.stacks.len());
                if self.limit.keeps_stack(callsites, stacks) || self.has_stack(id) {
                    self.stacks.insert(id, stack);
                }
            }
            Event::Remap(remap) => self.remap(&remap),
        }
    }

    fn allocate(&mut self, allocation: &Allocation) {
        self.advance(allocation.time);
        if allocation.address.0 == UNKNOWN_ADDRESS {
            return self.pass(allocation);
        }
        // Two live blocks cannot share an address: the free record of the old one was dropped.
        self.remove(allocation.address);
        // An event may be entered late: pages wait until it is known whose they are. Totals do not change in the past.
        self.insert(&allocation.into(), self.latest, Some(allocation.tid));
        self.threads.allocate(allocation.tid, allocation.heap, allocation.address);
    }

    /// Counts a block of which only the allocation is known.
    fn pass(&mut self, allocation: &Allocation) {
        let callsite = self.callsite(allocation.stack, allocation.heap, Some(allocation.tid));
        let weight = Amounts::of(allocation.size_bytes, allocation.interval);
        self.callsites[callsite as usize].sizes.add(allocation.size_bytes, weight.count);
        self.change(callsite, Movement::Passed(weight), allocation.time);
        // It is not known whether the block is temporary.
        self.sampled.insert(allocation.heap);
    }

    /// Inserts a block. Its address must be free. `time` is that of a resulting peak.
    pub(super) fn insert(&mut self, block: &LiveAllocation, time: MonotonicNanos, thread: Option<Tid>) {
        let callsite = self.callsite(block.stack, block.heap, thread);
        let LiveAllocation { address, size_bytes, interval, time: born, .. } = *block;
        self.live.insert(address, LiveBlock { size_bytes, interval, callsite, time: born });
        let weight = Amounts::of(size_bytes, interval);
        if inventory::is_inventory(block.stack) {
            return self.open(block.stack, callsite, weight, time);
        }
        self.callsites[callsite as usize].sizes.add(block.size_bytes, weight.count);
        self.change(callsite, Movement::In(weight), time);
        if block.interval != Interval::EXACT {
            self.sampled.insert(block.heap);
        }
    }

    /// Enters a live block allocated before recording started. The block must not be known.
    pub fn enter_earlier(&mut self, block: &LiveAllocation) {
        if !self.is_live(block.address) {
            self.insert_found(block);
        }
    }

    /// Enters a live block allocated before recording started, whose stack is known. Its address must be free.
    pub fn enter_open(&mut self, block: &LiveAllocation) {
        self.record(Correction::Opened(*block));
        self.remove(block.address);
        let callsite = self.callsite(block.stack, block.heap, None);
        let LiveAllocation { address, size_bytes, interval, time, .. } = *block;
        self.live.insert(address, LiveBlock { size_bytes, interval, callsite, time });
        let weight = Amounts::of(size_bytes, interval);
        self.curve.raise(&weight);
        self.change(callsite, Movement::Opening(weight), self.latest);
        if interval != Interval::EXACT {
            self.sampled.insert(block.heap);
        }
    }

    /// Enters a block allocated before recording started that has been freed since. It counts as freed and as live at the start,
    /// but not as live together with present blocks, which may have been allocated after it was freed.
    pub fn enter_freed(&mut self, block: &LiveAllocation) {
        self.record(Correction::EnteredFreed(*block));
        let callsite = self.callsite(block.stack, block.heap, None);
        self.stacks.entry(block.stack).or_insert_with(|| inventory::stack(block.stack));
        self.callsites[callsite as usize].inherited = true;
        let weight = Amounts::of(block.size_bytes, block.interval);
        // The block is not live in either state, so its samples and variances do not count.
        let moved = Amounts { count: weight.count, bytes: weight.bytes, ..Amounts::default() };
        self.change(callsite, Movement::Out(moved), self.latest);
        self.change(callsite, Movement::Opening(moved), self.latest);
    }

    /// Counts a block as live from the start.
    fn open(&mut self, stack: StackId, callsite: u32, weight: Amounts, time: MonotonicNanos) {
        self.stacks.entry(stack).or_insert_with(|| inventory::stack(stack));
        self.callsites[callsite as usize].inherited = true;
        self.curve.raise(&weight);
        self.change(callsite, Movement::Opening(weight), time);
    }

    fn free(&mut self, free: &Free) {
        self.advance(free.time);
        let Some((block, weight)) = self.remove(free.address) else {
            self.frees_unknown += 1;
            return;
        };
        let callsite = &mut self.callsites[block.callsite as usize];
        let freed = self.threads.free(free, callsite.heap, block);
        callsite.add_lifetime(freed.lifetime_us, weight.count);
        callsite.temporary_count += u64::from(freed.temporary);
    }

    pub(super) fn remove(&mut self, address: TargetAddr) -> Option<(LiveBlock, Amounts)> {
        let block = self.live.remove(address)?;
        let weight = Amounts::of(block.size_bytes, block.interval);
        self.change(block.callsite, Movement::Out(weight), self.latest);
        Some((block, weight))
    }

    /// Undoes the preceding free of a block, which was part of a failed realloc.
    fn restore(&mut self, allocation: &Allocation) {
        let block = LiveAllocation::from(allocation);
        if self.live.get(block.address).is_some_and(|known| self.is_same(known, &block)) {
            // The record of that free was dropped.
            return;
        }
        self.remove(block.address);
        let freed = self.threads.restore(allocation.tid, block.heap, block.address);
        match freed.filter(|freed| self.is_same(freed.block, &block)) {
            Some(freed) => self.undo_free(block.address, freed),
            // The allocation of the block was never entered, or its free is no longer remembered.
            None => self.insert(&block, self.latest, Some(allocation.tid)),
        }
    }

    /// Restores a block exactly as it was: its interval here may differ from the event's, and it may be inherited.
    fn undo_free(&mut self, address: TargetAddr, freed: FreedBlock) {
        let FreedBlock { block, lifetime_us, temporary } = freed;
        let weight = Amounts::of(block.size_bytes, block.interval);
        self.live.insert(address, block);
        let callsite = &mut self.callsites[block.callsite as usize];
        callsite.remove_lifetime(lifetime_us, weight.count);
        callsite.temporary_count -= u64::from(temporary);
        // The time is not the allocation time, which is in the past.
        self.change(block.callsite, Movement::Back(weight), self.latest);
    }

    /// Enters a change of mappings. Unmapping memory whose mapping was not recorded changes nothing, and moving it adds nothing:
    /// it may be a file's.
    fn remap(&mut self, remap: &Remap) {
        self.advance(remap.ended);
        let addresses = |start: TargetAddr, bytes: u64| start.0..start.0.saturating_add(bytes);
        let old = addresses(remap.old_address, remap.old_bytes);
        let new = addresses(remap.new_address, remap.new_bytes);
        let unmapped = self.ranges.unmap(&old, remap.began);
        // If this call's own range was found, displaced ones belong to another thread, whose record is yet to come.
        let old_is_known = !unmapped.is_empty() || self.ranges.was_displaced(&old, remap.began);
        self.remove_pieces(unmapped, remap.began);
        if new.is_empty() || !(old.is_empty() || old_is_known) {
            return;
        }
        let displaced = self.ranges.displace(&new, remap.ended);
        self.remove_pieces(displaced, remap.ended);
        let callsite = self.callsite(remap.stack, remap.heap, Some(remap.tid));
        let size_bytes = new.end - new.start;
        let weight = Amounts::exact(size_bytes, 1);
        self.callsites[callsite as usize].sizes.add(size_bytes, weight.count);
        self.sampled.insert(remap.heap);
        self.change(callsite, Movement::In(weight), remap.ended);
        let covered = self.ranges.map(&new, remap.ended, callsite);
        self.remove_pieces(covered, remap.ended);
    }

    /// Enters the removal of pieces of mappings. A mapping is freed with its last piece.
    fn remove_pieces(&mut self, pieces: impl IntoIterator<Item = Freed>, time: MonotonicNanos) {
        for piece in pieces {
            let weight = Amounts::exact(piece.bytes, u64::from(piece.is_last));
            if piece.is_last {
                let lifetime_us = time.0.saturating_sub(piece.time.0) / 1000;
                self.callsites[piece.callsite as usize].add_lifetime(lifetime_us, weight.count);
            }
            self.change(piece.callsite, Movement::Out(weight), time);
        }
    }

    #[inline]
    fn advance(&mut self, time: MonotonicNanos) {
        if self.curve.is_due(time) {
            self.curve.advance(time, HeapUsage::of(&self.totals));
        }
        self.latest = self.latest.max(time);
    }

    fn callsite(&mut self, stack: StackId, heap: HeapId, thread: Option<Tid>) -> u32 {
        let thread = thread.filter(|&thread| self.is_distinguished(thread));
        if let Some(&known) = self.callsite_ids.get(&(stack, heap, thread)) {
            return known;
        }
        // There are few callsites of blocks allocated before recording started.
        let has_room = inventory::is_inventory(stack) || self.limit.has_room(self.callsites.len());
        let (stack, thread) = if has_room { (stack, thread) } else { (limit::OTHERS, None) };
        *self.callsite_ids.entry((stack, heap, thread)).or_insert_with(|| {
            if has_room {
                self.limit.add(1);
            } else {
                self.stacks.insert(stack, limit::stack());
            }
            self.callsites.push(Callsite::new(stack, heap, thread));
            u32::try_from(self.callsites.len() - 1).expect("four billion callsites do not fit in memory")
        })
    }

    /// Whether a callsite is that of a stack, as far as it is known.
    pub(super) fn is_of_stack(&self, callsite: u32, stack: StackId) -> bool {
        [stack, limit::OTHERS].contains(&self.callsites[callsite as usize].stack)
    }

    fn is_distinguished(&mut self, thread: Tid) -> bool {
        let Some(threads) = &mut self.distinguished else { return false };
        threads.contains(&thread) || threads.len() < THREADS_DISTINGUISHED_MAX && threads.insert(thread)
    }

    pub(super) fn change(&mut self, callsite: u32, movement: Movement, time: MonotonicNanos) {
        if let Some(flows) = &mut self.flows {
            flows.push(Flow { callsite, movement });
        }
        let callsite = &mut self.callsites[callsite as usize];
        let inherited = callsite.inherited;
        let change = |totals: &mut Totals| match movement {
            Movement::In(weight) => totals.allocate(weight, time),
            Movement::Passed(weight) => totals.pass(weight),
            Movement::Opening(weight) => totals.open(weight, time),
            Movement::Out(weight) => totals.free(weight),
            Movement::Back(weight) => totals.restore(weight, time),
            Movement::Reweighed { from, to } => totals.reweigh(from, to, inherited),
            Movement::FreedReweighed { from, to } => totals.reweigh_freed(from, to, inherited),
        };
        change(callsite.change(self.peak));
        change(self.heaps.entry(callsite.heap).or_default());
        let peak_bytes = self.totals.peak_bytes;
        change(&mut self.totals);
        if self.totals.peak_bytes > peak_bytes {
            self.peak += 1;
            self.peak_details = PeakDetails::of(&self.totals);
        }
    }

    /// Whether the ledger has a block of the kernel's live set, as [`reconcile`](Self::reconcile) compares them.
    pub fn has(&self, block: &LiveAllocation) -> bool {
        self.live.get(block.address).is_some_and(|known| self.is_same(known, block))
    }

    /// Whether two blocks are the same: see [`reconcile`](Self::reconcile).
    pub(super) fn is_same(&self, known: LiveBlock, block: &LiveAllocation) -> bool {
        let callsite = &self.callsites[known.callsite as usize];
        (known.size_bytes, callsite.heap) == (block.size_bytes, block.heap)
            && self.is_of_stack(known.callsite, block.stack)
            && known.interval.bytes() >= block.interval.bytes()
            && self.live.is_same_time(known.time, block.time)
    }

    /// Closes the ledger: drops single blocks and keeps the totals. No event may follow. Later snapshots have the ages of `now`.
    pub fn close(&mut self, now: MonotonicNanos) {
        if self.ages_at_end.is_none() {
            self.ages_at_end = Some(self.ages(now.max(self.latest)));
        }
        self.threads = Threads::default();
        self.live = LiveBlocks::default();
        self.ranges = Ranges::default();
        self.callsite_ids = FxHashMap::default();
    }
}
