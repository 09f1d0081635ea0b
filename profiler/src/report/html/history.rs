//! How a target's heap grew, in columns: its totals at many moments, its callsites' changes at few instants.

use serde::Serialize;

use super::column::Column;
use crate::model::history::{Held, Moment, Occasion};
use crate::model::{Profile, TargetProfile};
use crate::units::MonotonicNanos;

/// Four columns of what was held.
#[derive(Debug, Default, Serialize)]
struct HeldColumns {
    live_bytes: Column,
    live_count: Column,
    alloc_bytes: Column,
    alloc_count: Column,
}

impl HeldColumns {
    fn push(&mut self, held: &Held) {
        self.live_bytes.push(held.live_bytes);
        self.live_count.push(held.live_count);
        self.alloc_bytes.push(held.alloc_bytes);
        self.alloc_count.push(held.alloc_count);
    }
}

/// See the module. Times are milliseconds since the recording began.
#[derive(Debug, Default, Serialize)]
pub(super) struct HistoryFields {
    curve: CurveFields,
    instants: InstantFields,
    changes: ChangeFields,
}

#[derive(Debug, Default, Serialize)]
struct CurveFields {
    time: Column,
    #[serde(flatten)]
    held: HeldColumns,
}

#[derive(Debug, Default, Serialize)]
struct InstantFields {
    time: Column,
    /// 0 for a periodic one, -1 for a mark, else the number of the window that ended.
    occasion: Column,
}

/// Changes callsite by callsite, of each in the order of instants.
#[derive(Debug, Default, Serialize)]
struct ChangeFields {
    /// How many each callsite has.
    count: Column,
    instant: Column,
    #[serde(flatten)]
    held: HeldColumns,
}

impl HistoryFields {
    pub(super) fn new(profile: &Profile, target: &TargetProfile) -> Self {
        let mut fields = Self::default();
        let mut moments: Vec<&Moment> = target.history.curve.iter().collect();
        moments.sort_by_key(|moment| moment.time);
        for moment in moments {
            fields.curve.time.push(millis(profile, moment.time));
            fields.curve.held.push(&moment.held);
        }
        for instant in &target.history.instants {
            fields.instants.time.push(millis(profile, instant.time));
            fields.instants.occasion.push(match instant.occasion {
                None => 0.0,
                Some(Occasion::Mark) => -1.0,
                Some(Occasion::Dump(number)) => f64::from(number),
            });
        }
        for callsite in &target.callsites {
            let mut count = 0.0;
            for change in &callsite.history {
                if target.history.instants.get(change.instant as usize).is_some() {
                    count += 1.0;
                    fields.changes.instant.push(f64::from(change.instant));
                    fields.changes.held.push(&change.held);
                }
            }
            fields.changes.count.push(count);
        }
        fields
    }
}

/// A time of the ledger as milliseconds since the recording began; negative before that.
#[expect(clippy::cast_precision_loss, reason = "a time that is shown to three digits")]
pub(super) fn millis(profile: &Profile, time: MonotonicNanos) -> f64 {
    let since = i128::from(time.0) - i128::from(profile.started_monotonic_ns);
    (since as f64 / 1e6).round()
}
