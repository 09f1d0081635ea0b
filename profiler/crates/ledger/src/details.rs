//! Details of a callsite, as histograms with exponential buckets.

use heapbpf_base::units::{EstimatedCount, EstimatedMicros, MonotonicNanos};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

/// Estimated counts by value: one bucket for 0, then 1, 2 to 3, 4 to 7, and so on; the last one covers 2^62 and above. Only
/// non-empty buckets take memory: 16 bytes each, plus 32 for the histogram.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// One bit per non-empty bucket.
    present: u64,
    counts: Vec<EstimatedCount>,
}

const BUCKETS: u32 = u64::BITS;

fn bucket(value: u64) -> u32 {
    (u64::BITS - value.leading_zeros()).min(BUCKETS - 1)
}

fn lower_bound(bucket: u32) -> u64 {
    if bucket == 0 { 0 } else { 1 << (bucket - 1) }
}

impl Histogram {
    pub fn add(&mut self, value: u64, count: EstimatedCount) {
        self.change(bucket(value), |sum| sum + count);
    }

    pub fn take(&mut self, value: u64, count: EstimatedCount) {
        self.change(bucket(value), |sum| sum - count);
    }

    pub fn join(&mut self, other: &Self) {
        other.buckets().for_each(|(bucket, count)| self.change(bucket, |sum| sum + count));
    }

    pub fn since(&self, base: &Self) -> Self {
        let mut window = self.clone();
        base.buckets().for_each(|(bucket, count)| window.change(bucket, |sum| sum - count));
        window
    }

    pub fn is_sound(&self) -> bool {
        self.present.count_ones() as usize == self.counts.len()
    }

    /// Lower bound and count of the non-empty buckets in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, EstimatedCount)> {
        self.buckets().map(|(bucket, count)| (lower_bound(bucket), count))
    }

    pub fn is_empty(&self) -> bool {
        self.present == 0
    }

    /// Median; `None` if the histogram is empty. Interpolates linearly within a bucket, which spans a factor of two. `highest` is
    /// the maximum of the values.
    #[expect(clippy::cast_precision_loss, reason = "a bucket is wider than what is lost")]
    pub fn median(&self, highest: u64) -> Option<f64> {
        let half = self.counts.iter().copied().sum::<EstimatedCount>().to_f64() / 2.0;
        let mut below = 0.0;
        for (bucket, count) in self.buckets() {
            let count = count.to_f64();
            if below + count >= half && count > 0.0 {
                let low = lower_bound(bucket);
                let is_last = self.present >> bucket == 1;
                let high = if bucket == 0 { 0 } else { low.saturating_mul(2).min(highest).max(low) };
                // The value of a single block in the last bucket is known: the maximum.
                let share = if is_last && count <= 1.0 { 1.0 } else { (half - below) / count };
                return Some(low as f64 + (high - low) as f64 * share);
            }
            below += count;
        }
        None
    }

    fn buckets(&self) -> impl Iterator<Item = (u32, EstimatedCount)> {
        let mut left = self.present;
        let buckets = std::iter::from_fn(move || {
            let bucket = (left != 0).then(|| left.trailing_zeros())?;
            left &= left - 1;
            Some(bucket)
        });
        buckets.zip(self.counts.iter().copied())
    }

    fn change(&mut self, bucket: u32, change: impl Fn(EstimatedCount) -> EstimatedCount) {
        let bit = 1 << bucket;
        let place = (self.present & (bit - 1)).count_ones() as usize;
        if self.present & bit == 0 {
            // Histograms have few buckets, so capacity is not over-allocated.
            self.counts.reserve_exact(1);
            self.counts.insert(place, EstimatedCount::ZERO);
            self.present |= bit;
        }
        self.counts[place] = change(self.counts[place]);
        if self.counts[place] == EstimatedCount::ZERO {
            self.counts.remove(place);
            self.present &= !bit;
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ages {
    /// Age of the oldest live block, accurate to half a tick of the ledger, 8.4 ms. `None` if nothing is live.
    pub oldest_ns: Option<u64>,
    /// Ages in microseconds.
    pub histogram: Histogram,
    pub total: EstimatedMicros,
}

pub(super) type AgesByCallsite = FxHashMap<u32, Ages>;

impl Ages {
    pub(super) fn add_block(&mut self, born: MonotonicNanos, now: MonotonicNanos, count: EstimatedCount) {
        let age_ns = now.0.saturating_sub(born.0);
        self.oldest_ns = self.oldest_ns.max(Some(age_ns));
        self.histogram.add(age_ns / 1000, count);
        self.total += count.lasting(age_ns / 1000);
    }

    pub fn add(&mut self, other: &Self) {
        self.oldest_ns = self.oldest_ns.max(other.oldest_ns);
        self.histogram.join(&other.histogram);
        self.total += other.total;
    }

    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "`as` saturates, and ages are not negative"
    )]
    pub fn median_ns(&self) -> Option<u64> {
        let oldest_us = self.oldest_ns? / 1000;
        Some((self.histogram.median(oldest_us)? * 1000.0) as u64)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// Sizes of allocated blocks and mappings, in bytes.
    pub sizes: Histogram,
    /// Lifetimes of freed blocks and mappings, in microseconds, without blocks whose free record was dropped.
    pub lifetimes: Histogram,
    pub lifetime_total: EstimatedMicros,
    pub ages: Ages,
    /// Number of blocks freed by the allocating thread before its next allocation on the same heap. Known only if all allocations
    /// of the heap were recorded, and not for mapped memory. Each dropped record can hide or add one; if more than 4,096 threads
    /// allocate, up to one for each can be missing.
    pub temporary_count: Option<u64>,
}

impl Details {
    /// Adds the details of another callsite. The number of temporary blocks is known only if it is known for both.
    pub fn add(&mut self, other: &Self) {
        self.sizes.join(&other.sizes);
        self.lifetimes.join(&other.lifetimes);
        self.lifetime_total += other.lifetime_total;
        self.ages.add(&other.ages);
        let both = self.temporary_count.zip(other.temporary_count);
        self.temporary_count = both.map(|(one, other)| one + other);
    }

    pub fn sum<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut sum = Self { temporary_count: Some(0), ..Self::default() };
        all.into_iter().for_each(|details| sum.add(details));
        sum
    }

    /// Details since `base`, which is an earlier state of the same callsite. Ages are the current ones.
    pub fn since(&self, base: &Self) -> Self {
        let both = self.temporary_count.zip(base.temporary_count);
        Self {
            sizes: self.sizes.since(&base.sizes),
            lifetimes: self.lifetimes.since(&base.lifetimes),
            lifetime_total: self.lifetime_total - base.lifetime_total,
            ages: self.ages.clone(),
            temporary_count: both.map(|(now, before)| now.saturating_sub(before)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const ONE: EstimatedCount = EstimatedCount::exact(1);

    fn of(values: impl IntoIterator<Item = u64>) -> Histogram {
        let mut histogram = Histogram::default();
        values.into_iter().for_each(|value| histogram.add(value, ONE));
        histogram
    }

    #[test]
    fn buckets_double() {
        let buckets: Vec<_> = of([0, 1, 2, 3, 4, 7, 8, 1 << 61, 1 << 62, u64::MAX]).iter().collect();
        let expected = [(0, 1), (1, 1), (2, 2), (4, 2), (8, 1), (1 << 61, 1), (1 << 62, 2)];
        assert_eq!(buckets, expected.map(|(bound, count)| (bound, EstimatedCount::exact(count))));
    }

    #[test]
    fn the_median_lies_in_its_bucket() {
        let empty: [u64; 0] = [];
        assert_eq!(of(empty).median(0), None);
        for (values, median) in [
            (vec![0, 0, 9], 0.0),
            (vec![100], 100.0),
            (vec![1, 4, 4, 64], 6.0),
            (vec![1, 1024], 2.0),
            (vec![64, 80, 90, 96], 80.0),
        ] {
            let highest = values.iter().copied().max().unwrap_or(0);
            assert_eq!(of(values.clone()).median(highest), Some(median), "{values:?}");
        }
    }

    proptest! {
        #[test]
        fn sums_and_differences_agree_with_single_values(
            before in proptest::collection::vec(any::<u64>().prop_map(|value| value >> (value % 64)), 0..50),
            after in proptest::collection::vec(any::<u64>().prop_map(|value| value >> (value % 64)), 0..50),
        ) {
            let mut all = of(before.iter().copied());
            all.join(&of(after.iter().copied()));
            prop_assert_eq!(&all.since(&of(before.iter().copied())), &of(after.iter().copied()));
            let mut counted: BTreeMap<u64, u64> = BTreeMap::new();
            for value in before.iter().chain(&after) {
                *counted.entry(lower_bound(bucket(*value))).or_default() += 1;
                prop_assert!(lower_bound(bucket(*value)) <= *value);
            }
            let counted: Vec<_> = counted.into_iter().map(|(bound, n)| (bound, EstimatedCount::exact(n))).collect();
            prop_assert_eq!(all.iter().collect::<Vec<_>>(), counted);
            before.iter().chain(&after).for_each(|&value| all.take(value, ONE));
            prop_assert_eq!(all, Histogram::default());
        }
    }
}
