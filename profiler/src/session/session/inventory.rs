//! Inventories: the blocks that a process had before the recording enter its ledger and the kernel's live set.
//!
//! ```text
//! open the filter ─▶ stop ─▶ copy ─▶ resume ─▶ walk and sample, on a thread ─▶ insert ─▶ close the filter
//! ```
//!
//! A small process that waits is resumed only after the insertion. The following applies to the others, and takes two
//! grace periods of the kernel, of 10 to 20 ms each.
//!
//! The walk takes long, and the process frees blocks meanwhile. So from before the stop until the blocks are in the
//! live set, the kernel side reports frees of blocks that are not in it. A block whose free was reported, and whose
//! thread was stopped before `free` had worked, is left out. Blocks that were sampled before the stop are part of the
//! walked heap, and are removed, except blocks that are as large as the interval: all of those are known.

use std::time::{Duration, Instant};

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::{HeapId, Pid};
use heapbpf_base::units::{Amounts, EstimatedBytes};
use heapbpf_ledger::ingest::event::{Event, Free};
use heapbpf_ledger::model::Inventory;
use heapbpf_ledger::{LiveAllocation, inventory};
use heapbpf_linux::proc::stat;
use heapbpf_linux::proc::stat::Stat;
use heapbpf_linux::{bpf, clock, signals};
use heapbpf_report::text;
use profiler_common::counter::Counter;
use profiler_common::interval::Interval;
use profiler_common::live::LiveBlock;
use rustc_hash::FxHashSet;
use tracing::{debug, info};

use super::Session;
use crate::allocator::selection::{GO, MMAP, PAGES};
use crate::bpf::counters::Counters;
use crate::bpf::load::LoadError;
use crate::collect::{CollectError, Collected, Held, Method, collect_held};
use crate::session::earlier::{Earlier, Pending, Walked, Walker, aside, walk_heaps};
use crate::session::memory::MemoryScene;
use crate::session::target::Target;
use crate::{keeper, walk};

/// Maximum number of blocks to enter of a process, sampled if there are more: the error of live bytes after half of
/// them were freed is 0.4 %.
const BLOCKS_MAX: usize = 1 << 16;
/// Share of the live set that an inventory may take.
const LIVE_SHARE: usize = 4;
/// Maximum number of stops, if a heap was being changed each time, and maximum time for all of them.
const TRIES_MAX: u32 = 8;
const PAUSES_MAX: Duration = Duration::from_secs(1);
const WAIT: Duration = Duration::from_micros(500);
/// Maximum resident memory of a waiting process that stays stopped until its blocks are inserted, and maximum time of
/// its walk, which takes 1 to 4 ms for that much memory.
const HELD_RESIDENT_BYTES: u64 = 4 << 20;
const HELD_WALK_MAX: Duration = Duration::from_millis(10);

/// Number of blocks to insert between two reads of the ring buffer: at first, and when the process has filled it once
/// meanwhile.
const PART: usize = 64;
const PART_MAX: usize = 1024;
/// Number of times that the process may fill the ring buffer until no more blocks are inserted: the process may fill it
/// as fast as it is read, and everything else waits meanwhile.
const FILLED_MAX: u64 = 4;
/// Number of blocks to insert while their process is stopped, at about 1 µs each.
const HELD_BLOCKS_MAX: usize = 1024;

impl Session {
    /// Begins to take the inventory of a process that ran before the recording, if one is wanted.
    pub(super) fn begin_inventory(&mut self, pid: Pid) {
        if self.config.inventory_bytes_max == 0 || self.config.selection.all {
            return;
        }
        self.complete_inventory(false);
        let heaps = self.hooked_heaps(pid);
        if heaps.is_empty() {
            return;
        }
        let Some(target) = self.processes.get_mut(pid).filter(|target| target.was_recorded() && !target.is_gone())
        else {
            return;
        };
        target.awaits_inventory = true;
        let (opened, now) = (target.opened, clock::now().monotonic);
        let has_all_blocks = self.has_all_blocks();
        let scene = MemoryScene { plan: &self.probes.discovery.plan, residency: &self.residency, has_all_blocks };
        self.memory.begin(&mut self.processes, pid, scene, now);
        self.inventories.pending = Some(Pending::new(pid, opened, now));
        if !heaps.iter().any(|(name, _)| walk::is_walkable(name)) {
            return self.end_inventory(failed(walk::unsupported()));
        }
        let resident_bytes = Stat::of_process(pid).map_or(0, |stat| stat.resident_bytes);
        // The copy counts as heapbpf's memory.
        let limit = self.config.limits.memory_bytes_max.map_or(u64::MAX, |limit| limit / 2);
        let max = self.config.inventory_bytes_max.min(limit);
        if resident_bytes > max {
            let [resident, max] = [resident_bytes, max].map(text::round_size);
            return self.end_inventory(failed(format!(
                "its resident memory is {resident}, and copying more than {max} would stop it for long \
                 (`--inventory-max`, `--max-memory`)"
            )));
        }
        if let Some(reason) = too_long(pid, resident_bytes, self.config.inventory_stop_max) {
            return self.end_inventory(failed(reason));
        }
        self.observe_frees(pid, true);
        self.try_inventory();
    }

    /// Stops the process, copies its memory, and starts the walk.
    fn try_inventory(&mut self) {
        let Some(pid) = self.inventories.pending.as_ref().map(|pending| pending.pid) else { return };
        let collected = match self.collect_heap(pid, Method::Read) {
            Err(CollectError::TooLarge { .. }) => self.collect_heap(pid, Method::Fork),
            collected => collected,
        };
        let (collected, held) = match collected {
            Ok(collected) => collected,
            Err(error @ CollectError::StoppedForLong(_, limit)) => {
                return self.end_inventory(failed(format!("{error}; {}", remedy(limit * 4))));
            }
            Err(error) => return self.end_inventory(failed(error.to_string())),
        };
        let may_last = self.config.inventory_stop_max >= HELD_WALK_MAX * 2;
        if may_last && is_idle(&collected) {
            return self.begin_walk(pid, collected, Some(held));
        }
        match held.release() {
            Ok(pause) => {
                self.note_pause(pause);
                self.begin_walk(pid, collected, None);
            }
            Err(error) => self.end_inventory(failed(error.to_string())),
        }
    }

    /// Starts the walk; if the process is still stopped, also waits for it, and enters the blocks.
    fn begin_walk(&mut self, pid: Pid, collected: Collected, held: Option<Held>) {
        let heaps = self.hooked_heaps(pid);
        let mut known: FxHashSet<TargetAddr> = FxHashSet::default();
        if let Some(target) = self.processes.get(pid) {
            known.extend(target.ledger.live().map(|block| block.address));
        }
        // Where allocations are sampled, a block may have been allocated at the address since.
        let is_exact = heaps.iter().all(|(_, heap)| self.rates.current(*heap) == Interval::EXACT);
        if let Some(pending) = self.inventories.pending.as_ref().filter(|_| is_exact) {
            known.extend(pending.last_frees.addresses());
        }
        let blocks_max = self.inventory_blocks_max(&heaps);
        let work = move || walk_heaps(&collected, &heaps, &known, blocks_max);
        let walker = Walker::start(work);
        let Some(pending) = &mut self.inventories.pending else { return };
        pending.tries += 1;
        match walker {
            Ok(walker) => pending.walker = Some(walker),
            Err(error) => return self.end_inventory(failed(format!("cannot start a thread: {error}"))),
        }
        if let Some(held) = held {
            self.await_walk(held);
        }
    }

    /// Waits for the walk of a process that is stopped, unless that takes long, enters its blocks, and resumes it.
    fn await_walk(&mut self, held: Held) {
        let begun = Instant::now();
        while !self.inventories.is_walked()
            && let Some(rest) = HELD_WALK_MAX.checked_sub(begun.elapsed()).filter(|rest| !rest.is_zero())
        {
            std::thread::park_timeout(rest);
        }
        let Some(pending) = &mut self.inventories.pending else { return };
        let walked = pending.walker.take_if(|walker| walker.has_ended()).map(Walker::join);
        let entered = walked.as_ref().and_then(|walked| self.enter_held(walked.as_ref().ok()?));
        let released = held.release();
        self.note_pause(released.as_ref().copied().unwrap_or_default());
        match (entered, walked, released) {
            (Some(inventory), ..) => self.end_inventory(inventory),
            (None, _, Err(error)) => self.end_inventory(failed(error.to_string())),
            (None, Some(walked), Ok(_)) => self.finish_walk(walked, true),
            (None, None, Ok(_)) => {}
        }
    }

    fn note_pause(&mut self, pause: Duration) {
        if let Some(pending) = &mut self.inventories.pending {
            pending.pause += pause;
        }
    }

    fn inventory_blocks_max(&self, heaps: &[(String, HeapId)]) -> usize {
        let share = self.config.live_blocks_max as usize / LIVE_SHARE;
        let is_exact = heaps.iter().any(|(_, heap)| self.rates.current(*heap) == Interval::EXACT);
        if is_exact { share } else { share.min(BLOCKS_MAX) }
    }

    fn collect_heap(&mut self, pid: Pid, method: Method) -> Result<(Collected, Held), CollectError> {
        let keeper = self.probes.keeper().clone();
        let limit = Some(self.config.inventory_stop_max);
        collect_held(pid, method, || keeper::stop_within(&keeper, pid, limit), &mut |_| {
            self.catch_up();
            self.remove_sampled(pid);
            let dropped = self.ring_dropped();
            if let Some(pending) = &mut self.inventories.pending {
                pending.freed.clear();
                (pending.taken, pending.dropped) = (clock::now().monotonic, dropped);
            }
        })
    }

    /// Removes the sampled blocks that stand for others: the inventory will contain all of them.
    fn remove_sampled(&mut self, pid: Pid) {
        let heaps = self.hooked_heaps(pid);
        let is_walked =
            |block: &LiveAllocation| heaps.iter().any(|(name, id)| *id == block.heap && walk::is_walkable(name));
        let stands_for_others = |block: &LiveAllocation| block.size_bytes < u64::from(block.interval.bytes());
        let Some(target) = self.processes.get_mut(pid) else { return };
        let live = target.ledger.live();
        let sampled: Vec<LiveAllocation> = live.filter(|block| stands_for_others(block) && is_walked(block)).collect();
        sampled.iter().for_each(|block| target.ledger.thin(block, None));
        let addresses = sampled.iter().map(|block| block.address);
        if let Err(error) = self.probes.kernel.forget_blocks(pid, addresses) {
            debug!("process {pid}: {error}");
        }
    }

    /// Names of the process's hooked heaps.
    fn hooked_heaps(&self, pid: Pid) -> Vec<(String, HeapId)> {
        let plan = &self.probes.discovery.plan;
        let Some(target) = self.processes.get(pid) else { return Vec::new() };
        let ids = target.hooks.heap_ids(&[], plan);
        let heaps = ids.into_iter().map(|id| (plan.heaps()[usize::from(id.0)].clone(), id));
        heaps.filter(|(name, _)| ![MMAP, PAGES, GO].contains(&name.as_str())).collect()
    }

    /// Enters the blocks of a finished walk, or tries again if that may help.
    pub(super) fn finish_inventory(&mut self, may_try_again: bool) {
        let Some(pending) = &mut self.inventories.pending else { return };
        let Some(walker) = pending.walker.take() else { return };
        self.finish_walk(walker.join(), may_try_again);
    }

    fn finish_walk(&mut self, walked: std::thread::Result<Walked>, may_try_again: bool) {
        let Some(pending) = &self.inventories.pending else { return };
        let Ok(walked) = walked else {
            return self.end_inventory(failed("internal error: the walk panicked; please report it".to_owned()));
        };
        let pause = pending.pause;
        // All stops together: the next one is expected to be as long as the others.
        let is_short = pause + pause / pending.tries.max(1) <= PAUSES_MAX.min(self.config.inventory_stop_max);
        let may_try = may_try_again && pending.tries < TRIES_MAX && is_short;
        if walked.was_changing && may_try && self.inventory_target().is_some() {
            return self.try_inventory();
        }
        let inventory = walked.inventory();
        if inventory.error.is_some() {
            return self.end_inventory(inventory);
        }
        let inventory = self.enter_inventory(&walked, inventory);
        self.end_inventory(inventory);
    }

    pub(super) fn ring_dropped(&self) -> u64 {
        Counters::read_one(&self.probes.kernel, Counter::RingFull).unwrap_or_default()
    }

    /// The target of the pending inventory, unless it has exited or executed another program.
    pub(super) fn inventory_target(&mut self) -> Option<&mut Target> {
        let pending = self.inventories.pending.as_ref()?;
        self.processes.get_mut(pending.pid).filter(|target| pending.is_of(target))
    }

    fn end_inventory(&mut self, inventory: Inventory) {
        let is_there = self.inventory_target().is_some();
        let Some(Pending { pid, pause, .. }) = self.inventories.pending.take() else { return };
        let pause_ns = if inventory.error.is_none() { nanoseconds(pause) } else { 0 };
        let inventory = Inventory { pause_ns, ..inventory };
        self.observe_frees(pid, false);
        if !is_there {
            return;
        }
        match &inventory.error {
            Some(error) => info!("process {pid}: no inventory of earlier blocks: {error}"),
            None => info!("process {pid}: {} blocks are older than the recording", inventory.blocks),
        }
        self.processes.set_inventory(pid, inventory);
        let has_all_blocks = self.has_all_blocks();
        let scene = MemoryScene { plan: &self.probes.discovery.plan, residency: &self.residency, has_all_blocks };
        self.memory.poll(&mut self.processes, scene, clock::now().monotonic);
    }

    /// Enters the inventory of a process that has exited: the copy of its memory is complete.
    pub(super) fn complete_inventory_of(&mut self, pid: Pid) {
        if self.inventory_target().is_some_and(|target| target.pid == pid) {
            self.complete_inventory(true);
        }
    }

    /// Waits for the walk and enters its blocks, unless the recording ends and the user interrupts again.
    pub(super) fn complete_inventory(&mut self, is_end: bool) {
        while self.inventories.pending.is_some() {
            if self.inventories.is_walked() {
                self.finish_inventory(!is_end);
            } else if is_end && signals::is_interrupted_again() {
                self.end_inventory(failed("interrupted before the heap was walked".to_owned()));
            } else if self.take_records() {
                std::thread::sleep(WAIT);
            }
        }
    }

    pub(super) fn observe_frees(&mut self, pid: Pid, is_on: bool) {
        if let Err(error) = self.probes.kernel.report_frees(pid, is_on) {
            debug!("process {pid}: {error}");
        }
        if is_on {
            self.resync.set_filter_open(true);
        }
    }

    /// Closes the filter in front of the live set unless an inventory needs it. Closing takes as long as entering many
    /// small processes, so it is done after all of them.
    pub(super) fn close_unused_filter(&self) {
        if self.inventories.pending.is_none() {
            self.resync.set_filter_open(false);
        }
    }

    /// Inserts the blocks of a process that is stopped. Nothing has been freed since they were copied if all records
    /// have been read, and no BPF program is in progress at a probe: threads stop on their way back from the kernel.
    /// Returns `None` if that is not certain, or the blocks are many.
    pub(super) fn enter_held(&mut self, walked: &Walked) -> Option<Inventory> {
        let may_improve = walked.was_changing || walked.error.is_some();
        if may_improve || walked.chosen.len() > HELD_BLOCKS_MAX || self.resync.is_running() {
            return None;
        }
        let end = self.intake.ring().written_bytes();
        self.catch_up();
        let pending = self.inventories.pending.as_ref()?;
        let (pid, taken) = (pending.pid, pending.taken);
        if self.intake.ring().read_bytes() < end || !pending.freed.is_empty() || self.inventory_target().is_none() {
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
        let begun = self.intake.ring().read_bytes();
        let mut gone: Vec<LiveAllocation> = Vec::new();
        let mut gap = None;
        let mut left = blocks;
        while !left.is_empty() {
            let filled = (self.intake.ring().read_bytes() - begun) / u64::from(self.config.ring_bytes).max(1);
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
        // BPF programs that have not found a block before it was inserted report its free.
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
    /// The peak is at the start or at the end of the walk: these blocks must not be live together with blocks that were
    /// allocated meanwhile, which may have replaced them. So up to the bytes that were allocated meanwhile, they are
    /// entered as freed; only the others are live first.
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

    /// Reads the records of BPF programs that run now. The ring buffer ends at the first record that a preempted BPF
    /// program has reserved and not submitted.
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
        let newer: Vec<(TargetAddr, LiveBlock)> = newer.iter().map(kernel_block).collect();
        match self.probes.kernel.insert_earlier_blocks(pid, &newer) {
            Ok(Some(refused)) => {
                let addresses = newer.iter().map(|(address, _)| *address);
                pending.stale.restore(addresses.filter(|address| !refused.contains(address)));
            }
            Ok(None) => debug!("process {pid}: no space in the live set for {} newer blocks", newer.len()),
            Err(error) => debug!("process {pid}: {error}"),
        }
        true
    }
}

/// Predicted time for which a process with so many threads and so much memory is stopped. Measured: threads are
/// stopped, their registers read and transferred, and the memory copied.
fn predicted_stop(threads: usize, bytes: u64) -> Duration {
    let threads = u64::try_from(threads).unwrap_or(u64::MAX);
    Duration::from_nanos(threads.saturating_mul(350_000).saturating_add(bytes / 5))
}

/// Reason why a process would be stopped for too long; `None` if it would not be.
fn too_long(pid: Pid, resident_bytes: u64, limit: Duration) -> Option<String> {
    let threads = stat::threads(pid).map_or(0, |threads| threads.len());
    let predicted = predicted_stop(threads, resident_bytes);
    (predicted > limit).then(|| {
        let (resident, predicted_ms) = (text::round_size(resident_bytes), predicted.as_millis());
        format!(
            "stopping {threads} threads and copying {resident} would take about {predicted_ms} ms, and the limit is \
             {limit:?}; {}",
            remedy(predicted * 2)
        )
    })
}

fn remedy(enough: Duration) -> String {
    format!("to include them, run again with `--inventory-stop-max {}s`", enough.as_secs() + 1)
}

/// Whether a process may stay stopped until its blocks are entered: it is small, and waits.
fn is_idle(collected: &Collected) -> bool {
    let is_small = || Stat::of_process(collected.pid).is_ok_and(|stat| stat.resident_bytes <= HELD_RESIDENT_BYTES);
    collected.threads.iter().all(|thread| thread.in_syscall) && is_small()
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn failed(reason: String) -> Inventory {
    Inventory { error: Some(reason), ..Inventory::default() }
}

fn kernel_block(block: &LiveAllocation) -> (TargetAddr, LiveBlock) {
    let LiveAllocation { address, size_bytes, interval, stack, heap, time } = *block;
    (address, LiveBlock::new(size_bytes, time.0, stack.0, interval, heap.0))
}
