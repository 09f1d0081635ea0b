//! The state that a replay has of one target.

use std::sync::Arc;

use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};

use super::entry::{MappedRange, TargetRecord, ThreadFacts};
use crate::ids::Pid;
use crate::ledger::Ledger;
use crate::ledger::timeline::{Timeline, TimelinePoint};
use crate::linux::proc::maps::{Device, Mapping, MappingName};
use crate::model::Leaks;
use crate::process::address_space::{AddressSpace, MappedModule};
use crate::snapshot::ThreadNames;
use crate::units::MonotonicNanos;

/// Maximum number of removed mappings to remember, as in a session.
const RETIRED_MAX: usize = 4096;
const THREADS_MAX: usize = 4096;
const THREAD_NAME_BYTES_MAX: usize = 64;

#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Account {
    pub(super) ledger: Ledger,
    pub(super) record: Option<TargetRecord>,
    /// Current executable mappings, and removed ones, the oldest first.
    pub(super) mapped: Vec<MappedRange>,
    retired: Vec<MappedRange>,
    pub(super) threads: Arc<ThreadNames>,
    pub(super) timeline: Timeline,
    growths_at_end: Option<Leaks>,
    /// When live blocks were last sampled, if the ledger is closed.
    closed: Option<MonotonicNanos>,
    pub(super) opened: MonotonicNanos,
}

impl Account {
    pub(super) fn new(ledger: Ledger, opened: MonotonicNanos) -> Self {
        Self {
            ledger,
            record: None,
            mapped: Vec::new(),
            retired: Vec::new(),
            threads: Arc::default(),
            timeline: Timeline::default(),
            growths_at_end: None,
            closed: None,
            opened,
        }
    }

    pub(super) fn sample(&mut self, point: TimelinePoint) {
        self.timeline.note(point, &self.ledger);
    }

    pub(super) fn set_thread_name(&mut self, ThreadFacts { tid, name }: ThreadFacts) {
        let is_known = self.threads.contains_key(&tid);
        if name.len() <= THREAD_NAME_BYTES_MAX && (is_known || self.threads.len() < THREADS_MAX) {
            Arc::make_mut(&mut self.threads).insert(tid, name);
        }
    }

    pub(super) fn close(&mut self, closed: Option<MonotonicNanos>) {
        self.growths_at_end = closed.map(|closed| Leaks::of(&self.timeline, &self.ledger, closed, None));
        self.ledger.close(closed.unwrap_or_default());
        self.closed = closed;
    }

    pub(super) fn growths(&self, now: MonotonicNanos) -> Leaks {
        self.growths_at_end.clone().unwrap_or_else(|| Leaks::of(&self.timeline, &self.ledger, now, None))
    }

    pub(super) fn until(&self, now: MonotonicNanos) -> MonotonicNanos {
        self.closed.unwrap_or(now)
    }

    pub(super) fn is_sound(&self) -> bool {
        self.ledger.is_sound() && self.timeline.is_sound()
    }

    /// Returns the address space; mappings of unknown modules count as generated code.
    pub(super) fn space(&self, pid: Pid, modules: usize) -> AddressSpace {
        let mapped = |range: &MappedRange| MappedModule {
            mapping: Mapping {
                start: range.start,
                end: range.end,
                offset: range.offset,
                device: Device { major: 0, minor: 0 },
                inode: 0,
                name: MappingName::Anonymous,
            },
            module: range.module.filter(|module| (module.0 as usize) < modules),
        };
        AddressSpace::of(pid, self.mapped.iter().map(mapped).collect(), self.retired.iter().map(mapped).collect())
    }

    pub(super) fn map(&mut self, mappings: Vec<MappedRange>) {
        let before = std::mem::replace(&mut self.mapped, mappings);
        let current: FxHashSet<MappedRange> = self.mapped.iter().copied().collect();
        let removed: Vec<MappedRange> = before.into_iter().filter(|old| !current.contains(old)).collect();
        let retired_again: FxHashSet<MappedRange> = removed.iter().copied().collect();
        self.retired.retain(|old| !retired_again.contains(old));
        self.retired.extend(removed);
        let excess = self.retired.len().saturating_sub(RETIRED_MAX);
        self.retired.drain(..excess);
    }
}
