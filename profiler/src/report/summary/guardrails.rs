//! Which limits were reached, in words.

use super::{PLAIN, Page, WARNING};
use crate::model::Profile;
use crate::model::guardrails::{Action, Excess, Guardrails, Reached};
use crate::report::{describe, text};

/// Times that are listed.
const REACHED_MAX: usize = 10;

impl Page {
    /// What was reached and what was done about it, and how near the others came.
    pub(super) fn guardrails(&mut self, profile: &Profile) {
        let guardrails = &profile.health.guardrails;
        for reached in guardrails.reached.iter().take(REACHED_MAX) {
            let style = if reached.action == Action::IntervalsRaised { PLAIN } else { WARNING };
            self.line(style, &format!("  {}", describe_reached(profile, reached)));
        }
        self.and_more_reached(guardrails.reached.len());
        if let (Some(highest), Some(max)) = (guardrails.memory_bytes_highest, guardrails.memory_bytes_max) {
            let (highest, max) = (text::size(highest), text::size(max));
            self.line(PLAIN, &format!("  memory: at most {highest}, kernel maps and agent, of the {max} allowed"));
        }
        self.overheads(profile, guardrails);
    }

    fn and_more_reached(&mut self, count: usize) {
        if count > REACHED_MAX {
            self.line(PLAIN, &format!("  and {} more", text::count((count - REACHED_MAX) as u64)));
        }
    }

    /// The target whose probes took most.
    fn overheads(&mut self, profile: &Profile, guardrails: &Guardrails) {
        let known = profile.targets.iter().filter_map(|target| Some((target, target.overhead?)));
        let Some((target, overhead)) = known.max_by(|(_, a), (_, b)| a.percent.total_cmp(&b.percent)) else { return };
        let most = if profile.targets.len() > 1 { ", the most of all" } else { "" };
        let max = guardrails.overhead_percent_max.map_or(String::new(), |max| format!(" ({} allowed)", percent(max)));
        let line = format!(
            "  overhead: probes took ≈ {} of the CPU time of {}{most}{max}",
            percent(overhead.percent),
            describe::target(target)
        );
        self.line(PLAIN, &line);
    }
}

/// What was reached when, and what was done.
pub(in crate::report) fn describe_reached(profile: &Profile, reached: &Reached) -> String {
    let guardrails = &profile.health.guardrails;
    let after = text::duration(reached.unix_ns.saturating_sub(profile.started_unix_ns));
    let limit = |max: Option<f64>| max.map_or(String::new(), |max| format!(", more than the {} allowed", percent(max)));
    let cause = match reached.what {
        Excess::Memory(bytes) => {
            let max = text::size(guardrails.memory_bytes_max.unwrap_or(0));
            format!("heapbpf and its kernel maps took {}, more than the {max} allowed", text::size(bytes))
        }
        Excess::Cpu(share) => {
            format!("heapbpf took {} of a core{}", percent(share), limit(guardrails.cpu_percent_max))
        }
        Excess::Overhead(pid, share) => {
            let target = profile.targets.iter().find(|target| target.pid == pid);
            let whose = target.map_or_else(|| format!("process {pid}"), describe::target);
            let limit = limit(guardrails.overhead_percent_max);
            format!("probes took ≈ {} of the CPU time of {whose}{limit}", percent(share))
        }
        Excess::Keeper => "the keeper process, which owns the probes, exited".to_owned(),
    };
    match reached.action {
        Action::Stopped => format!("stopped after {after}: {cause}"),
        Action::IntervalsRaised => format!("intervals raised after {after}: {cause}"),
        Action::Detached => {
            format!("let go after {after}: {cause}; what is said of it is of the time until then, live bytes too")
        }
    }
}

/// A percentage without more digits than it is worth.
fn percent(percent: f64) -> String {
    if percent < 10.0 { format!("{percent:.1}%") } else { format!("{percent:.0}%") }
}
