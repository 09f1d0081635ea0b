//! The recorder of a session: numbers ledgers, writes facts when they change, and passes entries to the
//! writer thread. If the thread cannot keep up, the session waits; the ring buffer overflows then, which is counted and resynced.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use tracing::warn;

use super::entry::{
    Fact, HealthFacts, LedgerId, MappedRange, Mark, ModuleFacts, Names, SessionFacts, Step, TargetRecord, ThreadFacts,
};
use super::replay::Entry;
use super::write::{WriteError, WriteReason, Writer, Written};
use crate::ids::Pid;
use crate::ingest::event::Event;
use crate::ledger::{Ledger, timeline};
use crate::object::module::ModuleStore;
use crate::process::address_space::AddressSpace;
use crate::snapshot::ThreadNames;
use crate::units::MonotonicNanos;

/// Entries per batch.
const BATCH: usize = 8192;
/// Maximum number of batches in the queue to the writer thread: about 5 MiB.
const BATCHES_MAX: usize = 8;
/// How often facts are written.
const FACTS_PERIOD: Duration = Duration::from_millis(400);
/// How often the writer thread checks for due blocks.
const ATTEND_PERIOD: Duration = Duration::from_millis(50);

/// Maximum number of corrections in one entry.
const CORRECTIONS_MAX: usize = 4096;

/// Number of targets from which on the facts of removed ones are forgotten.
const WRITTEN_MAX: usize = 2048;

enum Message {
    Entries(Vec<Entry>),
    Finish(Names, MonotonicNanos),
}

/// A ledger with its id in the recording.
#[derive(Debug)]
pub(crate) struct RecordedLedger {
    ledger: Ledger,
    id: Option<LedgerId>,
}

impl RecordedLedger {
    /// `None` until the recorder has numbered the ledger, and without a recording.
    pub(crate) fn id(&self) -> Option<LedgerId> {
        self.id
    }
}

impl From<Ledger> for RecordedLedger {
    fn from(ledger: Ledger) -> Self {
        Self { ledger, id: None }
    }
}

impl Deref for RecordedLedger {
    type Target = Ledger;

    fn deref(&self) -> &Ledger {
        &self.ledger
    }
}

impl DerefMut for RecordedLedger {
    fn deref_mut(&mut self) -> &mut Ledger {
        &mut self.ledger
    }
}

#[derive(Debug)]
pub(crate) struct Recorder {
    path: PathBuf,
    /// `None` if the recording ended early.
    sender: Option<SyncSender<Message>>,
    thread: JoinHandle<Result<Option<Written>, WriteReason>>,
    batch: Vec<Entry>,
    ledgers: u32,
    modules: usize,
    targets: FxHashMap<LedgerId, WrittenTarget>,
    facts_due: Instant,
}

/// What was last written of a target.
#[derive(Debug)]
struct WrittenTarget {
    record: TargetRecord,
    /// A reference, so that it is copied before it is changed.
    space: Arc<AddressSpace>,
    threads: Arc<ThreadNames>,
}

impl Recorder {
    /// Starts a recording. Replaces an existing file.
    pub(crate) fn create(path: &Path, size_bytes_max: Option<u64>) -> Result<Self, WriteError> {
        let failed = |reason: std::io::Error| WriteError { path: path.to_owned(), reason: reason.into() };
        let writer = Writer::create(path, size_bytes_max).map_err(failed)?;
        let (sender, receiver) = sync_channel(BATCHES_MAX);
        let name = path.to_owned();
        let thread = thread::Builder::new()
            .name("heapbpf-record".to_owned())
            .spawn(move || write(writer, &name, &receiver))
            .map_err(failed)?;
        Ok(Self {
            path: path.to_owned(),
            sender: Some(sender),
            thread,
            batch: Vec::with_capacity(BATCH),
            ledgers: 0,
            modules: 0,
            targets: FxHashMap::default(),
            facts_due: Instant::now(),
        })
    }

    pub(crate) fn event(&mut self, event: &Event) {
        self.push(Entry::Event(event.clone()));
    }

    /// Numbers an empty ledger.
    pub(crate) fn open(&mut self, ledger: &mut RecordedLedger, pid: Pid) {
        let ledger = self.number(ledger);
        self.step(Step::Opened { ledger, pid });
    }

    /// Writes the corrections of a ledger.
    pub(crate) fn correct(&mut self, ledger: &mut RecordedLedger) {
        let Some(id) = ledger.id else { return };
        for part in ledger.take_corrections().chunks(CORRECTIONS_MAX) {
            self.step(Step::Corrected { ledger: id, corrections: part.to_vec() });
        }
    }

    /// Numbers the ledger of a forked child; an empty one is not a copy of the parent's.
    pub(crate) fn fork(&mut self, parent: Option<LedgerId>, ledger: &mut RecordedLedger, child: Pid, is_empty: bool) {
        let ledger = self.number(ledger);
        // Without a parent's ledger a replay creates an empty one.
        self.step(Step::Forked { parent: parent.unwrap_or(LedgerId(0)), ledger, child, is_empty });
    }

    /// Numbers the ledger that replaces another one at an exec.
    pub(crate) fn succeed(&mut self, before: &RecordedLedger, ledger: &mut RecordedLedger) {
        let ledger = self.number(ledger);
        let before = before.id.unwrap_or(LedgerId(0));
        self.step(Step::Succeeded { before, ledger });
    }

    /// Directs the events of a process to this ledger.
    pub(crate) fn join(&mut self, pid: Pid, ledger: &RecordedLedger) {
        if let Some(ledger) = ledger.id {
            self.step(Step::Joined { pid, ledger });
        }
    }

    /// Directs the events of a process to no ledger.
    pub(crate) fn leave(&mut self, pid: Pid) {
        self.step(Step::Left { pid });
    }

    /// Writes that a target exited and is reported. `closed` is when its live blocks were last sampled.
    pub(crate) fn end_target(&mut self, ledger: &mut RecordedLedger, closed: Option<MonotonicNanos>) {
        self.correct(ledger);
        if let Some(ledger) = ledger.id {
            self.step(Step::Ended { ledger, closed });
        }
    }

    /// Writes that callsites were sampled.
    pub(crate) fn sample(&mut self, ledger: &RecordedLedger, instant: timeline::Instant) {
        if let Some(ledger) = ledger.id {
            self.step(Step::Sampled { ledger, instant });
        }
    }

    fn number(&mut self, ledger: &mut RecordedLedger) -> LedgerId {
        self.ledgers += 1;
        let id = LedgerId(self.ledgers);
        ledger.id = Some(id);
        ledger.record_corrections();
        id
    }

    pub(crate) fn session(&mut self, facts: SessionFacts) {
        self.fact(Fact::Session(facts));
    }

    /// Returns whether facts are due.
    pub(crate) fn is_due(&self) -> bool {
        self.facts_due <= Instant::now()
    }

    /// Writes new modules. Must precede the mappings that refer to them.
    pub(crate) fn modules(&mut self, store: &ModuleStore) {
        let new: Vec<ModuleFacts> =
            store.iter().skip(self.modules).map(|(id, module)| ModuleFacts::of(id, module)).collect();
        self.modules += new.len();
        new.into_iter().for_each(|module| self.fact(Fact::Module(module)));
    }

    /// Writes what has changed of a target.
    pub(crate) fn target(
        &mut self,
        ledger: &RecordedLedger,
        record: TargetRecord,
        space: &Arc<AddressSpace>,
        threads: &Arc<ThreadNames>,
    ) {
        let Some(id) = ledger.id else { return };
        let written = self.targets.remove(&id);
        let has_space = |written: &WrittenTarget| {
            Arc::ptr_eq(&written.space, space) || written.space.mappings() == space.mappings()
        };
        if !written.as_ref().is_some_and(has_space) {
            let mappings = space.mappings().iter().map(MappedRange::from).collect();
            self.step(Step::Mapped { ledger: id, mappings });
        }
        if written.as_ref().is_none_or(|written| written.record != record) {
            self.fact(Fact::Target(id, record.clone()));
        }
        self.threads(id, written.as_ref().map(|written| &written.threads), threads);
        let written = WrittenTarget { record, space: Arc::clone(space), threads: Arc::clone(threads) };
        self.targets.insert(id, written);
    }

    /// Writes names of threads that have not been written.
    fn threads(&mut self, ledger: LedgerId, written: Option<&Arc<ThreadNames>>, threads: &Arc<ThreadNames>) {
        if written.is_some_and(|written| Arc::ptr_eq(written, threads)) {
            return;
        }
        for (&tid, name) in &**threads {
            if written.is_none_or(|written| written.get(&tid) != Some(name)) {
                self.fact(Fact::Thread(ledger, ThreadFacts { tid, name: Arc::clone(name) }));
            }
        }
    }

    /// Returns whether the facts of an ended target are final.
    pub(crate) fn is_complete(&self, ledger: &RecordedLedger) -> bool {
        ledger.id.and_then(|id| self.targets.get(&id)).is_some_and(|written| {
            let facts = &written.record.facts;
            facts.replaced || facts.exited && facts.exit_code.is_some()
        })
    }

    /// Returns whether [`retain_targets`](Self::retain_targets) should be called.
    pub(crate) fn is_crowded(&self) -> bool {
        self.targets.len() > WRITTEN_MAX
    }

    /// Forgets what was written of other targets.
    pub(crate) fn retain_targets(&mut self, keeps: impl Fn(LedgerId) -> bool) {
        self.targets.retain(|id, _| keeps(*id));
    }

    /// Writes the losses so far.
    pub(crate) fn health(&mut self, health: HealthFacts) {
        self.fact(Fact::Health(Box::new(health)));
        self.facts_due = Instant::now() + FACTS_PERIOD;
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
    pub(crate) fn end(self, end: MonotonicNanos) -> Finishing {
        Finishing { recorder: self, end }
    }

    fn finish(mut self, names: Names, end: MonotonicNanos) -> Result<Written, WriteError> {
        self.send();
        if let Some(sender) = self.sender.take() {
            // The result of the thread contains the error.
            let _ = sender.send(Message::Finish(names, end));
        }
        let failed = |reason| WriteError { path: self.path.clone(), reason };
        let written = self.thread.join().map_err(|_| failed(WriteReason::Panic))?.map_err(failed)?;
        written.ok_or_else(|| failed(WriteReason::Panic))
    }
}

/// A recording that lacks only the names of its locations.
#[derive(Debug)]
pub struct Finishing {
    recorder: Recorder,
    end: MonotonicNanos,
}

impl Finishing {
    /// Writes the names and the end. Fails if the recording ended early.
    pub fn finish(self, names: Names) -> Result<Written, WriteError> {
        self.recorder.finish(names, self.end)
    }
}

/// Writes until the channel is closed. Returns `None` if it was closed without [`Message::Finish`].
fn write(writer: Writer, path: &Path, receiver: &Receiver<Message>) -> Result<Option<Written>, WriteReason> {
    let result = write_all(writer, receiver);
    if let Err(reason) = &result {
        warn!("recording to `{}` stopped: {reason}", path.display());
    }
    result
}

fn write_all(mut writer: Writer, receiver: &Receiver<Message>) -> Result<Option<Written>, WriteReason> {
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
