//! memory-infra dumps, read by catapult's importer in Chromium.

use std::collections::BTreeMap;

use serde_json::Value;

use super::fixture::{Fixture, number};
use super::stacks;

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("it is a list")
}

fn imported(fixture: &Fixture, arguments: &str) -> Value {
    let read = fixture.read_by("memory_infra.py", "memory-infra.json", arguments);
    assert_eq!((&read["warnings"], &read["complaints"]), (&Value::Array(vec![]), &Value::Array(vec![])));
    read
}

/// The recorded process.
fn process<'a>(read: &'a Value, fixture: &Fixture) -> &'a Value {
    list(&read["processes"]).iter().find(|process| process["pid"] == fixture.pid).expect("it was recorded")
}

/// Live bytes and blocks by pid, heap and stack, of the last dumps.
type Live = BTreeMap<(u64, String, Vec<String>), [f64; 2]>;

fn shown(read: &Value) -> Live {
    let mut live = Live::new();
    for process in list(&read["processes"]) {
        let dump = list(&process["dumps"]).last().expect("there is one at the end");
        for (heap, entries) in dump["heaps"].as_object().expect("heaps have names") {
            for entry in list(entries) {
                let stack =
                    list(&entry["stack"]).iter().map(|name| name.as_str().expect("frames have names").to_owned());
                let key = (process["pid"].as_u64().expect("a pid"), heap.clone(), stack.collect());
                let sum = live.entry(key).or_default();
                sum[0] += number(entry, "size");
                sum[1] += number(entry, "count");
            }
        }
    }
    live
}

fn reported(fixture: &Fixture) -> Live {
    let mut live = Live::new();
    for target in list(&fixture.json["targets"]) {
        for callsite in list(&target["callsites"]) {
            let heap = callsite["heap"].as_str().expect("callsites have heaps").to_owned();
            let key = (target["pid"].as_u64().expect("a pid"), heap, stacks::names(callsite));
            let sum = live.entry(key).or_default();
            sum[0] += number(callsite, "live_bytes");
            sum[1] += number(callsite, "live_count");
        }
    }
    live.retain(|_, sum| sum.iter().any(|value| value.round() > 0.0));
    live
}

#[track_caller]
fn check(fixture: &Fixture, off_max: f64) {
    let read = imported(fixture, "");
    let (expected, actual) = (reported(fixture), shown(&read));
    let mut missing = expected.keys().filter(|key| !actual.contains_key(*key));
    assert!(actual.len() == expected.len(), "{} stacks, not {}: {:?}", actual.len(), expected.len(), missing.next());
    for (key, expected) in &expected {
        let off = actual[key].iter().zip(expected).map(|(actual, expected)| (actual - expected).abs());
        assert!(off.fold(0.0, f64::max) <= off_max, "{key:?}: {:?}, not {expected:?}", actual[key]);
    }
    // An allocator's total is the sum of its stacks.
    let last = |process: &Value| list(&process["dumps"]).last().expect("there is one at the end")["allocators"].clone();
    let totals: Vec<Value> = list(&read["processes"]).iter().map(last).collect();
    let total: f64 = totals
        .iter()
        .flat_map(|heaps| heaps.as_object().expect("heaps have names").values())
        .map(|heap| number(heap, "size"))
        .sum();
    let sum: f64 = actual.values().map(|[bytes, _]| bytes).sum();
    assert!((total - sum).abs() < 0.5, "{total} is not {sum}");
}

#[test]
fn every_stack_is_there_with_its_numbers() {
    check(Fixture::exact(), 0.0);
}

#[test]
fn estimates_are_rounded() {
    // A stack may have several callsites, each of which is rounded.
    check(Fixture::sampled(), 3.0);
}

#[test]
fn dumps_of_the_recording_are_dumps_of_memory() {
    let fixture = Fixture::exact();
    let read = imported(fixture, "");
    let process = process(&read, fixture);
    let dumps = list(&process["dumps"]);
    assert_eq!((dumps.len(), &read["dumps"]), (2, &2.into()), "at the signal and at the end");
    let first = fixture.window(1);
    let target = list(&first["targets"]).iter().find(|target| target["pid"] == fixture.pid).expect("it was recorded");
    for heap in list(&target["heaps"]) {
        let shown = &dumps[0]["allocators"][heap["name"].as_str().expect("heaps have names")];
        assert_eq!(number(shown, "size"), number(heap, "live_bytes"), "{}", heap["name"]);
        assert_eq!(number(shown, "object_count"), number(heap, "live_count"), "{}", heap["name"]);
    }
    assert!(process["labels"].to_string().contains("every allocation"), "{}", process["labels"]);
}

#[test]
fn groups_are_types() {
    let fixture = Fixture::exact();
    let read = imported(fixture, "--by heap");
    let dump = list(&process(&read, fixture)["dumps"]).last().expect("there is one at the end").clone();
    for (heap, entries) in dump["heaps"].as_object().expect("heaps have names") {
        assert!(list(entries).iter().all(|entry| entry["type"] == heap.as_str()), "{heap}");
    }
}

#[test]
fn the_last_dump_has_the_mappings() {
    let fixture = Fixture::exact();
    let read = imported(fixture, "");
    let dumps = list(&process(&read, fixture)["dumps"]);
    let (last, earlier) = dumps.split_last().expect("there is one at the end");
    assert!(earlier.iter().all(|dump| dump["mappings"].is_null()), "mappings are known at the end");
    let target = list(&fixture.json["targets"]).iter().find(|target| target["pid"] == fixture.pid);
    let mappings = list(&target.expect("it was recorded")["memory"]["mappings"]);
    assert!(mappings.len() > 10, "{}", mappings.len());
    let sum = |field: &str| mappings.iter().map(|mapping| number(mapping, field)).sum::<f64>();
    let shown = |name: &str| number(&last["mappings"], name);
    let close = |a: f64, b: f64| (a - b).abs() < 0.5;
    assert!(close(shown("size"), sum("size_bytes")), "{}", last["mappings"]);
    assert!(close(shown("proportionalResident"), sum("pss_bytes")), "{}", last["mappings"]);
    assert!(close(shown("privateDirtyResident"), sum("private_dirty_bytes")), "{}", last["mappings"]);
    assert!(close(shown("swapped"), sum("swap_bytes")), "{}", last["mappings"]);
}
