//! Tests with synthetic recordings: entries survive a round trip, and damage is noticed and survived.

mod corrections;
mod entries;
mod flows;
mod folding;
mod layout;
mod windows;

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use heapbpf_base::address::{FileOffset, TargetAddr};
use heapbpf_base::ids::{HeapId, HookId, LedgerId, ModuleId, Pid, StackId, Tid};
use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::ingest::event::{Allocation, Event, Free, Remap, Stack};
use heapbpf_ledger::model::Beginning;
use profiler_common::interval::Interval;
use profiler_common::stack::StackEnd;
use proptest::prelude::*;

use super::block::{BlockWriter, Kind, file_header};
use super::entry::{Fact, NamedLocation, SessionFacts, Step, TargetRecord};
use super::pack::{Packer, Unpacker};
use super::read::Reading;
use super::replay::{Entry, Replay};
use super::write::Writer;
use crate::object::module::Modules;
use crate::snapshot::{Snapshot, TargetFacts};
use crate::symbolize::ResolvedFrame;

fn allocation(address: u64, size_bytes: u64, time: u64) -> Allocation {
    Allocation {
        pid: Pid(7),
        tid: Tid(8),
        address: TargetAddr(address),
        size_bytes,
        time: MonotonicNanos(time),
        stack: StackId(address % 5),
        interval: Interval::nearest(4096),
        hook: HookId(1),
        heap: HeapId(2),
        has_replaced: false,
    }
}

fn free(address: u64, time: u64) -> Event {
    Event::Free(Free { pid: Pid(7), tid: Tid(9), address: TargetAddr(address), time: MonotonicNanos(time), age_us: 12 })
}

/// Returns events that a recording keeps, with any numbers.
fn any_event() -> impl Strategy<Value = Event> {
    let call = (any::<u32>(), any::<u32>(), any::<u64>(), any::<u16>(), any::<u8>());
    let allocation = (call, any::<[u64; 3]>(), 1u32..=1 << 30).prop_map(
        |((pid, tid, stack, hook, heap), [address, size_bytes, time], interval)| Allocation {
            pid: Pid(pid),
            tid: Tid(tid),
            address: TargetAddr(address),
            size_bytes,
            time: MonotonicNanos(time),
            stack: StackId(stack),
            interval: Interval::nearest(interval),
            hook: HookId(hook),
            heap: HeapId(heap),
            has_replaced: false,
        },
    );
    let free = any::<([u32; 3], [u64; 2])>().prop_map(|([pid, tid, age_us], [address, time])| Free {
        pid: Pid(pid),
        tid: Tid(tid),
        address: TargetAddr(address),
        time: MonotonicNanos(time),
        age_us,
    });
    let remap = (call, any::<[u64; 6]>()).prop_map(|((pid, tid, stack, hook, heap), words)| Remap {
        pid: Pid(pid),
        tid: Tid(tid),
        old_address: TargetAddr(words[0]),
        old_bytes: words[1],
        new_address: TargetAddr(words[2]),
        new_bytes: words[3],
        began: MonotonicNanos(words[4]),
        ended: MonotonicNanos(words[5]),
        stack: StackId(stack),
        hook: HookId(hook),
        heap: HeapId(heap),
    });
    let stack = (any::<(u32, u64)>(), 0u8..8, prop::collection::vec(any::<u64>(), 0..40)).prop_map(
        |((pid, id), end, frames)| {
            let end = StackEnd::from_wire(end).expect("there are eight");
            let frames: Arc<[TargetAddr]> = frames.into_iter().map(TargetAddr).collect();
            Event::Stack(Pid(pid), StackId(id), Stack { frames, end })
        },
    );
    prop_oneof![
        4 => allocation.clone().prop_map(Event::Alloc),
        1 => allocation.prop_map(Event::Restore),
        4 => free.prop_map(Event::Free),
        1 => remap.prop_map(Event::Remap),
        1 => stack,
    ]
}

/// Returns a recording of these events of one target, with a block for each piece.
fn recording(pieces: &[Vec<Event>]) -> Vec<u8> {
    let mut blocks = BlockWriter::new().expect("there is memory");
    let mut packer = Packer::default();
    let mut bytes = file_header().to_vec();
    let mut write = |entries: &mut dyn Iterator<Item = Entry>| {
        entries.for_each(|entry| packer.add(&entry));
        bytes.extend(blocks.block(Kind::ENTRIES, false, &packer.finish()).expect("it is small"));
    };
    write(&mut beginning().into_iter());
    for piece in pieces {
        write(&mut piece.iter().cloned().map(Entry::Event));
    }
    let end = postcard::to_allocvec(&99u64).expect("it is a number");
    bytes.extend(blocks.block(Kind::END, false, &end).expect("it is small"));
    bytes
}

fn fact(fact: Fact) -> Entry {
    Entry::Fact(Box::new(fact))
}

/// Returns the entries of a session with one target, process 7.
fn beginning() -> Vec<Entry> {
    let facts = TargetFacts::running(Pid(7), "seven", "seven", Beginning::running(MonotonicNanos(1)));
    let session = SessionFacts { started_unix_ns: 1000, started_monotonic_ns: 1, ..SessionFacts::default() };
    vec![
        fact(Fact::Session(session)),
        Entry::Step(Step::Opened { ledger: LedgerId(1), pid: Pid(7) }),
        Entry::Step(Step::Joined { pid: Pid(7), ledger: LedgerId(1) }),
        fact(Fact::Target(LedgerId(1), TargetRecord { facts, begun: true, heaps: Vec::new() })),
    ]
}

/// A file of a few kilobytes must not take gigabytes to read.
#[test]
fn contents_of_hundreds_of_times_their_size_are_damage() {
    let frame = ResolvedFrame { function: Some("f".repeat(15 << 20).into()), ..ResolvedFrame::default() };
    let name = NamedLocation { module: ModuleId(0), offset: FileOffset(0), frames: [frame].into() };
    let names = postcard::to_allocvec(&vec![name]).expect("there is memory");
    let block =
        BlockWriter::new().and_then(|mut blocks| blocks.block(Kind::NAMES, false, &names)).expect("it is small");
    let read = |count| {
        let bytes = [&file_header()[..], &block.repeat(count)].concat();
        let mut reading = Reading::new(&*bytes).expect("its first bytes are whole");
        let entries = (&mut reading).count();
        (entries, reading.damage().expect("it has no end").to_string())
    };
    let (entries, damage) = read(4);
    assert!(entries == 4 && damage.contains("before the recording did"), "{entries} {damage}");
    let (entries, damage) = read(6);
    assert!(entries == 4 && damage.contains("200 times its size"), "{entries} {damage}");
}

/// Returns the entries that can be read, as text, and whether they are all.
fn read(bytes: &[u8]) -> (Vec<String>, bool) {
    let mut reading = Reading::new(bytes).expect("its first bytes are whole");
    let entries = (&mut reading).map(|entry| format!("{entry:?}")).collect();
    (entries, reading.damage().is_none())
}

fn replayed(bytes: &[u8]) -> Snapshot {
    let mut replay = Replay::default();
    Reading::new(bytes).expect("its first bytes are whole").for_each(|entry| replay.enter(entry));
    replay.snapshot(None, Modules::default(), MonotonicNanos(1))
}
