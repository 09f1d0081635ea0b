//! Input and output of walks, and readers of memory that may contain anything.

use heapbpf_base::address::TargetAddr;
use heapbpf_base::memory::{Memory, Span, WORD_BYTES};
use heapbpf_linux::proc::maps::{Region, RegionKind};
use profiler_common::limits::PAGE_BYTES;

use crate::collect::ThreadState;

pub struct Scene<'a> {
    pub(super) memory: &'a dyn Memory,
    pub(super) threads: &'a [ThreadState],
    /// Mappings as the kernel has them.
    mappings: &'a [Region],
    /// Regions, in which adjoining mappings of one kind are joined.
    regions: Vec<Region>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Walk {
    /// Name of the heap as in hooks (`libc`, `jemalloc`, …).
    pub heap: &'static str,
    /// Blocks by ascending address, without overlaps.
    pub blocks: Vec<WalkedBlock>,
    /// Memory whose allocated blocks are all known: the rest of it is free, or the allocator's own.
    pub areas: Vec<Span>,
    /// Descriptions of memory that could not be walked, and why. This memory is not in `areas`.
    pub gaps: Vec<String>,
    /// Whether sizes are the requested ones.
    pub has_exact_sizes: bool,
    /// Whether a thread was running allocator code, so that some of the result may be wrong: worth another try later.
    pub busy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkedBlock {
    /// Address that the program has.
    pub start: TargetAddr,
    /// Usable size of the block, or the requested one: see [`Walk::has_exact_sizes`].
    pub size_bytes: u64,
}

/// Reason why a process has no heap that can be walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absence {
    /// The process's dynamic linker is loading it.
    Starting,
    /// The process's allocator has not been called.
    Unused,
    /// The process's allocator has no block in use.
    Empty,
    /// A thread was changing the allocator's data structures.
    Changing,
    /// The allocator's data structures are overwritten.
    Damaged,
    /// The process's allocator was not recognized.
    Unknown,
}

impl<'a> Scene<'a> {
    /// Creates a scene. `mappings` are by ascending address.
    pub fn new(memory: &'a dyn Memory, mappings: &'a [Region], threads: &'a [ThreadState]) -> Self {
        Self { memory, threads, mappings, regions: joined_by_kind(mappings) }
    }

    /// Regions by ascending address. The bounds between adjoining mappings are up to the kernel, not to allocators.
    pub(super) fn regions(&self) -> &[Region] {
        &self.regions
    }

    pub(super) fn is_start_of_mapping(&self, address: u64) -> bool {
        self.mappings.binary_search_by_key(&address, |mapping| mapping.start.0).is_ok()
    }

    pub(super) fn is_end_of_mapping(&self, address: u64) -> bool {
        self.mappings.binary_search_by_key(&address, |mapping| mapping.end.0).is_ok()
    }

    /// Private mappings that can be a module's data: those of a file, or anonymous ones after a file's, for zero-initialized
    /// variables.
    pub(super) fn module_data(&self) -> impl Iterator<Item = &Region> {
        let before = std::iter::once(None).chain(self.regions.iter().map(Some));
        let is_file = |region: &Region| matches!(region.kind, RegionKind::File { .. });
        let pairs = before.zip(&self.regions).filter(move |(before, region)| {
            let follows_file = || before.is_some_and(|before| is_file(before) && before.end == region.start);
            let is_private = region.readable && region.writable && !region.shared;
            is_private && (is_file(region) || (region.is_anonymous() && follows_file()))
        });
        pairs.map(|(_, region)| region)
    }

    pub(super) fn anonymous(&self) -> impl Iterator<Item = &Region> {
        self.regions.iter().filter(|region| region.is_anonymous() && region.writable && !region.shared)
    }

    /// Anonymous memory outside of sorted areas, from the start of a page on, where mappings start.
    pub(super) fn unknown(&self, areas: &[Span]) -> Vec<Span> {
        let mut gaps = Vec::new();
        for region in self.anonymous() {
            let mut start = region.start;
            let behind = areas.partition_point(|area| area.end <= region.start);
            for area in areas[behind..].iter().take_while(|area| area.start < region.end) {
                gaps.push(start..area.start);
                start = area.end;
            }
            gaps.push(start..region.end);
        }
        gaps.retain_mut(|gap| {
            gap.start.0 = gap.start.0.next_multiple_of(PAGE_BYTES);
            gap.start < gap.end
        });
        gaps
    }
}

/// Joins adjoining private anonymous mappings to one region, accessible if a part is. The kernel splits a mapping where the
/// protection, the advice, the name or the policy of its pages differs, or whether they are locked, and keeps memory separate
/// that a process has added to `brk` since it was forked.
fn joined_by_kind(mappings: &[Region]) -> Vec<Region> {
    let mut joined = mappings.to_vec();
    joined.dedup_by(|later, earlier| {
        let joins = earlier.end == later.start && !earlier.shared && !later.shared && is_continued(earlier, later);
        if joins {
            earlier.end = later.end;
            earlier.readable |= later.readable;
            earlier.writable |= later.writable;
            earlier.executable |= later.executable;
        }
        joins
    });
    joined
}

/// Whether the later of two adjoining private mappings has the kind of the earlier one. The parts of a file with other
/// access are other segments of a module.
fn is_continued(earlier: &Region, later: &Region) -> bool {
    let access = |region: &Region| (region.readable, region.writable, region.executable);
    match (&earlier.kind, &later.kind) {
        (RegionKind::Brk, RegionKind::Brk) | (RegionKind::Anonymous { .. }, RegionKind::Anonymous { .. }) => true,
        (RegionKind::File { path: first }, RegionKind::File { path: second }) => {
            let follows = earlier.offset.0.checked_add(earlier.size_bytes()) == Some(later.offset.0);
            first == second && follows && access(earlier) == access(later)
        }
        _ => false,
    }
}

pub(super) fn span(start: u64, end: u64) -> Span {
    TargetAddr(start)..TargetAddr(end)
}

/// The last span that starts at or before an address. `spans` must be in ascending order.
pub(super) fn last_before(spans: &[Span], address: u64) -> Option<&Span> {
    spans[..spans.partition_point(|span| span.start.0 <= address)].last()
}

/// End of the addresses of user processes with four levels of page tables.
pub(super) const ADDRESS_MAX: u64 = 1 << 47;

const PART_BYTES: u64 = 1 << 16;

/// Reads an array of words; `None` unless all words are present.
pub(super) fn array<const N: usize>(memory: &dyn Memory, address: u64) -> Option<[u64; N]> {
    let mut words = [[0; size_of::<u64>()]; N];
    let whole = memory.read(TargetAddr(address), words.as_flattened_mut()) == size_of_val(&words);
    whole.then(|| words.map(u64::from_le_bytes))
}

/// Reads words up to the first one that is not present, at most 2^14.
pub(super) fn words(memory: &dyn Memory, start: u64, end: u64) -> Vec<u64> {
    let length = end.saturating_sub(start).min(2 * PART_BYTES);
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    let read = memory.read(TargetAddr(start), &mut bytes);
    bytes[..read].as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// Reads the present words in parts. Each part ends with the first word of the next one, so that pairs are complete.
pub(super) fn parts(memory: &dyn Memory, range: Span) -> impl Iterator<Item = (u64, Vec<u64>)> {
    memory.present(range).into_iter().flat_map(move |present| {
        let (start, end) = (present.start.0.next_multiple_of(WORD_BYTES), present.end.0);
        let starts = (0..end.saturating_sub(start).div_ceil(PART_BYTES)).map(move |nth| start + nth * PART_BYTES);
        starts.map(move |at| (at, words(memory, at, end.min(at.saturating_add(PART_BYTES + WORD_BYTES)))))
    })
}

/// Whether a span is mapped completely, and privately.
pub(super) fn covered(regions: &[Region], span: &Span) -> bool {
    let first = regions.partition_point(|region| region.end <= span.start);
    let mut end = span.start;
    for region in &regions[first..] {
        if region.start > end || region.shared {
            return false;
        }
        end = region.end;
        if end >= span.end {
            return true;
        }
    }
    false
}
