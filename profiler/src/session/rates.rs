//! The only writer of the kernel's sampling rates. An interval is the configured one, doubled each time that a cost
//! limit was exceeded, and raised further by [`Overload`] while events arrive too fast.

use std::time::Duration;

use anyhow::{Context, Result};
use heapbpf_base::ids::HeapId;
use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::ingest::event::Event;
use heapbpf_ledger::model::IntervalChange;
use heapbpf_linux::clock;
use heapbpf_linux::memory::page_bytes;
use heapbpf_report::text;
use profiler_common::interval::Interval;
use profiler_common::sampling::SamplingRate;
use tracing::{info, warn};

use super::config::SessionConfig;
use super::overload::{LiveSizes, Load, Overload, RateChange};
use crate::allocator::hook_set::HookSet;
use crate::allocator::selection::{HeapSelection, MMAP, PAGES};
use crate::bpf::load::{Kernel, LoadError};
use crate::probe::plan::Plan;

pub(super) struct Rates {
    interval: Interval,
    selection: HeapSelection,
    functions: HookSet,
    heaps: Vec<Heap>,
    doublings: u32,
    overload: Overload,
    adapted: MonotonicNanos,
    changes: Vec<RateChange>,
}

struct Heap {
    name: String,
    configured: Interval,
}

impl Heap {
    /// Whether all calls are recorded, whatever the interval.
    fn is_fixed(&self) -> bool {
        self.name == MMAP
    }

    /// Configured interval after this many doublings, up to [`INTERVAL_BYTES_RAISED_MAX`]. A larger configured interval
    /// stays as it is.
    fn interval(&self, doublings: u32) -> Interval {
        if self.is_fixed() {
            return Interval::EXACT;
        }
        if self.configured.bytes() >= INTERVAL_BYTES_RAISED_MAX {
            return self.configured;
        }
        let bytes = u64::from(self.configured.bytes()) << doublings.min(u32::BITS);
        Interval::nearest(u32::try_from(bytes).unwrap_or(u32::MAX).min(INTERVAL_BYTES_RAISED_MAX))
    }
}

/// Minimum time between two reads of the kernel's counters, unless the ring buffer is filling.
const ADAPT_PERIOD: Duration = Duration::from_millis(5);

/// Maximum number of changes kept for reports: the first and the last. All changes are logged.
const CHANGES_MAX: usize = 1000;

/// Maximum to which intervals are raised: beyond it, so little is sampled that sampling costs nothing.
const INTERVAL_BYTES_RAISED_MAX: u32 = 16 << 20;

/// Interval of resident pages, unless the common one is larger or less than a page.
const PAGES_INTERVAL_BYTES: u32 = 128 << 10;

impl Rates {
    pub(super) fn new(config: &SessionConfig) -> Self {
        let now = clock::now().monotonic;
        let mut overload = Overload::new(now);
        overload.policy = config.on_overload;
        (overload.ring_bytes, overload.live_max) = (config.ring_bytes.into(), config.live_blocks_max.into());
        Self {
            interval: config.interval,
            selection: config.heaps.clone(),
            functions: config.functions.clone(),
            heaps: Vec::new(),
            doublings: 0,
            overload,
            adapted: now,
            changes: Vec::new(),
        }
    }

    /// Sets the rates of heaps that were added to the plan. Must precede attaching their hooks.
    pub(super) fn add_heaps(&mut self, plan: &Plan, kernel: &mut Kernel) -> Result<()> {
        for name in &plan.heaps()[self.heaps.len()..] {
            let id = HeapId(u8::try_from(self.heaps.len()).context("too many heaps")?);
            let heap = Heap { name: name.clone(), configured: self.configured(name) };
            let interval = heap.interval(self.doublings);
            kernel.set_rate(id, SamplingRate::new(interval))?;
            self.overload.add_heap(interval, heap.is_fixed());
            self.heaps.push(heap);
        }
        Ok(())
    }

    fn configured(&self, heap: &str) -> Interval {
        let own = self.selection.interval_bytes(heap).or_else(|| self.functions.interval_bytes(heap));
        let common = || if heap == PAGES { self.interval_of_pages() } else { self.interval };
        own.map_or_else(common, Interval::nearest)
    }

    /// The interval of pages, unless they have their own. Each sampled fault takes as long as a fault.
    fn interval_of_pages(&self) -> Interval {
        let is_below_page = u64::from(self.interval.bytes()) < page_bytes();
        if is_below_page { self.interval } else { self.interval.max(Interval::nearest(PAGES_INTERVAL_BYTES)) }
    }

    /// The interval that a heap is sampled at.
    pub(super) fn current(&self, heap: HeapId) -> Interval {
        self.overload.now(heap).unwrap_or(self.interval)
    }

    /// Interval of a heap in the absence of overload, in bytes.
    pub(super) fn interval_bytes(&self, heap: HeapId) -> u64 {
        let interval = self.heaps.get(usize::from(heap.0)).map_or(self.interval, |heap| heap.interval(self.doublings));
        u64::from(interval.bytes())
    }

    pub(super) fn interval_bytes_max(&self, heap: HeapId) -> u64 {
        let raised = self.overload.largest(heap).map_or(0, |interval| u64::from(interval.bytes()));
        raised.max(self.interval_bytes(heap))
    }

    /// Doubles the intervals of all heaps this many times. Returns false if none can grow.
    pub(super) fn double(&mut self, times: u32, kernel: &mut Kernel) -> Result<bool, LoadError> {
        let before = self.doublings;
        self.doublings += times;
        // Without heaps, those that are added later can be sampled less.
        let mut has_changed = self.heaps.is_empty() && self.interval.bytes() < INTERVAL_BYTES_RAISED_MAX;
        for (id, heap) in (0u8..).map(HeapId).zip(&self.heaps) {
            let requested = heap.interval(self.doublings);
            if requested != heap.interval(before) {
                has_changed = true;
                kernel.set_rate(id, SamplingRate::new(self.overload.request(id, requested)))?;
            }
        }
        Ok(has_changed)
    }

    pub(super) fn stop(&mut self, kernel: &mut Kernel) -> Result<(), LoadError> {
        (0u8..).zip(&self.heaps).try_for_each(|(id, _)| kernel.set_rate(HeapId(id), SamplingRate::STOPPED))
    }

    pub(super) fn count_record(&mut self, record_bytes: usize) {
        self.overload.count_record(record_bytes);
    }

    pub(super) fn observe(&mut self, event: &Event) {
        if let Event::Alloc(allocation) = event {
            self.overload.count_block(allocation.heap, allocation.size_bytes);
            if let Some(change) = self.overload.note_back_pressure(allocation) {
                self.note(change);
            }
        }
    }

    /// Whether to read the load and [`adapt`](Self::adapt) to it now; if so, starts the next period.
    pub(super) fn is_due(&mut self, now: MonotonicNanos, is_filling: bool) -> bool {
        let is_due = is_filling || now.since(self.adapted) >= ADAPT_PERIOD;
        if is_due {
            self.adapted = now;
        }
        is_due
    }

    pub(super) fn adapt(&mut self, load: &Load, kernel: &mut Kernel) -> Result<(), LoadError> {
        let changes = self.overload.observe(load);
        self.apply(changes, kernel)
    }

    pub(super) fn wants_thinning(&mut self, load: &Load) -> bool {
        self.overload.wants_thinning(load)
    }

    /// Raises intervals so that the live set does not fill up again. Returns the intervals to thin it to, by heap.
    pub(super) fn thin(
        &mut self,
        load: &Load,
        live: &LiveSizes,
        kernel: &mut Kernel,
    ) -> Result<Vec<(HeapId, Interval)>, LoadError> {
        let (floors, changes) = self.overload.thin(load, live);
        self.apply(changes, kernel)?;
        Ok(floors)
    }

    fn apply(&mut self, changes: Vec<RateChange>, kernel: &mut Kernel) -> Result<(), LoadError> {
        for change in changes {
            kernel.set_rate(change.heap, SamplingRate::new(change.to))?;
            self.note(change);
        }
        Ok(())
    }

    fn note(&mut self, change: RateChange) {
        let message = self.describe(&change);
        if self.changes.is_empty() {
            warn!("{message}; the interval falls back when the load drops (`--on-overload drop` keeps it)");
        } else {
            info!("{message}");
        }
        if self.changes.len() >= CHANGES_MAX {
            self.changes.remove(CHANGES_MAX / 2);
        }
        self.changes.push(change);
    }

    fn describe(&self, change: &RateChange) -> String {
        let heap = self.name(change.heap);
        let [from, to] = [change.from, change.to].map(|interval| text::round_size(u64::from(interval.bytes())));
        format!("heap {heap} is sampled every {to} instead of {from}: {}", change.reason.explanation())
    }

    fn name(&self, heap: HeapId) -> &str {
        self.heaps.get(usize::from(heap.0)).map_or("?", |heap| &heap.name)
    }

    pub(super) fn changes(&self, started: clock::Instant) -> Vec<IntervalChange> {
        let change = |change: &RateChange| IntervalChange {
            unix_ns: started.unix_ns.saturating_add(change.time.0.saturating_sub(started.monotonic.0)),
            heap: self.name(change.heap).to_owned(),
            from_bytes: u64::from(change.from.bytes()),
            to_bytes: u64::from(change.to.bytes()),
            reason: change.reason,
        };
        self.changes.iter().map(change).collect()
    }
}
