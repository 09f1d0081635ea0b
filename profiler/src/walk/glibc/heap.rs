//! Heaps: the aligned pieces of memory that arenas of threads are made of (`heap_info` in glibc's malloc/arena.c).

use super::arena::Arena;
use crate::address::TargetAddr;
use crate::memory::Memory;

/// What a `heap_info` takes: since 2.35, and before.
const HEADER_BYTES: [u64; 2] = [48, 32];
/// What heaps are aligned to: 64 MiB; with huge pages four of theirs, so all other powers of two from 1 MiB to 64 GiB are tried.
const ALIGNMENT_LOG2: u32 = 26;
const ALIGNMENTS_LOG2: std::ops::RangeInclusive<u32> = 20..=36;
/// More heaps than fit the address space.
const HEAPS_MAX: usize = 1 << 21;

/// A heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heap {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) first_chunk: u64,
}

/// The heaps of an arena that a thread was given, the one that `top` is in first.
pub(super) fn heaps(memory: &dyn Memory, arena: &Arena) -> Result<Vec<Heap>, String> {
    let word = |address: u64| memory.word(TargetAddr(address));
    let header_bytes = HEADER_BYTES
        .into_iter()
        .find(|header| arena.address.checked_sub(*header).and_then(word) == Some(arena.address))
        .ok_or_else(|| format!("no heap begins before the arena at {:#x}", arena.address))?;
    let first = arena.address - header_bytes;
    let mut start = top_heap(memory, arena).ok_or_else(|| format!("no heap holds the last chunk {:#x}", arena.top))?;
    let mut heaps: Vec<Heap> = Vec::new();
    let mut bytes = 0_u64;
    loop {
        let (owner, previous, size) =
            (word(start), start.checked_add(8).and_then(word), start.checked_add(16).and_then(word));
        let (Some(owner), Some(previous), Some(size)) = (owner, previous, size) else {
            return Err(format!("the heap at {start:#x} is not there"));
        };
        // Heaps that lead back to themselves, with no bytes or few, would be gone through as often as there can be heaps.
        let is_met = heaps.get(heaps.len() / 2).is_some_and(|met| met.start == start);
        let end = start.checked_add(size).filter(|_| owner == arena.address && !is_met && heaps.len() < HEAPS_MAX);
        let end = end.ok_or_else(|| format!("the heap at {start:#x} is not the arena's"))?;
        // Behind the first heap's header is the arena itself; chunks are aligned to 16 bytes.
        let first_chunk = if start == first { arena.end() } else { start + header_bytes }.next_multiple_of(16);
        heaps.push(Heap { start, end, first_chunk });
        bytes = bytes.saturating_add(size);
        if previous == 0 || bytes > arena.system_bytes {
            break;
        }
        start = previous;
    }
    if start != first || bytes != arena.system_bytes {
        return Err(format!("its heaps have {bytes} bytes, and it says {}", arena.system_bytes));
    }
    Ok(heaps)
}

fn top_heap(memory: &dyn Memory, arena: &Arena) -> Option<u64> {
    std::iter::once(ALIGNMENT_LOG2)
        .chain(ALIGNMENTS_LOG2)
        .map(|log2| arena.top & !((1 << log2) - 1))
        .find(|&start| memory.word(TargetAddr(start)) == Some(arena.address))
}
