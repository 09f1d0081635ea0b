//! Drops with their remedies, hooks, and the cost of profiling.

use serde::Serialize;

use super::column::{Number, float};
use crate::model::{HeapProfile, HookStatus, Loss, Profile, UnfoundHook};
use crate::report::loss::{explain, explain_stack_end};
use crate::report::summary::health::{describe_reached, missing_isolation, missing_names};
use crate::report::{describe, text};

/// Maximum number of hooks to list.
const HOOKS_MAX: usize = 500;

#[derive(Serialize)]
pub(super) struct HealthFields<'a> {
    lost: Vec<LossFields<'a>>,
    unwind: Vec<EndFields<'a>>,
    frame_pointer_modules: &'a [String],
    hooks: Vec<HookFields<'a>>,
    hooks_count: usize,
    unfound: Vec<&'a UnfoundHook>,
    resyncs: u64,
    interval_changes: Vec<String>,
    /// Exceeded limits, as text.
    reached: Vec<String>,
    memory_bytes_max: Option<Number>,
    memory_bytes_highest: Option<Number>,
    cpu_percent_max: Option<f64>,
    cpu_percent_highest: Option<f64>,
    overhead_percent_max: Option<f64>,
    overheads: Vec<OverheadFields>,
    events: Number,
    /// In milliseconds.
    agent_cpu: Number,
    agent_rss_bytes_max: Number,
    skipped: Vec<String>,
    /// Modules that could not be symbolized completely, as text.
    symbolization: Vec<String>,
}

#[derive(Serialize)]
struct LossFields<'a> {
    reason: &'a str,
    count: Number,
    meaning: Option<&'static str>,
    remedy: Option<&'static str>,
}

#[derive(Serialize)]
struct EndFields<'a> {
    end: &'a str,
    count: Number,
    meaning: Option<String>,
}

#[derive(Serialize)]
struct HookFields<'a> {
    heap: &'a str,
    function: &'a str,
    module: &'a str,
    backend: &'a str,
    instruction: Option<&'a str>,
    emulated: Option<bool>,
    required: bool,
    error: Option<&'a str>,
}

#[derive(Serialize)]
struct OverheadFields {
    target: String,
    percent: f64,
    percent_highest: Option<f64>,
}

impl<'a> HealthFields<'a> {
    pub(super) fn new(profile: &'a Profile) -> Self {
        let health = &profile.health;
        let guardrails = &health.guardrails;
        let hooks = describe::each_once(profile);
        let overheads = profile.targets.iter().filter_map(|target| {
            let overhead = target.facts.overhead?;
            let (percent, percent_highest) = (overhead.percent, overhead.percent_highest);
            Some(OverheadFields { target: describe::target(target), percent, percent_highest })
        });
        let changes = describe::interval_changes(health);
        Self {
            lost: health.lost.iter().filter(|(_, count)| *count > 0).map(LossFields::new).collect(),
            unwind: health.unwind.iter().filter(|(_, count)| *count > 0).map(EndFields::new).collect(),
            frame_pointer_modules: &health.frame_pointer_modules,
            hooks_count: hooks.len(),
            hooks: hooks.into_iter().take(HOOKS_MAX).map(HookFields::new).collect(),
            unfound: health.unfound.iter().collect(),
            resyncs: health.resyncs,
            interval_changes: changes
                .iter()
                .map(|(heap, changes)| describe::changed_interval(profile, heap, changes))
                .collect(),
            reached: guardrails.reached.iter().map(|reached| describe_reached(profile, reached)).collect(),
            memory_bytes_max: guardrails.memory_bytes_max.map(|bytes| Number(float(bytes))),
            memory_bytes_highest: guardrails.memory_bytes_highest.map(|bytes| Number(float(bytes))),
            cpu_percent_max: guardrails.cpu_percent_max,
            cpu_percent_highest: guardrails.cpu_percent_highest,
            overhead_percent_max: guardrails.overhead_percent_max,
            overheads: overheads.collect(),
            events: Number(float(health.events)),
            agent_cpu: Number(float(health.agent_cpu_ns) / 1e6),
            agent_rss_bytes_max: Number(float(health.agent_rss_bytes_max)),
            skipped: profile
                .others
                .skipped
                .iter()
                .map(|skipped| format!("{} (pid {}): {}", skipped.command, skipped.pid, skipped.reason))
                .map(|line| text::printable(&line).into_owned())
                .collect(),
            symbolization: missing_names(&health.symbolization)
                .chain(missing_isolation(&health.symbolization))
                .collect(),
        }
    }
}

impl<'a> LossFields<'a> {
    fn new((loss, count): &'a (Loss, u64)) -> Self {
        let (meaning, remedy) = explain(loss).unzip();
        Self { reason: loss.name(), count: Number(float(*count)), meaning, remedy }
    }
}

impl<'a> EndFields<'a> {
    fn new((end, count): &'a (String, u64)) -> Self {
        Self { end, count: Number(float(*count)), meaning: explain_stack_end(end) }
    }
}

impl<'a> HookFields<'a> {
    fn new((heap, hook): (&'a HeapProfile, &'a HookStatus)) -> Self {
        Self {
            heap: &heap.name,
            function: &hook.function,
            module: &hook.module,
            backend: &hook.backend,
            instruction: hook.instruction.as_deref(),
            emulated: hook.emulated,
            required: hook.required,
            error: hook.error.as_deref(),
        }
    }
}
