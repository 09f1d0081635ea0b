//! Totals as they stand in a report. Numbers are bounded, so that no sum over a report can overflow.

use serde::Deserialize;

use crate::ledger::totals::{Amounts, Totals, Variance};
use crate::units::{EstimatedBytes, EstimatedCount, EstimatedMicros, EstimatedVariance, MonotonicNanos};

/// No heap has seen more bytes or blocks.
const AMOUNT_MAX: f64 = 18_446_744_073_709_551_616.0;

/// All the blocks that there can be have not lived longer together.
const NANOS_MAX: f64 = AMOUNT_MAX * (1_u64 << 20) as f64;

/// Nor does an estimate's standard deviation reach 4 TiB. A million of these can be added up.
const VARIANCE_MAX: f64 = AMOUNT_MAX * (1_u64 << 20) as f64;

/// An integer where every allocation was taken, else a float.
#[derive(Clone, Copy, Deserialize)]
#[serde(untagged)]
pub(super) enum Amount {
    Exact(u64),
    Other(f64),
}

impl Amount {
    /// Of nanoseconds.
    pub(super) fn nanos(self) -> Result<EstimatedMicros, String> {
        Ok(match self {
            // All that an exact report says is whole microseconds.
            Self::Exact(nanos) => EstimatedMicros::exact(nanos / 1000),
            Self::Other(nanos) => EstimatedMicros::from_f64(bounded(nanos, NANOS_MAX)? / 1000.0),
        })
    }

    pub(super) fn bytes(self) -> Result<EstimatedBytes, String> {
        Ok(match self {
            Self::Exact(amount) => EstimatedBytes::exact(amount),
            Self::Other(amount) => EstimatedBytes::from_f64(bounded(amount, AMOUNT_MAX)?),
        })
    }

    pub(super) fn count(self) -> Result<EstimatedCount, String> {
        Ok(match self {
            Self::Exact(amount) => EstimatedCount::exact(amount),
            Self::Other(amount) => EstimatedCount::from_f64(bounded(amount, AMOUNT_MAX)?),
        })
    }
}

fn bounded(amount: f64, max: f64) -> Result<f64, String> {
    (amount.abs() <= max).then_some(amount).ok_or_else(|| format!("`{amount:e}` is more than there can be"))
}

#[derive(Deserialize)]
pub(super) struct TotalsFields {
    inherited_count: Amount,
    inherited_bytes: Amount,
    alloc_count: Amount,
    alloc_bytes: Amount,
    live_count: Amount,
    live_bytes: Amount,
    alloc_samples: u64,
    live_samples: u64,
    alloc_count_95: Option<[f64; 2]>,
    alloc_bytes_95: Option<[f64; 2]>,
    live_count_95: Option<[f64; 2]>,
    live_bytes_95: Option<[f64; 2]>,
    alloc_count_variance: Option<f64>,
    alloc_bytes_variance: Option<f64>,
    live_count_variance: Option<f64>,
    live_bytes_variance: Option<f64>,
    peak_bytes: Amount,
    peak_count: Option<Amount>,
    peak_unix_ns: Option<u64>,
    at_peak_count: Option<Amount>,
    at_peak_bytes: Option<Amount>,
}

impl TotalsFields {
    /// What was freed is what is not live any more: where floats have been rounded, the live amounts are those that stand.
    pub(super) fn into_totals(self) -> Result<Totals, String> {
        let (alloc_count, alloc_bytes) = (self.alloc_count.count()?, self.alloc_bytes.bytes()?);
        let (live_count, live_bytes) = (self.live_count.count()?, self.live_bytes.bytes()?);
        let (opening_count, opening_bytes) = (self.inherited_count.count()?, self.inherited_bytes.bytes()?);
        Ok(Totals {
            opening_count,
            opening_bytes,
            alloc_count,
            alloc_bytes,
            free_count: opening_count + alloc_count - live_count,
            free_bytes: opening_bytes + alloc_bytes - live_bytes,
            alloc_samples: self.alloc_samples,
            live_samples: self.live_samples,
            alloc_variance: Variance {
                bytes: variance(self.alloc_bytes_variance, alloc_bytes.to_f64(), self.alloc_bytes_95)?,
                count: variance(self.alloc_count_variance, alloc_count.to_f64(), self.alloc_count_95)?,
            },
            live_variance: Variance {
                bytes: variance(self.live_bytes_variance, live_bytes.to_f64(), self.live_bytes_95)?,
                count: variance(self.live_count_variance, live_count.to_f64(), self.live_count_95)?,
            },
            peak_bytes: self.peak_bytes.bytes()?,
            peak_count: self.peak_count.map_or(Ok(EstimatedCount::ZERO), Amount::count)?,
            peak_time: self.peak_unix_ns.map(MonotonicNanos),
            at_peak: Amounts {
                count: self.at_peak_count.map_or(Ok(EstimatedCount::ZERO), Amount::count)?,
                bytes: self.at_peak_bytes.map_or(Ok(EstimatedBytes::ZERO), Amount::bytes)?,
                ..Amounts::default()
            },
        })
    }
}

/// The variance that the report gives; where it does not, the one that its interval comes from.
fn variance(variance: Option<f64>, estimate: f64, interval: Option<[f64; 2]>) -> Result<EstimatedVariance, String> {
    let variance = match (variance, interval) {
        (Some(variance), _) => variance,
        (None, Some([low, high])) => Totals::variance_of(estimate, [low, high]),
        (None, None) => 0.0,
    };
    Ok(EstimatedVariance::from_f64(bounded(variance, VARIANCE_MAX)?))
}
