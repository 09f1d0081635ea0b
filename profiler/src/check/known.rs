//! All blocks that are known, from those that were watched and those that were walked, and what is known of each heap.
//!
//! Where a heap was walked, what it says of its own memory counts: a watched block that it does not know is one whose free was not seen. Where it was
//! not, the watched blocks are all there is.

use std::ops::Range;

use super::look::WatchedBlock;
use crate::address::TargetAddr;
use crate::collect::Span;
use crate::leak::blocks::{Block, Blocks};
use crate::linux::proc::maps::{Region, region_of};
use crate::walk::Walk;

/// Origins from here on are of walked blocks: the walk's number is added.
pub(super) const WALKED: u32 = u32::MAX - 0xff;

pub(super) struct Known {
    /// The blocks. Origins are the callsites of watched blocks, or [`WALKED`] and above.
    pub(super) blocks: Blocks,
    /// Memory that only blocks and allocators use: what is no block there is no root.
    pub(super) heap_areas: Vec<Span>,
    /// Watched blocks that the heap does not know, or whose memory is gone.
    pub(super) stale_count: usize,
    /// Blocks that lie in others.
    pub(super) overlapping_count: usize,
}

impl Known {
    /// Puts them together. `watched` must be in the order of addresses.
    pub(super) fn of(watched: &[WatchedBlock], walks: &[Walk], regions: &[Region]) -> Self {
        let mut heap_areas: Vec<Span> = walks.iter().flat_map(|walk| walk.areas.iter().cloned()).collect();
        heap_areas.sort_by_key(|area| area.start);
        let mut blocks = Vec::with_capacity(watched.len());
        let mut stale_count = 0;
        let is_confirmed = |address: TargetAddr| {
            walks.iter().any(|walk| walk.blocks.binary_search_by_key(&address, |block| block.start).is_ok())
        };
        for block in watched {
            // What is not mapped any more went with its heap.
            let is_gone = region_of(regions, block.address).is_none();
            if is_gone || contains(&heap_areas, block.address) && !is_confirmed(block.address) {
                stale_count += 1;
            } else {
                blocks.push(Block { start: block.address, size_bytes: block.size_bytes, origin: block.callsite });
            }
        }
        for (walk, number) in walks.iter().zip(WALKED..) {
            for block in &walk.blocks {
                if watched.binary_search_by_key(&block.start, |watched| watched.address).is_err() {
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
