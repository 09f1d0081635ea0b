//! Replays a recording: the same ledgers get the same events in the same order. Pure. The state of a replay is serializable,
//! because older entries are folded into it.

use std::collections::BTreeMap;
use std::sync::Arc;

use heapbpf_base::ids::{HeapId, LedgerId, ModuleId, Pid};
use heapbpf_base::units::{Cubes, MonotonicNanos};
use heapbpf_ledger::Ledger;
use heapbpf_ledger::ingest::event::Event;
use heapbpf_ledger::model::{Health, Leaks, MemoryAccount, Symbolization, Window};
use heapbpf_ledger::snapshot::TargetSnapshot;
use heapbpf_ledger::timeline::Timeline;
use heapbpf_ledger::totals::Flow;
use heapbpf_linux::proc::maps::{Device, Mapping, MappingName};
use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};

use super::entry::{
    Fact, HealthFacts, MappedRange, Mark, ModuleFacts, NamedLocation, SessionFacts, Step, TargetRecord, ThreadFacts,
};
use crate::object::module::Modules;
use crate::process::address_space::{AddressSpace, MappedModule};
use crate::snapshot::{Base, HeapFacts, Snapshot, TargetState, ThreadNames, WindowFacts};

mod fold;
pub(crate) mod late;

/// Maximum number of ended targets to keep, as in a session. The sums of other targets are in the health facts.
pub(crate) const ENDED_MAX: usize = 1000;
/// Age at which ledgers of processes that never became targets are dropped: a session decides in less.
const UNDECIDED_NS_MAX: u64 = 60_000_000_000;
/// Maximum number of modules, against a file that is crafted to exhaust memory.
const MODULES_MAX: usize = 1 << 20;

#[derive(Debug)]
pub enum Entry {
    /// An event of a process, for the ledger that the process has joined, if any.
    Event(Event),
    Step(Step),
    Fact(Box<Fact>),
    Fold(Box<Replay>),
    Names(Vec<NamedLocation>),
    Symbolization(Symbolization),
    End(MonotonicNanos),
}

impl Entry {
    pub fn time(&self) -> Option<MonotonicNanos> {
        Some(match self {
            Self::Event(Event::Alloc(allocation)) => allocation.time,
            Self::Event(Event::Free(free)) => free.time,
            Self::Event(Event::Remap(remap)) => remap.ended,
            // The time of a restored block is that of its allocation.
            Self::Event(Event::Restore(_) | Event::Stack(..)) => return None,
            Self::Fact(fact) => match &**fact {
                Fact::Health(health) => MonotonicNanos(health.monotonic_ns),
                Fact::Mark(mark) => MonotonicNanos(mark.monotonic_ns),
                // Times are relative to the start of the session, which precedes all entries.
                Fact::Session(_) | Fact::Target(..) | Fact::Module(_) | Fact::Thread(..) | Fact::Memory(..) => {
                    return None;
                }
            },
            Self::End(time) => *time,
            Self::Step(_) | Self::Fold(_) | Self::Names(_) | Self::Symbolization(_) => return None,
        })
    }
}

/// Rebuilds the ledgers of all targets from the entries of a recording. The order of the fields is part of the format.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Replay {
    pub(super) session: SessionFacts,
    accounts: BTreeMap<LedgerId, Account>,
    open: BTreeMap<Pid, LedgerId>,
    ended: Vec<LedgerId>,
    pub(super) modules: Vec<ModuleFacts>,
    health: HealthFacts,
    marks: Vec<Mark>,
    pub(super) time: MonotonicNanos,
    pub(super) events: u64,
    /// Time from which on single events are available.
    pub(super) folded_until: Option<MonotonicNanos>,
    /// Whether callsites distinguish threads, even if they did not in the recording session.
    #[serde(skip)]
    by_thread: bool,
    /// Whether ledgers do not change any more; missing facts are still added.
    #[serde(skip)]
    is_frozen: bool,
    /// Changes that were not taken yet; `None` if they are not recorded.
    #[serde(skip)]
    flows: Option<Vec<(LedgerId, Flow)>>,
}

#[derive(Debug, Default)]
pub struct Start {
    snapshots: BTreeMap<LedgerId, Arc<TargetSnapshot>>,
    ended: FxHashSet<LedgerId>,
    health: Health,
}

impl Replay {
    /// Lets callsites distinguish threads. Must be called before the first entry; does not apply to a fold.
    pub fn by_thread(self, by_thread: bool) -> Self {
        Self { by_thread, ..self }
    }

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
            Entry::Fold(before) => self.continue_after(*before),
            Entry::Names(_) | Entry::Symbolization(_) | Entry::End(_) => {}
        }
    }

    fn continue_after(&mut self, before: Self) {
        let follows = self.flows.is_some();
        *self = Self { by_thread: self.by_thread, ..before };
        if self.by_thread {
            self.accounts.values_mut().for_each(|account| account.ledger.distinguish_threads());
        }
        if follows {
            self.follow();
        }
    }

    pub fn freeze(&mut self) {
        self.is_frozen = true;
    }

    /// Records flows for [`take_flows`](Self::take_flows), starting with the live blocks.
    pub fn follow(&mut self) {
        self.flows = Some(Vec::new());
        let accounts: Vec<LedgerId> = self.accounts.keys().copied().collect();
        accounts.into_iter().for_each(|id| self.change(id, |account| account.ledger.record_flows()));
    }

    pub fn take_flows(&mut self) -> Vec<(LedgerId, Flow)> {
        self.flows.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Adds a fact that was recorded late: the session knew it when the ledgers were frozen.
    fn complete(&mut self, entry: Entry) {
        match entry {
            Entry::Fact(fact) => {
                let is_missing = match &*fact {
                    Fact::Target(id, _) => {
                        let known = self.accounts.get(id).and_then(|account| account.record.as_ref());
                        known.is_none_or(|known| !known.begun)
                    }
                    Fact::Health(_) => self.health.monotonic_ns == 0,
                    Fact::Module(_) => true,
                    Fact::Thread(id, thread) => {
                        self.accounts.get(id).is_some_and(|account| !account.threads.contains_key(&thread.tid))
                    }
                    Fact::Session(_) | Fact::Mark(_) | Fact::Memory(..) => false,
                };
                if is_missing {
                    self.fact(*fact);
                }
            }
            Entry::Step(Step::Mapped { ledger: id, mappings }) => {
                if let Some(account) = self.accounts.get_mut(&id).filter(|account| account.mapped.is_empty()) {
                    account.map(mappings);
                }
            }
            _ => {}
        }
    }

    fn event(&mut self, event: Event) {
        self.events += 1;
        if let Some(&id) = self.open.get(&event.pid()) {
            self.change(id, |account| account.ledger.enter(event));
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Opened { ledger: id, pid } => self.open_account(id, Ledger::new(pid)),
            Step::Forked { parent, ledger: id, child, is_empty } => {
                let parent = self.accounts.get(&parent).filter(|_| !is_empty);
                let ledger = parent.map_or_else(|| Ledger::new(child), |parent| parent.ledger.fork(child));
                self.open_account(id, ledger);
            }
            Step::Succeeded { before, ledger: id } => {
                let Some(account) = self.accounts.get(&before) else { return };
                let ledger = account.ledger.succeed();
                self.open_account(id, ledger);
                self.open.values_mut().filter(|open| **open == before).for_each(|open| *open = id);
            }
            Step::Joined { pid, ledger: id } => {
                self.open.insert(pid, id);
            }
            Step::Left { pid } => {
                self.open.remove(&pid);
            }
            Step::Ended { ledger: id, closed } => self.end(id, closed),
            Step::Sampled { ledger: id, point } => {
                self.change(id, |account| account.timeline.note(point, &account.ledger))
            }
            Step::Mapped { ledger: id, mappings } => self.change(id, |account| account.map(mappings)),
            Step::Corrected { ledger: id, corrections } => {
                self.change(id, |account| corrections.iter().for_each(|it| account.ledger.correct(it)));
            }
        }
    }

    fn change(&mut self, id: LedgerId, change: impl FnOnce(&mut Account)) {
        let Some(account) = self.accounts.get_mut(&id) else { return };
        change(account);
        if let Some(flows) = &mut self.flows {
            flows.extend(account.ledger.take_flows().into_iter().map(|flow| (id, flow)));
        }
    }

    fn open_account(&mut self, id: LedgerId, mut ledger: Ledger) {
        if self.by_thread || self.session.by_thread {
            ledger.distinguish_threads();
        }
        self.accounts.insert(id, Account { ledger, opened: self.time, ..Account::default() });
        if self.flows.is_some() {
            self.change(id, |account| account.ledger.record_flows());
        }
    }

    fn end(&mut self, id: LedgerId, closed: Option<MonotonicNanos>) {
        let Some(account) = self.accounts.get_mut(&id) else { return };
        account.close(closed);
        self.open.retain(|_, open| *open != id);
        self.ended.retain(|ended| *ended != id);
        self.ended.push(id);
        if self.ended.len() > ENDED_MAX {
            let allocated = |id: &LedgerId| self.accounts.get(id).map(|it| it.ledger.totals().alloc_bytes);
            let smallest = (0..self.ended.len()).min_by_key(|&at| allocated(&self.ended[at])).unwrap_or(0);
            let folded = self.ended.swap_remove(smallest);
            self.accounts.remove(&folded);
        }
    }

    fn fact(&mut self, fact: Fact) {
        match fact {
            Fact::Session(facts) => {
                self.time = self.time.max(MonotonicNanos(facts.started_monotonic_ns));
                self.session = facts;
            }
            Fact::Target(id, record) => self.change(id, |account| account.record = Some(record)),
            Fact::Module(module) => {
                if module.id.0 as usize == self.modules.len() && self.modules.len() < MODULES_MAX {
                    self.modules.push(module);
                }
            }
            Fact::Health(health) => self.health = *health,
            Fact::Mark(mark) => self.marks.push(mark),
            Fact::Thread(id, thread) => self.change(id, |account| account.set_thread_name(thread)),
            Fact::Memory(id, facts) => self.change(id, |account| Arc::make_mut(&mut account.memory).extend(facts)),
        }
    }

    /// Prepares to replace all entries so far: windows cannot begin earlier. Drops ledgers that no report will include.
    pub fn fold(&mut self) {
        self.folded_until = Some(self.time);
        let (now, open, ended) = (self.time.0, &self.open, &self.ended);
        self.accounts.retain(|id, account| {
            open.values().any(|open| open == id)
                || ended.contains(id)
                || now.saturating_sub(account.opened.0) < UNDECIDED_NS_MAX
        });
    }

    /// Third cumulants of all ledgers, in an order that follows from the state.
    pub(super) fn cubes_mut(&mut self) -> impl Iterator<Item = &mut Cubes> {
        self.accounts.values_mut().flat_map(|account| account.ledger.cubes_mut())
    }

    pub fn is_sound(&self) -> bool {
        let exists = |id: &LedgerId| self.accounts.contains_key(id);
        let in_order = |(at, module): (usize, &ModuleFacts)| module.id.0 as usize == at;
        self.accounts
            .values()
            .all(|account| account.ledger.is_sound() && account.timeline.is_sound() && account.memory.is_sound())
            && self.open.values().all(exists)
            && self.ended.iter().all(exists)
            && self.modules.iter().enumerate().all(in_order)
            && self.events < u64::MAX / 2
    }

    pub fn since_start_ns(&self, time: MonotonicNanos) -> u64 {
        time.0.saturating_sub(self.session.started_monotonic_ns)
    }

    pub fn unix_ns(&self, time: MonotonicNanos) -> u64 {
        if time.0 == self.health.monotonic_ns {
            return self.health.unix_ns;
        }
        self.session.started_unix_ns.saturating_add(self.since_start_ns(time))
    }

    fn monotonic(&self, unix_ns: u64) -> MonotonicNanos {
        let since_start_ns = unix_ns.saturating_sub(self.session.started_unix_ns);
        MonotonicNanos(self.session.started_monotonic_ns.saturating_add(since_start_ns))
    }

    pub fn start(&self) -> Start {
        let snapshot = |(&id, account): (&LedgerId, &Account)| (id, Arc::new(account.ledger.snapshot(self.time)));
        Start {
            snapshots: self.accounts.iter().map(snapshot).collect(),
            ended: self.ended.iter().copied().collect(),
            health: self.health.health.clone(),
        }
    }

    /// Number of events as the kernel side counted them, or at least the number of entries of a recording that ends before that
    /// is known. A completed stack is entered into the ledgers of all processes that have it, so there may be more entries than
    /// events.
    fn event_count(&self) -> u64 {
        let counted = self.health.health.events;
        if self.health.monotonic_ns >= self.time.0 { counted } else { counted.max(self.events) }
    }

    pub fn snapshot(&self, window: Option<(&Start, Window)>, modules: Modules, now: MonotonicNanos) -> Snapshot {
        let start = window.map(|(start, _)| start);
        let targets = self.targets().into_iter().filter_map(|id| self.state(id, start, &modules, now)).collect();
        let health = Health { events: self.event_count(), ..self.health.health.clone() };
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

    pub fn targets(&self) -> Vec<LedgerId> {
        let known = |id: &LedgerId| self.accounts.get(id)?.record.as_ref().filter(|known| known.begun);
        let named = self.ended.iter().chain(self.open.values());
        let mut targets: Vec<_> = named.filter_map(|id| Some((known(id)?, *id))).collect();
        targets.sort_by_key(|(known, _)| (known.facts.beginning.time, known.facts.pid));
        targets.into_iter().map(|(_, id)| id).collect()
    }

    fn state(
        &self,
        id: LedgerId,
        start: Option<&Start>,
        modules: &Modules,
        now: MonotonicNanos,
    ) -> Option<TargetState> {
        let account = self.accounts.get(&id)?;
        let known = account.record.as_ref().filter(|known| known.begun)?;
        let (snapshot, until) = (account.ledger.snapshot(now), account.closed.unwrap_or(now));
        let base = match start {
            Some(start) if start.ended.contains(&id) => Base::Ended,
            Some(start) => start.snapshots.get(&id).map_or(Base::Beginning, |snapshot| Base::At(Arc::clone(snapshot))),
            None => Base::Beginning,
        };
        let mut heaps = known.heaps.clone();
        for &(id, _) in &snapshot.heaps {
            if heaps.iter().all(|heap| heap.id != id) {
                heaps.push(self.unnamed_heap(id));
            }
        }
        let mut facts = known.facts.clone();
        // A recording can have facts later than their events: in this window, the process may not have ended yet.
        if start.is_some() && !self.ended.contains(&id) && !facts.is_running() {
            facts.end = None;
        }
        Some(TargetState {
            facts,
            threads: Arc::clone(&account.threads),
            space: Arc::new(account.space(known.facts.pid, modules.len())),
            heaps,
            ledger: Arc::new(snapshot),
            growths: account.growths(now),
            curve: account.ledger.curve_points(until),
            timeline: Arc::new(account.timeline.clone()),
            memory: Arc::clone(&account.memory),
            until,
            older: None,
            base,
        })
    }

    /// Describes a heap whose name was not written before the recording ended early.
    fn unnamed_heap(&self, id: HeapId) -> HeapFacts {
        let known = self.accounts.values().filter_map(|account| account.record.as_ref());
        let elsewhere = known.flat_map(|known| &known.heaps).find(|heap| heap.id == id);
        let name = elsewhere.map_or_else(|| format!("heap-{}", id.0), |heap| heap.name.clone());
        let interval_bytes = elsewhere.map_or(self.session.interval_bytes, |heap| heap.interval_bytes);
        HeapFacts { id, name, interval_bytes, interval_bytes_max: interval_bytes, hooks: Vec::new() }
    }
}

/// Maximum number of removed mappings to remember, as in a session.
const RETIRED_MAX: usize = 4096;
const THREADS_MAX: usize = 4096;
const THREAD_NAME_BYTES_MAX: usize = 64;

/// The state of one target.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Account {
    ledger: Ledger,
    record: Option<TargetRecord>,
    /// Current executable mappings, and removed ones, the oldest first.
    mapped: Vec<MappedRange>,
    retired: Vec<MappedRange>,
    threads: Arc<ThreadNames>,
    timeline: Timeline,
    growths_at_end: Option<Leaks>,
    /// Time at which live blocks were last sampled, if the ledger is closed.
    closed: Option<MonotonicNanos>,
    opened: MonotonicNanos,
    /// Memory of the target, which follows the other state in a fold.
    #[serde(skip)]
    memory: Arc<MemoryAccount>,
}

impl Account {
    fn set_thread_name(&mut self, ThreadFacts { tid, name }: ThreadFacts) {
        let is_known = self.threads.contains_key(&tid);
        if name.len() <= THREAD_NAME_BYTES_MAX && (is_known || self.threads.len() < THREADS_MAX) {
            Arc::make_mut(&mut self.threads).insert(tid, name);
        }
    }

    fn close(&mut self, closed: Option<MonotonicNanos>) {
        self.growths_at_end = closed.map(|closed| Leaks::of(&self.timeline, &self.ledger, closed, None));
        self.ledger.close(closed.unwrap_or_default());
        self.closed = closed;
    }

    fn growths(&self, now: MonotonicNanos) -> Leaks {
        self.growths_at_end.clone().unwrap_or_else(|| Leaks::of(&self.timeline, &self.ledger, now, None))
    }

    /// Returns the address space; mappings of unknown modules count as generated code.
    fn space(&self, pid: Pid, modules: usize) -> AddressSpace {
        let mapped = |range: &MappedRange| MappedModule {
            mapping: Mapping {
                start: range.start,
                end: range.end,
                offset: range.offset,
                device: Device { major: 0, minor: 0 },
                inode: 0,
                name: MappingName::Anonymous,
            },
            module: range.module.filter(|module| (module.0 as usize) < modules),
        };
        let is_code = |range: &&MappedRange| range.interpreted().is_none();
        let [current, retired] =
            [&self.mapped, &self.retired].map(|ranges| ranges.iter().filter(is_code).map(mapped).collect());
        let mut space = AddressSpace::of(pid, current, retired);
        let exists = |module: ModuleId| (module.0 as usize) < modules;
        let interpreted = self.retired.iter().chain(&self.mapped).filter_map(MappedRange::interpreted);
        for interpreted in interpreted.filter(|it| exists(it.code) && exists(it.interpreter)) {
            space.set_interpreted(interpreted);
        }
        space
    }

    fn map(&mut self, mappings: Vec<MappedRange>) {
        let before = std::mem::replace(&mut self.mapped, mappings);
        let current: FxHashSet<MappedRange> = self.mapped.iter().copied().collect();
        let removed: Vec<MappedRange> = before.into_iter().filter(|old| !current.contains(old)).collect();
        let retired_again: FxHashSet<MappedRange> = removed.iter().copied().collect();
        self.retired.retain(|old| !retired_again.contains(old));
        self.retired.extend(removed);
        let excess = self.retired.len().saturating_sub(RETIRED_MAX);
        self.retired.drain(..excess);
    }
}
