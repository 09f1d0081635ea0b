//! A Perfetto trace as heapprofd writes it: per process and heap, what each stack allocated and freed, at every dump and at the end,
//! with a track of live bytes per process. Written for Perfetto's own importer, which silently ignores what it does not expect.

use std::collections::BTreeMap;
use std::io;

use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::model::{Loss, MemoryMapping, MemoryPart, Origin, Profile, TargetProfile};
use profiler_common::stack::StackEnd;
use prost::Message;
use stacks::{Code, Stacks, Tally, stacks};

use super::describe;
use super::dumps::{distinct_pids, dumps, end, rounded, start};
use super::presentation::{Presentation, View};
use super::proto::perfetto::{
    Callstack, Clock, ClockSnapshot, CounterDescriptor, Data, HeapSample, InternedData, InternedString, Process,
    ProcessDescriptor, ProcessHeapSamples, ProcessStats, ProcessTree, ProfilePacket, SmapsEntry, SmapsPacket, Thread,
    TracePacket, TrackDescriptor, TrackEvent,
};
use super::tables::{self, heap_name};

mod stacks;

/// Bytes at which a packet is closed and the next one started. Perfetto's tools accept half a megabyte.
const PACKET_BYTES: usize = 400_000;

/// Maximum bytes of a sample: five numbers with their tags.
const SAMPLE_BYTES: usize = 64;
const CLOCK_MONOTONIC: u32 = 3;
/// Track ids of a process: its own, that of live bytes, and those of the parts of its resident memory.
const TRACKS: usize = 1024;
const PARTS_MAX: usize = TRACKS - 2;

pub(super) fn write(profile: &Profile, presentation: &Presentation, out: &mut dyn io::Write) -> io::Result<()> {
    let pids = distinct_pids(profile);
    let mut system = Sequence::new(1, out);
    system.write(None, clocks(profile))?;
    for (target, &pid) in profile.targets.iter().zip(&pids) {
        system.write(None, process_tree(profile, target, pid, &pids))?;
    }
    // Track id 0 has a special meaning, so ids start at 1.
    for (uuid, (target, &pid)) in (1..).step_by(TRACKS).zip(profile.targets.iter().zip(&pids)) {
        write_track(profile, target, pid, uuid, &mut system)?;
        write_resident_memory(target, uuid, &mut system)?;
        write_mappings(profile, target, pid, &mut system)?;
    }
    write_heaps(profile, presentation, &pids, &mut Sequence::new(2, out))
}

/// Packets of one writer, which share interned ids.
struct Sequence<'o> {
    id: u32,
    is_begun: bool,
    out: &'o mut dyn io::Write,
    bytes: Vec<u8>,
}

impl<'o> Sequence<'o> {
    fn new(id: u32, out: &'o mut dyn io::Write) -> Self {
        Self { id, is_begun: false, out, bytes: Vec::new() }
    }

    fn write(&mut self, time: Option<MonotonicNanos>, data: Data) -> io::Result<()> {
        self.packet(TracePacket {
            timestamp: time.map(|time| time.0),
            timestamp_clock_id: time.map(|_| CLOCK_MONOTONIC),
            data: Some(data),
            ..TracePacket::default()
        })
    }

    fn packet(&mut self, mut packet: TracePacket) -> io::Result<()> {
        packet.trusted_packet_sequence_id = Some(self.id);
        // 1: the state is cleared, 2: the packet depends on earlier state.
        packet.sequence_flags = Some(if self.is_begun { 2 } else { 1 });
        self.is_begun = true;
        self.bytes.clear();
        // A trace is one message of packets, so packets can be written one by one.
        prost::encoding::message::encode(1, &packet, &mut self.bytes);
        self.out.write_all(&self.bytes)
    }
}

/// Clock readings at the start of the recording. Perfetto places dumps by `CLOCK_MONOTONIC_COARSE` (4) and shows times of
/// `CLOCK_BOOTTIME` (6), which is assumed to equal the monotonic clock: suspended machines record nothing.
fn clocks(profile: &Profile) -> Data {
    let monotonic = [CLOCK_MONOTONIC, 4, 5, 6].map(|clock| (clock, profile.started_monotonic_ns));
    let clocks = std::iter::once((1, profile.started_unix_ns)).chain(monotonic);
    let clocks = clocks.map(|(clock, time)| Clock { clock_id: Some(clock), timestamp: Some(time) });
    Data::ClockSnapshot(ClockSnapshot { clocks: clocks.collect() })
}

fn process_tree(profile: &Profile, target: &TargetProfile, pid: u32, pids: &[u32]) -> Data {
    let parent = match target.facts.beginning.origin {
        Origin::Forked(parent) => profile.targets.iter().position(|target| target.facts.pid == parent),
        Origin::Running | Origin::Executed | Origin::Launched => None,
    };
    let parent = parent.and_then(|at| pids.get(at)).copied();
    let process =
        Process { pid: Some(signed(pid)), ppid: parent.map(signed), cmdline: vec![target.facts.command.clone()] };
    let threads = target.threads.iter().map(|thread| Thread {
        tid: Some(signed(thread.tid.0)),
        name: thread.name.as_deref().map(str::to_owned),
        tgid: Some(signed(pid)),
    });
    Data::ProcessTree(ProcessTree { processes: vec![process], threads: threads.collect() })
}

fn signed(id: u32) -> i32 {
    i32::try_from(id).unwrap_or(i32::MAX)
}

/// `TrackEvent.Type.TYPE_COUNTER`.
const TYPE_COUNTER: i32 = 4;

/// `CounterDescriptor.Unit.UNIT_SIZE_BYTES`.
const UNIT_SIZE_BYTES: i32 = 3;

/// Writes the process's track (`uuid`), its counter track of live bytes (`uuid + 1`), and the counter's values.
fn write_track(
    profile: &Profile,
    target: &TargetProfile,
    pid: u32,
    uuid: u64,
    sequence: &mut Sequence<'_>,
) -> io::Result<()> {
    let process = ProcessDescriptor {
        pid: Some(signed(pid)),
        cmdline: vec![target.facts.command.clone()],
        process_name: Some(target.facts.comm.clone()),
        process_labels: target.facts.cgroup.iter().map(|cgroup| cgroup.as_ref().to_owned()).collect(),
    };
    let track = TrackDescriptor { uuid: Some(uuid), process: Some(process), ..TrackDescriptor::default() };
    sequence.write(None, Data::TrackDescriptor(track))?;
    let counter = TrackDescriptor {
        uuid: Some(uuid + 1),
        parent_uuid: Some(uuid),
        name: Some(View::LiveBytes.title().to_owned()),
        counter: Some(CounterDescriptor { unit: Some(UNIT_SIZE_BYTES) }),
        description: Some(description(profile)),
        ..TrackDescriptor::default()
    };
    sequence.write(None, Data::TrackDescriptor(counter))?;

    let end = end(profile);
    let curve = target.history.curve.iter().filter(|point| point.time < end);
    let curve = curve.map(|point| (point.time, rounded(point.held.live_bytes)));
    for (time, live_bytes) in curve.chain([(end, target.totals.live_bytes().rounded())]) {
        let value = TrackEvent {
            r#type: Some(TYPE_COUNTER),
            track_uuid: Some(uuid + 1),
            counter_value: Some(tables::signed(live_bytes)),
        };
        sequence.write(Some(time), Data::TrackEvent(value))?;
    }
    Ok(())
}

/// Writes a counter track for each part of the resident memory; the first is `uuid + 2`.
fn write_resident_memory(target: &TargetProfile, uuid: u64, sequence: &mut Sequence<'_>) -> io::Result<()> {
    let points = target.memory.points();
    let key = |part: &MemoryPart| (part.class, part.name.clone());
    let parts: BTreeMap<_, &MemoryPart> =
        points.iter().flat_map(|point| &point.parts).map(|part| (key(part), part)).collect();
    for (track, (key_of_track, part)) in (uuid + 2..).zip(parts.iter().take(PARTS_MAX)) {
        let counter = TrackDescriptor {
            uuid: Some(track),
            parent_uuid: Some(uuid),
            name: Some(format!("resident: {}", part.title())),
            counter: Some(CounterDescriptor { unit: Some(UNIT_SIZE_BYTES) }),
            ..TrackDescriptor::default()
        };
        sequence.write(None, Data::TrackDescriptor(counter))?;
        for point in points {
            let bytes = point.parts.iter().find(|part| key(part) == *key_of_track).map_or(0, |part| part.bytes);
            let value = TrackEvent {
                r#type: Some(TYPE_COUNTER),
                track_uuid: Some(track),
                counter_value: Some(tables::signed(bytes)),
            };
            sequence.write(Some(point.time), Data::TrackEvent(value))?;
        }
    }
    Ok(())
}

/// Writes the mappings with most memory.
fn write_mappings(profile: &Profile, target: &TargetProfile, pid: u32, sequence: &mut Sequence<'_>) -> io::Result<()> {
    if target.memory.mappings().is_empty() {
        return Ok(());
    }
    let entries = target.memory.mappings().iter().map(smaps_entry).collect();
    sequence.write(Some(end(profile)), Data::SmapsPacket(SmapsPacket { pid: Some(pid), entries }))
}

fn smaps_entry(mapping: &MemoryMapping) -> SmapsEntry {
    let kibibytes = |bytes: u64| Some(bytes / 1024);
    SmapsEntry {
        path: Some(mapping.name.to_string()),
        size_kb: kibibytes(mapping.size_bytes),
        private_dirty_kb: kibibytes(mapping.amounts.private_dirty_bytes),
        swap_kb: kibibytes(mapping.amounts.swap_bytes),
        start_address: Some(mapping.start),
        protection_flags: Some(mapping.protection_flags()),
        private_clean_resident_kb: kibibytes(mapping.amounts.private_clean_bytes),
        shared_dirty_resident_kb: kibibytes(mapping.amounts.shared_dirty_bytes),
        shared_clean_resident_kb: kibibytes(mapping.amounts.shared_clean_bytes),
        proportional_resident_kb: kibibytes(mapping.amounts.pss_bytes),
    }
}

fn description(profile: &Profile) -> String {
    let interval = describe::interval(profile);
    let accuracy = describe::accuracy(profile, View::LiveBytes);
    let older = describe::older(profile).map(|older| format!("; in the heap profile, {older}"));
    let left_out = describe::left_out(profile).map(|left_out| format!("; {left_out}"));
    let verdict = describe::verdict(profile);
    format!("heapbpf: {interval}{accuracy}; {verdict}{}{}", older.unwrap_or_default(), left_out.unwrap_or_default())
}

struct TargetStacks<'a> {
    target: &'a TargetProfile,
    pid: u32,
    /// The times of its dumps, and the end.
    times: Vec<MonotonicNanos>,
    stacks: Stacks,
}

fn write_heaps(
    profile: &Profile,
    presentation: &Presentation,
    pids: &[u32],
    sequence: &mut Sequence<'_>,
) -> io::Result<()> {
    let mut code = Code::default();
    let mut targets = Vec::new();
    for (target, &pid) in profile.targets.iter().zip(pids) {
        let dumps = dumps(profile, target);
        let stacks = stacks(profile, target, presentation, &dumps, &mut code);
        let times = dumps.iter().map(|dump| dump.time).chain([end(profile)]).collect();
        targets.push(TargetStacks { target, pid, times, stacks });
    }
    write_tables(profile, &mut code, sequence)?;

    let times = |(number, target): (usize, &TargetStacks<'_>)| {
        target.times.iter().enumerate().map(|(at, &time)| (time, number, at)).collect::<Vec<_>>()
    };
    let mut order: Vec<(MonotonicNanos, usize, usize)> = targets.iter().enumerate().flat_map(times).collect();
    order.sort_unstable();
    let mut index = 0;
    for (time, number, at) in order {
        for packet in packets(profile, &targets[number], at, &mut index) {
            sequence.write(Some(time), Data::ProfilePacket(packet))?;
        }
    }
    for symbols in code.symbols(profile) {
        sequence.write(Some(end(profile)), Data::ModuleSymbols(symbols))?;
    }
    Ok(())
}

fn write_tables<'a>(profile: &'a Profile, code: &mut Code<'a>, sequence: &mut Sequence<'_>) -> io::Result<()> {
    let (frames, frame_ids) = code.frames(profile);
    let mappings = code.mappings();
    let mut data = Chunks { data: InternedData::default(), bytes: 0, sequence };
    let string = |iid: u64, bytes: &[u8]| InternedString { iid: Some(iid), str: Some(bytes.to_vec()) };
    for (iid, name) in (1..).zip(&code.functions) {
        data.add(string(iid, name.as_bytes()), |data| &mut data.function_names)?;
    }
    for (iid, path) in (1..).zip(&code.paths) {
        data.add(string(iid, path.as_bytes()), |data| &mut data.mapping_paths)?;
    }
    for (iid, build_id) in (1..).zip(&code.build_ids) {
        data.add(string(iid, build_id), |data| &mut data.build_ids)?;
    }
    for mapping in mappings {
        data.add(mapping, |data| &mut data.mappings)?;
    }
    for frame in frames {
        data.add(frame, |data| &mut data.frames)?;
    }
    for (iid, stack) in (1..).zip(&code.callstacks) {
        let frame_ids = stack.iter().flat_map(|&call| &frame_ids[call as usize]).copied().collect();
        data.add(Callstack { iid: Some(iid), frame_ids }, |data| &mut data.callstacks)?;
    }
    data.flush()
}

struct Chunks<'s, 'o> {
    data: InternedData,
    bytes: usize,
    sequence: &'s mut Sequence<'o>,
}

impl Chunks<'_, '_> {
    fn add<M: Message>(&mut self, entry: M, table: impl Fn(&mut InternedData) -> &mut Vec<M>) -> io::Result<()> {
        let bytes = entry.encoded_len();
        if self.bytes > 0 && self.bytes + bytes > PACKET_BYTES {
            self.flush()?;
        }
        self.bytes += bytes + 8;
        table(&mut self.data).push(entry);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.bytes = 0;
        let interned_data = Some(std::mem::take(&mut self.data));
        self.sequence.packet(TracePacket { interned_data, ..TracePacket::default() })
    }
}

/// A dump contains the stacks that changed since the previous one, the end contains all.
fn packets(profile: &Profile, target: &TargetStacks<'_>, at: usize, index: &mut u64) -> Vec<ProfilePacket> {
    let is_end = at + 1 == target.times.len();
    let heap_count = target.target.heaps.len();
    let unknown = target.stacks.keys().map(|&(_, heap)| heap).filter(|&heap| heap >= heap_count).max();
    let mut packets = Vec::new();
    for heap in (0..heap_count).chain(unknown) {
        let of_heap = target.stacks.iter().filter(|((_, of), _)| *of == heap);
        let changed = of_heap.filter(|(_, tallies)| {
            let since = at.checked_sub(1).filter(|_| !is_end).map_or_else(Tally::default, |last| tallies[last]);
            tallies[at] != since
        });
        let samples: Vec<HeapSample> = changed.map(|(&(iid, _), tallies)| sample(iid, tallies[at])).collect();
        let mut rest = samples.as_slice();
        loop {
            let (now, later) = rest.split_at(rest.len().min(PACKET_BYTES / SAMPLE_BYTES));
            let dump = ProcessHeapSamples { samples: now.to_vec(), ..header(profile, target, heap, at) };
            packets.push(ProfilePacket { process_dumps: vec![dump], continued: Some(true), index: Some(*index) });
            *index += 1;
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
    }
    if let Some(last) = packets.last_mut() {
        last.continued = None;
    }
    packets
}

fn sample(iid: u64, [alloc_bytes, alloc_count, free_bytes, free_count]: Tally) -> HeapSample {
    HeapSample {
        callstack_id: Some(iid),
        self_allocated: Some(alloc_bytes),
        self_freed: Some(free_bytes),
        alloc_count: Some(alloc_count),
        free_count: Some(free_count),
    }
}

fn header(profile: &Profile, target: &TargetStacks<'_>, heap: usize, at: usize) -> ProcessHeapSamples {
    let process = target.target;
    let known = process.heaps.get(heap);
    let interval_bytes = known.map_or(profile.interval_bytes, |heap| heap.interval_bytes);
    let is_end = at + 1 == target.times.len();
    let beginning = || start(profile).max(process.facts.beginning.time);
    let since = at.checked_sub(1).map_or_else(beginning, |last| target.times[last]);
    let time = target.times[at];
    let overran = profile.health.lost.iter().any(|(reason, count)| *reason == Loss::RingFull && *count > 0);
    ProcessHeapSamples {
        pid: Some(target.pid.into()),
        samples: Vec::new(),
        from_startup: Some(process.facts.beginning.from_first_call),
        rejected_concurrent: Some(false),
        stats: Some(stats(process, heap)),
        disconnected: Some(is_end && process.facts.end.is_some()),
        buffer_overran: Some(is_end && overran),
        buffer_corrupted: Some(false),
        timestamp: Some(time.0),
        hit_guardrail: Some(is_end && (process.facts.detached().is_some() || profile.health.guardrails.stopped())),
        heap_name: Some(heap_name(process, heap).to_owned()),
        sampling_interval_bytes: Some(known.map_or(interval_bytes, |heap| heap.interval_bytes_max.max(interval_bytes))),
        orig_sampling_interval_bytes: Some(interval_bytes),
        client_error: Some(0),
        start_timestamp: Some(since.min(time).0),
    }
}

fn stats(target: &TargetProfile, heap: usize) -> ProcessStats {
    let callsites = || target.callsites.iter().filter(|callsite| callsite.heap.min(target.heaps.len()) == heap);
    let count = |samples: &mut dyn Iterator<Item = u64>| Some(samples.fold(0, u64::saturating_add));
    let cut = callsites().filter(|callsite| callsite.end != Some(StackEnd::Complete));
    ProcessStats {
        unwinding_errors: count(&mut cut.map(|callsite| callsite.totals.alloc_samples)),
        heap_samples: count(&mut callsites().map(|callsite| callsite.totals.alloc_samples)),
    }
}
