//! Walks the heap of glibc's malloc since 2.26. Needs no symbols, and runs nothing in the target.
//!
//! An arena counts as walked only if it is consistent: its chunks follow one another to the last one, each free chunk
//! is in a list, and its pieces have as many bytes as the arena records. All other memory counts as in use.

mod arena;
mod chunk;
mod lists;

#[cfg(test)]
mod tests;

use profiler_common::limits::PAGE_BYTES;

use self::arena::{Arena, Circle, Trace};
use self::chunk::{Chunks, FLAGS, HEADER_BYTES, MAPPED};
use self::lists::{Links, List, Steps, Target};
use super::scene::{Absence, Scene, Walk, WalkedBlock, array, span, words};
use crate::address::TargetAddr;
use crate::linux::proc::maps::region_of;
use crate::memory::{Memory, Span, WORD_BYTES};

pub(crate) const HEAP: &str = "libc";

pub(super) fn walk(scene: &Scene<'_>) -> Option<Walk> {
    let circles = arena::find(scene);
    if !circles.iter().flat_map(Circle::arenas).any(Arena::is_used) {
        return None;
    }
    let mut walk = Walk { heap: HEAP, ..Walk::default() };
    let mapped_bytes = scene.regions.iter().filter(|region| region.is_anonymous()).map(|region| region.size_bytes());
    // Twice the maximum number of chunks: each one is read once, and the start of a piece may have to be searched.
    let mut chunks = Chunks::new(scene.memory, mapped_bytes.sum::<u64>() / chunk::HEADER_BYTES);
    for arena in circles.iter().flat_map(Circle::arenas) {
        walk.busy |= arena.locked;
    }
    for circle in &circles {
        // The heads of the lists belong to the allocator. Other arenas lie in their heaps.
        walk.areas.push(span(circle.main.address, circle.main.end()));
        for arena in &circle.others {
            chunk::walk_other(scene, arena, &mut chunks, &mut walk);
        }
        chunk::walk_main(scene, &circle.main, &mut chunks, &mut walk);
    }
    walk.areas.sort_by_key(|area| area.start);
    walk.blocks = chunks.blocks;
    walk.blocks.sort_unstable_by_key(|block| block.start);
    leave_out_free(scene, &circles, &mut walk);
    walk_mapped(scene, &circles, &mut walk);
    walk.areas.sort_by_key(|area| area.start);
    walk.blocks.sort_unstable_by_key(|block| block.start);
    Some(walk)
}

/// Why there is no walk, if the library's main arena was found nevertheless.
pub(super) fn absence(scene: &Scene<'_>) -> Option<Absence> {
    arena::trace(scene).map(|trace| match trace {
        Trace::Unused => Absence::Unused,
        Trace::Damaged => Absence::Damaged,
    })
}

/// Removes blocks that are free but look used, and the caches.
fn leave_out_free(scene: &Scene<'_>, circles: &[Circle], walk: &mut Walk) {
    let everything = scene.memory.present(TargetAddr(0)..TargetAddr(u64::MAX));
    let steps = &Steps::of(everything.iter().map(|span| span.end.0 - span.start.0).sum());
    let tried = Links::ALL.map(|links| (links, fastbins(scene, circles, links, steps)));
    let (links, mut free) = match tried {
        [(mangled, Some(free)), _] if !free.is_empty() => (mangled, free),
        [_, (plain, Some(free))] if !free.is_empty() => (plain, free),
        // Fastbins are empty, so the format of links must be inferred from caches.
        [(_, Some(free)), _] => (links_of_caches(scene, &walk.blocks, steps), free),
        _ => {
            // The free blocks are unknown, so everything counts as in use.
            walk.busy = true;
            walk.gaps.push("lists of free chunks are inconsistent: being changed, or overwritten".to_owned());
            walk.areas.clear();
            walk.blocks.clear();
            return;
        }
    };
    let mut caches = lists::caches(scene, circles, &walk.blocks, links, steps);
    for &block in walk.blocks.iter().filter(|block| lists::may_be_cache(block)) {
        if let Some(entries) =
            lists::cache_entries(scene.memory, links, block, steps).filter(|entries| !entries.is_empty())
        {
            caches.push(block.start);
            free.extend(entries.into_iter().map(TargetAddr));
        }
    }
    walk.busy |= lists::is_busy(scene, circles, &caches);
    free.extend(caches);
    free.sort_unstable();
    let mut rest = free.iter().peekable();
    walk.blocks.retain(|block| {
        while rest.next_if(|free| **free < block.start).is_some() {}
        rest.peek().is_none_or(|free| **free != block.start)
    });
}

/// `None` if one is inconsistent with this format of links.
fn fastbins(scene: &Scene<'_>, circles: &[Circle], links: Links, steps: &Steps) -> Option<Vec<TargetAddr>> {
    let mut all = Vec::new();
    for arena in circles.iter().flat_map(Circle::arenas) {
        for &(first, chunk_bytes) in &arena.fastbins {
            let count_max = arena.system_bytes / chunk_bytes;
            let list = List { first, target: Target::Chunk, chunk_bytes: chunk_bytes..=chunk_bytes, count_max };
            all.extend(list.blocks(scene.memory, links, steps)?.into_iter().map(TargetAddr));
        }
    }
    Some(all)
}

fn links_of_caches(scene: &Scene<'_>, blocks: &[WalkedBlock], steps: &Steps) -> Links {
    let holds = |links: &Links| {
        let caches = blocks.iter().filter(|block| lists::may_be_cache(block));
        caches
            .filter_map(|block| lists::cache_entries(scene.memory, *links, *block, steps))
            .any(|entries| !entries.is_empty())
    };
    Links::ALL.into_iter().find(holds).unwrap_or(Links::Mangled)
}

/// Free pages before an aligned block. `realloc` can move it to where it is not aligned.
const ALIGNMENT_PAGES_MAX: u64 = 512;
/// From the main arena.
const PARAMETERS_WITHIN_BYTES: u64 = 1 << 16;

/// A mapping that is one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapped {
    start: u64,
    end: u64,
    block: WalkedBlock,
}

/// Only the library's count of bytes proves that all blocks were found. Without it, only blocks whose mappings, joined
/// by the kernel, fill whole regions count.
fn walk_mapped(scene: &Scene<'_>, circles: &[Circle], walk: &mut Walk) {
    let mut all = Vec::new();
    let mut alone = Vec::new();
    for gap in unknown(scene, &walk.areas) {
        let before = all.len();
        let mut bytes = 0;
        let mut at = gap.start.0;
        // Skip untouched address space, which can be terabytes: a block's first words are present.
        for part in scene.memory.present(gap.clone()) {
            at = at.max(part.start.0 / PAGE_BYTES * PAGE_BYTES);
            while at < part.end.0 {
                let found = mapped_at(scene.memory, at, gap.end.0);
                at = found.map_or(at.saturating_add(PAGE_BYTES), |mapped| mapped.end);
                bytes += found.map_or(0, |mapped| mapped.end - mapped.start);
                all.extend(found);
            }
        }
        if bytes == gap.end.0 - gap.start.0 {
            alone.extend_from_slice(&all[before..]);
        }
    }
    let proven = circles.iter().any(|circle| confirms(scene, circle, &all, &walk.areas));
    let found = if proven { all } else { alone };
    walk.areas.extend(found.iter().map(|mapped| span(mapped.start, mapped.end)));
    walk.blocks.extend(found.iter().map(|mapped| mapped.block));
}

fn unknown(scene: &Scene<'_>, areas: &[Span]) -> Vec<Span> {
    let mut gaps = Vec::new();
    for region in scene.anonymous() {
        let mut start = region.start;
        let behind = areas.partition_point(|area| area.end <= region.start);
        for area in areas[behind..].iter().take_while(|area| area.start < region.end) {
            gaps.push(start..area.start);
            start = area.end;
        }
        gaps.push(start..region.end);
    }
    // Mappings start at page boundaries.
    gaps.retain_mut(|gap| {
        gap.start.0 = gap.start.0.next_multiple_of(PAGE_BYTES);
        gap.start < gap.end
    });
    gaps
}

/// Whether the library's parameters (`malloc_par`, near the main arena) confirm the mappings. They contain the start of
/// the main arena, before it the maximum and current bytes of mappings, and before these their numbers. One match is
/// enough: in 2.43 the bytes are off by 16 whenever a block's mapping was resized.
fn confirms(scene: &Scene<'_>, circle: &Circle, found: &[Mapped], areas: &[Span]) -> bool {
    let bytes = found.iter().map(|mapped| mapped.end - mapped.start).sum::<u64>();
    let count = found.len() as u64;
    let address = circle.main.address;
    let Some(region) = region_of(scene.regions, TargetAddr(address)) else { return false };
    let first = (address.saturating_sub(PARAMETERS_WITHIN_BYTES) & !(WORD_BYTES - 1)).max(region.start.0);
    let end = region.end.0.min(address.saturating_add(PARAMETERS_WITHIN_BYTES));
    words(scene.memory, first, end).windows(6).any(|window| {
        let &[earlier, numbers, later, now, most, base] = window else { return false };
        let begins =
            base.checked_next_multiple_of(16).is_some_and(|start| areas.iter().any(|area| area.start.0 == start));
        let (low, high) = (|word: u64| word & 0xffff_ffff, |word: u64| word >> 32);
        // Since 2.35, and before.
        let counts = [(high(earlier), high(numbers)), (low(numbers), low(later))];
        let counted = counts.iter().any(|&(now, most)| now == count && most >= count);
        (begins && counted) || (now == bytes && most >= bytes && (begins || base == 0))
    })
}

/// An aligned block starts later than its mapping, whose first words are still those of the unaligned block.
fn mapped_at(memory: &dyn Memory, start: u64, limit: u64) -> Option<Mapped> {
    let [first, head] = array(memory, start)?;
    let chunk = |skip: u64| -> Option<Mapped> {
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
    };
    (first & !1 == 0 && head & FLAGS == MAPPED).then_some(())?;
    let below_page = (5..12).map(|log2| 1 << log2);
    let pages = (1..=ALIGNMENT_PAGES_MAX).map(|pages| pages * PAGE_BYTES);
    let aligned = below_page.chain(pages).map(|user| user - HEADER_BYTES).take_while(|skip| *skip < limit - start);
    aligned.into_iter().find_map(chunk).or_else(|| chunk(0))
}
