//! Live blocks by address, and the latest blocks of each thread. There can be millions, so entries are packed.

use std::hash::{BuildHasher, BuildHasherDefault};

use hashbrown::HashTable;
use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::{HeapId, StackId, Tid};
use heapbpf_base::units::MonotonicNanos;
use profiler_common::interval::Interval;
use rustc_hash::{FxHashMap, FxHasher};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ingest::event::{Allocation, Free};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveAllocation {
    pub address: TargetAddr,
    pub size_bytes: u64,
    #[serde(serialize_with = "write_interval", deserialize_with = "read_interval")]
    pub interval: Interval,
    pub stack: StackId,
    pub heap: HeapId,
    /// Time of the allocation. The ledger stores it to a tick of 16.8 ms, and returns the middle of the tick.
    pub time: MonotonicNanos,
}

impl From<&Allocation> for LiveAllocation {
    fn from(allocation: &Allocation) -> Self {
        let Allocation { address, size_bytes, interval, stack, heap, time, .. } = *allocation;
        Self { address, size_bytes, interval, stack, heap, time }
    }
}

/// A change that was not caused by an event: recordings contain it so that a replay repeats it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Correction {
    /// The block at this address is not live: its free record was dropped.
    Removed(TargetAddr),
    /// A block is live whose allocation record was dropped.
    Inserted(LiveAllocation),
    /// The block counts as sampled at this interval (see [`Interval::code`]), or not at all: live blocks were thinned.
    Thinned(TargetAddr, Option<u32>),
    /// A block that was freed before the thinning was entered counts as sampled at this interval, or not at all.
    FreedThinned(FreedBlock, Option<u32>),
    /// A block allocated before recording started had been freed when the inventory was entered.
    EnteredFreed(LiveAllocation),
    /// A block allocated before recording started is live, and its stack is known.
    Opened(LiveAllocation),
}

/// A live block, whose weight follows from size and interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LiveBlock {
    pub(super) size_bytes: u64,
    #[serde(serialize_with = "write_interval", deserialize_with = "read_interval")]
    pub(super) interval: Interval,
    pub(super) callsite: u32,
    pub(super) time: MonotonicNanos,
}

/// A packed live block. It has 24 bytes, where plain fields and their padding would take 40.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Entry {
    address: [u32; 2],
    /// The size in the low bits, the interval's code above: see [`SIZE_BITS`].
    size_and_interval: [u32; 2],
    /// Index of the callsite, with [`SEEN`] in the highest bit.
    callsite: u32,
    /// Allocation time in ticks since that of the first block.
    born: u32,
}

/// Number of bits of a size, as on the kernel side.
const SIZE_BITS: u32 = 44;

/// Binary logarithm of a tick: 2^24 ns (16.8 ms), so that 32 bits cover 2.3 years. Times before the first block or after the last
/// tick are clamped.
const TICK_BITS: u32 = 24;

/// Marks an entry during a comparison with the kernel's live set.
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

fn middle(tick: u32, first: MonotonicNanos) -> MonotonicNanos {
    const HALF: u64 = 1 << (TICK_BITS - 1);
    MonotonicNanos(first.0.saturating_add((u64::from(tick) << TICK_BITS) + HALF))
}

#[derive(Clone, Debug, Default)]
pub(super) struct LiveBlocks {
    table: HashTable<Entry>,
    first: Option<MonotonicNanos>,
}

fn write_interval<S: Serializer>(interval: &Interval, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u32(interval.code())
}

fn read_interval<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Interval, D::Error> {
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
            // A file may contain an address twice: the later entry counts.
            blocks.remove(TargetAddr(address));
            blocks.table.insert_unique(hash(address), entry, |entry| hash(whole(entry.address)));
        }
        Ok(blocks)
    }
}

/// Hash of an address. Blocks in the same kibibyte are stored next to each other, because the next event is often about a
/// neighbour: with addresses distributed evenly, each event waits for two or three words of a table of tens of megabytes, which
/// was two thirds of the agent's time. `hashbrown` compares the upper seven bits, and starts its search at the slot of the lower
/// ones.
fn hash(address: u64) -> u64 {
    const REGION_BITS: u32 = 10;
    const SLOT_BITS: u32 = 4;
    const TAG_SHIFT: u32 = 57;
    let mix = |word: u64| BuildHasherDefault::<FxHasher>::default().hash_one(word);
    let slot = address >> (REGION_BITS - SLOT_BITS) & ((1 << SLOT_BITS) - 1);
    let region = mix(address >> REGION_BITS) << SLOT_BITS;
    (region | slot) & ((1 << TAG_SHIFT) - 1) | mix(address) >> TAG_SHIFT << TAG_SHIFT
}

impl LiveBlocks {
    /// Inserts a block. No block may be live at its address.
    pub(super) fn insert(&mut self, address: TargetAddr, block: LiveBlock) {
        self.first.get_or_insert(block.time);
        let entry = Entry::new(address, block, self.tick(block.time));
        self.table.insert_unique(hash(address.0), entry, |entry| hash(whole(entry.address)));
    }

    pub(super) fn callsites(&self) -> impl Iterator<Item = u32> {
        self.table.iter().map(|entry| entry.callsite & !SEEN)
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (TargetAddr, LiveBlock)> {
        let first = self.first();
        self.table.iter().map(move |entry| (TargetAddr(whole(entry.address)), entry.block(first)))
    }

    pub(super) fn get(&self, address: TargetAddr) -> Option<LiveBlock> {
        let halves = halves(address.0);
        let entry = self.table.find(hash(address.0), |entry| entry.address == halves)?;
        Some(entry.block(self.first()))
    }

    pub(super) fn remove(&mut self, address: TargetAddr) -> Option<LiveBlock> {
        let halves = halves(address.0);
        let entry = self.table.find_entry(hash(address.0), |entry| entry.address == halves).ok()?;
        Some(entry.remove().0.block(self.first()))
    }

    pub(super) fn mark_seen(&mut self, address: TargetAddr) {
        let halves = halves(address.0);
        if let Some(entry) = self.table.find_mut(hash(address.0), |entry| entry.address == halves) {
            entry.callsite |= SEEN;
        }
    }

    /// Removes all blocks that are neither marked nor kept by `keeps`, and clears the marks.
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

/// Maximum number of (thread, heap) entries. Thread exits are not observed, so all entries are dropped when the table is full.
const THREADS_MAX: usize = 4096;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Threads {
    latest: FxHashMap<(Tid, HeapId), Latest>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Latest {
    /// The latest allocated block while it is live.
    allocated: Option<TargetAddr>,
    freed: Option<(TargetAddr, FreedBlock)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreedBlock {
    pub(super) block: LiveBlock,
    pub(super) lifetime_us: u64,
    pub(super) temporary: bool,
}

pub(super) fn lifetime_us(free: &Free, block: &LiveBlock) -> u64 {
    match free.age_us {
        u32::MAX => (free.time.0.saturating_sub(block.time.0) / 1000).max(u64::from(u32::MAX)),
        age_us => u64::from(age_us),
    }
}

impl Threads {
    pub(super) fn allocate(&mut self, tid: Tid, heap: HeapId, address: TargetAddr) {
        self.latest(tid, heap).allocated = Some(address);
    }

    pub(super) fn free(&mut self, free: &Free, heap: HeapId, block: LiveBlock) -> FreedBlock {
        let lifetime_us = lifetime_us(free, &block);
        let latest = self.latest(free.tid, heap);
        let temporary = latest.allocated.take_if(|allocated| *allocated == free.address).is_some();
        let freed = FreedBlock { block, lifetime_us, temporary };
        latest.freed = Some((free.address, freed));
        freed
    }

    pub(super) fn restore(&mut self, tid: Tid, heap: HeapId, address: TargetAddr) -> Option<FreedBlock> {
        let latest = self.latest(tid, heap);
        let (_, freed) = latest.freed.take_if(|(freed, _)| *freed == address)?;
        if freed.temporary {
            latest.allocated = Some(address);
        }
        Some(freed)
    }

    pub(super) fn callsites(&self) -> impl Iterator<Item = u32> {
        self.latest.values().filter_map(|latest| latest.freed.as_ref()).map(|(_, freed)| freed.block.callsite)
    }

    fn latest(&mut self, tid: Tid, heap: HeapId) -> &mut Latest {
        if self.latest.len() >= THREADS_MAX && !self.latest.contains_key(&(tid, heap)) {
            self.latest.clear();
        }
        self.latest.entry((tid, heap)).or_default()
    }
}

#[cfg(test)]
mod tests {
    use heapbpf_base::ids::Pid;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn neighbours_are_stored_together_and_others_apart() {
        const SLOTS: u64 = 1 << 17;
        let slot = |address: u64| usize::try_from(hash(address) % SLOTS).expect("it has 17 bits");
        let [one, next] = [0x7f12_3456_0000, 0x7f12_3456_0050].map(slot);
        assert_eq!(next - one, 1);
        // Small blocks, pages, thread arenas and huge pages: half as many as there are slots.
        for stride in [16, 80, 4096, 64 << 20, 2 << 20] {
            let mut counts = [0u32; 1 << 13];
            (0..SLOTS / 2).for_each(|i| counts[slot(0x7f12_3456_0010 + i * stride) / 16] += 1);
            let most = counts.iter().max().copied().unwrap_or(0);
            assert!(most <= 320, "{most} blocks, {stride} bytes apart, in sixteen slots");
        }
    }

    proptest! {
        #[test]
        fn inserted_blocks_can_be_removed_once(
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
            blocks.mark_seen(TargetAddr(address));
            prop_assert_eq!(blocks.sweep(|_| false), []);
            prop_assert_eq!(blocks.clone().sweep(|_| false), [(TargetAddr(address), block)]);
            prop_assert_eq!(blocks.remove(TargetAddr(address)), Some(block));
            prop_assert_eq!(blocks.remove(TargetAddr(address)), None);
        }
    }

    #[test]
    fn the_number_of_threads_is_bounded() {
        const BLOCK: LiveBlock =
            LiveBlock { size_bytes: 1, interval: Interval::EXACT, callsite: 0, time: MonotonicNanos(0) };
        let (address, time) = (TargetAddr(1), MonotonicNanos(0));
        let mut threads = Threads::default();
        for tid in 0..100_000 {
            threads.allocate(Tid(tid), HeapId(0), address);
            assert!(threads.latest.len() <= THREADS_MAX);
        }
        let mut frees =
            |tid| threads.free(&Free { pid: Pid(1), tid: Tid(tid), address, time, age_us: 0 }, HeapId(0), BLOCK);
        assert!(frees(99_999).temporary);
        assert!(!frees(0).temporary, "it is forgotten");
    }
}
