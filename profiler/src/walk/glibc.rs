//! Walks the heap of glibc's malloc since 2.26. Needs no symbols, and runs nothing in the target.
//!
//! An arena counts as walked only if it is consistent: its chunks follow one another to the last one, each free chunk
//! is in a list, and its pieces have as many bytes as the arena records. All other memory counts as in use.

mod arena;
mod chunk;
mod lists;
mod mapped;

#[cfg(test)]
mod tests;

use heapbpf_base::address::TargetAddr;
use heapbpf_base::memory::Span;

use self::arena::{Arena, Circle, Trace};
use self::chunk::Chunks;
use self::lists::{Links, List, Steps, Target};
use super::scene::{Absence, Scene, Walk, WalkedBlock, span};

pub(crate) const HEAP: &str = "libc";

/// Mappings of blocks that follow each other from the start of a span on.
pub(super) fn mapped_from(scene: &Scene<'_>, gap: &Span) -> Vec<Span> {
    mapped::from_start(scene.memory, gap)
}

pub(super) fn walk(scene: &Scene<'_>) -> Option<Walk> {
    let circles = arena::find(scene);
    if circles.is_empty() {
        return None;
    }
    let mut walk = Walk { heap: HEAP, ..Walk::default() };
    let mapped_bytes = scene.regions().iter().filter(|region| region.is_anonymous()).map(|region| region.size_bytes());
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
    // A program may have only large blocks.
    let has_mapped = mapped::walk(scene, &circles, &mut walk);
    if !has_mapped && !circles.iter().flat_map(Circle::arenas).any(Arena::is_used) {
        return None;
    }
    walk.areas.sort_by_key(|area| area.start);
    walk.blocks.sort_unstable_by_key(|block| block.start);
    Some(walk)
}

/// Reason why there is no walk, if the library's main arena was found nevertheless.
pub(super) fn absence(scene: &Scene<'_>) -> Option<Absence> {
    arena::trace(scene).map(|trace| match trace {
        Trace::Unused => Absence::Unused,
        Trace::Damaged => Absence::Damaged,
    })
}

/// Removes blocks that are free but appear used, and the caches.
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

/// Blocks in fastbins; `None` if a list is inconsistent with this format of links.
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
