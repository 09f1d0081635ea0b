//! Counters of a target, a heap or a callsite, and their changes.

use derive_more::Add;
use heapbpf_base::units::{Amounts, Cubes, EstimatedBytes, EstimatedCount, MonotonicNanos, Variance};
use serde::{Deserialize, Serialize};

use super::confidence::Z_95;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Movement {
    /// A block was allocated, or memory mapped.
    In(Amounts),
    /// A block was allocated that is not followed: it is never live.
    Passed(Amounts),
    /// A block turned out to be live since before recording started.
    Opening(Amounts),
    /// A block was freed, or memory unmapped; a part of a mapping counts as no block unless it is the last.
    Out(Amounts),
    /// A free was undone: the block is still live.
    Back(Amounts),
    /// The weight of a live block changed; the new one is 0 if the block is no longer sampled.
    Reweighed { from: Amounts, to: Amounts },
    /// The weight of a block that has been freed changed.
    FreedReweighed { from: Amounts, to: Amounts },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The callsite's [`CallsiteSnapshot::index`](super::snapshot::CallsiteSnapshot::index).
    pub callsite: u32,
    pub movement: Movement,
}

/// Estimates over a time span: since the recording began, or of a window (see [`since`](Self::since)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Blocks live at the start. For a whole recording these are the blocks that a forked process inherited, and those of
    /// the inventory.
    pub opening_count: EstimatedCount,
    pub opening_bytes: EstimatedBytes,
    pub alloc_count: EstimatedCount,
    pub alloc_bytes: EstimatedBytes,
    /// Number of freed blocks among those that were live at the start or allocated since.
    pub free_count: EstimatedCount,
    pub free_bytes: EstimatedBytes,
    pub alloc_samples: u64,
    pub live_samples: u64,
    pub alloc_variance: Variance,
    pub live_variance: Variance,
    /// Maximum of live bytes since the recording began, also in a window.
    pub peak_bytes: EstimatedBytes,
    pub peak_count: EstimatedCount,
    /// Time of the peak; `None` if nothing was ever live.
    pub peak_time: Option<MonotonicNanos>,
    /// Amounts of this callsite or heap that were live when the live bytes of the *target* peaked. Set in snapshots only.
    pub at_peak: Amounts,
}

impl Totals {
    pub fn inherit(&self) -> Self {
        let (count, bytes) = (self.live_count(), self.live_bytes());
        Self {
            opening_count: count,
            opening_bytes: bytes,
            live_samples: self.live_samples,
            live_variance: self.live_variance,
            peak_bytes: bytes,
            peak_count: count,
            ..Self::default()
        }
    }

    /// The difference to `base`, an earlier state of the same ledger: amounts that were live then are the opening balance;
    /// variances of allocations are differences too, since each block adds its own. Peaks remain those of the whole recording:
    /// the peak within a window does not follow from its ends.
    pub fn since(&self, base: &Self) -> Self {
        let mut window = *self;
        // If `base` predates the process it is empty, and the inherited blocks are the opening balance.
        window.opening_count += base.live_count() - base.opening_count;
        window.opening_bytes += base.live_bytes() - base.opening_bytes;
        window.alloc_count -= base.alloc_count;
        window.alloc_bytes -= base.alloc_bytes;
        window.free_count -= base.free_count;
        window.free_bytes -= base.free_bytes;
        window.alloc_samples = self.alloc_samples.saturating_sub(base.alloc_samples);
        window.alloc_variance -= base.alloc_variance;
        window
    }

    pub fn is_idle(&self) -> bool {
        let bytes = [self.alloc_bytes, self.free_bytes, self.live_bytes()];
        let counts = [self.alloc_count, self.free_count, self.live_count()];
        bytes == [EstimatedBytes::ZERO; 3] && counts == [EstimatedCount::ZERO; 3]
    }

    /// Totals of the state at the peak: live amounts count as allocated and not freed, or, if `inherited`, as the opening
    /// balance.
    pub(super) fn of_peak(&self, inherited: bool) -> Self {
        let Amounts { count, bytes, samples, variance } = self.at_peak;
        let live = Self { live_samples: samples, live_variance: variance, ..self.only_peak() };
        if inherited {
            Self { opening_count: count, opening_bytes: bytes, ..live }
        } else {
            Self { alloc_count: count, alloc_bytes: bytes, alloc_samples: samples, alloc_variance: variance, ..live }
        }
    }

    pub(super) fn only_peak(&self) -> Self {
        let Self { peak_bytes, peak_count, peak_time, at_peak, .. } = *self;
        Self { peak_bytes, peak_count, peak_time, at_peak, ..Self::default() }
    }

    pub fn live(&self) -> Amounts {
        let (samples, variance) = (self.live_samples, self.live_variance);
        Amounts { count: self.live_count(), bytes: self.live_bytes(), samples, variance }
    }

    pub fn allocated(&self) -> Amounts {
        let (samples, variance) = (self.alloc_samples, self.alloc_variance);
        Amounts { count: self.alloc_count, bytes: self.alloc_bytes, samples, variance }
    }

    pub fn delta_count(&self) -> EstimatedCount {
        self.alloc_count - self.free_count
    }

    pub fn delta_bytes(&self) -> EstimatedBytes {
        self.alloc_bytes - self.free_bytes
    }

    pub fn live_count(&self) -> EstimatedCount {
        self.opening_count + self.alloc_count - self.free_count
    }

    pub fn live_bytes(&self) -> EstimatedBytes {
        self.opening_bytes + self.alloc_bytes - self.free_bytes
    }

    /// The variance behind an interval of reports that lack variances, which have the score interval after Wilson
    /// (1927): the true values μ from which the estimate is at most 1.96 standard deviations away, if the variance is
    /// proportional to μ. Returns 0 for an empty interval.
    pub fn variance_of(estimate: f64, [low, high]: [f64; 2]) -> f64 {
        let margin = (high - low) / 2.0;
        if estimate <= 0.0 || margin <= 0.0 {
            return 0.0;
        }
        // With h the shift of the center: margin² = 2·h·estimate + h².
        let shift = margin * margin / (estimate + estimate.hypot(margin));
        2.0 * shift * estimate / (Z_95 * Z_95)
    }

    /// Whether no counter is near an overflow; estimates are checked when they are read.
    pub fn is_sound(&self) -> bool {
        self.alloc_samples.max(self.live_samples).max(self.at_peak.samples) < u64::MAX / 2
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn cubes_mut(&mut self) -> [&mut Cubes; 3] {
        [&mut self.alloc_variance, &mut self.live_variance, &mut self.at_peak.variance].map(|it| &mut it.cubes)
    }

    /// Adds other totals. The result has no peak: the two peaked at different times.
    pub fn add(&mut self, other: &Self) {
        self.opening_count += other.opening_count;
        self.opening_bytes += other.opening_bytes;
        self.alloc_count += other.alloc_count;
        self.alloc_bytes += other.alloc_bytes;
        self.free_count += other.free_count;
        self.free_bytes += other.free_bytes;
        // Totals can come from files.
        self.alloc_samples = self.alloc_samples.saturating_add(other.alloc_samples);
        self.live_samples = self.live_samples.saturating_add(other.live_samples);
        self.alloc_variance += other.alloc_variance;
        self.live_variance += other.live_variance;
        self.set_peak(&Self::default());
    }

    pub(super) fn set_peak(&mut self, other: &Self) {
        let Self { peak_bytes, peak_count, peak_time, at_peak, .. } = *other;
        *self = Self { peak_bytes, peak_count, peak_time, at_peak, ..*self };
    }

    pub fn allocate(&mut self, block: Amounts, time: MonotonicNanos) {
        self.alloc_count += block.count;
        self.alloc_bytes += block.bytes;
        self.alloc_samples += block.samples;
        self.alloc_variance += block.variance;
        self.live_samples += block.samples;
        self.live_variance += block.variance;
        self.raise_peak(time);
    }

    /// Counts a block that is not followed: a block that is not known to be live is not counted as live.
    pub fn pass(&mut self, block: Amounts) {
        self.alloc_count += block.count;
        self.alloc_bytes += block.bytes;
        self.alloc_samples += block.samples;
        self.alloc_variance += block.variance;
        self.free_count += block.count;
        self.free_bytes += block.bytes;
    }

    /// Counts a block that has been live since the start.
    pub fn open(&mut self, block: Amounts, time: MonotonicNanos) {
        self.opening_count += block.count;
        self.opening_bytes += block.bytes;
        self.live_samples += block.samples;
        self.live_variance += block.variance;
        self.raise_peak(time);
    }

    fn raise_peak(&mut self, time: MonotonicNanos) {
        if self.live_bytes() > self.peak_bytes {
            self.peak_bytes = self.live_bytes();
            self.peak_count = self.live_count();
            self.peak_time = Some(time);
        }
    }

    pub fn free(&mut self, block: Amounts) {
        self.free_count += block.count;
        self.free_bytes += block.bytes;
        self.live_samples = self.live_samples.saturating_sub(block.samples);
        self.live_variance -= block.variance;
    }

    /// Counts a block as still live, which turned out at `time`.
    pub fn restore(&mut self, block: Amounts, time: MonotonicNanos) {
        self.free_count -= block.count;
        self.free_bytes -= block.bytes;
        self.live_samples += block.samples;
        self.live_variance += block.variance;
        self.raise_peak(time);
    }

    /// Changes the weight of a block. `inherited` selects which sum contains the block.
    pub fn reweigh(&mut self, from: Amounts, to: Amounts, inherited: bool) {
        self.reweigh_origin(from, to, inherited);
        self.live_samples = (self.live_samples + to.samples).saturating_sub(from.samples);
        self.live_variance += to.variance;
        self.live_variance -= from.variance;
    }

    /// Changes the weight of a block that has been freed, like [`reweigh`](Self::reweigh).
    pub fn reweigh_freed(&mut self, from: Amounts, to: Amounts, inherited: bool) {
        self.reweigh_origin(from, to, inherited);
        self.free_count += to.count - from.count;
        self.free_bytes += to.bytes - from.bytes;
    }

    fn reweigh_origin(&mut self, from: Amounts, to: Amounts, inherited: bool) {
        if inherited {
            self.opening_count += to.count - from.count;
            self.opening_bytes += to.bytes - from.bytes;
        } else {
            self.alloc_count += to.count - from.count;
            self.alloc_bytes += to.bytes - from.bytes;
            self.alloc_samples = (self.alloc_samples + to.samples).saturating_sub(from.samples);
            self.alloc_variance += to.variance;
            self.alloc_variance -= from.variance;
        }
    }
}

/// Amounts at one point in time as floats, for curves and tables over time. Exact up to 2^53 where the totals are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Add, Serialize, Deserialize)]
pub struct HeapUsage {
    pub live_bytes: f64,
    pub live_count: f64,
    /// Bytes that were allocated since the recording began.
    pub alloc_bytes: f64,
    pub alloc_count: f64,
}

impl HeapUsage {
    /// Usage at the end of `totals`, which must be those of a whole recording.
    pub fn of(totals: &Totals) -> Self {
        Self {
            live_bytes: totals.live_bytes().to_f64(),
            live_count: totals.live_count().to_f64(),
            alloc_bytes: totals.alloc_bytes.to_f64(),
            alloc_count: totals.alloc_count.to_f64(),
        }
    }

    /// Usage at the start of a forked child: the blocks that it has inherited.
    pub fn at_first(totals: &Totals) -> Self {
        Self { live_bytes: totals.opening_bytes.to_f64(), live_count: totals.opening_count.to_f64(), ..Self::default() }
    }

    pub fn is_sound(&self) -> bool {
        [self.live_bytes, self.live_count, self.alloc_bytes, self.alloc_count].iter().all(|sum| sum.is_finite())
    }
}
