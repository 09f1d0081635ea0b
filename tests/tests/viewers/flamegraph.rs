//! The flame graph in Chromium: its frames, texts and search.

use std::path::Path;
use std::process::Command;

use heapbpf_tests::heapbpf::binary;
use heapbpf_tests::viewers;
use serde_json::Value;

use super::fixture::{Fixture, VIEWS};

/// Opens a graph in Chromium, and saves a screenshot beside it.
#[track_caller]
pub(crate) fn open(graph: &Path, searched: &str, zoomed: &str) -> Value {
    let picture = graph.with_extension("png");
    let arguments = [graph.as_os_str(), picture.as_os_str(), searched.as_ref(), zoomed.as_ref()];
    let opened = viewers::python("flamegraph.py", &arguments);
    assert_eq!(opened["complaints"], serde_json::json!([]), "Chromium complains");
    assert_eq!(opened["owned"], Value::Null, "a script ran that is not ours");
    opened
}

/// A frame's title and position.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) title: &'a str,
    fill: &'a str,
    y: f64,
    width: f64,
}

#[track_caller]
pub(crate) fn frames(list: &Value) -> Vec<Frame<'_>> {
    let list = list.as_array().expect("frames are a list");
    let number = |frame: &Value, field: &str| frame[field].as_f64().expect("a place is a number");
    list.iter()
        .map(|frame| Frame {
            title: frame["title"].as_str().expect("frames have titles"),
            fill: frame["fill"].as_str().expect("frames have colours"),
            y: number(frame, "y"),
            width: number(frame, "width"),
        })
        .collect()
}

/// Returns the first frame whose title starts so.
#[track_caller]
fn find<'a, 'b>(frames: &'b [Frame<'a>], title: &str) -> &'b Frame<'a> {
    frames.iter().find(|frame| frame.title.starts_with(title)).unwrap_or_else(|| panic!("no frame `{title}`"))
}

/// Parses the number of a title: `name (1,234 bytes, 5.67%)`.
#[track_caller]
fn amount(title: &str) -> f64 {
    let numbers = title.rsplit_once(" (").expect("a title ends in numbers").1;
    let digits: String = numbers.chars().take_while(|c| *c != ' ').filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|error| panic!("{error} in {title}"))
}

/// Opens the graph of a view and compares it with the report; returns the texts around it.
#[track_caller]
fn check(fixture: &Fixture, (view, field): (&str, &str), off: f64) -> String {
    let opened = open(&fixture.converted("svg", &format!("--view {view}")), "", "");
    let frames = frames(&opened["frames"]);
    let (all, expected) = (amount(find(&frames, "all (").title), fixture.total(field));
    assert!((all - expected).abs() <= off, "{view}: {all}, not {expected}");
    let texts = opened["texts"].to_string();
    let legend = opened["legend"].to_string();
    assert!(legend.contains("orchard") && legend.contains("allocator or runtime"), "{legend}");
    let kind = if view.starts_with("live") { "live " } else { "allocated " };
    assert!(texts.contains(kind) && texts.contains("of 2 processes") && texts.contains("complete"), "{texts}");
    texts
}

#[test]
fn the_four_views_are_drawn_and_add_up_to_the_report() {
    for view in VIEWS {
        let texts = check(Fixture::exact(), view, 0.5);
        assert!(texts.contains("every allocation") && !texts.contains("95 %"), "{texts}");
    }
    // Estimates of each of a thousand callsites are rounded separately.
    let texts = check(Fixture::sampled(), VIEWS[0], 1000.0);
    assert!(texts.contains("sampled every 4 KiB") && texts.contains("(95 %: "), "{texts}");
}

#[test]
fn frames_can_be_searched_and_zoomed() {
    let fixture = Fixture::exact();
    let own = format!("orchard ({})", fixture.pid);
    let opened = open(&fixture.converted("svg", ""), "Branch<.*, 3, 5>::climb", &own);

    let details = opened["details"].as_str().expect("details are shown on hover");
    assert!(details.contains(&own) && details.contains(" bytes, "), "{details}");

    let found = opened["found"].as_array().expect("a list");
    let is_right = |title: &Value| title.as_str().is_some_and(|title| title.contains(", 3, 5>::climb(int, int) ("));
    // In the process and in its forked copy.
    assert_eq!(found.iter().filter(|title| is_right(title)).count(), 2, "{found:?}");
    assert_eq!(found.len(), 2);
    let matched = opened["matched"].as_str().expect("the matched share is shown");
    assert!(matched.starts_with("Matched: ") && matched.ends_with('%'), "{matched}");

    let (before, zoomed, after) = (frames(&opened["frames"]), frames(&opened["zoomed"]), frames(&opened["unzoomed"]));
    let width = |frames: &[Frame<'_>]| find(frames, &own).width;
    assert!((width(&zoomed) - find(&before, "all (").width).abs() < 1.0, "{} pixels", width(&zoomed));
    assert!(width(&before) < 0.7 * width(&zoomed));
    assert!(zoomed.len() < before.len());
    assert!((width(&after) - width(&before)).abs() < 0.1, "zooming out is undoing");
}

#[test]
#[ignore = "part of `cargo xtask nightly --suite page`"]
fn frames_are_dark_in_dark_mode() {
    let opened = open(&Fixture::exact().converted("svg", ""), "picks", "");
    let dark = |fill: &str| rgb(fill).into_iter().all(|channel| channel < 130);
    let fills = opened["dark"]["frames"].as_array().expect("a list");
    assert!(fills.len() > 1 && fills.iter().all(|fill| fill.as_str().is_some_and(dark)), "{fills:?}");
    assert!(opened["dark"]["ground"].as_str().is_some_and(dark), "{}", opened["dark"]);
    let light = frames(&opened["frames"]);
    assert!(light.iter().all(|frame| rgb(frame.fill).into_iter().max() > Some(180)), "{light:?}");
}

#[test]
#[ignore = "part of `cargo xtask nightly --suite page`"]
fn an_icicle_has_its_root_at_the_top() {
    let fixture = Fixture::exact();
    let deepest = |arguments: &str| {
        let opened = open(&fixture.converted("svg", arguments), "picks", "");
        let frames = frames(&opened["frames"]);
        let (root, leaf) = (find(&frames, "all (").y, find(&frames, "picks (").y);
        (root, leaf)
    };
    let ((root, leaf), (icicle_root, icicle_leaf)) = (deepest(""), deepest("--icicle"));
    assert!(root > leaf, "the root is at the bottom: {root}, {leaf}");
    assert!(icicle_root < icicle_leaf, "the root is at the top: {icicle_root}, {icicle_leaf}");
}

#[test]
fn growth_is_red_and_shown_on_hover() {
    let fixture = Fixture::exact();
    let [before, after] = fixture.windows("json");
    let graph = after.with_extension("diff.svg");
    let mut diff = Command::new(binary());
    let _ = viewers::text(diff.arg("diff").args([&before, &after]).arg("-o").arg(&graph).env("NO_COLOR", "1"));
    let opened = open(&graph, "", "");
    let frames = frames(&opened["frames"]);
    let stores = find(&frames, "stores (");
    assert!(stores.title.contains("; 0 B → "), "{}", stores.title);
    let [red, green, blue] = rgb(stores.fill);
    assert!(red > 200 && green < 150 && blue < 150, "{}", stores.fill);
    assert!(opened["legend"].to_string().contains("\"grew\",\"shrank\""), "{}", opened["legend"]);
    assert!(opened["details"].as_str().is_some_and(|told| told.contains(" → ")), "{}", opened["details"]);
}

fn rgb(fill: &str) -> [u8; 3] {
    let numbers = fill.trim_start_matches("rgb(").trim_end_matches(')');
    let numbers: Vec<u8> = numbers.split(',').map(|number| number.trim().parse().expect("a colour")).collect();
    numbers.try_into().expect("three colours")
}
