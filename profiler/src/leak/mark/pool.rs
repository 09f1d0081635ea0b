//! Work that threads share: blocks and memory that have yet to be looked through. Ends when all threads have nothing left.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Bytes that a thread takes at a time.
const BITE_BYTES: u64 = 1 << 20;

/// Something to look through.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Marked blocks, by their numbers.
    Blocks(Vec<u32>),
    /// Words of roots, where they are in no block.
    Roots(Range<u64>),
    /// Words of a marked block.
    Part(Range<u64>),
}

/// The work, and who waits for some.
pub(super) struct Pool {
    shelf: Mutex<Shelf>,
    arrived: Condvar,
    waiting: AtomicUsize,
    threads: usize,
}

#[derive(Default)]
struct Shelf {
    blocks: Vec<Vec<u32>>,
    roots: Vec<Range<u64>>,
    parts: Vec<Range<u64>>,
    waiting: usize,
    has_ended: bool,
}

impl Pool {
    /// Words of roots to begin with.
    pub(super) fn new(threads: usize, roots: Vec<Range<u64>>) -> Self {
        let shelf = Mutex::new(Shelf { roots, ..Shelf::default() });
        Self { shelf, arrived: Condvar::new(), waiting: AtomicUsize::new(0), threads }
    }

    /// Whether a thread has nothing to do.
    #[inline]
    pub(super) fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0
    }

    /// Leaves blocks for whoever has time.
    pub(super) fn leave_blocks(&self, blocks: Vec<u32>) {
        self.lock().blocks.push(blocks);
        self.arrived.notify_one();
    }

    /// Leaves parts of a block that is too large to be looked through in one go.
    pub(super) fn leave_parts(&self, parts: Vec<Range<u64>>) {
        self.lock().parts.extend(parts);
        self.arrived.notify_all();
    }

    /// Something to do; waits while another thread may yet leave some. `None` when all is done.
    pub(super) fn take(&self) -> Option<Work> {
        let mut shelf = self.lock();
        loop {
            if shelf.has_ended {
                return None;
            }
            if let Some(work) = shelf.take() {
                return Some(work);
            }
            shelf.waiting += 1;
            self.waiting.store(shelf.waiting, Ordering::Relaxed);
            if shelf.waiting == self.threads {
                shelf.has_ended = true;
                self.arrived.notify_all();
                return None;
            }
            shelf = self.arrived.wait(shelf).unwrap_or_else(PoisonError::into_inner);
            shelf.waiting -= 1;
            self.waiting.store(shelf.waiting, Ordering::Relaxed);
        }
    }

    /// Of a thread, for as long as it works: should it panic, the others do not wait for it.
    pub(super) fn attend(&self) -> Attendance<'_> {
        Attendance(self)
    }

    fn lock(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See [`Pool::attend`].
pub(super) struct Attendance<'a>(&'a Pool);

impl Drop for Attendance<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.lock().has_ended = true;
            self.0.arrived.notify_all();
        }
    }
}

impl Shelf {
    /// Blocks first: so the shelf stays small.
    fn take(&mut self) -> Option<Work> {
        let blocks = self.blocks.pop().map(Work::Blocks);
        blocks.or_else(|| bite(&mut self.parts).map(Work::Part)).or_else(|| bite(&mut self.roots).map(Work::Roots))
    }
}

/// The beginning of the last range.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_ranges_are_taken_in_bites() {
        let pool = Pool::new(1, vec![0..8, 0x10_0000..0x20_0008]);
        assert_eq!(pool.take(), Some(Work::Roots(0x10_0000..0x20_0000)));
        pool.leave_parts(std::iter::once(8..16).collect());
        pool.leave_blocks(vec![1, 2]);
        assert_eq!(pool.take(), Some(Work::Blocks(vec![1, 2])));
        assert_eq!(pool.take(), Some(Work::Part(8..16)));
        assert_eq!(pool.take(), Some(Work::Roots(0x20_0000..0x20_0008)));
        assert_eq!(pool.take(), Some(Work::Roots(0..8)));
        assert_eq!(pool.take(), None);
    }

    #[test]
    fn what_is_left_is_taken_once_and_then_both_end() {
        let pool = Pool::new(2, Vec::new());
        let take_all = || {
            let _attendance = pool.attend();
            std::iter::from_fn(|| pool.take()).collect::<Vec<Work>>()
        };
        thread::scope(|scope| {
            let other = scope.spawn(take_all);
            while !pool.is_wanted() {
                thread::yield_now();
            }
            pool.leave_blocks(vec![7]);
            let mut taken = take_all();
            taken.extend(other.join().expect("it ends"));
            assert_eq!(taken, [Work::Blocks(vec![7])]);
        });
    }

    #[test]
    fn nobody_waits_for_a_thread_that_panics() {
        let pool = Pool::new(2, Vec::new());
        thread::scope(|scope| {
            let other = scope.spawn(|| {
                let _attendance = pool.attend();
                panic!("on purpose");
            });
            assert_eq!(pool.take(), None);
            assert!(other.join().is_err());
        });
    }
}
