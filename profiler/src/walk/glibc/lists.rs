//! Lists of chunks that are free and look used: fastbins and the caches of threads.
//!
//! Since 2.32 the links are mangled with the address they are at ("safe linking"): `next ^ (address >> 12)`.

use std::ops::RangeInclusive;

use super::chunk::{CHUNK_BYTES_MIN, FLAGS, HEADER_BYTES};
use crate::address::TargetAddr;
use crate::memory::{Memory, WORD_BYTES};

/// How links are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Links {
    /// Mangled: 2.32 and later.
    Mangled,
    /// As they are.
    Plain,
}

impl Links {
    pub(super) const ALL: [Self; 2] = [Self::Mangled, Self::Plain];

    fn read(self, memory: &dyn Memory, at: u64) -> Option<u64> {
        let raw = memory.word(TargetAddr(at))?;
        Some(match self {
            Self::Mangled => raw ^ (at >> 12),
            Self::Plain => raw,
        })
    }
}

/// What links lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// What programs have of a chunk, as in caches of threads.
    Block,
    /// The chunk, as in fastbins.
    Chunk,
}

/// A list.
#[derive(Clone, Debug)]
pub(super) struct List {
    /// What its head holds: 0 where it is empty.
    pub(super) first: u64,
    pub(super) target: Target,
    /// Sizes that its chunks may have.
    pub(super) chunk_bytes: RangeInclusive<u64>,
    pub(super) count_max: u64,
}

impl List {
    /// Its blocks from the first on; None where it is not in order.
    pub(super) fn blocks(&self, memory: &dyn Memory, links: Links) -> Option<Vec<u64>> {
        let skip_bytes = if self.target == Target::Chunk { HEADER_BYTES } else { 0 };
        let mut blocks = Vec::new();
        let mut next = self.first;
        while next != 0 {
            let block = next.checked_add(skip_bytes)?;
            let size = memory.word(TargetAddr(block.checked_sub(WORD_BYTES)?))? & !FLAGS;
            let is_chunk = block % 16 == 0 && size >= CHUNK_BYTES_MIN && self.chunk_bytes.contains(&size);
            if !is_chunk || blocks.len() as u64 == self.count_max {
                return None;
            }
            blocks.push(block);
            next = links.read(memory, block)?;
        }
        Some(blocks)
    }
}
