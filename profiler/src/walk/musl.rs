//! Walks the heap of musl since 1.2.1 (mallocng). Older versions keep no list of allocated blocks.
//!
//! A context leads to pages of metas. A meta describes a group, which has its own mapping, lies in a slot of a larger group, or
//! was given by the loader. The meta records which of up to 32 slots are free, out of reach of overruns. A slot is free, a block,
//! or a group; the offset of a block in its slot, and its size, are in the slot.

use heapbpf_base::address::TargetAddr;
use heapbpf_base::memory::{Memory, Span, WORD_BYTES, joined, without};
use heapbpf_base::shown;
use heapbpf_linux::proc::maps::{Region, RegionKind};
use profiler_common::limits::PAGE_BYTES;
use rustc_hash::{FxHashMap, FxHashSet};

use super::scene::{ADDRESS_MAX, Scene, Walk, WalkedBlock, array, covered, parts, span};

pub(super) const HEAP: &str = "musl";

/// Walks the heap. The result is a gap if musl is mapped and its heap cannot be found.
pub(super) fn walk(scene: &Scene<'_>) -> Option<Walk> {
    let contexts = contexts(scene);
    if contexts.is_empty() {
        let gap = "no heap of musl was found: the program has not allocated memory yet, or its musl is older than 1.2.1 and cannot be walked".to_owned();
        let mapped = scene.regions().iter().any(is_musl);
        return mapped.then(|| Walk { heap: HEAP, gaps: vec![gap], ..Walk::default() });
    }
    let (metas, pages) = metas(scene.memory, &contexts);
    let mut heap = Heap::new(scene, metas);
    heap.areas.extend(pages);
    heap.walk();
    Some(heap.finish())
}

/// Groups that have pages of their own, which contain all others, and the pages of metas. The contexts stay where they are, and
/// are found if they are not known. `None` if there is no context.
pub(super) fn extents(scene: &Scene<'_>, known: &mut Vec<Context>) -> Option<Vec<Span>> {
    let is_there = |context: &Context| scene.memory.word(context.first_area) == Some(context.secret);
    if known.is_empty() || !known.iter().all(is_there) {
        *known = contexts(scene);
    }
    if known.is_empty() {
        return None;
    }
    // Unused metas are zero. Reading each group would be reading most pages of a heap.
    let (metas, mut spans) = metas_where(scene.memory, known, |meta, _| meta.page_count > 0);
    spans.extend(metas.iter().map(Meta::extent).filter(|extent| covered(scene.regions(), extent)));
    Some(spans)
}

fn is_musl(region: &Region) -> bool {
    let RegionKind::File { path } = &region.kind else { return false };
    let name = shown::os_text(path.file_name().unwrap_or_default());
    let loader = name.starts_with("ld-musl-") || name.starts_with("libc.musl-");
    loader || (name == "libc.so" && shown::os_text(path).contains("musl"))
}

struct Heap<'a> {
    scene: &'a Scene<'a>,
    rest: Vec<Meta>,
    /// Groups in slots of other groups that have not been walked, by first address.
    nested: FxHashMap<TargetAddr, Meta>,
    blocks: Vec<WalkedBlock>,
    areas: Vec<Span>,
    holes: Vec<Span>,
    inconsistent_groups: usize,
    /// Whether a slot was being allocated or freed.
    busy: bool,
}

impl<'a> Heap<'a> {
    fn new(scene: &'a Scene<'a>, metas: Vec<Meta>) -> Self {
        let (nested, mut outer): (Vec<Meta>, Vec<Meta>) = metas.into_iter().partition(Meta::is_nested);
        outer.sort_by_key(|meta| meta.memory);
        let given = outer.len();
        let mut end = TargetAddr(0);
        outer.retain(|meta| {
            let follows = meta.memory >= end && covered(scene.regions(), &meta.extent());
            end = if follows { meta.extent().end } else { end };
            follows
        });
        Self {
            scene,
            inconsistent_groups: given - outer.len(),
            areas: outer.iter().map(Meta::extent).collect(),
            rest: outer,
            nested: nested.into_iter().map(|meta| (meta.memory, meta)).collect(),
            blocks: Vec::new(),
            holes: Vec::new(),
            busy: false,
        }
    }

    /// Walks each group once: nested groups are removed from `nested` when they are found.
    fn walk(&mut self) {
        while let Some(meta) = self.rest.pop() {
            for index in 0..meta.slot_count() {
                if meta.is_free(index) {
                    continue;
                }
                match read_slot(self.scene.memory, &meta, index) {
                    Slot::Changing => self.busy = true,
                    Slot::Block(block) => self.blocks.push(block),
                    Slot::Group => self.enter(&meta.slot(index)),
                    Slot::Odd => self.holes.push(meta.slot(index)),
                }
            }
        }
    }

    /// Enters the group in a slot. While a group is being created or removed, there is none in the slot.
    fn enter(&mut self, slot: &Span) {
        let Some(inner) = self.nested.remove(&slot.start) else { return };
        if inner.extent().end <= slot.end {
            self.rest.push(inner);
        } else {
            self.inconsistent_groups += 1;
            self.holes.push(slot.clone());
        }
    }

    fn finish(mut self) -> Walk {
        self.blocks.sort_unstable_by_key(|block| block.start);
        let inconsistent_groups = self.inconsistent_groups + self.nested.len();
        let mut gaps = Vec::new();
        if inconsistent_groups > 0 {
            gaps.push(format!("{inconsistent_groups} groups of slots are inconsistent: being created, or overwritten"));
        }
        if !self.holes.is_empty() {
            gaps.push(format!("{} slots have unknown contents: their headers are overwritten", self.holes.len()));
        }
        let areas = without(joined(self.areas), &joined(self.holes));
        let busy = self.busy || inconsistent_groups > 0;
        Walk { heap: HEAP, blocks: self.blocks, areas, gaps, has_exact_sizes: true, busy }
    }
}

/// Unit of sizes; also the size of a group's header.
const UNIT_BYTES: u64 = 16;
/// Number of words of a page of metas, of its header, and of a meta.
const AREA_WORDS: usize = 512;
const AREA_HEADER_WORDS: usize = 3;
const META_WORDS: usize = 5;
const AREA_METAS: u64 = ((AREA_WORDS - AREA_HEADER_WORDS) / META_WORDS) as u64;
/// Size class of a mapping for a single large block.
const CLASS_OF_LARGE: u8 = 63;

/// Sizes of slots by class, in units (`size_classes`, src/malloc/mallocng/malloc.c).
const CLASS_UNITS: [u16; 48] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 18, 20, 25, 31, 36, 42, 50, 63, 72, 84, 102, 127, 146, 170, 204, 255, 292,
    340, 409, 511, 584, 682, 818, 1023, 1169, 1364, 1637, 2047, 2340, 2730, 3276, 4095, 4680, 5460, 6552, 8191,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Meta {
    memory: TargetAddr,
    /// One bit for each slot, set if the slot is not allocated.
    free: u32,
    /// Number of slots, less one.
    last: u8,
    /// Whether the group can be freed: then, unless it has pages of its own, it lies in a slot.
    freeable: bool,
    stride_bytes: u64,
    /// Number of pages mapped for the group; 0 if it lies in other memory.
    page_count: u64,
}

impl Meta {
    fn parse(&[_, _, memory, masks, shape]: &[u64; META_WORDS]) -> Option<Self> {
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

    fn slot_count(&self) -> u32 {
        u32::from(self.last) + 1
    }

    fn is_free(&self, index: u32) -> bool {
        self.free >> index & 1 == 1
    }

    fn storage(&self) -> TargetAddr {
        TargetAddr(self.memory.0 + UNIT_BYTES)
    }

    /// Addresses of a slot. The slot's last four bytes belong to the header of the next one.
    fn slot(&self, index: u32) -> Span {
        let start = self.storage().0 + u64::from(index) * self.stride_bytes;
        span(start, start + self.stride_bytes)
    }

    fn extent(&self) -> Span {
        let pages = self.page_count * PAGE_BYTES;
        let slots = UNIT_BYTES + u64::from(self.slot_count()) * self.stride_bytes;
        self.memory..TargetAddr(self.memory.0 + pages.max(slots))
    }

    fn is_nested(&self) -> bool {
        self.page_count == 0 && self.freeable
    }

    /// Whether the group is a single slot with pages of its own, which can have any size.
    fn is_single(&self) -> bool {
        self.last == 0 && self.page_count > 0
    }
}

/// Metas whose groups refer back to them, and the pages of metas. Other metas are unused, or their groups are changing.
fn metas(memory: &dyn Memory, contexts: &[Context]) -> (Vec<Meta>, Vec<Span>) {
    metas_where(memory, contexts, |meta, address| memory.word(meta.memory) == Some(address))
}

fn metas_where(
    memory: &dyn Memory,
    contexts: &[Context],
    is_wanted: impl Fn(&Meta, u64) -> bool,
) -> (Vec<Meta>, Vec<Span>) {
    let mut metas = Vec::new();
    let mut seen = FxHashSet::default();
    for context in contexts {
        let mut area = context.first_area.0;
        while area.is_multiple_of(PAGE_BYTES) && area < ADDRESS_MAX && !seen.contains(&area) {
            let Some(page) = array::<AREA_WORDS>(memory, area).filter(|page| page[0] == context.secret) else { break };
            seen.insert(area);
            let slots = page[AREA_HEADER_WORDS..].as_chunks().0.iter().enumerate();
            metas.extend(slots.filter_map(|(nth, words)| {
                let address = area + WORD_BYTES * (AREA_HEADER_WORDS + nth * META_WORDS) as u64;
                Meta::parse(words).filter(|meta| meta.memory.0 != 0 && is_wanted(meta, address))
            }));
            area = page[1];
        }
    }
    (metas, seen.into_iter().map(|area| span(area, area + PAGE_BYTES)).collect())
}

/// Maximum number of contexts: one for each copy of musl.
const CONTEXTS_MAX: usize = 4;
/// Maximum number of bytes of a mapping that are searched: the data of the largest programs.
const SEARCHED_BYTES_MAX: u64 = 256 << 20;
// Fields as numbers of words (src/malloc/mallocng/meta.h, with the constant page size of x86-64).
const INIT_DONE: usize = 1;
const FREE_METAS: usize = 2;
const UNUSED_META: usize = 3;
const UNUSED_META_COUNT: usize = 4;
const FIRST_AREA: usize = 7;
const LAST_AREA: usize = 8;
const ACTIVE: usize = 10;
const ACTIVE_COUNT: usize = 48;
const CONTEXT_WORDS: usize = ACTIVE + ACTIVE_COUNT;

/// A context: a variable of the program or of `libc.so`, usually without a symbol, identified by its secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Context {
    secret: u64,
    first_area: TargetAddr,
}

fn contexts(scene: &Scene<'_>) -> Vec<Context> {
    let mut found: Vec<Context> = Vec::new();
    for region in scene.module_data() {
        let end = region.end.0.min(region.start.0.saturating_add(SEARCHED_BYTES_MAX));
        for (start, words) in parts(scene.memory, region.start..TargetAddr(end)) {
            for (address, pair) in (start..).step_by(size_of::<u64>()).zip(words.windows(2)) {
                let is_initialized = pair[0] != 0 && pair[1] & 0xffff_ffff == 1;
                if is_initialized
                    && let Some(context) = context(scene.memory, address)
                    && !found.contains(&context)
                {
                    found.push(context);
                }
                if found.len() == CONTEXTS_MAX {
                    return found;
                }
            }
        }
    }
    found
}

fn context(memory: &dyn Memory, address: u64) -> Option<Context> {
    let words = array::<CONTEXT_WORDS>(memory, address)?;
    let secret = words[0];
    let of_heap = |meta: u64| memory.word(TargetAddr(meta / PAGE_BYTES * PAGE_BYTES)) == Some(secret);
    let is_page = |address: u64| address != 0 && address.is_multiple_of(PAGE_BYTES);
    let fits = words[INIT_DONE] & 0xffff_ffff == 1
        && is_page(words[FIRST_AREA])
        && is_page(words[LAST_AREA])
        && of_heap(words[FIRST_AREA])
        && words[UNUSED_META_COUNT] <= AREA_METAS
        && of_heap(words[UNUSED_META].saturating_sub(1));
    let mut metas = [words[FREE_METAS]].into_iter().chain(words[ACTIVE..].iter().copied());
    let all_of_heap = fits && metas.all(|meta| meta == 0 || of_heap(meta));
    all_of_heap.then_some(Context { secret, first_area: TargetAddr(words[FIRST_AREA]) })
}

/// Bytes at the end of a slot that belong to the next header.
const HEADER_BYTES: u64 = 4;
/// Distance in units between offsets with the same low 16 bits.
const FAR_UNITS: u64 = 1 << 16;
/// Kind of a header whose number of reserved bytes exceeds 4, and is in the slot's last four bytes.
const RESERVED_FAR: u8 = 5;
const GROUP: u8 = 6;
/// Kind of a header at a slot's start if the block starts further on. With all other bits set, at a block: the block is being
/// freed.
const ELSEWHERE: u8 = 7;
const FREED: u8 = 0xff;

/// Contents of a slot that is not free. Each block is preceded by a header of four bytes: one that is 0 unless the
/// offset exceeds 16 bits, one with the slot's index and, in its high three bits, the number of reserved bytes, and the
/// units from the first slot to the block. Blocks move within their slots; the header at the slot's start then has the
/// distance in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    /// The block is being freed, or not allocated yet.
    Changing,
    Block(WalkedBlock),
    Group,
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

    /// Whether no header was written yet. For a group's first slot that is a valid header.
    fn is_unwritten(self) -> bool {
        self.info == 0 && self.offset == 0
    }

    /// Whether the header is that of this slot and distance. The byte that selects the format follows the previous slot, and may
    /// be overrun.
    fn matches(self, index: u32, units: u64) -> bool {
        let far = self.is_far && self.offset == 0 && units > u64::from(u16::MAX) && u64::from(self.far_offset) == units;
        self.index() == index && (far || u64::from(self.offset) == units)
    }
}

fn read_slot(memory: &dyn Memory, meta: &Meta, index: u32) -> Slot {
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

/// Finds a block that does not start at its slot's start. For large blocks only the low 16 bits of the distance are known.
fn displaced(memory: &dyn Memory, meta: &Meta, index: u32, units: u64) -> Slot {
    let slot = meta.slot(index);
    let size_units = (slot.end.0 - slot.start.0) / UNIT_BYTES;
    let first_units = (slot.start.0 - meta.storage().0) / UNIT_BYTES;
    let at = |units: u64| {
        let address = slot.start.0 + units * UNIT_BYTES;
        Header::read(memory, address).map(|header| (address, header, header.matches(index, first_units + units)))
    };
    if meta.is_single() {
        // Data from before the block was moved for alignment may be left at the near offset. Most of a block that reserves
        // terabytes is untouched, and the block's header is where it was.
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

/// Returns the block at an address. `header` must be valid. If the reserved size is overrun, the maximum size is assumed.
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

#[cfg(test)]
mod tests;
