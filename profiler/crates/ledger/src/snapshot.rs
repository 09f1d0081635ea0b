//! Snapshots of a ledger, and windows, peaks and selections of blocks derived from them. Addresses only.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use heapbpf_base::ids::{HeapId, Pid, Tid};
use profiler_common::interval::Interval;
use rustc_hash::FxHashMap;

use super::details::Details;
use super::limit;
use super::totals::Totals;
pub use crate::ingest::event::Stack;
use heapbpf_base::units::{Amounts, EstimatedCount, MonotonicNanos};

/// State of a target at one point in time, or its changes over a window that ends there.
#[derive(Clone, Debug)]
pub struct TargetSnapshot {
    pub pid: Pid,
    pub totals: Totals,
    /// Totals of the heaps by ascending id.
    pub heaps: Vec<(HeapId, Totals)>,
    /// One entry per stack, heap and, if enabled, thread, by ascending index.
    pub callsites: Vec<CallsiteSnapshot>,
}

#[derive(Clone, Debug)]
pub struct CallsiteSnapshot {
    /// Index in the ledger, stable until exec. It is not the position in the list: snapshots omit callsites without activity.
    pub index: u32,
    /// Stack; `None` if the kernel side dropped the frames.
    pub stack: Option<Stack>,
    pub heap: HeapId,
    pub thread: Option<Tid>,
    pub inherited: bool,
    pub totals: Totals,
    pub details: Details,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelectedBlock {
    pub callsite: u32,
    pub size_bytes: u64,
    pub born: Option<MonotonicNanos>,
}

impl TargetSnapshot {
    /// Snapshot of these blocks, as if nothing else had been allocated and nothing freed. Each block counts as one, whatever its
    /// sampling weight.
    pub fn of_blocks(&self, blocks: impl IntoIterator<Item = SelectedBlock>, now: MonotonicNanos) -> Self {
        let known = self.callsites.iter().enumerate().map(|(at, callsite)| (callsite.index, at));
        let known: FxHashMap<u32, usize> = known.collect();
        let empty = |callsite: &CallsiteSnapshot| CallsiteSnapshot {
            stack: callsite.stack.clone(),
            totals: Totals::default(),
            details: Details { temporary_count: callsite.details.temporary_count.map(|_| 0), ..Details::default() },
            ..*callsite
        };
        let mut callsites: Vec<CallsiteSnapshot> = self.callsites.iter().map(empty).collect();
        let mut heaps: FxHashMap<HeapId, Totals> = FxHashMap::default();
        let mut totals = Totals::default();
        for block in blocks {
            let Some(callsite) = known.get(&block.callsite).map(|&at| &mut callsites[at]) else { continue };
            let weight = Amounts::of(block.size_bytes, Interval::EXACT);
            let time = block.born.unwrap_or(now);
            for sum in [&mut callsite.totals, &mut totals, heaps.entry(callsite.heap).or_default()] {
                sum.allocate(weight, time);
            }
            callsite.details.sizes.add(block.size_bytes, weight.count);
            if let Some(born) = block.born {
                callsite.details.ages.add_block(born, now, EstimatedCount::exact(1));
            }
        }
        for sum in
            callsites.iter_mut().map(|callsite| &mut callsite.totals).chain(heaps.values_mut()).chain([&mut totals])
        {
            sum.at_peak = sum.live();
        }
        callsites.retain(|callsite| !callsite.totals.is_empty());
        Self { pid: self.pid, totals, heaps: sorted_heaps(heaps), callsites }
    }

    /// The window from `base`, an earlier snapshot of the same program: see [`Totals::since`]. Includes callsites that
    /// freed everything; excludes idle callsites without live blocks.
    pub fn since(&self, base: &Self) -> Self {
        let before: FxHashMap<HeapId, &Totals> = base.heaps.iter().map(|(heap, totals)| (*heap, totals)).collect();
        let heaps = self.heaps.iter().map(|(heap, totals)| {
            let base = before.get(heap).copied().copied().unwrap_or_default();
            (*heap, totals.since(&base))
        });
        let mut before = base.callsites.iter().peekable();
        let callsites = self.callsites.iter().filter_map(|callsite| {
            while before.next_if(|earlier| earlier.index < callsite.index).is_some() {}
            let window = match before.next_if(|earlier| earlier.index == callsite.index) {
                Some(earlier) => callsite.since(earlier),
                None => callsite.clone(),
            };
            (!window.totals.is_idle()).then_some(window)
        });
        Self {
            pid: self.pid,
            totals: self.totals.since(&base.totals),
            heaps: heaps.collect(),
            callsites: callsites.collect(),
        }
    }

    /// Keeps the callsites with most bytes, allocated or live. The others of each heap become one.
    pub fn shortened(&self, callsites_max: usize) -> Self {
        let bytes = |callsite: &CallsiteSnapshot| callsite.totals.alloc_bytes.max(callsite.totals.live_bytes());
        let mut order: Vec<usize> = (0..self.callsites.len()).collect();
        order.sort_unstable_by_key(|&at| (Reverse(bytes(&self.callsites[at])), at));
        let rest = order.split_off(callsites_max.min(order.len()));
        order.sort_unstable();
        let mut others: BTreeMap<HeapId, CallsiteSnapshot> = BTreeMap::new();
        for callsite in rest.into_iter().map(|at| &self.callsites[at]) {
            let sum = others.entry(callsite.heap).or_insert_with(|| CallsiteSnapshot::of_others(callsite.heap));
            let at_peak = sum.totals.at_peak;
            sum.totals.add(&callsite.totals);
            sum.totals.at_peak = at_peak;
            sum.totals.at_peak += callsite.totals.at_peak;
            sum.details.add(&callsite.details);
        }
        let kept = order.into_iter().map(|at| self.callsites[at].clone());
        Self { callsites: kept.chain(others.into_values()).collect(), heaps: self.heaps.clone(), ..*self }
    }

    /// Snapshot of the state at the peak. Requires a snapshot of the whole recording: a window omits callsites. Amounts live at
    /// the peak count as allocated and not freed, or, if inherited at a fork, as opening balance. Details are empty.
    pub fn at_peak(&self) -> Self {
        let mut totals = self.totals.only_peak();
        let mut heaps: Vec<_> = self.heaps.iter().map(|(heap, totals)| (*heap, totals.only_peak())).collect();
        let mut callsites = Vec::new();
        for callsite in &self.callsites {
            let at_peak = callsite.totals.of_peak(callsite.inherited);
            if at_peak.is_idle() {
                continue;
            }
            let heap = heaps.iter_mut().filter(|(heap, _)| *heap == callsite.heap).map(|(_, totals)| totals);
            for sum in heap.chain([&mut totals]) {
                let peak = sum.only_peak();
                sum.add(&at_peak);
                sum.set_peak(&peak);
            }
            callsites.push(CallsiteSnapshot {
                totals: at_peak,
                details: Details::default(),
                stack: callsite.stack.clone(),
                ..*callsite
            });
        }
        Self { pid: self.pid, totals, heaps, callsites }
    }
}

pub(super) fn sorted_heaps(heaps: FxHashMap<HeapId, Totals>) -> Vec<(HeapId, Totals)> {
    let mut heaps: Vec<_> = heaps.into_iter().collect();
    heaps.sort_unstable_by_key(|(heap, _)| *heap);
    heaps
}

impl CallsiteSnapshot {
    /// The callsite that stands for others of a heap, with an index above those of other callsites.
    fn of_others(heap: HeapId) -> Self {
        Self {
            index: u32::MAX - u32::from(u8::MAX) + u32::from(heap.0),
            stack: Some(limit::stack()),
            heap,
            thread: None,
            inherited: false,
            totals: Totals::default(),
            details: Details { temporary_count: Some(0), ..Details::default() },
        }
    }

    fn since(&self, base: &Self) -> Self {
        Self {
            totals: self.totals.since(&base.totals),
            details: self.details.since(&base.details),
            stack: self.stack.clone(),
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_callsites_are_kept() {
        let callsite = |index: u32, bytes: u64| {
            let mut totals = Totals::default();
            totals.allocate(Amounts::exact(bytes, 1), MonotonicNanos(1));
            totals.at_peak = totals.live();
            let heap = HeapId(u8::try_from(index % 2).expect("small"));
            let details = Details::default();
            CallsiteSnapshot { index, stack: None, heap, thread: None, inherited: false, totals, details }
        };
        let callsites = vec![callsite(0, 5), callsite(1, 50), callsite(2, 7), callsite(3, 1), callsite(4, 90)];
        let whole = TargetSnapshot { pid: Pid(1), totals: Totals::default(), heaps: Vec::new(), callsites };
        let facts = |snapshot: &TargetSnapshot| -> Vec<(bool, u64, u64)> {
            let of = snapshot.callsites.iter().map(|it| {
                let is_others = it.stack.as_ref().is_some_and(limit::is_stack);
                (is_others, it.totals.live_bytes().rounded(), it.totals.at_peak.bytes.rounded())
            });
            of.collect()
        };
        let short = whole.shortened(2);
        assert_eq!(facts(&short), [(false, 50, 50), (false, 90, 90), (true, 12, 12), (true, 1, 1)]);
        assert!(short.callsites.is_sorted_by_key(|callsite| callsite.index));
        assert_eq!(facts(&whole.shortened(5)), facts(&whole));
    }

    #[test]
    fn a_selection_contains_its_blocks_alone() {
        let callsite = |index| CallsiteSnapshot {
            index,
            stack: None,
            heap: HeapId(u8::try_from(index % 2).expect("small")),
            thread: None,
            inherited: false,
            totals: Totals::default(),
            details: Details { temporary_count: Some(7), ..Details::default() },
        };
        let snapshot = TargetSnapshot {
            pid: Pid(1),
            totals: Totals::default(),
            heaps: Vec::new(),
            callsites: [1, 2, 3].map(callsite).to_vec(),
        };
        let block =
            |callsite, size_bytes, born: u64| SelectedBlock { callsite, size_bytes, born: Some(MonotonicNanos(born)) };
        let part = snapshot.of_blocks(
            [block(1, 10, 5_000), block(3, 20, 6_000), block(1, 5, 7_000), block(9, 1, 0)],
            MonotonicNanos(9_000),
        );
        let live: Vec<_> = part
            .callsites
            .iter()
            .map(|it| {
                (
                    it.index,
                    it.totals.live_count().rounded(),
                    it.totals.live_bytes().rounded(),
                    it.details.ages.oldest_ns,
                )
            })
            .collect();
        assert_eq!(live, [(1, 2, 15, Some(4_000)), (3, 1, 20, Some(3_000))]);
        assert_eq!((part.totals.live_count().rounded(), part.totals.live_bytes().rounded()), (3, 35));
        assert_eq!(part.heaps.len(), 1, "no block of the second heap was selected");
        assert_eq!(part.callsites[0].details.temporary_count, Some(0));
    }
}
