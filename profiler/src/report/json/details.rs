//! What is known of blocks besides amounts, as fields.

use serde::Serialize;

use super::totals::Number;
use crate::ledger::details::Details;
use crate::ledger::histogram::Histogram;
use crate::units::EstimatedCount;

#[derive(Serialize)]
pub(super) struct DetailsFields {
    age_ns_oldest: Option<u64>,
    age_ns_median: Option<u64>,
    age_ns_total: Number,
    age_histogram: Vec<Bucket>,
    lifetime_ns_total: Number,
    lifetime_histogram: Vec<Bucket>,
    size_histogram: Vec<Bucket>,
    temporary_count: Option<u64>,
}

/// `[smallest value, blocks]`.
#[derive(Serialize)]
struct Bucket(u64, Number);

impl DetailsFields {
    /// `exact` says that every allocation was taken.
    pub(super) fn new(details: &Details, exact: bool) -> Self {
        let buckets = |histogram: &Histogram, unit: u64| {
            let bucket = |(value, count): (u64, EstimatedCount)| {
                Bucket(value.saturating_mul(unit), Number::of_count(count, exact))
            };
            histogram.iter().map(bucket).collect()
        };
        Self {
            age_ns_oldest: details.ages.oldest_ns,
            age_ns_median: details.ages.median_ns(),
            age_ns_total: Number::of_nanos(details.ages.total, exact),
            age_histogram: buckets(&details.ages.histogram, 1000),
            lifetime_ns_total: Number::of_nanos(details.lifetime_total, exact),
            lifetime_histogram: buckets(&details.lifetimes, 1000),
            size_histogram: buckets(&details.sizes, 1),
            temporary_count: details.temporary_count,
        }
    }
}
