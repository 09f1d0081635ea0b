//! The memory that arenas are made of, walked piece by piece.

use super::arena::Arena;
use super::chunk::{Chunks, FLAGS, Piece};
use super::{PAGE_BYTES, heap, span};
use crate::address::TargetAddr;
use crate::collect::Span;
use crate::linux::proc::maps::{RegionKind, region_of};
use crate::memory::WORD_BYTES;
use crate::walk::{Scene, Walk};

const CHUNK_ALIGNMENT: u64 = 16;
/// Most bytes of others between two pieces of a heap.
const FOREIGN_BYTES_MAX: u64 = 1 << 22;

/// Walks an arena that was made for threads, all of it or nothing.
pub(super) fn walk_other(scene: &Scene<'_>, arena: &Arena, chunks: &mut Chunks<'_>, walk: &mut Walk) {
    let kept = chunks.blocks.len();
    let walked = heap::heaps(scene.memory, arena).and_then(|heaps| {
        for heap in &heaps {
            let piece = Piece { start: heap.first_chunk, limit: heap.end, top: arena.top, of_threads: true };
            let end = chunks.walk(piece).map_err(|broken| broken.to_string())?;
            if end != heap.end {
                return Err(format!("the heap at {:#x} has an end of its own at {end:#x}", heap.start));
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

/// Walks the main arena. It begins as one piece that `brk` has made. Where others move the break, or it cannot move, there are more;
/// each one adds up by itself.
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

/// The pieces of an arena that has grown upwards: as many bytes before its end as it says that it has, others' among them.
fn grown(scene: &Scene<'_>, arena: &Arena, chunks: &mut Chunks<'_>) -> Result<Vec<Span>, String> {
    let missing = || format!("its last chunk {:#x} is not there", arena.top);
    let size = scene.memory.word(TargetAddr(arena.top.wrapping_add(WORD_BYTES))).ok_or_else(missing)? & !FLAGS;
    let region = region_of(scene.regions, TargetAddr(arena.top)).ok_or_else(missing)?;
    let end = arena.top.checked_add(size).filter(|end| *end <= region.end.0).ok_or_else(missing)?;
    let start = end.checked_sub(arena.system_bytes).and_then(|start| start.checked_next_multiple_of(CHUNK_ALIGNMENT));
    let start = start.filter(|start| *start >= region.start.0);
    let start = start
        .ok_or_else(|| format!("it says that it has {} bytes, more than are before its end", arena.system_bytes))?;
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

/// Looks for the next address from which on chunks add up, and says where those end.
fn search(chunks: &mut Chunks<'_>, piece: Piece) -> Option<(u64, u64)> {
    let last = piece.limit.min(piece.start.saturating_add(FOREIGN_BYTES_MAX));
    let mut starts =
        (0..last.saturating_sub(piece.start) / CHUNK_ALIGNMENT).map(|nth| piece.start + nth * CHUNK_ALIGNMENT);
    starts.find_map(|start| chunks.walk(Piece { start, ..piece }).ok().map(|end| (start, end)))
}

/// The pieces of an arena that is not in one place: what adds up of memory without a file, and is as many bytes as the arena has.
fn scattered(scene: &Scene<'_>, arena: &Arena, chunks: &mut Chunks<'_>, areas: &[Span]) -> Result<Vec<Span>, String> {
    let mut pieces: Vec<Span> = Vec::new();
    let private = scene.regions.iter().filter(|region| region.is_anonymous() && region.writable && !region.shared);
    for region in private.filter(|region| !areas.iter().any(|area| region.contains(area.start))) {
        let mut at = region.start.0;
        // A chunk's size is there. Address space that was reserved and never touched can be terabytes.
        for part in scene.memory.present(region.start..region.end) {
            at = at.max(part.start.0 / PAGE_BYTES * PAGE_BYTES);
            while at < part.end.0 {
                let piece = Piece { start: at, limit: region.end.0, top: arena.top, of_threads: false };
                let (found, searched_bytes) = match region.kind {
                    RegionKind::Brk => (search(chunks, piece), FOREIGN_BYTES_MAX),
                    _ => (chunks.walk(piece).ok().map(|end| (at, end)), PAGE_BYTES),
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
    // Bytes that only align the first piece are counted by the arena, and are in none.
    if bytes <= arena.system_bytes && arena.system_bytes - bytes < CHUNK_ALIGNMENT {
        return Ok(pieces);
    }
    Err(format!("its pieces have {bytes} bytes, and it says {}", arena.system_bytes))
}
