//! All that a session keeps of one target.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{debug, info};

use crate::bpf::load::Kernel;
use crate::guardrail::overhead::OverheadWatch;
use crate::ids::{Identity, Pid};
use crate::ingest::event::Event;
use crate::ledger::Ledger;
use crate::ledger::snapshot::TargetSnapshot;
use crate::ledger::timeline::{self, Timeline};
use crate::ledger::totals::Totals;
use crate::linux::clock;
use crate::model::{Beginning, Origin};
use crate::object::module::ModuleStore;
use crate::process::address_space::AddressSpace;
use crate::process::link_map::LinkMap;
use crate::process::target::{Exit, Process, TargetError};
use crate::recording::recorder::{RecordedLedger, Recorder};
use crate::report::text::printable;
use crate::snapshot::{Base, TargetFacts, TargetState};
use crate::units::MonotonicNanos;

use super::age_statistics::AgeStatistics;
use super::guard;
use super::hooks::Hooks;
use super::lifecycle::Birth;
use super::probes::Probes;
use super::threads::Threads;

/// One target: the process, its code, its books, its probes.
pub(super) struct Target {
    pub(super) pid: Pid,
    /// `argv[0]`.
    pub(super) command: String,
    /// `/proc/PID/comm`.
    pub(super) comm: String,
    /// Its control group, as it was when the program was first looked at.
    cgroup: Option<Arc<str>>,
    /// `None` once it has ended or become another program.
    pub(super) process: Option<Process>,
    /// What its threads are called.
    pub(super) threads: Threads,
    /// Shared with the snapshots that were made.
    pub(super) space: Arc<AddressSpace>,
    pub(super) ledger: RecordedLedger,
    pub(super) beginning: Beginning,
    /// When its program, or it itself, came into being, where that was seen.
    pub(super) born: Option<MonotonicNanos>,
    pub(super) hooks: Hooks,
    pub(super) end: Option<End>,
    /// What its probes cost it, where that is looked at.
    pub(super) overhead: OverheadWatch,
    /// It was asked for by itself, or descends from one that was, and stays a target when it calls exec.
    pub(super) requested: bool,
    /// Probes were put on files before it had mapped them.
    pub(super) foreseen: bool,
    /// It was stopped when its allocator was not mapped yet, or at its exec.
    pub(super) held_before_mapping: bool,
    /// How old blocks must be that are counted apart.
    pub(super) older_than: Option<Duration>,
    /// What its callsites held in the course of time. Shared with the snapshots that were made.
    pub(super) timeline: Arc<Timeline>,
    /// Of its live blocks, when its books were closed.
    pub(super) age_statistics_at_end: Option<AgeStatistics>,
    begun: bool,
    /// Where the present window begins in its books.
    base: Base,
    /// Why it has no probes, where it stays a target nevertheless: it may become another program.
    pub(super) unprofilable: Option<String>,
    opened: Instant,
    link_map: Option<LinkMap>,
    /// A stack had code that no known mapping covers: look at the mappings again.
    space_stale: bool,
    space_read: Instant,
    space_period: Duration,
    /// Something new was mapped, and was not searched for allocators yet.
    unsearched: bool,
}

/// How a target ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Exited(Exit),
    /// It became another program.
    Replaced,
    /// It goes on without probes since then: they cost it too much.
    Detached(MonotonicNanos),
}

/// A dynamic linker may be at work for so long after a process was first looked at.
const YOUNG: Duration = Duration::from_secs(2);

/// Mappings are read no more often than this because a stack asked for it; less and less often where nothing comes of it,
/// as with code that was never code.
const SPACE_PERIOD: Duration = Duration::from_millis(100);
const SPACE_PERIOD_MAX: Duration = Duration::from_secs(5);

impl Target {
    /// A process and its mappings; no probes yet.
    pub(super) fn new(process: Process, origin: Origin, born: Option<MonotonicNanos>) -> Self {
        let pid = process.pid;
        Self {
            pid,
            command: process.command.clone(),
            comm: process.comm.clone(),
            cgroup: process.cgroup.clone(),
            process: Some(process),
            threads: Threads::default(),
            space: Arc::new(AddressSpace::new(pid)),
            ledger: Ledger::new(pid).into(),
            beginning: Beginning { origin, time: MonotonicNanos(0), delay_ns: None, from_first_call: false },
            born,
            hooks: Hooks::default(),
            end: None,
            overhead: OverheadWatch::default(),
            requested: false,
            foreseen: false,
            held_before_mapping: false,
            older_than: None,
            timeline: Arc::default(),
            age_statistics_at_end: None,
            begun: false,
            base: Base::Beginning,
            unprofilable: None,
            opened: Instant::now(),
            link_map: None,
            space_stale: false,
            space_read: Instant::now(),
            space_period: SPACE_PERIOD,
            unsearched: false,
        }
    }

    /// A copy of its parent, made by a fork: its code lies where the parent's did then.
    pub(super) fn forked(process: Process, birth: Birth) -> Self {
        let Birth { fork, ledger, space, hooks, threads, requested } = birth;
        let target = Self::new(process, Origin::Forked(fork.parent), Some(fork.time));
        Self { threads: Threads::of_child(&threads), space: Arc::new(space), ledger, hooks, requested, ..target }
    }

    /// Opens a process.
    pub(super) fn open(pid: Pid, origin: Origin, born: Option<MonotonicNanos>) -> Result<Self, TargetError> {
        Ok(Self::new(Process::open(pid)?, origin, born))
    }

    /// The program is replaced by another one: what it was becomes a target of its own, which has ended, and this one
    /// goes on as what `process` is now. Its links stay: they follow the process.
    pub(super) fn replace(&mut self, ledger: RecordedLedger, process: Process, born: MonotonicNanos) -> Self {
        let mut next = Self::new(process, Origin::Executed, Some(born));
        std::mem::swap(&mut next.ledger, &mut self.ledger);
        next.hooks = self.hooks.succeed();
        next.foreseen = !next.hooks.is_empty();
        next.requested = self.requested;
        let mut before = std::mem::replace(self, next);
        before.ledger = ledger;
        before.process = None;
        before.end = Some(End::Replaced);
        before
    }

    /// Whether its probes were in place at some time.
    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    /// Which process it is, while it runs.
    pub(super) fn identity(&self) -> Option<Identity> {
        self.process.as_ref().map(Process::identity)
    }

    /// Whether its process has ended, seen or not. Then its number may be another's.
    pub(super) fn is_gone(&self) -> bool {
        self.process.as_ref().is_none_or(Process::has_ended)
    }

    /// Takes an event of this target to the books.
    pub(super) fn enter(&mut self, event: Event) {
        if let Event::Stack(_, _, stack) = &event {
            self.space_stale |= stack.frames.iter().any(|&frame| !self.space.covers(frame.inside_call()));
        }
        self.threads.meet(&event);
        self.ledger.enter(event);
    }

    /// Reads names of threads that are due, at most so many. Returns how many it read.
    pub(super) fn read_thread_names(&mut self, now: Instant, reads_max: usize) -> usize {
        if reads_max == 0 || !self.threads.is_due(now) || self.is_gone() {
            return 0;
        }
        self.threads.read(self.pid, now, reads_max)
    }

    /// Reads names of threads again, at most so many. Returns how many it read.
    pub(super) fn refresh_thread_names(&mut self, reads_max: usize) -> usize {
        if self.is_gone() { 0 } else { self.threads.refresh(self.pid, reads_max) }
    }

    /// Notes what its callsites hold at this instant, which is now, and tells the recording, if there is one.
    pub(super) fn note(&mut self, instant: timeline::Instant, recorder: Option<&mut Recorder>) {
        Arc::make_mut(&mut self.timeline).note(instant, &self.ledger);
        if let Some(recorder) = recorder {
            recorder.sample(&self.ledger, instant);
        }
    }

    /// Whether a stack asks for mappings that are not known.
    pub(super) fn is_stale(&self) -> bool {
        // A stack may hold garbage that no mapping will ever cover.
        self.space_stale && self.space_read.elapsed() >= self.space_period
    }

    /// Whether something may have been mapped that was not there: the dynamic linker's list says so, or is still growing.
    pub(super) fn may_have_mapped(&self) -> bool {
        self.is_young() || self.unsearched || self.link_map.as_ref().is_some_and(LinkMap::changed)
    }

    /// When it was first looked at.
    pub(super) fn opened(&self) -> Instant {
        self.opened
    }

    /// Whether its dynamic linker may still be at work.
    pub(super) fn is_young(&self) -> bool {
        self.opened.elapsed() < YOUNG
    }

    /// Looks at the mappings again: the modules that stacks name must be opened while they are there. True when something
    /// new is mapped.
    pub(super) fn refresh_space(&mut self, modules: &mut ModuleStore) -> bool {
        self.space_stale = false;
        self.space_read = Instant::now();
        if self.is_gone() {
            return false;
        }
        self.link_map = LinkMap::read(self.pid);
        match Arc::make_mut(&mut self.space).refresh(modules) {
            Ok(new) => {
                self.unsearched |= !new.is_empty();
                let wasted = (self.space_period * 2).min(SPACE_PERIOD_MAX);
                self.space_period = if new.is_empty() { wasted } else { SPACE_PERIOD };
                !new.is_empty()
            }
            Err(error) => {
                debug!("process {}: {error}", self.pid);
                false
            }
        }
    }

    /// Whether there is something mapped that was not searched for allocators yet.
    pub(super) fn is_unsearched(&self) -> bool {
        self.unsearched
    }

    /// What is mapped has been searched for allocators.
    pub(super) fn was_searched(&mut self) {
        self.unsearched = false;
    }

    /// The dynamic linker's list, as it was when mappings were last looked at.
    pub(super) fn link_map(&self) -> Option<&LinkMap> {
        self.link_map.as_ref()
    }

    /// Its probes are in place. `before_first_call` when its allocator was not mapped yet at that time.
    pub(super) fn begin(&mut self, now: MonotonicNanos, before_first_call: bool) {
        self.begun = true;
        self.beginning.time = now;
        self.beginning.delay_ns = self.born.map(|born| now.0.saturating_sub(born.0));
        self.beginning.from_first_call = before_first_call;
    }

    /// Tells the user that from now on what it does is seen.
    pub(super) fn announce(&self) {
        info!("process {} ({}) is watched, {} hooks", self.pid, printable(&self.comm), self.hooks.attached());
    }

    /// It has ended: forgets its single blocks, here and in the kernel's live set. Its modules stay open for their names.
    pub(super) fn close(&mut self, kernel: &mut Kernel) {
        self.close_at(clock::now().monotonic, kernel);
    }

    /// It had ended at `now`.
    pub(super) fn close_at(&mut self, now: MonotonicNanos, kernel: &mut Kernel) {
        let freed = kernel.forget_blocks(self.pid, self.ledger.live().map(|block| block.address));
        if let Err(error) = freed {
            debug!("process {}: {error}", self.pid);
        }
        self.close_books(now);
    }

    /// Forgets its single blocks here. What is told of their ages is as of `now`.
    pub(super) fn close_books(&mut self, now: MonotonicNanos) {
        if self.has_begun() && self.age_statistics_at_end.is_none() {
            self.age_statistics_at_end = Some(self.count_age_statistics(now));
        }
        self.ledger.close(now);
    }

    /// What is known of it beside its books.
    pub(super) fn facts(&self) -> TargetFacts {
        let exit = match self.end {
            Some(End::Exited(exit)) => Some(exit),
            _ => None,
        };
        TargetFacts {
            pid: self.pid,
            command: self.command.clone(),
            comm: self.comm.clone(),
            cgroup: self.cgroup.clone(),
            beginning: self.beginning,
            exited: exit.is_some(),
            exit_code: exit.and_then(|exit| exit.code),
            replaced: self.end == Some(End::Replaced),
            detached: match self.end {
                Some(End::Detached(time)) => Some(time),
                _ => None,
            },
            overhead: guard::overhead(&self.overhead),
        }
    }

    /// What there is to report of it at this time.
    pub(super) fn state(&self, now: MonotonicNanos, probes: &Probes) -> TargetState {
        let books = self.ledger.snapshot(now);
        let AgeStatistics { counted, growths, older } = self.age_statistics(now);
        TargetState {
            facts: self.facts(),
            space: Arc::clone(&self.space),
            threads: Arc::clone(self.threads.names()),
            heaps: self.hooks.heaps(&books.heaps, probes),
            books: Arc::new(books),
            growths,
            curve: self.ledger.moments(counted),
            timeline: Arc::clone(&self.timeline),
            until: counted,
            older,
            base: self.base.clone(),
        }
    }

    /// Whether it had ended when the present window began.
    pub(super) fn is_past(&self) -> bool {
        matches!(self.base, Base::Ended)
    }

    /// A window begins now, when its books are these.
    pub(super) fn begin_window(&mut self, books: Arc<TargetSnapshot>) {
        self.base = if self.end.is_some() { Base::Ended } else { Base::At(books) };
    }

    /// What it did in the present window, in sum; `None` when it had ended before.
    pub(super) fn window_totals(&self) -> Option<Totals> {
        match &self.base {
            Base::Beginning => Some(*self.ledger.totals()),
            Base::At(base) => Some(self.ledger.totals().since(&base.totals)),
            Base::Ended => None,
        }
    }
}
