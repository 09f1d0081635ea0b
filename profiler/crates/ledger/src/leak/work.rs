//! Work of marking threads: a shared pool, and a stack of marked blocks for each thread.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::blocks::number;

const BITE_BYTES: u64 = 1 << 20;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Marked blocks to scan.
    Blocks(Vec<u32>),
    /// Root memory to scan outside of blocks.
    Roots(Range<u64>),
    /// A part of a marked block.
    Part(Range<u64>),
}

/// Pool of work that threads share; it ends when all of them wait.
pub(super) struct Pool {
    queues: Mutex<Queues>,
    added: Condvar,
    waiting: AtomicUsize,
    threads: usize,
}

#[derive(Default)]
struct Queues {
    blocks: Vec<Vec<u32>>,
    roots: Vec<Range<u64>>,
    parts: Vec<Range<u64>>,
    waiting: usize,
    has_ended: bool,
}

impl Pool {
    pub(super) fn new(threads: usize, roots: Vec<Range<u64>>) -> Self {
        let queues = Mutex::new(Queues { roots, ..Queues::default() });
        Self { queues, added: Condvar::new(), waiting: AtomicUsize::new(0), threads }
    }

    #[inline]
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0
    }

    pub(super) fn add_blocks(&self, blocks: Vec<u32>) {
        self.lock().blocks.push(blocks);
        self.added.notify_one();
    }

    /// Adds parts of a block that is too large to scan at once.
    pub(super) fn add_parts(&self, parts: Vec<Range<u64>>) {
        self.lock().parts.extend(parts);
        self.added.notify_all();
    }

    /// Takes work. Waits while another thread may still add work. `None` at the end.
    pub(super) fn take(&self) -> Option<Work> {
        let mut queues = self.lock();
        loop {
            if queues.has_ended {
                return None;
            }
            if let Some(work) = queues.take() {
                return Some(work);
            }
            queues.waiting += 1;
            self.waiting.store(queues.waiting, Ordering::Relaxed);
            if queues.waiting == self.threads {
                queues.has_ended = true;
                self.added.notify_all();
                return None;
            }
            queues = self.added.wait(queues).unwrap_or_else(PoisonError::into_inner);
            queues.waiting -= 1;
            self.waiting.store(queues.waiting, Ordering::Relaxed);
        }
    }

    /// Guard to be held while a thread works: if the thread panics, the others do not wait for it.
    pub(super) fn panic_guard(&self) -> PanicGuard<'_> {
        PanicGuard(self)
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct PanicGuard<'a>(&'a Pool);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.lock().has_ended = true;
            self.0.added.notify_all();
        }
    }
}

impl Queues {
    /// Takes work, blocks first, to keep the lists short.
    fn take(&mut self) -> Option<Work> {
        let blocks = self.blocks.pop().map(Work::Blocks);
        blocks.or_else(|| bite(&mut self.parts).map(Work::Part)).or_else(|| bite(&mut self.roots).map(Work::Roots))
    }
}

fn bite(ranges: &mut Vec<Range<u64>>) -> Option<Range<u64>> {
    let range = ranges.last_mut()?;
    let start = range.start;
    range.start = range.end.min(start.saturating_add(BITE_BYTES));
    let bite = start..range.start;
    if range.is_empty() {
        ranges.pop();
    }
    Some(bite)
}

/// Number of parts of the heap: bits of a word.
const PARTS: usize = 64;
/// Maximum number of blocks that are kept per part; the excess goes to the pool.
const KEPT_MAX: usize = 4096;
const SHARED_MIN: usize = 64;

/// Marked blocks to scan, by parts of the heap: a thread stays in one while it has blocks there, for cache locality.
pub(super) struct Stacks {
    parts: Vec<Vec<u32>>,
    shift: u32,
    filled: u64,
    current: u32,
}

impl Stacks {
    pub(super) fn new(block_count: usize) -> Self {
        let bits = usize::BITS - block_count.leading_zeros();
        let shift = bits.saturating_sub(PARTS.trailing_zeros());
        Self { parts: vec![Vec::new(); PARTS], shift, filled: 0, current: 0 }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Adds a block. Returns the excess blocks of its part.
    #[inline]
    pub(super) fn push(&mut self, block: u32) -> Option<Vec<u32>> {
        let part = (block >> self.shift) as usize % PARTS;
        self.filled |= 1 << part;
        let blocks = &mut self.parts[part];
        blocks.push(block);
        (blocks.len() == KEPT_MAX).then(|| blocks.drain(..KEPT_MAX / 2).collect())
    }

    #[inline]
    pub(super) fn pop<const COUNT: usize>(&mut self, batch: &mut [u32; COUNT]) -> usize {
        if self.filled == 0 {
            return 0;
        }
        self.current += self.filled.rotate_right(self.current).trailing_zeros();
        self.current %= number(PARTS);
        let blocks = &mut self.parts[self.current as usize];
        let first = blocks.len().saturating_sub(COUNT);
        let count = blocks.len() - first;
        batch[..count].copy_from_slice(&blocks[first..]);
        blocks.truncate(first);
        if first == 0 {
            self.filled &= !(1 << self.current);
        }
        count
    }

    /// Takes all blocks of a part that is not being scanned, or the oldest blocks of the part that is.
    pub(super) fn give(&mut self) -> Option<Vec<u32>> {
        let largest = (0..PARTS).max_by_key(|&part| self.parts[part].len())?;
        let blocks = &mut self.parts[largest];
        if blocks.len() < SHARED_MIN {
            return None;
        }
        let given = if largest == self.current as usize { blocks.len() / 2 } else { blocks.len() };
        let given: Vec<u32> = blocks.drain(..given).collect();
        if blocks.is_empty() {
            self.filled &= !(1 << largest);
        }
        Some(given)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_ranges_are_taken_in_bites() {
        let pool = Pool::new(1, vec![0..8, 0x10_0000..0x20_0008]);
        assert_eq!(pool.take(), Some(Work::Roots(0x10_0000..0x20_0000)));
        pool.add_parts(std::iter::once(8..16).collect());
        pool.add_blocks(vec![1, 2]);
        assert_eq!(pool.take(), Some(Work::Blocks(vec![1, 2])));
        assert_eq!(pool.take(), Some(Work::Part(8..16)));
        assert_eq!(pool.take(), Some(Work::Roots(0x20_0000..0x20_0008)));
        assert_eq!(pool.take(), Some(Work::Roots(0..8)));
        assert_eq!(pool.take(), None);
    }

    #[test]
    fn shared_work_is_taken_once_and_both_threads_end() {
        let pool = Pool::new(2, Vec::new());
        let take_all = || {
            let _guard = pool.panic_guard();
            std::iter::from_fn(|| pool.take()).collect::<Vec<Work>>()
        };
        thread::scope(|scope| {
            let other = scope.spawn(take_all);
            while !pool.has_waiting() {
                thread::yield_now();
            }
            pool.add_blocks(vec![7]);
            let mut taken = take_all();
            taken.extend(other.join().expect("it ends"));
            assert_eq!(taken, [Work::Blocks(vec![7])]);
        });
    }

    #[test]
    fn no_thread_waits_for_a_panicked_one() {
        let pool = Pool::new(2, Vec::new());
        thread::scope(|scope| {
            let other = scope.spawn(|| {
                let _guard = pool.panic_guard();
                panic!("on purpose");
            });
            assert_eq!(pool.take(), None);
            assert!(other.join().is_err());
        });
    }

    #[test]
    fn parts_are_emptied_one_after_the_other() {
        let mut stacks = Stacks::new(640);
        assert!(stacks.is_empty() && stacks.pop(&mut [0; 4]) == 0);
        for block in [5, 100, 639, 6, 101, 0] {
            assert_eq!(stacks.push(block), None);
        }
        let mut taken = Vec::new();
        while !stacks.is_empty() {
            let mut batch = [0; 2];
            let count = stacks.pop(&mut batch);
            taken.push(batch[..count].to_vec());
            if taken.len() == 1 {
                assert_eq!(stacks.push(7), None);
            }
        }
        assert_eq!(taken, [vec![6, 0], vec![5, 7], vec![100, 101], vec![639]]);
    }

    #[test]
    fn excess_blocks_are_shared() {
        let mut stacks = Stacks::new(1 << 20);
        let spilled: Vec<u32> = (0..4096).filter_map(|block| stacks.push(block)).flatten().collect();
        assert_eq!(spilled, (0..2048).collect::<Vec<_>>());
        assert_eq!(stacks.pop(&mut [0; 1]), 1);
        assert_eq!(stacks.give().map(|given| given.len()), Some(1023), "half of what is worked on");
        for block in 0..100 {
            stacks.push(900_000 + block);
        }
        while stacks.give().is_some() {}
        assert_eq!(stacks.pop(&mut [0; 4096]), 32, "fewer than are given");
        assert!(stacks.is_empty());
        stacks.push(3);
        (0..70).for_each(|block| assert_eq!(stacks.push(900_000 + block), None));
        assert_eq!(stacks.pop(&mut [0; 1]), 1);
    }
}
