//! Facts of targets that a recording has later than their events: a session writes facts periodically.

use std::collections::BTreeMap;
use std::sync::Arc;

use heapbpf_base::ids::LedgerId;

use super::{Replay, THREADS_MAX};
use crate::recording::entry::{Fact, MappedRange, Step, TargetRecord, ThreadFacts};
use crate::recording::replay::Entry;
use crate::snapshot::ThreadNames;

/// The first facts of each target, from a first reading.
#[derive(Debug, Default)]
pub struct LateFacts(BTreeMap<LedgerId, TargetFirst>);

#[derive(Debug, Default)]
struct TargetFirst {
    /// First record of the target since its probes have been attached.
    record: Option<TargetRecord>,
    mappings: Vec<MappedRange>,
    threads: ThreadNames,
}

impl LateFacts {
    pub fn note(&mut self, entry: &Entry) {
        match entry {
            Entry::Fact(fact) => match &**fact {
                Fact::Target(id, record) if record.begun => {
                    self.0.entry(*id).or_default().record.get_or_insert_with(|| record.clone());
                }
                Fact::Thread(id, ThreadFacts { tid, name }) => {
                    let threads = &mut self.0.entry(*id).or_default().threads;
                    if threads.len() < THREADS_MAX {
                        threads.entry(*tid).or_insert_with(|| Arc::clone(name));
                    }
                }
                _ => {}
            },
            Entry::Step(Step::Mapped { ledger: id, mappings }) => {
                let first = &mut self.0.entry(*id).or_default().mappings;
                if first.is_empty() {
                    first.clone_from(mappings);
                }
            }
            _ => {}
        }
    }
}

impl Replay {
    /// Adds missing facts of targets. Later facts replace them.
    pub(in crate::recording) fn complete_targets(&mut self, late: &LateFacts) {
        for (id, account) in &mut self.accounts {
            let Some(first) = late.0.get(id) else { continue };
            if let Some(record) = &first.record
                && account.record.as_ref().is_none_or(|known| !known.begun)
            {
                account.record = Some(record.clone());
            }
            if account.mapped.is_empty() {
                account.map(first.mappings.clone());
            }
            for (&tid, name) in &first.threads {
                if !account.threads.contains_key(&tid) {
                    account.set_thread_name(ThreadFacts { tid, name: Arc::clone(name) });
                }
            }
        }
    }
}
