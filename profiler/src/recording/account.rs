//! All that a replay keeps of one target.

use std::sync::Arc;

use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};

use super::entry::{Known, MappedRange, ThreadFacts};
use crate::ids::Pid;
use crate::leak::growth::Growths;
use crate::ledger::Ledger;
use crate::ledger::timeline::{Instant, Timeline};
use crate::linux::proc::maps::{Device, Mapping, MappingName};
use crate::process::address_space::{AddressSpace, MappedModule};
use crate::snapshot::ThreadNames;
use crate::units::MonotonicNanos;

/// Mappings that are remembered after they went, as a session does.
const RETIRED_MAX: usize = 4096;

/// Names of threads that are believed, and the bytes of one.
const THREADS_MAX: usize = 4096;
const THREAD_NAME_BYTES_MAX: usize = 64;

/// The books of one target, and what is known of it.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Account {
    pub(super) ledger: Ledger,
    /// `None` when that was not written yet.
    pub(super) known: Option<Known>,
    /// Where its code lies, and where it was, the oldest first.
    pub(super) mapped: Vec<MappedRange>,
    retired: Vec<MappedRange>,
    /// What its threads are called.
    pub(super) threads: Arc<ThreadNames>,
    /// What callsites held in the course of time, and how they had grown at the end.
    pub(super) timeline: Timeline,
    growths_at_end: Option<Growths>,
    /// When live blocks were looked at for the last time, where no event comes any more.
    closed: Option<MonotonicNanos>,
    /// When these books were opened.
    pub(super) opened: MonotonicNanos,
}

impl Account {
    /// These books, opened now.
    pub(super) fn new(ledger: Ledger, opened: MonotonicNanos) -> Self {
        Self {
            ledger,
            known: None,
            mapped: Vec::new(),
            retired: Vec::new(),
            threads: Arc::default(),
            timeline: Timeline::default(),
            growths_at_end: None,
            closed: None,
            opened,
        }
    }

    /// Notes what callsites hold.
    pub(super) fn note(&mut self, instant: Instant) {
        self.timeline.note(instant, &self.ledger);
    }

    /// A thread is called so.
    pub(super) fn call(&mut self, ThreadFacts { tid, name }: ThreadFacts) {
        let is_known = self.threads.contains_key(&tid);
        if name.len() <= THREAD_NAME_BYTES_MAX && (is_known || self.threads.len() < THREADS_MAX) {
            Arc::make_mut(&mut self.threads).insert(tid, name);
        }
    }

    /// No event will come. `closed` is when live blocks were looked at for the last time.
    pub(super) fn close(&mut self, closed: Option<MonotonicNanos>) {
        self.growths_at_end = closed.map(|closed| Growths::of(&self.timeline, &self.ledger, closed, None));
        self.ledger.close(closed.unwrap_or_default());
        self.closed = closed;
    }

    /// How callsites have grown until `now`, or until the books were closed.
    pub(super) fn growths(&self, now: MonotonicNanos) -> Growths {
        self.growths_at_end.clone().unwrap_or_else(|| Growths::of(&self.timeline, &self.ledger, now, None))
    }

    /// Until when its books tell something, at `now`.
    pub(super) fn until(&self, now: MonotonicNanos) -> MonotonicNanos {
        self.closed.unwrap_or(now)
    }

    /// Whether it holds together: what was read from a file need not.
    pub(super) fn is_sound(&self) -> bool {
        self.ledger.is_sound() && self.timeline.is_sound()
    }

    /// Where its code lies; what is said to be in a module that there is not is taken for generated code.
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
        let gone: Vec<MappedRange> = before.into_iter().filter(|old| !current.contains(old)).collect();
        let again: FxHashSet<MappedRange> = gone.iter().copied().collect();
        self.retired.retain(|old| !again.contains(old));
        self.retired.extend(gone);
        let excess = self.retired.len().saturating_sub(RETIRED_MAX);
        self.retired.drain(..excess);
    }
}
