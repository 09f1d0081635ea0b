//! What is counted for a target, a heap or a callsite.

use crate::units::{EstimatedBytes, EstimatedCount, MonotonicNanos, Weight};

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
        (self.peak_bytes, self.peak_time) = (EstimatedBytes::ZERO, None);
    }

    /// A block was allocated.
    pub fn allocate(&mut self, weight: Weight, time: MonotonicNanos) {
        self.alloc_count += weight.count;
        self.alloc_bytes += weight.bytes;
        if self.live_bytes() > self.peak_bytes {
            self.peak_bytes = self.live_bytes();
            self.peak_time = Some(time);
        }
    }

    /// A block was freed.
    pub fn free(&mut self, weight: Weight) {
        self.free_count += weight.count;
        self.free_bytes += weight.bytes;
    }

    /// A block that was thought freed was not: takes [`free`](Self::free) back.
    pub fn restore(&mut self, weight: Weight) {
        self.free_count -= weight.count;
        self.free_bytes -= weight.bytes;
    }
}
