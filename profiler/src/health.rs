//! What was lost and what profiling cost, as reports tell it.

use std::hash::{BuildHasher, Hasher, RandomState};

use profiler_common::counter::Counter;

use crate::bpf::counters::Counters;
use crate::linux::clock;
use crate::model::guardrails::Guardrails;
use crate::model::{Health, Symbolization};

/// The kernel's counters and the agent's own, at the end of a recording.
pub(crate) fn collect(
    counters: &Counters,
    records_unreadable: u64,
    frees_unknown: u64,
    frame_pointer_modules: &[String],
) -> Health {
    let mut lost: Vec<(String, u64)> =
        counters.losses().map(|(counter, count)| (counter.name().to_owned(), count)).collect();
    let own = [("unreadable_record", records_unreadable), ("unknown_free", frees_unknown)];
    lost.extend(own.into_iter().filter(|(_, count)| *count > 0).map(|(name, count)| (name.to_owned(), count)));
    Health {
        events: counters.get(Counter::Events),
        lost,
        unwind: counters.stack_ends().map(|(counter, count)| (counter.name().to_owned(), count)).collect(),
        frame_pointer_modules: frame_pointer_modules.to_vec(),
        unfound: Vec::new(),
        resyncs: 0,
        interval_changes: Vec::new(),
        agent_cpu_ns: clock::cpu_ns(),
        agent_rss_bytes_max: clock::rss_bytes_max(),
        guardrails: Guardrails::default(),
        symbolization: Symbolization::default(),
    }
}

/// A number that targets cannot guess. The standard library seeds its hash maps from the system's random source.
pub(crate) fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}
