//! Windows and the CPU limit.

use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;

/// Observes every half second; each number is the milliseconds of CPU time used since the previous observation.
#[track_caller]
fn check(percent_max: f64, used_ms: &[u64], expected: &[Option<u64>]) {
    let mut monitor = CpuMonitor::default();
    let mut cpu_ns = 77 * MS;
    let shares = (0..).zip(used_ms).map(|(half_seconds, used)| {
        cpu_ns += used * MS;
        monitor.observe(MonotonicNanos((1000 + 500 * half_seconds) * MS), cpu_ns, percent_max)
    });
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
    let rounded: Vec<Option<u64>> = shares.map(|percent| percent.map(|percent| percent.round() as u64)).collect();
    assert_eq!(rounded, expected);
}

#[test]
fn cpu_share_is_averaged_over_the_window() {
    // 400 ms of 3 s are 13 %.
    check(13.0, &[0, 400, 0, 0, 0, 0, 0, 0], &[None, None, None, None, None, None, Some(13), None]);
    check(14.0, &[0, 400, 0, 0, 0, 0, 0, 0], &[None; 8]);
}

#[test]
fn doublings_follow_the_excess() {
    for (percent, expected) in [(1.01, 1), (2.0, 1), (2.1, 2), (40.0, 6), (5000.0, 8)] {
        assert_eq!(doublings(percent, 1.0), expected, "{percent}");
    }
}

#[test]
fn cpu_time_before_the_first_observation_does_not_count() {
    check(10.0, &[5000, 0, 0, 0, 0, 0, 0, 0], &[None; 8]);
}

#[test]
fn the_window_restarts_after_an_excess() {
    let mut expected = [None; 14];
    (expected[6], expected[12]) = (Some(50), Some(50));
    check(10.0, &[250; 14], &expected);
}

proptest! {
    #[test]
    fn a_window_spans_at_least_its_length_and_at_most_one_step_more(steps in prop::collection::vec(1u64..500, 1..100)) {
        const SPAN: u64 = 1000;
        let longest = *steps.iter().max().expect("not empty");
        let (mut window, mut now) = (Window::<u64, SPAN>::default(), 0);
        for step in steps {
            now += step;
            match window.push(MonotonicNanos(now), now) {
                Some((span, first)) => {
                    prop_assert_eq!(now - first, span);
                    prop_assert!((SPAN..SPAN + longest).contains(&span), "{}", span);
                }
                None => prop_assert!(window.points.front().is_some_and(|point| now - point.0.0 < SPAN)),
            }
        }
    }
}
