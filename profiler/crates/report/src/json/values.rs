//! Values in JSON reports: amounts, addresses, names and counts by reason.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use heapbpf_base::units::{EstimatedBytes, EstimatedCount, EstimatedMicros};
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::text;

/// An integer where every allocation is recorded, a float where it is an estimate.
#[derive(Clone, Copy, Deserialize)]
#[serde(untagged)]
pub(crate) enum Amount {
    Exact(u64),
    /// An exact number below 0, by its absolute value.
    #[serde(skip_deserializing)]
    Below(u64),
    Estimate(f64),
}

impl Amount {
    pub(crate) fn of_bytes(bytes: EstimatedBytes, exact: bool) -> Self {
        Self::of(bytes.rounded(), (EstimatedBytes::ZERO - bytes).rounded(), bytes.to_f64(), exact)
    }

    pub(crate) fn of_count(count: EstimatedCount, exact: bool) -> Self {
        Self::of(count.rounded(), (EstimatedCount::ZERO - count).rounded(), count.to_f64(), exact)
    }

    /// `above` and `below` are the distances from 0.
    fn of(above: u64, below: u64, estimate: f64, exact: bool) -> Self {
        match exact {
            true if below > 0 => Self::Below(below),
            true => Self::Exact(above),
            false => Self::Estimate(estimate),
        }
    }

    /// In nanoseconds; a float where a `u64` would overflow.
    pub(super) fn of_nanos(micros: EstimatedMicros, exact: bool) -> Self {
        match micros.rounded().checked_mul(1000) {
            Some(nanos) if exact => Self::Exact(nanos),
            _ => Self::Estimate(micros.to_f64() * 1000.0),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "floats are the report's estimates")]
    pub(super) fn to_f64(self) -> f64 {
        match self {
            Self::Exact(number) => number as f64,
            Self::Below(distance) => -(distance as f64),
            Self::Estimate(number) => number,
        }
    }
}

impl Default for Amount {
    fn default() -> Self {
        Self::Exact(0)
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            Self::Exact(number) => serializer.serialize_u64(number),
            Self::Below(distance) => serializer.serialize_i128(-i128::from(distance)),
            Self::Estimate(number) => serializer.serialize_f64(number),
        }
    }
}

/// An address in hexadecimal: readers that parse numbers as floats would lose bits of a `u64`.
#[derive(Clone, Copy)]
pub(crate) struct Hex(pub(crate) u64);

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:#x}", self.0))
    }
}

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let digits = Cow::<str>::deserialize(deserializer)?;
        let number = digits.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let invalid = || D::Error::custom(format_args!("`{}` is not a hexadecimal address", text::printable(&digits)));
        number.map(Self).ok_or_else(invalid)
    }
}

/// Counts by reason: an object whose fields are in the order of the list.
pub(crate) mod counts {
    use super::*;

    #[cfg(test)]
    pub(crate) struct Counts;

    pub(crate) fn serialize<K: Serialize, S: Serializer>(
        counts: &[(K, u64)],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(counts.iter().map(|(reason, count)| (reason, count)))
    }

    pub(crate) fn deserialize<'de, K: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<(K, u64)>, D::Error> {
        deserializer.deserialize_map(InOrder(PhantomData))
    }

    struct InOrder<K>(PhantomData<K>);

    impl<'de, K: Deserialize<'de>> Visitor<'de> for InOrder<K> {
        type Value = Vec<(K, u64)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("counts by reason")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut counts = Vec::new();
            let mut sum = 0_u64;
            while let Some((reason, count)) = map.next_entry::<K, u64>()? {
                let more = sum.checked_add(count);
                sum = more.ok_or_else(|| A::Error::custom("the sum of the counts exceeds 64 bits"))?;
                counts.push((reason, count));
            }
            Ok(counts)
        }
    }
}
