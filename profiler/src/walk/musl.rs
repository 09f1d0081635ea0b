//! musl's heap since 1.2.1 (mallocng), walked from its bookkeeping. The malloc of older versions keeps no list of what it has given
//! out, and is not walked.
//!
//! ```text
//! context ─▶ pages of metas ─▶ meta ─▶ group: mapped for itself, given by the loader, or in a slot of a larger group
//!                                       └─▶ slots: free, a block, or a group
//! ```
//!
//! A meta says of 32 slots at most which ones are free, and it lies apart from what the program can overrun. Where a block begins in
//! its slot, and its size, are in the slot.

mod context;
mod group;
mod slot;

use rustc_hash::FxHashMap;

use super::spans::covered;
use super::{Scene, Walk, WalkedBlock};
use crate::address::TargetAddr;
use crate::collect::Span;
use crate::collect::spans::{joined, without};
use crate::linux::proc::maps::{Region, RegionKind};
use group::Meta;
use slot::Slot;

/// The heap, as hooks name it.
const HEAP: &str = "musl";

/// The blocks of the heap, where there is one that can be walked; a walk with nothing but gaps where musl is mapped and its heap
/// cannot be found.
pub(super) fn walk(scene: &Scene<'_>) -> Option<Walk> {
    let contexts = context::find(scene);
    if contexts.is_empty() {
        let gap = "no heap of musl 1.2.1 or later was found; that of older versions cannot be walked".to_owned();
        let mapped = scene.regions.iter().any(is_musl);
        return mapped.then(|| Walk { heap: HEAP, gaps: vec![gap], ..Walk::default() });
    }
    let (metas, pages) = group::metas(scene.memory, &contexts);
    let mut heap = Heap::new(scene, metas);
    heap.areas.extend(pages);
    heap.walk();
    Some(heap.finish())
}

/// Whether a file is musl, by the names that it is installed under.
fn is_musl(region: &Region) -> bool {
    let RegionKind::File { path } = &region.kind else { return false };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let loader = name.starts_with("ld-musl-") || name.starts_with("libc.musl-");
    loader || (name == "libc.so" && path.to_string_lossy().contains("musl"))
}

/// A heap while it is being walked.
struct Heap<'a> {
    scene: &'a Scene<'a>,
    /// Groups that are still to be looked through.
    rest: Vec<Meta>,
    /// Groups in slots of others that have not been come to, by their first address.
    nested: FxHashMap<TargetAddr, Meta>,
    blocks: Vec<WalkedBlock>,
    areas: Vec<Span>,
    /// Slots of which nothing is known.
    holes: Vec<Span>,
    /// Groups that do not add up.
    odd_groups: usize,
    /// A slot was being given out or freed.
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
            odd_groups: given - outer.len(),
            areas: outer.iter().map(Meta::extent).collect(),
            rest: outer,
            nested: nested.into_iter().map(|meta| (meta.memory, meta)).collect(),
            blocks: Vec::new(),
            holes: Vec::new(),
            busy: false,
        }
    }

    /// Looks through each group once: those in slots leave `nested` when they are come to.
    fn walk(&mut self) {
        while let Some(meta) = self.rest.pop() {
            for index in 0..meta.slot_count() {
                if meta.is_free(index) {
                    continue;
                }
                match slot::read(self.scene.memory, &meta, index) {
                    Slot::Changing => self.busy = true,
                    Slot::Block(block) => self.blocks.push(block),
                    Slot::Group => self.enter(&meta.slot(index)),
                    Slot::Odd => self.holes.push(meta.slot(index)),
                }
            }
        }
    }

    /// Takes up the group in a slot. There is none while it is being made or taken apart.
    fn enter(&mut self, slot: &Span) {
        let Some(inner) = self.nested.remove(&slot.start) else { return };
        if inner.extent().end <= slot.end {
            self.rest.push(inner);
        } else {
            self.odd_groups += 1;
            self.holes.push(slot.clone());
        }
    }

    fn finish(mut self) -> Walk {
        self.blocks.sort_unstable_by_key(|block| block.start);
        let odd_groups = self.odd_groups + self.nested.len();
        let mut gaps = Vec::new();
        if odd_groups > 0 {
            gaps.push(format!("{odd_groups} groups of slots do not add up: they were being made, or are overwritten"));
        }
        if !self.holes.is_empty() {
            gaps.push(format!("{} slots do not say what is in them: their headers are overwritten", self.holes.len()));
        }
        let areas = without(joined(self.areas), &joined(self.holes));
        Walk { heap: HEAP, blocks: self.blocks, areas, gaps, busy: self.busy || odd_groups > 0 }
    }
}

#[cfg(test)]
mod tests;
