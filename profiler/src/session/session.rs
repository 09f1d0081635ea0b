//! One recording, from attaching to the last snapshot: the loop over the owners of its parts.

mod cut_stacks;
mod following;
mod inventory;
mod launching;
mod observation;
mod progress;
mod residency;
mod snapshot;

use std::time::Duration;

use anyhow::{Context, Result};
use heapbpf_base::ids::Pid;
use heapbpf_base::units::MonotonicNanos;
use heapbpf_linux::{clock, memory};
use profiler_common::counter::Counter;
use profiler_common::unwind::RowCell;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use tracing::{debug, info, warn};

use super::command::{Command, Held, Launched};
use super::config::{Control, Engine, Listener, SessionConfig};
use super::discovery::Discovery;
use super::earlier::Inventories;
use super::followed::Followed;
use super::go_profile::GoProfiles;
use super::guard::{GROUP_PERIOD, GUARD_PERIOD, Guard};
use super::hint::Hint;
use super::intake::{Intake, Owners};
use super::jvm_maps::JvmMaps;
use super::keeper_monitor::KeeperMonitor;
use super::lifecycle::{Lifecycle, UNREACHED};
use super::memory::{MemorySampler, MemoryScene};
use super::meter::ProgressMeter;
use super::object_counts::ObjectCounts;
use super::overload::{LiveSizes, Load};
use super::probes::Probes;
use super::process_table::ProcessTable;
use super::rates::Rates;
use super::raw_stacks::RawSample;
use super::residency::Residency;
use super::resync::Resync;
use super::selected::Selected;
use super::unwinding::Tables;
use super::view::ViewCache;
use super::windows::Windows;
use crate::bpf::counters::Counters;
use crate::bpf::load::{LinkKind, LoadError};
use crate::bpf::processes::ProcessEvents;
use crate::recording::recorder::Recorder;
use crate::snapshot::Snapshot;

pub struct Session {
    config: SessionConfig,
    probes: Probes,
    rates: Rates,
    intake: Intake,
    resync: Resync,
    processes: ProcessTable,
    lifecycle: Lifecycle,
    windows: Windows,
    views: ViewCache,
    guard: Guard,
    keeper: KeeperMonitor,
    followed: Option<Followed>,
    command: Option<Command>,
    held: Option<Held>,
    polls: u32,
    stubs_polled: Pid,
    hint: Hint,
    jvm_maps: JvmMaps,
    memory: MemorySampler,
    inventories: Inventories,
    residency: Residency,
    go: GoProfiles,
    objects: ObjectCounts,
    selected: Selected,
    first_attached: Option<Instant>,
}

/// Period of draining the ring buffer unless it fills: the longest that an event waits.
const DRAIN_PERIOD: Duration = Duration::from_millis(20);
const PROGRESS_PERIOD: Duration = Duration::from_millis(500);

const NO_PAGES: &str = "cannot record resident pages (`--heap pages`)";

/// Period of polling targets for allocators that they have mapped meanwhile.
const POLL_PERIOD: Duration = Duration::from_millis(250);

impl Session {
    /// Opens the selected processes and loads the kernel side. [`attach`](Self::attach) is next. Fails if only
    /// individual processes are selected, and none can be profiled.
    pub fn start(mut config: SessionConfig) -> Result<Self> {
        let mut discovery = Discovery::new(config.placement, config.functions.clone(), config.heaps.clone());
        let mut processes = ProcessTable::new(config.callsite_limit())?;
        let selected = Selected::find(&config, &mut discovery, &mut processes)?;
        let own = (config.follow_forks || config.selection.is_open()).then(|| discovery.own()).flatten();
        let mut tables = Tables::new(config.unwind, config.unwind_bytes_max);
        let own_space = own.iter().map(|own| &own.space);
        for space in selected.found.iter().map(|target| &*target.mappings.space).chain(own_space) {
            tables.build_all(space, &discovery.modules);
        }
        let row_cells = tables.bytes_wanted() / size_of::<RowCell>() as u64;
        let maps = config.kernel_maps(row_cells)?;
        let mut guard = Guard::new(config.limits, maps, memory::resident_bytes())?;
        let mut probes = Probes::load(&config, u32::try_from(maps.row_cells).unwrap_or(u32::MAX), discovery, tables)?;
        if let Some(own) = &own {
            probes.learn_from(&own.hooks);
        }
        // Loading has needed memory for the parsed object and the types of the kernel.
        memory::release_freed();
        let keeper = KeeperMonitor::new(probes.keeper())?;
        let calibrated = guard.calibrate(&mut probes, config.detailed_progress);
        // Without the keeper, the recording ends with its report.
        if !keeper.has_exited() {
            calibrated?;
        }
        let can_inline = probes.kernel.link_kind() != LinkKind::Perf;
        let is_hint_due = config.hints && config.engine == Engine::Trap && can_inline;
        Ok(Self {
            rates: Rates::new(&config),
            residency: Residency::new(config.heaps.is_pages_alone()),
            go: GoProfiles::default(),
            objects: ObjectCounts::default(),
            intake: Intake::new(probes.kernel.take_ring()?),
            resync: Resync::new(&probes.kernel)?,
            processes,
            lifecycle: Lifecycle::new(),
            windows: Windows::new(clock::now()),
            views: ViewCache::default(),
            guard,
            keeper,
            probes,
            jvm_maps: JvmMaps::new(config.jvm_perf_maps),
            config,
            command: None,
            followed: None,
            held: None,
            polls: 0,
            stubs_polled: Pid(0),
            hint: Hint::new(is_hint_due),
            selected,
            memory: MemorySampler::new(),
            inventories: Inventories::default(),
            first_attached: None,
        })
    }

    /// Attaches to the processes that were found. When this returns, all their allocations are sampled. Stops between
    /// two processes if `is_to_stop` returns true or the duration is over; the others are listed as skipped. Fails if
    /// an individually selected process cannot be profiled; the profile lists other failures.
    pub async fn attach(&mut self, mut is_to_stop: impl AsyncFnMut() -> bool) -> Result<()> {
        // Without the tracepoints, only running processes are targets.
        if let Err(error) = self.probes.kernel.attach_tracepoints() {
            let is_open = self.config.selection.is_open();
            let missed = if is_open { "processes that start later are not recorded" } else { "forks are not followed" };
            warn!("{missed}: {error}");
            let are_due = self.config.follow_forks || is_open || error.events != ProcessEvents::Forks;
            self.lifecycle.monitors_all = !are_due;
        }
        self.attach_faults()?;
        self.windows.started = clock::now();
        self.start_recorder()?;
        self.prepare_to_hold();
        while let Some(target) = self.selected.found.pop_front() {
            self.take_records();
            if self.keeper.has_exited() || self.is_over() || is_to_stop().await {
                for target in std::iter::once(target).chain(std::mem::take(&mut self.selected.found)) {
                    self.processes.skip(target.pid, target.command, UNREACHED.to_owned());
                }
                return Ok(());
            }
            let pid = target.pid;
            if target.requested {
                let command = target.command.clone();
                if let Err(error) = self.begin_target(target)
                    && !self.keeper.has_exited()
                {
                    self.selected.unrecorded.add(pid, command, error, &mut self.processes);
                }
            } else if let Some(identity) = target.identity() {
                self.begin_found(target, identity);
            }
            self.begin_inventory(pid);
            if self.guard.is_overhead_due() {
                self.detach_expensive();
            }
            let pending = self.selected.found.iter().map(|target| target.pid);
            self.probes.choose_scope(self.processes.running_mut(), pending);
            self.first_attached = self.first_attached.or_else(|| (self.processes.count() > 0).then(Instant::now));
        }
        if !self.has_begun() && !self.config.selection.is_open() {
            self.selected.unrecorded.check()?;
        }
        // Processes that started after the scan and before they were monitored.
        if self.config.selection.is_open() {
            self.scan();
        }
        self.probes.check_foreign(false);
        let has_all_blocks = self.has_all_blocks();
        let scene = MemoryScene { plan: &self.probes.discovery.plan, residency: &self.residency, has_all_blocks };
        self.memory.poll(&mut self.processes, scene, clock::now().monotonic);
        Ok(())
    }

    /// Attaches to page faults, if they are recorded. Fails if the user has asked for that.
    fn attach_faults(&mut self) -> Result<()> {
        if !self.probes.kernel.records_pages() {
            return Ok(());
        }
        match self.probes.kernel.attach_faults() {
            Err(error) if self.config.heaps.requires_pages() => Err(error).context(NO_PAGES),
            Err(error) => {
                info!("resident pages are not recorded: {error}");
                self.probes.discovery.plan.leave_out_pages();
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    pub fn has_begun(&self) -> bool {
        self.first_attached.is_some()
    }

    pub fn has_lost_keeper(&self) -> bool {
        self.keeper.has_exited()
    }

    /// End of the recording, counted from the first target, at the latest from `began`.
    fn deadline(&self, began: Instant) -> Option<Instant> {
        let first = self.first_attached.map_or(began, |first| first.min(began));
        self.config.duration.map(|duration| first + duration)
    }

    fn is_over(&self) -> bool {
        self.first_attached.is_some()
            && self.deadline(Instant::now()).is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Records until `stop` resolves, the duration is over, or all targets have exited and none can start.
    pub async fn run(
        &mut self,
        stop: impl Future<Output = ()>,
        control: &mut Control,
        listener: &mut dyn Listener,
    ) -> Result<()> {
        let began = Instant::now();
        let deadline = self.deadline(began);
        let stop = async {
            tokio::select! {
                () = stop => {}
                () = sleep_until(deadline) => {}
            }
        };
        tokio::pin!(stop);
        let mut drain = every(DRAIN_PERIOD, began + DRAIN_PERIOD);
        let mut poll = every(POLL_PERIOD, began + POLL_PERIOD);
        let mut guard = every(GUARD_PERIOD, began);
        let mut group = every(GROUP_PERIOD, began);
        let mut progress = every(PROGRESS_PERIOD, began);
        let mut meter = ProgressMeter::default();
        let mut is_empty = true;
        while self.can_continue() {
            // A task that never yields starves timers and signals. However much there is to do, the recording ends.
            tokio::select! {
                biased;
                () = &mut stop => break,
                () = tokio::task::yield_now() => {}
            }
            let soon = self.lifecycle.next_due();
            tokio::select! {
                () = &mut stop => break,
                result = self.keeper.exited() => { result?; break }
                pids = self.processes.exited() => self.handle_exits(pids),
                result = self.intake.ring().filled() => {
                    result.context("cannot wait for the ring buffer")?;
                    is_empty = self.drain();
                }
                () = std::future::ready(()), if !is_empty => is_empty = self.drain(),
                () = sleep_until(soon) => self.handle_changes(),
                () = Command::changed(&mut self.command) => self.attend_command(listener),
                () = Followed::changed(&self.followed) => self.attend_followed(listener),
                request = control.next(), if listener.has_room() => self.handle_request(request, listener)?,
                _ = drain.tick() => {
                    self.drain();
                    self.resume_unattended_command();
                    self.find_sharing();
                    self.poll_some_stubs();
                    self.processes.read_thread_names();
                    self.dump_if_due(listener)?;
                }
                _ = guard.tick(), if self.guard.is_needed() => if !self.keep_limits()? { break },
                _ = group.tick(), if self.guard.watches_group => if !self.guard.check_group() { break },
                _ = poll.tick() => self.poll_targets(),
                _ = progress.tick() => {
                    let counters = self.counters()?;
                    listener.progress(self.progress(began, &counters, &mut meter));
                }
            }
        }
        if self.keeper.has_exited() {
            self.guard.note_keeper_exit();
        }
        Ok(())
    }

    /// Whether there are targets, or can be. A launched command decides alone: its children may outlive it.
    fn can_continue(&self) -> bool {
        if let Some(Launched(pid)) = self.launched() {
            return self.processes.get(pid).is_some();
        }
        self.processes.count() > 0 || self.lifecycle.is_waiting() || self.config.selection.is_open()
    }

    fn keep_limits(&mut self) -> Result<bool> {
        self.detach_expensive();
        Ok(self.guard.check_memory(self.processes.live_blocks() as u64)
            && self.guard.check_cpu(&mut self.rates, &mut self.probes.kernel)?)
    }

    /// Enters a batch of records and handles process changes. Returns whether the ring buffer is empty.
    pub(super) fn drain(&mut self) -> bool {
        let fill_bytes = self.intake.ring().unread_bytes();
        let is_empty = self.take_records();
        self.balance(fill_bytes);
        self.close_unused_filter();
        self.probes.unwinding.interpreters.read_pending(&self.probes.discovery.modules);
        if self.config.follow_forks {
            for pid in self.lifecycle.take_started() {
                // Reports its forks even before it is a target.
                self.probes.report_forks(pid);
            }
        }
        self.handle_changes();
        self.record_facts();
        self.reload_stale();
        self.read_new_code();
        self.complete_stacks();
        is_empty
    }

    /// Enters the records that the ring buffer has now, and handles process changes. Later records may remain: a target
    /// may allocate faster than its records are entered.
    pub(super) fn empty_ring(&mut self) {
        let end = self.intake.ring().written_bytes();
        while !self.drain() && self.intake.ring().read_bytes() < end {}
    }

    /// Enters the records that the ring buffer has now, without handling process changes.
    pub(super) fn catch_up(&mut self) {
        let end = self.intake.ring().written_bytes();
        while !self.take_records() && self.intake.ring().read_bytes() < end {}
    }

    /// Enters a batch of records. Returns whether it emptied the ring buffer.
    fn take_records(&mut self) -> bool {
        let Self {
            intake,
            config,
            probes,
            processes,
            lifecycle,
            rates,
            resync,
            inventories,
            residency,
            go,
            objects,
            ..
        } = self;
        processes.record_corrections();
        intake.take(&mut Owners {
            config,
            probes,
            processes,
            lifecycle,
            rates,
            resync,
            inventories,
            residency,
            go,
            objects,
        })
    }

    /// Adapts intervals to the load. `fill_bytes` were in the ring buffer before the drain.
    fn balance(&mut self, fill_bytes: u64) {
        let now = clock::now().monotonic;
        let is_filling = fill_bytes > u64::from(self.config.ring_bytes) / 2;
        if self.rates.is_due(now, is_filling)
            && let Err(error) = self.adapt(now, fill_bytes)
        {
            debug!("{error}");
        }
        self.probes.update_intervals(&self.rates);
        if self.inventories.is_walked() {
            self.finish_inventory(true);
        }
        let folded = self.processes.take_folded_stacks();
        if !folded.is_empty()
            && let Err(error) = self.probes.kernel.forget_stacks(&folded)
        {
            debug!("{error}");
        }
        if self.resync.is_read() && self.take_records() {
            self.finish_pass();
        }
        if self.resync.is_due(now) {
            self.resync.begin(&self.processes);
        }
    }

    fn adapt(&mut self, now: MonotonicNanos, fill_bytes: u64) -> Result<(), LoadError> {
        let Some(ring_dropped) = self.note_drops() else { return Ok(()) };
        let live_dropped = Counters::read_one(&self.probes.kernel, Counter::LiveSetFull)?;
        let live_blocks = self.resync.live_blocks(now, self.config.live_blocks_max);
        self.intake.log_drops(now, self.windows.started.monotonic, ring_dropped);
        let load = Load { time: now, fill_bytes, ring_dropped, live_blocks, live_dropped };
        self.rates.adapt(&load, &mut self.probes.kernel)?;
        if self.rates.wants_thinning(&load) && !self.resync.is_running() {
            let mut sizes = LiveSizes::new();
            for block in self.processes.running().flat_map(|target| target.ledger.live()) {
                sizes.entry((block.heap, block.interval)).or_default().add(block.size_bytes);
            }
            let floors = self.rates.thin(&load, &sizes, &mut self.probes.kernel)?;
            if !floors.is_empty() {
                self.resync.begin_thinning(floors, &self.processes);
            }
        }
        Ok(())
    }

    /// Notes how many records were dropped. Returns the number dropped because the ring buffer was full; `None` if the
    /// kernel's counter cannot be read.
    pub(super) fn note_drops(&mut self) -> Option<u64> {
        let read = Counters::read_one(&self.probes.kernel, Counter::RingFull);
        let ring_dropped = read.inspect_err(|error| debug!("{error}")).ok()?;
        self.resync.note_drops(ring_dropped + self.intake.unreadable());
        Some(ring_dropped)
    }

    /// Whether ledgers have the blocks of all records until now, also of those that were dropped.
    pub(super) fn has_all_blocks(&mut self) -> bool {
        self.note_drops().is_some() && !self.resync.is_needed() && !self.resync.is_running()
    }

    pub fn take_raw_stacks(&mut self) -> Vec<RawSample> {
        self.intake.take_raw_stacks()
    }

    /// Ends the recording. Reads counters before it detaches: a call whose return probe is removed first would count as
    /// not returning.
    fn stop(&mut self) -> Result<(clock::Instant, Counters)> {
        self.command.iter_mut().for_each(Command::record_no_execs);
        self.complete_inventory(true);
        self.close_unused_filter();
        self.rates.stop(&mut self.probes.kernel)?;
        let now = clock::now();
        self.catch_up();
        self.go.read_all(&mut self.processes, now.monotonic);
        self.objects.count_all(&mut self.processes);
        self.complete_pages();
        self.forget_borrowers();
        self.complete_programs();
        self.complete_all_stacks();
        self.jvm_maps.finish(self.processes.running(), &self.probes.discovery.modules);
        self.poll_generated();
        let ended = (now, self.counters()?);
        self.resync_at_end();
        let has_all_blocks = self.has_all_blocks();
        let scene = MemoryScene { plan: &self.probes.discovery.plan, residency: &self.residency, has_all_blocks };
        self.memory.sample_all(&mut self.processes, scene, now.monotonic);
        // What hooked heaps have is known now.
        self.remove_hooked_pages();
        self.note_undecided_pages();
        self.probes.check_foreign(true);
        self.close_replaced();
        self.verify_probes();
        let gone: Vec<Pid> =
            self.processes.running().filter(|target| target.is_gone()).map(|target| target.pid).collect();
        // Whatever the agent still has to do, nothing is later than the end of the recording.
        gone.into_iter().for_each(|pid| self.close(pid, now.monotonic));
        for target in self.processes.running_mut() {
            self.probes.release(target);
        }
        Ok(ended)
    }

    /// Ends the recording and waits until all probes are detached. The returned command may still run; the returned
    /// recording lacks only names.
    pub fn finish(mut self) -> Result<(Snapshot, Option<Command>, Option<Recorder>)> {
        let (ended, counters) = self.stop()?;
        self.processes.update_exit_codes();
        self.processes.skip_unprofilable();
        self.processes.refresh_thread_names();
        let window = self.last_window(ended);
        let snapshot = self.snapshot(ended, &counters, window);
        let recording = self.end_recorder(&snapshot, ended);
        self.processes.running_mut().for_each(|target| target.hooks.detach());
        self.probes.finish_detaching(self.processes.running());
        Ok((snapshot, self.command, recording))
    }
}

fn every(period: Duration, first: Instant) -> Interval {
    let mut interval = interval_at(first, period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
