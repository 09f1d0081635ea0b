//! One callsite in the books: a stack and a heap, and a thread where these are told apart; what they did, and what they held at the target's peak.
//!
//! The state at the peak costs nothing when the peak is reached: the target's peaks are numbered, and a callsite saves what
//! it holds before it changes for the first time after the latest. One that has not changed since holds now what it held
//! then.

use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};

use super::ages::Ages;
use super::details::Details;
use super::histogram::Histogram;
use super::totals::{Amounts, Totals};
use super::{BEFORE_PEAKS, Ledger};
use crate::ids::{HeapId, Pid, StackId, Tid};
use crate::units::{EstimatedCount, EstimatedMicros};

/// Number of the target's latest peak: it is raised by one whenever more is live than ever before.
pub(super) type PeakEpoch = u64;

/// Counters that can be added to for ever.
pub(super) const COUNT_MAX: u64 = u64::MAX / 2;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Callsite {
    pub(super) stack: StackId,
    pub(super) heap: HeapId,
    /// What allocated; `None` where threads are not told apart, or it is not known.
    pub(super) thread: Option<Tid>,
    /// Its blocks were made by the parent, before the fork.
    pub(super) inherited: bool,
    /// What it held at peak `saved` is in here.
    totals: Totals,
    saved: PeakEpoch,
    /// See [`Details`].
    pub(super) sizes: Histogram,
    lifetimes: Histogram,
    lifetime_total: EstimatedMicros,
    pub(super) temporary_count: u64,
}

/// Threads that are told apart; what others do counts as of an unknown one. Targets make as many as they please.
const THREADS_APART_MAX: usize = 2048;

impl Ledger {
    /// From now on, what different threads allocate is told apart.
    pub fn tell_threads_apart(&mut self) {
        self.apart.get_or_insert_default();
    }

    /// Empty books of a process, which tell threads apart if these do.
    pub fn empty(&self, pid: Pid) -> Self {
        Self { apart: self.apart.as_ref().map(|_| FxHashSet::default()), ..Self::new(pid) }
    }

    /// The callsite, a new one where it is not known.
    pub(super) fn callsite(&mut self, stack: StackId, heap: HeapId, thread: Option<Tid>) -> u32 {
        let thread = thread.filter(|&thread| self.is_apart(thread));
        *self.callsite_ids.entry((stack, heap, thread)).or_insert_with(|| {
            self.callsites.push(Callsite::new(stack, heap, thread, BEFORE_PEAKS));
            u32::try_from(self.callsites.len() - 1).expect("four billion callsites do not fit in memory")
        })
    }

    /// Whether this thread is told from others.
    fn is_apart(&mut self, thread: Tid) -> bool {
        let Some(apart) = &mut self.apart else { return false };
        apart.contains(&thread) || apart.len() < THREADS_APART_MAX && apart.insert(thread)
    }
}

impl Callsite {
    /// Has done nothing yet. `before_peaks` is a number that no peak of these books has.
    pub(super) fn new(stack: StackId, heap: HeapId, thread: Option<Tid>, before_peaks: PeakEpoch) -> Self {
        Self {
            stack,
            heap,
            thread,
            inherited: false,
            totals: Totals::default(),
            saved: before_peaks,
            sizes: Histogram::default(),
            lifetimes: Histogram::default(),
            lifetime_total: EstimatedMicros::ZERO,
            temporary_count: 0,
        }
    }

    /// What a child made by a fork has of it. The thread stays the parent's.
    pub(super) fn inherit(&self, before_peaks: PeakEpoch) -> Self {
        let same = Self::new(self.stack, self.heap, self.thread, before_peaks);
        Self { inherited: true, totals: self.totals.inherit(), ..same }
    }

    /// The totals, to be changed. `peak` is the target's latest.
    pub(super) fn change(&mut self, peak: PeakEpoch) -> &mut Totals {
        if self.saved != peak {
            self.totals.at_peak = self.totals.live();
            self.saved = peak;
        }
        &mut self.totals
    }

    /// The totals, without what was held at the peak.
    pub(super) fn totals_now(&self) -> &Totals {
        &self.totals
    }

    /// The totals, with what was held at the target's latest peak.
    pub(super) fn totals(&self, peak: PeakEpoch) -> Totals {
        let at_peak: Amounts = if self.saved == peak { self.totals.at_peak } else { self.totals.live() };
        Totals { at_peak, ..self.totals }
    }

    /// So many blocks have lived for so long.
    pub(super) fn lived(&mut self, lifetime_us: u64, count: EstimatedCount) {
        self.lifetimes.add(lifetime_us, count);
        self.lifetime_total += count.lasting(lifetime_us);
    }

    /// Takes back what was said of blocks that live on.
    pub(super) fn lives_on(&mut self, lifetime_us: u64, count: EstimatedCount) {
        self.lifetimes.take(lifetime_us, count);
        self.lifetime_total -= count.lasting(lifetime_us);
    }

    /// Whether no sum is near the end of its number.
    pub(super) fn is_sound(&self) -> bool {
        self.totals.is_sound()
            && self.sizes.is_sound()
            && self.lifetimes.is_sound()
            && self.lifetime_total.is_sound()
            && self.temporary_count < COUNT_MAX
    }

    /// The details. `counts_temporary` says whether all allocations of the heap were taken.
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
