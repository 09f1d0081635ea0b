//! Packed blocks in the order of their addresses, with lookup by address.

#[cfg(test)]
mod tests;

use super::index::{Index, Page, Place, Record, Spot, number};
use crate::address::TargetAddr;

/// An allocated block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub start: TargetAddr,
    /// Blocks of size 0 are stored with one byte, to keep them apart from their neighbors.
    pub size_bytes: u64,
    /// A number chosen by the caller.
    pub origin: u32,
}

impl Block {
    pub fn end(&self) -> TargetAddr {
        TargetAddr(self.start.0.saturating_add(self.size_bytes))
    }
}

/// Index of a block in the order of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

/// Maximum number of blocks: ids, and one more, fit into 32 bits.
const COUNT_MAX: usize = u32::MAX as usize - 1;

/// Number of addresses to look up at a time: a power of two.
pub(super) const GROUP: usize = 64;

/// Marks a block whose size is in a separate list.
const HUGE: u32 = u32::MAX;

/// All blocks: 16 bytes each, plus an index of at most 8 bytes each. Blocks of 4 GiB and more take another 16.
#[derive(Debug, Default)]
pub struct Blocks {
    records: Vec<Record>,
    /// Sizes of [`HUGE`] blocks by block number.
    huge: Vec<(u32, u64)>,
    index: Index,
}

impl Blocks {
    /// Sorts the blocks. Returns the number of those dropped because they overlap a block that starts before them, or
    /// exceed 2³² − 2 blocks. Of blocks with the same start the largest is kept.
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

    /// All ids by ascending address.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = BlockId> + use<> {
        (0..number(self.records.len())).map(BlockId)
    }

    /// Returns the block that contains an address; the address after its end does not count.
    pub fn find(&self, address: TargetAddr) -> Option<BlockId> {
        self.holding(address.0).map(BlockId)
    }

    /// Returns the number of the first block that ends after an address, or the number of blocks.
    pub(super) fn first_behind(&self, address: u64) -> u32 {
        match self.place(address) {
            None => 0,
            Some(place) if self.is_in(place.number, address) => place.number,
            Some(place) => place.number + 1,
        }
    }

    /// Returns the lowest address of all blocks, and the end of the last one.
    pub(super) fn bounds(&self) -> (u64, u64) {
        let end = self.records.len().checked_sub(1).map(|last| self.get(BlockId(number(last))).end().0);
        (self.records.first().map_or(0, |first| first.start), end.unwrap_or(0))
    }

    /// See [`Self::find`].
    #[inline]
    pub(super) fn holding(&self, address: u64) -> Option<u32> {
        let place = self.place(address)?;
        (place.is_start || self.is_in(place.number, address)).then_some(place.number)
    }

    #[inline]
    fn place(&self, address: u64) -> Option<Place> {
        self.index.place(&self.records, address)
    }

    /// Writes the numbers of the blocks that contain the addresses, in no particular order, and returns their count.
    ///
    /// Every step is done for all addresses: a branch on uncached data would make the processor wait for each one
    /// separately.
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

    /// Returns whether an address is in a block that does not start after it.
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
