//! A thread with its tables: the callsites that it allocated at, or all of a target's if the recording does not distinguish threads.

use rustc_hash::FxHashMap;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::allocations::{Span, allocations};
use crate::model::history::Occasion;
use crate::model::{CallsiteProfile, Frame, FrameId, Profile, TargetProfile, base_name};
use crate::report::frames::{CodeLocation, call_address, calls, frame, gap_frames, group_frame};
use crate::report::intern::Interner;
use crate::report::presentation::{Group, Presentation};

/// Indices into the categories of `meta`.
const CATEGORY_NATIVE: usize = 1;
const CATEGORY_GAP: usize = 2;
const CATEGORY_GROUP: usize = 3;

/// Index of a target's thread; `None` for callsites whose thread is unknown.
pub(super) type Part = Option<usize>;

/// The parts of a target that have callsites, the process's main thread first. There is at least one.
pub(super) fn parts(target: &TargetProfile) -> Vec<Part> {
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

/// Paths of the modules of frames.
pub(super) type Libs<'a> = Interner<&'a str>;

/// Inputs that all threads share.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) profile: &'a Profile,
    pub(super) presentation: &'a Presentation,
    pub(super) libs: &'a Libs<'a>,
    pub(super) span: Span<'a>,
}

/// Converts nanoseconds to the format's unit.
#[expect(clippy::cast_precision_loss, reason = "for display; 53 bits are enough")]
pub(super) fn millis(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// A table of the format: one list per column, and the number of rows.
struct Table<R>(Vec<R>);

trait Row: Sized {
    fn columns<M: SerializeMap>(rows: &[Self], map: &mut M) -> Result<(), M::Error>;
}

impl<R: Row> Serialize for Table<R> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("length", &self.0.len())?;
        R::columns(&self.0, &mut map)?;
        map.end()
    }
}

struct Column<'a, R, T>(&'a [R], fn(&R) -> T);

impl<R, T: Serialize> Serialize for Column<'_, R, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(self.1))
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ThreadFields {
    name: String,
    is_main_thread: bool,
    process_name: String,
    process_type: &'static str,
    process_startup_time: f64,
    process_shutdown_time: Option<f64>,
    register_time: f64,
    unregister_time: Option<f64>,
    paused_ranges: [(); 0],
    pid: String,
    tid: String,
    show_markers_in_timeline: bool,
    samples: Weighted<Sample>,
    native_allocations: Weighted<Event>,
    markers: Table<Marker>,
    native_symbols: Table<NativeSymbol>,
    resource_table: Table<Resource>,
    func_table: Table<Function>,
    frame_table: Table<FrameRow>,
    stack_table: Table<StackRow>,
    string_array: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase", bound = "")]
struct Weighted<R: Row> {
    #[serde(flatten)]
    table: Table<R>,
    weight_type: &'static str,
}

/// The view's quantity of a callsite.
struct Sample {
    time_ns: u64,
    stack: Option<u32>,
    weight: u64,
}

impl Row for Sample {
    fn columns<M: SerializeMap>(rows: &[Self], map: &mut M) -> Result<(), M::Error> {
        map.serialize_entry("stack", &Column(rows, |row| row.stack))?;
        map.serialize_entry("time", &Column(rows, |row| millis(row.time_ns)))?;
        map.serialize_entry("weight", &Column(rows, |row| row.weight))
    }
}

/// An allocation, or a free if `bytes` is negative.
struct Event {
    time_ns: u64,
    stack: Option<u32>,
    address: u64,
    bytes: i64,
}

impl Row for Event {
    fn columns<M: SerializeMap>(rows: &[Self], map: &mut M) -> Result<(), M::Error> {
        map.serialize_entry("time", &Column(rows, |row| millis(row.time_ns)))?;
        map.serialize_entry("weight", &Column(rows, |row| row.bytes))?;
        map.serialize_entry("stack", &Column(rows, |row| row.stack))?;
        map.serialize_entry("memoryAddress", &Column(rows, |row| row.address))?;
        map.serialize_entry("threadId", &Column(rows, |_| 0))
    }
}

/// A dump or a mark.
struct Marker {
    name: u32,
    time_ms: f64,
}

impl Row for Marker {
    fn columns<M: SerializeMap>(rows: &[Self], map: &mut M) -> Result<(), M::Error> {
        map.serialize_entry("category", &Column(rows, |_| 0))?;
        map.serialize_entry("data", &Column(rows, |_| ()))?;
        map.serialize_entry("name", &Column(rows, |row| row.name))?;
        // 0: a point in time.
        map.serialize_entry("phase", &Column(rows, |_| 0))?;
        map.serialize_entry("startTime", &Column(rows, |row| row.time_ms))?;
        map.serialize_entry("endTime", &Column(rows, |_| ()))
    }
}

/// Unused, but the format requires the table.
struct NativeSymbol;

impl Row for NativeSymbol {
    fn columns<M: SerializeMap>(rows: &[Self], map: &mut M) -> Result<(), M::Error> {
        ["address", "functionSize", "libIndex", "name"]
            .into_iter()
            .try_for_each(|column| map.serialize_entry(column, &Column(rows, |_| ())))
    }
}

/// A library.
#[derive(PartialEq, Eq, Hash)]
struct Resource {
    lib: u32,
    name: u32,
}

impl Row for Resource {
    fn columns<M: SerializeMap>(rows: &[Self], map: &mut M) -> Result<(), M::Error> {
        map.serialize_entry("lib", &Column(rows, |row| row.lib))?;
        map.serialize_entry("name", &Column(rows, |row| row.name))?;
        map.serialize_entry("host", &Column(rows, |_| ()))?;
        // 1: a library.
        map.serialize_entry("type", &Column(rows, |_| 1))
    }
}

#[derive(PartialEq, Eq, Hash)]
struct Function {
    name: u32,
    resource: Option<u32>,
    file: Option<u32>,
}

impl Row for Function {
    fn columns<M: SerializeMap>(rows: &[Self], map: &mut M) -> Result<(), M::Error> {
        map.serialize_entry("name", &Column(rows, |row| row.name))?;
        map.serialize_entry("isJS", &Column(rows, |_| false))?;
        map.serialize_entry("relevantForJS", &Column(rows, |_| false))?;
        map.serialize_entry("resource", &Column(rows, |row| row.resource.map_or(-1, i64::from)))?;
        map.serialize_entry("fileName", &Column(rows, |row| row.file))?;
        map.serialize_entry("lineNumber", &Column(rows, |_| ()))?;
        map.serialize_entry("columnNumber", &Column(rows, |_| ()))
    }
}

struct FrameRow {
    function: u32,
    category: usize,
    /// In the file, as its symbols have it; -1 if unknown.
    address: i64,
    inline_depth: usize,
    line: Option<u32>,
}

impl Row for FrameRow {
    fn columns<M: SerializeMap>(rows: &[Self], map: &mut M) -> Result<(), M::Error> {
        map.serialize_entry("address", &Column(rows, |row| row.address))?;
        map.serialize_entry("inlineDepth", &Column(rows, |row| row.inline_depth))?;
        map.serialize_entry("category", &Column(rows, |row| row.category))?;
        map.serialize_entry("subcategory", &Column(rows, |_| 0))?;
        map.serialize_entry("func", &Column(rows, |row| row.function))?;
        map.serialize_entry("nativeSymbol", &Column(rows, |_| ()))?;
        map.serialize_entry("innerWindowID", &Column(rows, |_| 0))?;
        map.serialize_entry("line", &Column(rows, |row| row.line))?;
        map.serialize_entry("column", &Column(rows, |_| ()))
    }
}

#[derive(PartialEq, Eq, Hash)]
struct StackRow {
    prefix: Option<u32>,
    frame: u32,
}

impl Row for StackRow {
    fn columns<M: SerializeMap>(rows: &[Self], map: &mut M) -> Result<(), M::Error> {
        map.serialize_entry("prefix", &Column(rows, |row| row.prefix))?;
        map.serialize_entry("frame", &Column(rows, |row| row.frame))
    }
}

impl ThreadFields {
    /// `ids` are the pid and tid as texts that no other process or thread has. The first part of a target represents its process.
    pub(super) fn new(context: Context, target: &TargetProfile, part: Part, is_first: bool, ids: [String; 2]) -> Self {
        let Context { presentation, span, .. } = context;
        let mut tables = Tables::new(context, target);
        let (mut samples, mut events) = (Vec::new(), Vec::new());
        for callsite in target.callsites.iter().filter(|callsite| self::part(target, callsite) == part) {
            let stack = tables.stack(callsite, presentation);
            let allocations = allocations(&span, target, callsite);
            let time_ns = allocations.iter().filter_map(|allocation| allocation.from_ns).min();
            let weight = presentation.view.of_callsite(callsite);
            samples.push(Sample { time_ns: time_ns.unwrap_or(span.duration_ns), stack, weight });
            for allocation in allocations {
                // Distinct synthetic addresses.
                let address = 16 * (events.len() as u64 + 1);
                let bytes = i64::try_from(allocation.bytes).unwrap_or(i64::MAX);
                let event = |time_ns: Option<u64>, bytes| Some(Event { time_ns: time_ns?, stack, address, bytes });
                events.extend(event(allocation.from_ns, bytes));
                events.extend(event(allocation.until_ns, -bytes));
            }
        }
        let markers = if is_first { tables.markers(&span) } else { Vec::new() };
        samples.retain(|sample| sample.weight > 0);
        if is_first {
            // The profiler shows the time from the first to the last sample, and clips counters and allocations to it.
            samples.extend([0, span.duration_ns].map(|time_ns| Sample { time_ns, stack: None, weight: 0 }));
        }
        samples.sort_by_key(|sample| sample.time_ns);
        // The sort is stable: an allocation and its free at the same time stay in order.
        events.sort_by_key(|event| event.time_ns);
        let (start, end) = (millis(span.since(target.facts.beginning.time)), millis(span.duration_ns));
        let end = target.facts.exited.then_some(end);
        let weight_type = if presentation.view.is_bytes() { "bytes" } else { "samples" };
        let [pid, tid] = ids;
        Self {
            name: name(target, part, is_first),
            is_main_thread: is_first,
            process_name: target.facts.comm.clone(),
            process_type: "default",
            process_startup_time: start,
            process_shutdown_time: end,
            register_time: start,
            unregister_time: end,
            paused_ranges: [],
            pid,
            tid,
            show_markers_in_timeline: true,
            samples: Weighted { table: Table(samples), weight_type },
            native_allocations: Weighted { table: Table(events), weight_type: "bytes" },
            markers: Table(markers),
            native_symbols: Table(Vec::new()),
            resource_table: Table(tables.resources.values),
            func_table: Table(tables.functions.values),
            frame_table: Table(tables.frames),
            stack_table: Table(tables.stacks.values),
            string_array: tables.strings.values,
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

/// The tables of a thread as they are filled.
struct Tables<'a> {
    context: Context<'a>,
    target: &'a TargetProfile,
    strings: Interner<String>,
    functions: Interner<Function>,
    resources: Interner<Resource>,
    frames: Vec<FrameRow>,
    stacks: Interner<StackRow>,
    /// Rows of the profile's frames, by their inline depth as well.
    code_frames: FxHashMap<(FrameId, usize), u32>,
    /// Rows of synthetic frames, by name and category.
    synthetic_frames: FxHashMap<(u32, usize), u32>,
}

impl<'a> Tables<'a> {
    fn new(context: Context<'a>, target: &'a TargetProfile) -> Self {
        Self {
            context,
            target,
            strings: Interner::default(),
            functions: Interner::default(),
            resources: Interner::default(),
            frames: Vec::new(),
            stacks: Interner::default(),
            code_frames: FxHashMap::default(),
            synthetic_frames: FxHashMap::default(),
        }
    }

    /// The stack of a callsite below its groups. Threads are no group, because the format separates them anyway.
    fn stack(&mut self, callsite: &CallsiteProfile, presentation: &Presentation) -> Option<u32> {
        let profile = self.context.profile;
        let mut stack = None;
        for &group in presentation.by.iter().filter(|group| **group != Group::Thread) {
            stack = Some(self.synthetic(stack, &group_frame(group, self.target, callsite), CATEGORY_GROUP));
        }
        for gap in gap_frames(callsite) {
            stack = Some(self.synthetic(stack, &gap, CATEGORY_GAP));
        }
        for call in calls(profile, &callsite.stack).rev() {
            for (depth, &id) in call.iter().rev().enumerate() {
                let Some(frame) = self.frame(id, depth) else { continue };
                stack = Some(self.stacks.intern(StackRow { prefix: stack, frame }));
            }
        }
        stack
    }

    fn synthetic(&mut self, prefix: Option<u32>, text: &str, category: usize) -> u32 {
        let name = self.strings.intern_ref(text);
        let frame = match self.synthetic_frames.get(&(name, category)) {
            Some(&known) => known,
            None => {
                let function = self.functions.intern(Function { name, resource: None, file: None });
                let row = FrameRow { function, category, address: -1, inline_depth: 0, line: None };
                let frame = self.add_frame(row);
                self.synthetic_frames.insert((name, category), frame);
                frame
            }
        };
        self.stacks.intern(StackRow { prefix, frame })
    }

    /// `None` if the profile does not have the frame.
    fn frame(&mut self, id: FrameId, depth: usize) -> Option<u32> {
        if let Some(&known) = self.code_frames.get(&(id, depth)) {
            return Some(known);
        }
        let frame = frame(self.context.profile, id)?;
        let name = self.strings.intern(frame.label());
        let lib = frame.module.as_deref().and_then(|path| self.context.libs.get(path));
        let resource = lib.map(|lib| {
            let name = self.strings.intern_ref(base_name(self.context.libs.values[lib as usize]));
            self.resources.intern(Resource { lib, name })
        });
        let file = frame.file.as_deref().map(|file| self.strings.intern_ref(file));
        let function = self.functions.intern(Function { name, resource, file });
        let address = self.address(frame);
        let row = FrameRow { function, category: CATEGORY_NATIVE, address, inline_depth: depth, line: frame.line };
        let index = self.add_frame(row);
        self.code_frames.insert((id, depth), index);
        Some(index)
    }

    fn add_frame(&mut self, row: FrameRow) -> u32 {
        let index = u32::try_from(self.frames.len()).expect("profiles number their frames in 32 bits");
        self.frames.push(row);
        index
    }

    /// Address in the module, as its symbols have it; -1 if unknown.
    fn address(&self, frame: &Frame) -> i64 {
        let location = CodeLocation::of(self.context.profile, self.target, frame);
        let bias = location.mapping.and_then(|mapping| mapping.bias);
        let address = bias.and_then(|bias| call_address(frame).checked_sub(bias));
        // The profiler stores addresses in 32 bits.
        address.and_then(|address| u32::try_from(address).ok()).map_or(-1, i64::from)
    }

    fn markers(&mut self, span: &Span) -> Vec<Marker> {
        let marker = |point: &crate::model::history::Instant| {
            let name = match point.occasion? {
                Occasion::Dump(number) => format!("dump {number}"),
                Occasion::Mark => "mark".to_owned(),
            };
            Some(Marker { name: self.strings.intern(name), time_ms: millis(span.since(point.time)) })
        };
        self.target.history.instants.iter().filter_map(marker).collect()
    }
}
