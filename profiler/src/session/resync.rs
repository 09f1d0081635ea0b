//! Resync: corrects ledgers from the kernel's live set after records were dropped, and thins both.
//!
//! After a drop, only the live set has the live blocks. Reading a million blocks takes up to a second, during which the
//! ring buffer must be drained, so a thread reads them. Events arrive meanwhile. Where they are later than the beginning of the
//! reading, the ledger is newer than what was read, and is kept; older ones, which a stopped agent finds in the ring buffer,
//! correct nothing.
//!
//! A thinning decides about each block that is read. A block that is freed between then and the end of the pass has left the ledger
//! with its old weight, so it is reweighed afterwards: whether a decision holds must not depend on how long its block lives.

mod notes;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::{HeapId, Pid, StackId};
use heapbpf_base::units::{EstimatedBytes, MonotonicNanos};
use heapbpf_ledger::ingest::event::Event;
use heapbpf_ledger::model::Origin;
use heapbpf_ledger::{FreedBlock, Ledger, LiveAllocation, Reconciled};
use heapbpf_linux::clock;
use profiler_common::interval::Interval;
use profiler_common::live::LiveBlock;
use profiler_common::pages::PAGE_FLAG;
use rustc_hash::FxHashMap;
use tracing::{debug, info, warn};

use self::notes::{Notes, QUIET, Touched};
use super::lifecycle::Lifecycle;
use super::overload::{Thinnings, random_seed};
use super::process_table::ProcessTable;
use super::residency::Residency;
use super::target::Target;
use crate::bpf::live_set::LiveReader;
use crate::bpf::load::{Kernel, LoadError};
use crate::go_heap::BLOCK_FLAG;

pub(super) struct Resync {
    reader: Arc<LiveReader>,
    thinnings: Thinnings,
    schedule: Schedule,
    pass: Option<Pass>,
    pub(super) completed: u64,
    /// When the live set was last counted, and its number of blocks.
    counted: (MonotonicNanos, u64),
    unswept: Vec<Pid>,
    /// Whether live amounts of a ledger stay without a correction of drops.
    has_uncorrected: bool,
}

/// Blocks that were freed during a pass.
type Freed = FxHashMap<(Pid, TargetAddr), FreedBlock>;

/// Up to this many blocks in the live set, the blocks of an exiting process are read at once.
const READ_AT_EXIT_MAX: u64 = 1 << 16;

/// Period of counting live blocks, and the shorter period while they are many. Counting takes about 30 µs.
const COUNT_PERIOD: Duration = Duration::from_millis(100);
const COUNT_PERIOD_MIN: Duration = Duration::from_millis(10);

/// After a failed pass, the next one is scheduled as if it had taken this long.
const FAILED_PASS: Duration = Duration::from_secs(1);

impl Resync {
    pub(super) fn new(kernel: &Kernel) -> Result<Self, LoadError> {
        Ok(Self {
            reader: Arc::new(kernel.live_reader()?),
            thinnings: Thinnings::new(random_seed()),
            schedule: Schedule::default(),
            pass: None,
            completed: 0,
            counted: (MonotonicNanos(0), 0),
            unswept: Vec::new(),
            has_uncorrected: false,
        })
    }

    /// Notes an event during a pass, before it is entered. A block that is restored gets the interval that it was thinned to.
    pub(super) fn observe(&mut self, event: &mut Event, processes: &ProcessTable) {
        let has_thinned = !self.thinnings.is_empty();
        if has_thinned && let Event::Restore(allocation) = event {
            allocation.interval = self.thinnings.of_restored(allocation);
        }
        let Some(pass) = &mut self.pass else { return };
        if has_thinned
            && let Event::Free(free) = event
            && let Some(target) = processes.get(free.pid)
        {
            pass.notes.free(free, &target.ledger);
        }
        pass.notes.touch(event);
    }

    /// Returns the number of blocks in the live set, counted recently; `max` is its capacity.
    pub(super) fn live_blocks(&mut self, now: MonotonicNanos, max: u32) -> u64 {
        let period = if self.counted.1 * 2 > u64::from(max) { COUNT_PERIOD_MIN } else { COUNT_PERIOD };
        if now.since(self.counted.0) >= period {
            self.counted = (now, self.reader.count());
        }
        self.counted.1
    }

    /// Makes the kernel side's filter exclude no block, or ends that.
    pub(super) fn set_filter_open(&self, is_open: bool) {
        self.reader.set_filter_open(is_open);
    }

    pub(super) fn note_drops(&mut self, drops: u64) {
        self.schedule.note_drops(drops, clock::now().monotonic);
    }

    pub(super) fn is_running(&self) -> bool {
        self.pass.is_some()
    }

    /// Whether a pass is running that removes blocks from the live set.
    pub(super) fn is_thinning(&self) -> bool {
        self.is_running() && !self.thinnings.is_empty()
    }

    pub(super) fn is_read(&self) -> bool {
        self.pass.as_ref().is_some_and(|pass| pass.reader.is_finished())
    }

    pub(super) fn is_due(&self, now: MonotonicNanos) -> bool {
        self.pass.is_none() && self.schedule.is_due(now)
    }

    pub(super) fn is_needed(&self) -> bool {
        self.schedule.is_needed()
    }

    /// Whether live amounts of some ledger have not been corrected since the last drop.
    pub(super) fn is_behind(&self) -> bool {
        self.has_uncorrected || self.is_needed()
    }

    /// Notes that a child inherits the blocks that its parent's ledger has now. No pass can correct these: what is in the live set for
    /// the child was copied from the ledger.
    pub(super) fn note_inheritance(&mut self) {
        self.has_uncorrected |= self.is_needed() || self.schedule.drops > 0 && self.is_running();
    }

    /// Notes that a child becomes a target which was forked at `time`. Drops before that may have been noted only after the fork was read.
    pub(super) fn note_child(&mut self, time: MonotonicNanos) {
        self.note_inheritance();
        self.has_uncorrected |= self.schedule.drops > 0 && self.schedule.dropped >= time;
    }

    /// Marks all drops as covered after a pass with nothing left to record, unless the pass failed.
    pub(super) fn close(&mut self) {
        if !self.schedule.has_failed {
            self.schedule.covered = self.schedule.drops;
        }
    }

    /// Whether the current pass covers a target. It must be finished before the target's ledger is closed: it may have
    /// thinned the live set.
    pub(super) fn covers(&self, pid: Pid) -> bool {
        self.pass.as_ref().is_some_and(|pass| pass.targets.contains_key(&pid))
    }

    /// Whether exited targets need a pass, because they may have too many blocks to read at once. Among several
    /// targets, only if a pass is due: many may exit in succession.
    pub(super) fn is_needed_at_exit(&self, is_only_target: bool) -> bool {
        let is_wanted = self.is_needed() && (is_only_target || self.schedule.is_due(clock::now().monotonic));
        is_wanted && self.reader.count() > READ_AT_EXIT_MAX
    }

    pub(super) fn begin_thinning(&mut self, floors: Vec<(HeapId, Interval)>, processes: &ProcessTable) {
        let now = clock::now().monotonic;
        for (heap, interval) in floors {
            info!("thinning live blocks of heap {} to an interval of {} B", heap.0, interval.bytes());
            self.thinnings.thin(heap, now, interval);
        }
        self.begin(processes);
        // The pass may remove a block that was allocated at the address of a thinned one in the meantime.
        self.schedule.requested = true;
    }

    pub(super) fn begin(&mut self, processes: &ProcessTable) {
        let now = clock::now().monotonic;
        self.schedule.begin(now);
        // What a forked child has inherited would be missing in the reading.
        let whole = processes.running().filter(|target| !target.awaits_blocks);
        let targets = whole.map(|target| (target.pid, Program::of(target))).collect();
        let sieve = Sieve { since: now, targets, thinnings: self.thinnings.clone() };
        match Pass::begin(Arc::clone(&self.reader), sieve) {
            Ok(pass) => self.pass = Some(pass),
            Err(error) => self.fail(&error),
        }
    }

    fn fail(&mut self, error: &io::Error) {
        warn!("cannot read the kernel's live set: {error}");
        let schedule = &mut self.schedule;
        (schedule.covered, schedule.requested) = (0, schedule.drops == 0);
        schedule.has_failed = true;
        schedule.end(FAILED_PASS);
    }

    /// Waits for the reading of the pass, and corrects all ledgers by it. All events up to the end of the reading must
    /// have been entered.
    pub(super) fn finish(
        &mut self,
        processes: &mut ProcessTable,
        lifecycle: &mut Lifecycle,
        residency: &mut Residency,
        kernel: &mut Kernel,
        started: MonotonicNanos,
    ) {
        let Some(Pass { began, targets, notes, reader }) = self.pass.take() else { return };
        let Notes { touched, freed, .. } = notes;
        let panicked = |_| Err(io::Error::other("the thread that reads the live set panicked"));
        let reading = match reader.join().unwrap_or_else(panicked) {
            Ok(reading) => reading,
            Err(error) => return self.fail(&error),
        };
        let mut all = Reconciled::default();
        let mut missing = Vec::new();
        for target in processes.running_mut() {
            let pid = target.pid;
            // The process or its program was replaced during the pass: it has a ledger of its own.
            if targets.get(&pid) != Some(&Program::of(target)) || lifecycle.awaits(pid) {
                self.schedule.skip(target.opened.elapsed(), clock::now().monotonic);
                continue;
            }
            let is_touched = |address| touched.contains(&(pid, address)) || reading.recent.contains(&(pid, address));
            Self::reweigh_freed(&mut target.ledger, pid, &reading, &freed);
            all += self.reconcile(target, &reading, residency, is_touched);
            missing.extend(target.ledger.stacks_missing());
        }
        if !self.thinnings.is_empty() {
            Self::thin_others(&reading, &freed, lifecycle, processes);
        }
        self.remove_strays(&reading, &targets, &touched, kernel, |pid| {
            processes.get(pid).is_some() || lifecycle.awaits(pid)
        });
        if let Err(error) = kernel.forget_stacks(&missing) {
            debug!("{error}");
        }
        self.schedule.end(began.elapsed());
        self.completed += 1;
        info!(
            "after {:.1?}: resynced ledgers in {} ms: {} blocks found, {} gone, {} others; {} stacks unknown",
            clock::now().monotonic.since(started),
            began.elapsed().as_millis(),
            all.inserted,
            all.removed,
            all.replaced,
            missing.len()
        );
    }

    /// Removes blocks from the live set that belong to no program. `is_known` returns whether a process is or may
    /// become a target.
    fn remove_strays(
        &mut self,
        reading: &Reading,
        targets: &BTreeMap<Pid, Program>,
        touched: &Touched,
        kernel: &mut Kernel,
        is_known: impl Fn(Pid) -> bool,
    ) {
        let mut strays = BTreeMap::<Pid, Vec<_>>::new();
        // The current program may have allocated a block at the address of a stray one.
        for &(pid, address) in reading.strays.iter().filter(|&stray| !touched.contains(stray)) {
            strays.entry(pid).or_default().push(address);
        }
        for (pid, addresses) in strays {
            // A process that became a target during the pass has blocks of its own.
            if !targets.contains_key(&pid) && is_known(pid) {
                continue;
            }
            if let Err(error) = kernel.forget_blocks(pid, addresses) {
                debug!("process {pid}: {error}");
            }
        }
        self.unswept.retain(|pid| targets.contains_key(pid));
    }

    /// Corrects the ledger of a target that has exited. [Drops](Self::note_drops) must be up to date.
    pub(super) fn correct_at_exit(&mut self, target: &mut Target, residency: &mut Residency, kernel: &mut Kernel) {
        if self.schedule.drops == 0 {
            return;
        }
        // Reading many blocks takes long: the next pass removes them.
        if self.reader.count() > READ_AT_EXIT_MAX {
            self.unswept.push(target.pid);
            self.schedule.requested = true;
            self.has_uncorrected |= self.is_needed();
            return;
        }
        let Some(reading) = self.read_of(target, MonotonicNanos(u64::MAX)) else { return };
        if self.is_needed() && target.awaits_blocks {
            self.has_uncorrected = true;
        } else if self.is_needed() {
            self.reconcile(target, &reading, residency, |_| false);
        }
        let left = reading.live(target.pid).map(|block| block.address);
        let strays = reading.strays.iter().map(|&(_, address)| address);
        if let Err(error) = kernel.forget_blocks(target.pid, left.chain(strays)) {
            debug!("process {}: {error}", target.pid);
        }
    }

    /// Corrects the ledger of a target whose process has executed another program at `time`. [Drops](Self::note_drops) must be up to
    /// date. The blocks stay in the live set. Where the new program has allocated at the address of a block, the ledger is kept. Returns
    /// the bytes of pages of which it is not known whether a hooked heap had them.
    pub(super) fn correct_at_exec(
        &mut self,
        target: &mut Target,
        residency: &Residency,
        time: MonotonicNanos,
    ) -> EstimatedBytes {
        if self.schedule.drops == 0 {
            return EstimatedBytes::default();
        }
        // Where a pass has covered all drops and left out this process, it has noted that.
        if target.awaits_blocks || self.reader.count() > READ_AT_EXIT_MAX {
            self.has_uncorrected |= self.is_needed();
        } else if let Some(reading) = self.read_of(target, time) {
            let pid = target.pid;
            if !self.thinnings.is_empty() {
                Self::thin(&mut target.ledger, &reading, pid);
            }
            let (live, undecided) = residency.reconcile_replaced(&target.ledger, reading.live(pid));
            target.ledger.reconcile(live, |address| reading.recent.contains(&(pid, address)) || is_of_go(address));
            return undecided;
        }
        EstimatedBytes::default()
    }

    /// Reads the blocks of a target that were allocated before `until`; `None` if the live set cannot be read.
    fn read_of(&mut self, target: &Target, until: MonotonicNanos) -> Option<Reading> {
        let targets = [(target.pid, Program::of(target))].into();
        let sieve = Sieve { since: until, targets, thinnings: self.thinnings.clone() };
        let mut reading = Reading::default();
        let read =
            self.reader.sift(|pid, address, block| pid != target.pid || reading.take(&sieve, pid, address, block));
        if let Err(error) = read {
            debug!("process {}: {error}", target.pid);
            self.has_uncorrected = true;
            return None;
        }
        Some(reading)
    }

    /// Removes blocks that an exited process with the same pid left behind. Must be called before the new process
    /// becomes a target.
    pub(super) fn sweep(&mut self, pid: Pid, kernel: &mut Kernel) {
        if let Some(at) = self.unswept.iter().position(|&unswept| unswept == pid) {
            self.unswept.swap_remove(at);
            if let Err(error) = kernel.sweep(pid) {
                debug!("process {pid}: {error}");
            }
        }
    }

    /// Applies thinnings to blocks that were freed after they had been read.
    /// Thins the ledgers that belong to no target: of programs that were replaced during the pass, and of children that are none yet.
    fn thin_others(reading: &Reading, freed: &Freed, lifecycle: &mut Lifecycle, processes: &mut ProcessTable) {
        for (pid, ledger) in lifecycle.replaced() {
            Self::reweigh_freed(ledger, pid, reading, freed);
            Self::thin(ledger, reading, pid);
            processes.record_corrections_of(ledger);
        }
        for (parent, ledger) in lifecycle.inherited() {
            Self::thin(ledger, reading, parent);
            processes.record_corrections_of(ledger);
        }
    }

    fn reweigh_freed(ledger: &mut Ledger, pid: Pid, reading: &Reading, freed: &Freed) {
        if freed.is_empty() {
            return;
        }
        let kept = reading.live(pid).map(|block| (block, Some(block.interval)));
        let thinned = reading.thinned(pid).map(|block| (block, None));
        for (block, to) in kept.chain(thinned) {
            if let Some(freed) = freed.get(&(pid, block.address)) {
                ledger.thin_freed(&block, freed, to);
            }
        }
    }

    fn reconcile(
        &self,
        target: &mut Target,
        reading: &Reading,
        residency: &mut Residency,
        is_touched: impl Fn(TargetAddr) -> bool + Copy,
    ) -> Reconciled {
        let (pid, ledger) = (target.pid, &mut target.ledger);
        if !self.thinnings.is_empty() {
            Self::thin(ledger, reading, pid);
        }
        let live = residency.reconcile(pid, ledger, reading.live(pid), is_touched);
        ledger.reconcile(live, |address| is_touched(address) || is_of_go(address))
    }

    /// Thins the blocks of a ledger that it shares with a process. They may have been touched meanwhile: their time distinguishes them
    /// from others at their address.
    fn thin(ledger: &mut Ledger, reading: &Reading, pid: Pid) {
        reading.thinned(pid).for_each(|block| ledger.thin(&block, None));
        reading.live(pid).for_each(|block| ledger.thin(&block, Some(block.interval)));
    }
}

#[derive(Debug, Default)]
struct Schedule {
    drops: u64,
    covered: u64,
    dropped: MonotonicNanos,
    requested: bool,
    /// Whether the latest pass failed.
    has_failed: bool,
    last: Option<(MonotonicNanos, Duration)>,
}

/// While records are being dropped, passes take at most a tenth of the time and begin at this minimum period.
const SHARE: u32 = 10;
const PERIOD_MIN: Duration = Duration::from_millis(250);

impl Schedule {
    fn note_drops(&mut self, drops: u64, now: MonotonicNanos) {
        if drops > self.drops {
            (self.drops, self.dropped) = (drops, now);
        }
    }

    fn is_needed(&self) -> bool {
        self.drops > self.covered
    }

    /// Whether a pass is due. A pass is always due after drops have ended.
    fn is_due(&self, now: MonotonicNanos) -> bool {
        if !(self.is_needed() || self.requested) {
            return false;
        }
        let Some((began, took)) = self.last else { return true };
        let paced = now.since(began) >= (took * SHARE).max(PERIOD_MIN);
        // With bursts of drops, the passes after them take at most two thirds of the time.
        let ended = now.since(self.dropped) >= QUIET && now.since(began) >= took * 3 / 2;
        paced || ended
    }

    /// A pass covers the drops before it once they have ended: until then, an event that it takes for newer than the live set may
    /// be older than a drop.
    fn begin(&mut self, now: MonotonicNanos) {
        (self.requested, self.has_failed) = (false, false);
        if now.since(self.dropped) >= QUIET {
            self.covered = self.drops;
        }
        self.last = Some((now, Duration::ZERO));
    }

    fn end(&mut self, took: Duration) {
        if let Some((_, last)) = &mut self.last {
            *last = took;
        }
    }

    /// Notes that the pass that ends now leaves out a target of this age. It may lack drops since then, so another pass is needed.
    fn skip(&mut self, age: Duration, now: MonotonicNanos) {
        if self.drops > 0 && now.since(self.dropped) <= age {
            self.covered = 0;
        }
    }
}

struct Sieve {
    /// Time from which on allocated blocks arrive as events.
    since: MonotonicNanos,
    targets: BTreeMap<Pid, Program>,
    thinnings: Thinnings,
}

/// Distinguishes a target from earlier and later ones with its pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Program {
    opened: Instant,
    /// Start of the program: older blocks belong to the one before.
    started: MonotonicNanos,
}

impl Program {
    fn of(target: &Target) -> Self {
        let started = if target.beginning.origin == Origin::Executed { target.born } else { None };
        Self { opened: target.opened, started: started.unwrap_or_default() }
    }
}

#[derive(Default)]
struct Reading {
    /// Blocks of targets, with the interval that determines their weight.
    live: FxHashMap<Pid, Vec<(TargetAddr, LiveBlock)>>,
    thinned: FxHashMap<Pid, Vec<(TargetAddr, LiveBlock)>>,
    /// Blocks so new that they arrive as events: the ledger is more up to date.
    recent: Touched,
    strays: Vec<(Pid, TargetAddr)>,
}

impl Reading {
    /// Sorts a block that was read. Returns whether it remains in the live set.
    fn take(&mut self, sieve: &Sieve, pid: Pid, address: TargetAddr, block: LiveBlock) -> bool {
        if block.time_ns() >= sieve.since.0 {
            self.recent.insert((pid, address));
            return true;
        }
        if sieve.targets.get(&pid).is_none_or(|program| block.time_ns() < program.started.0) {
            self.strays.push((pid, address));
            return true;
        }
        let Some(interval) = sieve.thinnings.interval(pid, address, &block) else {
            self.thinned.entry(pid).or_default().push((address, block));
            return false;
        };
        let weighted = LiveBlock::new(block.size_bytes(), block.time_ns(), block.stack_id(), interval, block.heap());
        self.live.entry(pid).or_default().push((address, weighted));
        true
    }

    fn live(&self, pid: Pid) -> impl Iterator<Item = LiveAllocation> {
        self.live.get(&pid).into_iter().flatten().map(allocation)
    }

    fn thinned(&self, pid: Pid) -> impl Iterator<Item = LiveAllocation> {
        self.thinned.get(&pid).into_iter().flatten().map(allocation)
    }
}

/// Whether an address stands for a block of Go's runtime, which the kernel side does not know.
fn is_of_go(address: TargetAddr) -> bool {
    address.0 & BLOCK_FLAG != 0 && address.0 & PAGE_FLAG == 0
}

fn allocation(&(address, block): &(TargetAddr, LiveBlock)) -> LiveAllocation {
    LiveAllocation {
        address,
        size_bytes: block.size_bytes(),
        interval: block.interval(),
        stack: StackId(block.stack_id()),
        heap: HeapId(block.heap()),
        time: MonotonicNanos(block.time_ns()),
    }
}

struct Pass {
    began: Instant,
    targets: BTreeMap<Pid, Program>,
    notes: Notes,
    reader: JoinHandle<io::Result<Reading>>,
}

impl Pass {
    fn begin(reader: Arc<LiveReader>, sieve: Sieve) -> io::Result<Self> {
        let (notes, targets) = (Notes::new(sieve.since), sieve.targets.clone());
        let read = move || {
            let mut reading = Reading::default();
            reader.sift(|pid, address, block| reading.take(&sieve, pid, address, block))?;
            Ok(reading)
        };
        let reader = std::thread::Builder::new().name("resync".to_owned()).spawn(read)?;
        Ok(Self { began: Instant::now(), targets, notes, reader })
    }
}

#[cfg(test)]
mod tests;
