//! The flame graph in Chromium: what it shows, tells and finds.

use std::path::Path;

use heapbpf_tests::viewers;
use serde_json::Value;

use crate::fixture::{Fixture, VIEWS};

/// A graph opened in Chromium, with a screenshot beside it.
#[track_caller]
fn open(graph: &Path, searched: &str, zoomed: &str) -> Value {
    let picture = graph.with_extension("png");
    let arguments = [graph.as_os_str(), picture.as_os_str(), searched.as_ref(), zoomed.as_ref()];
    let opened = viewers::python("flamegraph.py", &arguments);
    assert_eq!(opened["complaints"].as_array().map(Vec::len), Some(0), "{}", opened["complaints"]);
    assert_eq!(opened["owned"], Value::Null, "a script ran that is not ours");
    opened
}

/// The number of a title: `name (1,234 bytes, 5.67%)`.
fn amount(title: &str) -> f64 {
    let numbers = title.rsplit_once(" (").expect("a title ends in numbers").1;
    let digits: String = numbers.chars().take_while(|c| *c != ' ').filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|error| panic!("{error} in {title}"))
}

#[test]
fn the_four_views_are_drawn_and_add_up_to_the_report() {
    let fixture = Fixture::exact();
    for (view, field) in VIEWS {
        let graph = fixture.converted("svg", &format!("--view {view}"));
        let opened = open(&graph, "Branch<", "orchard (");
        let frames = opened["frames"].as_array().expect("there are frames");
        let all = frames.iter().filter_map(|frame| frame["title"].as_str()).find(|title| title.starts_with("all ("));
        let all = amount(all.expect("everything is a frame"));
        assert!((all - fixture.total(field)).abs() < 0.5, "{view}: {all}, not {}", fixture.total(field));
        let texts = opened["texts"].to_string();
        assert!(texts.contains(if view.starts_with("live") { "live" } else { "allocated" }), "{texts}");
        assert!(opened["found"].as_array().is_some_and(|found| found.len() > 50), "{}", opened["found"]);
    }
}
