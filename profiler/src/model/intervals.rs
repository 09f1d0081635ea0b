//! When heaps were sampled at another interval than was asked for, and why.

use serde::{Deserialize, Serialize};

/// From some time on a heap was sampled at another interval, because there was more than could be followed, or was not any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntervalChange {
    /// When, in nanoseconds since the Unix epoch.
    pub unix_ns: u64,
    /// The heap.
    pub heap: String,
    /// Its interval until then, in bytes.
    pub from_bytes: u64,
    /// Its interval from then on.
    pub to_bytes: u64,
    /// Why.
    pub reason: ChangeReason,
}

/// Why a heap's interval was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeReason {
    /// Records had found no room in the ring.
    RingFull,
    /// The ring was more than half full.
    RingFilling,
    /// The live set was nearly full.
    LiveSetFilling,
    /// It has been quiet since.
    Quiet,
}

impl ChangeReason {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::RingFull, Self::RingFilling, Self::LiveSetFilling, Self::Quiet];

    /// The name used in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RingFull => "ring_full",
            Self::RingFilling => "ring_filling",
            Self::LiveSetFilling => "live_set_filling",
            Self::Quiet => "quiet",
        }
    }
}
