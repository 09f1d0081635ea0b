//! Callsites that grow: leak candidates.

use crate::units::EstimatedBytes;

/// What is known of a target's growth.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Leaks {
    /// Nanoseconds that were looked at.
    pub span_ns: u64,
    /// The recording was too short to say anything.
    pub too_short: bool,
    /// Those that grow, the worst first.
    pub candidates: Vec<LeakCandidate>,
    /// How many grow, those that are not listed and those that are suppressed included.
    pub count: usize,
    /// Those that are left out because a suppression matches them.
    pub suppressed_count: u64,
    /// What those hold.
    pub suppressed_bytes: EstimatedBytes,
}

/// A callsite that grows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeakCandidate {
    /// Index into the target's callsites.
    pub callsite: usize,
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// How far off that may be (95 %).
    pub margin: f64,
    /// Of its live bytes, those that are older than half of the recording: a share from 0 to 1.
    pub old_share: f64,
    /// Of the blocks that it made in the first half, those that are live: a share from 0 to 1; `None` when there were none.
    pub survival: Option<f64>,
    /// What it is ranked by, in bytes a second.
    pub score: f64,
}
