//! Parquet in DuckDB: amounts equal the report's, windows follow each other, and the queries of docs/parquet.md run.

use std::path::{Path, PathBuf};

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::target::Target;
use heapbpf_tests::viewers;
use rustix::process::Signal;
use serde_json::Value;

use super::fixture::{Fixture, number};

#[track_caller]
fn sums(fixture: &Fixture, arguments: &str) -> Value {
    viewers::python("parquet.py", &[PathBuf::from("sums"), fixture.converted("parquet", arguments)])
}

#[track_caller]
fn windows(seen: &Value) -> &[Value] {
    seen["windows"].as_array().expect("a list")
}

/// Columns and their fields in the JSON report.
const AMOUNTS: [(&str, &str); 6] = [
    ("live_bytes", "live_bytes"),
    ("live_blocks", "live_count"),
    ("alloc_bytes", "alloc_bytes"),
    ("alloc_blocks", "alloc_count"),
    ("free_bytes", "free_bytes"),
    ("free_blocks", "free_count"),
];

#[test]
fn amounts_are_those_of_the_report() {
    for (fixture, is_exact) in [(Fixture::exact(), true), (Fixture::sampled(), false)] {
        let seen = sums(fixture, "--host web1");
        let targets = fixture.json["targets"].as_array().expect("a report has targets");
        assert_eq!(windows(&seen).len(), targets.len(), "one window of each process");
        for target in targets {
            let window = windows(&seen).iter().find(|window| window["pid"] == target["pid"]).expect("it has rows");
            assert_eq!(window["host"], "web1");
            // Estimates are rounded by callsite.
            let allowed = if is_exact { 0.0 } else { number(window, "rows") };
            for (column, field) in AMOUNTS {
                let (sum, expected) = (number(window, column), number(&target["totals"], field));
                assert!((sum - expected).abs() <= allowed, "{column}: {sum}, not {expected}");
            }
            assert_eq!(number(window, "variance") > 0.0, !is_exact && number(window, "live_bytes") > 0.0);
        }
        assert_eq!(seen["types"]["window_start"], "TIMESTAMP WITH TIME ZONE");
        assert_eq!(seen["types"]["stack"], "VARCHAR[]");
        assert_eq!(seen["lengths"], true);
        let largest = &seen["largest"];
        assert!(largest["file"].as_str().is_some_and(|file| file.ends_with("orchard.cpp")), "{largest}");
        assert!(largest["build_id"].as_str().is_some_and(|id| id.len() >= 16), "{largest}");
        assert_eq!(largest["stack"][0], largest["function"], "{largest}");
    }
}

#[test]
fn windows_follow_each_other_and_add_up() {
    let fixture = Fixture::exact();
    let seen = sums(fixture, "--every 100ms");
    let whole = sums(fixture, "");
    for total in windows(&whole) {
        let parts: Vec<&Value> = windows(&seen).iter().filter(|window| window["pid"] == total["pid"]).collect();
        for column in ["alloc_bytes", "alloc_blocks", "free_bytes", "free_blocks"] {
            let sum: f64 = parts.iter().map(|window| number(window, column)).sum();
            assert!((sum - number(total, column)).abs() < 0.5, "{column}: {sum}, not {}", total[column]);
        }
        for pair in parts.windows(2) {
            assert_eq!(pair[0]["window_end"], pair[1]["window_start"]);
            assert_eq!(pair[0]["live_bytes"], pair[1]["opening_bytes"], "what is live at the end is at the next start");
        }
        let last = parts.last().expect("it has windows");
        assert!(parts.iter().rev().skip(1).all(|part| part["ended"] == false), "{parts:?}");
        assert!(total["pid"] == fixture.pid || last["ended"] == true, "the child has exited: {last}");
        assert_eq!(last["live_bytes"], total["live_bytes"]);
        // The child has exited: windows after that do not contain it.
        if total["pid"] == fixture.pid {
            assert_eq!(last["window_end"], total["window_end"]);
        }
    }
    let parts = windows(&seen).iter().filter(|window| window["pid"] == fixture.pid).count();
    assert!(parts >= 4, "{parts} windows of 100 ms");
}

#[test]
fn files_of_dumps_are_windows_of_one_recording() {
    let mut target = Target::start("slots.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o heap.parquet -o whole.json");
    let mut session = heapbpf.start();
    for (number, work) in ["+0:1000", "+11:50", "-0"].iter().enumerate() {
        target.work(work);
        session.signal(Signal::USR1);
        session.wait_for(&format!("heap.{:04}.parquet", number + 1));
    }
    session.interrupt().expect_code(0);
    let sums = |name: &str| viewers::python("parquet.py", &[PathBuf::from("sums"), heapbpf.file(name)]);
    // The pattern of the documentation: all files are windows, and each is counted once.
    let parts = sums("*.parquet");
    let amounts = |window: &Value| {
        ["opening_bytes", "alloc_bytes", "free_bytes", "live_bytes"].map(|column| number(window, column))
    };
    let flows: Vec<_> = windows(&parts).iter().map(amounts).collect();
    // The last window, from the last dump to the end, has a row for the block that is still live.
    assert_eq!(flows, [[0., 1000., 0., 1000.], [1000., 50., 0., 1050.], [1050., 0., 1000., 50.], [50., 0., 0., 50.]]);
    let whole = heapbpf.report("whole.json").targets[0].totals.clone();
    assert_eq!((whole.alloc_bytes.as_u64(), whole.live_bytes.as_u64()), (Some(1050), Some(50)));
    assert!(!heapbpf.files().contains(&"heap.parquet".to_owned()), "{:?}", heapbpf.files());
    for pair in windows(&parts).windows(2) {
        assert_eq!(pair[0]["window_end"], pair[1]["window_start"]);
    }
}

#[test]
fn the_documented_queries_run() {
    let fixture = Fixture::exact();
    let folder = tempfile::tempdir_in(fixture.folder()).expect("the build directory is ours");
    for host in ["web1", "web2"] {
        let made = fixture.converted("parquet", &format!("--every 500ms --host {host}"));
        std::fs::rename(made, folder.path().join(format!("{host}.parquet"))).expect("the build directory is ours");
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/parquet.md");
    let seen = viewers::python("parquet.py", &[PathBuf::from("queries"), page, folder.path().to_owned()]);
    let rows = |query: &str| seen["queries"][query]["rows"].as_array().unwrap_or_else(|| panic!("no {query}")).clone();
    let growing = rows("growing");
    assert_eq!(growing[0]["hosts"], 2);
    assert!(number(&growing[0], "growth") >= number(&growing[1], "growth"));
    assert!(!rows("regression").is_empty() && !rows("services").is_empty());
    assert_eq!(rows("outliers")[0]["times_median"], 1.0, "both hosts have the same recording");
}

/// `simulated` in parquet.py: two hosts whose processes restart every 7 hours, and one whose process runs for two days.
#[test]
fn the_documented_queries_find_what_a_fleet_has() {
    let fixture = Fixture::exact();
    let folder = tempfile::tempdir_in(fixture.folder()).expect("the build directory is ours");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/parquet.md");
    let real = fixture.converted("parquet", "--every 100ms");
    let seen = viewers::python("parquet.py", &[PathBuf::from("fleet"), page, real, folder.path().to_owned()]);
    let rows = |query: &str| seen["queries"][query]["rows"].as_array().unwrap_or_else(|| panic!("no {query}")).clone();
    let column = |query: &str, name: &str| rows(query).iter().map(|row| number(row, name)).collect::<Vec<_>>();
    // The processes that run now are 6 hours old, and 48. Those that have exited have left nothing.
    assert_eq!(column("growing", "growth"), [60e6, 15e6]);
    // Of the state at the end, on each host.
    assert!((number(&rows("growing")[0], "margin") - 1.96 * 3e10_f64.sqrt()).abs() < 1.0, "{seen}");
    // Yesterday, they were 3 hours old, and 24.
    assert_eq!(column("yesterday", "growth"), [30e6, 0.0]);
    assert_eq!(column("pods", "live"), [53e6, 11e6, 11e6]);
    let regression = &rows("regression")[0];
    assert_eq!((number(regression, "before"), number(regression, "after")), (6e6, 27e6), "{regression}");
    assert_eq!(number(&rows("outliers")[0], "times_median"), 53.0 / 11.0);
    assert!((number(&rows("services")[0], "bytes_per_second") - 2e6 / 3600.0).abs() < 0.01, "{seen}");
}
