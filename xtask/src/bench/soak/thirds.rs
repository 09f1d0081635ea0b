//! Memory over time, by thirds: the first one is the agent's warming up, the other two have to be alike. Pure.

use std::fmt;

use crate::bench::spread::Spread;

/// How much more than the middle third's median the last one's may be. It may be less: where memory is short, the kernel takes
/// back pages of files.
const PART_MAX: f64 = 0.02;

/// What a process had in each third of the time, in bytes.
#[derive(Clone, Debug)]
pub(super) struct Thirds([Spread; 3]);

impl Thirds {
    /// Of looks at equal distances. `None` where there are fewer than `least` for each third.
    pub(super) fn of(bytes: &[u64], least: usize) -> Option<Self> {
        let each = bytes.len() / 3;
        let third =
            |start: usize, end: usize| Spread::new(bytes[start..end].iter().map(|&bytes| as_f64(bytes)).collect());
        let has_enough = each >= least.max(1);
        has_enough.then(|| Self([third(0, each), third(each, 2 * each), third(2 * each, bytes.len())]))
    }

    /// Median of the last third as a part of the middle one's.
    pub(super) fn ratio(&self) -> f64 {
        self.0[2].median() / self.0[1].median()
    }

    /// Whether nothing grows any more in the last third.
    pub(super) fn is_flat(&self) -> bool {
        self.ratio() - 1.0 <= PART_MAX
    }

    /// Each third's median and extremes, in MiB.
    pub(super) fn mib(&self) -> [String; 3] {
        self.0.each_ref().map(|third| {
            let [median, min, max] = [third.median(), third.min(), third.max()].map(|bytes| bytes / f64::from(1 << 20));
            format!("{median:.1} ({min:.1} to {max:.1})")
        })
    }
}

impl fmt::Display for Thirds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [_, middle, last] = self.mib();
        let percent = 100.0 * (self.ratio() - 1.0);
        write!(f, "{last} MiB in the last third, {middle} MiB in the middle one, {percent:+.1} %")
    }
}

#[expect(clippy::cast_precision_loss, reason = "megabytes are told apart up to terabytes")]
fn as_f64(bytes: u64) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(mib: impl Iterator<Item = u64>, flat: bool) {
        let bytes: Vec<u64> = mib.map(|mib| mib << 20).collect();
        let thirds = Thirds::of(&bytes, 3).expect("there are enough");
        assert_eq!(thirds.is_flat(), flat, "{thirds}");
    }

    #[test]
    fn growing_is_told_from_warming_up() {
        check((0..30).map(|_| 100), true);
        check((0..30).map(|i| if i < 9 { 10 * i } else { 100 }), true);
        check((0..30).map(|i| if i % 7 == 0 { 500 } else { 100 }), true);
        check((0..30).map(|i| 100 + i), false);
        check((0..30).map(|i| 1000 - 10 * i), true);
        check((0..30).map(|i| if i < 20 { 100 } else { 103 }), false);
    }

    #[test]
    fn all_looks_count_and_few_are_not_enough() {
        assert!(Thirds::of(&[1; 8], 3).is_none());
        assert!(Thirds::of(&[], 0).is_none());
        let thirds = Thirds::of(&[1 << 20, 2 << 20, 3 << 20, 5 << 20], 1).expect("one for each");
        assert_eq!(thirds.mib(), ["1.0 (1.0 to 1.0)", "2.0 (2.0 to 2.0)", "4.0 (3.0 to 5.0)"]);
    }
}
