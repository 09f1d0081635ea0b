//! Perfetto traces, decoded with Perfetto's own descriptors. Its trace processor, which no package registry has, reads
//! them in an ignored test.

use std::collections::BTreeMap;
use std::process::Command;

use heapbpf_tests::viewers;
use serde_json::Value;

use super::fixture::{Fixture, number};
use super::stacks;

/// Allocated and freed bytes and blocks of a stack.
type Sums = BTreeMap<(u64, String, Vec<String>), [f64; 4]>;

const SAMPLE: [&str; 4] = ["alloc_bytes", "free_bytes", "alloc_count", "free_count"];

fn decoded(fixture: &Fixture) -> Value {
    fixture.read_by("perfetto_trace.py", "perfetto-trace", "")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("it is a list")
}

fn text(value: &Value) -> String {
    value.as_str().expect("it is a text").to_owned()
}

/// Returns each stack of each heap in the report; inherited blocks count as allocated.
fn reported(fixture: &Fixture) -> Sums {
    let mut sums = Sums::new();
    for target in list(&fixture.json["targets"]) {
        for callsite in list(&target["callsites"]) {
            let key = (target["pid"].as_u64().expect("a pid"), text(&callsite["heap"]), stacks::names(callsite));
            let of = |field: &str| number(callsite, field);
            let sum = sums.entry(key).or_default();
            for (sum, value) in sum.iter_mut().zip([
                of("inherited_bytes") + of("alloc_bytes"),
                of("free_bytes"),
                of("inherited_count") + of("alloc_count"),
                of("free_count"),
            ]) {
                *sum += value;
            }
        }
    }
    // A stack without activity is no sample.
    sums.retain(|_, sum| sum.iter().any(|value| *value > 0.0));
    sums
}

/// Returns each stack of the trace at its end, and the number of its callsites.
fn traced(trace: &Value) -> Sums {
    let dumps = list(&trace["dumps"]);
    let end = dumps.iter().map(|dump| number(dump, "timestamp")).fold(0.0, f64::max);
    let mut sums = Sums::new();
    for dump in dumps.iter().filter(|dump| number(dump, "timestamp") >= end) {
        for sample in list(&dump["samples"]) {
            let stack = list(&trace["stacks"][sample["stack"].to_string()]);
            let mut names: Vec<String> = stack.iter().map(|frame| text(&frame["function"])).collect();
            if names[0].starts_with("[heap ") {
                names.remove(0);
            }
            let key = (dump["pid"].as_u64().expect("a pid"), text(&dump["heap_name"]), names);
            let sum = sums.entry(key).or_default();
            sum.iter_mut().zip(SAMPLE).for_each(|(sum, field)| *sum += number(sample, field));
        }
    }
    sums
}

#[track_caller]
fn check_sums(fixture: &Fixture, off_max: f64) -> Value {
    let trace = decoded(fixture);
    let (expected, actual) = (reported(fixture), traced(&trace));
    assert!(expected.keys().eq(actual.keys()), "{} stacks, not {}", actual.len(), expected.len());
    assert!(expected.len() > 100, "{} stacks", expected.len());
    for (key, expected) in &expected {
        let off = actual[key].iter().zip(expected).map(|(actual, expected)| (actual - expected).abs());
        assert!(off.fold(0.0, f64::max) <= off_max, "{key:?}: {:?}, not {expected:?}", actual[key]);
    }
    let live: f64 = actual.values().map(|[allocated, freed, _, _]| allocated - freed).sum();
    #[expect(clippy::cast_precision_loss, reason = "some thousands")]
    let allowed = off_max * actual.len() as f64;
    assert!((live - fixture.total("live_bytes")).abs() <= allowed, "{live}, not {}", fixture.total("live_bytes"));
    trace
}

#[test]
fn every_stack_is_there_with_its_numbers() {
    let trace = check_sums(Fixture::exact(), 0.0);
    assert!(
        list(&trace["mappings"]).iter().any(|mapping| text(&mapping["build_id"]).len() == 40),
        "build ids are hashes"
    );
    let lines = trace["stacks"].as_object().expect("stacks have numbers").values().flat_map(list);
    assert!(lines.filter(|frame| frame["line"].is_u64()).count() > 100, "there are lines of code");
}

#[test]
fn estimates_are_rounded() {
    // A stack may have several callsites, each of which is rounded; freed is the difference of two such sums.
    let _ = check_sums(Fixture::sampled(), 4.0);
}

#[test]
fn dumps_are_windows_of_the_recording() {
    let fixture = Fixture::exact();
    let trace = decoded(fixture);
    let of_process = |dump: &&Value| dump["pid"] == fixture.pid && dump["heap_name"] == "libc";
    let dumps: Vec<&Value> = list(&trace["dumps"]).iter().filter(of_process).collect();
    assert_eq!(dumps.len(), 2, "at the signal and at the end");
    assert_eq!(dumps[0]["timestamp"], dumps[1]["start_timestamp"]);
    let first = fixture.window(1);
    let target = list(&first["targets"]).iter().find(|target| target["pid"] == fixture.pid).expect("it was recorded");
    let heap = list(&target["heaps"]).iter().find(|heap| heap["name"] == "libc").expect("it uses malloc");
    let sum = |field: &str| list(&dumps[0]["samples"]).iter().map(|sample| number(sample, field)).sum::<f64>();
    assert!((sum("alloc_bytes") - number(heap, "alloc_bytes")).abs() < 0.5, "{} is not allocated", sum("alloc_bytes"));
    assert!((sum("free_bytes") - number(heap, "free_bytes")).abs() < 0.5);
}

#[test]
fn the_layout_is_valid_for_the_importer() {
    let fixture = Fixture::exact();
    let trace = decoded(fixture);
    let clocks = trace["clocks"].as_object().expect("clocks have numbers");
    assert_eq!(clocks.keys().collect::<Vec<_>>(), ["1", "3", "4", "5", "6"]);
    assert_eq!(trace["kinds"][0], "clock_snapshot");
    for flags in trace["flags"].as_object().expect("sequences have numbers").values() {
        let flags: Vec<u64> = list(flags).iter().filter_map(Value::as_u64).collect();
        assert!(flags[0] == 1 && flags[1..].iter().all(|flag| *flag == 2), "{flags:?}");
    }
    let kinds: Vec<String> = list(&trace["kinds"]).iter().map(text).collect();
    let first =
        |kind: &str| kinds.iter().position(|known| known == kind).unwrap_or_else(|| panic!("there is no {kind}"));
    assert!(first("interned_data") < first("profile_packet") && first("profile_packet") < first("module_symbols"));
    assert!(list(&trace["indices"]).iter().filter_map(Value::as_u64).eq(0..list(&trace["indices"]).len() as u64));
    assert_eq!(list(&trace["continued"]).last(), Some(&Value::Bool(false)));
    for dump in list(&trace["dumps"]) {
        assert_eq!((&dump["timestamp"], &dump["buffer_overran"]), (&dump["packet_timestamp"], &Value::Bool(false)));
        assert_eq!(dump["sampling_interval_bytes"], 1);
    }
    let process = fixture.pid.to_string();
    assert!(text(&trace["processes"][process.as_str()]).contains("orchard"), "{}", trace["processes"]);
    let of_process = |counter: &&Value| counter["pid"] == fixture.pid;
    let counter = list(&trace["counters"]).iter().find(of_process).expect("it has a track");
    assert_eq!((&counter["name"], &counter["unit"]), (&"live bytes".into(), &3.into()));
    let statement = &fixture.report.health.verdict().statement;
    assert_eq!(counter["description"], format!("heapbpf: every allocation; {statement}"));
    let values = list(&counter["values"]);
    assert!(values.len() > 3 && values.iter().map(|value| value[0].as_u64()).is_sorted(), "{} values", values.len());
}

#[test]
fn the_resident_memory_is_there_by_use_and_by_mapping() {
    let fixture = Fixture::exact();
    let trace = decoded(fixture);
    let target = list(&fixture.json["targets"]).iter().find(|target| target["pid"] == fixture.pid);
    let memory = &target.expect("it was recorded")["memory"];
    let last = list(&memory["points"]).last().expect("it was sampled");
    let of_process =
        |counter: &&Value| counter["pid"] == fixture.pid && text(&counter["name"]).starts_with("resident: ");
    let counters: Vec<&Value> = list(&trace["counters"]).iter().filter(of_process).collect();
    let at_end = |counter: &&Value| list(&counter["values"]).last().and_then(|value| value[1].as_u64());
    assert_eq!(counters.iter().filter_map(at_end).sum::<u64>(), last["rss_bytes"].as_u64().expect("a number"));
    assert!(counters.iter().any(|counter| counter["name"] == "resident: live blocks: libc"), "{counters:#?}");

    let entries = list(&trace["smaps"][fixture.pid.to_string()]);
    let mappings = list(&memory["mappings"]);
    assert_eq!(entries.len(), mappings.len());
    for (entry, mapping) in entries.iter().zip(mappings) {
        let start = format!("{:#x}", entry["start_address"].as_u64().expect("a number"));
        assert_eq!((start, &entry["path"]), (text(&mapping["start"]), &mapping["name"]));
        assert!((number(entry, "proportional_resident_kb") - number(mapping, "pss_bytes") / 1024.0).abs() < 1.0);
        assert!((number(entry, "private_dirty_kb") - number(mapping, "private_dirty_bytes") / 1024.0).abs() < 1.0);
    }
    let code = |entry: &&Value| entry["protection_flags"] == 5;
    assert!(entries.iter().any(|entry| code(&entry) && text(&entry["path"]).contains("orchard")), "r-x is 5");
}

#[test]
#[ignore = "no package registry has trace_processor_shell: set TRACE_PROCESSOR to its path, and run with `--ignored`"]
fn its_trace_processor_drops_nothing() {
    let program = std::env::var_os("TRACE_PROCESSOR").expect("TRACE_PROCESSOR has the path of trace_processor_shell");
    let fixture = Fixture::exact();
    let path = fixture.converted("perfetto-trace", "");
    let query = path.with_extension("sql");
    let ask = |sql: &str| {
        std::fs::write(&query, sql).expect("the build directory is ours");
        viewers::text(Command::new(&program).arg("-q").arg(&query).arg(&path))
    };
    let lost = ask("select name, value from stats where value > 0 and severity in ('error', 'data_loss')");
    assert_eq!(lost.lines().count(), 1, "{lost}");
    let live = ask("select cast(sum(size) as int) as live from heap_profile_allocation");
    let live: f64 = live.lines().last().expect("there is a row").parse().expect("it is a number");
    assert!((live - fixture.total("live_bytes")).abs() < 0.5, "{live}, not {}", fixture.total("live_bytes"));
}
