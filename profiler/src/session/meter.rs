//! Values from the previous progress of a session, from which rates are computed.

use std::time::Duration;

use tokio::time::Instant;

/// Period of finding the callsite that grows most, which takes a pass over all callsites.
const GROWER_PERIOD: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct ProgressMeter {
    before: Option<(Instant, f64)>,
    grower_found: Option<Instant>,
}

impl ProgressMeter {
    /// Bytes per second since the previous call; 0 at the first. The total falls when a target exits.
    pub(super) fn rate(&mut self, now: Instant, allocated_bytes: f64) -> f64 {
        let Some((then, before_bytes)) = self.before.replace((now, allocated_bytes)) else { return 0.0 };
        let seconds = now.duration_since(then).as_secs_f64();
        if seconds > 0.0 { (allocated_bytes - before_bytes).max(0.0) / seconds } else { 0.0 }
    }

    pub(super) fn is_grower_due(&mut self, now: Instant) -> bool {
        let is_due = self.grower_found.is_none_or(|then| now.duration_since(then) >= GROWER_PERIOD);
        if is_due {
            self.grower_found = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_since_the_previous_call() {
        let (mut meter, start) = (ProgressMeter::default(), Instant::now());
        let mut rate = |ms, bytes| meter.rate(start + Duration::from_millis(ms), bytes);
        let rates =
            [(0, 1000.0), (500, 2000.0), (1000, 2000.0), (1500, 10.0), (1500, 20.0)].map(|(ms, bytes)| rate(ms, bytes));
        assert_eq!(rates, [0.0, 2000.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn growers_are_found_every_two_seconds() {
        let (mut meter, start) = (ProgressMeter::default(), Instant::now());
        let due = [0, 500, 1999, 2000, 2500, 4000].map(|ms| meter.is_grower_due(start + Duration::from_millis(ms)));
        assert_eq!(due, [true, false, false, true, false, true]);
    }
}
