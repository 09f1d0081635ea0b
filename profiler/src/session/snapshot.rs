//! Takes snapshots of a session. No name is looked for here: that takes long, and the ring fills meanwhile.

use super::Session;
use crate::bpf::counters::Counters;
use crate::health;
use crate::ids::HeapId;
use crate::report::profile::{Health, Others};
use crate::snapshot::Snapshot;
use crate::sys::clock;

impl Session {
    /// What was recorded.
    pub(super) fn snapshot(&self, ended: clock::Instant, counters: &Counters) -> Snapshot {
        let discovery = &self.probes.discovery;
        let interval_bytes = |heap: &HeapId| {
            let heap = &discovery.plan.heaps()[usize::from(heap.0)];
            u64::from(self.probes.interval(heap).bytes())
        };
        let folded_interval_bytes = self.targets.heaps_folded.iter().map(interval_bytes).max();
        Snapshot {
            interval_bytes: u64::from(self.config.interval.bytes()),
            started_unix_ns: self.started.unix_ns,
            started_monotonic_ns: self.started.monotonic.0,
            ended_unix_ns: ended.unix_ns,
            window: None,
            older_than: self.config.older_than,
            targets: self.targets.all().into_iter().map(|target| target.state(ended.monotonic, &self.probes)).collect(),
            others: Others { folded_interval_bytes, ..self.targets.others.clone() },
            modules: discovery.modules.share(),
            health: Health {
                guardrails: self.guard.report(),
                unfound: discovery.unfound(),
                ..health::collect(
                    counters,
                    self.records_unreadable,
                    self.targets.frees_unknown(),
                    self.probes.unwinding.by_frame_pointer(),
                )
            },
        }
    }
}
