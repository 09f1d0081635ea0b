//! Blocks with mappings of their own. The library counts these blocks, which proves that all were found.

use heapbpf_base::address::TargetAddr;
use heapbpf_base::memory::{Memory, Span, WORD_BYTES};
use heapbpf_linux::proc::maps::region_of;
use profiler_common::limits::PAGE_BYTES;

use super::arena::Circle;
use super::chunk::{CHUNK_BYTES_MIN, FLAGS, HEADER_BYTES, MAPPED};
use crate::walk::scene::{Scene, Walk, WalkedBlock, array, span, words};

/// A mapping that is one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapped {
    start: u64,
    end: u64,
    block: WalkedBlock,
}

/// Adds the blocks to a walk whose areas are sorted. Without a count that confirms them, only blocks that fill whole
/// mappings are added, and the rest is a gap. Returns false if there are none.
pub(super) fn walk(scene: &Scene<'_>, circles: &[Circle], walk: &mut Walk) -> bool {
    let counts: Option<Vec<Counts>> = circles.iter().map(|circle| Counts::find(scene, circle, &walk.areas)).collect();
    let counts = counts.map(|counts| counts.into_iter().fold(Counts::default(), Counts::plus));
    let has_none = counts.is_some_and(|counts| counts.blocks == 0);
    let all = if has_none { Vec::new() } else { find(scene, &walk.areas) };
    let has_any = !all.is_empty() || counts.is_some_and(|counts| counts.blocks > 0);
    let found = if counts.is_some_and(|counts| counts.confirm(&all)) {
        all
    } else {
        // A thread may have been stopped between a system call for a mapping and the change of the count.
        let running = scene.threads.iter().filter(|thread| !thread.in_syscall).count() as u64;
        walk.busy |= counts.is_some_and(|it| running > 0 && it.blocks.abs_diff(all.len() as u64) <= running);
        if counts.is_some() || walk.gaps.is_empty() {
            walk.gaps.push(gap(counts, &all));
        }
        alone(scene, &walk.areas, &all)
    };
    walk.areas.extend(found.iter().map(|mapped| span(mapped.start, mapped.end)));
    walk.blocks.extend(found.iter().map(|mapped| mapped.block));
    has_any
}

fn gap(counts: Option<Counts>, found: &[Mapped]) -> String {
    let (blocks, bytes) = (found.len(), bytes(found));
    match counts {
        Some(counts) => format!(
            "the allocator counts {} blocks with mappings of their own, of {} bytes, and {blocks} of {bytes} bytes were found",
            counts.blocks, counts.bytes
        ),
        None => format!(
            "the allocator's count of blocks with mappings of their own was not found; {blocks} of {bytes} bytes were found"
        ),
    }
}

fn bytes(found: &[Mapped]) -> u64 {
    found.iter().map(|mapped| mapped.end - mapped.start).sum()
}

/// Runs of blocks that start where a mapping does, and end where one does.
fn alone(scene: &Scene<'_>, areas: &[Span], found: &[Mapped]) -> Vec<Mapped> {
    let is_start =
        |at: u64| scene.is_start_of_mapping(at) || areas.binary_search_by_key(&at, |area| area.end.0).is_ok();
    let is_end = |at: u64| scene.is_end_of_mapping(at) || areas.binary_search_by_key(&at, |area| area.start.0).is_ok();
    let runs = found.chunk_by(|before, after| before.end == after.start);
    let whole = runs.filter(|run| {
        run.first().is_some_and(|first| is_start(first.start)) && run.last().is_some_and(|last| is_end(last.end))
    });
    whole.flatten().copied().collect()
}

/// Mappings of blocks that follow each other from the start of a span on, as the kernel joins them. The process may be running.
pub(super) fn from_start(memory: &dyn Memory, gap: &Span) -> Vec<Span> {
    let mut found = Vec::new();
    let mut at = gap.start.0;
    let block = |at: u64| {
        let [first, head] = array(memory, at)?;
        (first & !1 == 0 && head & FLAGS == MAPPED).then_some(())?;
        let fits = |skip: &u64| *skip < gap.end.0 - at;
        std::iter::once(0).chain(aligned(at)).filter(fits).find_map(|skip| chunk(memory, at, skip, gap.end.0))
    };
    while at < gap.end.0
        && let Some(mapped) = block(at)
    {
        found.push(span(mapped.start, mapped.end));
        at = mapped.end;
    }
    found
}

fn find(scene: &Scene<'_>, areas: &[Span]) -> Vec<Mapped> {
    let mut all = Vec::new();
    for gap in scene.unknown(areas) {
        let mut at = gap.start.0;
        // Skip untouched address space, which can be terabytes: a block's first words are present.
        for part in scene.memory.present(gap.clone()) {
            at = at.max(part.start.0 / PAGE_BYTES * PAGE_BYTES);
            while at < part.end.0 {
                let found = mapped_at(scene.memory, at, gap.end.0);
                at = found.map_or(at.saturating_add(PAGE_BYTES), |mapped| mapped.end);
                all.extend(found);
            }
        }
    }
    all
}

/// Maximum distance of the parameters from the main arena.
const PARAMETERS_WITHIN_BYTES: u64 = 1 << 16;
/// Constants `DEFAULT_MMAP_MAX` and `DEFAULT_TOP_PAD` of malloc/malloc.c.
const BLOCKS_MAX: u64 = 1 << 16;
const TOP_PAD_BYTES: u64 = 128 << 10;
/// Number of words of the parameters before the numbers of blocks: `top_pad` is among them.
const WORDS_BEFORE: usize = 12;

/// The library's own counts (`malloc_par` in malloc/malloc.c).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    blocks: u64,
    bytes: u64,
}

impl Counts {
    fn plus(self, other: Self) -> Self {
        Self { blocks: self.blocks.saturating_add(other.blocks), bytes: self.bytes.wrapping_add(other.bytes) }
    }

    /// Finds the counts near the main arena. The parameters contain the start of its memory, before it the maximum and current
    /// bytes of mappings, and before these their numbers. An arena without memory has no start: then its limits must be the
    /// initial ones.
    fn find(scene: &Scene<'_>, circle: &Circle, areas: &[Span]) -> Option<Self> {
        let arena = circle.main.address..circle.main.end();
        let region = region_of(scene.regions(), TargetAddr(arena.start))?;
        let first = (arena.start.saturating_sub(PARAMETERS_WITHIN_BYTES) & !(WORD_BYTES - 1)).max(region.start.0);
        let end = region.end.0.min(arena.start.saturating_add(PARAMETERS_WITHIN_BYTES));
        let words = words(scene.memory, first, end);
        let begins = |base: u64| {
            let start = base.checked_next_multiple_of(16);
            start.is_some_and(|start| areas.binary_search_by_key(&start, |area| area.start.0).is_ok())
        };
        let is_heap = |base: u64| region_of(scene.regions(), TargetAddr(base)).is_some_and(|it| it.is_anonymous());
        let initial = |at: usize| words[at.saturating_sub(WORDS_BEFORE)..at].contains(&TOP_PAD_BYTES);
        let windows = || {
            let places = words.windows(6).enumerate().zip((first..).step_by(size_of::<u64>()));
            let outside =
                places.filter(|(_, at)| !(arena.start.saturating_sub(5 * WORD_BYTES)..arena.end).contains(at));
            outside.filter_map(|((at, window), _)| Some((at, <[u64; 6]>::try_from(window).ok()?)))
        };
        let certain =
            windows().filter(|(_, window)| begins(window[5])).find_map(|(_, window)| Self::parse(&window, false));
        certain.or_else(|| {
            let likely = windows().filter(|&(at, window)| initial(at) && (window[5] == 0 || is_heap(window[5])));
            likely.filter(|(_, window)| window[3] <= window[4]).find_map(|(_, window)| Self::parse(&window, true))
        })
    }

    fn parse(&[earlier, numbers, later, bytes, _, _]: &[u64; 6], is_initial: bool) -> Option<Self> {
        let (low, high) = (|word: u64| word & 0xffff_ffff, |word: u64| word >> 32);
        // The fields are the number of blocks, its limit, and its maximum, and a flag: first as since 2.35, then as before.
        let layouts = [
            (high(earlier), low(numbers), high(numbers), later),
            (low(numbers), high(numbers), low(later), high(later)),
        ];
        let fits = |&(blocks, limit, blocks_max, flag): &(u64, u64, u64, u64)| {
            // In 2.43 the bytes are off by 16 whenever a block's mapping was resized.
            let has_bytes = bytes != 0 && bytes.is_multiple_of(PAGE_BYTES);
            blocks <= blocks_max && flag <= 1 && (!is_initial || limit == BLOCKS_MAX) && (blocks > 0 || !has_bytes)
        };
        layouts.into_iter().find(fits).map(|(blocks, ..)| Self { blocks, bytes })
    }

    fn confirm(self, found: &[Mapped]) -> bool {
        let off = bytes(found).wrapping_sub(self.bytes);
        self.blocks == found.len() as u64 && (off == 0 || !off.is_multiple_of(PAGE_BYTES))
    }
}

/// Number of pages before an aligned block that are searched where `realloc` has moved the block to where it is not aligned.
const MOVED_PAGES_MAX: u64 = 512;
/// Number of runs of touched pages in which a moved aligned block is searched: pages before its first page were never touched,
/// except with huge pages.
const RUNS_MAX: usize = 4;

/// The block that a mapping consists of. An aligned block starts later than its mapping, whose first words are still those of the
/// unaligned block.
fn mapped_at(memory: &dyn Memory, start: u64, limit: u64) -> Option<Mapped> {
    let [first, head] = array(memory, start)?;
    (first & !1 == 0 && head & FLAGS == MAPPED).then_some(())?;
    let fits = |skip: &u64| *skip < limit - start;
    let found = aligned(start).filter(fits).find_map(|skip| chunk(memory, start, skip, limit));
    let moved = || {
        let near = (1..=MOVED_PAGES_MAX).map(|pages| pages * PAGE_BYTES - HEADER_BYTES);
        let mut skips = near.chain(after_untouched(memory, start, head & !FLAGS)).filter(fits);
        skips.find_map(|skip| chunk(memory, start, skip, limit))
    };
    found.or_else(moved).or_else(|| chunk(memory, start, 0, limit))
}

/// Distances of the chunks that the library aligns in a mapping: a block starts at the first multiple of the alignment
/// that leaves enough for a chunk before it (`_int_memalign` in malloc/malloc.c).
fn aligned(start: u64) -> impl Iterator<Item = u64> {
    (5..47).filter_map(move |log2| {
        let block = start.checked_add(HEADER_BYTES)?.checked_next_multiple_of(1 << log2)?;
        let enough = block - HEADER_BYTES - start >= CHUNK_BYTES_MIN;
        let block = if enough { block } else { block.checked_add(1 << log2)? };
        Some(block - HEADER_BYTES - start)
    })
}

/// Distances of possible chunks in the first pages after untouched ones.
fn after_untouched(memory: &dyn Memory, start: u64, size_bytes: u64) -> impl Iterator<Item = u64> {
    let parts = memory.present(span(start, start.saturating_add(size_bytes)));
    parts.into_iter().skip(1).take(RUNS_MAX).flat_map(move |part| {
        let first = part.start.0.next_multiple_of(PAGE_BYTES);
        let blocks = (0..=MOVED_PAGES_MAX).map(move |pages| first + pages * PAGE_BYTES);
        blocks.take_while(move |block| *block <= part.end.0).map(move |block| block - HEADER_BYTES - start)
    })
}

/// The chunk at a distance from the start of its mapping.
fn chunk(memory: &dyn Memory, start: u64, skip: u64, limit: u64) -> Option<Mapped> {
    let at = start.checked_add(skip)?;
    let [skipped, head] = array(memory, at)?;
    let size = head & !FLAGS;
    // Since 2.43 the lowest bit marks huge pages.
    if skipped & !1 != skip || head & FLAGS != MAPPED || size < HEADER_BYTES {
        return None;
    }
    let behind = at.checked_add(size)?;
    // Since 2.43 the size is that of a chunk with a neighbor, which is missing here.
    let end = if behind % PAGE_BYTES == 0 { behind } else { behind.checked_add(HEADER_BYTES)? };
    let usable_end = if behind % PAGE_BYTES == 0 { behind } else { behind + WORD_BYTES };
    let fits = end % PAGE_BYTES == 0 && end <= limit && usable_end > at + HEADER_BYTES;
    let block = WalkedBlock { start: TargetAddr(at + HEADER_BYTES), size_bytes: usable_end - at - HEADER_BYTES };
    fits.then_some(Mapped { start, end, block })
}
