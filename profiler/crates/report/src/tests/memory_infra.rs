//! memory-infra dumps: goldens, and the rules of catapult's importer.

use std::collections::{BTreeMap, BTreeSet};

use heapbpf_ledger::model::Profile;
use proptest::prelude::*;
use serde_json::Value;

use super::{check_golden, out_of_range, properties, render};
use crate::testing as profiles;
use crate::{Format, Group, Presentation, View};

fn trace(profile: &Profile) -> Value {
    serde_json::from_str(&render(Format::MemoryInfra, profile, View::LiveBytes)).expect("it is JSON")
}

#[test]
fn goldens() {
    for (name, profile) in [
        ("exact", profiles::exact()),
        ("sampled", profiles::sampled()),
        ("mixed", profiles::mixed()),
        ("empty", profiles::empty()),
        ("nobody", profiles::nobody()),
    ] {
        let trace = serde_json::to_string_pretty(&trace(&profile)).expect("it was JSON");
        check_golden(&format!("memory_infra/{name}.json"), &(trace + "\n"));
    }
}

#[test]
fn groups_are_types() {
    let presentation =
        Presentation { view: View::LiveBytes, by: vec![Group::Thread, Group::Heap], ..Presentation::default() };
    let mut bytes = Vec::new();
    Format::MemoryInfra.write(&profiles::exact(), &presentation, &mut bytes).expect("a vector takes all bytes");
    let trace: Value = serde_json::from_slice(&bytes).expect("it is JSON");
    let dumps = dumps(&trace);
    let maps = &dumps[0]["args"]["dumps"]["heaps_v2"]["maps"];
    let names: Vec<&Value> = list(&maps["types"])
        .iter()
        .map(|known| {
            &list(&maps["strings"]).iter().find(|text| text["id"] == known["name_sid"]).expect("it is there")["string"]
        })
        .collect();
    assert_eq!(names, ["cached (4711), libc", "thread (4712), libc"]);
}

#[test]
fn edge_cases_follow_the_format() {
    let mut twice = profiles::sampled();
    twice.targets.push(twice.targets[0].clone());
    for profile in profiles::all().into_iter().chain([out_of_range::profile(), twice]) {
        check(&profile);
    }
}

proptest! {
    #[test]
    fn any_profile_follows_the_format(profile in properties::profile()) {
        check(&profile);
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("it is a list")
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("it is a whole number")
}

fn dumps(trace: &Value) -> Vec<&Value> {
    list(&trace["traceEvents"]).iter().filter(|event| event["ph"] == "v").collect()
}

/// Names, nodes and types of all processes: ids are unique, and parents come first.
#[derive(Default)]
struct Known {
    strings: BTreeSet<u64>,
    nodes: BTreeMap<u64, u64>,
    types: BTreeMap<u64, u64>,
}

impl Known {
    fn add(&mut self, pid: u64, maps: &Value) {
        for text in list(&maps["strings"]) {
            assert!(text["string"].is_string());
            assert!(self.strings.insert(number(&text["id"])), "a name is there twice");
        }
        for node in list(&maps["nodes"]) {
            assert!(number(&node["id"]) > 0 && self.strings.contains(&number(&node["name_sid"])));
            let parent = node.get("parent").map(number);
            assert!(parent.is_none_or(|parent| self.nodes.get(&parent) == Some(&pid)), "{node}");
            assert!(self.nodes.insert(number(&node["id"]), pid).is_none(), "a node is there twice");
        }
        for known in list(&maps["types"]) {
            assert!(self.strings.contains(&number(&known["name_sid"])));
            assert!(self.types.insert(number(&known["id"]), pid).is_none(), "a type is there twice");
        }
    }
}

/// Checks the rules of a trace.
fn check(profile: &Profile) {
    let trace = trace(profile);
    let (mut known, mut guids, mut ids) = (Known::default(), BTreeSet::new(), BTreeSet::new());
    let mut at_end = [0; 2];
    for event in dumps(&trace) {
        let (pid, id) = (number(&event["pid"]), event["id"].as_str().expect("it is a text"));
        assert!(ids.insert((pid, id)), "a process has dump `{id}` twice");
        let dump = &event["args"]["dumps"];
        let heaps = &dump["heaps_v2"];
        assert_eq!(heaps["version"], 1);
        known.add(pid, &heaps["maps"]);
        let allocators = dump["allocators"].as_object().expect("allocators have names");
        assert!(allocators.keys().eq(heaps["allocators"].as_object().expect("heaps have names").keys()));
        for (name, total) in allocators {
            assert!(!name.contains('/') && guids.insert(total["guid"].as_str().expect("it is a text").to_owned()));
            let [counts, sizes, types, nodes] =
                ["counts", "sizes", "types", "nodes"].map(|column| list(&heaps["allocators"][name][column]));
            assert!([sizes, types, nodes].iter().all(|column| column.len() == counts.len()));
            assert!(nodes.iter().all(|node| known.nodes.get(&number(node)) == Some(&pid)));
            assert!(types.iter().all(|known_type| known.types.get(&number(known_type)) == Some(&pid)));
            for (i, (field, column)) in [("size", sizes), ("object_count", counts)].into_iter().enumerate() {
                let sum = column.iter().map(number).fold(0, u64::saturating_add);
                assert_eq!(total["attrs"][field]["value"], format!("{sum:x}"));
                at_end[i] += if id == "end" { sum } else { 0 };
            }
        }
    }
    let callsites = || profile.targets.iter().flat_map(|target| &target.callsites);
    let expected: [u64; 2] =
        [View::LiveBytes, View::LiveCount].map(|view| callsites().map(|callsite| view.of_callsite(callsite)).sum());
    assert_eq!(at_end, expected);
}
