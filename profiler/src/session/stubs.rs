//! The inline engine: stubs of targets, the slots that lead to them, and their sampling intervals.

mod copies;
mod countdowns;
mod image;
mod installed;
mod left;
mod nothrow;
mod places;
mod previous;
mod sealed;
mod slots;

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use profiler_common::hook::CallShape;
use profiler_common::interval::Interval;
use profiler_common::target::OTHER_PROCESSES;
use rustc_hash::{FxHashMap, FxHashSet};
use tracing::{debug, info, warn};

use self::countdowns::Countdowns;
use self::image::{Assembled, Layout, ReplaceableHook, assemble, hooks_of, place};
pub(super) use self::installed::CopiedStubs;
use self::installed::{Installed, Pace};
use self::left::restore;
pub(super) use self::left::{are_left, remove_left};
use heapbpf_base::ids::{HeapId, ModuleId, Pid, Tid};
use heapbpf_ledger::model::InlineEngine;
use heapbpf_linux::proc::maps::Mapping;
use heapbpf_linux::proc::process;
use heapbpf_linux::proc::stat;
use heapbpf_report::text::printable;

use self::previous::{Previous, list_of};
use self::sealed::sealed;
use self::slots::{Replaced, Slots};
use super::config::Engine;
use super::discovery::Discovery;
use super::rates::Rates;
use super::target::Target;
use crate::bpf::load::{Kernel, LinkKind};
use crate::keeper::{Installation, Keeper, KeeperError, NO_FIRST_THREAD, SlotChange};
use crate::object::image::Image;
use crate::probe::stub::{ENTRIES_MAX, SlotIndex};

#[derive(Debug)]
pub(super) struct Stubs {
    engine: Engine,
    slots: Slots,
    targets: FxHashMap<Pid, State>,
    /// Counts of targets that have ended.
    past: InlineEngine,
    past_missed: u64,
    past_left: u64,
    cpus: u32,
    countdowns: Countdowns,
    /// Inodes of the files with stubs that were mapped into targets. Children have copies of these mappings.
    files: FxHashSet<u64>,
}

#[derive(Debug)]
enum State {
    /// Stubs are installed when that is possible: see `Waiting`.
    Waiting(Waiting),
    Installed(Box<Installed>),
    /// The trap engine records the target, for this reason. The stubs are those that slots have led to before.
    Refused(String, Option<Box<Installed>>),
}

/// Why stubs are not installed yet: another thread of the keeper traces the process, or it has not resolved pointers to
/// its allocator.
#[derive(Debug)]
struct Waiting {
    /// Stubs that a child has copied from its parent.
    copied: Option<Box<Installed>>,
    search: Pace,
}

/// A change to a process, for which it is stopped.
#[derive(Debug)]
enum Change {
    Install,
    /// Change these slots in addition to those that are changed already.
    Extend(Vec<SlotChange>),
    /// Restore all slots, for this reason.
    HandBack(String),
}

const MULTI: &str = "it requires links of many probes: Linux 6.6, and not `--backend perf`";
/// Reason for not stopping a process: the keeper compares the code of functions while all threads of the process are
/// stopped.
const DISTANT: &str = "the file system of its allocator may not answer, which would keep it stopped";
const UNRESOLVED: &str = "it has not resolved the pointers to its allocator";
const LEAK_SANITIZER: &str = "it contains LeakSanitizer, which fails if heapbpf stops the process at the same time";
const THREAD_SLOTS_BITS: u32 = 8;
/// Maximum number of places that are tried for stubs.
const PLACES_MAX: u32 = 5;

impl Stubs {
    pub(super) fn new(engine: Engine, random: u64) -> Self {
        let cpus = aya::util::nr_cpus().ok().and_then(|cpus| u32::try_from(cpus).ok()).unwrap_or(1);
        Self {
            engine,
            slots: Slots::default(),
            targets: FxHashMap::default(),
            past: InlineEngine::default(),
            past_missed: 0,
            past_left: 0,
            cpus,
            countdowns: Countdowns::new(random),
            files: FxHashSet::default(),
        }
    }

    pub(super) fn is_enabled(&self) -> bool {
        self.engine == Engine::Inline
    }

    /// Prepares a new target for either engine. Fails if a running session uses stubs in it: they hide calls from all other
    /// probes.
    pub(super) fn prepare(&mut self, target: &Target, keeper: &Keeper, discovery: &Discovery) -> Result<()> {
        let pid = target.pid;
        let previous = Previous::without_breakpoints(&target.mappings.space, |mapping| self.is_own(mapping), keeper)
            .with_context(|| format!("cannot remove breakpoints from stubs in process `{pid}`"))?;
        ensure!(
            !previous.is_in_use(),
            "another heapbpf records process `{pid}` with the inline engine, whose stubs hide its calls; end that recording first"
        );
        if target.traps_only {
            self.refuse(target, "the configuration selects it");
        } else if target.has_leak_sanitizer {
            self.refuse(target, LEAK_SANITIZER);
        }
        let is_distant = |id: ModuleId| discovery.modules.get(id).image().is_ok_and(Image::is_distant);
        if target.hooks.modules(&discovery.plan).into_iter().any(is_distant) {
            self.refuse(target, DISTANT);
        }
        let is_trapped = self.engine == Engine::Trap || target.traps_only || target.has_leak_sanitizer;
        if is_trapped && !previous.is_neutral() {
            let restored = restore(target, &previous, discovery, keeper).with_context(|| {
                format!("cannot remove the stubs that an earlier recording has left in process `{pid}`")
            })?;
            warn!(
                "restored {restored} pointers of process {pid} that an earlier recording, of it or of its parent, had left"
            );
        }
        Ok(())
    }

    fn previous(&self, target: &Target) -> Previous {
        Previous::find(&target.mappings.space, |mapping| self.is_own(mapping))
    }

    fn is_own(&self, mapping: &Mapping) -> bool {
        self.owner(mapping).is_some()
    }

    /// Stubs of the target that has, or had a copy of, the stubs at this mapping.
    fn owner(&self, mapping: &Mapping) -> Option<&Installed> {
        let mut installed = self.targets.values().filter_map(State::installed);
        installed.find(|own| own.is_at(mapping))
    }

    /// Installs stubs in a new target, and changes slots of modules that a target has mapped meanwhile.
    pub(super) fn install(
        &mut self,
        target: &Target,
        kernel: &mut Kernel,
        keeper: &Keeper,
        discovery: &Discovery,
        rates: &Rates,
    ) {
        let pid = target.pid;
        if self.engine == Engine::Trap {
            return;
        }
        let copied = match self.targets.remove(&pid) {
            Some(refused @ State::Refused(..)) => return drop(self.targets.insert(pid, refused)),
            Some(State::Installed(installed)) => {
                self.targets.insert(pid, State::Installed(installed));
                return self.extend_all(target, keeper, discovery);
            }
            Some(State::Waiting(waiting)) => waiting.copied,
            None => self.copied(target, kernel),
        };
        if stat::first_thread_has_exited(pid) {
            return self.refuse(target, NO_FIRST_THREAD);
        }
        let tracer = stat::status(pid, Tid(pid.0)).and_then(|status| status.tracer);
        let is_traced = tracer.is_some_and(|tracer| process::of_thread(tracer) == Some(keeper.pid()));
        let is_resolved = copied.is_some() || self.is_resolved(target, discovery);
        if is_traced || !is_resolved {
            let mut search = Pace::new();
            search.found_nothing();
            self.targets.insert(pid, State::Waiting(Waiting { copied, search }));
            return;
        }
        let installed = match copied {
            Some(copied) => {
                keeper.adopt_stubs(copied.plan.clone());
                debug!("process {pid}: {} pointers lead to stubs, as in its parent", copied.plan.slots.len());
                Ok(copied)
            }
            // Counted from before the first call that passes a stub.
            None => self
                .count_from_here(pid, kernel)
                .and_then(|()| anywhere(pid, &mut || self.install_new(target, kernel, keeper, discovery, rates)))
                .map(Box::new),
        };
        let state = installed.map_or_else(|error| refuse(target, format!("{error:#}"), None), State::Installed);
        self.targets.insert(pid, state);
        self.extend_all(target, keeper, discovery);
    }

    fn count_from_here(&self, pid: Pid, kernel: &mut Kernel) -> Result<()> {
        if self.targets.is_empty() && self.past == InlineEngine::default() {
            kernel.count_stub_calls(Pid(OTHER_PROCESSES))?;
        }
        Ok(kernel.count_stub_calls(pid)?)
    }

    /// Whether slots lead to functions with stubs, or none ever will: in that case, the installation fails with the
    /// reason.
    fn is_resolved(&mut self, target: &Target, discovery: &Discovery) -> bool {
        let space = &*target.mappings.space;
        let has_slots = self.slots.are_in(space, &discovery.modules, discovery.names());
        !has_slots || self.count_pointers(target, discovery) > 0 || !self.previous(target).is_neutral()
    }

    /// Records a target by the trap engine.
    pub(super) fn refuse(&mut self, target: &Target, reason: &str) {
        if self.engine == Engine::Inline {
            self.targets.insert(target.pid, refuse(target, reason.to_owned(), None));
        }
    }

    pub(super) fn remove(&mut self, pid: Pid, kernel: &mut Kernel, keeper: &Keeper) {
        let Some(mut state) = self.targets.remove(&pid) else { return };
        if let Some(installed) = state.installed_mut() {
            installed.count(kernel);
            self.past_missed = self.past_missed.saturating_add(installed.missed());
            self.past_left = self.past_left.saturating_add(installed.left_to_throw(kernel));
        }
        count(&mut self.past, &state);
        if let State::Installed(_) = state {
            keeper.remove_stubs(pid);
        }
        if let Err(error) = kernel.forget_stub_calls(pid) {
            debug!("process {pid}: {error}");
        }
    }

    /// Share of a target's calls that do not pass its stubs; `None` without stubs.
    pub(super) fn trapped_share(&self, pid: Pid) -> Option<f64> {
        let Some(State::Installed(installed)) = self.targets.get(&pid) else { return None };
        Some(installed.trapped_share())
    }

    pub(super) fn refused(&self, pid: Pid) -> Option<&str> {
        let Some(State::Refused(reason, _)) = self.targets.get(&pid) else { return None };
        Some(reason)
    }

    /// Makes the change to a target that is due. A change that fails is tried again: until then, each call is counted
    /// as before.
    pub(super) fn poll(
        &mut self,
        target: &Target,
        kernel: &mut Kernel,
        keeper: &Keeper,
        discovery: &Discovery,
        rates: &Rates,
    ) {
        match self.due(target, kernel, discovery) {
            None => {}
            Some(Change::Install) => self.install(target, kernel, keeper, discovery, rates),
            Some(Change::Extend(slots)) => self.extend(target.pid, slots, keeper),
            Some(Change::HandBack(reason)) => self.hand_back(target, reason, keeper),
        }
    }

    /// Change to a target that is due by now.
    fn due(&mut self, target: &Target, kernel: &Kernel, discovery: &Discovery) -> Option<Change> {
        match self.targets.get_mut(&target.pid)? {
            State::Refused(..) => None,
            State::Waiting(waiting) => {
                if !waiting.search.is_due() {
                    return None;
                }
                waiting.search.found_nothing();
                (waiting.copied.is_some() || self.is_resolved(target, discovery)).then_some(Change::Install)
            }
            State::Installed(installed) => {
                installed.count(kernel);
                if installed.is_search_due() {
                    let slots = find(&mut self.slots, installed, target, discovery);
                    installed.searched();
                    if !slots.is_empty() {
                        return Some(Change::Extend(slots));
                    }
                }
                installed.excess().map(|percent| {
                    Change::HandBack(format!("{percent:.0} % of its calls do not pass through the global offset table"))
                })
            }
        }
    }

    fn hand_back(&mut self, target: &Target, reason: String, keeper: &Keeper) {
        let Some(State::Installed(mut installed)) = self.targets.remove(&target.pid) else { return };
        let state = match keeper.hand_back(installed.plan.pid) {
            Ok(()) => refuse(target, reason, Some(installed)),
            Err(error) => {
                debug!("process {} keeps its stubs for now: {error:#}", target.pid);
                installed.postpone();
                State::Installed(installed)
            }
        };
        self.targets.insert(target.pid, state);
    }

    /// Facts about the inline engine for the report; `None` with the trap engine.
    pub(super) fn facts(&self) -> Option<InlineEngine> {
        if self.engine == Engine::Trap {
            return None;
        }
        let mut facts = self.past.clone();
        self.targets.values().for_each(|state| count(&mut facts, state));
        Some(facts)
    }

    /// Number of calls that stubs have sampled and no probe has recorded. Calls of a process that uses the memory of
    /// another are counted by the stubs, but have a PID of their own for the probes.
    pub(super) fn missed(&self, kernel: &Kernel) -> u64 {
        let installed = self.targets.values().filter_map(State::installed);
        let missed = installed.map(Installed::missed).fold(self.past_missed, u64::saturating_add);
        missed.saturating_sub(kernel.stub_calls(Pid(OTHER_PROCESSES)).map_or(0, |others| others.sampled))
    }

    /// Number of sampled calls that stubs have left to functions that may throw.
    pub(super) fn left_to_throw(&self, kernel: &Kernel) -> u64 {
        let installed = self.targets.values().filter_map(State::installed);
        installed.map(|it| it.left_to_throw(kernel)).fold(self.past_left, u64::saturating_add)
    }

    /// Passes changed intervals on to the stubs.
    pub(super) fn update(&mut self, rates: &Rates) {
        for state in self.targets.values_mut() {
            if let State::Installed(installed) = state {
                installed.update(rates);
            }
        }
    }

    /// Number of pointers that stubs of a target's functions would change.
    pub(super) fn count_pointers(&mut self, target: &Target, discovery: &Discovery) -> usize {
        let space = &*target.mappings.space;
        let functions: Vec<Replaced> = hooks_of(target, discovery).map(|hook| hook.unplaced()).collect();
        self.slots.leading_to(&functions, &Previous::default(), space, &discovery.modules, discovery.names()).len()
    }

    fn install_new(
        &mut self,
        target: &Target,
        kernel: &Kernel,
        keeper: &Keeper,
        discovery: &Discovery,
        rates: &Rates,
    ) -> Result<Installed> {
        let (pid, space) = (target.pid, &*target.mappings.space);
        let program = kernel.stub_program().filter(|_| kernel.link_kind() != LinkKind::Perf).context(MULTI)?;
        let mut hooks: Vec<ReplaceableHook<'_>> = hooks_of(target, discovery).collect();
        // Frees first: see `Installation::slots`. `malloc` before `realloc` before `reallocarray`, whose stubs jump there.
        hooks.sort_by_key(|hook| {
            let spec = &hook.planned.hook.spec;
            (spec.shape != CallShape::Free, spec.shape == CallShape::Realloc, spec.count, hook.function)
        });
        ensure!(!hooks.is_empty(), "none of its functions can be replaced by a stub");
        // A later heapbpf must find all stubs.
        ensure!(hooks.len() <= ENTRIES_MAX, "more of its functions than {ENTRIES_MAX} are hooked");
        let (index, slots_per_heap) = match keeper.rseq_offset(pid)? {
            Some(offset) => (SlotIndex::Rseq(offset), self.cpus),
            None => (SlotIndex::Thread(THREAD_SLOTS_BITS), 1 << THREAD_SLOTS_BITS),
        };
        let mut heaps: Vec<HeapId> = hooks.iter().map(|hook| hook.planned.heap).collect();
        heaps.sort_unstable();
        heaps.dedup();
        let previous = self.previous(target);
        let layout = Layout::new(hooks.len(), heaps.len(), slots_per_heap);
        let (layout, mapped, Assembled { image, functions, places, sites }) =
            place(pid, layout, &previous, hooks[0].function, |layout| assemble(pid, &hooks, &heaps, layout, index))?;
        let heaps: Vec<(HeapId, u64, Interval)> =
            (0..).zip(heaps).map(|(number, heap)| (heap, layout.heap_address(number), rates.current(heap))).collect();
        let plan = Installation {
            pid,
            address: layout.address,
            code_bytes: layout.code_bytes,
            data: layout.data(&self.countdowns.first(layout.countdown_bytes, &heaps, slots_per_heap)),
            data_bytes: layout.data_bytes,
            filter_bytes: Layout::FILTER_BYTES,
            list: list_of(layout.address, &image),
            functions: places,
            is_mapped: mapped.is_some(),
            slots: self.slots.leading_to(&functions, &previous, space, &discovery.modules, discovery.names()),
        };
        ensure!(!plan.slots.is_empty(), "no module calls the allocator through the global offset table");
        let file = mapped.map_or_else(|| sealed(&image, layout.code_bytes), Ok)?;
        let link = keeper.attach(LinkKind::Multi, &[program, program], &file, sites, None)?;
        let done = keeper.install(plan.clone(), &[file.as_fd(), kernel.filter_map()?])?;
        self.past.stop_ns_max = self.past.stop_ns_max.max(nanos(done.stopped));
        debug!("process {pid}: {} of {} pointers lead to stubs", done.slots, plan.slots.len());
        let inode = file.metadata()?.ino();
        self.files.insert(inode);
        Ok(Installed::new(link, inode, plan, functions, heaps, slots_per_heap, target.beginning.from_first_call))
    }

    /// Changes slots of modules that were mapped meanwhile.
    fn extend_all(&mut self, target: &Target, keeper: &Keeper, discovery: &Discovery) {
        let Some(State::Installed(installed)) = self.targets.get_mut(&target.pid) else { return };
        let slots = find(&mut self.slots, installed, target, discovery);
        if !slots.is_empty() {
            self.extend(target.pid, slots, keeper);
        }
    }

    fn extend(&mut self, pid: Pid, slots: Vec<SlotChange>, keeper: &Keeper) {
        let Some(State::Installed(installed)) = self.targets.get_mut(&pid) else { return };
        let plan = Installation { slots: slots.clone(), ..installed.plan.clone() };
        let began = Instant::now();
        match keeper.install(plan.clone(), &[]) {
            Ok(done) => {
                self.past.stop_ns_max = self.past.stop_ns_max.max(nanos(done.stopped));
                debug!("process {pid}: {} more pointers lead to stubs", done.slots);
                installed.add_slots(slots, done.stopped);
            }
            // The slots are found again. The process may have been stopped in vain.
            Err(error) => {
                debug!("process {pid}: {error:#}");
                installed.search.stopped_for(began.elapsed());
            }
        }
    }
}

impl State {
    fn installed(&self) -> Option<&Installed> {
        match self {
            Self::Installed(installed) => Some(installed),
            Self::Waiting(Waiting { copied: installed, .. }) | Self::Refused(_, installed) => installed.as_deref(),
        }
    }

    fn installed_mut(&mut self) -> Option<&mut Installed> {
        match self {
            Self::Installed(installed) => Some(installed),
            Self::Waiting(Waiting { copied: installed, .. }) | Self::Refused(_, installed) => installed.as_deref_mut(),
        }
    }
}

/// Finds slots that lead to functions with stubs by now.
fn find(slots: &mut Slots, installed: &Installed, target: &Target, discovery: &Discovery) -> Vec<SlotChange> {
    let (space, modules) = (&*target.mappings.space, &discovery.modules);
    slots.leading_to(&installed.functions, &Previous::default(), space, modules, discovery.names())
}

/// Counts the state of one target among the facts of the engine.
fn count(facts: &mut InlineEngine, state: &State) {
    match state {
        State::Waiting(Waiting { copied: Some(_), .. }) => {}
        State::Waiting(_) => *facts.refused.entry(UNRESOLVED.to_owned()).or_default() += 1,
        State::Installed(installed) => {
            facts.targets += 1;
            facts.passed_calls = facts.passed_calls.saturating_add(installed.passed());
            facts.trapped_calls = facts.trapped_calls.saturating_add(installed.trapped());
        }
        State::Refused(reason, _) => *facts.refused.entry(reason.clone()).or_default() += 1,
    }
}

fn refuse(target: &Target, reason: String, left: Option<Box<Installed>>) -> State {
    info!("process {} ({}): the inline engine is impossible: {reason}", target.pid, printable(&target.comm));
    State::Refused(reason, left)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Repeats an installation for which the process has occupied the place: it runs while a place is chosen, and may map
/// memory there itself.
fn anywhere(pid: Pid, install: &mut dyn FnMut() -> Result<Installed>) -> Result<Installed> {
    let is_occupied = |error: &anyhow::Error| matches!(error.downcast_ref(), Some(KeeperError::Occupied));
    for _ in 1..PLACES_MAX {
        match install() {
            Err(error) if is_occupied(&error) => debug!("process {pid}: {error}"),
            installed => return installed,
        }
    }
    install()
}
