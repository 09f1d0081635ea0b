//! A thread's share of marking. Works in batches, each step for a whole batch, so that the processor waits for many cache lines at once:
//! where blocks are and how long, their first bytes, words that may be addresses, whose blocks, which of these are new.

use std::hint::black_box;
use std::ops::Range;

use super::Marks;
use super::pool::{Pool, Work};
use super::stacks::Stacks;
use crate::leak::blocks::{BlockId, Blocks, GROUP};
use crate::leak::words::Words;

/// Blocks of a batch.
const BATCH: usize = 64;
/// Words that may be addresses, kept until there are that many: a power of two.
const CANDIDATES: usize = 1024;
/// Bytes of a cache line.
const LINE_BYTES: usize = 64;
/// Of a longer block the processor fetches the rest by itself.
const TOUCHED_LINES_MAX: usize = 8;
/// Words that are looked at before the candidates' number is checked.
const STRIDE_WORDS: usize = 128;
/// Blocks from this size on are looked through in parts, by any thread.
const LARGE_BYTES_MIN: u64 = 1 << 20;

/// A thread's state.
pub(super) struct Scanner<'a> {
    blocks: &'a Blocks,
    words: &'a Words<'a>,
    marks: &'a Marks,
    pool: &'a Pool,
    /// Marked blocks that have yet to be looked through.
    stacks: Stacks,
    candidates: Box<[u64; CANDIDATES]>,
    candidate_count: usize,
    /// All blocks are in there.
    lowest: u64,
    extent: u64,
    near: usize,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(blocks: &'a Blocks, words: &'a Words<'a>, marks: &'a Marks, pool: &'a Pool) -> Self {
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
            extent: end - lowest,
            near: 0,
        }
    }

    /// Takes words that belong to nothing.
    pub(super) fn begin(&mut self, words: &[u64]) {
        words.iter().for_each(|word| self.look_through(&word.to_le_bytes()));
    }

    /// Looks through all that it has and the pool gives, until nothing is left anywhere.
    pub(super) fn run(mut self) {
        let _attendance = self.pool.attend();
        loop {
            self.flush();
            if self.stacks.is_empty() {
                match self.pool.take() {
                    Some(Work::Blocks(blocks)) => self.keep(blocks),
                    Some(Work::Roots(range)) => self.look_around_blocks(&range),
                    Some(Work::Part(range)) => self.look_through_range(&range),
                    None => return,
                }
            } else {
                self.look_through_batch();
                self.share();
            }
        }
    }

    /// Takes what another left.
    fn keep(&mut self, blocks: Vec<u32>) {
        for block in blocks {
            if let Some(many) = self.stacks.push(block) {
                self.pool.leave_blocks(many);
            }
        }
    }

    /// Looks through the blocks that were marked last.
    fn look_through_batch(&mut self) {
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
                self.pool.leave_parts(self.words.present(range));
            } else if slice.is_empty() {
                self.look_through_range(range);
            } else {
                self.look_through(slice);
            }
        }
    }

    /// Looks through root words that are in no block.
    fn look_around_blocks(&mut self, range: &Range<u64>) {
        let mut start = range.start;
        for number in self.blocks.first_behind(start).. {
            let block = ((number as usize) < self.blocks.len()).then(|| self.blocks.get(BlockId(number)));
            let until = block.map_or(range.end, |block| block.start.0.min(range.end));
            if start < until {
                self.look_through_range(&(start..until));
            }
            match block {
                Some(block) if block.end().0 < range.end => start = block.end().0,
                _ => return,
            }
        }
    }

    /// Looks through the words of a range that are there.
    fn look_through_range(&mut self, range: &Range<u64>) {
        let mut near = self.near;
        let words = self.words;
        words.each(range, &mut near, |bytes| self.look_through(bytes));
        self.near = near;
    }

    #[inline]
    fn look_through(&mut self, bytes: &[u8]) {
        for stride in bytes.chunks(STRIDE_WORDS * 8) {
            if self.candidate_count + STRIDE_WORDS > CANDIDATES {
                self.flush();
            }
            let mut count = self.candidate_count;
            for word in stride.as_chunks::<8>().0 {
                let word = u64::from_le_bytes(*word);
                // Without a branch: what memory holds cannot be foreseen.
                self.candidates[count % CANDIDATES] = word;
                count += usize::from(word.wrapping_sub(self.lowest) < self.extent);
            }
            self.candidate_count = count;
        }
    }

    /// Marks the blocks that candidates lead to.
    fn flush(&mut self) {
        let count = self.candidate_count.min(CANDIDATES);
        for group in self.candidates[..count].chunks(GROUP) {
            let mut numbers = [0; GROUP];
            let held = self.blocks.holding_of(group, &mut numbers);
            for &number in &numbers[..held] {
                if self.marks.set(number)
                    && let Some(many) = self.stacks.push(number)
                {
                    self.pool.leave_blocks(many);
                }
            }
        }
        self.candidate_count = 0;
    }

    /// Leaves blocks to threads that have none.
    fn share(&mut self) {
        if self.pool.is_wanted()
            && let Some(given) = self.stacks.give()
        {
            self.pool.leave_blocks(given);
        }
    }
}
