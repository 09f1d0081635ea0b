//! The format of valgrind's massif. Times are in milliseconds since the start of the profile. The format is
//! line-based text, and readers take `#` for a comment.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;

use heapbpf_base::units::{EstimatedBytes, MonotonicNanos};
use heapbpf_ledger::model::{CallsiteProfile, Profile, TargetProfile};

use super::describe::{self, command, end_unix_ns, start_unix_ns};
use super::dumps::rounded;
use super::presentation::{Presentation, View};
use super::tables::{ValgrindFrames, process_frame};
use super::text::printable;

/// Writes live bytes, whatever the view: the format has no other quantity.
pub(super) fn write(profile: &Profile, presentation: &Presentation, out: &mut dyn io::Write) -> io::Result<()> {
    writeln!(out, "desc: {}", one_line(&format!("heapbpf; {}", describe::taken(profile))))?;
    writeln!(out, "cmd: {}", one_line(&command(profile)))?;
    writeln!(out, "time_unit: ms")?;
    let mut frames = ValgrindFrames::default();
    let curve = Curve::new(profile);
    for (number, point) in timeline(profile, &curve).into_iter().enumerate() {
        let time_ms = point.unix_ns.saturating_sub(start_unix_ns(profile)) / 1_000_000;
        let (kind, paths) = point.detail.paths(profile, presentation, &curve, &mut frames);
        let tree = paths.map(Tree::new);
        // The sum of the rounded numbers of the tree, so that they add up.
        let bytes = tree.as_ref().map_or(point.bytes, Tree::bytes);
        writeln!(out, "#-----------\nsnapshot={number}\n#-----------\ntime={time_ms}\nmem_heap_B={bytes}")?;
        writeln!(out, "mem_heap_extra_B=0\nmem_stacks_B=0\nheap_tree={kind}")?;
        if let Some(tree) = tree {
            tree.write(|frame| one_line(&frames.text(profile, frame)), out)?;
        }
    }
    Ok(())
}

fn one_line(text: &str) -> String {
    printable(text).replace('#', "_")
}

/// Maximum number of points without details: no terminal has more columns, and viewers can still draw as many.
const POINTS_MAX: u64 = 1000;

struct Point {
    unix_ns: u64,
    bytes: u64,
    detail: Detail,
}

enum Detail {
    None,
    At(MonotonicNanos),
    End,
    /// The peak of the only process.
    Peak,
    /// The highest sum of several processes, after a number of samples of the curve. Only processes are distinguished.
    PeakOfProcesses(usize),
}

/// Stacks or processes, with their live bytes.
type Paths = Vec<(Vec<u32>, u64)>;

impl Detail {
    /// Returns the format's name for the kind of breakdown.
    fn paths(
        &self,
        profile: &Profile,
        presentation: &Presentation,
        curve: &Curve,
        frames: &mut ValgrindFrames,
    ) -> (&'static str, Option<Paths>) {
        let mut of_callsites = |bytes: &dyn Fn(&TargetProfile, &CallsiteProfile) -> u64| {
            let held = profile.callsites().map(|(target, callsite)| (target, callsite, bytes(target, callsite)));
            let held = held.filter(|(.., bytes)| *bytes > 0);
            let path = |(target, callsite, bytes)| (frames.path(profile, target, callsite, presentation), bytes);
            Some(held.map(path).collect())
        };
        match *self {
            Self::None => ("empty", None),
            Self::At(time) => ("detailed", of_callsites(&|target, callsite| held_at(target, callsite, time))),
            Self::End => ("detailed", of_callsites(&|_, callsite| View::LiveBytes.of_callsite(callsite))),
            Self::Peak => ("peak", of_callsites(&|_, callsite| callsite.totals.at_peak.bytes.rounded())),
            Self::PeakOfProcesses(samples) => {
                let mut held = vec![0; profile.targets.len()];
                curve.samples[..samples].iter().for_each(|&(_, target, bytes)| held[target] = bytes);
                let held = profile.targets.iter().zip(held).filter(|(_, bytes)| *bytes > 0);
                let mut path = |target| vec![frames.synthetic(profile, process_frame(target))];
                ("peak", Some(held.map(|(target, bytes)| (path(target), bytes)).collect()))
            }
        }
    }
}

/// Live bytes of a callsite at a time, by the latest entry of its history until then.
fn held_at(target: &TargetProfile, callsite: &CallsiteProfile, time: MonotonicNanos) -> u64 {
    let is_before =
        |index: u32| target.history.instants.get(index as usize).is_some_and(|instant| instant.time <= time);
    let latest = callsite.history.iter().rev().find(|change| is_before(change.instant));
    latest.map_or(0, |change| rounded(change.held.live_bytes))
}

fn timeline(profile: &Profile, curve: &Curve) -> Vec<Point> {
    let (start_ns, end_ns) = (start_unix_ns(profile), end_unix_ns(profile));
    let opening: EstimatedBytes = profile.targets.iter().map(|target| target.totals.opening_bytes).sum();
    let opening_bytes = profile.window.map_or(0, |_| opening.rounded());
    let mut points = vec![Point { unix_ns: start_ns, bytes: opening_bytes, detail: Detail::None }];
    points.extend(downsampled(profile, curve));
    let detailed = |time, detail| Point { unix_ns: profile.unix_ns(time), bytes: 0, detail };
    let instants = profile.targets.iter().flat_map(|target| &target.history.instants);
    let dumps: BTreeSet<MonotonicNanos> =
        instants.filter(|instant| instant.trigger.is_some()).map(|instant| instant.time).collect();
    points.extend(dumps.into_iter().map(|time| detailed(time, Detail::At(time))));
    points.extend(match profile.targets.as_slice() {
        [target] => target.totals.peak_time.map(|time| detailed(time, Detail::Peak)),
        _ => curve.highest().map(|(time, samples)| detailed(time, Detail::PeakOfProcesses(samples))),
    });
    points.retain(|point| (start_ns..=end_ns).contains(&point.unix_ns));
    points.push(Point { unix_ns: end_ns, bytes: 0, detail: Detail::End });
    // The sort is stable: the first and the last point stay there.
    points.sort_by_key(|point| (point.unix_ns, !matches!(point.detail, Detail::None)));
    points
}

struct Curve {
    /// Time, target, and its live bytes.
    samples: Vec<(MonotonicNanos, usize, u64)>,
    /// Each time with the sum over all targets, and the number of samples until then.
    sums: Vec<(MonotonicNanos, u64, usize)>,
}

impl Curve {
    fn new(profile: &Profile) -> Self {
        let span = start_unix_ns(profile)..=end_unix_ns(profile);
        let mut samples = Vec::new();
        for (at, target) in profile.targets.iter().enumerate() {
            let points = target.history.curve.iter().filter(|point| span.contains(&profile.unix_ns(point.time)));
            samples.extend(points.map(|point| (point.time, at, rounded(point.held.live_bytes))));
        }
        samples.sort_by_key(|(time, target, _)| (*time, *target));
        let mut held = vec![0_u64; profile.targets.len()];
        let (mut sum, mut count) = (0_u128, 0);
        let sums = samples.chunk_by(|(a, ..), (b, ..)| a == b).map(|same_time| {
            for &(_, target, bytes) in same_time {
                sum = sum + u128::from(bytes) - u128::from(std::mem::replace(&mut held[target], bytes));
            }
            count += same_time.len();
            (same_time[0].0, u64::try_from(sum).unwrap_or(u64::MAX), count)
        });
        let sums = sums.collect();
        Self { samples, sums }
    }

    /// The first of the times with the highest sum, and the number of samples until then.
    fn highest(&self) -> Option<(MonotonicNanos, usize)> {
        let highest = self.sums.iter().rev().max_by_key(|(_, bytes, _)| *bytes);
        highest.map(|&(time, _, samples)| (time, samples))
    }
}

/// The sum at each time; if there are too many, the highest one of each of [`POINTS_MAX`] equal ranges of time.
fn downsampled(profile: &Profile, curve: &Curve) -> Vec<Point> {
    let (start_ns, end_ns) = (start_unix_ns(profile), end_unix_ns(profile));
    let slot_ns =
        if curve.samples.len() as u64 > POINTS_MAX { (end_ns - start_ns).div_ceil(POINTS_MAX).max(1) } else { 1 };
    let slot = |unix_ns: u64| unix_ns.saturating_sub(start_ns) / slot_ns;
    let mut points: Vec<Point> = Vec::new();
    for &(time, bytes, _) in &curve.sums {
        let point = Point { unix_ns: profile.unix_ns(time), bytes, detail: Detail::None };
        match points.last_mut().filter(|last| slot(last.unix_ns) == slot(point.unix_ns)) {
            Some(last) if last.bytes >= bytes => {}
            Some(last) => *last = point,
            None => points.push(point),
        }
    }
    points
}

/// Nodes below 1/100 of the total are merged: massif's own threshold.
const SHARE_MIN: u128 = 100;

/// Maximum depth of a stack. Lines are indented by their depth, so the size of the file grows with the square of it.
const DEPTH_MAX: usize = 2048;

/// The stacks of live blocks as a tree from the allocation to its callers.
struct Tree {
    paths: Paths,
    /// Prefix sums of the bytes; one more than there are paths.
    sums: Vec<u64>,
}

enum Line {
    Node { paths: Range<usize>, depth: usize, node: Option<u32> },
    Folded { depth: usize, bytes: u64, count: usize },
}

impl Tree {
    fn new(mut paths: Paths) -> Self {
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
