//! Describes a profile as text, for formats that people read: what was recorded, how, what is missing, and why there may
//! be no data.

use std::collections::HashMap;

use super::{View, text};
use crate::ledger::totals::Totals;
use crate::model::{Beginning, Health, HeapProfile, HookStatus, IntervalChange, Origin, Profile, TargetProfile};
use crate::units::EstimatedBytes;

/// Marks blocks that a forked process copied from its parent.
pub(super) const INHERITED: &str = "[inherited at the fork]";

/// A process: `redis-server (pid 123)`.
pub(super) fn target(target: &TargetProfile) -> String {
    let comm = text::printable(&target.facts.comm);
    format!("{} (pid {})", if comm.is_empty() { "[no name]" } else { &comm }, target.facts.pid)
}

/// The process, or the number of processes.
pub(super) fn subject(profile: &Profile) -> String {
    match profile.targets.as_slice() {
        [] => "no process".to_owned(),
        [only] => target(only),
        several => text::counted(several.len() as u64, "process"),
    }
}

/// The sampling interval: `every allocation`, `sampled every 4 KiB`; with intervals of single heaps `every allocation (libc: sampled
/// every 64 KiB)`.
pub(super) fn interval(profile: &Profile) -> String {
    let words = |bytes: u64| match bytes {
        0 | 1 => "every allocation".to_owned(),
        bytes => format!("sampled every {}", text::round_size(bytes)),
    };
    let own = own_intervals(profile);
    let own: Vec<String> =
        own.into_iter().map(|(heap, bytes)| format!("{}: {}", text::printable(heap), words(bytes))).collect();
    let requested = match (has_common_interval(profile), own.as_slice()) {
        (_, []) => words(profile.interval_bytes),
        (true, own) => format!("{} ({})", words(profile.interval_bytes), own.join(", ")),
        (false, own) => own.join(", "),
    };
    let heaps = profile.targets.iter().flat_map(|target| &target.heaps);
    let raised = heaps.filter(|heap| heap.interval_bytes_max > heap.interval_bytes);
    match raised.map(|heap| heap.interval_bytes_max).max() {
        Some(largest) => format!("{requested}, at times every {}", text::round_size(largest)),
        None => requested,
    }
}

/// Time of the check, for a leak report: `checked on 2026-05-01T12:00:00Z`.
pub(super) fn checked_at(profile: &Profile) -> Option<String> {
    profile.unreachable.then(|| format!("checked on {}", text::moment(profile.ended_unix_ns)))
}

/// How the profile was recorded: `every allocation`, `recorded for 30s`.
pub(super) fn observed(profile: &Profile) -> Vec<String> {
    let recorded = || vec![interval(profile), format!("recorded for {}", text::duration(duration_ns(profile)))];
    checked_at(profile).map_or_else(recorded, |checked| vec![checked])
}

/// Changes of intervals by heap; heaps in the order of their first change.
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

/// `heap libc was sampled every 64 KiB at most, instead of every 4 KiB: the ring buffer was full (after 3s); every 4 KiB at the end
/// (5 changes)`.
pub(super) fn changed_interval(profile: &Profile, heap: &str, changes: &[&IntervalChange]) -> String {
    let every =
        |bytes: u64| if bytes <= 1 { "every block".to_owned() } else { format!("every {}", text::round_size(bytes)) };
    let (Some(first), Some(last)) = (changes.first(), changes.last()) else { return String::new() };
    let largest = changes.iter().map(|change| change.to_bytes).max().unwrap_or(0);
    let why = first.reason.explanation();
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

/// Heaps whose interval differs from the recording's, with that interval, without duplicates.
pub(super) fn own_intervals(profile: &Profile) -> Vec<(&str, u64)> {
    let mut own: Vec<(&str, u64)> = Vec::new();
    for heap in profile.targets.iter().flat_map(|target| &target.heaps) {
        if heap.interval_bytes != profile.interval_bytes && own.iter().all(|(name, _)| *name != heap.name) {
            own.push((&heap.name, heap.interval_bytes));
        }
    }
    own
}

/// Whether a heap has the recording's interval, or there are no heaps.
fn has_common_interval(profile: &Profile) -> bool {
    let mut heaps = profile.targets.iter().flat_map(|target| &target.heaps).peekable();
    heaps.peek().is_none() || heaps.any(|heap| heap.interval_bytes == profile.interval_bytes)
}

/// `≈ ` before numbers that are estimates.
pub(super) fn about(is_exact: bool) -> &'static str {
    if is_exact { "" } else { "≈ " }
}

/// Confidence interval of the view's total: ` (95 %: 11.1 MiB to 13.6 MiB, 812 samples)`; empty where it is exact.
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

/// The quantity of the view: `live bytes`, `live bytes older than 30s`, or for a leak report `leaked bytes`.
pub(super) fn title(profile: &Profile, view: View) -> String {
    if profile.unreachable {
        // All blocks in it leaked, live or allocated.
        return format!("leaked {}", view.unit());
    }
    match profile.older_than_ns.filter(|_| view.shows_old_blocks_only(profile)) {
        Some(age_ns) => format!("{} older than {}", view.title(), text::duration(age_ns)),
        None => view.title().to_owned(),
    }
}

/// The restriction to old blocks, if any: `of what is live at the end, blocks older than 30s only`.
pub(super) fn older(profile: &Profile) -> Option<String> {
    let age = text::duration(profile.older_than_ns?);
    Some(format!("of what is live at the end, blocks older than {age} only"))
}

/// The interval, the accuracy of live bytes, losses, and the restriction to old blocks, for formats with a single text field.
pub(super) fn taken(profile: &Profile) -> String {
    let accuracy = Some(accuracy_of_shown(profile, View::LiveBytes)).filter(|accuracy| !accuracy.is_empty());
    let accuracy = accuracy.map(|accuracy| format!("live bytes{accuracy}"));
    let words = [Some(interval(profile)), accuracy, Some(losses(profile)), older(profile)];
    words.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// Accuracy of the shown blocks; empty for old blocks, because the accuracy of their sums is unknown.
pub(super) fn accuracy_of_shown(profile: &Profile, view: View) -> String {
    if view.shows_old_blocks_only(profile) { String::new() } else { accuracy(profile, view) }
}

/// Length of the recording or its window, in nanoseconds.
pub(super) fn duration_ns(profile: &Profile) -> u64 {
    match &profile.window {
        Some(window) => window.end_unix_ns.saturating_sub(window.start_unix_ns),
        None => profile.ended_unix_ns.saturating_sub(profile.started_unix_ns),
    }
}

/// Summarizes what is missing: `no losses`, `12 events lost, 1 hook not attached`.
pub(super) fn losses(profile: &Profile) -> String {
    let lost = profile.health.lost_total();
    let missing = each_once(profile).into_iter().filter(|(_, hook)| hook.is_missing()).count() as u64;
    let lost = (lost > 0).then(|| format!("{} lost", text::counted(lost, "event")));
    let missing = (missing > 0).then(|| format!("{} not attached", text::counted(missing, "hook")));
    let unfound = profile.health.unfound.iter().filter(|hook| hook.required).count() as u64;
    let unfound = (unfound > 0).then(|| format!("{} not found", text::counted(unfound, "hook")));
    let stopped = profile.health.guardrails.stopped().then(|| "stopped by a limit".to_owned());
    let detached = profile.targets.iter().filter(|target| target.facts.detached.is_some()).count() as u64;
    let detached = (detached > 0).then(|| format!("{} detached by a limit", text::counted(detached, "process")));
    let words: Vec<String> = lost.into_iter().chain(missing).chain(unfound).chain(stopped).chain(detached).collect();
    if words.is_empty() { "no losses".to_owned() } else { words.join(", ") }
}

/// Since when the processes were profiled, and which could not be: one line per fact.
pub(super) fn beginnings(profile: &Profile) -> Vec<String> {
    let mut lines = Vec::new();
    let whole = profile.targets.iter().filter(|target| target.facts.beginning.from_first_call).count() as u64;
    let late: Vec<u64> = profile.targets.iter().filter_map(late_ns).collect();
    let several = profile.targets.len() > 1;
    match (whole, late.iter().max()) {
        (0, None) => {}
        (_, None) if !several => lines.push("recorded from its first allocation on".to_owned()),
        (_, Some(&delay)) if !several => lines.push(format!("recorded from {} after its start", text::duration(delay))),
        (_, latest) => {
            let whole =
                (whole > 0).then(|| format!("{} from the first allocation on", text::counted(whole, "process")));
            let late = latest.map(|&latest| {
                let count = text::counted(late.len() as u64, "process");
                format!("{count} from at most {} after the start", text::duration(latest))
            });
            let running =
                profile.targets.iter().filter(|target| target.facts.beginning.origin == Origin::Running).count();
            let running = (running > 0).then(|| format!("{} found running", text::counted(running as u64, "process")));
            let parts: Vec<String> = whole.into_iter().chain(late).chain(running).collect();
            lines.push(format!("recorded: {}", parts.join(", ")));
        }
    }
    let others = &profile.others;
    if others.short_lived_count > 0 {
        lines
            .push(format!("{} exited before probes were attached", text::counted(others.short_lived_count, "process")));
    }
    if let Some(first) = others.skipped.first() {
        let count = text::counted(others.skipped_count, "process");
        let command = text::printable(&first.command);
        let reason = text::printable(&first.reason);
        lines.push(format!("{count} could not be profiled, such as `{command}` (pid {}): {reason}", first.pid));
    }
    lines
}

/// Delay of the probes of a process that started during the recording, unless they were attached before its first call.
fn late_ns(target: &TargetProfile) -> Option<u64> {
    let Beginning { origin, delay_ns, from_first_call, .. } = target.facts.beginning;
    if origin == Origin::Running || from_first_call { None } else { delay_ns }
}

/// The hooks of all processes without duplicates. A hook that is missing in one process counts as missing.
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

/// Totals over all processes, including those of which only totals are kept.
pub(super) fn totals(profile: &Profile) -> Totals {
    let mut totals = profile.others.folded_totals;
    profile.targets.iter().for_each(|target| totals.add(&target.totals));
    totals
}

pub(super) fn total(profile: &Profile, view: View) -> u64 {
    view.rounded(&totals(profile))
}

/// Amount of the processes of which only totals are kept, which belongs to no stack; `None` if 0.
pub(super) fn folded(profile: &Profile, view: View) -> Option<String> {
    let amount = view.rounded(&profile.others.folded_totals);
    let about = about(profile.is_exact_of_folded());
    (amount > 0).then(|| format!("{about}{}", view.amount(amount)))
}

/// The processes of which only totals are kept: `5 processes that exited`.
pub(super) fn folded_processes(profile: &Profile) -> String {
    format!("{} that exited", text::counted(profile.others.folded_count, "process"))
}

/// Whether a stack has an amount in the view.
pub(super) fn has_stacks(profile: &Profile, view: View) -> bool {
    profile.targets.iter().flat_map(|target| &target.callsites).any(|callsite| view.of_callsite(callsite) > 0)
}

/// Why there is no data, and what would help; a sentence per line.
pub(super) fn nothing(profile: &Profile, view: View) -> Vec<String> {
    if profile.unreachable {
        return vec!["No known block was unreachable.".to_owned()];
    }
    if let Some(amount) = folded(profile, view) {
        let processes = folded_processes(profile);
        let line = format!("There are no stacks of {}: of {processes}, only totals are kept ({amount}).", view.title());
        return vec![line];
    }
    let whose = match profile.targets.as_slice() {
        [] => return vec!["Nothing was recorded: no process was profiled.".to_owned()],
        [_] => "the process",
        _ => "the processes",
    };
    if profile.hooks().all(|(_, hook)| hook.error.is_some()) {
        return vec![
            "Nothing was recorded: no allocator function could be hooked.".to_owned(),
            "`heapbpf doctor` reports what this kernel, this user and this target allow.".to_owned(),
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
        let mut lines =
            vec![format!("Nothing was recorded: {whose} allocated nothing during the recording{unsampled}.")];
        lines.extend(sampling(profile));
        lines.push("Earlier allocations are not recorded.".to_owned());
        return lines;
    }
    let allocated = View::AllocBytes.amount(total(profile, View::AllocBytes));
    vec![
        format!(
            "There are no {}: {}{allocated} were allocated during the recording, all of it freed.",
            view.title(),
            about(profile.is_exact())
        ),
        format!("The view `{}` shows what was allocated.", View::AllocBytes),
    ]
}

/// The intervals, and the options to record every block: a line for the recording, and one for each heap with its own interval.
fn sampling(profile: &Profile) -> Vec<String> {
    let line = |of: String, bytes: u64, option: String| {
        let size = text::round_size(bytes);
        (bytes > 1).then(|| format!("One block per {size}{of} is sampled on average; `{option}` records every one."))
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

pub(super) fn unattached(hook: &HookStatus) -> String {
    let why = hook.error.as_deref().map(text::printable);
    format!(
        "`{}` in `{}` is not attached: {}",
        text::printable(&hook.function),
        text::printable(&hook.module),
        why.as_deref().unwrap_or("unknown reason"),
    )
}
