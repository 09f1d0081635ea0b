//! A thread's marked blocks that have yet to be looked through, by where they are: so it stays in one part of the heap while there is work,
//! and finds the caches filled with that.

use crate::leak::blocks::number;

/// Parts of the heap: bits of a word.
const PARTS: usize = 64;
/// Blocks that are kept of a part; more are left to all threads.
const KEPT_MAX: usize = 4096;
/// Fewer are not worth giving away.
const SHARED_MIN: usize = 64;

/// The blocks, by their numbers.
pub(super) struct Stacks {
    parts: Vec<Vec<u32>>,
    /// A block's part: its number without that many bits.
    shift: u32,
    /// Parts that have blocks.
    filled: u64,
    /// The part that is worked on.
    current: u32,
}

impl Stacks {
    /// For so many blocks.
    pub(super) fn new(block_count: usize) -> Self {
        let bits = usize::BITS - block_count.leading_zeros();
        let shift = bits.saturating_sub(PARTS.trailing_zeros());
        Self { parts: vec![Vec::new(); PARTS], shift, filled: 0, current: 0 }
    }

    /// Whether there are none.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Adds a block. Blocks of its part, where these have become too many.
    #[inline]
    pub(super) fn push(&mut self, block: u32) -> Option<Vec<u32>> {
        let part = (block >> self.shift) as usize % PARTS;
        self.filled |= 1 << part;
        let blocks = &mut self.parts[part];
        blocks.push(block);
        (blocks.len() == KEPT_MAX).then(|| blocks.drain(..KEPT_MAX / 2).collect())
    }

    /// Takes the blocks that came last, of one part: how many.
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

    /// What another thread may have: all of a part that is not worked on, or the oldest of the one that is.
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
    fn many_are_left_to_others() {
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
