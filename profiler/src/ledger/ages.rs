//! How old live blocks are: told when it is asked for, by one pass over all of them, so that events pay nothing for it.

use profiler_common::interval::Interval;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::Ledger;
use super::histogram::Histogram;
use crate::units::{EstimatedCount, EstimatedMicros, MonotonicNanos, Weight};

/// How old blocks are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ages {
    /// The oldest, in nanoseconds; right to half a tick of the ledger, 8.4 ms. `None` when none is live.
    pub oldest_ns: Option<u64>,
    /// All, in microseconds.
    pub histogram: Histogram,
    /// All added up.
    pub total: EstimatedMicros,
}

impl Ages {
    /// A block that was made at `born` is live at `now`.
    pub(super) fn note(&mut self, born: MonotonicNanos, now: MonotonicNanos, count: EstimatedCount) {
        let age_ns = now.0.saturating_sub(born.0);
        self.oldest_ns = self.oldest_ns.max(Some(age_ns));
        self.histogram.add(age_ns / 1000, count);
        self.total += count.lasting(age_ns / 1000);
    }

    /// Adds others.
    pub fn add(&mut self, other: &Self) {
        self.oldest_ns = self.oldest_ns.max(other.oldest_ns);
        self.histogram.join(&other.histogram);
        self.total += other.total;
    }

    /// The age that half of the blocks are below, in nanoseconds: see [`Histogram::median`]. `None` when none is live.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "`as` saturates, and ages are not negative"
    )]
    pub fn median_ns(&self) -> Option<u64> {
        let oldest_us = self.oldest_ns? / 1000;
        Some((self.histogram.median(oldest_us)? * 1000.0) as u64)
    }
}

/// The ages of callsites by their index. Those that hold nothing are not in it.
pub(super) type AgesByCallsite = FxHashMap<u32, Ages>;

impl Ledger {
    /// The ages at `now` of all that is live, by callsite.
    pub(super) fn ages(&self, now: MonotonicNanos) -> AgesByCallsite {
        let mut ages = vec![Ages::default(); self.callsites.len()];
        let mut counts = Counts::new();
        for (_, block) in self.live.iter() {
            let count = counts.of(block.size_bytes, block.interval);
            ages[block.callsite as usize].note(block.time, now, count);
        }
        for (callsite, mapped) in self.ranges.mappings() {
            ages[callsite as usize].note(mapped, now, EstimatedCount::exact(1));
        }
        (0..).zip(ages).filter(|(_, ages)| ages.oldest_ns.is_some()).collect()
    }
}

/// Blocks that one sample stands for. Sizes repeat, and working it out takes longer than all the rest of a pass.
struct Counts {
    known: Vec<(u64, Interval, EstimatedCount)>,
}

impl Counts {
    const PLACES: usize = 4096;

    fn new() -> Self {
        let empty = (0, Interval::EXACT, EstimatedCount::exact(1));
        Self { known: vec![empty; Self::PLACES] }
    }

    fn of(&mut self, size_bytes: u64, interval: Interval) -> EstimatedCount {
        if size_bytes >= u64::from(interval.bytes()) {
            return EstimatedCount::exact(1);
        }
        // Below the interval, which has 30 bits.
        let place = usize::try_from(size_bytes ^ size_bytes >> 12).unwrap_or(0) % Self::PLACES;
        let known = &mut self.known[place];
        if (known.0, known.1) != (size_bytes, interval) {
            *known = (size_bytes, interval, Weight::of(size_bytes, interval).count);
        }
        known.2
    }
}
