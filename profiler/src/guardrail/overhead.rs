//! What its probes cost a target, estimated from its books.
//!
//! Nobody counts calls in the kernel: that would cost every call something. But the books hold unbiased estimates of how many
//! blocks were allocated and freed, sampled or not, and each was a call through a probe. That times the cost of a call, as
//! measured on this machine, and a surcharge for each call that was sampled, is what probes took. Left out are frees of blocks
//! that were made before the recording, calls that failed, and calls inside other calls, so that it is rather too little.

use super::window::Window;
use crate::ledger::totals::Totals;
use crate::units::MonotonicNanos;

/// Seconds over which a share is taken.
const SPAN_NS: u64 = 3_000_000_000;

/// Who uses less than this share of one core is left alone, whatever part of it are probes.
const CPU_PERCENT_MIN: f64 = 1.0;

/// Standard deviations to one side that hold 97.5 % of a normal distribution.
const Z: f64 = 1.96;

/// What a sampled allocation takes more than another: its stack, its entry in the live set, its record, its return. Of the
/// programs alone, with five frames (docs/overhead.md, "The programs in the kernel").
const SAMPLED_ALLOC_NS: f64 = 1_900.0;

/// What the free of a sampled block takes more than another.
const SAMPLED_FREE_NS: f64 = 770.0;

/// Nanoseconds that a call through a probe takes more than one without, when it is not sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CallCosts {
    /// Of functions that allocate.
    pub alloc_ns: f64,
    /// Of functions that free.
    pub free_ns: f64,
}

/// A target until an instant.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    cpu_ns: u64,
    allocs: f64,
    frees: f64,
    allocs_sampled: f64,
    frees_sampled: f64,
    allocs_variance: f64,
    frees_variance: f64,
}

impl Point {
    #[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
    fn new(totals: &Totals, cpu_ns: u64) -> Self {
        let (allocated, live) = (totals.alloc_variance.count.to_f64(), totals.live_variance.count.to_f64());
        Self {
            cpu_ns,
            allocs: totals.alloc_count.to_f64(),
            frees: totals.free_count.to_f64(),
            allocs_sampled: totals.alloc_samples as f64,
            frees_sampled: totals.alloc_samples.saturating_sub(totals.live_samples) as f64,
            allocs_variance: allocated,
            // What a block added when it was made it took along when it was freed.
            frees_variance: (allocated - live).max(0.0),
        }
    }

    /// What probes took from another point to this one.
    fn since(&self, before: &Self, costs: CallCosts, span_ns: u64) -> Share {
        let grown = |number: fn(&Self) -> f64| (number(self) - number(before)).max(0.0);
        let probe_ns = grown(|it| it.allocs) * costs.alloc_ns
            + grown(|it| it.frees) * costs.free_ns
            + grown(|it| it.allocs_sampled) * SAMPLED_ALLOC_NS
            + grown(|it| it.frees_sampled) * SAMPLED_FREE_NS;
        // Of the same blocks, so that both are off to the same side.
        let off_ns = grown(|it| it.allocs_variance).sqrt() * costs.alloc_ns
            + grown(|it| it.frees_variance).sqrt() * costs.free_ns;
        let cpu_ns = self.cpu_ns.saturating_sub(before.cpu_ns);
        Share { probe_ns, margin_ns: Z * off_ns, cpu_ns, span_ns }
    }
}

/// What probes took of a target's CPU time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Share {
    /// Nanoseconds in probes: an estimate.
    pub probe_ns: f64,
    /// How far off that may be because calls are sampled (95 %), in nanoseconds.
    pub margin_ns: f64,
    /// The target's CPU time, with that in it.
    pub cpu_ns: u64,
    /// Over this many nanoseconds.
    pub span_ns: u64,
}

impl Share {
    /// In percent of the target's CPU time; 0 where it used none.
    pub(crate) fn percent(&self) -> f64 {
        self.percent_of(self.probe_ns)
    }

    /// What it is at least (97.5 %), in percent.
    pub(crate) fn percent_at_least(&self) -> f64 {
        self.percent_of((self.probe_ns - self.margin_ns).max(0.0))
    }

    #[expect(clippy::cast_precision_loss, reason = "nanoseconds below 2^53")]
    fn percent_of(&self, probe_ns: f64) -> f64 {
        if self.cpu_ns == 0 { 0.0 } else { 100.0 * probe_ns / self.cpu_ns as f64 }
    }

    #[expect(clippy::cast_precision_loss, reason = "nanoseconds below 2^53")]
    fn is_busy(&self) -> bool {
        100.0 * self.cpu_ns as f64 >= CPU_PERCENT_MIN * self.span_ns as f64
    }
}

/// Follows one target.
#[derive(Clone, Debug)]
pub(crate) struct OverheadWatch {
    first: Option<(MonotonicNanos, Point)>,
    window: Window<Point>,
    whole: Option<Share>,
    highest: Option<Share>,
}

impl Default for OverheadWatch {
    fn default() -> Self {
        Self { first: None, window: Window::new(SPAN_NS), whole: None, highest: None }
    }
}

impl OverheadWatch {
    /// Takes a look: the target's totals and CPU time until now. The share over the last seconds, once they are over; `None`
    /// also for a target that does next to nothing.
    pub(crate) fn look(
        &mut self,
        now: MonotonicNanos,
        totals: &Totals,
        cpu_ns: u64,
        costs: CallCosts,
    ) -> Option<Share> {
        let point = Point::new(totals, cpu_ns);
        let (began, first) = *self.first.get_or_insert((now, point));
        self.whole = (now > began).then(|| point.since(&first, costs, now.0.saturating_sub(began.0)));
        let (span_ns, before) = self.window.push(now, point)?;
        let share = Some(point.since(&before, costs, span_ns)).filter(Share::is_busy)?;
        if self.highest.is_none_or(|highest| highest.percent() < share.percent()) {
            self.highest = Some(share);
        }
        Some(share)
    }

    /// From the first look to the last.
    pub(crate) fn whole(&self) -> Option<Share> {
        self.whole
    }

    /// Over the seconds in which it was highest.
    pub(crate) fn highest(&self) -> Option<Share> {
        self.highest
    }
}

#[cfg(test)]
mod tests;
