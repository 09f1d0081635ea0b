//! Arenas (`struct malloc_state`), found by their structure: 127 consecutive list heads, each of which points to itself
//! if empty, and a circular list of arenas; and heaps of threads' arenas (`heap_info` in malloc/arena.c). Offsets are
//! those of malloc/malloc.c (<https://sourceware.org/git/?p=glibc.git;a=blob;f=malloc/malloc.c>), 2.26 to 2.43.

use heapbpf_base::address::TargetAddr;
use heapbpf_base::memory::{Memory, WORD_BYTES};
use profiler_common::limits::PAGE_BYTES;

use crate::walk::scene::{Scene, array, parts};

/// Number of lists. The last list is unused, so its head always points to itself.
const BINS: u64 = 127;
/// Minimum number of consistent lists. While a thread modifies an arena, one or two may be inconsistent.
const BINS_IN_ORDER_MIN: u64 = 120;
const FASTBINS: u64 = 10;
/// Offsets of fields from the field `top`.
const BINS_AT: u64 = 16;
const NEXT_AT: u64 = BINS_AT + BINS * 16 + 16;
const SYSTEM_BYTES_AT: u64 = NEXT_AT + 24;
const END_AT: u64 = SYSTEM_BYTES_AT + 16;
/// Maximum number of arenas of a process: eight for each of 8,192 processors.
const ARENAS_MAX: usize = 1 << 16;
const LIBRARIES_MAX: usize = 16;
/// Maximum number of threads of a process, as far as the kernel's identifiers go.
const THREADS_MAX: u64 = 1 << 22;
/// Flag in `flags` that is set if the main arena's memory is not contiguous.
const NONCONTIGUOUS: u64 = 2;

/// Offsets of fields from the start of an arena.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Layout {
    top_at: u64,
    fastbins_at: Option<u64>,
}

/// Layouts of 2.27 to 2.42; of 2.43 and later, without fastbins; and of 2.26.
const LAYOUTS: [Layout; 3] = [
    Layout { top_at: 96, fastbins_at: Some(16) },
    Layout { top_at: 8, fastbins_at: None },
    Layout { top_at: 88, fastbins_at: Some(8) },
];

#[derive(Debug)]
pub(super) struct Arena {
    pub(super) address: u64,
    layout: &'static Layout,
    pub(super) locked: bool,
    /// Whether the arena's memory has grown from one start without a hole.
    pub(super) contiguous: bool,
    /// Head of each fastbin, and the size of the fastbin's chunks.
    pub(super) fastbins: Vec<(u64, u64)>,
    /// Address of the arena's last chunk, which is free.
    pub(super) top: u64,
    pub(super) system_bytes: u64,
    next: u64,
}

impl Arena {
    fn read(memory: &dyn Memory, address: u64, layout: &'static Layout) -> Option<Self> {
        let top_at = address.checked_add(layout.top_at)?;
        if !has_lists(memory, top_at) {
            return None;
        }
        let word = |offset: u64| memory.word(TargetAddr(top_at.checked_add(offset)?));
        let first = memory.word(TargetAddr(address))?;
        let mut fastbins = Vec::new();
        if let Some(at) = layout.fastbins_at {
            for index in 0..FASTBINS {
                fastbins.push((memory.word(TargetAddr(address + at + index * WORD_BYTES))?, (index + 2) * 16));
            }
        }
        Some(Self {
            address,
            layout,
            locked: first & 0xffff_ffff != 0,
            contiguous: (first >> 32) & NONCONTIGUOUS == 0,
            fastbins,
            top: word(0)?,
            system_bytes: word(SYSTEM_BYTES_AT)?,
            next: word(NEXT_AT)?,
        })
    }

    pub(super) fn end(&self) -> u64 {
        self.address + self.layout.top_at + END_AT
    }

    /// Whether the arena has memory; before that, its first list stands in for its last chunk.
    pub(super) fn is_used(&self) -> bool {
        self.system_bytes != 0 && self.top != self.address + self.layout.top_at
    }
}

#[derive(Debug)]
pub(super) struct Circle {
    /// Main arena, which is in the library's data.
    pub(super) main: Arena,
    pub(super) others: Vec<Arena>,
}

impl Circle {
    pub(super) fn arenas(&self) -> impl Iterator<Item = &Arena> {
        std::iter::once(&self.main).chain(&self.others)
    }

    /// Reads a circle. Counts down `arenas_left`.
    fn read(memory: &dyn Memory, top_at: u64, arenas_left: &mut usize) -> Option<Self> {
        LAYOUTS.iter().find_map(|layout| {
            let main = Arena::read(memory, top_at.checked_sub(layout.top_at)?, layout)?;
            let mut others: Vec<Arena> = Vec::new();
            let mut next = main.next;
            while next != main.address {
                *arenas_left = arenas_left.checked_sub(1)?;
                // Detects a cycle without the first arena when it reaches the middle of the list.
                let is_cycle = others.get(others.len() / 2).is_some_and(|seen| seen.address == next);
                let arena = Arena::read(memory, next, layout).filter(|_| !is_cycle)?;
                next = arena.next;
                others.push(arena);
            }
            Some(Self { main, others })
        })
    }
}

/// Circles whose first arena is in a module's data; found by words that point to themselves, as an empty list does.
pub(super) fn find(scene: &Scene<'_>) -> Vec<Circle> {
    let mut circles = Vec::new();
    let mut arenas_left = ARENAS_MAX;
    for region in scene.module_data().filter(|region| !region.is_anonymous()) {
        for (start, words) in parts(scene.memory, region.start..region.end) {
            let is_empty_list = |address: u64, words: &[u64]| match words {
                [first, last, ..] => first == last && first.checked_add(BINS_AT) == Some(address),
                _ => false,
            };
            for (address, at) in (start..).step_by(size_of::<u64>()).zip(0..words.len()) {
                if circles.len() == LIBRARIES_MAX {
                    return circles;
                }
                // All other lists may be empty, too, but only the last is followed by something else.
                let next = words.get(at + 2..).unwrap_or_default();
                let is_last = is_empty_list(address, &words[at..]) && !is_empty_list(address.saturating_add(16), next);
                let top_at = address.checked_sub(BINS * 16).filter(|_| is_last);
                circles.extend(top_at.and_then(|top_at| Circle::read(scene.memory, top_at, &mut arenas_left)));
            }
        }
    }
    circles
}

/// State of a main arena that is alone, found by its link to itself, which the linker initializes: [`find`] needs its lists,
/// which are initialized by the first call, and which the program may have overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trace {
    Unused,
    Damaged,
}

pub(super) fn trace(scene: &Scene<'_>) -> Option<Trace> {
    scene.module_data().filter(|region| !region.is_anonymous()).find_map(|region| {
        parts(scene.memory, region.start..region.end).find_map(|(start, words)| {
            let mut links = (start..).step_by(size_of::<u64>()).zip(words.iter().copied());
            links.find_map(|(at, link)| LAYOUTS.iter().find_map(|layout| layout.trace(scene.memory, at, link)))
        })
    })
}

impl Layout {
    /// Checks for an arena by its link to itself. `link` is the word at `at`.
    fn trace(&self, memory: &dyn Memory, at: u64, link: u64) -> Option<Trace> {
        let next_at = self.top_at + NEXT_AT;
        if link.checked_add(next_at) != Some(at) {
            return None;
        }
        // The fields are the list of free arenas, attached threads, bytes from the system, and the maximum of these bytes.
        let [_, free, threads, bytes, bytes_max] = array(memory, at)?;
        let fits = free == 0 && (1..=THREADS_MAX).contains(&threads) && bytes <= bytes_max;
        // Pages that were never written are missing.
        let is_empty = || {
            let mut fields = (link..at).step_by(size_of::<u64>());
            fields.all(|field| memory.word(TargetAddr(field)).is_none_or(|word| word == 0))
        };
        match (fits, bytes) {
            (false, _) => None,
            (true, 0) => (is_empty() || has_lists(memory, link + self.top_at)).then_some(Trace::Unused),
            (true, _) => (bytes % PAGE_BYTES == 0).then_some(Trace::Damaged),
        }
    }
}

fn has_lists(memory: &dyn Memory, top_at: u64) -> bool {
    let Some(end) = top_at.checked_add(END_AT) else { return false };
    let word = |address: u64| memory.word(TargetAddr(address));
    let in_order = |index: u64| {
        let head = top_at + (index - 1) * 16;
        let (Some(first), Some(last)) = (word(head + 16), word(head + 24)) else { return false };
        let linked = |chunk: u64, field: u64| chunk.checked_add(field).and_then(word) == Some(head);
        linked(first, 24) && linked(last, 16)
    };
    if word(end - WORD_BYTES).is_none() || !in_order(BINS) {
        return false;
    }
    let mut wrong = 0;
    (1..BINS).rev().all(|index| {
        wrong += u64::from(!in_order(index));
        wrong <= BINS - BINS_IN_ORDER_MIN
    })
}

/// Size of `heap_info`, of 2.35 and later, and before.
const HEAP_HEADER_BYTES: [u64; 2] = [48, 32];
/// Binary logarithm of the alignment of heaps: 64 MiB. With huge pages it is four times their size, so all other powers of two
/// from 1 MiB to 64 GiB are tried.
const ALIGNMENT_LOG2: u32 = 26;
const ALIGNMENTS_LOG2: std::ops::RangeInclusive<u32> = 20..=36;
/// Maximum number of heaps, which is more than fit into the address space.
const HEAPS_MAX: usize = 1 << 21;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heap {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) first_chunk: u64,
}

/// Heaps of an arena that was created for threads, with the heap that contains `top` first.
pub(super) fn heaps(memory: &dyn Memory, arena: &Arena) -> Result<Vec<Heap>, String> {
    let word = |address: u64| memory.word(TargetAddr(address));
    let header_bytes = HEAP_HEADER_BYTES
        .into_iter()
        .find(|header| arena.address.checked_sub(*header).and_then(word) == Some(arena.address))
        .ok_or_else(|| format!("no heap starts before the arena at {:#x}", arena.address))?;
    let first = arena.address - header_bytes;
    let mut start = top_heap(memory, arena).ok_or_else(|| format!("no heap holds the last chunk {:#x}", arena.top))?;
    let mut heaps: Vec<Heap> = Vec::new();
    let mut bytes = 0_u64;
    loop {
        let [owner, previous, size] =
            array(memory, start).ok_or_else(|| format!("the heap at {start:#x} cannot be read"))?;
        // Detects cycles of heaps with few bytes.
        let is_cycle = heaps.get(heaps.len() / 2).is_some_and(|seen| seen.start == start);
        let end = start.checked_add(size).filter(|_| owner == arena.address && !is_cycle && heaps.len() < HEAPS_MAX);
        let end = end.ok_or_else(|| format!("the heap at {start:#x} is not the arena's"))?;
        // The first heap's header is followed by the arena; chunks are aligned to 16 bytes.
        let first_chunk = if start == first { arena.end() } else { start + header_bytes }.next_multiple_of(16);
        heaps.push(Heap { start, end, first_chunk });
        bytes = bytes.saturating_add(size);
        if previous == 0 || bytes > arena.system_bytes {
            break;
        }
        start = previous;
    }
    if start != first || bytes != arena.system_bytes {
        return Err(format!("its heaps have {bytes} bytes instead of {}", arena.system_bytes));
    }
    Ok(heaps)
}

fn top_heap(memory: &dyn Memory, arena: &Arena) -> Option<u64> {
    std::iter::once(ALIGNMENT_LOG2)
        .chain(ALIGNMENTS_LOG2)
        .map(|log2| arena.top & !((1 << log2) - 1))
        .find(|&start| memory.word(TargetAddr(start)) == Some(arena.address))
}
