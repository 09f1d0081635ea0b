//! Packed blocks in the order of their addresses, with lookup by address.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use heapbpf_base::address::TargetAddr;
use heapbpf_base::memory::{Memory, WORD_BYTES};
use rustc_hash::FxHashMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub start: TargetAddr,
    /// Size of the block. Blocks of size 0 are stored with one byte, to keep them apart from their neighbors.
    pub size_bytes: u64,
    pub origin: u32,
}

impl Block {
    pub fn end(&self) -> TargetAddr {
        TargetAddr(self.start.0.saturating_add(self.size_bytes))
    }
}

/// Number of a block in the order of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

/// Maximum number of blocks: their ids, and one more, fit into 32 bits.
const COUNT_MAX: usize = u32::MAX as usize - 1;

/// Number of addresses to search for at a time: a power of two.
pub(super) const GROUP: usize = 64;
const HUGE: u32 = u32::MAX;

/// All blocks: 16 bytes each, plus an index of at most 8 bytes each. Blocks of 4 GiB and more take another 16.
#[derive(Debug, Default)]
pub struct Blocks {
    records: Vec<Record>,
    huge: Vec<(u32, u64)>,
    index: Index,
    /// Blocks of empty arrays, by the address after their end.
    empty_arrays: FxHashMap<u64, u32>,
}

impl Blocks {
    /// Sorts blocks. Returns the number of blocks dropped because they overlap one that starts before them, or exceed 2³² − 2. Of
    /// blocks with the same start the largest is kept.
    pub fn new(blocks: Vec<Block>) -> (Self, usize) {
        Self::of_at_most(blocks, COUNT_MAX)
    }

    fn of_at_most(mut given: Vec<Block>, count_max: usize) -> (Self, usize) {
        let order = |block: &Block| (block.start, u64::MAX - block.size_bytes, block.origin);
        if !given.is_sorted_by_key(order) {
            given.sort_unstable_by_key(order);
        }
        let mut blocks = Self { records: Vec::with_capacity(given.len().min(count_max)), ..Self::default() };
        let mut last: Option<(u64, u64)> = None;
        for block in &given {
            let start = block.start.0;
            // Sums of addresses may overflow; differences of sorted ones cannot.
            let overlaps = last.is_some_and(|(first, size)| start - first < size);
            if overlaps || blocks.records.len() == count_max {
                continue;
            }
            let size = block.size_bytes.clamp(1, (u64::MAX - start).max(1));
            last = Some((start, size));
            blocks.push(start, size, block.origin);
        }
        let left_out = given.len() - blocks.records.len();
        drop(given);
        blocks.records.shrink_to_fit();
        blocks.index = Index::new(&blocks.records);
        (blocks, left_out)
    }

    fn push(&mut self, start: u64, size: u64, origin: u32) {
        let number = number(self.records.len());
        let small = u32::try_from(size).unwrap_or(HUGE);
        if small == HUGE {
            self.huge.push((number, size));
        }
        self.records.push(Record { start, size: small, origin });
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub fn get(&self, id: BlockId) -> Block {
        let Record { start, origin, .. } = self.records[id.0 as usize];
        Block { start: TargetAddr(start), size_bytes: self.size(id.0), origin }
    }

    pub fn ids(&self) -> impl ExactSizeIterator<Item = BlockId> + use<> {
        (0..number(self.records.len())).map(BlockId)
    }

    /// Finds the block that contains an address. The address after a block's end does not count.
    pub fn find(&self, address: TargetAddr) -> Option<BlockId> {
        self.holding(address.0).map(BlockId)
    }

    /// Finds blocks of `new T[0]` with a destructor, to which a program points one past their end: they consist of the number of
    /// elements alone ("array cookie", <https://itanium-cxx-abi.github.io/cxx-abi/abi.html#array-cookies>). LeakSanitizer treats
    /// them in the same way.
    pub fn find_empty_arrays(&mut self, memory: &dyn Memory) {
        let is_small = |(_, record): &(u32, &Record)| u64::from(record.size) == WORD_BYTES;
        let records = (0..).zip(&self.records).filter(is_small);
        let empty = records.filter(|(_, record)| memory.word(TargetAddr(record.start)) == Some(0));
        self.empty_arrays = empty.map(|(number, record)| (record.start + WORD_BYTES, number)).collect();
    }

    pub(super) fn has_empty_arrays(&self) -> bool {
        !self.empty_arrays.is_empty()
    }

    #[inline]
    pub(super) fn empty_array_before(&self, address: u64) -> Option<u32> {
        self.empty_arrays.get(&address).copied()
    }

    /// Number of the first block that ends after an address, or the number of blocks.
    pub(super) fn first_behind(&self, address: u64) -> u32 {
        match self.place(address) {
            None => 0,
            Some(place) if self.is_in(place.number, address) => place.number,
            Some(place) => place.number + 1,
        }
    }

    /// Lowest address of all blocks, and the end of the last one.
    pub(super) fn bounds(&self) -> (u64, u64) {
        let end = self.records.len().checked_sub(1).map(|last| self.get(BlockId(number(last))).end().0);
        (self.records.first().map_or(0, |first| first.start), end.unwrap_or(0))
    }

    #[inline]
    pub(super) fn holding(&self, address: u64) -> Option<u32> {
        let place = self.place(address)?;
        (place.is_start || self.is_in(place.number, address)).then_some(place.number)
    }

    #[inline]
    fn place(&self, address: u64) -> Option<Place> {
        self.index.place(&self.records, address)
    }

    /// Finds the blocks that contain these addresses, in no particular order; returns their count. Every step is done for all
    /// addresses: a branch on uncached data would make the processor wait for each one separately.
    #[inline]
    pub(super) fn holding_of(&self, addresses: &[u64], numbers: &mut [u32; GROUP]) -> usize {
        let mut spots = [(0, Spot::default()); GROUP];
        let mut spot_count = 0;
        for &address in addresses.iter().take(GROUP) {
            if let Some(spot) = self.index.spot(address) {
                spots[spot_count % GROUP] = (address, spot);
                spot_count += 1;
            }
        }
        let mut pages = [Page::default(); GROUP];
        for (page, (_, spot)) in pages.iter_mut().zip(&spots[..spot_count]) {
            *page = self.index.page(*spot);
        }
        let (mut count, mut doubt_count) = (0, 0);
        let mut doubts = [(0, 0); GROUP];
        for (&(address, spot), &page) in spots[..spot_count].iter().zip(&pages) {
            let Some(place) = self.index.resolve(&self.records, address, spot, page) else { continue };
            numbers[count % GROUP] = place.number;
            doubts[doubt_count % GROUP] = (place.number, address);
            count += usize::from(place.is_start);
            doubt_count += usize::from(!place.is_start);
        }
        for &(number, address) in &doubts[..doubt_count] {
            numbers[count % GROUP] = number;
            count += usize::from(self.is_in(number, address));
        }
        count
    }

    /// Whether an address is in a block, which must not start after the address.
    #[inline]
    fn is_in(&self, number: u32, address: u64) -> bool {
        let record = &self.records[number as usize];
        let offset = address.wrapping_sub(record.start);
        offset < u64::from(record.size) || record.size == HUGE && offset < self.size(number)
    }

    fn size(&self, number: u32) -> u64 {
        let size = self.records[number as usize].size;
        if size != HUGE {
            return u64::from(size);
        }
        self.huge.binary_search_by_key(&number, |&(of, _)| of).map_or(u64::from(HUGE), |at| self.huge[at].1)
    }

    pub fn footprint_bytes(&self) -> usize {
        self.records.capacity() * size_of::<Record>()
            + self.huge.capacity() * size_of::<(u32, u64)>()
            + self.index.footprint_bytes()
    }
}

const SPANS_MAX: usize = 256;
/// Distance between blocks at which a span is split.
const GAP_BYTES_MIN: u64 = 1 << 20;
/// Minimum width of a granule: no allocator has two blocks in 16 bytes.
const SHIFT_MIN: u32 = 4;
/// Number of granules per page: bits of a word.
const PAGE_SHIFT: u32 = 6;

/// A block in 16 bytes; `size` is [`HUGE`] if stored elsewhere.
#[derive(Clone, Copy, Debug)]
struct Record {
    start: u64,
    size: u32,
    origin: u32,
}

/// The last block that starts at an address or below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    number: u32,
    /// Whether the block is known to start at the address.
    is_start: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Spot {
    page: u32,
    /// Number of granules of the page above the address's granule.
    above: u8,
    /// Whether the address is the start of a granule.
    may_be_start: bool,
}

/// 64 consecutive granules.
#[derive(Clone, Copy, Debug, Default)]
struct Page {
    /// Granules in which a block starts.
    starts: u64,
    before: u32,
    /// Whether all blocks of the page start where their granules do, so that the bits are exact.
    is_plain: bool,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    base: u64,
    /// Log2 of the size of a granule.
    shift: u32,
    page_first: u32,
    page_last: u32,
}

/// A bit for every granule in which a block starts, and the number of blocks before: address ─▶ span (run of blocks
/// without wide gaps: few) ─▶ page (64 granules) ─▶ blocks before it + bits up to the granule. Takes at most 8 bytes
/// per block, plus [`SPANS_MAX`] pages, wherever the blocks are: granules are wider where blocks are far apart.
#[derive(Debug, Default)]
struct Index {
    bases: Vec<u64>,
    spans: Vec<Span>,
    pages: Vec<Page>,
}

impl Index {
    /// Creates the index. `records` are sorted by distinct starts.
    fn new(records: &[Record]) -> Self {
        let mut index = Self::default();
        for blocks in runs(records) {
            index.add(records, blocks);
        }
        index.pages.shrink_to_fit();
        index
    }

    fn add(&mut self, records: &[Record], blocks: Range<usize>) {
        let (first, last) = (records[blocks.start].start, records[blocks.end - 1].start);
        let shift = shift_for(last - first, blocks.len());
        let base = first >> shift << shift;
        let page_first = number(self.pages.len());
        let granules = (last - base) >> shift;
        let page_last = page_first + u32::try_from(granules >> PAGE_SHIFT).unwrap_or(u32::MAX);
        let page_of = |start: u64| page_first as usize + at((start - base) >> shift >> PAGE_SHIFT);
        for block in blocks.clone() {
            let start = records[block].start;
            let page = page_of(start);
            while self.pages.len() <= page {
                self.pages.push(Page { starts: 0, before: number(block), is_plain: true });
            }
            let page = &mut self.pages[page];
            page.starts |= 1 << ((start - base) >> shift & 63);
            page.is_plain &= start.trailing_zeros() >= shift;
        }
        self.bases.push(base);
        self.spans.push(Span { base, shift, page_first, page_last });
    }

    #[inline]
    fn place(&self, records: &[Record], address: u64) -> Option<Place> {
        let spot = self.spot(address)?;
        self.resolve(records, address, spot, self.page(spot))
    }

    /// Finds the granule of an address in data that stays in the cache. `None` if all blocks start after the address.
    #[inline]
    fn spot(&self, address: u64) -> Option<Spot> {
        let span = self.bases.partition_point(|&base| base <= address).checked_sub(1)?;
        let span = &self.spans[span];
        let granule = (address - span.base) >> span.shift;
        let pages = u64::from(span.page_last - span.page_first);
        let is_behind = granule >> PAGE_SHIFT > pages;
        Some(Spot {
            page: span.page_first + u32::try_from((granule >> PAGE_SHIFT).min(pages)).unwrap_or(0),
            above: if is_behind { 0 } else { 63 - (granule & 63) as u8 },
            may_be_start: !is_behind && address.trailing_zeros() >= span.shift,
        })
    }

    #[inline]
    fn page(&self, spot: Spot) -> Page {
        self.pages[spot.page as usize]
    }

    #[inline]
    fn resolve(&self, records: &[Record], address: u64, spot: Spot, page: Page) -> Option<Place> {
        if !page.is_plain {
            return self.search(records, spot.page as usize, address);
        }
        let upto = page.starts << spot.above;
        let count = page.before + upto.count_ones();
        Some(Place { number: count.checked_sub(1)?, is_start: upto >> 63 == 1 && spot.may_be_start })
    }

    /// Searches a page in which blocks do not start where granules do.
    #[cold]
    fn search(&self, records: &[Record], page: usize, address: u64) -> Option<Place> {
        let first = self.pages[page].before as usize;
        let end = self.pages.get(page + 1).map_or(records.len(), |next| next.before as usize);
        let count = first + records[first..end].partition_point(|record| record.start <= address);
        Some(Place { number: number(count.checked_sub(1)?), is_start: false })
    }

    fn footprint_bytes(&self) -> usize {
        self.pages.capacity() * size_of::<Page>() + self.spans.capacity() * (size_of::<Span>() + size_of::<u64>())
    }
}

#[inline]
fn at(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

/// Width of granules at which there is at most one page for two blocks.
fn shift_for(extent: u64, count: usize) -> u32 {
    let pages_max = count as u64 / 2;
    let fits = |shift: &u32| extent >> shift >> PAGE_SHIFT <= pages_max.saturating_sub(1);
    (SHIFT_MIN..u64::BITS - PAGE_SHIFT).find(fits).unwrap_or(u64::BITS - PAGE_SHIFT)
}

fn runs(records: &[Record]) -> Vec<Range<usize>> {
    let mut widest: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    for (before, pair) in records.windows(2).enumerate() {
        let gap = pair[1].start - pair[0].start;
        if gap < GAP_BYTES_MIN {
            continue;
        }
        if widest.len() == SPANS_MAX - 1 {
            if widest.peek().is_none_or(|Reverse((least, _))| *least >= gap) {
                continue;
            }
            widest.pop();
        }
        widest.push(Reverse((gap, before + 1)));
    }
    let mut ends: Vec<usize> = widest.into_iter().map(|Reverse((_, end))| end).collect();
    ends.push(records.len());
    ends.sort_unstable();
    let begins = std::iter::once(0).chain(ends.iter().copied());
    begins.zip(ends.iter().copied()).map(|(begin, end)| begin..end).filter(|run| !run.is_empty()).collect()
}

/// Converts a count, which is at most `u32::MAX` − 1.
#[inline]
pub(super) fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
