//! The format of valgrind's DHAT, version 2. Times are in microseconds since the start of the profile. All
//! quantities are included, whatever the view.

use std::io;

use heapbpf_ledger::model::{CallsiteProfile, Profile};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::describe::{self, command, end_unix_ns, start_unix_ns};
use super::plain_json::write_line;
use super::presentation::{Presentation, View};
use super::tables::{Intern, Interner, OrderedMap, ValgrindFrames};

/// Mean lifetime below which blocks are short-lived, in microseconds.
const SHORT_LIVED_US: u64 = 500;

pub(super) fn write(profile: &Profile, presentation: &Presentation, out: &mut dyn io::Write) -> io::Result<()> {
    let mut valgrind_frames = ValgrindFrames::default();
    // Each stack occurs once, because readers reject duplicates. The peaks of callsites with equal stacks (on different heaps, say) are
    // added up, which is an upper bound.
    let mut points: OrderedMap<Vec<u32>, Point> = OrderedMap::default();
    for (target, callsite) in profile.callsites() {
        let path = valgrind_frames.path(profile, target, callsite, presentation);
        let point = points.entry(path).or_default();
        for ((_, of), sum) in SUMS.iter().zip(&mut point.sums) {
            *sum = sum.saturating_add(of(callsite));
        }
    }
    let mut table: Interner<u32> = Interner::default();
    for (path, point) in &mut points {
        // The root is at index 0.
        point.frames = path.iter().map(|&frame| table.intern(frame) + 1).collect();
    }
    let texts = table.iter().map(|&frame| valgrind_frames.text(profile, frame));
    let root = Root {
        header: header(profile),
        points: points.into_values().collect(),
        frames: std::iter::once("[root]".to_owned()).chain(texts).collect(),
    };
    write_line(&root, out)
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

/// A sum of a point: its name in the format, and what a callsite adds to it.
type Sum = (&'static str, fn(&CallsiteProfile) -> u64);

const SUMS: [Sum; 9] = [
    // Allocated, or live at the start.
    ("tb", |callsite| (callsite.totals.opening_bytes + callsite.totals.alloc_bytes).rounded()),
    ("tbk", |callsite| (callsite.totals.opening_count + callsite.totals.alloc_count).rounded_with(callsite.rounding)),
    // Lifetimes of these blocks in microseconds; those of live blocks last until the end.
    ("tl", |callsite| (callsite.details.lifetime_total + callsite.details.ages.total).rounded()),
    ("mb", |callsite| callsite.totals.peak_bytes.rounded()),
    ("mbk", |callsite| callsite.totals.peak_count.rounded_with(callsite.rounding)),
    ("gb", |callsite| callsite.totals.at_peak.bytes.rounded()),
    ("gbk", |callsite| callsite.totals.at_peak.count.rounded_with(callsite.rounding)),
    ("eb", |callsite| View::LiveBytes.of_callsite(callsite)),
    ("ebk", |callsite| View::LiveCount.of_callsite(callsite)),
];

/// A program point, as the format calls callsites.
#[derive(Default)]
struct Point {
    sums: [u64; SUMS.len()],
    frames: Vec<u32>,
}

impl Serialize for Point {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for ((name, _), sum) in SUMS.iter().zip(self.sums) {
            map.serialize_entry(name, &sum)?;
        }
        map.serialize_entry("fs", &self.frames)?;
        map.end()
    }
}
