//! What is counted for a target, a heap or a callsite.

use serde::{Deserialize, Serialize};

use crate::units::{EstimatedBytes, EstimatedCount, EstimatedVariance, MonotonicNanos, Weight};

/// Standard deviations to both sides that hold 95 % of a normal distribution.
pub(crate) const Z_95: f64 = 1.959_963_984_540_054;

/// Variances of estimated bytes and blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variance {
    /// Of bytes.
    pub bytes: EstimatedVariance,
    /// Of blocks.
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

    /// What has been added since `base`.
    fn since(&self, base: &Self) -> Self {
        Self { bytes: self.bytes - base.bytes, count: self.count - base.count }
    }

    fn join(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.count += other.count;
    }
}

/// What is live at an instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amounts {
    /// Blocks.
    pub count: EstimatedCount,
    /// Bytes.
    pub bytes: EstimatedBytes,
    /// Samples that these are estimated from.
    pub samples: u64,
    /// How far off they may be.
    pub variance: Variance,
}

impl Amounts {
    /// Adds a block.
    pub(super) fn take_in(&mut self, weight: Weight) {
        self.count += weight.count;
        self.bytes += weight.bytes;
        self.samples += weight.samples;
        self.variance.add(weight);
    }

    /// Adds what is live elsewhere at the same instant.
    pub fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.bytes += other.bytes;
        self.samples += other.samples;
        self.variance.join(&other.variance);
    }
}

/// Estimates over a span of time: all since the recording began, or a window (see [`since`](Self::since)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Blocks that were live at the beginning: for a recording, what a forked process began with, copies of what was live in
    /// its parent.
    pub opening_count: EstimatedCount,
    /// Their bytes.
    pub opening_bytes: EstimatedBytes,
    /// Blocks allocated.
    pub alloc_count: EstimatedCount,
    /// Bytes allocated.
    pub alloc_bytes: EstimatedBytes,
    /// Blocks freed, of those that were live at the beginning or allocated since.
    pub free_count: EstimatedCount,
    /// Bytes freed, of those that were live at the beginning or allocated since.
    pub free_bytes: EstimatedBytes,
    /// Samples that the allocated amounts are estimated from.
    pub alloc_samples: u64,
    /// Samples that the live amounts are estimated from.
    pub live_samples: u64,
    /// How far off the allocated amounts may be.
    pub alloc_variance: Variance,
    /// How far off the live amounts may be.
    pub live_variance: Variance,
    /// The most bytes that were live at once since the recording began, also in a window.
    pub peak_bytes: EstimatedBytes,
    /// Blocks that were live then.
    pub peak_count: EstimatedCount,
    /// When that was; `None` when nothing was ever live.
    pub peak_time: Option<MonotonicNanos>,
    /// What was live here when the *target's* live bytes were at their highest since the recording began. Known in
    /// snapshots only.
    pub at_peak: Amounts,
}

impl Totals {
    /// What a copy of a process begins with, whose parent has done this.
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

    /// What has happened since `base`, an earlier state of the same books: what was live then is the opening balance,
    /// allocated and freed are differences, live is what it is now. Variances of what was allocated are differences too: each
    /// block adds its own, whenever it comes. Peaks stay those of the whole recording: the highest within a part of it cannot
    /// be told from its ends.
    pub fn since(&self, base: &Self) -> Self {
        let opening = base.live();
        Self {
            // A base that these books did not have yet is empty, and they begin with what they were born with.
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

    /// Nothing was allocated or freed in this span, and nothing is live at its end.
    pub fn is_idle(&self) -> bool {
        let bytes = [self.alloc_bytes, self.free_bytes, self.live_bytes()];
        let counts = [self.alloc_count, self.free_count, self.live_count()];
        bytes == [EstimatedBytes::ZERO; 3] && counts == [EstimatedCount::ZERO; 3]
    }

    /// Only what was live at the peak is known: it counts as allocated and not freed, or, of blocks that were there before
    /// (`inherited`), as the opening balance.
    pub(super) fn of_peak(&self, inherited: bool) -> Self {
        let Amounts { count, bytes, samples, variance } = self.at_peak;
        let held = Self { live_samples: samples, live_variance: variance, ..self.only_peak() };
        if inherited {
            Self { opening_count: count, opening_bytes: bytes, ..held }
        } else {
            Self { alloc_count: count, alloc_bytes: bytes, alloc_samples: samples, alloc_variance: variance, ..held }
        }
    }

    /// Nothing but the peak's fields.
    pub(super) fn only_peak(&self) -> Self {
        let Self { peak_bytes, peak_count, peak_time, at_peak, .. } = *self;
        Self { peak_bytes, peak_count, peak_time, at_peak, ..Self::default() }
    }

    /// What is live.
    pub fn live(&self) -> Amounts {
        Amounts {
            count: self.live_count(),
            bytes: self.live_bytes(),
            samples: self.live_samples,
            variance: self.live_variance,
        }
    }

    /// Blocks more live at the end than at the beginning.
    pub fn delta_count(&self) -> EstimatedCount {
        self.alloc_count - self.free_count
    }

    /// Bytes more live at the end than at the beginning.
    pub fn delta_bytes(&self) -> EstimatedBytes {
        self.alloc_bytes - self.free_bytes
    }

    /// Blocks of the opening balance or allocated, and not freed.
    pub fn live_count(&self) -> EstimatedCount {
        self.opening_count + self.alloc_count - self.free_count
    }

    /// Bytes of the opening balance or allocated, and not freed.
    pub fn live_bytes(&self) -> EstimatedBytes {
        self.opening_bytes + self.alloc_bytes - self.free_bytes
    }

    /// The 95 % confidence interval of an estimate y with variance v: the truths μ from which y is at most 1.96 standard
    /// deviations away, the variance at μ being v·μ/y, since it grows with what there is to sample (Wilson's score interval,
    /// 1927, for a compound Poisson sum). With few samples that holds the truth more often than y ± 1.96·√v does, and it
    /// does not reach below 0; with many it is the same. Where nothing was sampled nothing can be said: both ends are y.
    pub fn confidence(estimate: f64, variance: EstimatedVariance) -> [f64; 2] {
        let variance = variance.to_f64();
        if estimate <= 0.0 || variance <= 0.0 {
            return [estimate; 2];
        }
        let half_shift = Z_95 * Z_95 * variance / estimate / 2.0;
        let margin = (2.0 * half_shift * estimate + half_shift * half_shift).sqrt();
        [estimate + half_shift - margin, estimate + half_shift + margin]
    }

    /// Whether no sum is near the end of its number.
    pub fn is_sound(&self) -> bool {
        let bytes = [self.opening_bytes, self.alloc_bytes, self.free_bytes, self.peak_bytes, self.at_peak.bytes];
        let counts = [self.opening_count, self.alloc_count, self.free_count, self.peak_count, self.at_peak.count];
        let variances = [self.alloc_variance, self.live_variance, self.at_peak.variance];
        bytes.iter().all(|sum| sum.is_sound())
            && counts.iter().all(|sum| sum.is_sound())
            && variances.iter().all(|sum| sum.bytes.is_sound() && sum.count.is_sound())
            && self.alloc_samples.max(self.live_samples).max(self.at_peak.samples) < u64::MAX / 2
    }

    /// The variance of an estimate of which [`confidence`](Self::confidence) gave this interval; 0 where it said nothing.
    pub fn variance_of(estimate: f64, [low, high]: [f64; 2]) -> f64 {
        let margin = (high - low) / 2.0;
        if estimate <= 0.0 || margin <= 0.0 {
            return 0.0;
        }
        // With h for the shift of the middle, margin² = 2·h·estimate + h².
        let shift = margin * margin / (estimate + estimate.hypot(margin));
        2.0 * shift * estimate / (Z_95 * Z_95)
    }

    /// Nothing was ever counted here.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What two have done together. Peaks are of different moments: theirs is not known.
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

    /// A block was allocated.
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

    /// A block was freed.
    pub fn free(&mut self, weight: Weight) {
        self.free_count += weight.count;
        self.free_bytes += weight.bytes;
        self.live_samples = self.live_samples.saturating_sub(weight.samples);
        self.live_variance.take(weight);
    }

    /// A live block that was taken to weigh `from` weighs `to`, whether it was there at the beginning (`inherited`) or was
    /// allocated.
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

    /// A block that was thought freed was not, as is learned at `time`: takes [`free`](Self::free) back.
    pub fn restore(&mut self, weight: Weight, time: MonotonicNanos) {
        self.free_count -= weight.count;
        self.free_bytes -= weight.bytes;
        self.live_samples += weight.samples;
        self.live_variance.add(weight);
        self.raise_peak(time);
    }
}
