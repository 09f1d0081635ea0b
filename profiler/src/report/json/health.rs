//! What was lost, in the JSON report.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::guardrails::GuardrailsFields;
use crate::report::profile::{Health, UnfoundHook};

#[derive(Serialize)]
pub(super) struct HealthFields<'a> {
    events: u64,
    lost: Reasons<'a>,
    unwind: Reasons<'a>,
    frame_pointer_modules: &'a [String],
    unfound: Vec<UnfoundFields<'a>>,
    resyncs: u64,
    agent_cpu_ns: u64,
    agent_rss_bytes_max: u64,
    /// Times at which the interval changed. It does not yet.
    interval_changes: [(); 0],
    guardrails: GuardrailsFields,
}

impl<'a> HealthFields<'a> {
    pub(super) fn new(health: &'a Health) -> Self {
        Self {
            events: health.events,
            lost: Reasons(&health.lost),
            unwind: Reasons(&health.unwind),
            frame_pointer_modules: &health.frame_pointer_modules,
            unfound: health.unfound.iter().map(UnfoundFields::new).collect(),
            resyncs: health.resyncs,
            agent_cpu_ns: health.agent_cpu_ns,
            agent_rss_bytes_max: health.agent_rss_bytes_max,
            interval_changes: [],
            guardrails: GuardrailsFields::new(&health.guardrails),
        }
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
