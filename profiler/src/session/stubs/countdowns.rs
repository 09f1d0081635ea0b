//! First values of countdowns.

use heapbpf_base::ids::HeapId;
use profiler_common::interval::Interval;

use crate::probe::stub::{self, slot};

/// Random countdowns with an exponential distribution.
#[derive(Debug)]
pub(super) struct Countdowns(u64);

impl Countdowns {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the first countdowns of all heaps, whose slots are next to each other.
    pub(super) fn first(&mut self, size_bytes: u64, heaps: &[(HeapId, u64, Interval)], slots_per_heap: u32) -> Vec<u8> {
        let mut data = vec![0; usize::try_from(size_bytes).unwrap_or(0)];
        for (number, line) in data.chunks_exact_mut(slot::BYTES).enumerate() {
            let heap = heaps.get(number / slots_per_heap as usize);
            self.fill(line, heap.map_or(Interval::EXACT, |(.., interval)| *interval));
        }
        data
    }

    /// Samples the first countdown of a slot.
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "a random number of bytes")]
    fn fill(&mut self, line: &mut [u8], interval: Interval) {
        let uniform = (self.random() >> 11) as f64 / (1_u64 << 53) as f64;
        let countdown = (-(1.0 - uniform).ln() * f64::from(interval.bytes())).floor() as i64;
        stub::put(line, slot::COUNTDOWN, &countdown.to_ne_bytes());
        stub::put(line, slot::INTERVAL, &u64::from(interval.bytes()).to_ne_bytes());
        stub::put(line, slot::CODE, &interval.code().to_ne_bytes());
        stub::put(line, slot::NEXT_CODE, &interval.code().to_ne_bytes());
        stub::put(line, slot::RANDOM, &self.random().to_ne_bytes());
    }

    /// Next random number, by `SplitMix64`.
    fn random(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}
