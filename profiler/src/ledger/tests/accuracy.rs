//! How often confidence intervals hold the truth.

use profiler_common::interval::Interval;

use crate::ledger::totals::Totals;
use crate::units::{Amounts, MonotonicNanos, Variance};

/// xorshift64*, so that the test draws the same every time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        u32::try_from(self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32).expect("32 bits are left")
    }
}

/// Simulates a process whose blocks of mixed sizes are partly freed, with the sampling of the kernel side, and returns for
/// live bytes, live blocks, allocated bytes and allocated blocks whether the confidence interval covers the true value.
fn simulate(random: &mut Random) -> [bool; 4] {
    const BLOCKS: u64 = 10_000;
    let interval = Interval::nearest(4096);
    let rate = profiler_common::sampling::SamplingRate::new(interval);
    let mut totals = Totals::default();
    let mut truth = [0.0; 4];
    for i in 0..BLOCKS {
        // Log-uniform from 16 bytes to 8 KiB: all that is sampled, and some that are always taken.
        let size_bytes = (16u64 << (random.next() % 9)) + u64::from(random.next() % 16);
        let freed = i % 3 == 0;
        #[expect(clippy::cast_precision_loss, reason = "sizes are small")]
        let size = size_bytes as f64;
        for (sum, value) in truth.iter_mut().zip([size, 1.0, size, 1.0]).skip(if freed { 2 } else { 0 }) {
            *sum += value;
        }
        if rate.samples(size_bytes, || random.next()) {
            let weight = Amounts::of(size_bytes, interval);
            totals.allocate(weight, MonotonicNanos(i));
            if freed {
                totals.free(weight);
            }
        }
    }
    let intervals = [
        Totals::confidence(totals.live_bytes().to_f64(), totals.live_variance.bytes),
        Totals::confidence(totals.live_count().to_f64(), totals.live_variance.count),
        Totals::confidence(totals.alloc_bytes.to_f64(), totals.alloc_variance.bytes),
        Totals::confidence(totals.alloc_count.to_f64(), totals.alloc_variance.count),
    ];
    std::array::from_fn(|i| (intervals[i][0]..=intervals[i][1]).contains(&truth[i]))
}

#[test]
fn confidence_intervals_have_their_nominal_coverage() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut held = [0; 4];
    for _ in 0..1000 {
        for (held, holds) in held.iter_mut().zip(simulate(&mut random)) {
            *held += u32::from(holds);
        }
    }
    for (held, of) in held.iter().zip(["live bytes", "live blocks", "allocated bytes", "allocated blocks"]) {
        assert!((930..=970).contains(held), "{of}: {held} of 1000");
    }
}

#[test]
fn frees_remove_variance() {
    let mut totals = Totals::default();
    let weights: Vec<Amounts> = (1..4000).map(|size| Amounts::of(size, Interval::nearest(4096))).collect();
    weights.iter().for_each(|&weight| totals.allocate(weight, MonotonicNanos(1)));
    weights.iter().rev().for_each(|&weight| totals.free(weight));
    assert_eq!((totals.live_samples, totals.live_variance), (0, Variance::default()));
    assert_eq!(totals.alloc_samples, 3999);
}
