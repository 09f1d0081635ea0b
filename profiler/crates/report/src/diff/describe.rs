//! Describes a difference as text: what was compared, how, and caveats.

use heapbpf_ledger::model::{Profile, Window, WindowReason};

use super::comparison::{Delta, Diff, Program, Side, is_same_recording};
use crate::{View, describe, text};

const PROGRAMS_MAX: usize = 5;

/// Maximum relative difference of lengths that count as equal.
const LENGTH_TOLERANCE: f64 = 0.1;
pub(super) const FOLDED: &str = "[processes that exited, of which only totals are kept]";

/// An amount with its sign: `+1.5 MiB`, `-3 blocks`, `0 B`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
pub fn signed(view: View, amount: f64) -> String {
    let rounded = amount.abs().round() as u64;
    let sign = match rounded {
        0 => "",
        _ if amount < 0.0 => "-",
        _ => "+",
    };
    format!("{sign}{}", view.amount(rounded))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
pub(super) fn unsigned(view: View, amount: f64) -> String {
    view.amount(amount.round() as u64)
}

pub(super) fn range(view: View, delta: &Delta) -> Option<String> {
    let [low, high] = delta.confidence(view);
    (low < high).then(|| format!("{} to {}", signed(view, low), signed(view, high)))
}

pub(super) fn name(side: Side<'_>) -> String {
    text::printable(side.name).into_owned()
}

pub(super) fn subject(diff: &Diff<'_>) -> String {
    match diff.programs.as_slice() {
        [] => "no process".to_owned(),
        [only] => text::printable(&only.name()).into_owned(),
        several => text::counted(several.len() as u64, "program"),
    }
}

pub(super) fn side(profile: &Profile) -> String {
    [
        describe::subject(profile),
        format!("from {}", text::moment(profile.started_unix_ns)),
        span(profile),
        describe::interval(profile),
        describe::verdict(profile),
    ]
    .join(" · ")
}

fn span(profile: &Profile) -> String {
    let length = text::duration(describe::duration_ns(profile));
    match profile.window {
        Some(Window { reason: WindowReason::Peak, .. }) => "at its peak".to_owned(),
        Some(Window { number: Some(number), .. }) => format!("window {number} of {length}"),
        Some(_) => format!("window of {length}"),
        None => format!("recorded for {length}"),
    }
}

pub(super) fn notes(diff: &Diff<'_>, view: View) -> Vec<String> {
    let (before, after) = (diff.before.profile, diff.after.profile);
    let mut notes = Vec::new();
    if before.ended_unix_ns > after.ended_unix_ns {
        notes.push(format!("`{}` ended before `{}` did: are they in this order?", name(diff.after), name(diff.before)));
    }
    if is_same_recording(before, after) && !diff.is_exact() {
        notes.push(
            "both are of one recording: blocks in both were sampled once, so the growth is more accurate than its 95 % interval"
                .to_owned(),
        );
    }
    if describe::interval(before) != describe::interval(after) {
        notes.push(format!(
            "before: {}, after: {}; both are unbiased, the larger interval is less accurate",
            describe::interval(before),
            describe::interval(after)
        ));
    }
    if !view.is_live() && differ_in_length(before, after) {
        notes.push(format!(
            "before: {}, after: {}; the longer one has more allocations for that reason alone",
            span(before),
            span(after)
        ));
    }
    if before.window.is_some() != after.window.is_some() {
        notes.push(
            "one is a window, the other a whole recording: allocations are of each one's own span, live blocks are at its end"
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
    notes
}

#[expect(clippy::cast_precision_loss, reason = "for a comparison")]
fn differ_in_length(before: &Profile, after: &Profile) -> bool {
    let [a, b] = [before, after].map(|profile| describe::duration_ns(profile) as f64);
    (a - b).abs() > LENGTH_TOLERANCE * a.max(b)
}

fn alone(programs: &[Program], side: usize, when: &str) -> Option<String> {
    let names = programs.iter().filter(|program| program.targets[1 - side] == 0);
    let names: Vec<String> = names.map(|program| text::printable(&program.name()).into_owned()).collect();
    let more = names.len().saturating_sub(PROGRAMS_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let shown = &names[..names.len().min(PROGRAMS_MAX)];
    (!names.is_empty()).then(|| format!("only {when}: {}{more}", shown.join(", ")))
}

pub(super) fn losses(diff: &Diff<'_>) -> Vec<String> {
    [("before", diff.before.profile), ("after", diff.after.profile)]
        .into_iter()
        .filter(|(_, profile)| profile.incomplete())
        .map(|(when, profile)| format!("{when}: {}", describe::verdict(profile)))
        .collect()
}

pub(super) fn nothing(diff: &Diff<'_>, view: View) -> String {
    if diff.callsites.iter().any(|callsite| !callsite.delta.is_zero(view)) {
        return format!("No callsite has more or fewer {} than before.", view.title());
    }
    format!("There are no {} in either profile.", view.title())
}
