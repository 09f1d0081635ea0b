//! The inline engine: stubs of targets, the slots that lead to them, and their sampling intervals.

mod image;
mod previous;
mod slots;

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use profiler_common::hook::CallShape;
use profiler_common::interval::Interval;
use rustc_hash::FxHashMap;
use tracing::{debug, info, warn};

use self::image::{Assembled, Layout, ReplaceableHook, assemble, place, replaceable, sealed};
use self::previous::{Previous, patches};
use self::slots::{Replaced, Slots};
use super::config::Engine;
use super::discovery::Discovery;
use super::rates::Rates;
use super::target::Target;
use crate::bpf::load::{Kernel, LinkKind};
use crate::ids::{HeapId, Pid, Tid};
use crate::keeper::{Installation, Keeper, Link, Stopper};
use crate::linux::proc::maps::Mapping;
use crate::linux::proc::process::{self, entry_path};
use crate::linux::proc::stat;
use crate::linux::process_memory;
use crate::model::InlineEngine;
use crate::probe::stub::{self, SlotIndex, slot};
use crate::report::text::printable;

#[derive(Debug)]
pub(super) struct Stubs {
    engine: Engine,
    slots: Slots,
    targets: FxHashMap<Pid, State>,
    /// Counts of targets that have ended.
    past: InlineEngine,
    cpus: u32,
    random: u64,
}

#[derive(Debug)]
enum State {
    /// Another thread of the keeper traces it. With the stubs that a child has copied from its parent.
    Waiting(Option<Box<Installed>>),
    Installed(Box<Installed>),
    /// Recorded by the trap engine, for this reason.
    Refused(String),
}

#[derive(Clone, Debug)]
struct Installed {
    /// Its coverage will be known some time and some calls after this.
    since: Instant,
    calls_since: u64,
    trapped_since: u64,
    is_checked: bool,
    /// Calls that have passed the stubs, counted last.
    calls: u64,
    /// Calls that a forked child has inherited the count of.
    calls_before: u64,
    _link: Arc<Link>,
    /// Of the file with the stubs.
    inode: u64,
    plan: Installation,
    /// Address of the countdowns, and the interval that was written last.
    heaps: Vec<(HeapId, u64, Interval)>,
    slots_per_heap: u32,
    functions: Vec<Replaced>,
}

const MULTI: &str = "it requires links of many probes: Linux 6.6, and not `--backend perf`";
const THREAD_SLOTS_BITS: u32 = 8;
/// Time and calls after which a target's share of trapped calls is known.
const CHECK_AFTER: Duration = Duration::from_millis(100);
const CHECK_CALLS_MIN: u64 = 1000;
const TRAPPED_PERCENT_MAX: f64 = 1.0;

impl Stubs {
    pub(super) fn new(engine: Engine, random: u64) -> Self {
        let cpus = aya::util::nr_cpus().ok().and_then(|cpus| u32::try_from(cpus).ok()).unwrap_or(1);
        Self {
            engine,
            slots: Slots::default(),
            targets: FxHashMap::default(),
            past: InlineEngine::default(),
            cpus,
            random,
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
        }
        let is_trapped = self.engine == Engine::Trap || target.traps_only;
        if is_trapped && !previous.is_neutral() {
            let restored = restore(target, &previous, discovery, keeper).with_context(|| {
                format!("cannot remove the stubs that a killed heapbpf has left in process `{pid}`")
            })?;
            warn!("restored {restored} pointers of process {pid} that a killed heapbpf had left");
        }
        Ok(())
    }

    fn previous(&self, target: &Target) -> Previous {
        Previous::find(&target.mappings.space, |mapping| self.is_own(mapping))
    }

    fn is_own(&self, mapping: &Mapping) -> bool {
        self.owner(mapping).is_some()
    }

    /// A target that has, or had a copy of, these stubs.
    fn owner(&self, mapping: &Mapping) -> Option<&Installed> {
        let installed = self.targets.values().filter_map(|state| match state {
            State::Installed(installed) | State::Waiting(Some(installed)) => Some(&**installed),
            State::Waiting(None) | State::Refused(_) => None,
        });
        installed.into_iter().find(|own| (own.inode, own.plan.address) == (mapping.inode, mapping.start.0))
    }

    /// Installs stubs in a new target, and changes slots of modules that a target has mapped meanwhile.
    pub(super) fn install(
        &mut self,
        target: &Target,
        kernel: &mut Kernel,
        stopper: Stopper<'_>,
        discovery: &Discovery,
        rates: &Rates,
    ) {
        let pid = target.pid;
        if self.engine == Engine::Trap {
            return;
        }
        let copied = match self.targets.remove(&pid) {
            Some(refused @ State::Refused(_)) => return drop(self.targets.insert(pid, refused)),
            Some(State::Installed(installed)) => {
                self.targets.insert(pid, State::Installed(installed));
                self.extend(target, stopper, discovery);
                return;
            }
            Some(State::Waiting(copied)) => copied,
            None => self.copied(target),
        };
        if tracer_of(pid).is_some_and(
            |tracer| matches!(stopper, Stopper::Keeper(keeper) if process::of_thread(tracer) == Some(keeper.pid())),
        ) {
            self.targets.insert(pid, State::Waiting(copied));
            return;
        }
        let installed = match copied {
            Some(copied) => {
                stopper.keeper().adopt_stubs(copied.plan.clone());
                debug!("process {pid}: {} pointers lead to stubs, as in its parent", copied.plan.slots.len());
                Ok(copied)
            }
            None => self.install_new(target, kernel, stopper, discovery, rates).map(Box::new),
        };
        let installed = installed.and_then(|installed| {
            kernel.count_trapped(pid)?;
            Ok(installed)
        });
        let state = installed.map_or_else(|error| refuse(target, format!("{error:#}")), State::Installed);
        let is_installed = matches!(state, State::Installed(_));
        self.targets.insert(pid, state);
        if is_installed {
            self.extend(target, stopper, discovery);
        }
    }

    /// Records a target by the trap engine.
    pub(super) fn refuse(&mut self, target: &Target, reason: &str) {
        if self.engine == Engine::Inline {
            self.targets.insert(target.pid, refuse(target, reason.to_owned()));
        }
    }

    /// The stubs that a process has copied from a target.
    fn copied(&self, target: &Target) -> Option<Box<Installed>> {
        let mut mappings = target.mappings.space.mappings().iter().filter(|mapped| mapped.mapping.is_stubs());
        let mut copied = mappings.find_map(|mapped| self.owner(&mapped.mapping))?.clone();
        copied.plan.pid = target.pid;
        copied.count_calls();
        copied.calls_before = copied.calls_before.wrapping_add(std::mem::take(&mut copied.calls));
        (copied.since, copied.is_checked) = (Instant::now(), true);
        Some(Box::new(copied))
    }

    pub(super) fn remove(&mut self, pid: Pid, kernel: &mut Kernel, keeper: &Keeper) {
        let Some(mut state) = self.targets.remove(&pid) else { return };
        if let State::Installed(installed) = &mut state {
            installed.count_calls();
        }
        self.past.add(&state, kernel.trapped_calls(pid).unwrap_or(0));
        if let State::Installed(_) = state {
            keeper.remove_stubs(pid);
        }
        if let Err(error) = kernel.forget_trapped(pid) {
            debug!("process {pid}: {error}");
        }
    }

    pub(super) fn count_calls(&mut self, pid: Pid) {
        if let Some(State::Installed(installed)) = self.targets.get_mut(&pid) {
            installed.count_calls();
        }
    }

    pub(super) fn is_installed(&self, pid: Pid) -> bool {
        matches!(self.targets.get(&pid), Some(State::Installed(_)))
    }

    pub(super) fn refused(&self, pid: Pid) -> Option<&str> {
        let Some(State::Refused(reason)) = self.targets.get(&pid) else { return None };
        Some(reason)
    }

    pub(super) fn is_waiting(&self, pid: Pid) -> bool {
        matches!(self.targets.get(&pid), Some(State::Waiting(_)))
    }

    /// Decides whether the calls of a new target pass its stubs, when it has made enough.
    pub(super) fn check(&mut self, target: &Target, kernel: &Kernel, keeper: &Keeper, discovery: &Discovery) {
        let Some(State::Installed(installed)) = self.targets.get_mut(&target.pid) else { return };
        installed.count_calls();
        if installed.is_checked {
            return;
        }
        // The dynamic linker may have written more slots.
        let is_extended = self.extend(target, Stopper::Keeper(keeper), discovery);
        let Some(State::Installed(installed)) = self.targets.get_mut(&target.pid) else { return };
        let trapped = kernel.trapped_calls(target.pid).unwrap_or(0);
        if is_extended {
            (installed.since, installed.calls_since, installed.trapped_since) =
                (Instant::now(), installed.calls, trapped);
        }
        let trapped = trapped.saturating_sub(installed.trapped_since);
        let calls = installed.calls.saturating_sub(installed.calls_since).saturating_add(trapped);
        if installed.since.elapsed() < CHECK_AFTER || calls < CHECK_CALLS_MIN {
            return;
        }
        installed.is_checked = true;
        let percent = percent(trapped, calls);
        if percent > TRAPPED_PERCENT_MAX {
            keeper.remove_stubs(target.pid);
            let reason = format!("{percent:.0} % of its calls do not pass through the global offset table");
            self.targets.insert(target.pid, refuse(target, reason));
        }
    }

    /// `None` with the trap engine.
    pub(super) fn facts(&self, kernel: &Kernel) -> Option<InlineEngine> {
        if self.engine == Engine::Trap {
            return None;
        }
        let mut facts = self.past.clone();
        for (pid, state) in &self.targets {
            facts.add(state, kernel.trapped_calls(*pid).unwrap_or(0));
        }
        Some(facts)
    }

    /// Passes changed intervals on to the stubs, which use them from their next samples on.
    pub(super) fn update(&mut self, rates: &Rates) {
        for (pid, state) in &mut self.targets {
            let State::Installed(installed) = state else { continue };
            for (heap, address, written) in &mut installed.heaps {
                let now = rates.current(*heap);
                if now == *written {
                    continue;
                }
                let Ok(memory) = File::options().write(true).open(entry_path(*pid, "mem")) else { continue };
                for number in 0..u64::from(installed.slots_per_heap) {
                    let at = *address + number * slot::BYTES as u64 + u64::from(slot::NEXT_CODE.unsigned_abs());
                    let _ = memory.write_all_at(&now.code().to_ne_bytes(), at);
                }
                *written = now;
            }
        }
    }

    /// Number of pointers that stubs of a target's functions would change.
    pub(super) fn count_pointers(&mut self, target: &Target, discovery: &Discovery) -> usize {
        let space = &*target.mappings.space;
        let replaceable = |id| replaceable(discovery.plan.hook(id), space, discovery);
        let functions: Vec<Replaced> =
            target.hooks.attached_ids().into_iter().filter_map(replaceable).map(|hook| hook.unplaced()).collect();
        self.slots.leading_to(&functions, &Previous::default(), space, &discovery.modules, discovery.names()).len()
    }

    fn install_new(
        &mut self,
        target: &Target,
        kernel: &Kernel,
        stopper: Stopper<'_>,
        discovery: &Discovery,
        rates: &Rates,
    ) -> Result<Installed> {
        let (pid, space) = (target.pid, &*target.mappings.space);
        let program = kernel.stub_program().filter(|_| kernel.link_kind() != LinkKind::Perf).context(MULTI)?;
        let mut hooks: Vec<ReplaceableHook<'_>> = target
            .hooks
            .attached_ids()
            .into_iter()
            .filter_map(|id| replaceable(discovery.plan.hook(id), space, discovery))
            .collect();
        // Frees first: see `Installation::slots`. `malloc` before `realloc` before `reallocarray`, whose stubs jump there.
        hooks.sort_by_key(|hook| {
            let spec = &hook.planned.hook.spec;
            (spec.shape != CallShape::Free, spec.shape == CallShape::Realloc, spec.count, hook.function)
        });
        ensure!(!hooks.is_empty(), "none of its functions can be replaced by a stub");
        let (index, slots_per_heap) = match stopper.rseq_offset(pid)? {
            Some(offset) => (SlotIndex::Rseq(offset), self.cpus),
            None => (SlotIndex::Thread(THREAD_SLOTS_BITS), 1 << THREAD_SLOTS_BITS),
        };
        let mut heaps: Vec<HeapId> = hooks.iter().map(|hook| hook.planned.heap).collect();
        heaps.sort_unstable();
        heaps.dedup();
        let previous = self.previous(target);
        let layout = Layout::new(hooks.len(), heaps.len(), slots_per_heap);
        let (layout, is_mapped, Assembled { image, functions, sites }) =
            place(pid, layout, &previous, hooks[0].function, |layout| assemble(pid, &hooks, &heaps, layout, index))?;
        let heaps: Vec<(HeapId, u64, Interval)> =
            (0..).zip(heaps).map(|(number, heap)| (heap, layout.heap_address(number), rates.current(heap))).collect();
        let (list, bypasses) = patches(layout.address, &image);
        let data = self.countdowns(layout.data_bytes, &heaps, slots_per_heap);
        let plan = Installation {
            pid,
            address: layout.address,
            code_bytes: layout.code_bytes,
            neutral: stub::neutral(data.len()),
            data,
            filter_bytes: Layout::FILTER_BYTES,
            list,
            bypasses,
            is_mapped,
            slots: self.slots.leading_to(&functions, &previous, space, &discovery.modules, discovery.names()),
        };
        ensure!(!plan.slots.is_empty(), "no module calls the allocator through the global offset table");
        let file = sealed(&image, layout.code_bytes)?;
        let link = Arc::new(stopper.keeper().attach(LinkKind::Multi, &[program, program], &file, sites, None)?);
        let done = stopper.install(&plan, &[file.as_fd(), kernel.filter_map()?])?;
        self.past.stop_ns_max = self.past.stop_ns_max.max(nanos(done.stopped));
        debug!("process {pid}: {} of {} pointers lead to stubs", done.slots, plan.slots.len());
        Ok(Installed {
            since: Instant::now(),
            calls_since: 0,
            trapped_since: 0,
            is_checked: false,
            calls: 0,
            calls_before: 0,
            _link: link,
            inode: file.metadata()?.ino(),
            plan,
            heaps,
            slots_per_heap,
            functions,
        })
    }

    /// Changes slots of modules that were mapped meanwhile.
    fn extend(&mut self, target: &Target, stopper: Stopper<'_>, discovery: &Discovery) -> bool {
        let Some(State::Installed(installed)) = self.targets.get_mut(&target.pid) else { return false };
        let (space, modules) = (&*target.mappings.space, &discovery.modules);
        let found =
            self.slots.leading_to(&installed.functions, &Previous::default(), space, modules, discovery.names());
        if found.is_empty() {
            return false;
        }
        let plan = Installation { slots: found.clone(), is_mapped: true, ..installed.plan.clone() };
        match stopper.install(&plan, &[]) {
            Ok(done) => self.past.stop_ns_max = self.past.stop_ns_max.max(nanos(done.stopped)),
            Err(error) => {
                debug!("process {}: {error:#}", target.pid);
                // It will be tried again.
                installed.is_checked = false;
                return false;
            }
        }
        installed.plan.add_slots(found);
        true
    }

    /// First countdowns of all heaps, whose slots are next to each other.
    fn countdowns(&mut self, size_bytes: u64, heaps: &[(HeapId, u64, Interval)], slots_per_heap: u32) -> Vec<u8> {
        let mut data = vec![0; usize::try_from(size_bytes).unwrap_or(0)];
        for (number, line) in data.chunks_exact_mut(slot::BYTES).enumerate() {
            let heap = heaps.get(number / slots_per_heap as usize);
            self.fill(line, heap.map_or(Interval::EXACT, |(.., interval)| *interval));
        }
        data
    }

    /// Draws the first countdown of a slot.
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "a random number of bytes")]
    fn fill(&mut self, line: &mut [u8], interval: Interval) {
        let uniform = (self.random() >> 11) as f64 / (1_u64 << 53) as f64;
        let countdown = (-(1.0 - uniform).ln() * f64::from(interval.bytes())).floor() as i64;
        stub::put(line, slot::COUNTDOWN, &countdown.to_ne_bytes());
        stub::put(line, slot::INTERVAL, &u64::from(interval.bytes()).to_ne_bytes());
        stub::put(line, slot::CODE, &interval.code().to_ne_bytes());
        stub::put(line, slot::NEXT_CODE, &interval.code().to_ne_bytes());
        stub::put(line, slot::RANDOM, &self.random().to_ne_bytes());
    }

    /// `SplitMix64`.
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

impl Installed {
    /// Counts the calls that have passed the stubs. After the end of the process, the count stays.
    fn count_calls(&mut self) {
        let mut data = vec![0; self.plan.data.len()];
        if process_memory::read(self.plan.pid, &[(self.plan.data_address(), data.len())], &mut data).is_ok() {
            let lines = data.chunks_exact(slot::BYTES);
            let calls = lines.filter_map(|line| line[slot::CALLS.unsigned_abs() as usize..].first_chunk::<8>());
            let sum = calls.map(|calls| u64::from_ne_bytes(*calls)).fold(0, u64::wrapping_add);
            self.calls = sum.wrapping_sub(self.calls_before);
        }
    }
}

impl InlineEngine {
    fn add(&mut self, state: &State, trapped: u64) {
        match state {
            State::Waiting(_) => {}
            State::Installed(installed) => {
                self.targets += 1;
                self.passed_calls = self.passed_calls.saturating_add(installed.calls);
                self.trapped_calls = self.trapped_calls.saturating_add(trapped);
            }
            State::Refused(reason) => *self.refused.entry(reason.clone()).or_default() += 1,
        }
    }
}

fn refuse(target: &Target, reason: String) -> State {
    info!("process {} ({}) is recorded by the trap engine: {reason}", target.pid, printable(&target.comm));
    State::Refused(reason)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn tracer_of(pid: Pid) -> Option<Tid> {
    stat::status(pid, Tid(pid.0))?.tracer
}

/// Whether a killed heapbpf has left stubs that are not neutral.
pub(super) fn are_left(target: &Target) -> bool {
    !Previous::find(&target.mappings.space, |_| false).is_neutral()
}

/// Makes stubs neutral that a killed heapbpf has left, and restores the pointers to them. Returns their number.
pub(super) fn remove_left(target: &Target, discovery: &Discovery, keeper: &Keeper) -> Result<usize> {
    let previous = Previous::without_breakpoints(&target.mappings.space, |_| false, keeper)?;
    if previous.is_in_use() { Ok(0) } else { restore(target, &previous, discovery, keeper) }
}

fn restore(target: &Target, previous: &Previous, discovery: &Discovery, keeper: &Keeper) -> Result<usize> {
    let space = &*target.mappings.space;
    let left = Slots::default().left(previous, space, &discovery.modules, discovery.names());
    for removal in previous.removals(target.pid, &left) {
        keeper.remove_left_stubs(removal)?;
    }
    Ok(left.len())
}

#[expect(clippy::cast_precision_loss, reason = "a share")]
fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}
