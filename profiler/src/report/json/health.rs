//! What was lost, in the JSON report.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::guardrails::GuardrailsFields;
use crate::model::{Health, IntervalChange, Symbolization, SymbolizationFailure, UnfoundHook};

#[derive(Serialize)]
pub(in crate::report) struct HealthFields<'a> {
    events: u64,
    lost: Reasons<'a>,
    unwind: Reasons<'a>,
    frame_pointer_modules: &'a [String],
    unfound: Vec<UnfoundFields<'a>>,
    resyncs: u64,
    agent_cpu_ns: u64,
    agent_rss_bytes_max: u64,
    interval_changes: Vec<ChangeFields<'a>>,
    guardrails: GuardrailsFields,
    symbolization: SymbolizationFields<'a>,
}

impl<'a> HealthFields<'a> {
    pub(in crate::report) fn new(health: &'a Health) -> Self {
        Self {
            events: health.events,
            lost: Reasons(&health.lost),
            unwind: Reasons(&health.unwind),
            frame_pointer_modules: &health.frame_pointer_modules,
            unfound: health.unfound.iter().map(UnfoundFields::new).collect(),
            resyncs: health.resyncs,
            agent_cpu_ns: health.agent_cpu_ns,
            agent_rss_bytes_max: health.agent_rss_bytes_max,
            interval_changes: health.interval_changes.iter().map(ChangeFields::new).collect(),
            guardrails: GuardrailsFields::new(&health.guardrails),
            symbolization: SymbolizationFields::new(&health.symbolization),
        }
    }
}

/// A heap's interval from some time on.
#[derive(Serialize)]
struct ChangeFields<'a> {
    unix_ns: u64,
    heap: &'a str,
    from_bytes: u64,
    to_bytes: u64,
    /// `ring_full`, `ring_filling`, `live_set_filling` or `quiet`.
    reason: &'static str,
}

impl<'a> ChangeFields<'a> {
    fn new(change: &'a IntervalChange) -> Self {
        let IntervalChange { unix_ns, ref heap, from_bytes, to_bytes, reason } = *change;
        Self { unix_ns, heap, from_bytes, to_bytes, reason: reason.name() }
    }
}

/// How functions were named.
#[derive(Serialize)]
struct SymbolizationFields<'a> {
    isolation: Vec<&'a str>,
    isolation_missing: Vec<&'a str>,
    failures: Vec<FailureFields<'a>>,
}

impl<'a> SymbolizationFields<'a> {
    fn new(symbolization: &'a Symbolization) -> Self {
        Self {
            isolation: symbolization.isolated(true).collect(),
            isolation_missing: symbolization.isolated(false).collect(),
            failures: symbolization.failures.iter().map(FailureFields::new).collect(),
        }
    }
}

#[derive(Serialize)]
struct FailureFields<'a> {
    module: &'a str,
    reason: &'a str,
    /// `symbol_table` or `none`.
    names: &'static str,
}

impl<'a> FailureFields<'a> {
    fn new(failure: &'a SymbolizationFailure) -> Self {
        Self { module: &failure.module, reason: &failure.reason, names: failure.names.name() }
    }
}

/// A function that was named and is nowhere.
#[derive(Serialize)]
struct UnfoundFields<'a> {
    heap: &'a str,
    function: &'a str,
    modules: &'a [String],
    required: bool,
}

impl<'a> UnfoundFields<'a> {
    fn new(hook: &'a UnfoundHook) -> Self {
        Self { heap: &hook.heap, function: &hook.function, modules: &hook.modules, required: hook.required }
    }
}

/// Counts by reason: an object, also when it is empty.
struct Reasons<'a>(&'a [(String, u64)]);

impl Serialize for Reasons<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (reason, count) in self.0 {
            map.serialize_entry(reason, count)?;
        }
        map.end()
    }
}
