//! Resident pages of targets, for the heap `pages`: which sampled ones are not resident any more, and which became resident without a fault
//! of their own.
//!
//! The kernel side enters a sampled page at the fault that touches it. A fault may make more than its page resident: a huge page, of which
//! other pages are in the sample. So the kernel side reports the first touch of each range of memory, and sampled pages of that range that
//! are resident, and have no owner, are its. Pages that the kernel makes resident without any fault of the process have no owner.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::{HeapId, Pid, StackId};
use heapbpf_base::memory::Span;
use heapbpf_base::units::{Amounts, EstimatedBytes, MonotonicNanos};
use heapbpf_ledger::ingest::event::{Allocation, Event};
use heapbpf_ledger::ingest::record::FirstTouch;
use heapbpf_ledger::{Ledger, LiveAllocation};
use heapbpf_linux::memory::page_bytes;
use heapbpf_linux::proc::maps;
use heapbpf_linux::proc::process::entry_path;
use heapbpf_linux::process_memory::{Pages, scan_entries, scan_pages};
use profiler_common::interval::Interval;
use profiler_common::pages::{PAGE_FLAG, PAGES_HEAP, RANGE_SHIFT, is_sampled, position, range_id};
use profiler_common::sampling::{SamplingRate, probability};
use rustc_hash::{FxHashMap, FxHashSet};
use tracing::debug;

use super::process_table::ProcessTable;
use super::target::Target;
use crate::account::HookedMemory;

/// Minimum time between two scans of a target.
const PERIOD: Duration = Duration::from_millis(250);
/// Ranges of a scan: 8 GiB. What is beyond them is scanned the next time.
const RANGES_MAX: usize = 1 << 12;
/// Share of a core that the scans of all targets may take.
const SHARE: f64 = 0.01;
/// Time that may be saved up for later scans.
const SAVED_MAX: Duration = Duration::from_millis(50);
/// Maximum size of the memory whose pages from before are looked for one by one.
const SLOW_BYTES_MAX: u64 = 32 << 30;

/// Time that faults take until their pages are resident, except where memory is very short.
pub(super) const FAULT_MAX: Duration = Duration::from_nanos(FAULT_MAX_NS);
const FAULT_MAX_NS: u64 = 20_000_000;

/// The heap of pages.
pub(super) const HEAP: HeapId = HeapId(PAGES_HEAP);

/// Touched ranges of targets, by process.
#[derive(Debug)]
pub(super) struct Residency {
    touched: BTreeMap<Pid, Touched>,
    /// Whether no heap is hooked.
    is_alone: bool,
    saved_s: f64,
    updated: Instant,
}

#[derive(Debug, Default)]
struct Touched {
    /// Ranges that the target has touched, by number.
    ranges: BTreeMap<u64, Toucher>,
    /// Runs of pages that were resident when the recording began, and have been since; `None` until they are known.
    before: Option<Vec<Range<u64>>>,
    /// Pages of the ledger that were absent in the last scan.
    absent: FxHashSet<(TargetAddr, MonotonicNanos)>,
    /// Range that the next scan begins with.
    next: u64,
    /// Pages that the last scan has removed.
    removed: Vec<TargetAddr>,
    /// Memory of hooked heaps, by rising address, and when they had it.
    hooked: Vec<Span>,
    hooked_at: MonotonicNanos,
    /// Pages that are in the live set: whether they are those of a hooked heap is not known yet.
    deferred: FxHashMap<TargetAddr, Deferred>,
    due: Option<Instant>,
}

impl Touched {
    fn is_hooked(&self, address: TargetAddr) -> bool {
        Hooked(&self.hooked).has(address)
    }
}

/// Pages about which is decided.
#[derive(Debug, Default, PartialEq, Eq)]
struct Decided {
    /// Pages of hooked heaps.
    hooked: Vec<TargetAddr>,
    /// Pages that no hooked heap has.
    others: Vec<Deferred>,
    /// Pages that were given back before anybody could know.
    gone: Vec<Deferred>,
}

/// A page of which it is not known yet whether a hooked heap has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deferred {
    /// The record of its fault has been read.
    Recorded(Allocation),
    /// It was found in the live set: its record was dropped.
    Found(LiveAllocation),
}

impl Deferred {
    pub(super) fn address(&self) -> TargetAddr {
        match self {
            Self::Recorded(page) => page.address,
            Self::Found(page) => page.address,
        }
    }

    pub(super) fn time(&self) -> MonotonicNanos {
        match self {
            Self::Recorded(page) => page.time,
            Self::Found(page) => page.time,
        }
    }

    /// Estimated bytes that it represents.
    fn weight_bytes(&self) -> EstimatedBytes {
        let (size_bytes, interval) = match self {
            Self::Recorded(page) => (page.size_bytes, page.interval),
            Self::Found(page) => (page.size_bytes, page.interval),
        };
        Amounts::of(size_bytes, interval).bytes
    }

    /// Notes that the live set has been thinned.
    fn thin(&mut self, to: Interval) {
        let interval = match self {
            Self::Recorded(page) => &mut page.interval,
            Self::Found(page) => &mut page.interval,
        };
        if interval.bytes() < to.bytes() {
            *interval = to;
        }
    }
}

/// Memory of hooked heaps, by rising address.
struct Hooked<'a>(&'a [Span]);

impl Hooked<'_> {
    /// Whether it has a page. `address` may be as in the live set.
    fn has(&self, address: TargetAddr) -> bool {
        let page = address.0 & !PAGE_FLAG;
        let behind = self.0.partition_point(|span| span.end.0 <= page);
        self.0.get(behind).is_some_and(|span| span.start.0 <= page)
    }
}

/// Who touched a range first.
#[derive(Clone, Copy, Debug)]
struct Toucher {
    touch: FirstTouch,
    /// Whether the range had no resident page at the last scan: the kernel side reports its next touch, which replaces this one.
    is_forgotten: bool,
    /// Whether the pages of its huge page have been entered.
    is_found: bool,
}

/// What a scan has found of a target.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Time before which all of it is true.
    pub(super) time: MonotonicNanos,
    /// The ranges that were read.
    ranges: BTreeSet<u64>,
    /// Runs of resident pages of anonymous memory, by rising address.
    resident: Vec<Range<u64>>,
    /// Runs of huge pages, if the kernel finds them.
    huge: Vec<Range<u64>>,
    knows_huge: bool,
    /// Whether the scan has reached the last range.
    pub(super) is_last: bool,
    /// Ranges in which no page is resident.
    empty: Vec<u64>,
}

impl Residency {
    /// `is_alone` if no heap is hooked, so that all pages are recorded.
    pub(super) fn new(is_alone: bool) -> Self {
        Self { touched: BTreeMap::new(), is_alone, saved_s: SAVED_MAX.as_secs_f64(), updated: Instant::now() }
    }

    /// Notes the first touch of a range. A touch that was reported again, because the kernel side had forgotten it, changes nothing.
    pub(super) fn touch(&mut self, pid: Pid, touch: FirstTouch) {
        let touched = self.touched.entry(pid).or_default();
        let known = touched.ranges.entry(touch.page.0 >> RANGE_SHIFT);
        let toucher = Toucher { touch, is_forgotten: false, is_found: false };
        let known = known.or_insert(toucher);
        if known.is_forgotten || known.touch.memory != touch.memory {
            *known = toucher;
        }
    }

    /// Notes which pages of a target are resident at the start of its recording, if pages `are_recorded`: they have no owner. A program
    /// that was recorded from its start has none.
    pub(super) fn begin(&mut self, target: &Target, are_recorded: bool) {
        if !are_recorded {
            return;
        }
        let pid = target.pid;
        let before = if target.beginning.from_first_call { Ok(Vec::new()) } else { resident_runs(pid) };
        let before = before.unwrap_or_else(|error| {
            debug!("process {pid}: the pages from before are not known: {error}");
            Vec::new()
        });
        self.touched.entry(pid).or_default().before = Some(before);
    }

    /// Runs of pages that have been resident since before the recording of a target began; `None` if that is not known.
    pub(super) fn before(&self, pid: Pid) -> Option<&[Range<u64>]> {
        self.touched.get(&pid)?.before.as_deref()
    }

    /// Notes the memory of hooked heaps. Their blocks are recorded, not their pages.
    fn set_hooked(&mut self, pid: Pid, hooked: &HookedMemory) {
        let touched = self.touched.entry(pid).or_default();
        if touched.hooked_at < hooked.at {
            touched.hooked.clone_from(&hooked.spans);
            touched.hooked_at = hooked.at;
        }
    }

    /// Defers a page until it is known whether a hooked heap has it. Returns false where no heap is hooked.
    pub(super) fn defer(&mut self, page: &Allocation) -> bool {
        if !self.is_alone {
            self.touched.entry(page.pid).or_default().deferred.insert(page.address, Deferred::Recorded(*page));
        }
        !self.is_alone
    }

    /// Forgets a deferred page that was given back.
    pub(super) fn drop_deferred(&mut self, pid: Pid, address: TargetAddr) {
        if let Some(touched) = self.touched.get_mut(&pid) {
            touched.deferred.remove(&address);
        }
    }

    /// Decides about the deferred pages that are older than what is known of hooked heaps. One that was given back before cannot be
    /// decided: what had it is not there any more.
    fn decide(&mut self, pid: Pid, hooked: &HookedMemory) -> Decided {
        self.set_hooked(pid, hooked);
        let Some(touched) = self.touched.get_mut(&pid) else { return Decided::default() };
        let spans = Hooked(&touched.hooked);
        let mut decided = Decided::default();
        touched.deferred.retain(|address, page| {
            if page.time() >= hooked.at {
                return true;
            }
            if spans.has(*address) {
                decided.hooked.push(*address);
            } else if hooked.resident.has(TargetAddr(address.0 & !PAGE_FLAG)) {
                decided.others.push(*page);
            } else if page.time().0.saturating_add(FAULT_MAX_NS) >= hooked.at.0 {
                // Its fault may not have ended.
                return true;
            } else {
                decided.gone.push(*page);
            }
            false
        });
        decided
    }

    /// Enters the deferred pages of a target that are known by now to be in no hooked heap. Returns the other ones about which is
    /// decided: they must leave the live set.
    pub(super) fn enter_decided(&mut self, pid: Pid, processes: &mut ProcessTable) -> Vec<TargetAddr> {
        let Some(target) = processes.get(pid) else { return Vec::new() };
        let Decided { mut hooked, mut others, gone } = self.decide(pid, target.memory.hooked());
        // It may have been found with the other pages of a huge page.
        others.retain(|page| !target.ledger.is_live(page.address()));
        others.sort_unstable_by_key(Deferred::time);
        for page in others {
            match page {
                Deferred::Recorded(page) => processes.enter(Event::Alloc(page)),
                Deferred::Found(page) => processes.enter_found(pid, &page),
            }
        }
        processes.note_undecided_of(pid, gone.iter().map(Deferred::weight_bytes).sum());
        hooked.extend(gone.iter().map(Deferred::address));
        hooked
    }

    /// Takes the pages that it is not known of whether a hooked heap has them out of what the live set has of a process, so that the
    /// rest can correct its ledger. Deferred pages that the live set does not have any more have been given back. `is_touched` selects
    /// addresses with a record since the live set was read, which is newer.
    pub(super) fn reconcile(
        &mut self,
        pid: Pid,
        ledger: &Ledger,
        live: impl Iterator<Item = LiveAllocation>,
        is_touched: impl Fn(TargetAddr) -> bool,
    ) -> Vec<LiveAllocation> {
        if self.is_alone {
            return live.collect();
        }
        let touched = self.touched.entry(pid).or_default();
        let (mut known, mut found) = (Vec::new(), FxHashMap::default());
        for block in live {
            if is_page(&block) && !is_touched(block.address) && !ledger.has(&block) {
                found.insert(block.address, block);
            } else {
                known.push(block);
            }
        }
        touched.deferred.retain(|address, page| {
            is_touched(*address) || found.get(address).is_some_and(|found| found.time.0 / 1000 == page.time().0 / 1000)
        });
        for (address, page) in found {
            touched.deferred.entry(address).or_insert(Deferred::Found(page)).thin(page.interval);
        }
        known
    }

    /// Pages of a ledger that are in the memory of hooked heaps.
    pub(super) fn hooked_pages(&self, pid: Pid, ledger: &Ledger) -> Vec<LiveAllocation> {
        let Some(touched) = self.touched.get(&pid) else { return Vec::new() };
        let is_hooked = |block: &LiveAllocation| block.time < touched.hooked_at && touched.is_hooked(block.address);
        pages_of(ledger).filter(is_hooked).collect()
    }

    /// Whether pages were absent once.
    pub(super) fn has_absent(&self) -> bool {
        self.touched.values().any(|touched| !touched.absent.is_empty())
    }

    pub(super) fn has_begun(&self, pid: Pid) -> bool {
        self.touched.get(&pid).is_some_and(|touched| touched.before.is_some())
    }

    /// The blocks that the live set has of a program that was replaced, without pages that its ledger does not have, and the estimated
    /// bytes of these. The program's own deferred pages have been forgotten.
    pub(super) fn reconcile_replaced(
        &self,
        ledger: &Ledger,
        live: impl Iterator<Item = LiveAllocation>,
    ) -> (Vec<LiveAllocation>, EstimatedBytes) {
        let (known, unknown): (Vec<_>, Vec<_>) =
            live.partition(|block| self.is_alone || !is_page(block) || ledger.has(block));
        (known, unknown.iter().map(|page| Deferred::Found(*page).weight_bytes()).sum())
    }

    /// Estimated bytes of pages of which it is not known whether a hooked heap has them.
    pub(super) fn undecided_bytes(&self, pid: Pid) -> EstimatedBytes {
        let deferred = self.touched.get(&pid).into_iter().flat_map(|touched| touched.deferred.values());
        deferred.map(Deferred::weight_bytes).sum()
    }

    /// Forgets a program that has ended. Returns pages that must leave the live set.
    pub(super) fn forget(&mut self, pid: Pid) -> Vec<TargetAddr> {
        let deferred = self.touched.remove(&pid).map(|touched| touched.deferred);
        deferred.into_iter().flat_map(FxHashMap::into_keys).collect()
    }

    /// Forgets processes that are no targets, and will be none. Returns their pages that must leave the live set.
    pub(super) fn retain(&mut self, is_known: impl Fn(Pid) -> bool) -> Vec<(Pid, Vec<TargetAddr>)> {
        let gone: Vec<Pid> = self.touched.keys().copied().filter(|pid| !is_known(*pid)).collect();
        gone.into_iter().map(|pid| (pid, self.forget(pid))).collect()
    }

    /// The targets that are due, the longest due first.
    pub(super) fn due(&self, targets: &[Pid]) -> Vec<Pid> {
        let now = Instant::now();
        let due = |pid: &Pid| self.touched.get(pid).and_then(|touched| touched.due);
        let mut due: Vec<(Option<Instant>, Pid)> = targets.iter().map(|pid| (due(pid), *pid)).collect();
        due.retain(|(due, _)| due.is_none_or(|due| due <= now));
        due.sort_unstable();
        due.into_iter().map(|(_, pid)| pid).collect()
    }

    /// Whether another scan is within the budget of processor time.
    pub(super) fn has_budget(&mut self) -> bool {
        let elapsed = std::mem::replace(&mut self.updated, Instant::now()).elapsed();
        self.saved_s = (self.saved_s + elapsed.as_secs_f64() * SHARE).min(SAVED_MAX.as_secs_f64());
        self.saved_s > 0.0
    }

    /// Notes the time that a scan of a target took.
    pub(super) fn spend(&mut self, pid: Pid, time: Duration) {
        self.saved_s -= time.as_secs_f64();
        if let Some(touched) = self.touched.get_mut(&pid) {
            touched.due = Some(Instant::now() + PERIOD);
        }
    }

    /// Notes pages that were removed from the live set, where one may have been touched again meanwhile.
    pub(super) fn note_removed(&mut self, pid: Pid, pages: &[LiveAllocation]) {
        if let Some(touched) = self.touched.get_mut(&pid) {
            touched.removed.extend(pages.iter().map(|page| page.address));
        }
    }

    pub(super) fn take_removed(&mut self, pid: Pid) -> Vec<TargetAddr> {
        self.touched.get_mut(&pid).map(|touched| std::mem::take(&mut touched.removed)).unwrap_or_default()
    }

    /// Finds which pages of the next ranges are resident that the target has touched, or that its ledger has pages of.
    pub(super) fn scan(&mut self, pid: Pid, ledger: &Ledger, now: MonotonicNanos) -> io::Result<Scan> {
        let touched = self.touched.entry(pid).or_default();
        let known = pages_of(ledger).map(|block| (block.address.0 & !PAGE_FLAG) >> RANGE_SHIFT);
        let all: BTreeSet<u64> = touched.ranges.keys().copied().chain(known).collect();
        let ranges: BTreeSet<u64> = all.range(touched.next..).take(RANGES_MAX).copied().collect();
        let next = ranges.last().map_or(0, |last| last + 1);
        let is_last = all.range(next..).next().is_none();
        touched.next = if is_last { 0 } else { next };
        let before = touched.before.get_or_insert_default();
        let mut scan = Scan { time: now, is_last, ..Scan::default() };
        if !ranges.is_empty() {
            let pagemap = File::open(entry_path(pid, "pagemap"))?;
            for span in spans(&ranges) {
                scan.read(&pagemap, span, true)?;
            }
        }
        *before = scan.retain(before, &ranges);
        scan.empty = ranges.iter().copied().filter(|range| !scan.overlaps(*range)).collect();
        scan.ranges = ranges;
        Ok(scan)
    }

    /// Pages of a ledger that are not resident any more. A page is entered when the fault begins, which may end later: so it must be absent
    /// in two scans.
    pub(super) fn gone(&mut self, pid: Pid, scan: &Scan, ledger: &Ledger) -> Vec<LiveAllocation> {
        let Some(touched) = self.touched.get_mut(&pid) else { return Vec::new() };
        let is_absent = |block: &LiveAllocation| {
            let page = block.address.0 & !PAGE_FLAG;
            block.time < scan.time && scan.ranges.contains(&(page >> RANGE_SHIFT)) && !contains(&scan.resident, page)
        };
        let absent: Vec<LiveAllocation> = pages_of(ledger).filter(is_absent).collect();
        let (gone, new): (Vec<LiveAllocation>, Vec<LiveAllocation>) =
            absent.into_iter().partition(|block| touched.absent.contains(&(block.address, block.time)));
        touched.absent.retain(|(page, _)| !scan.ranges.contains(&((page.0 & !PAGE_FLAG) >> RANGE_SHIFT)));
        touched.absent.extend(new.iter().map(|block| (block.address, block.time)));
        gone
    }

    /// Sampled pages of huge pages that the ledger does not have, with the stack that touched their range first. Each range is searched
    /// once: a later change of the interval must not add more of it.
    pub(super) fn found(
        &mut self,
        pid: Pid,
        scan: &Scan,
        ledger: &Ledger,
        interval: Interval,
        seed: u64,
    ) -> Vec<LiveAllocation> {
        let Some(touched) = self.touched.get_mut(&pid) else { return Vec::new() };
        let (page_bytes, rate) = (page_bytes(), SamplingRate::new(interval));
        let is_sampled = |page: u64| {
            is_sampled(position(page, seed), page_bytes, rate.interval_bytes.into(), rate.inverse, probability)
        };
        let before = touched.before.as_deref().unwrap_or_default();
        let until = if self.is_alone { scan.time } else { scan.time.min(touched.hooked_at) };
        let hooked = Hooked(&touched.hooked);
        let mut found = Vec::new();
        for (&range, toucher) in &mut touched.ranges {
            let touch = toucher.touch;
            let is_new = touch.time < until && !toucher.is_forgotten && !toucher.is_found;
            if !is_new || !scan.is_huge(range) {
                continue;
            }
            toucher.is_found = true;
            let is_wanted = |page: &u64| {
                is_sampled(*page)
                    && *page != touch.page.0
                    && !contains(before, *page)
                    && !hooked.has(TargetAddr(*page))
                    && !ledger.is_live(TargetAddr(page | PAGE_FLAG))
            };
            found.extend(scan.pages(range, page_bytes).filter(is_wanted).map(|page| LiveAllocation {
                address: TargetAddr(page | PAGE_FLAG),
                size_bytes: page_bytes,
                interval,
                stack: touch.stack,
                heap: HEAP,
                time: touch.time,
            }));
        }
        found
    }

    /// Has ranges without a resident page reported again. Returns their ids in the kernel side's table, which must be removed there.
    pub(super) fn forget_empty(&mut self, pid: Pid, scan: &Scan, seed: u64) -> Vec<StackId> {
        let Some(touched) = self.touched.get_mut(&pid) else { return Vec::new() };
        let mut ids = Vec::new();
        for range in &scan.empty {
            let Some(toucher) = touched.ranges.get_mut(range) else { continue };
            if toucher.is_forgotten {
                touched.ranges.remove(range);
            } else if toucher.touch.time < scan.time {
                // A touch may precede the removal of the id. So the range is kept until the next scan.
                toucher.is_forgotten = true;
                ids.push(StackId(range_id(seed, pid.0, toucher.touch.memory, range << RANGE_SHIFT)));
            }
        }
        ids
    }
}

impl Scan {
    /// Adds the resident pages of a span that is behind those that were read. `may_be_slow` if eight bytes per page may be read, where the
    /// kernel has no `PAGEMAP_SCAN` (Linux 6.7).
    fn read(&mut self, pagemap: &File, span: Range<u64>, may_be_slow: bool) -> io::Result<()> {
        let (resident, huge) = (&mut self.resident, &mut self.huge);
        // Where the kernel does not find these, a range whose pages are all there counts as one.
        self.knows_huge = scan_pages(pagemap, span.clone(), Pages::Huge, &mut |run| push(huge, run)).is_ok();
        match scan_pages(pagemap, span.clone(), Pages::Anonymous, &mut |run| push(resident, run)) {
            Err(error) if may_be_slow && matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) => {
                scan_entries(pagemap, span, Pages::Anonymous, &mut |run| push(resident, run))
            }
            result => result,
        }
    }

    /// The parts of runs that are resident, or not in the scanned ranges.
    fn retain(&self, runs: &[Range<u64>], ranges: &BTreeSet<u64>) -> Vec<Range<u64>> {
        let mut retained: Vec<Range<u64>> = Vec::with_capacity(runs.len());
        for run in runs {
            let mut start = run.start;
            while start < run.end {
                let end = run.end.min(((start >> RANGE_SHIFT) + 1) << RANGE_SHIFT);
                if ranges.contains(&(start >> RANGE_SHIFT)) {
                    let first = self.resident.partition_point(|known| known.end <= start);
                    let known = self.resident[first..].iter().take_while(|known| known.start < end);
                    known.for_each(|known| push(&mut retained, known.start.max(start)..known.end.min(end)));
                } else {
                    push(&mut retained, start..end);
                }
                start = end;
            }
        }
        retained
    }

    /// Whether a range is a huge page.
    fn is_huge(&self, range: u64) -> bool {
        let (start, end) = (range << RANGE_SHIFT, (range + 1) << RANGE_SHIFT);
        let is_within = |runs: &[Range<u64>]| {
            let behind = runs.partition_point(|run| run.end <= start);
            runs.get(behind).is_some_and(|run| run.start <= start && run.end >= end)
        };
        is_within(if self.knows_huge { &self.huge } else { &self.resident })
    }

    fn overlaps(&self, range: u64) -> bool {
        self.pages(range, 1 << RANGE_SHIFT).next().is_some()
    }

    /// Addresses in a range that are resident, `step` bytes apart.
    fn pages(&self, range: u64, step: u64) -> impl Iterator<Item = u64> {
        let (start, end) = (range << RANGE_SHIFT, (range + 1) << RANGE_SHIFT);
        let first = self.resident.partition_point(|run| run.end <= start);
        let runs = self.resident[first..].iter().take_while(move |run| run.start < end);
        runs.flat_map(move |run| {
            (run.start.max(start)..run.end.min(end)).step_by(usize::try_from(step).unwrap_or(usize::MAX))
        })
    }
}

fn pages_of(ledger: &Ledger) -> impl Iterator<Item = LiveAllocation> {
    ledger.live().filter(is_page)
}

fn is_page(block: &LiveAllocation) -> bool {
    block.heap == HEAP && block.address.0 & PAGE_FLAG != 0
}

/// Whether sorted runs contain a page.
fn contains(runs: &[Range<u64>], page: u64) -> bool {
    let behind = runs.partition_point(|run| run.end <= page);
    runs.get(behind).is_some_and(|run| run.start <= page)
}

/// Adds a run behind others.
fn push(runs: &mut Vec<Range<u64>>, run: Range<u64>) {
    match runs.last_mut().filter(|last| last.end == run.start) {
        Some(last) => last.end = run.end,
        None => runs.push(run),
    }
}

/// Runs of all resident pages of anonymous memory, by rising address.
fn resident_runs(pid: Pid) -> io::Result<Vec<Range<u64>>> {
    let pagemap = File::open(entry_path(pid, "pagemap"))?;
    let mut scan = Scan::default();
    let mut slow_bytes = 0_u64;
    let regions = maps::regions(pid).map_err(io::Error::other)?;
    for region in regions.iter().filter(|region| region.writable && !region.shared) {
        slow_bytes = slow_bytes.saturating_add(region.size_bytes());
        let is_bounded = slow_bytes <= SLOW_BYTES_MAX;
        scan.read(&pagemap, region.start.0..region.end.0, is_bounded)?;
    }
    Ok(scan.resident)
}

/// Addresses of ranges; adjacent ranges are joined.
fn spans(ranges: &BTreeSet<u64>) -> Vec<Range<u64>> {
    let mut spans: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        let span = range << RANGE_SHIFT..(range + 1) << RANGE_SHIFT;
        match spans.last_mut().filter(|last| last.end == span.start) {
            Some(last) => last.end = span.end,
            None => spans.push(span),
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use heapbpf_base::ids::{HookId, Tid};

    use super::*;
    use crate::account::pages::ResidentPages;

    const RANGE_BYTES: u64 = 1 << RANGE_SHIFT;
    const PID: Pid = Pid(7);

    fn touch(page: u64, stack: u64, time: u64) -> FirstTouch {
        let (stack, time) = (StackId(stack), MonotonicNanos(time));
        FirstTouch { page: TargetAddr(page), stack, time, tid: Tid(7), memory: 1 }
    }

    /// A scan of two ranges. All that is resident is in huge pages.
    fn scan(resident: &[Range<u64>]) -> Scan {
        let ranges = BTreeSet::from([4, 5]);
        let (resident, huge) = (resident.to_vec(), vec![4 * RANGE_BYTES..6 * RANGE_BYTES]);
        let time = MonotonicNanos(1_000_000_000);
        let scan = Scan { time, ranges, resident, huge, knows_huge: true, ..Scan::default() };
        Scan { empty: [4, 5].into_iter().filter(|range| !scan.overlaps(*range)).collect(), ..scan }
    }

    fn run(from: u64, to: u64) -> Range<u64> {
        4 * RANGE_BYTES + from * page_bytes()..4 * RANGE_BYTES + to * page_bytes()
    }

    /// Pages that are found, by their number in the fourth range, and their stacks.
    fn found(residency: &mut Residency, scan: &Scan, ledger: &Ledger) -> Vec<(u64, u64)> {
        let found = residency.found(PID, scan, ledger, Interval::EXACT, 0);
        let number = |block: &LiveAllocation| ((block.address.0 & !PAGE_FLAG) - 4 * RANGE_BYTES) / page_bytes();
        found.iter().map(|block| (number(block), block.stack.0)).collect()
    }

    #[test]
    fn pages_of_a_huge_page_belong_to_its_first_touch() {
        let mut residency = Residency::new(true);
        residency.touch(PID, touch(run(1, 2).start, 1, 5));
        residency.touch(PID, touch(5 * RANGE_BYTES, 2, 2_000_000_000));
        let mut ledger = Ledger::new(PID);
        let whole = scan(&[run(0, 4), 5 * RANGE_BYTES..6 * RANGE_BYTES]);
        let stack = StackId(9);
        let (size_bytes, time) = (page_bytes(), MonotonicNanos(6));
        let address = TargetAddr(run(2, 3).start | PAGE_FLAG);
        ledger.enter_earlier(&LiveAllocation {
            address,
            size_bytes,
            interval: Interval::EXACT,
            stack,
            heap: HEAP,
            time,
        });
        let small = Scan { huge: Vec::new(), ..scan(&[run(0, 4)]) };
        assert_eq!(found(&mut residency, &small, &ledger), [], "each page has a fault of its own");
        // The touched page has a record of its own; the other range was touched after the scan.
        assert_eq!(found(&mut residency, &whole, &ledger), [(0, 1), (3, 1)]);
        assert_eq!(found(&mut residency, &whole, &ledger), [], "once");
        assert_eq!(residency.gone(PID, &whole, &ledger), []);
    }

    #[test]
    fn where_the_kernel_does_not_tell_whole_ranges_are_huge_pages() {
        let mut residency = Residency::new(true);
        residency.touch(PID, touch(run(1, 2).start, 1, 5));
        let part = Scan { knows_huge: false, ..scan(&[run(0, 4)]) };
        assert_eq!(found(&mut residency, &part, &Ledger::new(PID)), []);
        let whole = Scan { knows_huge: false, ..scan(&[run(0, RANGE_BYTES / page_bytes())]) };
        assert_eq!(found(&mut residency, &whole, &Ledger::new(PID)).len() as u64, RANGE_BYTES / page_bytes() - 1);
    }

    #[test]
    fn pages_from_before_have_no_owner_until_they_are_given_back() {
        let mut residency = Residency::new(true);
        residency.touched.entry(PID).or_default().before = Some(vec![run(0, 2), run(3, 4)]);
        residency.touch(PID, touch(run(1, 2).start, 1, 5));
        assert_eq!(found(&mut residency, &scan(&[run(0, 5)]), &Ledger::new(PID)), [(2, 1), (4, 1)]);
        let partly = scan(&[run(1, 5)]);
        assert_eq!(partly.retain(&[run(0, 2), run(3, 4)], &BTreeSet::from([4])), [run(1, 2), run(3, 4)]);
        assert_eq!(partly.retain(&[run(0, 2), run(3, 4)], &BTreeSet::from([5])), [run(0, 2), run(3, 4)]);
    }

    #[test]
    fn pages_that_were_given_back_are_gone() {
        let mut residency = Residency::new(true);
        residency.touch(PID, touch(run(1, 2).start, 1, 5));
        let mut ledger = Ledger::new(PID);
        for block in residency.found(PID, &scan(&[run(0, 3)]), &ledger, Interval::EXACT, 0) {
            ledger.enter_earlier(&block);
        }
        let after = scan(&[run(2, 3)]);
        assert_eq!(residency.gone(PID, &after, &ledger), [], "the fault may not have ended");
        let gone = residency.gone(PID, &after, &ledger);
        assert_eq!(gone.iter().map(|block| block.address.0 & !PAGE_FLAG).collect::<Vec<_>>(), [run(0, 1).start]);
        let unread = Scan { ranges: BTreeSet::from([5]), ..after };
        assert_eq!(residency.gone(PID, &unread, &ledger), [], "pages of ranges that were touched during the scan");
    }

    #[test]
    fn empty_ranges_have_no_owner_until_their_next_touch_is_reported() {
        let mut residency = Residency::new(true);
        residency.touch(PID, touch(run(1, 2).start, 1, 5));
        let (empty, full) = (scan(&[]), scan(&[run(0, 1)]));
        assert_eq!(residency.forget_empty(PID, &empty, 9), [StackId(range_id(9, 7, 1, 4 * RANGE_BYTES))]);
        assert_eq!(found(&mut residency, &full, &Ledger::new(PID)), [], "touched before or after that");
        residency.touch(PID, touch(run(1, 2).start, 2, 6));
        residency.touch(PID, touch(run(1, 2).start, 3, 7));
        assert_eq!(found(&mut residency, &full, &Ledger::new(PID)), [(0, 2)], "the last one was reported again");
        assert_eq!(residency.forget_empty(PID, &empty, 9).len(), 1);
        assert!(residency.forget_empty(PID, &empty, 9).is_empty());
    }

    /// Whether a hooked heap has a page is known from what is read after it was touched.
    #[test]
    fn pages_wait_until_the_memory_of_hooked_heaps_is_known() {
        let mut residency = Residency::new(false);
        let page = |number: u64, time: u64| Allocation {
            pid: PID,
            tid: Tid(7),
            address: TargetAddr(run(number, 0).start | PAGE_FLAG),
            size_bytes: page_bytes(),
            time: MonotonicNanos(time),
            stack: StackId(1),
            interval: Interval::EXACT,
            hook: HookId(0),
            heap: HEAP,
            has_replaced: false,
        };
        assert!([page(0, 10), page(1, 10), page(2, 30)].iter().all(|page| residency.defer(page)));
        assert_eq!(residency.decide(PID, &HookedMemory::default()), Decided::default());
        let hooked = vec![page(0, 0).address];
        let others = vec![Deferred::Recorded(page(1, 10))];
        assert_eq!(residency.decide(PID, &known(0..1, 0..3, 20)), Decided { hooked, others, gone: Vec::new() });
        assert_eq!(residency.undecided_bytes(PID).rounded(), page_bytes());
        assert_eq!(residency.forget(PID), [page(2, 30).address]);
        assert!(!Residency::new(true).defer(&page(0, 10)));
    }

    /// What is known of hooked heaps, in pages.
    fn known(hooked: Range<u64>, resident: Range<u64>, time: u64) -> HookedMemory {
        let span = |pages: Range<u64>| TargetAddr(run(pages.start, 0).start)..TargetAddr(run(pages.end, 0).start);
        let spans = if hooked.is_empty() { Vec::new() } else { vec![span(hooked)] };
        HookedMemory {
            spans,
            resident: ResidentPages::synthetic(vec![span(resident)], Vec::new()),
            at: MonotonicNanos(time),
        }
    }

    /// A block may have had it that was freed meanwhile.
    #[test]
    fn nothing_is_known_of_pages_that_were_given_back_before() {
        let mut residency = Residency::new(false);
        let late = 1_000_000_000;
        let pages = [found_page(1, 10), found_page(2, late - 10)];
        let _ = residency.reconcile(PID, &Ledger::new(PID), pages.into_iter(), |_| false);
        let gone = vec![Deferred::Found(pages[0])];
        assert_eq!(residency.decide(PID, &known(0..1, 0..1, late)), Decided { gone, ..Decided::default() });
        let others = vec![Deferred::Found(pages[1])];
        let after = known(0..1, 0..4, late + 10);
        assert_eq!(residency.decide(PID, &after), Decided { others, ..Decided::default() }, "its fault has ended");
    }

    fn found_page(number: u64, time: u64) -> LiveAllocation {
        let address = TargetAddr(run(number, 0).start | PAGE_FLAG);
        let (size_bytes, stack, time) = (page_bytes(), StackId(1), MonotonicNanos(time));
        LiveAllocation { address, size_bytes, interval: Interval::EXACT, stack, heap: HEAP, time }
    }

    /// A pass of resync finds pages whose records were dropped, of which a hooked heap may have some.
    #[test]
    fn pages_that_a_pass_finds_wait_as_recorded_ones_do() {
        let mut residency = Residency::new(false);
        let mut ledger = Ledger::new(PID);
        ledger.enter_earlier(&found_page(0, 1000));
        let block = LiveAllocation { heap: HeapId(1), address: TargetAddr(64), ..found_page(0, 1000) };
        let live = [found_page(0, 1000), found_page(1, 2000), found_page(2, 6000), found_page(4, 3000), block];
        let known = residency.reconcile(PID, &ledger, live.into_iter(), |_| false);
        assert_eq!(known, [found_page(0, 1000), block], "one is known, one is no page");
        let others = vec![Deferred::Found(found_page(1, 2000))];
        let hooked = vec![found_page(4, 0).address];
        let decided = residency.decide(PID, &self::known(4..5, 1..5, 5000));
        assert_eq!(decided, Decided { hooked, others, gone: Vec::new() });
        let replaced = residency.reconcile_replaced(&ledger, live.into_iter());
        assert_eq!(replaced.0, [found_page(0, 1000), block]);
        assert_eq!(replaced.1, [1, 2, 4].map(|_| residency.undecided_bytes(PID)).into_iter().sum());
        // The record that its page was given back was dropped; another one has been touched since the live set was read.
        let known = residency.reconcile(PID, &ledger, [].into_iter(), |address| address == found_page(2, 0).address);
        assert_eq!((known, residency.undecided_bytes(PID).rounded()), (Vec::new(), page_bytes()));
        let _ = residency.reconcile(PID, &ledger, [].into_iter(), |_| false);
        assert_eq!(residency.undecided_bytes(PID).rounded(), 0);
    }

    #[test]
    fn deferred_pages_are_thinned_with_the_live_set() {
        let mut residency = Residency::new(false);
        let thin = Interval::power_of_two(20);
        let ledger = Ledger::new(PID);
        let _ = residency.reconcile(PID, &ledger, [found_page(2, 6000)].into_iter(), |_| false);
        let thinned = LiveAllocation { interval: thin, ..found_page(2, 6000) };
        let _ = residency.reconcile(PID, &ledger, [thinned].into_iter(), |_| false);
        let others = vec![Deferred::Found(thinned)];
        assert_eq!(residency.decide(PID, &known(0..0, 0..4, 7000)), Decided { others, ..Decided::default() });
    }

    #[test]
    fn a_new_program_touches_ranges_anew() {
        let mut residency = Residency::new(true);
        residency.touch(PID, touch(run(1, 2).start, 1, 5));
        residency.touch(PID, FirstTouch { memory: 2, ..touch(run(1, 2).start, 2, 6) });
        assert_eq!(found(&mut residency, &scan(&[run(0, 1)]), &Ledger::new(PID)), [(0, 2)]);
    }
}
