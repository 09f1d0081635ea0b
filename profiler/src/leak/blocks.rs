//! Blocks in the order of their addresses, and which one an address is in.

use crate::address::TargetAddr;

/// A block that a program has been given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its first byte.
    pub start: TargetAddr,
    /// Bytes; one of size 0 takes one byte, so that it can be told from its neighbour.
    pub size_bytes: u64,
    /// Where it came from: a number that is the caller's.
    pub origin: u32,
}

/// A block, by its place in the order of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

/// All blocks.
#[derive(Debug, Default)]
pub struct Blocks {
    blocks: Vec<Block>,
}

impl Blocks {
    /// The blocks, in any order, and how many were left out because they overlap one that begins before them.
    #[must_use]
    pub fn new(mut blocks: Vec<Block>) -> (Self, usize) {
        let given = blocks.len();
        blocks.sort_by_key(|block| block.start);
        let mut end = 0;
        blocks.retain_mut(|block| {
            block.size_bytes = block.size_bytes.max(1);
            let follows = block.start.0 >= end;
            end = if follows { block.start.0.saturating_add(block.size_bytes) } else { end };
            follows
        });
        let left_out = given - blocks.len();
        (Self { blocks }, left_out)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The block with this number.
    ///
    /// # Panics
    ///
    /// If there is none.
    #[must_use]
    pub fn get(&self, id: BlockId) -> Block {
        self.blocks[id.0 as usize]
    }

    /// The block that an address is in; one past its end is not.
    #[must_use]
    pub fn find(&self, address: TargetAddr) -> Option<BlockId> {
        let behind = self.blocks.partition_point(|block| block.start <= address);
        let block = self.blocks[..behind].last()?;
        let inside = address.0 - block.start.0 < block.size_bytes;
        inside.then(|| BlockId(u32::try_from(behind - 1).unwrap_or(u32::MAX)))
    }
}
