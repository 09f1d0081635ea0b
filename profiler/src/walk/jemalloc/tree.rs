//! The page tree: which extent a page belongs to. Its first level is a variable of the module, its leaves are metadata.

use std::collections::BTreeMap;

use super::extent::{EXTENT_BYTES, Extent, PAGE_BYTES};
use crate::address::TargetAddr;
use crate::collect::Span;
use crate::linux::proc::maps::RegionKind;
use crate::memory::{Memory, WORD_BYTES};
use crate::walk::Scene;

/// Bytes of addresses that one leaf is of: 2^18 pages.
const LEAF_REACH_BYTES: u64 = PAGE_BYTES << 18;
/// Bytes of the first level and of a leaf: a word for each of 2^18.
const LEVEL_BYTES: u64 = WORD_BYTES << 18;
/// Extents by which the tree is looked for.
const SAMPLES: usize = 16;
/// Most words of the module's data that are taken to point to a leaf.
const LEAVES_MAX: usize = 1 << 14;

/// Where the tree's first level begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tree(TargetAddr);

impl Tree {
    /// The tree: where most of these extents are found by their pages.
    pub(super) fn find(scene: &Scene<'_>, bases: &[Span], extents: &[Extent]) -> Option<Self> {
        let leaves = leaves(scene, bases);
        let samples = extents.iter().filter(|extent| extent.is_slab());
        let samples: Vec<&Extent> = samples.take(SAMPLES * SAMPLES).step_by(SAMPLES / 2).collect();
        let mut votes: BTreeMap<u64, usize> = BTreeMap::new();
        for &(place, leaf) in &leaves {
            for extent in &samples {
                let page = extent.span().start;
                let root = place.0.checked_sub(page.0 / LEAF_REACH_BYTES * WORD_BYTES);
                if let Some(root) = root.filter(|_| entry(scene.memory, leaf, page) == Some(extent.own)) {
                    *votes.entry(root).or_default() += 1;
                }
            }
        }
        let (&root, _) = votes.iter().max_by_key(|&(_, votes)| votes)?;
        Some(Self(TargetAddr(root)))
    }

    /// Whether the first and the last page of an extent are its own.
    pub(super) fn has(self, memory: &dyn Memory, extent: &Extent) -> bool {
        let span = extent.span();
        [span.start.0, span.end.0 - PAGE_BYTES].into_iter().all(|page| {
            let leaf = memory.word(TargetAddr(self.0.0 + page / LEAF_REACH_BYTES * WORD_BYTES));
            leaf.and_then(|leaf| entry(memory, TargetAddr(leaf), TargetAddr(page))) == Some(extent.own)
        })
    }
}

/// What a leaf has for a page: the size class in the highest 16 bits, the extent, and its state in the lowest 7.
fn entry(memory: &dyn Memory, leaf: TargetAddr, page: TargetAddr) -> Option<TargetAddr> {
    let offset = page.0 % LEAF_REACH_BYTES / PAGE_BYTES * WORD_BYTES;
    let entry = memory.word(TargetAddr(leaf.0.checked_add(offset)?))?;
    Some(TargetAddr((entry & 0xffff_ffff_ffff) / EXTENT_BYTES as u64 * EXTENT_BYTES as u64))
}

/// Words of modules' data that hold an address where a leaf may be, and that address.
fn leaves(scene: &Scene<'_>, bases: &[Span]) -> Vec<(TargetAddr, TargetAddr)> {
    let mut found = Vec::new();
    let mut after_file = false;
    let mut buffer = vec![0; 1 << 16];
    for region in scene.regions {
        let is_file = matches!(region.kind, RegionKind::File { .. });
        let searched = region.writable && !region.shared && (is_file || (after_file && region.is_anonymous()));
        after_file = is_file;
        let parts = if searched { scene.memory.present(region.start..region.end) } else { Vec::new() };
        for part in parts {
            let mut at = part.start.0.next_multiple_of(WORD_BYTES);
            // What lies behind the first level of a tree and a leaf cannot be a module's data.
            while at < part.end.0 && found.len() < LEAVES_MAX {
                let length = buffer.len().min(usize::try_from(part.end.0 - at).unwrap_or(usize::MAX));
                let read = scene.memory.read(TargetAddr(at), &mut buffer[..length]);
                let words = buffer[..read].as_chunks::<8>().0;
                for (place, word) in (at..).step_by(8).zip(words) {
                    let leaf = u64::from_le_bytes(*word);
                    if leaf != 0 && holds(bases, leaf) {
                        found.push((TargetAddr(place), TargetAddr(leaf)));
                    }
                }
                at += length as u64;
            }
        }
    }
    found
}

/// Whether a whole leaf can be at an address.
fn holds(bases: &[Span], leaf: u64) -> bool {
    let behind = bases.partition_point(|base| base.start.0 <= leaf);
    let base = bases[..behind].last();
    base.is_some_and(|base| {
        leaf.is_multiple_of(64) && leaf.checked_add(LEVEL_BYTES).is_some_and(|end| end <= base.end.0)
    })
}
