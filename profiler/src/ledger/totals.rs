//! What is counted for a target, a heap or a callsite.

use crate::units::{EstimatedBytes, EstimatedCount, MonotonicNanos, Weight};

/// Estimates over everything seen since the session began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Blocks allocated.
    pub alloc_count: EstimatedCount,
    /// Bytes allocated.
    pub alloc_bytes: EstimatedBytes,
    /// Blocks freed, of those that were allocated during the session.
    pub free_count: EstimatedCount,
    /// Bytes freed, of those that were allocated during the session.
    pub free_bytes: EstimatedBytes,
    /// The most bytes that were live at once.
    pub peak_bytes: EstimatedBytes,
    /// When that was; `None` when nothing was ever live.
    pub peak_time: Option<MonotonicNanos>,
}

impl Totals {
    /// Blocks allocated and not freed.
    #[must_use]
    pub fn live_count(&self) -> EstimatedCount {
        self.alloc_count - self.free_count
    }

    /// Bytes allocated and not freed.
    #[must_use]
    pub fn live_bytes(&self) -> EstimatedBytes {
        self.alloc_bytes - self.free_bytes
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
