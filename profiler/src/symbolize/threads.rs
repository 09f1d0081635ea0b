use std::sync::Arc;

use crate::ids::Tid;
use crate::ledger::snapshot::TargetSnapshot;
use crate::model::ThreadProfile;
use crate::snapshot::ThreadNames;

/// Threads of a target's callsites in ascending order, as listed in its profile.
#[derive(Clone, Debug)]
pub(super) struct Threads(Vec<Tid>);

impl Threads {
    pub(super) fn of(books: &TargetSnapshot) -> Self {
        let mut threads: Vec<Tid> = books.callsites.iter().filter_map(|callsite| callsite.thread).collect();
        threads.sort_unstable();
        threads.dedup();
        Self(threads)
    }

    pub(super) fn place(&self, thread: Option<Tid>) -> Option<usize> {
        self.0.binary_search(&thread?).ok()
    }

    pub(super) fn named(self, names: &ThreadNames) -> Vec<ThreadProfile> {
        let named = |tid: Tid| ThreadProfile { tid, name: names.get(&tid).map(Arc::clone) };
        self.0.into_iter().map(named).collect()
    }
}
