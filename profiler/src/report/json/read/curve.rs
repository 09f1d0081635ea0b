//! How a target's totals went up and down, as it stands in a report.

use serde::Deserialize;

use super::amounts::Amount;
use crate::model::history::{Held, History, Moment};
use crate::units::MonotonicNanos;

/// No session keeps as many.
const MOMENTS_MAX: usize = 4096;

/// The moments of a target. Missing from reports of versions that did not keep them.
#[derive(Default, Deserialize)]
#[serde(transparent)]
pub(super) struct CurveFields(Vec<(u64, Amount, Amount, Amount, Amount)>);

impl CurveFields {
    /// What callsites held is not in a report.
    pub(super) fn into_history(self) -> Result<History, String> {
        if self.0.len() > MOMENTS_MAX {
            return Err(format!("a curve has `{}` moments, and {MOMENTS_MAX} is the most", self.0.len()));
        }
        let moment =
            |(time, live_bytes, live_count, alloc_bytes, alloc_count): (u64, Amount, Amount, Amount, Amount)| {
                let held = Held {
                    live_bytes: live_bytes.bytes()?.to_f64(),
                    live_count: live_count.count()?.to_f64(),
                    alloc_bytes: alloc_bytes.bytes()?.to_f64(),
                    alloc_count: alloc_count.count()?.to_f64(),
                };
                Ok(Moment { time: MonotonicNanos(time), held })
            };
        let curve = self.0.into_iter().map(moment).collect::<Result<Vec<_>, String>>()?;
        match curve.windows(2).find(|pair| pair[0].time > pair[1].time) {
            Some(pair) => Err(format!("`{}` comes too late in a curve: moments go up", pair[1].time.0)),
            None => Ok(History { curve, instants: Vec::new() }),
        }
    }
}
