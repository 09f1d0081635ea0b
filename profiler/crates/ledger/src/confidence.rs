//! Confidence intervals of estimates from sampled blocks. Derivation, sources and simulations: docs/sampling.md.

use heapbpf_base::units::Amounts;

/// Number of standard deviations on either side of the mean that cover 95 % of a normal distribution.
pub const Z_95: f64 = 1.959_963_984_540_054;

/// Assumed size of small blocks none of which was sampled, for their number.
const UNSEEN_BLOCK_BYTES: f64 = 64.0;

/// Returns the bytes and blocks that one more sample represents at least, where `samples` were taken at this interval. The bytes
/// are nearly the same for all small blocks. The blocks depend on their size, and the more samples there are, the less likely is
/// a size that is not among them.
#[expect(clippy::cast_precision_loss, reason = "a bound")]
pub fn least_weights(interval_bytes: u64, samples: u64) -> [f64; 2] {
    if interval_bytes <= 1 {
        return [0.0; 2];
    }
    let bytes = interval_bytes as f64;
    [bytes, bytes / UNSEEN_BLOCK_BYTES / (samples as f64 + 1.0).sqrt()]
}

/// An estimate, with the second and third cumulant of its error.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    value: f64,
    variance: f64,
    cube: f64,
}

impl Estimate {
    pub fn of_bytes(Amounts { bytes, variance, .. }: &Amounts) -> Self {
        Self::new(bytes.to_f64(), variance.bytes.to_f64(), variance.cubes.bytes.cubic())
    }

    pub fn of_count(Amounts { count, variance, .. }: &Amounts) -> Self {
        Self::new(count.to_f64(), variance.count.to_f64(), variance.cubes.count.cubic())
    }

    /// Creates an estimate. `cube` is 0 in reports and recordings that lack it: it is then that of samples of equal weight.
    fn new(value: f64, variance: f64, cube: f64) -> Self {
        if variance <= 0.0 {
            return Self { value, ..Self::default() };
        }
        let equal_weights = 2.0 * variance * variance / value.max(variance.sqrt());
        Self { value, variance, cube: if cube > 0.0 { cube } else { equal_weights } }
    }

    /// The 95 % confidence interval. `least_weight` is that of a sample which might have been taken as well.
    pub fn interval_95(self, least_weight: f64) -> [f64; 2] {
        self.interval(least_weight, Z_95)
    }

    /// The confidence interval of `z` standard deviations to either side.
    fn interval(self, least_weight: f64, z: f64) -> [f64; 2] {
        let low = self.quantile(-z).max(0.0).min(self.value);
        let high = self.and_sample(self.weight().max(least_weight)).quantile(z).max(self.value);
        [low, high]
    }

    /// Adds a sample of a small block.
    fn and_sample(self, weight: f64) -> Self {
        Self {
            value: self.value + weight,
            variance: self.variance + weight * weight,
            cube: self.cube + 2.0 * weight * weight * weight,
        }
    }

    /// Mean weight of a sample, each counted in proportion to its share of the variance; 0 without samples. For small
    /// blocks that is the amount which a sample represents; a sample that represents nothing but itself weighs 0.
    pub fn weight(self) -> f64 {
        if self.variance > 0.0 { self.cube / self.variance / 2.0 } else { 0.0 }
    }

    /// The quantile that is `z` standard deviations from the mean in a normal distribution, of a shifted gamma
    /// distribution with these cumulants (Pearson's type III), by the approximation of Wilson and Hilferty (1931).
    fn quantile(self, z: f64) -> f64 {
        let deviation = self.variance.max(0.0).sqrt();
        if deviation <= 0.0 {
            return self.value;
        }
        let sixth = self.cube / deviation.powi(3) / 6.0;
        // Below the smallest value of the distribution the cube of 1 + sixth · shift would be negative.
        let shift = (z - sixth).max(if sixth > 0.0 { -1.0 / sixth } else { f64::NEG_INFINITY });
        let x = sixth * shift;
        // ((1 + x)³ − 1) / (3 · sixth), which is z without skewness.
        self.value + deviation * shift * (1.0 + x + x * x / 3.0)
    }
}

#[cfg(test)]
mod tests {
    use profiler_common::interval::Interval;
    use proptest::prelude::*;

    use super::*;

    /// Samples of blocks of these sizes at an interval of 4096 bytes.
    fn samples(sizes: &[u64]) -> Amounts {
        let mut sum = Amounts::default();
        sizes.iter().for_each(|&size| sum += Amounts::of(size, Interval::nearest(4096)));
        sum
    }

    fn interval(estimate: Estimate) -> [f64; 2] {
        estimate.interval_95(0.0)
    }

    #[test]
    fn equal_weights_have_the_exact_interval_of_a_poisson_count() {
        // Quantiles of the gamma distribution: Garwood (1936), table in Johnson, Kotz and Kemp.
        for (count, low, high) in
            [(1.0, 0.0253, 5.572), (5.0, 1.623, 11.668), (20.0, 12.217, 30.888), (100.0, 81.364, 121.627)]
        {
            let estimate = Estimate::new(7.0 * count, 49.0 * count, 2.0 * 343.0 * count);
            let bounds = interval(estimate).map(|bound| bound / 7.0);
            assert!((bounds[0] - low).abs() < 0.02 && (bounds[1] - high).abs() < 0.01, "{count}: {bounds:?}");
            assert_eq!(interval(Estimate::new(7.0 * count, 49.0 * count, 0.0)), interval(estimate), "as without cubes");
        }
    }

    #[test]
    fn exact_amounts_have_an_empty_interval_and_shift_others() {
        let exact = samples(&[4096, 10_000, 1 << 40]);
        assert_eq!(interval(Estimate::of_bytes(&exact)), [exact.bytes.to_f64(); 2]);
        assert_eq!(interval(Estimate::of_count(&exact)), [3.0; 2]);
        let small = samples(&[16, 100, 100, 2000]);
        let mut both = exact;
        both += small;
        for (both, small, exact) in [
            (Estimate::of_bytes(&both), Estimate::of_bytes(&small), exact.bytes.to_f64()),
            (Estimate::of_count(&both), Estimate::of_count(&small), 3.0),
        ] {
            let widths = [both, small].map(|estimate| interval(estimate).map(|bound| bound - estimate.value));
            assert!((widths[0][0] - widths[1][0]).abs() < 1e-3 && (widths[0][1] - widths[1][1]).abs() < 1e-3);
            assert!(interval(both)[0] > exact);
        }
    }

    #[test]
    fn without_samples_the_bound_is_that_of_one_more() {
        assert_eq!(interval(Estimate::default()), [0.0; 2]);
        let [least_bytes, least_count] = least_weights(4096, 0);
        for least in [least_bytes, least_count, least_weights(4096, 80)[1]] {
            let [low, high] = Estimate::new(5000.0, 0.0, 0.0).interval_95(least);
            assert_eq!(low, 5000.0);
            // With a mean of 3.689, no sample has a probability of 2.5 %.
            assert!(((high - 5000.0) / least - 3.689).abs() < 0.05, "{high}");
        }
        assert_eq!((least_bytes, least_count, least_weights(4096, 80)[1]), (4096.0, 64.0, 64.0 / 9.0));
        assert_eq!(least_weights(1, 0), [0.0; 2]);
    }

    fn sizes() -> impl Strategy<Value = Vec<u64>> {
        proptest::collection::vec(prop_oneof![1_u64..4096, 1_u64..64, 4096_u64..100_000], 1..200)
    }

    proptest! {
        #[test]
        fn intervals_contain_the_estimate_and_grow_with_the_confidence(sizes in sizes(), z in 0.01..4.0_f64) {
            let amounts = samples(&sizes);
            for estimate in [Estimate::of_bytes(&amounts), Estimate::of_count(&amounts)] {
                let [low, high] = estimate.interval(0.0, z);
                let [lower, higher] = estimate.interval(0.0, 1.5 * z);
                prop_assert!(0.0 <= lower && lower <= low && low <= estimate.value);
                prop_assert!(estimate.value <= high && high <= higher);
                let is_exact = sizes.iter().all(|&size| size >= 4096);
                prop_assert_eq!(lower == higher, is_exact);
            }
        }

        #[test]
        fn intervals_scale_with_the_unit(sizes in sizes(), scale in 0.001..1000.0_f64) {
            let estimate = Estimate::of_bytes(&samples(&sizes));
            let Estimate { value, variance, cube } = estimate;
            let scaled = Estimate::new(scale * value, scale.powi(2) * variance, scale.powi(3) * cube);
            for (bound, scaled) in interval(estimate).into_iter().zip(interval(scaled)) {
                prop_assert!((scale * bound - scaled).abs() <= 1e-9 * scaled, "{} is not {scaled}", scale * bound);
            }
        }

        #[test]
        fn more_samples_of_the_same_sizes_narrow_the_interval(sizes in sizes()) {
            let width = |estimate: Estimate| (interval(estimate)[1] - interval(estimate)[0]) / estimate.value;
            let more: Vec<u64> = sizes.iter().copied().cycle().take(4 * sizes.len()).collect();
            prop_assert!(width(Estimate::of_count(&samples(&more))) <= width(Estimate::of_count(&samples(&sizes))));
        }
    }
}
