//! What is known of blocks besides amounts, as it stands in a report.

use serde::Deserialize;

use super::amounts::Amount;
use crate::ledger::details::Details;
use crate::ledger::histogram::Histogram;

/// No recording has more temporary blocks, so that no sum of such counts can overflow.
const COUNT_MAX: u64 = 1 << 43;

/// Reports of before these fields have none of them.
#[derive(Deserialize)]
pub(super) struct DetailsFields {
    age_ns_oldest: Option<u64>,
    #[serde(default)]
    age_histogram: Vec<Bucket>,
    #[serde(default)]
    lifetime_histogram: Vec<Bucket>,
    #[serde(default)]
    size_histogram: Vec<Bucket>,
    temporary_count: Option<u64>,
}

/// `[smallest value, blocks]`.
#[derive(Deserialize)]
struct Bucket(u64, Amount);

impl DetailsFields {
    pub(super) fn into_details(self) -> Result<Details, String> {
        let mut details = Details {
            sizes: histogram(self.size_histogram, 1)?,
            lifetimes: histogram(self.lifetime_histogram, 1000)?,
            temporary_count: self.temporary_count.map(|count| count.min(COUNT_MAX)),
            ..Details::default()
        };
        details.ages.oldest_ns = self.age_ns_oldest;
        details.ages.histogram = histogram(self.age_histogram, 1000)?;
        Ok(details)
    }
}

fn histogram(buckets: Vec<Bucket>, unit: u64) -> Result<Histogram, String> {
    let mut histogram = Histogram::default();
    for Bucket(value, count) in buckets {
        histogram.add(value / unit, count.count()?);
    }
    Ok(histogram)
}
