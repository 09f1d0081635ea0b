//! Sampling theory: expected values of estimates and their errors. Independent of the profiler's implementation.
//!
//! A block of s < T bytes is sampled with probability p = 1 − e^(−s/T), independently of all others, and then
//! represents s/p bytes and 1/p blocks. So one block's estimate has the variance s²·(1−p)/p in bytes and (1−p)/p in
//! blocks, and n blocks n times that. Blocks of T or more are always sampled, with no variance.
//!
//! # False alarms
//!
//! Tests check some 3,500 estimates with [`assert_unbiased`]. A normal one is off by more than [`SIGMAS`] with a probability of
//! 6.3e-5, and in an independent repetition to the same side with half of that: one of all is, by chance, with 7e-6. That it is
//! off by more than [`SIGMAS_MAX`] in one of two runs has a probability of 5e-12, and of 2e-10 if 100 samples are expected: one
//! of all is with less than 2e-6. So correct numbers fail less than once in 100,000 runs of all tests. Double counting is off by
//! far more in each run.

use std::collections::BTreeMap;

/// Allowed error in standard deviations, which each of two runs exceeds if an estimate is biased: `kSigmas` of gperftools.
pub const SIGMAS: f64 = 4.0;

/// Allowed error in each single run.
pub const SIGMAS_MAX: f64 = 7.0;

/// Minimum number of samples to assume a normal distribution.
pub const SAMPLES_MIN: f64 = 100.0;

/// Sum of the true amounts of functions, and the variance of its estimate.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expected {
    /// Blocks.
    pub count: f64,
    /// Variance of the estimate of the blocks.
    pub count_variance: f64,
    /// Bytes.
    pub bytes: f64,
    /// Variance of the estimate of the bytes.
    pub bytes_variance: f64,
    /// Expected number of samples.
    pub samples: f64,
}

impl Expected {
    /// `count` blocks of `size` bytes, sampled at `interval`.
    pub fn blocks(count: f64, size: f64, interval: f64) -> Self {
        let taken = if size >= interval { 1.0 } else { -(-size / interval).exp_m1() };
        let variance = count * (1.0 - taken) / taken;
        Self {
            count,
            count_variance: variance,
            bytes: count * size,
            bytes_variance: variance * size * size,
            samples: count * taken,
        }
    }

    /// Adds another sum.
    pub fn add(&mut self, other: Self) {
        self.count += other.count;
        self.count_variance += other.count_variance;
        self.bytes += other.bytes;
        self.bytes_variance += other.bytes_variance;
        self.samples += other.samples;
    }

    /// Returns the errors of estimates of blocks and bytes, in standard deviations. For deterministic amounts, five
    /// standard deviations are the rounding of the weights, a millionth.
    pub fn deviations(&self, count: f64, bytes: f64) -> (f64, f64) {
        let rounding = |truth: f64| 1e-6 * truth.max(1.0) / 5.0;
        let deviation = |got: f64, truth: f64, variance: f64| (got - truth) / variance.sqrt().max(rounding(truth));
        (deviation(count, self.count, self.count_variance), deviation(bytes, self.bytes, self.bytes_variance))
    }
}

/// Errors of the estimates of one run in standard deviations, by what was estimated.
#[derive(Debug, Default)]
pub struct Errors(BTreeMap<String, f64>);

impl Errors {
    /// Adds those of estimates of blocks and bytes.
    pub fn note(&mut self, what: &str, expected: &Expected, count: f64, bytes: f64) {
        let (of_count, of_bytes) = expected.deviations(count, bytes);
        self.note_sigmas(&format!("{what}, blocks"), of_count);
        self.note_sigmas(&format!("{what}, bytes"), of_bytes);
    }

    /// Adds that of another estimate, positive if it is too high.
    pub fn note_sigmas(&mut self, what: &str, sigmas: f64) {
        let before = self.0.insert(what.to_owned(), sigmas);
        assert!(before.is_none(), "`{what}` was estimated twice");
    }

    fn beyond(&self, sigmas_max: f64) -> BTreeMap<&str, f64> {
        // What is no number is beyond any limit.
        let is_beyond = |sigmas: f64| sigmas.is_nan() || sigmas.abs() > sigmas_max;
        self.0.iter().filter(|(_, sigmas)| is_beyond(**sigmas)).map(|(what, sigmas)| (what.as_str(), *sigmas)).collect()
    }

    #[track_caller]
    fn assert_none_is_far(&self, program: &str) {
        let far = self.beyond(SIGMAS_MAX);
        assert!(far.is_empty(), "{program}: off by more than {SIGMAS_MAX} standard deviations: {far:?}");
    }
}

/// Fails unless the estimates of a program are unbiased. `run` profiles it once; a second time only if an estimate is off.
#[track_caller]
pub fn assert_unbiased(program: &str, mut run: impl FnMut() -> Errors) {
    let first = run();
    assert!(!first.0.is_empty(), "{program}: nothing was estimated");
    first.assert_none_is_far(program);
    let off = first.beyond(SIGMAS);
    if off.is_empty() {
        return;
    }
    let second = run();
    second.assert_none_is_far(program);
    let again = second.beyond(SIGMAS);
    let is_again = |what: &str, sigmas: f64| again.get(what).is_some_and(|again| again * sigmas > 0.0);
    let both: Vec<String> = off
        .iter()
        .filter(|(what, sigmas)| is_again(what, **sigmas))
        .map(|(what, sigmas)| format!("{what} by {sigmas:+.1} and {:+.1}", again[what]))
        .collect();
    assert!(both.is_empty(), "{program}: off by more than {SIGMAS} standard deviations twice:\n{}", both.join("\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether these errors of the first and the second run fail, and how many runs there are.
    fn outcome(first: f64, second: f64) -> (bool, usize) {
        let mut runs = 0;
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            assert_unbiased("a program", || {
                runs += 1;
                let mut errors = Errors::default();
                errors.note_sigmas("a function", if runs == 1 { first } else { second });
                errors
            });
        }));
        (checked.is_err(), runs)
    }

    #[test]
    fn an_estimate_is_biased_if_it_is_off_twice_to_the_same_side_or_once_by_far() {
        assert_eq!(outcome(3.9, 0.0), (false, 1));
        assert_eq!(outcome(4.1, 3.9), (false, 2));
        assert_eq!(outcome(4.1, -4.1), (false, 2));
        assert_eq!(outcome(4.1, 4.1), (true, 2));
        assert_eq!(outcome(-4.1, -4.1), (true, 2));
        assert_eq!(outcome(7.1, 0.0), (true, 1));
        assert_eq!(outcome(-4.1, 7.1), (true, 2));
        assert_eq!(outcome(f64::NAN, 0.0), (true, 1));
    }

    #[test]
    fn deterministic_amounts_may_be_off_by_a_millionth() {
        let expected = Expected::blocks(1000.0, 5000.0, 4096.0);
        let is_near = |part: f64| expected.deviations(1000.0, 5e6 * (1.0 + part)).1.abs() <= 5.0;
        assert!(is_near(0.9e-6) && is_near(-0.9e-6) && !is_near(1.1e-6) && !is_near(-1.1e-6));
        assert!(Expected::default().deviations(0.0, 0.1).1 > 5.0);
    }
}
