//! The format of valgrind's DHAT, version 2: per stack what was allocated, what was live at the peak and at the end, and how long blocks
//! lived. Times are in microseconds since the start of the profile. All quantities are included, whatever the view.

use std::io;

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::caption::{command, end_unix_ns, start_unix_ns};
use super::describe;
use super::intern::Interner;
use super::presentation::{Presentation, View};
use super::spec::FormatSpec;
use super::valgrind::Nodes;
use crate::model::{CallsiteProfile, Profile};

pub(super) const FORMAT: FormatSpec =
    FormatSpec { name: "dhat", extension: "dhat.json", description: "DHAT", is_text: true, write: Some(write) };

/// Mean lifetime below which blocks are short-lived, in microseconds.
const SHORT_LIVED_US: u64 = 500;

fn write(profile: &Profile, presentation: &Presentation, out: &mut dyn io::Write) -> io::Result<()> {
    let points = Points::new(profile, presentation);
    let start_ns = start_unix_ns(profile);
    let micros = |unix_ns: u64| unix_ns.saturating_sub(start_ns) / 1000;
    let end_us = micros(end_unix_ns(profile)).max(1);
    // Each process has its own peak; the time is that of the largest one.
    let largest = profile.targets.iter().max_by_key(|target| target.totals.peak_bytes);
    let peak = largest.and_then(|target| target.totals.peak_time).map(|time| micros(profile.unix_ns(time)));
    let texts = points.table.iter().map(|&node| points.nodes.text(profile, node));
    let frames = std::iter::once("[root]".to_owned()).chain(texts).collect();
    let root = Root {
        version: 2,
        mode: format!("heap; {}", describe::taken(profile)),
        verb: "Allocated",
        has_lifetimes: true,
        has_accesses: false,
        time_unit: "µs",
        time_unit_million: "s",
        short_lived: SHORT_LIVED_US,
        command: command(profile),
        pid: profile.targets.first().map_or(0, |target| target.facts.pid.0),
        end: end_us,
        peak: peak.unwrap_or(0).min(end_us),
        points: &points.points,
        frames,
    };
    serde_json::to_writer(&mut *out, &root)?;
    out.write_all(b"\n")
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
    points: &'a [Point],
    #[serde(rename = "ftbl")]
    frames: Vec<String>,
}

/// A program point, as the format calls callsites.
#[derive(Debug, Default, Serialize)]
struct Point {
    /// Allocated, or live at the start.
    #[serde(rename = "tb")]
    total_bytes: u64,
    #[serde(rename = "tbk")]
    total_blocks: u64,
    /// Sum of the lifetimes of these blocks; those of live blocks last until the end.
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
    /// Indices into the table of frames.
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

/// The points of all stacks. Each stack occurs once, because readers reject duplicates. The peaks of callsites with equal stacks (on
/// different heaps, say) are added up, which is an upper bound.
struct Points {
    points: Vec<Point>,
    /// Nodes in the order of the file's table of frames, after the root.
    table: Vec<u32>,
    nodes: Nodes,
}

impl Points {
    fn new(profile: &Profile, presentation: &Presentation) -> Self {
        let mut points = Self { points: Vec::new(), table: Vec::new(), nodes: Nodes::default() };
        let mut paths: Interner<Vec<u32>> = Interner::default();
        let mut indices: FxHashMap<u32, usize> = FxHashMap::default();
        let callsites = profile.targets.iter().flat_map(|target| target.callsites.iter().map(move |it| (target, it)));
        for (target, callsite) in callsites {
            let at = paths.intern(points.nodes.path(profile, target, callsite, presentation)) as usize;
            if at == points.points.len() {
                let index = |&node: &u32| {
                    *indices.entry(node).or_insert_with(|| {
                        points.table.push(node);
                        points.table.len()
                    })
                };
                let frames = paths.values[at].iter().map(index).collect();
                points.points.push(Point { frames, ..Point::default() });
            }
            points.points[at].add(callsite);
        }
        points
    }
}
