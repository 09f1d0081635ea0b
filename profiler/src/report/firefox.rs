//! The Firefox Profiler's processed profile format.
//!
//! Owns what is a process, a thread, a library and a counter there. Written by hand, in version 55 of the format, which newer
//! profilers bring up to theirs: the crate for it has no place for files and lines, and gives a process's allocations to one
//! thread. A thread at a time is held as tables.

use std::io;

use rustc_hash::FxHashMap;
use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};
use serde_json::json;

use super::{Presentation, Report, ReportError, describe, places, window};
use crate::model::{ModuleProfile, Profile, TargetProfile};
use pieces::Span;
use thread::{Context, Part, ThreadFields, parts};

mod pieces;
mod tables;
mod thread;

/// The version of the format (`preprocessedProfileVersion`).
const VERSION: u32 = 55;

const CATEGORY_NATIVE: usize = 1;
const CATEGORY_GAP: usize = 2;
const CATEGORY_GROUP: usize = 3;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Firefox;

impl Report for Firefox {
    /// Samples weigh what the view says; allocations are in bytes in any case.
    fn write(
        &self,
        profile: &Profile,
        presentation: &Presentation,
        out: &mut dyn io::Write,
    ) -> Result<(), ReportError> {
        let libs = Libs::of(profile);
        let context = Context { profile, presentation, libs: &libs, span: Span::of(profile) };
        let threads = Threads::new(context);
        let root = Root {
            meta: meta(context),
            libs: libs.modules.iter().map(|&(path, module)| LibFields::new(path, module)).collect(),
            counters: threads.counters(),
            pages: [],
            profiler_overhead: [],
            threads,
        };
        serde_json::to_writer(&mut *out, &root).map_err(io::Error::from)?;
        out.write_all(b"\n")?;
        Ok(())
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Root<'a> {
    meta: serde_json::Value,
    libs: Vec<LibFields<'a>>,
    counters: Vec<serde_json::Value>,
    pages: [(); 0],
    profiler_overhead: [(); 0],
    threads: Threads<'a>,
}

/// Nanoseconds as the format has times.
#[expect(clippy::cast_precision_loss, reason = "for display; 53 bits are enough")]
fn millis(ns: u64) -> f64 {
    ns as f64 / 1e6
}

fn meta(context: Context) -> serde_json::Value {
    let Context { profile, presentation, span, .. } = context;
    let categories: Vec<_> = [("Other", "grey"), ("Native", "blue"), ("Missing", "red"), ("Group", "purple")]
        .map(|(name, color)| json!({ "name": name, "color": color, "subcategories": ["Other"] }))
        .into();
    json!({
        "version": 24,
        "preprocessedProfileVersion": VERSION,
        "product": format!("{}{}", describe::subject(profile), window::title(profile)),
        "importedFrom": "heapbpf",
        "startTime": millis(span.start_unix_ns),
        "interval": 1.0,
        "processType": 0,
        "stackwalk": 1,
        "debug": false,
        // Names are in it, and nothing else is to be asked for them.
        "symbolicated": true,
        "usesOnlyOneStackType": true,
        "doesNotUseFrameImplementation": true,
        "sourceCodeIsNotOnSearchfox": true,
        "categories": categories,
        "markerSchema": [],
        "pausedRanges": [],
        "extensions": { "length": 0, "baseURL": [], "id": [], "name": [] },
        "sampleUnits": { "time": "ms", "eventDelay": "ms", "threadCPUDelta": "µs" },
        "extra": [{ "label": "heapbpf", "entries": words(profile, presentation) }],
    })
}

/// What a reader has to know to believe the profile.
fn words(profile: &Profile, presentation: &Presentation) -> Vec<serde_json::Value> {
    let view = presentation.view;
    let total = format!(
        "{}{}{}",
        describe::about(profile.is_exact()),
        view.amount(describe::total(profile, view)),
        describe::accuracy(profile, view),
    );
    let mut words = vec![
        ("Interval", describe::interval(profile)),
        ("Losses", describe::losses(profile)),
        ("Samples are", describe::title(profile, view)),
        // Of all, also where old blocks alone are shown.
        (if view.shows_old_blocks_only(profile) { "Total, young blocks too" } else { "Total" }, total),
    ];
    if let Some(amount) = describe::folded(profile, view) {
        words.push(("Left out", format!("{amount} of {}", describe::folded_processes(profile))));
    }
    let entry = |(label, value)| json!({ "label": label, "format": "string", "value": value });
    words.into_iter().map(entry).collect()
}

/// The modules of frames, in the order in which frames name them.
struct Libs<'a> {
    modules: Vec<(&'a str, Option<&'a ModuleProfile>)>,
    numbers: FxHashMap<&'a str, usize>,
}

impl<'a> Libs<'a> {
    fn of(profile: &'a Profile) -> Self {
        let mut libs = Self { modules: Vec::new(), numbers: FxHashMap::default() };
        let known: FxHashMap<&str, &ModuleProfile> =
            profile.modules.iter().rev().map(|module| (&*module.path, module)).collect();
        for path in profile.frames.iter().filter_map(|frame| frame.module.as_deref()) {
            if !libs.numbers.contains_key(path) {
                libs.numbers.insert(path, libs.modules.len());
                libs.modules.push((path, known.get(path).copied()));
            }
        }
        libs
    }

    fn number(&self, path: &str) -> Option<usize> {
        self.numbers.get(path).copied()
    }

    fn name(&self, number: usize) -> &str {
        self.modules.get(number).map_or("", |(path, _)| crate::model::base_name(path))
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LibFields<'a> {
    name: &'a str,
    path: &'a str,
    debug_name: &'a str,
    debug_path: &'a str,
    breakpad_id: String,
    code_id: Option<String>,
    arch: Option<&'static str>,
}

impl<'a> LibFields<'a> {
    fn new(path: &'a str, module: Option<&ModuleProfile>) -> Self {
        let build_id = module.and_then(|module| module.build_id.as_deref());
        let name = crate::model::base_name(path);
        Self {
            name,
            path,
            debug_name: name,
            debug_path: path,
            breakpad_id: breakpad_id(build_id.unwrap_or_default()),
            code_id: build_id.map(places::hex),
            arch: None,
        }
    }
}

/// A build id's first 16 bytes as a GUID, whose first three numbers are little-endian, and an age of 0.
fn breakpad_id(build_id: &[u8]) -> String {
    let mut guid = [0; 16];
    guid.iter_mut().zip(build_id).for_each(|(byte, id)| *byte = *id);
    guid[..4].reverse();
    guid[4..6].reverse();
    guid[6..8].reverse();
    format!("{}0", places::hex(&guid).to_uppercase())
}

/// Threads of all processes; each is made when it is written.
struct Threads<'a> {
    context: Context<'a>,
    rows: Vec<ThreadRow<'a>>,
}

struct ThreadRow<'a> {
    target: &'a TargetProfile,
    part: Part,
    is_first: bool,
    pid: String,
    tid: String,
}

impl<'a> Threads<'a> {
    fn new(context: Context<'a>) -> Self {
        let (mut pids, mut tids) = (Unique::default(), Unique::default());
        let mut rows = Vec::new();
        for target in &context.profile.targets {
            let pid = pids.text(target.pid.0);
            for (at, part) in parts(target).into_iter().enumerate() {
                let tid = part.and_then(|part| target.threads.get(part)).map_or(target.pid.0, |thread| thread.tid.0);
                rows.push(ThreadRow { target, part, is_first: at == 0, pid: pid.clone(), tid: tids.text(tid) });
            }
        }
        Self { context, rows }
    }

    /// Live bytes over time, of each process of which that is known.
    fn counters(&self) -> Vec<serde_json::Value> {
        let first = self.rows.iter().enumerate().filter(|(_, row)| row.is_first);
        let counters = first.filter(|(_, row)| !row.target.history.curve.is_empty());
        counters.map(|(at, row)| counter(&self.context.span, at, row)).collect()
    }
}

impl Serialize for Threads<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut threads = serializer.serialize_seq(Some(self.rows.len()))?;
        for ThreadRow { target, part, is_first, pid, tid } in &self.rows {
            let ids = [pid.clone(), tid.clone()];
            threads.serialize_element(&ThreadFields::new(self.context, target, *part, *is_first, ids))?;
        }
        threads.end()
    }
}

/// Numbers as texts, a second one of which gets an end of its own.
#[derive(Default)]
struct Unique(FxHashMap<u32, u32>);

impl Unique {
    fn text(&mut self, number: u32) -> String {
        let times = self.0.entry(number).or_insert(0);
        *times += 1;
        if *times == 1 { number.to_string() } else { format!("{number}.{}", *times - 1) }
    }
}

/// Each sample says how much more there is than at the one before.
fn counter(span: &Span, thread: usize, row: &ThreadRow) -> serde_json::Value {
    let moments = &row.target.history.curve;
    let times: Vec<f64> = moments.iter().map(|moment| millis(span.since(moment.time))).collect();
    let growth = |of: fn(&crate::model::history::Held) -> f64| -> Vec<f64> {
        let mut before = 0.0;
        let step = |moment: &crate::model::history::Moment| {
            of(&moment.held) - std::mem::replace(&mut before, of(&moment.held))
        };
        moments.iter().map(step).collect()
    };
    let count = growth(|held| held.live_bytes);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, and calls only grow")]
    let number: Vec<u64> = growth(|held| held.alloc_count).into_iter().map(|calls| calls.round() as u64).collect();
    json!({
        "name": "malloc",
        "category": "Memory",
        "description": "Live bytes",
        "pid": row.pid,
        "mainThreadIndex": thread,
        "color": "orange",
        "samples": { "length": moments.len(), "time": times, "count": count, "number": number },
    })
}
