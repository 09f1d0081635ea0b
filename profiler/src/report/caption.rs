//! Facts that formats show beside the data: what a profile is of, how it was recorded, how exact it is, and what
//! is missing.

use super::presentation::View;
use super::{describe, text};
use crate::model::{Profile, Window, WindowReason};
use crate::units::EstimatedBytes;

pub(super) use describe::total;

pub(super) struct Caption {
    pub(super) title: String,
    pub(super) subject: String,
    /// The part of the recording that the profile covers: `, window 3 (10s to 20s)`, `, at the peak`; empty for all of it.
    pub(super) window: String,
    pub(super) total: String,
    pub(super) interval: String,
    pub(super) losses: String,
    /// The part of the total that belongs to no stack: `1.2 MiB of 5 processes that exited`.
    pub(super) left_out: Option<String>,
}

impl Caption {
    pub(super) fn new(profile: &Profile, view: View) -> Self {
        let window = match &profile.window {
            None => String::new(),
            Some(Window { number: Some(number), .. }) => format!(", window {number} ({})", span(profile)),
            Some(_) => ", at the peak".to_owned(),
        };
        let others = &profile.others;
        let left_out = if others.folded_count > 0 { describe::folded(profile, view) } else { None };
        Self {
            title: describe::title(profile, view),
            subject: describe::subject(profile) + &window,
            window,
            total: total(profile, view),
            interval: describe::interval(profile),
            losses: describe::losses(profile),
            left_out: left_out.map(|amount| format!("{amount} of {}", describe::folded_processes(profile))),
        }
    }
}

/// Command of the only process, or the number of processes.
pub(super) fn command(profile: &Profile) -> String {
    match profile.targets.as_slice() {
        [target] => target.facts.command.clone(),
        _ => describe::subject(profile),
    }
}

pub(super) fn start_unix_ns(profile: &Profile) -> u64 {
    profile.window.map_or(profile.started_unix_ns, |window| window.start_unix_ns)
}

pub(super) fn end_unix_ns(profile: &Profile) -> u64 {
    profile.window.map_or(profile.ended_unix_ns, |window| window.end_unix_ns).max(start_unix_ns(profile))
}

/// `signal, 10s to 20s, 3.1 MiB retained, +1.2 MiB`
pub(crate) fn outcome(profile: &Profile) -> String {
    let Some(window) = &profile.window else { return String::new() };
    let retained = describe::totals(profile).live_bytes().rounded();
    let about = describe::about(profile.is_exact());
    let merged = match window.merged_count {
        0 => String::new(),
        merged => format!("; {} skipped because writing was too slow", text::counted(merged.into(), "dump")),
    };
    if window.reason == WindowReason::Peak {
        return format!("each process at its peak, {about}{} live", text::size(retained));
    }
    format!(
        "{}, {}, {about}{} retained, {}{merged}",
        window.reason.name(),
        span(profile),
        text::size(retained),
        delta(profile)
    )
}

pub(super) fn delta(profile: &Profile) -> String {
    let delta = describe::totals(profile).delta_bytes();
    let (sign, distance) =
        if delta < EstimatedBytes::ZERO { ("\u{2212}", EstimatedBytes::ZERO - delta) } else { ("+", delta) };
    format!("{sign}{}", text::size(distance.rounded()))
}

fn span(profile: &Profile) -> String {
    let Some(window) = &profile.window else { return String::new() };
    let after = |unix_ns: u64| text::duration(unix_ns.saturating_sub(profile.started_unix_ns));
    let from = if window.since_mark { "from the mark at " } else { "" };
    format!("{from}{} to {}", after(window.start_unix_ns), after(window.end_unix_ns))
}

#[cfg(test)]
mod tests {
    use super::super::tests::profiles;
    use super::*;
    use crate::ledger::totals::Totals;
    use crate::units::EstimatedCount;

    fn window(reason: WindowReason) -> Profile {
        let mut profile = profiles::exact();
        let second = |seconds: u64| profile.started_unix_ns + seconds * 1_000_000_000;
        profile.window = Some(Window {
            number: (reason != WindowReason::Peak).then_some(3),
            reason,
            start_unix_ns: second(10),
            since_mark: false,
            end_unix_ns: second(20),
            merged_count: 0,
        });
        profile.targets.truncate(1);
        profile.targets[0].totals = Totals {
            opening_bytes: EstimatedBytes::exact(3000),
            opening_count: EstimatedCount::exact(3),
            alloc_bytes: EstimatedBytes::exact(1000),
            free_bytes: EstimatedBytes::exact(2024),
            ..Totals::default()
        };
        profile.interval_bytes = 1;
        profile.targets[0].heaps.iter_mut().for_each(|heap| heap.interval_bytes = 1);
        profile
    }

    #[test]
    fn an_outcome_has_reason_span_and_amount() {
        let mut profile = window(WindowReason::Signal);
        assert_eq!(outcome(&profile), "signal, 10s to 20s, 1.9 KiB retained, \u{2212}1.0 KiB");
        assert_eq!(Caption::new(&profile, View::LiveBytes).window, ", window 3 (10s to 20s)");
        if let Some(window) = &mut profile.window {
            (window.since_mark, window.merged_count, window.reason) = (true, 2, WindowReason::Time);
        }
        assert_eq!(
            outcome(&profile),
            "time, from the mark at 10s to 20s, 1.9 KiB retained, \u{2212}1.0 KiB; 2 dumps skipped because writing was too slow"
        );
    }

    #[test]
    fn a_peak_has_no_span() {
        let profile = window(WindowReason::Peak);
        assert_eq!(outcome(&profile), "each process at its peak, 1.9 KiB live");
        assert_eq!(Caption::new(&profile, View::LiveBytes).window, ", at the peak");
    }

    #[test]
    fn a_whole_recording_has_no_window() {
        let profile = Profile { window: None, ..window(WindowReason::Time) };
        assert_eq!((outcome(&profile), Caption::new(&profile, View::LiveBytes).window), (String::new(), String::new()));
    }
}
