//! The live blocks of one target, by address. Millions of them, so every byte of an entry counts.

use std::hash::{BuildHasher, BuildHasherDefault};

use hashbrown::HashTable;
use profiler_common::interval::Interval;
use rustc_hash::FxHasher;

use crate::address::TargetAddr;

/// A live sampled block. Its weight follows from size and interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LiveBlock {
    pub(super) size_bytes: u64,
    pub(super) interval: Interval,
    pub(super) callsite: u32,
}

/// A block as it is stored: 20 bytes, where plain fields and their padding would take 32.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Low and high half.
    address: [u32; 2],
    /// The size below, the interval's code above: see [`SIZE_BITS`].
    size_and_interval: [u32; 2],
    callsite: u32,
}

/// Bits of a size: what the kernel side keeps of it too.
const SIZE_BITS: u32 = 44;

const _: () = assert!(size_of::<Entry>() == 20);

#[expect(clippy::cast_possible_truncation, reason = "the halves are wanted")]
fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

fn whole([low, high]: [u32; 2]) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

impl Entry {
    fn new(address: TargetAddr, block: LiveBlock) -> Self {
        let size = block.size_bytes.min((1 << SIZE_BITS) - 1);
        Self {
            address: halves(address.0),
            size_and_interval: halves(size | u64::from(block.interval.code()) << SIZE_BITS),
            callsite: block.callsite,
        }
    }

    fn block(self) -> LiveBlock {
        let word = whole(self.size_and_interval);
        LiveBlock {
            size_bytes: word & ((1 << SIZE_BITS) - 1),
            interval: Interval::from_code((word >> SIZE_BITS) as u32),
            callsite: self.callsite,
        }
    }
}

/// All live blocks.
#[derive(Clone, Debug, Default)]
pub(super) struct LiveBlocks {
    table: HashTable<Entry>,
}

fn hash(address: u64) -> u64 {
    BuildHasherDefault::<FxHasher>::default().hash_one(address)
}

impl LiveBlocks {
    /// Enters a block. The address must be free: see [`remove`](Self::remove).
    pub(super) fn insert(&mut self, address: TargetAddr, block: LiveBlock) {
        self.table.insert_unique(hash(address.0), Entry::new(address, block), |entry| hash(whole(entry.address)));
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// All of them, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (TargetAddr, LiveBlock)> {
        self.table.iter().map(|entry| (TargetAddr(whole(entry.address)), entry.block()))
    }

    /// Whether there is a block at this address.
    pub(super) fn contains(&self, address: TargetAddr) -> bool {
        let halves = halves(address.0);
        self.table.find(hash(address.0), |entry| entry.address == halves).is_some()
    }

    /// Takes the block at this address out.
    pub(super) fn remove(&mut self, address: TargetAddr) -> Option<LiveBlock> {
        let halves = halves(address.0);
        let entry = self.table.find_entry(hash(address.0), |entry| entry.address == halves).ok()?;
        Some(entry.remove().0.block())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_goes_in_comes_out_once(
            address: u64,
            size_bytes in 0u64..1 << SIZE_BITS,
            interval in 1u32..=1 << 30,
            callsite: u32,
        ) {
            let block = LiveBlock { size_bytes, interval: Interval::nearest(interval), callsite };
            let mut blocks = LiveBlocks::default();
            blocks.insert(TargetAddr(address), block);
            prop_assert_eq!(blocks.remove(TargetAddr(address ^ 1)), None);
            prop_assert_eq!(blocks.remove(TargetAddr(address)), Some(block));
            prop_assert_eq!(blocks.remove(TargetAddr(address)), None);
        }
    }
}
