//! DHAT's format, read like its viewer.

use std::collections::BTreeSet;

use heapbpf_base::units::EstimatedCount;
use heapbpf_ledger::model::{FrameId, Profile};
use heapbpf_ledger::totals::Totals;
use proptest::prelude::*;
use serde_json::Value;

use super::{check_golden, properties, render};
use crate::testing as profiles;
use crate::{Format, Group, Presentation, View};

fn parse(profile: &Profile) -> Value {
    serde_json::from_str(&render(Format::Dhat, profile, View::LiveBytes)).expect("it is JSON")
}

/// A line per program point, for readable diffs.
fn readable(text: &str) -> String {
    text.replace("{\"tb\"", "\n{\"tb\"").replace(",\"ftbl\"", ",\n\"ftbl\"").replace("\",\"0x", "\",\n\"0x")
}

#[test]
fn goldens() {
    for (name, profile) in [
        ("exact", profiles::exact()),
        ("sampled", profiles::sampled()),
        ("nameless", profiles::nameless()),
        ("empty", profiles::empty()),
    ] {
        check_golden(&format!("dhat/{name}.txt"), &readable(&render(Format::Dhat, &profile, View::LiveBytes)));
    }
}

fn sum(report: &Value, field: &str) -> u64 {
    let points = report["pps"].as_array().expect("points are a list");
    points.iter().map(|point| point[field].as_u64().expect("a whole number")).sum()
}

/// The totals of all targets, as the viewer adds them up.
fn check_totals(profile: &Profile) {
    let report = parse(profile);
    let all = |of: fn(&Totals) -> u64| -> u64 {
        profile.targets.iter().flat_map(|target| &target.callsites).map(|callsite| of(&callsite.totals)).sum()
    };
    let counts = |of: fn(&Totals) -> EstimatedCount| -> u64 {
        profile.callsites().map(|(_, callsite)| of(&callsite.totals).rounded_with(callsite.rounding)).sum()
    };
    assert_eq!(sum(&report, "tb"), all(|totals| (totals.opening_bytes + totals.alloc_bytes).rounded()));
    assert_eq!(sum(&report, "tbk"), counts(|totals| totals.opening_count + totals.alloc_count));
    assert_eq!(sum(&report, "gb"), all(|totals| totals.at_peak.bytes.rounded()));
    assert_eq!(sum(&report, "eb"), all(|totals| totals.live_bytes().rounded()));
    assert_eq!(sum(&report, "ebk"), counts(|totals| totals.live_count()));
}

/// Checks the conditions on which the viewer rejects files.
fn check_readable(report: &Value) {
    for field in [
        "dhatFileVersion",
        "mode",
        "verb",
        "bklt",
        "bkacc",
        "tu",
        "Mtu",
        "tuth",
        "cmd",
        "pid",
        "te",
        "tg",
        "pps",
        "ftbl",
    ] {
        assert!(!report[field].is_null(), "no {field}");
    }
    let table = report["ftbl"].as_array().expect("frames are a list");
    assert_eq!(table[0], "[root]");
    let mut stacks = BTreeSet::new();
    for point in report["pps"].as_array().expect("points are a list") {
        let stack: Vec<u64> =
            point["fs"].as_array().expect("a list").iter().map(|frame| frame.as_u64().expect("a number")).collect();
        assert!(stack.iter().all(|&frame| frame > 0 && frame < table.len() as u64));
        assert!(stacks.insert(stack), "a stack is there twice");
    }
    assert!(report["tg"].as_u64() <= report["te"].as_u64());
}

#[test]
fn totals_equal_the_totals_of_the_profile() {
    for profile in [profiles::exact(), profiles::sampled(), profiles::mixed(), profiles::freed(), profiles::nobody()] {
        check_totals(&profile);
        check_readable(&parse(&profile));
    }
}

#[test]
fn lifetimes_include_live_blocks() {
    let report = parse(&profiles::exact());
    let frames = report["ftbl"].as_array().expect("frames are a list");
    let at = frames
        .iter()
        .position(|frame| frame.as_str().is_some_and(|frame| frame.contains("cache_insert (")))
        .expect("it is there");
    let point =
        report["pps"].as_array().expect("a list").iter().find(|point| point["fs"][0] == at).expect("it is there");
    // 400 of 3 ms, 600 of 2 s.
    assert_eq!(point["tl"], 400 * 3000 + 600 * 2_000_000_u64);
    assert_eq!((&point["mb"], &point["mbk"]), (&Value::from(64_000), &Value::from(1000)));
}

#[test]
fn several_processes_are_separate_and_groups_are_above_them() {
    let presentation = Presentation { by: vec![Group::Heap], ..Presentation::default() };
    let mut bytes = Vec::new();
    Format::Dhat.write(&profiles::sampled(), &presentation, &mut bytes).expect("a vector takes all bytes");
    let report: Value = serde_json::from_slice(&bytes).expect("it is JSON");
    let frame = |point: &Value, at: usize| {
        report["ftbl"][usize::try_from(point["fs"][at].as_u64().expect("a number")).expect("a place")].clone()
    };
    let second = report["pps"].as_array().expect("a list").last().expect("it has points");
    assert_eq!((frame(second, 0), frame(second, 1)), (Value::from("libc"), Value::from("#work;er <&> (901)")));
}

#[test]
fn callsites_with_equal_stacks_are_merged() {
    let mut profile = profiles::exact();
    let mut again = profile.targets[0].callsites[0].clone();
    again.heap = 7;
    profile.targets[0].callsites.push(again);
    let report = parse(&profile);
    check_readable(&report);
    assert_eq!(report["pps"][0]["tb"], 128_000);
    check_totals(&profile);
}

#[test]
fn invalid_indices_are_harmless() {
    let mut profile = profiles::exact();
    profile.targets[0].callsites[0].stack.push(FrameId(u32::MAX));
    profile.targets[0].callsites[1].thread = Some(99);
    check_readable(&parse(&profile));
}

proptest! {
    #[test]
    fn any_profile_can_be_read(profile in properties::profile()) {
        check_readable(&parse(&profile));
        check_totals(&profile);
    }
}
