//! Tests with synthetic heaps, which are built byte by byte.

use std::collections::BTreeMap;
use std::path::PathBuf;

use heapbpf_base::memory::Copied;
use proptest::prelude::*;

use super::super::*;
use crate::walk::tests::{Patient, split};

const SECRET: u64 = 0x5ec2_e7a1_b2c3_d4e5;
const DATA: u64 = 0x5000_0000;
const AREA: u64 = 0x5100_0000;
const GROUPS: u64 = 0x7f00_0000_0000;
const GROUPS_BYTES: u64 = 0x80_0000;
const PAGE: usize = 4096;
/// Class of slots of 64 bytes; the class of slots of 496 bytes follows.
const OF_64: u64 = 3;
const OF_496: u64 = 15;
const LARGE: u64 = 63;
const FREEABLE: u64 = 32;

#[derive(Clone)]
struct Made {
    pages: BTreeMap<u64, [u8; PAGE]>,
    metas: u64,
}

impl Made {
    /// Builds a heap without groups.
    fn new() -> Self {
        let mut made = Self { pages: BTreeMap::new(), metas: 0 };
        made.words(DATA + 0x40, &[SECRET, 1 | 7 << 32, 0, AREA + 24, 101, 0, 0, AREA, AREA, AREA + 4096]);
        made.words(DATA + 0x40 + 80, &[0; 48]);
        made.words(AREA, &[SECRET, 0, 101]);
        made
    }

    fn put(&mut self, address: u64, bytes: &[u8]) {
        for (at, &byte) in (address..).zip(bytes) {
            let page = self.pages.entry(at / PAGE as u64).or_insert([0; PAGE]);
            page[usize::try_from(at).expect("64 bits") % PAGE] = byte;
        }
    }

    fn words(&mut self, address: u64, words: &[u64]) {
        words.iter().zip((address..).step_by(8)).for_each(|(word, at)| self.put(at, &word.to_le_bytes()));
    }

    /// Adds a group and its meta.
    fn group(&mut self, memory: u64, (available, freed): (u32, u32), slots: u64, class: u64, pages: u64) {
        let meta = AREA + 24 + 40 * self.metas;
        self.metas += 1;
        let masks = u64::from(available) | u64::from(freed) << 32;
        self.words(meta, &[0, 0, memory, masks, (slots - 1) | FREEABLE | class << 6 | pages << 12]);
        self.words(memory, &[meta]);
    }

    /// Writes a header before an address.
    fn header(&mut self, address: u64, units: u64, info: u8) {
        let [low, high, ..] = units.to_le_bytes();
        self.put(address - 4, &[0, info, low, high]);
    }

    fn regions() -> Vec<Region> {
        let anonymous = || RegionKind::Anonymous { name: None };
        let file = RegionKind::File { path: PathBuf::from("/lib/ld-musl-x86_64.so.1") };
        vec![
            Region::synthetic(DATA, 4096, file),
            Region::synthetic(AREA, 8192, anonymous()),
            Region::synthetic(GROUPS, GROUPS_BYTES / 2, anonymous()),
            Region::synthetic(GROUPS + GROUPS_BYTES / 2, GROUPS_BYTES / 2, anonymous()),
        ]
    }

    fn memory(&self) -> Copied {
        let page =
            |(number, bytes): (&u64, &[u8; PAGE])| (TargetAddr(number * PAGE as u64), Box::from(bytes.as_slice()));
        Copied::new(self.pages.iter().map(page))
    }

    fn walk(&self) -> Option<Walk> {
        let (memory, regions) = (self.memory(), Self::regions());
        let whole = walk(&Scene::new(&memory, &regions, &[]));
        assert_eq!(walk(&Scene::new(&memory, &split(&regions), &[])), whole, "the kernel's mappings are no facts");
        whole
    }

    #[track_caller]
    fn check(&self, blocks: &[(u64, u64)], gaps: usize) -> Walk {
        let walk = self.walk().expect("a heap");
        let found: Vec<_> = walk.blocks.iter().map(|block| (block.start.0 - GROUPS, block.size_bytes)).collect();
        assert_eq!(found, blocks, "{walk:x?}");
        assert_eq!(walk.gaps.len(), gaps, "{:?}", walk.gaps);
        walk
    }
}

fn span(start: u64, end: u64) -> Span {
    TargetAddr(start)..TargetAddr(end)
}

/// Builds a heap with four slots of 64 bytes in a page: one given out with 10 bytes, one freed, one with 60 bytes, one never
/// used.
fn small() -> Made {
    let mut made = Made::new();
    made.group(GROUPS, (8, 2), 4, OF_64, 1);
    made.header(GROUPS + 16, 0, 5 << 5);
    made.put(GROUPS + 16 + 56, &50_u32.to_le_bytes());
    made.header(GROUPS + 16 + 64, 0, 0xff);
    made.header(GROUPS + 16 + 128, 8, 2);
    made
}

#[test]
fn allocated_blocks_are_found_with_their_sizes() {
    let walk = small().check(&[(16, 10), (16 + 128, 60)], 0);
    assert_eq!(walk.areas, [span(AREA, AREA + 4096), span(GROUPS, GROUPS + 4096)]);
    Made::new().check(&[], 0);
}

#[test]
fn a_heap_with_a_wrong_secret_is_refused() {
    let mut made = small();
    made.words(AREA, &[SECRET + 1]);
    let walk = made.walk().expect("musl is mapped");
    assert!(walk.blocks.is_empty() && walk.areas.is_empty() && walk.gaps.len() == 1, "{walk:?}");
    made.put(DATA + 0x48, &[0]);
    assert_eq!(made.walk().expect("musl is mapped").gaps.len(), 1);
}

#[test]
fn displaced_blocks_are_found() {
    let mut made = small();
    made.header(GROUPS + 16, 2, 7 << 5);
    made.header(GROUPS + 16 + 32, 2, 3 << 5);
    made.check(&[(16 + 32, 25), (16 + 128, 60)], 0);
    // The block is being freed: its header is gone, its bit not.
    made.header(GROUPS + 16 + 32, 0, 0xff);
    made.check(&[(16 + 128, 60)], 0);
}

#[test]
fn nested_groups_are_walked() {
    let mut made = Made::new();
    made.group(GROUPS, (0, 6), 3, OF_496, 1);
    let inner = GROUPS + 16;
    made.header(inner, 0, 6 << 5);
    made.group(inner, (0, 0b110_1111), 7, OF_64, 0);
    made.header(inner + 16 + 4 * 64, 16, 4);
    let walk = made.check(&[(16 + 16 + 256, 60)], 0);
    assert_eq!(walk.areas, [span(AREA, AREA + 4096), span(GROUPS, GROUPS + 4096)]);
    // A group to which no slot refers may be anything.
    made.header(inner, 0, 6 << 5 | 3);
    let walk = made.check(&[], 2);
    assert_eq!(walk.areas[1..], [span(GROUPS, GROUPS + 16), span(GROUPS + 16 + 496, GROUPS + 4096)]);
}

#[test]
fn slots_with_overwritten_headers_are_in_no_area() {
    let mut made = small();
    made.header(GROUPS + 16 + 128, 0x4141, 0x41);
    let walk = made.check(&[(16, 10)], 1);
    let hole = GROUPS + 16 + 128;
    assert_eq!(walk.areas[1..], [span(GROUPS, hole), span(hole + 64, GROUPS + 4096)]);
    // A block that overruns its end is taken for as large as it can be.
    let mut made = small();
    made.put(GROUPS + 16 + 56, &[0x41; 5]);
    made.check(&[(16, 60), (16 + 128, 60)], 0);
}

#[test]
fn large_blocks_are_found_at_any_alignment() {
    let pages = 0x300;
    let mut made = Made::new();
    made.group(GROUPS, (0, 0), 1, LARGE, pages);
    let block = GROUPS + 0x20_0000;
    let units = (block - GROUPS - 16) / 16;
    // The header that malloc wrote before the block was aligned is still there.
    made.header(GROUPS + 16, units & 0xffff, 7 << 5);
    made.header(GROUPS + 16 + (units & 0xffff) * 16, units & 0xffff, 5 << 5);
    let [a, b, c, d, ..] = units.to_le_bytes();
    made.put(block - 8, &[a, b, c, d, 1, 5 << 5, 0, 0]);
    made.put(GROUPS + pages * 4096 - 8, &(0x10_0000_u32 - 4 - 100).to_le_bytes());
    made.check(&[(0x20_0000, 100)], 0);
}

#[test]
fn only_touched_parts_of_reserved_terabytes_are_searched() {
    let (start, pages) = (0x1000_0000_0000, 1 << 33);
    let mut made = Made::new();
    made.group(start, (0, 0), 1, LARGE, pages);
    made.header(start + 16, 0, 7 << 5);
    let mut regions = Made::regions();
    regions.truncate(2);
    regions.push(Region::synthetic(start, pages * 4096, RegionKind::Anonymous { name: None }));
    let memory = Patient::new(made.memory(), 10_000);
    let walk = walk(&Scene::new(&memory, &regions, &[])).expect("a heap");
    assert_eq!(walk.gaps.len(), 1, "{walk:?}");
}

#[test]
fn cyclic_lists_end() {
    let mut made = small();
    made.words(AREA + 8, &[AREA]);
    made.check(&[(16, 10), (16 + 128, 60)], 0);
    // One group lies in itself, and one is larger than what is mapped.
    made.group(GROUPS + 4096 + 16, (0, 0), 1, OF_64, 0);
    made.header(GROUPS + 4096 + 16, 0, 6 << 5);
    made.group(GROUPS + 8192, (0, 0), 1, LARGE, 1 << 20);
    made.check(&[(16, 10), (16 + 128, 60)], 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn corrupt_bookkeeping_gives_disjoint_blocks_within_areas(
        writes in prop::collection::vec((0_usize..4, 0_u64..512, prop_oneof![any::<u64>(), Just(GROUPS), Just(AREA + 24)]), 1..40)
    ) {
        let mut made = small();
        made.group(GROUPS + 4096, (0, 0), 1, LARGE, 0x300);
        for (place, nth, word) in writes {
            let page = [DATA, AREA, GROUPS, GROUPS + 4096][place];
            made.words(page + nth * 8, &[word]);
        }
        made.words(AREA, &[SECRET]);
        if let Some(walk) = made.walk() {
            let ends = walk.blocks.iter().map(|block| block.start.0 + block.size_bytes);
            prop_assert!(ends.zip(&walk.blocks[1.min(walk.blocks.len())..]).all(|(end, next)| end <= next.start.0));
            prop_assert!(walk.areas.windows(2).all(|pair| pair[0].end < pair[1].start), "{:x?}", walk.areas);
            for block in &walk.blocks {
                let end = block.start.0 + block.size_bytes;
                prop_assert!(walk.areas.iter().any(|area| area.start <= block.start && end <= area.end.0));
            }
        }
    }
}
