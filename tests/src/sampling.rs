//! Sampling theory: expected values of estimates and their errors. Independent of the profiler's implementation.
//!
//! A block of s < T bytes is sampled with probability p = 1 − e^(−s/T), independently of all others, and then
//! represents s/p bytes and 1/p blocks. So one block's estimate has the variance s²·(1−p)/p in bytes and (1−p)/p in
//! blocks, and n blocks n times that. Blocks of T or more are always sampled, with no variance.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deterministic_amounts_may_be_off_by_a_millionth() {
        let expected = Expected::blocks(1000.0, 5000.0, 4096.0);
        let is_near = |part: f64| expected.deviations(1000.0, 5e6 * (1.0 + part)).1.abs() <= 5.0;
        assert!(is_near(0.9e-6) && is_near(-0.9e-6) && !is_near(1.1e-6) && !is_near(-1.1e-6));
        assert!(Expected::default().deviations(0.0, 0.1).1 > 5.0);
    }
}
