//! Acts on too much: changes intervals as [`Overload`] says, thins the live set, and puts the books right after loss.

use std::sync::Arc;
use std::time::Duration;

use profiler_common::counter::Counter;
use profiler_common::sampling::SamplingRate;
use tracing::{debug, info, warn};

use super::Session;
use super::config::SessionConfig;
use super::overload::{Change, LiveSizes, Load, Overload};
use super::resync::{Pass, Schedule};
use super::thinning::Thinnings;
use crate::allocator::selection::MMAP;
use crate::bpf::counters::Counters;
use crate::bpf::live_reader::LiveReader;
use crate::bpf::load::{Kernel, LoadError};
use crate::health;
use crate::ids::{HeapId, Pid};
use crate::ingest::event::Event;
use crate::linux::clock;
use crate::model::{ChangeReason, IntervalChange};
use crate::report::text;
use crate::units::MonotonicNanos;

pub(super) struct BackPressure {
    overload: Overload,
    thinnings: Thinnings,
    schedule: Schedule,
    pass: Option<Pass>,
    reader: Arc<LiveReader>,
    /// Passes that were completed.
    resyncs: u64,
    changes: Vec<Change>,
    looked: MonotonicNanos,
    counted: (MonotonicNanos, u64),
    /// Processes that have ended, whose blocks may still be in the live set.
    unswept: Vec<Pid>,
    live_max: u64,
    /// When losses were last told of, and how many there were.
    told: (MonotonicNanos, u64),
}

/// Losses are told of so often.
const TELL_PERIOD: Duration = Duration::from_millis(200);

/// Counters are looked at no more often than this, unless the ring is filling.
const LOOK_PERIOD: Duration = Duration::from_millis(5);

/// Live blocks are counted so often, and more often when they are many. It takes some 30 µs.
const COUNT_PERIOD: Duration = Duration::from_millis(100);
const COUNT_PERIOD_MIN: Duration = Duration::from_millis(10);

/// Changes of intervals that are kept for reports: the first and the last of them. All are told when they are made.
const CHANGES_MAX: usize = 1000;

mod passes;

impl BackPressure {
    pub(super) fn new(config: &SessionConfig, kernel: &Kernel) -> Result<Self, LoadError> {
        let now = clock::now().monotonic;
        Ok(Self {
            overload: Overload::new(config.on_overload, config.ring_bytes, config.live_blocks_max, now),
            thinnings: Thinnings::new(health::random_seed()),
            schedule: Schedule::default(),
            pass: None,
            reader: Arc::new(kernel.live_reader()?),
            resyncs: 0,
            changes: Vec::new(),
            looked: now,
            counted: (MonotonicNanos(0), 0),
            unswept: Vec::new(),
            live_max: u64::from(config.live_blocks_max),
            told: (MonotonicNanos(0), 0),
        })
    }

    /// A record of `bytes` was read. An event that restores a block gets the interval that the block has come to count with.
    pub(super) fn take(&mut self, bytes: usize, event: &mut Event) {
        self.overload.take_record(bytes);
        let (pid, address) = match event {
            Event::Alloc(allocation) => {
                self.overload.take_block(allocation.heap, allocation.size_bytes);
                (allocation.pid, allocation.address)
            }
            Event::Restore(allocation) => {
                if !self.thinnings.is_empty() {
                    allocation.interval = self.thinnings.of_restored(allocation);
                }
                (allocation.pid, allocation.address)
            }
            Event::Free(free) => (free.pid, free.address),
            _ => return,
        };
        if let Some(pass) = &mut self.pass {
            pass.touch(pid, address);
        }
    }

    /// The largest interval that a heap has had, in bytes; 0 where that is what was asked for.
    pub(super) fn interval_bytes_max(&self, heap: HeapId) -> u64 {
        self.overload.largest(heap).map_or(0, |interval| u64::from(interval.bytes()))
    }

    /// How often the books were put right.
    pub(super) fn resyncs(&self) -> u64 {
        self.resyncs
    }

    fn is_time_to_look(&self, now: MonotonicNanos, is_filling: bool) -> bool {
        is_filling || Duration::from_nanos(now.0.saturating_sub(self.looked.0)) >= LOOK_PERIOD
    }

    fn count_live(&mut self, now: MonotonicNanos) -> u64 {
        let period = if self.counted.1 * 2 > self.live_max { COUNT_PERIOD_MIN } else { COUNT_PERIOD };
        if Duration::from_nanos(now.0.saturating_sub(self.counted.0.0)) >= period {
            self.counted = (now, self.reader.count());
        }
        self.counted.1
    }
}

impl Session {
    /// Looks at how much there is, now that the ring was read, and does something about it. `fill_bytes` is what was in the ring
    /// before.
    pub(super) fn relieve(&mut self, fill_bytes: u64) {
        let now = clock::now().monotonic;
        let is_filling = fill_bytes > u64::from(self.config.ring_bytes) / 2;
        if self.back_pressure.is_time_to_look(now, is_filling) {
            self.back_pressure.looked = now;
            if let Err(error) = self.adapt(now, fill_bytes) {
                debug!("{error}");
            }
        }
        if self.back_pressure.pass.as_ref().is_some_and(Pass::is_read) && self.take_records() {
            self.finish_pass();
        }
        if self.back_pressure.pass.is_none() && self.back_pressure.schedule.is_due(now) {
            self.begin_pass();
        }
    }

    /// Intervals that were raised for another reason are those to fall back to.
    fn follow_limits(&mut self) -> Result<(), LoadError> {
        for index in 0..self.back_pressure.overload.heaps() {
            let Ok(heap) = u8::try_from(index).map(HeapId) else { continue };
            let asked = self.probes.interval(&self.probes.discovery.plan.heaps()[index]);
            if let Some(interval) = self.back_pressure.overload.ask(heap, asked) {
                self.probes.kernel.set_rate(heap, SamplingRate::new(interval))?;
            }
        }
        Ok(())
    }

    fn adapt(&mut self, now: MonotonicNanos, fill_bytes: u64) -> Result<(), LoadError> {
        self.follow_limits()?;
        let heaps = self.probes.discovery.plan.heaps();
        for name in &heaps[self.back_pressure.overload.heaps().min(heaps.len())..] {
            self.back_pressure.overload.add_heap(self.probes.interval(name), name == MMAP);
        }
        let kernel = &self.probes.kernel;
        let ring_lost = Counters::read_one(kernel, Counter::RingFull)?;
        let live_lost = Counters::read_one(kernel, Counter::LiveSetFull)?;
        let live_blocks = self.back_pressure.count_live(now);
        self.back_pressure.schedule.lose(ring_lost + self.records_unreadable, now);
        self.tell_losses(now, ring_lost);
        let load = Load { time: now, fill_bytes, ring_lost, live_blocks, live_lost };
        let changes = self.back_pressure.overload.observe(&load);
        self.set_intervals(changes)?;
        if self.back_pressure.overload.wants_thinning(&load) && self.back_pressure.pass.is_none() {
            self.thin(&load)?;
        }
        Ok(())
    }

    fn tell_losses(&mut self, now: MonotonicNanos, ring_lost: u64) {
        let (told, before) = self.back_pressure.told;
        let since = |earlier: MonotonicNanos| Duration::from_nanos(now.0.saturating_sub(earlier.0));
        if ring_lost > before && since(told) >= TELL_PERIOD {
            info!("after {:.1?}: {ring_lost} records have found no room in the ring", since(self.started.monotonic));
            self.back_pressure.told = (now, ring_lost);
        }
    }

    /// Has fewer blocks in the live set, each of which stands for more.
    fn thin(&mut self, load: &Load) -> Result<(), LoadError> {
        let mut sizes = LiveSizes::new();
        for block in self.targets.running().flat_map(|target| target.ledger.live()) {
            sizes.entry((block.heap, block.interval)).or_default().add(block.size_bytes);
        }
        let (floors, changes) = self.back_pressure.overload.thin(load, &sizes);
        self.set_intervals(changes)?;
        if floors.is_empty() {
            return Ok(());
        }
        let now = clock::now().monotonic;
        for (heap, interval) in floors {
            info!("live blocks of heap {} are thinned to one every {} B", heap.0, interval.bytes());
            self.back_pressure.thinnings.thin(heap, now, interval);
        }
        self.begin_pass();
        // A block that was made where one was taken out, at just that moment, is missed by now.
        self.back_pressure.schedule.ask();
        Ok(())
    }

    fn set_intervals(&mut self, changes: Vec<Change>) -> Result<(), LoadError> {
        for change in changes {
            self.probes.kernel.set_rate(change.heap, SamplingRate::new(change.to))?;
            let told = self.tell(&change);
            if self.back_pressure.changes.is_empty() {
                warn!("{told}; it falls back when there is less (`--on-overload drop` keeps the interval)");
            } else {
                info!("{told}");
            }
            if self.back_pressure.changes.len() >= CHANGES_MAX {
                self.back_pressure.changes.remove(CHANGES_MAX / 2);
            }
            self.back_pressure.changes.push(change);
        }
        Ok(())
    }

    fn tell(&self, change: &Change) -> String {
        let heap = self.heap_name(change.heap);
        let [from, to] = [change.from, change.to].map(|interval| text::round_size(u64::from(interval.bytes())));
        let why = match change.reason {
            ChangeReason::RingFull => "more was sampled than the ring has room for",
            ChangeReason::RingFilling => "the ring was more than half full",
            ChangeReason::LiveSetFilling => "the live set was nearly full",
            ChangeReason::Quiet => "it has been quiet",
        };
        format!("{why}: heap {heap} is sampled every {to} instead of {from}")
    }

    fn heap_name(&self, heap: HeapId) -> &str {
        self.probes.discovery.plan.heaps().get(usize::from(heap.0)).map_or("?", String::as_str)
    }

    /// Changes of intervals, as reports tell them.
    pub(super) fn interval_changes(&self) -> Vec<IntervalChange> {
        let unix_ns =
            |time: MonotonicNanos| self.started.unix_ns.saturating_add(time.0.saturating_sub(self.started.monotonic.0));
        let told = |change: &Change| IntervalChange {
            unix_ns: unix_ns(change.time),
            heap: self.heap_name(change.heap).to_owned(),
            from_bytes: u64::from(change.from.bytes()),
            to_bytes: u64::from(change.to.bytes()),
            reason: change.reason,
        };
        self.back_pressure.changes.iter().map(told).collect()
    }
}
