//! Which blocks are sampled, and their weights.
//!
//! A Poisson process with mean distance T places points on the sequence of allocated bytes, and a block is sampled if at least
//! one point is in it: with probability `p(s, T) = 1 − e^(−s/T)` for a block of s bytes. The counts of a Poisson process on
//! disjoint ranges are independent, so a countdown of exponential gaps and an independent decision per block give *the same*
//! distribution. The kernel side decides per block: this needs no state that threads share or that preemption could tear, and
//! each block stays independent of all others when T changes.
//!
//! A block with `s ≥ T` is always sampled. Blocks of 0 bytes count as 1 byte, or they could never be sampled.
//!
//! Arithmetic is fixed point, because the kernel side has no floating point and no 128-bit product: x = s/T and p are fractions
//! of 2^64. The relative error of p is below 2^-28 (tested), a thousand times less than a billion samples could reveal.

use crate::interval::Interval;

/// Sampling parameters of one heap, as stored in the BPF map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct SamplingRate {
    /// T: mean bytes between samples. 1 samples every block, 0 none.
    pub interval_bytes: u32,
    /// T as blocks store it: see [`Interval`].
    pub interval_code: u32,
    /// `⌊2^64 / T⌋`, saturated for T = 1.
    pub inverse: u64,
}

const _: () = assert!(size_of::<SamplingRate>() == 16);

impl SamplingRate {
    /// Samples nothing: the state of a heap before its rate is set and after recording.
    pub const STOPPED: Self = Self { interval_bytes: 0, interval_code: 0, inverse: 0 };

    #[expect(clippy::cast_possible_truncation, reason = "2^64 / T fits in 64 bits for T > 1; T = 1 saturates")]
    pub const fn new(interval: Interval) -> Self {
        let interval_bytes = interval.bytes();
        let inverse = if interval_bytes <= 1 { u64::MAX } else { ((1u128 << 64) / interval_bytes as u128) as u64 };
        Self { interval_bytes, interval_code: interval.code(), inverse }
    }

    /// Decides at random whether a block of `size_bytes` is sampled. `random` returns uniform 32-bit numbers; most calls that
    /// are not sampled use one.
    #[inline(always)]
    pub fn samples(&self, size_bytes: u64, random: impl FnMut() -> u32) -> bool {
        self.samples_by(size_bytes, random, is_below_probability)
    }

    /// As [`samples`](Self::samples), with a copy of [`is_below_probability`] of the caller's: the kernel side has one that the verifier
    /// checks once.
    #[inline(always)]
    pub fn samples_by(
        &self,
        size_bytes: u64,
        mut random: impl FnMut() -> u32,
        is_below_probability: impl Fn(u64, u64) -> bool,
    ) -> bool {
        let size = if size_bytes == 0 { 1 } else { size_bytes };
        if size >= self.interval_bytes as u64 {
            return true;
        }
        // x = s/T as a fraction of 2^64. p < x, so a random number not below x decides without computing p; and mostly 32
        // bits of it are enough.
        let x = size.wrapping_mul(self.inverse);
        let high = random();
        if high as u64 > x >> 32 {
            return false;
        }
        let random = (high as u64) << 32 | random() as u64;
        is_below_probability(random, x)
    }
}

/// Whether a random number decides that a block is sampled, whose size is the part x of the interval. Both are fractions of 2^64.
#[inline(always)]
pub const fn is_below_probability(random: u64, x: u64) -> bool {
    random < probability(x)
}

/// `1 − e^(−x)` for x in [0, 1), both as fractions of 2^64.
///
/// Computed as `x · g(x)` with `g(x) = (1 − e^(−x)) / x = Σ (−x)^n / (n+1)!`, because g is in (0.63, 1], so that 32 bits of it
/// keep the product's *relative* error small even for tiny p. Twelve terms leave less than 1/14! ≈ 2^-36.
#[inline(always)]
const fn probability(x: u64) -> u64 {
    const ONE: u64 = 1 << 32;
    let x_high = x >> 32;
    // Horner's scheme over g = 1 − x/2·(1 − x/3·(1 − …)); every bracket is in (0, 1].
    let mut g = ONE;
    let mut n = 13;
    while n >= 2 {
        // x_high, g ≤ 2^32, so the product fits; dividing by n after the shift costs at most 2^-32 each time.
        g = ONE - ((x_high * g) >> 32) / n;
        n -= 1;
    }
    // x · g without a 128-bit product: high and low half of x separately. g = 2^32 (x = 0) would overflow the first.
    let g = if g >= ONE { ONE - 1 } else { g };
    x_high * g + (((x & 0xffff_ffff) * g) >> 32)
}

/// Weight in bytes of a sampled block of `size_bytes`: `s / p(s, T)`. Dividing by the probability makes the sum unbiased
/// (Horvitz and Thompson, 1952).
#[cfg(any(test, feature = "user"))]
#[expect(clippy::cast_precision_loss, reason = "an estimate; sizes beyond 2^53 are exact at T = 1 only")]
pub fn estimated_bytes(size_bytes: u64, interval_bytes: u64) -> f64 {
    size_bytes as f64 * estimated_count(size_bytes, interval_bytes)
}

/// Weight in blocks of a sampled block of `size_bytes`: `1 / p(s, T)`.
#[cfg(any(test, feature = "user"))]
#[expect(clippy::cast_precision_loss, reason = "sizes here are below the interval, which is below 2^30")]
pub fn estimated_count(size_bytes: u64, interval_bytes: u64) -> f64 {
    let size = size_bytes.max(1);
    if size >= interval_bytes {
        return 1.0;
    }
    -1.0 / (-(size as f64) / interval_bytes as f64).exp_m1()
}

#[cfg(test)]
mod tests;
