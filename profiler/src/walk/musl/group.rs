//! Groups of slots of one size, and the metas that describe them.

use rustc_hash::FxHashSet;

use super::context::Context;
use crate::address::TargetAddr;
use crate::collect::Span;
use crate::memory::Memory;

/// What sizes are counted in, in bytes; a group begins with one such.
pub(super) const UNIT_BYTES: u64 = 16;
/// Bytes of a page, as mallocng counts them.
pub(super) const PAGE_BYTES: u64 = AREA_BYTES as u64;
/// Metas in a page of them: what is left behind three words.
pub(super) const AREA_METAS: u64 = (PAGE_BYTES - AREA_HEADER_BYTES as u64) / META_BYTES as u64;

const AREA_BYTES: usize = 4096;
const AREA_HEADER_BYTES: usize = 24;
const META_BYTES: usize = 40;
/// The class of what is mapped for a single large block.
const CLASS_OF_LARGE: u8 = 63;
/// No address of a program is behind this one.
const ADDRESS_MAX: u64 = 1 << 47;

/// Sizes of slots by class, in units (`size_classes`, src/malloc/mallocng/malloc.c).
const CLASS_UNITS: [u16; 48] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 18, 20, 25, 31, 36, 42, 50, 63, 72, 84, 102, 127, 146, 170, 204, 255, 292,
    340, 409, 511, 584, 682, 818, 1023, 1169, 1364, 1637, 2047, 2340, 2730, 3276, 4095, 4680, 5460, 6552, 8191,
];

/// What is known of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    /// The group's first address.
    pub(super) memory: TargetAddr,
    /// Slots that are not given out, a bit for each.
    free: u32,
    /// Slots, less one.
    last: u8,
    /// It may be given back: so, unless it has pages of its own, it lies in a slot.
    freeable: bool,
    /// Bytes of a slot.
    stride_bytes: u64,
    /// Pages that were mapped for it; 0 if it lies in other memory.
    page_count: u64,
}

impl Meta {
    /// The meta in these words; `None` when they describe no group that could be.
    fn parse(bytes: &[u8; META_BYTES]) -> Option<Self> {
        let (words, _) = bytes.as_chunks::<8>();
        let word = |nth: usize| u64::from_le_bytes(words[nth]);
        let (memory, masks, shape) = (word(2), word(3), word(4));
        let (available, freed) = ((masks & 0xffff_ffff) as u32, (masks >> 32) as u32);
        let (last, class, page_count) = ((shape & 31) as u8, (shape >> 6 & 63) as u8, shape >> 12);
        let slots_end = u64::from(last) + 1;
        let single = last == 0 && page_count > 0;
        let stride_bytes = match CLASS_UNITS.get(usize::from(class)) {
            None if class != CLASS_OF_LARGE || !single => return None,
            _ if single => page_count.checked_mul(PAGE_BYTES)? - UNIT_BYTES,
            Some(&units) => u64::from(units) * UNIT_BYTES,
            None => return None,
        };
        let meta = Self {
            memory: TargetAddr(memory),
            free: available | freed,
            last,
            freeable: shape & 32 != 0,
            stride_bytes,
            page_count,
        };
        let alignment = if page_count > 0 { PAGE_BYTES } else { UNIT_BYTES };
        let size_bytes = UNIT_BYTES + slots_end * stride_bytes.min(ADDRESS_MAX);
        let fits = memory.is_multiple_of(alignment)
            && memory.checked_add(size_bytes.max(page_count.saturating_mul(PAGE_BYTES)))? <= ADDRESS_MAX
            && (page_count == 0 || size_bytes <= page_count * PAGE_BYTES)
            && u64::from(meta.free) >> slots_end == 0
            && available & freed == 0;
        fits.then_some(meta)
    }

    pub(super) fn slot_count(&self) -> u32 {
        u32::from(self.last) + 1
    }

    /// Whether a slot is not given out.
    pub(super) fn is_free(&self, index: u32) -> bool {
        self.free >> index & 1 == 1
    }

    /// Where its slots begin.
    pub(super) fn storage(&self) -> TargetAddr {
        TargetAddr(self.memory.0 + UNIT_BYTES)
    }

    /// A slot; its last four bytes belong to the header of the next one.
    pub(super) fn slot(&self, index: u32) -> Span {
        let start = self.storage().0 + u64::from(index) * self.stride_bytes;
        TargetAddr(start)..TargetAddr(start + self.stride_bytes)
    }

    /// All that it takes.
    pub(super) fn extent(&self) -> Span {
        let pages = self.page_count * PAGE_BYTES;
        let slots = UNIT_BYTES + u64::from(self.slot_count()) * self.stride_bytes;
        self.memory..TargetAddr(self.memory.0 + pages.max(slots))
    }

    /// Whether it lies in a slot of another group.
    pub(super) fn is_nested(&self) -> bool {
        self.page_count == 0 && self.freeable
    }

    /// Whether it is a single slot with pages of its own, which can be of any size.
    pub(super) fn is_single(&self) -> bool {
        self.last == 0 && self.page_count > 0
    }
}

/// All metas that describe a group which says the same of itself, and the pages that metas are in. A meta without one is unused,
/// or its group is being made or given back.
pub(super) fn metas(memory: &dyn Memory, contexts: &[Context]) -> (Vec<Meta>, Vec<Span>) {
    let mut metas = Vec::new();
    let mut seen = FxHashSet::default();
    let mut page = [0; AREA_BYTES];
    for context in contexts {
        let mut area = context.first_area;
        while area.0.is_multiple_of(PAGE_BYTES) && area.0 < ADDRESS_MAX && seen.insert(area) {
            if memory.read(area, &mut page) < page.len() || page[..8] != context.secret.to_le_bytes() {
                seen.remove(&area);
                break;
            }
            let slots = page[AREA_HEADER_BYTES..].as_chunks::<META_BYTES>().0.iter().enumerate();
            metas.extend(slots.filter_map(|(nth, bytes)| {
                let meta = Meta::parse(bytes).filter(|meta| meta.memory.0 != 0)?;
                let address = area.0 + (AREA_HEADER_BYTES + nth * META_BYTES) as u64;
                (memory.word(meta.memory) == Some(address)).then_some(meta)
            }));
            let [_, next, ..] = *page.as_chunks::<8>().0 else { break };
            area = TargetAddr(u64::from_le_bytes(next));
        }
    }
    let pages = seen.into_iter().map(|area| area..TargetAddr(area.0 + PAGE_BYTES));
    (metas, pages.collect())
}
