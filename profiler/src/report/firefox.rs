//! The Firefox Profiler's processed profile format, in version 55, which newer profilers upgrade. Written by hand:
//! the crate for it does not support source files and lines, and gives a process's allocations to one thread.

use std::io;

use rustc_hash::FxHashMap;
use serde::Serialize;
use serde_json::{Value, json};

use super::describe::Caption;
use super::plain_json::write_line;
use super::presentation::Presentation;
use super::tables::hex;
use crate::model::{CurvePoint, HeapUsage, ModuleProfile, Profile, base_name};
use thread::{Context, Libs, Thread, millis, parts};

mod thread;

/// Samples have the weight of the view; allocations are always in bytes.
pub(super) fn write(profile: &Profile, presentation: &Presentation, out: &mut dyn io::Write) -> io::Result<()> {
    let libs: Libs = profile.frames.iter().filter_map(|frame| frame.module.as_deref()).collect();
    let context = Context::new(profile, presentation, &libs);
    let threads = threads(context);
    let modules: FxHashMap<&str, &ModuleProfile> =
        profile.modules.iter().rev().map(|module| (&*module.path, module)).collect();
    let header = json!({
        "meta": meta(context),
        "libs": libs.iter().map(|path| lib(path, modules.get(path).copied())).collect::<Vec<_>>(),
        "counters": counters(&threads),
        "pages": [],
        "profilerOverhead": [],
    });
    write_line(&Root { header, threads }, out)
}

#[derive(Serialize)]
struct Root<'a> {
    #[serde(flatten)]
    header: Value,
    threads: Vec<Thread<'a>>,
}

fn meta(context: Context) -> Value {
    let Context { profile, presentation, start_unix_ns, .. } = context;
    let caption = Caption::new(profile, presentation.view);
    let native = [("Other", "grey"), ("Native", "blue"), ("Missing", "red"), ("Group", "purple")];
    let others = [("Runtime", "lightblue"), ("Interpreted", "yellow"), ("JIT", "orange")];
    let categories: Vec<_> = native
        .into_iter()
        .chain(others)
        .map(|(name, color)| json!({ "name": name, "color": color, "subcategories": ["Other"] }))
        .collect();
    json!({
        "version": 24,
        "preprocessedProfileVersion": 55,
        "product": caption.subject,
        "importedFrom": "heapbpf",
        "startTime": millis(start_unix_ns),
        "interval": 1.0,
        "processType": 0,
        "stackwalk": 1,
        "debug": false,
        // All names are included, so that the profiler asks no symbol server.
        "symbolicated": true,
        "usesOnlyOneStackType": true,
        "doesNotUseFrameImplementation": true,
        "sourceCodeIsNotOnSearchfox": true,
        "categories": categories,
        "markerSchema": [],
        "pausedRanges": [],
        "extensions": { "length": 0, "baseURL": [], "id": [], "name": [] },
        "sampleUnits": { "time": "ms", "eventDelay": "ms", "threadCPUDelta": "µs" },
        "extra": [{ "label": "heapbpf", "entries": facts(profile, presentation, caption) }],
    })
}

fn facts(profile: &Profile, presentation: &Presentation, caption: Caption) -> Vec<Value> {
    // The total includes young blocks even if the samples do not.
    let only_old = presentation.view.shows_old_blocks_only(profile);
    let mut facts = vec![
        ("Interval", caption.interval),
        ("Verdict", caption.verdict),
        ("Samples are", caption.title),
        (if only_old { "Total, young blocks too" } else { "Total" }, caption.total),
    ];
    facts.extend(caption.left_out.map(|left_out| ("Left out", left_out)));
    let entry = |(label, value)| json!({ "label": label, "format": "string", "value": value });
    facts.into_iter().map(entry).collect()
}

fn lib(path: &str, module: Option<&ModuleProfile>) -> Value {
    let build_id = module.and_then(|module| module.build_id.as_deref());
    let name = base_name(path);
    json!({
        "name": name,
        "path": path,
        "debugName": name,
        "debugPath": path,
        "breakpadId": breakpad_id(build_id.unwrap_or_default()),
        "codeId": build_id.map(hex),
        "arch": null,
    })
}

/// Formats the first 16 bytes of a build id as a GUID, whose first three numbers are little-endian, with an age of 0.
fn breakpad_id(build_id: &[u8]) -> String {
    let mut guid = [0; 16];
    guid.iter_mut().zip(build_id).for_each(|(byte, id)| *byte = *id);
    guid[..4].reverse();
    guid[4..6].reverse();
    guid[6..8].reverse();
    format!("{}0", hex(&guid).to_uppercase())
}

/// Threads of all processes. The tables of each are built when it is written.
fn threads(context: Context<'_>) -> Vec<Thread<'_>> {
    let (mut pids, mut tids) = (Unique::default(), Unique::default());
    let mut threads = Vec::new();
    for target in &context.profile.targets {
        let pid = pids.text(target.facts.pid.0);
        for (at, part) in parts(target).into_iter().enumerate() {
            let thread = part.and_then(|part| target.threads.get(part));
            let tid = tids.text(thread.map_or(target.facts.pid.0, |thread| thread.tid.0));
            threads.push(Thread { context, target, part, is_first: at == 0, pid: pid.clone(), tid });
        }
    }
    threads
}

#[derive(Default)]
struct Unique(FxHashMap<u32, u32>);

impl Unique {
    fn text(&mut self, number: u32) -> String {
        let times = self.0.entry(number).or_insert(0);
        *times += 1;
        if *times == 1 { number.to_string() } else { format!("{number}.{}", *times - 1) }
    }
}

fn counters(threads: &[Thread]) -> Vec<Value> {
    let first = threads.iter().enumerate().filter(|(_, thread)| thread.is_first);
    let counters = first.filter(|(_, thread)| !thread.target.history.curve.is_empty());
    counters.map(|(at, thread)| counter(at, thread)).collect()
}

/// The samples of a counter are differences to the sample before.
fn counter(at: usize, thread: &Thread) -> Value {
    let points = &thread.target.history.curve;
    let times: Vec<f64> = points.iter().map(|point| millis(thread.context.since(point.time))).collect();
    let growth = |of: fn(&HeapUsage) -> f64| -> Vec<f64> {
        let mut before = 0.0;
        let step = |point: &CurvePoint| of(&point.held) - std::mem::replace(&mut before, of(&point.held));
        points.iter().map(step).collect()
    };
    let count = growth(|held| held.live_bytes);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, and calls only grow")]
    let number: Vec<u64> = growth(|held| held.alloc_count).into_iter().map(|calls| calls.round() as u64).collect();
    json!({
        "name": "malloc",
        "category": "Memory",
        "description": "Live bytes",
        "pid": thread.pid,
        "mainThreadIndex": at,
        "color": "orange",
        "samples": { "length": points.len(), "time": times, "count": count, "number": number },
    })
}
