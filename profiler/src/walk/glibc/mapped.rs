//! Blocks that have a mapping of their own: from 128 KiB on, as a rule.

use super::chunk::{FLAGS, HEADER_BYTES, MAPPED};
use super::span;
use crate::address::TargetAddr;
use crate::memory::{Memory, WORD_BYTES};
use crate::walk::{Scene, Walk, WalkedBlock};

const PAGE_BYTES: u64 = 4096;

/// A mapping that is one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapped {
    start: u64,
    end: u64,
    block: WalkedBlock,
}

/// Adds those blocks whose mappings fill whole regions: neighbours may have been joined by the kernel, but nothing else may lie there.
pub(super) fn walk(scene: &Scene<'_>, walk: &mut Walk) {
    let private = scene.regions.iter().filter(|region| region.is_anonymous() && region.writable && !region.shared);
    for region in private {
        let mut found = Vec::new();
        let mut at = region.start.0;
        while let Some(mapped) = mapped_at(scene.memory, at, region.end.0) {
            at = mapped.end;
            found.push(mapped);
        }
        if at == region.end.0 {
            walk.areas.extend(found.iter().map(|mapped| span(mapped.start, mapped.end)));
            walk.blocks.extend(found.iter().map(|mapped| mapped.block));
        }
    }
}

/// The block whose mapping begins at a page. One that was to be aligned begins later than its mapping, whose first words are still
/// those of a block that was not.
fn mapped_at(memory: &dyn Memory, start: u64, limit: u64) -> Option<Mapped> {
    let first = memory.word(TargetAddr(start))?;
    let chunk = |skip: u64| -> Option<Mapped> {
        let at = start.checked_add(skip)?;
        let skipped = memory.word(TargetAddr(at))?;
        let head = memory.word(TargetAddr(at.checked_add(WORD_BYTES)?))?;
        let size = head & !FLAGS;
        // Since 2.43 the lowest bit says that pages are huge.
        if skipped & !1 != skip || head & FLAGS != MAPPED || size < HEADER_BYTES {
            return None;
        }
        let behind = at.checked_add(size)?;
        // Since 2.43 the size is that of a chunk with a neighbour, which here is not there.
        let end = if behind % PAGE_BYTES == 0 { behind } else { behind.checked_add(HEADER_BYTES)? };
        let usable_end = if behind % PAGE_BYTES == 0 { behind } else { behind + WORD_BYTES };
        let fits = end % PAGE_BYTES == 0 && end <= limit && usable_end > at + HEADER_BYTES;
        let block = WalkedBlock { start: TargetAddr(at + HEADER_BYTES), size_bytes: usable_end - at - HEADER_BYTES };
        fits.then_some(Mapped { start, end, block })
    };
    let aligned = (5..40).map(|log2| (start + HEADER_BYTES).next_multiple_of(1 << log2) - HEADER_BYTES - start);
    (first & !1 == 0).then_some(())?;
    aligned.filter(|skip| *skip != 0).find_map(chunk).or_else(|| chunk(0))
}
