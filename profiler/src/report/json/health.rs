//! Health in JSON reports: drops, unwinding, limits and symbolization.

use std::borrow::Cow;

#[cfg(test)]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::values::Counts;
use crate::ids::Pid;
use crate::model::guardrails::{self, Action, Excess, Usage};
use crate::model::{self, IntervalChange, Loss, ProbeScope, SymbolizationFailure, UnfoundHook};

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
    pub(super) interval_changes: Cow<'a, [IntervalChange]>,
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

/// Limits on the cost of profiling; null where none was set.
#[derive(Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct Guardrails {
    #[serde(flatten)]
    pub(super) usage: Usage,
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
    pub(super) action: Action,
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
    pub(super) failures: Cow<'a, [SymbolizationFailure]>,
}

impl<'a> Health<'a> {
    pub(in crate::report) fn new(health: &'a model::Health) -> Self {
        let isolated = |in_force| health.symbolization.isolated(in_force).map(Cow::Borrowed).collect();
        let guardrails::Guardrails { usage, reached } = &health.guardrails;
        Self {
            events: health.events,
            lost: Counts(Cow::Borrowed(&health.lost)),
            unwind: Counts(Cow::Borrowed(&health.unwind)),
            frame_pointer_modules: Cow::Borrowed(&health.frame_pointer_modules),
            unfound: Cow::Borrowed(&health.unfound),
            resyncs: health.resyncs,
            agent_cpu_ns: health.agent_cpu_ns,
            agent_rss_bytes_max: health.agent_rss_bytes_max,
            interval_changes: Cow::Borrowed(&health.interval_changes),
            guardrails: Guardrails { usage: *usage, reached: reached.iter().map(Reached::new).collect() },
            scope: health.scope.clone(),
            symbolization: Symbolization {
                isolation: isolated(true),
                isolation_missing: isolated(false),
                failures: Cow::Borrowed(&health.symbolization.failures),
            },
        }
    }

    pub(super) fn into_model(self) -> Result<model::Health, String> {
        let isolation = self.symbolization.isolation.into_iter().map(|name| (name.into_owned(), true));
        let missing = self.symbolization.isolation_missing.into_iter().map(|name| (name.into_owned(), false));
        let reached = self.guardrails.reached.into_iter().map(Reached::into_model);
        Ok(model::Health {
            events: self.events,
            lost: self.lost.0.into_owned(),
            unwind: self.unwind.0.into_owned(),
            frame_pointer_modules: self.frame_pointer_modules.into_owned(),
            unfound: self.unfound.into_owned(),
            resyncs: self.resyncs,
            interval_changes: self.interval_changes.into_owned(),
            agent_cpu_ns: self.agent_cpu_ns,
            agent_rss_bytes_max: self.agent_rss_bytes_max,
            guardrails: guardrails::Guardrails {
                usage: self.guardrails.usage,
                reached: reached.collect::<Result<_, _>>()?,
            },
            scope: self.scope,
            symbolization: model::Symbolization {
                isolation: isolation.chain(missing).collect(),
                failures: self.symbolization.failures.into_owned(),
            },
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
        Self { unix_ns: reached.unix_ns, limit, action: reached.action, pid, bytes, percent }
    }

    fn into_model(self) -> Result<guardrails::Reached, String> {
        let what = match (self.limit, self.pid, self.bytes, self.percent) {
            (Limit::Memory, _, Some(bytes), _) => Excess::Memory(bytes),
            (Limit::Cpu, _, _, Some(percent)) => Excess::Cpu(percent),
            (Limit::Overhead, Some(pid), _, Some(percent)) => Excess::Overhead(Pid(pid), percent),
            (Limit::Keeper, ..) => Excess::Keeper,
            _ => return Err("the measurement of an exceeded limit is missing".to_owned()),
        };
        Ok(guardrails::Reached { unix_ns: self.unix_ns, what, action: self.action })
    }
}
