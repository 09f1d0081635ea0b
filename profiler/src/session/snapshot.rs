//! Takes snapshots of a session. No name is looked for here: that takes long, and the ring fills meanwhile.

use anyhow::Result;
use profiler_common::counter::Counter;

use super::Session;
use crate::bpf::counters::Counters;
use crate::health;
use crate::ids::HeapId;
use crate::report::profile::{Health, Others, Window, WindowReason};
use crate::snapshot::{Snapshot, TargetState, WindowFacts};
use crate::sys::clock;

impl Session {
    /// What was recorded until `now`. Before the end, only what is in the window.
    pub(super) fn snapshot(&self, now: clock::Instant, counters: &Counters, window: Option<Window>) -> Snapshot {
        let discovery = &self.probes.discovery;
        let interval_bytes = |heap: &HeapId| {
            let heap = &discovery.plan.heaps()[usize::from(heap.0)];
            u64::from(self.probes.interval(heap).bytes())
        };
        let folded_interval_bytes = self.targets.heaps_folded.iter().map(interval_bytes).max();
        let health = self.health(counters);
        let window = window.map(|window| WindowFacts {
            window,
            others: Others { folded_interval_bytes, ..self.targets.others_of_window() },
            health: self.dumps.health_of_window(&health),
        });
        let is_last = window.as_ref().is_none_or(|facts| facts.window.reason == WindowReason::End);
        Snapshot {
            interval_bytes: u64::from(self.config.interval.bytes()),
            started_unix_ns: self.started.unix_ns,
            started_monotonic_ns: self.started.monotonic.0,
            ended_unix_ns: now.unix_ns,
            targets: self.states(now, !is_last),
            window,
            others: Others { folded_interval_bytes, ..self.targets.others.clone() },
            modules: discovery.modules.share(),
            health,
        }
    }

    /// The targets, or those alone that are in the present window.
    pub(super) fn states(&self, now: clock::Instant, of_window: bool) -> Vec<TargetState> {
        let targets = self.targets.all().into_iter().filter(|target| !(of_window && target.is_past()));
        targets.map(|target| target.state(now.monotonic, &self.probes)).collect()
    }

    /// What was lost and what it cost.
    pub(super) fn health(&self, counters: &Counters) -> Health {
        Health {
            guardrails: self.guard.report(),
            unfound: self.probes.discovery.unfound(),
            ..health::collect(
                counters,
                self.records_unreadable,
                self.targets.frees_unknown(),
                self.probes.unwinding.by_frame_pointer(),
            )
        }
    }

    /// The kernel's counters, with what the session counts for it.
    pub(super) fn counters(&self) -> Result<Counters> {
        let mut counters = Counters::read(&self.probes.kernel)?;
        counters.add(Counter::TargetsFull, self.targets_unmarked);
        Ok(counters)
    }
}
