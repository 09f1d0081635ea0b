//! Tests with synthetic heaps, which are built word by word.

use std::collections::BTreeMap;
use std::path::PathBuf;

use heapbpf_base::memory::Copied;
use heapbpf_linux::proc::maps::{Region, RegionKind};
use proptest::prelude::*;

use super::super::*;
use crate::walk::tests::split;

const DATA: u64 = 0x5555_0000_0000;
const BASE: u64 = 0x7f00_0020_0000;
const BASE_BYTES: u64 = 8 << 20;
const LEAF: u64 = BASE + 0x1_0000;
const EXTENTS: u64 = BASE + 0x100;
const PAGES: u64 = 0x7f00_1000_0000;
const SLAB: u64 = 1 << 12;

#[derive(Clone, Default)]
struct Made(BTreeMap<u64, [u8; 8]>);

impl Made {
    fn words(&mut self, address: u64, words: &[u64]) {
        self.0.extend((address..).step_by(8).zip(words.iter().map(|word| word.to_le_bytes())));
    }

    /// Builds a heap without extents.
    fn new() -> Self {
        let mut made = Self::default();
        let unused = BASE + 0x40_0000;
        made.words(BASE, &[BASE_BYTES, 0, 0xafff | 232 << 20, unused, BASE + BASE_BYTES - unused]);
        made.words(BASE + 0x28, &[0; 0x20]);
        made.words(DATA + (PAGES >> 30) * 8, &[LEAF]);
        made
    }

    /// Adds an extent, the tree's words for its ends, and a bit for each free block.
    fn extent(&mut self, number: u64, flags: u64, page: u64, bytes: u64, free: u64) {
        let own = EXTENTS + number * 128;
        self.words(own, &[0; 16]);
        self.words(own, &[flags | u64::from(free.count_ones()) << 28, PAGES + page * 4096, bytes]);
        self.words(own + 64, &[free]);
        for end in [page, page + bytes / 4096 - 1] {
            self.words(LEAF + ((PAGES >> 12 & 0x3_ffff) + end) * 8, &[own | 1]);
        }
    }

    fn walk(&self) -> Option<Walk> {
        let pieces = self.0.iter().map(|(address, word)| (TargetAddr(*address), Box::from(word.as_slice())));
        let anonymous = || RegionKind::Anonymous { name: None };
        let regions = [
            Region::synthetic(DATA - 4096, 4096, RegionKind::File { path: PathBuf::from("/bin/x") }),
            Region::synthetic(DATA, 8 << 18, anonymous()),
            Region::synthetic(BASE, BASE_BYTES, anonymous()),
            Region::synthetic(PAGES, 16 * 4096, anonymous()),
        ];
        let memory = Copied::new(pieces);
        let whole = walk(&Scene::new(&memory, &regions, &[]));
        assert_eq!(walk(&Scene::new(&memory, &split(&regions), &[])), whole, "the kernel's mappings are no facts");
        whole
    }
}

/// Builds a heap with a slab of 64 blocks of 64 bytes, all but three free; a large block of 16 KiB that begins behind its page;
/// and free pages.
fn small() -> Made {
    let mut made = Made::new();
    made.extent(0, SLAB | 4 << 20, 0, 4096, !0b1_0110);
    made.extent(1, 36 << 20, 1, 5 * 4096, 0);
    made.words(EXTENTS + 128 + 8, &[PAGES + 4096 + 0x340]);
    made.extent(2, 1 << 17, 6, 4096, 0);
    made
}

#[track_caller]
fn check(made: &Made, blocks: &[(u64, u64)], gaps: usize) -> Walk {
    let walk = made.walk().expect("a heap");
    let found: Vec<_> = walk.blocks.iter().map(|block| (block.start.0 - PAGES, block.size_bytes)).collect();
    assert_eq!(found, blocks, "{walk:x?}");
    assert_eq!(walk.gaps.len(), gaps, "{:?}", walk.gaps);
    walk
}

#[test]
fn slabs_and_large_blocks_are_found() {
    let walk = check(&small(), &[(64, 64), (128, 64), (256, 64), (4096 + 0x340, 16384)], 0);
    let span = |start, end| TargetAddr(start)..TargetAddr(end);
    assert_eq!(walk.areas, [span(EXTENTS, EXTENTS + 3 * 128), span(PAGES, PAGES + 7 * 4096)]);
}

#[test]
fn extents_outside_the_page_tree_are_stale() {
    let mut made = small();
    made.words(LEAF + ((PAGES >> 12 & 0x3_ffff) + 5) * 8, &[0]);
    let walk = check(&made, &[(64, 64), (128, 64), (256, 64)], 0);
    let span = |start, end| TargetAddr(start)..TargetAddr(end);
    let pages = [span(PAGES, PAGES + 4096), span(PAGES + 6 * 4096, PAGES + 7 * 4096)];
    let expected = [&[span(EXTENTS, EXTENTS + 3 * 128)][..], &pages].concat();
    assert_eq!(walk.areas, expected, "the description has the address of a former first block");
}

#[test]
fn inconsistent_slabs_are_not_walked() {
    let mut made = small();
    made.words(EXTENTS + 64, &[!0b11_0110]);
    let walk = check(&made, &[], 1);
    assert!(walk.areas.is_empty(), "{walk:?}");
}

#[test]
fn metadata_without_a_page_tree_is_not_walked() {
    let mut made = small();
    made.words(DATA + (PAGES >> 30) * 8, &[0]);
    check(&made, &[], 1);
    made.words(BASE + 8, &[1]);
    assert_eq!(made.walk(), None);
}

proptest! {
    #[test]
    fn corrupt_bookkeeping_gives_disjoint_blocks_within_areas(
        writes in prop::collection::vec((0_usize..3, 0_u64..48, prop_oneof![any::<u64>(), Just(PAGES), 0_u64..1 << 20]), 1..8)
    ) {
        let mut made = small();
        for (place, nth, word) in writes {
            let address = [BASE, EXTENTS, LEAF + (PAGES >> 12 & 0x3_ffff) * 8][place];
            made.words(address + nth * 8, &[word]);
        }
        if let Some(walk) = made.walk() {
            for pair in walk.blocks.windows(2) {
                prop_assert!(pair[0].start.0 + pair[0].size_bytes <= pair[1].start.0, "{pair:x?}");
            }
            for block in &walk.blocks {
                let end = block.start.0 + block.size_bytes;
                prop_assert!(walk.areas.iter().any(|area| area.start <= block.start && end <= area.end.0));
            }
        }
    }
}
