//! Live bytes over time: of one process as they were, of several the sum. Times at which more is known than the sum have it.

use crate::model::{CallsiteProfile, Profile, TargetProfile};
use crate::report::View;
use crate::report::valgrind::{end_unix_ns, start_unix_ns};
use crate::units::{EstimatedBytes, MonotonicNanos};

/// Points without details. A terminal has no more columns, and a page can still be drawn of so many.
const POINTS_MAX: u64 = 1000;

/// What was live at a time.
pub(super) struct Point {
    pub(super) time_ms: u64,
    pub(super) bytes: u64,
    pub(super) detail: Detail,
}

/// What is known of it besides.
pub(super) enum Detail {
    None,
    /// What callsites held, by target and callsite.
    Callsites(Vec<(usize, usize, u64)>),
    /// The same, and more was live than ever.
    Peak(Vec<(usize, usize, u64)>),
    /// What targets held when more was live than ever.
    PeakOfProcesses(Vec<(usize, u64)>),
}

/// All points, in the order of time; the first is the beginning, the last the end.
pub(super) fn timeline(profile: &Profile) -> Vec<Point> {
    let span = start_unix_ns(profile)..=end_unix_ns(profile);
    let moments = moments(profile, |time| span.contains(&profile.unix_ns(time)));
    let mut points: Vec<(u64, Point)> = thinned(profile, &moments);
    points.extend(dumps(profile).into_iter().filter(|(unix_ns, _)| span.contains(unix_ns)));
    points.extend(peak(profile, &moments).filter(|(unix_ns, _)| span.contains(unix_ns)));
    points.sort_by_key(|(unix_ns, point)| (*unix_ns, !matches!(point.detail, Detail::None)));
    let opening = profile.window.map(|_| profile.targets.iter().map(|target| target.totals.opening_bytes).sum());
    let opening: EstimatedBytes = opening.unwrap_or_default();
    let first = Point { time_ms: 0, bytes: opening.rounded(), detail: Detail::None };
    let last = point(
        profile,
        *span.end(),
        0,
        Detail::Callsites(held(profile, |_, callsite| View::LiveBytes.of_callsite(callsite))),
    );
    std::iter::once(first).chain(points.into_iter().map(|(_, point)| point)).chain([last.1]).collect()
}

fn point(profile: &Profile, unix_ns: u64, bytes: u64, detail: Detail) -> (u64, Point) {
    let time_ms = unix_ns.saturating_sub(start_unix_ns(profile)) / 1_000_000;
    (unix_ns, Point { time_ms, bytes, detail })
}

/// What each callsite holds.
fn held(profile: &Profile, bytes: impl Fn(&TargetProfile, &CallsiteProfile) -> u64) -> Vec<(usize, usize, u64)> {
    let of_target = |(at, target): (usize, &TargetProfile)| {
        target.callsites.iter().enumerate().map(|(i, callsite)| (at, i, bytes(target, callsite))).collect::<Vec<_>>()
    };
    profile.targets.iter().enumerate().flat_map(of_target).collect()
}

/// Live bytes of all targets together, each time that one of them tells.
struct Moments {
    /// Time, target, what it holds then.
    told: Vec<(MonotonicNanos, usize, u64)>,
    /// The sum after each of these.
    sums: Vec<u64>,
}

impl Moments {
    /// Whether this is the last that is told of its time, so that the sum is of all targets.
    fn is_whole(&self, at: usize) -> bool {
        self.told.get(at + 1).is_none_or(|next| next.0 != self.told[at].0)
    }
}

fn moments(profile: &Profile, is_meant: impl Fn(MonotonicNanos) -> bool) -> Moments {
    let curve = |(at, target): (usize, &TargetProfile)| {
        let moments = target.history.curve.iter().filter(|moment| is_meant(moment.time));
        moments.map(|moment| (moment.time, at, whole(moment.held.live_bytes))).collect::<Vec<_>>()
    };
    let mut told: Vec<_> = profile.targets.iter().enumerate().flat_map(curve).collect();
    told.sort_by_key(|(time, target, _)| (*time, *target));
    let mut held = vec![0_u64; profile.targets.len()];
    let mut sum = 0_u128;
    let sums = told.iter().map(|&(_, target, bytes)| {
        sum = sum + u128::from(bytes) - u128::from(std::mem::replace(&mut held[target], bytes));
        u64::try_from(sum).unwrap_or(u64::MAX)
    });
    let sums = sums.collect();
    Moments { told, sums }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates, and that is what is wanted"
)]
fn whole(bytes: f64) -> u64 {
    bytes.round() as u64
}

/// The sum at the end of each moment. Where there are too many, the highest of each of equal stretches of time.
fn thinned(profile: &Profile, moments: &Moments) -> Vec<(u64, Point)> {
    let (start_ns, end_ns) = (start_unix_ns(profile), end_unix_ns(profile));
    let slot_ns =
        if moments.told.len() as u64 > POINTS_MAX { (end_ns - start_ns).div_ceil(POINTS_MAX).max(1) } else { 1 };
    let mut points: Vec<(u64, Point)> = Vec::new();
    let mut slot = None;
    for (at, ((time, ..), &bytes)) in moments.told.iter().zip(&moments.sums).enumerate() {
        if !moments.is_whole(at) {
            continue;
        }
        let unix_ns = profile.unix_ns(*time);
        let now = Some(unix_ns.saturating_sub(start_ns) / slot_ns);
        match points.last_mut().filter(|_| slot == now) {
            Some((_, last)) if last.bytes >= bytes => {}
            Some(last) => *last = point(profile, unix_ns, bytes, Detail::None),
            None => points.push(point(profile, unix_ns, bytes, Detail::None)),
        }
        slot = now;
    }
    points
}

/// When windows ended and marks were set.
fn dumps(profile: &Profile) -> Vec<(u64, Point)> {
    let instants = profile.targets.iter().flat_map(|target| &target.history.instants);
    let mut times: Vec<MonotonicNanos> =
        instants.filter(|instant| instant.occasion.is_some()).map(|instant| instant.time).collect();
    times.sort_unstable();
    times.dedup();
    let dump = |time: MonotonicNanos| {
        let held = held(profile, |target, callsite| held_at(target, callsite, time));
        point(profile, profile.unix_ns(time), 0, Detail::Callsites(held))
    };
    times.into_iter().map(dump).collect()
}

/// What a callsite held at a time, as of the latest instant until then at which it was looked at.
fn held_at(target: &TargetProfile, callsite: &CallsiteProfile, time: MonotonicNanos) -> u64 {
    let is_before = |instant: u32| {
        let instant = target.history.instants.get(instant as usize);
        instant.is_some_and(|instant| instant.time <= time)
    };
    let latest = callsite.history.iter().rev().find(|change| is_before(change.instant));
    latest.map_or(0, |change| whole(change.held.live_bytes))
}

/// The first of the moments at which most was held.
fn highest(moments: &Moments) -> Option<usize> {
    let whole = (0..moments.told.len()).rev().filter(|&at| moments.is_whole(at));
    whole.max_by_key(|&at| moments.sums[at])
}

/// Of one process the peak as it was; of several what each held when they held most together, where that is known.
fn peak(profile: &Profile, moments: &Moments) -> impl Iterator<Item = (u64, Point)> + use<> {
    let peak = match profile.targets.as_slice() {
        [target] => target.totals.peak_time.map(|time| {
            let held = held(profile, |_, callsite| callsite.totals.at_peak.bytes.rounded());
            point(profile, profile.unix_ns(time), 0, Detail::Peak(held))
        }),
        targets => highest(moments).map(|at| {
            let mut held = vec![0; targets.len()];
            moments.told[..=at].iter().for_each(|&(_, target, bytes)| held[target] = bytes);
            let held = held.into_iter().enumerate().collect();
            point(profile, profile.unix_ns(moments.told[at].0), 0, Detail::PeakOfProcesses(held))
        }),
    };
    peak.into_iter()
}
