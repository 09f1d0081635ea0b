//! What a recording dropped, and what it cost.

use serde::{Deserialize, Serialize};

use super::guardrails::Guardrails;
use super::intervals::IntervalChange;
use super::symbolization::Symbolization;

/// What was lost, and what profiling cost.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    /// Records that the kernel side wrote.
    pub events: u64,
    /// Losses by reason; reasons with 0 are left out.
    pub lost: Vec<(String, u64)>,
    /// Stacks by how they ended.
    pub unwind: Vec<(String, u64)>,
    /// Modules that were unwound by frame pointers because they have no unwind tables.
    pub frame_pointer_modules: Vec<String>,
    /// Functions that were named, and were in no process.
    pub unfound: Vec<UnfoundHook>,
    /// How often the ledger was put right from the kernel's live set.
    pub resyncs: u64,
    /// When heaps were sampled at another interval from then on, the first first.
    pub interval_changes: Vec<IntervalChange>,
    /// CPU time of the agent, in nanoseconds.
    pub agent_cpu_ns: u64,
    /// Largest resident size of the agent, in bytes.
    pub agent_rss_bytes_max: u64,
    /// Limits on what profiling may cost.
    pub guardrails: Guardrails,
    /// How functions were named. Known when a report is made; recordings have it beside their names.
    #[serde(skip)]
    pub symbolization: Symbolization,
}

/// A function that was named, and was in no module that may have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnfoundHook {
    /// Its heap.
    pub heap: String,
    /// Its symbol.
    pub function: String,
    /// The modules that it may be in, as they were named; `*` for any.
    pub modules: Vec<String>,
    /// Without it the profile is not whole.
    pub required: bool,
}

impl Health {
    /// Adds a loss, if there was one.
    pub fn lose(&mut self, reason: &str, count: u64) {
        if count > 0 {
            self.lost.push((reason.to_owned(), count));
        }
    }

    /// What has happened since `base`, the health of the same recording earlier. What has no time stays what it is: the
    /// modules, the functions, the largest size.
    pub fn since(&self, base: &Self) -> Self {
        let since = |now: &[(String, u64)], base: &[(String, u64)]| {
            let before = |name: &String| base.iter().find(|(known, _)| known == name).map_or(0, |(_, count)| *count);
            let rest = now.iter().map(|(name, count)| (name.clone(), count.saturating_sub(before(name))));
            rest.filter(|(_, count)| *count > 0).collect()
        };
        Self {
            events: self.events.saturating_sub(base.events),
            lost: since(&self.lost, &base.lost),
            unwind: since(&self.unwind, &base.unwind),
            resyncs: self.resyncs.saturating_sub(base.resyncs),
            agent_cpu_ns: self.agent_cpu_ns.saturating_sub(base.agent_cpu_ns),
            ..self.clone()
        }
    }

    /// Everything lost, over all reasons.
    pub fn lost_total(&self) -> u64 {
        self.lost.iter().map(|(_, count)| count).sum()
    }
}
