//! The JSON report: everything in the profile, for programs and tests. Its shape is a contract (see `VERSION`).
//!
//! Owns names and types of its fields. Callsites and frames are written one by one, never held as JSON in memory.

mod callsites;
mod code;
mod curve;
mod details;
mod guardrails;
pub(super) mod health;
mod leaks;
pub(crate) mod read;
pub(super) mod stack;
pub(super) mod totals;

use std::io;

use callsites::Callsites;
use code::{MappingFields, ModuleFields, ThreadFields};
use curve::CurveFields;
use details::DetailsFields;
use guardrails::OverheadFields;
use health::HealthFields;
use leaks::LeaksFields;
use serde::{Serialize, Serializer};
use totals::TotalsFields;

use super::presentation::{Presentation, View};
use crate::ledger::details::Details;
use crate::model::{Beginning, HeapProfile, HookStatus, Origin, Profile, Skipped, TargetProfile, Window};

/// Version of the shape. Raised when a reader of the one before could go wrong; a new field alone does not raise it.
pub(crate) const VERSION: u32 = 1;

/// Writes the JSON report. The view only decides the order of callsites: the largest come first.
pub(super) fn write(profile: &Profile, presentation: &Presentation, out: &mut dyn io::Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, &Root::new(profile, presentation.view))?;
    out.write_all(b"\n")
}

#[derive(Serialize)]
struct Root<'a> {
    version: u32,
    interval_bytes: u64,
    started_unix_ns: u64,
    ended_unix_ns: u64,
    /// How old the blocks are that callsites' `older_…` count.
    #[serde(skip_serializing_if = "Option::is_none")]
    older_than_ns: Option<u64>,
    window: Option<WindowFields>,
    targets: Targets<'a>,
    others: OthersFields<'a>,
    modules: Vec<ModuleFields<'a>>,
    health: HealthFields<'a>,
}

impl<'a> Root<'a> {
    fn new(profile: &'a Profile, view: View) -> Self {
        Self {
            version: VERSION,
            interval_bytes: profile.interval_bytes,
            started_unix_ns: profile.started_unix_ns,
            ended_unix_ns: profile.ended_unix_ns,
            older_than_ns: profile.older_than_ns,
            window: profile.window.as_ref().map(WindowFields::new),
            targets: Targets { context: Context { profile, view } },
            others: OthersFields::new(profile),
            modules: profile.modules.iter().map(ModuleFields::new).collect(),
            health: HealthFields::new(&profile.health),
        }
    }
}

/// The part of the recording that the profile is about.
#[derive(Serialize)]
struct WindowFields {
    /// Null for the state at the peak.
    number: Option<u32>,
    /// `time`, `growth`, `alloc`, `signal`, `end` or `peak`.
    reason: &'static str,
    start_unix_ns: u64,
    since_mark: bool,
    end_unix_ns: u64,
    merged_count: u32,
}

impl WindowFields {
    fn new(window: &Window) -> Self {
        Self {
            number: window.number,
            reason: window.reason.name(),
            start_unix_ns: window.start_unix_ns,
            since_mark: window.since_mark,
            end_unix_ns: window.end_unix_ns,
            merged_count: window.merged_count,
        }
    }
}

/// What is needed to write any part of the profile.
#[derive(Clone, Copy)]
struct Context<'a> {
    profile: &'a Profile,
    view: View,
}

struct Targets<'a> {
    context: Context<'a>,
}

impl Serialize for Targets<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Context { profile, .. } = self.context;
        serializer.collect_seq(profile.targets.iter().map(|target| TargetFields::new(self.context, target)))
    }
}

#[derive(Serialize)]
struct TargetFields<'a> {
    pid: u32,
    command: &'a str,
    comm: &'a str,
    cgroup: Option<&'a str>,
    beginning: BeginningFields,
    exited: bool,
    exit_code: Option<i32>,
    replaced: bool,
    /// When its probes were taken away because they cost too much.
    detached_unix_ns: Option<u64>,
    /// What they cost, where that is known.
    overhead: Option<OverheadFields>,
    totals: TargetTotalsFields,
    heaps: Vec<HeapFields<'a>>,
    curve: CurveFields<'a>,
    mappings: Vec<MappingFields>,
    threads: Vec<ThreadFields<'a>>,
    leak_candidates: Option<LeaksFields<'a>>,
    callsites: Callsites<'a>,
}

impl<'a> TargetFields<'a> {
    fn new(context: Context<'a>, target: &'a TargetProfile) -> Self {
        let is_exact = context.profile.is_exact_of(target);
        let details = Details::sum(target.callsites.iter().map(|callsite| &callsite.details));
        let callsites = Callsites::new(context, target);
        Self {
            pid: target.pid.0,
            command: &target.command,
            comm: &target.comm,
            cgroup: target.cgroup.as_deref(),
            beginning: BeginningFields::new(context.profile, &target.beginning),
            exited: target.exited,
            exit_code: target.exit_code,
            replaced: target.replaced,
            detached_unix_ns: target.detached.map(|time| context.profile.unix_ns(time)),
            overhead: target.overhead.as_ref().map(OverheadFields::new),
            totals: TargetTotalsFields {
                totals: TotalsFields::new(context.profile, &target.totals, is_exact),
                details: DetailsFields::new(&details, is_exact),
            },
            heaps: (0..)
                .zip(&target.heaps)
                .map(|(i, heap)| HeapFields::new(context.profile, target, heap, i))
                .collect(),
            curve: CurveFields::new(context.profile, target),
            mappings: MappingFields::of(context.profile, target),
            threads: target.threads.iter().map(ThreadFields::new).collect(),
            leak_candidates: LeaksFields::new(context.profile, target, &callsites.order),
            callsites,
        }
    }
}

#[derive(Serialize)]
struct TargetTotalsFields {
    #[serde(flatten)]
    totals: TotalsFields,
    #[serde(flatten)]
    details: DetailsFields,
}

#[derive(Serialize)]
struct BeginningFields {
    /// `running`, `fork`, `exec` or `launch`.
    origin: &'static str,
    parent: Option<u32>,
    unix_ns: u64,
    delay_ns: Option<u64>,
    from_first_call: bool,
}

impl BeginningFields {
    fn new(profile: &Profile, beginning: &Beginning) -> Self {
        let (origin, parent) = match beginning.origin {
            Origin::Running => ("running", None),
            Origin::Forked(parent) => ("fork", Some(parent.0)),
            Origin::Executed => ("exec", None),
            Origin::Launched => ("launch", None),
        };
        Self {
            origin,
            parent,
            unix_ns: profile.unix_ns(beginning.time),
            delay_ns: beginning.delay_ns,
            from_first_call: beginning.from_first_call,
        }
    }
}

#[derive(Serialize)]
struct OthersFields<'a> {
    skipped: Vec<SkippedFields<'a>>,
    skipped_count: u64,
    short_lived_count: u64,
    not_inherited_count: u64,
    folded_count: u64,
    folded_interval_bytes: Option<u64>,
    folded_totals: TotalsFields,
}

#[derive(Serialize)]
struct SkippedFields<'a> {
    pid: u32,
    command: &'a str,
    reason: &'a str,
}

impl<'a> OthersFields<'a> {
    fn new(profile: &'a Profile) -> Self {
        let others = &profile.others;
        let skipped = |skipped: &'a Skipped| SkippedFields {
            pid: skipped.pid.0,
            command: &skipped.command,
            reason: &skipped.reason,
        };
        Self {
            skipped: others.skipped.iter().map(skipped).collect(),
            skipped_count: others.skipped_count,
            short_lived_count: others.short_lived_count,
            not_inherited_count: others.not_inherited_count,
            folded_count: others.folded_count,
            folded_interval_bytes: others.folded_interval_bytes,
            folded_totals: TotalsFields::new(profile, &others.folded_totals, profile.is_exact_of_folded()),
        }
    }
}

#[derive(Serialize)]
struct HeapFields<'a> {
    name: &'a str,
    interval_bytes: u64,
    interval_bytes_max: u64,
    hooks: Vec<HookFields<'a>>,
    #[serde(flatten)]
    totals: TotalsFields,
    #[serde(flatten)]
    details: DetailsFields,
}

impl<'a> HeapFields<'a> {
    /// `index` is the heap's in the target.
    fn new(profile: &Profile, target: &TargetProfile, heap: &'a HeapProfile, index: usize) -> Self {
        let callsites = target.callsites.iter().filter(|callsite| callsite.heap == index);
        let details = Details::sum(callsites.map(|callsite| &callsite.details));
        Self {
            name: &heap.name,
            interval_bytes: heap.interval_bytes,
            interval_bytes_max: heap.interval_bytes_max.max(heap.interval_bytes),
            hooks: heap.hooks.iter().map(HookFields::new).collect(),
            totals: TotalsFields::new(profile, &heap.totals, heap.is_exact()),
            details: DetailsFields::new(&details, heap.is_exact()),
        }
    }
}

#[derive(Serialize)]
struct HookFields<'a> {
    function: &'a str,
    module: &'a str,
    backend: &'a str,
    offset: u64,
    instruction: Option<&'a str>,
    emulated: Option<bool>,
    required: bool,
    attached: bool,
    error: Option<&'a str>,
}

impl<'a> HookFields<'a> {
    fn new(hook: &'a HookStatus) -> Self {
        Self {
            function: &hook.function,
            module: &hook.module,
            backend: &hook.backend,
            offset: hook.offset,
            instruction: hook.instruction.as_deref(),
            emulated: hook.emulated,
            required: hook.required,
            attached: hook.error.is_none(),
            error: hook.error.as_deref(),
        }
    }
}
