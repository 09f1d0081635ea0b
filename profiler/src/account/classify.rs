//! Divides the resident memory of a process among its uses: each page has one owner.
//!
//! Owners are tried in this order, and the first one that has evidence for a page owns it:
//!
//! 1. a large live block, or the kernel's own kind of the mapping: files, shared memory, code, the main stack;
//! 2. stacks of threads, by their control blocks;
//! 3. allocators of hooked heaps, by their own structures;
//! 4. hooked heaps whose structures are unknown, by their small blocks: the mapping with such a block;
//! 5. recorded mappings;
//! 6. heaps with large blocks that were sampled, for blocks that were not: as much of the mapping as the samples stand for;
//! 7. zero-initialised variables of modules;
//! 8. resident pages that were touched since the recording began, where they are recorded;
//! 9. the name of the mapping.
//!
//! The memory of Go's heap, where that is recorded, is between the fifth and the sixth. The rest is unexplained.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use heapbpf_base::ids::HeapId;
use heapbpf_base::memory::{Span, joined, without};
use heapbpf_ledger::model::{HeapProfile, MemoryClass, MemoryPart};
use heapbpf_linux::proc::maps::{Region, RegionKind};
use heapbpf_linux::proc::smaps::MappedMemory;
use profiler_common::pages::PAGES_HEAP;

use super::contents::{Contents, Held, Small};
use super::evidence::{BlockPlace, Evidence};
use super::pages::ResidentPages;

type Parts = BTreeMap<(MemoryClass, Option<Arc<str>>), u64>;

/// Sums of all mappings.
#[derive(Debug, Default)]
struct Sums {
    parts: Parts,
    /// Sums of each hooked heap: resident memory, live bytes in it, and live bytes that sampled blocks stand for.
    heaps: BTreeMap<HeapId, HeapSum>,
    /// Memory of hooked heaps, and shared memory, by rising address.
    hooked: Vec<Span>,
}

/// The mappings of a process, divided.
#[derive(Debug, Default)]
pub(crate) struct Division {
    /// Parts that sum to the resident bytes of all mappings.
    pub(crate) parts: Vec<MemoryPart>,
    /// Memory of hooked heaps and what it may grow into, and shared memory, by rising address: its pages are not recorded.
    pub(crate) hooked: Vec<Span>,
}

#[derive(Clone, Copy, Debug, Default)]
struct HeapSum {
    bytes: u64,
    live_bytes: u64,
    sampled_bytes: f64,
}

/// Divides the mappings of a process.
pub(crate) fn classify(
    mapped: &[MappedMemory],
    pages: &ResidentPages,
    contents: &Contents,
    evidence: &Evidence,
) -> Division {
    let mut sums = Sums::default();
    let nothing = Held::default();
    for (at, memory) in mapped.iter().enumerate() {
        if is_of_heapbpf(mapped, at) {
            *sums.parts.entry((MemoryClass::OtherAllocator, Some(Arc::from(HEAPBPF)))).or_default() += memory.rss_bytes;
            continue;
        }
        let next = mapped.get(at + 1).map(|next| &next.region);
        let rest = if is_heap_like(&memory.region) {
            let held = contents.get(at).unwrap_or(&nothing);
            let hooked = sums.hooked.len();
            let whole = evidence.whole(memory, next);
            let rest = MappingDivision::new(memory, pages).divide(held, whole, evidence, &mut sums);
            if sums.hooked.len() > hooked {
                extend(&mut sums.hooked, &memory.region, next);
            }
            rest
        } else {
            if memory.region.shared {
                // Written pages of these are no process's own.
                sums.hooked.push(memory.region.start..memory.region.end);
            }
            memory.rss_bytes
        };
        *sums.parts.entry(class(&memory.region, evidence)).or_default() += rest;
    }
    if let Some(go) = &evidence.go {
        sums.heaps.entry(go.heap).or_default().sampled_bytes += go.live_bytes;
    }
    for (heap, sum) in sums.heaps {
        let name = evidence.name(heap).cloned();
        let live = sum.live_bytes.saturating_add(round(sum.sampled_bytes)).min(sum.bytes);
        *sums.parts.entry((MemoryClass::LiveBlocks, name.clone())).or_default() += live;
        *sums.parts.entry((MemoryClass::HeapOverhead, name)).or_default() += sum.bytes - live;
    }
    // The part of pages says that they are recorded.
    let is_of_pages = |(class, name): &(MemoryClass, Option<Arc<str>>)| {
        *class == MemoryClass::LiveBlocks && name.as_deref() == Some(HeapProfile::PAGES)
    };
    let parts = bounded(sums.parts).into_iter().filter(|(part, bytes)| *bytes > 0 || is_of_pages(part));
    let parts = parts.map(|((class, name), bytes)| MemoryPart { class, name, bytes }).collect();
    Division { parts, hooked: joined(sums.hooked) }
}

/// Adds what a heap may grow into to its last memory: the addresses behind `brk`, or the reserve of an arena.
fn extend(hooked: &mut [Span], region: &Region, next: Option<&Region>) {
    let Some(last) = hooked.last_mut().filter(|last| last.end == region.end) else { return };
    match next {
        _ if region.kind == RegionKind::Brk => last.end = next.map_or(last.end, |next| next.start),
        Some(next) if next.start == region.end && next.is_anonymous() && !next.readable && !next.writable => {
            last.end = next.end;
        }
        _ => {}
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, and it is not negative")]
fn round(bytes: f64) -> u64 {
    bytes.round() as u64
}

/// One mapping, while it is divided.
struct MappingDivision<'a> {
    span: Span,
    /// Number of resident bytes that have no owner.
    rest: u64,
    /// Owned spans by rising address, without overlaps.
    owned: Vec<Span>,
    is_full: bool,
    pages: &'a ResidentPages,
}

impl<'a> MappingDivision<'a> {
    fn new(memory: &MappedMemory, pages: &'a ResidentPages) -> Self {
        let span = memory.region.start..memory.region.end;
        let is_full = memory.rss_bytes == memory.region.size_bytes();
        Self { span, rest: memory.rss_bytes, owned: Vec::new(), is_full, pages }
    }

    /// Divides the mapping. Returns the resident bytes without owner.
    fn divide(mut self, held: &Held, whole: Option<HeapId>, evidence: &Evidence, sums: &mut Sums) -> u64 {
        // The values for each heap in this mapping are resident bytes, and live bytes of large blocks.
        let mut heaps: BTreeMap<HeapId, (u64, u64)> = BTreeMap::new();
        let mut unknown: BTreeMap<HeapId, f64> = BTreeMap::new();
        for (heap, large) in by_heap(&held.large, evidence) {
            let taken = self.take_hooked(large.iter().map(|block| block.pages()).collect(), sums);
            let of_heap = heaps.entry(heap).or_default();
            of_heap.0 += taken;
            for block in large {
                self.add_large(block, taken, &mut of_heap.1, sums.heaps.entry(heap).or_default());
                if evidence.maps_blocks(heap) && block.weight() > 1.0 {
                    let others = weighted(self.resident(&[self.clipped(block.pages())]), block.weight() - 1.0);
                    *unknown.entry(heap).or_default() += others;
                }
            }
        }
        let stacks = self.take(self.overlapping(&evidence.stacks));
        *sums.parts.entry((MemoryClass::Stacks, None)).or_default() += stacks;
        for (heap, extents) in &evidence.extents {
            let taken = self.take_hooked(self.overlapping(extents), sums);
            let strays = self.take_hooked(held.stray.get(heap).cloned().unwrap_or_default(), sums);
            heaps.entry(*heap).or_default().0 += taken + strays;
        }
        if let Some(heap) = whole {
            heaps.entry(heap).or_default().0 += self.take_hooked(vec![self.span.clone()], sums);
        }
        for (heap, mappings) in &held.mapped {
            let taken = self.take_hooked(mappings.clone(), sums);
            let of_heap = heaps.entry(*heap).or_default();
            *of_heap = (of_heap.0 + taken, of_heap.1 + taken);
        }
        if let Some(go) = &evidence.go {
            let taken = self.take_hooked(self.overlapping(&go.spans), sums);
            heaps.entry(go.heap).or_default().0 += taken;
        }
        for (heap, bytes) in unknown {
            let bytes = round(bytes).min(self.rest);
            self.rest -= bytes;
            heaps.entry(heap).or_default().0 += bytes;
        }
        for (heap, (bytes, large_bytes)) in heaps {
            let small = held.small.get(&heap).copied().unwrap_or_default();
            add_heap(sums.heaps.entry(heap).or_default(), bytes, large_bytes, small);
        }
        let variables = self.take(self.overlapping(&evidence.variables));
        *sums.parts.entry((MemoryClass::Files, None)).or_default() += variables;
        if let Some(before) = &evidence.before {
            let touched = self.take(without(vec![self.span.clone()], &self.overlapping(before)));
            add_heap(sums.heaps.entry(HeapId(PAGES_HEAP)).or_default(), touched, touched, Small::default());
        }
        self.rest
    }

    /// Gives pages that have no owner a hooked heap as their owner. Returns their resident bytes.
    fn take_hooked(&mut self, spans: Vec<Span>, sums: &mut Sums) -> u64 {
        sums.hooked.extend(spans.iter().map(|span| self.clipped(span.clone())).filter(|span| span.start < span.end));
        self.take(spans)
    }

    /// Adds the live bytes of a large block to those of the mapping, or, where the block stands for others, to those of the heap.
    fn add_large(&self, block: &BlockPlace, taken: u64, live: &mut u64, of_heap: &mut HeapSum) {
        let resident = self.resident(&[self.clipped(block.span())]).min(taken);
        if block.weight() > 1.0 {
            of_heap.sampled_bytes += weighted(resident, block.weight());
        } else {
            *live = live.saturating_add(resident);
        }
    }

    /// Gives pages that have no owner one. Returns their resident bytes.
    fn take(&mut self, spans: Vec<Span>) -> u64 {
        if spans.is_empty() || self.rest == 0 {
            return 0;
        }
        let spans = joined(spans.into_iter().map(|span| self.clipped(span)).collect());
        let spans = if self.owned.is_empty() { spans } else { without(spans, &self.owned) };
        let bytes = self.resident(&spans).min(self.rest);
        self.rest -= bytes;
        self.owned =
            if self.owned.is_empty() { spans } else { joined([std::mem::take(&mut self.owned), spans].concat()) };
        bytes
    }

    /// Number of resident bytes of sorted spans without overlaps. Where pages are unknown, all may be resident.
    fn resident(&self, spans: &[Span]) -> u64 {
        let whole = || spans.iter().map(|span| span.end.0.saturating_sub(span.start.0)).fold(0, u64::saturating_add);
        if self.is_full { whole() } else { self.pages.resident_bytes(spans).unwrap_or_else(whole) }
    }

    fn clipped(&self, span: Span) -> Span {
        span.start.max(self.span.start)..span.end.min(self.span.end)
    }

    /// The sorted spans that overlap the mapping.
    fn overlapping(&self, spans: &[Span]) -> Vec<Span> {
        let first = spans.partition_point(|span| span.end <= self.span.start);
        spans[first..].iter().take_while(|span| span.start < self.span.end).cloned().collect()
    }
}

/// Blocks by heap. Heaps that may have their memory from other heaps come first.
fn by_heap<'a>(blocks: &'a [BlockPlace], evidence: &Evidence) -> Vec<(HeapId, Vec<&'a BlockPlace>)> {
    let mut by_heap: BTreeMap<HeapId, Vec<&BlockPlace>> = BTreeMap::new();
    blocks.iter().for_each(|block| by_heap.entry(block.heap).or_default().push(block));
    let mut by_heap: Vec<_> = by_heap.into_iter().collect();
    by_heap.sort_by_key(|(heap, _)| evidence.is_allocator(*heap));
    by_heap
}

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn weighted(bytes: u64, weight: f64) -> f64 {
    bytes as f64 * weight
}

/// Adds the sums of a heap in a mapping. Live bytes of a mapping do not exceed its resident bytes, those of sampled blocks do not
/// exceed the whole heap.
fn add_heap(sum: &mut HeapSum, bytes: u64, large_bytes: u64, small: Small) {
    let live = large_bytes.saturating_add(small.exact_bytes).min(bytes);
    sum.bytes = sum.bytes.saturating_add(bytes);
    sum.live_bytes = sum.live_bytes.saturating_add(live);
    sum.sampled_bytes += small.sampled_bytes;
}

const HEAPBPF: &str = "heapbpf";
/// Maximum distance between the inline engine's code and its map.
const COUNTDOWNS_BYTES_MAX: u64 = 1 << 20;

/// Whether a mapping belongs to the inline engine: code, countdowns behind it, or a map behind those.
pub(crate) fn is_of_heapbpf(mapped: &[MappedMemory], at: usize) -> bool {
    let region = &mapped[at].region;
    let before = || mapped[..at].iter().rev().take(2).map(|memory| &memory.region);
    if region.is_bpf_map() {
        let reach = region.start.0.saturating_sub(COUNTDOWNS_BYTES_MAX);
        return before().any(|before| before.is_stubs() && before.end.0 >= reach);
    }
    let follows = || before().next().is_some_and(|before| before.is_stubs() && before.end == region.start);
    let is_followed =
        || mapped.get(at + 1).is_some_and(|next| next.region.is_bpf_map() && next.region.start == region.end);
    region.is_stubs()
        || (region.is_anonymous() && region.size_bytes() <= COUNTDOWNS_BYTES_MAX && follows() && is_followed())
}

fn is_heap_like(region: &Region) -> bool {
    region.is_anonymous() && !region.shared && !region.executable
}

fn class(region: &Region, evidence: &Evidence) -> (MemoryClass, Option<Arc<str>>) {
    let has_stack = || {
        let behind = evidence.pointers.partition_point(|&address| address < region.start);
        evidence.pointers.get(behind).is_some_and(|&address| region.contains(address))
    };
    match &region.kind {
        RegionKind::Stack => (MemoryClass::Stacks, None),
        _ if region.shared => (MemoryClass::Shared, None),
        RegionKind::File { path } if is_shared_memory(path) => (MemoryClass::Shared, None),
        RegionKind::File { .. } | RegionKind::Kernel => (MemoryClass::Files, None),
        RegionKind::Anonymous { name: Some(name) } if name.starts_with("glibc: pthread stack") => {
            (MemoryClass::Stacks, None)
        }
        _ if has_stack() => (MemoryClass::Stacks, None),
        _ if region.executable => (MemoryClass::GeneratedCode, None),
        RegionKind::Anonymous { name: Some(name) } => (MemoryClass::OtherAllocator, Some(label(name))),
        RegionKind::Brk => (MemoryClass::OtherAllocator, Some(Arc::from("brk"))),
        RegionKind::Anonymous { name: None } => (MemoryClass::Unexplained, None),
    }
}

/// Whether a private mapping is one of shared memory, or of a memfd.
fn is_shared_memory(path: &std::path::Path) -> bool {
    ["/dev/shm/", "/memfd:", "/SYSV", "/dev/zero"]
        .iter()
        .any(|prefix| path.as_os_str().as_encoded_bytes().starts_with(prefix.as_bytes()))
}

/// Label of a mapping. A process chooses the names of its mappings, so only the first word of a name counts.
fn label(name: &str) -> Arc<str> {
    const LENGTH_MAX: usize = 24;
    let word = name.split([':', ' ', '-', '/', '.']).next().unwrap_or_default();
    Arc::from(word.chars().filter(char::is_ascii_graphic).take(LENGTH_MAX).collect::<String>())
}

/// Maximum number of names; beyond it, the smallest are one part.
const NAMES_MAX: usize = 8;

fn bounded(parts: Parts) -> Parts {
    let named = |class: MemoryClass| class == MemoryClass::OtherAllocator;
    let mut sizes: Vec<u64> = parts.iter().filter(|((class, _), _)| named(*class)).map(|(_, bytes)| *bytes).collect();
    sizes.sort_unstable_by_key(|bytes| Reverse(*bytes));
    let least = sizes.get(NAMES_MAX).copied().unwrap_or(0);
    let mut bounded = Parts::new();
    for ((class, name), bytes) in parts {
        let name = name.filter(|_| !named(class) || bytes > least);
        *bounded.entry((class, name)).or_default() += bytes;
    }
    bounded
}

#[cfg(test)]
mod tests;
