//! What a session tells its recording to. Numbers books, says what has changed and only that, and hands entries to the
//! thread that writes. When that cannot keep up, the session waits: the ring overflows then, which is counted and repaired.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use tracing::warn;

use super::entry::{
    BooksId, Entry, Fact, HealthFacts, Known, MappedRange, Mark, ModuleFacts, Names, SessionFacts, Step, ThreadFacts,
};
use super::write::{WriteError, WriteReason, Writer, Written};
use crate::ids::Pid;
use crate::ingest::event::Event;
use crate::ledger::{Ledger, timeline};
use crate::object::module::ModuleStore;
use crate::process::address_space::AddressSpace;
use crate::snapshot::ThreadNames;
use crate::units::MonotonicNanos;

/// Entries that are handed over at once.
const BATCH: usize = 8192;
/// Batches on their way: 5 MiB or so.
const BATCHES_MAX: usize = 8;
/// How often what is known besides events is written.
const FACTS_PERIOD: Duration = Duration::from_millis(400);
/// How often the thread looks whether something is due.
const ATTEND_PERIOD: Duration = Duration::from_millis(50);

/// Corrections in one entry.
const CORRECTIONS_MAX: usize = 4096;

/// Targets of which it is remembered what was said.
const SAID_MAX: usize = 2048;

enum Message {
    Entries(Vec<Entry>),
    Finish(Names, MonotonicNanos),
}

#[derive(Debug)]
pub(crate) struct Recorder {
    path: PathBuf,
    /// `None` when the recording has ended early.
    sender: Option<SyncSender<Message>>,
    thread: JoinHandle<Result<Option<Written>, WriteReason>>,
    batch: Vec<Entry>,
    books: u32,
    modules: usize,
    said: FxHashMap<BooksId, Said>,
    facts_due: Instant,
}

/// What was written of a target last.
#[derive(Debug)]
struct Said {
    known: Known,
    /// Held, so that it is not changed in place.
    space: Option<Arc<AddressSpace>>,
    threads: Arc<ThreadNames>,
}

impl Recorder {
    /// Begins a recording. What the file held before is lost.
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
            books: 0,
            modules: 0,
            said: FxHashMap::default(),
            facts_due: Instant::now(),
        })
    }

    /// An event of a target.
    pub(crate) fn event(&mut self, event: &Event) {
        self.push(Entry::Event(event.clone()));
    }

    /// Numbers empty books.
    pub(crate) fn open(&mut self, ledger: &mut Ledger, pid: Pid) {
        let books = self.number(ledger);
        self.push(Entry::Step(Step::Opened { books, pid }));
    }

    /// What has become of books beside events, if anything.
    pub(crate) fn correct(&mut self, ledger: &mut Ledger) {
        let books = BooksId(ledger.number());
        for part in ledger.take_corrections().chunks(CORRECTIONS_MAX) {
            self.push(Entry::Step(Step::Corrected { books, corrections: part.to_vec() }));
        }
    }

    /// Numbers the books of a child. `is_empty` says that they are no copy of the parent's.
    pub(crate) fn fork(&mut self, parent: u32, ledger: &mut Ledger, child: Pid, is_empty: bool) {
        let books = self.number(ledger);
        self.push(Entry::Step(Step::Forked { parent: BooksId(parent), books, child, is_empty }));
    }

    /// Numbers the books that take the place of others, because of an exec.
    pub(crate) fn succeed(&mut self, before: &Ledger, ledger: &mut Ledger) {
        let books = self.number(ledger);
        self.push(Entry::Step(Step::Succeeded { before: BooksId(before.number()), books }));
    }

    /// Events of a process go to these books.
    pub(crate) fn join(&mut self, pid: Pid, ledger: &Ledger) {
        self.push(Entry::Step(Step::Joined { pid, books: BooksId(ledger.number()) }));
    }

    /// Events of a process go to no books.
    pub(crate) fn leave(&mut self, pid: Pid) {
        self.push(Entry::Step(Step::Left { pid }));
    }

    /// A target has ended and is reported.
    ///
    /// `closed` is when its live blocks were looked at for the last time.
    pub(crate) fn keep(&mut self, ledger: &mut Ledger, closed: Option<MonotonicNanos>) {
        self.correct(ledger);
        self.push(Entry::Step(Step::Kept { books: BooksId(ledger.number()), closed }));
    }

    /// What callsites hold was noted at this instant.
    pub(crate) fn note(&mut self, ledger: &Ledger, instant: timeline::Instant) {
        self.push(Entry::Step(Step::Noted { books: BooksId(ledger.number()), instant }));
    }

    fn number(&mut self, ledger: &mut Ledger) -> BooksId {
        self.books += 1;
        ledger.set_number(self.books);
        BooksId(self.books)
    }

    /// How the recording is made.
    pub(crate) fn session(&mut self, facts: SessionFacts) {
        self.fact(Fact::Session(facts));
    }

    /// Whether it is time to say what is known besides events.
    pub(crate) fn is_due(&self) -> bool {
        self.facts_due <= Instant::now()
    }

    /// Modules that were not told yet. To be told before the mappings that name them.
    pub(crate) fn modules(&mut self, store: &ModuleStore) {
        let new: Vec<ModuleFacts> =
            store.iter().skip(self.modules).map(|(id, module)| ModuleFacts::of(id, module)).collect();
        self.modules += new.len();
        new.into_iter().for_each(|module| self.fact(Fact::Module(module)));
    }

    /// What is known of a target, where that has changed.
    pub(crate) fn target(&mut self, books: u32, known: Known, space: &Arc<AddressSpace>, threads: &Arc<ThreadNames>) {
        let books = BooksId(books);
        let said = self.said.remove(&books);
        let is_same = |said: &Said| {
            said.space.as_ref().is_some_and(|old| Arc::ptr_eq(old, space) || old.mappings() == space.mappings())
        };
        if !said.as_ref().is_some_and(is_same) {
            let mappings = space.mappings().iter().map(MappedRange::from).collect();
            self.push(Entry::Step(Step::Mapped { books, mappings }));
        }
        if said.as_ref().is_none_or(|said| said.known != known) {
            self.fact(Fact::Target(books, known.clone()));
        }
        self.threads(books, said.as_ref().map(|said| &said.threads), threads);
        self.said.insert(books, Said { known, space: Some(Arc::clone(space)), threads: Arc::clone(threads) });
    }

    /// Names of threads that were not said.
    fn threads(&mut self, books: BooksId, said: Option<&Arc<ThreadNames>>, threads: &Arc<ThreadNames>) {
        if said.is_some_and(|said| Arc::ptr_eq(said, threads)) {
            return;
        }
        for (&tid, name) in &**threads {
            if said.is_none_or(|said| said.get(&tid) != Some(name)) {
                self.fact(Fact::Thread(books, ThreadFacts { tid, name: Arc::clone(name) }));
            }
        }
    }

    /// Whether nothing more can be learned of a target that has ended.
    pub(crate) fn has_all(&self, books: u32) -> bool {
        self.said.get(&BooksId(books)).is_some_and(|said| {
            let facts = &said.known.facts;
            facts.replaced || facts.exited && facts.exit_code.is_some()
        })
    }

    /// Whether much is known of targets that may not be there any more.
    pub(crate) fn is_crowded(&self) -> bool {
        self.said.len() > SAID_MAX
    }

    /// Forgets what was said of targets other than these.
    pub(crate) fn forget_others(&mut self, is_one: impl Fn(u32) -> bool) {
        self.said.retain(|books, _| is_one(books.0));
    }

    /// The word on losses so far.
    pub(crate) fn health(&mut self, health: HealthFacts) {
        self.fact(Fact::Health(Box::new(health)));
        self.facts_due = Instant::now() + FACTS_PERIOD;
    }

    /// A snapshot is taken.
    pub(crate) fn mark(&mut self, time: MonotonicNanos, reason: &str) {
        self.fact(Fact::Mark(Mark { monotonic_ns: time.0, reason: reason.to_owned() }));
    }

    fn fact(&mut self, fact: Fact) {
        self.push(Entry::Fact(Box::new(fact)));
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

    /// Hands over what there is. Waits while too much is on its way.
    pub(crate) fn send(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let batch = std::mem::replace(&mut self.batch, Vec::with_capacity(BATCH));
        if self.sender.as_ref().is_some_and(|sender| sender.send(Message::Entries(batch)).is_err()) {
            // It has said why.
            self.sender = None;
        }
    }

    /// Nothing more will happen.
    pub(crate) fn end(self, end: MonotonicNanos) -> Finishing {
        Finishing { recorder: self, end }
    }

    fn finish(mut self, names: Names, end: MonotonicNanos) -> Result<Written, WriteError> {
        self.send();
        if let Some(sender) = self.sender.take() {
            // A failure is told by the thread's end.
            let _ = sender.send(Message::Finish(names, end));
        }
        let failed = |reason| WriteError { path: self.path.clone(), reason };
        let written = self.thread.join().map_err(|_| failed(WriteReason::Panic))?.map_err(failed)?;
        written.ok_or_else(|| failed(WriteReason::Panic))
    }
}

/// A recording that has all but the names of its places.
#[derive(Debug)]
pub struct Finishing {
    recorder: Recorder,
    end: MonotonicNanos,
}

impl Finishing {
    /// Ends the recording, with names for what it has.
    ///
    /// # Errors
    ///
    /// Why it ended early.
    pub fn finish(self, names: Names) -> Result<Written, WriteError> {
        self.recorder.finish(names, self.end)
    }
}

/// Writes until there is nothing more to come. `None` when the end was not told.
fn write(writer: Writer, path: &Path, receiver: &Receiver<Message>) -> Result<Option<Written>, WriteReason> {
    let result = write_all(writer, receiver);
    if let Err(reason) = &result {
        warn!("the recording `{}` ends here: {reason}", path.display());
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
