//! One recording, from attaching to the last snapshot. Only wires the stages together: what each does is its own file's.

mod age_statistics;
mod back_pressure;
mod changes;
mod config;
mod control;
mod discovery;
mod dumps;
mod guard;
mod hooks;
mod inspection;
mod keeping;
mod launching;
mod leftovers;
mod lifecycle;
mod links;
mod listener;
mod overload;
mod pending_targets;
mod predictions;
mod probes;
pub(crate) mod raw;
mod recording;
mod resync;
mod snapshot;
mod starting;
mod target;
mod targets;
mod thinning;
mod threads;
mod triggers;
mod unwinding;

use std::time::Duration;

use anyhow::{Context, Result};
use profiler_common::counter::Counter;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use tracing::debug;

pub(crate) use config::Progress;
pub use config::{Hold, SessionConfig, UnwindMode};
pub use control::Control;
pub(crate) use discovery::hooks_of;
pub(crate) use guard::TooSmall;
pub(crate) use launching::{Command, Launched};
pub(crate) use leftovers::{Leftovers, remove_leftovers};
pub(crate) use listener::Listener;
pub use overload::OverloadPolicy;
pub use triggers::DumpPlan;

use crate::bpf::counters::Counters;
use crate::bpf::ring::Ring;
use crate::ids::Pid;
use crate::ingest::decode::decode;
use crate::ingest::event::Event;
use crate::linux::{bpf, clock};
use crate::process::selection::{self, Selection};
use crate::process::target::Exits;
use crate::recording::recorder::Finishing;
use crate::snapshot::Snapshot;
use back_pressure::BackPressure;
use discovery::Discovery;
use dumps::Dumps;
use guard::{GUARD_PERIOD, Guard};
use keeping::KeeperWatch;
use lifecycle::Lifecycle;
use pending_targets::PendingTargets;
use probes::Probes;
use raw::{RawSample, RawStacks};
use starting::Found;
use target::Target;
use targets::Targets;
use unwinding::Tables;

/// A running recording.
pub struct Session {
    config: SessionConfig,
    probes: Probes,
    ring: Ring,
    targets: Targets,
    lifecycle: Lifecycle,
    pending_targets: PendingTargets,
    ends: Exits,
    started: clock::Instant,
    records_unreadable: u64,
    /// Targets that found no room in the kernel's map of them: their calls are not drawn.
    targets_unmarked: u64,
    raw: RawStacks,
    back_pressure: BackPressure,
    dumps: Dumps,
    /// What the session itself has started.
    command: Option<Command>,
    /// A process that cannot run at present.
    held: Option<launching::Held>,
    /// How often targets were looked at.
    looks: u32,
    /// What matched nothing at the beginning.
    unmatched: Selection,
    guard: Guard,
    keeper: KeeperWatch,
    found: Found,
    /// When the first target was attached to.
    first_attached: Option<Instant>,
}

/// How often the ring is read when it does not fill: the longest that an event waits.
const DRAIN_PERIOD: Duration = Duration::from_millis(20);
/// How often progress is told.
const PROGRESS_PERIOD: Duration = Duration::from_millis(500);

/// How often targets are looked at for allocators that they have mapped meanwhile.
const LOOK_PERIOD: Duration = Duration::from_millis(250);

/// Records taken before other things get a turn.
const DRAIN_BATCH: usize = 65_536;

impl Session {
    /// Finds the targets and their allocators, and loads the programs. [`attach`](Self::attach) is next.
    ///
    /// # Errors
    ///
    /// When a process that was requested by its number cannot be profiled at all, or nothing can match any more.
    pub fn start(config: SessionConfig) -> Result<Self> {
        let mut discovery = Discovery::new(config.placement, config.functions.clone(), config.heaps.clone());
        let mut targets = Targets::new(config.by_thread, config.recording.is_some());
        let mut tables = Tables::new(config.unwind);
        let mut pending_targets = PendingTargets::new(&config.selection);
        let mut found = Vec::new();
        for &pid in &config.selection.pids {
            let mut target = discovery.open(pid)?;
            target.requested = true;
            found.push(target);
        }
        let matching = selection::scan(&config.selection)?;
        let unmatched = config.selection.unmatched(&matching);
        for facts in matching {
            if found.iter().any(|target: &Target| target.pid == facts.pid()) {
                continue;
            }
            match discovery.open(facts.pid()) {
                Ok(target) => found.push(target),
                Err(error) => pending_targets.leave(&mut targets, facts.identity, facts.command(), &error),
            }
        }
        let own = (config.follow_forks || config.selection.is_open()).then(|| discovery.own()).flatten();
        for space in found.iter().map(|target| &*target.space).chain(own.iter().map(|own| &own.space)) {
            tables.build_all(space, &discovery.modules);
        }
        let mut probes = Probes::load(&config, discovery, tables)?;
        let guard = Guard::new(config.limits, &mut probes)?;
        let ring = probes.kernel.take_ring()?;
        let ends = Exits::new().context("cannot watch processes for their end")?;
        let keeper = KeeperWatch::new(probes.keeper())?;
        Ok(Self {
            lifecycle: Lifecycle::new(&config),
            pending_targets,
            raw: RawStacks::new(config.raw_stacks_max),
            back_pressure: BackPressure::new(&config, &probes.kernel)?,
            dumps: Dumps::new(config.dumps),
            config,
            probes,
            ring,
            targets,
            ends,
            started: clock::now(),
            records_unreadable: 0,
            targets_unmarked: 0,
            command: None,
            held: None,
            looks: 0,
            unmatched,
            guard,
            keeper,
            found: Found { targets: found.into(), own },
            first_attached: None,
        })
    }

    /// Records until `stop` resolves, the duration is over or all targets have ended and none can come.
    ///
    /// # Errors
    ///
    /// When the ring cannot be waited for, or the kernel's maps cannot be read.
    pub async fn run(
        &mut self,
        stop: impl Future<Output = ()>,
        orders: &mut Control,
        listener: &mut dyn Listener,
    ) -> Result<()> {
        tokio::pin!(stop);
        let began = Instant::now();
        let deadline = self.deadline(began);
        let mut drain = every(DRAIN_PERIOD, began + DRAIN_PERIOD);
        let mut look = every(LOOK_PERIOD, began + LOOK_PERIOD);
        let mut guard = every(GUARD_PERIOD, began);
        let mut progress = every(PROGRESS_PERIOD, began);
        let mut events_before = 0;
        let mut is_all = true;
        while self.may_go_on() {
            let soon = self.lifecycle.next_due();
            tokio::select! {
                () = &mut stop => break,
                () = sleep_until(deadline) => break,
                result = self.keeper.exited() => { result?; break }
                pids = self.ends.next() => pids.into_iter().for_each(|pid| self.end(pid)),
                result = self.ring.filled() => { result.context("cannot wait for the ring buffer")?; is_all = self.drain(); }
                // Not at once: timers and signals are not seen by a task that never lets the runtime have a turn.
                () = tokio::task::yield_now(), if !is_all => is_all = self.drain(),
                () = sleep_until(soon) => self.attend(),
                () = Command::stirs(&mut self.command) => self.attend_command(listener),
                order = orders.next(), if listener.has_room() => self.obey(order, listener)?,
                _ = drain.tick() => self.tick(listener)?,
                _ = guard.tick(), if self.guard.is_needed() => if !self.keep_limits()? { break },
                _ = look.tick() => self.look(),
                _ = progress.tick() => {
                    let counters = self.counters()?;
                    let events = counters.get(Counter::Events);
                    listener.progress(&self.progress(began, &counters, events - events_before));
                    events_before = events;
                }
            }
        }
        if self.keeper.has_exited() {
            self.guard.note_keeper_exit();
        }
        Ok(())
    }

    /// What is to be done again and again, beside the ring.
    fn tick(&mut self, listener: &mut dyn Listener) -> Result<()> {
        self.drain();
        self.targets.read_thread_names(std::time::Instant::now());
        self.dump_if_due(listener)
    }

    /// Whether there is a target, or can be one. What was started decides alone: its children may outlive it.
    fn may_go_on(&self) -> bool {
        if let Some(Launched(pid)) = self.launched() {
            return self.targets.get(pid).is_some();
        }
        self.targets.count() > 0 || self.lifecycle.is_waiting() || self.config.selection.is_open()
    }

    #[expect(clippy::cast_precision_loss, reason = "a rate for display")]
    fn progress(&self, began: Instant, counters: &Counters, events: u64) -> Progress {
        Progress {
            elapsed: began.elapsed(),
            duration: self.config.duration,
            targets: self.targets.count(),
            events_per_second: events as f64 / PROGRESS_PERIOD.as_secs_f64(),
            live_bytes: self.targets.live_bytes(),
            lost: counters.losses().map(|(_, count)| count).sum(),
        }
    }

    /// Takes what is in the ring to the ledgers, and acts on what targets did. Returns whether that was all.
    fn drain(&mut self) -> bool {
        let fill_bytes = self.ring.unread_bytes();
        let is_all = self.take_records();
        self.relieve(fill_bytes);
        if self.lifecycle.follows_forks() {
            for pid in self.lifecycle.take_beginners() {
                // What it forks before it is a target is of interest too.
                if let Err(error) = self.probes.kernel.set_target(pid, true) {
                    debug!("process {pid}: {error}");
                }
            }
        }
        self.attend();
        self.record_facts();
        let stale: Vec<Pid> = self.targets.running().filter(|it| it.is_stale()).map(|it| it.pid).collect();
        for pid in stale {
            self.settle(pid);
        }
        is_all
    }

    /// Takes what is in the ring to the ledgers. Returns whether that was all.
    fn take_records(&mut self) -> bool {
        let Self { ring, targets, lifecycle, raw, back_pressure, records_unreadable, .. } = self;
        targets.record_corrections();
        let count = ring.drain(DRAIN_BATCH, |record| match decode(record) {
            Ok(Event::Fork(fork)) => lifecycle.forked(fork, targets),
            Ok(Event::Exec(exec)) => lifecycle.executed(exec, targets),
            Ok(mut event) => {
                back_pressure.take(record.len(), &mut event);
                raw.enter(&event);
                targets.enter(event);
            }
            Err(error) => {
                *records_unreadable += 1;
                debug!("{error}");
            }
        });
        count < DRAIN_BATCH
    }

    /// The copies of stacks that have come since this was last asked, each with its frames.
    pub fn take_raw_stacks(&mut self) -> Vec<RawSample> {
        self.raw.take()
    }

    /// Ends the recording at this instant: no call is sampled and no free entered from now on, the last events are taken, and the
    /// target changes nothing any more while its probes are being removed. The counters are read before anything is detached:
    /// a call whose return probe goes before its entry's would be counted as left without returning.
    fn stop(&mut self) -> Result<(clock::Instant, Counters)> {
        self.probes.stop_drawing()?;
        let now = clock::now();
        while !self.take_records() {}
        // The ring ends at the first record that a preempted program has begun and not finished.
        bpf::wait_for_programs();
        while !self.take_records() {}
        let ended = (now, self.counters()?);
        self.resync_at_end();
        self.end_replaced();
        let gone: Vec<Pid> =
            self.targets.running().filter(|target| target.is_gone()).map(|target| target.pid).collect();
        gone.into_iter().for_each(|pid| self.close(pid));
        for target in self.targets.running_mut() {
            self.probes.release(target);
        }
        Ok(ended)
    }

    /// Stops and waits until no probe is left. Gives back what was started, which may still run, and the recording, which
    /// lacks only names.
    ///
    /// # Errors
    ///
    /// When the kernel's maps cannot be used.
    pub fn finish(mut self) -> Result<(Snapshot, Option<Command>, Option<Finishing>)> {
        let (ended, counters) = self.stop()?;
        self.targets.learn_exit_codes();
        self.targets.skip_unprofilable();
        self.targets.refresh_thread_names();
        let window = self.last_window(ended);
        let snapshot = self.snapshot(ended, &counters, window);
        let recording = self.end_recording(&snapshot, ended);
        self.detach();
        Ok((snapshot, self.command, recording))
    }
}

fn every(period: Duration, first: Instant) -> Interval {
    let mut interval = interval_at(first, period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// Resolves at the deadline; never without one.
async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
