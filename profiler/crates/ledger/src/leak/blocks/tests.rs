//! Tests of blocks: order, overlaps, ends of the address space, and lookups of every address, compared with a search of all
//! blocks.

use heapbpf_base::memory::Copied;
use proptest::prelude::*;

use super::*;

fn block(start: u64, size_bytes: u64) -> Block {
    Block { start: TargetAddr(start), size_bytes, origin: 0 }
}

/// Builds blocks and returns those that are kept, with the number of those that are left out.
fn kept(blocks: &[(u64, u64)]) -> (Vec<(u64, u64)>, usize) {
    let (blocks, left_out) = Blocks::new(blocks.iter().map(|&(start, size)| block(start, size)).collect());
    (blocks.ids().map(|id| blocks.get(id)).map(|block| (block.start.0, block.size_bytes)).collect(), left_out)
}

#[test]
fn blocks_are_sorted_and_keep_their_origin() {
    let (blocks, left_out) = Blocks::new(vec![
        Block { start: TargetAddr(0x2000), size_bytes: 16, origin: 7 },
        Block { start: TargetAddr(0x1000), size_bytes: 32, origin: u32::MAX },
    ]);
    assert_eq!((blocks.len(), left_out), (2, 0));
    assert_eq!(blocks.get(BlockId(0)), Block { start: TargetAddr(0x1000), size_bytes: 32, origin: u32::MAX });
    assert_eq!(blocks.get(BlockId(1)).origin, 7);
}

#[test]
fn an_empty_list_contains_no_address() {
    let (blocks, left_out) = Blocks::new(Vec::new());
    assert!(blocks.is_empty() && left_out == 0);
    for address in [0, 1, u64::MAX] {
        assert_eq!(blocks.find(TargetAddr(address)), None);
    }
}

/// libmemunreachable's case: of two overlapping blocks the one that begins first is kept, wherever in it the other begins.
#[test]
fn overlap() {
    for start in 0x1001..0x1010 {
        assert_eq!(kept(&[(0x1000, 16), (start, 16)]), (vec![(0x1000, 16)], 1));
        assert_eq!(kept(&[(start, 1), (0x1000, 16)]), (vec![(0x1000, 16)], 1));
    }
    assert_eq!(kept(&[(0x1000, 16), (0x1010, 16)]), (vec![(0x1000, 16), (0x1010, 16)], 0));
    assert_eq!(kept(&[(0x1000, 8), (0x1000, 16), (0x1000, 16)]), (vec![(0x1000, 16)], 2));
    // A block that is left out does not cause others to be left out.
    assert_eq!(kept(&[(0x1000, 16), (0x1008, 64), (0x1010, 16)]).0, [(0x1000, 16), (0x1010, 16)]);
}

/// libmemunreachable's case: blocks of size 0 are distinct.
#[test]
fn zero() {
    let (blocks, left_out) = Blocks::new(vec![block(0x1000, 0), block(0x1001, 0), block(0x1001, 0)]);
    assert_eq!((blocks.len(), left_out), (2, 1));
    assert_eq!(blocks.get(BlockId(0)).size_bytes, 1);
    assert_eq!(blocks.find(TargetAddr(0xfff)), None);
    assert_eq!(blocks.find(TargetAddr(0x1000)), Some(BlockId(0)));
    assert_eq!(blocks.find(TargetAddr(0x1001)), Some(BlockId(1)));
    assert_eq!(blocks.find(TargetAddr(0x1002)), None);
}

#[test]
fn the_ends_of_the_address_space() {
    let last = u64::MAX;
    let blocks = [(0, 1), (1, 1 << 40), (1 << 63, 1 << 62), (last - 1, 100), (last, 100), (last, 1)];
    let (kept, left_out) = kept(&blocks);
    assert_eq!(kept, [(0, 1), (1, 1 << 40), (1 << 63, 1 << 62), (last - 1, 1), (last, 1)]);
    assert_eq!(left_out, 1);
    let (blocks, _) = Blocks::new(blocks.iter().map(|&(start, size)| block(start, size)).collect());
    let found = |address| blocks.find(TargetAddr(address)).map(|id| id.0);
    assert_eq!([found(0), found(1), found(1 << 40), found((1 << 40) + 1)], [Some(0), Some(1), Some(1), None]);
    assert_eq!([found((1 << 63) - 1), found(3 << 62), found((3 << 62) - 1)], [None, None, Some(2)]);
    assert_eq!([found(last - 2), found(last - 1), found(last)], [None, Some(3), Some(4)]);
}

#[test]
fn excess_blocks_are_dropped() {
    let (blocks, left_out) = Blocks::of_at_most((0..10).map(|n| block(0x1000 + 16 * n, 16)).collect(), 7);
    assert_eq!((blocks.len(), left_out), (7, 3));
    assert_eq!(blocks.find(TargetAddr(0x1000 + 16 * 7)), None);
}

#[test]
fn a_block_takes_24_bytes_at_most() {
    let spreads: [fn(u64) -> u64; 6] = [
        |_| 16,
        |_| 64,
        |n| 16 + n % 256,
        |_| 4096,
        |n| 1 << (4 + n % 28),
        |n| if n % 1000 == 0 { 1 << 42 } else { 8 },
    ];
    for (at, spread) in spreads.into_iter().enumerate() {
        let mut start = 0x1000_0000;
        let given: Vec<Block> = (0..100_000)
            .map(|n| {
                start += spread(n);
                block(start - spread(n), spread(n))
            })
            .collect();
        let (blocks, left_out) = Blocks::new(given.clone());
        assert_eq!(left_out, 0);
        let most = 24 * blocks.len() + 16 * 1024;
        assert!(blocks.footprint_bytes() <= most, "spread {at}: {} bytes", blocks.footprint_bytes());
        for (number, given) in (0..).zip(&given) {
            assert_eq!(blocks.find(given.start), Some(BlockId(number)), "spread {at}");
            let last = TargetAddr(given.end().0 - 1);
            assert_eq!(blocks.find(last), Some(BlockId(number)), "spread {at}");
        }
        assert_eq!(blocks.find(TargetAddr(start)), None);
    }
}

/// Starts and sizes of several orders of magnitude, near each other and far apart.
fn any_blocks() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let number = || (0u32..64, any::<u64>()).prop_map(|(bits, number)| number >> bits);
    let near = || (0u64..4096).prop_map(|offset| 0x7f00_0000_0000 + offset);
    let aligned = || (0u64..4096).prop_map(|offset| 0x5500_0000_0000 + 16 * offset);
    let far = || (0u64..64).prop_map(|offset| 0x7e00_0000_0000 + (offset << 26));
    let start = prop_oneof![number(), near(), aligned(), far()];
    prop::collection::vec((start, prop_oneof![0u64..64, number()]), 0..200)
}

proptest! {
    #[test]
    fn lookups_agree_with_a_linear_search(given in any_blocks(), probes in prop::collection::vec(any::<u64>(), 20)) {
        let (blocks, left_out) = Blocks::new(given.iter().map(|&(start, size)| block(start, size)).collect());
        prop_assert_eq!(blocks.len() + left_out, given.len());
        let all: Vec<Block> = blocks.ids().map(|id| blocks.get(id)).collect();
        prop_assert!(all.windows(2).all(|pair| pair[1].start.0 - pair[0].start.0 >= pair[0].size_bytes));
        let around = all.iter().flat_map(|block| {
            let (start, end) = (block.start.0, block.start.0.saturating_add(block.size_bytes));
            [start.saturating_sub(1), start, start.saturating_add(1), end - 1, end, end.saturating_add(1)]
        });
        for address in around.chain(probes) {
            let is_in = |block: &Block| address >= block.start.0 && address - block.start.0 < block.size_bytes;
            let expected = (0..).zip(&all).find(|(_, block)| is_in(block)).map(|(number, _)| BlockId(number));
            prop_assert_eq!(blocks.find(TargetAddr(address)), expected, "{:#x}", address);
            let is_behind = |block: &Block| address < block.start.0 || is_in(block);
            let first_behind = all.iter().position(is_behind).unwrap_or(all.len());
            prop_assert_eq!(blocks.first_behind(address) as usize, first_behind);
        }
    }
}

#[test]
fn granules_are_as_wide_as_blocks_are_far_apart() {
    assert_eq!(shift_for(0, 1), SHIFT_MIN);
    assert_eq!(shift_for(64 << 20, 1 << 20), SHIFT_MIN, "blocks of 64 bytes");
    assert_eq!(shift_for((1 << 30) - 1, 1 << 20), 5, "blocks of 1 KiB: pages of 2 KiB");
    assert_eq!(shift_for(u64::MAX, 1), 58);
    assert_eq!(shift_for(u64::MAX, usize::MAX), SHIFT_MIN);
}

#[test]
fn wide_gaps_split_and_only_so_many() {
    let split = |count: u64, apart: u64| {
        let block = |n: u64| Block { start: TargetAddr(apart * n), size_bytes: 8, origin: 0 };
        let (blocks, _) = Blocks::new((0..count).map(block).collect());
        let found = (0..count).all(|n| blocks.find(TargetAddr(apart * n + 7)).is_some_and(|id| u64::from(id.0) == n));
        assert!(found, "{count} blocks, {apart:#x} bytes apart");
        blocks.footprint_bytes()
    };
    for apart in [16, 0x10_0000, 1 << 44] {
        let footprint = split(1000, apart);
        assert!(footprint <= 24 * 1000 + 16 * 1024, "{footprint} bytes where blocks are {apart:#x} bytes apart");
    }
}

#[test]
fn blocks_of_empty_arrays_are_found_by_the_address_after_them() {
    let block = |start, size_bytes| Block { start: TargetAddr(start), size_bytes, origin: 0 };
    let (mut blocks, _) = Blocks::new(vec![block(0x1000, 8), block(0x1020, 8), block(0x1040, 16)]);
    let mut bytes = vec![0; 0x100];
    bytes[0x20] = 7;
    assert!(!blocks.has_empty_arrays());
    blocks.find_empty_arrays(&Copied::new([(TargetAddr(0x1000), bytes.into())]));
    let found = [0x1000, 0x1008, 0x1028, 0x1048, 0x1050].map(|address| blocks.empty_array_before(address));
    assert_eq!(found, [None, Some(0), None, None, None], "only eight zero bytes are one");
}
