//! Inventories: blocks allocated before recording started are found by a walk and sampled if they are many; frees are
//! noted until the blocks are entered.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::{HeapId, Pid, Tid};
use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::ingest::event::{Event, Free};
use heapbpf_ledger::model::Inventory;
use heapbpf_ledger::{LiveAllocation, inventory};
use heapbpf_linux::memory;
use profiler_common::interval::Interval;
use profiler_common::record::FreeRecord;
use profiler_common::sampling::estimated_count;
use rustc_hash::{FxHashMap, FxHashSet};

use super::overload::random_seed;
use super::process_table::ProcessTable;
use super::stale::StaleBlocks;
use super::target::Target;
use crate::collect::{CollectError, Collected};
use crate::walk::{self, Absence, Scene, Walk, glibc, walk};

/// Maximum number of frees to note, which bounds their memory to about 200 MiB, and in a small control group to their
/// share of what is left.
const FREED_MAX: usize = 1 << 21;
const FREED_BYTES: u64 = 100;
const GROUP_SHARE: u64 = 8;

/// The inventory that is being taken. Only one is taken at a time, because each copies the memory of a process.
#[derive(Default)]
pub(super) struct Inventories {
    pub(super) pending: Option<Pending>,
    replaced: u64,
}

pub(super) struct Pending {
    pub(super) pid: Pid,
    /// Distinguishes the target from others with its pid.
    pub(super) opened: Instant,
    /// Time at which the process was stopped.
    pub(super) taken: MonotonicNanos,
    pub(super) pause: Duration,
    pub(super) tries: u32,
    /// Number of records dropped until the process was stopped.
    pub(super) dropped: u64,
    /// Frees that may have been in progress when the process was stopped.
    pub(super) last_frees: LastFrees,
    /// Frees reported since the process was stopped.
    pub(super) freed: FxHashMap<TargetAddr, Free>,
    freed_max: OnceCell<usize>,
    pub(super) stale: StaleBlocks,
    /// Whether the process has executed another program since it was stopped.
    is_void: bool,
    pub(super) walker: Option<Walker>,
}

/// A block allocated before recording started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Earlier {
    pub(super) address: TargetAddr,
    pub(super) size_bytes: u64,
    pub(super) heap: HeapId,
}

impl Earlier {
    pub(super) fn allocation(self, interval: Interval, time: MonotonicNanos) -> LiveAllocation {
        let Self { address, size_bytes, heap } = self;
        LiveAllocation { address, size_bytes, interval, stack: inventory::stack_id(size_bytes), heap, time }
    }
}

pub(super) struct Walked {
    pub(super) chosen: Vec<Earlier>,
    pub(super) interval: Interval,
    pub(super) count: u64,
    pub(super) bytes: u64,
    pub(super) gaps: Vec<String>,
    pub(super) error: Option<String>,
    /// Whether another try may find more blocks, because a heap was being changed.
    pub(super) was_changing: bool,
}

impl Walked {
    /// Inventory of the found blocks, without the time for which the process was stopped.
    pub(super) fn inventory(&self) -> Inventory {
        Inventory {
            blocks: self.count,
            bytes: self.bytes,
            interval_bytes: self.interval.bytes().into(),
            pause_ns: 0,
            gaps: self.gaps.clone(),
            error: self.error.clone(),
        }
    }
}

/// The thread that walks a heap.
pub(super) struct Walker {
    thread: JoinHandle<Walked>,
    /// Set when the walk has ended, just before the thread exits.
    is_done: Arc<AtomicBool>,
}

/// Reports the end of a walk when it is dropped.
struct Ending {
    is_done: Arc<AtomicBool>,
    waiter: Thread,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.is_done.store(true, Ordering::Release);
        self.waiter.unpark();
    }
}

impl Walker {
    /// Starts a walk. Unparks the calling thread when it is done.
    pub(super) fn start(walk: impl FnOnce() -> Walked + Send + 'static) -> io::Result<Self> {
        let is_done = Arc::new(AtomicBool::new(false));
        let ending = Ending { is_done: Arc::clone(&is_done), waiter: std::thread::current() };
        let thread = std::thread::Builder::new().name("inventory".to_owned()).spawn(move || {
            // Dropped also if the walk panics.
            let _ending = ending;
            walk()
        })?;
        Ok(Self { thread, is_done })
    }

    /// Whether [`join`](Self::join) does not wait: the walk is done, or has panicked.
    pub(super) fn has_ended(&self) -> bool {
        self.is_done.load(Ordering::Acquire)
    }

    pub(super) fn join(self) -> std::thread::Result<Walked> {
        self.thread.join()
    }
}

impl Pending {
    pub(super) fn new(pid: Pid, opened: Instant, taken: MonotonicNanos) -> Self {
        Self {
            pid,
            opened,
            taken,
            pause: Duration::ZERO,
            tries: 0,
            dropped: 0,
            last_frees: LastFrees::default(),
            freed: FxHashMap::default(),
            freed_max: OnceCell::new(),
            stale: StaleBlocks::default(),
            is_void: false,
            walker: None,
        }
    }

    /// Number of frees to note, by the memory that is available at the first one: most small processes free nothing meanwhile.
    fn freed_max(&self) -> usize {
        *self.freed_max.get_or_init(|| {
            let affordable = memory::available_in_cgroup_bytes().map(|bytes| bytes / GROUP_SHARE / FREED_BYTES);
            affordable.and_then(|count| usize::try_from(count).ok()).unwrap_or(FREED_MAX).clamp(1, FREED_MAX)
        })
    }

    pub(super) fn is_of(&self, target: &Target) -> bool {
        target.opened == self.opened && !self.is_void
    }
}

/// The last free of each thread that has not allocated since. A probe reports a free or a `realloc` before the function works, so
/// a thread that is stopped in between has freed a block that its heap still contains. Valid where every allocation is reported.
#[derive(Debug, Default)]
pub(super) struct LastFrees {
    by_thread: FxHashMap<Tid, TargetAddr>,
    threads: FxHashMap<TargetAddr, Tid>,
}

impl LastFrees {
    fn note(&mut self, event: &Event) {
        match event {
            Event::Free(free) => self.note_free(free),
            Event::Alloc(allocation) => {
                self.forget_thread(allocation.tid);
                if let Some(thread) = self.threads.remove(&allocation.address) {
                    self.by_thread.remove(&thread);
                }
            }
            _ => {}
        }
    }

    fn note_free(&mut self, free: &Free) {
        self.forget_thread(free.tid);
        self.by_thread.insert(free.tid, free.address);
        self.threads.insert(free.address, free.tid);
    }

    fn forget_thread(&mut self, tid: Tid) {
        if let Some(address) = self.by_thread.remove(&tid) {
            self.threads.remove(&address);
        }
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = TargetAddr> {
        self.threads.keys().copied()
    }
}

impl Inventories {
    /// Number of stale blocks that were replaced. The kernel side counts them as blocks whose free was missed.
    pub(super) fn replaced(&self) -> u64 {
        self.replaced
    }

    pub(super) fn is_walked(&self) -> bool {
        let walker = self.pending.as_ref().and_then(|pending| pending.walker.as_ref());
        walker.is_some_and(Walker::has_ended)
    }

    /// Gives up the inventory of a process that executes another program.
    pub(super) fn give_up(&mut self, pid: Pid) {
        if let Some(pending) = self.pending.as_mut().filter(|pending| pending.pid == pid) {
            pending.is_void = true;
        }
    }

    pub(super) fn is_freed(&self, address: TargetAddr) -> bool {
        self.pending.as_ref().is_some_and(|pending| pending.freed.contains_key(&address))
    }

    /// Whether frees may be missing, because the maximum number of them is noted.
    pub(super) fn is_full(&self) -> bool {
        let is_full = |pending: &Pending| !pending.freed.is_empty() && pending.freed.len() >= pending.freed_max();
        self.pending.as_ref().is_some_and(is_full)
    }

    /// Notes a free of a block that is not in the live set. Returns the free if the ledger has the block.
    pub(super) fn observe_unknown(&mut self, free: Free, processes: &ProcessTable) -> Option<Free> {
        let pending = self.pending.as_mut().filter(|pending| pending.pid == free.pid)?;
        pending.last_frees.note_free(&free);
        pending.observe_unknown(free, processes)
    }

    /// Notes an event. Returns the event to enter, or `None` for a free that has met a stale block.
    pub(super) fn observe(&mut self, event: Event, processes: &ProcessTable) -> Option<Event> {
        let Some(pending) = self.pending.as_mut().filter(|pending| pending.pid == event.pid()) else {
            return Some(event);
        };
        pending.last_frees.note(&event);
        match event {
            Event::Alloc(allocation) => {
                self.replaced += u64::from(pending.stale.is_met_by_allocation(&allocation));
                Some(event)
            }
            Event::Free(free) => {
                let is_live = processes.get(free.pid).is_some_and(|target| target.ledger.is_live(free.address));
                if pending.stale.is_unmet(free.address) {
                    pending.stale.note_free(free.address, false);
                }
                (is_live || !pending.stale.is_met_by_free(&free)).then_some(event)
            }
            _ => Some(event),
        }
    }
}

impl Pending {
    /// Notes a free of an unknown block. Returns the free if the ledger has its block.
    fn observe_unknown(&mut self, free: Free, processes: &ProcessTable) -> Option<Free> {
        let ledger = processes.get(free.pid).map(|target| &target.ledger);
        let is_earlier = ledger.is_some_and(|ledger| ledger.is_earlier(free.address));
        let block = ledger.and_then(|ledger| ledger.block(free.address));
        let since = block.filter(|_| !is_earlier).map_or(self.taken, |block| block.time);
        let free = Free { age_us: FreeRecord::age_us(since.0 / 1000, free.time.0 / 1000), ..free };
        if self.freed.len() < self.freed_max() {
            self.freed.entry(free.address).or_insert(free);
        }
        if block.is_some() {
            self.stale.note_free(free.address, is_earlier);
        }
        block.map(|_| free)
    }
}

/// Address under which the ledger has a block that was freed before it was entered: another block may have the original
/// address.
pub(super) fn aside(address: TargetAddr) -> TargetAddr {
    TargetAddr(address.0 | 1 << 63)
}

/// Finds the blocks of these heaps, except those of `known`, and chooses at most about `blocks_max` of them.
pub(super) fn walk_heaps(
    collected: &Collected,
    heaps: &[(String, HeapId)],
    known: &FxHashSet<TargetAddr>,
    blocks_max: usize,
) -> Walked {
    let scene = Scene::new(&*collected.memory, &collected.regions, &collected.threads);
    let walks = walk(&scene);
    let mut gaps: Vec<String> = Vec::new();
    let mut blocks: Vec<Earlier> = Vec::new();
    let mut was_changing = false;
    for (name, heap) in heaps {
        let of_heap: Vec<&Walk> = walks.iter().filter(|walk| walk.heap == name).collect();
        if !walk::is_walkable(name) {
            gaps.push(Inventory::unsupported(name));
        } else if of_heap.is_empty() && !walk::is_unused(&scene, name) {
            gaps.push(format!("heap {name}: no data structures of its allocator were found"));
        }
        for walk in of_heap {
            let new = walk.blocks.iter().filter(|block| !known.contains(&block.start));
            blocks.extend(new.map(|block| Earlier { address: block.start, size_bytes: block.size_bytes, heap: *heap }));
            gaps.extend(walk.gaps.iter().map(|gap| format!("heap {name}: {gap}")));
            was_changing |= walk.busy && !walk.gaps.is_empty();
        }
    }
    // A copy that was killed reads as if memory were missing.
    let error = match collected.memory.is_there() {
        false => Some(CollectError::CopyKilled(collected.pid).to_string()),
        true if blocks.is_empty() => absence(&scene, &walks, heaps),
        true => None,
    };
    let (count, bytes) = (blocks.len() as u64, blocks.iter().map(|block| block.size_bytes).sum());
    let interval = interval_for(&blocks, blocks_max);
    let chosen = choose(blocks, interval, random_fraction());
    Walked { chosen, interval, count, bytes, gaps, error, was_changing }
}

/// Reason why a walk has found no block; `None` if a heap was walked and is empty.
fn absence(scene: &Scene<'_>, walks: &[Walk], heaps: &[(String, HeapId)]) -> Option<String> {
    let is_hooked = |walk: &&Walk| heaps.iter().any(|(name, _)| walk.heap == name);
    let is_walked = |walk: &Walk| walk.gaps.is_empty();
    if walks.iter().filter(is_hooked).any(is_walked) {
        return None;
    }
    let gaps: Vec<&str> = walks.iter().filter(is_hooked).flat_map(|walk| &walk.gaps).map(String::as_str).collect();
    let reason = match walk::absence(scene, walks) {
        Absence::Starting => "its dynamic linker is still loading it".to_owned(),
        // The C library's allocator is not called where another one replaces it.
        Absence::Empty => return None,
        Absence::Unused if heaps.iter().any(|(name, _)| name == glibc::HEAP) => return None,
        Absence::Changing => format!("its heap was being changed: {}", gaps.join("; ")),
        Absence::Damaged => format!("its heap is damaged: {}", gaps.join("; ")),
        Absence::Unknown | Absence::Unused if gaps.is_empty() => walk::unsupported(),
        Absence::Unknown | Absence::Unused => gaps.join("; "),
    };
    Some(reason)
}

/// Returns the interval at which about `count_max` of these blocks are chosen: 1 if there are not more.
fn interval_for(blocks: &[Earlier], count_max: usize) -> Interval {
    if blocks.len() <= count_max {
        return Interval::EXACT;
    }
    let mut sizes: BTreeMap<u64, u64> = BTreeMap::new();
    blocks.iter().for_each(|block| *sizes.entry(block.size_bytes).or_default() += 1);
    #[expect(clippy::cast_precision_loss, reason = "an expected value")]
    let chosen = |interval: u32| -> f64 {
        sizes.iter().map(|(size, count)| *count as f64 * probability(*size, Interval::nearest(interval))).sum()
    };
    // The expected number falls with the interval.
    let (mut low, mut high) = (1_u32, 1 << 30);
    while low < high {
        let middle = low.midpoint(high);
        #[expect(clippy::cast_precision_loss, reason = "an expected value")]
        if chosen(middle) <= count_max as f64 {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Interval::nearest(high)
}

/// Probability that a block of this size is sampled at an interval.
fn probability(size_bytes: u64, interval: Interval) -> f64 {
    1.0 / estimated_count(size_bytes, interval.bytes().into())
}

/// Systematic sampling in the order of sizes: each block has the probability that its weight implies, as in independent
/// sampling, but the number of chosen blocks of each size is the expected one (Madow 1949), so that totals are exact to a
/// few blocks. `start` is a random number in [0, 1).
fn choose(mut blocks: Vec<Earlier>, interval: Interval, start: f64) -> Vec<Earlier> {
    if interval == Interval::EXACT {
        return blocks;
    }
    blocks.sort_unstable_by_key(|block| (block.size_bytes, block.address));
    let mut position = start;
    blocks.retain(|block| {
        position += probability(block.size_bytes, interval);
        let is_chosen = position >= 1.0;
        position -= if is_chosen { 1.0 } else { 0.0 };
        is_chosen
    });
    blocks
}

#[expect(clippy::cast_precision_loss, reason = "53 bits")]
fn random_fraction() -> f64 {
    (random_seed() >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use heapbpf_base::ids::{HookId, StackId};
    use heapbpf_base::units::Amounts;
    use heapbpf_ledger::ingest::event::Allocation;

    use super::*;

    fn blocks(sizes: impl IntoIterator<Item = u64>) -> Vec<Earlier> {
        let block = |(number, size_bytes)| Earlier { address: TargetAddr(number * 4096), size_bytes, heap: HeapId(0) };
        (1_u64..).zip(sizes).map(block).collect()
    }

    fn estimate(chosen: &[Earlier], interval: Interval) -> (f64, f64) {
        let mut sum = Amounts::default();
        chosen.iter().for_each(|block| sum += Amounts::of(block.size_bytes, interval));
        (sum.bytes.to_f64(), sum.count.to_f64())
    }

    #[test]
    fn few_blocks_are_all_chosen() {
        let all = blocks([0, 1, 100, 1 << 30]);
        assert_eq!(interval_for(&all, 4), Interval::EXACT);
        assert_eq!(choose(all.clone(), Interval::EXACT, 0.5), all);
        assert_eq!(choose(Vec::new(), Interval::EXACT, 0.5), []);
    }

    #[test]
    fn the_totals_of_a_sample_are_those_of_all() {
        // Mostly small, and a few that are half of the bytes.
        let all = blocks((0..300_000_u64).map(|n| if n % 3000 == 0 { 1 << 20 } else { 16 + n * 7919 % 1000 }));
        let bytes: u64 = all.iter().map(|block| block.size_bytes).sum();
        let interval = interval_for(&all, 65_536);
        for start in [0.0, 0.25, 0.999] {
            let chosen = choose(all.clone(), interval, start);
            assert!((65_000..65_600).contains(&chosen.len()), "{}", chosen.len());
            let (estimated_bytes, estimated_count) = estimate(&chosen, interval);
            assert!((estimated_bytes / bytes as f64 - 1.0).abs() < 1e-4, "{estimated_bytes} of {bytes}");
            assert!((estimated_count / 3e5 - 1.0).abs() < 2e-3, "{estimated_count}");
        }
    }

    /// Over all starts, each block is chosen as often as its probability implies.
    #[test]
    fn each_block_has_the_probability_of_its_weight() {
        let all = blocks((0..200).map(|n| 8 + n * n));
        let interval = Interval::nearest(10_000);
        let mut counts = vec![0_u32; all.len()];
        for start in 0..1000 {
            for block in choose(all.clone(), interval, f64::from(start) / 1000.0) {
                counts[all.iter().position(|it| it.address == block.address).expect("one of them")] += 1;
            }
        }
        for (block, count) in all.iter().zip(counts) {
            let expected = probability(block.size_bytes, interval) * 1000.0;
            assert!((f64::from(count) - expected).abs() <= 2.0, "{block:?}: {count} instead of {expected}");
        }
    }

    /// A free of thread 1 is in progress, one of thread 2 has been completed, and the block of thread 3 is another one by now.
    #[test]
    fn frees_in_progress_are_the_last_of_their_threads() {
        let (pid, time) = (Pid(1), MonotonicNanos(1));
        let free =
            |tid, address| Event::Free(Free { pid, tid: Tid(tid), address: TargetAddr(address), time, age_us: 0 });
        let alloc = |tid, address| {
            Event::Alloc(Allocation {
                pid,
                tid: Tid(tid),
                address: TargetAddr(address),
                size_bytes: 10,
                time,
                stack: StackId(7),
                interval: Interval::EXACT,
                hook: HookId(0),
                heap: HeapId(0),
                has_replaced: false,
            })
        };
        let mut last = LastFrees::default();
        for event in [free(1, 16), free(1, 32), free(2, 48), alloc(2, 64), free(3, 80), alloc(4, 80)] {
            last.note(&event);
        }
        assert_eq!(last.addresses().collect::<Vec<_>>(), [TargetAddr(32)]);
        last.note(&alloc(1, 96));
        assert_eq!(last.addresses().count(), 0);
        assert!(last.by_thread.is_empty());
    }
}
