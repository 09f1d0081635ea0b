//! Extents: runs of pages that are a slab of small blocks, one large block, or free.

use super::sizes::Sizes;
use crate::address::TargetAddr;
use crate::collect::Span;
use crate::memory::Memory;
use crate::walk::WalkedBlock;

/// Bytes of what describes an extent, and what that is aligned to.
pub(super) const EXTENT_BYTES: usize = 128;
/// Bytes of a page.
pub(super) const PAGE_BYTES: u64 = 4096;
/// Most blocks of a slab: a page of the smallest ones.
const SLAB_BLOCKS_MAX: u64 = 512;
/// No address of a program is behind this one.
const ADDRESS_MAX: u64 = 1 << 47;
/// The highest state that an extent can be in; 0 is in use.
const STATE_MAX: u64 = 5;

/// What is known of an extent (`edata_s`, include/jemalloc/internal/edata.h of 5.3.0).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// Where this stands.
    pub(super) own: TargetAddr,
    /// Bits from the lowest: arena (12), slab, committed, allocator, zeroed, guarded, state (3), size class (8), free blocks (10).
    flags: u64,
    /// Where its first block begins; of a large one that need not be at the page's beginning.
    start: u64,
    size_bytes: u64,
    /// Of a slab: a bit for each block, set while it is free.
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

    /// Whether it is in use.
    pub(super) fn is_active(&self) -> bool {
        self.state() == 0
    }

    /// Whether it is a slab in use.
    pub(super) fn is_slab(&self) -> bool {
        self.is_active() && self.flags >> 12 & 1 == 1
    }

    /// The size class of its blocks.
    pub(super) fn class(&self) -> usize {
        usize::from((self.flags >> 20 & 0xff) as u8)
    }

    /// Its pages.
    pub(super) fn span(&self) -> Span {
        let first = self.start / PAGE_BYTES * PAGE_BYTES;
        TargetAddr(first)..TargetAddr(first + self.size_bytes)
    }

    /// What describes it.
    pub(super) fn own_span(&self) -> Span {
        self.own..TargetAddr(self.own.0 + EXTENT_BYTES as u64)
    }

    /// Whether what is said of its blocks goes together with these size classes.
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

    /// Adds its blocks, by rising address. It must be sound.
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

/// All that may describe an extent, in what is used of blocks of metadata.
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
