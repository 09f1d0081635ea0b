//! Selects the targets with series of their own. The others share one, so that processes that come and go do not fill a database.

use heapbpf_ledger::model::TargetId;
use heapbpf_ledger::totals::Totals;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::snapshot::{Snapshot, TargetState};

/// Maximum number of targets with series of their own.
pub(super) const TARGETS_MAX: usize = 50;

/// Factor by which others' live bytes must exceed those of a target with a series to take it over.
const KEEP_FACTOR: f64 = 2.0;

/// Counters of one series, which only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Counters {
    pub(super) alloc_bytes: f64,
    pub(super) alloc_count: f64,
    pub(super) free_bytes: f64,
    pub(super) free_count: f64,
}

/// Values of one series.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Row {
    pub(super) live_bytes: f64,
    pub(super) live_count: f64,
    pub(super) counters: Counters,
}

/// State of previous reports. A target that loses or gets its series changes no sum over all series: the shared counters are sums
/// of increments.
#[derive(Default)]
pub(super) struct Series {
    recording: u64,
    shown: FxHashSet<TargetId>,
    known: FxHashMap<TargetId, Counters>,
    folded: Counters,
    shared: Counters,
}

impl Series {
    /// Returns the targets with series of their own, and the sum of all others.
    pub(super) fn update<'a>(&mut self, snapshot: &'a Snapshot) -> (Vec<(&'a TargetState, Row)>, Row) {
        if self.recording != snapshot.started_monotonic_ns {
            *self = Self { recording: snapshot.started_monotonic_ns, ..Self::default() };
        }
        self.shown = self.choose(snapshot);
        let mut rows = Vec::new();
        let mut shared = Row::default();
        let mut known = FxHashMap::default();
        for target in &snapshot.targets {
            let row = Row::of(&target.ledger.totals);
            let key = target.facts.id();
            let before = self.known.remove(&key).unwrap_or_default();
            if self.shown.contains(&key) {
                rows.push((target, row));
            } else {
                self.shared.add(row.counters.since(before));
                if target.facts.is_running() {
                    shared.live_bytes += row.live_bytes;
                    shared.live_count += row.live_count;
                }
            }
            known.insert(key, row.counters);
        }
        // Some targets that have exited and are kept only as totals are still in `self.known`, others are not.
        let folded = Row::of(&snapshot.others.folded_totals).counters;
        let mut before = self.folded;
        self.known.values().for_each(|counters| before.add(*counters));
        self.shared.add(folded.since(before));
        (self.known, self.folded) = (known, folded);
        (rows, Row { counters: self.shared, ..shared })
    }

    fn choose(&self, snapshot: &Snapshot) -> FxHashSet<TargetId> {
        let rank = |target: &TargetState| {
            let bytes = target.ledger.totals.live_bytes().to_f64();
            if self.shown.contains(&target.facts.id()) { bytes * KEEP_FACTOR } else { bytes }
        };
        let alive = snapshot.targets.iter().filter(|target| target.facts.is_running());
        let mut ranked: Vec<_> = alive.map(|target| (rank(target), target.facts.id())).collect();
        ranked.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        ranked.into_iter().take(TARGETS_MAX).map(|(_, key)| key).collect()
    }
}

impl Row {
    fn of(totals: &Totals) -> Self {
        Self {
            live_bytes: totals.live_bytes().to_f64(),
            live_count: totals.live_count().to_f64(),
            counters: Counters {
                alloc_bytes: totals.alloc_bytes.to_f64(),
                alloc_count: totals.alloc_count.to_f64(),
                free_bytes: totals.free_bytes.to_f64(),
                free_count: totals.free_count.to_f64(),
            },
        }
    }
}

impl Counters {
    fn add(&mut self, other: Self) {
        self.alloc_bytes += other.alloc_bytes;
        self.alloc_count += other.alloc_count;
        self.free_bytes += other.free_bytes;
        self.free_count += other.free_count;
    }

    /// Increments since an earlier state. Estimates can shrink where a resync corrects them; counters do not.
    fn since(self, before: Self) -> Self {
        Self {
            alloc_bytes: (self.alloc_bytes - before.alloc_bytes).max(0.0),
            alloc_count: (self.alloc_count - before.alloc_count).max(0.0),
            free_bytes: (self.free_bytes - before.free_bytes).max(0.0),
            free_count: (self.free_count - before.free_count).max(0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use heapbpf_base::ids::Pid;
    use heapbpf_base::units::{EstimatedBytes, EstimatedCount, MonotonicNanos};
    use heapbpf_ledger::model::{Beginning, End, MemoryAccount, TargetFacts};
    use heapbpf_ledger::snapshot::TargetSnapshot;

    use super::*;
    use crate::process::address_space::AddressSpace;
    use crate::snapshot::Base;

    /// Allocated and freed bytes, of blocks of 10.
    fn totals(allocated: u64, freed: u64) -> Totals {
        Totals {
            alloc_bytes: EstimatedBytes::exact(allocated),
            alloc_count: EstimatedCount::exact(allocated / 10),
            free_bytes: EstimatedBytes::exact(freed),
            free_count: EstimatedCount::exact(freed / 10),
            ..Totals::default()
        }
    }

    fn target(pid: u32, totals: Totals, exited: bool) -> TargetState {
        let pid = Pid(pid);
        let beginning = Beginning::running(MonotonicNanos(1));
        TargetState {
            facts: TargetFacts {
                end: exited.then_some(End::Exited { code: None }),
                ..TargetFacts::running(pid, "program", "program", beginning)
            },
            space: Arc::new(AddressSpace::new(pid)),
            threads: Arc::default(),
            heaps: Vec::new(),
            ledger: Arc::new(TargetSnapshot { pid, totals, heaps: Vec::new(), callsites: Vec::new() }),
            growths: heapbpf_ledger::model::Leaks::default(),
            curve: Vec::new(),
            timeline: Arc::default(),
            memory: Arc::new(MemoryAccount::default()),
            until: MonotonicNanos(2),
            older: None,
            base: Base::Beginning,
        }
    }

    fn snapshot(targets: Vec<TargetState>) -> Snapshot {
        Snapshot { targets, started_monotonic_ns: 1, ..Snapshot::default() }
    }

    /// Allocated bytes over all series.
    fn sum(rows: &[(&TargetState, Row)], others: Row) -> f64 {
        rows.iter().map(|(_, row)| row.counters.alloc_bytes).sum::<f64>() + others.counters.alloc_bytes
    }

    #[test]
    fn the_largest_have_series_and_the_others_share_one() {
        let all: Vec<_> = (1..=60).map(|pid| target(pid, totals(u64::from(pid) * 100, 0), false)).collect();
        let snapshot = snapshot(all);
        let (rows, others) = Series::default().update(&snapshot);
        assert_eq!(rows.iter().map(|(target, _)| target.facts.pid.0).collect::<Vec<_>>(), Vec::from_iter(11..=60));
        assert_eq!((others.live_bytes, others.live_count), (5500.0, 550.0));
        assert_eq!(sum(&rows, others), 183_000.0);
    }

    #[test]
    fn increases_are_counted_once_when_targets_change_places() {
        let mut series = Series::default();
        let of = |sizes: &dyn Fn(u32) -> u64| {
            snapshot((1..=60).map(|pid| target(pid, totals(sizes(pid), 0), false)).collect())
        };
        let first = of(&|pid| u64::from(pid) * 100);
        let (rows, before) = series.update(&first);
        assert!(!rows.iter().any(|(target, _)| target.facts.pid.0 == 1));
        // Process 1 becomes the largest; 11 loses its series, and allocates 10.
        let second = of(&|pid| match pid {
            1 => 1_000_000,
            11 => 1110,
            _ => u64::from(pid) * 100,
        });
        let (rows, after) = series.update(&second);
        let pids: Vec<u32> = rows.iter().map(|(target, _)| target.facts.pid.0).collect();
        assert!(pids.contains(&1) && !pids.contains(&11), "{pids:?}");
        assert_eq!(after.counters.alloc_bytes - before.counters.alloc_bytes, 10.0);
        let (_, again) = series.update(&second);
        assert_eq!(again.counters, after.counters);
    }

    #[test]
    fn similar_targets_keep_their_series() {
        let mut series = Series::default();
        let first = snapshot((1..=51).map(|pid| target(pid, totals(1000 + u64::from(pid), 0), false)).collect());
        let shown =
            |rows: &[(&TargetState, Row)]| rows.iter().map(|(target, _)| target.facts.pid.0).collect::<Vec<_>>();
        let before = shown(&series.update(&first).0);
        let second = snapshot((1..=51).map(|pid| target(pid, totals(1500 - u64::from(pid), 0), false)).collect());
        assert_eq!(shown(&series.update(&second).0), before);
    }

    #[test]
    fn targets_that_exit_remain_in_the_sum() {
        let mut series = Series::default();
        let both = snapshot(vec![target(1, totals(1000, 0), false), target(2, totals(500, 0), false)]);
        let (rows, others) = series.update(&both);
        assert_eq!(sum(&rows, others), 1500.0);
        // Process 1 has allocated 200 more before it exited.
        let exited = snapshot(vec![target(1, totals(1200, 1200), true), target(2, totals(500, 0), false)]);
        let (rows, others) = series.update(&exited);
        assert_eq!((rows.len(), others.counters.alloc_bytes, others.live_bytes), (1, 200.0, 0.0));
        // It is folded, with another that has never been seen.
        let mut folded = snapshot(vec![target(2, totals(500, 0), false)]);
        folded.others.folded_totals = totals(1200 + 70, 1200 + 70);
        let (rows, others) = series.update(&folded);
        assert_eq!((rows.len(), others.counters.alloc_bytes), (1, 270.0));
        let (_, again) = series.update(&folded);
        assert_eq!(again, others);
    }

    #[test]
    fn another_recording_starts_anew() {
        let mut series = Series::default();
        series.update(&snapshot(vec![target(1, totals(1000, 0), true)]));
        let next = Snapshot { started_monotonic_ns: 2, ..Snapshot::default() };
        assert_eq!(series.update(&next).1, Row::default());
    }
}
