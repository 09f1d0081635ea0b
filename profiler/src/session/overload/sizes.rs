//! Sizes of sampled blocks, and from them how many there would be at another interval.

use profiler_common::interval::Interval;

/// Octaves of sizes: more than a block can have.
const OCTAVES: usize = 45;

/// How many sampled blocks there were of which size, by octave.
#[derive(Clone, Debug)]
pub(in crate::session) struct Sizes {
    count: [u32; OCTAVES],
    bytes: [u64; OCTAVES],
}

impl Default for Sizes {
    fn default() -> Self {
        Self { count: [0; OCTAVES], bytes: [0; OCTAVES] }
    }
}

/// The chance that a block of this size is sampled.
#[expect(clippy::cast_precision_loss, reason = "a prediction")]
pub(in crate::session) fn chance(size_bytes: u64, interval: Interval) -> f64 {
    let (size_bytes, interval_bytes) = (size_bytes.max(1), u64::from(interval.bytes()));
    if size_bytes >= interval_bytes { 1.0 } else { -(-(size_bytes as f64) / interval_bytes as f64).exp_m1() }
}

impl Sizes {
    /// Adds a block.
    pub(in crate::session) fn add(&mut self, size_bytes: u64) {
        let octave = ((u64::BITS - size_bytes.leading_zeros()) as usize).min(OCTAVES - 1);
        self.count[octave] = self.count[octave].saturating_add(1);
        self.bytes[octave] = self.bytes[octave].saturating_add(size_bytes);
    }

    /// How many there are.
    pub(in crate::session) fn total(&self) -> f64 {
        self.count.iter().copied().map(f64::from).sum()
    }

    /// How many there would have been at the interval `to`, these being what was sampled at `from`.
    pub(in crate::session) fn expected(&self, from: Interval, to: Interval) -> f64 {
        self.count
            .iter()
            .zip(self.bytes)
            .filter(|(count, _)| **count > 0)
            .map(|(&count, bytes)| {
                let size_bytes = bytes / u64::from(count);
                f64::from(count) * chance(size_bytes, to) / chance(size_bytes, from)
            })
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_blocks_are_fewer_at_twice_the_interval_and_large_ones_are_not() {
        let mut sizes = Sizes::default();
        (0..1000).for_each(|_| sizes.add(64));
        (0..10).for_each(|_| sizes.add(1 << 20));
        let at = |bytes| sizes.expected(Interval::EXACT, Interval::nearest(bytes));
        assert!((at(1) - 1010.0).abs() < 1e-9);
        assert!((at(64) - 1010.0).abs() < 1e-9, "an interval of their size takes them all");
        // 1000 · (1 − e^(−1/64)) and ten that are always taken.
        assert!((at(4096) - 25.5).abs() < 0.1, "{}", at(4096));
        assert!((sizes.expected(Interval::nearest(4096), Interval::nearest(2048)) - 1994.5).abs() < 1.0);
    }
}
