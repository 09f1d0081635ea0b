//! Which of the sampled live blocks stay when the live set is thinned. Pure: what becomes of a block follows from the block
//! and from the intervals that its heap was thinned to, whoever asks and however often.
//!
//! A block of s bytes that was sampled at T₀ stays at T′ with probability p(s, T′) / p(s, T₀), and then is what it would be
//! had it been sampled at T′ from the first: with probability p(s, T₀) · p(s, T′) / p(s, T₀) = p(s, T′). Its weight is that of
//! T′, and so is its variance. Whether it stays is told by a number that belongs to the block, so of what is thinned to 2 T′ none was
//! gone at T′, and to be thinned twice is to be thinned once, to the larger interval.
//!
//! The kernel's entries keep the interval that they were sampled at; what they weigh follows from here.

use std::collections::BTreeMap;

use profiler_common::interval::Interval;
use profiler_common::live::LiveBlock;

use super::overload::chance;
use crate::address::TargetAddr;
use crate::ids::{HeapId, Pid};
use crate::ingest::event::Allocation;
use crate::units::MonotonicNanos;

/// To which intervals live blocks were thinned, by heap, and when.
#[derive(Clone, Debug)]
pub(super) struct Thinnings {
    seed: u64,
    /// Of each heap the latest last, with smaller and smaller intervals: a block that a later one covers is older than it, and
    /// so is covered by all larger ones before only where it is older than those.
    floors: BTreeMap<HeapId, Vec<(MonotonicNanos, Interval)>>,
}

impl Thinnings {
    /// None yet. The seed is to be one that targets do not know.
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, floors: BTreeMap::new() }
    }

    /// Thins all blocks of a heap that were made before `time` to this interval. Calls come in the order of their times.
    pub(super) fn thin(&mut self, heap: HeapId, time: MonotonicNanos, interval: Interval) {
        let floors = self.floors.entry(heap).or_default();
        floors.retain(|(_, earlier)| earlier.bytes() > interval.bytes());
        floors.push((time, interval));
    }

    /// Whether nothing was thinned.
    pub(super) fn is_empty(&self) -> bool {
        self.floors.is_empty()
    }

    /// The interval that this block counts with; `None` when it is one of those that do not stay.
    pub(super) fn interval(&self, pid: Pid, address: TargetAddr, block: &LiveBlock) -> Option<Interval> {
        let sampled = block.interval();
        let Some(floors) = self.floors.get(&HeapId(block.heap())) else { return Some(sampled) };
        let covering = floors.iter().filter(|(time, _)| block.time_ns() < time.0).map(|(_, interval)| *interval);
        let Some(floor) = covering.max_by_key(|interval| interval.bytes()) else { return Some(sampled) };
        if floor.bytes() <= sampled.bytes() {
            return Some(sampled);
        }
        let stays = chance(block.size_bytes(), floor) / chance(block.size_bytes(), sampled);
        (self.draw(pid, address, block) < stays).then_some(floor)
    }

    /// The interval that a block counts with which is in the live set again, and was thinned before it was taken out for a
    /// moment.
    pub(super) fn of_restored(&self, block: &Allocation) -> Interval {
        let Allocation { pid, address, size_bytes, time, stack, interval, heap, .. } = *block;
        let live = LiveBlock::new(size_bytes, time.0, stack.0, interval, heap.0);
        self.interval(pid, address, &live).unwrap_or(interval)
    }

    /// A number of the block's own, uniform in [0, 1). Of its process too: a copy that a fork has made is another block, and
    /// one that was thinned before it was copied must be drawn for anew.
    #[expect(clippy::cast_precision_loss, reason = "53 bits")]
    fn draw(&self, pid: Pid, address: TargetAddr, block: &LiveBlock) -> f64 {
        let mut state = self.seed;
        for word in [address.0, block.time_ns(), u64::from(pid.0)] {
            state = mixed(state ^ word);
        }
        (mixed(state) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A bijection of 64 bits, each of which depends on all: the step of `SplitMix64` (Steele, Lea and Flood, 2014).
fn mixed(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
