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
use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::ingest::event::Allocation;
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

use super::target::Target;

/// Minimum time between two scans of a target.
const PERIOD_MIN: Duration = Duration::from_millis(250);
/// Maximum size of the memory whose pages from before are looked for one by one.
const SLOW_BYTES_MAX: u64 = 32 << 30;
/// A scan takes at most this part of the time until the next one.
const SHARE: u32 = 100;

/// The heap of pages.
pub(super) const HEAP: HeapId = HeapId(PAGES_HEAP);

/// Touched ranges of targets, by process.
#[derive(Debug, Default)]
pub(super) struct Residency {
    touched: BTreeMap<Pid, Touched>,
}

#[derive(Debug, Default)]
struct Touched {
    /// Ranges that the target has touched, by number.
    ranges: BTreeMap<u64, Toucher>,
    /// Runs of pages that were resident when the recording began, and have been since; `None` until they are known.
    before: Option<Vec<Range<u64>>>,
    /// Pages of the ledger that were absent in the last scan.
    absent: FxHashSet<(TargetAddr, MonotonicNanos)>,
    /// Memory of hooked heaps, by rising address, and when they had it.
    hooked: Vec<Span>,
    hooked_at: MonotonicNanos,
    /// Pages that were touched there, and are in the live set: whether they are those of a hooked heap is not known yet.
    deferred: FxHashMap<TargetAddr, Allocation>,
    due: Option<Instant>,
}

impl Touched {
    /// Whether a page is in the memory of a hooked heap. `address` may be as in the live set.
    fn is_hooked(&self, address: TargetAddr) -> bool {
        let page = address.0 & !PAGE_FLAG;
        let behind = self.hooked.partition_point(|span| span.end.0 <= page);
        self.hooked.get(behind).is_some_and(|span| span.start.0 <= page)
    }
}

/// Who touched a range first.
#[derive(Clone, Copy, Debug)]
struct Toucher {
    touch: FirstTouch,
    /// Whether the range had no resident page at the last scan: the kernel side reports its next touch, which replaces this one.
    is_forgotten: bool,
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
    /// Ranges in which no page is resident.
    empty: Vec<u64>,
}

impl Residency {
    /// Notes the first touch of a range. A touch that was reported again, because the kernel side had forgotten it, changes nothing.
    pub(super) fn touch(&mut self, pid: Pid, touch: FirstTouch) {
        let touched = self.touched.entry(pid).or_default();
        let known = touched.ranges.entry(touch.page.0 >> RANGE_SHIFT);
        let toucher = Toucher { touch, is_forgotten: false };
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
        let is_new = target.beginning.from_first_call || target.is_descendant && !target.is_copy();
        let before = if is_new { Ok(Vec::new()) } else { resident_runs(pid) };
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

    /// Notes the memory of hooked heaps at `time`. Their blocks are recorded, not their pages.
    pub(super) fn set_hooked(&mut self, pid: Pid, hooked: &[Span], time: MonotonicNanos) {
        let touched = self.touched.entry(pid).or_default();
        if touched.hooked_at < time {
            touched.hooked = hooked.to_vec();
            touched.hooked_at = time;
        }
    }

    /// Defers a page that was touched where a hooked heap had its memory lately. Returns whether it did.
    pub(super) fn defer(&mut self, page: &Allocation) -> bool {
        let touched = self.touched.get_mut(&page.pid);
        let Some(touched) = touched.filter(|touched| touched.is_hooked(page.address)) else { return false };
        touched.deferred.insert(page.address, *page);
        true
    }

    /// Forgets a deferred page that was given back.
    pub(super) fn drop_deferred(&mut self, pid: Pid, address: TargetAddr) {
        if let Some(touched) = self.touched.get_mut(&pid) {
            touched.deferred.remove(&address);
        }
    }

    /// Decides about the deferred pages that are older than what is known of hooked heaps. Returns those that are in memory of
    /// hooked heaps, and the others.
    pub(super) fn decide(&mut self, pid: Pid) -> (Vec<Allocation>, Vec<Allocation>) {
        let Some(touched) = self.touched.get_mut(&pid) else { return Default::default() };
        let time = touched.hooked_at;
        let decided: Vec<Allocation> = touched.deferred.extract_if(|_, page| page.time < time).map(|it| it.1).collect();
        decided.into_iter().partition(|page| touched.is_hooked(page.address))
    }

    /// Pages of a ledger that are in the memory of hooked heaps.
    pub(super) fn hooked_pages(&self, pid: Pid, ledger: &Ledger) -> Vec<LiveAllocation> {
        let Some(touched) = self.touched.get(&pid) else { return Vec::new() };
        let is_hooked = |block: &LiveAllocation| block.time < touched.hooked_at && touched.is_hooked(block.address);
        pages_of(ledger).filter(is_hooked).collect()
    }

    /// Forgets the ranges of a program that has ended.
    pub(super) fn forget(&mut self, pid: Pid) {
        self.touched.remove(&pid);
    }

    pub(super) fn is_due(&self, pid: Pid) -> bool {
        let due = self.touched.get(&pid).and_then(|touched| touched.due);
        due.is_none_or(|due| due <= Instant::now())
    }

    /// Finds which pages of the ranges are resident that the target has touched, or that its ledger has pages of.
    pub(super) fn scan(&mut self, pid: Pid, ledger: &Ledger, now: MonotonicNanos) -> io::Result<Scan> {
        let begun = Instant::now();
        let touched = self.touched.entry(pid).or_default();
        let known = pages_of(ledger).map(|block| (block.address.0 & !PAGE_FLAG) >> RANGE_SHIFT);
        let ranges: BTreeSet<u64> = touched.ranges.keys().copied().chain(known).collect();
        let before = touched.before.get_or_insert_default();
        let mut scan = Scan { time: now, ..Scan::default() };
        if !ranges.is_empty() {
            let pagemap = File::open(entry_path(pid, "pagemap"))?;
            for span in spans(&ranges) {
                scan.read(&pagemap, span, true)?;
            }
        }
        *before = scan.retain(before, &ranges);
        scan.empty = ranges.iter().copied().filter(|range| !scan.overlaps(*range)).collect();
        scan.ranges = ranges;
        touched.due = Some(Instant::now() + PERIOD_MIN.max(begun.elapsed() * SHARE));
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
        let now = absent.iter().map(|block| (block.address, block.time)).collect();
        let before = std::mem::replace(&mut touched.absent, now);
        absent.into_iter().filter(|block| before.contains(&(block.address, block.time))).collect()
    }

    /// Sampled pages that are resident and that the ledger does not have, with the stack that touched their range first.
    pub(super) fn found(
        &self,
        pid: Pid,
        scan: &Scan,
        ledger: &Ledger,
        interval: Interval,
        seed: u64,
    ) -> Vec<LiveAllocation> {
        let Some(touched) = self.touched.get(&pid) else { return Vec::new() };
        let (page_bytes, rate) = (page_bytes(), SamplingRate::new(interval));
        let is_sampled = |page: u64| {
            is_sampled(position(page, seed), page_bytes, rate.interval_bytes.into(), rate.inverse, probability)
        };
        let block = |page: u64, touch: &FirstTouch| LiveAllocation {
            address: TargetAddr(page | PAGE_FLAG),
            size_bytes: page_bytes,
            interval,
            stack: touch.stack,
            heap: HEAP,
            time: touch.time,
        };
        let earlier = touched.ranges.iter().filter(|(_, toucher)| toucher.touch.time < scan.time);
        let before = touched.before.as_deref().unwrap_or_default();
        let is_new = |page: u64| is_sampled(page) && !contains(before, page) && !touched.is_hooked(TargetAddr(page));
        let pages = earlier.flat_map(|(&range, toucher)| {
            scan.pages(range, page_bytes).map(move |page| (page, &toucher.touch)).filter(|(page, _)| is_new(*page))
        });
        pages.map(|(page, touch)| block(page, touch)).filter(|block| !ledger.is_live(block.address)).collect()
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
        let resident = &mut self.resident;
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
    ledger.live().filter(|block| block.heap == HEAP && block.address.0 & PAGE_FLAG != 0)
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
    use heapbpf_base::ids::Tid;

    use super::*;

    const RANGE_BYTES: u64 = 1 << RANGE_SHIFT;
    const PID: Pid = Pid(7);

    fn touch(page: u64, stack: u64, time: u64) -> FirstTouch {
        let (stack, time) = (StackId(stack), MonotonicNanos(time));
        FirstTouch { page: TargetAddr(page), stack, time, tid: Tid(7), memory: 1 }
    }

    fn scan(resident: &[Range<u64>], empty: &[u64]) -> Scan {
        let ranges = BTreeSet::from([4, 5]);
        Scan { time: MonotonicNanos(100), ranges, resident: resident.to_vec(), empty: empty.to_vec() }
    }

    fn found(residency: &Residency, scan: &Scan, ledger: &Ledger) -> Vec<(u64, u64)> {
        let found = residency.found(PID, scan, ledger, Interval::EXACT, 0);
        found.iter().map(|block| (block.address.0 & !PAGE_FLAG, block.stack.0)).collect()
    }

    #[test]
    fn pages_of_a_huge_page_belong_to_its_first_touch() {
        let mut residency = Residency::default();
        residency.touch(PID, touch(4 * RANGE_BYTES + 4096, 1, 5));
        residency.touch(PID, touch(5 * RANGE_BYTES, 2, 200));
        let mut ledger = Ledger::new(PID);
        let scan = scan(&[4 * RANGE_BYTES..4 * RANGE_BYTES + 3 * page_bytes(), 5 * RANGE_BYTES..6 * RANGE_BYTES], &[]);
        let pages = [0, 1, 2].map(|page| (4 * RANGE_BYTES + page * page_bytes(), 1));
        assert_eq!(found(&residency, &scan, &ledger), pages, "the other range was touched after the scan");
        let known = residency.found(PID, &scan, &ledger, Interval::EXACT, 0);
        ledger.enter_earlier(&LiveAllocation { stack: StackId(9), ..known[1] });
        assert_eq!(found(&residency, &scan, &ledger), [pages[0], pages[2]]);
        assert_eq!(residency.gone(PID, &scan, &ledger), []);
    }

    #[test]
    fn pages_from_before_have_no_owner_until_they_are_given_back() {
        let run = |from: u64, to: u64| 4 * RANGE_BYTES + from * page_bytes()..4 * RANGE_BYTES + to * page_bytes();
        let mut residency = Residency::default();
        residency.touched.entry(PID).or_default().before = Some(vec![run(0, 2), run(3, 4)]);
        residency.touch(PID, touch(4 * RANGE_BYTES, 1, 5));
        let full = scan(&[run(0, 5)], &[]);
        let pages = found(&residency, &full, &Ledger::new(PID));
        assert_eq!(pages, [(run(2, 3).start, 1), (run(4, 5).start, 1)]);
        let partly = scan(&[run(1, 5)], &[]);
        assert_eq!(partly.retain(&[run(0, 2), run(3, 4)], &BTreeSet::from([4])), [run(1, 2), run(3, 4)]);
        assert_eq!(partly.retain(&[run(0, 2), run(3, 4)], &BTreeSet::from([5])), [run(0, 2), run(3, 4)]);
    }

    #[test]
    fn pages_that_were_given_back_are_gone() {
        let mut residency = Residency::default();
        residency.touch(PID, touch(4 * RANGE_BYTES, 1, 5));
        let mut ledger = Ledger::new(PID);
        let before = scan(&[4 * RANGE_BYTES..4 * RANGE_BYTES + 2 * page_bytes()], &[]);
        for block in residency.found(PID, &before, &ledger, Interval::EXACT, 0) {
            ledger.enter_earlier(&block);
        }
        let after = scan(&[4 * RANGE_BYTES + page_bytes()..4 * RANGE_BYTES + 2 * page_bytes()], &[]);
        assert_eq!(residency.gone(PID, &after, &ledger), [], "the fault may not have ended");
        let gone = residency.gone(PID, &after, &ledger);
        assert_eq!(gone.iter().map(|block| block.address.0 & !PAGE_FLAG).collect::<Vec<_>>(), [4 * RANGE_BYTES]);
        let unread = Scan { ranges: BTreeSet::from([5]), ..after };
        assert_eq!(residency.gone(PID, &unread, &ledger), [], "pages of ranges that were touched during the scan");
    }

    #[test]
    fn empty_ranges_are_kept_until_their_next_touch_is_reported() {
        let mut residency = Residency::default();
        residency.touch(PID, touch(4 * RANGE_BYTES, 1, 5));
        let (empty, full) = (scan(&[], &[4]), scan(&[4 * RANGE_BYTES..4 * RANGE_BYTES + page_bytes()], &[]));
        assert_eq!(residency.forget_empty(PID, &empty, 9), [StackId(range_id(9, 7, 1, 4 * RANGE_BYTES))]);
        assert_eq!(found(&residency, &full, &Ledger::new(PID)).len(), 1, "touched before it was forgotten");
        residency.touch(PID, touch(4 * RANGE_BYTES, 2, 6));
        assert_eq!(found(&residency, &full, &Ledger::new(PID))[0].1, 2);
        residency.touch(PID, touch(4 * RANGE_BYTES, 3, 7));
        assert_eq!(found(&residency, &full, &Ledger::new(PID))[0].1, 2, "reported again");
        assert_eq!(residency.forget_empty(PID, &empty, 9).len(), 1);
        assert!(residency.forget_empty(PID, &empty, 9).is_empty());
        assert!(found(&residency, &full, &Ledger::new(PID)).is_empty());
    }

    #[test]
    fn a_new_program_touches_ranges_anew() {
        let mut residency = Residency::default();
        residency.touch(PID, touch(4 * RANGE_BYTES, 1, 5));
        residency.touch(PID, FirstTouch { memory: 2, ..touch(4 * RANGE_BYTES, 2, 6) });
        let full = scan(&[4 * RANGE_BYTES..4 * RANGE_BYTES + page_bytes()], &[]);
        assert_eq!(found(&residency, &full, &Ledger::new(PID))[0].1, 2);
    }
}
