//! The page's tables, filters, links, exports and accessibility: `html_panels.py` uses them in Chromium.

use std::path::{Path, PathBuf};

use heapbpf_tests::viewers;
use serde_json::{Value, json};

use super::fixture::{Fixture, number};
use super::html::{amount, run_scene, size, text, texts};

#[track_caller]
fn scene(name: &str) -> Value {
    run_scene("html_panels.py", name, Fixture::exact())
}

/// Live bytes of the callsites of one process that a condition on their functions' names selects.
#[track_caller]
fn live(target: Option<usize>, is_wanted: impl Fn(&[&str]) -> bool) -> f64 {
    let targets = Fixture::exact().json["targets"].as_array().expect("targets");
    let chosen = targets.iter().enumerate().filter(|(at, _)| target.is_none_or(|target| target == *at));
    let callsites = chosen.flat_map(|(_, target)| target["callsites"].as_array().expect("callsites"));
    let under = |callsite: &&Value| {
        let stack = callsite["stack"].as_array().expect("a stack");
        let names: Vec<&str> = stack.iter().filter_map(|frame| frame["function"].as_str()).collect();
        is_wanted(&names)
    };
    callsites.filter(under).map(|callsite| number(callsite, "live_bytes")).sum()
}

/// Whether a function has this name, with or without parameters.
fn is_named(function: &str, name: &str) -> bool {
    function.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('('))
}

/// Asserts that a text, rounded to a tenth of its unit, is an amount.
#[track_caller]
fn assert_rounded(text: &str, expected: f64) {
    assert!((size(text) - expected).abs() <= expected * 0.06 + 0.5, "{text} is not {expected}");
}

#[test]
fn tables_and_trees_have_the_reports_amounts() {
    let seen = scene("panels");
    let functions = seen["functions"].as_array().expect("rows");
    let row = |name: &str| {
        let row = functions.iter().find(|row| row[2].as_str().is_some_and(|text| text.contains(name)));
        row.unwrap_or_else(|| panic!("no `{name}` in {functions:?}"))
    };
    for name in ["picks", "presses", "stores"] {
        let expected = live(Some(0), |names| names.first().is_some_and(|leaf| is_named(leaf, name)));
        assert_rounded(row(name)[0].as_str().expect("self"), expected);
        assert_rounded(row(name)[1].as_str().expect("inclusive"), expected);
    }
    let work = live(Some(0), |names| names.iter().any(|one| is_named(one, "work")));
    assert_eq!(row("work")[0], "0 B");
    assert_rounded(row("work")[1].as_str().expect("inclusive"), work);

    let names = |pointer: &str| seen[pointer].to_string();
    assert!(text(&seen, "/selected").starts_with("stores"), "{}", seen["selected"]);
    assert!(names("callers").contains("hand") && names("callers").contains("work"), "{}", seen["callers"]);
    assert_eq!(seen["callees"], 0, "it calls nothing but the allocator");
    assert!(names("modules").contains("orchard") && names("modules").contains("libc"), "{}", seen["modules"]);
    assert_eq!(texts(&seen, "/sizes").len(), 3);
    assert!(text(&seen, "/leaf/2").contains("picks"), "{}", seen["leaf"]);
    assert_eq!(seen["tree"]["role"], "treegrid");
    assert_eq!(seen["tree"]["closed"], json!([["1", "false"], 1]));
    assert_eq!(seen["tree"]["child"], json!(["2", "true"]));
    assert_eq!(seen["tree"]["home"], json!(["1", "true"]));
}

#[test]
fn filters_and_threads_apply_to_everything() {
    let seen = scene("filters");
    let all = amount(&seen, "/all");
    let stores = live(None, |names| names.iter().any(|one| is_named(one, "stores")));
    assert!((amount(&seen, "/focus/whole") - stores).abs() < 1e-6, "{} is not {stores}", seen["focus"]);
    assert!((amount(&seen, "/ignore/whole") - (all - stores)).abs() < 1e-6, "{}", seen["ignore"]);
    assert!((amount(&seen, "/hide/whole") - all).abs() < 1e-6, "{}", seen["hide"]);
    assert_rounded(text(&seen, "/focus/card"), stores);
    assert!(text(&seen, "/focus/matched").starts_with("100.0%"), "{}", seen["focus"]);
    assert!(text(&seen, "/ignore/matched").starts_with("0.0%"), "{}", seen["ignore"]);
    assert!(text(&seen, "/refused").contains("regular expression"));
    assert!(!text(&seen, "/words").starts_with("0.0%") && text(&seen, "/no_words").starts_with("0.0%"));
    let threads: Vec<f64> = [0, 1].iter().map(|at| amount(&seen, &format!("/by_thread/{at}/0"))).collect();
    assert!(threads.iter().all(|live| *live > 0.0) && (threads.iter().sum::<f64>() - all).abs() < 1e-6, "{threads:?}");
    let zeros: f64 = text(&seen, "/zeros").split(' ').next().and_then(|digits| digits.parse().ok()).expect("a number");
    assert!(zeros > 0.0 && text(&seen, "/zeros").ends_with("rows of 0 B: show"), "{}", seen["zeros"]);
    assert!((amount(&seen, "/unfolded") - zeros).abs() < 1e-6, "{}", seen["unfolded"]);
    assert!(amount(&seen, "/peak/whole") > all, "{}", seen["peak"]);
    assert!(text(&seen, "/peak/subject").contains("peak"));
    assert!(text(&seen, "/leaks").contains("start to dump 1"), "{}", seen["leaks"]);
}

#[test]
fn the_address_contains_the_state() {
    let seen = scene("links");
    assert_eq!(seen["plain"], "");
    assert!(text(&seen, "/fragment").contains("view=alloc-count"), "{}", seen["fragment"]);
    assert_eq!(seen["made"], seen["opened"]);
    assert_eq!(seen["made"]["reversed"], "true");
    assert_eq!(seen["made"]["filters"], "plugin_.*");
    assert!(text(&seen, "/changed/0").starts_with("live blocks") && text(&seen, "/changed/1") == "Functions");
    assert!(text(&seen, "/ignored").starts_with("live bytes, the whole recording"), "{}", seen["ignored"]);
}

#[test]
fn exports_have_the_amounts_of_the_view() {
    let seen = scene("exports");
    let folder = PathBuf::from(text(&seen, "/folder"));
    let path = |format: &str| folder.join(seen[format].as_str().unwrap_or_else(|| panic!("no {format}")));
    let read = |path: &Path| std::fs::read_to_string(path).expect("it was downloaded");
    let whole = amount(&seen, "/live");

    let folded = read(&path("folded"));
    let amounts = folded.lines().filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    assert!((amounts.sum::<f64>() - whole).abs() < 1.0, "{whole}");
    let csv = read(&path("callsites.csv"));
    let rows = csv.split("\r\n").skip(1).filter_map(|row| row.split(',').next()?.parse::<f64>().ok());
    assert!((rows.sum::<f64>() - whole).abs() < 1.0, "{whole}");
    assert!(read(&path("functions.csv")).starts_with("function,module,live_bytes_self,live_bytes_inclusive,"));
    let pprof = viewers::node("pprof.cjs", &[&path("pb.gz")]);
    let values = pprof["samples"].as_array().expect("samples").iter().filter_map(|sample| sample["values"][0].as_f64());
    assert!((values.sum::<f64>() - whole).abs() < 1.0, "{whole}");
    assert_eq!(pprof["default_sample_type"], "inuse_space");
    assert!(amount(&seen, "/svg_frames") > 50.0, "{}", seen["svg_frames"]);
    assert!(std::fs::read(path("png")).expect("it was downloaded").starts_with(b"\x89PNG\r\n"));
    assert!(text(&seen, "/stack").lines().count() > 2 && text(&seen, "/stack").contains("orchard.cpp:"));
}

#[test]
fn source_lines_are_shown_and_paths_copied() {
    let seen = scene("source");
    let (file, line) = text(&seen, "/place").rsplit_once(':').expect("a file and a line");
    assert!(text(&seen, "/marked").contains(&format!("<b>line {line}</b>")), "{}", seen["marked"]);
    assert_eq!(seen["bold"], 0, "source became markup");
    assert!(text(&seen, "/refused").contains("scheme") && seen["edit_before"] == 0, "{}", seen["refused"]);
    assert_eq!(text(&seen, "/edit"), format!("vscode://file{file}:{line}"));
    assert_eq!(seen["copied"], seen["place"]);
}

#[test]
#[ignore = "part of `cargo xtask nightly --suite page`"]
fn it_is_accessible() {
    let seen = scene("access");
    assert_eq!(seen["violations"], json!([]));
    assert!(amount(&seen, "/checks") > 500.0, "axe ran: {}", seen["checks"]);
    assert!(amount(&seen, "/above_the_fold") < 520.0, "the flame graph is at {}", seen["above_the_fold"]);
}
