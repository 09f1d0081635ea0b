//! Cost limits. Pure: reads no clock, file or map. The session acts on the result.

use std::collections::VecDeque;

use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::confidence::Z_95;
use heapbpf_ledger::totals::Totals;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// Maximum memory of the agent and the kernel maps together.
    pub memory_bytes_max: Option<u64>,
    /// Maximum CPU time of the agent, in percent of one core.
    pub cpu_percent_max: Option<f64>,
    /// Maximum CPU time spent in probes, in percent of the target's CPU time.
    pub overhead_percent_max: Option<f64>,
}

impl Limits {
    pub fn any(&self) -> bool {
        *self != Self::default()
    }
}

/// Sliding window of this span over a monotonically growing number.
#[derive(Clone, Debug)]
struct Window<T, const SPAN_NS: u64> {
    points: VecDeque<(MonotonicNanos, T)>,
}

impl<T, const SPAN_NS: u64> Default for Window<T, SPAN_NS> {
    fn default() -> Self {
        Self { points: VecDeque::new() }
    }
}

impl<T: Copy, const SPAN_NS: u64> Window<T, SPAN_NS> {
    /// Adds a point. Returns the latest point that is at least one span older, and the nanoseconds between the two.
    fn push(&mut self, time: MonotonicNanos, value: T) -> Option<(u64, T)> {
        self.points.push_back((time, value));
        let since = |point: &(MonotonicNanos, T)| time.0.saturating_sub(point.0.0);
        while self.points.get(1).is_some_and(|next| since(next) >= SPAN_NS) {
            self.points.pop_front();
        }
        let first = self.points.front()?;
        (since(first) >= SPAN_NS).then(|| (since(first), first.1))
    }

    fn restart(&mut self) {
        self.points = self.points.pop_back().into_iter().collect();
    }
}

/// Span over which CPU shares are averaged: writing a report for half a second is no reason to sample less.
const SPAN_NS: u64 = 3_000_000_000;

/// Time after which a target can be found to exceed its limit.
const EARLY_NS: u64 = 400_000_000;

#[derive(Clone, Debug, Default)]
pub(crate) struct CpuMonitor {
    window: Window<u64, SPAN_NS>,
    pub(crate) percent_highest: f64,
}

impl CpuMonitor {
    /// Returns the agent's share of one core, in percent, if it exceeds the limit; the window then restarts.
    #[expect(clippy::cast_precision_loss, reason = "a share; 53 bits are enough")]
    pub(crate) fn observe(&mut self, now: MonotonicNanos, cpu_ns: u64, percent_max: f64) -> Option<f64> {
        let (span_ns, before_ns) = self.window.push(now, cpu_ns)?;
        let percent = 100.0 * cpu_ns.saturating_sub(before_ns) as f64 / span_ns as f64;
        self.percent_highest = self.percent_highest.max(percent);
        if percent <= percent_max {
            return None;
        }
        self.window.restart();
        Some(percent)
    }
}

/// Number of doublings of the interval that bring the cost below the limit. Twice the interval is about half the events, as long
/// as it is larger than most blocks.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and 8")]
pub(crate) fn doublings(percent: f64, percent_max: f64) -> u32 {
    (percent / percent_max).log2().ceil().clamp(1.0, 8.0) as u32
}

/// CPU time that a target spends in its probes, estimated from its ledger. The kernel side does not count calls, because
/// that would slow down each. The ledger has unbiased estimates of allocations and frees; they are multiplied by the
/// measured cost of a call, plus a surcharge for sampled calls. The result is rather too low: it omits frees of older
/// blocks, failed calls and nested calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct OverheadMonitor {
    first: Option<(MonotonicNanos, Point)>,
    window: Window<Point, SPAN_NS>,
    pub(crate) whole: Option<Share>,
    pub(crate) highest: Option<Share>,
}

/// Minimum share of one core that a target must use to be over the limit.
const CPU_PERCENT_MIN: f64 = 1.0;

/// Additional cost of a sampled call: stack, live set entry, record, return probe; five frames (docs/overhead.md, "The programs
/// in the kernel").
const SAMPLED_ALLOC_NS: f64 = 1_900.0;
const SAMPLED_FREE_NS: f64 = 770.0;

/// Additional nanoseconds of an unsampled call due to its probe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CallCosts {
    pub alloc_ns: f64,
    pub free_ns: f64,
}

impl CallCosts {
    /// Costs of the inline engine's stubs (docs/overhead.md, "Engines").
    pub(crate) const STUBS: Self = Self { alloc_ns: 2.0, free_ns: 1.0 };

    /// Costs of calls of which this share meets probes instead.
    pub(crate) fn with_trapped(self, trapped: Self, share: f64) -> Self {
        Self { alloc_ns: self.alloc_ns + share * trapped.alloc_ns, free_ns: self.free_ns + share * trapped.free_ns }
    }
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
            // The free of a block removes the variance that its allocation added.
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
        Share { probe_ns, margin_ns: Z_95 * off_ns, cpu_ns, span_ns }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Share {
    pub probe_ns: f64,
    /// Half width of the 95 % confidence interval due to sampling, in nanoseconds.
    pub margin_ns: f64,
    /// CPU time of the target, including probes.
    pub cpu_ns: u64,
    /// Wall clock time covered, in nanoseconds.
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

    /// Whether a whole window will exceed the limit if the target goes on to use CPU time and calls nothing.
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds below 2^53")]
    fn is_certain_of(&self, percent_max: f64) -> bool {
        self.span_ns >= EARLY_NS && self.percent_at_least() * self.span_ns as f64 > percent_max * SPAN_NS as f64
    }

    #[expect(clippy::cast_precision_loss, reason = "nanoseconds below 2^53")]
    fn is_busy(&self) -> bool {
        100.0 * self.cpu_ns as f64 >= CPU_PERCENT_MIN * self.span_ns as f64
    }
}

/// Sum of shares over several targets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shares {
    probe_ns: f64,
    cpu_ns: f64,
}

impl Shares {
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds below 2^53")]
    pub(crate) fn add(&mut self, share: &Share) {
        self.probe_ns += share.probe_ns;
        self.cpu_ns += share.cpu_ns as f64;
    }

    pub(crate) fn percent(self) -> Option<f64> {
        (self.cpu_ns > 0.0).then(|| 100.0 * self.probe_ns / self.cpu_ns)
    }
}

impl OverheadMonitor {
    /// Returns the present share; `None` for an almost idle target, and before the first window is full, unless the share will
    /// exceed `percent_max` even if no further call follows.
    pub(crate) fn observe(
        &mut self,
        now: MonotonicNanos,
        totals: &Totals,
        cpu_ns: u64,
        costs: CallCosts,
        percent_max: f64,
    ) -> Option<Share> {
        let point = Point::new(totals, cpu_ns);
        let (began, first) = *self.first.get_or_insert((now, point));
        self.whole = (now > began).then(|| point.since(&first, costs, now.0.saturating_sub(began.0)));
        let share = match self.window.push(now, point) {
            Some((span_ns, before)) => Some(point.since(&before, costs, span_ns)),
            None => self.whole.filter(|share| share.is_certain_of(percent_max)),
        };
        let share = share.filter(Share::is_busy)?;
        if self.highest.is_none_or(|highest| highest.percent() < share.percent()) {
            self.highest = Some(share);
        }
        Some(share)
    }
}

#[cfg(test)]
mod overhead_tests;
#[cfg(test)]
mod tests;
