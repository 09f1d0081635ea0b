//! Blocks that have a mapping of their own: from 128 KiB on, as a rule.

use super::arena::Circle;
use super::chunk::{FLAGS, HEADER_BYTES, MAPPED};
use super::words::Words;
use super::{PAGE_BYTES, span};
use crate::address::TargetAddr;
use crate::collect::Span;
use crate::memory::{Memory, WORD_BYTES};
use crate::proc::regions::region_of;
use crate::walk::{Scene, Walk, WalkedBlock};

/// Most pages that are left free before an aligned block. It is not always aligned any more: `realloc` moves it.
const ALIGNMENT_PAGES_MAX: u64 = 512;
/// How far from the main arena its parameters are looked for.
const PARAMETERS_WITHIN_BYTES: u64 = 1 << 16;

/// A mapping that is one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapped {
    start: u64,
    end: u64,
    block: WalkedBlock,
}

/// Adds those blocks. What the library says of how many bytes they are proves that they are all, and nothing else. Where it does not,
/// only those count whose mappings, joined by the kernel, fill whole regions.
pub(super) fn walk(scene: &Scene<'_>, circles: &[Circle], walk: &mut Walk) {
    let mut all = Vec::new();
    let mut alone = Vec::new();
    for gap in unknown(scene, &walk.areas) {
        let before = all.len();
        let mut bytes = 0;
        let mut at = gap.start.0;
        while at < gap.end.0 {
            let found = mapped_at(scene.memory, at, gap.end.0);
            at = found.map_or(at.saturating_add(PAGE_BYTES), |mapped| mapped.end);
            bytes += found.map_or(0, |mapped| mapped.end - mapped.start);
            all.extend(found);
        }
        if bytes == gap.end.0 - gap.start.0 {
            alone.extend_from_slice(&all[before..]);
        }
    }
    let bytes = all.iter().map(|mapped| mapped.end - mapped.start).sum();
    let proven = circles.iter().any(|circle| says(scene, circle, bytes, &walk.areas));
    let found = if proven { all } else { alone };
    walk.areas.extend(found.iter().map(|mapped| span(mapped.start, mapped.end)));
    walk.blocks.extend(found.iter().map(|mapped| mapped.block));
}

/// Memory without a file that is not in areas, by rising address.
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
    // Mappings begin at pages.
    gaps.retain_mut(|gap| {
        gap.start.0 = gap.start.0.next_multiple_of(PAGE_BYTES);
        gap.start < gap.end
    });
    gaps
}

/// Whether the library says that so many bytes are mapped for blocks. Its parameters (`malloc_par`) lie near the main arena: the
/// bytes, the most there have been, and where the main arena began.
fn says(scene: &Scene<'_>, circle: &Circle, bytes: u64, areas: &[Span]) -> bool {
    let near = circle.main.address.saturating_sub(PARAMETERS_WITHIN_BYTES) & !(WORD_BYTES - 1);
    let Some(region) = region_of(scene.regions, TargetAddr(circle.main.address)) else { return false };
    let last = region.end.0.min(circle.main.address.saturating_add(PARAMETERS_WITHIN_BYTES));
    let mut words = Words::new(scene.memory);
    let begins = |base: u64| {
        base == 0
            || base.checked_next_multiple_of(16).is_some_and(|start| areas.iter().any(|area| area.start.0 == start))
    };
    (near.max(region.start.0)..last).step_by(WORD_BYTES as usize).any(|at| {
        let mut word = |nth: u64| words.at(at + nth * WORD_BYTES);
        word(0) == Some(bytes)
            && word(1).is_some_and(|most| most >= bytes && most % PAGE_BYTES == 0)
            && word(2).is_some_and(begins)
    })
}

/// The block whose mapping begins at a page. One that was to be aligned begins later than its mapping, whose first words are still
/// those of a block that was not.
fn mapped_at(memory: &dyn Memory, start: u64, limit: u64) -> Option<Mapped> {
    let [first, head] = [start, start.checked_add(WORD_BYTES)?].map(|at| memory.word(TargetAddr(at)));
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
    (first? & !1 == 0 && head? & FLAGS == MAPPED).then_some(())?;
    let below_page = (5..12).map(|log2| 1 << log2);
    let pages = (1..=ALIGNMENT_PAGES_MAX).map(|pages| pages * PAGE_BYTES);
    let aligned = below_page.chain(pages).map(|user| user - HEADER_BYTES).take_while(|skip| *skip < limit - start);
    aligned.into_iter().find_map(chunk).or_else(|| chunk(0))
}
