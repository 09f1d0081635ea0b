//! Cost limits. Pure: reads no clock, file or map. The session acts on the result.

pub(crate) mod overhead;

use std::collections::VecDeque;

use crate::units::MonotonicNanos;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// Memory of the agent and the kernel maps together.
    pub memory_bytes_max: Option<u64>,
    /// CPU time of the agent, in percent of one core.
    pub cpu_percent_max: Option<f64>,
    /// CPU time spent in probes, in percent of the target's CPU time.
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

/// Span over which the agent's CPU share is averaged: writing a report for half a second is no reason to sample less.
const CPU_SPAN_NS: u64 = 3_000_000_000;

#[derive(Clone, Debug, Default)]
pub(crate) struct CpuMonitor {
    window: Window<u64, CPU_SPAN_NS>,
    percent_highest: f64,
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

    pub(crate) fn percent_highest(&self) -> f64 {
        self.percent_highest
    }
}

/// Twice the interval is about half the events, as long as it is larger than most blocks.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and 8")]
pub(crate) fn doublings(percent: f64, percent_max: f64) -> u32 {
    (percent / percent_max).log2().ceil().clamp(1.0, 8.0) as u32
}

#[cfg(test)]
mod tests;
