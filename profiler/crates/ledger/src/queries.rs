//! Read access to a ledger. None of it costs anything when events are entered.

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::{HeapId, StackId};
use heapbpf_base::units::{Amounts, EstimatedBytes, EstimatedCount, MonotonicNanos};
use profiler_common::interval::Interval;
use rustc_hash::FxHashMap;

use super::callsite::{COUNT_MAX, Callsite};
use super::curve::CurvePoint;
use super::details::{Ages, AgesByCallsite, Details};
use super::inventory;
use super::ledger::Ledger;
use super::live::{LiveAllocation, LiveBlock};
use super::snapshot::{CallsiteSnapshot, TargetSnapshot, sorted_heaps};
use super::totals::{HeapUsage, Totals};

impl Ledger {
    /// Totals of the target, without the amounts at the peak.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    pub fn heaps(&self) -> Vec<(HeapId, Totals)> {
        sorted_heaps(self.heaps.clone())
    }

    /// Totals of the callsites by index, without the amounts at the peak.
    pub fn callsite_totals(&self) -> impl Iterator<Item = &Totals> {
        self.callsites.iter().map(Callsite::totals_now)
    }

    /// The callsite whose live bytes grew most since the recording began, without details; `None` if none grew.
    pub fn top_grower(&self) -> Option<CallsiteSnapshot> {
        let growths = (0..).zip(&self.callsites).map(|(index, callsite)| (index, callsite, callsite.totals_now()));
        let (index, callsite, totals) = growths
            .filter(|(.., totals)| totals.delta_bytes() > EstimatedBytes::ZERO)
            .max_by(|(.., a), (.., b)| a.delta_bytes().cmp(&b.delta_bytes()))?;
        let &Callsite { heap, thread, inherited, .. } = callsite;
        let stack = self.stacks.get(&callsite.stack).cloned();
        Some(CallsiteSnapshot { index, stack, heap, thread, inherited, totals: *totals, details: Details::default() })
    }

    pub fn live_blocks(&self) -> usize {
        self.live.len()
    }

    pub fn live(&self) -> impl Iterator<Item = LiveAllocation> {
        self.live.iter().map(|(address, block)| self.allocation(address, block))
    }

    /// Start, size and heap of recorded mappings, by ascending address.
    pub fn mapped_pieces(&self) -> impl Iterator<Item = (TargetAddr, u64, HeapId)> {
        let heap = |callsite: u32| self.callsites[callsite as usize].heap;
        self.ranges
            .addresses()
            .map(move |(range, callsite)| (TargetAddr(range.start), range.end - range.start, heap(callsite)))
    }

    /// Address, size, callsite and allocation time of the live blocks, in no particular order.
    pub fn blocks(&self) -> impl Iterator<Item = (TargetAddr, u64, u32, MonotonicNanos)> {
        self.live.iter().map(|(address, block)| (address, block.size_bytes, block.callsite, block.time))
    }

    pub(super) fn allocation(&self, address: TargetAddr, block: LiveBlock) -> LiveAllocation {
        let LiveBlock { size_bytes, interval, time, callsite } = block;
        let &Callsite { stack, heap, .. } = &self.callsites[callsite as usize];
        LiveAllocation { address, size_bytes, interval, stack, heap, time }
    }

    /// Whether a callsite stands for blocks allocated before recording started.
    pub fn is_inventory(&self, callsite: usize) -> bool {
        self.callsites.get(callsite).is_some_and(|callsite| inventory::is_inventory(callsite.stack))
    }

    /// Whether a block allocated before recording started is live at this address.
    pub fn is_earlier(&self, address: TargetAddr) -> bool {
        self.live.get(address).is_some_and(|block| self.is_inventory(block.callsite as usize))
    }

    /// The live block at an address.
    pub fn block(&self, address: TargetAddr) -> Option<LiveAllocation> {
        self.live.get(address).map(|block| self.allocation(address, block))
    }

    pub fn is_live(&self, address: TargetAddr) -> bool {
        self.live.get(address).is_some()
    }

    pub fn frees_unknown(&self) -> u64 {
        self.frees_unknown
    }

    /// Takes a snapshot with ages as of `now`. Takes one pass over all live blocks. Callsites are in order of first occurrence.
    pub fn snapshot(&self, now: MonotonicNanos) -> TargetSnapshot {
        let ages = self.ages_at_end.is_none().then(|| self.ages(now));
        let ages = ages.as_ref().or(self.ages_at_end.as_ref());
        let mut totals = Totals { at_peak: Amounts::default(), ..self.totals };
        let mut heaps: FxHashMap<HeapId, Totals> = self.heaps.clone();
        let mut callsites = Vec::new();
        for (index, callsite) in (0..).zip(&self.callsites) {
            let own = callsite.totals(self.peak);
            // The parent of a forked child had freed everything of this callsite.
            if own.is_empty() {
                continue;
            }
            totals.at_peak += own.at_peak;
            heaps.entry(callsite.heap).or_default().at_peak += own.at_peak;
            let stack = self.stacks.get(&callsite.stack).cloned();
            let ages = ages.and_then(|ages| ages.get(&index));
            let details = callsite.details(ages, !self.sampled.contains(&callsite.heap));
            let &Callsite { heap, thread, inherited, .. } = callsite;
            callsites.push(CallsiteSnapshot { index, stack, heap, thread, inherited, totals: own, details });
        }
        TargetSnapshot { pid: self.pid, totals, heaps: sorted_heaps(heaps), callsites }
    }

    pub(super) fn ages(&self, now: MonotonicNanos) -> AgesByCallsite {
        let mut ages = vec![Ages::default(); self.callsites.len()];
        let mut weights = WeightCache::new();
        for (_, block) in self.live.iter() {
            let count = weights.of(block.size_bytes, block.interval).count;
            ages[block.callsite as usize].add_block(block.time, now, count);
        }
        for (callsite, mapped) in self.ranges.mappings() {
            ages[callsite as usize].add_block(mapped, now, EstimatedCount::exact(1));
        }
        (0..).zip(ages).filter(|(_, ages)| ages.oldest_ns.is_some()).collect()
    }

    /// For each time, the live amounts allocated before it, by callsite, to half a tick (8.4 ms). Empty once closed.
    pub fn allocated_before<const N: usize>(&self, times: [MonotonicNanos; N]) -> Vec<[Amounts; N]> {
        let mut older = vec![[Amounts::default(); N]; self.callsites.len()];
        let mut weights = WeightCache::new();
        let mut add = |callsite: u32, born: MonotonicNanos, weight: &mut dyn FnMut() -> Amounts| {
            for (amounts, time) in older[callsite as usize].iter_mut().zip(times) {
                if born < time {
                    *amounts += weight();
                }
            }
        };
        for (_, block) in self.live.iter() {
            add(block.callsite, block.time, &mut || weights.of(block.size_bytes, block.interval));
        }
        for piece in self.ranges.pieces() {
            // A mapping counts once, however many pieces it has.
            add(piece.callsite, piece.time, &mut || Amounts::exact(piece.bytes, u64::from(piece.is_first)));
        }
        older
    }

    /// Points of the curve: evenly spaced since the first event, and at the peak, up to `until` (now, or when the ledger was
    /// closed). Ascending, at most [`POINTS_MAX`](super::curve::POINTS_MAX) + 3, none within idle periods.
    pub fn curve_points(&self, until: MonotonicNanos) -> Vec<CurvePoint> {
        let mut points = self.curve.points(until, HeapUsage::of(&self.totals));
        let peak = self.totals.peak_time.map(|time| self.peak_details.at(time, self.totals.peak_bytes));
        if let Some(peak) = peak.filter(|peak| peak.time <= until) {
            let index = points.partition_point(|point| point.time < peak.time);
            if points[index..].first() != Some(&peak) {
                points.insert(index, peak);
            }
        }
        points
    }

    /// Number of sampled blocks of callsites whose frames have not arrived so far.
    pub fn blocks_without_frames(&self) -> u64 {
        let totals = self.without_frames().map(|callsite| callsite.totals(self.peak));
        totals.map(|totals| totals.alloc_samples.max(totals.live_samples)).fold(0, u64::saturating_add)
    }

    pub fn stacks_missing(&self) -> Vec<StackId> {
        let is_live = |callsite: &&Callsite| callsite.totals(self.peak).live_count() > EstimatedCount::ZERO;
        self.without_frames().filter(is_live).map(|callsite| callsite.stack).collect()
    }

    fn without_frames(&self) -> impl Iterator<Item = &Callsite> {
        self.callsites.iter().filter(|callsite| !self.stacks.contains_key(&callsite.stack))
    }

    /// Whether a ledger read from a file is sound: all callsite indices exist, and no counter is near an overflow.
    pub fn is_sound(&self) -> bool {
        let has_callsite = |callsite: u32| (callsite as usize) < self.callsites.len();
        self.live.callsites().all(has_callsite)
            && self.ranges.is_sound(has_callsite)
            && self.threads.callsites().all(has_callsite)
            && self.callsite_ids.values().copied().all(has_callsite)
            && self.callsites.iter().all(Callsite::is_sound)
            && self.heaps.values().chain([&self.totals]).all(Totals::is_sound)
            && self.ages_at_end.iter().flatten().all(|(_, ages)| ages.histogram.is_sound())
            && self.curve.is_sound()
            && self.frees_unknown.max(self.peak) < COUNT_MAX
    }
}

/// Cache of weights. Sizes repeat, and computing weights would dominate a pass over all blocks.
struct WeightCache(Vec<(u64, Interval, Amounts)>);

impl WeightCache {
    const ENTRIES: usize = 4096;

    fn new() -> Self {
        Self(vec![(0, Interval::EXACT, Amounts::exact(0, 1)); Self::ENTRIES])
    }

    fn of(&mut self, size_bytes: u64, interval: Interval) -> Amounts {
        if size_bytes >= u64::from(interval.bytes()) {
            return Amounts::exact(size_bytes, 1);
        }
        // Sizes below the interval have at most 30 bits.
        let index = usize::try_from(size_bytes ^ size_bytes >> 12).unwrap_or(0) % Self::ENTRIES;
        let known = &mut self.0[index];
        if (known.0, known.1) != (size_bytes, interval) {
            *known = (size_bytes, interval, Amounts::of(size_bytes, interval));
        }
        known.2
    }
}
