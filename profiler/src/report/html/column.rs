//! Columns of numbers for the page, with as few digits as possible.

use serde::{Serialize, Serializer};

use crate::model::Profile;
use crate::units::MonotonicNanos;

/// Integers beyond this are not exact as floats.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// A number rounded to a hundredth, which is far below the error of estimates.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Number(pub(super) f64);

impl Serialize for Number {
    #[expect(clippy::cast_possible_truncation, reason = "whole and below `EXACT_MAX`")]
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rounded = (self.0 * 100.0).round() / 100.0;
        match rounded {
            _ if !self.0.is_finite() => serializer.serialize_i64(0),
            _ if self.0.abs() >= EXACT_MAX => serializer.serialize_f64(self.0),
            whole if whole.fract() == 0.0 => serializer.serialize_i64(whole as i64),
            rounded => serializer.serialize_f64(rounded),
        }
    }
}

/// One number for each item of a list; empty where all are 0.
#[derive(Clone, Debug, Default)]
pub(super) struct Column(Vec<Number>);

impl Column {
    pub(super) fn push(&mut self, number: f64) {
        self.0.push(Number(number));
    }
}

impl FromIterator<f64> for Column {
    fn from_iter<I: IntoIterator<Item = f64>>(numbers: I) -> Self {
        Self(numbers.into_iter().map(Number).collect())
    }
}

impl Serialize for Column {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let is_empty = self.0.iter().all(|number| number.0 == 0.0);
        if is_empty { &[] } else { self.0.as_slice() }.serialize(serializer)
    }
}

/// A counter or a time as a float.
#[expect(clippy::cast_precision_loss, reason = "the page shows fewer digits than 2^53 has")]
pub(super) fn float(number: u64) -> f64 {
    number as f64
}

/// A time of the ledger in milliseconds since the recording started; negative before that.
#[expect(clippy::cast_precision_loss, reason = "the page shows milliseconds")]
pub(super) fn millis(profile: &Profile, time: MonotonicNanos) -> f64 {
    let since = i128::from(time.0) - i128::from(profile.started_monotonic_ns);
    (since as f64 / 1e6).round()
}
