//! CPU time that a target spends in its probes, estimated from its ledger.
//!
//! The kernel side does not count calls, because that would slow down each. The ledger has unbiased estimates of
//! allocations and frees; they are multiplied by the measured cost of a call, plus a surcharge for sampled calls. The
//! result is rather too low: it omits frees of older blocks, failed calls and nested calls.

use super::Window;
use crate::ledger::totals::Totals;
use crate::units::MonotonicNanos;

const SPAN_NS: u64 = 3_000_000_000;

/// Targets that use less than this share of one core are never over the limit.
const CPU_PERCENT_MIN: f64 = 1.0;

/// Standard deviations to one side that hold 97.5 % of a normal distribution.
const Z: f64 = 1.96;

/// Stack, live set entry, record, return probe; five frames (docs/overhead.md, "The programs in the kernel").
const SAMPLED_ALLOC_NS: f64 = 1_900.0;
const SAMPLED_FREE_NS: f64 = 770.0;

/// Additional nanoseconds of an unsampled call due to its probe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CallCosts {
    pub alloc_ns: f64,
    pub free_ns: f64,
}

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
            // A free removes what its allocation added.
            frees_variance: (allocated - live).max(0.0),
        }
    }

    fn since(&self, before: &Self, costs: CallCosts, span_ns: u64) -> Share {
        let grown = |number: fn(&Self) -> f64| (number(self) - number(before)).max(0.0);
        let probe_ns = grown(|it| it.allocs) * costs.alloc_ns
            + grown(|it| it.frees) * costs.free_ns
            + grown(|it| it.allocs_sampled) * SAMPLED_ALLOC_NS
            + grown(|it| it.frees_sampled) * SAMPLED_FREE_NS;
        // Both errors stem from the same blocks, so they have the same sign and add up.
        let off_ns = grown(|it| it.allocs_variance).sqrt() * costs.alloc_ns
            + grown(|it| it.frees_variance).sqrt() * costs.free_ns;
        let cpu_ns = self.cpu_ns.saturating_sub(before.cpu_ns);
        Share { probe_ns, margin_ns: Z * off_ns, cpu_ns, span_ns }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Share {
    pub probe_ns: f64,
    /// Half width of the 95 % confidence interval due to sampling, in nanoseconds.
    pub margin_ns: f64,
    /// The target's CPU time, including probes.
    pub cpu_ns: u64,
    /// Wall clock nanoseconds covered.
    pub span_ns: u64,
}

impl Share {
    pub(crate) fn percent(&self) -> f64 {
        self.percent_of(self.probe_ns)
    }

    /// Lower confidence bound (97.5 %), in percent.
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

#[derive(Clone, Debug, Default)]
pub(crate) struct OverheadMonitor {
    first: Option<(MonotonicNanos, Point)>,
    window: Window<Point, SPAN_NS>,
    whole: Option<Share>,
    highest: Option<Share>,
}

impl OverheadMonitor {
    /// `None` before the first window is full and for an almost idle target.
    pub(crate) fn observe(
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

    pub(crate) fn whole(&self) -> Option<Share> {
        self.whole
    }

    pub(crate) fn highest(&self) -> Option<Share> {
        self.highest
    }
}

#[cfg(test)]
mod tests;
