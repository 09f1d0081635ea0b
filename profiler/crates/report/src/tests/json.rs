//! Checks the JSON report against its contract.

use heapbpf_base::units::EstimatedBytes;
use heapbpf_ledger::model::{Profile, Window, WindowReason};
use heapbpf_ledger::totals::Totals;
use profiler_common::stack::StackEnd;
use serde_json::{Value, json};

use super::{check_golden, render};
use crate::testing as profiles;
use crate::{Format, View};

#[test]
fn goldens() {
    for (name, profile) in
        [("exact", profiles::exact()), ("sampled", profiles::sampled()), ("empty", profiles::empty())]
    {
        check_golden(&format!("json/{name}.json"), &render(Format::Json, &profile, View::LiveBytes));
    }
}

fn parse(profile: &Profile) -> Value {
    serde_json::from_str(&render(Format::Json, profile, View::LiveBytes)).expect("the report is JSON")
}

/// Fields of totals where numbers are estimates.
const TOTALS: &[&str] = &[
    "alloc_bytes",
    "alloc_bytes_95",
    "alloc_bytes_third_cumulant",
    "alloc_bytes_variance",
    "alloc_count",
    "alloc_count_95",
    "alloc_count_third_cumulant",
    "alloc_count_variance",
    "alloc_samples",
    "at_peak_bytes",
    "at_peak_count",
    "free_bytes",
    "free_count",
    "inherited_bytes",
    "inherited_count",
    "live_bytes",
    "live_bytes_95",
    "live_bytes_third_cumulant",
    "live_bytes_variance",
    "live_count",
    "live_count_95",
    "live_count_third_cumulant",
    "live_count_variance",
    "live_samples",
    "peak_bytes",
    "peak_count",
    "peak_unix_ns",
];

/// Fields of details, next to totals.
const DETAILS: &[&str] = &[
    "age_histogram",
    "age_ns_median",
    "age_ns_oldest",
    "age_ns_total",
    "lifetime_histogram",
    "lifetime_ns_total",
    "size_histogram",
    "temporary_count",
];

/// Fields of objects by path. `+`: totals and details too.
const OBJECTS: &[(&str, &str)] = &[
    ("", "ended_unix_ns health interval_bytes modules others started_unix_ns targets version window"),
    (
        "/targets/0",
        "beginning callsites cgroup comm command curve detached_unix_ns exit_code exited heaps inventory leak_candidates mappings memory overhead pid replaced rights threads totals",
    ),
    ("/modules/0", "build_id path"),
    ("/targets/0/mappings/0", "bias end module offset start"),
    ("/targets/0/memory", "growth mappings objects points runtimes undecided_bytes"),
    (
        "/targets/0/memory/objects/0",
        "blocks language more_types one_of other reserved_bytes since_unix_ns types unix_ns unread",
    ),
    ("/targets/0/memory/objects/0/types/0", "bytes grown_bytes grown_objects large_bytes name objects"),
    (
        "/targets/0/memory/mappings/0",
        "access name private_clean_bytes private_dirty_bytes pss_bytes shared_clean_bytes shared_dirty_bytes size_bytes start swap_bytes",
    ),
    ("/targets/0/inventory", "blocks bytes error gaps interval_bytes pause_ns"),
    ("/targets/0/memory/points/0", "parts pss_bytes rss_bytes swap_bytes unix_ns"),
    ("/targets/0/memory/points/0/parts/0", "bytes class name"),
    ("/targets/0/memory/growth", "bytes hooked_bytes others unexplained"),
    ("/targets/0/beginning", "delay_ns from_first_call origin parent unix_ns"),
    (
        "/others",
        "folded_count folded_interval_bytes folded_totals not_inherited_count short_lived_count skipped skipped_count",
    ),
    ("/others/skipped/0", "command pid reason"),
    ("/health/interval_changes/0", "from_bytes heap reason to_bytes unix_ns"),
    ("/health/unfound/0", "function heap modules required"),
    ("/health/inlined_heaps/0", "advice copies function heap module"),
    ("/targets/0/totals", "+"),
    ("/targets/0/heaps/0", "+ hooks interval_bytes interval_bytes_max name"),
    ("/targets/0/heaps/0/hooks/0", "attached backend emulated error function instruction module offset required"),
    ("/targets/0/callsites/0", "+ end heap inherited stack thread"),
    ("/targets/0/callsites/0/stack/0", "address file function inlined line module module_offset"),
    (
        "/health",
        "agent_cpu_ns agent_rss_bytes_max cut_stacks events frame_pointer_modules guardrails inline_engine inlined_heaps interpreters interval_changes lost memory_sampling_ns resyncs symbolization unaccounted unfound unwind verdict",
    ),
    ("/health/cut_stacks/0", "advice count end module share"),
    ("/health/verdict", "complete findings statement strict"),
    ("/health/verdict/findings/0", "count exceeded kind share share_max"),
    ("/health/inline_engine", "passed_calls refused stop_ns_max targets trapped_calls"),
    ("/health/interpreters", "deferred languages no_thread processes unnamed unnamed_reasons unreadable unsupported"),
    ("/health/interpreters/languages/JavaScript", "functions unnamed unnamed_reasons"),
    ("/health/symbolization", "crashes downloads failures isolation isolation_missing modules"),
    ("/health/symbolization/downloads/0", "build_id bytes failure module"),
    ("/health/symbolization/modules/0", "build_id module package share symbols"),
    ("/health/symbolization/failures/0", "module names reason"),
];

#[test]
fn windows_have_start_end_and_deltas() {
    let mut profile = profiles::exact();
    profile.window = Some(Window {
        number: Some(3),
        reason: WindowReason::Growth,
        start_unix_ns: 17,
        since_mark: false,
        end_unix_ns: 18,
        merged_count: 1,
    });
    profile.targets[0].totals = Totals {
        opening_bytes: EstimatedBytes::exact(1000),
        free_bytes: EstimatedBytes::exact(1000),
        ..Totals::default()
    };
    let report = parse(&profile);
    assert_eq!(
        report["window"],
        json!({"number": 3, "reason": "growth", "start_unix_ns": 17, "since_mark": false, "end_unix_ns": 18, "merged_count": 1})
    );
    let totals = &report["targets"][0]["totals"];
    assert_eq!((&totals["live_start_bytes"], &totals["delta_bytes"]), (&json!(1000), &json!(-1000)));
    assert_eq!((&totals["live_bytes"], &totals["delta_count"]), (&json!(0), &json!(0)));
    assert_eq!(parse(&profiles::exact())["targets"][0]["totals"].get("delta_bytes"), None, "it is no window");
}

#[test]
fn every_object_has_the_fields_of_the_contract() {
    let report = parse(&profiles::sampled());
    for (path, fields) in OBJECTS {
        let (more, fields) = fields.strip_prefix('+').map_or((false, *fields), |fields| (true, fields));
        let mut expected: Vec<&str> = fields.split_whitespace().collect();
        if more {
            expected.extend(TOTALS.iter().chain(DETAILS));
        }
        expected.sort_unstable();
        let object = report.pointer(path).and_then(Value::as_object).unwrap_or_else(|| panic!("no object at {path}"));
        let mut keys: Vec<&str> = object.keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, expected, "{path}");
    }
}

#[test]
fn exact_amounts_are_integers() {
    let report = parse(&profiles::exact());
    assert_eq!(report["version"], 1);
    assert_eq!(report["interval_bytes"], 1);
    assert_eq!(
        report["targets"][0]["totals"],
        json!({
            "inherited_count": 0, "inherited_bytes": 0, "alloc_samples": 2504, "live_samples": 1203,
            "alloc_count": 2504, "alloc_bytes": 81_000 + (3 << 20) + 72_704 + 4_096_000,
            "free_count": 1301, "free_bytes": 32_400 + (1 << 20) + 4_096_000,
            "live_count": 1203, "live_bytes": 2_218_456,
            "peak_bytes": 81_000 + (3 << 20) + 72_704 + 4_096_000,
            "peak_count": 2504, "peak_unix_ns": 1_795_255_201_000_000_000_u64,
            "at_peak_count": 2504, "at_peak_bytes": 81_000 + (3 << 20) + 72_704 + 4_096_000,
            "age_ns_oldest": 30_000_000_000_u64, "age_ns_median": 1_574_174_720,
            "age_ns_total": 2_480_000_000_000_u64, "lifetime_ns_total": 3_903_000_000_u64,
            "age_histogram": [[1_048_576_000, 1200], [16_777_216_000_u64, 3]],
            "lifetime_histogram": [[2_048_000, 1301]],
            "size_histogram": [[16, 1000], [64, 1000], [8192, 500], [65536, 1], [1_048_576, 3]],
            "temporary_count": 4,
        })
    );
    assert!(report["targets"][0]["callsites"][0]["live_bytes"].is_u64());
}

#[test]
fn estimates_are_floats() {
    let mut profile = profiles::sampled();
    profile.targets[0].callsites.retain(|callsite| !callsite.has_lost_stack());
    let report = parse(&profile);
    // 100 bytes at an interval of 4096: each sample represents 1 / (1 - exp(-100/4096)) = 41.462 blocks.
    let callsites = report["targets"][0]["callsites"].as_array().expect("callsites are a list");
    let callsite = callsites
        .iter()
        .find(|callsite| callsite["stack"][0]["function"] == "operator new(unsigned long)")
        .expect("the callsite is there");
    let blocks = callsite["live_count"].as_f64().expect("a number");
    assert!((blocks - 30.0 * 41.462).abs() < 0.02, "{blocks}");
    assert!(callsites.iter().all(|callsite| callsite["alloc_bytes"].is_f64()));
    // Of 30 samples of small blocks, the interval is about that of a Poisson count of 30: 20.24 to 42.83.
    for (at, samples) in [(0, 20.24), (1, 42.83)] {
        let end = callsite["live_count_95"][at].as_f64().expect("a number");
        assert!((end / 41.462 - samples).abs() < 0.5, "{end}");
    }
    let variance = 30.0 * 41.462 * 40.462;
    let cube = callsite["live_count_third_cumulant"].as_f64().expect("a number");
    assert!((cube / variance - 2.0 * 41.462 + 1.0).abs() < 0.01, "{cube}");
    assert_eq!(callsite["live_samples"], 30);
}

/// Blocks whose stack was dropped may be of any callsite of their heap.
#[test]
fn intervals_of_callsites_include_blocks_without_stacks() {
    let with = |profile: &Profile, has_lost: bool| {
        let mut profile = profile.clone();
        for callsite in &mut profile.targets[0].callsites {
            callsite.end = if has_lost && callsite.stack.is_empty() { None } else { Some(StackEnd::Complete) };
        }
        parse(&profile)
    };
    let mut exact = profiles::exact();
    let (first, last) = (exact.targets[0].callsites[0].heap, exact.targets[0].callsites.len() - 1);
    let lost = &mut exact.targets[0].callsites[last];
    (lost.heap, lost.stack) = (first, Vec::new());
    let (without, report) = (with(&exact, false), with(&exact, true));
    assert!(
        without["targets"][0]["callsites"].as_array().expect("a list").iter().all(|it| it["alloc_bytes_95"].is_null())
    );
    let callsites = report["targets"][0]["callsites"].as_array().expect("a list");
    let lost = callsites.iter().find(|it| it["stack"] == json!([])).expect("the callsite without a stack");
    let more = lost["alloc_bytes"].as_f64().expect("a number");
    assert!(more > 0.0 && lost["alloc_bytes_95"].is_null(), "{lost}");
    for callsite in callsites.iter().filter(|it| it["stack"] != json!([])) {
        let bytes = callsite["alloc_bytes"].as_f64().expect("a number");
        let expected = if callsite["heap"] == lost["heap"] { json!([bytes, bytes + more]) } else { Value::Null };
        assert_eq!(callsite["alloc_bytes_95"], expected, "{callsite}");
    }
    assert!(report["targets"][0]["totals"]["alloc_bytes_95"].is_null());
}

#[test]
fn heaps_with_their_own_interval_have_floats() {
    let report = parse(&profiles::mixed());
    assert_eq!(report["interval_bytes"], 1);
    let is_exact = |path: &str| {
        let totals = report.pointer(path).unwrap_or_else(|| panic!("no totals at {path}"));
        let is_exact = totals["live_bytes"].is_u64();
        assert_eq!(totals["live_bytes_95"].is_null(), is_exact, "{totals}");
        is_exact
    };
    for (target, heap, interval_bytes) in [(0, 0, 4096), (0, 1, 1), (1, 0, 1)] {
        let path = format!("/targets/{target}/heaps/{heap}");
        assert_eq!(report.pointer(&path).expect("the heap is there")["interval_bytes"], interval_bytes);
        assert_eq!(is_exact(&path), interval_bytes == 1);
    }
    assert!(!is_exact("/targets/0/totals"));
    assert!(is_exact("/targets/1/totals"));
    for callsite in [0, 1] {
        let path = format!("/targets/0/callsites/{callsite}");
        assert_eq!(is_exact(&path), report.pointer(&path).expect("the callsite is there")["heap"] == "pool");
    }
}

#[test]
fn a_heap_with_a_raised_interval_is_not_exact() {
    let mut profile = profiles::exact();
    profile.targets[0].heaps[0].interval_bytes_max = 64;
    let report = parse(&profile);
    assert_eq!(report["targets"][0]["heaps"][0]["interval_bytes"], 1);
    assert!(report["targets"][0]["heaps"][0]["alloc_bytes"].is_f64());
    assert!(report["targets"][0]["totals"]["live_bytes_95"].is_array());
    assert!(!profile.is_exact());
}

#[test]
fn totals_of_processes_are_exact_if_their_heaps_are() {
    for (folded, expected) in [(None, true), (Some(1), true), (Some(4096), false)] {
        let mut profile = profiles::exact();
        profile.others.folded_interval_bytes = folded;
        assert_eq!(parse(&profile)["others"]["folded_totals"]["alloc_bytes"].is_u64(), expected);
        assert_eq!(profile.is_exact(), expected);
    }
    assert!(!profiles::nobody().is_exact());
}

#[test]
fn stacks_are_leaf_first_with_all_fields() {
    let report = parse(&profiles::exact());
    let callsite = &report["targets"][0]["callsites"][1];
    assert_eq!(callsite["end"], "complete");
    assert_eq!(callsite["heap"], "libc");
    assert_eq!(callsite["live_bytes"], 72_704);
    assert_eq!(
        callsite["stack"][0],
        json!({
            "function": "main", "module": "/usr/bin/cached", "file": "/src/main.c", "line": 12,
            "inlined": false, "address": "0x555500004000", "module_offset": "0x4000",
        })
    );
}

#[test]
fn modules_are_unique_and_referenced_by_index() {
    let report = parse(&profiles::exact());
    assert_eq!(report["modules"][0], json!({ "path": "/usr/bin/cached", "build_id": "a0".repeat(20) }));
    let target = &report["targets"][0];
    assert_eq!(
        target["mappings"][1],
        json!({
            "start": "0x555510001000", "end": "0x555520000000", "offset": "0x1000", "bias": "0x555510000000", "module": 1,
        })
    );
    assert_eq!(target["cgroup"], "/system.slice/cached.service");
    assert_eq!(target["threads"], json!([{ "tid": 4711, "name": "cached" }, { "tid": 4712, "name": null }]));
    let threads: Vec<&Value> =
        target["callsites"].as_array().expect("a list").iter().map(|callsite| &callsite["thread"]).collect();
    assert_eq!(threads, [0, 1, 0, 1, 0]);
    let unknown = &parse(&profiles::sampled())["targets"][0];
    assert_eq!((&unknown["cgroup"], &unknown["threads"]), (&Value::Null, &json!([])));
    assert_eq!(unknown["callsites"][0]["thread"], Value::Null);
}

#[test]
fn invalid_indices_are_omitted() {
    let mut profile = profiles::exact();
    profile.modules.truncate(1);
    profile.targets[0].threads.truncate(1);
    let report = parse(&profile);
    assert_eq!(report["targets"][0]["mappings"].as_array().map(Vec::len), Some(1));
    let threads = report["targets"][0]["callsites"].as_array().expect("a list").iter().map(|it| &it["thread"]);
    assert!(threads.into_iter().all(|thread| thread.is_null() || thread == 0));
}

#[test]
fn callsites_come_largest_first() {
    for view in View::ALL {
        let key = view.name().replace('-', "_");
        let report: Value =
            serde_json::from_str(&render(Format::Json, &profiles::sampled(), view)).expect("the report is JSON");
        let callsites = report["targets"][0]["callsites"].as_array().expect("callsites are a list");
        let values: Vec<f64> = callsites.iter().map(|callsite| callsite[&key].as_f64().expect("a number")).collect();
        assert!(values.is_sorted_by(|a, b| a >= b), "{view}: {values:?}");
    }
}

#[test]
fn losses_and_missing_stacks_are_reported() {
    let report = parse(&profiles::sampled());
    let callsites = report["targets"][0]["callsites"].as_array().expect("callsites are a list");
    let lost = callsites.iter().find(|callsite| callsite["end"].is_null()).expect("a stack was lost");
    assert_eq!(lost["stack"], json!([]));
    assert!(callsites.iter().any(|callsite| callsite["end"] == "no_scratch"));
    assert_eq!(report["health"]["lost"], json!({ "missed_free": 1, "ring_full": 12_345, "brand_new": 2 }));
    let hook = &report["targets"][0]["heaps"][0]["hooks"][2];
    assert_eq!((&hook["function"], &hook["attached"]), (&json!("memalign"), &json!(false)));
    assert_eq!(report["targets"][1]["exit_code"], 137);
    let empty = parse(&profiles::empty());
    assert_eq!(empty["health"]["lost"], json!({}));
    assert_eq!(empty["health"]["unwind"], json!({}));
    assert_eq!(empty["targets"][0]["totals"]["peak_unix_ns"], Value::Null);
}
