//! The memory that arenas are made of, walked piece by piece.

use super::arena::Arena;
use super::chunk::{Chunks, Piece};
use super::{heap, span};
use crate::address::TargetAddr;
use crate::proc::regions::region_of;
use crate::walk::{Scene, Walk};

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

/// Walks the main arena: one piece that `brk` has made.
pub(super) fn walk_main(scene: &Scene<'_>, arena: &Arena, chunks: &mut Chunks<'_>, walk: &mut Walk) {
    if !arena.is_used() {
        return;
    }
    match contiguous(scene, arena, chunks) {
        Ok((start, end)) => walk.areas.push(span(start, end)),
        Err(why) => walk.gaps.push(format!("the main arena at {:#x}: {why}", arena.address)),
    }
}

/// From the first chunk to the end of the last, where the arena has grown without a hole.
fn contiguous(scene: &Scene<'_>, arena: &Arena, chunks: &mut Chunks<'_>) -> Result<(u64, u64), String> {
    let missing = || format!("its last chunk {:#x} is not there", arena.top);
    let size = scene.memory.word(TargetAddr(arena.top.wrapping_add(8))).ok_or_else(missing)? & !super::chunk::FLAGS;
    let region = region_of(scene.regions, TargetAddr(arena.top)).ok_or_else(missing)?;
    let end = arena.top.checked_add(size).filter(|end| *end <= region.end.0).ok_or_else(missing)?;
    let start = end.checked_sub(arena.system_bytes).map(|start| start.next_multiple_of(16));
    let start = start.filter(|start| *start >= region.start.0);
    let start = start.ok_or_else(|| format!("it says that it has {} bytes, more than are before its end", arena.system_bytes))?;
    let piece = Piece { start, limit: end, top: arena.top, of_threads: false };
    match chunks.walk(piece) {
        Ok(reached) if reached == end => Ok((start, end)),
        Ok(reached) => Err(format!("it ends at {reached:#x}, before its last chunk")),
        Err(broken) => Err(broken.to_string()),
    }
}
