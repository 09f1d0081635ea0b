//! What a session knows at an instant, without names: a plain value that goes to whoever names and writes it, so that the
//! session goes on meanwhile. Owns no clock, file or map of its own; the modules in it are the session's, shared.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{HeapId, Pid, Tid};
use crate::leak::growth::Growths;
use crate::ledger::curve::Moment;
use crate::ledger::snapshot::TargetSnapshot;
use crate::ledger::timeline::Timeline;
use crate::ledger::totals::Amounts;
use crate::model::guardrails::Overhead;
use crate::model::{Beginning, Health, HookStatus, Others, Window, WindowReason};
use crate::object::module::Modules;
use crate::process::address_space::AddressSpace;
use crate::units::MonotonicNanos;

/// A session at an instant.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The interval asked for, in bytes.
    pub interval_bytes: u64,
    /// When recording began, in nanoseconds since the Unix epoch.
    pub started_unix_ns: u64,
    /// The value of `CLOCK_MONOTONIC` that belongs to `started_unix_ns`.
    pub started_monotonic_ns: u64,
    /// When this was taken, in nanoseconds since the Unix epoch.
    pub ended_unix_ns: u64,
    /// How old live blocks are that are counted apart.
    pub older_than: Option<Duration>,
    /// The window that ends here, where one does.
    pub window: Option<WindowFacts>,
    /// The processes, those that began first before the others.
    pub targets: Vec<TargetState>,
    /// Processes that were meant and are not among them, over the whole recording.
    pub others: Others,
    /// What the targets execute; address spaces refer to it.
    pub modules: Modules,
    /// What was lost and what it cost, over the whole recording.
    pub health: Health,
}

/// A window beside what the books of its targets say.
#[derive(Clone, Debug)]
pub struct WindowFacts {
    /// From when to when, and why.
    pub window: Window,
    /// When it began, by the clock of events.
    pub start: MonotonicNanos,
    /// Processes that were meant in it and are not among the targets.
    pub others: Others,
    /// What was lost in it and what it cost.
    pub health: Health,
}

/// What of a snapshot is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All since the recording began.
    Whole,
    /// The window that ends with the snapshot; all, where none does.
    Window,
    /// Each target as it was when its live bytes were highest.
    Peak,
}

/// Names of threads, as far as they are known.
pub(crate) type ThreadNames = BTreeMap<Tid, Arc<str>>;

/// One process at an instant.
#[derive(Clone, Debug)]
pub struct TargetState {
    /// Who it is.
    pub facts: TargetFacts,
    /// Where its code lies.
    pub space: Arc<AddressSpace>,
    /// What its threads are called, those of its parent among them whose blocks it has inherited.
    pub threads: Arc<ThreadNames>,
    /// Its heaps; every heap of its books is among them.
    pub heaps: Vec<HeapFacts>,
    /// Its books since the recording began.
    pub books: Arc<TargetSnapshot>,
    /// How its callsites have grown.
    pub growths: Growths,
    /// What it held in the course of time, in the order of that.
    pub curve: Vec<Moment>,
    /// What its callsites held at few instants.
    pub timeline: Arc<Timeline>,
    /// When both end: with the target, or now.
    pub until: MonotonicNanos,
    /// What of their blocks is older than was asked, by the callsites' indices; `None` where nothing was.
    pub older: Option<Vec<Amounts>>,
    /// Where the window begins in them.
    pub base: Base,
}

/// Where a window begins in the books of a target.
#[derive(Clone, Debug, Default)]
pub enum Base {
    /// With the books: the target is newer than the window.
    #[default]
    Beginning,
    /// At this state.
    At(Arc<TargetSnapshot>),
    /// Nowhere: the target had ended before.
    Ended,
}

impl TargetState {
    /// What the books say of this scope; `None` where the target is not in it.
    pub fn books_of(&self, scope: Scope) -> Option<Cow<'_, TargetSnapshot>> {
        match (scope, &self.base) {
            (Scope::Whole, _) | (Scope::Window, Base::Beginning) => Some(Cow::Borrowed(&*self.books)),
            (Scope::Window, Base::At(base)) => Some(Cow::Owned(self.books.since(base))),
            (Scope::Window, Base::Ended) => None,
            (Scope::Peak, _) => Some(Cow::Owned(self.books.at_peak())),
        }
    }
}

impl Snapshot {
    /// The window that a profile of this scope is about.
    pub fn window_of(&self, scope: Scope) -> Option<Window> {
        match scope {
            Scope::Whole => None,
            Scope::Window => self.window.as_ref().map(|facts| facts.window),
            Scope::Peak => Some(Window {
                number: None,
                reason: WindowReason::Peak,
                start_unix_ns: self.started_unix_ns,
                since_mark: false,
                end_unix_ns: self.ended_unix_ns,
                merged_count: 0,
            }),
        }
    }
}

/// What is known of a process beside its books.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetFacts {
    /// The process.
    pub pid: Pid,
    /// `argv[0]`.
    pub command: String,
    /// The kernel's name for it (`/proc/PID/comm`), at most 15 bytes.
    pub comm: String,
    /// Its control group, as a path from the hierarchy's root; `None` where the kernel did not tell.
    #[serde(default)]
    pub cgroup: Option<Arc<str>>,
    /// Since when it was watched.
    pub beginning: Beginning,
    /// It ended while it was profiled.
    pub exited: bool,
    /// It became another program by exec, which is a target of its own.
    pub replaced: bool,
    /// Its exit status, where the kernel tells.
    pub exit_code: Option<i32>,
    /// When its probes were taken away because they cost too much.
    pub detached: Option<MonotonicNanos>,
    /// What its probes cost it, where that is known.
    pub overhead: Option<Overhead>,
}

impl TargetFacts {
    /// Of a process that lives, of which no more is known.
    pub fn living(pid: Pid, command: &str, comm: &str, beginning: Beginning) -> Self {
        Self {
            pid,
            command: command.to_owned(),
            comm: comm.to_owned(),
            cgroup: None,
            beginning,
            exited: false,
            replaced: false,
            exit_code: None,
            detached: None,
            overhead: None,
        }
    }
}

/// What is known of a heap beside its totals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeapFacts {
    /// Its number in the books.
    pub id: HeapId,
    /// Its name (`libc`, `jemalloc`, …).
    pub name: String,
    /// Its interval, in bytes: its own, or the recording's.
    pub interval_bytes: u64,
    /// The largest that it had meanwhile.
    pub interval_bytes_max: u64,
    /// Functions that were to be watched.
    pub hooks: Vec<HookStatus>,
}

const _: fn() = || {
    fn is_send<T: Send + Sync + 'static>() {}
    is_send::<Snapshot>();
};
