//! The way of records from the ring buffer to the parts of a session that own what they change.

use std::time::Duration;

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::Pid;
use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::ingest::decode;
use heapbpf_ledger::ingest::event::Event;
use heapbpf_ledger::ingest::field::DecodeError;
use heapbpf_ledger::ingest::record::{Mapped, RawCode, Record};
use profiler_common::pages::PAGE_FLAG;
use tracing::{debug, info};

use super::config::SessionConfig;
use super::earlier::Inventories;
use super::go_profile::GoProfiles;
use super::lifecycle::Lifecycle;
use super::object_counts::ObjectCounts;
use super::probes::Probes;
use super::process_table::ProcessTable;
use super::rates::Rates;
use super::raw_stacks::{RawSample, RawStacks};
use super::residency::Residency;
use super::resync::Resync;
use crate::bpf::ring::Ring;

/// Maximum number of records per batch, so that timers and signals are handled in between.
const BATCH_MAX: usize = 65_536;
/// Minimum time between two lines of the log about dropped records.
const DROPS_LOG_PERIOD: Duration = Duration::from_millis(200);

pub(super) struct Intake {
    ring: Ring,
    raw_stacks: RawStacks,
    /// Number of records that could not be decoded.
    unreadable: u64,
    /// When dropped records were last logged, and their number then.
    drops_logged: (MonotonicNanos, u64),
}

/// The parts of a session that records are passed to.
pub(super) struct Owners<'session> {
    pub(super) config: &'session SessionConfig,
    pub(super) probes: &'session mut Probes,
    pub(super) processes: &'session mut ProcessTable,
    pub(super) lifecycle: &'session mut Lifecycle,
    pub(super) rates: &'session mut Rates,
    pub(super) resync: &'session mut Resync,
    pub(super) inventories: &'session mut Inventories,
    pub(super) residency: &'session mut Residency,
    pub(super) go: &'session mut GoProfiles,
    pub(super) objects: &'session mut ObjectCounts,
}

impl Intake {
    pub(super) fn new(ring: Ring) -> Self {
        Self { ring, raw_stacks: RawStacks::default(), unreadable: 0, drops_logged: (MonotonicNanos(0), 0) }
    }

    pub(super) fn ring(&self) -> &Ring {
        &self.ring
    }

    pub(super) fn unreadable(&self) -> u64 {
        self.unreadable
    }

    pub(super) fn take_raw_stacks(&mut self) -> Vec<RawSample> {
        self.raw_stacks.take()
    }

    /// Passes a batch of records to their owners, oldest first. Returns whether it emptied the ring buffer.
    pub(super) fn take(&mut self, owners: &mut Owners<'_>) -> bool {
        let Self { ring, raw_stacks, unreadable, .. } = self;
        let mut refuse = |error: DecodeError| {
            *unreadable += 1;
            debug!("{error}");
        };
        let count = ring.drain(BATCH_MAX, |bytes| {
            let event = match decode(bytes) {
                Ok(Record::Event(event)) => owners.inventories.observe(event, owners.processes),
                Ok(Record::UnknownFree(free)) => {
                    owners.inventories.observe_unknown(free, owners.processes).map(Event::Free)
                }
                Ok(Record::Mapped(mapped)) => return owners.enter_mapped(&mapped),
                Ok(Record::Code(code)) => return owners.enter_code(&code).unwrap_or_else(&mut refuse),
                Ok(record) => return owners.enter(record, bytes.len(), raw_stacks),
                Err(error) => return refuse(error),
            };
            if let Some(event) = event {
                owners.enter_event(event, bytes.len(), raw_stacks);
            }
        });
        count < BATCH_MAX
    }

    /// Logs that records were dropped, if more were than at the last time.
    pub(super) fn log_drops(&mut self, now: MonotonicNanos, started: MonotonicNanos, dropped: u64) {
        let (logged, before) = self.drops_logged;
        if dropped > before && now.since(logged) >= DROPS_LOG_PERIOD {
            let elapsed = now.since(started);
            info!("after {elapsed:.1?}: ring buffer full: {dropped} records dropped");
            self.drops_logged = (now, dropped);
        }
    }
}

impl Owners<'_> {
    fn enter_event(&mut self, mut event: Event, record_bytes: usize, raw_stacks: &mut RawStacks) {
        self.rates.count_record(record_bytes);
        self.resync.observe(&mut event, self.processes);
        if self.is_unwanted(&event) {
            return;
        }
        self.rates.observe(&event);
        self.probes.copies.observe(&event);
        raw_stacks.observe(&event, self.config.raw_stacks_max);
        if let Event::Stack(pid, _, stack) = &mut event {
            self.processes.place(*pid, stack);
        }
        self.processes.enter(event);
    }

    /// Forgets pages of a process that had this pid, or of its program before an exec.
    fn forget_pages(&mut self, pid: Pid) {
        let early = self.processes.take_early_pages(|of| of == pid);
        let mut pages: Vec<TargetAddr> = early.into_iter().map(|(_, page)| page).collect();
        pages.extend(self.residency.enter_decided(pid, self.processes));
        self.processes.note_undecided_of(pid, self.residency.undecided_bytes(pid));
        pages.extend(self.residency.forget(pid));
        if let Some(target) = self.processes.get(pid) {
            let live = target.ledger.live().map(|block| block.address);
            pages.extend(live.filter(|address| address.0 & PAGE_FLAG != 0));
        }
        if let Err(error) = self.probes.kernel.forget_blocks(pid, pages) {
            debug!("process {pid}: {error}");
        }
    }

    /// Whether the event is of a page that is in the memory of a hooked heap, or may be: its blocks are recorded.
    fn is_unwanted(&mut self, event: &Event) -> bool {
        match event {
            Event::Alloc(page) if page.address.0 & PAGE_FLAG != 0 => self.residency.defer(page),
            Event::Free(page) if page.address.0 & PAGE_FLAG != 0 => {
                self.residency.drop_deferred(page.pid, page.address);
                let target = self.processes.get(page.pid);
                target.is_some_and(|target| !target.ledger.is_live(page.address))
            }
            _ => false,
        }
    }

    /// Enters what a target has mapped. What was there before ends with the stacks before.
    fn enter_mapped(&mut self, mapped: &Mapped) {
        let pid = mapped.pid;
        if self.probes.copies.has_address(pid, mapped.start..mapped.end) {
            self.probes.continue_stacks(pid, true, self.processes);
        }
        let is_known = self.probes.unwinding.correct(mapped);
        if let Some(target) = self.processes.get_mut(pid) {
            target.mappings.map(mapped);
            if !is_known {
                target.mappings.note_changes();
            }
        }
    }

    fn enter_code(&mut self, code: &RawCode) -> Result<(), DecodeError> {
        self.probes.unwinding.interpreters.enter(code, &self.probes.discovery.modules)
    }

    /// Enters what changes no ledger, except code.
    fn enter(&mut self, record: Record, record_bytes: usize, raw_stacks: &mut RawStacks) {
        match record {
            Record::Event(_) | Record::UnknownFree(_) | Record::Code(_) | Record::Mapped(_) => {}
            Record::Fork(fork) => {
                self.forget_pages(fork.child);
                let child = self.lifecycle.forked(fork, self.processes, self.config);
                if child.is_some() {
                    self.resync.note_inheritance();
                }
                self.probes.copy_stubs(child);
            }
            Record::Exec(exec) => {
                if self.processes.get(exec.pid).is_some() {
                    self.probes.begin_stacks(exec.pid, self.processes);
                }
                self.inventories.give_up(exec.pid);
                self.go.forget(exec.pid);
                self.objects.forget(exec.pid);
                self.forget_pages(exec.pid);
                self.lifecycle.executed(exec, self.processes, self.config.grace());
            }
            Record::Range(pid, touch) => {
                self.rates.count_record(record_bytes);
                self.residency.touch(pid, touch);
            }
            Record::RawStack(pid, id, raw) => {
                self.rates.count_record(record_bytes);
                raw_stacks.add(pid, id, raw, self.config.raw_stacks_max);
            }
            Record::StackPage(pid, id, page) => {
                self.rates.count_record(record_bytes);
                self.probes.copies.add(pid, id, &page);
            }
        }
    }
}
