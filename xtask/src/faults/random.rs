//! Random numbers from a seed (SplitMix64), so that a run can be repeated.

use std::time::Duration;

pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform below the bound, which is at least 1.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub(super) fn one_of<'a, T>(&mut self, list: &'a [T]) -> Option<&'a T> {
        let index = usize::try_from(self.below(list.len() as u64)).ok()?;
        list.get(index)
    }

    pub(super) fn milliseconds(&mut self, bound: u64) -> Duration {
        Duration::from_micros(self.below(bound * 1000))
    }
}
