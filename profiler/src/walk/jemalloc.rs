//! Walks the heap of jemalloc since 5.3.0.
//!
//! ```text
//! blocks of metadata ─▶ possible extents ─▶ confirmed by the page tree? ─▶ slab: a bitmap of blocks
//!  (known by their headers)                 (in the module's data)        large: one block
//! ```
//!
//! Blocks in the caches of threads are free and left out, and so are the caches. Other internal allocations of
//! jemalloc count as blocks, and so do the contents of caches that a program creates with `tcache.create`.

mod extents;

use super::scene::{Scene, Walk, WalkedBlock, covered};
use crate::address::TargetAddr;
use crate::collect::spans::joined;
use crate::memory::{Memory, WORD_BYTES};
use extents::{Extent, Sizes, Tree};

const HEAP: &str = "jemalloc";

/// Walks the heap, if there is one. The result consists of gaps if its structures are unknown.
pub(super) fn walk(scene: &Scene<'_>) -> Option<Walk> {
    let bases = extents::find_bases(scene);
    if bases.is_empty() {
        return None;
    }
    let refused = |why: &str| Some(Walk { heap: HEAP, gaps: vec![why.to_owned()], ..Walk::default() });
    let candidates = extents::candidates(scene.memory, &bases);
    let Some(tree) = Tree::find(scene, &bases, &candidates) else {
        return refused("its page tree was not found: only jemalloc 5.3 for 48-bit addresses can be walked");
    };
    let extents = confirmed(scene, &tree, candidates);
    let inconsistent_max = scene.threads.len();
    let judged = |sizes: Sizes| {
        let inconsistent = extents.iter().filter(|extent| !extent.is_sound(&sizes)).count();
        (inconsistent <= inconsistent_max).then_some(sizes)
    };
    if !extents.iter().any(|extent| extent.is_slab()) {
        return refused("it has no slabs yet, which are needed to infer its size classes");
    }
    match Sizes::all().find_map(judged) {
        Some(sizes) => Some(blocks(scene, &extents, &sizes)),
        None => refused("its slabs are inconsistent: only jemalloc 5.3 with its default slab sizes can be walked"),
    }
}

/// Returns the extents that the page tree has at their first and last pages, by ascending address. Former extents are
/// not in the tree.
fn confirmed(scene: &Scene<'_>, tree: &Tree, candidates: Vec<Extent>) -> Vec<Extent> {
    let mut extents: Vec<Extent> = candidates.into_iter().filter(|extent| tree.has(scene.memory, extent)).collect();
    extents.sort_by_key(|extent| extent.span().start);
    let mut end = TargetAddr(0);
    extents.retain(|extent| {
        let follows = extent.span().start >= end;
        end = if follows { extent.span().end } else { end };
        follows && covered(scene.regions, &extent.span())
    });
    extents
}

fn blocks(scene: &Scene<'_>, extents: &[Extent], sizes: &Sizes) -> Walk {
    let mut blocks: Vec<WalkedBlock> = Vec::new();
    let mut areas = Vec::new();
    let mut inconsistent = 0_usize;
    for extent in extents {
        if extent.is_sound(sizes) {
            extent.add_blocks(sizes, &mut blocks);
            areas.push(extent.span());
            areas.push(extent.own_span());
        } else {
            inconsistent += 1;
        }
    }
    let mut gaps = Vec::new();
    if inconsistent > 0 {
        gaps.push(format!(
            "{inconsistent} extents are inconsistent: they were being changed when the process was stopped"
        ));
    }
    leave_out_caches(scene, &mut blocks);
    Walk { heap: HEAP, blocks, areas: joined(areas), gaps, busy: inconsistent > 0 }
}

/// Bytes of thread-local storage to search below a thread's control block.
const SEARCHED_BYTES: u64 = 1 << 16;
/// Words of a bin: the top of its stack, a count, and the low 16 bits of the stack's bounds (`cache_bin_s`,
/// include/jemalloc/internal/cache_bin.h of 5.3.0).
const BIN_WORDS: usize = 3;
/// Minimum number of bins of a cache; there is one for each small size class.
const BINS_MIN: usize = 16;
/// Maximum number of bins of a cache: one for each size class.
const BINS_MAX: usize = 256;

/// A stack: its start when full, its current top, and its end.
#[derive(Clone, Copy)]
struct Bin {
    full: u64,
    top: u64,
    empty: u64,
}

impl Bin {
    fn parse(words: &[u64]) -> Option<Self> {
        let &[top, _, low] = words else { return None };
        let [_, full_low, empty_low, _] = [0, 16, 32, 48].map(|shift| (low >> shift & 0xffff) as u16);
        let held = u64::from(empty_low.wrapping_sub((top & 0xffff) as u16));
        let capacity = u64::from(empty_low.wrapping_sub(full_low));
        let empty = top.checked_add(held)?;
        let fits = top.is_multiple_of(WORD_BYTES) && held.is_multiple_of(WORD_BYTES) && held <= capacity;
        fits.then_some(Self { full: empty.checked_sub(capacity)?, top, empty })
    }
}

/// Removes blocks in caches of threads, which are free although their slabs count them as allocated, and the caches'
/// own blocks.
///
/// A thread's cache is an array of bins in its thread-local storage. Each bin is a stack of addresses, and the stacks
/// are adjacent in one block, which identifies bins.
fn leave_out_caches(scene: &Scene<'_>, blocks: &mut Vec<WalkedBlock>) {
    let mut free: Vec<TargetAddr> = Vec::new();
    for thread in scene.threads {
        let end = thread.thread_pointer.0;
        let range = TargetAddr(end.saturating_sub(SEARCHED_BYTES))..TargetAddr(end);
        for part in scene.memory.present(range) {
            let words = words(scene.memory, part.start.0.next_multiple_of(WORD_BYTES), part.end.0);
            let mut at = 0;
            while at < words.len() {
                let bins = bins(&words[at..]);
                let Some(block) = holder(&bins, blocks) else {
                    at += if bins.len() < BINS_MIN { 1 } else { bins.len() * BIN_WORDS };
                    continue;
                };
                free.push(block.start);
                for bin in &bins {
                    free.extend(self::words(scene.memory, bin.top, bin.empty).into_iter().map(TargetAddr));
                }
                at += bins.len() * BIN_WORDS;
                if free.len() > 2 * blocks.len() {
                    // Two caches cannot contain the same block: these are not caches.
                    return;
                }
            }
        }
    }
    free.sort_unstable();
    blocks.retain(|block| free.binary_search(&block.start).is_err());
}

/// Returns the bins from the first of these words on that have adjacent stacks.
fn bins(words: &[u64]) -> Vec<Bin> {
    let mut bins: Vec<Bin> = Vec::new();
    for words in words.chunks_exact(BIN_WORDS).take(BINS_MAX) {
        let follows = |bin: &Bin| bins.last().is_none_or(|before| before.empty == bin.full);
        let Some(bin) = Bin::parse(words).filter(|bin| bin.top != 0).filter(follows) else { break };
        bins.push(bin);
    }
    bins
}

/// Returns the block that contains the stacks of a cache.
fn holder(bins: &[Bin], blocks: &[WalkedBlock]) -> Option<WalkedBlock> {
    let (first, last) = (bins.first()?, bins.last().filter(|_| bins.len() >= BINS_MIN)?);
    let behind = blocks.partition_point(|block| block.start.0 <= first.full);
    let block = *blocks[..behind].last()?;
    (first.full < last.empty && last.empty <= block.start.0 + block.size_bytes).then_some(block)
}

/// Returns the present words in a range.
fn words(memory: &dyn Memory, start: u64, end: u64) -> Vec<u64> {
    let length = end.saturating_sub(start).min(SEARCHED_BYTES.max(1 << 16));
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    let read = memory.read(TargetAddr(start), &mut bytes);
    bytes[..read].as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

#[cfg(test)]
mod tests;
