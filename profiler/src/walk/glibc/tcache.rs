//! Caches of threads (`tcache_perthread_struct`): themselves blocks of an arena, known by what is in them.

use super::lists::{Links, List, Steps, Target};
use crate::address::TargetAddr;
use crate::memory::Memory;
use crate::walk::WalkedBlock;

/// How a version lays a cache out.
#[derive(Debug, PartialEq, Eq)]
struct Format {
    /// Bytes that its chunk leaves to it, or 16 more where what was left of a free chunk was too small for another one.
    block_bytes: u64,
    bins: u64,
    /// Bytes of a count.
    count_bytes: u64,
    /// A count says how many may still come instead of how many there are.
    counts_room: bool,
}

/// 2.42 and later; 2.30 to 2.41; 2.26 to 2.29.
const FORMATS: [Format; 3] = [
    Format { block_bytes: BYTES_MAX as u64, bins: 76, count_bytes: 2, counts_room: true },
    Format { block_bytes: 0x288, bins: 64, count_bytes: 2, counts_room: false },
    Format { block_bytes: 0x248, bins: 64, count_bytes: 1, counts_room: false },
];

/// Bytes of the largest.
pub(super) const BYTES_MAX: usize = 0x2f8;
/// Bins with one size each.
const SMALL_BINS: u64 = 64;
/// Most entries of a bin: counts are of two bytes.
const ENTRIES_MAX: u64 = 0xffff;

/// Whether a block could be a cache, by its size.
pub(super) fn has_size(block: &WalkedBlock) -> bool {
    format_of(block).is_some()
}

fn format_of(block: &WalkedBlock) -> Option<&'static Format> {
    FORMATS.iter().find(|format| block.size_bytes.checked_sub(format.block_bytes).is_some_and(|more| more <= 16))
}

/// The blocks that a cache keeps, none if it is empty; None where this is no cache.
pub(super) fn entries(memory: &dyn Memory, links: Links, block: WalkedBlock, steps: &Steps) -> Option<Vec<u64>> {
    let format = format_of(&block)?;
    let mut bytes = [0; BYTES_MAX];
    let bytes = &mut bytes[..usize::try_from(format.block_bytes).ok()?];
    if memory.read(TargetAddr(block.start.0), bytes) != bytes.len() {
        return None;
    }
    let number = |at: u64, length: u64| {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        bytes[at..at + usize::try_from(length).unwrap_or(0)]
            .iter()
            .rev()
            .fold(0, |all, &byte| all << 8 | u64::from(byte))
    };
    let mut all = Vec::new();
    let mut room = None;
    for bin in 0..format.bins {
        let first = number(format.count_bytes * format.bins + bin * 8, 8);
        let count = number(bin * format.count_bytes, format.count_bytes);
        if !format.counts_room && (first == 0) != (count == 0) {
            return None;
        }
        let count_max = if format.counts_room { ENTRIES_MAX } else { count };
        let entries = List { first, target: Target::Block, chunk_bytes: chunk_bytes(bin), count_max }
            .blocks(memory, links, steps)?;
        let length = entries.len() as u64;
        let in_order =
            if format.counts_room { *room.get_or_insert(count + length) == count + length } else { count == length };
        if !in_order {
            return None;
        }
        all.extend(entries);
    }
    Some(all)
}

/// Sizes of chunks that a bin takes: beyond the small bins, those up to a power of two.
fn chunk_bytes(bin: u64) -> std::ops::RangeInclusive<u64> {
    match bin.checked_sub(SMALL_BINS) {
        None => 32 + bin * 16..=32 + bin * 16,
        Some(large) => 1 << (large + 10)..=(1 << (large + 11)) - 1,
    }
}
