//! jemalloc's heap since 5.3.0, walked from its bookkeeping.
//!
//! ```text
//! blocks of metadata ─▶ what may describe an extent ─▶ the page tree says so too? ─▶ slab: a bitmap of blocks
//!  (known by their headers)                            (in the module's data)        large: one block
//! ```
//!
//! Blocks that threads keep in their caches for the next call are free, and no blocks; nor are those caches. What else jemalloc has
//! made for itself is walked like the program's blocks. What a cache that a program has made by `tcache.create` keeps is too.

mod base;
mod cache;
mod extent;
mod sizes;
mod tree;

use super::spans::covered;
use super::{Scene, Walk, WalkedBlock};
use crate::address::TargetAddr;
use crate::collect::spans::joined;
use extent::Extent;
use sizes::Sizes;
use tree::Tree;

/// The heap, as hooks name it.
const HEAP: &str = "jemalloc";

/// The blocks of the heap, where there is one; a walk with nothing but gaps where its structures are not those that are known.
pub(super) fn walk(scene: &Scene<'_>) -> Option<Walk> {
    let bases = base::find(scene);
    if bases.is_empty() {
        return None;
    }
    let refused = |why: &str| Some(Walk { heap: HEAP, gaps: vec![why.to_owned()], ..Walk::default() });
    let candidates = extent::candidates(scene.memory, &bases);
    let Some(tree) = Tree::find(scene, &bases, &candidates) else {
        return refused("its page tree was not found: only jemalloc 5.3 for 48-bit addresses can be walked");
    };
    let extents = confirmed(scene, &tree, candidates);
    let odd_max = scene.threads.len();
    let judged = |sizes: Sizes| {
        let odd = extents.iter().filter(|extent| !extent.is_sound(&sizes)).count();
        (odd <= odd_max).then_some(sizes)
    };
    if !extents.iter().any(|extent| extent.is_slab()) {
        return refused("it has no slabs yet by which its size classes could be told");
    }
    match Sizes::all().find_map(judged) {
        Some(sizes) => Some(blocks(scene, &extents, &sizes)),
        None => refused("its slabs do not add up: only jemalloc 5.3 with its own slab sizes can be walked"),
    }
}

/// The extents that the page tree has at their first and last pages, by rising address; those of the past are not there.
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
    let mut odd = 0_usize;
    for extent in extents {
        if extent.is_sound(sizes) {
            extent.add_blocks(sizes, &mut blocks);
            areas.push(extent.span());
            areas.push(extent.own_span());
        } else {
            odd += 1;
        }
    }
    let mut gaps = Vec::new();
    if odd > 0 {
        gaps.push(format!("{odd} extents do not add up: they were being changed when the process was stopped"));
    }
    cache::leave_out(scene, &mut blocks);
    Walk { heap: HEAP, blocks, areas: joined(areas), gaps, busy: odd > 0 }
}

#[cfg(test)]
mod tests;
