//! Control blocks of threads, before the thread pointer (variant I of <https://www.akkadia.org/drepper/tls.pdf>), and thread-local
//! storage, after it.

use std::ops::Range;

/// Offsets in glibc's `struct pthread`, the same in all versions: they follow a header of 24 words (nptl/descr.h).
pub const PTHREAD_LIST_OFFSET: u64 = 0xc0;
pub const PTHREAD_TID_OFFSET: u64 = 0xd0;

/// Offset in `struct pthread` of two adjacent words that are the address of the second one, while the thread holds no robust
/// mutex (`robust_prev`, `robust_head.list`). The offset is that of their line; the other constants are the line's size, both
/// words' numbers in it, and their common value.
pub const MARK_OFFSET: u64 = 0xd0;
pub const MARK_LINE_WORDS: usize = 2;
pub const MARK_WORDS: [usize; 2] = [1, 2];
pub const MARK_TARGET: u64 = 16;

/// Maximum size of a control block and the thread-local storage that follows it on the stack.
pub const CONTROL_BLOCK_TOP_BYTES_MAX: u64 = 1 << 20;

/// Sizes of control blocks: glibc's have 1792 bytes (2.31) to 1856 (2.36), musl's have about 200.
const BLOCK_BYTES_MIN: u64 = 128;
const BLOCK_BYTES_MAX: u64 = 4096;

/// Finds the control block of a running thread. Only that of musl has a pointer to itself, and both are in a circular list.
pub fn control_block(thread_pointer: u64, word: &dyn Fn(u64) -> Option<u64>) -> Option<u64> {
    let starts =
        (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).step_by(8).map_while(|distance| thread_pointer.checked_sub(distance));
    starts.take_while(|&start| word(start).is_some()).find(|&start| is_control_block(start, word))
}

/// Whether a running thread has its control block at this address.
pub fn is_control_block(start: u64, word: &dyn Fn(u64) -> Option<u64>) -> bool {
    is_of_musl(start, word).or_else(|| is_of_glibc(start, word)).is_some()
}

fn is_of_glibc(start: u64, word: &dyn Fn(u64) -> Option<u64>) -> Option<()> {
    // The list contains the running threads. Its head is elsewhere.
    let list = start.checked_add(PTHREAD_LIST_OFFSET)?;
    let (next, previous) = (word(list)?, word(list.checked_add(8)?)?);
    let is_list = next != list && word(next.checked_add(8)?)? == list && word(previous)? == list;
    is_list.then_some(())
}

/// Checks the members `self`, `prev` and `next` of musl's control block (src/internal/pthread_impl.h).
fn is_of_musl(start: u64, word: &dyn Fn(u64) -> Option<u64>) -> Option<()> {
    let (own, previous, next) = (word(start)?, word(start.checked_add(8)?)?, word(start.checked_add(16)?)?);
    let is_list = own == start && word(previous.checked_add(16)?)? == start && word(next.checked_add(8)?)? == start;
    is_list.then_some(())
}

/// Range of an exited thread's control block that is used later: the pointer to the DTV, which the next thread on the stack
/// reuses, and before it the return value, until the thread is joined or detached. `distance` is that of the thread pointer.
pub fn kept_of_ended(block: u64, distance: Option<u64>, is_released: bool) -> Range<u64> {
    match distance.and_then(|distance| block.checked_add(distance)) {
        Some(pointer) => (if is_released { pointer } else { block })..pointer.saturating_add(8),
        None => block..u64::MAX,
    }
}

/// The part of a thread's static thread-local storage that is nearest to its control block. The storage follows two words at the
/// thread pointer.
pub fn storage(thread_pointer: u64, size_bytes: u64) -> Range<u64> {
    let start = thread_pointer.saturating_add(16);
    start..start.saturating_add(size_bytes)
}

/// Address of a word of the static thread-local storage; the nearest word is 1.
pub fn storage_word(thread_pointer: u64, nth: u64) -> Option<u64> {
    thread_pointer.checked_add(nth.checked_add(1)?.checked_mul(8)?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const POINTER: u64 = 0x7_f000;

    fn found(words: &[(u64, u64)]) -> Option<u64> {
        let words: BTreeMap<u64, u64> = words.iter().copied().collect();
        let is_there = |address: u64| (0x7_0000..0x8_0000).contains(&address);
        control_block(POINTER, &|address| is_there(address).then(|| words.get(&address).copied().unwrap_or(0)))
    }

    fn list(links: u64, head: u64) -> [(u64, u64); 4] {
        [(links, head), (links + 8, head), (head, links), (head + 8, links)]
    }

    #[test]
    fn the_control_block_of_glibc_is_in_the_list_of_threads() {
        for size_bytes in [1792, 1824, 1856] {
            let block = POINTER - size_bytes;
            let words = list(block + 0xc0, 0x7_1000);
            assert_eq!(found(&words), Some(block));
            for missing in 0..4 {
                let others: Vec<_> = (0..4).filter(|at| *at != missing).map(|at| words[at]).collect();
                assert_eq!(found(&others), None);
            }
        }
        assert_eq!(found(&list(POINTER - 8192, 0x7_1000)), None, "too far");
    }

    #[test]
    fn the_control_block_of_musl_points_to_itself() {
        let (block, other) = (POINTER - 200, 0x7_2000);
        let alone = [(block, block), (block + 8, block), (block + 16, block)];
        assert_eq!(found(&alone), Some(block));
        let two = [(block, block), (block + 8, other), (block + 16, other), (other + 8, block), (other + 16, block)];
        assert_eq!(found(&two), Some(block));
        for missing in 0..5 {
            let others: Vec<_> = (0..5).filter(|at| *at != missing).map(|at| two[at]).collect();
            assert_eq!(found(&others), None);
        }
    }

    #[test]
    fn no_memory_and_no_thread_pointer_give_no_block() {
        assert_eq!(found(&[]), None);
        assert_eq!(control_block(0, &|_| Some(0)), None);
        assert_eq!(control_block(u64::MAX, &|_| None), None);
    }

    #[test]
    fn marks_are_in_glibcs_block() {
        // `robust_prev`, and `robust_head.list`, to which both point.
        assert_eq!(MARK_WORDS.map(|word| MARK_OFFSET + 8 * word as u64), [0xd8, 0xe0]);
        assert_eq!((MARK_OFFSET + MARK_TARGET, MARK_LINE_WORDS), (0xe0, 2));
        assert_eq!(PTHREAD_TID_OFFSET, 0xd0);
        assert_eq!(CONTROL_BLOCK_TOP_BYTES_MAX % BLOCK_BYTES_MAX, 0);
    }

    #[test]
    fn what_remains_of_a_thread_is_its_return_value_and_the_pointer_to_its_storage() {
        assert_eq!(kept_of_ended(0x1000, Some(0x740), true), 0x1740..0x1748);
        assert_eq!(kept_of_ended(0x1000, Some(0x740), false), 0x1000..0x1748);
        assert_eq!(kept_of_ended(0x1000, None, true), 0x1000..u64::MAX);
    }

    #[test]
    fn storage_is_behind_the_thread_pointer() {
        assert_eq!(storage(0x1000, 64), 0x1010..0x1050);
        assert_eq!((storage_word(0x1000, 1), storage_word(0x1000, 2)), (Some(0x1010), Some(0x1018)));
        assert_eq!(storage_word(u64::MAX, 1), None);
    }
}
