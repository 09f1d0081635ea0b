//! A profile in words: what was watched, how, what is missing, and why there may be nothing to see.
//!
//! Shared by the reports that people read.

use std::collections::HashMap;

use super::{View, text};
use crate::ledger::totals::Totals;
use crate::model::{
    Beginning, ChangeReason, Health, HeapProfile, HookStatus, IntervalChange, Origin, Profile, TargetProfile,
};
use crate::units::EstimatedBytes;

/// What marks a forked process's copies of its parent's blocks.
pub(super) const INHERITED: &str = "[inherited at the fork]";

/// A process: `redis-server (pid 123)`.
pub(super) fn target(target: &TargetProfile) -> String {
    let comm = text::printable(&target.comm);
    format!("{} (pid {})", if comm.is_empty() { "[no name]" } else { &comm }, target.pid)
}

/// What was watched: the process, or how many.
pub(super) fn subject(profile: &Profile) -> String {
    match profile.targets.as_slice() {
        [] => "no process".to_owned(),
        [only] => target(only),
        several => text::counted(several.len() as u64, "process"),
    }
}

/// How much was looked at: `every allocation`, `sampled every 4 KiB`; of heaps with an interval of their own apart:
/// `every allocation (libc: sampled every 64 KiB)`.
pub(super) fn interval(profile: &Profile) -> String {
    let words = |bytes: u64| match bytes {
        0 | 1 => "every allocation".to_owned(),
        bytes => format!("sampled every {}", text::round_size(bytes)),
    };
    let own = own_intervals(profile);
    let own: Vec<String> =
        own.into_iter().map(|(heap, bytes)| format!("{}: {}", text::printable(heap), words(bytes))).collect();
    let asked = match (has_common_interval(profile), own.as_slice()) {
        (_, []) => words(profile.interval_bytes),
        (true, own) => format!("{} ({})", words(profile.interval_bytes), own.join(", ")),
        (false, own) => own.join(", "),
    };
    let heaps = profile.targets.iter().flat_map(|target| &target.heaps);
    let raised = heaps.filter(|heap| heap.interval_bytes_max > heap.interval_bytes);
    match raised.map(|heap| heap.interval_bytes_max).max() {
        Some(largest) => format!("{asked}, at times every {}", text::round_size(largest)),
        None => asked,
    }
}

/// When an inspection for leaks was, which watches nothing or not for long: `looked at on 2026-05-01T12:00:00Z`.
pub(super) fn looked(profile: &Profile) -> Option<String> {
    profile.unreachable.then(|| format!("looked at on {}", text::moment(profile.ended_unix_ns)))
}

/// How it came to be known: `every allocation`, `watched for 30s`.
pub(super) fn observed(profile: &Profile) -> Vec<String> {
    let watched = || vec![interval(profile), format!("watched for {}", text::duration(duration_ns(profile)))];
    looked(profile).map_or_else(watched, |looked| vec![looked])
}

/// Changes of intervals by heap, heaps in the order in which theirs first changed.
pub(super) fn interval_changes(health: &Health) -> Vec<(&str, Vec<&IntervalChange>)> {
    let mut heaps: Vec<(&str, Vec<&IntervalChange>)> = Vec::new();
    for change in &health.interval_changes {
        match heaps.iter_mut().find(|(heap, _)| *heap == change.heap) {
            Some((_, changes)) => changes.push(change),
            None => heaps.push((&change.heap, vec![change])),
        }
    }
    heaps
}

/// `heap libc was sampled every 64 KiB at most, instead of every 4 KiB: the ring was more than half full (after 3s); every 4 KiB at
/// the end (5 changes)`.
pub(super) fn changed_interval(profile: &Profile, heap: &str, changes: &[&IntervalChange]) -> String {
    let every =
        |bytes: u64| if bytes <= 1 { "every block".to_owned() } else { format!("every {}", text::round_size(bytes)) };
    let (Some(first), Some(last)) = (changes.first(), changes.last()) else { return String::new() };
    let largest = changes.iter().map(|change| change.to_bytes).max().unwrap_or(0);
    let why = match first.reason {
        ChangeReason::RingFull => "more was sampled than the ring has room for",
        ChangeReason::RingFilling => "the ring was more than half full",
        ChangeReason::LiveSetFilling => "the live set was nearly full",
        ChangeReason::Quiet => "it has been quiet",
    };
    let after = text::duration(first.unix_ns.saturating_sub(profile.started_unix_ns));
    format!(
        "heap {} was sampled {} at most instead of {}: {why} (after {after}); {} at the end ({})",
        text::printable(heap),
        every(largest),
        every(first.from_bytes),
        every(last.to_bytes),
        text::counted(changes.len() as u64, "change"),
    )
}

/// The heaps that do not have the recording's interval, each once, with theirs.
pub(super) fn own_intervals(profile: &Profile) -> Vec<(&str, u64)> {
    let mut own: Vec<(&str, u64)> = Vec::new();
    for heap in profile.targets.iter().flat_map(|target| &target.heaps) {
        if heap.interval_bytes != profile.interval_bytes && own.iter().all(|(name, _)| *name != heap.name) {
            own.push((&heap.name, heap.interval_bytes));
        }
    }
    own
}

/// Whether some heap has the recording's interval, or would have it if there were any.
fn has_common_interval(profile: &Profile) -> bool {
    let mut heaps = profile.targets.iter().flat_map(|target| &target.heaps).peekable();
    heaps.peek().is_none() || heaps.any(|heap| heap.interval_bytes == profile.interval_bytes)
}

/// `≈ ` before numbers that are estimates.
pub(super) fn about(is_exact: bool) -> &'static str {
    if is_exact { "" } else { "≈ " }
}

/// Between what the view's total lies: ` (95 %: 11.1 MiB to 13.6 MiB, 812 samples)`; nothing where it is exact.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "confidence intervals do not reach below 0"
)]
pub(super) fn accuracy(profile: &Profile, view: View) -> String {
    let totals = totals(profile);
    // Leaked blocks are counted, not estimated.
    if profile.unreachable || profile.is_exact() || view.samples(&totals) == 0 {
        return String::new();
    }
    let [low, high] = view.confidence(&totals).map(|end| view.amount(end.round() as u64));
    format!(" (95 %: {low} to {high}, {})", text::counted(view.samples(&totals), "sample"))
}

/// What the view shows: `live bytes`, of old blocks alone `live bytes older than 30s`, of unreachable ones `leaked bytes`.
pub(super) fn title(profile: &Profile, view: View) -> String {
    if profile.unreachable {
        // All that is in it leaked, live or allocated.
        return format!("leaked {}", view.unit());
    }
    match profile.older_than_ns.filter(|_| view.shows_old_blocks_only(profile)) {
        Some(age_ns) => format!("{} older than {}", view.title(), text::duration(age_ns)),
        None => view.title().to_owned(),
    }
}

/// What is left out of live blocks, where young ones are: `of what is live at the end, blocks older than 30s only`.
pub(super) fn older(profile: &Profile) -> Option<String> {
    let age = text::duration(profile.older_than_ns?);
    Some(format!("of what is live at the end, blocks older than {age} only"))
}

/// How it was taken and what is missing, for formats with one place for words: the interval, the accuracy of live bytes, losses,
/// and what is left out.
pub(super) fn taken(profile: &Profile) -> String {
    let accuracy = Some(accuracy_of_shown(profile, View::LiveBytes)).filter(|accuracy| !accuracy.is_empty());
    let accuracy = accuracy.map(|accuracy| format!("live bytes{accuracy}"));
    let words = [Some(interval(profile)), accuracy, Some(losses(profile)), older(profile)];
    words.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// Accuracy of what is shown and not of all: how accurate sums of old blocks are is not known, so of these nothing is said.
pub(super) fn accuracy_of_shown(profile: &Profile, view: View) -> String {
    if view.shows_old_blocks_only(profile) { String::new() } else { accuracy(profile, view) }
}

/// How long was watched, in nanoseconds.
pub(super) fn duration_ns(profile: &Profile) -> u64 {
    match &profile.window {
        Some(window) => window.end_unix_ns.saturating_sub(window.start_unix_ns),
        None => profile.ended_unix_ns.saturating_sub(profile.started_unix_ns),
    }
}

/// What was lost, in a few words: `no losses`, `12 events lost, 1 hook not attached`.
pub(super) fn losses(profile: &Profile) -> String {
    let lost = profile.health.lost_total();
    let missing = each_once(profile).into_iter().filter(|(_, hook)| hook.is_missing()).count() as u64;
    let lost = (lost > 0).then(|| format!("{} lost", text::counted(lost, "event")));
    let missing = (missing > 0).then(|| format!("{} not attached", text::counted(missing, "hook")));
    let unfound = profile.health.unfound.iter().filter(|hook| hook.required).count() as u64;
    let unfound = (unfound > 0).then(|| format!("{} not found", text::counted(unfound, "hook")));
    let stopped = profile.health.guardrails.stopped().then(|| "stopped by a limit".to_owned());
    let let_go = profile.targets.iter().filter(|target| target.detached.is_some()).count() as u64;
    let let_go = (let_go > 0).then(|| format!("{} let go by a limit", text::counted(let_go, "process")));
    let words: Vec<String> = lost.into_iter().chain(missing).chain(unfound).chain(stopped).chain(let_go).collect();
    if words.is_empty() { "no losses".to_owned() } else { words.join(", ") }
}

/// Since when the processes were watched, and which were not: a line per fact worth telling.
pub(super) fn beginnings(profile: &Profile) -> Vec<String> {
    let mut lines = Vec::new();
    let whole = profile.targets.iter().filter(|target| target.beginning.from_first_call).count() as u64;
    let late: Vec<u64> = profile.targets.iter().filter_map(late_ns).collect();
    let several = profile.targets.len() > 1;
    match (whole, late.iter().max()) {
        (0, None) => {}
        (_, None) if !several => lines.push("watched from its first allocation on".to_owned()),
        (_, Some(&delay)) if !several => lines.push(format!("watched from {} after it began", text::duration(delay))),
        (_, latest) => {
            let whole =
                (whole > 0).then(|| format!("{} from the first allocation on", text::counted(whole, "process")));
            let late = latest.map(|&latest| {
                let count = text::counted(late.len() as u64, "process");
                format!("{count} from at most {} after the beginning", text::duration(latest))
            });
            let running = profile.targets.iter().filter(|target| target.beginning.origin == Origin::Running).count();
            let running = (running > 0).then(|| format!("{} found running", text::counted(running as u64, "process")));
            let parts: Vec<String> = whole.into_iter().chain(late).chain(running).collect();
            lines.push(format!("watched: {}", parts.join(", ")));
        }
    }
    let others = &profile.others;
    if others.short_lived_count > 0 {
        lines.push(format!("{} ended before being watched", text::counted(others.short_lived_count, "process")));
    }
    if let Some(first) = others.skipped.first() {
        let count = text::counted(others.skipped_count, "process");
        let command = text::printable(&first.command);
        let reason = text::printable(&first.reason);
        lines.push(format!("{count} could not be profiled, such as `{command}` (pid {}): {reason}", first.pid));
    }
    lines
}

/// How late a process was that was made while recording and not seen from its first call on.
fn late_ns(target: &TargetProfile) -> Option<u64> {
    let Beginning { origin, delay_ns, from_first_call, .. } = target.beginning;
    if origin == Origin::Running || from_first_call { None } else { delay_ns }
}

/// The hooks of all processes: what several have in common, once, and as missing where it is missing in one of them.
pub(super) fn each_once(profile: &Profile) -> Vec<(&HeapProfile, &HookStatus)> {
    let mut places = HashMap::new();
    let mut hooks = Vec::new();
    for (heap, hook) in profile.hooks() {
        let key = (&*heap.name, &*hook.module, &*hook.function, hook.error.as_deref());
        let place = *places.entry(key).or_insert(hooks.len());
        if place == hooks.len() {
            hooks.push((heap, hook));
        } else if hook.is_missing() {
            hooks[place] = (heap, hook);
        }
    }
    hooks
}

/// Of all processes together, also of those that are kept as sums alone.
pub(super) fn totals(profile: &Profile) -> Totals {
    let mut totals = profile.others.folded_totals;
    profile.targets.iter().for_each(|target| totals.add(&target.totals));
    totals
}

/// The view's quantity over all processes.
pub(super) fn total(profile: &Profile, view: View) -> u64 {
    view.rounded(&totals(profile))
}

/// What of the view's quantity is of processes that are kept as sums alone, and so of no stack; `None` where there is none.
pub(super) fn folded(profile: &Profile, view: View) -> Option<String> {
    let amount = view.rounded(&profile.others.folded_totals);
    let about = about(profile.is_exact_of_folded());
    (amount > 0).then(|| format!("{about}{}", view.amount(amount)))
}

/// Those that are kept as sums alone: `5 processes that exited`.
pub(super) fn folded_processes(profile: &Profile) -> String {
    format!("{} that exited", text::counted(profile.others.folded_count, "process"))
}

/// Whether there is a stack with something of the view's quantity.
pub(super) fn has_stacks(profile: &Profile, view: View) -> bool {
    profile.targets.iter().flat_map(|target| &target.callsites).any(|callsite| view.of_callsite(callsite) > 0)
}

/// Why there is nothing to show, and what would help; a sentence per line.
pub(super) fn nothing(profile: &Profile, view: View) -> Vec<String> {
    if profile.unreachable {
        return vec!["No known block was unreachable.".to_owned()];
    }
    if let Some(amount) = folded(profile, view) {
        let processes = folded_processes(profile);
        let line = format!("There are no stacks of {}: of {processes}, sums alone are kept ({amount}).", view.title());
        return vec![line];
    }
    let (whose, it) = match profile.targets.as_slice() {
        [] => return vec!["Nothing was recorded: no process was watched.".to_owned()],
        [_] => ("the process", "it was"),
        _ => ("the processes", "they were"),
    };
    if profile.hooks().all(|(_, hook)| hook.error.is_some()) {
        return vec![
            "Nothing was recorded: no allocator function could be watched.".to_owned(),
            "`heapbpf doctor` tells what this kernel, this user and this target allow.".to_owned(),
        ];
    }
    let freed = totals(profile).free_bytes;
    if profile.window.is_some() && total(profile, View::AllocCount) == 0 && freed > EstimatedBytes::ZERO {
        let freed = View::LiveBytes.amount(freed.rounded());
        let about = about(profile.is_exact());
        return vec![format!(
            "There are no {}: {about}{freed} were freed in this window, and nothing allocated.",
            view.title()
        )];
    }
    if total(profile, View::AllocCount) == 0 {
        let unsampled = if profile.is_exact() { "" } else { ", or too little to be sampled" };
        let mut lines = vec![format!("Nothing was recorded: {whose} allocated nothing while {it} watched{unsampled}.")];
        lines.extend(sampling(profile));
        lines.push("What was allocated before is not seen.".to_owned());
        return lines;
    }
    let allocated = View::AllocBytes.amount(total(profile, View::AllocBytes));
    vec![
        format!(
            "There are no {}: {}{allocated} were allocated while {it} watched, all of it freed.",
            view.title(),
            about(profile.is_exact())
        ),
        format!("The view `{}` shows what was allocated.", View::AllocBytes),
    ]
}

/// How few blocks are taken, and what takes all: a line for the recording, and one for each heap with its own interval.
fn sampling(profile: &Profile) -> Vec<String> {
    let line = |of: String, bytes: u64, option: String| {
        let size = text::round_size(bytes);
        (bytes > 1).then(|| format!("One block per {size}{of} is sampled on average; `{option}` takes every one."))
    };
    let common = has_common_interval(profile)
        .then(|| line(String::new(), profile.interval_bytes, "--interval 1".to_owned()))
        .flatten();
    let own = own_intervals(profile).into_iter().filter_map(|(heap, bytes)| {
        let heap = text::printable(heap);
        line(format!(" of heap {heap}"), bytes, format!("--heap-interval {heap}=1"))
    });
    common.into_iter().chain(own).collect()
}

/// A hook that is not attached, and why.
pub(super) fn unattached(hook: &HookStatus) -> String {
    let why = hook.error.as_deref().map(text::printable);
    format!(
        "`{}` in `{}` is not attached: {}",
        text::printable(&hook.function),
        text::printable(&hook.module),
        why.as_deref().unwrap_or("the reason is not known"),
    )
}
