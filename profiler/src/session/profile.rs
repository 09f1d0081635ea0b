//! Makes the profile of a session that has stopped.

use super::Session;
use crate::bpf::counters::Counters;
use crate::health;
use crate::ids::HeapId;
use crate::report::profile::{Health, Others, Profile};
use crate::symbolize::names::{Unnamed, name_profile};
use crate::symbolize::resolver::Resolver;
use crate::symbolize::trim::trim;
use crate::sys::clock;

impl Session {
    /// What was recorded, with names.
    pub(super) fn profile(&self, ended: clock::Instant, counters: &Counters) -> Profile {
        let targets = self.targets.all();
        let snapshots: Vec<_> = targets.iter().map(|target| target.ledger.snapshot(ended.monotonic)).collect();
        let unnamed: Vec<_> = targets
            .iter()
            .zip(&snapshots)
            .map(|(target, snapshot)| Unnamed { snapshot, space: &target.space })
            .collect();
        let discovery = &self.probes.discovery;
        let mut named = name_profile(&unnamed, &discovery.modules, &Resolver::new());
        if self.config.trim {
            for callsite in named.callsites.iter_mut().flatten() {
                callsite.stack = trim(&callsite.stack, &named.frames).to_vec();
            }
        }
        let targets = targets
            .iter()
            .zip(&snapshots)
            .zip(named.callsites)
            .map(|((target, snapshot), callsites)| target.profile(snapshot, callsites, &self.probes))
            .collect();
        let interval_bytes = |heap: &HeapId| {
            let heap = &discovery.plan.heaps()[usize::from(heap.0)];
            u64::from(self.probes.interval(heap).bytes())
        };
        let folded_interval_bytes = self.targets.heaps_folded.iter().map(interval_bytes).max();
        Profile {
            interval_bytes: u64::from(self.config.interval.bytes()),
            started_unix_ns: self.started.unix_ns,
            ended_unix_ns: ended.unix_ns,
            started_monotonic_ns: self.started.monotonic.0,
            targets,
            others: Others { folded_interval_bytes, ..self.targets.others.clone() },
            frames: named.frames,
            health: Health {
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
