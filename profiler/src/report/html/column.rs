//! Columns of numbers as the page reads them: as few digits as say the same.

use serde::{Serialize, Serializer};

/// Integers beyond this are not exact as floats.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// A number: whole where it is whole, else to a hundredth, which is nothing beside how far off an estimate is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Number(pub(super) f64);

impl Serialize for Number {
    #[expect(clippy::cast_possible_truncation, reason = "it is whole and small enough")]
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

/// One number for each of a list of things; nothing at all where all are 0.
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

/// A number of a counter or a clock as a float: what is lost beyond 2^53 is nothing that a page can show.
#[expect(clippy::cast_precision_loss, reason = "see above")]
pub(super) fn float(number: u64) -> f64 {
    number as f64
}
