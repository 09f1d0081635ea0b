//! The format of valgrind's massif: live bytes over time, with the stacks of live blocks at the peak, at dumps and marks, and at the end.
//! Times are in milliseconds since the start of the profile. The format is line-based text, and readers take `#` for a comment.

use std::io;
use std::ops::Range;

use super::caption::{command, end_unix_ns, start_unix_ns};
use super::describe;
use super::dumps::rounded;
use super::frames::process_frame;
use super::presentation::{Presentation, View};
use super::spec::FormatSpec;
use super::text::printable;
use super::valgrind::Nodes;
use crate::model::{CallsiteProfile, Profile, TargetProfile};
use crate::units::{EstimatedBytes, MonotonicNanos};

pub(super) const FORMAT: FormatSpec =
    FormatSpec { name: "massif", extension: "massif.out", description: "massif", is_text: true, write: Some(write) };

/// Writes live bytes, whatever the view: the format has no other quantity.
fn write(profile: &Profile, presentation: &Presentation, out: &mut dyn io::Write) -> io::Result<()> {
    writeln!(out, "desc: {}", one_line(&format!("heapbpf; {}", describe::taken(profile))))?;
    writeln!(out, "cmd: {}", one_line(&command(profile)))?;
    writeln!(out, "time_unit: ms")?;
    let mut nodes = Nodes::default();
    for (number, point) in timeline(profile).into_iter().enumerate() {
        let Point { time_ms, bytes, detail } = point;
        let (kind, tree) = match detail {
            Detail::None => ("empty", None),
            Detail::Callsites(held) => ("detailed", Some(Tree::of_callsites(profile, presentation, &mut nodes, held))),
            Detail::Peak(held) => ("peak", Some(Tree::of_callsites(profile, presentation, &mut nodes, held))),
            Detail::PeakOfProcesses(held) => ("peak", Some(Tree::of_processes(profile, &mut nodes, held))),
        };
        // The sum of the rounded numbers of the tree, so that they add up.
        let bytes = tree.as_ref().map_or(bytes, Tree::bytes);
        writeln!(out, "#-----------\nsnapshot={number}\n#-----------\ntime={time_ms}\nmem_heap_B={bytes}")?;
        writeln!(out, "mem_heap_extra_B=0\nmem_stacks_B=0\nheap_tree={kind}")?;
        if let Some(tree) = tree {
            tree.write(|node| one_line(&nodes.text(profile, node)), out)?;
        }
    }
    Ok(())
}

/// Escapes text that would change the structure of the file.
fn one_line(text: &str) -> String {
    printable(text).replace('#', "_")
}

/// Maximum number of points without details: no terminal has more columns, and viewers can still draw as many.
const POINTS_MAX: u64 = 1000;

/// Live bytes at a point in time.
struct Point {
    time_ms: u64,
    bytes: u64,
    detail: Detail,
}

/// Breakdown of the live bytes.
enum Detail {
    None,
    /// Live bytes of callsites, by target and callsite.
    Callsites(Vec<(usize, usize, u64)>),
    /// The same, at the peak.
    Peak(Vec<(usize, usize, u64)>),
    /// Live bytes of targets, at the peak.
    PeakOfProcesses(Vec<(usize, u64)>),
}

/// All points, in the order of time, from the start to the end of the profile.
fn timeline(profile: &Profile) -> Vec<Point> {
    let span = start_unix_ns(profile)..=end_unix_ns(profile);
    let curve = Curve::new(profile, |time| span.contains(&profile.unix_ns(time)));
    let mut points: Vec<(u64, Point)> = downsampled(profile, &curve);
    points.extend(dumps(profile).into_iter().filter(|(unix_ns, _)| span.contains(unix_ns)));
    points.extend(peak(profile, &curve).filter(|(unix_ns, _)| span.contains(unix_ns)));
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

/// Collects the live bytes of all callsites.
fn held(profile: &Profile, bytes: impl Fn(&TargetProfile, &CallsiteProfile) -> u64) -> Vec<(usize, usize, u64)> {
    let of_target = |(at, target): (usize, &TargetProfile)| {
        target.callsites.iter().enumerate().map(|(i, callsite)| (at, i, bytes(target, callsite))).collect::<Vec<_>>()
    };
    profile.targets.iter().enumerate().flat_map(of_target).collect()
}

/// Live bytes of all targets together.
struct Curve {
    /// Time, target, and its live bytes.
    samples: Vec<(MonotonicNanos, usize, u64)>,
    /// The sum over all targets after each sample.
    sums: Vec<u64>,
}

impl Curve {
    fn new(profile: &Profile, is_included: impl Fn(MonotonicNanos) -> bool) -> Self {
        let of_target = |(at, target): (usize, &TargetProfile)| {
            let points = target.history.curve.iter().filter(|point| is_included(point.time));
            points.map(|point| (point.time, at, rounded(point.held.live_bytes))).collect::<Vec<_>>()
        };
        let mut samples: Vec<_> = profile.targets.iter().enumerate().flat_map(of_target).collect();
        samples.sort_by_key(|(time, target, _)| (*time, *target));
        let mut held = vec![0_u64; profile.targets.len()];
        let mut sum = 0_u128;
        let sums = samples.iter().map(|&(_, target, bytes)| {
            sum = sum + u128::from(bytes) - u128::from(std::mem::replace(&mut held[target], bytes));
            u64::try_from(sum).unwrap_or(u64::MAX)
        });
        let sums = sums.collect();
        Self { samples, sums }
    }

    /// Whether this is the last sample of its time, so that its sum is of all targets.
    fn is_last_of_time(&self, at: usize) -> bool {
        self.samples.get(at + 1).is_none_or(|next| next.0 != self.samples[at].0)
    }

    /// The first of the highest samples.
    fn highest(&self) -> Option<usize> {
        let last = (0..self.samples.len()).rev().filter(|&at| self.is_last_of_time(at));
        last.max_by_key(|&at| self.sums[at])
    }
}

/// The sum at each time; if there are too many, the highest one of each of [`POINTS_MAX`] equal ranges of time.
fn downsampled(profile: &Profile, curve: &Curve) -> Vec<(u64, Point)> {
    let (start_ns, end_ns) = (start_unix_ns(profile), end_unix_ns(profile));
    let slot_ns =
        if curve.samples.len() as u64 > POINTS_MAX { (end_ns - start_ns).div_ceil(POINTS_MAX).max(1) } else { 1 };
    let mut points: Vec<(u64, Point)> = Vec::new();
    let mut slot = None;
    for (at, ((time, ..), &bytes)) in curve.samples.iter().zip(&curve.sums).enumerate() {
        if !curve.is_last_of_time(at) {
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

/// The ends of windows, and marks.
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

/// Live bytes of a callsite at a time, by the latest entry of its history until then.
fn held_at(target: &TargetProfile, callsite: &CallsiteProfile, time: MonotonicNanos) -> u64 {
    let is_before =
        |index: u32| target.history.instants.get(index as usize).is_some_and(|instant| instant.time <= time);
    let latest = callsite.history.iter().rev().find(|change| is_before(change.instant));
    latest.map_or(0, |change| rounded(change.held.live_bytes))
}

/// The peak of the only process, or the highest sum of several, if it is known.
fn peak(profile: &Profile, curve: &Curve) -> Option<(u64, Point)> {
    match profile.targets.as_slice() {
        [target] => target.totals.peak_time.map(|time| {
            let held = held(profile, |_, callsite| callsite.totals.at_peak.bytes.rounded());
            point(profile, profile.unix_ns(time), 0, Detail::Peak(held))
        }),
        targets => curve.highest().map(|at| {
            let mut held = vec![0; targets.len()];
            curve.samples[..=at].iter().for_each(|&(_, target, bytes)| held[target] = bytes);
            let held = held.into_iter().enumerate().collect();
            point(profile, profile.unix_ns(curve.samples[at].0), 0, Detail::PeakOfProcesses(held))
        }),
    }
}

/// Nodes below 1/100 of the total are merged: massif's own threshold.
const SHARE_MIN: u128 = 100;

/// Maximum depth of a stack. Lines are indented by their depth, so the size of the file grows with the square of it.
const DEPTH_MAX: usize = 2048;

/// The stacks of live blocks as a tree from the allocation to its callers.
struct Tree {
    /// Nodes and bytes, sorted.
    paths: Vec<(Vec<u32>, u64)>,
    /// Prefix sums of the bytes; one more than there are paths.
    sums: Vec<u64>,
}

/// A pending line.
enum Line {
    Node { paths: Range<usize>, depth: usize, node: Option<u32> },
    Folded { depth: usize, bytes: u64, count: usize },
}

impl Tree {
    /// `held` are bytes by target and callsite.
    fn of_callsites(
        profile: &Profile,
        presentation: &Presentation,
        nodes: &mut Nodes,
        held: Vec<(usize, usize, u64)>,
    ) -> Self {
        let path = |(target, callsite, bytes): (usize, usize, u64)| {
            let target = profile.targets.get(target)?;
            let callsite = target.callsites.get(callsite)?;
            (bytes > 0).then(|| (nodes.path(profile, target, callsite, presentation), bytes))
        };
        Self::new(held.into_iter().filter_map(path).collect())
    }

    /// `held` are bytes by target.
    fn of_processes(profile: &Profile, nodes: &mut Nodes, held: Vec<(usize, u64)>) -> Self {
        let path = |(target, bytes): (usize, u64)| {
            let target = profile.targets.get(target)?;
            (bytes > 0).then(|| (vec![nodes.synthetic(profile, process_frame(target))], bytes))
        };
        Self::new(held.into_iter().filter_map(path).collect())
    }

    fn new(mut paths: Vec<(Vec<u32>, u64)>) -> Self {
        paths.sort_unstable();
        let mut sum = 0_u64;
        let mut sums = vec![0];
        sums.extend(paths.iter().map(|(_, bytes)| {
            sum = sum.saturating_add(*bytes);
            sum
        }));
        Self { paths, sums }
    }

    fn bytes(&self) -> u64 {
        self.held(&(0..self.paths.len()))
    }

    fn held(&self, paths: &Range<usize>) -> u64 {
        self.sums[paths.end] - self.sums[paths.start]
    }

    /// Writes a line per node. `text` returns its name.
    fn write(&self, text: impl Fn(u32) -> String, out: &mut dyn io::Write) -> io::Result<()> {
        let mut lines = vec![Line::Node { paths: 0..self.paths.len(), depth: 0, node: None }];
        while let Some(line) = lines.pop() {
            match line {
                Line::Node { paths, depth, node } => {
                    let callers = self.callers(&paths, depth);
                    write!(out, "{:depth$}n{}: {} ", "", callers.len(), self.held(&paths))?;
                    match node {
                        Some(node) => writeln!(out, "{}", text(node))?,
                        None => writeln!(out, "(heap allocation functions) malloc/new/new[], --alloc-fns, etc.")?,
                    }
                    lines.extend(callers.into_iter().rev());
                }
                Line::Folded { depth, bytes, count } => {
                    let places = if count == 1 { "place," } else { "places, all" };
                    writeln!(out, "{:depth$}n0: {bytes} in {count} {places} below massif's threshold (1.00%)", "")?;
                }
            }
        }
        Ok(())
    }

    /// The nodes below one, the largest first; the small ones are merged.
    fn callers(&self, paths: &Range<usize>, depth: usize) -> Vec<Line> {
        if depth >= DEPTH_MAX {
            return Vec::new();
        }
        // Paths that end here come before longer ones.
        let ending = self.paths[paths.clone()].partition_point(|(path, _)| path.len() <= depth);
        let mut at = paths.start + ending;
        let (mut nodes, mut folded_bytes, mut folded_count) = (Vec::new(), 0_u64, 0);
        while at < paths.end {
            let node = self.paths[at].0[depth];
            let of_node = self.paths[at..paths.end].partition_point(|(path, _)| path[depth] == node);
            let caller = at..at + of_node;
            at = caller.end;
            let bytes = self.held(&caller);
            if u128::from(bytes) * SHARE_MIN < u128::from(self.bytes()) {
                folded_bytes += bytes;
                folded_count += 1;
            } else {
                nodes.push((std::cmp::Reverse(bytes), caller, node));
            }
        }
        nodes.sort_by_key(|(bytes, caller, _)| (*bytes, caller.start));
        let depth = depth + 1;
        let nodes = nodes.into_iter().map(|(_, paths, node)| Line::Node { paths, depth, node: Some(node) });
        let folded = (folded_count > 0).then_some(Line::Folded { depth, bytes: folded_bytes, count: folded_count });
        nodes.chain(folded).collect()
    }
}
