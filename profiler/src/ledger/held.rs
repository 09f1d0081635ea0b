//! What is live at an instant, and what was allocated until then, as floats: for curves and tables over time, where nothing
//! is added up any more.

use serde::{Deserialize, Serialize};

use super::totals::Totals;

/// What was live at an instant, and what had been allocated until then since the recording began. Exact up to 2^53 where the
/// totals are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// Bytes live.
    pub live_bytes: f64,
    /// Blocks live.
    pub live_count: f64,
    /// Bytes allocated.
    pub alloc_bytes: f64,
    /// Blocks allocated.
    pub alloc_count: f64,
}

impl Held {
    /// What these totals of a whole recording say of now.
    pub fn of(totals: &Totals) -> Self {
        Self {
            live_bytes: totals.live_bytes().to_f64(),
            live_count: totals.live_count().to_f64(),
            alloc_bytes: totals.alloc_bytes.to_f64(),
            alloc_count: totals.alloc_count.to_f64(),
        }
    }

    /// What they say of the beginning: what a child had from its parent.
    pub fn at_first(totals: &Totals) -> Self {
        Self { live_bytes: totals.opening_bytes.to_f64(), live_count: totals.opening_count.to_f64(), ..Self::default() }
    }

    /// Whether all of it are numbers: what was read from a file need not be.
    pub fn is_sound(&self) -> bool {
        [self.live_bytes, self.live_count, self.alloc_bytes, self.alloc_count].iter().all(|sum| sum.is_finite())
    }
}
