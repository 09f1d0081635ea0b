//! Blocks of glibc's malloc, from 2.26 on: arenas, chunks, caches, and blocks with a mapping of their own.
//!
//! No symbol is needed and nothing is run in the target. What is said of an arena is said only when all of it adds up: its chunks
//! follow one another to the last one, each free one is in a list, and its pieces have as many bytes as it says. What does not add
//! up is no area, so all in it counts as in use; that is also what happens to memory that is not recognised.

mod arena;
mod chunk;
mod heap;
mod lists;
mod mapped;
mod pieces;
mod tcache;
mod threads;
mod words;

#[cfg(test)]
mod tests;

use self::arena::{Arena, Circle};
use self::chunk::Chunks;
use self::lists::{Links, List, Steps, Target};
use super::{Scene, Walk, WalkedBlock};
use crate::address::TargetAddr;
use crate::collect::Span;

/// The heap's name.
const HEAP: &str = "libc";
const PAGE_BYTES: u64 = 4096;

/// What glibc's malloc has given out, if the process uses it.
pub(super) fn walk(scene: &Scene<'_>) -> Option<Walk> {
    let circles = arena::find(scene);
    if !circles.iter().flat_map(Circle::arenas).any(Arena::is_used) {
        return None;
    }
    let mut walk = Walk { heap: HEAP, ..Walk::default() };
    let mapped_bytes = scene.regions.iter().filter(|region| region.is_anonymous()).map(|region| region.size_bytes());
    // Twice as many as there can be: each chunk is looked at once, and where a piece begins may have to be searched.
    let mut chunks = Chunks::new(scene.memory, mapped_bytes.sum::<u64>() / chunk::HEADER_BYTES);
    for arena in circles.iter().flat_map(Circle::arenas) {
        walk.busy |= arena.locked;
    }
    for circle in &circles {
        // What points into the lists' heads, and out of them, is the allocator's own. Other arenas lie in their heaps.
        walk.areas.push(span(circle.main.address, circle.main.end()));
        for arena in &circle.others {
            pieces::walk_other(scene, arena, &mut chunks, &mut walk);
        }
        pieces::walk_main(scene, &circle.main, &mut chunks, &mut walk);
    }
    walk.areas.sort_by_key(|area| area.start);
    walk.blocks = chunks.blocks;
    walk.blocks.sort_unstable_by_key(|block| block.start);
    leave_out_free(scene, &circles, &mut walk);
    mapped::walk(scene, &circles, &mut walk);
    walk.areas.sort_by_key(|area| area.start);
    walk.blocks.sort_unstable_by_key(|block| block.start);
    Some(walk)
}

/// Takes out of the blocks those that are free but look used, and caches themselves.
fn leave_out_free(scene: &Scene<'_>, circles: &[Circle], walk: &mut Walk) {
    let everything = scene.memory.present(TargetAddr(0)..TargetAddr(u64::MAX));
    let steps = &Steps::of(everything.iter().map(|span| span.end.0 - span.start.0).sum());
    let tried = Links::ALL.map(|links| (links, fastbins(scene, circles, links, steps)));
    let (links, mut free) = match tried {
        [(mangled, Some(free)), _] if !free.is_empty() => (mangled, free),
        [_, (plain, Some(free))] if !free.is_empty() => (plain, free),
        // Nothing there, so caches have to say how links are written.
        [(_, Some(free)), _] => (links_of_caches(scene, &walk.blocks, steps), free),
        _ => {
            // Which blocks are free is not known: all of it counts as in use.
            walk.busy = true;
            walk.gaps
                .push("lists of free chunks are not in order: they were being changed, or are overwritten".to_owned());
            walk.areas.clear();
            walk.blocks.clear();
            return;
        }
    };
    let mut caches = threads::caches(scene, circles, &walk.blocks, links, steps);
    for &block in walk.blocks.iter().filter(|block| tcache::has_size(block)) {
        if let Some(entries) = tcache::entries(scene.memory, links, block, steps).filter(|entries| !entries.is_empty())
        {
            caches.push(block.start);
            free.extend(entries.into_iter().map(TargetAddr));
        }
    }
    walk.busy |= threads::is_busy(scene, circles, &caches);
    free.extend(caches);
    free.sort_unstable();
    let mut rest = free.iter().peekable();
    walk.blocks.retain(|block| {
        while rest.next_if(|free| **free < block.start).is_some() {}
        rest.peek().is_none_or(|free| **free != block.start)
    });
}

/// All that fastbins hold; None where one is not in order if links are written so.
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
        let caches = blocks.iter().filter(|block| tcache::has_size(block));
        caches
            .filter_map(|block| tcache::entries(scene.memory, *links, *block, steps))
            .any(|entries| !entries.is_empty())
    };
    Links::ALL.into_iter().find(holds).unwrap_or(Links::Mangled)
}

fn span(start: u64, end: u64) -> Span {
    TargetAddr(start)..TargetAddr(end)
}
