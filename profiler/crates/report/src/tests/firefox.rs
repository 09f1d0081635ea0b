//! Files of the Firefox Profiler, with allocations and frees matched like there.

use std::collections::{BTreeMap, BTreeSet};

use heapbpf_base::units::EstimatedBytes;
use heapbpf_ledger::model::{Profile, TargetProfile};
use proptest::prelude::*;
use serde_json::Value;

use super::{check_golden, properties, render};
use crate::testing as profiles;
use crate::{Format, Group, Presentation, View};

fn parse(profile: &Profile, view: View) -> Value {
    serde_json::from_str(&render(Format::Firefox, profile, view)).expect("the file is JSON")
}

#[test]
fn goldens() {
    for (name, profile) in
        [("exact", profiles::exact()), ("sampled", profiles::sampled()), ("empty", profiles::empty())]
    {
        let file = serde_json::to_string_pretty(&parse(&profile, View::LiveBytes)).expect("it was JSON");
        check_golden(&format!("firefox/{name}.json"), &format!("{file}\n"));
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn index(value: &Value) -> usize {
    usize::try_from(value.as_u64().expect("an index")).expect("small")
}

/// A thread's allocations, as the profiler matches them.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sums {
    retained: i64,
    allocated: i64,
    freed: i64,
}

impl Sums {
    fn of(thread: &Value) -> Self {
        let table = &thread["nativeAllocations"];
        let mut sums = Self::default();
        let mut live = BTreeMap::new();
        for (weight, address) in list(&table["weight"]).iter().zip(list(&table["memoryAddress"])) {
            let (weight, address) = (weight.as_i64().expect("bytes"), address.as_u64().expect("an address"));
            if weight >= 0 {
                assert_eq!(live.insert(address, weight), None, "a block was live at the address");
                sums.allocated += weight;
            } else {
                sums.freed -= weight;
                if let Some(bytes) = live.remove(&address) {
                    assert_eq!(bytes, -weight, "a block is freed as a whole");
                }
            }
        }
        sums.retained = live.values().sum();
        sums
    }
}

/// Checks that all indices in the thread's tables are valid, and all columns have the declared length.
fn check_tables(file: &Value, thread: &Value) {
    let length = |table: &str| index(&thread[table]["length"]);
    for table in ["samples", "nativeAllocations", "markers", "resourceTable", "funcTable", "frameTable", "stackTable"] {
        for (name, column) in thread[table].as_object().expect("a table") {
            assert!(column.as_array().is_none_or(|column| column.len() == length(table)), "{table}.{name}");
        }
    }
    let below = |table: &str, column: &str, end: usize| {
        let column = list(&thread[table][column]).iter().filter(|value| !value.is_null() && **value != -1);
        column.for_each(|value| assert!(index(value) < end, "{table}: {value}"));
    };
    let strings = list(&thread["stringArray"]).len();
    below("samples", "stack", length("stackTable"));
    below("nativeAllocations", "stack", length("stackTable"));
    below("stackTable", "frame", length("frameTable"));
    below("frameTable", "func", length("funcTable"));
    below("frameTable", "category", list(&file["meta"]["categories"]).len());
    below("funcTable", "name", strings);
    below("funcTable", "fileName", strings);
    below("funcTable", "resource", length("resourceTable"));
    below("resourceTable", "lib", list(&file["libs"]).len());
    below("resourceTable", "name", strings);
    below("markers", "name", strings);
    for (at, prefix) in list(&thread["stackTable"]["prefix"]).iter().enumerate() {
        assert!(prefix.is_null() || index(prefix) < at, "a stack comes after the one that it is on");
    }
    for table in ["samples", "nativeAllocations"] {
        let times: Vec<f64> = list(&thread[table]["time"]).iter().map(|time| time.as_f64().expect("a time")).collect();
        assert!(times.is_sorted(), "{table}: {times:?}");
    }
}

fn sum(target: &TargetProfile, of: impl Fn(&heapbpf_ledger::model::CallsiteProfile) -> u64) -> i64 {
    i64::try_from(target.callsites.iter().map(of).sum::<u64>()).expect("small")
}

fn check(profile: &Profile, view: View) {
    let file = parse(profile, view);
    let threads = list(&file["threads"]);
    let ids: BTreeSet<&str> = threads.iter().map(|thread| thread["tid"].as_str().expect("a text")).collect();
    assert_eq!(ids.len(), threads.len());
    let mut by_process: BTreeMap<&str, (Sums, u64)> = BTreeMap::new();
    for thread in threads {
        check_tables(&file, thread);
        let (sums, samples) = by_process.entry(thread["pid"].as_str().expect("a text")).or_default();
        let of_thread = Sums::of(thread);
        sums.retained += of_thread.retained;
        sums.allocated += of_thread.allocated;
        sums.freed += of_thread.freed;
        *samples +=
            list(&thread["samples"]["weight"]).iter().map(|weight| weight.as_u64().expect("whole")).sum::<u64>();
    }
    assert_eq!(by_process.len(), profile.targets.len());
    for target in &profile.targets {
        let (sums, samples) = &by_process[target.facts.pid.to_string().as_str()];
        assert_eq!(sums.retained, sum(target, |callsite| View::LiveBytes.of_callsite(callsite)));
        assert_eq!(sums.freed, sum(target, |callsite| callsite.totals.free_bytes.rounded()));
        assert_eq!(i64::try_from(*samples), Ok(sum(target, |callsite| view.of_callsite(callsite))));
        // The three numbers of a callsite are rounded separately.
        let allocated = sum(target, |callsite| callsite.totals.alloc_bytes.rounded());
        let allowed = if profile.is_exact_of(target) { 0 } else { target.callsites.len() };
        assert!(sums.allocated.abs_diff(allocated) <= allowed as u64, "{sums:?} allocated {allocated}");
    }
}

#[test]
fn allocations_add_up_to_the_totals() {
    for profile in profiles::all() {
        View::ALL.into_iter().for_each(|view| check(&profile, view));
    }
}

proptest! {
    #[test]
    fn allocations_of_any_profile_add_up(profile in properties::profile(), view in proptest::sample::select(View::ALL.to_vec())) {
        check(&profile, view);
    }
}

#[test]
fn inherited_blocks_are_retained_or_freed_but_not_allocated() {
    for (opening, alloc, freed, expected) in [
        (1000, 500, 1200, Sums { retained: 300, allocated: 500, freed: 1200 }),
        (1000, 500, 0, Sums { retained: 1500, allocated: 1500, freed: 0 }),
        (1000, 0, 1000, Sums { retained: 0, allocated: 0, freed: 1000 }),
    ] {
        let mut profile = profiles::freed();
        let totals = &mut profile.targets[0].callsites[0].totals;
        (totals.opening_bytes, totals.alloc_bytes, totals.free_bytes) =
            (EstimatedBytes::exact(opening), EstimatedBytes::exact(alloc), EstimatedBytes::exact(freed));
        assert_eq!(Sums::of(&parse(&profile, View::LiveBytes)["threads"][0]), expected);
    }
}

/// The live bytes by the end of each second in which they changed.
#[test]
fn allocations_follow_the_history() {
    let file = parse(&profiles::exact(), View::LiveBytes);
    let mut live: BTreeMap<u64, i64> = BTreeMap::new();
    for thread in list(&file["threads"]) {
        let table = &thread["nativeAllocations"];
        for (time, weight) in list(&table["time"]).iter().zip(list(&table["weight"])) {
            let time = format!("{:.0}", time.as_f64().expect("a time"));
            *live.entry(time.parse().expect("whole milliseconds")).or_default() += weight.as_i64().expect("bytes");
        }
    }
    let sums: Vec<i64> = live
        .values()
        .scan(0, |sum, step| {
            *sum += step;
            Some(*sum)
        })
        .collect();
    // Half of it by the dump at 10 s, the rest by the mark at 20 s.
    assert_eq!(live.keys().copied().collect::<Vec<_>>(), [10_000, 20_000]);
    assert!(sums[0].abs_diff(2_218_456 / 2) <= 5 && sums[1] == 2_218_456, "{sums:?}");
    let counter = &file["counters"][0];
    let total: f64 = list(&counter["samples"]["count"]).iter().map(|count| count.as_f64().expect("bytes")).sum();
    assert!((total - 2_218_456.0).abs() < 1.0, "{total}");
    let markers = &file["threads"][0]["markers"];
    let names: Vec<&Value> =
        list(&markers["name"]).iter().map(|name| &file["threads"][0]["stringArray"][index(name)]).collect();
    assert_eq!(names, ["dump 1", "mark"]);
}

#[test]
fn threads_are_separate_and_modules_have_build_ids() {
    let file = parse(&profiles::exact(), View::LiveBytes);
    let names: Vec<(&Value, &Value, &Value)> = list(&file["threads"])
        .iter()
        .map(|thread| (&thread["name"], &thread["tid"], &thread["isMainThread"]))
        .collect();
    assert_eq!(
        names,
        [(&"cached".into(), &"4711".into(), &true.into()), (&"thread".into(), &"4712".into(), &false.into())]
    );
    let lib = &file["libs"][0];
    assert_eq!((&lib["path"], &lib["codeId"]), (&"/usr/bin/cached".into(), &"a0".repeat(20).into()));
    assert_eq!(lib["breakpadId"], format!("{}0", "A0".repeat(16)));
}

#[test]
fn groups_are_frames_and_threads_are_not() {
    let presentation = Presentation { by: vec![Group::Thread, Group::Heap], ..View::LiveBytes.into() };
    let mut bytes = Vec::new();
    Format::Firefox.write(&profiles::exact(), &presentation, &mut bytes).expect("a vector takes all bytes");
    let file: Value = serde_json::from_slice(&bytes).expect("the file is JSON");
    let thread = &file["threads"][0];
    let (stacks, frames, functions) = (&thread["stackTable"], &thread["frameTable"], &thread["funcTable"]);
    let roots: BTreeSet<&str> = (0..index(&stacks["length"]))
        .filter(|&at| stacks["prefix"][at].is_null())
        .map(|at| index(&frames["func"][index(&stacks["frame"][at])]))
        .map(|function| thread["stringArray"][index(&functions["name"][function])].as_str().expect("a name"))
        .collect();
    assert_eq!(roots, BTreeSet::from(["libc"]));
}
