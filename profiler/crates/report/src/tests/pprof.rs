//! pprof's format, read by an independent decoder.

mod decoded;
mod wire;

use std::collections::BTreeMap;
use std::sync::Arc;

use decoded::Decoded;
use heapbpf_base::units::{EstimatedBytes, EstimatedCount};
use heapbpf_ledger::model::{FrameId, MappingProfile, Profile};
use profiler_common::stack::StackEnd;
use proptest::prelude::*;

use super::{check_golden, properties, written};
use crate::testing::{self as profiles, Frames, callsite, taken};
use crate::{Format, Group, Presentation, View, pprof, tables};

/// Quantities of a sample, in their order.
const VIEWS: [View; 4] = [View::AllocCount, View::AllocBytes, View::LiveCount, View::LiveBytes];

fn decoded(profile: &Profile) -> Decoded {
    Decoded::new(&written(Format::Pprof, profile, View::LiveBytes))
}

/// Sums over all samples.
fn sums(decoded: &Decoded) -> [u64; 4] {
    let mut sums = [0; 4];
    for sample in &decoded.samples {
        sums.iter_mut().zip(&sample.values).for_each(|(sum, value)| *sum += value);
    }
    sums
}

#[test]
fn goldens() {
    for (name, profile) in profiles::named() {
        check_golden(&format!("pprof/{name}.txt"), &decoded(&profile).text());
    }
}

#[test]
fn changes_are_differences_of_live_blocks() {
    let mut profile = profiles::exact();
    for callsite in profile.targets.iter_mut().flat_map(|target| &mut target.callsites) {
        // 3 blocks of 30 bytes from before were freed, too.
        let totals = &mut callsite.totals;
        totals.free_count = totals.alloc_count + EstimatedCount::exact(3);
        totals.free_bytes = totals.alloc_bytes + EstimatedBytes::exact(30);
    }
    let mut bytes = Vec::new();
    pprof::write_change(&profile, &Presentation::default(), &mut bytes).expect("memory");
    let samples = Decoded::new(&bytes).samples;
    let whole = decoded(&profile).samples;
    assert!(samples.len() >= whole.len() && !samples.is_empty());
    for sample in &samples {
        let [alloc_count, alloc_bytes, live_count, live_bytes] = sample.values[..] else { panic!("{sample:?}") };
        let live = [live_count, live_bytes].map(u64::cast_signed);
        assert!(live[0] % 3 == 0 && live[0] < 0 && live[1] == 10 * live[0], "{live:?}");
        assert!(alloc_count <= alloc_bytes);
    }
}

#[test]
fn leak_checks_have_the_time_of_the_inspection() {
    let text = decoded(&Profile { unreachable: true, ..profiles::exact() }).text();
    assert!(text.contains("# checked on 2026-11-21T10:00:30Z\n"), "{text}");
    assert!(!text.contains("recorded for") && !text.contains("interval: "), "{text}");
}

#[test]
fn sums_are_the_totals() {
    for profile in [profiles::exact(), profiles::mixed(), profiles::freed(), profiles::nameless()] {
        let expected = VIEWS.map(|view| profile.targets.iter().map(|target| view.rounded(&target.totals)).sum::<u64>());
        let actual = sums(&decoded(&profile));
        let allowed =
            if profile.is_exact() { 0 } else { profile.targets.iter().map(|target| target.callsites.len()).sum() };
        for (actual, expected) in actual.into_iter().zip(expected) {
            assert!(actual.abs_diff(expected) <= allowed as u64, "{actual} is not {expected}");
        }
    }
}

#[test]
fn processes_with_totals_only_are_one_sample() {
    let mut profile = profiles::exact();
    let before = sums(&decoded(&profile));
    profile.others.folded_totals = taken(1, 100, 11_092, 40);
    let file = decoded(&profile);
    let added: Vec<u64> = sums(&file).iter().zip(before).map(|(sum, before)| sum - before).collect();
    assert_eq!(added, [100, 1_109_200, 60, 665_520]);
    let sample = file.samples.last().expect("there are samples");
    assert_eq!(file.names(sample), ["[processes that exited, only totals kept]"]);
    assert!(!sample.labels.contains_key("pid"));
}

#[test]
fn the_view_selects_the_default_sample_type() {
    for (view, expected) in VIEWS.into_iter().zip(["alloc_objects", "alloc_space", "inuse_objects", "inuse_space"]) {
        let file = Decoded::new(&written(Format::Pprof, &profiles::exact(), view));
        assert_eq!(file.default_sample_type, expected);
        let types = ["alloc_objects/count", "alloc_space/bytes", "inuse_objects/count", "inuse_space/bytes"];
        assert_eq!(file.sample_types, types);
    }
}

#[test]
fn groups_are_labels_and_a_comment_names_the_option() {
    let mut bytes = Vec::new();
    let presentation = Presentation { by: vec![Group::Thread, Group::Heap], ..Presentation::default() };
    Format::Pprof.write(&profiles::exact(), &presentation, &mut bytes).expect("a vector takes all bytes");
    let file = Decoded::new(&bytes);
    assert!(file.comments.iter().any(|comment| comment == "grouped with -tagroot=thread,heap"), "{:?}", file.comments);
    assert_eq!(file.samples.len(), decoded(&profiles::exact()).samples.len());
}

#[test]
fn only_old_blocks_are_in_use_if_requested() {
    let mut profile = profiles::exact();
    profile.older_than_ns = Some(1_000_000_000);
    profile.others.folded_totals = taken(1, 1, 100, 0);
    for callsite in &mut profile.targets[0].callsites {
        callsite.older = Some(taken(1, 2, 5, 0).live());
    }
    let [_, alloc_bytes, live_count, live_bytes] = sums(&decoded(&profile));
    let callsites = profile.targets[0].callsites.len() as u64;
    assert_eq!((live_count, live_bytes), (2 * callsites, 10 * callsites));
    assert_eq!(alloc_bytes, View::AllocBytes.rounded(&profile.targets[0].totals) + 100);
}

#[test]
fn the_program_is_the_first_mapping_and_addresses_are_those_of_calls() {
    let profile = profiles::exact();
    let file = decoded(&profile);
    assert_eq!(file.mappings[0].file, "/usr/bin/cached");
    assert_eq!(file.mappings[0].build_id, "a0".repeat(20));
    let strdup = profile.frames.iter().find(|frame| frame.function.as_deref() == Some("strdup")).expect("it is there");
    let location = file.locations.iter().find(|location| location.lines[0].0 == "strdup").expect("it is there");
    assert_eq!(location.address, strdup.address - 1);
    let mapping = &file.mappings[location.mapping.expect("it is in a file")];
    assert!((mapping.start..mapping.limit).contains(&location.address));
    assert_eq!(mapping.offset, 0x1000);
}

#[test]
fn frames_without_a_mapping_have_a_file() {
    let mut profile = profiles::exact();
    profile.targets[0].mappings.clear();
    let file = decoded(&profile);
    let mapping = &file.mappings[0];
    assert_eq!((mapping.start, mapping.limit, mapping.file.as_str()), (0, 0, "/usr/bin/cached"));
    assert_eq!(mapping.build_id, "a0".repeat(20));
    profile.modules.clear();
    assert_eq!(decoded(&profile).mappings[0].build_id, "");
}

#[test]
fn hostile_names_survive() {
    let long = "x<y>::".repeat(2000);
    for name in [";", "two\nlines", "</script><script>", "a b \"c\" 'd'", "größe<ß>(ä)\0\u{1b}[31m", "  ", &long] {
        let mut frames = Frames::default();
        let frame = frames.add(name, "/bin/a b\n;");
        let totals = taken(1, 2, 3, 1);
        let target = profiles::target(
            1,
            name,
            name,
            vec![profiles::heap(name, &[])],
            vec![callsite(&[frame], Some(StackEnd::Complete), 0, totals)],
        );
        let mut profile = profiles::profile(1, vec![target], frames, Default::default());
        profile.targets[0].facts.cgroup = Some(name.into());
        let file = decoded(&profile);
        let sample = &file.samples[0];
        assert_eq!(file.names(sample), [name]);
        for key in ["command", "heap", "cgroup"] {
            assert_eq!(sample.labels[key], name);
        }
        assert_eq!(file.mappings[0].file, "/bin/a b\n;");
    }
}

/// Makes indices invalid.
fn broken(profile: &mut Profile, by: u32) {
    let frame_count = u32::try_from(profile.frames.len()).expect("a handful");
    for frame in &mut profile.frames {
        frame.inlined = frame.address % 3 == u64::from(by % 3);
    }
    for target in &mut profile.targets {
        let beyond = MappingProfile { start: 9, end: 1, offset: u64::MAX, bias: None, module: usize::MAX };
        target.mappings.insert(0, beyond);
        target.mappings.push(MappingProfile { start: 0, end: u64::MAX, ..beyond });
        for callsite in &mut target.callsites {
            callsite.heap += by as usize % 2;
            callsite.thread = Some(by as usize);
            callsite.stack.push(FrameId(frame_count + by % 2));
        }
    }
    if by.is_multiple_of(2) {
        profile.frames.iter_mut().for_each(|frame| (frame.address, frame.module) = (0, Some(Arc::from(""))));
    }
}

proptest! {
    #[test]
    fn everything_resolves_and_adds_up(mut profile in properties::profile(), by in proptest::option::of(0..6_u32)) {
        if let Some(by) = by {
            broken(&mut profile, by);
        }
        let file = decoded(&profile);
        let mut expected: BTreeMap<(String, Vec<String>), [u64; 4]> = BTreeMap::new();
        for target in &profile.targets {
            for callsite in &target.callsites {
                let values = VIEWS.map(|view| view.of_callsite(callsite));
                if values == [0; 4] {
                    continue;
                }
                let name = |id: &FrameId| match profile.frames.get(id.0 as usize) {
                    Some(frame) if frame.function.as_deref() == Some("") => {
                        heapbpf_ledger::model::Frame { function: None, ..frame.clone() }.label()
                    }
                    Some(frame) => frame.label(),
                    None => "[frame unknown]".to_owned(),
                };
                let gaps: Vec<String> = tables::gap_frames(callsite).collect();
                let stack = callsite.stack.iter().map(name).chain(gaps.into_iter().rev()).collect();
                let sum = expected.entry((tables::process_frame(target), stack)).or_default();
                sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
        }
        let mut actual: BTreeMap<(String, Vec<String>), [u64; 4]> = BTreeMap::new();
        for sample in &file.samples {
            let names = file.names(sample).into_iter().map(str::to_owned).collect();
            let sum = actual.entry((sample.labels["process"].clone(), names)).or_default();
            sum.iter_mut().zip(&sample.values).for_each(|(sum, value)| *sum += value);
        }
        prop_assert_eq!(actual, expected);
    }
}
