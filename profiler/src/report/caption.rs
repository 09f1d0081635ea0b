//! Facts that formats show beside the data: what a profile is of, how it was recorded, how exact it is, and what is missing.

use super::presentation::View;
use super::{describe, window};
use crate::model::Profile;

/// The facts for one view.
pub(super) struct Caption {
    /// Name of the quantity: `live bytes`.
    pub(super) title: String,
    /// Process and window: `redis (pid 12), window 3 (10s to 20s)`.
    pub(super) subject: String,
    /// Total of all processes: `≈ 12.3 MiB (95 %: …)`.
    pub(super) total: String,
    pub(super) interval: String,
    pub(super) losses: String,
    /// The part of the total that belongs to no stack: `1.2 MiB of 5 processes that exited`.
    pub(super) left_out: Option<String>,
}

impl Caption {
    pub(super) fn new(profile: &Profile, view: View) -> Self {
        let left_out = describe::folded(profile, view);
        Self {
            title: describe::title(profile, view),
            subject: describe::subject(profile) + &window::title(profile),
            total: total(profile, view),
            interval: describe::interval(profile),
            losses: describe::losses(profile),
            left_out: left_out.map(|amount| format!("{amount} of {}", describe::folded_processes(profile))),
        }
    }
}

/// Total of all processes with its confidence interval: `≈ 12.3 MiB (95 %: …)`.
pub(super) fn total(profile: &Profile, view: View) -> String {
    let amount = view.amount(describe::total(profile, view));
    format!("{}{amount}{}", describe::about(profile.is_exact()), describe::accuracy(profile, view))
}

/// Command of the only process, or the number of processes.
pub(super) fn command(profile: &Profile) -> String {
    match profile.targets.as_slice() {
        [target] => target.facts.command.clone(),
        _ => describe::subject(profile),
    }
}

/// Start of the profile, or of its window, in nanoseconds since the Unix epoch.
pub(super) fn start_unix_ns(profile: &Profile) -> u64 {
    profile.window.map_or(profile.started_unix_ns, |window| window.start_unix_ns)
}

/// End of the profile, or of its window; not before the start.
pub(super) fn end_unix_ns(profile: &Profile) -> u64 {
    profile.window.map_or(profile.ended_unix_ns, |window| window.end_unix_ns).max(start_unix_ns(profile))
}
