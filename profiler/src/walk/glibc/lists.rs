//! Lists of chunks that are free and look used: fastbins and the caches of threads.
//!
//! Since 2.32 the links are mangled with the address they are at ("safe linking"): `next ^ (address >> 12)`.

use std::cell::Cell;
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

/// How many links may still be followed of all lists together: caches and arenas that are made up may all lead to the same long ones.
#[derive(Debug)]
pub(super) struct Steps(Cell<u64>);

impl Steps {
    /// For memory of so many bytes: every chunk may be in a list, and lists are gone through a few times.
    pub(super) fn of(bytes: u64) -> Self {
        Self(Cell::new(bytes / CHUNK_BYTES_MIN * 8))
    }

    fn take(&self) -> bool {
        let left = self.0.get();
        self.0.set(left.saturating_sub(1));
        left > 0
    }
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
    /// Its blocks from the first on; None where it is not in order, or no steps are left.
    pub(super) fn blocks(&self, memory: &dyn Memory, links: Links, steps: &Steps) -> Option<Vec<u64>> {
        let skip_bytes = if self.target == Target::Chunk { HEADER_BYTES } else { 0 };
        let mut blocks = Vec::new();
        let mut next = self.first;
        // A list that was overwritten may lead back to itself: met again at the latest when it has been followed twice as far.
        let (mut met, mut until) = (0, 1);
        while next != 0 {
            let block = next.checked_add(skip_bytes)?;
            let size = memory.word(TargetAddr(block.checked_sub(WORD_BYTES)?))? & !FLAGS;
            let is_chunk = block % 16 == 0 && size >= CHUNK_BYTES_MIN && self.chunk_bytes.contains(&size);
            if !is_chunk || block == met || !steps.take() || blocks.len() as u64 == self.count_max {
                return None;
            }
            blocks.push(block);
            if blocks.len() == until {
                (met, until) = (block, 2 * until);
            }
            next = links.read(memory, block)?;
        }
        Some(blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Copied;

    /// Chunks of 32 bytes at these places, each with a link as it is written.
    fn memory(links: &[(u64, u64)]) -> Copied {
        let mut bytes = vec![0; 0x1000];
        for &(block, link) in links {
            let at = usize::try_from(block - 0x1000).expect("small");
            bytes[at - 8..at].copy_from_slice(&33_u64.to_le_bytes());
            bytes[at..at + 8].copy_from_slice(&link.to_le_bytes());
        }
        Copied::new([(TargetAddr(0x1000), bytes.into())])
    }

    #[test]
    fn a_list_that_leads_back_to_itself_ends_whatever_the_arena_says() {
        let list = List { first: 0x1010, target: Target::Block, chunk_bytes: 32..=32, count_max: u64::MAX / 32 };
        let check = |links: &[(u64, u64)], expected: Option<Vec<u64>>| {
            assert_eq!(list.blocks(&memory(links), Links::Plain, &Steps::of(0x1000)), expected, "{links:x?}");
        };
        check(&[(0x1010, 0x1030), (0x1030, 0x1050), (0x1050, 0)], Some(vec![0x1010, 0x1030, 0x1050]));
        let few = Steps::of(32);
        let two = memory(&[(0x1010, 0x1030), (0x1030, 0)]);
        let walks = (0..6).filter(|_| list.blocks(&two, Links::Plain, &few).is_some()).count();
        assert_eq!(walks, 4, "eight steps, two for each");
        check(&[(0x1010, 0x1010)], None);
        check(&[(0x1010, 0x1030), (0x1030, 0x1050), (0x1050, 0x1030)], None);
        check(&[(0x1010, 0x1030), (0x1030, 0x1050), (0x1050, 0x1070), (0x1070, 0x1010)], None);
    }
}
