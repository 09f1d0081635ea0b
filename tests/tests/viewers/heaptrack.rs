//! heaptrack's format, read by heaptrack_print.

use std::fs;
use std::path::Path;

use heapbpf_tests::viewers;

use super::fixture::{Fixture, number};

/// Returns a cost from heaptrack_print, summed over all stacks: its own totals are rounded.
fn cost(path: &Path, name: &str) -> f64 {
    let stacks = path.with_extension(format!("{name}.folded"));
    let mut print = viewers::program("heaptrack_print");
    // It suppresses known leaks by default.
    print
        .arg("--disable-builtin-suppressions")
        .arg("-f")
        .arg(path)
        .arg("--print-flamegraph")
        .arg(&stacks)
        .args(["--flamegraph-cost-type", name]);
    let text = viewers::text(&mut print);
    assert!(text.contains("calls to allocation functions"), "{text:.2000}");
    let stacks = fs::read_to_string(&stacks).expect("it was written");
    let cost = |line: &str| line.rsplit_once(' ').expect("a stack has a cost").1.parse::<f64>().expect("a number");
    stacks.lines().map(cost).sum()
}

#[test]
fn allocations_peak_and_leaks_of_one_process_equal_the_reports() {
    let fixture = Fixture::exact();
    let [path, _] = fixture.windows("heaptrack.zst");
    let totals = &fixture.window(1)["targets"][0]["totals"];
    for (name, field) in [("allocations", "alloc_count"), ("peak", "peak_bytes"), ("leaked", "live_bytes")] {
        let (got, expected) = (cost(&path, name), number(totals, field));
        assert!((got - expected).abs() < 0.5, "{name}: {got}, not {expected}");
    }
}

#[test]
fn inherited_blocks_of_a_child_count_as_allocated() {
    let fixture = Fixture::exact();
    let path = fixture.converted("heaptrack.zst", "");
    let (allocations, leaked) = (cost(&path, "allocations"), cost(&path, "leaked"));
    let expected = fixture.total("alloc_count") + fixture.total("inherited_count");
    assert!((allocations - expected).abs() < 0.5, "{allocations}, not {expected}");
    assert!((leaked - fixture.total("live_bytes")).abs() < 0.5, "{leaked}, not {}", fixture.total("live_bytes"));
}

#[test]
fn a_window_starts_with_the_live_blocks() {
    let fixture = Fixture::exact();
    let end_ns = fixture.window(1)["window"]["end_unix_ns"].as_u64().expect("windows end");
    let from = format!("--from {}ns", end_ns - fixture.report.started_unix_ns);
    let path = fixture.converted("heaptrack.zst", &from);
    let window = heapbpf_tests::heapbpf::text(&fixture.converted("json", &from));
    let window: serde_json::Value = serde_json::from_str(&window).expect("it is JSON");
    let targets = window["targets"].as_array().expect("a report has targets");
    let sum = |field: &str| targets.iter().map(|target| number(&target["totals"], field)).sum::<f64>();
    assert!((cost(&path, "leaked") - sum("live_bytes")).abs() < 0.5);
    assert!((cost(&path, "allocations") - sum("live_start_count") - sum("alloc_count")).abs() < 0.5);
}

#[test]
fn a_threshold_shortens_stacks_and_changes_no_total() {
    let fixture = Fixture::exact();
    let [whole, thinned] = ["", "--threshold 5%"].map(|arguments| fixture.converted("heaptrack.zst", arguments));
    for name in ["allocations", "peak", "leaked"] {
        assert!((cost(&whole, name) - cost(&thinned, name)).abs() < 0.5, "{name}");
    }
    let stacks = |path: &Path| fs::read_to_string(path.with_extension("leaked.folded")).expect("it was written");
    assert!(2 * stacks(&thinned).lines().count() < stacks(&whole).lines().count());
}

#[test]
fn samples_count_with_their_weights() {
    let fixture = Fixture::sampled();
    let path = fixture.converted("heaptrack.zst", "");
    let samples: f64 = fixture.total("alloc_samples");
    let leaked = cost(&path, "leaked");
    // Each sample is rounded separately.
    assert!((leaked - fixture.total("live_bytes")).abs() <= samples / 2.0 + 1.0, "{leaked}");
    assert!(cost(&path, "allocations") >= samples);
}
