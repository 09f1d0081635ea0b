//! Evidence about a process besides its mappings: which heaps own which memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::HeapId;
use heapbpf_base::memory::Span;
use heapbpf_base::units::Amounts;
use heapbpf_linux::proc::maps::{Region, RegionKind};
use heapbpf_linux::proc::smaps::MappedMemory;
use profiler_common::interval::Interval;

const PAGE_BYTES: u64 = 4096;

/// A live block of a hooked heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockPlace {
    pub(crate) address: TargetAddr,
    pub(crate) size_bytes: u64,
    /// Interval at which the block was sampled.
    pub(crate) interval: Interval,
    pub(crate) heap: HeapId,
    /// Whether the block is a mapping, or a part of one, in which allocators may have blocks.
    pub(crate) is_mapping: bool,
}

impl BlockPlace {
    pub(crate) fn span(&self) -> Span {
        self.address..TargetAddr(self.address.0.saturating_add(self.size_bytes))
    }

    /// Pages that the block occupies.
    pub(crate) fn pages(&self) -> Span {
        let end = self.span().end.0;
        TargetAddr(self.address.0 / PAGE_BYTES * PAGE_BYTES)
            ..TargetAddr(end.checked_next_multiple_of(PAGE_BYTES).unwrap_or(end))
    }

    pub(crate) fn is_sampled(&self) -> bool {
        self.size_bytes < u64::from(self.interval.bytes())
    }

    pub(crate) fn estimated_bytes(&self) -> f64 {
        Amounts::of(self.size_bytes, self.interval).bytes.to_f64()
    }

    /// Number of bytes that each byte of the block stands for.
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    pub(crate) fn weight(&self) -> f64 {
        if self.is_sampled() { self.estimated_bytes() / self.size_bytes.max(1) as f64 } else { 1.0 }
    }
}

/// The memory of Go's heap, if that is recorded.
#[derive(Clone, Debug, Default)]
pub(crate) struct GoMemory {
    pub(crate) heap: HeapId,
    /// By rising address.
    pub(crate) spans: Vec<Span>,
    /// Estimated bytes of live blocks.
    pub(crate) live_bytes: f64,
}

/// Evidence about a process besides its mappings and blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Evidence {
    /// Names of heaps by id.
    pub(crate) heaps: Vec<Arc<str>>,
    /// Ids of the heaps of this process.
    pub(crate) own: Vec<HeapId>,
    /// Stacks of threads by rising address, without overlaps, like the other spans.
    pub(crate) stacks: Vec<Span>,
    /// An address in each stack whose bounds are unknown, by rising address.
    pub(crate) pointers: Vec<TargetAddr>,
    /// Memory from the system, besides `brk`, of the heaps whose allocators' structures are known.
    pub(crate) extents: BTreeMap<HeapId, Vec<Span>>,
    pub(crate) variables: Vec<Span>,
    /// Pages that have been resident since before the recording began; `None` if pages are not recorded.
    pub(crate) before: Option<Vec<Span>>,
    pub(crate) go: Option<GoMemory>,
    /// Heaps that have small blocks, by the address of a block, one for each mapping. Includes earlier samples.
    pub(crate) known: BTreeMap<TargetAddr, HeapId>,
}

/// Size and alignment of an arena of glibc (`HEAP_MAX_SIZE` in malloc/arena.c).
pub(super) const ARENA_BYTES: u64 = 64 << 20;

const LIBC: &str = "libc";
/// Names of the heaps of allocators that take memory from the system. Other heaps may take theirs from one of these.
const ALLOCATORS: [&str; 5] = [LIBC, "jemalloc", "tcmalloc", "mimalloc", "musl"];

impl Evidence {
    pub(crate) fn name(&self, heap: HeapId) -> Option<&Arc<str>> {
        self.heaps.get(usize::from(heap.0))
    }

    pub(super) fn is_allocator(&self, heap: HeapId) -> bool {
        self.name(heap).is_some_and(|name| ALLOCATORS.contains(&&**name))
    }

    /// Whether a heap may have large blocks outside of its known memory, because its allocator maps them separately, as glibc
    /// does.
    pub(super) fn maps_blocks(&self, heap: HeapId) -> bool {
        !self.extents.contains_key(&heap) || self.name(heap).is_some_and(|name| &**name == LIBC)
    }

    /// Notes that a heap has a small block in a mapping that has none of its blocks in this sample so far.
    pub(super) fn note(&mut self, region: &Region, block: &BlockPlace) {
        let mut of_region = self.known.range(region.start..region.end);
        if of_region.all(|(_, heap)| *heap != block.heap) {
            self.known.insert(block.address, block.heap);
        }
    }

    /// Notes a large block in `brk`, which cannot be mapped separately.
    pub(super) fn note_large(&mut self, region: &Region, block: &BlockPlace) {
        if region.kind == RegionKind::Brk {
            self.note(region, block);
        }
    }

    /// Whether a block is outside of the known memory of its heap.
    pub(super) fn is_stray(&self, region: &Region, block: &BlockPlace) -> bool {
        let Some(extents) = self.extents.get(&block.heap).filter(|_| region.kind != RegionKind::Brk) else {
            return false;
        };
        let behind = extents.partition_point(|extent| extent.start <= block.address);
        !extents[..behind].last().is_some_and(|extent| extent.contains(&block.address))
    }

    /// Forgets blocks in memory that is not mapped any more: a heap keeps its mappings when all of its blocks there are free.
    pub(crate) fn retain(&mut self, mapped: &[MappedMemory]) {
        self.known.retain(|&address, _| index_of(mapped, address).is_some());
    }

    /// The heap that a mapping belongs to as a whole.
    pub(super) fn whole(&self, memory: &MappedMemory, next: Option<&Region>) -> Option<HeapId> {
        let region = &memory.region;
        let is_brk = region.kind == RegionKind::Brk;
        let of_region = self.known.range(region.start..region.end).map(|(_, heap)| *heap);
        let unknown = of_region.filter(|heap| is_brk || !self.extents.contains_key(heap));
        let known: BTreeSet<HeapId> = unknown.collect();
        let allocator = known.iter().copied().find(|heap| self.is_allocator(*heap));
        allocator.or_else(|| self.glibc(region, next)).or_else(|| known.first().copied())
    }

    /// glibc's heap, if the mapping has the shape of `brk` or of an arena, and no other allocator has replaced glibc's.
    fn glibc(&self, region: &Region, next: Option<&Region>) -> Option<HeapId> {
        // One without reserve cannot be distinguished from other mappings, unless it has known blocks.
        let is_arena = || {
            let end = region.start.0.saturating_add(ARENA_BYTES);
            let has_reserve = next
                .is_some_and(|next| next.start == region.end && next.end.0 == end && !next.readable && !next.writable);
            region.start.0.is_multiple_of(ARENA_BYTES) && region.writable && has_reserve
        };
        let is_named =
            matches!(&region.kind, RegionKind::Anonymous { name: Some(name) } if name.starts_with("glibc: malloc"));
        if region.kind != RegionKind::Brk && !is_named && !is_arena() {
            return None;
        }
        let mut allocators = self.own.iter().copied().filter(|heap| self.is_allocator(*heap));
        let first = allocators.next()?;
        let is_only = allocators.next().is_none() && self.name(first).is_some_and(|name| &**name == LIBC);
        is_only.then_some(first)
    }
}

pub(super) fn index_of(mapped: &[MappedMemory], address: TargetAddr) -> Option<usize> {
    let behind = mapped.partition_point(|memory| memory.region.start <= address);
    behind.checked_sub(1).filter(|&at| mapped[at].region.contains(address))
}
