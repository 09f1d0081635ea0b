//! A session's state, without names: a plain value that another thread symbolizes and writes meanwhile.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use heapbpf_base::ids::{HeapId, Tid};
use heapbpf_base::units::{Amounts, MonotonicNanos};
use heapbpf_ledger::curve::CurvePoint;
use heapbpf_ledger::model::{Health, HookStatus, Leaks, MemoryAccount, Others, Window, WindowReason};
pub(crate) use heapbpf_ledger::model::{TargetFacts, TargetId};
use heapbpf_ledger::snapshot::TargetSnapshot;
use heapbpf_ledger::timeline::Timeline;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};

use crate::object::module::Modules;
use crate::process::address_space::AddressSpace;

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
    /// Targets by the time of their beginning.
    pub targets: Vec<TargetState>,
    /// Numbers of other processes over the whole recording.
    pub others: Others,
    pub modules: Modules,
    /// Health over the whole recording.
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
    /// Names of threads, including those of its parent whose blocks the target has inherited.
    pub threads: Arc<ThreadNames>,
    pub heaps: Vec<HeapFacts>,
    /// State of the ledger since the recording started.
    pub ledger: Arc<TargetSnapshot>,
    pub growths: Leaks,
    /// Totals over time, in the order of time.
    pub curve: Vec<CurvePoint>,
    pub timeline: Arc<Timeline>,
    pub memory: Arc<MemoryAccount>,
    /// End of the curve and the timeline: the exit of the target, or now.
    pub until: MonotonicNanos,
    /// Live blocks older than [`Snapshot::older_than`], by callsite; `None` without that minimum.
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
    /// The ledger for this scope; `None` if the target is not in the scope.
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
    /// The window from `base`, an earlier snapshot of the same recording or of a previous one, as [`Scope::Window`].
    /// Targets of another recording start in the window.
    pub(crate) fn since(&self, base: &Self) -> Self {
        let mut window = self.clone();
        let before: FxHashMap<TargetId, &TargetState> =
            base.targets.iter().map(|target| (target.facts.id(), target)).collect();
        for target in &mut window.targets {
            target.base =
                before.get(&target.facts.id()).map_or(Base::Beginning, |earlier| match earlier.facts.end.is_some() {
                    true => Base::Ended,
                    false => Base::At(Arc::clone(&earlier.ledger)),
                });
        }
        let start = MonotonicNanos(
            base.started_monotonic_ns.saturating_add(base.ended_unix_ns.saturating_sub(base.started_unix_ns)),
        );
        let is_same = self.started_monotonic_ns == base.started_monotonic_ns;
        window.window = Some(WindowFacts {
            window: Window {
                number: None,
                reason: WindowReason::Time,
                start_unix_ns: if is_same { base.ended_unix_ns } else { self.started_unix_ns },
                since_mark: false,
                end_unix_ns: self.ended_unix_ns,
                merged_count: 0,
            },
            start: if is_same { start } else { MonotonicNanos(self.started_monotonic_ns) },
            others: if is_same { self.others_since(base) } else { self.others.clone() },
            health: if is_same { self.health.since(&base.health) } else { self.health.clone() },
        });
        window
    }

    fn others_since(&self, base: &Self) -> Others {
        let kept: FxHashSet<TargetId> = self.targets.iter().map(|target| target.facts.id()).collect();
        let mut folded = base.others.folded_totals;
        for target in base.targets.iter().filter(|target| !kept.contains(&target.facts.id())) {
            folded.add(&target.ledger.totals);
        }
        let mut others = self.others.since(&base.others);
        others.folded_totals = self.others.folded_totals.since(&folded);
        others
    }

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
    /// The heap's own interval, or the recording's, in bytes.
    pub interval_bytes: u64,
    /// Largest interval during the recording.
    pub interval_bytes_max: u64,
    pub hooks: Vec<HookStatus>,
}

const _: fn() = || {
    fn is_send<T: Send + Sync + 'static>() {}
    is_send::<Snapshot>();
};

#[cfg(test)]
mod tests {
    use heapbpf_base::ids::Pid;
    use heapbpf_ledger::model::{Beginning, End};
    use heapbpf_ledger::totals::Totals;
    use profiler_common::interval::Interval;

    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    /// A recording that started at 100 s on both clocks, at `seconds` after that.
    fn recording(seconds: u64, targets: Vec<TargetState>) -> Snapshot {
        Snapshot {
            started_unix_ns: 100 * SECOND_NS,
            started_monotonic_ns: 100 * SECOND_NS,
            ended_unix_ns: (100 + seconds) * SECOND_NS,
            targets,
            ..Snapshot::default()
        }
    }

    fn target(pid: u32, begun: u64, allocated: u64) -> TargetState {
        let mut totals = Totals::default();
        totals.allocate(Amounts::of(allocated, Interval::EXACT), MonotonicNanos(begun));
        let beginning = Beginning::running(MonotonicNanos(begun));
        TargetState {
            facts: TargetFacts::running(Pid(pid), "a", "a", beginning),
            space: Arc::new(AddressSpace::new(Pid(pid))),
            threads: Arc::default(),
            heaps: Vec::new(),
            ledger: Arc::new(TargetSnapshot { pid: Pid(pid), totals, heaps: Vec::new(), callsites: Vec::new() }),
            growths: Leaks::default(),
            curve: Vec::new(),
            timeline: Arc::default(),
            memory: Arc::default(),
            until: MonotonicNanos(begun),
            older: None,
            base: Base::Beginning,
        }
    }

    fn allocated(window: &Snapshot) -> Vec<Option<u64>> {
        let ledgers = window.targets.iter().map(|target| target.ledger_of(Scope::Window));
        ledgers.map(|ledger| ledger.map(|ledger| ledger.totals.alloc_bytes.rounded())).collect()
    }

    #[test]
    fn a_window_contains_what_was_allocated_since() {
        let mut ended = target(2, 1, 7);
        ended.facts.end = Some(End::Exited { code: None });
        let base = recording(10, vec![target(1, 1, 100), ended.clone()]);
        // A pid that is used again is another target.
        let end = recording(25, vec![target(1, 1, 130), ended, target(1, 2, 5), target(3, 3, 9)]);
        let window = end.since(&base);
        assert_eq!(allocated(&window), [Some(30), None, Some(5), Some(9)]);
        let facts = window.window.expect("a window");
        assert_eq!(facts.start, MonotonicNanos(110 * SECOND_NS));
        assert_eq!((facts.window.start_unix_ns, facts.window.end_unix_ns), (110 * SECOND_NS, 125 * SECOND_NS));
    }

    #[test]
    fn exited_processes_of_which_only_totals_are_kept_count_once() {
        let base = recording(10, vec![target(1, 1, 100), target(2, 1, 40)]);
        let mut end = recording(20, vec![target(1, 1, 100)]);
        end.others.folded_count = 1;
        end.others.folded_totals = target(2, 1, 46).ledger.totals;
        let facts = end.since(&base).window.expect("a window");
        assert_eq!((facts.others.folded_count, facts.others.folded_totals.alloc_bytes.rounded()), (1, 6));
    }

    #[test]
    fn a_window_after_another_recording_starts_with_its_own() {
        let base = recording(10, vec![target(1, 1, 100)]);
        let end = Snapshot {
            started_unix_ns: 200 * SECOND_NS,
            started_monotonic_ns: 201 * SECOND_NS,
            ..recording(0, vec![target(1, 9, 3)])
        };
        let window = end.since(&base);
        assert_eq!(allocated(&window), [Some(3)]);
        let facts = window.window.expect("a window");
        assert_eq!((facts.window.start_unix_ns, facts.start), (200 * SECOND_NS, MonotonicNanos(201 * SECOND_NS)));
    }
}
