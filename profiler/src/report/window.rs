//! Windows in words: the span, why it ended, and what was retained.

use super::{describe, text};
use crate::ledger::totals::Totals;
use crate::model::{Profile, Window, WindowReason};
use crate::units::EstimatedBytes;

/// Of the whole recording, the part that a profile is about: `, window 3 (10s to 20s)`, `, at the peak`; nothing where it is
/// about all of it.
pub(super) fn title(profile: &Profile) -> String {
    match &profile.window {
        None => String::new(),
        Some(Window { number: Some(number), .. }) => format!(", window {number} ({})", span(profile)),
        Some(_) => ", at the peak".to_owned(),
    }
}

/// What ended a window, its span, and what it holds: `signal, 10s to 20s, 3.1 MiB retained, +1.2 MiB`.
pub(crate) fn outcome(profile: &Profile) -> String {
    let Some(window) = &profile.window else { return String::new() };
    let retained = describe::totals(profile).live_bytes().rounded();
    let about = describe::about(profile.is_exact());
    let merged = match window.merged_count {
        0 => String::new(),
        merged => format!("; {} left out, because writing takes longer", text::counted(merged.into(), "dump")),
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

/// By how much live bytes changed: `+1.2 MiB`, `−512 B`.
pub(super) fn delta(profile: &Profile) -> String {
    let totals = describe::totals(profile);
    let delta = delta_bytes(&totals);
    let (sign, distance) =
        if delta < EstimatedBytes::ZERO { ("\u{2212}", EstimatedBytes::ZERO - delta) } else { ("+", delta) };
    format!("{sign}{}", text::size(distance.rounded()))
}

/// By how much live bytes changed.
pub(super) fn delta_bytes(totals: &Totals) -> EstimatedBytes {
    totals.alloc_bytes - totals.free_bytes
}

/// From when to when, from the beginning of the recording: `10s to 20s`; where it began at a mark, that too.
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
    fn an_outcome_says_why_when_and_how_much() {
        let mut profile = window(WindowReason::Signal);
        assert_eq!(outcome(&profile), "signal, 10s to 20s, 1.9 KiB retained, \u{2212}1.0 KiB");
        assert_eq!(title(&profile), ", window 3 (10s to 20s)");
        if let Some(window) = &mut profile.window {
            (window.since_mark, window.merged_count, window.reason) = (true, 2, WindowReason::Time);
        }
        assert_eq!(
            outcome(&profile),
            "time, from the mark at 10s to 20s, 1.9 KiB retained, \u{2212}1.0 KiB; 2 dumps left out, because writing takes longer"
        );
    }

    #[test]
    fn a_peak_is_no_span() {
        let profile = window(WindowReason::Peak);
        assert_eq!(outcome(&profile), "each process at its peak, 1.9 KiB live");
        assert_eq!(title(&profile), ", at the peak");
    }

    #[test]
    fn a_whole_recording_has_no_window() {
        let profile = Profile { window: None, ..window(WindowReason::Time) };
        assert_eq!((outcome(&profile), title(&profile)), (String::new(), String::new()));
    }
}
