//! The Firefox Profiler's processed profile format, in version 55, which newer profilers upgrade. Written by hand:
//! the crate for it does not support source files and lines, and gives a process's allocations to one thread.

use std::io;

use heapbpf_base::language::Language;
use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::model::{
    CallsiteProfile, Change, CurvePoint, Frame, FrameId, FrameKind, HeapUsage, ModuleProfile, Profile, SampleTrigger,
    TargetProfile, TimelinePoint, base_name,
};
use rustc_hash::FxHashMap;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::describe::Caption;
use super::plain_json::write_line;
use super::tables::hex;
use crate::describe;
use crate::dumps::rounded;
use crate::presentation::{Group, Presentation, View};
use crate::tables::{
    ByColumn, CodeLocation, Columns, Intern, Interner, call_address, calls, frame, gap_frames, group_frame,
    only_runtime,
};

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

/// Indices into the categories of `meta`.
const CATEGORY_NATIVE: usize = 1;
const CATEGORY_GAP: usize = 2;
const CATEGORY_GROUP: usize = 3;
const CATEGORY_RUNTIME: usize = 4;
const CATEGORY_INTERPRETED: usize = 5;
const CATEGORY_JITTED: usize = 6;

/// Index of a target's thread; `None` for callsites whose thread is unknown.
type Part = Option<usize>;

/// The parts of a target that have callsites, the process's main thread first. There is at least one.
fn parts(target: &TargetProfile) -> Vec<Part> {
    let mut parts: Vec<Part> = target.callsites.iter().map(|callsite| part(target, callsite)).collect();
    parts.sort_unstable_by_key(|part| {
        let tid = part.and_then(|part| target.threads.get(part)).map(|thread| thread.tid.0);
        (tid.is_none(), tid != Some(target.facts.pid.0), tid, *part)
    });
    parts.dedup();
    if parts.is_empty() { vec![None] } else { parts }
}

fn part(target: &TargetProfile, callsite: &CallsiteProfile) -> Part {
    callsite.thread.filter(|&thread| thread < target.threads.len())
}

type Libs<'a> = Interner<&'a str>;

#[derive(Clone, Copy)]
struct Context<'a> {
    profile: &'a Profile,
    presentation: &'a Presentation,
    libs: &'a Libs<'a>,
    start_unix_ns: u64,
    duration_ns: u64,
}

impl<'a> Context<'a> {
    fn new(profile: &'a Profile, presentation: &'a Presentation, libs: &'a Libs<'a>) -> Self {
        let (start_unix_ns, duration_ns) = (describe::start_unix_ns(profile), describe::duration_ns(profile));
        Self { profile, presentation, libs, start_unix_ns, duration_ns }
    }

    /// Nanoseconds since the start, clamped to the time of the profile.
    fn since(&self, time: MonotonicNanos) -> u64 {
        self.profile.unix_ns(time).saturating_sub(self.start_unix_ns).min(self.duration_ns)
    }
}

/// A part of a target, whose first part represents its process.
struct Thread<'a> {
    context: Context<'a>,
    target: &'a TargetProfile,
    part: Part,
    is_first: bool,
    /// Texts that no other process or thread has.
    pid: String,
    tid: String,
}

impl Serialize for Thread<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        ThreadFields::new(self).serialize(serializer)
    }
}

#[expect(clippy::cast_precision_loss, reason = "for display; 53 bits are enough")]
fn millis(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// A table of the format.
#[derive(Serialize)]
#[serde(bound = "", rename_all = "camelCase")]
struct Table<R: 'static> {
    length: usize,
    #[serde(flatten)]
    columns: ByColumn<R, Value>,
    /// Unit of the weights of samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    weight_type: Option<&'static str>,
}

impl<R> Table<R> {
    fn new(rows: impl IntoIterator<Item = R>, columns: Columns<R, Value>) -> Self {
        let rows: Vec<R> = rows.into_iter().collect();
        Self { length: rows.len(), columns: ByColumn { rows, columns }, weight_type: None }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ThreadFields {
    #[serde(flatten)]
    header: Value,
    samples: Table<Sample>,
    native_allocations: Table<Event>,
    resource_table: Table<Resource>,
    func_table: Table<Function>,
    frame_table: Table<FrameRow>,
    stack_table: Table<StackRow>,
    string_array: Vec<String>,
}

struct Sample {
    time_ns: u64,
    stack: Option<u32>,
    weight: u64,
}

const SAMPLES: Columns<Sample, Value> = &[
    ("stack", |row| row.stack.into()),
    ("time", |row| millis(row.time_ns).into()),
    ("weight", |row| row.weight.into()),
];

/// An allocation, or a free if `bytes` is negative.
struct Event {
    time_ns: u64,
    stack: Option<u32>,
    address: u64,
    bytes: i64,
}

const EVENTS: Columns<Event, Value> = &[
    ("time", |row| millis(row.time_ns).into()),
    ("weight", |row| row.bytes.into()),
    ("stack", |row| row.stack.into()),
    ("memoryAddress", |row| row.address.into()),
    ("threadId", |_| 0.into()),
];

#[derive(PartialEq, Eq, Hash)]
struct Resource {
    lib: usize,
    name: u32,
}

const RESOURCES: Columns<Resource, Value> = &[
    ("lib", |row| row.lib.into()),
    ("name", |row| row.name.into()),
    ("host", |_| Value::Null),
    // 1: a library.
    ("type", |_| 1.into()),
];

#[derive(PartialEq, Eq, Hash)]
struct Function {
    name: u32,
    resource: Option<u32>,
    file: Option<u32>,
    /// Of JavaScript: the profiler's filter of functions depends on it.
    is_script: bool,
}

const FUNCTIONS: Columns<Function, Value> = &[
    ("name", |row| row.name.into()),
    ("isJS", |row| row.is_script.into()),
    ("relevantForJS", |_| false.into()),
    ("resource", |row| row.resource.map_or(-1, i64::from).into()),
    ("fileName", |row| row.file.into()),
    ("lineNumber", |_| Value::Null),
    ("columnNumber", |_| Value::Null),
];

#[derive(PartialEq, Eq, Hash)]
struct FrameRow {
    function: u32,
    category: usize,
    /// In the file, as its symbols have it; -1 if unknown.
    address: i64,
    inline_depth: usize,
    line: Option<u32>,
}

const FRAMES: Columns<FrameRow, Value> = &[
    ("address", |row| row.address.into()),
    ("inlineDepth", |row| row.inline_depth.into()),
    ("category", |row| row.category.into()),
    ("subcategory", |_| 0.into()),
    ("func", |row| row.function.into()),
    ("nativeSymbol", |_| Value::Null),
    ("innerWindowID", |_| 0.into()),
    ("line", |row| row.line.into()),
    ("column", |_| Value::Null),
];

#[derive(PartialEq, Eq, Hash)]
struct StackRow {
    prefix: Option<u32>,
    frame: u32,
}

const STACKS: Columns<StackRow, Value> = &[("prefix", |row| row.prefix.into()), ("frame", |row| row.frame.into())];

impl ThreadFields {
    fn new(thread: &Thread) -> Self {
        let &Thread { context, target, part, is_first, ref pid, ref tid } = thread;
        let Context { presentation, duration_ns, .. } = context;
        let mut tables = Tables::default();
        let (mut samples, mut events) = (Vec::new(), Vec::new());
        for callsite in target.callsites.iter().filter(|callsite| self::part(target, callsite) == part) {
            let stack = tables.stack(thread, callsite);
            let allocations = allocations(&context, target, callsite);
            let time_ns = allocations.iter().filter_map(|allocation| allocation.from_ns).min();
            let weight = presentation.view.of_callsite(callsite);
            samples.push(Sample { time_ns: time_ns.unwrap_or(duration_ns), stack, weight });
            for allocation in allocations {
                // Distinct synthetic addresses.
                let address = 16 * (events.len() as u64 + 1);
                let bytes = i64::try_from(allocation.bytes).unwrap_or(i64::MAX);
                let event = |time_ns: Option<u64>, bytes| Some(Event { time_ns: time_ns?, stack, address, bytes });
                events.extend(event(allocation.from_ns, bytes));
                events.extend(event(allocation.until_ns, -bytes));
            }
        }
        let markers = tables.markers(thread);
        samples.retain(|sample| sample.weight > 0);
        if is_first {
            // The profiler shows the time from the first to the last sample, and clips counters and allocations to it.
            samples.extend([0, duration_ns].map(|time_ns| Sample { time_ns, stack: None, weight: 0 }));
        }
        samples.sort_by_key(|sample| sample.time_ns);
        // The sort is stable: an allocation and its free at the same time stay in order.
        events.sort_by_key(|event| event.time_ns);
        let (start, end) = (millis(context.since(target.facts.beginning.time)), millis(duration_ns));
        let end = target.facts.has_exited().then_some(end);
        let weight_type = if presentation.view.is_bytes() { "bytes" } else { "samples" };
        let header = json!({
            "name": name(target, part, is_first),
            "isMainThread": is_first,
            "processName": target.facts.comm,
            "processType": "default",
            "processStartupTime": start,
            "processShutdownTime": end,
            "registerTime": start,
            "unregisterTime": end,
            "pausedRanges": [],
            "pid": pid,
            "tid": tid,
            "showMarkersInTimeline": true,
            "markers": markers,
            // Unused, but the format requires the table.
            "nativeSymbols": { "length": 0, "address": [], "functionSize": [], "libIndex": [], "name": [] },
        });
        Self {
            header,
            samples: Table { weight_type: Some(weight_type), ..Table::new(samples, SAMPLES) },
            native_allocations: Table { weight_type: Some("bytes"), ..Table::new(events, EVENTS) },
            resource_table: Table::new(tables.resources, RESOURCES),
            func_table: Table::new(tables.functions, FUNCTIONS),
            frame_table: Table::new(tables.frames, FRAMES),
            stack_table: Table::new(tables.stacks, STACKS),
            string_array: tables.strings.into_iter().collect(),
        }
    }
}

fn name(target: &TargetProfile, part: Part, is_first: bool) -> String {
    match part.and_then(|part| target.threads.get(part)) {
        Some(thread) => thread.name.as_deref().unwrap_or("thread").to_owned(),
        None if is_first => target.facts.comm.clone(),
        None => "[thread unknown]".to_owned(),
    }
}

#[derive(Default)]
struct Tables {
    strings: Interner<String>,
    functions: Interner<Function>,
    resources: Interner<Resource>,
    frames: Interner<FrameRow>,
    stacks: Interner<StackRow>,
    /// Rows of the profile's frames, by their inline depth as well.
    known: FxHashMap<(FrameId, usize), u32>,
}

impl Tables {
    /// The stack of a callsite below its groups. Threads are no group, because the format separates them anyway.
    fn stack(&mut self, &Thread { context, target, .. }: &Thread, callsite: &CallsiteProfile) -> Option<u32> {
        let mut stack = None;
        for &group in context.presentation.by.iter().filter(|group| **group != Group::Thread) {
            stack = Some(self.synthetic(stack, &group_frame(group, target, callsite), CATEGORY_GROUP));
        }
        for gap in gap_frames(callsite) {
            stack = Some(self.synthetic(stack, &gap, CATEGORY_GAP));
        }
        for call in calls(context.profile, &callsite.stack).rev() {
            for (depth, &id) in call.iter().rev().enumerate() {
                let Some(frame) = self.frame(&context, target, id, depth) else { continue };
                stack = Some(self.stacks.intern(StackRow { prefix: stack, frame }));
            }
        }
        stack
    }

    fn synthetic(&mut self, prefix: Option<u32>, text: &str, category: usize) -> u32 {
        let name = self.strings.intern_ref(text);
        let function = self.functions.intern(Function { name, resource: None, file: None, is_script: false });
        let row = FrameRow { function, category, address: -1, inline_depth: 0, line: None };
        let frame = self.frames.intern(row);
        self.stacks.intern(StackRow { prefix, frame })
    }

    fn frame(&mut self, context: &Context, target: &TargetProfile, id: FrameId, depth: usize) -> Option<u32> {
        if let Some(&known) = self.known.get(&(id, depth)) {
            return Some(known);
        }
        let frame = frame(context.profile, id)?;
        let name = self.strings.intern(frame.label());
        let lib = frame.module.as_deref().and_then(|path| context.libs.get_index_of(path));
        let resource = lib.map(|lib| {
            let name = self.strings.intern_ref(base_name(context.libs[lib]));
            self.resources.intern(Resource { lib, name })
        });
        let file = frame.file.as_deref().map(|file| self.strings.intern_ref(file));
        let is_script = is_script(target, frame);
        let function = self.functions.intern(Function { name, resource, file, is_script });
        let address = address(context, target, frame);
        let category = category(frame.kind);
        let row = FrameRow { function, category, address, inline_depth: depth, line: frame.line };
        let index = self.frames.intern(row);
        self.known.insert((id, depth), index);
        Some(index)
    }

    fn markers(&mut self, &Thread { context, target, is_first, .. }: &Thread) -> Value {
        let instants = target.history.instants.iter().filter(|_| is_first);
        let marker = |point: &TimelinePoint| {
            let name = match point.trigger? {
                SampleTrigger::Dump(number) => format!("dump {number}"),
                SampleTrigger::Mark => "mark".to_owned(),
            };
            Some((self.strings.intern(name), millis(context.since(point.time))))
        };
        let (names, times): (Vec<_>, Vec<_>) = instants.filter_map(marker).unzip();
        let length = names.len();
        json!({
            "length": length,
            "category": vec![0; length],
            "data": vec![(); length],
            "name": names,
            // 0: a point in time.
            "phase": vec![0; length],
            "startTime": times,
            "endTime": vec![(); length],
        })
    }
}

fn category(kind: FrameKind) -> usize {
    match kind {
        FrameKind::Native => CATEGORY_NATIVE,
        FrameKind::Runtime => CATEGORY_RUNTIME,
        FrameKind::Interpreted => CATEGORY_INTERPRETED,
        FrameKind::Jitted => CATEGORY_JITTED,
    }
}

fn is_script(target: &TargetProfile, frame: &Frame) -> bool {
    let is_code = matches!(frame.kind, FrameKind::Interpreted | FrameKind::Jitted);
    is_code
        && matches!(
            only_runtime(target),
            Some(Language::JavaScript | Language::Chromium | Language::Deno | Language::Bun)
        )
}

fn address(context: &Context, target: &TargetProfile, frame: &Frame) -> i64 {
    let location = CodeLocation::of(context.profile, target, frame);
    let bias = location.mapping.and_then(|mapping| mapping.bias);
    let address = bias.and_then(|bias| call_address(frame).checked_sub(bias));
    // The profiler stores addresses in 32 bits.
    address.and_then(|address| u32::try_from(address).ok()).map_or(-1, i64::from)
}

/// Bytes that were allocated and freed at the same times, in nanoseconds since the start of the profile.
#[derive(Clone, Copy)]
struct Allocation {
    /// `None` if the bytes existed before the start.
    from_ns: Option<u64>,
    /// `None` if the bytes are live at the end.
    until_ns: Option<u64>,
    bytes: u64,
}

/// Synthetic allocations and frees that add up to the callsite's live, allocated and freed bytes. The profiler works
/// with single blocks, which are retained if not freed, so there is one for everything allocated by one point in time
/// and freed by another. Inherited bytes that were not freed count as allocated, so that they are shown as retained.
/// If the profile shows old blocks only, young ones are left out.
fn allocations(context: &Context, target: &TargetProfile, callsite: &CallsiteProfile) -> Vec<Allocation> {
    let totals = &callsite.totals;
    let live = View::LiveBytes.of_callsite(callsite);
    let freed = totals.free_bytes.rounded();
    let temporary = totals.alloc_bytes.rounded().saturating_sub(live).min(freed);
    let whole = Sums { allocated: temporary.saturating_add(live), freed: temporary };
    let is_of_all = context.profile.window.is_none() && callsite.older.is_none() && totals.opening_bytes.rounded() == 0;
    let mut sums = if is_of_all { history(context, target, callsite, whole) } else { Vec::new() };
    if sums.is_empty() {
        // Most was allocated by the time of the peak; if that is unknown or outside of the span, use the start.
        let time_ns = totals.peak_time.map_or(0, |time| context.since(time));
        sums.push((time_ns, Sums { allocated: whole.allocated, freed: 0 }));
    }
    sums.push((context.duration_ns, whole));
    let mut allocations = matched(&sums);
    allocations.push(Allocation { from_ns: None, until_ns: Some(context.duration_ns), bytes: freed - temporary });
    allocations.retain(|allocation| allocation.bytes > 0);
    allocations
}

#[derive(Clone, Copy, Default)]
struct Sums {
    allocated: u64,
    freed: u64,
}

/// The cumulative sums of a callsite whenever they changed: never decreasing, never above the final ones.
fn history(context: &Context, target: &TargetProfile, callsite: &CallsiteProfile, whole: Sums) -> Vec<(u64, Sums)> {
    let mut last = (0, Sums::default());
    let sums_at = |change: &Change| {
        let instant = target.history.instants.get(change.instant as usize)?;
        let allocated = rounded(change.held.alloc_bytes).clamp(last.1.allocated, whole.allocated);
        let freed = rounded(change.held.alloc_bytes - change.held.live_bytes);
        let freed = freed.clamp(last.1.freed, whole.freed.max(last.1.freed)).min(allocated);
        last = (context.since(instant.time).max(last.0), Sums { allocated, freed });
        Some(last)
    };
    callsite.history.iter().filter_map(sums_at).collect()
}

/// Matches each free with the latest allocations, because most blocks die young.
fn matched(sums: &[(u64, Sums)]) -> Vec<Allocation> {
    let mut live: Vec<Allocation> = Vec::new();
    let mut freed_allocations = Vec::new();
    let mut before = Sums::default();
    for &(time_ns, sums) in sums {
        let bytes = sums.allocated.saturating_sub(before.allocated);
        live.push(Allocation { from_ns: Some(time_ns), until_ns: None, bytes });
        let mut freed = sums.freed.saturating_sub(before.freed);
        while freed > 0
            && let Some(mut youngest) = live.pop()
        {
            let bytes = youngest.bytes.min(freed);
            freed -= bytes;
            freed_allocations.push(Allocation { until_ns: Some(time_ns), bytes, ..youngest });
            youngest.bytes -= bytes;
            if youngest.bytes > 0 {
                live.push(youngest);
            }
        }
        before = sums;
    }
    freed_allocations.append(&mut live);
    freed_allocations
}
