//! Lists of chunks that are free but appear used: fastbins and the caches of threads. Since 2.32 links are mangled with their
//! address ("safe linking"): `next ^ (address >> 12)`.

use std::cell::Cell;
use std::ops::RangeInclusive;

use heapbpf_base::address::TargetAddr;
use heapbpf_base::memory::{Memory, Span, WORD_BYTES, joined};
use heapbpf_linux::proc::maps::region_of;

use super::arena::{Arena, Circle};
use super::chunk::{CHUNK_BYTES_MIN, FLAGS, HEADER_BYTES};
use crate::collect::ThreadState;
use crate::walk::scene::{Scene, WalkedBlock, last_before, span};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Links {
    /// Links are mangled (2.32 and later).
    Mangled,
    Plain,
}

impl Links {
    pub(super) const ALL: [Self; 2] = [Self::Mangled, Self::Plain];

    fn read(self, memory: &dyn Memory, at: u64) -> Option<u64> {
        let raw = memory.word(TargetAddr(at))?;
        Some(match self {
            Self::Mangled => raw ^ (at >> 12),
            Self::Plain => raw,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// Links lead to the program's part of a chunk, as in caches of threads.
    Block,
    /// Links lead to the chunk, as in fastbins.
    Chunk,
}

/// Remaining number of steps for all lists together: forged caches and arenas may share long lists.
#[derive(Debug)]
pub(super) struct Steps(Cell<u64>);

impl Steps {
    /// Steps for this number of bytes: every chunk may be in a list, and lists are followed a few times.
    pub(super) fn of(bytes: u64) -> Self {
        Self(Cell::new(bytes / CHUNK_BYTES_MIN * 8))
    }

    fn take(&self) -> bool {
        let left = self.0.get();
        self.0.set(left.saturating_sub(1));
        left > 0
    }
}

#[derive(Clone, Debug)]
pub(super) struct List {
    /// Address of the first entry; 0 if the list is empty.
    pub(super) first: u64,
    pub(super) target: Target,
    pub(super) chunk_bytes: RangeInclusive<u64>,
    pub(super) count_max: u64,
}

impl List {
    /// Blocks of the list in order; `None` if the list is inconsistent, or the limit is reached.
    pub(super) fn blocks(&self, memory: &dyn Memory, links: Links, steps: &Steps) -> Option<Vec<u64>> {
        let skip_bytes = if self.target == Target::Chunk { HEADER_BYTES } else { 0 };
        let mut blocks = Vec::new();
        let mut next = self.first;
        // Detects cycles (Brent's algorithm).
        let (mut seen, mut until) = (0, 1);
        while next != 0 {
            let block = next.checked_add(skip_bytes)?;
            let size = memory.word(TargetAddr(block.checked_sub(WORD_BYTES)?))? & !FLAGS;
            let is_chunk = block % 16 == 0 && size >= CHUNK_BYTES_MIN && self.chunk_bytes.contains(&size);
            if !is_chunk || block == seen || !steps.take() || blocks.len() as u64 == self.count_max {
                return None;
            }
            blocks.push(block);
            if blocks.len() == until {
                (seen, until) = (block, 2 * until);
            }
            next = links.read(memory, block)?;
        }
        Some(blocks)
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Format {
    /// Size of the cache's block, or 16 bytes more if the rest of a free chunk was too small.
    block_bytes: u64,
    bins: u64,
    count_bytes: u64,
    /// Whether counts are those of free entries instead of used ones.
    counts_room: bool,
}

/// Formats of 2.42 and later, of 2.30 to 2.41, and of 2.26 to 2.29.
const FORMATS: [Format; 3] = [
    Format { block_bytes: CACHE_BYTES_MAX as u64, bins: 76, count_bytes: 2, counts_room: true },
    Format { block_bytes: 0x288, bins: 64, count_bytes: 2, counts_room: false },
    Format { block_bytes: 0x248, bins: 64, count_bytes: 1, counts_room: false },
];

const CACHE_BYTES_MAX: usize = 0x2f8;
/// Number of bins with one size each.
const SMALL_BINS: u64 = 64;
/// Maximum number of entries of a bin: counts have two bytes.
const ENTRIES_MAX: u64 = 0xffff;

pub(super) fn may_be_cache(block: &WalkedBlock) -> bool {
    format_of(block).is_some()
}

fn format_of(block: &WalkedBlock) -> Option<&'static Format> {
    FORMATS.iter().find(|format| block.size_bytes.checked_sub(format.block_bytes).is_some_and(|more| more <= 16))
}

pub(super) fn cache_entries(memory: &dyn Memory, links: Links, block: WalkedBlock, steps: &Steps) -> Option<Vec<u64>> {
    let format = format_of(&block)?;
    let mut bytes = [0; CACHE_BYTES_MAX];
    let bytes = &mut bytes[..usize::try_from(format.block_bytes).ok()?];
    if memory.read(TargetAddr(block.start.0), bytes) != bytes.len() {
        return None;
    }
    let number = |at: u64, length: u64| {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        bytes[at..at + usize::try_from(length).unwrap_or(0)]
            .iter()
            .rev()
            .fold(0, |all, &byte| all << 8 | u64::from(byte))
    };
    let mut all = Vec::new();
    let mut room = None;
    for bin in 0..format.bins {
        let first = number(format.count_bytes * format.bins + bin * 8, 8);
        let count = number(bin * format.count_bytes, format.count_bytes);
        if !format.counts_room && (first == 0) != (count == 0) {
            return None;
        }
        let count_max = if format.counts_room { ENTRIES_MAX } else { count };
        let entries = List { first, target: Target::Block, chunk_bytes: chunk_bytes(bin), count_max }
            .blocks(memory, links, steps)?;
        let length = entries.len() as u64;
        let in_order =
            if format.counts_room { *room.get_or_insert(count + length) == count + length } else { count == length };
        if !in_order {
            return None;
        }
        all.extend(entries);
    }
    Some(all)
}

/// Sizes of chunks in a bin. Beyond the small bins, these are sizes up to a power of two.
fn chunk_bytes(bin: u64) -> std::ops::RangeInclusive<u64> {
    match bin.checked_sub(SMALL_BINS) {
        None => 32 + bin * 16..=32 + bin * 16,
        Some(large) => 1 << (large + 10)..=(1 << (large + 11)) - 1,
    }
}

/// Maximum number of words of thread-local storage that are searched.
const STORAGE_WORDS_MAX: u64 = 1 << 13;
/// Maximum number of words between the variables for a thread's arena and its cache.
const VARIABLES_WORDS: u64 = 64;
/// Finds blocks that are caches of running threads by their thread-local variables.
pub(super) fn caches(
    scene: &Scene<'_>,
    circles: &[Circle],
    blocks: &[WalkedBlock],
    links: Links,
    steps: &Steps,
) -> Vec<TargetAddr> {
    let mut arenas: Vec<u64> = circles.iter().flat_map(Circle::arenas).map(|arena: &Arena| arena.address).collect();
    arenas.sort_unstable();
    let cache = |address: u64| {
        let found = blocks.binary_search_by_key(&address, |block| block.start.0).ok()?;
        cache_entries(scene.memory, links, blocks[found], steps).map(|_| TargetAddr(address))
    };
    let mut caches = Vec::new();
    for thread in scene.threads {
        if let Some(nth) = arena_variable(scene, thread, &arenas) {
            let around = nth.saturating_sub(VARIABLES_WORDS).max(1)..=nth + VARIABLES_WORDS;
            caches.extend(around.filter_map(|nth| cache(storage_word(scene, thread, nth)?)));
        }
    }
    caches
}

fn storage_word(scene: &Scene<'_>, thread: &ThreadState, nth: u64) -> Option<u64> {
    scene.memory.word(thread.storage_word(nth)?)
}

/// The thread-local variable for the thread's arena, as the number of its word. `None` if the thread has never called the
/// allocator. `arenas` are in ascending order.
fn arena_variable(scene: &Scene<'_>, thread: &ThreadState, arenas: &[u64]) -> Option<u64> {
    let mut words = (1..=STORAGE_WORDS_MAX).map_while(|nth| Some((nth, storage_word(scene, thread, nth)?)));
    words.find(|(_, word)| arenas.binary_search(word).is_ok()).map(|(nth, _)| nth)
}

/// Whether a thread runs allocator code without a lock: its next instruction is the library's, and a register points to
/// an arena or a cache. Not while the thread is in a system call, which the allocator makes under a lock, nor before it
/// has called the allocator: its registers may be copies of its creator's, or stale.
pub(super) fn is_busy(scene: &Scene<'_>, circles: &[Circle], caches: &[TargetAddr]) -> bool {
    let mut addresses: Vec<u64> = circles.iter().flat_map(Circle::arenas).map(|arena: &Arena| arena.address).collect();
    addresses.sort_unstable();
    let arenas = circles.iter().map(|circle| joined(circle.arenas().map(|it| span(it.address, it.end())).collect()));
    let arenas: Vec<Vec<Span>> = arenas.collect();
    let caches = joined(caches.iter().map(|cache| span(cache.0, cache.0 + CACHE_BYTES_MAX as u64)).collect());
    let holds = |spans: &[Span], word: u64| last_before(spans, word).is_some_and(|span| word < span.end.0);
    scene.threads.iter().any(|thread| {
        let Some(code) = region_of(scene.regions(), thread.instruction) else { return false };
        let points_into = |circle: &Circle, arenas: &[Span]| {
            let data = region_of(scene.regions(), TargetAddr(circle.main.address));
            let same = data.is_some_and(|data| data.kind == code.kind);
            same && thread.registers.iter().any(|&word| holds(arenas, word) || holds(&caches, word))
        };
        !thread.in_syscall
            && circles.iter().zip(&arenas).any(|(circle, arenas)| points_into(circle, arenas))
            && arena_variable(scene, thread, &addresses).is_some()
    })
}

#[cfg(test)]
mod tests {
    use heapbpf_base::memory::Copied;

    use super::*;

    /// Chunks of 32 bytes at these addresses, each with a link.
    fn memory(links: &[(u64, u64)]) -> Copied {
        let mut bytes = vec![0; 0x1000];
        for &(block, link) in links {
            let at = usize::try_from(block - 0x1000).expect("small");
            bytes[at - 8..at].copy_from_slice(&33_u64.to_le_bytes());
            bytes[at..at + 8].copy_from_slice(&link.to_le_bytes());
        }
        Copied::new([(TargetAddr(0x1000), bytes.into())])
    }

    #[test]
    fn a_cyclic_list_ends_whatever_its_count() {
        let list = List { first: 0x1010, target: Target::Block, chunk_bytes: 32..=32, count_max: u64::MAX / 32 };
        let check = |links: &[(u64, u64)], expected: Option<Vec<u64>>| {
            assert_eq!(list.blocks(&memory(links), Links::Plain, &Steps::of(0x1000)), expected, "{links:x?}");
        };
        check(&[(0x1010, 0x1030), (0x1030, 0x1050), (0x1050, 0)], Some(vec![0x1010, 0x1030, 0x1050]));
        let few = Steps::of(32);
        let two = memory(&[(0x1010, 0x1030), (0x1030, 0)]);
        let walks = (0..6).filter(|_| list.blocks(&two, Links::Plain, &few).is_some()).count();
        assert_eq!(walks, 4, "eight steps, two for each");
        check(&[(0x1010, 0x1010)], None);
        check(&[(0x1010, 0x1030), (0x1030, 0x1050), (0x1050, 0x1030)], None);
        check(&[(0x1010, 0x1030), (0x1030, 0x1050), (0x1050, 0x1070), (0x1070, 0x1010)], None);
    }
}
