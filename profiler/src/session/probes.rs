//! What is in the kernel for all targets together: programs, tables, rates, and the numbering of hooks. Puts probes on a
//! target and takes them away; when to, the session decides.

use anyhow::{Context, Result, bail};
use profiler_common::interval::Interval;
use profiler_common::live::LiveBlock;
use profiler_common::sampling::SamplingRate;
use tracing::{debug, info, warn};

use super::UnwindMode;
use super::config::SessionConfig;
use super::discovery::Discovery;
use super::guard;
use super::hooks::Hooks;
use super::links::Links;
use super::predictions::Predictions;
use super::target::Target;
use super::unwinding::{Tables, Unwinding};
use crate::allocator::selection::MMAP;
use crate::bpf::footprint::KernelMaps;
use crate::bpf::load::{Kernel, KernelConfig};
use crate::health;
use crate::ids::{HeapId, Pid};
use crate::keeper::Keeper;
use crate::ledger::LiveAllocation;
use crate::linux::proc::maps;
use crate::linux::{clock, memory};
use crate::probe::attach::choose;
use crate::probe::cost::{self, CostError, Costs};
use crate::report::text::printable;

pub(super) struct Probes {
    pub(super) kernel: Kernel,
    pub(super) discovery: Discovery,
    pub(super) unwinding: Unwinding,
    predictions: Predictions,
    interval: Interval,
    /// How often all intervals were doubled since the beginning.
    doublings: u32,
    /// What its maps take.
    pub(super) maps: KernelMaps,
    /// Heaps whose rate is set.
    heaps_rated: usize,
    pub(super) links: Links,
}

impl Probes {
    /// Loads the kernel side; `tables` are those that the first targets need.
    pub(super) fn load(config: &SessionConfig, discovery: Discovery, tables: Tables) -> Result<Self> {
        let row_cells = tables.cells(config.unwind_bytes_max);
        let links = choose(config.backend)?;
        let kernel_config = KernelConfig {
            ring_bytes: config.ring_bytes,
            live_blocks_max: config.live_blocks_max,
            unwind_by_tables: config.unwind != UnwindMode::FramePointer,
            row_cells,
            stack_seed: health::random_seed(),
            raw_stacks: config.raw_stacks_max > 0,
            watch_execs: config.selection.matches_new(),
            throw_safe_bytes: memory::throw_safe_bytes(),
        };
        let maps = KernelMaps {
            ring_bytes: u64::from(config.ring_bytes),
            live_blocks_max: u64::from(config.live_blocks_max),
            row_cells: u64::from(row_cells),
            cpus: aya::util::nr_cpus().map_or(1, |cpus| cpus as u64),
        };
        guard::check_memory(&config.limits, &maps)?;
        // It starts while the kernel verifies the programs.
        let keeper = Keeper::start()?;
        let mut kernel = Kernel::load(kernel_config, links)?;
        let unwinding = Unwinding::new(tables, row_cells, &mut kernel)?;
        Ok(Self {
            kernel,
            discovery,
            unwinding,
            predictions: Predictions::default(),
            interval: config.interval,
            doublings: 0,
            maps,
            heaps_rated: 0,
            links: Links::new(keeper, config, links),
        })
    }

    /// Looks at what a target maps, and puts probes on what is new of its allocators. `stopped` says that it cannot run
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// When it cannot be profiled as it is now.
    pub(super) fn settle(&mut self, target: &mut Target, stopped: bool) -> Result<()> {
        let attached_before = target.hooks.attached_ids();
        target.refresh_space(&mut self.discovery.modules);
        // Also what was found mapped when something else asked.
        let mapped_more = target.is_unsearched();
        if target.has_begun() && !mapped_more {
            return Ok(());
        }
        let needed = match self.discovery.discover(target) {
            Ok(needed) => needed,
            Err(error) => {
                // While it cannot run, what it has not mapped yet it has not called either.
                target.held_before_mapping |= stopped;
                return Err(error);
            }
        };
        // Probes that were put on files which the process had not mapped yet.
        let foreseen = target.foreseen && needed.iter().all(|hook| attached_before.contains(hook));
        // Probes before tables: a stack that ends early is still an allocation that was seen.
        let hooks_before = target.hooks.attached();
        self.attach(target)?;
        let hooks_added = target.hooks.attached().saturating_sub(hooks_before);
        if target.has_begun() && hooks_added > 0 {
            info!("process {} ({}) is watched with {hooks_added} more hooks", target.pid, printable(&target.comm));
        }
        // Until it has begun, a look that came to nothing, or the one of `foresee`, may have seen the mappings first.
        if mapped_more || !target.has_begun() {
            self.register(target);
        }
        if target.hooks.attached() == 0 {
            let error = target.hooks.first_error().unwrap_or("it has no hooks").to_owned();
            bail!("no probe could be attached to process `{}`: {error}", target.pid);
        }
        if !target.has_begun() {
            target.begin(clock::now().monotonic, (stopped && target.held_before_mapping) || foreseen);
            target.announce();
            let executable = maps::executable_identity(target.pid).ok();
            self.predictions.learn(executable, &target.hooks, &self.discovery.plan);
        }
        Ok(())
    }

    /// Puts probes on what a program that has just begun will probably map.
    pub(super) fn foresee(&mut self, target: &mut Target) {
        let executable = maps::executable_identity(target.pid).ok();
        let likely = self.predictions.of(executable);
        likely.iter().for_each(|&id| target.hooks.want(id));
        if let Err(error) = self.attach(target) {
            debug!("process {}: {error:#}", target.pid);
        }
        // Only what is not mapped after the probes are there was not mapped before.
        target.refresh_space(&mut self.discovery.modules);
        let mapped = target.space.modules();
        let modules = target.hooks.modules(&self.discovery.plan);
        target.foreseen = !modules.is_empty() && modules.iter().all(|module| !mapped.contains(module));
    }

    /// Learns of the C library that heapbpf itself uses: most programs use it too.
    pub(super) fn learn_from(&mut self, hooks: &Hooks) {
        self.predictions.learn(None, hooks, &self.discovery.plan);
    }

    /// Attaches a target's wanted hooks. Their heaps' rates are set before.
    pub(super) fn attach(&mut self, target: &mut Target) -> Result<()> {
        self.remove_leftovers(target);
        let Discovery { plan, modules, .. } = &self.discovery;
        for (heap, name) in plan.heaps().iter().enumerate().skip(self.heaps_rated) {
            let interval = self.interval(name);
            self.kernel.set_rate(HeapId(u8::try_from(heap).context("too many heaps")?), SamplingRate::new(interval))?;
        }
        self.heaps_rated = plan.heaps().len();
        target.hooks.attach(target.pid, &self.kernel, &mut self.links, modules, plan)
    }

    /// A heap's interval: its own, or the recording's. Calls of the heap of mappings are all taken.
    pub(super) fn interval(&self, heap: &str) -> Interval {
        if heap == MMAP {
            return Interval::EXACT;
        }
        let interval = self.discovery.interval_bytes(heap).map_or(self.interval, Interval::nearest);
        doubled(interval, self.doublings)
    }

    /// Doubles the intervals of all heaps so many times, as far as they may grow. False when none may any more.
    pub(super) fn double_intervals(&mut self, times: u32) -> Result<bool> {
        let intervals = |probes: &Self| {
            let heaps = probes.discovery.plan.heaps().iter();
            heaps.map(|heap| probes.interval(heap)).collect::<Vec<_>>()
        };
        let before = intervals(self);
        self.doublings += times;
        let after = intervals(self);
        for ((heap, interval), _) in (0u8..).zip(&after).zip(&before).filter(|((_, after), before)| after != before) {
            self.kernel.set_rate(HeapId(heap), SamplingRate::new(*interval))?;
        }
        Ok(after != before)
    }

    /// The process that owns the probes.
    pub(super) fn keeper(&self) -> &Keeper {
        self.links.keeper()
    }

    /// What a call through a probe costs. To be asked before anything is attached.
    pub(super) fn calibrate(&mut self) -> Result<Costs, CostError> {
        cost::calibrate(&mut self.kernel, self.links.keeper())
    }

    /// Gives the kernel side the target's unwind tables.
    pub(super) fn register(&mut self, target: &Target) {
        if let Err(error) = self.unwinding.register(&target.space, &self.discovery.modules) {
            warn!("{error:#}");
        }
    }

    /// Enters a forked target's inherited blocks into the kernel's live set. False when not all found room: frees of the
    /// others will not be seen.
    pub(super) fn inherit(&mut self, target: &Target) -> bool {
        let blocks = target.ledger.live().map(|block| {
            let LiveAllocation { address, size_bytes, interval, stack, heap, time } = block;
            (address, LiveBlock::new(size_bytes, time.0, stack.0, interval, heap.0))
        });
        self.kernel.inherit_blocks(target.pid, blocks).unwrap_or_else(|error| {
            debug!("process {}: {error}", target.pid);
            false
        })
    }

    /// Takes a target's probes away, soon, and forgets it in the kernel.
    pub(super) fn release(&mut self, target: &mut Target) {
        self.unwinding.forget(target.pid);
        self.forget(target.pid);
        drop(target.hooks.take_links());
    }

    /// Takes a target's probes away, soon, where its number is another's by now.
    pub(super) fn detach(&mut self, target: &mut Target) {
        drop(target.hooks.take_links());
    }

    /// A target's probes have come to nothing: it needs new ones.
    pub(super) fn lose(&mut self, target: &mut Target) {
        drop(target.hooks.take_links());
        target.hooks = target.hooks.for_child();
        target.foreseen = false;
    }

    /// The kernel side need not tell of this process's forks and execs any more.
    pub(super) fn forget(&mut self, pid: Pid) {
        if let Err(error) = self.kernel.forget_target(pid) {
            debug!("process {pid}: {error}");
        }
    }

    /// No call is drawn from now on.
    pub(super) fn stop_drawing(&mut self) -> Result<()> {
        for (heap, _) in (0u8..).zip(self.discovery.plan.heaps()) {
            self.kernel.set_rate(HeapId(heap), SamplingRate::STOPPED)?;
        }
        Ok(())
    }
}

/// An interval that was doubled this often: it grows to [`INTERVAL_BYTES_RAISED_MAX`] at most. One that began beyond stays.
fn doubled(interval: Interval, times: u32) -> Interval {
    if interval.bytes() >= INTERVAL_BYTES_RAISED_MAX {
        return interval;
    }
    let bytes = u64::from(interval.bytes()) << times.min(u32::BITS);
    Interval::nearest(u32::try_from(bytes).unwrap_or(u32::MAX).min(INTERVAL_BYTES_RAISED_MAX))
}

/// Up to here intervals are raised: beyond it so little is sampled that sampling costs nothing.
const INTERVAL_BYTES_RAISED_MAX: u32 = 16 << 20;
