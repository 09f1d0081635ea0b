//! Walks the heap of musl since 1.2.1 (mallocng). The malloc of older versions keeps no list of allocated blocks, and
//! cannot be walked.
//!
//! ```text
//! context ─▶ pages of metas ─▶ meta ─▶ group: own mapping, given by the loader, or in a slot of a larger group
//!                                       └─▶ slots: free, a block, or a group
//! ```
//!
//! A meta records which of up to 32 slots are free, and is out of reach of overruns. The offset of a block in its
//! slot, and its size, are in the slot.

mod group;

use rustc_hash::FxHashMap;

use super::scene::{Scene, Walk, WalkedBlock, covered};
use crate::address::TargetAddr;
use crate::collect::Span;
use crate::collect::spans::{joined, without};
use crate::linux::proc::maps::{Region, RegionKind};
use group::{Meta, Slot};

const HEAP: &str = "musl";

/// Walks the heap, if there is one. The result consists of a gap if musl is mapped and its heap cannot be found.
pub(super) fn walk(scene: &Scene<'_>) -> Option<Walk> {
    let contexts = group::contexts(scene);
    if contexts.is_empty() {
        let gap = "no heap of musl 1.2.1 or later was found; older versions cannot be walked".to_owned();
        let mapped = scene.regions.iter().any(is_musl);
        return mapped.then(|| Walk { heap: HEAP, gaps: vec![gap], ..Walk::default() });
    }
    let (metas, pages) = group::metas(scene.memory, &contexts);
    let mut heap = Heap::new(scene, metas);
    heap.areas.extend(pages);
    heap.walk();
    Some(heap.finish())
}

/// Returns whether a file is musl, by its usual names.
fn is_musl(region: &Region) -> bool {
    let RegionKind::File { path } = &region.kind else { return false };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let loader = name.starts_with("ld-musl-") || name.starts_with("libc.musl-");
    loader || (name == "libc.so" && path.to_string_lossy().contains("musl"))
}

/// State of a walk.
struct Heap<'a> {
    scene: &'a Scene<'a>,
    /// Groups to be walked.
    rest: Vec<Meta>,
    /// Groups in slots of others that have not been walked, by first address.
    nested: FxHashMap<TargetAddr, Meta>,
    blocks: Vec<WalkedBlock>,
    areas: Vec<Span>,
    /// Slots with unknown contents.
    holes: Vec<Span>,
    /// Number of inconsistent groups.
    inconsistent_groups: usize,
    /// A slot was being allocated or freed.
    busy: bool,
}

impl<'a> Heap<'a> {
    fn new(scene: &'a Scene<'a>, metas: Vec<Meta>) -> Self {
        let (nested, mut outer): (Vec<Meta>, Vec<Meta>) = metas.into_iter().partition(Meta::is_nested);
        outer.sort_by_key(|meta| meta.memory);
        let given = outer.len();
        let mut end = TargetAddr(0);
        outer.retain(|meta| {
            let follows = meta.memory >= end && covered(scene.regions, &meta.extent());
            end = if follows { meta.extent().end } else { end };
            follows
        });
        Self {
            scene,
            inconsistent_groups: given - outer.len(),
            areas: outer.iter().map(Meta::extent).collect(),
            rest: outer,
            nested: nested.into_iter().map(|meta| (meta.memory, meta)).collect(),
            blocks: Vec::new(),
            holes: Vec::new(),
            busy: false,
        }
    }

    /// Walks each group once: nested ones are removed from `nested` when they are found.
    fn walk(&mut self) {
        while let Some(meta) = self.rest.pop() {
            for index in 0..meta.slot_count() {
                if meta.is_free(index) {
                    continue;
                }
                match group::read_slot(self.scene.memory, &meta, index) {
                    Slot::Changing => self.busy = true,
                    Slot::Block(block) => self.blocks.push(block),
                    Slot::Group => self.enter(&meta.slot(index)),
                    Slot::Odd => self.holes.push(meta.slot(index)),
                }
            }
        }
    }

    /// Walks the group in a slot, if any: there is none while it is being created or removed.
    fn enter(&mut self, slot: &Span) {
        let Some(inner) = self.nested.remove(&slot.start) else { return };
        if inner.extent().end <= slot.end {
            self.rest.push(inner);
        } else {
            self.inconsistent_groups += 1;
            self.holes.push(slot.clone());
        }
    }

    fn finish(mut self) -> Walk {
        self.blocks.sort_unstable_by_key(|block| block.start);
        let inconsistent_groups = self.inconsistent_groups + self.nested.len();
        let mut gaps = Vec::new();
        if inconsistent_groups > 0 {
            gaps.push(format!("{inconsistent_groups} groups of slots are inconsistent: being created, or overwritten"));
        }
        if !self.holes.is_empty() {
            gaps.push(format!("{} slots have unknown contents: their headers are overwritten", self.holes.len()));
        }
        let areas = without(joined(self.areas), &joined(self.holes));
        Walk { heap: HEAP, blocks: self.blocks, areas, gaps, busy: self.busy || inconsistent_groups > 0 }
    }
}

#[cfg(test)]
mod tests;
