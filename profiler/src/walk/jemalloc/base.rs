//! Memory that jemalloc keeps its metadata in: blocks of whole huge pages, each with a header that says how much of it is unused.

use crate::address::TargetAddr;
use crate::collect::Span;
use crate::memory::Memory;
use crate::walk::Scene;

/// What blocks of metadata are aligned to, in bytes.
const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// Bytes of a block's header: its size, the next block, and the extent of what is unused.
const HEADER_BYTES: usize = 16 + super::extent::EXTENT_BYTES;
/// Most blocks; each is larger than the one before.
const BASES_MAX: usize = 1 << 16;
/// The flags of an extent that is a base's: of no arena, committed and zeroed, active, no slab (`edata_binit`,
/// include/jemalloc/internal/edata.h).
const UNUSED_FLAGS: u64 = 0xfff | 1 << 13 | 1 << 15;
const FLAGS_MASK: u64 = (1 << 20) - 1;

/// What is in use of all blocks, behind their headers, by rising address.
pub(super) fn find(scene: &Scene<'_>) -> Vec<Span> {
    let mut found: Vec<Span> = Vec::new();
    let data = scene.regions.iter().filter(|region| region.is_anonymous() && region.writable && !region.shared);
    for part in data.flat_map(|region| scene.memory.present(region.start..region.end)) {
        let mut at = part.start.0.next_multiple_of(HUGE_PAGE_BYTES);
        while at < part.end.0 && found.len() < BASES_MAX {
            let base = base(scene.memory, at);
            // The next one is behind it, so that they are apart whatever they say.
            let next = base.as_ref().map_or(at, |base| base.end.0.max(at)).saturating_add(1);
            if base.as_ref().is_some_and(|base| found.last().is_none_or(|last| last.end <= base.start)) {
                found.extend(base);
            }
            at = next.next_multiple_of(HUGE_PAGE_BYTES);
        }
    }
    found
}

fn base(memory: &dyn Memory, address: u64) -> Option<Span> {
    let mut bytes = [0; HEADER_BYTES];
    if memory.read(TargetAddr(address), &mut bytes) < bytes.len() {
        return None;
    }
    let (words, _) = bytes.as_chunks::<8>();
    let word = |nth: usize| u64::from_le_bytes(words[nth]);
    let (size, next, flags, unused, unused_bytes) = (word(0), word(1), word(2), word(3), word(4));
    let used = address + HEADER_BYTES as u64..address.checked_add(size)?;
    let fits = (HUGE_PAGE_BYTES..1 << 47).contains(&size)
        && size.is_multiple_of(HUGE_PAGE_BYTES)
        && next.is_multiple_of(HUGE_PAGE_BYTES)
        && flags & FLAGS_MASK == UNUSED_FLAGS
        && unused.checked_add(unused_bytes)? == used.end
        && used.contains(&(unused.saturating_sub(1)));
    fits.then_some(TargetAddr(used.start)..TargetAddr(unused))
}
