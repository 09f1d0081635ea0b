//! One target: process, mappings, ledger and probes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use heapbpf_base::ids::{HeapId, Identity, Pid};
use heapbpf_base::units::{Amounts, MonotonicNanos};
use heapbpf_ledger::Ledger;
use heapbpf_ledger::ingest::event::Event;
use heapbpf_ledger::ingest::record::Fork;
use heapbpf_ledger::model::{Beginning, End, Leaks, Origin, Overhead};
use heapbpf_ledger::snapshot::TargetSnapshot;
use heapbpf_ledger::timeline::{Timeline, TimelinePoint};
use heapbpf_ledger::totals::Totals;
use heapbpf_linux::file_view::FileView;
use heapbpf_linux::proc::maps::FileIdentity;
use heapbpf_linux::proc::process;
use heapbpf_report::text::printable;
use profiler_common::interval::Interval;
use profiler_common::mapped::Changes;
use tracing::{debug, info};

use super::generated_code::GeneratedCode;
use super::hooks::Hooks;
use super::mappings::Mappings;
use super::rates::Rates;
use super::stubs::CopiedStubs;
use super::threads::Threads;
use crate::account::MemoryMonitor;
use crate::allocator::selection::GO;
use crate::bpf::load::Kernel;
use crate::go_heap::GoHeap;
use crate::guardrail::OverheadMonitor;
use crate::object::module::ModuleStore;
use crate::probe::plan::Plan;
use crate::process::address_space::AddressSpace;
use crate::process::target::{Process, TargetError};
use crate::recording::recorder::Recorder;
use crate::snapshot::{Base, HeapFacts, TargetFacts, TargetState, ThreadNames};
use heapbpf_ledger::model::Program;

pub(super) struct Target {
    pub(super) pid: Pid,
    /// The process's `argv[0]`.
    pub(super) command: String,
    /// The process's `/proc/PID/comm`.
    pub(super) comm: String,
    /// Control group when the program was opened.
    cgroup: Option<Arc<str>>,
    pub(super) files: FileView,
    program: Option<Program>,
    /// `None` once the process has exited or executed another program.
    pub(super) process: Option<Process>,
    pub(super) threads: Threads,
    pub(super) mappings: Mappings,
    pub(super) ledger: Ledger,
    pub(super) beginning: Beginning,
    /// Time of the fork or exec, if that was seen.
    pub(super) born: Option<MonotonicNanos>,
    pub(super) hooks: Hooks,
    /// The heap of a Go program, if it is recorded.
    pub(super) go: Option<GoHeap>,
    /// Interval of its samples, once it has been read.
    pub(super) go_interval: Option<Interval>,
    pub(super) overhead: OverheadMonitor,
    /// Whether the target was selected individually, or descends from such a target: it remains a target when it calls
    /// exec.
    pub(super) requested: bool,
    /// Whether a recorded process has started the target, or executed it.
    pub(super) is_descendant: bool,
    /// Whether the trap engine records the target, whichever the session's engine is.
    pub(super) traps_only: bool,
    /// Whether the target contains LeakSanitizer, which traces it at its exit, and fails if another process traces it
    /// then.
    pub(super) has_leak_sanitizer: bool,
    /// Stubs of the inline engine that the target's parent had at the fork.
    pub(super) stubs: Option<CopiedStubs>,
    /// Whether the live set does not have the blocks yet that the target has inherited.
    pub(super) awaits_blocks: bool,
    /// Whether the code of the process was checked for the breakpoints of the probes.
    pub(super) is_verified: bool,
    /// Minimum age of blocks counted in [`AgeStatistics::older`].
    pub(super) older_than: Option<Duration>,
    pub(super) timeline: Arc<Timeline>,
    pub(super) memory: MemoryMonitor,
    /// Whether blocks allocated before recording started are about to be entered.
    pub(super) awaits_inventory: bool,
    /// Intervals of the blocks of the inventory, by heap, if not all are tracked.
    pub(super) inventory_intervals: BTreeMap<HeapId, u64>,
    phase: Phase,
    /// Age statistics of the blocks that were live when the ledger was closed.
    pub(super) age_statistics: Option<AgeStatistics>,
    base: Base,
    pub(super) opened: Instant,
}

enum Phase {
    Starting(Starting),
    Recording,
    Ended { end: End, was_recorded: bool },
}

#[derive(Default)]
pub(super) struct Starting {
    pub(super) is_probed_ahead: bool,
    pub(super) is_held_before_mapping: bool,
    /// Whether the process was stopped when its start-up was over, and had no allocator then.
    pub(super) was_stepped: bool,
    /// Whether the process executed another program before its mappings were read: the probed program is the later one.
    pub(super) is_superseded: bool,
    /// Reason why no probe can be attached. The process remains a target because it may execute another program.
    pub(super) unprofilable: Option<String>,
}

/// State that a forked child starts with: a copy of its parent's state at the fork.
pub(super) struct ForkedChild {
    pub(super) fork: Fork,
    pub(super) ledger: Ledger,
    space: AddressSpace,
    generated: GeneratedCode,
    hooks: Hooks,
    threads: Arc<ThreadNames>,
    pub(super) requested: bool,
    traps_only: bool,
    pub(super) has_leak_sanitizer: bool,
    /// Stubs of the inline engine that the child's parent had.
    pub(super) stubs: Option<CopiedStubs>,
}

impl ForkedChild {
    pub(super) fn of(parent: &Target, fork: Fork) -> Self {
        Self {
            fork,
            ledger: parent.ledger.fork(fork.child),
            space: parent.mappings.space.for_child(fork.child),
            generated: parent.mappings.generated.for_child(),
            hooks: parent.hooks.for_child(),
            threads: Arc::clone(&parent.threads.names),
            requested: parent.requested,
            traps_only: parent.traps_only,
            has_leak_sanitizer: parent.has_leak_sanitizer,
            stubs: None,
        }
    }

    pub(super) fn fork(&self, fork: Fork) -> Self {
        Self {
            fork,
            ledger: self.ledger.fork(fork.child),
            space: self.space.for_child(fork.child),
            generated: self.generated.for_child(),
            hooks: self.hooks.for_child(),
            threads: Arc::clone(&self.threads),
            requested: self.requested,
            traps_only: self.traps_only,
            has_leak_sanitizer: self.has_leak_sanitizer,
            stubs: self.stubs.clone(),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct AgeStatistics {
    pub(super) counted: MonotonicNanos,
    growths: Leaks,
    older: Option<Vec<Amounts>>,
}

/// Age up to which the dynamic linker may still be mapping modules.
const YOUNG: Duration = Duration::from_secs(2);

impl Target {
    /// Identities of mapped files that have hooks.
    pub(super) fn hooked_files(&self, plan: &Plan) -> Vec<FileIdentity> {
        let hooked = self.hooks.modules(plan);
        let mapped = self.mappings.space.mappings().iter();
        let mapped = mapped.filter(|at| at.module.is_some_and(|module| hooked.contains(&module)));
        mapped.map(|at| FileIdentity::new(at.mapping.device, at.mapping.inode)).collect()
    }

    fn new(process: Process, origin: Origin, born: Option<MonotonicNanos>) -> Self {
        let pid = process.pid;
        Self {
            pid,
            command: process.command.clone(),
            comm: process.comm.clone(),
            cgroup: process.cgroup.clone(),
            files: process.files.clone(),
            program: process.program.clone(),
            process: Some(process),
            threads: Threads::default(),
            mappings: Mappings::new(AddressSpace::new(pid)),
            ledger: Ledger::new(pid),
            // Links stay over an exec, so a program can be recorded before its probes are known to be attached.
            beginning: Beginning { origin, time: born.unwrap_or_default(), delay_ns: None, from_first_call: false },
            born,
            hooks: Hooks::default(),
            go: None,
            go_interval: None,
            overhead: OverheadMonitor::default(),
            requested: false,
            is_descendant: false,
            traps_only: false,
            has_leak_sanitizer: false,
            stubs: None,
            awaits_blocks: false,
            is_verified: false,
            older_than: None,
            timeline: Arc::default(),
            memory: MemoryMonitor::default(),
            awaits_inventory: false,
            inventory_intervals: BTreeMap::new(),
            phase: Phase::Starting(Starting::default()),
            age_statistics: None,
            base: Base::Beginning,
            opened: Instant::now(),
        }
    }

    pub(super) fn forked(process: Process, forked: ForkedChild) -> Self {
        let ForkedChild {
            fork,
            ledger,
            space,
            generated,
            hooks,
            threads,
            requested,
            traps_only,
            has_leak_sanitizer,
            stubs,
        } = forked;
        let target = Self::new(process, Origin::Forked(fork.parent), Some(fork.time));
        let (threads, mappings) = (Threads::of_child(&threads), Mappings::of_child(space, generated));
        Self { threads, mappings, ledger, hooks, requested, traps_only, has_leak_sanitizer, stubs, ..target }
    }

    pub(super) fn open(pid: Pid, origin: Origin, born: Option<MonotonicNanos>) -> Result<Self, TargetError> {
        Ok(Self::new(Process::open(pid)?, origin, born))
    }

    /// Makes `self` the new program; returns the old one as an ended target with `ledger`. Links stay with the process.
    pub(super) fn replace(&mut self, ledger: Ledger, process: Process, born: MonotonicNanos) -> Self {
        let mut next = Self::new(process, Origin::Executed, Some(born));
        std::mem::swap(&mut next.ledger, &mut self.ledger);
        next.hooks = self.hooks.succeed();
        // A forked child may execute a program before its probes are attached, and the agent may learn of that later.
        let is_probed_ahead = !next.hooks.is_empty() && next.hooks.were_attached_by(born);
        next.phase = Phase::Starting(Starting { is_probed_ahead, ..Starting::default() });
        (next.requested, next.traps_only) = (self.requested, self.traps_only);
        next.is_descendant = true;
        let mut before = std::mem::replace(self, next);
        before.ledger = ledger;
        before.process = None;
        before.set_end(End::Replaced);
        before
    }

    /// Whether the target runs the program, and has the memory, that its parent had when it was forked.
    pub(super) fn is_copy(&self) -> bool {
        matches!(self.beginning.origin, Origin::Forked(_))
    }

    pub(super) fn was_recorded(&self) -> bool {
        match &self.phase {
            Phase::Starting(_) => false,
            Phase::Recording => true,
            Phase::Ended { was_recorded, .. } => *was_recorded,
        }
    }

    pub(super) fn starting(&mut self) -> Option<&mut Starting> {
        match &mut self.phase {
            Phase::Starting(starting) => Some(starting),
            Phase::Recording | Phase::Ended { .. } => None,
        }
    }

    /// Whether the target is a program whose calls should have been recorded, and were not. Call this at the program's
    /// end. `of_all` includes programs that match a selection.
    pub(super) fn was_missed(&self, of_all: bool) -> bool {
        let Phase::Starting(starting) = &self.phase else { return false };
        let is_known = starting.was_stepped || starting.unprofilable.is_some();
        self.is_program(of_all) && !is_known
    }

    /// Whether the program ran before its probes were attached, and descends from a recorded one or was requested.
    /// Forked children are never late: their parents' probes were attached.
    pub(super) fn is_late(&self, of_all: bool) -> bool {
        self.is_program(of_all || self.is_descendant) && self.was_recorded() && !self.beginning.from_first_call
    }

    /// Whether the target is a program that was executed while its calls were to be recorded.
    fn is_program(&self, of_all: bool) -> bool {
        (of_all || self.requested) && self.beginning.origin == Origin::Executed
    }

    pub(super) fn start_recording(&mut self, now: MonotonicNanos, from_first_call: bool) {
        self.phase = Phase::Recording;
        self.beginning.time = now;
        self.beginning.delay_ns = self.born.map(|born| now.0.saturating_sub(born.0));
        self.beginning.from_first_call = from_first_call;
    }

    pub(super) fn set_end(&mut self, end: End) {
        self.files.narrow();
        self.stubs = None;
        self.phase = Phase::Ended { end, was_recorded: self.was_recorded() };
    }

    fn end(&self) -> Option<End> {
        match &self.phase {
            Phase::Ended { end, .. } => Some(*end),
            Phase::Starting(_) | Phase::Recording => None,
        }
    }

    pub(super) fn update_exit_code(&mut self) {
        if let Phase::Ended { end: End::Exited { code: code @ None }, .. } = &mut self.phase
            && let Some(exit) = self.process.as_ref().and_then(Process::exit_now)
        {
            *code = exit.code;
            self.process = None;
        }
    }

    pub(super) fn identity(&self) -> Option<Identity> {
        self.process.as_ref().map(Process::identity)
    }

    /// Whether the target's process has exited, even if that was not reported yet. Its pid may have been reused then.
    pub(super) fn is_gone(&self) -> bool {
        self.process.as_ref().is_none_or(Process::has_ended)
    }

    /// Reads the names again if the process has executed another program since it was opened, which no event has
    /// reported. That program has no more rights than both had.
    pub(super) fn refresh_names(&mut self) {
        self.files.narrow();
        let command = process::arguments(self.pid).ok().and_then(|arguments| arguments.into_iter().next());
        let is_same = process::comm(self.pid).is_ok_and(|comm| comm == self.comm)
            && command.is_none_or(|command| command == self.command);
        if is_same {
            return;
        }
        let Ok(process) = Process::open(self.pid) else { return };
        if Some(process.identity()) == self.identity() {
            Process { command: self.command, comm: self.comm, cgroup: self.cgroup, program: self.program, .. } =
                process;
        }
    }

    /// Explains why the target cannot be recorded. An error of the kernel for a process that has just exited is not a
    /// reason of its own.
    pub(super) fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        if self.is_gone() { TargetError::EndedMeanwhile(self.pid).into() } else { error }
    }

    pub(super) fn is_young(&self) -> bool {
        self.opened.elapsed() < YOUNG
    }

    /// Whether modules may have been mapped since the mappings were last read.
    pub(super) fn may_have_mapped(&self) -> bool {
        self.is_young() || self.mappings.is_unsearched || self.mappings.has_changed()
    }

    /// Reads the mappings again: modules must be opened while they are mapped.
    /// `changes` counts the changes of them that the kernel side has seen.
    pub(super) fn refresh_mappings(&mut self, changes: impl Fn() -> Changes, modules: &mut ModuleStore) {
        let is_gone = self.is_gone();
        self.mappings.refresh(self.pid, is_gone, changes, modules);
        // The rights are narrowed after the modules are loaded: a program with fewer rights may have loaded some of
        // them.
        self.files.narrow();
    }

    /// Searches for files that name generated code.
    pub(super) fn poll_generated(&mut self, modules: &mut ModuleStore) {
        self.mappings.generated.poll(&mut self.mappings.space, modules);
    }

    pub(super) fn enter(&mut self, event: Event) {
        if let Event::Stack(_, _, stack) = &event {
            self.mappings.check(stack);
        }
        self.threads.observe(&event);
        self.ledger.enter(event);
    }

    pub(super) fn note(&mut self, instant: TimelinePoint, recorder: Option<&mut Recorder>) {
        Arc::make_mut(&mut self.timeline).note(instant, &self.ledger);
        if let Some(recorder) = recorder {
            recorder.sample(&self.ledger, instant);
        }
    }

    pub(super) fn log_start(&self) {
        let hooks = self.hooks.attached_count();
        info!("process {} ({}) is being recorded, {hooks} hooks", self.pid, printable(&self.comm));
    }

    /// Removes the target's blocks from the ledger and from the kernel's live set. The target's modules stay open for
    /// symbolization.
    pub(super) fn close(&mut self, now: MonotonicNanos, kernel: &mut Kernel) {
        if let Err(error) = kernel.forget_blocks(self.pid, self.ledger.live().map(|block| block.address)) {
            debug!("process {}: {error}", self.pid);
        }
        self.close_ledger(now);
    }

    pub(super) fn close_ledger(&mut self, now: MonotonicNanos) {
        if matches!(self.phase, Phase::Ended { was_recorded: true, .. }) && self.age_statistics.is_none() {
            self.age_statistics = Some(self.count_by_age(now));
        }
        self.ledger.close(now);
    }

    fn count_by_age(&self, now: MonotonicNanos) -> AgeStatistics {
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let older: Option<Vec<Amounts>> = self.older_than.map(|age| {
            let born = MonotonicNanos(now.0.saturating_sub(nanos(age)));
            self.ledger.allocated_before([born]).into_iter().map(|[amounts]| amounts).collect()
        });
        let growths = Leaks::of(&self.timeline, &self.ledger, now, older.as_deref());
        AgeStatistics { counted: now, growths, older }
    }

    /// Beginning of the recording. The target was recorded from the first call on only if that call was counted.
    fn counted_beginning(&self) -> Beginning {
        let is_counted = !self.ledger.totals().is_empty();
        Beginning { from_first_call: self.beginning.from_first_call && is_counted, ..self.beginning }
    }

    pub(super) fn facts(&self) -> TargetFacts {
        let files = self.files.narrowed();
        TargetFacts {
            pid: self.pid,
            command: self.command.clone(),
            comm: self.comm.clone(),
            cgroup: self.cgroup.clone(),
            program: self.program.clone(),
            rights: Some(files.rights_here()),
            files: Some(Box::new(files)),
            beginning: self.counted_beginning(),
            end: self.end(),
            overhead: self.overhead.whole.map(|whole| Overhead {
                percent: whole.percent(),
                percent_highest: self.overhead.highest.map(|share| share.percent()),
                probe_ns: whole.probe_ns,
                cpu_ns: whole.cpu_ns,
            }),
        }
    }

    /// Facts about the target's heaps. An inventory that was sampled makes live amounts estimates.
    pub(super) fn heaps(&self, totals: &[(HeapId, Totals)], plan: &Plan, rates: &Rates) -> Vec<HeapFacts> {
        let mut heaps = self.hooks.heaps(totals, plan, rates);
        if let (Some(id), Some(interval)) = (plan.go(), self.go_interval) {
            let interval_bytes = u64::from(interval.bytes());
            heaps.retain(|heap| heap.id != id);
            let (interval_bytes_max, hooks) = (interval_bytes, Vec::new());
            heaps.push(HeapFacts { id, name: GO.to_owned(), interval_bytes, interval_bytes_max, hooks });
        }
        let interval = |heap: &HeapFacts| self.inventory_intervals.get(&heap.id).copied().unwrap_or_default();
        heaps.iter_mut().for_each(|heap| heap.interval_bytes_max = heap.interval_bytes_max.max(interval(heap)));
        heaps
    }

    pub(super) fn state(&self, now: MonotonicNanos, plan: &Plan, rates: &Rates) -> TargetState {
        let ledger = self.ledger.snapshot(now);
        let at_end = self.age_statistics.clone();
        let AgeStatistics { counted, growths, older } = at_end.unwrap_or_else(|| self.count_by_age(now));
        TargetState {
            facts: self.facts(),
            space: Arc::clone(&self.mappings.space),
            threads: Arc::clone(&self.threads.names),
            heaps: self.heaps(&ledger.heaps, plan, rates),
            ledger: Arc::new(ledger),
            growths,
            curve: self.ledger.curve_points(counted),
            timeline: Arc::clone(&self.timeline),
            memory: Arc::clone(self.memory.account()),
            until: counted,
            older,
            base: self.base.clone(),
        }
    }

    pub(super) fn is_past(&self) -> bool {
        matches!(self.base, Base::Ended)
    }

    pub(super) fn start_window(&mut self, ledger: Arc<TargetSnapshot>) {
        self.base = if self.end().is_some() { Base::Ended } else { Base::At(ledger) };
    }

    /// Totals of the current window; `None` if it ended before.
    pub(super) fn window_totals(&self) -> Option<Totals> {
        match &self.base {
            Base::Beginning => Some(*self.ledger.totals()),
            Base::At(base) => Some(self.ledger.totals().since(&base.totals)),
            Base::Ended => None,
        }
    }
}
