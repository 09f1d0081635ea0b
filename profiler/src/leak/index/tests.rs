//! How coarse the index is, and that it stays small wherever blocks are.

use super::*;
use crate::address::TargetAddr;
use crate::leak::blocks::{Block, Blocks};

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
