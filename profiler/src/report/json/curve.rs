//! How a target's totals went up and down, in the JSON report: `[unix_ns, live_bytes, live_count, alloc_bytes, alloc_count]` each.

use serde::{Serialize, Serializer};

use super::totals::Number;
use crate::model::history::Moment;
use crate::model::{Profile, TargetProfile};
use crate::units::{EstimatedBytes, EstimatedCount};

/// The moments of a target.
pub(super) struct CurveFields<'a> {
    profile: &'a Profile,
    moments: &'a [Moment],
    is_exact: bool,
}

impl<'a> CurveFields<'a> {
    pub(super) fn new(profile: &'a Profile, target: &'a TargetProfile) -> Self {
        Self { profile, moments: &target.history.curve, is_exact: profile.is_exact_of(target) }
    }
}

impl Serialize for CurveFields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes = |bytes| Number::of_bytes(EstimatedBytes::from_f64(bytes), self.is_exact);
        let count = |count| Number::of_count(EstimatedCount::from_f64(count), self.is_exact);
        let fields = |Moment { time, held }: &Moment| {
            (
                self.profile.unix_ns(*time),
                bytes(held.live_bytes),
                count(held.live_count),
                bytes(held.alloc_bytes),
                count(held.alloc_count),
            )
        };
        serializer.collect_seq(self.moments.iter().map(fields))
    }
}
