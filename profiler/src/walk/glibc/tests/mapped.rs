//! Tests of blocks with mappings of their own, in synthetic memory.

use std::collections::BTreeMap;

use heapbpf_base::address::TargetAddr;
use heapbpf_base::memory::Copied;
use heapbpf_linux::proc::maps::{Region, RegionKind};

use super::{DATA, HEAP, arena};
use crate::walk::scene::WalkedBlock;
use crate::walk::tests::split;
use crate::walk::{Scene, Walk};

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
const PARAMETERS: u64 = DATA + 0x1000;
/// Flag of a mapped chunk in the low bits of its size.
const MAPPED: u64 = 2;

/// A library whose main arena has no memory, and counts that many mapped blocks of that many bytes.
struct Made {
    /// Words of memory by address.
    words: BTreeMap<u64, u64>,
    regions: Vec<Region>,
}

impl Made {
    fn new(blocks: u64, bytes: u64) -> Self {
        let module = RegionKind::File { path: "/lib/libc.so.6".into() };
        let mut made = Self { words: BTreeMap::new(), regions: vec![Region::synthetic(DATA, 0x2000, module)] };
        for (at, word) in (DATA..).step_by(8).zip(arena(DATA, DATA + 96, DATA, 0)) {
            made.words.insert(at, word);
        }
        made.count(&[0, 0, blocks << 32, 1 << 16 | 7 << 32, 0, bytes, 1 << 40, 0]);
        made
    }

    /// Sets the parameters (`malloc_par`) after the thresholds.
    fn count(&mut self, last: &[u64]) {
        let first = [0x2_0000, 0x2_0000, 0x2_0000, 8, 0];
        let words = first.iter().chain(last).copied();
        self.words.extend((PARAMETERS..).step_by(8).zip(words));
        self.words.insert(DATA + 0x1ff8, 0);
    }

    fn anonymous(&mut self, start: u64, size_bytes: u64) -> &mut Region {
        self.regions.push(Region::synthetic(start, size_bytes, RegionKind::Anonymous { name: None }));
        self.regions.last_mut().expect("one was added")
    }

    /// Writes the header of a chunk that is this far from the start of its mapping.
    fn chunk(&mut self, start: u64, skip: u64, size_bytes: u64) {
        self.words.extend([(start + skip, skip), (start + skip + 8, size_bytes | MAPPED)]);
    }

    /// Walks memory in which only pages that have words are readable.
    fn walk(&self) -> Option<Walk> {
        let mut pages: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for (&at, word) in &self.words {
            let page = pages.entry(at / PAGE * PAGE).or_insert_with(|| vec![0; 4096]);
            let within = usize::try_from(at % PAGE).expect("small");
            page[within..within + 8].copy_from_slice(&word.to_le_bytes());
        }
        let memory = Copied::new(pages.into_iter().map(|(at, bytes)| (TargetAddr(at), bytes.into())));
        let mut regions = self.regions.clone();
        regions.sort_by_key(|region| region.start);
        let walk = |mappings: &[Region]| crate::walk::glibc::walk(&Scene::new(&memory, mappings, &[]));
        let whole = walk(&regions);
        if whole.as_ref().is_none_or(|walk| walk.gaps.is_empty()) {
            assert_eq!(walk(&split(&regions)), whole, "the kernel's mappings are no facts");
        }
        whole
    }

    #[track_caller]
    fn check(&self, blocks: &[(u64, u64)], gaps: usize) {
        let walk = self.walk().expect("there are blocks");
        let block = |&(start, size_bytes): &(u64, u64)| WalkedBlock { start: TargetAddr(start), size_bytes };
        assert_eq!(walk.blocks, blocks.iter().map(block).collect::<Vec<_>>(), "{:x?}", walk.blocks);
        assert_eq!(walk.gaps.len(), gaps, "{:?}", walk.gaps);
    }
}

#[test]
fn a_library_that_was_not_used_has_no_walk() {
    let mut made = Made::new(0, 0);
    made.anonymous(HEAP, MIB);
    assert_eq!(made.walk(), None);
    // Words that look like a block are not one if the library counts none.
    made.chunk(HEAP, 0, MIB);
    assert_eq!(made.walk(), None);
}

#[test]
fn a_program_may_have_mapped_blocks_alone() {
    let mut made = Made::new(2, 3 * MIB);
    made.anonymous(HEAP, 5 * MIB);
    made.chunk(HEAP, 0, MIB);
    made.chunk(HEAP + 2 * MIB, 0, 2 * MIB);
    made.check(&[(HEAP + 16, MIB - 16), (HEAP + 2 * MIB + 16, 2 * MIB - 16)], 0);
}

#[test]
fn blocks_with_split_mappings_are_found() {
    let mut made = Made::new(2, 11 * MIB);
    // The program's own memory comes first, then a block with closed and read-only pages, then one with advice.
    made.anonymous(HEAP, MIB);
    made.anonymous(HEAP + MIB, MIB);
    let closed = made.anonymous(HEAP + 2 * MIB, PAGE);
    (closed.readable, closed.writable) = (false, false);
    made.anonymous(HEAP + 2 * MIB + PAGE, MIB);
    made.anonymous(HEAP + 3 * MIB + PAGE, PAGE).writable = false;
    made.anonymous(HEAP + 3 * MIB + 2 * PAGE, 10 * MIB);
    made.chunk(HEAP + MIB, 0, 10 * MIB);
    made.chunk(HEAP + 11 * MIB, 0, MIB);
    made.check(&[(HEAP + MIB + 16, 10 * MIB - 16), (HEAP + 11 * MIB + 16, MIB - 16)], 0);
}

#[test]
fn a_count_that_differs_is_a_gap() {
    let mut made = Made::new(3, 6 * MIB);
    made.anonymous(HEAP, 2 * MIB);
    made.anonymous(HEAP + 4 * MIB, 4 * MIB);
    made.chunk(HEAP, 0, 2 * MIB);
    made.chunk(HEAP + 5 * MIB, 0, MIB);
    // Only the block that is a whole mapping is certain.
    made.check(&[(HEAP + 16, 2 * MIB - 16)], 1);
    let gap = &made.walk().expect("a heap").gaps[0];
    assert!(gap.contains("counts 3 blocks") && gap.contains("6291456 bytes, and 2 of 3145728 bytes"), "{gap}");
    // The number of blocks is right, and their bytes are not.
    made.count(&[0, 0, 2 << 32, 1 << 16 | 7 << 32, 0, 6 * MIB, 1 << 40, 0]);
    made.check(&[(HEAP + 16, 2 * MIB - 16)], 1);
    // The bytes differ by less than a page, as in 2.43.
    made.count(&[0, 0, 2 << 32, 1 << 16 | 7 << 32, 0, 3 * MIB + 32, 1 << 40, 0]);
    made.check(&[(HEAP + 16, 2 * MIB - 16), (HEAP + 5 * MIB + 16, MIB - 16)], 0);
    // Parameters as before 2.35.
    made.count(&[2 | 1 << 48, 5, 3 * MIB, 1 << 40, 0, 0]);
    made.check(&[(HEAP + 16, 2 * MIB - 16), (HEAP + 5 * MIB + 16, MIB - 16)], 0);
    // Without a count, nothing proves that all blocks were found.
    made.count(&[0; 8]);
    made.check(&[(HEAP + 16, 2 * MIB - 16)], 1);
}

#[test]
fn aligned_blocks_start_later_than_their_mappings() {
    for alignment in (6..=34).map(|log2| 1 << log2) {
        for first in [HEAP, HEAP + 5 * PAGE] {
            let size = (alignment + 10 * MIB).next_multiple_of(PAGE);
            let mut made = Made::new(1, size);
            made.anonymous(first, size);
            // What is left of the chunk from which the aligned block was cut.
            made.chunk(first, 0, size);
            let user = (first + 16 + 32_u64).next_multiple_of(alignment);
            made.chunk(first, user - 16 - first, size - (user - 16 - first));
            made.check(&[(user, first + size - user)], 0);
        }
    }
}

#[test]
fn aligned_blocks_may_have_been_moved() {
    // The block was moved from where it was aligned to 64 MiB, and has been larger since.
    let (skip, size) = (50 * MIB - 16, 200 * MIB);
    let mut made = Made::new(1, size);
    made.anonymous(HEAP, size);
    made.chunk(HEAP, 0, 80 * MIB);
    made.chunk(HEAP, skip, size - skip);
    made.check(&[(HEAP + 50 * MIB, 150 * MIB)], 0);
}
