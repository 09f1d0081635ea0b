//! A callsite (stack, heap, optionally a thread) with its totals and its state at the target's peak. Peak states are copied on
//! write: peaks are numbered, and a callsite saves its state before its first change after the latest peak. The present state of
//! a callsite that has not changed since the peak is its state at the peak.

use heapbpf_base::ids::{HeapId, StackId, Tid};
use heapbpf_base::units::{Amounts, EstimatedCount, EstimatedMicros};
use serde::{Deserialize, Serialize};

use super::details::{Ages, Details, Histogram};
use super::totals::Totals;

/// Number of a peak. It is incremented whenever the target's live bytes exceed their previous maximum.
pub(super) type PeakEpoch = u64;

pub(super) const BEFORE_PEAKS: PeakEpoch = 0;

/// Maximum of counters that are read from a file, so that adding to them cannot overflow.
pub(super) const COUNT_MAX: u64 = u64::MAX / 2;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Callsite {
    pub(super) stack: StackId,
    pub(super) heap: HeapId,
    /// Thread; `None` if threads are not distinguished or the thread is unknown.
    pub(super) thread: Option<Tid>,
    /// Whether the blocks were allocated by the parent, before the fork.
    pub(super) inherited: bool,
    /// Totals of the callsite, including the amounts at peak `saved`.
    totals: Totals,
    saved: PeakEpoch,
    pub(super) sizes: Histogram,
    lifetimes: Histogram,
    lifetime_total: EstimatedMicros,
    pub(super) temporary_count: u64,
}

impl Callsite {
    pub(super) fn new(stack: StackId, heap: HeapId, thread: Option<Tid>) -> Self {
        Self { stack, heap, thread, saved: BEFORE_PEAKS, ..Self::default() }
    }

    /// Callsite of a forked child, with the live blocks of this one. The thread remains the parent's.
    pub(super) fn inherit(&self) -> Self {
        let same = Self::new(self.stack, self.heap, self.thread);
        Self { inherited: true, totals: self.totals.inherit(), ..same }
    }

    /// Returns the totals to be changed, and saves the state at the latest `peak` of the target before.
    pub(super) fn change(&mut self, peak: PeakEpoch) -> &mut Totals {
        if self.saved != peak {
            self.totals.at_peak = self.totals.live();
            self.saved = peak;
        }
        &mut self.totals
    }

    pub(super) fn totals_mut(&mut self) -> &mut Totals {
        &mut self.totals
    }

    pub(super) fn totals_now(&self) -> &Totals {
        &self.totals
    }

    pub(super) fn totals(&self, peak: PeakEpoch) -> Totals {
        let at_peak: Amounts = if self.saved == peak { self.totals.at_peak } else { self.totals.live() };
        Totals { at_peak, ..self.totals }
    }

    pub(super) fn add_lifetime(&mut self, lifetime_us: u64, count: EstimatedCount) {
        self.lifetimes.add(lifetime_us, count);
        self.lifetime_total += count.lasting(lifetime_us);
    }

    /// Undoes [`add_lifetime`](Self::add_lifetime) for blocks that are still live.
    pub(super) fn remove_lifetime(&mut self, lifetime_us: u64, count: EstimatedCount) {
        self.lifetimes.take(lifetime_us, count);
        self.lifetime_total -= count.lasting(lifetime_us);
    }

    pub(super) fn is_sound(&self) -> bool {
        let histograms = self.sizes.is_sound() && self.lifetimes.is_sound();
        histograms && self.totals.is_sound() && self.temporary_count < COUNT_MAX
    }

    /// Details of the callsite. `counts_temporary` is whether all allocations of the heap were recorded.
    pub(super) fn details(&self, ages: Option<&Ages>, counts_temporary: bool) -> Details {
        Details {
            sizes: self.sizes.clone(),
            lifetimes: self.lifetimes.clone(),
            lifetime_total: self.lifetime_total,
            ages: ages.cloned().unwrap_or_default(),
            temporary_count: counts_temporary.then_some(self.temporary_count),
        }
    }
}
