//! The page's data as a whole, in the form in which its scripts read it.

use std::borrow::Cow;

use serde::Serialize;

use super::callsites::CallsiteColumns;
use super::column::{Number, float};
use super::header::{EstimateFields, HeaderFields};
use super::health::HealthFields;
use super::history::{HistoryFields, millis};
use super::names::{Frames, Functions, Names};
use super::stacks::{Nodes, Stacks};
use crate::model::leaks::Leaks;
use crate::model::{HeapProfile, Origin, Profile, TargetProfile};
use crate::report::{Presentation, describe};

#[derive(Serialize)]
pub(super) struct Document<'a> {
    version: u32,
    /// What to show first.
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
    /// What tells it from others: a pid can stand for several.
    name: String,
    pid: u32,
    command: &'a str,
    cgroup: Option<&'a str>,
    /// How it became a target: `running`, `fork`, `exec` or `launch`.
    origin: &'static str,
    /// Milliseconds since the recording began.
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
    threads: Vec<ThreadFields<'a>>,
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
struct ThreadFields<'a> {
    tid: u32,
    name: Option<&'a str>,
}

#[derive(Serialize)]
struct LeakFields {
    /// Milliseconds that were looked at.
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
            pid: target.pid.0,
            command: &target.command,
            cgroup: target.cgroup.as_deref(),
            origin: match target.beginning.origin {
                Origin::Running => "running",
                Origin::Forked(_) => "fork",
                Origin::Executed => "exec",
                Origin::Launched => "launch",
            },
            begun: Number(millis(profile, target.beginning.time)),
            exited: target.exited,
            replaced: target.replaced,
            exit_code: target.exit_code,
            detached: target.detached.map(|time| Number(millis(profile, time))),
            estimates: EstimateFields::new(totals, profile.is_exact_of(target)),
            freed_bytes: Number(totals.free_bytes.to_f64()),
            freed_count: Number(totals.free_count.to_f64()),
            peak_bytes: Number(totals.peak_bytes.to_f64()),
            peak_time: totals.peak_time.map(|time| Number(millis(profile, time))),
            heaps: target.heaps.iter().map(HeapFields::new).collect(),
            threads: target
                .threads
                .iter()
                .map(|thread| ThreadFields { tid: thread.tid.0, name: thread.name.as_deref() })
                .collect(),
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
