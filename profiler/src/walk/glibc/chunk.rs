//! Chunks, each preceded by its size, up to the arena's last one, and the pieces of memory that consist of chunks.

use heapbpf_base::address::TargetAddr;
use heapbpf_base::memory::{Memory, Span, WORD_BYTES, joined};
use heapbpf_linux::proc::maps::{RegionKind, region_of};
use profiler_common::limits::PAGE_BYTES;

use super::arena::{Arena, heaps};
use crate::walk::scene::{Scene, Walk, WalkedBlock, span};

/// Offset of a block in its chunk.
pub(super) const HEADER_BYTES: u64 = 16;
pub(super) const CHUNK_BYTES_MIN: u64 = 32;
/// Flags in the low bits of a size.
pub(super) const PREVIOUS_IN_USE: u64 = 1;
pub(super) const MAPPED: u64 = 2;
const OF_THREADS: u64 = 4;
pub(super) const FLAGS: u64 = 7;

#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) start: u64,
    pub(super) limit: u64,
    /// Address of the arena's last chunk.
    pub(super) top: u64,
    pub(super) of_threads: bool,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why} at {at:#x}")]
pub(super) struct Broken {
    pub(super) at: u64,
    pub(super) why: &'static str,
}

pub(super) struct Chunks<'a> {
    memory: &'a dyn Memory,
    words: Words<'a>,
    /// Chunks that appear used, including caches.
    pub(super) blocks: Vec<WalkedBlock>,
    /// Remaining number of steps, which bounds the search for the start of a chain.
    steps_left: u64,
}

#[derive(Clone, Copy)]
struct Head {
    bytes: u64,
    flags: u64,
}

impl<'a> Chunks<'a> {
    pub(super) fn new(memory: &'a dyn Memory, steps_max: u64) -> Self {
        Self { memory, words: Words::new(memory), blocks: Vec::new(), steps_left: steps_max }
    }

    /// Walks a piece. Returns its end: after `top`, or after the two chunks of 16 bytes before foreign memory. Collects no blocks
    /// of an inconsistent piece.
    pub(super) fn walk(&mut self, piece: Piece) -> Result<u64, Broken> {
        let kept = self.blocks.len();
        let walked = self.chain(piece);
        if walked.is_err() {
            self.blocks.truncate(kept);
        }
        walked
    }

    fn chain(&mut self, piece: Piece) -> Result<u64, Broken> {
        let mut at = piece.start;
        let mut head = self.head(at)?;
        let mut first = true;
        loop {
            let broken = |why| Err(Broken { at, why });
            if self.steps_left == 0 {
                return broken("the limit on chunks was reached");
            }
            self.steps_left -= 1;
            let end = at.checked_add(head.bytes).filter(|end| *end <= piece.limit);
            let Some(end) = end else { return broken("a chunk reaches beyond its memory") };
            if first && head.flags & PREVIOUS_IN_USE == 0 {
                return broken("the first chunk has a predecessor");
            }
            first = false;
            if at == piece.top {
                return if head.bytes >= HEADER_BYTES { Ok(end) } else { broken("the last chunk has no size") };
            }
            if head.bytes == HEADER_BYTES && head.flags & MAPPED == 0 {
                return self.fence(at, piece);
            }
            if head.bytes < CHUNK_BYTES_MIN || !at.is_multiple_of(16) || head.flags & MAPPED != 0 {
                return broken("a chunk has an invalid size");
            }
            let next = self.head(end)?;
            if next.flags & PREVIOUS_IN_USE == 0 {
                self.check_free(at, head, end)?;
            } else if piece.of_threads && head.flags & OF_THREADS == 0 {
                // The chunk is the rest at the end of a heap that is too small to be freed.
                return if next.bytes == 0 { Ok(end + HEADER_BYTES) } else { broken("a block is of another arena") };
            } else if !piece.of_threads && head.flags & OF_THREADS != 0 {
                return broken("a block is of another arena");
            } else {
                self.blocks
                    .push(WalkedBlock { start: TargetAddr(at + HEADER_BYTES), size_bytes: head.bytes - WORD_BYTES });
            }
            (at, head) = (end, next);
        }
    }

    fn head(&mut self, at: u64) -> Result<Head, Broken> {
        let word = at.checked_add(WORD_BYTES).and_then(|address| self.words.at(address));
        let word = word.ok_or(Broken { at, why: "a chunk's size cannot be read" })?;
        Ok(Head { bytes: word & !FLAGS, flags: word & FLAGS })
    }

    /// Checks a free chunk: it has a copy of its size at its end, and is in a list.
    fn check_free(&mut self, at: u64, head: Head, end: u64) -> Result<(), Broken> {
        let next_in_list = self.words.at(at + HEADER_BYTES);
        let back =
            next_in_list.and_then(|chunk| self.memory.word(TargetAddr(chunk.checked_add(HEADER_BYTES + WORD_BYTES)?)));
        if self.words.at(end) != Some(head.bytes) {
            return Err(Broken { at, why: "a free chunk has two sizes" });
        }
        if back != Some(at) {
            return Err(Broken { at, why: "a free chunk is in no list" });
        }
        Ok(())
    }

    /// Checks the end of memory before foreign memory: two chunks that are too small for blocks.
    fn fence(&mut self, at: u64, piece: Piece) -> Result<u64, Broken> {
        let mut second = at + HEADER_BYTES;
        let mut head = self.head(second)?;
        // The rest before the two chunks can be equally small.
        if !piece.of_threads && head.bytes == HEADER_BYTES {
            let third = second + HEADER_BYTES;
            if !third.is_multiple_of(PAGE_BYTES)
                && let Ok(next) = self.head(third)
                && next.bytes == HEADER_BYTES
                && next.flags == PREVIOUS_IN_USE
            {
                (second, head) = (third, next);
            }
        }
        let expected = if piece.of_threads { 0 } else { HEADER_BYTES };
        let end = second + HEADER_BYTES;
        if head.bytes != expected || head.flags != PREVIOUS_IN_USE || end > piece.limit {
            return Err(Broken { at, why: "a chunk is too small" });
        }
        Ok(end)
    }
}

const CHUNK_ALIGNMENT: u64 = 16;
/// Maximum number of foreign bytes between two pieces of a heap.
const FOREIGN_BYTES_MAX: u64 = 1 << 22;

/// Walks an arena that was created for threads, completely or not at all.
pub(super) fn walk_other(scene: &Scene<'_>, arena: &Arena, chunks: &mut Chunks<'_>, walk: &mut Walk) {
    let kept = chunks.blocks.len();
    let walked = heaps(scene.memory, arena).and_then(|heaps| {
        for heap in &heaps {
            let piece = Piece { start: heap.first_chunk, limit: heap.end, top: arena.top, of_threads: true };
            let end = chunks.walk(piece).map_err(|broken| broken.to_string())?;
            if end != heap.end {
                return Err(format!("the chunks of the heap at {:#x} end early, at {end:#x}", heap.start));
            }
        }
        Ok(heaps)
    });
    match walked {
        Ok(heaps) => walk.areas.extend(heaps.iter().map(|heap| span(heap.start, heap.end))),
        Err(why) => {
            chunks.blocks.truncate(kept);
            walk.gaps.push(format!("the arena at {:#x}: {why}", arena.address));
        }
    }
}

/// Walks the main arena, which starts as one piece allocated by `brk`. If others move the break, or it cannot move, there are
/// more pieces.
pub(super) fn walk_main(scene: &Scene<'_>, arena: &Arena, chunks: &mut Chunks<'_>, walk: &mut Walk) {
    if !arena.is_used() {
        return;
    }
    let kept = chunks.blocks.len();
    let found = match grown(scene, arena, chunks) {
        Ok(pieces) => Ok(pieces),
        Err(why) if arena.contiguous => Err(why),
        Err(_) => {
            chunks.blocks.truncate(kept);
            scattered(scene, arena, chunks, &walk.areas)
        }
    };
    match found {
        Ok(pieces) => walk.areas.extend(pieces),
        Err(why) => {
            chunks.blocks.truncate(kept);
            walk.gaps.push(format!("the main arena at {:#x}: {why}", arena.address));
        }
    }
}

/// Walks an arena that has grown upwards: its size, including foreign memory, is known, and it ends at its last chunk.
fn grown(scene: &Scene<'_>, arena: &Arena, chunks: &mut Chunks<'_>) -> Result<Vec<Span>, String> {
    let missing = || format!("its last chunk {:#x} cannot be read", arena.top);
    let size = scene.memory.word(TargetAddr(arena.top.wrapping_add(WORD_BYTES))).ok_or_else(missing)? & !FLAGS;
    let region = region_of(scene.regions(), TargetAddr(arena.top)).ok_or_else(missing)?;
    let end = arena.top.checked_add(size).filter(|end| *end <= region.end.0).ok_or_else(missing)?;
    let start = end.checked_sub(arena.system_bytes).and_then(|start| start.checked_next_multiple_of(CHUNK_ALIGNMENT));
    let start = start.filter(|start| *start >= region.start.0);
    let start =
        start.ok_or_else(|| format!("it records {} bytes, more than are mapped before its end", arena.system_bytes))?;
    let mut piece = Piece { start, limit: end, top: arena.top, of_threads: false };
    let mut reached = chunks.walk(piece).map_err(|broken| broken.to_string())?;
    let mut pieces = vec![span(start, reached)];
    while reached != end {
        let next = search(chunks, Piece { start: reached, ..piece });
        (piece.start, reached) = next.ok_or_else(|| format!("what follows {reached:#x} is not the arena's"))?;
        pieces.push(span(piece.start, reached));
    }
    Ok(pieces)
}

fn search(chunks: &mut Chunks<'_>, piece: Piece) -> Option<(u64, u64)> {
    let last = piece.limit.min(piece.start.saturating_add(FOREIGN_BYTES_MAX));
    let mut starts =
        (0..last.saturating_sub(piece.start) / CHUNK_ALIGNMENT).map(|nth| piece.start + nth * CHUNK_ALIGNMENT);
    starts.find_map(|start| chunks.walk(Piece { start, ..piece }).ok().map(|end| (start, end)))
}

/// Finds consistent pieces of anonymous memory with as many bytes as the arena has. `areas` are those of other arenas.
fn scattered(scene: &Scene<'_>, arena: &Arena, chunks: &mut Chunks<'_>, areas: &[Span]) -> Result<Vec<Span>, String> {
    let mut pieces: Vec<Span> = Vec::new();
    for gap in scene.unknown(&joined(areas.to_vec())) {
        let is_brk = region_of(scene.regions(), gap.start).is_some_and(|region| region.kind == RegionKind::Brk);
        let mut at = gap.start.0;
        // Reserved address space that was never touched can be terabytes.
        for part in scene.memory.present(gap.clone()) {
            at = at.max(part.start.0 / PAGE_BYTES * PAGE_BYTES);
            while at < part.end.0 {
                let piece = Piece { start: at, limit: gap.end.0, top: arena.top, of_threads: false };
                let (found, searched_bytes) = match is_brk {
                    true => (search(chunks, piece), FOREIGN_BYTES_MAX),
                    false => (chunks.walk(piece).ok().map(|end| (at, end)), PAGE_BYTES),
                };
                at = match found {
                    Some((_, end)) => end.max(at + 1).next_multiple_of(PAGE_BYTES),
                    None => at.saturating_add(searched_bytes),
                };
                pieces.extend(found.map(|(start, end)| span(start, end)));
            }
        }
    }
    let bytes: u64 = pieces.iter().map(|piece| piece.end.0 - piece.start.0).sum();
    // The arena's size includes padding before the first piece.
    if bytes <= arena.system_bytes && arena.system_bytes - bytes < CHUNK_ALIGNMENT {
        return Ok(pieces);
    }
    Err(format!("its pieces have {bytes} bytes instead of {}", arena.system_bytes))
}

const WINDOW_BYTES: usize = 1 << 16;

/// Buffered reader of words in ascending order.
struct Words<'a> {
    memory: &'a dyn Memory,
    window: Box<[u8]>,
    start: u64,
    filled_bytes: usize,
}

impl<'a> Words<'a> {
    fn new(memory: &'a dyn Memory) -> Self {
        Self { memory, window: vec![0; WINDOW_BYTES].into_boxed_slice(), start: 0, filled_bytes: 0 }
    }

    fn at(&mut self, address: u64) -> Option<u64> {
        self.held(address).or_else(|| {
            self.filled_bytes = self.memory.read(TargetAddr(address), &mut self.window);
            self.start = address;
            self.held(address)
        })
    }

    fn held(&self, address: u64) -> Option<u64> {
        let offset = usize::try_from(address.checked_sub(self.start)?).ok()?;
        let bytes = self.window[..self.filled_bytes].get(offset..offset.checked_add(size_of::<u64>())?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }
}
