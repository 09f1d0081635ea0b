//! Recordings of real sessions: forks, execs, drops, thinning, dumps, marks, mappings. What a replay of each reports is compared
//! with a golden text, so that a change in the order in which the ledger is updated shows.
//!
//! `UPDATE_GOLDEN=1` rewrites the goldens.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use heapbpf_tests::heapbpf::binary;
use serde_json::Value;
use tempfile::tempdir;

const COUNTS: [&str; 10] = [
    "alloc_count",
    "alloc_bytes",
    "free_count",
    "free_bytes",
    "live_count",
    "live_bytes",
    "inherited_count",
    "inherited_bytes",
    "at_peak_count",
    "at_peak_bytes",
];

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/replays")
}

/// The JSON report that `heapbpf convert` makes of a recording. Exit code 3 (incomplete) is that of two of the sessions.
fn report(recording: &Path) -> Value {
    let directory = tempdir().expect("there is a directory for temporary files");
    let output = directory.path().join("out.json");
    let status = Command::new(binary()).args(["convert", "-q", "-o"]).arg(&output).arg(recording).status();
    let code = status.expect("heapbpf can be started").code();
    assert!(matches!(code, Some(0 | 3)), "{}: exit code {code:?}", recording.display());
    serde_json::from_str(&fs::read_to_string(output).expect("a report was written")).expect("it is JSON")
}

fn stack(callsite: &Value) -> String {
    let frames = callsite["stack"].as_array().expect("a stack is an array");
    let names: Vec<String> = frames
        .iter()
        .map(|frame| match &frame["function"] {
            Value::String(name) => name.clone(),
            _ => format!("{}+{}", frame["module"], frame["module_offset"]),
        })
        .collect();
    names.join(" < ")
}

fn counts(value: &Value) -> String {
    COUNTS.iter().filter(|name| !value[**name].is_null()).map(|name| format!(" {name}={}", value[*name])).collect()
}

/// What a report contains that follows from the order of events, as text.
fn text(report: &Value) -> String {
    let mut text = String::new();
    let health = &report["health"];
    writeln!(text, "interval {} window {}", report["interval_bytes"], report["window"]).expect("a string");
    writeln!(text, "dropped {} resyncs {}", health["lost"], health["resyncs"]).expect("a string");
    writeln!(text, "interval changes {}", health["interval_changes"]).expect("a string");
    for target in report["targets"].as_array().expect("targets are an array") {
        writeln!(
            text,
            "process {} {} {} exited {} {} replaced {}\n total{}",
            target["pid"],
            target["command"],
            target["beginning"]["origin"],
            target["exited"],
            target["exit_code"],
            target["replaced"],
            counts(&target["totals"]),
        )
        .expect("a string");
        for callsite in target["callsites"].as_array().expect("callsites are an array") {
            writeln!(text, " {} {}\n  {}", callsite["heap"], counts(callsite), stack(callsite)).expect("a string");
        }
    }
    text
}

#[track_caller]
fn check(name: &str) {
    let text = text(&report(&directory().join(name).with_extension("heapbpf")));
    let golden = directory().join(name).with_extension("txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1") {
        fs::write(&golden, text).expect("the golden can be written");
        return;
    }
    let expected = fs::read_to_string(&golden).expect("there is a golden");
    let different = text.lines().zip(expected.lines()).position(|(line, expected)| line != expected);
    if let Some(line) = different {
        let (got, expected) = (text.lines().nth(line), expected.lines().nth(line));
        panic!("{name}, line {}: {got:?}, expected {expected:?}", line + 1);
    }
    assert_eq!(text.lines().count(), expected.lines().count(), "{name}: number of lines");
}

macro_rules! sessions {
    ($($test:ident: $name:literal),* $(,)?) => {
        $(#[test]
        fn $test() {
            check($name);
        })*

        /// A recording without a test would be compared with nothing.
        #[test]
        fn each_recording_has_a_test() {
            let mut names: Vec<String> = fs::read_dir(directory())
                .expect("the recordings are there")
                .filter_map(|entry| entry.expect("readable").file_name().to_str()?.strip_suffix(".heapbpf").map(str::to_owned))
                .collect();
            names.sort();
            let mut tested = vec![$($name),*];
            tested.sort_unstable();
            assert_eq!(names, tested);
        }
    };
}

sessions! {
    every_allocation: "exact",
    forks_inherit_blocks: "forks",
    an_exec_replaces_the_program: "execs",
    an_exec_by_another_thread: "thread-exec",
    vfork_shares_memory: "vfork",
    two_threads: "threads",
    sampled_at_512_kib: "sampled",
    dumps_on_request: "dumps",
    a_mark_and_dumps_on_growth: "marked",
    drops_and_a_resync: "drops",
    a_thinned_live_set: "thinned",
    memory_mappings: "mappings",
    a_forked_child_that_executes_its_program: "staged",
    programs_that_run_for_milliseconds: "spawned",
}
