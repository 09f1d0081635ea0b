//! The format of valgrind's DHAT, version 2: per stack what was allocated, what was live at the peak and at the end, and how long
//! blocks lived. Times are in microseconds since the profile's span began.

use std::io;

use rustc_hash::FxHashMap;
use serde::{Serialize, Serializer};

use super::describe;
use super::valgrind::{Nodes, command, end_unix_ns, start_unix_ns};
use super::{Presentation, Report, ReportError, View};
use crate::model::{CallsiteProfile, Profile};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Dhat;

/// Version of the format.
const VERSION: u32 = 2;

/// Blocks that live for less on average are short-lived, in microseconds.
const SHORT_LIVED_US: u64 = 500;

impl Report for Dhat {
    /// All quantities are in it, whatever the view.
    fn write(
        &self,
        profile: &Profile,
        presentation: &Presentation,
        out: &mut dyn io::Write,
    ) -> Result<(), ReportError> {
        let points = Points::new(profile, presentation);
        let start_ns = start_unix_ns(profile);
        let micros = |unix_ns: u64| unix_ns.saturating_sub(start_ns) / 1000;
        let end_us = micros(end_unix_ns(profile)).max(1);
        // Of several processes each has its own peak, and the time is the largest one's.
        let largest = profile.targets.iter().max_by_key(|target| target.totals.peak_bytes);
        let peak = largest.and_then(|target| target.totals.peak_time).map(|time| micros(profile.unix_ns(time)));
        let root = Root {
            version: VERSION,
            mode: format!("heap; {}", describe::taken(profile)),
            verb: "Allocated",
            has_lifetimes: true,
            has_accesses: false,
            time_unit: "µs",
            time_unit_million: "s",
            short_lived: SHORT_LIVED_US,
            command: command(profile),
            pid: profile.targets.first().map_or(0, |target| target.pid.0),
            end: end_us,
            peak: peak.unwrap_or(0).min(end_us),
            points: Each(points.points.as_slice()),
            frames: Frames { points: &points, profile },
        };
        serde_json::to_writer(&mut *out, &root).map_err(io::Error::from)?;
        out.write_all(b"\n")?;
        Ok(())
    }
}

#[derive(Serialize)]
struct Root<'a> {
    #[serde(rename = "dhatFileVersion")]
    version: u32,
    mode: String,
    verb: &'static str,
    #[serde(rename = "bklt")]
    has_lifetimes: bool,
    #[serde(rename = "bkacc")]
    has_accesses: bool,
    #[serde(rename = "tu")]
    time_unit: &'static str,
    #[serde(rename = "Mtu")]
    time_unit_million: &'static str,
    #[serde(rename = "tuth")]
    short_lived: u64,
    #[serde(rename = "cmd")]
    command: String,
    pid: u32,
    #[serde(rename = "te")]
    end: u64,
    #[serde(rename = "tg")]
    peak: u64,
    #[serde(rename = "pps")]
    points: Each<'a>,
    #[serde(rename = "ftbl")]
    frames: Frames<'a>,
}

/// Program points, as the format calls places that allocate.
struct Each<'a>(&'a [Point]);

impl Serialize for Each<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0)
    }
}

/// What one stack did.
#[derive(Debug, Default, Serialize)]
struct Point {
    /// Allocated, or there at the beginning.
    #[serde(rename = "tb")]
    total_bytes: u64,
    #[serde(rename = "tbk")]
    total_blocks: u64,
    /// How long all of these have lived together; of those that are live, until the end.
    #[serde(rename = "tl")]
    lifetimes_us: u64,
    #[serde(rename = "mb")]
    peak_bytes: u64,
    #[serde(rename = "mbk")]
    peak_blocks: u64,
    #[serde(rename = "gb")]
    at_peak_bytes: u64,
    #[serde(rename = "gbk")]
    at_peak_blocks: u64,
    #[serde(rename = "eb")]
    live_bytes: u64,
    #[serde(rename = "ebk")]
    live_blocks: u64,
    /// Places in the table of frames.
    #[serde(rename = "fs")]
    frames: Vec<usize>,
}

impl Point {
    fn add(&mut self, callsite: &CallsiteProfile) {
        let (totals, details) = (&callsite.totals, &callsite.details);
        let lifetimes = details.lifetime_total + details.ages.total;
        for (sum, more) in [
            (&mut self.total_bytes, (totals.opening_bytes + totals.alloc_bytes).rounded()),
            (&mut self.total_blocks, (totals.opening_count + totals.alloc_count).rounded()),
            (&mut self.lifetimes_us, lifetimes.rounded()),
            (&mut self.peak_bytes, totals.peak_bytes.rounded()),
            (&mut self.peak_blocks, totals.peak_count.rounded()),
            (&mut self.at_peak_bytes, totals.at_peak.bytes.rounded()),
            (&mut self.at_peak_blocks, totals.at_peak.count.rounded()),
            (&mut self.live_bytes, View::LiveBytes.of_callsite(callsite)),
            (&mut self.live_blocks, View::LiveCount.of_callsite(callsite)),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

/// All points, each stack once: readers refuse a file that has one twice. Of callsites that look alike (on different heaps, say)
/// the peaks are added up, which is the most that they can have had together.
struct Points {
    points: Vec<Point>,
    /// Frames by their place in the file's table, which has the root first.
    table: Vec<u32>,
    nodes: Nodes,
}

impl Points {
    fn new(profile: &Profile, presentation: &Presentation) -> Self {
        let mut points = Self { points: Vec::new(), table: Vec::new(), nodes: Nodes::default() };
        let mut known: FxHashMap<Vec<u32>, usize> = FxHashMap::default();
        let mut places: FxHashMap<u32, usize> = FxHashMap::default();
        let callsites = profile.targets.iter().flat_map(|target| target.callsites.iter().map(move |it| (target, it)));
        for (target, callsite) in callsites {
            let path = points.nodes.path(profile, target, callsite, presentation);
            let at = *known.entry(path).or_insert_with_key(|path| {
                let place = |&node: &u32| {
                    *places.entry(node).or_insert_with(|| {
                        points.table.push(node);
                        points.table.len()
                    })
                };
                points.points.push(Point { frames: path.iter().map(place).collect(), ..Point::default() });
                points.points.len() - 1
            });
            points.points[at].add(callsite);
        }
        points
    }
}

/// The table of frames, the root first.
struct Frames<'a> {
    points: &'a Points,
    profile: &'a Profile,
}

impl Serialize for Frames<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let texts = self.points.table.iter().map(|&node| self.points.nodes.text(self.profile, node));
        serializer.collect_seq(std::iter::once("[root]".to_owned()).chain(texts))
    }
}
