//! Contexts of heaps, groups of slots of one size, the metas that describe them, and the contents of slots.

use rustc_hash::FxHashSet;

use crate::address::TargetAddr;
use crate::collect::Span;
use crate::linux::proc::maps::{Region, RegionKind};
use crate::memory::{Memory, WORD_BYTES};
use crate::walk::scene::{Scene, WalkedBlock};

/// Unit of sizes; also the size of a group's header.
pub(super) const UNIT_BYTES: u64 = 16;
pub(super) const PAGE_BYTES: u64 = AREA_BYTES as u64;
/// Number of metas in a page after a header of three words.
pub(super) const AREA_METAS: u64 = (PAGE_BYTES - AREA_HEADER_BYTES as u64) / META_BYTES as u64;

const AREA_BYTES: usize = 4096;
const AREA_HEADER_BYTES: usize = 24;
const META_BYTES: usize = 40;
/// The class of a mapping for a single large block.
const CLASS_OF_LARGE: u8 = 63;
/// End of the user address space.
const ADDRESS_MAX: u64 = 1 << 47;

/// Slot sizes by class, in units (`size_classes`, src/malloc/mallocng/malloc.c).
const CLASS_UNITS: [u16; 48] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 18, 20, 25, 31, 36, 42, 50, 63, 72, 84, 102, 127, 146, 170, 204, 255, 292,
    340, 409, 511, 584, 682, 818, 1023, 1169, 1364, 1637, 2047, 2340, 2730, 3276, 4095, 4680, 5460, 6552, 8191,
];

/// Description of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    /// The group's first address.
    pub(super) memory: TargetAddr,
    /// Slots that are not allocated, one bit each.
    free: u32,
    /// Number of slots, less one.
    last: u8,
    /// It can be freed: so, unless it has pages of its own, it lies in a slot.
    freeable: bool,
    /// Size of a slot.
    stride_bytes: u64,
    /// Number of pages mapped for it; 0 if it lies in other memory.
    page_count: u64,
}

impl Meta {
    /// Parses a meta; `None` if it is invalid.
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

    pub(super) fn is_free(&self, index: u32) -> bool {
        self.free >> index & 1 == 1
    }

    /// Returns the start of its slots.
    pub(super) fn storage(&self) -> TargetAddr {
        TargetAddr(self.memory.0 + UNIT_BYTES)
    }

    /// Returns a slot; its last four bytes belong to the header of the next one.
    pub(super) fn slot(&self, index: u32) -> Span {
        let start = self.storage().0 + u64::from(index) * self.stride_bytes;
        TargetAddr(start)..TargetAddr(start + self.stride_bytes)
    }

    /// Returns its whole range.
    pub(super) fn extent(&self) -> Span {
        let pages = self.page_count * PAGE_BYTES;
        let slots = UNIT_BYTES + u64::from(self.slot_count()) * self.stride_bytes;
        self.memory..TargetAddr(self.memory.0 + pages.max(slots))
    }

    /// Returns whether it lies in a slot of another group.
    pub(super) fn is_nested(&self) -> bool {
        self.page_count == 0 && self.freeable
    }

    /// Returns whether it is a single slot with pages of its own, which can have any size.
    pub(super) fn is_single(&self) -> bool {
        self.last == 0 && self.page_count > 0
    }
}

/// Returns all metas whose groups refer back to them, and the pages of metas. Other metas are unused, or their groups
/// are being created or freed.
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

/// Maximum number of contexts of a process; there is one for each copy of musl.
const CONTEXTS_MAX: usize = 4;
/// Maximum number of bytes of a mapping to search: the data of the largest programs.
const SEARCHED_BYTES_MAX: u64 = 256 << 20;
/// Bytes to read at a time.
const CHUNK_BYTES: usize = 1 << 16;

// Offsets of fields (src/malloc/mallocng/meta.h, with the constant page size of x86-64).
const INIT_DONE: usize = 8;
const FREE_METAS: usize = 16;
const UNUSED_META: usize = 24;
const UNUSED_META_COUNT: usize = 32;
const FIRST_AREA: usize = 56;
const LAST_AREA: usize = 64;
const ACTIVE: usize = 80;
const ACTIVE_COUNT: usize = 48;
const CONTEXT_BYTES: usize = ACTIVE + 8 * ACTIVE_COUNT;

/// A heap's context: a variable of the program or of `libc.so`, usually without a symbol. It is identified by its
/// secret, which is also in every page of metas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Context {
    pub(super) secret: u64,
    /// The first page of metas.
    pub(super) first_area: TargetAddr,
}

/// Finds all contexts in the data of the program and its libraries.
pub(super) fn contexts(scene: &Scene<'_>) -> Vec<Context> {
    let mut found = Vec::new();
    let mut before: Option<&Region> = None;
    for region in scene.regions {
        if found.len() < CONTEXTS_MAX && is_data(region, before) {
            search(scene.memory, region, &mut found);
        }
        before = Some(region);
    }
    found
}

/// Returns whether a mapping can be the data of a module: file-backed, or anonymous and following a file, for
/// zero-initialized variables.
fn is_data(region: &Region, before: Option<&Region>) -> bool {
    if !region.readable || !region.writable || region.shared {
        return false;
    }
    let is_file = |region: &Region| matches!(region.kind, RegionKind::File { .. });
    let follows_file = before.is_some_and(|before| is_file(before) && before.end == region.start);
    is_file(region) || (region.is_anonymous() && follows_file)
}

fn search(memory: &dyn Memory, region: &Region, found: &mut Vec<Context>) {
    let end = region.end.0.min(region.start.0.saturating_add(SEARCHED_BYTES_MAX));
    let mut buffer = vec![0; CHUNK_BYTES];
    for part in memory.present(region.start..TargetAddr(end)) {
        let mut at = part.start.0.next_multiple_of(WORD_BYTES);
        while at < part.end.0 {
            let length = CHUNK_BYTES.min(usize::try_from(part.end.0 - at).unwrap_or(CHUNK_BYTES));
            let read = memory.read(TargetAddr(at), &mut buffer[..length]);
            let (words, _) = buffer[..read].as_chunks::<8>();
            for (nth, pair) in words.windows(2).enumerate() {
                let initialised = pair[1][..4] == 1_u32.to_le_bytes() && pair[0] != [0; 8];
                let context = initialised.then(|| context(memory, TargetAddr(at + 8 * nth as u64))).flatten();
                if let Some(context) = context.filter(|context| !found.contains(context)) {
                    found.push(context);
                }
                if found.len() == CONTEXTS_MAX {
                    return;
                }
            }
            if length < CHUNK_BYTES || words.len() < 2 {
                break;
            }
            // Read the last word again: it may be the start of a context.
            at += (words.len() as u64 - 1) * WORD_BYTES;
        }
    }
}

/// Returns the context at an address if all its fields are valid.
fn context(memory: &dyn Memory, address: TargetAddr) -> Option<Context> {
    let mut bytes = [0; CONTEXT_BYTES];
    if memory.read(address, &mut bytes) < bytes.len() {
        return None;
    }
    let (words, _) = bytes.as_chunks::<8>();
    let word = |offset: usize| u64::from_le_bytes(words[offset / 8]);
    let secret = word(0);
    let of_heap = |meta: u64| memory.word(TargetAddr(meta / PAGE_BYTES * PAGE_BYTES)) == Some(secret);
    let is_page = |address: u64| address != 0 && address.is_multiple_of(PAGE_BYTES);
    let fits = word(INIT_DONE) & 0xffff_ffff == 1
        && is_page(word(FIRST_AREA))
        && is_page(word(LAST_AREA))
        && of_heap(word(FIRST_AREA))
        && word(UNUSED_META_COUNT) <= AREA_METAS
        && of_heap(word(UNUSED_META).saturating_sub(1));
    let metas = [FREE_METAS].into_iter().chain((0..ACTIVE_COUNT).map(|class| ACTIVE + 8 * class));
    let all_of_heap = || metas.map(word).all(|meta| meta == 0 || of_heap(meta));
    (fits && all_of_heap()).then(|| Context { secret, first_area: TargetAddr(word(FIRST_AREA)) })
}

/// Bytes at the end of a slot that belong to the next header.
const HEADER_BYTES: u64 = 4;
/// Distance in units between offsets with the same low 16 bits.
const FAR_UNITS: u64 = 1 << 16;

/// The number of reserved bytes exceeds 4, and is in the slot's last four bytes.
const RESERVED_FAR: u8 = 5;
/// The slot contains a group.
const GROUP: u8 = 6;
/// At a slot's start: the block starts further on. With all other bits set, at a block: it is being freed.
const ELSEWHERE: u8 = 7;
const FREED: u8 = 0xff;

/// Contents of a slot that is not free.
///
/// Each block is preceded by a header of four bytes: one that is 0 unless the offset exceeds 16 bits, one with the
/// slot's index and, in its high three bits, the number of reserved bytes, and the units from the first slot to the
/// block. Blocks move within their slots; the header at the slot's start then has the distance in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// Being freed, or not allocated yet.
    Changing,
    Block(WalkedBlock),
    /// A group of smaller slots.
    Group,
    /// Unknown.
    Odd,
}

/// The header before an address, with the preceding four bytes.
#[derive(Clone, Copy)]
struct Header {
    far_offset: u32,
    is_far: bool,
    info: u8,
    offset: u16,
}

impl Header {
    fn read(memory: &dyn Memory, address: u64) -> Option<Self> {
        let [a, b, c, d, far, info, low, high] = memory.word(TargetAddr(address.checked_sub(8)?))?.to_le_bytes();
        let far_offset = u32::from_le_bytes([a, b, c, d]);
        Some(Self { far_offset, is_far: far != 0, info, offset: u16::from_le_bytes([low, high]) })
    }

    fn kind(self) -> u8 {
        self.info >> 5
    }

    fn index(self) -> u32 {
        u32::from(self.info & 31)
    }

    /// Returns whether nothing was written yet. For a group's first slot that is a valid header.
    fn is_unwritten(self) -> bool {
        self.info == 0 && self.offset == 0
    }

    /// Returns whether it is the header of a block at this distance from the first slot. The byte that selects the
    /// format follows the previous slot, and may be overrun.
    fn matches(self, index: u32, units: u64) -> bool {
        let far = self.is_far && self.offset == 0 && units > u64::from(u16::MAX) && u64::from(self.far_offset) == units;
        self.index() == index && (far || u64::from(self.offset) == units)
    }
}

/// Reads a slot that its group's meta marks as allocated.
pub(super) fn read_slot(memory: &dyn Memory, meta: &Meta, index: u32) -> Slot {
    let start = meta.slot(index).start.0;
    let Some(header) = Header::read(memory, start) else { return Slot::Changing };
    if header.info == FREED || (header.is_unwritten() && index > 0) {
        return Slot::Changing;
    }
    if header.kind() == ELSEWHERE {
        return displaced(memory, meta, index, u64::from(header.offset));
    }
    match header.matches(index, (start - meta.storage().0) / UNIT_BYTES) {
        true if header.kind() == GROUP => Slot::Group,
        true => block(memory, meta, index, start, header),
        false => Slot::Odd,
    }
}

/// Reads a block at a distance from the slot's start; for large ones only the low 16 bits are known.
fn displaced(memory: &dyn Memory, meta: &Meta, index: u32, units: u64) -> Slot {
    let slot = meta.slot(index);
    let size_units = (slot.end.0 - slot.start.0) / UNIT_BYTES;
    let first_units = (slot.start.0 - meta.storage().0) / UNIT_BYTES;
    let at = |units: u64| {
        let address = slot.start.0 + units * UNIT_BYTES;
        Header::read(memory, address).map(|header| (address, header, header.matches(index, first_units + units)))
    };
    if meta.is_single() {
        // Data from before the block was moved for alignment may be left at the near offset. Most of a block that
        // reserves terabytes is untouched, and its header is where it was.
        let far = memory.present(slot.clone()).into_iter().flat_map(|part| {
            let within = |address: TargetAddr| (address.0 - slot.start.0) / UNIT_BYTES;
            let first = within(part.start).saturating_sub(units).div_ceil(FAR_UNITS).max(1);
            (first..)
                .map(move |nth| units + nth * FAR_UNITS)
                .take_while(move |&units| units < size_units.min(within(part.end).saturating_add(1)))
        });
        let found = far.filter_map(at).find(|&(_, header, matches)| matches && header.is_far);
        if let Some((address, header, _)) = found {
            return block(memory, meta, index, address, header);
        }
    }
    if units == 0 || units >= size_units {
        return Slot::Odd;
    }
    match at(units) {
        None => Slot::Changing,
        Some((_, header, _)) if header.is_unwritten() || header.info == FREED => Slot::Changing,
        Some((address, header, true)) => block(memory, meta, index, address, header),
        Some(_) => Slot::Odd,
    }
}

/// Reads the block at an address whose header is valid. If the reserved size is overrun, the maximum size is assumed.
fn block(memory: &dyn Memory, meta: &Meta, index: u32, address: u64, header: Header) -> Slot {
    let end = meta.slot(index).end.0 - HEADER_BYTES;
    let Some(most) = end.checked_sub(address) else { return Slot::Odd };
    let reserved = match header.kind() {
        RESERVED_FAR => {
            let last = memory.word(TargetAddr(end - HEADER_BYTES)).map(|word| word & 0xffff_ffff);
            last.filter(|reserved| (u64::from(RESERVED_FAR)..=most).contains(reserved)).unwrap_or(0)
        }
        kind if kind < RESERVED_FAR => u64::from(kind),
        _ => return Slot::Odd,
    };
    Slot::Block(WalkedBlock { start: TargetAddr(address), size_bytes: most.saturating_sub(reserved) })
}
