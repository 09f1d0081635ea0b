//! Pages of memory as blocks: which of them are sampled.
//!
//! Whether a page is sampled is a function of its address, as in Waldspurger et al., "Efficient MRC Construction with SHARDS" (FAST 2015):
//! a hash of the address is below the probability with which a block of that size is sampled. A page that is touched again, by another
//! thread or in a forked child, is in the sample again or is not; a longer interval leaves a part of the sample; and the agent knows which
//! pages of a huge page are in it.

use crate::stack::StackHasher;

/// Set in the addresses of pages among those of blocks: a block may begin where a page does. No process has memory there.
pub const PAGE_FLAG: u64 = 1 << 63;

/// Number of the heap of pages, where they are recorded: it is the first one.
pub const PAGES_HEAP: u8 = 0;

/// Number of the hook of pages in records: that of no function.
pub const PAGES_HOOK: u16 = u16::MAX;

/// Binary logarithm of the size of the ranges whose first touch is reported: a huge page of x86-64, and of aarch64 with pages of 4 KiB.
pub const RANGE_SHIFT: u32 = 21;

/// Id of a range among those of stacks: the kernel side remembers both in one table. `memory` distinguishes the program from others that the
/// process has executed.
#[inline(always)]
pub fn range_id(seed: u64, tgid: u32, memory: u32, page: u64) -> u64 {
    let mut hasher = StackHasher::new(seed, tgid);
    hasher.add(page >> RANGE_SHIFT);
    hasher.add(memory as u64);
    hasher.finish()
}

/// Position of a page in the sample: uniform in 64 bits. `page` is its address, `seed` a random number of the session, so that a target
/// cannot choose pages that are not sampled.
#[inline(always)]
pub const fn position(page: u64, seed: u64) -> u64 {
    // The finaliser of MurmurHash3 (Appleby, 2011), a bijection.
    let mut hash = page ^ seed;
    hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ hash >> 33
}

/// Whether a page at this position is sampled at an interval. `inverse` is `⌊2^64 / T⌋`, as in
/// [`SamplingRate`](crate::sampling::SamplingRate).
#[inline(always)]
pub fn is_sampled(
    position: u64,
    page_bytes: u64,
    interval_bytes: u64,
    inverse: u64,
    probability: impl Fn(u64) -> u64,
) -> bool {
    page_bytes >= interval_bytes || position < probability(page_bytes.wrapping_mul(inverse))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interval::Interval;
    use crate::sampling::{SamplingRate, probability};

    const PAGE_BYTES: u64 = 4096;

    fn sampled(interval: Interval, seed: u64) -> Vec<u64> {
        let rate = SamplingRate::new(interval);
        let is_sampled = |page: &u64| {
            let position = position(*page, seed);
            is_sampled(position, PAGE_BYTES, rate.interval_bytes.into(), rate.inverse, probability)
        };
        (0..1 << 18).map(|number| 0x7f00_0000_0000 + number * PAGE_BYTES).filter(is_sampled).collect()
    }

    #[test]
    fn pages_are_sampled_as_often_as_blocks_of_their_size() {
        for seed in [0, 1, 0x9e37_79b9_7f4a_7c15] {
            for interval in [64 << 10, 512 << 10, 4 << 20] {
                let count = sampled(Interval::nearest(interval), seed).len();
                let x = PAGE_BYTES as f64 / f64::from(interval);
                let expected = -f64::from(1 << 18) * (-x).exp_m1();
                let deviation = (count as f64 - expected) / expected.sqrt();
                assert!(deviation.abs() < 4.0, "{count} of {expected} at {interval}, {seed}");
            }
        }
        assert_eq!(sampled(Interval::EXACT, 7).len(), 1 << 18);
        assert_eq!(sampled(Interval::nearest(4096), 7).len(), 1 << 18);
    }

    #[test]
    fn longer_intervals_leave_a_part_of_the_sample() {
        let before = sampled(Interval::nearest(64 << 10), 7);
        let after = sampled(Interval::nearest(256 << 10), 7);
        assert!(after.iter().all(|page| before.contains(page)) && after.len() * 3 < before.len());
    }
}
