//! Thinning of the live set: a pure decision by the block and the intervals that its heap was thinned to.
//!
//! A block of s bytes sampled at T₀ remains at T′ with probability p(s, T′) / p(s, T₀), and thus with p(s, T′) overall:
//! it has the weight and the variance of T′. The random number that decides belongs to the block, so thinning to T′ and
//! then to 2 T′ equals thinning once to 2 T′. The kernel's entries keep the interval that they were sampled at.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use profiler_common::interval::Interval;
use profiler_common::live::LiveBlock;

use super::overload::probability;
use crate::address::TargetAddr;
use crate::ids::{HeapId, Pid};
use crate::ingest::event::Allocation;
use crate::units::MonotonicNanos;

#[derive(Clone, Debug)]
pub(super) struct Thinnings {
    seed: u64,
    /// By time, with decreasing intervals. The largest interval of thinnings later than a block applies to it.
    floors: BTreeMap<HeapId, Vec<(MonotonicNanos, Interval)>>,
}

impl Thinnings {
    /// `seed` must not be known to targets.
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, floors: BTreeMap::new() }
    }

    /// Thins all blocks of a heap allocated before `time` to this interval. Calls must be in order of time.
    pub(super) fn thin(&mut self, heap: HeapId, time: MonotonicNanos, interval: Interval) {
        let floors = self.floors.entry(heap).or_default();
        floors.retain(|(_, earlier)| earlier.bytes() > interval.bytes());
        floors.push((time, interval));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.floors.is_empty()
    }

    /// Returns the interval that determines the block's weight; `None` if the block does not remain.
    pub(super) fn interval(&self, pid: Pid, address: TargetAddr, block: &LiveBlock) -> Option<Interval> {
        let sampled = block.interval();
        let Some(floors) = self.floors.get(&HeapId(block.heap())) else { return Some(sampled) };
        let covering = floors.iter().filter(|(time, _)| block.time_ns() < time.0).map(|(_, interval)| *interval);
        let Some(floor) = covering.max_by_key(|interval| interval.bytes()) else { return Some(sampled) };
        if floor.bytes() <= sampled.bytes() {
            return Some(sampled);
        }
        let remains = probability(block.size_bytes(), floor) / probability(block.size_bytes(), sampled);
        (self.random(pid, address, block) < remains).then_some(floor)
    }

    /// Interval of a block that a failed `realloc` restores to the live set, and that may have been thinned before.
    pub(super) fn of_restored(&self, block: &Allocation) -> Interval {
        let Allocation { pid, address, size_bytes, time, stack, interval, heap, .. } = *block;
        let live = LiveBlock::new(size_bytes, time.0, stack.0, interval, heap.0);
        self.interval(pid, address, &live).unwrap_or(interval)
    }

    /// In [0, 1). Depends on the process: the copy of a block in a forked child must be sampled independently.
    #[expect(clippy::cast_precision_loss, reason = "53 bits")]
    fn random(&self, pid: Pid, address: TargetAddr, block: &LiveBlock) -> f64 {
        let mut state = self.seed;
        for word in [address.0, block.time_ns(), u64::from(pid.0)] {
            state = mixed(state ^ word);
        }
        (mixed(state) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// One step of `SplitMix64` (Steele, Lea and Flood, 2014): each output bit depends on all input bits.
fn mixed(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number that targets cannot guess: the standard library seeds hash maps from the system's random source.
pub(super) fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests;
