//! Median and spread of a few measurements.

use std::fmt;

/// What several rounds gave.
#[derive(Clone, Debug)]
pub(crate) struct Spread {
    sorted: Vec<f64>,
}

impl Spread {
    /// Of measurements in any order. There must be one.
    pub(crate) fn new(mut values: Vec<f64>) -> Self {
        assert!(!values.is_empty(), "a spread of nothing");
        values.sort_by(f64::total_cmp);
        Self { sorted: values }
    }

    /// The middle one; of an even number the mean of the middle two.
    pub(crate) fn median(&self) -> f64 {
        let count = self.sorted.len();
        f64::midpoint(self.sorted[(count - 1) / 2], self.sorted[count / 2])
    }

    /// The smallest.
    pub(crate) fn min(&self) -> f64 {
        self.sorted[0]
    }

    /// The largest.
    pub(crate) fn max(&self) -> f64 {
        self.sorted[self.sorted.len() - 1]
    }
}

impl fmt::Display for Spread {
    /// The median, and the extremes in parentheses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(0);
        write!(f, "{:.digits$} ({:.digits$} to {:.digits$})", self.median(), self.min(), self.max())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(Spread::new(vec![3.0, 1.0, 100.0]).to_string(), "3 (1 to 100)");
        assert_eq!(format!("{:.1}", Spread::new(vec![4.0, 1.0, 2.0, 3.0])), "2.5 (1.0 to 4.0)");
    }
}
