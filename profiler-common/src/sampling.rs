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
        self.samples_by(size_bytes, random, probability)
    }

    /// As [`samples`](Self::samples), with a copy of [`probability`] of the caller's: the kernel side has one that the verifier
    /// checks once.
    #[inline(always)]
    pub fn samples_by(
        &self,
        size_bytes: u64,
        mut random: impl FnMut() -> u32,
        probability: impl Fn(u64) -> u64,
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
        random < probability(x)
    }
}

/// Binary logarithm of the interval in bytes at which calls are sampled at least when this much of the ring buffer is unread, whose
/// size is 2 to the power of `ring_shift`; 0 below one half. From there on it rises from 2^8 to 2^23, so that little but frees is
/// written before the ring buffer is full.
///
/// The kernel side decides by this for each call. The agent sees how full the ring buffer is after it has had a processor, which is
/// late on a machine with many threads that run.
#[inline(always)]
pub const fn back_pressure_exponent(unread_bytes: u64, ring_shift: u32) -> u32 {
    let half = 1 << (ring_shift - 1);
    if unread_bytes < half {
        return 0;
    }
    let step = (unread_bytes - half) >> (ring_shift - BACK_PRESSURE_STEPS.ilog2() - 1);
    #[expect(clippy::cast_possible_truncation, reason = "at most the number of steps")]
    let step = if step < BACK_PRESSURE_STEPS as u64 { step as u32 } else { BACK_PRESSURE_STEPS - 1 };
    BACK_PRESSURE_EXPONENT_MIN + step
}

/// Steps between half of the ring buffer and all of it.
const BACK_PRESSURE_STEPS: u32 = 16;
const BACK_PRESSURE_EXPONENT_MIN: u32 = 8;

/// Samples again a call that was sampled at an interval with code `code`, at that of 2^`exponent` bytes if that is larger. Returns the
/// code of the interval that the call has been sampled at then, or 0 if it is no longer sampled.
///
/// The call is sampled again with the probability p(s, T′) / p(s, T), so with p(s, T′) overall. `random` is uniform in 64 bits.
#[inline(always)]
pub fn resampled(size_bytes: u64, code: u32, exponent: u32, random: u64, probability: impl Fn(u64) -> u64) -> u32 {
    let interval_bytes = Interval::from_code(code).bytes() as u64;
    let size = if size_bytes == 0 { 1 } else { size_bytes };
    if exponent == 0 || exponent > BACK_PRESSURE_EXPONENT_MAX {
        return code;
    }
    // Beyond both intervals, a block has the weight 1 at either.
    let larger_bytes = 1 << exponent;
    if larger_bytes <= interval_bytes || size >= larger_bytes {
        return code;
    }
    let before = if size >= interval_bytes || interval_bytes == 0 {
        u64::MAX
    } else {
        probability(size.wrapping_mul(u64::MAX / interval_bytes))
    };
    // random · before, without a 128-bit product. The lower half of `before` decides in one of 2^32 cases.
    let (high, low) = (random >> 32, random & 0xffff_ffff);
    let scaled = high * (before >> 32) + ((low * (before >> 32)) >> 32);
    if scaled < probability(size << (u64::BITS - exponent)) { Interval::power_of_two(exponent).code() } else { 0 }
}

/// Exponents of intervals that [`Interval`] can have.
pub const BACK_PRESSURE_EXPONENT_MAX: u32 = 30;

/// `1 − e^(−x)` for x in [0, 1), both as fractions of 2^64.
///
/// Computed as `x · g(x)` with `g(x) = (1 − e^(−x)) / x = Σ (−x)^n / (n+1)!`, because g is in (0.63, 1], so that 32 bits of it
/// keep the product's *relative* error small even for tiny p. Twelve terms leave less than 1/14! ≈ 2^-36.
#[inline(always)]
pub const fn probability(x: u64) -> u64 {
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
