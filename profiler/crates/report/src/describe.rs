//! Describes a profile as text, for formats that people read: what was recorded, how, what is missing, and why
//! there may be no data.

use std::collections::HashMap;

use heapbpf_base::units::EstimatedBytes;
use heapbpf_ledger::model::{
    Defect, End, Finding, Health, HeapProfile, HookStatus, InlinedHeap, Loss, Origin, Profile, TargetProfile, Window,
    WindowReason,
};
use heapbpf_ledger::totals::Totals;

use super::cuts::cuts;
use super::{View, languages, text};

/// The stack of processes of which only totals are kept.
pub(super) const FOLDED: &str = "[processes that exited, only totals kept]";

pub(super) const INHERITED: &str = "[inherited at the fork]";

pub(crate) fn target(target: &TargetProfile) -> String {
    let comm = text::printable(&target.facts.comm);
    format!("{} (pid {})", if comm.is_empty() { "[no name]" } else { &comm }, target.facts.pid)
}

/// For the beginning of a line, which would be taken for one of heapbpf's messages if a name began it.
pub fn process(target: &TargetProfile) -> String {
    let comm = text::printable(&target.facts.comm);
    format!("process {} ({})", target.facts.pid, if comm.is_empty() { "[no name]" } else { &comm })
}

pub(super) fn subject(profile: &Profile) -> String {
    match profile.targets.as_slice() {
        [] => "no process".to_owned(),
        [only] => target(only),
        several => text::counted(several.len() as u64, "process"),
    }
}

/// `every allocation`, `sampled every 4 KiB`, `every allocation (libc: sampled every 64 KiB)`
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

pub(super) fn checked_at(profile: &Profile) -> Option<String> {
    profile.unreachable.then(|| format!("checked on {}", text::moment(profile.ended_unix_ns)))
}

/// One line per heap: `heap libc was sampled every 64 KiB at most instead of every 4 KiB: … (after 3s)`.
pub(super) fn interval_changes(profile: &Profile) -> Vec<String> {
    let changes = &profile.health.interval_changes;
    let mut heaps: Vec<&str> = Vec::new();
    for change in changes {
        if !heaps.contains(&&*change.heap) {
            heaps.push(&change.heap);
        }
    }
    let every =
        |bytes: u64| if bytes <= 1 { "every block".to_owned() } else { format!("every {}", text::round_size(bytes)) };
    let line = |heap: &str| {
        let changes: Vec<_> = changes.iter().filter(|change| change.heap == heap).collect();
        let (first, last) = (changes.first()?, changes.last()?);
        let largest = changes.iter().map(|change| change.to_bytes).max()?;
        Some(format!(
            "heap {} was sampled {} at most instead of {}: {} (after {}); {} at the end ({})",
            text::printable(heap),
            every(largest),
            every(first.from_bytes),
            first.reason.explanation(),
            text::duration(first.unix_ns.saturating_sub(profile.started_unix_ns)),
            every(last.to_bytes),
            text::counted(changes.len() as u64, "change"),
        ))
    };
    heaps.into_iter().filter_map(line).collect()
}

pub(super) fn own_intervals(profile: &Profile) -> Vec<(&str, u64)> {
    let mut own: Vec<(&str, u64)> = Vec::new();
    for heap in profile.targets.iter().flat_map(|target| &target.heaps) {
        if heap.interval_bytes != profile.interval_bytes && own.iter().all(|(name, _)| *name != heap.name) {
            own.push((&heap.name, heap.interval_bytes));
        }
    }
    own
}

fn has_common_interval(profile: &Profile) -> bool {
    let mut heaps = profile.targets.iter().flat_map(|target| &target.heaps).peekable();
    heaps.peek().is_none() || heaps.any(|heap| heap.interval_bytes == profile.interval_bytes)
}

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
    let Some(bounds) = view.bounds(profile, &totals, profile.interval_bytes_of_all()) else {
        return format!(" ({})", text::counted(view.samples(&totals), "sample"));
    };
    let [low, high] = bounds.map(|end| view.amount(end.round() as u64));
    format!(" (95 %: {low} to {high}, {})", text::counted(view.samples(&totals), "sample"))
}

/// `live bytes`, `live bytes older than 30s`, or for a leak report `leaked bytes`
pub(super) fn title(profile: &Profile, view: View) -> String {
    if profile.unreachable {
        // All blocks in it leaked, live or allocated.
        return format!("leaked {}", view.unit());
    }
    let title = match profile.older_than_ns.filter(|_| view.shows_old_blocks_only(profile)) {
        Some(age_ns) => format!("{} older than {}", view.title(), text::duration(age_ns)),
        None => view.title().to_owned(),
    };
    match &profile.filter {
        Some(filter) => format!("{title} ({})", text::printable(filter)),
        None => title,
    }
}

pub(super) fn older(profile: &Profile) -> Option<String> {
    let age = text::duration(profile.older_than_ns?);
    Some(format!("of what is live at the end, blocks older than {age} only"))
}

/// The interval, the accuracy of live bytes, the verdict, and the restriction to old blocks, for formats with a single text field.
pub(super) fn taken(profile: &Profile) -> String {
    let accuracy = Some(accuracy_of_shown(profile, View::LiveBytes)).filter(|accuracy| !accuracy.is_empty());
    let accuracy = accuracy.map(|accuracy| format!("live bytes{accuracy}"));
    let words = [Some(interval(profile)), accuracy, Some(verdict(profile)), older(profile), left_out(profile)];
    words.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// Accuracy of the shown blocks; empty for old blocks, because the accuracy of their sums is unknown.
pub(super) fn accuracy_of_shown(profile: &Profile, view: View) -> String {
    if view.shows_old_blocks_only(profile) { String::new() } else { accuracy(profile, view) }
}

pub(super) fn duration_ns(profile: &Profile) -> u64 {
    end_unix_ns(profile) - start_unix_ns(profile)
}

pub(super) fn some(count: u64, noun: &str, what: &str) -> Option<String> {
    (count > 0).then(|| format!("{} {what}", text::counted(count, noun)))
}

/// Why a heap is not hooked in a module, and what to do instead.
pub fn inlined(heap: &InlinedHeap) -> String {
    format!(
        "heap {} is not recorded in `{}`: its compiler inlined `{}` in {}, whose calls no hook sees; {}",
        text::printable(&heap.heap),
        text::printable(&heap.module),
        text::printable(&heap.function),
        text::counted(heap.copies, "function"),
        text::printable(&heap.advice)
    )
}

/// Whether the profile is complete, and what is missing: `complete`, `incomplete: 97.5% of stacks are cut`.
pub(super) fn verdict(profile: &Profile) -> String {
    let verdict = profile.verdict();
    let words = |exceeded: bool| {
        let findings =
            verdict.findings.iter().filter(|finding| finding.is_exceeded() == exceeded && finding.share > 0.0);
        findings.flat_map(|finding| missing(profile, finding)).collect::<Vec<_>>()
    };
    if !verdict.is_complete() {
        return format!("incomplete: {}", words(true).join(", "));
    }
    let borrowed = if profile.strict { 0 } else { profile.health.lost_by(&Loss::MemoryBorrowed) };
    // What children have from before the fork is in the report. Names are no part of the verdict: bytes and stacks are right without them.
    let tolerated: Vec<String> = words(false)
        .into_iter()
        .chain(late_children(profile))
        .chain(some(borrowed, "process", "that ended in the memory of another"))
        .chain(ends_of_go(profile))
        .chain(symbolizer_crashes(&profile.health))
        .chain(languages::missing(&profile.health))
        .collect();
    match tolerated.join(", ").as_str() {
        "" => "complete".to_owned(),
        tolerated => format!("complete except for {tolerated}"),
    }
}

/// Forked processes that ran before their probes were attached, in this window.
fn late_children(profile: &Profile) -> Option<String> {
    let beginnings = profile.targets.iter().map(|target| &target.facts.beginning);
    let late = beginnings.filter(|it| matches!(it.origin, Origin::Forked(_)) && !it.from_first_call);
    let delays = late.filter(|it| profile.unix_ns(it.time) >= start_unix_ns(profile)).filter_map(|it| it.delay_ns);
    let (count, latest) =
        delays.filter(|&delay| delay > 0).fold((0, 0), |(count, max), delay| (count + 1, delay.max(max)));
    let processes = text::counted(count, "forked process");
    (count > 0).then(|| format!("the first {} of {processes}", text::duration(latest)))
}

/// Go programs that ended: their profile is read once a second.
fn ends_of_go(profile: &Profile) -> Option<String> {
    let has_ended = |target: &&TargetProfile| matches!(target.facts.end, Some(End::Exited { .. } | End::Replaced));
    let is_go = |target: &&TargetProfile| target.heaps.iter().any(|heap| heap.name == HeapProfile::GO);
    let count = profile.targets.iter().filter(has_ended).filter(is_go).count();
    (count > 0).then(|| format!("the last second of {}", text::counted(count as u64, "Go program")))
}

fn symbolizer_crashes(health: &Health) -> Option<String> {
    let crashes = health.symbolization.crashes;
    (crashes > 0).then(|| format!("names of functions (the symbolizer crashed {})", text::counted(crashes, "time")))
}

fn missing(profile: &Profile, finding: &Finding) -> Vec<String> {
    let health = &profile.health;
    let share = text::share(finding.share, 1.0);
    let one = match finding.defect {
        Defect::NoTarget => "no process was profiled".to_owned(),
        Defect::MissedProcesses => {
            let programs = [Loss::ProgramMissed, Loss::Program32Bit];
            let [missed, unsupported] = programs.map(|loss| health.lost_by(&loss));
            let processes = [Loss::ProcessSkipped, Loss::MemoryShared, Loss::Unobserved, Loss::NotInherited];
            let [skipped, sharing, unobserved, without] = processes.map(|loss| health.lost_by(&loss));
            let unmonitored = health.lost_by(&Loss::Unmonitored);
            let others = [missed, unsupported, skipped, sharing, unobserved, without, unmonitored].iter().sum();
            let words = [
                some(skipped, "process", "not recorded"),
                some(finding.count.saturating_sub(others), "process", "missed"),
                some(missed, "program", "missed"),
                some(unsupported, "32-bit program", "not recorded"),
                some(sharing, "process", "sharing the memory of another"),
                some(unobserved, "process", "not observed"),
                some(without, "process", "without inherited blocks"),
                (unmonitored > 0).then(|| "forks and execs not reported by the kernel".to_owned()),
            ];
            return words.into_iter().flatten().collect();
        }
        Defect::EndedProcesses => format!("{} ended unrecorded", text::counted(finding.count, "process")),
        Defect::LatePrograms => format!("{} recorded late", text::counted(finding.count, "program")),
        Defect::UnhookedProcesses => format!("no allocator is hooked in {}", text::counted(finding.count, "process")),
        Defect::MissingHooks => {
            let missing = each_once(profile).iter().filter(|(_, hook)| hook.is_missing()).count();
            let unfound = health.unfound.iter().filter(|hook| hook.required).count();
            let words = [some(missing as u64, "hook", "not attached"), some(unfound as u64, "hook", "not found")];
            return words.into_iter().flatten().collect();
        }
        Defect::Limits => {
            let detached = profile.targets.iter().filter(|target| target.facts.detached().is_some()).count();
            let stopped = health.guardrails.stopped().then(|| "stopped by a limit".to_owned());
            let words = [stopped, some(detached as u64, "process", "detached by a limit")];
            return words.into_iter().flatten().collect();
        }
        Defect::DroppedEvents => format!("{} dropped ({share})", text::counted(finding.count, "event")),
        Defect::CutStacks => {
            let cause = cuts(profile).first().map(|cut| format!(" ({})", cut.cause())).unwrap_or_default();
            format!("{share} of stacks are cut{cause}")
        }
        Defect::UnexplainedGrowth => format!("{share} of a growth in memory is unexplained"),
        Defect::IncompleteInventories => {
            format!("some blocks from before the recording are unknown in {}", text::counted(finding.count, "process"))
        }
    };
    vec![one]
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

pub(super) fn totals(profile: &Profile) -> Totals {
    let mut totals = profile.others.folded_totals;
    profile.targets.iter().for_each(|target| totals.add(&target.totals));
    totals
}

pub(super) fn total(profile: &Profile, view: View) -> String {
    let amount = view.amount(view.rounded(&totals(profile)));
    format!("{}{amount}{}", about(profile.is_exact()), accuracy(profile, view))
}

/// Amount of the processes of which only totals are kept, which belongs to no stack; `None` if 0.
pub(super) fn folded(profile: &Profile, view: View) -> Option<String> {
    let amount = view.rounded(&profile.others.folded_totals);
    let about = about(profile.is_exact_of_folded());
    (amount > 0).then(|| format!("{about}{}", view.amount(amount)))
}

/// For formats whose stacks have no place for them, and that show no total.
pub(super) fn left_out(profile: &Profile) -> Option<String> {
    let amounts =
        [View::LiveBytes, View::AllocBytes].map(|view| Some(format!("{} {}", folded(profile, view)?, view.title())));
    let amounts: Vec<String> = amounts.into_iter().flatten().collect();
    (profile.others.folded_count > 0 && !amounts.is_empty())
        .then(|| format!("left out: {} of {}", amounts.join(" and "), folded_processes(profile)))
}

pub(super) fn folded_processes(profile: &Profile) -> String {
    format!("{} that exited", text::counted(profile.others.folded_count, "process"))
}

pub(super) fn has_stacks(profile: &Profile, view: View) -> bool {
    profile.callsites().any(|(_, callsite)| view.of_callsite(callsite) > 0)
}

/// Why there is no data, and what would help; a sentence per line.
pub(super) fn nothing(profile: &Profile, view: View) -> Vec<String> {
    if profile.unreachable {
        return vec!["No known block was unreachable.".to_owned()];
    }
    let what = view.title();
    if let Some(amount) = folded(profile, view) {
        let processes = folded_processes(profile);
        return vec![format!("There are no stacks of {what}: of {processes}, only totals are kept ({amount}).")];
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
    let totals = totals(profile);
    let about = about(profile.is_exact());
    if totals.alloc_count.rounded() > 0 {
        let allocated = text::size(totals.alloc_bytes.rounded());
        let mut heaps = profile.targets.iter().flat_map(|target| &target.heaps).peekable();
        if heaps.peek().is_some() && heaps.all(HeapProfile::has_allocations_only) {
            return vec![
                format!(
                    "{about}{allocated} were allocated during the recording. What is live is unknown: no hook has an address."
                ),
                format!("The view `{}` shows what was allocated.", View::AllocBytes),
            ];
        }
        return vec![
            format!("There are no {what}: {about}{allocated} were allocated during the recording, all of it freed."),
            format!("The view `{}` shows what was allocated.", View::AllocBytes),
        ];
    }
    if profile.window.is_some() && totals.free_bytes > EstimatedBytes::ZERO {
        let freed = text::size(totals.free_bytes.rounded());
        return vec![format!("There are no {what}: {about}{freed} were freed in this window, and nothing allocated.")];
    }
    let unsampled = if profile.is_exact() { "" } else { ", or too little to be sampled" };
    let mut lines = vec![format!("Nothing was recorded: {whose} allocated nothing during the recording{unsampled}.")];
    lines.extend(sampling(profile));
    lines.push("Earlier allocations are not recorded.".to_owned());
    lines
}

/// A line for the recording, and one for each heap with its own interval.
fn sampling(profile: &Profile) -> Vec<String> {
    let common = (String::new(), profile.interval_bytes, "--interval 1".to_owned());
    let own = own_intervals(profile).into_iter().map(|(heap, bytes)| {
        let heap = text::printable(heap);
        (format!(" of heap {heap}"), bytes, format!("--heap-interval {heap}=1"))
    });
    let all = has_common_interval(profile).then_some(common).into_iter().chain(own);
    all.filter(|(_, bytes, _)| *bytes > 1)
        .map(|(of, bytes, option)| {
            let size = text::round_size(bytes);
            format!("One block per {size}{of} is sampled on average; `{option}` records every one.")
        })
        .collect()
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

/// Facts that formats show beside the data.
pub(super) struct Caption {
    pub(super) title: String,
    pub(super) subject: String,
    /// The part of the recording that the profile covers: `, window 3 (10s to 20s)`, `, at the peak`; empty for all of it.
    pub(super) window: String,
    pub(super) total: String,
    pub(super) interval: String,
    pub(super) verdict: String,
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
        let left_out = if others.folded_count > 0 { folded(profile, view) } else { None };
        Self {
            title: title(profile, view),
            subject: subject(profile) + &window,
            window,
            total: total(profile, view),
            interval: interval(profile),
            verdict: verdict(profile),
            left_out: left_out.map(|amount| format!("{amount} of {}", folded_processes(profile))),
        }
    }
}

/// Command of the only process, or the number of processes.
pub(super) fn command(profile: &Profile) -> String {
    match profile.targets.as_slice() {
        [target] => target.facts.command.clone(),
        _ => subject(profile),
    }
}

pub(super) fn start_unix_ns(profile: &Profile) -> u64 {
    profile.window.map_or(profile.started_unix_ns, |window| window.start_unix_ns)
}

pub(super) fn end_unix_ns(profile: &Profile) -> u64 {
    profile.window.map_or(profile.ended_unix_ns, |window| window.end_unix_ns).max(start_unix_ns(profile))
}

/// `signal, 10s to 20s, 3.1 MiB retained, +1.2 MiB`
pub fn outcome(profile: &Profile) -> String {
    let Some(window) = &profile.window else { return String::new() };
    let retained = totals(profile).live_bytes().rounded();
    let about = about(profile.is_exact());
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
    let delta = totals(profile).delta_bytes();
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
    use heapbpf_base::units::EstimatedCount;

    use super::*;
    use crate::testing as profiles;

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
