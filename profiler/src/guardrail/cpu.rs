//! The CPU time of the agent.

use super::window::Window;
use crate::units::MonotonicNanos;

/// Seconds over which a share of a core is taken: a look at files that takes half a second is no reason to sample less.
const SPAN_NS: u64 = 3_000_000_000;

/// Compares the agent's share of one core with a limit.
#[derive(Clone, Debug)]
pub(crate) struct CpuWatch {
    percent_max: f64,
    window: Window<u64>,
    percent_highest: f64,
}

impl CpuWatch {
    /// With a limit in percent of one core.
    pub(crate) fn new(percent_max: f64) -> Self {
        Self { percent_max, window: Window::new(SPAN_NS), percent_highest: 0.0 }
    }

    /// Takes a look: `cpu_ns` is what the agent has used until now. The share over the last seconds, in percent of one core,
    /// when that is more than the limit; then the seconds begin anew, so that what is done about it can show.
    #[expect(clippy::cast_precision_loss, reason = "a share; 53 bits are enough")]
    pub(crate) fn look(&mut self, now: MonotonicNanos, cpu_ns: u64) -> Option<f64> {
        let (span_ns, before_ns) = self.window.push(now, cpu_ns)?;
        let percent = 100.0 * cpu_ns.saturating_sub(before_ns) as f64 / span_ns as f64;
        self.percent_highest = self.percent_highest.max(percent);
        if percent <= self.percent_max {
            return None;
        }
        self.window.restart();
        Some(percent)
    }

    /// The highest share so far, in percent of one core.
    pub(crate) fn percent_highest(&self) -> f64 {
        self.percent_highest
    }
}

/// How often intervals are to be doubled at once when the share is this much: half the interval is about twice the events,
/// as long as it is larger than most blocks.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and 8")]
pub(crate) fn doublings(percent: f64, percent_max: f64) -> u32 {
    (percent / percent_max).log2().ceil().clamp(1.0, 8.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Looks every half second; each number is the milliseconds of CPU time used since the look before.
    #[track_caller]
    fn check(percent_max: f64, used_ms: &[u64], expected: &[Option<u64>]) {
        let mut watch = CpuWatch::new(percent_max);
        let mut cpu_ns = 77 * MS;
        let looks = (0..).zip(used_ms).map(|(half_seconds, used)| {
            cpu_ns += used * MS;
            watch.look(MonotonicNanos((1000 + 500 * half_seconds) * MS), cpu_ns)
        });
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
        let rounded: Vec<Option<u64>> = looks.map(|percent| percent.map(|percent| percent.round() as u64)).collect();
        assert_eq!(rounded, expected);
    }

    #[test]
    fn a_share_counts_over_seconds() {
        // 400 ms of 3 s are 13 %.
        check(13.0, &[0, 400, 0, 0, 0, 0, 0, 0], &[None, None, None, None, None, None, Some(13), None]);
        check(14.0, &[0, 400, 0, 0, 0, 0, 0, 0], &[None; 8]);
    }

    #[test]
    fn intervals_grow_by_what_is_missing() {
        for (percent, expected) in [(1.01, 1), (2.0, 1), (2.1, 2), (40.0, 6), (5000.0, 8)] {
            assert_eq!(doublings(percent, 1.0), expected, "{percent}");
        }
    }

    #[test]
    fn what_was_used_before_the_first_look_does_not_count() {
        check(10.0, &[5000, 0, 0, 0, 0, 0, 0, 0], &[None; 8]);
    }

    #[test]
    fn after_each_excess_there_is_time_for_it_to_show() {
        let mut expected = [None; 14];
        (expected[6], expected[12]) = (Some(50), Some(50));
        check(10.0, &[250; 14], &expected);
    }
}
