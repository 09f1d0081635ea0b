//! The sampling code that the kernel runs, on the host, against exact probabilities.

use super::*;
use proptest::prelude::*;

/// SplitMix64 (Steele, Lea and Flood, 2014): a small generator with a reproducible seed.
struct Random(u64);

impl Random {
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    /// Log-uniform from 16 bytes to 64 KiB: equally many blocks in each octave, roughly as in real programs.
    fn size(&mut self) -> u64 {
        let octave = 4 + self.next_u64() % 12;
        (1 << octave) + self.next_u64() % (1 << octave)
    }
}

fn at(interval_bytes: u64) -> SamplingRate {
    let bytes = u32::try_from(interval_bytes).expect("intervals are below 2^30");
    let rate = SamplingRate::new(Interval::nearest(bytes));
    assert_eq!(rate.interval_bytes, bytes, "the tests use intervals that are exact");
    rate
}

/// The nearest representable interval.
fn exact(interval_bytes: u64) -> u64 {
    u64::from(Interval::nearest(u32::try_from(interval_bytes).expect("intervals are below 2^30")).bytes())
}

/// One run: estimated live bytes and counts against the true values, in standard deviations of the estimator.
///
/// Var of one block's contribution v/p·Bernoulli(p) is v²(1−p)/p.
struct Deviation {
    bytes_sigmas: f64,
    count_sigmas: f64,
}

fn run(interval_bytes: u64, blocks: u32, seed: u64) -> Deviation {
    let rate = at(interval_bytes);
    let mut random = Random(seed);
    let (mut bytes, mut bytes_estimated, mut bytes_variance) = (0.0, 0.0, 0.0);
    let (mut count_estimated, mut count_variance) = (0.0, 0.0);
    for _ in 0..blocks {
        let size = random.size();
        let weight = estimated_count(size, interval_bytes);
        let s = size as f64;
        bytes += s;
        bytes_variance += s * s * (weight - 1.0);
        count_variance += weight - 1.0;
        if rate.samples(size, || random.next_u32()) {
            bytes_estimated += estimated_bytes(size, interval_bytes);
            count_estimated += weight;
        }
    }
    Deviation {
        bytes_sigmas: (bytes_estimated - bytes) / bytes_variance.sqrt(),
        count_sigmas: (count_estimated - f64::from(blocks)) / count_variance.sqrt(),
    }
}

fn check_unbiased(interval_bytes: u64, blocks: u32) {
    let runs = 100;
    let (mut outside, mut bytes_mean, mut count_mean) = (0, 0.0, 0.0);
    for seed in 0..runs {
        let deviation = run(interval_bytes, blocks, 1000 + seed);
        if deviation.bytes_sigmas.abs() > 4.0 || deviation.count_sigmas.abs() > 4.0 {
            outside += 1;
        }
        bytes_mean += deviation.bytes_sigmas / runs as f64;
        count_mean += deviation.count_sigmas / runs as f64;
    }
    assert!(outside <= 1, "{outside} of {runs} runs beyond 4 sigma at T = {interval_bytes}");
    // The mean of 100 unbiased runs has a standard deviation of 0.1: this detects a bias of a tenth of one run's noise.
    assert!(bytes_mean.abs() < 0.4, "bytes are off by {bytes_mean} sigma on average at T = {interval_bytes}");
    assert!(count_mean.abs() < 0.4, "counts are off by {count_mean} sigma on average at T = {interval_bytes}");
}

#[test]
fn bytes_and_counts_are_unbiased_at_4_kib() {
    check_unbiased(4 << 10, 200_000);
}

#[test]
fn bytes_and_counts_are_unbiased_at_512_kib() {
    // Enough blocks that even the smallest octave has several samples per run: an estimate from one or two samples is unbiased
    // but not normally distributed, so its sigmas would be meaningless.
    check_unbiased(512 << 10, 2_000_000);
}

#[test]
fn an_interval_of_one_samples_every_block_with_weight_one() {
    let rate = at(1);
    for size in [0, 1, 2, 4095, u64::MAX] {
        assert!(rate.samples(size, || u32::MAX), "a block of {size} bytes was not sampled");
        assert!((estimated_count(size, 1) - 1.0).abs() < f64::EPSILON);
    }
    assert!((estimated_bytes(30_000, 1) - 30_000.0).abs() < f64::EPSILON);
}

#[test]
fn blocks_of_at_least_the_interval_are_always_sampled() {
    let rate = at(4096);
    assert!(rate.samples(4096, || u32::MAX));
    assert!(!rate.samples(4095, || u32::MAX));
    assert!((estimated_bytes(4096, 4096) - 4096.0).abs() < f64::EPSILON);
}

#[test]
fn empty_blocks_are_sampled_and_weigh_no_bytes() {
    let mut random = Random(5);
    let rate = at(64);
    let seen = (0..64_000).filter(|_| rate.samples(0, || random.next_u32())).count();
    // 64,000 · p(1, 64) = 992 ± 31.
    assert!((850..1150).contains(&seen), "{seen} empty blocks sampled");
    assert!(estimated_bytes(0, 64).abs() < f64::EPSILON);
}

#[test]
fn a_filling_ring_buffer_raises_intervals_step_by_step() {
    let ring_shift = 23;
    let at = |thousandths: u64| back_pressure_exponent((thousandths << ring_shift) / 1000, ring_shift);
    assert_eq!([0, 250, 499].map(at), [0; 3]);
    assert_eq!([500, 540, 750, 969, 1000].map(at), [8, 9, 16, 23, 23]);
    assert_eq!(back_pressure_exponent(u64::MAX, ring_shift), 23, "the kernel's number can be any");
}

/// The estimates are those of the larger interval alone, whatever the first one was.
#[test]
fn calls_that_are_sampled_again_stay_unbiased() {
    let runs = 20;
    for (interval_bytes, exponent) in [(1, 8), (64, 12), (4096, 16), (5000, 13), (1 << 20, 8)] {
        let (mut bytes_off, mut count_off) = (0.0, 0.0);
        for seed in 0..runs {
            let mut random = Random(100 + seed);
            let (mut bytes, mut count) = ([0.0; 2], [0.0; 2]);
            let mut variances = [0.0; 2];
            for _ in 0..20_000 {
                let size = random.size();
                let larger = interval_bytes.max(1 << exponent);
                let weight = estimated_count(size, larger);
                let s = size as f64;
                (bytes[0], count[0]) = (bytes[0] + s, count[0] + 1.0);
                variances = [variances[0] + s * s * (weight - 1.0), variances[1] + weight - 1.0];
                let rate = at(interval_bytes);
                if !rate.samples(size, || random.next_u32()) {
                    continue;
                }
                let code = resampled(size, rate.interval_code, exponent, random.next_u64(), probability);
                if code != 0 {
                    let interval_bytes = u64::from(Interval::from_code(code).bytes());
                    bytes[1] += estimated_bytes(size, interval_bytes);
                    count[1] += estimated_count(size, interval_bytes);
                }
            }
            let sigmas = |sum: [f64; 2], variance: f64| (sum[1] - sum[0]) / f64::max(variance.sqrt(), 1.0);
            bytes_off += sigmas(bytes, variances[0]);
            count_off += sigmas(count, variances[1]);
        }
        let limit = 4.0 * (runs as f64).sqrt();
        assert!(bytes_off.abs() < limit && count_off.abs() < limit, "{interval_bytes}: {bytes_off} {count_off}");
    }
}

#[test]
fn large_blocks_and_larger_intervals_stay_as_they_are() {
    let code = |bytes: u32| Interval::nearest(bytes).code();
    assert_eq!(resampled(5000, code(1), 12, u64::MAX, probability), code(1), "a block beyond both");
    assert_eq!(resampled(10, code(8192), 12, u64::MAX, probability), code(8192));
    assert_eq!(resampled(10, code(1), 0, u64::MAX, probability), code(1), "there is room");
    assert_eq!(resampled(10, code(1), 12, u64::MAX, probability), 0);
    assert_eq!(resampled(10, code(1), 12, 0, probability), code(4096));
    assert_eq!(resampled(0, code(1), 12, 0, probability), code(4096), "empty blocks count as a byte");
}

fn check_probability(size: u64, interval: u64) -> Result<(), TestCaseError> {
    let x = size.wrapping_mul(at(interval).inverse);
    let got = probability(x) as f64 / 2f64.powi(64);
    let want = -(-(size as f64) / interval as f64).exp_m1();
    let error = (got / want - 1.0).abs();
    prop_assert!(error < 2f64.powi(-28), "p({size}, {interval}) = {got}, should be {want}: off by {error:e}");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn fixed_point_probability_matches_floating_point(interval in 2u64..=1 << 30, share in 0.0f64..1.0) {
        let interval = exact(interval);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within [1, interval)")]
        let size = ((interval as f64 * share) as u64).clamp(1, interval - 1);
        check_probability(size, interval)?;
    }

    #[test]
    fn small_blocks_keep_their_relative_precision(interval in 1u64 << 10..=1 << 30, size in 1u64..1 << 10) {
        let interval = exact(interval);
        check_probability(size.min(interval - 1), interval)?;
    }
}
