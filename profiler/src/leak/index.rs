//! Where in the order of addresses an address is: a bit for every 16 bytes in which a block begins, and how many begin before.
//!
//! ```text
//! address ─▶ span (runs of blocks without wide gaps: few) ─▶ page (64 granules) ─▶ blocks before it + bits up to the granule
//! ```
//!
//! Takes at most 8 bytes for a block, and [`SPANS_MAX`] pages more, wherever blocks are: where they are far apart, granules are wide.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use super::blocks::{Record, number};

/// Spans that there are at most.
const SPANS_MAX: usize = 256;
/// Between blocks that are less far apart nothing is split.
const GAP_BYTES_MIN: u64 = 1 << 20;
/// The narrowest granule: no allocator has two blocks in 16 bytes.
const SHIFT_MIN: u32 = 4;
/// Granules of a page: bits of a word.
const PAGE_SHIFT: u32 = 6;

/// The last block that begins at an address or below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The block's number.
    pub(super) number: u32,
    /// It is known to begin at that address.
    pub(super) is_start: bool,
}

/// Where in the index an address belongs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spot {
    page: u32,
    /// Granules of the page that lie above it.
    above: u8,
    /// It is where a granule begins.
    may_be_start: bool,
}

/// Granules in a row.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Page {
    /// Those in which a block begins.
    starts: u64,
    /// Blocks that begin before the page.
    before: u32,
    /// Every block of it begins where its granule does, so that bits say all.
    is_plain: bool,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    base: u64,
    /// Bytes of a granule, as a power of two.
    shift: u32,
    page_first: u32,
    page_last: u32,
}

/// The index of a list of blocks.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Where each span begins.
    bases: Vec<u64>,
    spans: Vec<Span>,
    pages: Vec<Page>,
}

impl Index {
    /// The index of blocks that are sorted and have different starts.
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

    /// The last block that begins at an address or below it; `None` when all begin behind it.
    #[inline]
    pub(super) fn place(&self, records: &[Record], address: u64) -> Option<Place> {
        let spot = self.spot(address)?;
        self.resolve(records, address, spot, self.page(spot))
    }

    /// Where to look for an address, from what is always in the cache. `None` where all blocks begin behind it.
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

    /// What the index has there.
    #[inline]
    pub(super) fn page(&self, spot: Spot) -> Page {
        self.pages[spot.page as usize]
    }

    /// As [`Self::place`], of what was looked up.
    #[inline]
    pub(super) fn resolve(&self, records: &[Record], address: u64, spot: Spot, page: Page) -> Option<Place> {
        if !page.is_plain {
            return self.search(records, spot.page as usize, address);
        }
        let upto = page.starts << spot.above;
        let count = page.before + upto.count_ones();
        Some(Place { number: count.checked_sub(1)?, is_start: upto >> 63 == 1 && spot.may_be_start })
    }

    /// The same where blocks begin anywhere.
    #[cold]
    fn search(&self, records: &[Record], page: usize, address: u64) -> Option<Place> {
        let first = self.pages[page].before as usize;
        let end = self.pages.get(page + 1).map_or(records.len(), |next| next.before as usize);
        let count = first + records[first..end].partition_point(|record| record.start <= address);
        Some(Place { number: number(count.checked_sub(1)?), is_start: false })
    }

    /// Bytes of memory that it takes.
    pub(super) fn footprint_bytes(&self) -> usize {
        self.pages.capacity() * size_of::<Page>() + self.spans.capacity() * (size_of::<Span>() + size_of::<u64>())
    }
}

/// An offset into an array that exists.
#[inline]
fn at(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

/// How wide granules must be so that there is a page for two blocks at most.
fn shift_for(extent: u64, count: usize) -> u32 {
    let pages_max = count as u64 / 2;
    let fits = |shift: &u32| extent >> shift >> PAGE_SHIFT <= pages_max.saturating_sub(1);
    (SHIFT_MIN..u64::BITS - PAGE_SHIFT).find(fits).unwrap_or(u64::BITS - PAGE_SHIFT)
}

/// Blocks, split where the widest gaps are.
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
