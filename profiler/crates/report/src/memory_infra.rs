//! A trace with Chrome's memory-infra heap dumps (`heaps_v2`): the live blocks of each stack of each process, at every dump and at the
//! end. Written for catapult's importer. The format has no place for freed blocks; groups of `--by` are the types of its objects.

use std::collections::BTreeMap;
use std::io;

use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::model::{CallsiteProfile, MemoryMapping, MemoryPoint, Profile, TargetProfile};
use serde::Serialize;
use serde_json::{Value, json};

use super::describe::{self, Caption};
use super::dumps::{Dump, distinct_pids, dumps, end, held, rounded};
use super::plain_json;
use super::presentation::{Presentation, View};
use super::tables::{Intern, Interner, OrderedMap, frame, gap_frames, group_frame, heap_name};

pub(super) fn write(profile: &Profile, presentation: &Presentation, out: &mut dyn io::Write) -> io::Result<()> {
    let caption = Caption::new(profile, View::LiveBytes);
    write!(out, "{{\"displayTimeUnit\":\"ms\",\"otherData\":")?;
    plain_json::write(&other_data(profile, &caption), out)?;
    write!(out, ",\"traceEvents\":[")?;
    let mut ids = Ids::default();
    let mut separator = "";
    for (target, pid) in profile.targets.iter().zip(distinct_pids(profile)) {
        for event in metadata(profile, &caption, target, pid) {
            writeln!(out, "{separator}")?;
            separator = ",";
            plain_json::write(&event, out)?;
        }
        write_dumps(profile, target, pid, presentation, &mut ids, out)?;
    }
    writeln!(out, "\n]}}")
}

/// Viewers show this as the metadata of the trace.
fn other_data(profile: &Profile, caption: &Caption) -> Value {
    let mut data = json!({
        "heapbpf": caption.title.clone() + &caption.window,
        "targets": describe::subject(profile),
        "interval": caption.interval,
        "accuracy": describe::accuracy_of_shown(profile, View::LiveBytes).trim(),
        "verdict": caption.verdict,
        "started_unix_ns": profile.started_unix_ns.to_string(),
    });
    if let Some(left_out) = describe::left_out(profile) {
        data["left_out"] = left_out.into();
    }
    data
}

fn metadata(profile: &Profile, caption: &Caption, target: &TargetProfile, pid: u32) -> [Value; 2] {
    let event = |name: &str, args: Value| json!({ "ph": "M", "cat": "__metadata", "pid": pid, "tid": 0, "ts": 0, "name": name, "args": args });
    let labels = [&target.facts.command, &caption.interval, &caption.verdict].into_iter().cloned();
    let labels = labels.chain(describe::older(profile));
    // Commas separate labels.
    let labels: Vec<String> = labels.map(|label| label.replace(", ", " · ").replace(',', "\u{2009}")).collect();
    [
        event("process_name", json!({ "name": target.facts.comm })),
        event("process_labels", json!({ "labels": labels.join(",") })),
    ]
}

/// Bytes and blocks.
type Amount = [u64; 2];

/// The live amount at each dump and at the end, by node and type.
type Slots = OrderedMap<(u32, u32), Vec<Amount>>;

#[derive(Serialize)]
struct ProcessDump<'a> {
    level_of_detail: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    process_totals: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    process_mmaps: Option<Value>,
    allocators: Value,
    heaps_v2: HeapDumps<'a>,
}

#[derive(Serialize)]
struct HeapDumps<'a> {
    version: u32,
    maps: Tables,
    allocators: BTreeMap<&'a str, Columns>,
}

#[derive(Default, Serialize)]
struct Columns {
    counts: Vec<u64>,
    sizes: Vec<u64>,
    types: Vec<u32>,
    nodes: Vec<u32>,
}

#[derive(Serialize)]
struct Event<'a> {
    #[serde(flatten)]
    header: Value,
    args: BTreeMap<&'static str, ProcessDump<'a>>,
}

fn write_dumps(
    profile: &Profile,
    target: &TargetProfile,
    pid: u32,
    presentation: &Presentation,
    ids: &mut Ids,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    let dumps = dumps(profile, target);
    let mut maps = Maps::new(profile, *ids);
    let allocators = allocators(target, presentation, &dumps, &mut maps);
    // Later dumps reuse the tables of the first one.
    let mut tables = maps.into_tables(ids);
    let times = dumps.iter().map(|dump| (dump.time, format!("dump {}", dump.number)));
    let times_max = dumps.len();
    for (at, (time, id)) in times.chain([(end(profile), "end".to_owned())]).enumerate() {
        let heaps = allocators.iter().map(|(name, slots)| (name.as_str(), columns(slots, at))).collect();
        let dumps = ProcessDump {
            level_of_detail: "detailed",
            process_totals: process_totals(target, time),
            process_mmaps: (at == times_max).then(|| process_mmaps(target)).flatten(),
            allocators: totals(&allocators, at, ids),
            heaps_v2: HeapDumps { version: 1, maps: std::mem::take(&mut tables), allocators: heaps },
        };
        let header = json!({
            "ph": "v",
            "cat": "disabled-by-default-memory-infra",
            "name": "explicitly_triggered",
            "id": id,
            "pid": pid,
            "tid": 0,
            "ts": microseconds(time),
        });
        writeln!(out, ",")?;
        plain_json::write(&Event { header, args: BTreeMap::from([("dumps", dumps)]) }, out)?;
    }
    Ok(())
}

#[expect(
    clippy::cast_precision_loss,
    reason = "the format has floats, which represent the nanoseconds of three months"
)]
fn microseconds(time: MonotonicNanos) -> f64 {
    time.0 as f64 / 1000.0
}

/// Of the last sample of the resident memory by then.
fn process_totals(target: &TargetProfile, time: MonotonicNanos) -> Option<Value> {
    let points = target.memory.points();
    let at = points.partition_point(|point| point.time <= time).checked_sub(1)?;
    let peak = points[..=at].iter().map(MemoryPoint::rss_bytes).max().unwrap_or(0);
    Some(json!({
        "resident_set_bytes": format!("{:x}", points[at].rss_bytes()),
        "peak_resident_set_bytes": format!("{peak:x}"),
    }))
}

/// Of the mappings with most memory, at the end: bytes in hexadecimal.
fn process_mmaps(target: &TargetProfile) -> Option<Value> {
    let region = |mapping: &MemoryMapping| {
        let amounts = &mapping.amounts;
        json!({
            "sa": format!("{:x}", mapping.start),
            "sz": format!("{:x}", mapping.size_bytes),
            "pf": mapping.protection_flags(),
            "mf": mapping.name,
            "bs": {
                "pss": format!("{:x}", amounts.pss_bytes),
                "pc": format!("{:x}", amounts.private_clean_bytes),
                "pd": format!("{:x}", amounts.private_dirty_bytes),
                "sc": format!("{:x}", amounts.shared_clean_bytes),
                "sd": format!("{:x}", amounts.shared_dirty_bytes),
                "sw": format!("{:x}", amounts.swap_bytes),
            },
        })
    };
    let regions: Vec<Value> = target.memory.mappings().iter().map(region).collect();
    (!regions.is_empty()).then(|| json!({ "vm_regions": regions }))
}

fn allocators(
    target: &TargetProfile,
    presentation: &Presentation,
    dumps: &[Dump],
    maps: &mut Maps<'_>,
) -> OrderedMap<String, Slots> {
    // A `/` would make an allocator a part of another one.
    let name = |heap: usize| heap_name(target, heap).replace('/', ":");
    let mut allocators: OrderedMap<String, Slots> =
        (0..target.heaps.len()).map(|heap| (name(heap), Slots::default())).collect();
    for callsite in &target.callsites {
        let slots = allocators.entry(name(callsite.heap)).or_default();
        let amounts = slots.entry(maps.slot(target, callsite, presentation));
        let amounts = amounts.or_insert_with(|| vec![[0; 2]; dumps.len() + 1]);
        for (sum, amount) in amounts.iter_mut().zip(callsite_amounts(callsite, dumps)) {
            *sum = std::array::from_fn(|i| sum[i].saturating_add(amount[i]));
        }
    }
    allocators
}

fn callsite_amounts(callsite: &CallsiteProfile, dumps: &[Dump]) -> impl Iterator<Item = Amount> {
    let earlier = dumps.iter().map(|dump| {
        let held = held(callsite, dump);
        [held.live_bytes, held.live_count].map(rounded)
    });
    earlier.chain([[View::LiveBytes, View::LiveCount].map(|view| view.of_callsite(callsite))])
}

fn columns(slots: &Slots, at: usize) -> Columns {
    let mut columns = Columns::default();
    for (&(node, r#type), amounts) in slots {
        let [bytes, count] = amounts[at];
        if [bytes, count] != [0; 2] {
            columns.counts.push(count);
            columns.sizes.push(bytes);
            columns.types.push(r#type);
            columns.nodes.push(node);
        }
    }
    columns
}

/// The total of each allocator, in hexadecimal as the format requires.
fn totals(allocators: &OrderedMap<String, Slots>, at: usize, ids: &mut Ids) -> Value {
    let totals = allocators.iter().map(|(name, slots)| {
        let sum = |i: usize| slots.values().fold(0, |sum: u64, amounts| sum.saturating_add(amounts[at][i]));
        let scalar =
            |units: &str, value: u64| json!({ "type": "scalar", "units": units, "value": format!("{value:x}") });
        ids.guid += 1;
        let dump = json!({
            "guid": format!("{:x}", ids.guid),
            "attrs": { "size": scalar("bytes", sum(0)), "object_count": scalar("objects", sum(1)) },
        });
        (name.clone(), dump)
    });
    Value::Object(totals.collect())
}

/// The highest ids in use. Processes share no ids, because catapult resolves them in one table.
#[derive(Clone, Copy, Debug, Default)]
struct Ids {
    string: u32,
    node: u32,
    r#type: u32,
    guid: u64,
}

/// The tables that the ids of a process's heap dumps refer to. An id is the index plus 1 plus the highest id of earlier processes.
struct Maps<'a> {
    profile: &'a Profile,
    base: Ids,
    strings: Interner<String>,
    /// Parent, 0 for roots, and name.
    nodes: Interner<(u32, u32)>,
    types: Interner<u32>,
    frames: Vec<Option<u32>>,
}

#[derive(Default, Serialize)]
struct Tables {
    strings: Vec<Entry>,
    nodes: Vec<Entry>,
    types: Vec<Entry>,
}

/// A string, or a node or type with its name.
#[derive(Default, Serialize)]
struct Entry {
    id: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    string: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_sid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<u32>,
}

impl<'a> Maps<'a> {
    fn new(profile: &'a Profile, base: Ids) -> Self {
        let frames = vec![None; profile.frames.len()];
        let (strings, nodes, types) = (Interner::default(), Interner::default(), Interner::default());
        Self { profile, base, strings, nodes, types, frames }
    }

    fn slot(&mut self, target: &TargetProfile, callsite: &CallsiteProfile, presentation: &Presentation) -> (u32, u32) {
        let groups: Vec<String> = presentation.by.iter().map(|group| group_frame(*group, target, callsite)).collect();
        let groups = if groups.is_empty() { "[unknown]".to_owned() } else { groups.join(", ") };
        let type_name = self.string(groups);
        let r#type = self.base.r#type + self.types.intern(type_name) + 1;
        let mut node = gap_frames(callsite).fold(0, |node, gap| self.named_node(node, gap));
        for &id in callsite.stack.iter().rev() {
            let Some(frame) = frame(self.profile, id) else { continue };
            let name = self.frames[id.0 as usize].unwrap_or_else(|| self.string(frame.label()));
            self.frames[id.0 as usize] = Some(name);
            node = self.node(node, name);
        }
        if node == 0 {
            node = self.named_node(node, "[no frames]".to_owned());
        }
        (node, r#type)
    }

    fn string(&mut self, text: String) -> u32 {
        self.base.string + self.strings.intern(text) + 1
    }

    fn named_node(&mut self, parent: u32, name: String) -> u32 {
        let name = self.string(name);
        self.node(parent, name)
    }

    fn node(&mut self, parent: u32, name: u32) -> u32 {
        self.base.node + self.nodes.intern((parent, name)) + 1
    }

    /// All entries in the order of their ids, so that parents precede their children. Updates the highest ids.
    fn into_tables(self, highest: &mut Ids) -> Tables {
        let named = |name_sid: u32| Entry { name_sid: Some(name_sid), ..Entry::default() };
        let string = |string: String| Entry { string: Some(string), ..Entry::default() };
        let node = |(parent, name): (u32, u32)| Entry { parent: (parent != 0).then_some(parent), ..named(name) };
        Tables {
            strings: numbered(self.strings.into_iter().map(string), &mut highest.string),
            nodes: numbered(self.nodes.into_iter().map(node), &mut highest.node),
            types: numbered(self.types.into_iter().map(named), &mut highest.r#type),
        }
    }
}

fn numbered(entries: impl Iterator<Item = Entry>, highest: &mut u32) -> Vec<Entry> {
    let next = |entry| {
        *highest += 1;
        Entry { id: *highest, ..entry }
    };
    entries.map(next).collect()
}
