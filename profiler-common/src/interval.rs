//! Sampling intervals in 20 bits.

/// A mean distance between samples in bytes: at most 15 bits times a power of two. A live block stores the interval that it
/// was sampled at, and its 24 bytes leave twenty bits for it.
///
/// ```text
/// bit 0..15   mantissa        15..20   exponent
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Interval(u32);

const MANTISSA_BITS: u32 = 15;
const MANTISSA_MASK: u32 = (1 << MANTISSA_BITS) - 1;

pub const INTERVAL_BITS: u32 = 20;

impl Interval {
    /// Samples every allocation.
    pub const EXACT: Self = Self(1);

    /// The nearest interval, at most 2^30 bytes. Exact below 32 KiB, for powers of two, and for a million; off by less
    /// than 1 in 32,768 otherwise.
    pub const fn nearest(bytes: u32) -> Self {
        let bits = u32::BITS - bytes.leading_zeros();
        if bits <= MANTISSA_BITS {
            return Self(bytes);
        }
        let exponent = bits - MANTISSA_BITS;
        let rounded = (bytes as u64 + (1 << (exponent - 1))) >> exponent;
        // Rounding up to one more bit gives a power of two.
        if rounded > MANTISSA_MASK as u64 {
            return Self((exponent + 1) << MANTISSA_BITS | 1 << (MANTISSA_BITS - 1));
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most 15 bits")]
        let mantissa = rounded as u32;
        Self(exponent << MANTISSA_BITS | mantissa)
    }

    /// 2^`exponent` bytes, as [`nearest`](Self::nearest) has it. `exponent` is at most 30.
    #[inline(always)]
    pub const fn power_of_two(exponent: u32) -> Self {
        if exponent < MANTISSA_BITS {
            Self(1 << exponent)
        } else {
            Self((exponent + 1 - MANTISSA_BITS) << MANTISSA_BITS | 1 << (MANTISSA_BITS - 1))
        }
    }

    #[inline(always)]
    pub const fn bytes(self) -> u32 {
        (self.0 & MANTISSA_MASK) << (self.0 >> MANTISSA_BITS & 31)
    }

    #[inline(always)]
    pub const fn code(self) -> u32 {
        self.0
    }

    #[inline(always)]
    pub const fn from_code(code: u32) -> Self {
        Self(code & ((1 << INTERVAL_BITS) - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn common_intervals_are_exact() {
        for bytes in [1, 2, 4096, 4099, 32_767, 512 << 10, 1_000_000, 1 << 30] {
            assert_eq!(Interval::nearest(bytes).bytes(), bytes);
        }
        for exponent in 0..=30 {
            assert_eq!(Interval::power_of_two(exponent), Interval::nearest(1 << exponent));
        }
    }

    proptest! {
        #[test]
        fn intervals_round_trip_to_one_part_in_32768(bytes in 1u32..=1 << 30) {
            let interval = Interval::nearest(bytes);
            prop_assert_eq!(Interval::from_code(interval.code()), interval);
            prop_assert!(interval.code() < 1 << INTERVAL_BITS);
            let error = f64::from(interval.bytes()) / f64::from(bytes) - 1.0;
            prop_assert!(error.abs() <= 1.0 / 32_768.0, "{} for {}", interval.bytes(), bytes);
            prop_assert_eq!(Interval::nearest(interval.bytes()), interval);
        }
    }
}
