//! Walks the heap of jemalloc since 5.3.0. Blocks of metadata, known by their headers, contain possible extents, which
//! the page tree in the module's data confirms. A slab is a bitmap of blocks; a large extent is one block.
//!
//! Blocks in the caches of threads are free and left out, and so are the caches. Other internal allocations of jemalloc
//! count as blocks, and so do the contents of caches that a program creates with `tcache.create`.

use std::collections::BTreeMap;

use heapbpf_base::address::TargetAddr;
use heapbpf_base::memory::{Memory, Span, WORD_BYTES, joined};
use profiler_common::limits::PAGE_BYTES;

use super::scene::{ADDRESS_MAX, Scene, Walk, WalkedBlock, array, covered, last_before, parts, span, words};

pub(super) const HEAP: &str = "jemalloc";

/// Walks the heap. The result consists of gaps if the heap's structures are unknown.
pub(super) fn walk(scene: &Scene<'_>) -> Option<Walk> {
    let bases = find_bases(scene);
    if bases.is_empty() {
        return None;
    }
    let refused = |why: &str| Some(Walk { heap: HEAP, gaps: vec![why.to_owned()], ..Walk::default() });
    let candidates = candidates(scene.memory, &bases);
    // These spans include extents that are no longer used, whose addresses are stale.
    let mut own: Vec<Span> = candidates.iter().map(Extent::own_span).collect();
    let Some(tree) = Tree::find(scene, &bases, &candidates) else {
        return refused("its page tree was not found: only jemalloc 5.3 for 48-bit addresses can be walked");
    };
    let (extents, missing) = confirmed(scene, &tree, candidates);
    let inconsistent = |sizes: &Sizes| extents.iter().filter(|extent| !extent.is_sound(sizes)).count();
    // The first of the tables that fit equally well is taken.
    match Sizes::all().min_by_key(inconsistent).filter(|sizes| inconsistent(sizes) <= scene.threads.len()) {
        Some(sizes) => {
            own.extend(page_addresses(scene.memory, &bases, &extents));
            let mut walk = blocks(scene, &extents, &sizes, own);
            let gap = || format!("{missing} extents overlap others, or are not mapped completely");
            walk.gaps.extend((missing > 0).then(gap));
            Some(walk)
        }
        None => refused("its slabs are inconsistent: only jemalloc 5.3 with its default slab sizes can be walked"),
    }
}

/// Blocks of metadata, and extents in any state: jemalloc keeps extents when they are free. The tree stays where it is, and is
/// found if it is not known. `None` if the structures are unknown.
pub(super) fn extents(scene: &Scene<'_>, known: &mut Option<Tree>) -> Option<Vec<Span>> {
    let bases = find_bases(scene);
    let candidates = candidates(scene.memory, &bases);
    let is_tree = |tree: &Tree| candidates.iter().any(|extent| extent.is_active() && tree.has(scene.memory, extent));
    let tree = match known.filter(is_tree) {
        Some(tree) => tree,
        None => Tree::find(scene, &bases, &candidates)?,
    };
    *known = Some(tree);
    let (extents, _) = confirmed(scene, &tree, candidates);
    let whole = |base: &Span| {
        let start = base.start.0 - HEADER_BYTES;
        let size_bytes = scene.memory.word(TargetAddr(start))?;
        Some(span(start, start.checked_add(size_bytes).filter(|end| *end <= ADDRESS_MAX)?))
    };
    Some(bases.iter().filter_map(whole).chain(extents.iter().map(Extent::span)).collect())
}

/// Extents that the page tree has at their first and last pages, by ascending address: former extents are not in the tree. Also
/// returns the number of extents in use that are left out.
fn confirmed(scene: &Scene<'_>, tree: &Tree, candidates: Vec<Extent>) -> (Vec<Extent>, usize) {
    let mut extents: Vec<Extent> = candidates.into_iter().filter(|extent| tree.has(scene.memory, extent)).collect();
    extents.sort_by_key(|extent| extent.span().start);
    let (mut end, mut missing) = (TargetAddr(0), 0);
    extents.retain(|extent| {
        let follows = extent.span().start >= end;
        end = if follows { extent.span().end } else { end };
        let is_sound = follows && covered(scene.regions(), &extent.span());
        missing += usize::from(!is_sound && extent.is_active());
        is_sound
    });
    (extents, missing)
}

/// Words of metadata that are addresses of pages of extents, where their first blocks start: the least extent of each size
/// (`edata_cmp_summary_s`, include/jemalloc/internal/edata.h), and former extents.
fn page_addresses(memory: &dyn Memory, bases: &[Span], extents: &[Extent]) -> Vec<Span> {
    let (Some(first), Some(last)) = (extents.first(), extents.last()) else { return Vec::new() };
    let range = first.span().start.0..last.span().end.0;
    let mut found = Vec::new();
    for (start, words) in bases.iter().flat_map(|base| parts(memory, base.clone())) {
        let words = (start..).step_by(size_of::<u64>()).zip(words);
        let pages = words.filter(|(_, word)| word.is_multiple_of(PAGE_BYTES) && range.contains(word));
        found.extend(pages.map(|(at, _)| span(at, at + WORD_BYTES)));
    }
    found
}

/// Collects the blocks of extents. `own` is memory of jemalloc's that contains addresses of first blocks, and is no root.
fn blocks(scene: &Scene<'_>, extents: &[Extent], sizes: &Sizes, own: Vec<Span>) -> Walk {
    let mut blocks: Vec<WalkedBlock> = Vec::new();
    let mut areas = own;
    let (sound, others): (Vec<&Extent>, Vec<&Extent>) = extents.iter().partition(|extent| extent.is_sound(sizes));
    for extent in sound {
        extent.add_blocks(sizes, &mut blocks);
        areas.push(extent.span());
    }
    let (busy, count) = (!others.is_empty(), others.len());
    let gap = || format!("{count} extents are inconsistent: they were being changed when the process was stopped");
    leave_out_caches(scene, &mut blocks);
    let gaps = busy.then(gap).into_iter().collect();
    Walk { heap: HEAP, blocks, areas: joined(areas), gaps, has_exact_sizes: false, busy }
}

/// Number of bytes of thread-local storage that are searched.
const SEARCHED_BYTES: u64 = 1 << 16;
/// Number of words of a bin: top of the stack, a count, and the low 16 bits of the stack's bounds (`cache_bin_s`,
/// include/jemalloc/internal/cache_bin.h of 5.3.0).
const BIN_WORDS: usize = 3;
/// Minimum number of bins: one for each small size class.
const BINS_MIN: usize = 16;
/// Maximum number of bins: one for each size class.
const BINS_MAX: usize = 256;

/// A stack of cached blocks: its start when full, its current top, and its end.
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

/// Removes blocks in caches of threads, which slabs count as allocated, and the caches' own blocks. A cache is an array
/// of bins in thread-local storage. Each bin is a stack of addresses; the stacks are adjacent in one block, which
/// identifies bins.
fn leave_out_caches(scene: &Scene<'_>, blocks: &mut Vec<WalkedBlock>) {
    let mut free: Vec<TargetAddr> = Vec::new();
    for thread in scene.threads {
        for part in scene.memory.present(thread.storage(SEARCHED_BYTES)) {
            let stored = words(scene.memory, part.start.0.next_multiple_of(WORD_BYTES), part.end.0);
            let mut at = 0;
            while at < stored.len() {
                let bins = bins(&stored[at..]);
                let Some(block) = holder(&bins, blocks) else {
                    at += if bins.len() < BINS_MIN { 1 } else { bins.len() * BIN_WORDS };
                    continue;
                };
                free.push(block.start);
                for bin in &bins {
                    free.extend(words(scene.memory, bin.top, bin.empty).into_iter().map(TargetAddr));
                }
                at += bins.len() * BIN_WORDS;
                if free.len() > 2 * blocks.len() {
                    // Two caches cannot contain the same block, so these are not caches.
                    return;
                }
            }
        }
    }
    free.sort_unstable();
    blocks.retain(|block| free.binary_search(&block.start).is_err());
}

fn bins(words: &[u64]) -> Vec<Bin> {
    let mut bins: Vec<Bin> = Vec::new();
    for words in words.chunks_exact(BIN_WORDS).take(BINS_MAX) {
        let follows = |bin: &Bin| bins.last().is_none_or(|before| before.empty == bin.full);
        let Some(bin) = Bin::parse(words).filter(|bin| bin.top != 0).filter(follows) else { break };
        bins.push(bin);
    }
    bins
}

fn holder(bins: &[Bin], blocks: &[WalkedBlock]) -> Option<WalkedBlock> {
    let (first, last) = (bins.first()?, bins.last().filter(|_| bins.len() >= BINS_MIN)?);
    let behind = blocks.partition_point(|block| block.start.0 <= first.full);
    let block = *blocks[..behind].last()?;
    (first.full < last.empty && last.empty <= block.start.0 + block.size_bytes).then_some(block)
}

/// Size and alignment of an extent's description.
const EXTENT_BYTES: u64 = 128;
const EXTENT_WORDS: usize = 16;
/// Maximum number of blocks of a slab: a page of the smallest blocks.
const SLAB_BLOCKS_MAX: u64 = 512;
/// The highest state of an extent; 0 is in use.
const STATE_MAX: u64 = 5;

/// An extent (`edata_s`, include/jemalloc/internal/edata.h of 5.3.0).
#[derive(Clone, Debug, PartialEq, Eq)]
struct Extent {
    /// Address of the extent's description.
    own: TargetAddr,
    /// Bits from the lowest: arena (12), slab, committed, allocator, zeroed, guarded, state (3), size class (8), free
    /// blocks (10).
    flags: u64,
    /// Start of the extent's first block, which for a large one need not be that of the page.
    start: u64,
    size_bytes: u64,
    /// A bit for each block of a slab, set while the block is free.
    free: [u64; 8],
}

impl Extent {
    fn parse(own: TargetAddr, words: &[u64; EXTENT_WORDS]) -> Option<Self> {
        let &[flags, start, size, _, _, _, _, _, ref free @ ..] = words;
        let size_bytes = size / PAGE_BYTES * PAGE_BYTES;
        let extent = Self { own, flags, start, size_bytes, free: *free };
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

    fn is_active(&self) -> bool {
        self.state() == 0
    }

    fn is_slab(&self) -> bool {
        self.is_active() && self.flags >> 12 & 1 == 1
    }

    fn class(&self) -> usize {
        usize::from((self.flags >> 20 & 0xff) as u8)
    }

    fn span(&self) -> Span {
        let first = self.start / PAGE_BYTES * PAGE_BYTES;
        span(first, first + self.size_bytes)
    }

    fn own_span(&self) -> Span {
        span(self.own.0, self.own.0 + EXTENT_BYTES)
    }

    fn is_sound(&self, sizes: &Sizes) -> bool {
        if !self.is_active() {
            return true;
        }
        let Some(block_bytes) = sizes.of(self.class()) else { return false };
        if !self.is_slab() {
            // The start of a large block is at a random offset in an additional page, by default.
            let spare_bytes = self.size_bytes.checked_sub(block_bytes);
            return spare_bytes.is_some_and(|spare| spare <= PAGE_BYTES && self.start % PAGE_BYTES <= spare);
        }
        let count = self.size_bytes / block_bytes;
        let free: u64 = (0..count.min(SLAB_BLOCKS_MAX)).map(|index| u64::from(self.is_free(index))).sum();
        count <= SLAB_BLOCKS_MAX && sizes.slab_bytes(block_bytes) == self.size_bytes && free == self.flags >> 28 & 0x3ff
    }

    fn is_free(&self, index: u64) -> bool {
        let word = self.free.get(usize::try_from(index / 64).unwrap_or(usize::MAX));
        word.is_none_or(|word| word >> (index % 64) & 1 == 1)
    }

    /// Adds the blocks of the extent, which must be sound.
    fn add_blocks(&self, sizes: &Sizes, blocks: &mut Vec<WalkedBlock>) {
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

fn candidates(memory: &dyn Memory, bases: &[Span]) -> Vec<Extent> {
    let mut candidates = Vec::new();
    for part in bases.iter().flat_map(|base| memory.present(base.clone())) {
        let first = part.start.0.next_multiple_of(EXTENT_BYTES);
        let count = part.end.0.saturating_sub(first) / EXTENT_BYTES;
        let extents = (0..count).map(|nth| first + nth * EXTENT_BYTES);
        candidates.extend(extents.filter_map(|at| Extent::parse(TargetAddr(at), &array(memory, at)?)));
    }
    candidates
}

const SIZE_BYTES_MAX: u64 = 1 << 46;

/// Sizes of blocks by class: four classes between one power of two and the next. The smallest regular class is chosen at build
/// time: 16 bytes, or 8 as in redis.
#[derive(Debug, PartialEq, Eq)]
struct Sizes(Vec<u64>);

impl Sizes {
    /// All possible tables of sizes, the most common first.
    fn all() -> impl Iterator<Item = Self> {
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

    fn of(&self, class: usize) -> Option<u64> {
        self.0.get(class).copied()
    }

    /// Size of a slab: the fewest pages without a remainder; 0 if these exceed the maximum of a slab.
    fn slab_bytes(&self, block_bytes: u64) -> u64 {
        let pages = (1..=16).map(|pages| pages * PAGE_BYTES);
        pages.into_iter().find(|bytes| bytes.is_multiple_of(block_bytes)).unwrap_or(0)
    }
}

/// Alignment of blocks of metadata.
const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// Size of a block's header: its size, the next block, and the extent of its unused part.
const HEADER_BYTES: u64 = 16 + EXTENT_BYTES;
const HEADER_WORDS: usize = 2 + EXTENT_WORDS;
/// Maximum number of blocks of metadata. Each block is larger than the previous one.
const BASES_MAX: usize = 1 << 16;
/// Flags of an extent for an unused part: no arena, committed and zeroed, active, no slab (`edata_binit`,
/// include/jemalloc/internal/edata.h).
const UNUSED_FLAGS: u64 = 0xfff | 1 << 13 | 1 << 15;
const FLAGS_MASK: u64 = (1 << 20) - 1;

/// Finds the used parts of blocks of metadata after their headers, by ascending address. The blocks consist of whole huge pages.
fn find_bases(scene: &Scene<'_>) -> Vec<Span> {
    let mut found: Vec<Span> = Vec::new();
    for part in scene.anonymous().flat_map(|region| scene.memory.present(region.start..region.end)) {
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
    let [size, next, flags, unused, unused_bytes, ..] = array::<HEADER_WORDS>(memory, address)?;
    let used = address + HEADER_BYTES..address.checked_add(size)?;
    let fits = (HUGE_PAGE_BYTES..ADDRESS_MAX).contains(&size)
        && size.is_multiple_of(HUGE_PAGE_BYTES)
        && next.is_multiple_of(HUGE_PAGE_BYTES)
        && flags & FLAGS_MASK == UNUSED_FLAGS
        && unused.checked_add(unused_bytes)? == used.end
        && used.contains(&(unused.saturating_sub(1)));
    fits.then(|| span(used.start, unused))
}

const LEAF_REACH_BYTES: u64 = PAGE_BYTES << 18;
const LEVEL_BYTES: u64 = WORD_BYTES << 18;
const SAMPLES: usize = 16;
/// Maximum number of words of a module's data that may point to a leaf.
const LEAVES_MAX: usize = 1 << 14;

/// Address of the first level of the page tree, a variable of the module. The leaves are metadata, and lead to extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tree(TargetAddr);

impl Tree {
    /// Finds the tree by the pages of most of these extents.
    fn find(scene: &Scene<'_>, bases: &[Span], extents: &[Extent]) -> Option<Self> {
        let leaves = leaves(scene, bases);
        let samples = extents.iter().filter(|extent| extent.is_slab());
        let mut samples: Vec<&Extent> = samples.take(SAMPLES * SAMPLES).step_by(SAMPLES / 2).collect();
        // A program may have only large blocks.
        let large = extents.iter().filter(|extent| extent.is_active() && !extent.is_slab());
        samples.extend(large.take(SAMPLES));
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

    fn has(self, memory: &dyn Memory, extent: &Extent) -> bool {
        let span = extent.span();
        [span.start.0, span.end.0 - PAGE_BYTES].into_iter().all(|page| {
            let leaf = memory.word(TargetAddr(self.0.0 + page / LEAF_REACH_BYTES * WORD_BYTES));
            leaf.and_then(|leaf| entry(memory, TargetAddr(leaf), TargetAddr(page))) == Some(extent.own)
        })
    }
}

/// Extent in an entry of a leaf. The entry has the size class in the highest 16 bits, the extent, and its state in the lowest 7.
fn entry(memory: &dyn Memory, leaf: TargetAddr, page: TargetAddr) -> Option<TargetAddr> {
    let offset = page.0 % LEAF_REACH_BYTES / PAGE_BYTES * WORD_BYTES;
    let entry = memory.word(TargetAddr(leaf.0.checked_add(offset)?))?;
    Some(TargetAddr((entry & 0xffff_ffff_ffff) / EXTENT_BYTES * EXTENT_BYTES))
}

/// Words of modules' data that are addresses of possible leaves, and those addresses.
fn leaves(scene: &Scene<'_>, bases: &[Span]) -> Vec<(TargetAddr, TargetAddr)> {
    let words = scene.module_data().flat_map(|region| parts(scene.memory, region.start..region.end));
    let words = words.flat_map(|(start, words)| (start..).step_by(size_of::<u64>()).zip(words));
    let leaves = words.filter(|&(_, leaf)| leaf != 0 && holds(bases, leaf));
    let leaves = leaves.map(|(place, leaf)| (TargetAddr(place), TargetAddr(leaf))).take(LEAVES_MAX);
    let mut leaves: Vec<_> = leaves.collect();
    // The last word of a part is also the first of the next one.
    leaves.dedup();
    leaves
}

fn holds(bases: &[Span], leaf: u64) -> bool {
    let fits = |base: &Span| leaf.checked_add(LEVEL_BYTES).is_some_and(|end| end <= base.end.0);
    leaf.is_multiple_of(64) && last_before(bases, leaf).is_some_and(fits)
}

#[cfg(test)]
mod tests;
