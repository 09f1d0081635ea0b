//! The page's data, in the form that its scripts read. Columnar, unlike the JSON report, to keep pages small.

use std::borrow::Cow;

use serde::Serialize;

use super::callsites::{CallsiteColumns, HistoryFields};
use super::column::{Number, float, millis};
use super::health::HealthFields;
use super::names::{Frames, Functions, Names, Nodes, Stacks};
use crate::ledger::totals::Totals;
use crate::model::Leaks;
use crate::model::{HeapProfile, Profile, TargetProfile};
use crate::report::json::schema::{Origin, Thread};
use crate::report::{Presentation, View, describe, text, window};

#[derive(Serialize)]
pub(super) struct Document<'a> {
    version: u32,
    /// The view to show first.
    view: &'static str,
    by: Vec<&'static str>,
    header: HeaderFields,
    strings: Vec<Cow<'a, str>>,
    functions: Functions,
    frames: Frames,
    nodes: Nodes,
    gaps: Vec<Vec<String>>,
    targets: Vec<TargetFields<'a>>,
    health: HealthFields<'a>,
}

#[derive(Serialize)]
struct TargetFields<'a> {
    /// Unique label: pids can occur several times.
    name: String,
    pid: u32,
    command: &'a str,
    cgroup: Option<&'a str>,
    origin: Origin,
    /// In milliseconds since the recording started.
    begun: Number,
    exited: bool,
    replaced: bool,
    exit_code: Option<i32>,
    detached: Option<Number>,
    estimates: EstimateFields,
    freed_bytes: Number,
    freed_count: Number,
    peak_bytes: Number,
    peak_time: Option<Number>,
    heaps: Vec<HeapFields<'a>>,
    threads: Vec<Thread<'a>>,
    callsites: CallsiteColumns,
    history: HistoryFields,
    leaks: Option<LeakFields>,
}

#[derive(Serialize)]
struct HeapFields<'a> {
    name: &'a str,
    interval_bytes: Number,
    interval_bytes_max: Number,
    estimates: EstimateFields,
}

#[derive(Serialize)]
struct LeakFields {
    /// Observed time span, in milliseconds.
    span: Number,
    too_short: bool,
    count: usize,
    suppressed_count: Number,
    suppressed_bytes: Number,
    candidates: Vec<CandidateFields>,
}

#[derive(Serialize)]
struct CandidateFields {
    callsite: usize,
    bytes_per_second: Number,
    margin: Number,
    old_share: Option<f64>,
    survival: Option<f64>,
}

impl<'a> Document<'a> {
    pub(super) fn new(profile: &'a Profile, presentation: &Presentation) -> Self {
        let mut names = Names::new(profile);
        let mut stacks = Stacks::default();
        let mut gaps = Vec::new();
        let targets = profile
            .targets
            .iter()
            .map(|target| {
                let callsites = CallsiteColumns::new(target, &mut names, &mut stacks, &mut gaps);
                TargetFields::new(profile, target, callsites)
            })
            .collect();
        let Names { strings, functions, frames, .. } = names;
        Self {
            version: 1,
            view: presentation.view.name(),
            by: presentation.by.iter().map(|group| group.name()).collect(),
            header: HeaderFields::new(profile),
            strings: strings.into_all(),
            functions,
            frames,
            nodes: stacks.into_nodes(),
            gaps,
            targets,
            health: HealthFields::new(profile),
        }
    }
}

impl<'a> TargetFields<'a> {
    fn new(profile: &Profile, target: &'a TargetProfile, callsites: CallsiteColumns) -> Self {
        let totals = &target.totals;
        Self {
            name: describe::target(target),
            pid: target.facts.pid.0,
            command: &target.facts.command,
            cgroup: target.facts.cgroup.as_deref(),
            origin: target.facts.beginning.origin.into(),
            begun: Number(millis(profile, target.facts.beginning.time)),
            exited: target.facts.exited,
            replaced: target.facts.replaced,
            exit_code: target.facts.exit_code,
            detached: target.facts.detached.map(|time| Number(millis(profile, time))),
            estimates: EstimateFields::new(totals, profile.is_exact_of(target)),
            freed_bytes: Number(totals.free_bytes.to_f64()),
            freed_count: Number(totals.free_count.to_f64()),
            peak_bytes: Number(totals.peak_bytes.to_f64()),
            peak_time: totals.peak_time.map(|time| Number(millis(profile, time))),
            heaps: target.heaps.iter().map(HeapFields::new).collect(),
            threads: target.threads.iter().map(Thread::new).collect(),
            callsites,
            history: HistoryFields::new(profile, target),
            leaks: target.leaks.as_ref().map(|leaks| LeakFields::new(leaks, target)),
        }
    }
}

impl<'a> HeapFields<'a> {
    fn new(heap: &'a HeapProfile) -> Self {
        Self {
            name: &heap.name,
            interval_bytes: Number(float(heap.interval_bytes)),
            interval_bytes_max: Number(float(heap.interval_bytes_max)),
            estimates: EstimateFields::new(&heap.totals, heap.is_exact()),
        }
    }
}

impl LeakFields {
    fn new(leaks: &Leaks, target: &TargetProfile) -> Self {
        let candidates = leaks.candidates.iter().filter(|candidate| candidate.callsite < target.callsites.len());
        Self {
            span: Number(float(leaks.span_ns) / 1e6),
            too_short: leaks.too_short,
            count: leaks.count,
            suppressed_count: Number(float(leaks.suppressed_count)),
            suppressed_bytes: Number(leaks.suppressed_bytes.to_f64()),
            candidates: candidates
                .map(|candidate| CandidateFields {
                    callsite: candidate.callsite,
                    bytes_per_second: Number(candidate.bytes_per_second),
                    margin: Number(candidate.margin),
                    old_share: Some(candidate.old_share),
                    survival: candidate.survival,
                })
                .collect(),
        }
    }
}

#[derive(Serialize)]
struct HeaderFields {
    subject: String,
    /// As text.
    interval: String,
    exact: bool,
    incomplete: bool,
    losses: String,
    started: String,
    /// Length of the recording, in milliseconds.
    span: Number,
    /// As text.
    duration: String,
    /// When the process was checked, for a leak report.
    #[serde(skip_serializing_if = "Option::is_none")]
    checked: Option<String>,
    /// Outcome of the window that the profile covers, if any.
    window: Option<String>,
    /// Minimum age of live blocks, as text.
    older_than: Option<String>,
    /// The live blocks are the unreachable ones only.
    #[serde(skip_serializing_if = "is_false")]
    unreachable: bool,
    /// Since when processes were profiled, and which were not, as text.
    beginnings: Vec<String>,
    estimates: EstimateFields,
    freed_bytes: Number,
    freed_count: Number,
    /// Exited processes of which only totals are kept.
    folded: Option<FoldedFields>,
    /// Views without data, and why.
    nothing: Vec<NothingFields>,
}

#[derive(Serialize)]
struct FoldedFields {
    processes: String,
    estimates: EstimateFields,
}

#[derive(Serialize)]
struct NothingFields {
    view: &'static str,
    lines: Vec<String>,
}

impl HeaderFields {
    fn new(profile: &Profile) -> Self {
        let totals = describe::totals(profile);
        let without = View::ALL.into_iter().filter(|&view| !describe::has_stacks(profile, view));
        Self {
            subject: describe::subject(profile),
            interval: describe::interval(profile),
            exact: profile.is_exact(),
            incomplete: profile.incomplete(),
            losses: describe::losses(profile),
            started: text::moment(profile.started_unix_ns),
            span: Number(float(profile.ended_unix_ns.saturating_sub(profile.started_unix_ns)) / 1e6),
            duration: text::duration(describe::duration_ns(profile)),
            checked: describe::checked_at(profile),
            window: profile.window.is_some().then(|| window::outcome(profile)),
            older_than: profile.older_than_ns.map(text::duration),
            unreachable: profile.unreachable,
            beginnings: describe::beginnings(profile),
            estimates: EstimateFields::new(&totals, profile.is_exact()),
            freed_bytes: Number(totals.free_bytes.to_f64()),
            freed_count: Number(totals.free_count.to_f64()),
            folded: (profile.others.folded_count > 0).then(|| FoldedFields {
                processes: describe::folded_processes(profile),
                estimates: EstimateFields::new(&profile.others.folded_totals, profile.is_exact_of_folded()),
            }),
            nothing: without
                .map(|view| NothingFields { view: view.name(), lines: describe::nothing(profile, view) })
                .collect(),
        }
    }
}

/// Amounts of all views with their confidence intervals.
#[derive(Serialize)]
struct EstimateFields {
    live_bytes: Estimate,
    live_count: Estimate,
    alloc_bytes: Estimate,
    alloc_count: Estimate,
}

/// The amount; where it is an estimate, also the bounds of its 95 % confidence interval and the number of samples.
#[derive(Serialize)]
struct Estimate(Vec<Number>);

impl EstimateFields {
    fn new(totals: &Totals, exact: bool) -> Self {
        let estimate = |view: View| {
            let mut numbers = vec![Number(view.estimate(totals))];
            if !exact {
                let [low, high] = view.confidence(totals);
                numbers.extend([low, high, float(view.samples(totals))].map(Number));
            }
            Estimate(numbers)
        };
        Self {
            live_bytes: estimate(View::LiveBytes),
            live_count: estimate(View::LiveCount),
            alloc_bytes: estimate(View::AllocBytes),
            alloc_count: estimate(View::AllocCount),
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "required by serde")]
fn is_false(flag: &bool) -> bool {
    !*flag
}
