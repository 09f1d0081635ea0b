//! Health in JSON reports: drops, unwinding, limits and symbolization. The types describe those of the model for serde.

use std::borrow::Cow;

use heapbpf_base::ids::Pid;
use heapbpf_ledger::model::{
    self, Action, Download, Excess, InlineEngine, InlinedHeap, InterpreterFrames, IntervalChange, Loss, ProbeCosts,
    ProbeScope, SymbolizationFailure, Unaccounted, UnfoundHook, UnnamedModule,
};
#[cfg(test)]
use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::values::counts;

/// Drops, and the cost of profiling.
#[derive(Serialize, Deserialize)]
#[serde(remote = "model::Health")]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct Health {
    /// Number of records that the kernel side wrote.
    events: u64,
    /// Dropped records and blocks, by reason (see docs/formats.md).
    #[serde(with = "counts")]
    #[cfg_attr(test, schemars(with = "counts::Counts"))]
    lost: Vec<(Loss, u64)>,
    /// What the dropped records may represent; missing if nothing was dropped.
    #[serde(default, skip_serializing_if = "Unaccounted::is_none")]
    unaccounted: Unaccounted,
    /// Number of stacks, by how unwinding ended.
    #[serde(with = "counts")]
    #[cfg_attr(test, schemars(with = "counts::Counts"))]
    unwind: Vec<(String, u64)>,
    /// Modules without unwind tables, which were unwound by frame pointers.
    #[serde(default)]
    frame_pointer_modules: Vec<String>,
    /// User-defined hooks whose function was in no process.
    #[serde(default)]
    unfound: Vec<UnfoundHook>,
    /// Heaps that were not hooked in a module, because its compiler inlined their functions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    inlined_heaps: Vec<InlinedHeap>,
    /// Number of times the ledger was resynced from the kernel's live set.
    resyncs: u64,
    /// CPU time of heapbpf, in nanoseconds.
    agent_cpu_ns: u64,
    /// Of it, for samples of the targets' resident memory, in nanoseconds.
    #[serde(default)]
    memory_sampling_ns: u64,
    /// Peak resident set size of heapbpf, in bytes.
    agent_rss_bytes_max: u64,
    /// Changes of heaps' intervals, in the order of time.
    #[serde(default)]
    interval_changes: Vec<IntervalChange>,
    /// Limits on the cost of profiling.
    #[serde(default, with = "Guardrails")]
    guardrails: model::Guardrails,
    /// Which processes met the probes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scope: Option<ProbeScope>,
    /// How calls reached the inline engine; missing with the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    inline_engine: Option<InlineEngine>,
    /// Functions that interpreters execute, in stacks; missing without such processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    interpreters: Option<InterpreterFrames>,
    /// How addresses were symbolized.
    #[serde(default, with = "Symbolization")]
    symbolization: model::Symbolization,
}

/// Limits on the cost of profiling; null where none was set.
#[derive(Serialize, Deserialize)]
#[serde(remote = "model::Guardrails")]
#[cfg_attr(test, derive(JsonSchema))]
struct Guardrails {
    /// Limit on the memory of heapbpf and the kernel's maps, in bytes.
    memory_bytes_max: Option<u64>,
    /// Peak of that memory.
    memory_bytes_highest: Option<u64>,
    /// Limit on the CPU usage of heapbpf, in percent of one core.
    cpu_percent_max: Option<f64>,
    /// Peak of that usage, over some seconds.
    cpu_percent_highest: Option<f64>,
    /// Limit on the probes' share of a target's CPU time, in percent.
    overhead_percent_max: Option<f64>,
    /// Cost of probes on this machine, where measured.
    probe_costs: Option<ProbeCosts>,
    /// Exceeded limits, in the order of time.
    #[serde(with = "Reached")]
    #[cfg_attr(test, schemars(with = "Vec<Reached>"))]
    reached: Vec<model::Reached>,
}

/// An exceeded limit.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
struct Reached {
    /// When the limit was exceeded, in nanoseconds since the Unix epoch.
    unix_ns: u64,
    /// The exceeded limit; `keeper` if the keeper process exited prematurely, `group` if heapbpf's control group was nearly out
    /// of memory.
    limit: Limit,
    /// What heapbpf did in response.
    action: Action,
    /// The target, for a limit per target.
    pid: Option<u32>,
    /// Measured memory, in bytes.
    bytes: Option<u64>,
    /// Measured CPU usage or overhead, in percent.
    percent: Option<f64>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(test, derive(JsonSchema), schemars(inline))]
enum Limit {
    Memory,
    Cpu,
    Overhead,
    Keeper,
    Group,
}

impl Reached {
    fn serialize<S: Serializer>(all: &[model::Reached], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(all.iter().map(|reached| {
            let (limit, pid, bytes, percent) = match reached.what {
                Excess::Memory(bytes) => (Limit::Memory, None, Some(bytes), None),
                Excess::Cpu(percent) => (Limit::Cpu, None, None, Some(percent)),
                Excess::Overhead(pid, percent) => (Limit::Overhead, Some(pid.0), None, Some(percent)),
                Excess::Keeper => (Limit::Keeper, None, None, None),
                Excess::Group(bytes) => (Limit::Group, None, Some(bytes), None),
            };
            Self { unix_ns: reached.unix_ns, limit, action: reached.action, pid, bytes, percent }
        }))
    }

    fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<model::Reached>, D::Error> {
        let all: Vec<Self> = Deserialize::deserialize(from)?;
        let model = |Self { unix_ns, limit, action, pid, bytes, percent }| {
            let what = match (limit, pid, bytes, percent) {
                (Limit::Memory, _, Some(bytes), _) => Excess::Memory(bytes),
                (Limit::Cpu, _, _, Some(percent)) => Excess::Cpu(percent),
                (Limit::Overhead, Some(pid), _, Some(percent)) => Excess::Overhead(Pid(pid), percent),
                (Limit::Keeper, ..) => Excess::Keeper,
                (Limit::Group, _, Some(bytes), _) => Excess::Group(bytes),
                _ => return Err(D::Error::custom("the measurement of an exceeded limit is missing")),
            };
            Ok(model::Reached { unix_ns, what, action })
        };
        all.into_iter().map(model).collect()
    }
}

/// How addresses were symbolized.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
struct Symbolization<'a> {
    /// What the symbolizer process was isolated from (`files`, `capabilities`, `system_calls`, `limits`); empty where
    /// nothing was symbolized.
    isolation: Vec<Cow<'a, str>>,
    /// What it was not isolated from, because the kernel refused.
    isolation_missing: Vec<Cow<'a, str>>,
    /// Modules that could not be symbolized completely.
    failures: Cow<'a, [SymbolizationFailure]>,
    /// Symbolizer processes that crashed, exited early or could not be started: names are missing.
    #[serde(default)]
    crashes: u64,
    /// Modules with functions that have no name and at least 1 % of the profile's bytes.
    #[serde(default)]
    modules: Cow<'a, [UnnamedModule]>,
    /// Debug files that were requested from debuginfod servers.
    #[serde(default)]
    downloads: Cow<'a, [Download]>,
}

impl Symbolization<'_> {
    fn serialize<S: Serializer>(model: &model::Symbolization, serializer: S) -> Result<S::Ok, S::Error> {
        let isolated = |in_force| model.isolated(in_force).map(Cow::Borrowed).collect();
        let (isolation, isolation_missing) = (isolated(true), isolated(false));
        let fields = Symbolization {
            isolation,
            isolation_missing,
            failures: Cow::Borrowed(&model.failures),
            crashes: model.crashes,
            modules: Cow::Borrowed(&model.modules),
            downloads: Cow::Borrowed(&model.downloads),
        };
        Serialize::serialize(&fields, serializer)
    }

    fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<model::Symbolization, D::Error> {
        let fields: Symbolization<'_> = Deserialize::deserialize(from)?;
        let isolation = fields.isolation.into_iter().map(|name| (name.into_owned(), true));
        let missing = fields.isolation_missing.into_iter().map(|name| (name.into_owned(), false));
        Ok(model::Symbolization {
            isolation: isolation.chain(missing).collect(),
            failures: fields.failures.into_owned(),
            crashes: fields.crashes,
            modules: fields.modules.into_owned(),
            downloads: fields.downloads.into_owned(),
        })
    }
}
