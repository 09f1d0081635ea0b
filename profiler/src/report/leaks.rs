//! Callsites that grow, with what makes them suspect: values for reports.

use super::profile::{CallsiteProfile, Profile};
use super::suppressions::Suppressions;
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

impl Profile {
    /// Leaves callsites out of the candidates that a suppression matches, and counts them.
    pub fn suppress(&mut self, suppressions: &Suppressions) {
        if suppressions.is_empty() {
            return;
        }
        let Self { targets, frames, .. } = self;
        for target in targets {
            let Some(leaks) = &mut target.leaks else { continue };
            let callsites: &[CallsiteProfile] = &target.callsites;
            let is_suppressed = |candidate: &LeakCandidate| {
                let stack = callsites.get(candidate.callsite).map_or(&[][..], |callsite| &callsite.stack);
                stack.iter().any(|frame| suppressions.matches(&frames[frame.0 as usize]))
            };
            let (suppressed, kept) = leaks.candidates.iter().copied().partition(is_suppressed);
            leaks.candidates = kept;
            let suppressed: Vec<LeakCandidate> = suppressed;
            leaks.suppressed_count += suppressed.len() as u64;
            let live = |candidate: &LeakCandidate| callsites[candidate.callsite].totals.live_bytes();
            leaks.suppressed_bytes += suppressed.iter().map(live).sum();
        }
    }
}
