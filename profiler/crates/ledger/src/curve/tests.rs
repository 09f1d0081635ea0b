//! Tests of curves against a list of all that happened.

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::{HeapId, HookId, Pid, StackId, Tid};
use profiler_common::interval::Interval;
use proptest::prelude::*;

use super::*;
use crate::Ledger;
use crate::ingest::event::{Allocation, Event, Free};

const PID: Pid = Pid(1);
const MILLISECOND: u64 = 1_000_000;

fn allocated(address: u64, size_bytes: u64, time: MonotonicNanos) -> Event {
    Event::Alloc(Allocation {
        pid: PID,
        tid: Tid(1),
        address: TargetAddr(address),
        size_bytes,
        time,
        stack: StackId(address % 3),
        interval: Interval::EXACT,
        hook: HookId(0),
        heap: HeapId(0),
        has_replaced: false,
    })
}

fn freed(address: u64, time: MonotonicNanos) -> Event {
    Event::Free(Free { pid: PID, tid: Tid(1), address: TargetAddr(address), time, age_us: 0 })
}

/// Steps of an event each: its address, its bytes (0 for a free), and the time since the event before.
fn steps() -> impl Strategy<Value = Vec<(u64, u64, u64)>> {
    let gap = prop_oneof![
        8 => 0..3 * MILLISECOND,
        4 => 5 * MILLISECOND..40 * MILLISECOND,
        // The next point is due exactly then.
        2 => Just(10 * MILLISECOND),
        1 => 1_000 * MILLISECOND..100_000 * MILLISECOND,
    ];
    prop::collection::vec((1..9u64, 0..2000u64, gap), 0..900)
}

/// Enters the steps; returns the ledger, and what was held after each event, with its time.
fn entered(steps: &[(u64, u64, u64)]) -> (Ledger, Vec<CurvePoint>) {
    let (mut ledger, mut all) = (Ledger::new(PID), vec![CurvePoint::default()]);
    let mut time = MonotonicNanos(77);
    for &(address, size_bytes, gap_ns) in steps {
        time.0 += gap_ns;
        ledger.enter(if size_bytes == 0 { freed(address, time) } else { allocated(address, size_bytes, time) });
        all.push(CurvePoint { time, held: HeapUsage::of(ledger.totals()) });
    }
    (ledger, all)
}

/// Returns what was held after all events up to a time.
fn held_at(all: &[CurvePoint], time: MonotonicNanos) -> HeapUsage {
    all[all.partition_point(|point| point.time <= time) - 1].held
}

proptest! {
    #[test]
    fn points_have_the_state_of_their_time(steps in steps(), more_ns in 0..50 * MILLISECOND) {
        let (ledger, all) = entered(&steps);
        let until = MonotonicNanos(all[all.len() - 1].time.0 + more_ns);
        let points = ledger.curve_points(until);
        prop_assert!(points.len() <= POINTS_MAX + 3);
        prop_assert!(points.is_sorted_by_key(|point| point.time));
        prop_assert_eq!(points.last(), Some(&CurvePoint { time: until, held: HeapUsage::of(ledger.totals()) }));
        prop_assert!(ledger.curve.is_sound() && ledger.curve.memory_bytes() <= 16 << 10);
        let totals = ledger.totals();
        let peak = totals.peak_time.map(|time| ledger.peak_details.at(time, totals.peak_bytes));
        for point in &points {
            let is_peak = Some(point) == peak.as_ref();
            prop_assert!(is_peak || point.held == held_at(&all, point.time), "{:?}", point);
        }
        // The highest of the points is the peak.
        let highest = points.iter().map(|point| point.held.live_bytes).fold(0.0, f64::max);
        prop_assert_eq!(highest, ledger.totals().peak_bytes.to_f64());
        if let Some(peak) = peak {
            prop_assert!(points.contains(&peak) && all.contains(&peak), "{:?}", peak);
        }
    }

    #[test]
    fn omitted_points_are_constant(steps in steps()) {
        let (ledger, all) = entered(&steps);
        let until = all[all.len() - 1].time;
        let points = ledger.curve_points(until);
        let Curve { origin, period_ns, .. } = ledger.curve;
        for pair in points.windows(2).filter(|pair| pair[1].time.0 - pair[0].time.0 > period_ns) {
            let within = (1..).map(|step| MonotonicNanos(pair[0].time.0 + step * period_ns));
            for time in within.take_while(|time| *time < pair[1].time).take(50) {
                prop_assert!((time.0 - origin.0).is_multiple_of(period_ns));
                prop_assert_eq!(held_at(&all, time), pair[0].held, "at {:?}", time);
            }
        }
    }
}

#[test]
fn points_are_evenly_spaced_and_bounded() {
    for seconds in [1_u64, 5, 6, 60, 3600, 86_400] {
        // Something happens within each period that there may be.
        let period = (seconds * 1000 / 900).max(1) * MILLISECOND;
        let mut ledger = Ledger::new(PID);
        let mut time = MonotonicNanos(1000);
        while time.0 < seconds * 1000 * MILLISECOND {
            ledger.enter(allocated(time.0, 16, time));
            time.0 += period;
        }
        let curve = &ledger.curve;
        let span = time.0 / curve.period_ns;
        assert!(curve.held.len() as u64 >= span - 2 && curve.held.len() <= POINTS_MAX, "{} {span}", curve.held.len());
        assert!(seconds < 6 || curve.held.len() >= POINTS_MAX / 2, "{}", curve.held.len());
        assert_eq!(curve.period_ns % PERIOD_NS, 0);
    }
}

#[test]
fn an_idle_period_takes_two_points() {
    let mut ledger = Ledger::new(PID);
    ledger.enter(allocated(1, 100, MonotonicNanos(1)));
    ledger.enter(allocated(2, 10, MonotonicNanos(1000 * MILLISECOND)));
    let told: Vec<_> = ledger
        .curve_points(MonotonicNanos(3000 * MILLISECOND))
        .into_iter()
        .map(|it| (it.time.0, it.held.live_bytes))
        .collect();
    let [first, second] = [10 * MILLISECOND, 1000 * MILLISECOND];
    let before_second = second - 10 * MILLISECOND;
    let expected = [(0, 0.0), (first, 100.0), (before_second, 100.0), (second, 110.0), (3 * second, 110.0)];
    assert_eq!(told, expected, "before, after, the same until shortly before the next, and the same until the end");
}

#[test]
fn a_child_has_a_curve_of_its_own() {
    let mut parent = Ledger::new(PID);
    parent.enter(allocated(1, 100, MonotonicNanos(1)));
    let mut child = parent.fork(Pid(2));
    child.enter(freed(1, MonotonicNanos(30 * MILLISECOND)));
    let points = child.curve_points(MonotonicNanos(50 * MILLISECOND));
    let live: Vec<f64> = points.iter().map(|point| point.held.live_bytes).collect();
    assert_eq!((live.first(), live.last()), (Some(&100.0), Some(&0.0)));
    assert!(points[0].time > MonotonicNanos(29 * MILLISECOND) && points.iter().all(|it| it.held.alloc_count == 0.0));
}

#[test]
fn invalid_curves_are_detected() {
    let sound = entered(&[(1, 2, 3)]).0.curve;
    assert!(sound.is_sound());
    let broken = [
        Curve { held: vec![HeapUsage::default(); POINTS_MAX + 1], ..sound.clone() },
        Curve { held: vec![HeapUsage { live_bytes: f64::NAN, ..HeapUsage::default() }], ..sound.clone() },
        Curve { period_ns: 0, ..sound.clone() },
        Curve { period_ns: u64::MAX, ..sound },
    ];
    assert!(broken.iter().all(|curve| !curve.is_sound()));
}
