//! Sizes, ages, lifetimes and temporary blocks of a callsite.

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::histogram::Histogram;
use crate::units::{EstimatedCount, EstimatedMicros, MonotonicNanos};

/// Ages of live blocks and mappings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ages {
    /// Maximum, accurate to half a tick of the ledger, 8.4 ms. `None` if nothing is live.
    pub oldest_ns: Option<u64>,
    /// In microseconds.
    pub histogram: Histogram,
    /// Sum of all ages.
    pub total: EstimatedMicros,
}

/// Ages by callsite index, for callsites with live blocks.
pub(super) type AgesByCallsite = FxHashMap<u32, Ages>;

impl Ages {
    /// Adds blocks that were allocated at `born` and are live at `now`.
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

    /// Estimates the median: see [`Histogram::median`].
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

/// Details of a callsite, or sums of them for a heap or a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// Sizes of allocated blocks and mappings, in bytes.
    pub sizes: Histogram,
    /// Lifetimes of freed blocks and mappings, in microseconds. Blocks whose free record was dropped are not included.
    pub lifetimes: Histogram,
    pub lifetime_total: EstimatedMicros,
    /// Ages of live blocks.
    pub ages: Ages,
    /// Temporary blocks: freed by the allocating thread before its next allocation on the same heap. Known only if
    /// all allocations of the heap were recorded, and not for mapped memory; each dropped record can hide or add one. If more than 4,096
    /// threads allocate, up to one for each can be missing.
    pub temporary_count: Option<u64>,
}

impl Details {
    /// Adds others. The number of temporary blocks is known only if it is of both.
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

    /// Returns the difference to `base`, an earlier state of the same callsite. Ages are the current ones.
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
