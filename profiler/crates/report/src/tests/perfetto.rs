//! Perfetto traces: goldens, and the rules of Perfetto's importer.

mod trace;

use std::collections::{BTreeMap, BTreeSet};

use heapbpf_base::units::{EstimatedBytes, EstimatedCount, MonotonicNanos};
use heapbpf_ledger::model::{CallsiteProfile, Change, End, FrameId, HeapUsage, Profile, SampleTrigger, TimelinePoint};
use proptest::prelude::*;
use trace::Message;

use super::{check_golden, out_of_range, properties, written};
use crate::testing as profiles;
use crate::{Format, Group, Presentation, View};

fn trace(profile: &Profile) -> Message {
    Message::trace(&written(Format::Perfetto, profile, View::LiveBytes))
}

/// Two heaps that share a stack, and a process that ran two programs.
fn shared() -> Profile {
    let mut profile = profiles::mixed();
    let again = CallsiteProfile { heap: 1, ..profile.targets[0].callsites[0].clone() };
    profile.targets[0].callsites.push(again);
    profile.targets[1].facts.pid = profile.targets[0].facts.pid;
    profile.targets[0].facts.end = Some(End::Replaced);
    profile
}

#[test]
fn goldens() {
    for (name, profile) in [
        ("exact", profiles::exact()),
        ("sampled", profiles::sampled()),
        ("shared", shared()),
        ("nameless", profiles::nameless()),
        ("empty", profiles::empty()),
        ("nobody", profiles::nobody()),
    ] {
        check_golden(&format!("perfetto/{name}.txt"), &trace(&profile).to_string());
    }
}

#[test]
fn groups_are_frames_above_the_stack() {
    let presentation =
        Presentation { view: View::LiveBytes, by: vec![Group::Thread, Group::Heap], ..Presentation::default() };
    let mut bytes = Vec::new();
    Format::Perfetto.write(&profiles::exact(), &presentation, &mut bytes).expect("a vector takes all bytes");
    let stacks = Names::of(&Message::trace(&bytes)).stacks;
    let stacks: Vec<&str> = stacks.values().map(String::as_str).collect();
    assert!(
        stacks.contains(&"cached (4711) < libc < __libc_start_call_main < main < handle_request < cache_insert"),
        "{stacks:#?}"
    );
    assert_eq!(stacks.iter().filter(|stack| stack.starts_with("thread (4712) < libc < ")).count(), 2, "{stacks:#?}");
}

#[test]
fn only_old_blocks_are_live() {
    let mut profile = profiles::exact();
    profile.older_than_ns = Some(1);
    for callsite in &mut profile.targets[0].callsites {
        callsite.older = Some(Default::default());
    }
    let (bytes, count) = (EstimatedBytes::exact(100), EstimatedCount::exact(2));
    profile.targets[0].callsites[0].older.as_mut().expect("it was set").bytes = bytes;
    profile.targets[0].callsites[0].older.as_mut().expect("it was set").count = count;
    assert_eq!(check(&profile)[&4711], [100, 2]);
}

/// A profile with as many contradictions as possible.
fn absurd() -> Profile {
    let mut profile = profiles::exact();
    profile.modules.truncate(1);
    let target = &mut profile.targets[0];
    target.callsites[0].stack.insert(1, FrameId(u32::MAX));
    target.callsites[1].stack = vec![FrameId(1 << 20)];
    target.callsites[2].heap = usize::MAX;
    target.callsites[3].heap = target.heaps.len();
    target.callsites[3].thread = Some(77);
    for held in [f64::NAN, f64::INFINITY, -1.0, 1e300] {
        let held = HeapUsage { live_bytes: held, live_count: held, alloc_bytes: 5.0, alloc_count: held };
        target.callsites[4].history.push(Change { instant: 1, held });
    }
    target.callsites[0].history.reverse();
    let instant = TimelinePoint { time: MonotonicNanos(u64::MAX), trigger: Some(SampleTrigger::Dump(9)) };
    target.history.instants.push(instant);
    for (mapping, bias) in target.mappings.iter_mut().zip([None, Some(u64::MAX)]) {
        mapping.bias = bias;
    }
    target.mappings[0].offset = u64::MAX;
    profile.frames[0].inlined = true;
    profile.frames[1].address = 0;
    profile.frames[2].address = u64::MAX;
    profile
}

#[test]
fn edge_cases_follow_the_format() {
    for profile in profiles::all().into_iter().chain([shared(), absurd(), out_of_range::profile()]) {
        check(&profile);
    }
}

#[test]
fn large_profiles_are_split_into_packets() {
    let mut profile = profiles::exact();
    let callsite = profile.targets[0].callsites[0].clone();
    let callsites = (0..13_000_u32).map(|i| {
        let bits = (0..15).map(|bit| FrameId(if i >> bit & 1 == 1 { 0 } else { 1 }));
        CallsiteProfile { stack: bits.collect(), ..callsite.clone() }
    });
    profile.targets[0].callsites = callsites.collect();
    check(&profile);
    let bytes = written(Format::Perfetto, &profile, View::LiveBytes);
    let trace = Message::trace(&bytes);
    let packets = |kind: &'static str| trace.all("packet").filter(|packet| packet.all(kind).next().is_some()).count();
    // The dump and the end, in packets of 6,250 samples; stacks are split too.
    assert_eq!(packets("profile_packet"), 2 * 3);
    assert!(packets("interned_data") > 1);
}

proptest! {
    #[test]
    fn any_profile_follows_the_format(profile in properties::profile()) {
        check(&profile);
    }
}

/// The interned tables of a trace.
#[derive(Default)]
struct Names {
    /// By id, the outermost frame first.
    stacks: BTreeMap<u64, String>,
}

impl Names {
    /// Resolves all ids of a trace, each of which must be defined once.
    fn of(trace: &Message) -> Self {
        let tables = || trace.all("packet").flat_map(|packet| packet.all("interned_data"));
        let texts = |table: &'static str| {
            let mut texts: BTreeMap<u64, &Message> = BTreeMap::new();
            for entry in tables().flat_map(|data| data.all(table)) {
                assert!(texts.insert(entry.number("iid"), entry).is_none(), "{table} has a number twice");
            }
            assert!(!texts.contains_key(&0), "0 means none");
            texts
        };
        let (functions, paths, build_ids) = (texts("function_names"), texts("mapping_paths"), texts("build_ids"));
        let (mappings, frames, callstacks) = (texts("mappings"), texts("frames"), texts("callstacks"));
        for mapping in mappings.values() {
            assert!(mapping.numbers("path_string_ids").all(|id| paths.contains_key(&id)));
            assert!(mapping.numbers("build_id").all(|id| build_ids.contains_key(&id)));
        }
        for frame in frames.values() {
            assert!(mappings.contains_key(&frame.number("mapping_id")));
        }
        let stacks = callstacks.iter().map(|(&iid, callstack)| {
            let frames = callstack.numbers("frame_ids").map(|id| frames[&id].number("function_name_id"));
            let names: Vec<String> = frames.map(|id| functions[&id].text("str")).collect();
            assert!(!names.is_empty(), "the importer drops stacks without frames");
            (iid, names.join(" < "))
        });
        Self { stacks: stacks.collect() }
    }
}

/// Checks the rules of a trace. Returns the live bytes and blocks by pid.
fn check(profile: &Profile) -> BTreeMap<u64, [u64; 2]> {
    let trace = trace(profile);
    let names = Names::of(&trace);
    let mut begun = BTreeSet::new();
    for packet in trace.all("packet") {
        let flags = if begun.insert(packet.number("trusted_packet_sequence_id")) { 1 } else { 2 };
        assert_eq!(packet.number("sequence_flags"), flags);
    }
    let first = trace.all("packet").next().expect("there is a packet");
    let clocks = first.all("clock_snapshot").flat_map(|snapshot| snapshot.all("clocks"));
    assert_eq!(clocks.map(|clock| clock.number("clock_id")).collect::<Vec<_>>(), [1, 3, 4, 5, 6]);

    let times = trace.all("packet").filter(|packet| packet.all("profile_packet").next().is_some());
    assert!(times.map(|packet| packet.number("timestamp")).is_sorted(), "packets are read in the order of time");
    let packets: Vec<&Message> = trace.all("packet").flat_map(|packet| packet.all("profile_packet")).collect();
    assert!(packets.iter().map(|packet| packet.number("index")).eq(0..packets.len() as u64));
    assert!(packets.last().is_none_or(|packet| packet.numbers("continued").next().is_none()));

    // Like the importer: by process and stack, regardless of the heap.
    let mut heaps: BTreeMap<(u64, u64), String> = BTreeMap::new();
    let mut sums: BTreeMap<(u64, u64), [u64; 4]> = BTreeMap::new();
    for dump in packets.iter().flat_map(|packet| packet.all("process_dumps")) {
        assert!(dump.number("start_timestamp") <= dump.number("timestamp"));
        for sample in dump.all("samples") {
            let key = (dump.number("pid"), sample.number("callstack_id"));
            assert!(names.stacks.contains_key(&key.1));
            let heap = heaps.entry(key).or_insert_with(|| dump.text("heap_name"));
            assert_eq!(*heap, dump.text("heap_name"), "two heaps share a stack");
            let now = ["self_allocated", "self_freed", "alloc_count", "free_count"].map(|field| sample.number(field));
            let last = sums.insert(key, now).unwrap_or_default();
            assert!(last.iter().zip(now).all(|(last, now)| *last <= now), "{last:?} falls to {now:?}");
        }
    }
    let mut live: BTreeMap<u64, [u64; 2]> = BTreeMap::new();
    for ((pid, _), [allocated, freed, alloc_count, free_count]) in sums {
        let [bytes, count] = live.entry(pid).or_default();
        *bytes += allocated - freed;
        *count += alloc_count - free_count;
    }
    let expected: u64 = callsites(profile).map(|callsite| View::LiveBytes.of_callsite(callsite)).sum();
    assert_eq!(live.values().map(|[bytes, _]| bytes).sum::<u64>(), expected);
    let expected: u64 = callsites(profile).map(|callsite| View::LiveCount.of_callsite(callsite)).sum();
    assert_eq!(live.values().map(|[_, count]| count).sum::<u64>(), expected);
    live
}

fn callsites(profile: &Profile) -> impl Iterator<Item = &CallsiteProfile> {
    profile.targets.iter().flat_map(|target| &target.callsites)
}
