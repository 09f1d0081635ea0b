//! Quantities: fixed-point estimates, whose sums are exact, and weights of samples.

use bytesize::ByteSize;
use derive_more::{Add, AddAssign, Sub, SubAssign, Sum};
use profiler_common::interval::Interval;
use profiler_common::sampling;
use serde::{Deserialize, Serialize};

const FRACTION_BITS: u32 = 20;
const ONE: f64 = (1u64 << FRACTION_BITS) as f64;

/// Fraction from which on counts are rounded up; whole counts stay the same. One rounding applies to all counts of a callsite:
/// the smaller of two is never rounded to more than the larger one. Bytes are rounded to the nearest number: a block has many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounding(u32);

impl Default for Rounding {
    /// Rounds up from a half on.
    fn default() -> Self {
        Self(1 << (FRACTION_BITS - 1))
    }
}

/// Rounds a sequence of pairs of counts so that the sums of both are rounded, too, to within one or two. If each were rounded
/// alone, a thousand counts of 1.6 would be 2,000.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundedSums {
    /// Amounts that the sums of the rounded counts lack, in units of a fraction.
    lacking: [i64; 2],
}

impl RoundedSums {
    /// Chooses the rounding for the next pair.
    pub fn next(&mut self, counts: [EstimatedCount; 2]) -> Rounding {
        let fractions = counts.map(EstimatedCount::fraction);
        if fractions == [0; 2] {
            return Rounding::default();
        }
        // The candidates are to round up no count, the one with the larger fraction, or both.
        let ups =
            fractions.into_iter().filter(|&fraction| fraction > 0).map(|fraction| (1 << FRACTION_BITS) - fraction);
        let after = |up: u32| {
            let carried = |at: usize| {
                let rounded = (fractions[at] + up) >> FRACTION_BITS << FRACTION_BITS;
                self.lacking[at] + i64::from(fractions[at]) - i64::from(rounded)
            };
            [carried(0), carried(1)]
        };
        let distance = |up: &u32| after(*up).map(|lacking| lacking * lacking).iter().sum::<i64>();
        let up = std::iter::once(0).chain(ups).min_by_key(distance).unwrap_or_default();
        self.lacking = after(up);
        Rounding(up)
    }
}

/// Defines a fixed-point type. In fixed point, a free subtracts exactly what its allocation added: 0 live bytes, not 1e-9.
macro_rules! estimate {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[derive(Add, AddAssign, Sub, SubAssign, Sum)]
        #[serde(try_from = "i128")]
        pub struct $name(i128);

        impl TryFrom<i128> for $name {
            type Error = &'static str;

            /// Fails for large numbers: files can contain any number, and further additions must not overflow.
            fn try_from(fixed: i128) -> Result<Self, Self::Error> {
                if fixed.unsigned_abs() < 1 << 120 { Ok(Self(fixed)) } else { Err("the estimate exceeds 2^100") }
            }
        }

        impl $name {
            pub const ZERO: Self = Self(0);

            pub const fn exact(amount: u64) -> Self {
                Self((amount as i128) << FRACTION_BITS)
            }

            /// Returns the nearest representable amount, with an error of at most 2^-21.
            #[expect(clippy::cast_possible_truncation, reason = "`as` saturates, and no weight comes near 2^107")]
            pub fn from_f64(amount: f64) -> Self {
                Self((amount * ONE).round() as i128)
            }

            #[expect(clippy::cast_precision_loss, reason = "for display; 53 bits are enough")]
            pub fn to_f64(self) -> f64 {
                self.0 as f64 / ONE
            }

            /// Rounds to an integer; 0 if negative.
            pub fn rounded(self) -> u64 {
                self.rounded_with(Rounding::default())
            }

            /// Rounds to an integer, up from a fraction that is not always a half; 0 if negative.
            pub fn rounded_with(self, rounding: Rounding) -> u64 {
                u64::try_from((self.0.max(0) + i128::from(rounding.0)) >> FRACTION_BITS).unwrap_or(u64::MAX)
            }

            /// Rounds like [`Self::rounded_with`], for differences.
            pub fn rounded_signed(self, rounding: Rounding) -> i64 {
                let rounded = (self.0 + i128::from(rounding.0)) >> FRACTION_BITS;
                i64::try_from(rounded).unwrap_or(if rounded < 0 { i64::MIN } else { i64::MAX })
            }
        }
    };
}

estimate! {
    /// Bytes, estimated from samples (exact at an interval of 1). Signed, for differences of profiles.
    EstimatedBytes
}

estimate! {
    /// Blocks, estimated from samples (exact at an interval of 1).
    EstimatedCount
}

estimate! {
    /// Variance of an estimate, in square bytes or square blocks; 0 if exact.
    EstimatedVariance
}

estimate! {
    /// Third cumulant of the error of an estimate, in units of [`CUBE`] cubic bytes or cubic blocks; 0 if exact.
    EstimatedCube
}

/// Unit of cubes, which keeps their sums within 128 bits at the largest interval; rounds each to an integer.
const CUBE: f64 = ONE;

estimate! {
    /// Sum of block lifetimes, in microseconds.
    EstimatedMicros
}

impl EstimatedCount {
    fn fraction(self) -> u32 {
        u32::try_from(self.0 & ((1 << FRACTION_BITS) - 1)).unwrap_or_default()
    }

    /// Returns the sum of the lifetimes of these blocks, each of `micros`, capped at 8.9 years.
    pub const fn lasting(self, micros: u64) -> EstimatedMicros {
        const MICROS_MAX: u64 = 1 << 48;
        let micros = if micros < MICROS_MAX { micros } else { MICROS_MAX };
        EstimatedMicros(self.0.saturating_mul(micros as i128))
    }
}

/// Variances of estimates, and the third cumulants of their errors, from which confidence intervals are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, AddAssign, SubAssign, Serialize, Deserialize)]
pub struct Variance {
    pub bytes: EstimatedVariance,
    pub count: EstimatedVariance,
    // The cubes are written apart: the layout of folded recordings is older.
    #[serde(skip)]
    pub cubes: Cubes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, AddAssign, SubAssign, Serialize, Deserialize)]
pub struct Cubes {
    pub bytes: EstimatedCube,
    pub count: EstimatedCube,
}

impl Variance {
    pub const ZERO: Self = Self {
        bytes: EstimatedVariance::ZERO,
        count: EstimatedVariance::ZERO,
        cubes: Cubes { bytes: EstimatedCube::ZERO, count: EstimatedCube::ZERO },
    };
}

impl EstimatedCube {
    /// Creates an estimate from `cube` cubic bytes or cubic blocks.
    pub fn of(cube: f64) -> Self {
        Self::from_f64(cube / CUBE)
    }

    /// Value in cubic bytes or cubic blocks.
    pub fn cubic(self) -> f64 {
        self.to_f64() * CUBE
    }
}

/// Estimated amounts of one sampled block (its weight) or of several, with their variances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, AddAssign, Serialize, Deserialize)]
pub struct Amounts {
    pub count: EstimatedCount,
    pub bytes: EstimatedBytes,
    /// Number of samples that the estimates are based on; a part of a block is none.
    pub samples: u64,
    pub variance: Variance,
}

impl Amounts {
    /// Returns the weight of a block of `size_bytes` sampled at `interval`.
    ///
    /// A block of value v, sampled with probability p, has the weight w = v/p and the variance v²(1 − p)/p, estimated
    /// from the sampled blocks as v²(1 − p)/p² = w(w − v) (Horvitz and Thompson, 1952). That is also the variance of the
    /// number of blocks that one sample represents, which has a negative binomial distribution; its third cumulant is
    /// v³(1 − p)(2 − p)/p³ = w(w − v)(2w − v).
    #[expect(clippy::cast_precision_loss, reason = "sizes below the interval have at most 30 bits")]
    pub fn of(size_bytes: u64, interval: Interval) -> Self {
        let interval_bytes = u64::from(interval.bytes());
        if size_bytes >= interval_bytes {
            return Self::exact(size_bytes, 1);
        }
        let bytes = sampling::estimated_bytes(size_bytes, interval_bytes);
        let count = sampling::estimated_count(size_bytes, interval_bytes);
        let size = size_bytes as f64;
        let variance = [bytes * (bytes - size), count * (count - 1.0)];
        Self {
            count: EstimatedCount::from_f64(count),
            bytes: EstimatedBytes::from_f64(bytes),
            samples: 1,
            variance: Variance {
                bytes: EstimatedVariance::from_f64(variance[0]),
                count: EstimatedVariance::from_f64(variance[1]),
                cubes: Cubes {
                    bytes: EstimatedCube::of(variance[0] * (2.0 * bytes - size)),
                    count: EstimatedCube::of(variance[1] * (2.0 * count - 1.0)),
                },
            },
        }
    }

    /// Amounts that are known exactly. `blocks` is 0 for a part of a block.
    pub const fn exact(bytes: u64, blocks: u64) -> Self {
        Self {
            count: EstimatedCount::exact(blocks),
            bytes: EstimatedBytes::exact(bytes),
            samples: blocks,
            variance: Variance::ZERO,
        }
    }
}

pub fn parse_bytes(text: &str) -> Option<u64> {
    // The library also accepts a sign and fractions of a byte.
    let starts = text.starts_with(|first: char| first.is_ascii_digit());
    starts.then(|| text.parse::<ByteSize>().ok()).flatten().map(|size| size.0)
}

/// Timestamp of the kernel's `CLOCK_MONOTONIC`, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MonotonicNanos(pub u64);

impl MonotonicNanos {
    /// Returns the time elapsed since `earlier`; zero if that is later.
    pub fn since(self, earlier: Self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Memory of a mapping, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct MappedAmounts {
    /// Resident bytes, each divided by the number of processes that map it.
    pub pss_bytes: u64,
    /// Resident bytes that no other process maps, and that equal the file.
    pub private_clean_bytes: u64,
    /// Resident bytes that no other process maps, and that have been written.
    pub private_dirty_bytes: u64,
    /// Resident bytes that other processes map too, and that equal the file.
    pub shared_clean_bytes: u64,
    /// Resident bytes that other processes map too, and that have been written.
    pub shared_dirty_bytes: u64,
    /// Swapped out bytes.
    pub swap_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adding_and_subtracting_weights_leaves_zero() {
        let weights: Vec<Amounts> = (1..5000).map(|size| Amounts::of(size, Interval::nearest(4096))).collect();
        let mut sum = EstimatedBytes::ZERO;
        weights.iter().for_each(|weight| sum += weight.bytes);
        weights.iter().rev().for_each(|weight| sum -= weight.bytes);
        assert_eq!(sum, EstimatedBytes::ZERO);
    }

    #[test]
    fn weights_at_interval_one_are_exact() {
        let weight = Amounts::of(30_000, Interval::EXACT);
        assert_eq!((weight.bytes.rounded(), weight.count.rounded()), (30_000, 1));
        let empty = Amounts::of(0, Interval::EXACT);
        assert_eq!((empty.bytes, empty.count), (EstimatedBytes::ZERO, EstimatedCount::exact(1)));
        assert_eq!(weight, Amounts::exact(30_000, 1));
    }

    #[test]
    fn blocks_of_at_least_the_interval_have_no_variance() {
        let interval = Interval::nearest(4096);
        for (size_bytes, is_exact) in [(4096, true), (1 << 30, true), (4095, false), (1, false)] {
            let weight = Amounts::of(size_bytes, interval);
            assert_eq!(weight.variance.bytes == EstimatedVariance::ZERO, is_exact, "{size_bytes}");
            assert_eq!(weight.variance.count == EstimatedVariance::ZERO, is_exact, "{size_bytes}");
        }
        // A small block represents T bytes, with a standard deviation of T.
        let deviation = Amounts::of(16, interval).variance.bytes.to_f64().sqrt();
        assert!((deviation - 4096.0).abs() < 20.0, "{deviation}");
        // The third cumulant of a gamma distribution with the scale T.
        let cube = Amounts::of(16, interval).variance.cubes;
        assert!((cube.bytes.cubic() / 2.0 / 4096_f64.powi(3) - 1.0).abs() < 0.01, "{cube:?}");
        assert!((cube.count.cubic() / 2.0 / 256_f64.powi(3) - 1.0).abs() < 0.01, "{cube:?}");
    }

    #[test]
    fn rounding_is_to_nearest() {
        for (amount, rounded) in [(0.4, 0), (0.5, 1), (1.49, 1), (-3.0, 0)] {
            assert_eq!(EstimatedBytes::from_f64(amount).rounded(), rounded, "{amount}");
        }
    }
}
