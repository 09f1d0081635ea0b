//! Which blocks can be reached from roots: words that are addresses in blocks, and the words of those blocks, and so on.

mod pool;
mod scan;
mod stacks;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use self::pool::Pool;
use self::scan::Scanner;
use super::blocks::{BlockId, Blocks};
use super::words::Words;
use crate::address::TargetAddr;
use crate::memory::Memory;

/// Where reaching begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roots {
    /// Memory of which every aligned word counts that no byte of a block is in: what is in a block counts where that is reached. They
    /// may overlap, and come in any order.
    pub ranges: Vec<Range<TargetAddr>>,
    /// Words by themselves, as registers hold.
    pub words: Vec<u64>,
}

/// Which blocks were reached: a bit for each.
#[derive(Debug)]
pub struct Marks {
    bits: Vec<AtomicU64>,
    count: usize,
}

impl Marks {
    fn new(count: usize) -> Self {
        Self { bits: std::iter::repeat_with(AtomicU64::default).take(count.div_ceil(64)).collect(), count }
    }

    /// Whether this block was reached.
    pub fn is_reached(&self, id: BlockId) -> bool {
        self.bits[id.0 as usize / 64].load(Ordering::Relaxed) & 1 << (id.0 % 64) != 0
    }

    /// Blocks that were not reached, by rising address.
    pub fn unreached(&self) -> impl Iterator<Item = BlockId> {
        (0..super::blocks::number(self.count)).map(BlockId).filter(|&id| !self.is_reached(id))
    }

    /// The bits of 64 blocks; above the last block there is none.
    pub(super) fn unreached_bits(&self) -> impl Iterator<Item = u64> {
        self.bits.iter().enumerate().map(|(at, bits)| {
            let blocks = self.count - at * 64;
            let valid = if blocks < 64 { (1 << blocks) - 1 } else { u64::MAX };
            !bits.load(Ordering::Relaxed) & valid
        })
    }

    /// Marks a block; whether it was not yet.
    #[inline]
    fn set(&self, number: u32) -> bool {
        let (bits, bit) = (&self.bits[number as usize / 64], 1 << (number % 64));
        // Most words lead to blocks that are marked: reading is cheaper than locking.
        bits.load(Ordering::Relaxed) & bit == 0 && bits.fetch_or(bit, Ordering::Relaxed) & bit == 0
    }
}

/// Finds all blocks that roots reach, on all processors.
pub(crate) fn mark(blocks: &Blocks, roots: &Roots, memory: &dyn Memory) -> Marks {
    mark_with(blocks, roots, memory, threads())
}

/// As [`mark`], on so many threads.
pub fn mark_with(blocks: &Blocks, roots: &Roots, memory: &dyn Memory, threads: usize) -> Marks {
    let marks = Marks::new(blocks.len());
    reach(&marks, blocks, roots, memory, threads);
    marks
}

/// Marks what these words reach besides what is marked.
pub(crate) fn mark_also(marks: &Marks, blocks: &Blocks, words: Vec<u64>, memory: &dyn Memory) {
    reach(marks, blocks, &Roots { ranges: Vec::new(), words }, memory, threads());
}

fn threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn reach(marks: &Marks, blocks: &Blocks, roots: &Roots, memory: &dyn Memory, threads: usize) {
    let words = Words::new(memory);
    let threads = threads.max(1);
    let pool = Pool::new(threads, root_parts(&words, roots));
    let scanner = || Scanner::new(blocks, &words, marks, &pool);
    let mut first = scanner();
    first.begin(&roots.words);
    thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|| scanner().run());
        }
        first.run();
    });
}

/// The words of root ranges that are there, each once.
fn root_parts(words: &Words<'_>, roots: &Roots) -> Vec<Range<u64>> {
    let whole = |range: &Range<TargetAddr>| super::words::aligned(&(range.start.0..range.end.0));
    let mut ranges: Vec<(u64, u64)> = roots.ranges.iter().filter_map(whole).collect();
    ranges.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (start, end) in ranges {
        match merged.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    merged.into_iter().flat_map(|(start, end)| words.present(&(start..end))).collect()
}
