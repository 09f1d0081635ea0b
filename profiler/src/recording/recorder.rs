//! The recorder of a session: numbers ledgers, writes facts when they change, and passes entries to the writer thread. If the
//! thread cannot keep up, the session waits; the ring buffer overflows then, which is counted and resynced.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use heapbpf_base::ids::{LedgerId, Pid};
use heapbpf_base::shown::Shown;
use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::Ledger;
use heapbpf_ledger::ingest::event::Event;
use heapbpf_ledger::model::{End, MemoryFacts};
use heapbpf_ledger::timeline::TimelinePoint;
use rustc_hash::{FxHashMap, FxHashSet};
use tracing::warn;

use super::entry::{
    Fact, HealthFacts, MappedRange, Mark, ModuleFacts, Names, SessionFacts, Step, TargetRecord, ThreadFacts,
};
use super::replay::Entry;
use super::write::{WriteError, WriteReason, Writer, Written};
use crate::object::module::ModuleStore;
use crate::process::address_space::AddressSpace;
use crate::snapshot::ThreadNames;

const BATCH: usize = 8192;
/// Maximum number of batches in the queue to the writer thread: about 5 MiB.
const BATCHES_MAX: usize = 8;
const FACTS_PERIOD: Duration = Duration::from_millis(400);
const ATTEND_PERIOD: Duration = Duration::from_millis(50);
const CORRECTIONS_MAX: usize = 4096;
/// Number of targets from which on the facts of removed ones are forgotten.
const WRITTEN_MAX: usize = 2048;

enum Message {
    Entries(Vec<Entry>),
    Finish(Names, MonotonicNanos),
}

#[derive(Debug)]
pub struct Recorder {
    path: PathBuf,
    /// Channel to the writer thread; `None` if the recording ended early.
    sender: Option<SyncSender<Message>>,
    thread: JoinHandle<Result<Option<Written>, WriteReason>>,
    batch: Vec<Entry>,
    ledgers: u32,
    modules: usize,
    targets: FxHashMap<LedgerId, WrittenTarget>,
    facts_due: Instant,
    end: MonotonicNanos,
}

#[derive(Debug)]
struct WrittenTarget {
    record: TargetRecord,
    /// Address space that was written. The reference makes the target copy it before changing it.
    space: Arc<AddressSpace>,
    threads: Arc<ThreadNames>,
}

impl Recorder {
    pub(crate) fn create(path: &Path, size_bytes_max: Option<u64>, session: SessionFacts) -> Result<Self, WriteError> {
        let failed = |reason: std::io::Error| WriteError { path: path.to_owned(), reason: reason.into() };
        let writer = Writer::create(path, size_bytes_max).map_err(failed)?;
        let (sender, receiver) = sync_channel(BATCHES_MAX);
        let name = path.to_owned();
        let work = move || {
            write(writer, &receiver)
                .inspect_err(|reason| warn!("recording to `{}` stopped: {reason}", Shown::of(&name)))
        };
        let thread = thread::Builder::new().name("heapbpf-record".to_owned()).spawn(work).map_err(failed)?;
        let mut recorder = Self {
            path: path.to_owned(),
            sender: Some(sender),
            thread,
            batch: Vec::with_capacity(BATCH),
            ledgers: 0,
            modules: 0,
            targets: FxHashMap::default(),
            facts_due: Instant::now(),
            end: MonotonicNanos::default(),
        };
        recorder.fact(Fact::Session(session));
        Ok(recorder)
    }

    pub(crate) fn event(&mut self, event: &Event) {
        self.push(Entry::Event(event.clone()));
    }

    pub(crate) fn open(&mut self, ledger: &mut Ledger, pid: Pid) {
        let ledger = self.number(ledger);
        self.step(Step::Opened { ledger, pid });
    }

    pub(crate) fn correct(&mut self, ledger: &mut Ledger) {
        let Some(id) = ledger.id() else { return };
        for part in ledger.take_corrections().chunks(CORRECTIONS_MAX) {
            self.step(Step::Corrected { ledger: id, corrections: part.to_vec() });
        }
    }

    /// Numbers the ledger of a forked child; an empty ledger is not a copy of the parent's.
    pub(crate) fn fork(&mut self, parent: Option<LedgerId>, ledger: &mut Ledger, child: Pid, is_empty: bool) {
        let ledger = self.number(ledger);
        // Without a parent's ledger a replay creates an empty one.
        self.step(Step::Forked { parent: parent.unwrap_or(LedgerId(0)), ledger, child, is_empty });
    }

    pub(crate) fn succeed(&mut self, before: &Ledger, ledger: &mut Ledger) {
        let ledger = self.number(ledger);
        self.step(Step::Succeeded { before: before.id().unwrap_or(LedgerId(0)), ledger });
    }

    pub(crate) fn join(&mut self, pid: Pid, ledger: &Ledger) {
        if let Some(ledger) = ledger.id() {
            self.step(Step::Joined { pid, ledger });
        }
    }

    pub(crate) fn leave(&mut self, pid: Pid) {
        self.step(Step::Left { pid });
    }

    pub(crate) fn end_target(&mut self, ledger: &mut Ledger, closed: Option<MonotonicNanos>) {
        self.correct(ledger);
        if let Some(ledger) = ledger.id() {
            self.step(Step::Ended { ledger, closed });
        }
    }

    pub(crate) fn sample(&mut self, ledger: &Ledger, point: TimelinePoint) {
        if let Some(ledger) = ledger.id() {
            self.step(Step::Sampled { ledger, point });
        }
    }

    fn number(&mut self, ledger: &mut Ledger) -> LedgerId {
        self.ledgers += 1;
        let id = LedgerId(self.ledgers);
        ledger.record_as(id);
        id
    }

    pub(crate) fn is_due(&self) -> bool {
        self.facts_due <= Instant::now()
    }

    /// Writes new modules. Must precede the mappings that refer to them.
    pub(crate) fn modules(&mut self, store: &ModuleStore) {
        for (id, module) in store.iter().skip(self.modules) {
            self.modules += 1;
            self.fact(Fact::Module(ModuleFacts::of(id, module)));
        }
    }

    pub(crate) fn target(
        &mut self,
        ledger: &Ledger,
        record: TargetRecord,
        space: &Arc<AddressSpace>,
        threads: &Arc<ThreadNames>,
    ) {
        let Some(id) = ledger.id() else { return };
        let written = self.targets.remove(&id);
        let has_space = |written: &WrittenTarget| {
            let facts = |space: &AddressSpace| (space.generated(), space.interpreted().to_vec(), space.placed());
            Arc::ptr_eq(&written.space, space) || facts(&written.space) == facts(space)
        };
        if !written.as_ref().is_some_and(has_space) {
            let placed = space.placed();
            let mapped = placed.iter().map(|mapped| MappedRange::of(mapped, space.generated()));
            let mappings = mapped.chain(space.interpreted().iter().copied().map(MappedRange::of_interpreted)).collect();
            self.step(Step::Mapped { ledger: id, mappings });
        }
        if written.as_ref().is_none_or(|written| written.record != record) {
            self.fact(Fact::Target(id, record.clone()));
        }
        let named = written.map(|written| written.threads);
        if !named.as_ref().is_some_and(|named| Arc::ptr_eq(named, threads)) {
            for (&tid, name) in &**threads {
                if named.as_ref().is_none_or(|named| named.get(&tid) != Some(name)) {
                    self.fact(Fact::Thread(id, ThreadFacts { tid, name: Arc::clone(name) }));
                }
            }
        }
        let written = WrittenTarget { record, space: Arc::clone(space), threads: Arc::clone(threads) };
        self.targets.insert(id, written);
    }

    pub(crate) fn is_complete(&self, ledger: &Ledger) -> bool {
        ledger.id().and_then(|id| self.targets.get(&id)).is_some_and(|written| {
            matches!(written.record.facts.end, Some(End::Replaced | End::Exited { code: Some(_) }))
        })
    }

    /// Forgets the written state of removed targets, once there are many. `kept` returns the others.
    pub(crate) fn forget_removed(&mut self, kept: impl FnOnce() -> FxHashSet<LedgerId>) {
        if self.targets.len() > WRITTEN_MAX {
            let kept = kept();
            self.targets.retain(|id, _| kept.contains(id));
        }
    }

    pub(crate) fn health(&mut self, health: HealthFacts) {
        self.fact(Fact::Health(Box::new(health)));
        self.facts_due = Instant::now() + FACTS_PERIOD;
    }

    /// Writes samples of memory. Points may be corrections of earlier ones.
    pub(crate) fn memory(&mut self, ledger: &Ledger, facts: MemoryFacts) {
        if let Some(ledger) = ledger.id() {
            self.fact(Fact::Memory(ledger, facts));
        }
    }

    pub(crate) fn mark(&mut self, time: MonotonicNanos, reason: &str) {
        self.fact(Fact::Mark(Mark { monotonic_ns: time.0, reason: reason.to_owned() }));
    }

    fn fact(&mut self, fact: Fact) {
        self.push(Entry::Fact(Box::new(fact)));
    }

    fn step(&mut self, step: Step) {
        self.push(Entry::Step(step));
    }

    fn push(&mut self, entry: Entry) {
        if self.sender.is_none() {
            return;
        }
        self.batch.push(entry);
        if self.batch.len() >= BATCH {
            self.send();
        }
    }

    /// Passes the current batch to the writer thread. Waits while the queue is full.
    pub(crate) fn send(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let batch = std::mem::replace(&mut self.batch, Vec::with_capacity(BATCH));
        if self.sender.as_ref().is_some_and(|sender| sender.send(Message::Entries(batch)).is_err()) {
            // The thread has logged the error.
            self.sender = None;
        }
    }

    /// Ends the recording, except for its names.
    pub(crate) fn end(self, end: MonotonicNanos) -> Self {
        Self { end, ..self }
    }

    /// Writes the names and the end. Fails if the recording ended early.
    pub fn finish(mut self, names: Names) -> Result<Written, WriteError> {
        self.send();
        if let Some(sender) = self.sender.take() {
            // The result of the thread contains the error.
            let _ = sender.send(Message::Finish(names, self.end));
        }
        let written = self.thread.join().map_err(|_| WriteReason::Panic).flatten();
        let written = written.and_then(|written| written.ok_or(WriteReason::Panic));
        written.map_err(|reason| WriteError { path: self.path, reason })
    }
}

/// Writes entries until the channel is closed. Returns `None` if it was closed without [`Message::Finish`].
fn write(mut writer: Writer, receiver: &Receiver<Message>) -> Result<Option<Written>, WriteReason> {
    loop {
        match receiver.recv_timeout(ATTEND_PERIOD) {
            Ok(Message::Entries(entries)) => entries.iter().try_for_each(|entry| writer.add(entry))?,
            Ok(Message::Finish(names, end)) => return writer.finish(&names, end).map(Some),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                writer.flush()?;
                return Ok(None);
            }
        }
        writer.attend()?;
    }
}
