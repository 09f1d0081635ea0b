//! What is known of blocks beyond how many and how much: their sizes, ages and lifetimes, and which were temporary.

use super::ages::Ages;
use super::histogram::Histogram;
use crate::units::EstimatedMicros;

/// Details of a callsite; sums of them are those of a heap or a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// Sizes of allocated blocks and mappings, in bytes.
    pub sizes: Histogram,
    /// How long freed blocks and mappings have lived, in microseconds. Not in it are those whose free was lost.
    pub lifetimes: Histogram,
    /// The same added up.
    pub lifetime_total: EstimatedMicros,
    /// How old those are that are live.
    pub ages: Ages,
    /// Temporary blocks: freed by the thread that made them, before it made the next one on the same heap. Only known where
    /// all allocations of the heap were taken, and not of mapped memory; each loss can hide or make one. Where more than 4,096
    /// threads allocate, up to one for each can be missing.
    pub temporary_count: Option<u64>,
}

impl Details {
    /// Adds what is known of others. Temporary ones are only known where they are of all.
    pub fn add(&mut self, other: &Self) {
        self.sizes.join(&other.sizes);
        self.lifetimes.join(&other.lifetimes);
        self.lifetime_total += other.lifetime_total;
        self.ages.add(&other.ages);
        let both = self.temporary_count.zip(other.temporary_count);
        self.temporary_count = both.map(|(one, other)| one + other);
    }

    /// What all of these have together.
    pub fn sum<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut sum = Self { temporary_count: Some(0), ..Self::default() };
        all.into_iter().for_each(|details| sum.add(details));
        sum
    }

    /// What has happened since `base`, an earlier state of the same callsite. Ages are those at the end.
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
