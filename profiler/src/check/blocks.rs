//! All known blocks: the recorded and the walked ones.
//!
//! A walked heap is authoritative for its own memory: a recorded block that it does not contain was freed without a
//! record. Of other heaps only recorded blocks are known.

use std::ops::Range;

use super::heap_snapshot::RecordedBlock;
use crate::address::TargetAddr;
use crate::leak::blocks::{Block, Blocks};
use crate::linux::proc::maps::{Region, region_of};
use crate::memory::Span;
use crate::walk::Walk;

/// Origins from here on are those of walked blocks: the index of the walk is added.
pub(super) const WALKED: u32 = u32::MAX - 0xff;

pub(super) struct KnownBlocks {
    /// Origins are the callsites of recorded blocks, or [`WALKED`] and above.
    pub(super) blocks: Blocks,
    /// Memory that only blocks and allocators use: outside of blocks it does not contain roots.
    pub(super) heap_areas: Vec<Span>,
    /// Recorded blocks that the walked heap does not contain, or that are not mapped any more.
    pub(super) stale_count: usize,
    pub(super) overlapping_count: usize,
}

impl KnownBlocks {
    /// `recorded` must be sorted by address.
    pub(super) fn of(recorded: &[RecordedBlock], walks: &[Walk], regions: &[Region]) -> Self {
        let mut heap_areas: Vec<Span> = walks.iter().flat_map(|walk| walk.areas.iter().cloned()).collect();
        heap_areas.sort_by_key(|area| area.start);
        let mut blocks = Vec::with_capacity(recorded.len());
        let mut stale_count = 0;
        let is_confirmed = |address: TargetAddr| {
            walks.iter().any(|walk| walk.blocks.binary_search_by_key(&address, |block| block.start).is_ok())
        };
        for block in recorded {
            // An unmapped block was freed with its heap.
            let is_unmapped = region_of(regions, block.address).is_none();
            if is_unmapped || contains(&heap_areas, block.address) && !is_confirmed(block.address) {
                stale_count += 1;
            } else {
                blocks.push(Block { start: block.address, size_bytes: block.size_bytes, origin: block.callsite });
            }
        }
        for (walk, number) in walks.iter().zip(WALKED..) {
            for block in &walk.blocks {
                if recorded.binary_search_by_key(&block.start, |known| known.address).is_err() {
                    blocks.push(Block { start: block.start, size_bytes: block.size_bytes, origin: number });
                }
            }
        }
        let (blocks, overlapping_count) = Blocks::new(blocks);
        Self { blocks, heap_areas, stale_count, overlapping_count }
    }
}

fn contains(areas: &[Range<TargetAddr>], address: TargetAddr) -> bool {
    let behind = areas.partition_point(|area| area.start <= address);
    areas[..behind].last().is_some_and(|area| area.contains(&address))
}
