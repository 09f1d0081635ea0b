//! Times at which the agent records: a part of each period, at a random time within it.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use super::config::Duty;

/// Schedule of recordings. Periods follow each other without gaps; each has a random time of its own, so that jobs which recur at
/// a fixed time of the hour are met in proportion to their duration, and hosts do not record at the same time.
#[derive(Debug)]
pub(super) struct Schedule {
    duty: Duty,
    /// Time from the end of the last recording to the end of its period.
    rest: Duration,
}

impl Schedule {
    pub(super) fn new(duty: Duty) -> Self {
        Self { duty, rest: Duration::ZERO }
    }

    /// Returns the pause before the next recording. `random` is uniform between 0 and 1.
    pub(super) fn next_pause(&mut self, random: f64) -> Duration {
        let offset = self.duty.every.saturating_sub(self.duty.record).mul_f64(random.clamp(0.0, 1.0));
        let pause = std::mem::take(&mut self.rest) + offset;
        self.rest = self.duty.every.saturating_sub(self.duty.record).saturating_sub(offset);
        pause
    }

    /// Extends the period so that the CPU time of its recording is at most this share of it. Returns the extension.
    pub(super) fn note_cost(&mut self, cpu: Duration, percent_max: f64) -> Duration {
        let extension = cpu.mul_f64(100.0 / percent_max).saturating_sub(self.duty.every);
        self.rest += extension;
        extension
    }

    /// Duration of a recording; `None` if recordings follow each other without a pause, so that one is enough.
    pub(super) fn duration(&self) -> Option<Duration> {
        (self.duty.record < self.duty.every).then_some(self.duty.record)
    }
}

/// Returns a random number, uniform between 0 and 1, of the operating system's randomness.
#[expect(clippy::cast_precision_loss, reason = "53 bits are enough")]
pub(super) fn random() -> f64 {
    // Each state has new keys, and those of the first are the operating system's.
    let bits = RandomState::new().build_hasher().finish();
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn duty(record_s: u64, every_s: u64) -> Duty {
        Duty { record: Duration::from_secs(record_s), every: Duration::from_secs(every_s) }
    }

    #[test]
    fn each_period_has_one_recording() {
        let mut schedule = Schedule::new(duty(60, 600));
        let pauses = [0.0, 1.0, 0.5].map(|random| schedule.next_pause(random).as_secs());
        // The recordings start at 0, 600 + 540 and 1,200 + 270.
        assert_eq!(pauses, [0, 540 + 540, 270]);
        assert_eq!(schedule.duration(), Some(Duration::from_secs(60)));
    }

    #[test]
    fn a_recording_that_is_expensive_is_followed_by_a_longer_pause() {
        let mut schedule = Schedule::new(duty(60, 600));
        schedule.next_pause(1.0);
        schedule.note_cost(Duration::from_secs(6), 1.0);
        assert_eq!(schedule.next_pause(0.0).as_secs(), 0);
        schedule.note_cost(Duration::from_secs(9), 1.0);
        assert_eq!(schedule.next_pause(0.0).as_secs(), 540 + 300);
    }

    #[test]
    fn a_duty_cycle_of_everything_is_one_recording() {
        let mut schedule = Schedule::new(duty(60, 60));
        assert_eq!((schedule.duration(), schedule.next_pause(0.7)), (None, Duration::ZERO));
    }

    proptest! {
        #[test]
        fn recordings_are_within_their_periods(numbers in prop::collection::vec(0.0..1.0f64, 1..50)) {
            let mut schedule = Schedule::new(duty(60, 600));
            let mut now = Duration::ZERO;
            for (period, random) in (0u64..).zip(numbers) {
                now += schedule.next_pause(random);
                let start = Duration::from_secs(600 * period);
                prop_assert!(now >= start && now <= start + Duration::from_secs(540), "{now:?} in period {period}");
                now += Duration::from_secs(60);
            }
        }

        #[test]
        fn random_numbers_are_between_0_and_1(_ in 0..100) {
            prop_assert!((0.0..1.0).contains(&random()));
        }
    }
}
