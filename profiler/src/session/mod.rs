//! One recording, from attaching to the named profile. Only wires the stages together: what each does is its own file's.

pub mod raw;
mod target;
mod unwinding;

use std::collections::BTreeMap;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use profiler_common::interval::Interval;
use profiler_common::sampling::SamplingRate;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tracing::{debug, warn};

use crate::bpf::counters::Counters;
use crate::bpf::load::{Kernel, KernelConfig};
use crate::bpf::ring::Ring;
use crate::health;
use crate::ids::{HeapId, Pid};
use crate::ingest::decode::decode;
use crate::object::module::ModuleStore;
use crate::probe::attach::{BackendChoice, backend, choose, detach_all};
use crate::probe::place::PlacementMode;
use crate::probe::plan::{Plan, PlannedHook};
use crate::report::profile::{Profile, TargetProfile};
use crate::symbolize::names::{Unnamed, name_profile};
use crate::symbolize::resolver::Resolver;
use crate::symbolize::trim::trim;
use crate::sys::clock;
use crate::units::EstimatedBytes;
use raw::{RawSample, RawStacks};
use target::Target;
use unwinding::{Tables, Unwinding};

/// What to record.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// The processes.
    pub pids: Vec<Pid>,
    /// Mean bytes between samples.
    pub interval: Interval,
    /// When to stop by itself, beside the end of all targets.
    pub duration: Option<Duration>,
    /// Leave runtime plumbing out of stacks.
    pub trim: bool,
    /// Bytes of the ring buffer.
    pub ring_bytes: u32,
    /// Room in the live set.
    pub live_blocks_max: u32,
    /// Where in their functions probes go.
    pub placement: PlacementMode,
    /// How stacks are unwound.
    pub unwind: UnwindMode,
    /// How probes are attached.
    pub backend: BackendChoice,
    /// Bytes that unwind tables may take in the kernel.
    pub unwind_bytes_max: u64,
    /// Copies of stacks to keep at a time, for checking the unwinder; 0 in any other recording, where none are made.
    pub raw_stacks_max: usize,
}

/// How stacks are unwound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnwindMode {
    /// By tables made from the modules' unwind information; by frame pointers in code that has none.
    Auto,
    /// By tables alone.
    Tables,
    /// By frame pointers alone.
    FramePointer,
}

/// Where a recording is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Since it began.
    pub elapsed: Duration,
    /// When it will stop.
    pub duration: Option<Duration>,
    /// Over the last period.
    pub events_per_second: f64,
    /// Of all targets.
    pub live_bytes: EstimatedBytes,
    /// Events lost, all reasons.
    pub lost: u64,
}

/// A running recording.
pub struct Session {
    config: SessionConfig,
    kernel: Kernel,
    ring: Ring,
    modules: ModuleStore,
    unwinding: Unwinding,
    plan: Plan,
    targets: BTreeMap<Pid, Target>,
    started: clock::Instant,
    records_unreadable: u64,
    raw: RawStacks,
    /// Threads that wait for probes to be gone. Joined at the end.
    detaching: Vec<JoinHandle<()>>,
}

/// How often the ring is read when it does not fill: the longest that an event waits.
const DRAIN_PERIOD: Duration = Duration::from_millis(20);

/// How often progress is told.
const PROGRESS_PERIOD: Duration = Duration::from_millis(500);

/// Records taken before other things get a turn.
const DRAIN_BATCH: usize = 65_536;

impl Session {
    /// Finds the targets and their allocators, loads the programs and attaches. When this returns, every allocation from
    /// now on is drawn for.
    ///
    /// # Errors
    ///
    /// When a target cannot be profiled at all; a hook that alone cannot be attached is told in the profile instead.
    pub fn start(config: SessionConfig) -> Result<Self> {
        let mut modules = ModuleStore::new();
        let mut plan = Plan::default();
        let mut targets = BTreeMap::new();
        for &pid in &config.pids {
            targets.insert(pid, Target::find(pid, config.placement, &mut modules, &mut plan)?);
        }
        let mut tables = Tables::new(config.unwind);
        targets.values().for_each(|target: &Target| tables.build_all(&target.space, &modules));
        let row_cells = tables.cells(config.unwind_bytes_max);
        let links = choose(config.backend)?;
        let kernel_config = KernelConfig {
            ring_bytes: config.ring_bytes,
            live_blocks_max: config.live_blocks_max,
            unwind_by_tables: config.unwind != UnwindMode::FramePointer,
            row_cells,
            stack_seed: health::random_seed(),
            raw_stacks: config.raw_stacks_max > 0,
            watch_execs: false,
            throw_safe_bytes: u64::MAX,
        };
        let mut kernel = Kernel::load(kernel_config, links)?;
        let mut unwinding = Unwinding::new(tables, row_cells, &mut kernel)?;
        for target in targets.values() {
            unwinding.register(&target.space, &modules)?;
        }
        let ring = kernel.take_ring()?;
        let rate = SamplingRate::new(config.interval);
        for (heap, _) in (0u8..).zip(plan.heaps()) {
            kernel.set_rate(HeapId(heap), rate)?;
        }
        let started = clock::now();
        for target in targets.values_mut() {
            target.attach(&mut kernel, &modules, &plan, backend(links))?;
        }
        let raw = RawStacks::new(config.raw_stacks_max);
        Ok(Self {
            config,
            kernel,
            ring,
            modules,
            unwinding,
            plan,
            targets,
            started,
            records_unreadable: 0,
            raw,
            detaching: Vec::new(),
        })
    }

    /// Processes and attached hooks, in words.
    #[must_use]
    pub fn describe(&self) -> String {
        let names: Vec<_> =
            self.targets.values().map(|target| format!("{} ({})", target.process.comm, target.process.pid)).collect();
        let hooks: usize = self.targets.values().map(|target| target.attached_count()).sum();
        format!("{}: {hooks} hooks on heap {}", names.join(", "), self.plan.heaps().join(", "))
    }

    /// Records until `stop` resolves, the duration is over or all targets have ended. `tell` is called now and then.
    ///
    /// # Errors
    ///
    /// When the ring cannot be waited for.
    pub async fn run(&mut self, stop: impl Future<Output = ()>, mut tell: impl FnMut(&Progress)) -> Result<()> {
        tokio::pin!(stop);
        let began = Instant::now();
        let deadline = self.config.duration.map(|duration| began + duration);
        let mut drain = interval_at(began + DRAIN_PERIOD, DRAIN_PERIOD);
        drain.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut progress = interval_at(began, PROGRESS_PERIOD);
        progress.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut events_before = 0;
        while self.targets.values().any(|target| target.exit.is_none()) {
            tokio::select! {
                () = &mut stop => break,
                () = sleep_until(deadline) => break,
                pid = any_end(&self.targets) => self.end_target(pid).await,
                result = self.ring.filled() => { result.context("cannot wait for the ring buffer")?; self.drain(); }
                _ = drain.tick() => { self.drain(); }
                _ = progress.tick() => {
                    let counters = Counters::read(&self.kernel)?;
                    let events = counters.get(profiler_common::counter::Counter::Events);
                    tell(&self.progress(began, &counters, events - events_before));
                    events_before = events;
                }
            }
        }
        Ok(())
    }

    #[expect(clippy::cast_precision_loss, reason = "a rate for display")]
    fn progress(&self, began: Instant, counters: &Counters, events: u64) -> Progress {
        Progress {
            elapsed: began.elapsed(),
            duration: self.config.duration,
            events_per_second: events as f64 / PROGRESS_PERIOD.as_secs_f64(),
            live_bytes: self.targets.values().map(|target| target.ledger.totals().live_bytes()).sum(),
            lost: counters.losses().map(|(_, count)| count).sum(),
        }
    }

    /// Takes what is in the ring to the ledgers. Returns whether that was all.
    fn drain(&mut self) -> bool {
        let (targets, unreadable, raw) = (&mut self.targets, &mut self.records_unreadable, &mut self.raw);
        let count = self.ring.drain(DRAIN_BATCH, |record| match decode(record) {
            Ok(event) => {
                // Events of other processes: a vfork child shares its parent's memory and so its probes.
                if let Some(target) = targets.get_mut(&event.pid()) {
                    raw.enter(&event);
                    target.enter(event);
                }
            }
            Err(error) => {
                *unreadable += 1;
                debug!("{error}");
            }
        });
        for target in self.targets.values_mut() {
            if target.refresh_space(&mut self.modules)
                && let Err(error) = self.unwinding.register(&target.space, &self.modules)
            {
                warn!("{error:#}");
            }
        }
        count < DRAIN_BATCH
    }

    /// The copies of stacks that have come since this was last asked, each with its frames.
    pub fn take_raw_stacks(&mut self) -> Vec<RawSample> {
        self.raw.take()
    }

    /// A target has ended: its last events are taken, its probes removed. Its modules stay open for their names.
    async fn end_target(&mut self, pid: Pid) {
        self.drain();
        if let Some(target) = self.targets.get_mut(&pid) {
            target.exit = Some(target.process.exit().await);
            self.unwinding.forget(pid);
            let links = target.take_links();
            self.detaching.push(std::thread::spawn(|| detach_all(links)));
        }
    }

    /// Ends the recording at this instant: no call is drawn from now on, the last events are taken, and what the target
    /// does while its probes are being removed changes nothing any more.
    ///
    /// The counters are read before anything is detached: a call whose return probe goes before its entry's would be
    /// counted as left without returning.
    fn stop(&mut self) -> Result<(clock::Instant, Counters)> {
        for (heap, _) in (0u8..).zip(self.plan.heaps()) {
            self.kernel.set_rate(HeapId(heap), SamplingRate::STOPPED)?;
        }
        while !self.drain() {}
        let ended = (clock::now(), Counters::read(&self.kernel)?);
        let links: Vec<_> = self.targets.values_mut().flat_map(Target::take_links).collect();
        self.detaching.push(std::thread::spawn(|| detach_all(links)));
        Ok(ended)
    }

    /// Stops, names everything and waits until no probe is left.
    ///
    /// # Errors
    ///
    /// When the kernel's maps cannot be used.
    pub fn finish(mut self) -> Result<Profile> {
        let (ended, counters) = self.stop()?;
        let snapshots: Vec<_> = self.targets.values().map(|target| target.ledger.snapshot()).collect();
        let unnamed: Vec<_> = self
            .targets
            .values()
            .zip(&snapshots)
            .map(|(target, snapshot)| Unnamed { snapshot, space: &target.space })
            .collect();
        let mut named = name_profile(&unnamed, &self.modules, &Resolver::new());
        if self.config.trim {
            for callsite in named.callsites.iter_mut().flatten() {
                callsite.stack = trim(&callsite.stack, &named.frames).to_vec();
            }
        }
        let frees_unknown = self.targets.values().map(|target| target.ledger.frees_unknown()).sum();
        let mut targets = Vec::new();
        for ((target, snapshot), callsites) in self.targets.values().zip(&snapshots).zip(named.callsites) {
            targets.push(TargetProfile {
                pid: target.process.pid,
                command: target.process.command.clone(),
                comm: target.process.comm.clone(),
                exited: target.exit.is_some(),
                exit_code: target.exit.and_then(|exit| exit.code),
                totals: snapshot.totals,
                heaps: target.heaps(&self.plan, &snapshot.heaps),
                callsites,
            });
        }
        for thread in self.detaching {
            let _ = thread.join();
        }
        Ok(Profile {
            interval_bytes: u64::from(self.config.interval.bytes()),
            started_unix_ns: self.started.unix_ns,
            ended_unix_ns: ended.unix_ns,
            started_monotonic_ns: self.started.monotonic.0,
            targets,
            frames: named.frames,
            health: health::collect(
                &counters,
                self.records_unreadable,
                frees_unknown,
                self.unwinding.by_frame_pointer(),
            ),
        })
    }
}

/// The hooks that a recording of this process would attach. Attaches none.
///
/// # Errors
///
/// When it cannot be profiled.
pub fn hooks_of(pid: Pid, placement: PlacementMode) -> Result<Vec<PlannedHook>> {
    let (mut modules, mut plan) = (ModuleStore::new(), Plan::default());
    let target = Target::find(pid, placement, &mut modules, &mut plan)?;
    Ok(target.planned(&plan).cloned().collect())
}

/// The first target to end, of those that run.
async fn any_end(targets: &BTreeMap<Pid, Target>) -> Pid {
    let mut ends: Vec<_> = targets
        .values()
        .filter(|target| target.exit.is_none())
        .map(|target| {
            Box::pin(async {
                target.process.ended().await;
                target.process.pid
            })
        })
        .collect();
    std::future::poll_fn(|context| {
        let ready = ends.iter_mut().find_map(|end| match end.as_mut().poll(context) {
            std::task::Poll::Ready(pid) => Some(pid),
            std::task::Poll::Pending => None,
        });
        ready.map_or(std::task::Poll::Pending, std::task::Poll::Ready)
    })
    .await
}

/// Resolves at the deadline; never without one.
async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
