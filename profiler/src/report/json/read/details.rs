//! What is known of blocks besides amounts, as it stands in a report. Reports of before have nothing of it.

use serde::Deserialize;

use super::amounts::Amount;
use crate::ledger::details::Ages;
use crate::ledger::details::Details;
use crate::ledger::histogram::Histogram;
use crate::units::EstimatedMicros;

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct DetailsFields {
    age_ns_oldest: Option<u64>,
    age_ns_total: Option<Amount>,
    age_histogram: Vec<Bucket>,
    lifetime_ns_total: Option<Amount>,
    lifetime_histogram: Vec<Bucket>,
    size_histogram: Vec<Bucket>,
    temporary_count: Option<u64>,
}

/// `[smallest value, blocks]`.
#[derive(Deserialize)]
struct Bucket(u64, Amount);

/// No recording has more temporary blocks, and no sum over a report can overflow.
const COUNT_MAX: u64 = 1 << 43;

/// Nanoseconds in the unit of the ledger's histograms of times.
const MICROSECOND_NS: u64 = 1000;

impl DetailsFields {
    pub(super) fn into_details(self) -> Result<Details, String> {
        Ok(Details {
            sizes: histogram(self.size_histogram, 1)?,
            lifetimes: histogram(self.lifetime_histogram, MICROSECOND_NS)?,
            lifetime_total: total(self.lifetime_ns_total)?,
            ages: Ages {
                oldest_ns: self.age_ns_oldest,
                histogram: histogram(self.age_histogram, MICROSECOND_NS)?,
                total: total(self.age_ns_total)?,
            },
            temporary_count: self.temporary_count.map(|count| count.min(COUNT_MAX)),
        })
    }
}

fn total(total: Option<Amount>) -> Result<EstimatedMicros, String> {
    total.map_or(Ok(EstimatedMicros::ZERO), Amount::nanos)
}

/// Values are told in `unit`s of the histogram's.
fn histogram(buckets: Vec<Bucket>, unit: u64) -> Result<Histogram, String> {
    let mut histogram = Histogram::default();
    for Bucket(value, count) in buckets {
        histogram.add(value.div_ceil(unit), count.count()?);
    }
    Ok(histogram)
}
