//! A difference in words: what was compared, how, and what must be known to read it.

use super::{Change, Diff, Program, Side, is_same_recording};
use crate::model::{Profile, Window, WindowReason};
use crate::report::{View, describe, text};

/// Programs of one profile that are named.
const PROGRAMS_MAX: usize = 5;

/// Recordings whose lengths differ by more than this part are not taken to be equally long.
const LENGTH_TOLERANCE: f64 = 0.1;

/// What sums of ended processes are called where stacks are listed.
pub(super) const FOLDED: &str = "[processes that exited, of which sums alone are kept]";

/// An amount with its sign: `+1.5 MiB`, `-3 blocks`, `0 B`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
pub(super) fn signed(view: View, amount: f64) -> String {
    let rounded = amount.abs().round() as u64;
    let sign = match rounded {
        0 => "",
        _ if amount < 0.0 => "-",
        _ => "+",
    };
    format!("{sign}{}", view.amount(rounded))
}

/// An amount: `1.5 MiB`, `3 blocks`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
pub(super) fn unsigned(view: View, amount: f64) -> String {
    view.amount(amount.round() as u64)
}

/// Between what the growth lies: `+1.0 MiB to +1.5 MiB`; nothing where it is exact.
pub(super) fn range(view: View, change: &Change) -> Option<String> {
    let [low, high] = change.confidence(view);
    (low < high).then(|| format!("{} to {}", signed(view, low), signed(view, high)))
}

/// The name of a file, safe to print.
pub(super) fn name(side: Side<'_>) -> String {
    text::printable(side.name).into_owned()
}

/// What was compared: the program, or how many.
pub(super) fn subject(diff: &Diff<'_>) -> String {
    match diff.programs.as_slice() {
        [] => "no process".to_owned(),
        [only] => text::printable(&only.name()).into_owned(),
        several => text::counted(several.len() as u64, "program"),
    }
}

/// How a profile was made: `app (pid 900) · from … · watched for 30.5s · sampled every 4 KiB · no losses`.
pub(super) fn side(profile: &Profile) -> String {
    [
        describe::subject(profile),
        format!("from {}", text::moment(profile.started_unix_ns)),
        span(profile),
        describe::interval(profile),
        describe::losses(profile),
    ]
    .join(" · ")
}

/// How long a profile is about: `watched for 30.5s`, `window of 10s`.
fn span(profile: &Profile) -> String {
    let length = text::duration(length_ns(profile));
    match profile.window {
        Some(Window { reason: WindowReason::Peak, .. }) => "at its peak".to_owned(),
        Some(Window { number: Some(number), .. }) => format!("window {number} of {length}"),
        Some(_) => format!("window of {length}"),
        None => format!("watched for {length}"),
    }
}

/// In nanoseconds.
fn length_ns(profile: &Profile) -> u64 {
    match &profile.window {
        Some(window) => window.end_unix_ns.saturating_sub(window.start_unix_ns),
        None => describe::duration_ns(profile),
    }
}

/// What must be known to read the difference, a line per fact.
pub(super) fn notes(diff: &Diff<'_>, view: View) -> Vec<String> {
    let (before, after) = (diff.before.profile, diff.after.profile);
    let mut notes = Vec::new();
    if before.ended_unix_ns > after.ended_unix_ns {
        notes.push(format!("`{}` ended before `{}` did: are they in this order?", name(diff.after), name(diff.before)));
    }
    if is_same_recording(before, after) {
        notes.push(
            "both are of one recording: what is in both was drawn once, so the growth is surer than its 95 % interval says"
                .to_owned(),
        );
    }
    if describe::interval(before) != describe::interval(after) {
        notes.push(format!(
            "before: {}, after: {}; both are unbiased, the rarer samples are less sure",
            describe::interval(before),
            describe::interval(after)
        ));
    }
    let allocated = matches!(view, View::AllocBytes | View::AllocCount);
    if allocated && differ_in_length(before, after) {
        notes.push(format!(
            "before: {}, after: {}; in the longer one more was allocated for that alone",
            span(before),
            span(after)
        ));
    }
    if before.window.is_some() != after.window.is_some() {
        notes.push(
            "one is a window, the other a whole recording: allocated is of each one's own span, live is at its end"
                .to_owned(),
        );
    }
    if let [Program { names: [Some(before), Some(after)], .. }] = diff.programs.as_slice()
        && before != after
    {
        let (before, after) = (text::printable(before), text::printable(after));
        notes.push(format!("compared as one program: {before} before, {after} after"));
    }
    notes.extend(alone(&diff.programs, 0, "before"));
    notes.extend(alone(&diff.programs, 1, "after"));
    if diff.is_exact() {
        notes.retain(|note| !note.starts_with("both are of one"));
    }
    notes
}

#[expect(clippy::cast_precision_loss, reason = "for a comparison")]
fn differ_in_length(before: &Profile, after: &Profile) -> bool {
    let [a, b] = [before, after].map(|profile| length_ns(profile) as f64);
    (a - b).abs() > LENGTH_TOLERANCE * a.max(b)
}

/// Programs that only one of the profiles has.
fn alone(programs: &[Program], side: usize, when: &str) -> Option<String> {
    let names = programs.iter().filter(|program| program.targets[1 - side] == 0);
    let names: Vec<String> = names.map(|program| text::printable(&program.name()).into_owned()).collect();
    let more = names.len().saturating_sub(PROGRAMS_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let shown = &names[..names.len().min(PROGRAMS_MAX)];
    (!names.is_empty()).then(|| format!("only {when}: {}{more}", shown.join(", ")))
}

/// Which of the two misses something: `before: 12 events lost`.
pub(super) fn losses(diff: &Diff<'_>) -> Vec<String> {
    [("before", diff.before.profile), ("after", diff.after.profile)]
        .into_iter()
        .filter(|(_, profile)| profile.incomplete())
        .map(|(when, profile)| format!("{when}: {}", describe::losses(profile)))
        .collect()
}

/// Why no callsite is shown.
pub(super) fn nothing(diff: &Diff<'_>, view: View) -> String {
    if diff.callsites.iter().any(|callsite| !callsite.change.is_nothing(view)) {
        return format!("No callsite has more or fewer {} than before.", view.title());
    }
    format!("There are no {} in either profile.", view.title())
}
