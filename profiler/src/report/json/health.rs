//! Health in JSON reports: drops, unwinding, limits and symbolization.

use std::borrow::Cow;

#[cfg(test)]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::values::{Counts, Name};
use crate::ids::Pid;
use crate::model::guardrails::{self, Action, Excess, ProbeCosts};
use crate::model::{self, ChangeReason, Loss, NamesFrom, ProbeScope, UnfoundHook};

/// Drops, and the cost of profiling.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(in crate::report) struct Health<'a> {
    /// Number of records that the kernel side wrote.
    pub(super) events: u64,
    /// Dropped records and blocks, by reason (see docs/formats.md).
    pub(super) lost: Counts<'a, Loss>,
    /// Number of stacks, by how unwinding ended.
    pub(super) unwind: Counts<'a, String>,
    /// Modules without unwind tables, which were unwound by frame pointers.
    #[serde(default)]
    pub(super) frame_pointer_modules: Cow<'a, [String]>,
    /// User-defined hooks whose function was in no process.
    #[serde(default)]
    pub(super) unfound: Cow<'a, [UnfoundHook]>,
    /// Number of times the ledger was resynced from the kernel's live set.
    pub(super) resyncs: u64,
    /// CPU time of heapbpf, in nanoseconds.
    pub(super) agent_cpu_ns: u64,
    /// Peak resident set size of heapbpf, in bytes.
    pub(super) agent_rss_bytes_max: u64,
    /// Changes of heaps' intervals, in the order of time.
    #[serde(default)]
    pub(super) interval_changes: Vec<IntervalChange<'a>>,
    /// Limits on the cost of profiling.
    #[serde(default)]
    pub(super) guardrails: Guardrails,
    /// Which processes met the probes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) scope: Option<ProbeScope>,
    /// How addresses were symbolized.
    #[serde(default)]
    pub(super) symbolization: Symbolization<'a>,
}

/// A change of a heap's interval.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct IntervalChange<'a> {
    /// Time of the change, in nanoseconds since the Unix epoch.
    pub(super) unix_ns: u64,
    /// Name of the heap.
    pub(super) heap: Cow<'a, str>,
    /// Interval before the change.
    pub(super) from_bytes: u64,
    /// Interval after the change.
    pub(super) to_bytes: u64,
    /// Reason of the change.
    pub(super) reason: Name<ChangeReason>,
}

/// Limits on the cost of profiling; null where none was set.
#[derive(Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct Guardrails {
    /// Limit on the memory of heapbpf and the kernel's maps, in bytes.
    pub(super) memory_bytes_max: Option<u64>,
    /// Peak of that memory.
    pub(super) memory_bytes_highest: Option<u64>,
    /// Limit on the CPU usage of heapbpf, in percent of one core.
    pub(super) cpu_percent_max: Option<f64>,
    /// Peak of that usage, over some seconds.
    pub(super) cpu_percent_highest: Option<f64>,
    /// Limit on the probes' share of a target's CPU time, in percent.
    pub(super) overhead_percent_max: Option<f64>,
    /// Cost of probes on this machine, where measured.
    pub(super) probe_costs: Option<ProbeCosts>,
    /// Exceeded limits, in the order of time.
    pub(super) reached: Vec<Reached>,
}

/// An exceeded limit.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct Reached {
    /// When the limit was exceeded, in nanoseconds since the Unix epoch.
    pub(super) unix_ns: u64,
    /// The exceeded limit; `keeper` if the keeper process exited prematurely.
    pub(super) limit: Limit,
    /// What heapbpf did in response.
    pub(super) action: Name<Action>,
    /// The target, for a limit per target.
    pub(super) pid: Option<u32>,
    /// Measured memory, in bytes.
    pub(super) bytes: Option<u64>,
    /// Measured CPU usage or overhead, in percent.
    pub(super) percent: Option<f64>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(test, derive(JsonSchema), schemars(inline))]
pub(crate) enum Limit {
    Memory,
    Cpu,
    Overhead,
    Keeper,
}

/// How addresses were symbolized.
#[derive(Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct Symbolization<'a> {
    /// What the symbolizer process was isolated from (`files`, `capabilities`, `system_calls`, `limits`); empty where
    /// nothing was symbolized.
    pub(super) isolation: Vec<Cow<'a, str>>,
    /// What it was not isolated from, because the kernel refused.
    pub(super) isolation_missing: Vec<Cow<'a, str>>,
    /// Modules that could not be symbolized completely.
    pub(super) failures: Vec<SymbolizationFailure<'a>>,
}

/// A module that could not be symbolized completely.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct SymbolizationFailure<'a> {
    /// Path of the module.
    pub(super) module: Cow<'a, str>,
    /// Why.
    pub(super) reason: Cow<'a, str>,
    /// Fallback source of names.
    pub(super) names: Name<NamesFrom>,
}

impl<'a> Health<'a> {
    pub(in crate::report) fn new(health: &'a model::Health) -> Self {
        let model::Symbolization { failures, .. } = &health.symbolization;
        let isolated = |in_force| health.symbolization.isolated(in_force).map(Cow::Borrowed).collect();
        Self {
            events: health.events,
            lost: Counts(Cow::Borrowed(&health.lost)),
            unwind: Counts(Cow::Borrowed(&health.unwind)),
            frame_pointer_modules: Cow::Borrowed(&health.frame_pointer_modules),
            unfound: Cow::Borrowed(&health.unfound),
            resyncs: health.resyncs,
            agent_cpu_ns: health.agent_cpu_ns,
            agent_rss_bytes_max: health.agent_rss_bytes_max,
            interval_changes: health.interval_changes.iter().map(IntervalChange::new).collect(),
            guardrails: Guardrails::new(&health.guardrails),
            scope: health.scope.clone(),
            symbolization: Symbolization {
                isolation: isolated(true),
                isolation_missing: isolated(false),
                failures: failures.iter().map(SymbolizationFailure::new).collect(),
            },
        }
    }

    pub(super) fn into_model(self) -> Result<model::Health, String> {
        let changes = self.interval_changes.into_iter().map(IntervalChange::into_model);
        let isolation = self.symbolization.isolation.into_iter().map(|name| (name.into_owned(), true));
        let missing = self.symbolization.isolation_missing.into_iter().map(|name| (name.into_owned(), false));
        let failures = self.symbolization.failures.into_iter().map(SymbolizationFailure::into_model);
        Ok(model::Health {
            events: self.events,
            lost: self.lost.0.into_owned(),
            unwind: self.unwind.0.into_owned(),
            frame_pointer_modules: self.frame_pointer_modules.into_owned(),
            unfound: self.unfound.into_owned(),
            resyncs: self.resyncs,
            interval_changes: changes.collect(),
            agent_cpu_ns: self.agent_cpu_ns,
            agent_rss_bytes_max: self.agent_rss_bytes_max,
            guardrails: self.guardrails.into_model()?,
            scope: self.scope,
            symbolization: model::Symbolization {
                isolation: isolation.chain(missing).collect(),
                failures: failures.collect(),
            },
        })
    }
}

impl<'a> IntervalChange<'a> {
    fn new(change: &'a model::IntervalChange) -> Self {
        let model::IntervalChange { unix_ns, ref heap, from_bytes, to_bytes, reason } = *change;
        Self { unix_ns, heap: Cow::Borrowed(heap), from_bytes, to_bytes, reason: Name(reason) }
    }

    fn into_model(self) -> model::IntervalChange {
        let Self { unix_ns, heap, from_bytes, to_bytes, reason } = self;
        model::IntervalChange { unix_ns, heap: heap.into_owned(), from_bytes, to_bytes, reason: reason.0 }
    }
}

impl<'a> SymbolizationFailure<'a> {
    fn new(failure: &'a model::SymbolizationFailure) -> Self {
        let model::SymbolizationFailure { module, reason, names } = failure;
        Self { module: Cow::Borrowed(module), reason: Cow::Borrowed(reason), names: Name(*names) }
    }

    fn into_model(self) -> model::SymbolizationFailure {
        let Self { module, reason, names } = self;
        model::SymbolizationFailure { module: module.into_owned(), reason: reason.into_owned(), names: names.0 }
    }
}

impl Guardrails {
    fn new(guardrails: &guardrails::Guardrails) -> Self {
        Self {
            memory_bytes_max: guardrails.memory_bytes_max,
            memory_bytes_highest: guardrails.memory_bytes_highest,
            cpu_percent_max: guardrails.cpu_percent_max,
            cpu_percent_highest: guardrails.cpu_percent_highest,
            overhead_percent_max: guardrails.overhead_percent_max,
            probe_costs: guardrails.costs,
            reached: guardrails.reached.iter().map(Reached::new).collect(),
        }
    }

    fn into_model(self) -> Result<guardrails::Guardrails, String> {
        Ok(guardrails::Guardrails {
            memory_bytes_max: self.memory_bytes_max,
            memory_bytes_highest: self.memory_bytes_highest,
            cpu_percent_max: self.cpu_percent_max,
            cpu_percent_highest: self.cpu_percent_highest,
            overhead_percent_max: self.overhead_percent_max,
            costs: self.probe_costs,
            reached: self.reached.into_iter().map(Reached::into_model).collect::<Result<_, _>>()?,
        })
    }
}

impl Reached {
    fn new(reached: &guardrails::Reached) -> Self {
        let (limit, pid, bytes, percent) = match reached.what {
            Excess::Memory(bytes) => (Limit::Memory, None, Some(bytes), None),
            Excess::Cpu(percent) => (Limit::Cpu, None, None, Some(percent)),
            Excess::Overhead(pid, percent) => (Limit::Overhead, Some(pid.0), None, Some(percent)),
            Excess::Keeper => (Limit::Keeper, None, None, None),
        };
        Self { unix_ns: reached.unix_ns, limit, action: Name(reached.action), pid, bytes, percent }
    }

    fn into_model(self) -> Result<guardrails::Reached, String> {
        let what = match (self.limit, self.pid, self.bytes, self.percent) {
            (Limit::Memory, _, Some(bytes), _) => Excess::Memory(bytes),
            (Limit::Cpu, _, _, Some(percent)) => Excess::Cpu(percent),
            (Limit::Overhead, Some(pid), _, Some(percent)) => Excess::Overhead(Pid(pid), percent),
            (Limit::Keeper, ..) => Excess::Keeper,
            _ => return Err("the measurement of an exceeded limit is missing".to_owned()),
        };
        Ok(guardrails::Reached { unix_ns: self.unix_ns, what, action: self.action.0 })
    }
}
