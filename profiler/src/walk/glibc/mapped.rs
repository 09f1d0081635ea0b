//! Blocks with mappings of their own: usually those from 128 KiB on.

use super::arena::{Circle, PAGE_BYTES, span};
use super::chunk::{FLAGS, HEADER_BYTES, MAPPED, Words};
use crate::address::TargetAddr;
use crate::collect::Span;
use crate::linux::proc::maps::region_of;
use crate::memory::{Memory, WORD_BYTES};
use crate::walk::scene::{Scene, Walk, WalkedBlock};

/// Maximum number of free pages before an aligned block. `realloc` can move it to where it is not aligned.
const ALIGNMENT_PAGES_MAX: u64 = 512;
/// How far from the main arena to search its parameters.
const PARAMETERS_WITHIN_BYTES: u64 = 1 << 16;

/// A mapping that is one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapped {
    start: u64,
    end: u64,
    block: WalkedBlock,
}

/// Adds these blocks. Only the library's count of their bytes proves that all were found. Without it, only blocks
/// whose mappings, joined by the kernel, fill whole regions count.
pub(super) fn walk(scene: &Scene<'_>, circles: &[Circle], walk: &mut Walk) {
    let mut all = Vec::new();
    let mut alone = Vec::new();
    for gap in unknown(scene, &walk.areas) {
        let before = all.len();
        let mut bytes = 0;
        let mut at = gap.start.0;
        // Skip reserved address space that was never touched, which can be terabytes: a block's first words are
        // present.
        for part in scene.memory.present(gap.clone()) {
            at = at.max(part.start.0 / PAGE_BYTES * PAGE_BYTES);
            while at < part.end.0 {
                let found = mapped_at(scene.memory, at, gap.end.0);
                at = found.map_or(at.saturating_add(PAGE_BYTES), |mapped| mapped.end);
                bytes += found.map_or(0, |mapped| mapped.end - mapped.start);
                all.extend(found);
            }
        }
        if bytes == gap.end.0 - gap.start.0 {
            alone.extend_from_slice(&all[before..]);
        }
    }
    let proven = circles.iter().any(|circle| confirms(scene, circle, &all, &walk.areas));
    let found = if proven { all } else { alone };
    walk.areas.extend(found.iter().map(|mapped| span(mapped.start, mapped.end)));
    walk.blocks.extend(found.iter().map(|mapped| mapped.block));
}

/// Returns anonymous memory outside of areas by ascending address.
fn unknown(scene: &Scene<'_>, areas: &[Span]) -> Vec<Span> {
    let mut gaps = Vec::new();
    for region in scene.regions.iter().filter(|region| region.is_anonymous() && region.writable && !region.shared) {
        let mut start = region.start;
        let behind = areas.partition_point(|area| area.end <= region.start);
        for area in areas[behind..].iter().take_while(|area| area.start < region.end) {
            gaps.push(start..area.start);
            start = area.end;
        }
        gaps.push(start..region.end);
    }
    // Mappings start at page boundaries.
    gaps.retain_mut(|gap| {
        gap.start.0 = gap.start.0.next_multiple_of(PAGE_BYTES);
        gap.start < gap.end
    });
    gaps
}

/// Returns whether the library's parameters (`malloc_par`, near the main arena) confirm these mappings: they contain
/// the start of the main arena, before it the maximum and current bytes of mappings, and before these their numbers.
/// One match is enough: in 2.43 the bytes are off by 16 whenever a block's mapping was resized.
fn confirms(scene: &Scene<'_>, circle: &Circle, found: &[Mapped], areas: &[Span]) -> bool {
    let bytes = found.iter().map(|mapped| mapped.end - mapped.start).sum::<u64>();
    let count = found.len() as u64;
    let address = circle.main.address;
    let Some(region) = region_of(scene.regions, TargetAddr(address)) else { return false };
    let first = (address.saturating_sub(PARAMETERS_WITHIN_BYTES) & !(WORD_BYTES - 1)).max(region.start.0);
    let words = region.end.0.min(address.saturating_add(PARAMETERS_WITHIN_BYTES)).saturating_sub(first) / WORD_BYTES;
    let mut reader = Words::new(scene.memory);
    let all: Vec<u64> = (0..words).map_while(|nth| reader.at(first + nth * WORD_BYTES)).collect();
    all.windows(6).any(|window| {
        let &[earlier, numbers, later, now, most, base] = window else { return false };
        let begins =
            base.checked_next_multiple_of(16).is_some_and(|start| areas.iter().any(|area| area.start.0 == start));
        let (low, high) = (|word: u64| word & 0xffff_ffff, |word: u64| word >> 32);
        // Since 2.35, and before.
        let counts = [(high(earlier), high(numbers)), (low(numbers), low(later))];
        let counted = counts.iter().any(|&(now, most)| now == count && most >= count);
        (begins && counted) || (now == bytes && most >= bytes && (begins || base == 0))
    })
}

/// Returns the block whose mapping starts at a page. An aligned block starts later than its mapping, whose first
/// words are still those of the unaligned block.
fn mapped_at(memory: &dyn Memory, start: u64, limit: u64) -> Option<Mapped> {
    let [first, head] = [start, start.checked_add(WORD_BYTES)?].map(|at| memory.word(TargetAddr(at)));
    let chunk = |skip: u64| -> Option<Mapped> {
        let at = start.checked_add(skip)?;
        let skipped = memory.word(TargetAddr(at))?;
        let head = memory.word(TargetAddr(at.checked_add(WORD_BYTES)?))?;
        let size = head & !FLAGS;
        // Since 2.43 the lowest bit marks huge pages.
        if skipped & !1 != skip || head & FLAGS != MAPPED || size < HEADER_BYTES {
            return None;
        }
        let behind = at.checked_add(size)?;
        // Since 2.43 the size is that of a chunk with a neighbor, which is missing here.
        let end = if behind % PAGE_BYTES == 0 { behind } else { behind.checked_add(HEADER_BYTES)? };
        let usable_end = if behind % PAGE_BYTES == 0 { behind } else { behind + WORD_BYTES };
        let fits = end % PAGE_BYTES == 0 && end <= limit && usable_end > at + HEADER_BYTES;
        let block = WalkedBlock { start: TargetAddr(at + HEADER_BYTES), size_bytes: usable_end - at - HEADER_BYTES };
        fits.then_some(Mapped { start, end, block })
    };
    (first? & !1 == 0 && head? & FLAGS == MAPPED).then_some(())?;
    let below_page = (5..12).map(|log2| 1 << log2);
    let pages = (1..=ALIGNMENT_PAGES_MAX).map(|pages| pages * PAGE_BYTES);
    let aligned = below_page.chain(pages).map(|user| user - HEADER_BYTES).take_while(|skip| *skip < limit - start);
    aligned.into_iter().find_map(chunk).or_else(|| chunk(0))
}
