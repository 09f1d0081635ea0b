//! The live set: every sampled block that has not been freed, as the kernel stores it.

use crate::interval::{INTERVAL_BITS, Interval};
use crate::limits::LIVE_FILTER_SLOTS;

/// Key of the live set. 16 bytes, no padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct LiveKey {
    pub address: u64,
    /// Process id in the initial PID namespace.
    pub tgid: u32,
    /// Always 0, so that the key has one representation.
    pub reserved: u32,
}

impl LiveKey {
    #[inline(always)]
    pub const fn new(tgid: u32, address: u64) -> Self {
        Self { address, tgid, reserved: 0 }
    }

    /// Index of the filter's slot for this block, below [`LIVE_FILTER_SLOTS`].
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the mask leaves the bits of a slot")]
    pub const fn filter_slot(&self) -> u32 {
        (self.filter_granule() & (LIVE_FILTER_SLOTS as u64 - 1)) as u32
    }

    /// Neighbouring blocks have neighbouring slots, so that a free, which accesses its block, mostly finds its slot in the same
    /// cache. Bits above those of a slot are spread, because arenas begin at multiples of 64 MiB. The process does not count: a
    /// forked child uses the same filter before anything else knows of it.
    #[inline(always)]
    const fn filter_granule(&self) -> u64 {
        let granule = self.address >> FILTER_GRANULE_BITS;
        granule ^ (granule >> LIVE_FILTER_SLOTS.ilog2()).wrapping_mul(FILTER_SPREAD) >> FILTER_SPREAD_SHIFT
    }

    /// What a live block adds to its slot: 1 to the count in the upper 16 bits, and a hash of its address to the sum below.
    #[inline(always)]
    pub const fn filter_word(&self) -> u64 {
        FILTER_ONE | self.address.wrapping_mul(FILTER_RATIO) >> 32
    }

    /// Whether a slot with this value excludes that the block is live: it has no blocks, or only another.
    #[inline(always)]
    pub const fn is_excluded_by(&self, slot: u64) -> bool {
        slot < FILTER_ONE || (slot < 2 * FILTER_ONE && slot != self.filter_word())
    }
}

/// Blocks whose addresses differ in fewer bits share a slot.
pub const FILTER_GRANULE_BITS: u32 = 8;
/// Odd, so that different upper bits differ after the multiplication.
pub const FILTER_SPREAD: u64 = 0x9e37_79b1;
pub const FILTER_SPREAD_SHIFT: u32 = 14;
/// The golden ratio's bits, as in Knuth's multiplicative hashing (TAOCP 3, 6.4).
pub const FILTER_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;
/// One block in a slot. With up to 65,535 blocks, the sum of 32-bit hashes stays below it.
pub const FILTER_ONE: u64 = 1 << 48;
/// A slot with this count accepts no more blocks. Concurrent writers may exceed it a little.
pub const FILTER_FULL: u64 = 65_000 << 48;

/// A live block in 24 bytes: with the key and the kernel's own 48 bytes, it fits the slab of 96 (`kernel/bpf/memalloc.c` adds
/// 8), which is a quarter less than the next size.
///
/// ```text
/// time:  bit 0..56  microseconds of CLOCK_MONOTONIC     56..64  heap
/// size:  bit 0..44  bytes, at most 16 TiB − 1           44..64  interval
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct LiveBlock {
    stack_id: u64,
    time: u64,
    size: u64,
}

const TIME_BITS: u32 = 56;
const SIZE_BITS: u32 = 44;

impl LiveBlock {
    /// Placeholder for "no block".
    pub const NONE: Self = Self { stack_id: 0, time: 0, size: 0 };

    /// `time_ns` is in nanoseconds of `CLOCK_MONOTONIC`.
    #[inline(always)]
    pub const fn new(size_bytes: u64, time_ns: u64, stack_id: u64, interval: Interval, heap: u8) -> Self {
        const SIZE_MAX: u64 = (1 << SIZE_BITS) - 1;
        let size = if size_bytes > SIZE_MAX { SIZE_MAX } else { size_bytes };
        Self {
            stack_id,
            time: (time_ns / 1000) | ((heap as u64) << TIME_BITS),
            size: size | ((interval.code() as u64) << SIZE_BITS),
        }
    }

    /// Requested bytes.
    #[inline(always)]
    pub const fn size_bytes(&self) -> u64 {
        self.size & ((1 << SIZE_BITS) - 1)
    }

    /// Time of the call's return, in nanoseconds of `CLOCK_MONOTONIC`, to the microsecond.
    #[inline(always)]
    pub const fn time_ns(&self) -> u64 {
        self.time_us().saturating_mul(1000)
    }

    /// Time of the call's return, in microseconds of `CLOCK_MONOTONIC`.
    #[inline(always)]
    pub const fn time_us(&self) -> u64 {
        self.time & ((1 << TIME_BITS) - 1)
    }

    /// Stack of the allocation: see [`StackHasher`](crate::stack::StackHasher).
    #[inline(always)]
    pub const fn stack_id(&self) -> u64 {
        self.stack_id
    }

    /// Interval that the block was sampled at; its weight follows from this and the size.
    #[inline(always)]
    pub const fn interval(&self) -> Interval {
        Interval::from_code((self.size >> SIZE_BITS) as u32)
    }

    /// Index into the session's list of heaps.
    #[inline(always)]
    pub const fn heap(&self) -> u8 {
        (self.time >> TIME_BITS) as u8
    }

    #[inline(always)]
    pub const fn from_words([stack_id, time, size]: [u64; 3]) -> Self {
        Self { stack_id, time, size }
    }

    #[inline(always)]
    pub const fn words(&self) -> [u64; 3] {
        [self.stack_id, self.time, self.size]
    }
}

const _: () = assert!(SIZE_BITS + INTERVAL_BITS == u64::BITS);
const _: () = assert!(size_of::<LiveKey>() == 16 && align_of::<LiveKey>() == 8);
const _: () = assert!(size_of::<LiveBlock>() == 24 && align_of::<LiveBlock>() == 8);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_round_trip(
            size_bytes in 0u64..1 << SIZE_BITS,
            time_us in 0u64..1 << 53,
            stack_id: u64,
            interval in 1u32..=1 << 30,
            heap: u8,
        ) {
            let interval = Interval::nearest(interval);
            let block = LiveBlock::new(size_bytes, time_us * 1000, stack_id, interval, heap);
            prop_assert_eq!(block.size_bytes(), size_bytes);
            prop_assert_eq!(block.time_ns(), time_us * 1000);
            prop_assert_eq!(block.stack_id(), stack_id);
            prop_assert_eq!(block.interval(), interval);
            prop_assert_eq!(block.heap(), heap);
        }
    }

    #[test]
    fn addresses_spread_over_the_slots() {
        // Blocks of a heap, pages, thread arenas that start alike, and huge pages.
        for stride in [64, 4096, 64 << 20, 2 << 20] {
            let mut counts = vec![0u32; LIVE_FILTER_SLOTS as usize];
            for i in 0..u64::from(LIVE_FILTER_SLOTS) / 4 {
                counts[LiveKey::new(1, 0x7f12_3456_0010 + i * stride).filter_slot() as usize] += 1;
            }
            let most = counts.iter().max().copied().unwrap_or(0);
            assert!(most <= 16, "{most} blocks, {stride} bytes apart, in one slot");
        }
    }

    #[test]
    fn slots_exclude_blocks_that_are_not_in_them() {
        let [one, other] = [0x7f00_0000_1000, 0x7f00_0000_1010].map(|address| LiveKey::new(1, address));
        assert_eq!(one.filter_slot(), other.filter_slot());
        let slot = one.filter_word();
        assert!(!one.is_excluded_by(slot) && other.is_excluded_by(slot) && one.is_excluded_by(0));
        let slot = slot + other.filter_word();
        assert!(!one.is_excluded_by(slot) && !other.is_excluded_by(slot));
        let slot = slot - one.filter_word();
        assert!(one.is_excluded_by(slot) && !other.is_excluded_by(slot));
        const { assert!(FILTER_FULL + 65_000 * 0xffff_ffff < FILTER_FULL + FILTER_ONE) };
    }

    #[test]
    fn sizes_saturate() {
        let block = LiveBlock::new(u64::MAX, 0, 1, Interval::EXACT, 0);
        assert_eq!((block.size_bytes(), block.interval()), ((1 << SIZE_BITS) - 1, Interval::EXACT));
    }
}
