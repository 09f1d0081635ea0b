//! What the books of a recording say at an instant: the beginning of a window, or a snapshot as a session takes it.

use std::sync::Arc;

use super::super::account::Account;
use super::super::entry::BooksId;
use super::{Replay, Start};
use crate::ids::HeapId;
use crate::model::{Health, Window};
use crate::object::module::Modules;
use crate::snapshot::{Base, HeapFacts, Snapshot, TargetState, WindowFacts};
use crate::units::MonotonicNanos;

impl Replay {
    /// The state as it is, to begin a window with.
    pub fn start(&self) -> Start {
        let snapshot = |(&books, account): (&BooksId, &Account)| (books, Arc::new(account.ledger.snapshot(self.time)));
        Start {
            books: self.accounts.iter().map(snapshot).collect(),
            ended: self.kept.iter().copied().collect(),
            health: self.health.health.clone(),
        }
    }

    /// The state at `now`, and the window that ends there, if there is one. `modules` are those of
    /// [`modules`](Self::modules), in their order, as far as this machine has them.
    pub fn snapshot(&self, window: Option<(&Start, Window)>, modules: Modules, now: MonotonicNanos) -> Snapshot {
        let start = window.map(|(start, _)| start);
        let targets = self.targets().into_iter().filter_map(|books| self.state(books, start, now)).collect();
        let health = Health { events: self.health.health.events.max(self.events), ..self.health.health.clone() };
        Snapshot {
            interval_bytes: self.session.interval_bytes,
            started_unix_ns: self.session.started_unix_ns,
            started_monotonic_ns: self.session.started_monotonic_ns,
            ended_unix_ns: self.unix_ns(now),
            older_than: None,
            window: window.map(|(start, window)| WindowFacts {
                window,
                start: self.monotonic(window.start_unix_ns),
                others: self.health.others.clone(),
                health: health.since(&start.health),
            }),
            targets,
            others: self.health.others.clone(),
            modules,
            health,
        }
    }

    /// The books of the targets of a snapshot, in their order there.
    pub fn targets(&self) -> Vec<BooksId> {
        let known = |books: &BooksId| self.accounts.get(books)?.known.as_ref().filter(|known| known.begun);
        let named = self.kept.iter().chain(self.open.values());
        let mut targets: Vec<_> = named.filter_map(|books| Some((known(books)?, *books))).collect();
        targets.sort_by_key(|(known, _)| (known.facts.beginning.time, known.facts.pid));
        targets.into_iter().map(|(_, books)| books).collect()
    }

    /// `None` where it had no probes yet.
    fn state(&self, books: BooksId, start: Option<&Start>, now: MonotonicNanos) -> Option<TargetState> {
        let account = self.accounts.get(&books)?;
        let known = account.known.as_ref().filter(|known| known.begun)?;
        let (snapshot, until) = (account.ledger.snapshot(now), account.until(now));
        let base = match start {
            Some(start) if start.ended.contains(&books) => Base::Ended,
            Some(start) => start.books.get(&books).map_or(Base::Beginning, |books| Base::At(Arc::clone(books))),
            None => Base::Beginning,
        };
        let mut heaps = known.heaps.clone();
        for &(id, _) in &snapshot.heaps {
            if heaps.iter().all(|heap| heap.id != id) {
                heaps.push(self.unnamed_heap(id));
            }
        }
        Some(TargetState {
            facts: known.facts.clone(),
            threads: Arc::clone(&account.threads),
            space: Arc::new(account.space(known.facts.pid, self.modules.len())),
            heaps,
            books: Arc::new(snapshot),
            growths: account.growths(now),
            curve: account.ledger.moments(until),
            timeline: Arc::new(account.timeline.clone()),
            until,
            older: None,
            base,
        })
    }

    /// A heap whose name was not written before the recording broke off.
    fn unnamed_heap(&self, id: HeapId) -> HeapFacts {
        let known = self.accounts.values().filter_map(|account| account.known.as_ref());
        let elsewhere = known.flat_map(|known| &known.heaps).find(|heap| heap.id == id);
        let name = elsewhere.map_or_else(|| format!("heap-{}", id.0), |heap| heap.name.clone());
        let interval_bytes = elsewhere.map_or(self.session.interval_bytes, |heap| heap.interval_bytes);
        HeapFacts { id, name, interval_bytes, interval_bytes_max: interval_bytes, hooks: Vec::new() }
    }
}
