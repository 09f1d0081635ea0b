//! Which unreached block points into which other.

use std::ops::Range;

use super::blocks::{BlockId, Blocks};
use super::mark::Marks;
use super::words::Words;
use crate::address::TargetAddr;

/// Unreached blocks, by numbers of their own in the order of addresses, and the other unreached ones that each points into.
#[derive(Debug, Default)]
pub(super) struct Graph {
    /// The blocks.
    pub(super) blocks: Vec<BlockId>,
    /// Where each block's targets begin, and where the last one's end.
    firsts: Vec<usize>,
    /// Each block's targets by rising number, each once, never itself.
    targets: Vec<u32>,
}

impl Graph {
    pub(super) fn new(blocks: &Blocks, marks: &Marks, words: &Words<'_>) -> Self {
        let numbering = Numbering::new(marks);
        let unreached: Vec<BlockId> = marks.unreached().collect();
        let mut graph = Self { firsts: Vec::with_capacity(unreached.len() + 1), ..Self::default() };
        let (mut near, mut found) = (0, Vec::new());
        let (lowest, end) = blocks.bounds();
        graph.firsts.push(0);
        for (own, &id) in unreached.iter().enumerate() {
            let block = blocks.get(id);
            words.each(&(block.start.0..block.end().0), &mut near, |bytes| {
                let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
                let words = words.filter(|word| (lowest..end).contains(word));
                found.extend(words.filter_map(|word| numbering.number_of(blocks.find(TargetAddr(word))?)));
            });
            found.sort_unstable();
            found.dedup();
            graph.targets.extend(found.drain(..).filter(|&target| target as usize != own));
            graph.firsts.push(graph.targets.len());
        }
        graph.blocks = unreached;
        graph
    }

    /// How many blocks there are.
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Where a block's targets are.
    #[inline]
    pub(super) fn edges(&self, block: u32) -> Range<usize> {
        self.firsts[block as usize]..self.firsts[block as usize + 1]
    }

    /// The block that an edge leads to.
    #[inline]
    pub(super) fn target(&self, edge: usize) -> u32 {
        self.targets[edge]
    }

    /// A block's targets.
    #[inline]
    pub(super) fn targets(&self, block: u32) -> &[u32] {
        &self.targets[self.edges(block)]
    }

    #[cfg(test)]
    pub(super) fn of_edges(targets: &[Vec<u32>]) -> Self {
        let mut graph = Self { firsts: vec![0], ..Self::default() };
        for (own, targets) in targets.iter().enumerate() {
            let mut targets: Vec<u32> = targets.iter().copied().filter(|&target| target as usize != own).collect();
            targets.sort_unstable();
            targets.dedup();
            graph.targets.extend(targets);
            graph.firsts.push(graph.targets.len());
            graph.blocks.push(BlockId(super::blocks::number(own)));
        }
        graph
    }
}

/// How many blocks were not reached below each 64.
struct Numbering {
    bits: Vec<u64>,
    before: Vec<u32>,
}

impl Numbering {
    fn new(marks: &Marks) -> Self {
        let bits: Vec<u64> = marks.unreached_bits().collect();
        let before = bits.iter().scan(0, |count, bits| {
            let before = *count;
            *count += bits.count_ones();
            Some(before)
        });
        Self { before: before.collect(), bits }
    }

    /// A block's number among the unreached; `None` when it is none.
    #[inline]
    fn number_of(&self, id: BlockId) -> Option<u32> {
        let (at, bit) = (id.0 as usize / 64, id.0 % 64);
        let is_unreached = self.bits[at] >> bit & 1 == 1;
        is_unreached.then(|| self.before[at] + (self.bits[at] & ((1 << bit) - 1)).count_ones())
    }
}
