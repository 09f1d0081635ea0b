//! Kernel side shared by all targets; the session decides when to attach and detach.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use heapbpf_base::ids::{HookId, Pid};
use heapbpf_ledger::LiveAllocation;
use heapbpf_ledger::model::{InlineEngine, ProbeScope};
use heapbpf_linux::proc::maps::FileIdentity;
use heapbpf_linux::proc::stat::first_thread_has_exited;
use heapbpf_linux::proc::{maps, process};
use heapbpf_linux::{clock, memory};
use heapbpf_report::text::printable;
use profiler_common::counter::Counter;
use profiler_common::live::LiveBlock;
use profiler_common::pages::PAGE_FLAG;
use profiler_common::target::{FOLLOWS_FORKS, SHARES_PROBES};
use tracing::{debug, info, warn};

use super::config::{Engine, SessionConfig, UnwindMode};
use super::discovery::Discovery;
use super::foreign::ForeignProbes;
use super::hooks::Hooks;
use super::links::Links;
use super::overload::random_seed;
use super::rates::Rates;
use super::scope::Scope;
use super::stack_copies::StackCopies;
use super::stubs;
use super::stubs::Stubs;
use super::target::{ForkedChild, Target};
use super::unwinding::{Tables, Unwinding};
use crate::allocator::selection::PAGES;
use crate::bpf::counters::Counters;
use crate::bpf::load::{Kernel, KernelConfig, LinkKind};
use crate::guardrail::CallCosts;
use crate::keeper::Keeper;
use crate::probe::cost::{CostError, Costs};
use crate::probe::leftover::CodeLocation;
use crate::probe::plan::{Plan, PlannedHook};
use crate::probe::{cost, foreign, leftover};

const FIRST_THREADS_PERIOD: Duration = Duration::from_millis(5);

pub(super) struct Probes {
    pub(super) kernel: Kernel,
    pub(super) discovery: Discovery,
    pub(super) unwinding: Unwinding,
    pub(super) copies: StackCopies,
    predictions: Predictions,
    links: Links,
    foreign: ForeignProbes,
    stubs: Stubs,
    /// Number of targets that do not fit into the kernel's map of targets: their calls are not sampled.
    targets_unmarked: u64,
    /// Number of hooks of the plan that the kernel side knows.
    planned: usize,
    /// Targets whose calls have not been seen by probes, or not all the time.
    unobserved: BTreeSet<Pid>,
    /// When targets were last checked for first threads that have exited.
    first_threads: Option<Instant>,
}

impl Probes {
    pub(super) fn load(config: &SessionConfig, row_cells: u32, discovery: Discovery, tables: Tables) -> Result<Self> {
        let links = LinkKind::choose(config.backend)?;
        let kernel_config = KernelConfig {
            ring_bytes: config.ring_bytes,
            back_pressure_max: config.on_overload.back_pressure_max(),
            live_blocks_max: config.live_blocks_max,
            unwind_by_tables: config.unwind != UnwindMode::FramePointer,
            row_cells,
            stack_seed: random_seed(),
            raw_stacks: config.raw_stacks_max > 0,
            all_execs: config.selection.matches_new(),
            throw_safe_bytes: memory::throw_safe_bytes(),
            stubs: config.engine == Engine::Inline && links != LinkKind::Perf,
            entries: config.functions.has_entries(),
            pages: config.heaps.wants(PAGES),
        };
        let scope = Scope::new(config, links)?;
        // The keeper starts while the kernel verifies the programs.
        let keeper = Keeper::start()?;
        let mut kernel = Kernel::load(kernel_config, links)?;
        let unwinding = Unwinding::new(tables, row_cells, &mut kernel)?;
        Ok(Self {
            kernel,
            discovery,
            unwinding,
            copies: StackCopies::default(),
            predictions: Predictions::default(),
            links: Links::new(keeper, scope),
            foreign: ForeignProbes::default(),
            stubs: Stubs::new(config.engine, random_seed()),
            targets_unmarked: 0,
            planned: 0,
            unobserved: BTreeSet::new(),
            first_threads: None,
        })
    }

    /// Searches for allocators in what a target has mapped since the last search, and attaches their hooks. `is_stopped` if no thread
    /// of the target runs meanwhile. Fails if the target cannot be profiled as it is now.
    pub(super) fn hook(&mut self, target: &mut Target, is_stopped: bool, rates: &mut Rates) -> Result<()> {
        let attached_before = target.hooks.attached_ids();
        target.mappings.note_search();
        self.read_mappings(target);
        // The flag also covers modules that were added by earlier reads for other reasons.
        let has_mapped = target.mappings.is_unsearched;
        let was_recorded = target.was_recorded();
        if was_recorded && !has_mapped {
            if target.mappings.is_unregistered() {
                self.register(target);
            }
            return Ok(());
        }
        let needed = match self.discovery.discover(target) {
            Ok(needed) => needed,
            Err(error) => {
                // A stopped process has not called functions that it has not mapped yet.
                if let Some(starting) = target.starting() {
                    starting.is_held_before_mapping |= is_stopped;
                }
                return Err(error);
            }
        };
        if !was_recorded {
            self.stubs.prepare(target, &self.links.keeper, &self.discovery)?;
        }
        // Probes before unwind tables: an allocation with an incomplete stack is better than none.
        let hooks_before = target.hooks.attached_count();
        self.unwinding.expect(target.pid);
        self.attach(target, rates)?;
        if !was_recorded && self.kernel.watches_mappings() {
            // From here on, the kernel side has seen what was mapped after that was read.
            self.read_mappings(target);
        }
        let hooks_added = target.hooks.attached_count().saturating_sub(hooks_before);
        if was_recorded && hooks_added > 0 {
            info!(
                "process {} ({}) is being recorded with {hooks_added} more hooks",
                target.pid,
                printable(&target.comm)
            );
        }
        // Before that, an earlier attempt or `probe_ahead` may have read the mappings first.
        if target.mappings.is_unregistered() || !was_recorded {
            self.register(target);
        }
        let needs_no_hooks = self.kernel.records_pages() || target.go.is_some();
        if target.hooks.attached_count() == 0 && !(target.hooks.is_empty() && needs_no_hooks) {
            let error = target.hooks.first_error().unwrap_or("it has no hooks").to_owned();
            bail!("no probe could be attached to process `{}`: {error}", target.pid);
        }
        let has_no_hooks = target.hooks.is_empty();
        if let Some(starting) = target.starting() {
            // No page of a stopped program was touched.
            let is_held = starting.is_held_before_mapping || has_no_hooks && needs_no_hooks;
            let was_held = is_stopped && is_held;
            let was_probed_ahead = starting.is_probed_ahead && needed.iter().all(|hook| attached_before.contains(hook));
            target.start_recording(clock::now().monotonic, was_held || was_probed_ahead);
            target.log_start();
            let executable = maps::executable_identity(target.pid).ok();
            self.predictions.learn(executable, &target.hooks, &self.discovery.plan);
        }
        self.install_stubs(target, rates);
        Ok(())
    }

    /// Forgets the program of a process, and removes its stubs unless an exec has done so.
    pub(super) fn forget_program(&mut self, pid: Pid) {
        self.copies.forget(pid);
        self.unwinding.end(pid);
        self.replace_program(pid);
    }

    /// Forgets the program of a process after an exec, but not its stacks: those of the new program have begun with the
    /// exec.
    pub(super) fn replace_program(&mut self, pid: Pid) {
        self.discovery.modules.forget_process(pid);
        self.stubs.remove(pid, &mut self.kernel, &self.links.keeper);
    }

    pub(super) fn probe_ahead(&mut self, target: &mut Target, rates: &mut Rates) {
        let executable = maps::executable_identity(target.pid).ok();
        // Without cookies, probes need the addresses of mappings.
        let likely = if self.kernel.has_cookies() { self.predictions.of(executable) } else { Vec::new() };
        likely.iter().for_each(|&id| target.hooks.want(id));
        self.unwinding.expect(target.pid);
        if let Err(error) = self.attach(target, rates) {
            debug!("process {}: {error:#}", target.pid);
        }
        // Only modules that are not mapped after attaching were certainly not mapped before.
        self.read_mappings(target);
        let mapped = target.mappings.space.modules();
        let modules = target.hooks.modules(&self.discovery.plan);
        if let Some(starting) = target.starting() {
            starting.is_probed_ahead = !modules.is_empty() && modules.iter().all(|module| !mapped.contains(module));
        }
    }

    /// Learns the C library that heapbpf itself uses: most programs use it too.
    pub(super) fn learn_from(&mut self, hooks: &Hooks) {
        self.predictions.learn(None, hooks, &self.discovery.plan);
    }

    pub(super) fn attach(&mut self, target: &mut Target, rates: &mut Rates) -> Result<()> {
        self.remove_leftovers(target);
        let Discovery { plan, .. } = &self.discovery;
        rates.add_heaps(plan, &mut self.kernel)?;
        for (hook, callers) in plan.hooks()[self.planned..].iter().filter_map(PlannedHook::nested_callers) {
            self.kernel.set_nested_callers(hook, callers)?;
        }
        self.planned = plan.hooks().len();
        target.hooks.set_addresses(&self.kernel, &target.mappings.space, plan)?;
        if self.links.scope.is_shared() || !target.was_recorded() && first_thread_has_exited(target.pid) {
            self.share_with(target)?;
        }
        self.outlive_first_thread(target);
        let Discovery { plan, modules, .. } = &self.discovery;
        target.hooks.attach(&target.mappings.space, &self.kernel, &mut self.links, modules, plan)?;
        Ok(())
    }

    /// Makes the shared probes record a target. Both kinds of probes are attached for a short time, and one flag
    /// switches between them: no call is missed or counted twice.
    fn share_with(&mut self, target: &mut Target) -> Result<()> {
        let Discovery { plan, modules, .. } = &self.discovery;
        let rights = Some(target.files.rights());
        let replaced = target.hooks.share(&self.kernel, &mut self.links, modules, plan, rights)?;
        // Without cookies, probes are found by the process.
        if self.kernel.has_cookies() {
            self.kernel.share_probes(target.pid)?;
        }
        self.links.replace(replaced);
        Ok(())
    }

    /// Replaces the probes of all targets by shared ones if that is cheaper. `pending` will be targets soon.
    pub(super) fn choose_scope<'a>(
        &mut self,
        targets: impl Iterator<Item = &'a mut Target>,
        pending: impl ExactSizeIterator<Item = Pid>,
    ) {
        self.links.detach_replaced();
        // Cheap, because this is called for each new target.
        let count_max = targets.size_hint().1.unwrap_or(usize::MAX).saturating_add(pending.len());
        if !self.links.scope.is_due(count_max) {
            return;
        }
        let mut targets: Vec<&mut Target> = targets.filter(|target| target.hooks.attached_count() > 0).collect();
        let pids: BTreeSet<Pid> = targets.iter().map(|target| target.pid).chain(pending).collect();
        if targets.is_empty() || !self.links.scope.is_due(pids.len()) {
            return;
        }
        let mut files: Vec<FileIdentity> = Vec::new();
        for target in &targets {
            for file in target.hooked_files(&self.discovery.plan) {
                if !files.contains(&file) {
                    files.push(file);
                }
            }
        }
        if self.links.scope.choose(&pids, &files) {
            targets.iter_mut().for_each(|target| self.share(target));
            info!("all processes that map a hooked file share its probes: {}", self.links.scope.reason());
        }
    }

    fn share(&mut self, target: &mut Target) {
        if let Err(error) = self.share_with(target) {
            warn!("process {} cannot share probes: {error:#}", target.pid);
            self.links.scope.refuse(&format!("sharing failed: {error:#}"));
        }
    }

    pub(super) fn scope(&self, foreign_calls: u64) -> ProbeScope {
        ProbeScope { foreign_calls, foreign_probes: self.foreign.count_max(), ..self.links.scope.facts() }
    }

    /// Counts the probes of other tools on all instructions that heapbpf has probed: when its first probes are
    /// attached, and at the end.
    pub(super) fn check_foreign(&mut self, is_end: bool) {
        let mut attached = self.links.attached().peekable();
        if (is_end || !self.foreign.is_checked()) && attached.peek().is_some() {
            let Discovery { plan, modules, .. } = &self.discovery;
            let mut own = self.kernel.hook_programs().unwrap_or_default();
            own.extend(self.kernel.stub_program());
            self.foreign.check(&own, attached.map(|id| plan.hook(id)), modules);
        }
    }

    pub(super) fn keeper(&self) -> &Keeper {
        &self.links.keeper
    }

    /// Measures the cost of a call through a probe. Must precede attaching.
    pub(super) fn calibrate(&mut self) -> Result<Costs, CostError> {
        cost::calibrate(&mut self.kernel, &self.links.keeper)
    }

    /// Reads the mappings of a target.
    pub(super) fn read_mappings(&mut self, target: &mut Target) {
        let Self { unwinding, discovery, .. } = self;
        let pid = target.pid;
        target.refresh_mappings(|| unwinding.changes(pid), &mut discovery.modules);
    }

    pub(super) fn register(&mut self, target: &mut Target) {
        target.mappings.note_registered();
        let registered = self.unwinding.register(&mut target.mappings.space, &mut self.discovery.modules);
        if let Err(error) = registered {
            warn!("{error:#}");
        }
        // The kernel side does not use rows where the process has mapped something since they were read.
        if self.unwinding.is_behind(target.pid) {
            target.mappings.note_changes();
        }
    }

    pub(super) fn by_frame_pointer(&self) -> &[String] {
        self.unwinding.by_frame_pointer()
    }

    /// Enters the blocks that a target has inherited into the live set. Returns false if the live set is full: frees of
    /// the blocks that are not entered are missed.
    pub(super) fn inherit(&mut self, target: &Target) -> bool {
        // The pages that the child has written itself are there.
        let is_page = |block: &LiveAllocation| block.address.0 & PAGE_FLAG != 0;
        let blocks = target.ledger.live().filter(|block| !is_page(block)).map(|block| {
            let LiveAllocation { address, size_bytes, interval, stack, heap, time } = block;
            (address, LiveBlock::new(size_bytes, time.0, stack.0, interval, heap.0))
        });
        self.kernel.inherit_blocks(target.pid, blocks).unwrap_or_else(|error| {
            debug!("process {}: {error}", target.pid);
            false
        })
    }

    pub(super) fn release(&mut self, target: &mut Target) {
        self.forget_program(target.pid);
        self.forget(target.pid);
        target.hooks.detach();
    }

    /// Detaches the probes of a process in which another thread than the first has executed a program: the kernel takes that program for
    /// another process when it installs breakpoints, but for the same one at a hit. The links are closed later, and would sample calls in
    /// addition to others of this process alone; so the new program shares probes.
    pub(super) fn reset(&mut self, target: &mut Target) {
        target.hooks.detach();
        target.hooks = target.hooks.for_child();
        target.hooks.set_shared(self.kernel.has_cookies());
        if let Some(starting) = target.starting() {
            starting.is_probed_ahead = false;
        }
    }

    /// Makes the kernel side report the forks of a process, which is already sampled if probes are shared.
    pub(super) fn report_forks(&mut self, pid: Pid) {
        let flags = self.target_flags(true, false);
        if let Err(error) = self.kernel.set_target(pid, flags) {
            debug!("process {pid}: {error}");
        }
    }

    fn target_flags(&self, follow_forks: bool, shares: bool) -> u32 {
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        let shares = self.links.scope.is_shared() || shares && self.kernel.has_cookies();
        flag(follow_forks, FOLLOWS_FORKS) | flag(shares, SHARES_PROBES)
    }

    /// Makes the kernel side sample a target. Must precede attaching its probes: they ignore other processes.
    pub(super) fn mark(&mut self, pid: Pid, follow_forks: bool, shares: bool) {
        let flags = self.target_flags(follow_forks, shares);
        if let Err(error) = self.kernel.set_target(pid, flags) {
            warn!("process {pid} is not sampled: {error}");
            self.targets_unmarked += 1;
        }
    }

    pub(super) fn counters(&self) -> Result<Counters> {
        let mut counters = Counters::read(&self.kernel)?;
        counters.add(Counter::TargetsFull, self.targets_unmarked);
        counters.add(Counter::MayThrow, self.stubs.left_to_throw(&self.kernel));
        self.copies.correct(&mut counters);
        Ok(counters)
    }

    pub(super) fn forget(&mut self, pid: Pid) {
        let forgotten = self.kernel.forget_target(pid);
        let uncounted = if self.stubs.is_enabled() { self.kernel.forget_stub_calls(pid) } else { Ok(()) };
        if let Err(error) = forgotten.and(uncounted) {
            debug!("process {pid}: {error}");
        }
    }

    /// Removes breakpoints of a killed heapbpf. The breakpoints of a forked child are copies of its parent's, which are
    /// in use.
    fn remove_leftovers(&mut self, target: &Target) {
        if target.is_copy() {
            return;
        }
        let places = target.hooks.unattached_places(&self.discovery.plan);
        let places: Vec<_> = places.filter(|(hook, _)| !self.links.is_shared(*hook)).collect();
        let found = self.breakpoints(target, places.iter().map(|(_, place)| *place).collect());
        if found.is_empty() {
            return;
        }
        let kind = self.kernel.link_kind();
        if let Err(error) = leftover::remove(self.keeper(), kind, &self.discovery.modules, target.pid, &found) {
            return debug!("process {}: cannot remove breakpoints: {error}", target.pid);
        }
        let others = self.breakpoints(target, found.clone());
        let removed = found.len() - others.len();
        if removed > 0 {
            warn!(
                "removed {removed} breakpoints from process {} that an earlier recording, of it or of its parent, had left",
                target.pid
            );
        }
        let is_recorded =
            || others.iter().any(|other| !self.are_throwing(&places, other)) || !self.are_of_heapbpf(&others);
        if !others.is_empty() && is_recorded() {
            self.stubs.refuse(target, "other tools have probes on its functions, from which stubs would hide calls");
        }
        self.foreign.add_breakpoints(others);
    }

    /// Whether all hooks at a place may throw. Links of such functions are of all processes, so they show no recording of this one.
    fn are_throwing(&self, places: &[(HookId, CodeLocation)], place: &CodeLocation) -> bool {
        let mut hooks = places.iter().filter(|(_, other)| other == place);
        hooks.all(|(hook, _)| self.discovery.plan.hook(*hook).hook.spec.may_throw)
    }

    fn are_of_heapbpf(&self, places: &[CodeLocation]) -> bool {
        let own = self.kernel.hook_programs().unwrap_or_default();
        foreign::are_of_heapbpf(&own, places, &self.discovery.modules).unwrap_or_else(|error| {
            debug!("cannot list probes of other tools: {error}");
            false
        })
    }

    fn breakpoints(&self, target: &Target, places: Vec<CodeLocation>) -> Vec<CodeLocation> {
        leftover::breakpoints(&target.mappings.space, &self.discovery.modules, places.into_iter())
    }

    /// If the keeper was killed, removes what it left in these targets.
    pub(super) fn finish_detaching<'a>(&mut self, targets: impl Iterator<Item = &'a Target>) {
        self.links.replaced.clear();
        if self.keeper().finish_closing().is_ok() {
            return self.restore_copies();
        }
        if let Err(error) = self.recover(targets) {
            warn!("breakpoints and stubs of heapbpf may remain in the targets: {error}; `heapbpf doctor` removes them");
        }
    }

    fn recover<'a>(&mut self, targets: impl Iterator<Item = &'a Target>) -> Result<()> {
        let keeper = Keeper::start()?;
        for target in targets {
            let places = target.hooks.places(&self.discovery.plan).map(|(_, place)| place).collect();
            let found = self.breakpoints(target, places);
            if !found.is_empty() {
                let kind = self.kernel.link_kind();
                leftover::remove(&keeper, kind, &self.discovery.modules, target.pid, &found)?;
                debug!("process {}: removed {} breakpoints", target.pid, found.len());
            }
            // The mappings of the target may have been read before the stubs were mapped.
            if let Ok(opened) = self.discovery.open(target.pid)
                && stubs::are_left(&opened)
            {
                let restored = stubs::remove_left(&opened, &self.discovery, &keeper)?;
                debug!("process {}: restored {restored} pointers", target.pid);
            }
        }
        Ok(())
    }

    /// Keeps a target recorded whose first thread has exited before others. The kernel finds the memory of a process by that thread
    /// (`uprobe_multi_link_filter` in kernel/trace/bpf_trace.c, `uprobe_perf_filter` in kernel/trace/trace_uprobe.c, up to 7.3), so
    /// links of the process reach no code that is mapped later, and with events of perf none at all. If another link of a function is
    /// detached meanwhile, the kernel removes the breakpoint from the process.
    pub(in crate::session) fn outlive_first_thread(&mut self, target: &mut Target) {
        if target.hooks.are_shared() || !target.was_recorded() || !first_thread_has_exited(target.pid) {
            return;
        }
        // Links of sessions compare processes at a hit, and have left its breakpoints in place.
        let mut is_observed = self.kernel.link_kind() == LinkKind::Session && self.count_missing(target) == 0;
        match self.share_with(target) {
            Ok(()) if is_observed => {
                info!("process {}: its main thread has exited, so its probes are shared", target.pid);
            }
            Ok(()) => warn!(
                "process {}: its main thread has exited, so its probes are shared; calls in between may be missing",
                target.pid
            ),
            Err(error) => {
                is_observed = false;
                warn!("process {} is not recorded any more: its main thread has exited: {error:#}", target.pid);
            }
        }
        if !is_observed {
            self.note_unobserved(target);
        }
    }

    /// Whether to inspect all targets' first threads before probes are detached: not for each of many processes that exit at once. What is
    /// missed in between is noticed when such a target shares probes.
    pub(in crate::session) fn are_first_threads_due(&mut self) -> bool {
        let is_due = self.first_threads.is_none_or(|last| last.elapsed() >= FIRST_THREADS_PERIOD);
        if is_due {
            self.first_threads = Some(Instant::now());
        }
        is_due
    }

    pub(in crate::session) fn unobserved_count(&self) -> u64 {
        self.unobserved.len() as u64
    }

    /// Verifies that the code of a target has the breakpoints of its probes: without them, a silent probe does not mean that the
    /// program is silent.
    pub(in crate::session) fn verify(&mut self, target: &mut Target) {
        if self.unobserved.contains(&target.pid) || target.is_gone() || self.count_missing(target) == 0 {
            return;
        }
        // The process may have unmapped a module.
        self.read_mappings(target);
        let missing = self.count_missing(target);
        if missing > 0 && !target.is_gone() {
            let attached = target.hooks.attached_count();
            warn!(
                "process {} is not observed: {missing} of {attached} breakpoints are missing from its code",
                target.pid
            );
            self.note_unobserved(target);
        }
    }

    fn note_unobserved(&mut self, target: &mut Target) {
        self.unobserved.insert(target.pid);
        target.beginning.from_first_call = false;
    }

    fn count_missing(&self, target: &Target) -> usize {
        let (space, modules) = (&target.mappings.space, &self.discovery.modules);
        let places = target.hooks.attached_places(&self.discovery.plan);
        places.filter(|&place| leftover::lacks_breakpoint(space, modules, place)).count()
    }

    pub(in crate::session) fn install_stubs(&mut self, target: &Target, rates: &Rates) {
        self.stubs.install(target, &mut self.kernel, &self.links.keeper, &self.discovery, rates);
    }

    /// Takes over the stubs that a forked child has copied.
    pub(in crate::session) fn adopt_stubs(&mut self, child: &Target, rates: &Rates) {
        if self.stubs.are_copied_by(child) {
            self.install_stubs(child, rates);
        }
    }

    /// Gives a child the stubs that it has copied, in the order of events: its parent may execute another program before the child is a
    /// target. Its sampled calls are counted from here on.
    pub(in crate::session) fn copy_stubs(&mut self, child: Option<&mut ForkedChild>) {
        let Some(child) = child else { return };
        child.stubs = child.stubs.take().or_else(|| self.stubs.of(child.fork.parent));
        if child.stubs.is_some()
            && let Err(error) = self.kernel.count_stub_calls(child.fork.child)
        {
            debug!("process {}: {error}", child.fork.child);
        }
    }

    /// Whether targets are to have stubs.
    pub(in crate::session) fn has_stubs(&self) -> bool {
        self.stubs.is_enabled()
    }

    /// Makes the changes to a target's stubs that are due.
    pub(in crate::session) fn poll_stubs(&mut self, target: &Target, rates: &Rates) {
        self.stubs.poll(target, &mut self.kernel, &self.links.keeper, &self.discovery, rates);
    }

    /// Reason why a target has no stubs although it is to have them.
    pub(in crate::session) fn stubs_refused(&self, target: &Target) -> Option<&str> {
        self.stubs.refused(target.pid).filter(|_| !target.traps_only)
    }

    /// Costs of unsampled calls of one target among this number of targets. `None` when nothing is attached.
    pub(in crate::session) fn call_costs(&self, target: &Target, costs: &Costs, targets: usize) -> Option<CallCosts> {
        let alone = target.hooks.call_costs(&self.discovery.plan, costs)?;
        let trapped = self.links.scope.costs_among(targets, alone);
        Some(match self.stubs.trapped_share(target.pid) {
            Some(share) => CallCosts::STUBS.with_trapped(trapped, share),
            None => trapped,
        })
    }

    pub(in crate::session) fn count_pointers(&mut self, target: &Target) -> usize {
        self.stubs.count_pointers(target, &self.discovery)
    }

    pub(in crate::session) fn inline_engine(&self) -> Option<InlineEngine> {
        self.stubs.facts()
    }

    /// Number of calls that stubs have sampled and no probe has recorded.
    pub(in crate::session) fn stub_calls_missed(&self) -> u64 {
        self.stubs.missed(&self.kernel)
    }

    pub(in crate::session) fn update_intervals(&mut self, rates: &Rates) {
        self.stubs.update(rates);
    }

    /// Restores pointers of children that have copied stubs and were not followed, because the user did not want it, or
    /// because they were created at the end of the recording. Also restores pointers of targets that could not be
    /// stopped before.
    pub(in crate::session) fn restore_copies(&mut self) {
        if !self.stubs.has_installed_any() {
            return;
        }
        for pid in process::all().unwrap_or_default() {
            if !self.stubs.are_mapped_in(pid) {
                continue;
            }
            let Ok(opened) = self.discovery.open(pid) else { continue };
            if !stubs::are_left(&opened) {
                continue;
            }
            match stubs::remove_left(&opened, &self.discovery, &self.links.keeper) {
                Ok(restored) => debug!("process {pid}: restored {restored} pointers that it has copied"),
                Err(error) => warn!(
                    "stubs of heapbpf remain in process {pid}, and slow its calls down by 2 ns: {error:#}; the next recording or `heapbpf doctor` removes them"
                ),
            }
        }
    }
}

/// Predicts a new program's hooks: probes can be attached to a file before a process maps it.
#[derive(Debug, Default)]
struct Predictions {
    by_executable: HashMap<FileIdentity, Vec<HookId>>,
    c_libraries: Vec<Vec<HookId>>,
}

/// Heap names of C libraries, whose allocators serve programs without one of their own.
const C_LIBRARIES: [&str; 2] = ["libc", "musl"];

/// Maximum number of C libraries predicted for unknown executables: each costs a link.
const C_LIBRARIES_MAX: usize = 2;
const EXECUTABLES_MAX: usize = 4096;

impl Predictions {
    fn learn(&mut self, executable: Option<FileIdentity>, hooks: &Hooks, plan: &Plan) {
        let of_libraries: Vec<HookId> =
            hooks.ids().filter(|&id| C_LIBRARIES.contains(&plan.hook(id).hook.heap.as_str())).collect();
        if !of_libraries.is_empty() {
            // The latest C library comes first: programs that start in succession mostly use the same.
            self.c_libraries.retain(|known| *known != of_libraries);
            self.c_libraries.insert(0, of_libraries);
            self.c_libraries.truncate(C_LIBRARIES_MAX);
        }
        if let Some(executable) = executable {
            if self.by_executable.len() >= EXECUTABLES_MAX {
                self.by_executable.clear();
            }
            self.by_executable.insert(executable, hooks.ids().collect());
        }
    }

    fn of(&self, executable: Option<FileIdentity>) -> Vec<HookId> {
        let known = executable.and_then(|executable| self.by_executable.get(&executable));
        known.cloned().unwrap_or_else(|| self.c_libraries.concat())
    }
}
