//! Synthetic memory for tests: blocks, and words in and around them.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use heapbpf_base::address::TargetAddr;
use heapbpf_base::memory::{Copied, Memory};

use crate::leak::blocks::{Block, BlockId, Blocks};
use crate::leak::mark::{Marks, Roots, mark_with};

#[derive(Debug, Default)]
pub(in crate::leak) struct Synthetic {
    blocks: Vec<Block>,
    pieces: Vec<(u64, Vec<u8>)>,
    pub(in crate::leak) roots: Roots,
}

impl Synthetic {
    /// Adds memory full of zeros.
    pub(in crate::leak) fn with(mut self, start: u64, bytes: usize) -> Self {
        self.pieces.push((start, vec![0; bytes]));
        self
    }

    /// Adds a block, without memory.
    pub(in crate::leak) fn block(&mut self, start: u64, size_bytes: u64) {
        self.blocks.push(Block { start: TargetAddr(start), size_bytes, origin: 0 });
    }

    pub(in crate::leak) fn write(&mut self, address: u64, word: u64) {
        let of = |(start, bytes): &&mut (u64, Vec<u8>)| *start <= address && address < *start + bytes.len() as u64;
        let (start, bytes) = self.pieces.iter_mut().find(of).expect("memory for the word");
        let at = usize::try_from(address - *start).expect("it is small");
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    pub(in crate::leak) fn root_range(&mut self, range: Range<u64>) {
        self.roots.ranges.push(TargetAddr(range.start)..TargetAddr(range.end));
    }

    pub(in crate::leak) fn blocks(&self) -> Blocks {
        let (blocks, left_out) = Blocks::new(self.blocks.clone());
        assert_eq!(left_out, 0, "synthetic blocks do not overlap");
        blocks
    }

    pub(in crate::leak) fn memory(&self) -> Copied {
        let pieces = self.pieces.iter();
        Copied::new(pieces.map(|(start, bytes)| (TargetAddr(*start), bytes.clone().into_boxed_slice())))
    }

    /// Marks on one thread, and checks that more threads, and memory without slices, give the same result.
    pub(in crate::leak) fn mark(&self) -> (Blocks, Marks, Copied) {
        let (blocks, memory) = (self.blocks(), self.memory());
        let marks = mark_with(&blocks, &self.roots, &memory, 1);
        let unreached: Vec<BlockId> = marks.unreached().collect();
        for threads in [2, 5] {
            let again = mark_with(&blocks, &self.roots, &memory, threads);
            assert_eq!(again.unreached().collect::<Vec<_>>(), unreached, "{threads} threads");
        }
        let without_slices = mark_with(&blocks, &self.roots, &Sliceless(&memory), 1);
        assert_eq!(without_slices.unreached().collect::<Vec<_>>(), unreached, "without slices");
        (blocks, marks, memory)
    }

    /// Returns the starts of unreachable blocks.
    pub(in crate::leak) fn unreached(&self) -> Vec<u64> {
        let (blocks, marks, _) = self.mark();
        marks.unreached().map(|id| blocks.get(id).start.0).collect()
    }

    /// Reference implementation of [`Self::unreached`] with sets.
    pub(in crate::leak) fn unreached_by_sets(&self) -> Vec<u64> {
        let memory = self.memory();
        let holding = |word: u64| {
            let is_in = |block: &&Block| (block.start.0..block.start.0 + block.size_bytes.max(1)).contains(&word);
            self.blocks.iter().find(is_in).copied()
        };
        let words = |range: Range<u64>| range.filter(|address| address % 8 == 0);
        let inside = |range: &Range<u64>, at: u64| at + 8 <= range.end;
        let mut open: Vec<u64> = self.roots.words.clone();
        for range in &self.roots.ranges {
            let range = range.start.0..range.end.0;
            let is_free = |at: &u64| inside(&range, *at) && (*at..*at + 8).all(|byte| holding(byte).is_none());
            open.extend(words(range.clone()).filter(is_free).filter_map(|at| memory.word(TargetAddr(at))));
        }
        let mut reached = HashSet::new();
        while let Some(word) = open.pop() {
            let Some(block) = holding(word).filter(|block| reached.insert(block.start.0)) else { continue };
            let range = block.start.0..block.start.0 + block.size_bytes;
            let of_block = words(range.clone()).filter(|at| inside(&range, *at));
            open.extend(of_block.filter_map(|at| memory.word(TargetAddr(at))));
        }
        let mut starts: Vec<u64> = self.blocks.iter().map(|block| block.start.0).collect();
        starts.retain(|start| !reached.contains(start));
        starts.sort_unstable();
        starts
    }

    /// Creates blocks of at least 64 bytes without roots, each with references to the blocks in its list. See
    /// [`Self::at`] for addresses.
    pub(in crate::leak) fn of_edges(edges: &[Vec<u32>]) -> Self {
        let widest = edges.iter().map(Vec::len).max().unwrap_or(0).max(8);
        let size = widest * 8;
        let mut synthetic = Self::default().with(Self::at(0, size), size * edges.len());
        for (own, targets) in edges.iter().enumerate() {
            synthetic.block(Self::at(own, size), size as u64);
            for (slot, &target) in targets.iter().enumerate() {
                synthetic.write(Self::at(own, size) + 8 * slot as u64, Self::at(target as usize, size));
            }
        }
        synthetic
    }

    fn at(number: usize, size: usize) -> u64 {
        0x10_0000 + (number * size) as u64
    }
}

/// Memory without slices.
struct Sliceless<'a>(&'a Copied);

impl Memory for Sliceless<'_> {
    fn present(&self, range: Range<TargetAddr>) -> Vec<Range<TargetAddr>> {
        self.0.present(range)
    }

    fn read(&self, address: TargetAddr, buffer: &mut [u8]) -> usize {
        self.0.read(address, buffer)
    }

    fn slice(&self, _address: TargetAddr, _length: usize) -> Option<&[u8]> {
        None
    }
}

/// Returns the smallest member of each block's component, computed with sets.
pub(in crate::leak) fn components_by_sets(edges: &[Vec<u32>]) -> Vec<u32> {
    let reached: Vec<HashSet<u32>> = (0..edges.len()).map(|from| reached_by_sets(edges, from)).collect();
    let mut of = HashMap::new();
    for (from, reached_from) in (0u32..).zip(&reached) {
        let mutual = reached_from.iter().copied().filter(|&to| reached[to as usize].contains(&from));
        of.insert(from, mutual.min().unwrap_or(from));
    }
    (0u32..).take(edges.len()).map(|block| of[&block]).collect()
}

/// Returns everything reachable from a block, including itself.
pub(in crate::leak) fn reached_by_sets(edges: &[Vec<u32>], from: usize) -> HashSet<u32> {
    let mut reached = HashSet::from([u32::try_from(from).expect("it is small")]);
    let mut open = vec![from];
    while let Some(block) = open.pop() {
        open.extend(edges[block].iter().filter(|&&target| reached.insert(target)).map(|&target| target as usize));
    }
    reached
}
