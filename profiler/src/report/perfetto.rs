//! A Perfetto trace, as heapprofd writes it: per process and heap, what each stack allocated and freed, at every dump and at
//! the end; with a track of live bytes per process.
//!
//! Owns the order of packets. Stacks are in `stacks`, places in code in `code`, and the format on the wire in `messages`.
//! Perfetto's own importer is what it has to suit: a trace that decodes can still show nothing.

use std::io;

use profiler_common::stack::StackEnd;
use prost::Message;

use super::dumps::{Dump, distinct_pids, dumps, end, start};
use super::{Presentation, Report, ReportError};
use crate::model::{Origin, Profile, TargetProfile};
use crate::units::MonotonicNanos;
use code::{Code, numbered};
use messages::{
    Callstack, Clock, ClockSnapshot, Data, HeapSample, InternedData, InternedString, Process, ProcessHeapSamples,
    ProcessStats, ProcessTree, ProfilePacket, Thread, TracePacket,
};
use stacks::{Callstacks, Stack, Tally, heap_name, stacks};

mod code;
mod messages;
mod stacks;
mod tracks;

/// Bytes of a packet at which the next one is begun. Perfetto's tools take half a megabyte.
const PACKET_BYTES: usize = 400_000;

/// Bytes that a sample takes at most: five numbers and what goes before them.
const SAMPLE_BYTES: usize = 64;

const CLOCK_MONOTONIC: u32 = 3;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Perfetto;

impl Report for Perfetto {
    fn write(
        &self,
        profile: &Profile,
        presentation: &Presentation,
        out: &mut dyn io::Write,
    ) -> Result<(), ReportError> {
        let pids = distinct_pids(profile);
        let mut system = Sequence::new(1, out);
        system.write(None, clocks(profile))?;
        for (target, &pid) in profile.targets.iter().zip(&pids) {
            system.write(None, process_tree(profile, target, pid, &pids))?;
        }
        for (number, (target, &pid)) in (0_u64..).zip(profile.targets.iter().zip(&pids)) {
            tracks::write(profile, target, pid, 2 * number + 1, &mut system)?;
        }
        write_heaps(profile, presentation, &pids, &mut Sequence::new(2, out))
    }
}

/// Packets of one writer, whose numbers stand for the same things.
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

    fn write(&mut self, time: Option<MonotonicNanos>, data: Data) -> Result<(), ReportError> {
        self.packet(TracePacket {
            timestamp: time.map(|time| time.0),
            timestamp_clock_id: time.map(|_| CLOCK_MONOTONIC),
            data: Some(data),
            ..TracePacket::default()
        })
    }

    fn intern(&mut self, data: InternedData) -> Result<(), ReportError> {
        self.packet(TracePacket { interned_data: Some(data), ..TracePacket::default() })
    }

    fn packet(&mut self, mut packet: TracePacket) -> Result<(), ReportError> {
        packet.trusted_packet_sequence_id = Some(self.id);
        // The first begins with nothing known, the others need what it said.
        packet.sequence_flags = Some(if self.is_begun { 2 } else { 1 });
        self.is_begun = true;
        self.bytes.clear();
        // A trace is a message of packets, so it can be written one by one.
        prost::encoding::message::encode(1, &packet, &mut self.bytes);
        Ok(self.out.write_all(&self.bytes)?)
    }
}

/// What the clocks said when recording began. Perfetto places dumps by `CLOCK_MONOTONIC_COARSE` (4) and shows times of
/// `CLOCK_BOOTTIME` (6), which is taken for the monotonic clock: suspended machines record nothing.
fn clocks(profile: &Profile) -> Data {
    let monotonic = [CLOCK_MONOTONIC, 4, 5, 6].map(|clock| (clock, profile.started_monotonic_ns));
    let clocks = std::iter::once((1, profile.started_unix_ns)).chain(monotonic);
    let clocks = clocks.map(|(clock, time)| Clock { clock_id: Some(clock), timestamp: Some(time) });
    Data::ClockSnapshot(ClockSnapshot { clocks: clocks.collect() })
}

fn process_tree(profile: &Profile, target: &TargetProfile, pid: u32, pids: &[u32]) -> Data {
    let parent = match target.beginning.origin {
        Origin::Forked(parent) => profile.targets.iter().position(|target| target.pid == parent),
        Origin::Running | Origin::Executed | Origin::Launched => None,
    };
    let parent = parent.and_then(|at| pids.get(at)).copied();
    let process = Process { pid: Some(signed(pid)), ppid: parent.map(signed), cmdline: vec![target.command.clone()] };
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

/// A target with its stacks.
struct Books<'a> {
    target: &'a TargetProfile,
    pid: u32,
    dumps: Vec<Dump>,
    stacks: Vec<Stack>,
}

/// Writes what numbers stand for, then all dumps in the order of time, then lines of code.
fn write_heaps(
    profile: &Profile,
    presentation: &Presentation,
    pids: &[u32],
    sequence: &mut Sequence<'_>,
) -> Result<(), ReportError> {
    let mut code = Code::new(profile);
    let mut callstacks = Callstacks::default();
    let mut books = Vec::new();
    for (target, &pid) in profile.targets.iter().zip(pids) {
        let dumps = dumps(profile, target);
        let stacks = stacks(profile, target, presentation, &dumps, &mut code, &mut callstacks);
        books.push(Books { target, pid, dumps, stacks });
    }
    write_names(&mut code, &callstacks, sequence)?;

    let mut order: Vec<(MonotonicNanos, usize, usize)> = Vec::new();
    for (number, books) in books.iter().enumerate() {
        let times = books.dumps.iter().map(|dump| dump.time).chain([end(profile)]);
        order.extend(times.enumerate().map(|(at, time)| (time, number, at)));
    }
    order.sort_unstable();
    let mut index = 0;
    for (_, number, at) in order {
        for packet in packets(profile, &books[number], at, &mut index) {
            sequence.write(Some(time_of(profile, &books[number], at)), Data::ProfilePacket(packet))?;
        }
    }
    for symbols in code.symbols() {
        sequence.write(Some(end(profile)), Data::ModuleSymbols(symbols))?;
    }
    Ok(())
}

/// When a dump of a target was, or the end.
fn time_of(profile: &Profile, books: &Books<'_>, at: usize) -> MonotonicNanos {
    books.dumps.get(at).map_or_else(|| end(profile), |dump| dump.time)
}

/// Writes the tables of texts, mappings, frames and stacks, each packet of a bearable size.
fn write_names(code: &mut Code<'_>, callstacks: &Callstacks, sequence: &mut Sequence<'_>) -> Result<(), ReportError> {
    let (frames, frame_ids) = code.frames();
    let mut data = Chunks { data: InternedData::default(), bytes: 0, sequence };
    let text = |(iid, text): (u64, &[u8])| InternedString { iid: Some(iid), str: Some(text.to_vec()) };
    for entry in code.functions.all() {
        data.add(text(entry), |data| &mut data.function_names)?;
    }
    for entry in code.paths.all() {
        data.add(text(entry), |data| &mut data.mapping_paths)?;
    }
    for entry in numbered(code.build_ids.iter().map(|(&bytes, &iid)| (iid, bytes))) {
        data.add(text(entry), |data| &mut data.build_ids)?;
    }
    for mapping in std::mem::take(&mut code.mappings) {
        data.add(mapping, |data| &mut data.mappings)?;
    }
    for frame in frames {
        data.add(frame, |data| &mut data.frames)?;
    }
    for (iid, places) in callstacks.all() {
        let frames = places.iter().flat_map(|place| Code::ids_of(&frame_ids, *place)).copied().collect();
        data.add(Callstack { iid: Some(iid), frame_ids: frames }, |data| &mut data.callstacks)?;
    }
    data.flush()
}

/// Entries of tables that gather until they fill a packet.
struct Chunks<'s, 'o> {
    data: InternedData,
    bytes: usize,
    sequence: &'s mut Sequence<'o>,
}

impl Chunks<'_, '_> {
    fn add<M: Message>(
        &mut self,
        entry: M,
        table: impl Fn(&mut InternedData) -> &mut Vec<M>,
    ) -> Result<(), ReportError> {
        let bytes = entry.encoded_len();
        if self.bytes > 0 && self.bytes + bytes > PACKET_BYTES {
            self.flush()?;
        }
        self.bytes += bytes + 8;
        table(&mut self.data).push(entry);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ReportError> {
        self.bytes = 0;
        self.sequence.intern(std::mem::take(&mut self.data))
    }
}

/// The packets of a target's heaps at a dump, or at the end. A dump has the stacks that did something since the one before, the
/// end has all.
fn packets(profile: &Profile, books: &Books<'_>, at: usize, index: &mut u64) -> Vec<ProfilePacket> {
    let is_end = at == books.dumps.len();
    let unknown = books.stacks.iter().map(|stack| stack.heap).filter(|&heap| heap >= books.target.heaps.len()).max();
    let heaps = (0..books.target.heaps.len()).chain(unknown);
    let mut packets = Vec::new();
    for heap in heaps {
        let told = books.stacks.iter().filter(|stack| {
            let since = at.checked_sub(1).filter(|_| !is_end).map_or_else(Tally::default, |last| stack.tallies[last]);
            stack.heap == heap && stack.tallies[at] != since
        });
        let samples: Vec<HeapSample> = told.map(|stack| sample(stack, at)).collect();
        let mut rest = samples.as_slice();
        loop {
            let (now, later) = rest.split_at(rest.len().min(PACKET_BYTES / SAMPLE_BYTES));
            let dump = ProcessHeapSamples { samples: now.to_vec(), ..header(profile, books, heap, at) };
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

fn sample(stack: &Stack, at: usize) -> HeapSample {
    let tally = stack.tallies[at];
    HeapSample {
        callstack_id: Some(stack.iid),
        self_allocated: Some(tally.alloc_bytes),
        self_freed: Some(tally.free_bytes),
        alloc_count: Some(tally.alloc_count),
        free_count: Some(tally.free_count),
    }
}

/// What is known of a heap besides its stacks.
fn header(profile: &Profile, books: &Books<'_>, heap: usize, at: usize) -> ProcessHeapSamples {
    let target = books.target;
    let known = target.heaps.get(heap);
    let asked = known.map_or(profile.interval_bytes, |heap| heap.interval_bytes);
    let is_end = at == books.dumps.len();
    let since =
        at.checked_sub(1).map_or_else(|| start(profile).max(target.beginning.time), |last| books.dumps[last].time);
    let time = time_of(profile, books, at);
    let overran = profile.health.lost.iter().any(|(reason, count)| reason == "ring_full" && *count > 0);
    ProcessHeapSamples {
        pid: Some(books.pid.into()),
        samples: Vec::new(),
        from_startup: Some(target.beginning.from_first_call),
        rejected_concurrent: Some(false),
        stats: Some(stats(target, heap)),
        disconnected: Some(is_end && (target.exited || target.replaced || target.detached.is_some())),
        buffer_overran: Some(is_end && overran),
        buffer_corrupted: Some(false),
        timestamp: Some(time.0),
        hit_guardrail: Some(is_end && (target.detached.is_some() || profile.health.guardrails.stopped())),
        heap_name: Some(heap_name(target, heap).to_owned()),
        sampling_interval_bytes: Some(known.map_or(asked, |heap| heap.interval_bytes_max.max(asked))),
        orig_sampling_interval_bytes: Some(asked),
        client_error: Some(0),
        start_timestamp: Some(since.min(time).0),
    }
}

/// Stacks of the heap that do not reach a thread's first frame, and all samples.
fn stats(target: &TargetProfile, heap: usize) -> ProcessStats {
    let callsites = || target.callsites.iter().filter(|callsite| callsite.heap.min(target.heaps.len()) == heap);
    let count = |samples: &mut dyn Iterator<Item = u64>| Some(samples.fold(0, u64::saturating_add));
    let cut = callsites().filter(|callsite| callsite.end != Some(StackEnd::Complete));
    ProcessStats {
        unwinding_errors: count(&mut cut.map(|callsite| callsite.totals.alloc_samples)),
        heap_samples: count(&mut callsites().map(|callsite| callsite.totals.alloc_samples)),
    }
}
