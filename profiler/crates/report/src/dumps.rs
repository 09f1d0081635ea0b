//! A profile's state at the dumps of the recording. Accepts any profile: its history may be out of order.

use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::model::{CallsiteProfile, HeapUsage, Profile, SampleTrigger, TargetProfile};
use rustc_hash::FxHashSet;

/// Distance of the numbers of programs with the same pid. Linux has no pid above 4,194,304.
const PID_STEP: u32 = 10_000_000;

/// Maximum distance of the end of the profile and the dump at that end, whose times are of two clocks.
const SAME_NS: u64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dump {
    /// Number of the window that ended with it.
    pub(super) number: u32,
    pub(super) time: MonotonicNanos,
    instant: u32,
}

/// The dumps of a target before its end, in the order of time. Empty where the profile is of one window or of old blocks only:
/// its history is of the whole recording, without ages.
pub(super) fn dumps(profile: &Profile, target: &TargetProfile) -> Vec<Dump> {
    let mut dumps: Vec<Dump> = Vec::new();
    if profile.window.is_some() || profile.older_than_ns.is_some() {
        return dumps;
    }
    let end = end(profile);
    for (instant, known) in (0_u32..).zip(&target.history.instants) {
        let Some(SampleTrigger::Dump(number)) = known.trigger else { continue };
        if known.time.0.saturating_add(SAME_NS) < end.0 && dumps.last().is_none_or(|last| last.time < known.time) {
            dumps.push(Dump { number, time: known.time, instant });
        }
    }
    dumps
}

pub(super) fn held(callsite: &CallsiteProfile, dump: &Dump) -> HeapUsage {
    let later = callsite.history.partition_point(|change| change.instant <= dump.instant);
    later.checked_sub(1).map_or_else(HeapUsage::default, |last| callsite.history[last].held)
}

pub(super) fn start(profile: &Profile) -> MonotonicNanos {
    monotonic(profile, profile.window.map_or(profile.started_unix_ns, |window| window.start_unix_ns))
}

pub(super) fn end(profile: &Profile) -> MonotonicNanos {
    monotonic(profile, profile.window.map_or(profile.ended_unix_ns, |window| window.end_unix_ns))
}

fn monotonic(profile: &Profile, unix_ns: u64) -> MonotonicNanos {
    let after = unix_ns.saturating_sub(profile.started_unix_ns);
    MonotonicNanos(profile.started_monotonic_ns.saturating_add(after))
}

/// The targets' pids, made unique: the second and later programs of a process get numbers that no process has.
pub(super) fn distinct_pids(profile: &Profile) -> Vec<u32> {
    let mut taken: FxHashSet<u32> = FxHashSet::default();
    let mut free = |pid: u32| {
        let numbers = std::iter::successors(Some(pid), |number| Some(number.wrapping_add(PID_STEP)));
        // Readers parse it as a signed number.
        let mut numbers = numbers.map(|number| number & 0x7fff_ffff);
        numbers.find(|&number| taken.insert(number)).unwrap_or(pid)
    };
    profile.targets.iter().map(|target| free(target.facts.pid.0)).collect()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
pub(super) fn rounded(estimate: f64) -> u64 {
    estimate.round() as u64
}

#[cfg(test)]
mod tests {
    use heapbpf_ledger::model::TimelinePoint;

    use super::*;
    use crate::testing as profiles;

    #[test]
    fn dumps_precede_the_end_in_the_order_of_time() {
        let mut profile = profiles::exact();
        let second = |after: u64| MonotonicNanos(profile.started_monotonic_ns + after * 1_000_000_000);
        let instants =
            [(1, Some(SampleTrigger::Mark)), (10, Some(SampleTrigger::Dump(1))), (20, Some(SampleTrigger::Dump(2)))];
        let wrong = [(15, Some(SampleTrigger::Dump(3))), (25, None), (31, Some(SampleTrigger::Dump(4)))];
        let instants = instants.into_iter().chain(wrong);
        profile.targets[0].history.instants =
            instants.map(|(after, trigger)| TimelinePoint { time: second(after), trigger }).collect();
        let found = dumps(&profile, &profile.targets[0]);
        assert_eq!(found.iter().map(|dump| (dump.number, dump.instant)).collect::<Vec<_>>(), [(1, 1), (2, 2)]);
        profile.older_than_ns = Some(1);
        assert_eq!(dumps(&profile, &profile.targets[0]), []);
    }

    #[test]
    fn held_amounts_are_those_of_the_last_change() {
        let profile = profiles::exact();
        let callsite = &profile.targets[0].callsites[0];
        let dump = |instant| Dump { number: 1, time: MonotonicNanos(0), instant };
        assert_eq!(held(callsite, &dump(0)), HeapUsage::default());
        assert_eq!(held(callsite, &dump(1)), callsite.history[0].held);
        assert_eq!(held(callsite, &dump(7)), callsite.history[1].held);
    }

    #[test]
    fn programs_of_one_process_get_distinct_pids() {
        let mut profile = profiles::exact();
        profile.targets.push(profile.targets[0].clone());
        profile.targets.push(profile.targets[0].clone());
        assert_eq!(distinct_pids(&profile), [4711, 10_004_711, 20_004_711]);
    }
}
