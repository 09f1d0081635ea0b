//! Statistics of few measurements: medians, extremes, ratios and limits.

use std::fmt;

use anyhow::Result;

/// Median and extremes of several rounds.
#[derive(Clone, Debug)]
pub(crate) struct Spread {
    sorted: Vec<f64>,
}

impl Spread {
    /// Panics without values.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        assert!(!sorted.is_empty(), "no measurements");
        sorted.sort_by(f64::total_cmp);
        Self { sorted }
    }

    /// The middle value; of an even number the mean of the middle two.
    pub(crate) fn median(&self) -> f64 {
        let count = self.sorted.len();
        f64::midpoint(self.sorted[(count - 1) / 2], self.sorted[count / 2])
    }

    pub(crate) fn max(&self) -> f64 {
        self.sorted[self.sorted.len() - 1]
    }
}

impl fmt::Display for Spread {
    /// The median, and the extremes in parentheses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(0);
        write!(f, "{:.digits$} ({:.digits$} to {:.digits$})", self.median(), self.sorted[0], self.max())
    }
}

/// Measures all variants in each round: a disturbance then affects all variants of a round. Returns the results by variant.
pub(crate) fn alternate<V, T>(
    rounds: usize,
    variants: &[V],
    mut measure: impl FnMut(&V) -> Result<T>,
) -> Result<Vec<Vec<T>>> {
    let mut results: Vec<Vec<T>> = variants.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds.max(1) {
        for (variant, results) in variants.iter().zip(&mut results) {
            results.push(measure(variant)?);
        }
    }
    Ok(results)
}

/// Ratios of two variants within each round.
pub(crate) fn ratios(variant: &[f64], to: &[f64]) -> Spread {
    Spread::of(variant.iter().zip(to).map(|(variant, to)| variant / to))
}

pub(crate) fn verdict(figure: f64, limit: f64) -> &'static str {
    if figure <= limit { "met" } else { "**not met**" }
}

pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_extremes() {
        assert_eq!(Spread::of([3.0, 1.0, 100.0]).to_string(), "3 (1 to 100)");
        assert_eq!(format!("{:.1}", Spread::of([4.0, 1.0, 2.0, 3.0])), "2.5 (1.0 to 4.0)");
        assert_eq!(ratios(&[2.0, 9.0], &[1.0, 3.0]).to_string(), "2 (2 to 3)");
    }

    #[test]
    fn variants_alternate() {
        let mut order = Vec::new();
        let results = alternate(2, &["a", "b"], |variant| {
            order.push(*variant);
            Ok(order.len())
        });
        assert_eq!(results.expect("no error"), [[1, 3], [2, 4]]);
        assert_eq!(order, ["a", "b", "a", "b"]);
    }
}
