//! The page in Chromium: its numbers equal the report's, its controls work, and no name escapes from its data.

use std::path::PathBuf;

use heapbpf_tests::viewers;
use serde_json::Value;

use super::fixture::{Fixture, VIEWS, number};

#[track_caller]
fn scene(name: &str, fixture: &Fixture) -> Value {
    run_scene("html.py", name, fixture)
}

/// Runs a scene of a script on the recording's page; fails on errors, and if the page loads or runs anything foreign.
#[track_caller]
pub(crate) fn run_scene(script: &str, name: &str, fixture: &Fixture) -> Value {
    let page = fixture.converted("html", "");
    let folder = page.with_extension("");
    std::fs::create_dir_all(&folder).expect("the build directory is ours");
    let mut arguments = vec![PathBuf::from(name), page];
    arguments.extend((name != "keys").then_some(folder));
    let seen = viewers::python(script, &arguments);
    assert_eq!(seen["complaints"], serde_json::json!([]), "there were errors");
    assert_eq!(seen["requests"], serde_json::json!([]), "something was loaded");
    assert_eq!(seen["owned"], Value::Null, "a script ran that is not the page's");
    seen
}

#[track_caller]
pub(crate) fn text<'a>(seen: &'a Value, pointer: &str) -> &'a str {
    seen.pointer(pointer).and_then(Value::as_str).unwrap_or_else(|| panic!("no text at {pointer} in {seen:.2000}"))
}

#[track_caller]
pub(crate) fn amount(seen: &Value, pointer: &str) -> f64 {
    seen.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("no number at {pointer} in {seen:.2000}"))
}

#[track_caller]
pub(crate) fn texts(seen: &Value, pointer: &str) -> Vec<String> {
    let list = seen.pointer(pointer).and_then(Value::as_array).unwrap_or_else(|| panic!("no list at {pointer}"));
    list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Parses `17.3 MiB` as bytes, `12.5%` as percent, and the like.
pub(crate) fn size(text: &str) -> f64 {
    let (digits, unit) = text.split_once(' ').unwrap_or((text, ""));
    let scale = match unit {
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        _ => 1.0,
    };
    let digits = digits.replace('−', "-").replace([',', '+'], "");
    digits.parse::<f64>().map_or(-1.0, |number| number * scale)
}

#[track_caller]
fn total(report: &Value, field: &str) -> f64 {
    report["targets"].as_array().expect("targets").iter().map(|target| number(&target["totals"], field)).sum()
}

#[test]
#[expect(clippy::print_stdout, reason = "figures are for people")]
fn controls_work() {
    let fixture = Fixture::exact();
    let seen = scene("walk", fixture);
    println!("drawn in {} ms", seen["drawn_ms"]);
    assert!(text(&seen, "/title").ends_with("– heapbpf"));
    for (view, field) in VIEWS {
        assert!((amount(&seen, &format!("/views/{view}/whole")) - fixture.total(field)).abs() < 1e-6, "{view}");
    }

    // Zoom, by mouse and by keyboard; search; reversal; focus.
    assert!(text(&seen, "/tip").contains("of all"), "{}", seen["tip"]);
    assert_ne!(text(&seen, "/zoomed/name"), "all");
    assert!(amount(&seen, "/zoomed/whole") < amount(&seen, "/reset/whole"));
    assert_eq!(text(&seen, "/reset/name"), "all");
    assert_ne!(text(&seen, "/by_keys"), "all");
    assert_eq!(seen["reset_is_offered"], true);
    assert!(text(&seen, "/matched").contains('%') && !text(&seen, "/matched").contains(" 0.0%"), "{}", seen["matched"]);
    assert!(text(&seen, "/unmatched").contains("0.0%"), "{}", seen["unmatched"]);
    assert!(text(&seen, "/refused").contains("regular expression"), "{}", seen["refused"]);
    assert_eq!(text(&seen, "/reversed/pressed"), "true");
    let ours = ["picks", "presses", "stores", "plugin_keeps"];
    let innermost = text(&seen, "/reversed/first");
    assert!(ours.iter().any(|name| innermost.starts_with(name)), "{innermost}");
    assert!(text(&seen, "/focus/text").contains(innermost), "{}", seen["focus"]);
    let under = |callsite: &&Value| {
        let stack = callsite["stack"].as_array().expect("stacks are lists");
        stack.iter().any(|frame| frame["function"] == innermost)
    };
    let held: f64 = fixture.callsites().filter(under).map(|callsite| number(callsite, "live_bytes")).sum();
    assert!((amount(&seen, "/focus/whole") - held).abs() < 1e-6, "{} is not {held}", seen["focus"]);
    assert!(text(&seen, "/legend").contains("program"));

    // The table.
    assert_eq!(text(&seen, "/sorted/state"), "descending");
    assert_eq!(text(&seen, "/sorted/focus"), "mean");
    let sizes = |pointer| texts(&seen, pointer).iter().map(|text| size(text)).collect::<Vec<_>>();
    assert!(sizes("/sorted/down").is_sorted_by(|one, other| one >= other), "{}", seen["sorted"]);
    assert!(sizes("/sorted/up").is_sorted(), "{}", seen["sorted"]);
    assert_eq!(text(&seen, "/opened/expanded"), "true");
    assert!(texts(&seen, "/opened/stack").iter().any(|frame| frame.contains("orchard.cpp:")), "{}", seen["opened"]);
    assert_eq!(texts(&seen, "/opened/histograms").len(), 3);
    assert!(amount(&seen, "/opened/bars") >= 2.0);
    assert!(text(&seen, "/health").contains("Nothing was lost"), "{}", seen["health"]);
    assert_eq!(texts(&seen, "/theme"), ["light", "Theme: light"]);
}

#[test]
fn windows_can_be_chosen_and_compared() {
    let fixture = Fixture::exact();
    let seen = scene("walk", fixture);
    let [first, last] = [1, 2].map(|number| fixture.window(number));
    assert!(texts(&seen, "/points").iter().any(|point| point.starts_with("dump 1 (")), "{}", seen["points"]);
    assert!(text(&seen, "/value").contains(" bytes)"), "{}", seen["value"]);
    let close = |pointer: &str, expected: f64| {
        let actual = amount(&seen, pointer);
        assert!((actual - expected).abs() < 1e-6, "{pointer}: {actual} is not {expected}");
    };
    // The last window ends with the recording, and so does a process that exits while the recording ends.
    let points = texts(&seen, "/points");
    assert!(points.last().is_some_and(|point| point.starts_with("dump 2 (")), "{points:?}");
    close("/last_window/whole", total(&last, "alloc_bytes"));
    close("/window_before/whole", total(&first, "alloc_bytes"));
    close("/all_again", fixture.total("alloc_bytes"));
    assert!(text(&seen, "/window_before/text").contains("start to dump 1"), "{}", seen["window_before"]);
    assert_ne!(seen["dragged"][0], seen["dragged"][1]);

    // Growth since the dump, in total and by callsite.
    let grown = total(&last, "live_bytes") - total(&first, "live_bytes");
    let detail = text(&seen, "/compared/detail");
    assert!(detail.starts_with(if grown > 0.0 { '+' } else { '−' }), "{detail}, grown by {grown}");
    let named = size(detail.split(" (").next().expect("a growth"));
    assert!((named - grown).abs() <= grown.abs() * 0.06 + 1.0, "{detail}, grown by {grown}");
    assert!(text(&seen, "/compared/legend").contains("grew"));
    assert_eq!(text(&seen, "/compared/head").trim_end_matches(['▾', ' ']), "Growth");
    let growth: Vec<f64> = texts(&seen, "/compared/growth").iter().map(|text| size(text)).collect();
    assert!(growth.is_sorted_by(|one, other| one >= other) && growth[0] > 0.0, "{growth:?}");
    assert!(text(&seen, "/compared/text").contains("compared with"));
}

#[test]
fn processes_and_groups_can_be_chosen() {
    let fixture = Fixture::exact();
    let seen = scene("walk", fixture);
    assert_eq!(texts(&seen, "/targets").len(), 3, "all, the process, its child");
    let mut live: Vec<f64> = fixture.json["targets"]
        .as_array()
        .expect("targets")
        .iter()
        .map(|target| number(&target["totals"], "live_bytes"))
        .collect();
    let mut shown = [0, 1].map(|at| amount(&seen, &format!("/by_target/{at}/whole")));
    live.sort_by(f64::total_cmp);
    shown.sort_by(f64::total_cmp);
    assert_eq!(live, shown);
    assert!(texts(&seen, "/groups").contains(&"command".to_owned()));
    assert!(text(&seen, "/group").contains("orchard"), "{}", seen["group"]);
}

#[test]
fn everything_is_reachable_by_keyboard() {
    let seen = scene("keys", Fixture::exact());
    let reached = texts(&seen, "/reached");
    let wanted = [
        "theme",
        "target",
        "search",
        "filters-toggle",
        "view-live-bytes",
        "period-from",
        "period-to",
        "compare",
        "flame-reverse",
        "flame-colour",
        "flame-scroller",
        "tab-callsites",
        "share",
        "where",
    ];
    let places: Vec<Option<usize>> = wanted.iter().map(|name| reached.iter().position(|one| one == name)).collect();
    assert!(places.iter().all(Option::is_some), "{wanted:?} at {places:?} in {reached:?}");
    assert!(places.is_sorted(), "the order is that of the page: {reached:?}");
    assert_eq!(seen["unseen"], serde_json::json!([]), "all controls have a visible focus and a label");
    assert_eq!(seen["arrow"], serde_json::json!(["view-live-count", "true"]));
}

#[test]
fn hostile_names_do_nothing() {
    let fixture = Fixture::exact();
    let seen = scene("hostile", fixture);
    assert_eq!(seen["made"], 0, "a name became an element");
    assert_eq!(seen["scripts"], 2);
    assert!(text(&seen, "/matched").contains('%'));
    assert!(amount(&seen, "/longest") > 8_000.0, "names of 10 kB are there as a whole");
    let by_heap: f64 = seen["by_heap"].as_array().expect("heaps").iter().filter_map(Value::as_f64).sum();
    assert_eq!(amount(&seen, "/heaps"), 3.0);
    assert!((by_heap - amount(&seen, "/all")).abs() < 1e-6, "{} is not {by_heap}", seen["all"]);
    // The same page shows that events were dropped: then it calls nothing exact.
    assert_eq!(text(&seen, "/note"), "exact except for losses");
    assert!(text(&seen, "/accuracy").contains("3 events were lost"), "{}", seen["accuracy"]);
}

#[test]
#[ignore = "part of `cargo xtask nightly --suite page`"]
#[expect(clippy::print_stdout, reason = "figures are for people")]
fn ten_thousand_callsites_of_forty_frames() {
    let seen = scene("large", Fixture::exact());
    println!("{} places in stacks, {} bytes, drawn in {} ms", seen["nodes"], seen["bytes"], seen["drawn_ms"]);
    assert!(amount(&seen, "/nodes") > 300_000.0);
    assert!(amount(&seen, "/bytes") <= f64::from(2 << 20));
    assert!(text(&seen, "/matched").contains('%'));
    assert_eq!((amount(&seen, "/rows"), amount(&seen, "/more_rows")), (50.0, 100.0));
}

#[test]
fn without_a_history_everything_but_the_timeline_works() {
    let fixture = Fixture::exact();
    let seen = scene("plain", fixture);
    assert!(text(&seen, "/text").contains("no history"), "{}", seen["text"]);
    assert_eq!(seen["chart"], false);
    assert!(amount(&seen, "/whole") > 0.0);
    assert_eq!(seen["histograms"], 3);
}

#[test]
fn unavailable_parts_are_explained() {
    let seen = scene("damaged", Fixture::exact());
    assert!(text(&seen, "/damaged").contains("damaged"), "{}", seen["damaged"]);
    assert!(text(&seen, "/old").contains("DecompressionStream"), "{}", seen["old"]);
}

#[test]
#[ignore = "part of `cargo xtask nightly --suite page`"]
fn it_fits_narrow_and_wide_windows_in_light_and_dark() {
    let seen = scene("pictures", Fixture::exact());
    assert_eq!(seen["overflows"], serde_json::json!([]), "it is wider than the window");
    for width in ["1280", "390"] {
        assert_ne!(seen[format!("{width} light")], seen[format!("{width} dark")]);
    }
}
