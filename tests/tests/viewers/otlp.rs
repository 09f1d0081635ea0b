//! OTLP, decoded by the messages that OpenTelemetry publishes for Python.

use serde_json::Value;

use super::fixture::{Fixture, number};

/// Sample types and units, and their fields in the JSON report.
const TYPES: [(&str, &str, &str); 4] = [
    ("inuse_space", "bytes", "live_bytes"),
    ("inuse_objects", "count", "live_count"),
    ("alloc_space", "bytes", "alloc_bytes"),
    ("alloc_objects", "count", "alloc_count"),
];

#[track_caller]
fn decoded(fixture: &Fixture, arguments: &str) -> Value {
    fixture.read_by("otlp.py", "otlp", arguments)
}

#[test]
fn each_process_is_a_resource_whose_four_profiles_add_up() {
    let fixture = Fixture::exact();
    let request = decoded(fixture, "");
    let targets = fixture.json["targets"].as_array().expect("a report has targets");
    let resources = request["resources"].as_array().expect("a list");
    assert_eq!(resources.len(), targets.len());
    for (target, resource) in targets.iter().zip(resources) {
        assert_eq!(resource["attributes"]["process.pid"], target["pid"]);
        assert_eq!(resource["attributes"]["process.command"], target["command"]);
        for ((name, unit, field), profile) in TYPES.into_iter().zip(resource["profiles"].as_array().expect("a list")) {
            assert_eq!(profile["type"], serde_json::json!([name, unit]));
            assert_eq!((&profile["period"], &profile["attributes"]["heapbpf.incomplete"]), (&1.into(), &false.into()));
            let (sum, expected) = (number(profile, "sum"), number(&target["totals"], field));
            assert!((sum - expected).abs() < 0.5, "{name}: {sum}, not {expected}");
        }
    }
}

#[test]
fn the_profile_of_the_view_is_first() {
    let request = decoded(Fixture::exact(), "--view alloc-count");
    assert_eq!(request["resources"][0]["profiles"][0]["type"][0], "alloc_objects");
}

#[test]
fn tables_conform_to_the_specification() {
    let fixture = Fixture::sampled();
    let request = decoded(fixture, "");
    assert_eq!(request["complaints"], serde_json::json!([]));
    let has = |list: &str, name: &str| {
        request[list].as_array().expect("a list").iter().any(|own| own.to_string().contains(name))
    };
    assert!(has("functions", "orchard::Branch<orchard::Season<std::pair<"), "templates keep their names");
    assert!(has("build_ids", "orchard"), "{}", request["build_ids"]);
    assert!(request["inlined"].as_u64().is_some_and(|locations| locations > 0));
    assert_eq!(request["resources"][0]["profiles"][0]["period"], 4096);
}
