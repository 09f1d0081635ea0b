//! Compares the recorded pages of targets with those that are resident.

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::Pid;
use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::LiveAllocation;
use heapbpf_ledger::ingest::event::{Event, Free};
use heapbpf_linux::{bpf, clock};
use profiler_common::live::LiveBlock;
use profiler_common::record::FreeRecord;
use tracing::debug;

use super::Session;
use crate::session::residency::{HEAP, Scan};

impl Session {
    /// Compares pages of the targets that are due.
    pub(super) fn poll_pages(&mut self) {
        self.compare_pages(|session, pid| session.residency.is_due(pid));
    }

    /// Compares pages of all targets, for a report.
    pub(super) fn compare_all_pages(&mut self) {
        self.compare_pages(|_, _| true);
    }

    fn compare_pages(&mut self, is_wanted: impl Fn(&Self, Pid) -> bool) {
        // A pass of resync would take what is entered meanwhile for a dropped record.
        if !self.probes.kernel.records_pages() || self.resync.is_running() {
            return;
        }
        let recorded = self.processes.running().filter(|target| target.was_recorded() && !target.awaits_blocks);
        let pids: Vec<Pid> = recorded.map(|target| target.pid).filter(|pid| is_wanted(self, *pid)).collect();
        for pid in pids {
            let Some(target) = self.processes.get(pid) else { continue };
            match self.residency.scan(pid, &target.ledger, clock::now().monotonic) {
                Ok(scan) => self.apply_scan(pid, &scan),
                // A process that exits has no pages.
                Err(error) => debug!("process {pid}: its resident pages are not known: {error}"),
            }
        }
    }

    /// Corrects the ledger and the live set by a scan. Pages that were touched after it are left as they are.
    fn apply_scan(&mut self, pid: Pid, scan: &Scan) {
        // Faults before the scan have written their records, or are about to.
        bpf::wait_for_programs();
        self.catch_up();
        let Some(target) = self.processes.get(pid).filter(|target| !target.is_gone()) else { return };
        self.residency.set_hooked(pid, target.memory.hooked(), target.memory.sampled());
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
    fn remove_hooked(&mut self, pid: Pid) {
        let (own, others) = self.residency.decide(pid);
        others.into_iter().for_each(|page| self.processes.enter(Event::Alloc(page)));
        let mut addresses: Vec<TargetAddr> = own.into_iter().map(|page| page.address).collect();
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

    /// Removes pages that are not resident. One that has been touched again since the scan is live: it is put back.
    fn remove_pages(&mut self, pid: Pid, gone: &[LiveAllocation], time: MonotonicNanos) {
        let addresses = gone.iter().map(|block| block.address);
        if let Err(error) = self.probes.kernel.forget_blocks(pid, addresses) {
            return debug!("process {pid}: {error}");
        }
        bpf::wait_for_programs();
        self.catch_up();
        let Some(target) = self.processes.get(pid) else { return };
        let now = gone.iter().filter_map(|block| target.ledger.block(block.address));
        let (newer, old): (Vec<LiveAllocation>, Vec<LiveAllocation>) = now.partition(|block| block.time >= time);
        for block in &old {
            let age_us = FreeRecord::age_us(block.time.0 / 1000, time.0 / 1000);
            // The thread that gave the page back is not known: any of the process.
            let tid = heapbpf_base::ids::Tid(pid.0);
            self.processes.enter(Event::Free(Free { pid, tid, address: block.address, time, age_us }));
        }
        self.insert_pages(pid, &newer);
    }

    /// Enters pages that became resident with others of their range.
    fn enter_pages(&mut self, pid: Pid, found: &[LiveAllocation]) {
        if !self.insert_pages(pid, found) {
            return;
        }
        if let Some(target) = self.processes.get_mut(pid) {
            found.iter().for_each(|block| target.ledger.enter_earlier(block));
        }
        self.processes.record_corrections();
    }

    /// Inserts pages into the live set. Returns false if there is no space.
    fn insert_pages(&mut self, pid: Pid, pages: &[LiveAllocation]) -> bool {
        let block = |page: &LiveAllocation| {
            let LiveAllocation { address, size_bytes, interval, stack, heap, time } = *page;
            (address, LiveBlock::new(size_bytes, time.0, stack.0, interval, heap.0))
        };
        let blocks: Vec<_> = pages.iter().map(block).collect();
        match self.probes.kernel.insert_earlier_blocks(pid, &blocks) {
            Ok(Some(_)) => true,
            Ok(None) => {
                debug!("process {pid}: no space in the live set for {} pages", pages.len());
                false
            }
            Err(error) => {
                debug!("process {pid}: {error}");
                false
            }
        }
    }
}
