//! Enters the blocks of a walked heap into the ledger and into the kernel's live set, while the process runs, or while it is stopped.

use profiler_common::interval::Interval;
use profiler_common::live::LiveBlock;
use tracing::debug;

use super::earlier::{Earlier, Pending, Walked, aside};
use super::session::Session;
use crate::address::TargetAddr;
use crate::bpf::load::LoadError;
use crate::ids::Pid;
use crate::ingest::event::{Event, Free};
use crate::ledger::{LiveAllocation, inventory};
use crate::linux::{bpf, signals};
use crate::model::Inventory;
use crate::units::{Amounts, EstimatedBytes};

/// Blocks to insert between two reads of the ring buffer: first, and when the process has filled it once meanwhile.
const PART: usize = 64;
const PART_MAX: usize = 1024;
/// Number of times that the process may fill the ring buffer until no more blocks are inserted: it may do so as fast as the ring
/// buffer is read, and everything else waits meanwhile.
const FILLED_MAX: u64 = 4;
/// Number of blocks to insert while their process is stopped, at about 1 µs each.
const HELD_BLOCKS_MAX: usize = 1024;

impl Session {
    /// Inserts the blocks of a process that is stopped. Nothing has been freed since they were copied if all records have been read, and
    /// no program is in progress at a probe: threads stop on their way back from the kernel. `None` if that is not certain, or the
    /// blocks are many.
    pub(super) fn enter_held(&mut self, walked: &Walked) -> Option<Inventory> {
        let may_improve = walked.was_changing || walked.error.is_some();
        if may_improve || walked.chosen.len() > HELD_BLOCKS_MAX || self.resync.is_running() {
            return None;
        }
        let end = self.ring.written_bytes();
        self.catch_up();
        let pending = self.inventories.pending.as_ref()?;
        let (pid, taken) = (pending.pid, pending.taken);
        if self.ring.read_bytes() < end || !pending.freed.is_empty() || self.inventory_target().is_none() {
            return None;
        }
        let mut inventory = walked.inventory();
        let blocks = walked.chosen.iter().map(|block| block.allocation(walked.interval, taken));
        let blocks: Vec<LiveAllocation> = blocks.collect();
        match self.insert_live(pid, &blocks) {
            Ok(gap) => inventory.gaps.extend(gap),
            Err(error) => inventory.error = Some(error.to_string()),
        }
        self.note_intervals(walked);
        Some(inventory)
    }

    pub(super) fn enter_inventory(&mut self, walked: &Walked, mut inventory: Inventory) -> Inventory {
        // A pass would remove blocks that were inserted after it began.
        if self.resync.is_running() {
            self.complete_pass();
        }
        self.catch_up();
        let Some(Pending { pid, taken, dropped, .. }) = self.inventories.pending else { return inventory };
        if self.inventories.is_full() {
            let error = "too many blocks were freed while the heap was walked".to_owned();
            return Inventory { error: Some(error), ..inventory };
        }
        let allocation = |block: &Earlier| block.allocation(walked.interval, taken);
        let (gone, rest): (Vec<Earlier>, Vec<Earlier>) =
            walked.chosen.iter().partition(|block| self.inventories.is_freed(block.address));
        let gone: Vec<LiveAllocation> = gone.iter().map(allocation).collect();
        let rest: Vec<LiveAllocation> = rest.iter().map(allocation).collect();
        match self.enter_live(pid, &rest) {
            Ok(gap) => inventory.gaps.extend(gap),
            Err(error) => return Inventory { error: Some(error.to_string()), ..inventory },
        }
        self.enter_gone(&gone);
        self.note_intervals(walked);
        if self.inventories.is_full() {
            inventory.gaps.push("too many blocks were freed: frees may be missing".to_owned());
        }
        let dropped = self.ring_dropped().saturating_sub(dropped);
        if dropped > 0 {
            inventory
                .gaps
                .push(format!("{dropped} records were dropped while the heap was walked: frees may be missing"));
        }
        inventory
    }

    fn note_intervals(&mut self, walked: &Walked) {
        if let Some(target) = self.inventory_target()
            && walked.interval != Interval::EXACT
        {
            let heaps = walked.chosen.iter().map(|block| block.heap);
            target.inventory_intervals = heaps.map(|heap| (heap, walked.interval.bytes().into())).collect();
        }
    }

    /// Enters blocks into the kernel's live set and into the ledger. Returns what is missing.
    fn insert_live(&mut self, pid: Pid, blocks: &[LiveAllocation]) -> Result<Option<String>, LoadError> {
        let of_kernel: Vec<(TargetAddr, LiveBlock)> = blocks.iter().map(kernel_block).collect();
        let refused = self.probes.kernel.insert_earlier_blocks(pid, &of_kernel)?;
        let (Some(refused), Some(pending)) = (refused, &mut self.inventories.pending) else {
            return Ok(Some("the live set is full (see `--live-blocks`)".to_owned()));
        };
        pending.stale.refuse(refused);
        if let Some(target) = self.inventory_target() {
            blocks.iter().for_each(|block| target.ledger.enter_earlier(block));
        }
        Ok(None)
    }

    /// Enters live blocks, some at a time: a block that is freed between the check of its reported frees and the insertion
    /// is removed when that free is read. Returns what is missing.
    fn enter_live(&mut self, pid: Pid, blocks: &[LiveAllocation]) -> Result<Option<String>, LoadError> {
        let begun = self.ring.read_bytes();
        let mut gone: Vec<LiveAllocation> = Vec::new();
        let mut gap = None;
        let mut left = blocks;
        while !left.is_empty() {
            let filled = (self.ring.read_bytes() - begun) / u64::from(self.config.ring_bytes).max(1);
            let reason = if signals::is_interrupted_again() {
                Some("the user has interrupted again")
            } else {
                (filled >= FILLED_MAX)
                    .then_some("the process allocates faster than they can be entered (use a larger `--interval`)")
            };
            if let Some(reason) = reason {
                gap = Some(format!("{} of {} blocks are missing: {reason}", left.len(), blocks.len()));
                break;
            }
            let size = if filled == 0 { PART } else { PART_MAX };
            let (part, rest) = left.split_at(size.min(left.len()));
            left = rest;
            self.catch_up();
            self.forget_stale(pid);
            let (freed, part): (Vec<LiveAllocation>, Vec<LiveAllocation>) =
                part.iter().partition(|block| self.inventories.is_freed(block.address));
            gone.extend(freed);
            if self.inventory_target().is_none() {
                return Ok(None);
            }
            gap = self.insert_live(pid, &part)?;
            if gap.is_some() {
                break;
            }
        }
        // Programs that have not found a block before it was inserted report its free.
        self.complete_programs();
        self.forget_stale(pid);
        if self.restore_newer(pid) {
            self.complete_programs();
            self.forget_stale(pid);
        }
        self.observe_frees(pid, false);
        self.complete_programs();
        self.forget_stale(pid);
        self.enter_gone(&gone);
        Ok(gap)
    }

    /// Enters blocks that were freed during the walk, and their frees.
    ///
    /// The peak is at the start or at the end of the walk: these blocks must not be live with those that were allocated meanwhile,
    /// which may have replaced them. So only as many are live with these as there were more of them.
    fn enter_gone(&mut self, gone: &[LiveAllocation]) {
        let Some(taken) = self.inventories.pending.as_ref().map(|pending| pending.taken) else { return };
        let Some(target) = self.inventory_target() else { return };
        let bytes = |block: &LiveAllocation| Amounts::of(block.size_bytes, block.interval).bytes;
        let is_newer = |block: &LiveAllocation| block.time >= taken && !inventory::is_inventory(block.stack);
        let allocated = target.ledger.live().filter(is_newer);
        let newer = allocated.fold(EstimatedBytes::ZERO, |sum, block| sum + bytes(&block));
        let mut freed = EstimatedBytes::ZERO;
        let (replaced, others): (Vec<&LiveAllocation>, Vec<&LiveAllocation>) = gone.iter().partition(|block| {
            let is_replaced = freed < newer;
            freed += bytes(block);
            is_replaced
        });
        replaced.into_iter().for_each(|block| target.ledger.enter_freed(block));
        for block in &others {
            target.ledger.enter_earlier(&LiveAllocation { address: aside(block.address), ..**block });
        }
        self.processes.record_corrections();
        let Some(pending) = &self.inventories.pending else { return };
        for free in others.iter().filter_map(|block| pending.freed.get(&block.address)) {
            self.processes.enter(Event::Free(Free { address: aside(free.address), ..*free }));
        }
    }

    /// Reads the records of programs that run now. The ring buffer ends at the first record that a preempted program has reserved
    /// and not submitted.
    pub(super) fn complete_programs(&mut self) {
        bpf::wait_for_programs();
        self.catch_up();
    }

    /// Removes blocks from the live set that were freed before they were inserted.
    fn forget_stale(&mut self, pid: Pid) {
        let Some(pending) = &mut self.inventories.pending else { return };
        let stale = pending.stale.take();
        if let Err(error) = self.probes.kernel.forget_blocks(pid, stale) {
            debug!("process {pid}: {error}");
        }
    }

    /// Inserts blocks again that the process has allocated where stale ones were, and that were removed instead. Returns whether
    /// blocks were removed at all.
    fn restore_newer(&mut self, pid: Pid) -> bool {
        let Some(pending) = &self.inventories.pending else { return false };
        if !pending.stale.has_removed() {
            return false;
        }
        self.complete_programs();
        let Some(pending) = &mut self.inventories.pending else { return false };
        let removed = pending.stale.take_removed();
        let Some(target) = self.processes.get(pid).filter(|target| pending.is_of(target)) else { return false };
        let newer: Vec<LiveAllocation> = removed.iter().filter_map(|address| target.ledger.block(*address)).collect();
        pending.stale.restore(newer.iter().map(|block| block.address));
        let newer: Vec<(TargetAddr, LiveBlock)> = newer.iter().map(kernel_block).collect();
        if let Err(error) = self.probes.kernel.insert_earlier_blocks(pid, &newer) {
            debug!("process {pid}: {error}");
        }
        true
    }
}

fn kernel_block(block: &LiveAllocation) -> (TargetAddr, LiveBlock) {
    let LiveAllocation { address, size_bytes, interval, stack, heap, time } = *block;
    (address, LiveBlock::new(size_bytes, time.0, stack.0, interval, heap.0))
}
