//! Compares the recorded pages of targets with those that are resident.

use std::time::{Duration, Instant};

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::{Pid, Tid};
use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::LiveAllocation;
use heapbpf_ledger::ingest::event::{Event, Free};
use heapbpf_linux::clock;
use profiler_common::live::LiveBlock;
use profiler_common::record::FreeRecord;
use tracing::debug;

use super::Session;
use crate::session::residency::{FAULT_MAX, HEAP, Scan};
use crate::session::target::Target;

/// Time for the last comparisons of all targets together.
const LAST_MAX: Duration = Duration::from_secs(1);

impl Session {
    /// Compares pages of targets, the longest due first, within a budget of processor time.
    pub(super) fn poll_pages(&mut self) {
        if !self.can_compare_pages() {
            return;
        }
        let recorded = self.recorded_pids();
        let is_known = |pid: Pid| self.processes.get(pid).is_some() || self.lifecycle.awaits(pid);
        for (pid, pages) in self.residency.retain(is_known) {
            if let Err(error) = self.probes.kernel.forget_blocks(pid, pages) {
                debug!("process {pid}: {error}");
            }
        }
        let gone: Vec<Pid> = self.processes.pids_of_early_pages().into_iter().filter(|pid| !is_known(*pid)).collect();
        for (pid, page) in self.processes.take_early_pages(|pid| gone.contains(&pid)) {
            if let Err(error) = self.probes.kernel.forget_blocks(pid, [page]) {
                debug!("process {pid}: {error}");
            }
        }
        for pid in self.residency.due(&recorded) {
            if !self.residency.has_budget() {
                break;
            }
            self.compare_pages(pid);
        }
    }

    /// Compares pages of all targets, for a report.
    pub(super) fn compare_all_pages(&mut self) {
        if !self.can_compare_pages() {
            return;
        }
        let begun = Instant::now();
        for pid in self.recorded_pids() {
            while begun.elapsed() < LAST_MAX && !self.compare_pages(pid) {}
        }
    }

    /// Compares pages of all targets at the end of a recording. Those that are absent are looked at again, when the faults have ended that
    /// touched them.
    pub(super) fn complete_pages(&mut self) {
        self.compare_all_pages();
        if self.residency.has_absent() {
            std::thread::sleep(FAULT_MAX);
            self.compare_all_pages();
        }
    }

    /// Removes what is known by now to be the memory of hooked heaps.
    pub(super) fn remove_hooked_pages(&mut self) {
        if !self.can_compare_pages() {
            return;
        }
        for pid in self.recorded_pids() {
            self.remove_hooked(pid);
        }
    }

    /// Forgets the pages of a program that has ended. Of those that are deferred still, it is never known whether a hooked heap had them.
    pub(super) fn forget_pages_of(&mut self, target: &mut Target) {
        let pid = target.pid;
        self.processes.note_undecided(target, self.residency.undecided_bytes(pid));
        if let Err(error) = self.probes.kernel.forget_blocks(pid, self.residency.forget(pid)) {
            debug!("process {pid}: {error}");
        }
    }

    /// Notes the pages of which it is not known at the end of a recording whether a hooked heap has them.
    pub(super) fn note_undecided_pages(&mut self) {
        for pid in self.recorded_pids() {
            self.processes.note_undecided_of(pid, self.residency.undecided_bytes(pid));
        }
    }

    /// A pass of resync would take what is entered meanwhile for a dropped record.
    fn can_compare_pages(&self) -> bool {
        self.probes.kernel.records_pages() && !self.resync.is_running()
    }

    fn recorded_pids(&self) -> Vec<Pid> {
        let recorded = self.processes.running().filter(|target| target.was_recorded() && !target.awaits_blocks);
        recorded.map(|target| target.pid).collect()
    }

    /// Compares the next pages of a target. Returns whether they were the last ones.
    fn compare_pages(&mut self, pid: Pid) -> bool {
        let Some(target) = self.processes.get(pid) else { return true };
        let begun = Instant::now();
        if !self.residency.has_begun(pid) {
            // A forked child: what it has touched until now has records of its own.
            self.residency.begin(target, true);
        }
        let mut is_last = true;
        match self.residency.scan(pid, &target.ledger, clock::now().monotonic) {
            Ok(scan) => {
                is_last = scan.is_last;
                self.apply_scan(pid, &scan);
            }
            // A process that exits has no pages.
            Err(error) => debug!("process {pid}: its resident pages are not known: {error}"),
        }
        self.residency.spend(pid, begun.elapsed());
        is_last
    }

    /// Corrects the ledger and the live set by a scan. Pages that were touched after it are left as they are.
    fn apply_scan(&mut self, pid: Pid, scan: &Scan) {
        // A page that is resident has the record of its fault: the program is not interrupted.
        self.catch_up();
        let Some(target) = self.processes.get(pid).filter(|target| !target.is_gone()) else { return };
        let replaced: Vec<LiveAllocation> =
            self.residency.take_removed(pid).into_iter().filter_map(|address| target.ledger.block(address)).collect();
        self.insert_pages(pid, &replaced);
        self.remove_hooked(pid);
        let Some(target) = self.processes.get(pid) else { return };
        let gone = self.residency.gone(pid, scan, &target.ledger);
        if !gone.is_empty() {
            self.remove_pages(pid, &gone, scan.time);
        }
        let Some(target) = self.processes.get(pid) else { return };
        let interval = self.rates.current(HEAP);
        let found = self.residency.found(pid, scan, &target.ledger, interval, self.probes.kernel.stack_seed());
        self.enter_pages(pid, &found);
        let forgotten = self.residency.forget_empty(pid, scan, self.probes.kernel.stack_seed());
        if let Err(error) = self.probes.kernel.forget_stacks(&forgotten) {
            debug!("process {pid}: {error}");
        }
    }

    /// Removes pages in the memory of hooked heaps, as if they had never been sampled.
    pub(super) fn remove_hooked(&mut self, pid: Pid) {
        let mut addresses = self.residency.enter_decided(pid, &mut self.processes);
        if let Some(target) = self.processes.get_mut(pid) {
            let hooked = self.residency.hooked_pages(pid, &target.ledger);
            hooked.iter().for_each(|block| target.ledger.thin(block, None));
            addresses.extend(hooked.iter().map(|block| block.address));
        }
        self.processes.record_corrections();
        if let Err(error) = self.probes.kernel.forget_blocks(pid, addresses) {
            debug!("process {pid}: {error}");
        }
    }

    /// Removes pages that are not resident. One that has been touched again since the scan is live: it is put back, now or with the next
    /// scan, when its record has been read for certain.
    fn remove_pages(&mut self, pid: Pid, gone: &[LiveAllocation], time: MonotonicNanos) {
        let addresses = gone.iter().map(|block| block.address);
        if let Err(error) = self.probes.kernel.forget_blocks(pid, addresses) {
            return debug!("process {pid}: {error}");
        }
        self.residency.note_removed(pid, gone);
        self.catch_up();
        let Some(target) = self.processes.get(pid) else { return };
        let now = gone.iter().filter_map(|gone| Some((*gone, target.ledger.block(gone.address)?)));
        let (newer, old): (Vec<_>, Vec<_>) =
            now.map(|(gone, now)| (gone.time, now)).partition(|(gone, now)| now.time != *gone);
        let [newer, old] = [newer, old].map(|all| all.into_iter().map(|(_, now)| now).collect::<Vec<LiveAllocation>>());
        for block in &old {
            let age_us = FreeRecord::age_us(block.time.0 / 1000, time.0 / 1000);
            // The thread that gave the page back is not known: any of the process.
            let tid = Tid(pid.0);
            self.processes.enter(Event::Free(Free { pid, tid, address: block.address, time, age_us }));
        }
        self.insert_pages(pid, &newer);
    }

    /// Enters pages that became resident with others of their range.
    fn enter_pages(&mut self, pid: Pid, found: &[LiveAllocation]) {
        let Some(left_out) = self.insert_pages(pid, found) else { return };
        if let Some(target) = self.processes.get_mut(pid) {
            let entered = found.iter().filter(|block| !left_out.contains(&block.address));
            entered.for_each(|block| target.ledger.enter_earlier(block));
        }
        self.processes.record_corrections();
    }

    /// Inserts pages into the live set. Returns those that it has already; `None` without space.
    fn insert_pages(&mut self, pid: Pid, pages: &[LiveAllocation]) -> Option<Vec<TargetAddr>> {
        let block = |page: &LiveAllocation| {
            let LiveAllocation { address, size_bytes, interval, stack, heap, time } = *page;
            (address, LiveBlock::new(size_bytes, time.0, stack.0, interval, heap.0))
        };
        let blocks: Vec<_> = pages.iter().map(block).collect();
        let inserted = self.probes.kernel.insert_earlier_blocks(pid, &blocks);
        let inserted = inserted.inspect_err(|error| debug!("process {pid}: {error}")).ok()?;
        if inserted.is_none() {
            debug!("process {pid}: no space in the live set for {} pages", pages.len());
        }
        inserted
    }
}
