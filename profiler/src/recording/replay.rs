//! The books of a whole recording, made again from its entries: by the same ledger, in the same order. Pure.
//!
//! It is also what older entries are folded into, so all of it can be written.

mod state;

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};

use super::account::Account;
use super::entry::{BooksId, Entry, Fact, HealthFacts, Mark, ModuleFacts, SessionFacts, Step};
use crate::ids::Pid;
use crate::ingest::event::Event;
use crate::ledger::Ledger;
use crate::ledger::journal::Flow;
use crate::ledger::snapshot::TargetSnapshot;
use crate::model::Health;
use crate::units::MonotonicNanos;

/// Ended targets that are kept one by one, as a session does. Of others the last word on losses has the sums.
pub(crate) const ENDED_MAX: usize = 1000;

/// Books of processes that never became targets are forgotten after so many nanoseconds: a session decides in less.
const UNDECIDED_NS_MAX: u64 = 60_000_000_000;

/// Modules that are believed.
const MODULES_MAX: usize = 1 << 20;

/// Rebuilds the ledger of every process from the entries of a recording.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Replay {
    session: SessionFacts,
    accounts: BTreeMap<BooksId, Account>,
    /// Where events of a process go.
    open: BTreeMap<Pid, BooksId>,
    /// Targets that have ended, in that order.
    kept: Vec<BooksId>,
    modules: Vec<ModuleFacts>,
    /// The last word on losses.
    health: HealthFacts,
    marks: Vec<Mark>,
    /// The latest time that anything has.
    time: MonotonicNanos,
    events: u64,
    /// Single events are known from here on.
    folded_until: Option<MonotonicNanos>,
    /// Callsites are told apart by thread, whether the recording was made so or not.
    #[serde(skip)]
    by_thread: bool,
    /// The books stay as they are; what they lack is still taken.
    #[serde(skip)]
    is_frozen: bool,
    /// What came into books and went out of them, and nobody has asked for yet; `None` where nobody will.
    #[serde(skip)]
    flows: Option<Vec<(BooksId, Flow)>>,
}

/// A recording at an instant, for windows that begin there.
#[derive(Debug, Default)]
pub struct Start {
    books: BTreeMap<BooksId, Arc<TargetSnapshot>>,
    /// Targets that had ended.
    ended: FxHashSet<BooksId>,
    health: Health,
}

impl Replay {
    /// Has callsites told apart by thread. To be called before the first entry; what was folded before is as it was folded.
    pub fn by_thread(self, by_thread: bool) -> Self {
        Self { by_thread, ..self }
    }

    /// Takes the next entry.
    pub fn enter(&mut self, entry: Entry) {
        if self.is_frozen {
            return self.complete(entry);
        }
        if let Some(time) = entry.time() {
            self.time = self.time.max(time);
        }
        match entry {
            Entry::Event(event) => self.event(event),
            Entry::Step(step) => self.step(step),
            Entry::Fact(fact) => self.fact(*fact),
            Entry::Fold(before) => self.begin_with(*before),
            Entry::Names(_) | Entry::Symbolization(_) | Entry::End(_) => {}
        }
    }

    fn begin_with(&mut self, before: Self) {
        let follows = self.flows.is_some();
        *self = Self { by_thread: self.by_thread, ..before };
        if self.by_thread {
            self.accounts.values_mut().for_each(|account| account.ledger.tell_threads_apart());
        }
        if follows {
            self.follow();
        }
    }

    /// Leaves the books as they are from here on.
    pub fn freeze(&mut self) {
        self.is_frozen = true;
    }

    /// Keeps what comes into books and goes out of them from now on, beginning with what is live.
    pub fn follow(&mut self) {
        let mut flows = Vec::new();
        for (&books, account) in &mut self.accounts {
            account.ledger.keep_journal();
            flows.extend(account.ledger.take_flows().into_iter().map(|flow| (books, flow)));
        }
        self.flows = Some(flows);
    }

    /// What came and went since this was last asked, in that order.
    pub fn take_flows(&mut self) -> Vec<(BooksId, Flow)> {
        self.flows.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Takes what is told late: it was known to the session when the books were frozen.
    fn complete(&mut self, entry: Entry) {
        match entry {
            Entry::Fact(fact) => {
                let is_missing = match &*fact {
                    Fact::Target(books, _) => {
                        let known = self.accounts.get(books).and_then(|account| account.known.as_ref());
                        known.is_none_or(|known| !known.begun)
                    }
                    Fact::Health(_) => self.health.monotonic_ns == 0,
                    Fact::Module(_) => true,
                    Fact::Thread(books, thread) => {
                        self.accounts.get(books).is_some_and(|account| !account.threads.contains_key(&thread.tid))
                    }
                    Fact::Session(_) | Fact::Mark(_) => false,
                };
                if is_missing {
                    self.fact(*fact);
                }
            }
            Entry::Step(Step::Mapped { books, mappings }) => {
                if let Some(account) = self.accounts.get_mut(&books).filter(|account| account.mapped.is_empty()) {
                    account.map(mappings);
                }
            }
            _ => {}
        }
    }

    fn event(&mut self, event: Event) {
        self.events += 1;
        let Some(&books) = self.open.get(&event.pid()) else { return };
        if let Some(account) = self.accounts.get_mut(&books) {
            account.ledger.enter(event);
            note(&mut self.flows, books, account);
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Opened { books, pid } => self.open_account(books, Ledger::new(pid)),
            Step::Forked { parent, books, child, is_empty } => {
                let parent = self.accounts.get(&parent).filter(|_| !is_empty);
                let ledger = parent.map_or_else(|| Ledger::new(child), |parent| parent.ledger.fork(child));
                self.open_account(books, ledger);
            }
            Step::Succeeded { before, books } => {
                let Some(account) = self.accounts.get(&before) else { return };
                let ledger = account.ledger.succeed();
                self.open_account(books, ledger);
                self.open.values_mut().filter(|open| **open == before).for_each(|open| *open = books);
            }
            Step::Joined { pid, books } => {
                self.open.insert(pid, books);
            }
            Step::Left { pid } => {
                self.open.remove(&pid);
            }
            Step::Kept { books, closed } => self.keep(books, closed),
            Step::Noted { books, instant } => {
                if let Some(account) = self.accounts.get_mut(&books) {
                    account.note(instant);
                }
            }
            Step::Mapped { books, mappings } => {
                if let Some(account) = self.accounts.get_mut(&books) {
                    account.map(mappings);
                }
            }
            Step::Corrected { books, corrections } => {
                if let Some(account) = self.accounts.get_mut(&books) {
                    corrections.iter().for_each(|correction| account.ledger.correct(correction));
                    note(&mut self.flows, books, account);
                }
            }
        }
    }

    fn open_account(&mut self, books: BooksId, mut ledger: Ledger) {
        if self.by_thread || self.session.by_thread {
            ledger.tell_threads_apart();
        }
        let mut account = Account::new(ledger, self.time);
        if self.flows.is_some() {
            account.ledger.keep_journal();
            note(&mut self.flows, books, &mut account);
        }
        self.accounts.insert(books, account);
    }

    fn keep(&mut self, books: BooksId, closed: Option<MonotonicNanos>) {
        let Some(account) = self.accounts.get_mut(&books) else { return };
        account.close(closed);
        self.open.retain(|_, open| *open != books);
        self.kept.retain(|kept| *kept != books);
        self.kept.push(books);
        if self.kept.len() > ENDED_MAX {
            let allocated = |books: &BooksId| self.accounts.get(books).map(|it| it.ledger.totals().alloc_bytes);
            let smallest = (0..self.kept.len()).min_by_key(|&at| allocated(&self.kept[at])).unwrap_or(0);
            let folded = self.kept.swap_remove(smallest);
            self.accounts.remove(&folded);
        }
    }

    fn fact(&mut self, fact: Fact) {
        match fact {
            Fact::Session(facts) => {
                self.time = self.time.max(MonotonicNanos(facts.started_monotonic_ns));
                self.session = facts;
            }
            Fact::Target(books, known) => {
                if let Some(account) = self.accounts.get_mut(&books) {
                    account.known = Some(known);
                }
            }
            Fact::Module(module) => {
                if module.id.0 as usize == self.modules.len() && self.modules.len() < MODULES_MAX {
                    self.modules.push(module);
                }
            }
            Fact::Health(health) => self.health = *health,
            Fact::Mark(mark) => self.marks.push(mark),
            Fact::Thread(books, thread) => {
                if let Some(account) = self.accounts.get_mut(&books) {
                    account.call(thread);
                }
            }
        }
    }

    /// Says that what was entered so far will not be told again: windows can begin here, and not before. What nobody will
    /// ask for is forgotten.
    pub fn fold(&mut self) {
        self.folded_until = Some(self.time);
        let (now, open, kept) = (self.time.0, &self.open, &self.kept);
        self.accounts.retain(|books, account| {
            open.values().any(|open| open == books)
                || kept.contains(books)
                || now.saturating_sub(account.opened.0) < UNDECIDED_NS_MAX
        });
    }

    /// Whether it can be used: what was read from a file need not hold together.
    pub fn is_sound(&self) -> bool {
        let known = |books: &BooksId| self.accounts.contains_key(books);
        let in_order = |(at, module): (usize, &ModuleFacts)| module.id.0 as usize == at;
        self.accounts.values().all(Account::is_sound)
            && self.open.values().all(known)
            && self.kept.iter().all(known)
            && self.modules.iter().enumerate().all(in_order)
            && self.events < u64::MAX / 2
    }

    /// How the recording was made.
    pub fn session(&self) -> &SessionFacts {
        &self.session
    }

    /// All modules, by number.
    pub fn modules(&self) -> &[ModuleFacts] {
        &self.modules
    }

    /// The latest time that anything had.
    pub fn time(&self) -> MonotonicNanos {
        self.time
    }

    /// Events so far, those before a fold among them.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Single events are known from here on; `None` where all are.
    pub fn folded_until(&self) -> Option<MonotonicNanos> {
        self.folded_until
    }

    /// How long after the beginning something was, in nanoseconds.
    pub fn since_start_ns(&self, time: MonotonicNanos) -> u64 {
        time.0.saturating_sub(self.session.started_monotonic_ns)
    }

    /// A time in nanoseconds since the Unix epoch.
    pub fn unix_ns(&self, time: MonotonicNanos) -> u64 {
        if time.0 == self.health.monotonic_ns {
            return self.health.unix_ns;
        }
        self.session.started_unix_ns.saturating_add(self.since_start_ns(time))
    }

    /// The clock of events at a time since the Unix epoch that was told from the recording's beginning.
    fn monotonic(&self, unix_ns: u64) -> MonotonicNanos {
        let since_start_ns = unix_ns.saturating_sub(self.session.started_unix_ns);
        MonotonicNanos(self.session.started_monotonic_ns.saturating_add(since_start_ns))
    }
}

/// Takes from a journal what nobody has asked for yet.
fn note(flows: &mut Option<Vec<(BooksId, Flow)>>, books: BooksId, account: &mut Account) {
    if let Some(flows) = flows {
        flows.extend(account.ledger.take_flows().into_iter().map(|flow| (books, flow)));
    }
}
