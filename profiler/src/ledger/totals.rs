//! What is counted for a target, a heap or a callsite.

use crate::units::{EstimatedBytes, EstimatedCount, EstimatedVariance, MonotonicNanos, Weight};

/// Standard deviations to both sides that hold 95 % of a normal distribution.
pub(crate) const Z_95: f64 = 1.959_963_984_540_054;

/// Variances of estimated bytes and blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

    fn join(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.count += other.count;
    }
}

/// Estimates over everything seen since the session began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Blocks that a forked process began with: copies of what was live in its parent.
    pub inherited_count: EstimatedCount,
    /// Their bytes.
    pub inherited_bytes: EstimatedBytes,
    /// Blocks allocated.
    pub alloc_count: EstimatedCount,
    /// Bytes allocated.
    pub alloc_bytes: EstimatedBytes,
    /// Blocks freed, of those that were inherited or allocated during the session.
    pub free_count: EstimatedCount,
    /// Bytes freed, of those that were inherited or allocated during the session.
    pub free_bytes: EstimatedBytes,
    /// Samples that the allocated amounts are estimated from.
    pub alloc_samples: u64,
    /// Samples that the live amounts are estimated from.
    pub live_samples: u64,
    /// How far off the allocated amounts may be.
    pub alloc_variance: Variance,
    /// How far off the live amounts may be.
    pub live_variance: Variance,
    /// The most bytes that were live at once.
    pub peak_bytes: EstimatedBytes,
    /// When that was; `None` when nothing was ever live.
    pub peak_time: Option<MonotonicNanos>,
}

impl Totals {
    /// What a copy of a process begins with, whose parent has done this.
    #[must_use]
    pub fn inherit(&self) -> Self {
        Self {
            inherited_count: self.live_count(),
            inherited_bytes: self.live_bytes(),
            live_samples: self.live_samples,
            live_variance: self.live_variance,
            peak_bytes: self.live_bytes(),
            ..Self::default()
        }
    }

    /// Blocks inherited or allocated, and not freed.
    #[must_use]
    pub fn live_count(&self) -> EstimatedCount {
        self.inherited_count + self.alloc_count - self.free_count
    }

    /// Bytes inherited or allocated, and not freed.
    #[must_use]
    pub fn live_bytes(&self) -> EstimatedBytes {
        self.inherited_bytes + self.alloc_bytes - self.free_bytes
    }

    /// The 95 % confidence interval of an estimate y with variance v: the truths μ from which y is at most 1.96 standard
    /// deviations away, the variance at μ being v·μ/y, since it grows with what there is to sample (Wilson's score interval,
    /// 1927, for a compound Poisson sum). With few samples that holds the truth more often than y ± 1.96·√v does, and it
    /// does not reach below 0; with many it is the same. Where nothing was sampled nothing can be said: both ends are y.
    #[must_use]
    pub fn confidence(estimate: f64, variance: EstimatedVariance) -> [f64; 2] {
        let variance = variance.to_f64();
        if estimate <= 0.0 || variance <= 0.0 {
            return [estimate; 2];
        }
        let half_shift = Z_95 * Z_95 * variance / estimate / 2.0;
        let margin = (2.0 * half_shift * estimate + half_shift * half_shift).sqrt();
        [estimate + half_shift - margin, estimate + half_shift + margin]
    }

    /// The variance of an estimate of which [`confidence`](Self::confidence) gave this interval; 0 where it said nothing.
    #[must_use]
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
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What two have done together. Peaks are of different moments: theirs is not known.
    pub fn add(&mut self, other: &Self) {
        self.inherited_count += other.inherited_count;
        self.inherited_bytes += other.inherited_bytes;
        self.alloc_count += other.alloc_count;
        self.alloc_bytes += other.alloc_bytes;
        self.free_count += other.free_count;
        self.free_bytes += other.free_bytes;
        // Totals can come from files.
        self.alloc_samples = self.alloc_samples.saturating_add(other.alloc_samples);
        self.live_samples = self.live_samples.saturating_add(other.live_samples);
        self.alloc_variance.join(&other.alloc_variance);
        self.live_variance.join(&other.live_variance);
        (self.peak_bytes, self.peak_time) = (EstimatedBytes::ZERO, None);
    }

    /// A block was allocated.
    pub fn allocate(&mut self, weight: Weight, time: MonotonicNanos) {
        self.alloc_count += weight.count;
        self.alloc_bytes += weight.bytes;
        self.alloc_samples += weight.samples;
        self.alloc_variance.add(weight);
        self.live_samples += weight.samples;
        self.live_variance.add(weight);
        if self.live_bytes() > self.peak_bytes {
            self.peak_bytes = self.live_bytes();
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

    /// A block that was thought freed was not: takes [`free`](Self::free) back.
    pub fn restore(&mut self, weight: Weight) {
        self.free_count -= weight.count;
        self.free_bytes -= weight.bytes;
        self.live_samples += weight.samples;
        self.live_variance.add(weight);
    }
}
