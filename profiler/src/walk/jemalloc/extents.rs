//! Extents: runs of pages that are a slab of small blocks, one large block, or free. Also their size classes, the
//! metadata that describes them, and the page tree that finds them.

use std::collections::BTreeMap;

use crate::address::TargetAddr;
use crate::collect::Span;
use crate::linux::proc::maps::RegionKind;
use crate::memory::{Memory, WORD_BYTES};
use crate::walk::scene::{Scene, WalkedBlock};

/// Size and alignment of an extent's description.
pub(super) const EXTENT_BYTES: usize = 128;
pub(super) const PAGE_BYTES: u64 = 4096;
/// Maximum number of blocks of a slab: a page of the smallest ones.
const SLAB_BLOCKS_MAX: u64 = 512;
/// End of the user address space.
const ADDRESS_MAX: u64 = 1 << 47;
/// The highest state; 0 is in use.
const STATE_MAX: u64 = 5;

/// An extent (`edata_s`, include/jemalloc/internal/edata.h of 5.3.0).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// Address of the description.
    pub(super) own: TargetAddr,
    /// Bits from the lowest: arena (12), slab, committed, allocator, zeroed, guarded, state (3), size class (8), free
    /// blocks (10).
    flags: u64,
    /// Start of its first block, which for a large one need not be that of the page.
    start: u64,
    size_bytes: u64,
    /// Slabs: a bit for each block, set while it is free.
    free: [u64; 8],
}

impl Extent {
    fn parse(own: TargetAddr, bytes: &[u8; EXTENT_BYTES]) -> Option<Self> {
        let (words, _) = bytes.as_chunks::<8>();
        let word = |nth: usize| u64::from_le_bytes(words[nth]);
        let size_bytes = word(2) / PAGE_BYTES * PAGE_BYTES;
        let free = std::array::from_fn(|nth| word(8 + nth));
        let extent = Self { own, flags: word(0), start: word(1), size_bytes, free };
        let fits = extent.start >= PAGE_BYTES
            && size_bytes > 0
            && extent.start.checked_add(size_bytes)? <= ADDRESS_MAX
            && extent.state() <= STATE_MAX
            && (!extent.is_slab() || extent.start.is_multiple_of(PAGE_BYTES));
        fits.then_some(extent)
    }

    fn state(&self) -> u64 {
        self.flags >> 17 & 7
    }

    /// Returns whether it is in use.
    pub(super) fn is_active(&self) -> bool {
        self.state() == 0
    }

    pub(super) fn is_slab(&self) -> bool {
        self.is_active() && self.flags >> 12 & 1 == 1
    }

    pub(super) fn class(&self) -> usize {
        usize::from((self.flags >> 20 & 0xff) as u8)
    }

    /// Returns its pages.
    pub(super) fn span(&self) -> Span {
        let first = self.start / PAGE_BYTES * PAGE_BYTES;
        TargetAddr(first)..TargetAddr(first + self.size_bytes)
    }

    /// Returns the range of its description.
    pub(super) fn own_span(&self) -> Span {
        self.own..TargetAddr(self.own.0 + EXTENT_BYTES as u64)
    }

    /// Returns whether its description is consistent with these size classes.
    pub(super) fn is_sound(&self, sizes: &Sizes) -> bool {
        if !self.is_active() {
            return true;
        }
        let Some(block_bytes) = sizes.of(self.class()) else { return false };
        if !self.is_slab() {
            return self.start % PAGE_BYTES + block_bytes <= self.size_bytes;
        }
        let count = self.size_bytes / block_bytes;
        let free: u64 = (0..count.min(SLAB_BLOCKS_MAX)).map(|index| u64::from(self.is_free(index))).sum();
        count <= SLAB_BLOCKS_MAX && sizes.slab_bytes(block_bytes) == self.size_bytes && free == self.flags >> 28 & 0x3ff
    }

    fn is_free(&self, index: u64) -> bool {
        let word = self.free.get(usize::try_from(index / 64).unwrap_or(usize::MAX));
        word.is_none_or(|word| word >> (index % 64) & 1 == 1)
    }

    /// Adds its blocks by ascending address. It must be sound.
    pub(super) fn add_blocks(&self, sizes: &Sizes, blocks: &mut Vec<WalkedBlock>) {
        let Some(size_bytes) = sizes.of(self.class()).filter(|_| self.is_active()) else { return };
        let block = |start| WalkedBlock { start: TargetAddr(start), size_bytes };
        if !self.is_slab() {
            blocks.push(block(self.start));
            return;
        }
        let count = (self.size_bytes / size_bytes).min(SLAB_BLOCKS_MAX);
        let given = (0..count).filter(|&index| !self.is_free(index));
        blocks.extend(given.map(|index| block(self.start + index * size_bytes)));
    }
}

/// Returns all possible extents in used metadata.
pub(super) fn candidates(memory: &dyn Memory, bases: &[Span]) -> Vec<Extent> {
    let mut candidates = Vec::new();
    let mut bytes = [0; EXTENT_BYTES];
    for part in bases.iter().flat_map(|base| memory.present(base.clone())) {
        let mut at = part.start.0.next_multiple_of(EXTENT_BYTES as u64);
        while at + EXTENT_BYTES as u64 <= part.end.0 {
            let whole = memory.read(TargetAddr(at), &mut bytes) == bytes.len();
            candidates.extend(whole.then(|| Extent::parse(TargetAddr(at), &bytes)).flatten());
            at += EXTENT_BYTES as u64;
        }
    }
    candidates
}

/// Maximum size.
const SIZE_BYTES_MAX: u64 = 1 << 46;

/// Block sizes by class: four between one power of two and the next. The smallest regular class is chosen at build
/// time: 16 bytes, or 8 as in redis.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sizes(Vec<u64>);

impl Sizes {
    /// All supported variants, the most common first.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        [16, 8].into_iter().map(Self::with_quantum)
    }

    fn with_quantum(quantum_bytes: u64) -> Self {
        let mut sizes: Vec<u64> = if quantum_bytes > 8 { vec![8] } else { Vec::new() };
        sizes.extend((1..=4).map(|nth| nth * quantum_bytes));
        let (mut base, mut step) = (4 * quantum_bytes, quantum_bytes);
        while base < SIZE_BYTES_MAX {
            sizes.extend((1..=4).map(|nth| base + nth * step));
            (base, step) = (2 * base, 2 * step);
        }
        Self(sizes)
    }

    pub(super) fn of(&self, class: usize) -> Option<u64> {
        self.0.get(class).copied()
    }

    /// Returns the slab size for a block size: the fewest pages without a remainder; 0 if those exceed the maximum of
    /// a slab.
    pub(super) fn slab_bytes(&self, block_bytes: u64) -> u64 {
        let pages = (1..=16).map(|pages| pages * PAGE_BYTES);
        pages.into_iter().find(|bytes| bytes.is_multiple_of(block_bytes)).unwrap_or(0)
    }
}

/// Alignment of blocks of metadata.
const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// Size of a block's header: its size, the next block, and the extent of its unused part.
const HEADER_BYTES: usize = 16 + EXTENT_BYTES;
/// Maximum number of blocks; each is larger than the previous one.
const BASES_MAX: usize = 1 << 16;
/// Flags of an extent of a base: no arena, committed and zeroed, active, no slab (`edata_binit`,
/// include/jemalloc/internal/edata.h).
const UNUSED_FLAGS: u64 = 0xfff | 1 << 13 | 1 << 15;
const FLAGS_MASK: u64 = (1 << 20) - 1;

/// Returns the used parts of all blocks of metadata after their headers, by ascending address. Blocks consist of
/// whole huge pages.
pub(super) fn find_bases(scene: &Scene<'_>) -> Vec<Span> {
    let mut found: Vec<Span> = Vec::new();
    let data = scene.regions.iter().filter(|region| region.is_anonymous() && region.writable && !region.shared);
    for part in data.flat_map(|region| scene.memory.present(region.start..region.end)) {
        let mut at = part.start.0.next_multiple_of(HUGE_PAGE_BYTES);
        while at < part.end.0 && found.len() < BASES_MAX {
            let base = base(scene.memory, at);
            // The next block is after this one, so that they cannot overlap.
            let next = base.as_ref().map_or(at, |base| base.end.0.max(at)).saturating_add(1);
            if base.as_ref().is_some_and(|base| found.last().is_none_or(|last| last.end <= base.start)) {
                found.extend(base);
            }
            at = next.next_multiple_of(HUGE_PAGE_BYTES);
        }
    }
    found
}

fn base(memory: &dyn Memory, address: u64) -> Option<Span> {
    let mut bytes = [0; HEADER_BYTES];
    if memory.read(TargetAddr(address), &mut bytes) < bytes.len() {
        return None;
    }
    let (words, _) = bytes.as_chunks::<8>();
    let word = |nth: usize| u64::from_le_bytes(words[nth]);
    let (size, next, flags, unused, unused_bytes) = (word(0), word(1), word(2), word(3), word(4));
    let used = address + HEADER_BYTES as u64..address.checked_add(size)?;
    let fits = (HUGE_PAGE_BYTES..1 << 47).contains(&size)
        && size.is_multiple_of(HUGE_PAGE_BYTES)
        && next.is_multiple_of(HUGE_PAGE_BYTES)
        && flags & FLAGS_MASK == UNUSED_FLAGS
        && unused.checked_add(unused_bytes)? == used.end
        && used.contains(&(unused.saturating_sub(1)));
    fits.then_some(TargetAddr(used.start)..TargetAddr(unused))
}

/// Address range of a leaf: 2^18 pages.
const LEAF_REACH_BYTES: u64 = PAGE_BYTES << 18;
/// Size of the first level and of a leaf: 2^18 words.
const LEVEL_BYTES: u64 = WORD_BYTES << 18;
/// Number of extents to search the tree with.
const SAMPLES: usize = 16;
/// Maximum number of words of a module's data that may point to a leaf.
const LEAVES_MAX: usize = 1 << 14;

/// The page tree, which maps pages to extents: its first level is a variable of the module, its leaves are metadata.
/// Address of the first level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tree(TargetAddr);

impl Tree {
    /// Finds the tree by the pages of most of these extents.
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

    /// Returns whether the first and the last page of an extent lead to it.
    pub(super) fn has(self, memory: &dyn Memory, extent: &Extent) -> bool {
        let span = extent.span();
        [span.start.0, span.end.0 - PAGE_BYTES].into_iter().all(|page| {
            let leaf = memory.word(TargetAddr(self.0.0 + page / LEAF_REACH_BYTES * WORD_BYTES));
            leaf.and_then(|leaf| entry(memory, TargetAddr(leaf), TargetAddr(page))) == Some(extent.own)
        })
    }
}

/// Reads an entry of a leaf: the size class in the highest 16 bits, the extent, and its state in the lowest 7.
fn entry(memory: &dyn Memory, leaf: TargetAddr, page: TargetAddr) -> Option<TargetAddr> {
    let offset = page.0 % LEAF_REACH_BYTES / PAGE_BYTES * WORD_BYTES;
    let entry = memory.word(TargetAddr(leaf.0.checked_add(offset)?))?;
    Some(TargetAddr((entry & 0xffff_ffff_ffff) / EXTENT_BYTES as u64 * EXTENT_BYTES as u64))
}

/// Returns the words of modules' data that are addresses of possible leaves, and those addresses.
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
            // A module's data cannot continue after a tree's first level and a leaf.
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

/// Returns whether a whole leaf fits at an address.
fn holds(bases: &[Span], leaf: u64) -> bool {
    let behind = bases.partition_point(|base| base.start.0 <= leaf);
    let base = bases[..behind].last();
    base.is_some_and(|base| {
        leaf.is_multiple_of(64) && leaf.checked_add(LEVEL_BYTES).is_some_and(|end| end <= base.end.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_four_classes_to_each_power_of_two() {
        let check = |quantum, expected: &[u64]| assert_eq!(Sizes::with_quantum(quantum).0[..expected.len()], *expected);
        check(16, &[8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320]);
        check(8, &[8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160]);
        let sizes = Sizes::with_quantum(16);
        assert_eq!(sizes.of(35), Some(14336), "the largest in a slab");
        assert_eq!(sizes.slab_bytes(14336), 7 * 4096);
        assert_eq!(sizes.slab_bytes(48), 3 * 4096);
    }
}
