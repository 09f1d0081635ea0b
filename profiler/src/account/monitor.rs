//! Samples where the resident memory of a process is.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::{HeapId, Pid};
use heapbpf_base::memory::Span;
use heapbpf_base::shown;
use heapbpf_base::units::{EstimatedBytes, MonotonicNanos};
use heapbpf_ledger::model::{
    HeapProfile, Inventory, MemoryAccount, MemoryFacts, MemoryMapping, MemoryPart, MemoryPoint, ObjectTypes,
};
use heapbpf_ledger::{Ledger, LiveAllocation};
use heapbpf_linux::proc::maps::{Region, RegionKind};
use heapbpf_linux::proc::smaps::{MappedMemory, smaps};
use profiler_common::interval::Interval;
use profiler_common::pages::PAGE_FLAG;
use tracing::debug;

use super::classify::{Division, classify, is_of_heapbpf};
use super::contents::Contents;
use super::evidence::{BlockPlace, Evidence, GoMemory};
use super::pages::{ResidentPages, RunningMemory};
use super::runtime::{go_heap, runtimes};
use super::stacks::Stacks;
use super::variables::Variables;
use crate::walk::Scene;
use crate::walk::extents::Allocators;

const PERIOD_MIN: Duration = Duration::from_millis(250);
/// A later sample is taken after this part of the time since the first one.
const PERIOD_SHARE: u64 = 64;
/// Maximum where resident pages are recorded.
const PERIOD_WITH_PAGES: Duration = Duration::from_secs(2);

/// Maximum numbers of mappings and of runs of pages of a first sample that is kept, to be divided again when more is known of the
/// mappings.
const KEPT_MAX: usize = 4096;
const KEPT_RUNS_MAX: usize = 1 << 16;

/// What is known of hooked heaps at a time.
#[derive(Debug, Default)]
pub(crate) struct HookedMemory {
    /// Their memory and what it may grow into, by rising address.
    pub(crate) spans: Vec<Span>,
    /// The pages that were resident.
    pub(crate) resident: ResidentPages,
    pub(crate) at: MonotonicNanos,
}

/// Monitor of the memory of one target.
#[derive(Debug, Default)]
pub(crate) struct MemoryMonitor {
    account: Arc<MemoryAccount>,
    evidence: Evidence,
    stacks: Stacks,
    variables: Variables,
    allocators: Allocators,
    first: Option<First>,
    hooked: HookedMemory,
    sampled: MonotonicNanos,
    began: MonotonicNanos,
    /// Time since the first sample at which mappings are kept again.
    mappings_due_ns: u64,
}

/// Process to sample, and the session's information about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sampled<'a> {
    pub(crate) pid: Pid,
    pub(crate) ledger: &'a Ledger,
    /// Whether the ledger has all blocks of which there are records.
    pub(crate) has_all_blocks: bool,
    /// Names of heaps by id.
    pub(crate) heaps: &'a [String],
    /// Ids of the heaps of this process.
    pub(crate) own: &'a [HeapId],
    /// Time at which a program that was recorded from its start had no memory yet.
    pub(crate) began: Option<MonotonicNanos>,
    /// Runs of pages that have been resident since before the recording began; `None` if pages are not recorded.
    pub(crate) before: Option<&'a [Range<u64>]>,
}

/// Time of a sample, and its purpose.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SampleTime {
    Periodic(MonotonicNanos),
    /// The sample is taken for a report.
    Report(MonotonicNanos),
}

impl SampleTime {
    fn time(self) -> MonotonicNanos {
        let (Self::Periodic(time) | Self::Report(time)) = self;
        time
    }
}

/// The first sample, which is divided again when more is known of the mappings.
#[derive(Debug)]
struct First {
    point: MemoryPoint,
    anonymous: Vec<MappedMemory>,
    pages: ResidentPages,
    /// Contents of the mappings by the blocks of the inventory.
    contents: Contents,
    /// Parts of all other mappings.
    others: Vec<MemoryPart>,
    stacks: Vec<Span>,
    pointers: Vec<TargetAddr>,
    before: Option<Vec<Span>>,
}

impl MemoryMonitor {
    pub(crate) fn account(&self) -> &Arc<MemoryAccount> {
        &self.account
    }

    /// Sets the inventory. Returns the facts that were added or changed. The blocks of the inventory were live at the first
    /// sample.
    pub(crate) fn set_inventory(&mut self, inventory: Inventory, ledger: &Ledger) -> MemoryFacts {
        let mut points = Vec::new();
        if let Some(first) = &mut self.first {
            let earlier = places(ledger).filter(|block| !block.is_mapping && ledger.is_earlier(block.address));
            // Evidence of these blocks is used for later mappings, too.
            first.contents = Contents::of(&first.anonymous, earlier, &mut self.evidence);
            points.extend(first.divide_again(&self.evidence));
        }
        let facts = MemoryFacts { points, inventory: Some(inventory), ..MemoryFacts::default() };
        Arc::make_mut(&mut self.account).extend(facts.clone());
        facts
    }

    /// Sets the last count of the objects of a runtime. Returns the facts that were changed.
    pub(crate) fn set_objects(&mut self, types: ObjectTypes) -> MemoryFacts {
        let facts = MemoryFacts { objects: vec![types], ..MemoryFacts::default() };
        Arc::make_mut(&mut self.account).extend(facts.clone());
        facts
    }

    /// Adds pages of which it is not known whether a hooked heap had them. Returns the facts that were changed; `None` without pages.
    pub(crate) fn add_undecided(&mut self, pages: EstimatedBytes) -> Option<MemoryFacts> {
        let bytes = self.account.undecided_bytes().saturating_add(pages.rounded());
        let facts = MemoryFacts { undecided_bytes: Some(bytes), ..MemoryFacts::default() };
        (pages.rounded() > 0).then(|| {
            Arc::make_mut(&mut self.account).extend(facts.clone());
            facts
        })
    }

    /// What was known of hooked heaps at the last sample that had all blocks.
    pub(crate) fn hooked(&self) -> &HookedMemory {
        &self.hooked
    }

    /// Time of the last sample.
    pub(crate) fn sampled(&self) -> MonotonicNanos {
        self.sampled
    }

    pub(crate) fn is_begun(&self) -> bool {
        self.first.is_some()
    }

    pub(crate) fn is_due(&self, now: MonotonicNanos) -> bool {
        let since = |time: MonotonicNanos| now.0.saturating_sub(time.0);
        let nanos = |period: Duration| u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
        let period = nanos(PERIOD_MIN).max(since(self.began) / PERIOD_SHARE);
        // What hooked heaps have decides which pages are theirs.
        let period = if self.evidence.before.is_some() { period.min(nanos(PERIOD_WITH_PAGES)) } else { period };
        !self.is_begun() || since(self.sampled) >= period
    }

    /// Takes a sample. Returns the facts that were added or changed.
    pub(crate) fn sample(&mut self, of: Sampled<'_>, when: SampleTime) -> MemoryFacts {
        let now = when.time();
        let mapped = smaps(of.pid).inspect_err(|error| debug!("{error}")).unwrap_or_default();
        // A process that exits has no mappings.
        if mapped.is_empty() {
            return MemoryFacts::default();
        }
        if !self.is_begun() {
            self.began = now;
        }
        self.sampled = now;
        let pages = ResidentPages::of(of.pid, &mapped);
        self.find_evidence(of, &mapped, &pages);
        let contents = Contents::of(&mapped, places(of.ledger), &mut self.evidence);
        self.evidence.retain(&mapped);
        let Division { parts, hooked } = classify(&mapped, &pages, &contents, &self.evidence);
        let sum = |bytes: fn(&MappedMemory) -> u64| mapped.iter().map(bytes).fold(0, u64::saturating_add);
        let point = MemoryPoint {
            time: now,
            pss_bytes: sum(|memory| memory.amounts.pss_bytes),
            swap_bytes: sum(|memory| memory.amounts.swap_bytes),
            parts,
        };
        let mappings = if self.are_mappings_due(when) { mappings(&mapped) } else { Vec::new() };
        let mut facts = MemoryFacts {
            points: vec![point.clone()],
            runtimes: runtimes(mapped.iter().map(|memory| &memory.region)),
            mappings,
            ..MemoryFacts::default()
        };
        match &mut self.first {
            Some(first) => facts.points.extend(first.divide_again(&self.evidence)),
            None => {
                let empty = |time| MemoryPoint { time, pss_bytes: 0, swap_bytes: 0, parts: Vec::new() };
                facts.points.extend(of.began.map(empty));
                self.first = Some(First::new(point, &mapped, &pages, &self.evidence));
            }
        }
        // Memory that a block has whose record was dropped looks like nobody's. Until a forked child's pages are looked at, none is decided.
        if of.has_all_blocks && of.before.is_some() {
            self.hooked = HookedMemory { spans: hooked, resident: pages, at: now };
        }
        Arc::make_mut(&mut self.account).extend(facts.clone());
        facts
    }

    /// Whether to keep the mappings for reports, and in case that the process exits: each time that the recording is twice as
    /// long.
    fn are_mappings_due(&mut self, when: SampleTime) -> bool {
        let elapsed = when.time().0.saturating_sub(self.began.0);
        let is_due = matches!(when, SampleTime::Report(_)) || elapsed >= self.mappings_due_ns;
        if is_due {
            self.mappings_due_ns = elapsed.saturating_mul(2);
        }
        is_due
    }

    fn find_evidence(&mut self, of: Sampled<'_>, mapped: &[MappedMemory], pages: &ResidentPages) {
        if self.evidence.heaps.len() != of.heaps.len() {
            self.evidence.heaps = of.heaps.iter().map(|name| Arc::from(name.as_str())).collect();
        }
        self.evidence.own = of.own.to_vec();
        self.evidence.go = go_memory(of, mapped);
        let spans = |runs: &[Range<u64>]| runs.iter().map(|run| TargetAddr(run.start)..TargetAddr(run.end)).collect();
        self.evidence.before = of.before.map(spans);
        let memory = RunningMemory::new(of.pid, pages);
        self.stacks.update(of.pid, mapped, &memory);
        self.evidence.stacks = self.stacks.spans();
        self.evidence.pointers = self.stacks.pointers();
        self.evidence.variables = self.variables.spans(of.pid, mapped);
        let regions: Vec<Region> = mapped.iter().map(|memory| memory.region.clone()).collect();
        let scene = Scene::new(&memory, &regions, &[]);
        for &heap in of.own {
            let Some(name) = of.heaps.get(usize::from(heap.0)) else { continue };
            let blocks = if Allocators::wants_blocks(name) { spread(of.ledger, heap) } else { Vec::new() };
            // Extents that were found last are right except for changes since.
            if let Some(extents) = self.allocators.extents(&scene, name, &blocks) {
                self.evidence.extents.insert(heap, extents);
            }
        }
    }
}

/// The memory of Go's heap, if the ledger has that heap.
fn go_memory(of: Sampled<'_>, mapped: &[MappedMemory]) -> Option<GoMemory> {
    let is_go = |heap: &HeapId| of.heaps.get(usize::from(heap.0)).is_some_and(|name| name == HeapProfile::GO);
    let heap = of.own.iter().copied().find(is_go)?;
    let heaps = of.ledger.heaps();
    let live = heaps.iter().find(|(id, _)| *id == heap).map_or(0.0, |(_, totals)| totals.live_bytes().to_f64());
    let spans = go_heap(mapped.iter().map(|memory| &memory.region));
    Some(GoMemory { heap, spans, live_bytes: live })
}

/// Blocks of a heap, one of each part of the address space.
fn spread(ledger: &Ledger, heap: HeapId) -> Vec<TargetAddr> {
    const PART_BYTES: u64 = 1 << 20;
    const PARTS_MAX: usize = 1 << 12;
    let (mut blocks, mut last) = (BTreeMap::new(), None);
    for block in ledger.live().filter(|block| block.heap == heap) {
        let part = block.address.0 / PART_BYTES;
        if last != Some(part) && blocks.len() < PARTS_MAX {
            blocks.entry(part).or_insert(block.address);
            last = Some(part);
        }
    }
    blocks.into_values().collect()
}

impl First {
    fn new(point: MemoryPoint, mapped: &[MappedMemory], pages: &ResidentPages, evidence: &Evidence) -> Self {
        let is_divided = |at: &usize| mapped[*at].region.is_anonymous() && !is_of_heapbpf(mapped, *at);
        let (anonymous, others): (Vec<usize>, Vec<usize>) = (0..mapped.len()).partition(is_divided);
        let [mut anonymous, others] =
            [anonymous, others].map(|all| all.into_iter().map(|at| mapped[at].clone()).collect::<Vec<_>>());
        if anonymous.len() > KEPT_MAX || pages.count() > KEPT_RUNS_MAX {
            anonymous.clear();
        }
        let others = classify(&others, pages, &Contents::default(), evidence).parts;
        let (stacks, pointers, before) = (evidence.stacks.clone(), evidence.pointers.clone(), evidence.before.clone());
        let pages = pages.within(&anonymous);
        Self { point, anonymous, pages, contents: Contents::default(), others, stacks, pointers, before }
    }

    fn divide_again(&mut self, evidence: &Evidence) -> Option<MemoryPoint> {
        if self.anonymous.is_empty() {
            return None;
        }
        let (stacks, pointers, before) = (self.stacks.clone(), self.pointers.clone(), self.before.clone());
        let evidence = Evidence { stacks, pointers, before, ..evidence.clone() };
        let mut parts = classify(&self.anonymous, &self.pages, &self.contents, &evidence).parts;
        for part in &self.others {
            match parts.iter_mut().find(|known| (known.class, &known.name) == (part.class, &part.name)) {
                Some(known) => known.bytes += part.bytes,
                None => parts.push(part.clone()),
            }
        }
        parts.sort_unstable_by(|a, b| (a.class, &a.name).cmp(&(b.class, &b.name)));
        if self.point.parts == parts {
            return None;
        }
        self.point.parts = parts;
        Some(self.point.clone())
    }
}

/// The mappings that have most memory.
fn mappings(mapped: &[MappedMemory]) -> Vec<MemoryMapping> {
    let size = |memory: &MappedMemory| memory.rss_bytes.saturating_add(memory.amounts.swap_bytes);
    let mut used: Vec<&MappedMemory> = mapped.iter().filter(|memory| size(memory) > 0).collect();
    used.sort_by_key(|memory| Reverse(size(memory)));
    used.truncate(MemoryAccount::MAPPINGS_MAX);
    used.sort_by_key(|memory| memory.region.start);
    let mapping = |memory: &&MappedMemory| MemoryMapping {
        start: memory.region.start.0,
        size_bytes: memory.region.end.0.saturating_sub(memory.region.start.0),
        readable: memory.region.readable,
        writable: memory.region.writable,
        executable: memory.region.executable,
        name: name(&memory.region.kind),
        amounts: memory.amounts,
    };
    used.iter().map(mapping).collect()
}

/// Name of a mapping as in `/proc/PID/maps`.
fn name(kind: &RegionKind) -> Arc<str> {
    match kind {
        RegionKind::Anonymous { name: None } => "".into(),
        RegionKind::Anonymous { name: Some(name) } => format!("[anon:{name}]").into(),
        RegionKind::Brk => "[heap]".into(),
        RegionKind::Stack => "[stack]".into(),
        RegionKind::File { path } => shown::os_text(path).into(),
        RegionKind::Kernel => "[kernel]".into(),
    }
}

/// Places of live blocks and recorded mappings.
fn places(ledger: &Ledger) -> impl Iterator<Item = BlockPlace> {
    let is_page = |block: &LiveAllocation| block.address.0 & PAGE_FLAG != 0;
    let blocks = ledger.live().filter(move |block| !is_page(block)).map(|block| BlockPlace {
        address: block.address,
        size_bytes: block.size_bytes,
        interval: block.interval,
        heap: block.heap,
        is_mapping: false,
    });
    let mappings = ledger.mapped_pieces().map(|(address, size_bytes, heap)| BlockPlace {
        address,
        size_bytes,
        interval: Interval::EXACT,
        heap,
        is_mapping: true,
    });
    blocks.chain(mappings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampled(pid: Pid, ledger: &Ledger) -> Sampled<'_> {
        Sampled { pid, ledger, has_all_blocks: true, heaps: &[], own: &[], began: None, before: None }
    }

    /// Times of samples, in seconds since the first, at which the mappings of this process are kept.
    fn kept(seconds: &[u64]) -> Vec<u64> {
        const STARTED_NS: u64 = 9_000_000_000_000;
        let (pid, mut monitor) = (Pid(std::process::id()), MemoryMonitor::default());
        let ledger = Ledger::new(pid);
        let mut has_mappings = |second: &u64| {
            let time = MonotonicNanos(STARTED_NS + second * 1_000_000_000);
            !monitor.sample(sampled(pid, &ledger), SampleTime::Periodic(time)).mappings.is_empty()
        };
        seconds.iter().copied().filter(|second| has_mappings(second)).collect()
    }

    #[test]
    fn mappings_are_kept_when_the_elapsed_time_has_doubled() {
        assert_eq!(kept(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]), [0, 1, 2, 4, 8]);
    }

    #[test]
    fn reports_have_the_mappings_at_their_time() {
        let (pid, mut monitor) = (Pid(std::process::id()), MemoryMonitor::default());
        let ledger = Ledger::new(pid);
        for second in 1..4 {
            let when = SampleTime::Report(MonotonicNanos(second * 1_000_000_000));
            assert!(!monitor.sample(sampled(pid, &ledger), when).mappings.is_empty(), "{second}");
        }
    }

    /// A forked child is sampled before its pages are looked at; records of blocks may have been dropped.
    #[test]
    fn pages_are_decided_by_samples_that_know_what_was_resident_and_all_blocks() {
        let (pid, mut monitor) = (Pid(std::process::id()), MemoryMonitor::default());
        let ledger = Ledger::new(pid);
        let mut decides = |second: u64, before: Option<&[Range<u64>]>, has_all_blocks: bool| {
            let time = MonotonicNanos(second * 1_000_000_000);
            let of = Sampled { before, has_all_blocks, ..sampled(pid, &ledger) };
            let _ = monitor.sample(of, SampleTime::Periodic(time));
            monitor.hooked().at == time
        };
        assert!(!decides(1, None, true) && !decides(2, Some(&[]), false));
        assert!(decides(3, Some(&[]), true));
    }
}
