//! Counters of a target, a heap or a callsite.

use serde::{Deserialize, Serialize};

use crate::units::{EstimatedBytes, EstimatedCount, EstimatedVariance, MonotonicNanos, Weight};

/// Standard deviations on either side of the mean that cover 95 % of a normal distribution.
pub(crate) const Z_95: f64 = 1.959_963_984_540_054;

/// Variances of estimated bytes and blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variance {
    pub bytes: EstimatedVariance,
    pub count: EstimatedVariance,
}

impl Variance {
    fn add(&mut self, weight: Weight) {
        self.bytes += weight.bytes_variance;
        self.count += weight.count_variance;
    }

    fn take(&mut self, weight: Weight) {
        self.bytes -= weight.bytes_variance;
        self.count -= weight.count_variance;
    }

    fn since(&self, base: &Self) -> Self {
        Self { bytes: self.bytes - base.bytes, count: self.count - base.count }
    }

    fn join(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.count += other.count;
    }
}

/// Live blocks at one point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amounts {
    pub count: EstimatedCount,
    pub bytes: EstimatedBytes,
    /// Number of samples that the estimates are based on.
    pub samples: u64,
    pub variance: Variance,
}

impl Amounts {
    pub(super) fn add_block(&mut self, weight: Weight) {
        self.count += weight.count;
        self.bytes += weight.bytes;
        self.samples += weight.samples;
        self.variance.add(weight);
    }

    pub fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.bytes += other.bytes;
        self.samples += other.samples;
        self.variance.join(&other.variance);
    }
}

/// Estimates over a time span: since the recording began, or of a window (see [`since`](Self::since)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Blocks live at the start. For a whole recording these are the blocks that a forked process inherited.
    pub opening_count: EstimatedCount,
    pub opening_bytes: EstimatedBytes,
    pub alloc_count: EstimatedCount,
    pub alloc_bytes: EstimatedBytes,
    /// Freed blocks, of those live at the start or allocated since.
    pub free_count: EstimatedCount,
    pub free_bytes: EstimatedBytes,
    /// Number of samples that the allocated amounts are estimated from.
    pub alloc_samples: u64,
    /// Number of samples that the live amounts are estimated from.
    pub live_samples: u64,
    pub alloc_variance: Variance,
    pub live_variance: Variance,
    /// Maximum of live bytes since the recording began, also in a window.
    pub peak_bytes: EstimatedBytes,
    /// Live blocks at that time.
    pub peak_count: EstimatedCount,
    /// Time of the maximum; `None` if nothing was ever live.
    pub peak_time: Option<MonotonicNanos>,
    /// Amounts live here when the live bytes of the *target* peaked. Set in snapshots only.
    pub at_peak: Amounts,
}

impl Totals {
    /// Returns the initial totals of a forked copy.
    pub fn inherit(&self) -> Self {
        Self {
            opening_count: self.live_count(),
            opening_bytes: self.live_bytes(),
            live_samples: self.live_samples,
            live_variance: self.live_variance,
            peak_bytes: self.live_bytes(),
            peak_count: self.live_count(),
            ..Self::default()
        }
    }

    /// Returns the difference to `base`, an earlier state of the same ledger: what was live then is the opening
    /// balance, allocated and freed are differences, live is the current state. The variances of allocations are
    /// differences too, since each block adds its own. Peaks remain those of the whole recording: the peak within a
    /// window does not follow from its ends.
    pub fn since(&self, base: &Self) -> Self {
        let opening = base.live();
        Self {
            // If `base` predates the process it is empty, and the inherited blocks are the opening balance.
            opening_count: self.opening_count - base.opening_count + opening.count,
            opening_bytes: self.opening_bytes - base.opening_bytes + opening.bytes,
            alloc_count: self.alloc_count - base.alloc_count,
            alloc_bytes: self.alloc_bytes - base.alloc_bytes,
            free_count: self.free_count - base.free_count,
            free_bytes: self.free_bytes - base.free_bytes,
            alloc_samples: self.alloc_samples.saturating_sub(base.alloc_samples),
            alloc_variance: self.alloc_variance.since(&base.alloc_variance),
            ..*self
        }
    }

    /// Returns whether nothing was allocated or freed in this span and nothing is live at its end.
    pub fn is_idle(&self) -> bool {
        let bytes = [self.alloc_bytes, self.free_bytes, self.live_bytes()];
        let counts = [self.alloc_count, self.free_count, self.live_count()];
        bytes == [EstimatedBytes::ZERO; 3] && counts == [EstimatedCount::ZERO; 3]
    }

    /// Returns the totals at the peak: what was live then counts as allocated and not freed, or, if `inherited`, as
    /// the opening balance.
    pub(super) fn of_peak(&self, inherited: bool) -> Self {
        let Amounts { count, bytes, samples, variance } = self.at_peak;
        let held = Self { live_samples: samples, live_variance: variance, ..self.only_peak() };
        if inherited {
            Self { opening_count: count, opening_bytes: bytes, ..held }
        } else {
            Self { alloc_count: count, alloc_bytes: bytes, alloc_samples: samples, alloc_variance: variance, ..held }
        }
    }

    /// Returns the peak fields alone.
    pub(super) fn only_peak(&self) -> Self {
        let Self { peak_bytes, peak_count, peak_time, at_peak, .. } = *self;
        Self { peak_bytes, peak_count, peak_time, at_peak, ..Self::default() }
    }

    pub fn live(&self) -> Amounts {
        Amounts {
            count: self.live_count(),
            bytes: self.live_bytes(),
            samples: self.live_samples,
            variance: self.live_variance,
        }
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

    /// The 95 % confidence interval of an estimate y with variance v: the true values μ from which y is at most 1.96
    /// standard deviations away, with a variance of v·μ/y at μ, since the variance is proportional to the amount
    /// sampled (Wilson's score interval, 1927, for a compound Poisson sum). With few samples it covers the true value
    /// more often than y ± 1.96·√v does, and it does not extend below 0; with many samples both are the same. Without
    /// samples the interval is [y, y].
    pub fn confidence(estimate: f64, variance: EstimatedVariance) -> [f64; 2] {
        let variance = variance.to_f64();
        if estimate <= 0.0 || variance <= 0.0 {
            return [estimate; 2];
        }
        let half_shift = Z_95 * Z_95 * variance / estimate / 2.0;
        let margin = (2.0 * half_shift * estimate + half_shift * half_shift).sqrt();
        [estimate + half_shift - margin, estimate + half_shift + margin]
    }

    /// Returns whether no sum is near an overflow.
    pub fn is_sound(&self) -> bool {
        let bytes = [self.opening_bytes, self.alloc_bytes, self.free_bytes, self.peak_bytes, self.at_peak.bytes];
        let counts = [self.opening_count, self.alloc_count, self.free_count, self.peak_count, self.at_peak.count];
        let variances = [self.alloc_variance, self.live_variance, self.at_peak.variance];
        bytes.iter().all(|sum| sum.is_sound())
            && counts.iter().all(|sum| sum.is_sound())
            && variances.iter().all(|sum| sum.bytes.is_sound() && sum.count.is_sound())
            && self.alloc_samples.max(self.live_samples).max(self.at_peak.samples) < u64::MAX / 2
    }

    /// Inverse of [`confidence`](Self::confidence): the variance of an estimate with this interval; 0 for an empty
    /// interval.
    pub fn variance_of(estimate: f64, [low, high]: [f64; 2]) -> f64 {
        let margin = (high - low) / 2.0;
        if estimate <= 0.0 || margin <= 0.0 {
            return 0.0;
        }
        // With h the shift of the center: margin² = 2·h·estimate + h².
        let shift = margin * margin / (estimate + estimate.hypot(margin));
        2.0 * shift * estimate / (Z_95 * Z_95)
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds the totals of another callsite or target. The result has no peak: the two peaked at different times.
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
        self.alloc_variance.join(&other.alloc_variance);
        self.live_variance.join(&other.live_variance);
        let Self { peak_bytes, peak_count, peak_time, at_peak, .. } = Self::default();
        *self = Self { peak_bytes, peak_count, peak_time, at_peak, ..*self };
    }

    pub fn allocate(&mut self, weight: Weight, time: MonotonicNanos) {
        self.alloc_count += weight.count;
        self.alloc_bytes += weight.bytes;
        self.alloc_samples += weight.samples;
        self.alloc_variance.add(weight);
        self.live_samples += weight.samples;
        self.live_variance.add(weight);
        self.raise_peak(time);
    }

    fn raise_peak(&mut self, time: MonotonicNanos) {
        if self.live_bytes() > self.peak_bytes {
            self.peak_bytes = self.live_bytes();
            self.peak_count = self.live_count();
            self.peak_time = Some(time);
        }
    }

    pub fn free(&mut self, weight: Weight) {
        self.free_count += weight.count;
        self.free_bytes += weight.bytes;
        self.live_samples = self.live_samples.saturating_sub(weight.samples);
        self.live_variance.take(weight);
    }

    /// Changes the weight of a live block from `from` to `to`; `inherited` selects which sum contains the block.
    pub fn reweigh(&mut self, from: Weight, to: Weight, inherited: bool) {
        if inherited {
            self.opening_count += to.count - from.count;
            self.opening_bytes += to.bytes - from.bytes;
        } else {
            self.alloc_count += to.count - from.count;
            self.alloc_bytes += to.bytes - from.bytes;
            self.alloc_samples = (self.alloc_samples + to.samples).saturating_sub(from.samples);
            self.alloc_variance.take(from);
            self.alloc_variance.add(to);
        }
        self.live_samples = (self.live_samples + to.samples).saturating_sub(from.samples);
        self.live_variance.take(from);
        self.live_variance.add(to);
    }

    /// Undoes [`free`](Self::free): at `time` it turned out that the block is still live.
    pub fn restore(&mut self, weight: Weight, time: MonotonicNanos) {
        self.free_count -= weight.count;
        self.free_bytes -= weight.bytes;
        self.live_samples += weight.samples;
        self.live_variance.add(weight);
        self.raise_peak(time);
    }
}

/// Live and cumulative amounts at one point in time as floats, for curves and tables over time. Exact up to 2^53 where the totals are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Held {
    pub live_bytes: f64,
    pub live_count: f64,
    /// Allocated since the recording began.
    pub alloc_bytes: f64,
    pub alloc_count: f64,
}

impl Held {
    /// Returns the current amounts, given the totals of a whole recording.
    pub fn of(totals: &Totals) -> Self {
        Self {
            live_bytes: totals.live_bytes().to_f64(),
            live_count: totals.live_count().to_f64(),
            alloc_bytes: totals.alloc_bytes.to_f64(),
            alloc_count: totals.alloc_count.to_f64(),
        }
    }

    /// Returns the initial amounts: those that a forked child inherited.
    pub fn at_first(totals: &Totals) -> Self {
        Self { live_bytes: totals.opening_bytes.to_f64(), live_count: totals.opening_count.to_f64(), ..Self::default() }
    }

    /// Validates amounts that were read from a file.
    pub fn is_sound(&self) -> bool {
        [self.live_bytes, self.live_count, self.alloc_bytes, self.alloc_count].iter().all(|sum| sum.is_finite())
    }
}
