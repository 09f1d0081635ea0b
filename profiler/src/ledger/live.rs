//! The live blocks of one target, by address. Millions of them, so every byte of an entry counts.

use std::hash::{BuildHasher, BuildHasherDefault};

use hashbrown::HashTable;
use profiler_common::interval::Interval;
use rustc_hash::FxHasher;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::address::TargetAddr;
use crate::units::MonotonicNanos;

/// A live sampled block. Its weight follows from size and interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LiveBlock {
    pub(super) size_bytes: u64,
    #[serde(serialize_with = "write_interval", deserialize_with = "read_interval")]
    pub(super) interval: Interval,
    pub(super) callsite: u32,
    /// When it was made. What comes out is the middle of the tick that it fell into: see [`TICK_BITS`].
    pub(super) time: MonotonicNanos,
}

/// A block as it is stored: 24 bytes, where plain fields and their padding would take 40.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Entry {
    /// Low and high half.
    address: [u32; 2],
    /// The size below, the interval's code above: see [`SIZE_BITS`].
    size_and_interval: [u32; 2],
    /// [`SEEN`] above.
    callsite: u32,
    /// When it was made, in ticks since the first block was.
    born: u32,
}

/// Bits of a size: what the kernel side keeps of it too.
const SIZE_BITS: u32 = 44;

/// A tick has 2^24 ns, 16.8 ms, so that 32 bits of them reach 2.3 years. What is older than the first block counts as being
/// made with it, and what is younger than that as made then.
const TICK_BITS: u32 = 24;

/// Marks an entry while the table is compared with another one.
const SEEN: u32 = 1 << 31;

const _: () = assert!(size_of::<Entry>() == 24);

#[expect(clippy::cast_possible_truncation, reason = "the halves are wanted")]
fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

fn whole([low, high]: [u32; 2]) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

impl Entry {
    fn new(address: TargetAddr, block: LiveBlock, born: u32) -> Self {
        let size = block.size_bytes.min((1 << SIZE_BITS) - 1);
        Self {
            address: halves(address.0),
            size_and_interval: halves(size | u64::from(block.interval.code()) << SIZE_BITS),
            callsite: block.callsite,
            born,
        }
    }

    fn block(self, first: MonotonicNanos) -> LiveBlock {
        let word = whole(self.size_and_interval);
        LiveBlock {
            size_bytes: word & ((1 << SIZE_BITS) - 1),
            interval: Interval::from_code((word >> SIZE_BITS) as u32),
            callsite: self.callsite & !SEEN,
            time: middle(self.born, first),
        }
    }
}

/// The middle of a tick.
fn middle(tick: u32, first: MonotonicNanos) -> MonotonicNanos {
    const HALF: u64 = 1 << (TICK_BITS - 1);
    MonotonicNanos(first.0.saturating_add((u64::from(tick) << TICK_BITS) + HALF))
}

/// All live blocks.
#[derive(Clone, Debug, Default)]
pub(super) struct LiveBlocks {
    table: HashTable<Entry>,
    /// When the first one was made.
    first: Option<MonotonicNanos>,
}

pub(super) fn write_interval<S: Serializer>(interval: &Interval, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u32(interval.code())
}

pub(super) fn read_interval<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Interval, D::Error> {
    u32::deserialize(deserializer).map(Interval::from_code)
}

impl Serialize for LiveBlocks {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.first, self.table.iter().collect::<Vec<_>>()).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for LiveBlocks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (first, entries) = <(Option<MonotonicNanos>, Vec<Entry>)>::deserialize(deserializer)?;
        let mut blocks = Self { first, ..Self::default() };
        for entry in entries {
            let entry = Entry { callsite: entry.callsite & !SEEN, ..entry };
            let address = whole(entry.address);
            // An address is there once, whatever is read.
            blocks.remove(TargetAddr(address));
            blocks.table.insert_unique(hash(address), entry, |entry| hash(whole(entry.address)));
        }
        Ok(blocks)
    }
}

fn hash(address: u64) -> u64 {
    BuildHasherDefault::<FxHasher>::default().hash_one(address)
}

impl LiveBlocks {
    /// Enters a block. The address must be free: see [`remove`](Self::remove).
    pub(super) fn insert(&mut self, address: TargetAddr, block: LiveBlock) {
        self.first.get_or_insert(block.time);
        let entry = Entry::new(address, block, self.tick(block.time));
        self.table.insert_unique(hash(address.0), entry, |entry| hash(whole(entry.address)));
    }

    /// The callsites of all, in no order.
    pub(super) fn callsites(&self) -> impl Iterator<Item = u32> {
        self.table.iter().map(|entry| entry.callsite & !SEEN)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// All of them, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (TargetAddr, LiveBlock)> {
        let first = self.first();
        self.table.iter().map(move |entry| (TargetAddr(whole(entry.address)), entry.block(first)))
    }

    /// The block at this address.
    pub(super) fn get(&self, address: TargetAddr) -> Option<LiveBlock> {
        let halves = halves(address.0);
        let entry = self.table.find(hash(address.0), |entry| entry.address == halves)?;
        Some(entry.block(self.first()))
    }

    /// Takes the block at this address out.
    pub(super) fn remove(&mut self, address: TargetAddr) -> Option<LiveBlock> {
        let halves = halves(address.0);
        let entry = self.table.find_entry(hash(address.0), |entry| entry.address == halves).ok()?;
        Some(entry.remove().0.block(self.first()))
    }

    /// Marks the block at this address, to survive [`sweep`](Self::sweep).
    pub(super) fn see(&mut self, address: TargetAddr) {
        let halves = halves(address.0);
        if let Some(entry) = self.table.find_mut(hash(address.0), |entry| entry.address == halves) {
            entry.callsite |= SEEN;
        }
    }

    /// Takes out all blocks that are not marked and that `keeps` does not ask for; takes the marks away.
    pub(super) fn sweep(&mut self, keeps: impl Fn(TargetAddr) -> bool) -> Vec<(TargetAddr, LiveBlock)> {
        let mut gone = Vec::new();
        let first = self.first();
        self.table.retain(|entry| {
            let stays = entry.callsite & SEEN != 0 || keeps(TargetAddr(whole(entry.address)));
            entry.callsite &= !SEEN;
            if !stays {
                gone.push((TargetAddr(whole(entry.address)), entry.block(first)));
            }
            stays
        });
        gone
    }

    /// Whether blocks made at these two times cannot be told apart.
    pub(super) fn is_same_time(&self, one: MonotonicNanos, other: MonotonicNanos) -> bool {
        self.tick(one) == self.tick(other)
    }

    fn first(&self) -> MonotonicNanos {
        self.first.unwrap_or_default()
    }

    fn tick(&self, time: MonotonicNanos) -> u32 {
        u32::try_from(time.0.saturating_sub(self.first().0) >> TICK_BITS).unwrap_or(u32::MAX)
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
            callsite in 0u32..1 << 31,
            first in 0u64..1 << 60,
            age in 0u64..1 << 56,
        ) {
            let mut blocks = LiveBlocks { first: Some(MonotonicNanos(first)), ..LiveBlocks::default() };
            let time = MonotonicNanos(first + age);
            let given = LiveBlock { size_bytes, interval: Interval::nearest(interval), callsite, time };
            let block = LiveBlock { time: middle(blocks.tick(time), MonotonicNanos(first)), ..given };
            prop_assert!(block.time.0.abs_diff(time.0) <= 1 << (TICK_BITS - 1));
            prop_assert!(blocks.is_same_time(block.time, time));
            blocks.insert(TargetAddr(address), given);
            prop_assert_eq!(blocks.remove(TargetAddr(address ^ 1)), None);
            prop_assert_eq!(blocks.get(TargetAddr(address)), Some(block));
            blocks.see(TargetAddr(address));
            prop_assert_eq!(blocks.sweep(|_| false), []);
            prop_assert_eq!(blocks.clone().sweep(|_| false), [(TargetAddr(address), block)]);
            prop_assert_eq!(blocks.remove(TargetAddr(address)), Some(block));
            prop_assert_eq!(blocks.remove(TargetAddr(address)), None);
        }
    }
}
