//! Marks the blocks that are reachable from roots: an aligned word that is an address in a block makes the block
//! reachable, and so do the words of reachable blocks. Conservative, and parallel.

#[cfg(test)]
mod tests;

use std::hint::black_box;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use heapbpf_base::address::TargetAddr;
use heapbpf_base::memory::{Memory, Span, joined};
use heapbpf_linux::arch::untagged;

use super::blocks::{BlockId, Blocks, GROUP, number};
use super::words::{Words, aligned};
use super::work::{Pool, Stacks, Work};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roots {
    /// Memory whose aligned words count if no byte of them is in a block: contents of blocks count once the block is
    /// reachable. Ranges may overlap, in any order.
    pub ranges: Vec<Span>,
    pub words: Vec<u64>,
}

#[derive(Debug)]
pub struct Marks {
    bits: Vec<AtomicU64>,
    count: usize,
}

impl Marks {
    fn new(count: usize) -> Self {
        Self { bits: std::iter::repeat_with(AtomicU64::default).take(count.div_ceil(64)).collect(), count }
    }

    pub fn is_reached(&self, id: BlockId) -> bool {
        self.bits[id.0 as usize / 64].load(Ordering::Relaxed) & 1 << (id.0 % 64) != 0
    }

    pub fn unreached(&self) -> impl Iterator<Item = BlockId> {
        (0..number(self.count)).map(BlockId).filter(|&id| !self.is_reached(id))
    }

    /// Bits of unmarked blocks, 64 blocks at a time; 0 after the last block.
    pub(super) fn unreached_bits(&self) -> impl Iterator<Item = u64> {
        self.bits.iter().enumerate().map(|(at, bits)| {
            let blocks = self.count - at * 64;
            let valid = if blocks < 64 { (1 << blocks) - 1 } else { u64::MAX };
            !bits.load(Ordering::Relaxed) & valid
        })
    }

    /// Marks a block. Returns whether it was not marked before.
    #[inline]
    fn set(&self, number: u32) -> bool {
        let (bits, bit) = (&self.bits[number as usize / 64], 1 << (number % 64));
        // Most words lead to marked blocks: a load is cheaper than an atomic exchange.
        bits.load(Ordering::Relaxed) & bit == 0 && bits.fetch_or(bit, Ordering::Relaxed) & bit == 0
    }
}

pub fn mark(blocks: &Blocks, roots: &Roots, memory: &dyn Memory) -> Marks {
    mark_with(blocks, roots, memory, threads())
}

pub fn mark_with(blocks: &Blocks, roots: &Roots, memory: &dyn Memory, threads: usize) -> Marks {
    let marks = Marks::new(blocks.len());
    reach(&marks, blocks, roots, memory, threads);
    marks
}

pub fn mark_also(marks: &Marks, blocks: &Blocks, words: Vec<u64>, memory: &dyn Memory) {
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
    roots.words.iter().for_each(|word| first.scan(&word.to_le_bytes()));
    thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|| scanner().run());
        }
        first.run();
    });
}

fn root_parts(words: &Words<'_>, roots: &Roots) -> Vec<Range<u64>> {
    let whole =
        |range: &Span| aligned(&(range.start.0..range.end.0)).map(|(start, end)| TargetAddr(start)..TargetAddr(end));
    let ranges = joined(roots.ranges.iter().filter_map(whole).collect());
    ranges.iter().flat_map(|range| words.present(&(range.start.0..range.end.0))).collect()
}

const BATCH: usize = 64;
/// Number of candidates per batch: a power of two.
const CANDIDATES: usize = 1024;
const LINE_BYTES: usize = 64;
/// Maximum number of lines to touch: the hardware prefetcher loads the rest of longer blocks.
const TOUCHED_LINES_MAX: usize = 8;
/// Number of words to scan between two checks for space in the buffer.
const STRIDE_WORDS: usize = 128;
/// Size from which on blocks are scanned in parts, by any thread.
const LARGE_BYTES_MIN: u64 = 1 << 20;

/// A marking thread. It works in batches, each step for a whole batch, so that the processor waits for many cache lines at once:
/// addresses and sizes of blocks, their first bytes, candidates, the blocks that contain them, their mark bits.
struct Scanner<'a> {
    blocks: &'a Blocks,
    words: &'a Words<'a>,
    marks: &'a Marks,
    pool: &'a Pool,
    stacks: Stacks,
    candidates: Box<[u64; CANDIDATES]>,
    candidate_count: usize,
    lowest: u64,
    extent: u64,
    near: usize,
}

impl<'a> Scanner<'a> {
    fn new(blocks: &'a Blocks, words: &'a Words<'a>, marks: &'a Marks, pool: &'a Pool) -> Self {
        let (lowest, end) = blocks.bounds();
        Self {
            blocks,
            words,
            marks,
            pool,
            stacks: Stacks::new(blocks.len()),
            candidates: Box::new([0; CANDIDATES]),
            candidate_count: 0,
            lowest,
            // A pointer to an empty array may be at the end of the last block.
            extent: (end - lowest).saturating_add(u64::from(blocks.has_empty_arrays())),
            near: 0,
        }
    }

    fn run(mut self) {
        let _guard = self.pool.panic_guard();
        loop {
            self.flush();
            if self.stacks.is_empty() {
                match self.pool.take() {
                    Some(Work::Blocks(blocks)) => self.keep(blocks),
                    Some(Work::Roots(range)) => self.scan_around_blocks(&range),
                    Some(Work::Part(range)) => self.scan_range(&range),
                    None => return,
                }
            } else {
                self.scan_batch();
                self.share();
            }
        }
    }

    fn keep(&mut self, blocks: Vec<u32>) {
        for block in blocks {
            if let Some(many) = self.stacks.push(block) {
                self.pool.add_blocks(many);
            }
        }
    }

    fn scan_batch(&mut self) {
        let mut numbers = [0; BATCH];
        let count = self.stacks.pop(&mut numbers);
        let mut batch: [Range<u64>; BATCH] = std::array::from_fn(|_| 0..0);
        for (range, &number) in batch.iter_mut().zip(&numbers[..count]) {
            let block = self.blocks.get(BlockId(number));
            *range = block.start.0..block.end().0;
        }
        let mut slices: [&[u8]; BATCH] = [&[]; BATCH];
        let mut touched = 0;
        for (slice, range) in slices.iter_mut().zip(&batch[..count]) {
            *slice = self.words.slice(range, &mut self.near).unwrap_or_default();
            let lines = slice.iter().step_by(LINE_BYTES).take(TOUCHED_LINES_MAX);
            touched ^= lines.fold(0, |all, byte| all ^ byte);
        }
        black_box(touched);
        for (slice, range) in slices.iter().zip(&batch[..count]) {
            if range.end - range.start >= LARGE_BYTES_MIN {
                self.pool.add_parts(self.words.present(range));
            } else if slice.is_empty() {
                self.scan_range(range);
            } else {
                self.scan(slice);
            }
        }
    }

    fn scan_around_blocks(&mut self, range: &Range<u64>) {
        let mut start = range.start;
        for number in self.blocks.first_behind(start).. {
            let block = ((number as usize) < self.blocks.len()).then(|| self.blocks.get(BlockId(number)));
            let until = block.map_or(range.end, |block| block.start.0.min(range.end));
            if start < until {
                self.scan_range(&(start..until));
            }
            match block {
                Some(block) if block.end().0 < range.end => start = block.end().0,
                _ => return,
            }
        }
    }

    fn scan_range(&mut self, range: &Range<u64>) {
        let mut near = self.near;
        let words = self.words;
        words.each(range, &mut near, |bytes| self.scan(bytes));
        self.near = near;
    }

    #[inline]
    fn scan(&mut self, bytes: &[u8]) {
        for stride in bytes.chunks(STRIDE_WORDS * 8) {
            if self.candidate_count + STRIDE_WORDS > CANDIDATES {
                self.flush();
            }
            let mut count = self.candidate_count;
            for word in stride.as_chunks::<8>().0 {
                let word = untagged(u64::from_le_bytes(*word));
                // The code has no branch, because the contents of memory are unpredictable.
                self.candidates[count % CANDIDATES] = word;
                count += usize::from(word.wrapping_sub(self.lowest) < self.extent);
            }
            self.candidate_count = count;
        }
    }

    fn flush(&mut self) {
        let count = self.candidate_count.min(CANDIDATES);
        for first in (0..count).step_by(GROUP) {
            let group = first..count.min(first + GROUP);
            let mut numbers = [0; GROUP];
            let held = self.blocks.holding_of(&self.candidates[group.clone()], &mut numbers);
            numbers[..held].iter().for_each(|&number| self.reach(number));
            if self.blocks.has_empty_arrays() {
                for at in group {
                    if let Some(number) = self.blocks.empty_array_before(self.candidates[at]) {
                        self.reach(number);
                    }
                }
            }
        }
        self.candidate_count = 0;
    }

    #[inline]
    fn reach(&mut self, number: u32) {
        if self.marks.set(number)
            && let Some(many) = self.stacks.push(number)
        {
            self.pool.add_blocks(many);
        }
    }

    fn share(&mut self) {
        if self.pool.has_waiting()
            && let Some(given) = self.stacks.give()
        {
            self.pool.add_blocks(given);
        }
    }
}
