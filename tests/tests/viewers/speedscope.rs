//! speedscope's files: by its schema, and in its app.

use std::collections::BTreeMap;

use heapbpf_tests::viewers;
use serde_json::Value;

use super::fixture::{Fixture, VIEWS, read};

/// Returns stacks with their weights.
fn stacks(profile: &Value) -> BTreeMap<String, u64> {
    let mut stacks = BTreeMap::new();
    for stack in profile["stacks"].as_array().expect("it has stacks") {
        *stacks.entry(stack[0].to_string()).or_default() += stack[1].as_u64().expect("weights are whole");
    }
    stacks
}

/// The same for a profile of a file, without the app.
fn written(file: &Value, profile: usize) -> BTreeMap<String, u64> {
    let profile = &file["profiles"][profile];
    let name = |frame: &Value| {
        let number = usize::try_from(frame.as_u64().expect("a number")).expect("small");
        file["shared"]["frames"][number]["name"].clone()
    };
    let (samples, weights) = (profile["samples"].as_array(), profile["weights"].as_array());
    let mut stacks = BTreeMap::new();
    for (sample, weight) in samples.expect("a list").iter().zip(weights.expect("a list")) {
        let names: Value = sample.as_array().expect("a list").iter().map(name).collect();
        *stacks.entry(names.to_string()).or_default() += weight.as_u64().expect("weights are whole");
    }
    stacks
}

#[test]
fn the_app_has_every_stack_of_every_view_and_shows_the_selected_one() {
    let fixture = Fixture::exact();
    let path = fixture.converted("speedscope.json", "--view alloc-bytes");
    let picture = path.with_extension("png");
    let opened = viewers::python("speedscope.py", &[&path, &picture]);
    assert_eq!(opened["complaints"].as_array().map(Vec::len), Some(0), "{}", opened["complaints"]);
    assert_eq!(opened["active"], 2, "allocated bytes are the third");
    let file = read(&path);
    for (number, (view, field)) in VIEWS.into_iter().enumerate() {
        let profile = &opened["profiles"][number];
        assert_eq!(profile["unit"], if field.ends_with("bytes") { "bytes" } else { "none" });
        let read = stacks(profile);
        #[expect(clippy::cast_precision_loss, reason = "some megabytes")]
        let sum = read.values().sum::<u64>() as f64;
        assert!((sum - fixture.total(field)).abs() < 0.5, "{view}: {sum}, not {}", fixture.total(field));
        assert!(read.len() > 500 && read == written(&file, number), "{view}: {} stacks", read.len());
    }
    assert!(opened["frames"].to_string().contains("orchard::Branch<orchard::Season<std::pair<"));
}

#[test]
fn files_match_the_apps_schema() {
    let schema = viewers::folder().join("node_modules/speedscope/dist/release/file-format-schema.json");
    let grouped = Fixture::exact().converted("speedscope.json", "--by heap,command");
    let checked = viewers::python("schema.py", &[schema, grouped, Fixture::sampled().converted("speedscope.json", "")]);
    assert_eq!(checked["wrong"], serde_json::json!([]));
}
