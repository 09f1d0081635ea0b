//! Index of block starts by address: a bit for every 16 bytes in which a block starts, and the number of blocks
//! before.
//!
//! ```text
//! address ─▶ span (run of blocks without wide gaps: few) ─▶ page (64 granules) ─▶ blocks before it + bits up to the granule
//! ```
//!
//! Takes at most 8 bytes per block, plus [`SPANS_MAX`] pages, wherever the blocks are: granules are wider where
//! blocks are far apart.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Maximum number of spans.
const SPANS_MAX: usize = 256;
/// Minimum distance between blocks at which to split a span.
const GAP_BYTES_MIN: u64 = 1 << 20;
/// Size of the narrowest granule: no allocator has two blocks in 16 bytes.
const SHIFT_MIN: u32 = 4;
/// Granules per page: bits of a word.
const PAGE_SHIFT: u32 = 6;

/// A block as stored: 16 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) start: u64,
    /// Bytes; `u32::MAX` if the size is stored elsewhere.
    pub(super) size: u32,
    pub(super) origin: u32,
}

/// The last block that starts at an address or below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) number: u32,
    /// It is known to start at that address.
    pub(super) is_start: bool,
}

/// Location of an address in the index.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spot {
    page: u32,
    /// Number of granules of the page above it.
    above: u8,
    /// It is the start of a granule.
    may_be_start: bool,
}

/// 64 consecutive granules.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Page {
    /// Granules in which a block starts.
    starts: u64,
    /// Number of blocks that start before the page.
    before: u32,
    /// All blocks of the page start where their granules do, so the bits are exact.
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

#[derive(Debug, Default)]
pub(super) struct Index {
    /// Start of each span.
    bases: Vec<u64>,
    spans: Vec<Span>,
    pages: Vec<Page>,
}

impl Index {
    /// Builds the index of blocks that are sorted by distinct starts.
    pub(super) fn new(records: &[Record]) -> Self {
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

    /// Returns the last block that starts at an address or below it, if any.
    #[inline]
    pub(super) fn place(&self, records: &[Record], address: u64) -> Option<Place> {
        let spot = self.spot(address)?;
        self.resolve(records, address, spot, self.page(spot))
    }

    /// Locates an address, using only data that stays in the cache. `None` if all blocks start after it.
    #[inline]
    pub(super) fn spot(&self, address: u64) -> Option<Spot> {
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
    pub(super) fn page(&self, spot: Spot) -> Page {
        self.pages[spot.page as usize]
    }

    /// Second half of [`Self::place`].
    #[inline]
    pub(super) fn resolve(&self, records: &[Record], address: u64, spot: Spot, page: Page) -> Option<Place> {
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

    pub(super) fn footprint_bytes(&self) -> usize {
        self.pages.capacity() * size_of::<Page>() + self.spans.capacity() * (size_of::<Span>() + size_of::<u64>())
    }
}

/// Converts an offset into an existing array.
#[inline]
fn at(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

/// Returns the width of granules at which there is at most one page for two blocks.
fn shift_for(extent: u64, count: usize) -> u32 {
    let pages_max = count as u64 / 2;
    let fits = |shift: &u32| extent >> shift >> PAGE_SHIFT <= pages_max.saturating_sub(1);
    (SHIFT_MIN..u64::BITS - PAGE_SHIFT).find(fits).unwrap_or(u64::BITS - PAGE_SHIFT)
}

/// Splits blocks at the widest gaps.
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

/// Converts a count of blocks, which is at most `u32::MAX` − 1.
#[inline]
pub(super) fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
