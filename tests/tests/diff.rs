//! Growth between two recordings: exact if both are, and attributed to the right function.

use std::fs;
use std::path::{Path, PathBuf};

use heapbpf_tests::heapbpf::{Heapbpf, text};
use heapbpf_tests::sampling::{Errors, Expected, SIGMAS, assert_unbiased};
use heapbpf_tests::target::Target;
use rustix::process::Signal;
use serde_json::Value;

const DONE: i32 = 0;
const FAILED: i32 = 1;
const WRONG_USAGE: i32 = 2;
const INCOMPLETE: i32 = 3;

/// Profiles one command of a new process, in this directory.
fn record(source: &str, line: &str, interval: &str, directory: &Path, name: &str) -> PathBuf {
    let mut target = Target::start(source);
    let path = directory.join(name);
    let mut heapbpf = Heapbpf::of(target.pid(), &format!("--interval {interval} -o {}", path.display()));
    let session = heapbpf.start();
    let _ = target.work(line);
    let _ = session.interrupt().expect_code(DONE);
    path
}

/// Runs `heapbpf diff` on two profiles, with arguments separated by blanks.
fn diff(before: &Path, after: &Path, arguments: &str) -> Heapbpf {
    let paths = [before, after].map(|path| path.display().to_string());
    Heapbpf::new(["diff".to_owned()].into_iter().chain(paths).chain(arguments.split_whitespace().map(str::to_owned)))
}

/// Sums a quantity over the callsites whose leaf is this function.
fn of_leaf(report: &Value, function: &str, quantity: &str, field: &str) -> f64 {
    let callsites = report["callsites"].as_array().expect("callsites are a list");
    let callsites = callsites.iter().filter(|callsite| callsite["stack"][0]["function"] == function);
    callsites.map(|callsite| callsite[quantity][field].as_f64().expect("a number")).sum()
}

#[test]
fn recordings_and_their_reports_have_the_same_difference() {
    let directory = tempfile::tempdir().expect("there is a directory for temporary files");
    let before = record("growth.c", "30 5", "1", directory.path(), "before.heapbpf");
    let after = record("growth.c", "20 12", "1", directory.path(), "after.heapbpf");
    let mut heapbpf = diff(&before, &after, "-o growth.json");
    let _ = heapbpf.run().expect_code(DONE);
    let report: Value = serde_json::from_str(&text(&heapbpf.file("growth.json"))).expect("the difference is JSON");
    for (function, growth) in [("Allocate", -100_000.0), ("Allocate2", 70_000.0)] {
        assert_eq!(of_leaf(&report, function, "live_bytes", "growth"), growth, "{function}");
    }
    // A truncated recording is reported, and is incomplete.
    let whole = fs::read(&after).expect("it is there");
    fs::write(&after, &whole[..whole.len() - 1]).expect("it can be written");
    let outcome = diff(&before, &after, "").run().expect_code(INCOMPLETE);
    assert!(outcome.stderr.contains("damaged at byte"), "{}", outcome.stderr);
}

#[test]
fn growth_between_two_processes_is_exact_to_the_byte() {
    let directory = tempfile::tempdir().expect("there is a directory for temporary files");
    let before = record("growth.c", "30 5", "1", directory.path(), "before.json");
    let after = record("growth.c", "20 12", "1", directory.path(), "after.json");
    let mut heapbpf = diff(&before, &after, "-o growth.json -o growth.svg -o growth.folded");
    let outcome = heapbpf.run().expect_code(DONE);
    let report: Value = serde_json::from_str(&text(&heapbpf.file("growth.json"))).expect("the difference is JSON");
    assert_eq!((&report["version"], &report["kind"]), (&Value::from(1), &Value::from("diff")));
    for (function, before, after) in [("Allocate", 30, 20), ("Allocate2", 5, 12)] {
        for (quantity, unit) in [("live_bytes", 10_000), ("live_count", 1), ("alloc_bytes", 10_000), ("alloc_count", 1)]
        {
            let figures = ["before", "after", "growth"].map(|field| of_leaf(&report, function, quantity, field));
            let truth = [before, after, after - before].map(|blocks: i32| f64::from(blocks * unit));
            assert_eq!(figures, truth, "{function}, {quantity}");
        }
    }
    assert_eq!(report["totals"]["live_bytes"]["growth"], -30_000);
    assert_eq!(
        report["callsites"].as_array().map(Vec::len),
        Some(2),
        "other pids and addresses are the same callsites"
    );

    let folded = text(&heapbpf.file("growth.folded"));
    for (frame, values) in [(";Allocate ", "300000 200000"), (";Allocate2 ", "50000 120000")] {
        let line =
            folded.lines().find(|line| line.contains(frame)).unwrap_or_else(|| panic!("no `{frame}` in {folded}"));
        assert!(line.starts_with("growth;") && line.ends_with(values), "{line}");
    }
    let image = text(&heapbpf.file("growth.svg"));
    assert!(image.contains("<title>Allocate2 (+68.4 KiB; 48.8 KiB → 117.2 KiB; 37.50%)</title>"), "{image}");
    for line in
        ["1 callsite that grew, by live bytes", "1 callsite that shrank, by live bytes", "health: both are complete"]
    {
        assert!(outcome.stdout.lines().any(|said| said.starts_with(line)), "no `{line}` in\n{}", outcome.stdout);
    }
}

#[test]
fn nine_tenths_of_the_growth_is_in_one_function() {
    let expected = Expected::blocks(8000.0, 10_000.0, 524_288.0);
    assert_unbiased("growth", || {
        let directory = tempfile::tempdir().expect("there is a directory for temporary files");
        let before = record("growth.c", "80 0", "512KiB", directory.path(), "before.json");
        let after = record("growth.c", "80 8000", "512KiB", directory.path(), "after.json");
        let mut heapbpf = diff(&before, &after, "-o growth.json");
        let outcome = heapbpf.run().expect_code(DONE);
        let report: Value = serde_json::from_str(&text(&heapbpf.file("growth.json"))).expect("the difference is JSON");
        let growth = |quantity| of_leaf(&report, "Allocate2", quantity, "growth");
        let (count, bytes) = (growth("live_count"), growth("live_bytes"));
        let whole = report["totals"]["live_bytes"]["growth"].as_f64().expect("a number");
        assert!(bytes > 0.9 * whole, "{bytes} of {whole}");
        assert!(outcome.stdout.contains(" Allocate2 (growth.c:5) ← work ← main"), "{}", outcome.stdout);
        let mut errors = Errors::default();
        errors.note("growth", &expected, count, bytes);
        // gperftools requires 50 MB to 110 MB.
        errors.note_sigmas("growth, by the bound of gperftools", SIGMAS * (bytes - 80e6) / 30e6);
        errors
    });
}

/// gperftools: more than nine tenths of the growth between two dumps is in `Allocate2`.
#[test]
fn nine_tenths_of_the_growth_between_dumps_is_in_one_function() {
    for interval in ["1", "512KiB"] {
        let mut target = Target::start("staged.c");
        let mut heapbpf = Heapbpf::of(target.pid(), &format!("--interval {interval} -o heap.json"));
        let mut session = heapbpf.start();
        let mut dump = |number: u32| {
            session.signal(Signal::USR1);
            session.wait_for(&format!("heap.{number:04}.json (signal, "));
        };
        dump(1);
        target.work("fill");
        dump(2);
        let _ = session.interrupt().expect_code(DONE);
        let mut compared = diff(&heapbpf.file("heap.0001.json"), &heapbpf.file("heap.0002.json"), "-o growth.json");
        let outcome = compared.run().expect_code(DONE);
        let report: Value = serde_json::from_str(&text(&compared.file("growth.json"))).expect("the difference is JSON");
        let growth = of_leaf(&report, "Allocate2", "live_bytes", "growth");
        let whole = report["totals"]["live_bytes"]["growth"].as_f64().expect("a number");
        assert!(growth > 0.9 * whole && whole > 0.0, "{interval}: {growth} of {whole}");
        if interval == "1" {
            // 360 blocks of 4,000 bytes and 600 of 40,000; 80 of 400.
            assert_eq!((growth, whole), (25_440_000.0, 25_472_000.0));
        }
        assert!(outcome.stdout.contains("Allocate2 (staged.c:"), "{}", outcome.stdout);
        target.assert_running();
    }
}

#[test]
fn equal_profiles_have_no_difference() {
    let directory = tempfile::tempdir().expect("there is a directory for temporary files");
    let path = record("growth.c", "300 500", "4KiB", directory.path(), "heap.json");
    let outcome = diff(&path, &path, "").run().expect_code(DONE);
    assert!(outcome.stdout.contains("No callsite has more or fewer live bytes than before."), "{}", outcome.stdout);
}

#[test]
fn incomplete_profiles_set_the_exit_code() {
    let directory = tempfile::tempdir().expect("there is a directory for temporary files");
    let whole = record("growth.c", "3 0", "1", directory.path(), "whole.json");
    let lossy = directory.path().join("lossy.json");
    let report = text(&whole).replace(r#""lost":{}"#, r#""lost":{"ring_full":7}"#);
    fs::write(&lossy, report).expect("the directory is ours");
    for (before, after, line) in [
        (&whole, &lossy, "  after: incomplete: 7 events dropped ("),
        (&lossy, &whole, "  before: incomplete: 7 events dropped ("),
    ] {
        let outcome = diff(before, after, "").run().expect_code(INCOMPLETE);
        assert!(outcome.stdout.lines().any(|said| said.starts_with(line)), "no `{line}` in\n{}", outcome.stdout);
    }
}

#[test]
fn invalid_profiles_are_rejected_before_anything_is_written() {
    let directory = tempfile::tempdir().expect("there is a directory for temporary files");
    let image = directory.path().join("heap.svg");
    fs::write(&image, "<?xml version=\"1.0\"?><svg/>").expect("the directory is ours");
    let missing = directory.path().join("missing.json");
    for (path, reason) in [(&image, "it is an image"), (&missing, "No such file")] {
        let mut heapbpf = diff(path, path, "-o growth.svg");
        let error = heapbpf.run().expect_error(FAILED);
        assert!(error.contains(&format!("`{}`", path.display())) && error.contains(reason), "{error}");
        assert_eq!(heapbpf.files(), Vec::<String>::new());
    }
    let error = Heapbpf::new(["diff", "only-one.json"]).run().expect_error(WRONG_USAGE);
    assert!(error.contains("<AFTER>"), "{error}");
    let error = diff(&image, &image, "--view size").run().expect_error(WRONG_USAGE);
    assert!(error.contains("`size`"), "{error}");
}
