//! Takes snapshots of a session. No name is looked for here: that takes long, and the ring fills meanwhile.

use anyhow::Result;
use profiler_common::counter::Counter;

use super::Session;
use super::target::Target;
use crate::bpf::counters::Counters;
use crate::health;
use crate::ids::HeapId;
use crate::ledger::totals::Totals;
use crate::linux::clock;
use crate::model::{Health, Others, Window, WindowReason};
use crate::snapshot::{HeapFacts, Snapshot, TargetState, WindowFacts};

impl Session {
    /// What was recorded until `now`. Before the end, only what is in the window.
    pub(super) fn snapshot(&self, now: clock::Instant, counters: &Counters, window: Option<Window>) -> Snapshot {
        let health = self.health(counters);
        let window = window.map(|window| WindowFacts {
            window,
            start: self.dumps.start().unwrap_or(self.started).monotonic,
            others: self.others_of(self.targets.others_of_window()),
            health: self.dumps.health_of_window(&health),
        });
        let is_last = window.as_ref().is_none_or(|facts| facts.window.reason == WindowReason::End);
        Snapshot {
            interval_bytes: u64::from(self.config.interval.bytes()),
            started_unix_ns: self.started.unix_ns,
            started_monotonic_ns: self.started.monotonic.0,
            ended_unix_ns: now.unix_ns,
            older_than: self.config.older_than,
            targets: self.states(now, !is_last),
            window,
            others: self.others(),
            modules: self.probes.discovery.modules.share(),
            health,
        }
    }

    /// Processes that are no targets of their own.
    pub(super) fn others(&self) -> Others {
        self.others_of(self.targets.others.clone())
    }

    fn others_of(&self, others: Others) -> Others {
        let interval_bytes = |id: &HeapId| {
            let heap = &self.probes.discovery.plan.heaps()[usize::from(id.0)];
            u64::from(self.probes.interval(heap).bytes()).max(self.back_pressure.interval_bytes_max(*id))
        };
        let folded_interval_bytes = self.targets.heaps_folded.iter().map(interval_bytes).max();
        Others { folded_interval_bytes, ..others }
    }

    /// The targets, or those alone that are in the present window.
    pub(super) fn states(&self, now: clock::Instant, of_window: bool) -> Vec<TargetState> {
        let targets = self.targets.all().into_iter().filter(|target| !(of_window && target.is_past()));
        let state = |target: &Target| {
            let mut state = target.state(now.monotonic, &self.probes);
            self.widen(&mut state.heaps);
            state
        };
        targets.map(state).collect()
    }

    /// The heaps of a target whose books have these.
    pub(super) fn heaps(&self, target: &Target, totals: &[(HeapId, Totals)]) -> Vec<HeapFacts> {
        let mut heaps = target.hooks.heaps(totals, &self.probes);
        self.widen(&mut heaps);
        heaps
    }

    fn widen(&self, heaps: &mut [HeapFacts]) {
        for heap in heaps {
            heap.interval_bytes_max = heap.interval_bytes.max(self.back_pressure.interval_bytes_max(heap.id));
        }
    }

    /// What was lost and what it cost.
    pub(super) fn health(&self, counters: &Counters) -> Health {
        let mut health = Health {
            guardrails: self.guard.report(),
            unfound: self.probes.discovery.unfound(),
            resyncs: self.back_pressure.resyncs(),
            interval_changes: self.interval_changes(),
            ..health::collect(
                counters,
                self.records_unreadable,
                self.targets.frees_unknown(),
                self.probes.unwinding.by_frame_pointer(),
            )
        };
        let stacks_lost = self.targets.all().into_iter().map(|target| target.ledger.stacks_lost()).sum();
        health.lose("stack_lost", stacks_lost);
        health.lose("probe_missed", self.probes.kernel.probes_missed());
        health
    }

    /// The kernel's counters, with what the session counts for it.
    pub(super) fn counters(&self) -> Result<Counters> {
        let mut counters = Counters::read(&self.probes.kernel)?;
        counters.add(Counter::TargetsFull, self.targets_unmarked);
        Ok(counters)
    }
}
