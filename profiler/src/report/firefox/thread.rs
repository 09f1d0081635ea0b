//! A thread: the callsites that it allocated at, or all of a target's where they are not told apart by thread.

use serde::Serialize;

use super::pieces::{Span, pieces};
use super::tables::{Frames, Functions, Resources, Said, Stacks, Tables};
use super::{Libs, millis};
use crate::model::history::Occasion;
use crate::model::{CallsiteProfile, Profile, TargetProfile};
use crate::report::presentation::{Group, Presentation};
use crate::report::{View, roots};

/// Which of a target's threads; `None` for callsites whose thread is not known.
pub(super) type Part = Option<usize>;

/// The parts of a target that have callsites, the process's first thread first; the one of all where there is none.
pub(super) fn parts(target: &TargetProfile) -> Vec<Part> {
    let mut parts: Vec<Part> = target.callsites.iter().map(|callsite| part(target, callsite)).collect();
    parts.sort_unstable_by_key(|part| {
        let tid = part.and_then(|part| target.threads.get(part)).map(|thread| thread.tid.0);
        (tid.is_none(), tid != Some(target.pid.0), tid, *part)
    });
    parts.dedup();
    if parts.is_empty() { vec![None] } else { parts }
}

fn part(target: &TargetProfile, callsite: &CallsiteProfile) -> Part {
    callsite.thread.filter(|&thread| thread < target.threads.len())
}

/// What threads are made of.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) profile: &'a Profile,
    pub(super) presentation: &'a Presentation,
    pub(super) libs: &'a Libs<'a>,
    pub(super) span: Span<'a>,
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
    samples: Samples,
    native_allocations: Allocations,
    markers: Markers,
    native_symbols: NativeSymbols,
    resource_table: Resources,
    func_table: Functions,
    frame_table: Frames,
    stack_table: Stacks,
    string_array: Vec<String>,
}

/// The quantity of the view, as samples that weigh as much.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Samples {
    length: usize,
    stack: Vec<Option<usize>>,
    time: Vec<f64>,
    weight: Vec<u64>,
    weight_type: &'static str,
}

/// Allocations, and as negative ones frees.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Allocations {
    length: usize,
    time: Vec<f64>,
    weight: Vec<i64>,
    weight_type: &'static str,
    stack: Vec<Option<usize>>,
    memory_address: Vec<u64>,
    thread_id: Vec<u32>,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Markers {
    length: usize,
    category: Vec<usize>,
    data: Vec<Option<()>>,
    name: Vec<usize>,
    phase: Vec<u32>,
    start_time: Vec<f64>,
    end_time: Vec<Option<f64>>,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct NativeSymbols {
    length: usize,
    address: [(); 0],
    function_size: [(); 0],
    lib_index: [(); 0],
    name: [(); 0],
}

/// An event, for the order of time.
struct Event {
    time_ns: u64,
    stack: Option<usize>,
    address: u64,
    bytes: i64,
}

impl ThreadFields {
    /// `pid` and `tid` are texts that no other process or thread has. The first part of a target stands for its process.
    pub(super) fn new(context: Context, target: &TargetProfile, part: Part, is_first: bool, ids: [String; 2]) -> Self {
        let Context { profile, presentation, libs, span } = context;
        let mut tables = Tables::new(profile, target, libs);
        let mut samples = Vec::new();
        let mut events = Vec::new();
        for callsite in target.callsites.iter().filter(|callsite| self::part(target, callsite) == part) {
            let stack = stack(&mut tables, target, callsite, presentation);
            let pieces = pieces(&span, target, callsite);
            let time_ns = pieces.iter().filter_map(|piece| piece.from_ns).min().unwrap_or(span.duration_ns);
            samples.push((time_ns, stack, presentation.view.of_callsite(callsite)));
            for piece in pieces {
                // Addresses that no two blocks have.
                let address = 16 * (events.len() as u64 + 1);
                let bytes = i64::try_from(piece.bytes).unwrap_or(i64::MAX);
                let event = |time_ns: Option<u64>, bytes| Some(Event { time_ns: time_ns?, stack, address, bytes });
                events.extend([event(piece.from_ns, bytes), event(piece.until_ns, -bytes)].into_iter().flatten());
            }
        }
        let markers = if is_first { Markers::of(&span, target, &mut tables) } else { Markers::default() };
        samples.retain(|(_, _, weight)| *weight > 0);
        if is_first {
            // The profiler shows the time from the first sample to the last one, and counters and allocations only within it.
            samples.extend([(0, None, 0), (span.duration_ns, None, 0)]);
        }
        let end = target.exited.then(|| millis(span.duration_ns));
        let [pid, tid] = ids;
        Self {
            name: name(target, part, is_first),
            is_main_thread: is_first,
            process_name: target.comm.clone(),
            process_type: "default",
            process_startup_time: millis(span.since(target.beginning.time)),
            process_shutdown_time: end,
            register_time: millis(span.since(target.beginning.time)),
            unregister_time: end,
            paused_ranges: [],
            pid,
            tid,
            show_markers_in_timeline: true,
            samples: Samples::new(samples, presentation.view),
            native_allocations: Allocations::new(events),
            markers,
            native_symbols: NativeSymbols::default(),
            resource_table: tables.resources,
            func_table: tables.functions,
            frame_table: tables.frames,
            stack_table: tables.stacks,
            string_array: tables.strings.strings,
        }
    }
}

fn name(target: &TargetProfile, part: Part, is_first: bool) -> String {
    match part.and_then(|part| target.threads.get(part)) {
        Some(thread) => thread.name.as_deref().unwrap_or("thread").to_owned(),
        None if is_first => target.comm.clone(),
        None => "[thread unknown]".to_owned(),
    }
}

/// Groups first, but for threads: those are told apart anyway.
fn stack(
    tables: &mut Tables,
    target: &TargetProfile,
    callsite: &CallsiteProfile,
    presentation: &Presentation,
) -> Option<usize> {
    let mut stack = None;
    for &group in presentation.by.iter().filter(|group| **group != Group::Thread) {
        stack = Some(tables.say(stack, &roots::group_of(group, target, callsite), Said::Group));
    }
    for gap in roots::gaps(callsite) {
        stack = Some(tables.say(stack, &gap, Said::Gap));
    }
    tables.stack(stack, &callsite.stack)
}

impl Samples {
    fn new(mut samples: Vec<(u64, Option<usize>, u64)>, view: View) -> Self {
        samples.sort_by_key(|(time_ns, _, _)| *time_ns);
        let weight_type = match view {
            View::LiveBytes | View::AllocBytes => "bytes",
            View::LiveCount | View::AllocCount => "samples",
        };
        let mut fields = Self { length: samples.len(), weight_type, ..Self::default() };
        for (time_ns, stack, weight) in samples {
            fields.time.push(millis(time_ns));
            fields.stack.push(stack);
            fields.weight.push(weight);
        }
        fields
    }
}

impl Allocations {
    fn new(mut events: Vec<Event>) -> Self {
        // What is allocated and freed at the same instant stays in that order.
        events.sort_by_key(|event| event.time_ns);
        let mut fields = Self { length: events.len(), weight_type: "bytes", ..Self::default() };
        for event in events {
            fields.time.push(millis(event.time_ns));
            fields.weight.push(event.bytes);
            fields.stack.push(event.stack);
            fields.memory_address.push(event.address);
            fields.thread_id.push(0);
        }
        fields
    }
}

impl Markers {
    /// Dumps and marks.
    fn of(span: &Span, target: &TargetProfile, tables: &mut Tables) -> Self {
        let mut markers = Self::default();
        for instant in &target.history.instants {
            let name = match instant.occasion {
                Some(Occasion::Dump(number)) => format!("dump {number}"),
                Some(Occasion::Mark) => "mark".to_owned(),
                None => continue,
            };
            markers.name.push(tables.strings.number(&name));
            markers.start_time.push(millis(span.since(instant.time)));
            markers.end_time.push(None);
            markers.category.push(0);
            markers.data.push(None);
            // An instant.
            markers.phase.push(0);
            markers.length += 1;
        }
        markers
    }
}
