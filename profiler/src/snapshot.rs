//! A session's state, without names: a plain value that another thread symbolizes and writes meanwhile.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{HeapId, Tid};
use crate::ledger::curve::CurvePoint;
use crate::ledger::snapshot::TargetSnapshot;
use crate::ledger::timeline::Timeline;
pub(crate) use crate::model::TargetFacts;
use crate::model::{Health, HookStatus, Leaks, MemoryAccount, Others, Window, WindowReason};
use crate::object::module::Modules;
use crate::process::address_space::AddressSpace;
use crate::units::{Amounts, MonotonicNanos};

#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub interval_bytes: u64,
    /// Start of the recording, in nanoseconds since the Unix epoch.
    pub started_unix_ns: u64,
    /// `CLOCK_MONOTONIC` at `started_unix_ns`.
    pub started_monotonic_ns: u64,
    /// Time of the snapshot, in nanoseconds since the Unix epoch.
    pub ended_unix_ns: u64,
    /// Minimum age of the live blocks in [`TargetState::older`].
    pub older_than: Option<Duration>,
    pub window: Option<WindowFacts>,
    /// By beginning.
    pub targets: Vec<TargetState>,
    /// Over the whole recording.
    pub others: Others,
    pub modules: Modules,
    /// Over the whole recording.
    pub health: Health,
}

#[derive(Clone, Debug)]
pub struct WindowFacts {
    pub window: Window,
    /// Start of the window, by the clock of events.
    pub start: MonotonicNanos,
    pub others: Others,
    pub health: Health,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Whole,
    /// The window that ends with the snapshot; the whole recording where none does.
    Window,
    /// Each target at its peak of live bytes.
    Peak,
}

pub(crate) type ThreadNames = BTreeMap<Tid, Arc<str>>;

#[derive(Clone, Debug)]
pub struct TargetState {
    pub facts: TargetFacts,
    pub space: Arc<AddressSpace>,
    /// Includes threads of its parent whose blocks it has inherited.
    pub threads: Arc<ThreadNames>,
    pub heaps: Vec<HeapFacts>,
    /// Since the recording started.
    pub ledger: Arc<TargetSnapshot>,
    pub growths: Leaks,
    /// Totals over time, in the order of time.
    pub curve: Vec<CurvePoint>,
    pub timeline: Arc<Timeline>,
    pub memory: Arc<MemoryAccount>,
    /// End of both: the exit of the target, or now.
    pub until: MonotonicNanos,
    /// Live blocks older than [`Snapshot::older_than`], by callsite; `None` without that.
    pub older: Option<Vec<Amounts>>,
    pub base: Base,
}

#[derive(Clone, Debug, Default)]
pub enum Base {
    /// The start of the ledger: the target is newer than the window.
    #[default]
    Beginning,
    At(Arc<TargetSnapshot>),
    /// The target had exited before the window.
    Ended,
}

impl TargetState {
    /// The ledger for this scope; `None` if the target is not in it.
    pub fn ledger_of(&self, scope: Scope) -> Option<Cow<'_, TargetSnapshot>> {
        match (scope, &self.base) {
            (Scope::Whole, _) | (Scope::Window, Base::Beginning) => Some(Cow::Borrowed(&*self.ledger)),
            (Scope::Window, Base::At(base)) => Some(Cow::Owned(self.ledger.since(base))),
            (Scope::Window, Base::Ended) => None,
            (Scope::Peak, _) => Some(Cow::Owned(self.ledger.at_peak())),
        }
    }
}

impl Snapshot {
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

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeapFacts {
    pub id: HeapId,
    pub name: String,
    /// Its own interval, or the recording's, in bytes.
    pub interval_bytes: u64,
    /// Largest interval during the recording.
    pub interval_bytes_max: u64,
    pub hooks: Vec<HookStatus>,
}

const _: fn() = || {
    fn is_send<T: Send + Sync + 'static>() {}
    is_send::<Snapshot>();
};
