//! Totals as numbers: integers where every allocation was taken; else floats, with how far off they may be.

use serde::{Serialize, Serializer};

use crate::ledger::totals::{Amounts, Totals};
use crate::model::Profile;
use crate::report::{View, window};
use crate::units::{EstimatedBytes, EstimatedCount, EstimatedMicros};

#[derive(Serialize)]
pub(super) struct TotalsFields {
    inherited_count: Number,
    inherited_bytes: Number,
    alloc_count: Number,
    alloc_bytes: Number,
    free_count: Number,
    free_bytes: Number,
    live_count: Number,
    live_bytes: Number,
    alloc_samples: u64,
    live_samples: u64,
    #[serde(flatten)]
    confidence: Option<ConfidenceFields>,
    peak_bytes: Number,
    peak_count: Number,
    peak_unix_ns: Option<u64>,
    at_peak_count: Number,
    at_peak_bytes: Number,
    #[serde(flatten)]
    window: Option<ChangeFields>,
}

impl TotalsFields {
    /// `exact` says that every allocation was taken.
    pub(super) fn new(profile: &Profile, totals: &Totals, exact: bool) -> Self {
        let bytes = |bytes| Number::of_bytes(bytes, exact);
        let count = |count| Number::of_count(count, exact);
        Self {
            inherited_count: count(totals.opening_count),
            inherited_bytes: bytes(totals.opening_bytes),
            alloc_count: count(totals.alloc_count),
            alloc_bytes: bytes(totals.alloc_bytes),
            free_count: count(totals.free_count),
            free_bytes: bytes(totals.free_bytes),
            live_count: count(totals.live_count()),
            live_bytes: bytes(totals.live_bytes()),
            alloc_samples: totals.alloc_samples,
            live_samples: totals.live_samples,
            confidence: (!exact).then(|| ConfidenceFields::new(totals)),
            peak_bytes: bytes(totals.peak_bytes),
            peak_count: count(totals.peak_count),
            peak_unix_ns: totals.peak_time.map(|time| profile.unix_ns(time)),
            at_peak_count: count(totals.at_peak.count),
            at_peak_bytes: bytes(totals.at_peak.bytes),
            window: profile.window.is_some().then(|| ChangeFields {
                live_start_count: count(totals.opening_count),
                live_start_bytes: bytes(totals.opening_bytes),
                delta_count: count(totals.alloc_count - totals.free_count),
                delta_bytes: bytes(window::delta_bytes(totals)),
            }),
        }
    }
}

/// What of live blocks is old.
#[derive(Serialize)]
pub(super) struct OlderFields {
    older_count: Number,
    older_bytes: Number,
}

impl OlderFields {
    /// `exact` says that every allocation was taken.
    pub(super) fn new(older: &Amounts, exact: bool) -> Self {
        Self { older_count: Number::of_count(older.count, exact), older_bytes: Number::of_bytes(older.bytes, exact) }
    }
}

/// How a window changed what is live.
#[derive(Serialize)]
struct ChangeFields {
    live_start_count: Number,
    live_start_bytes: Number,
    delta_count: Number,
    delta_bytes: Number,
}

/// 95 % confidence intervals, where numbers are estimates, and what they are made from: variances can be added up over
/// callsites, intervals cannot.
#[derive(Serialize)]
struct ConfidenceFields {
    alloc_count_95: [f64; 2],
    alloc_bytes_95: [f64; 2],
    live_count_95: [f64; 2],
    live_bytes_95: [f64; 2],
    alloc_count_variance: f64,
    alloc_bytes_variance: f64,
    live_count_variance: f64,
    live_bytes_variance: f64,
}

impl ConfidenceFields {
    fn new(totals: &Totals) -> Self {
        let interval = |view: View| view.confidence(totals);
        Self {
            alloc_count_95: interval(View::AllocCount),
            alloc_bytes_95: interval(View::AllocBytes),
            live_count_95: interval(View::LiveCount),
            live_bytes_95: interval(View::LiveBytes),
            alloc_count_variance: totals.alloc_variance.count.to_f64(),
            alloc_bytes_variance: totals.alloc_variance.bytes.to_f64(),
            live_count_variance: totals.live_variance.count.to_f64(),
            live_bytes_variance: totals.live_variance.bytes.to_f64(),
        }
    }
}

/// An integer where every allocation was taken, a float where it is an estimate.
pub(in crate::report) enum Number {
    Exact(u64),
    /// An exact number below 0, by its distance from 0.
    Below(u64),
    Estimate(f64),
}

impl Number {
    pub(in crate::report) fn of_bytes(bytes: EstimatedBytes, exact: bool) -> Self {
        match exact {
            true if bytes < EstimatedBytes::ZERO => Self::Below((EstimatedBytes::ZERO - bytes).rounded()),
            true => Self::Exact(bytes.rounded()),
            false => Self::Estimate(bytes.to_f64()),
        }
    }

    /// In nanoseconds; as a float where an integer has no room for it.
    pub(in crate::report) fn of_nanos(micros: EstimatedMicros, exact: bool) -> Self {
        match micros.rounded().checked_mul(1000) {
            Some(nanos) if exact => Self::Exact(nanos),
            _ => Self::Estimate(micros.to_f64() * 1000.0),
        }
    }

    pub(in crate::report) fn of_count(count: EstimatedCount, exact: bool) -> Self {
        match exact {
            true if count < EstimatedCount::ZERO => Self::Below((EstimatedCount::ZERO - count).rounded()),
            true => Self::Exact(count.rounded()),
            false => Self::Estimate(count.to_f64()),
        }
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            Self::Exact(number) => serializer.serialize_u64(number),
            Self::Below(distance) => serializer.serialize_i128(-i128::from(distance)),
            Self::Estimate(number) => serializer.serialize_f64(number),
        }
    }
}
