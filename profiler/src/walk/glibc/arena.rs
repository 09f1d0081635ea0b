//! Arenas (`struct malloc_state`), found by what they must look like: 127 list heads in a row, each of which points to itself while it
//! is empty, and a circle of arenas that comes back to its first.
//!
//! Offsets are those of glibc's malloc/malloc.c (<https://sourceware.org/git/?p=glibc.git;a=blob;f=malloc/malloc.c>), 2.26 to 2.43.

use crate::address::TargetAddr;
use crate::linux::proc::maps::RegionKind;
use crate::memory::{Memory, WORD_BYTES};
use crate::walk::Scene;

/// List heads of an arena. The last one is made and never used, so it always points to itself.
const BINS: u64 = 127;
/// Of those, how many must be in order: while a thread works on an arena, one or two may not be.
const BINS_IN_ORDER_MIN: u64 = 120;
const FASTBINS: u64 = 10;
/// From the field `top` to others, and to the end.
const BINS_AT: u64 = 16;
const NEXT_AT: u64 = BINS_AT + BINS * 16 + 16;
const SYSTEM_BYTES_AT: u64 = NEXT_AT + 24;
const END_AT: u64 = SYSTEM_BYTES_AT + 16;
/// More arenas than any process has, in all copies of the library: eight for each of 8,192 processors.
const ARENAS_MAX: usize = 1 << 16;
/// Most copies of the library that are looked for in a process.
const LIBRARIES_MAX: usize = 16;
/// Bytes that are searched at once.
const SEARCH_BYTES: usize = 1 << 18;
/// Set in `flags` when the main arena's memory is no longer one piece.
const NONCONTIGUOUS: u64 = 2;

/// Where the fields before the lists are.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// From the arena's beginning to `top`.
    top_at: u64,
    /// From the arena's beginning to the fastbins, where it has any.
    fastbins_at: Option<u64>,
}

/// 2.27 to 2.42; since 2.43, without fastbins; 2.26.
const LAYOUTS: [Layout; 3] = [
    Layout { top_at: 96, fastbins_at: Some(16) },
    Layout { top_at: 8, fastbins_at: None },
    Layout { top_at: 88, fastbins_at: Some(8) },
];

/// An arena.
#[derive(Debug)]
pub(super) struct Arena {
    pub(super) address: u64,
    layout: &'static Layout,
    /// Some thread works on it.
    pub(super) locked: bool,
    /// Its memory grew from one beginning without a hole.
    pub(super) contiguous: bool,
    /// Head of each list of chunks that are free and look used, and the size of those chunks.
    pub(super) fastbins: Vec<(u64, u64)>,
    /// Its last chunk, which is free.
    pub(super) top: u64,
    /// Bytes that it has from the kernel.
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

    /// First address behind it.
    pub(super) fn end(&self) -> u64 {
        self.address + self.layout.top_at + END_AT
    }

    /// Whether it has been given memory: before that, its first list stands in for its last chunk.
    pub(super) fn is_used(&self) -> bool {
        self.system_bytes != 0 && self.top != self.address + self.layout.top_at
    }
}

/// All arenas of one copy of the library.
#[derive(Debug)]
pub(super) struct Circle {
    /// The one that is part of the library's data.
    pub(super) main: Arena,
    /// Those that were made for threads.
    pub(super) others: Vec<Arena>,
}

impl Circle {
    pub(super) fn arenas(&self) -> impl Iterator<Item = &Arena> {
        std::iter::once(&self.main).chain(&self.others)
    }

    /// The circle that the arena with this `top` field is in. Reads at most `arenas_left` others, which it counts down.
    fn read(memory: &dyn Memory, top_at: u64, arenas_left: &mut usize) -> Option<Self> {
        LAYOUTS.iter().find_map(|layout| {
            let main = Arena::read(memory, top_at.checked_sub(layout.top_at)?, layout)?;
            let mut others: Vec<Arena> = Vec::new();
            let mut next = main.next;
            while next != main.address {
                *arenas_left = arenas_left.checked_sub(1)?;
                // One that leads back to itself without the first arena meets the arena in the middle at the latest.
                let is_met = others.get(others.len() / 2).is_some_and(|met| met.address == next);
                let arena = Arena::read(memory, next, layout).filter(|_| !is_met)?;
                next = arena.next;
                others.push(arena);
            }
            Some(Self { main, others })
        })
    }
}

/// Every circle whose first arena is in a module's data.
pub(super) fn find(scene: &Scene<'_>) -> Vec<Circle> {
    let is_data = |kind: &RegionKind| matches!(kind, RegionKind::File { .. });
    let mut circles = Vec::new();
    let mut arenas_left = ARENAS_MAX;
    let mut buffer = vec![0; SEARCH_BYTES];
    for region in scene.regions.iter().filter(|region| region.writable && !region.shared && is_data(&region.kind)) {
        for part in scene.memory.present(region.start..region.end) {
            let mut start = part.start.0.next_multiple_of(WORD_BYTES);
            while start < part.end.0 && circles.len() < LIBRARIES_MAX {
                let length = usize::try_from(part.end.0 - start).unwrap_or(usize::MAX).min(SEARCH_BYTES);
                let read_bytes = scene.memory.read(TargetAddr(start), &mut buffer[..length]);
                for top_at in candidates(start, &buffer[..read_bytes]) {
                    circles.extend(Circle::read(scene.memory, top_at, &mut arenas_left));
                }
                // A head is two words: the last one read is also the first of what is read next.
                match read_bytes as u64 {
                    got if got > WORD_BYTES => start += got - WORD_BYTES,
                    _ => break,
                }
            }
        }
    }
    circles
}

/// Addresses of `top` fields whose last list points to itself.
fn candidates(start: u64, bytes: &[u8]) -> impl Iterator<Item = u64> {
    let words = bytes
        .chunks_exact(size_of::<u64>())
        .map(|word| word.iter().rev().fold(0_u64, |all, &byte| all << 8 | u64::from(byte)));
    let mut before = None;
    words.zip(0..).filter_map(move |(word, index)| {
        let here = start + index * WORD_BYTES;
        let pair = before == Some(word) && word.wrapping_add(BINS_AT + WORD_BYTES) == here;
        before = Some(word);
        pair.then(|| here.checked_sub(WORD_BYTES + BINS * 16)).flatten()
    })
}

/// Whether the lists are there that follow an arena's field `top`.
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
