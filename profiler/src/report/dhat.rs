//! The format of valgrind's DHAT, version 2: per stack what was allocated, what was live at the peak and at the end, and how long blocks
//! lived. Times are in microseconds since the start of the profile. All quantities are included, whatever the view.

use std::io;

use serde::Serialize;
use serde_json::{Value, json};

use super::caption::{command, end_unix_ns, start_unix_ns};
use super::describe;
use super::presentation::{Presentation, View};
use super::tables::{Interner, OrderedMap, ValgrindFrames};
use crate::model::{CallsiteProfile, Profile};

/// Mean lifetime below which blocks are short-lived, in microseconds.
const SHORT_LIVED_US: u64 = 500;

pub(super) fn write(profile: &Profile, presentation: &Presentation, out: &mut dyn io::Write) -> io::Result<()> {
    let mut valgrind_frames = ValgrindFrames::default();
    // Each stack occurs once, because readers reject duplicates. The peaks of callsites with equal stacks (on different heaps, say) are
    // added up, which is an upper bound.
    let mut points: OrderedMap<Vec<u32>, Point> = OrderedMap::default();
    for target in &profile.targets {
        for callsite in &target.callsites {
            let path = valgrind_frames.path(profile, target, callsite, presentation);
            points.entry(path).or_default().add(callsite);
        }
    }
    let mut table: Interner<u32> = Interner::default();
    for (path, point) in &mut points {
        // The root is at index 0.
        point.frames = path.iter().map(|&frame| table.intern(frame) + 1).collect();
    }
    let texts = table.values.iter().map(|&frame| valgrind_frames.text(profile, frame));
    let root = Root {
        header: header(profile),
        points: points.into_values().collect(),
        frames: std::iter::once("[root]".to_owned()).chain(texts).collect(),
    };
    serde_json::to_writer(&mut *out, &root)?;
    out.write_all(b"\n")
}

fn header(profile: &Profile) -> Value {
    let start_ns = start_unix_ns(profile);
    let micros = |unix_ns: u64| unix_ns.saturating_sub(start_ns) / 1000;
    let end_us = micros(end_unix_ns(profile)).max(1);
    // Each process has its own peak; the time is that of the largest one.
    let largest = profile.targets.iter().max_by_key(|target| target.totals.peak_bytes);
    let peak_us = largest.and_then(|target| target.totals.peak_time).map_or(0, |time| micros(profile.unix_ns(time)));
    json!({
        "dhatFileVersion": 2,
        "mode": format!("heap; {}", describe::taken(profile)),
        "verb": "Allocated",
        // Lifetimes are known, accesses are not.
        "bklt": true,
        "bkacc": false,
        // Units of times, and of a million of them.
        "tu": "µs",
        "Mtu": "s",
        "tuth": SHORT_LIVED_US,
        "cmd": command(profile),
        "pid": profile.targets.first().map_or(0, |target| target.facts.pid.0),
        "te": end_us,
        "tg": peak_us.min(end_us),
    })
}

#[derive(Serialize)]
struct Root {
    #[serde(flatten)]
    header: Value,
    #[serde(rename = "pps")]
    points: Vec<Point>,
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
    frames: Vec<u32>,
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
