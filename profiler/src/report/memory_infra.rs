//! A trace with Chrome's memory-infra heap dumps (`heaps_v2`): what each stack of each process held, at every dump and at the
//! end.
//!
//! Owns what catapult's importer takes to show it. Sizes and counts are of live blocks: the format has no place for what was
//! freed. What stacks are grouped by are their types.

use std::collections::BTreeMap;
use std::io;

use rustc_hash::FxHashMap;
use serde::Serialize;
use serde_json::{Value, json};

use super::dumps::{Dump, distinct_pids, dumps, end, held, rounded};
use super::roots::{gaps, group_of};
use super::{Presentation, Report, ReportError, View, describe, window};
use crate::model::{CallsiteProfile, Profile, TargetProfile};
use crate::units::MonotonicNanos;
use maps::{Ids, Maps, Tables};

mod maps;

#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryInfra;

impl Report for MemoryInfra {
    fn write(
        &self,
        profile: &Profile,
        presentation: &Presentation,
        out: &mut dyn io::Write,
    ) -> Result<(), ReportError> {
        write!(out, "{{\"displayTimeUnit\":\"ms\",\"otherData\":")?;
        serialize(out, &words(profile))?;
        write!(out, ",\"traceEvents\":[")?;
        let mut next_id = Ids::default();
        for (number, (target, pid)) in profile.targets.iter().zip(distinct_pids(profile)).enumerate() {
            let comma = if number == 0 { "" } else { "," };
            for (at, event) in metadata(profile, target, pid).iter().enumerate() {
                writeln!(out, "{}", if at == 0 { comma } else { "," })?;
                serialize(out, event)?;
            }
            write_dumps(profile, target, pid, presentation, &mut next_id, out)?;
        }
        writeln!(out, "\n]}}")?;
        Ok(())
    }
}

fn serialize(out: &mut dyn io::Write, value: &impl Serialize) -> Result<(), ReportError> {
    Ok(serde_json::to_writer(out, value).map_err(io::Error::from)?)
}

/// What the profile is about and how exact it is: viewers show it as the trace's metadata.
fn words(profile: &Profile) -> Value {
    let title = describe::title(profile, View::LiveBytes) + &window::title(profile);
    json!({
        "heapbpf": title,
        "targets": describe::subject(profile),
        "interval": describe::interval(profile),
        "accuracy": describe::accuracy_of_shown(profile, View::LiveBytes).trim(),
        "losses": describe::losses(profile),
        "started_unix_ns": profile.started_unix_ns.to_string(),
    })
}

/// The process's name, with what it ran and how it was watched beside it.
fn metadata(profile: &Profile, target: &TargetProfile, pid: u32) -> [Value; 2] {
    let event = |name: &str, args: Value| json!({ "ph": "M", "cat": "__metadata", "pid": pid, "tid": 0, "ts": 0, "name": name, "args": args });
    let labels = [Some(target.command.clone()), Some(describe::interval(profile)), Some(describe::losses(profile))];
    let labels = labels.into_iter().chain([describe::older(profile)]).flatten();
    // Commas part labels.
    let labels: Vec<String> = labels.map(|label| label.replace(", ", " · ").replace(',', "\u{2009}")).collect();
    [
        event("process_name", json!({ "name": target.comm })),
        event("process_labels", json!({ "labels": labels.join(",") })),
    ]
}

/// Where a callsite's blocks are shown: its heap, the innermost frame and the type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Slot {
    node: u32,
    r#type: u32,
}

/// Bytes and blocks.
type Held = [u64; 2];

/// By allocator's name, in the order of heaps: what its slots hold at each dump and at the end.
struct Allocator {
    name: String,
    slots: Vec<(Slot, Vec<Held>)>,
}

/// `args.dumps` of an event.
#[derive(Serialize)]
struct ProcessDump<'a> {
    level_of_detail: &'static str,
    allocators: Value,
    heaps_v2: HeapDumps<'a>,
}

#[derive(Serialize)]
struct HeapDumps<'a> {
    version: u32,
    maps: Tables,
    allocators: BTreeMap<&'a str, Columns>,
}

/// The stacks of an allocator, as lists side by side.
#[derive(Default, Serialize)]
struct Columns {
    counts: Vec<u64>,
    sizes: Vec<u64>,
    types: Vec<u32>,
    nodes: Vec<u32>,
}

/// A process's dump of memory.
#[derive(Serialize)]
struct Event<'a> {
    ph: &'static str,
    cat: &'static str,
    name: &'static str,
    id: String,
    pid: u32,
    tid: u32,
    ts: f64,
    args: Args<'a>,
}

#[derive(Serialize)]
struct Args<'a> {
    dumps: ProcessDump<'a>,
}

fn write_dumps(
    profile: &Profile,
    target: &TargetProfile,
    pid: u32,
    presentation: &Presentation,
    ids: &mut Ids,
    out: &mut dyn io::Write,
) -> Result<(), ReportError> {
    let dumps = dumps(profile, target);
    let mut maps = Maps::default();
    let allocators = allocators(target, presentation, &dumps, &mut Names::new(profile, &mut maps, ids));
    // What is said once holds for later dumps.
    let mut tables = maps.into_tables();
    let times = dumps.iter().map(|dump| (dump.time, format!("dump {}", dump.number)));
    for (at, (time, id)) in times.chain([(end(profile), "end".to_owned())]).enumerate() {
        let heaps = allocators.iter().map(|allocator| (allocator.name.as_str(), columns(allocator, at))).collect();
        let dumps = ProcessDump {
            level_of_detail: "detailed",
            allocators: totals(&allocators, at, ids),
            heaps_v2: HeapDumps { version: 1, maps: std::mem::take(&mut tables), allocators: heaps },
        };
        writeln!(out, ",")?;
        let event = Event {
            ph: "v",
            cat: "disabled-by-default-memory-infra",
            name: "explicitly_triggered",
            id,
            pid,
            tid: 0,
            ts: microseconds(time),
            args: Args { dumps },
        };
        serialize(out, &event)?;
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "the format has floats, which hold the nanoseconds of three months")]
fn microseconds(time: MonotonicNanos) -> f64 {
    time.0 as f64 / 1000.0
}

/// What the target's heaps hold, by slot in the order of the tree.
fn allocators(
    target: &TargetProfile,
    presentation: &Presentation,
    dumps: &[Dump],
    names: &mut Names<'_>,
) -> Vec<Allocator> {
    let mut allocators: Vec<Allocator> = Vec::new();
    let mut numbers: FxHashMap<String, usize> = FxHashMap::default();
    let mut of_heap = |name: &str| {
        // A `/` would make it a part of another.
        let name = name.replace('/', ":");
        *numbers.entry(name).or_insert_with_key(|name| {
            allocators.push(Allocator { name: name.clone(), slots: Vec::new() });
            allocators.len() - 1
        })
    };
    let known: Vec<usize> = target.heaps.iter().map(|heap| of_heap(&heap.name)).collect();
    let numbers: Vec<usize> = target
        .callsites
        .iter()
        .map(|callsite| known.get(callsite.heap).copied().unwrap_or_else(|| of_heap("[heap unknown]")))
        .collect();
    let mut slots: FxHashMap<(usize, Slot), usize> = FxHashMap::default();
    for (callsite, allocator) in target.callsites.iter().zip(numbers) {
        let slot = names.slot(target, callsite, presentation);
        let slots_of = &mut allocators[allocator].slots;
        let at = *slots.entry((allocator, slot)).or_insert_with(|| {
            slots_of.push((slot, vec![[0; 2]; dumps.len() + 1]));
            slots_of.len() - 1
        });
        for (sum, held) in slots_of[at].1.iter_mut().zip(amounts(callsite, dumps)) {
            *sum = std::array::from_fn(|i| sum[i].saturating_add(held[i]));
        }
    }
    allocators
}

/// What a callsite held at each dump, and holds at the end.
fn amounts(callsite: &CallsiteProfile, dumps: &[Dump]) -> impl Iterator<Item = Held> {
    let earlier = dumps.iter().map(|dump| {
        let held = held(callsite, dump);
        [held.live_bytes, held.live_count].map(rounded)
    });
    earlier.chain([[View::LiveBytes, View::LiveCount].map(|view| view.of_callsite(callsite))])
}

/// Names and stacks as they are numbered.
struct Names<'a> {
    profile: &'a Profile,
    maps: &'a mut Maps,
    ids: &'a mut Ids,
    /// Of each frame of the profile.
    frames: Vec<Option<u32>>,
}

impl<'a> Names<'a> {
    fn new(profile: &'a Profile, maps: &'a mut Maps, ids: &'a mut Ids) -> Self {
        Self { profile, maps, ids, frames: vec![None; profile.frames.len()] }
    }

    fn slot(&mut self, target: &TargetProfile, callsite: &CallsiteProfile, presentation: &Presentation) -> Slot {
        let groups: Vec<String> = presentation.by.iter().map(|group| group_of(*group, target, callsite)).collect();
        let groups = if groups.is_empty() { "[unknown]".to_owned() } else { groups.join(", ") };
        let r#type = self.maps.r#type(groups, self.ids);
        let mut node = gaps(callsite).fold(0, |node, gap| self.below(node, gap));
        for id in callsite.stack.iter().rev() {
            let at = id.0 as usize;
            let Some(frame) = self.profile.frames.get(at) else { continue };
            let name = *self.frames[at].get_or_insert_with(|| self.maps.string(frame.label(), self.ids));
            node = self.maps.node(node, name, self.ids);
        }
        if node == 0 {
            node = self.below(node, "[no frames]".to_owned());
        }
        Slot { node, r#type }
    }

    fn below(&mut self, parent: u32, name: String) -> u32 {
        let name = self.maps.string(name, self.ids);
        self.maps.node(parent, name, self.ids)
    }
}

/// What an allocator's stacks hold. Those that hold nothing are left out.
fn columns(allocator: &Allocator, at: usize) -> Columns {
    let mut columns = Columns::default();
    for (slot, held) in &allocator.slots {
        let [bytes, count] = held[at];
        if [bytes, count] != [0; 2] {
            columns.counts.push(count);
            columns.sizes.push(bytes);
            columns.types.push(slot.r#type);
            columns.nodes.push(slot.node);
        }
    }
    columns
}

/// What each allocator holds as a whole, in hexadecimal, as the format has it.
fn totals(allocators: &[Allocator], at: usize, ids: &mut Ids) -> Value {
    let totals = allocators.iter().map(|allocator| {
        let sum = |i: usize| allocator.slots.iter().fold(0, |sum: u64, (_, held)| sum.saturating_add(held[at][i]));
        let scalar =
            |units: &str, value: u64| json!({ "type": "scalar", "units": units, "value": format!("{value:x}") });
        ids.guid += 1;
        let dump = json!({
            "guid": format!("{:x}", ids.guid),
            "attrs": { "size": scalar("bytes", sum(0)), "object_count": scalar("objects", sum(1)) },
        });
        (allocator.name.clone(), dump)
    });
    Value::Object(totals.collect())
}
