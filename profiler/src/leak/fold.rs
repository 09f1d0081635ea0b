//! Unreached blocks as few entries: those that no other holds, each with all that hangs on it.

use super::blocks::{BlockId, Blocks};
use super::mark::Marks;
use crate::memory::Memory;

/// A number of blocks and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Blocks.
    pub count: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Blocks that hold each other in a circle, or a single one, and that no other unreached block holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootLeak {
    /// Its blocks, by rising address: at least one.
    pub members: Vec<BlockId>,
    /// The blocks of it, and all that can be reached from them.
    pub reached: Sum,
}

/// What was not reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folded {
    /// All blocks.
    pub leaked: Sum,
    /// Those that are in root leaks.
    pub direct: Sum,
    /// In the order of addresses. What two of them reach counts in both.
    pub roots: Vec<RootLeak>,
    /// Every block, by rising address.
    pub unreached: Vec<BlockId>,
}

/// Folds what was not reached.
#[must_use]
pub fn fold(_blocks: &Blocks, _marks: &Marks, _memory: &dyn Memory) -> Folded {
    Folded::default()
}
