//! Books of a part of the live blocks: those that somebody has picked.

use profiler_common::interval::Interval;
use rustc_hash::FxHashMap;

use super::ages::Ages;
use super::details::Details;
use super::snapshot::{CallsiteSnapshot, TargetSnapshot};
use super::totals::Totals;
use crate::ids::HeapId;
use crate::units::{EstimatedCount, MonotonicNanos, Weight};

/// A block that was picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picked {
    /// The index of its callsite, which must be one of the books.
    pub callsite: u32,
    /// Bytes.
    pub size_bytes: u64,
    /// When it was made, where that is known.
    pub born: Option<MonotonicNanos>,
}

impl TargetSnapshot {
    /// Books of these blocks alone, as if nothing else had ever been allocated and none of them freed. Each counts as itself, however many
    /// it was sampled for. Ages are as of `now`.
    pub fn only(&self, blocks: impl IntoIterator<Item = Picked>, now: MonotonicNanos) -> Self {
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
            let weight = Weight::of(block.size_bytes, Interval::EXACT);
            let time = block.born.unwrap_or(now);
            for sum in [&mut callsite.totals, &mut totals, heaps.entry(callsite.heap).or_default()] {
                sum.allocate(weight, time);
            }
            callsite.details.sizes.add(block.size_bytes, weight.count);
            if let Some(born) = block.born {
                Ages::note(&mut callsite.details.ages, born, now, EstimatedCount::exact(1));
            }
        }
        for sum in
            callsites.iter_mut().map(|callsite| &mut callsite.totals).chain(heaps.values_mut()).chain([&mut totals])
        {
            sum.at_peak = sum.live();
        }
        callsites.retain(|callsite| !callsite.totals.is_empty());
        let mut heaps: Vec<_> = heaps.into_iter().collect();
        heaps.sort_unstable_by_key(|(heap, _)| *heap);
        Self { pid: self.pid, totals, heaps, callsites }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Pid;

    #[test]
    fn picked_blocks_are_all_that_is_told_of() {
        let callsite = |index| CallsiteSnapshot {
            index,
            stack: None,
            heap: HeapId(u8::try_from(index % 2).expect("small")),
            thread: None,
            inherited: false,
            totals: Totals::default(),
            details: Details { temporary_count: Some(7), ..Details::default() },
        };
        let books = TargetSnapshot {
            pid: Pid(1),
            totals: Totals::default(),
            heaps: Vec::new(),
            callsites: [1, 2, 3].map(callsite).to_vec(),
        };
        let block = |callsite, size_bytes, born: u64| Picked { callsite, size_bytes, born: Some(MonotonicNanos(born)) };
        let part = books.only(
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
        assert_eq!(part.heaps.len(), 1, "nothing of the second was picked");
        assert_eq!(part.callsites[0].details.temporary_count, Some(0));
    }
}
