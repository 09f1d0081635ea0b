//! The JSON report, checked against its schema by PyPI's jsonschema-rs.

use std::path::{Path, PathBuf};

use heapbpf_tests::viewers;

use super::fixture::Fixture;

#[test]
fn reports_and_goldens_match_the_schema() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests are in the repository");
    let goldens = repository.join("profiler/crates/report/src/testdata/json");
    let goldens = std::fs::read_dir(goldens).expect("there are goldens").map(|entry| entry.expect("readable").path());
    let mut paths: Vec<PathBuf> = vec![repository.join("docs/report.schema.json")];
    paths.extend(goldens);
    for fixture in [Fixture::exact(), Fixture::sampled()] {
        paths.extend(fixture.windows("json"));
        paths.push(fixture.converted("json", ""));
    }
    assert!(paths.len() >= 10, "{paths:?}");
    let checked = viewers::python("schema.py", &paths);
    assert_eq!(checked["draft"], "https://json-schema.org/draft/2020-12/schema");
    assert_eq!(checked["validator"], "Draft202012Validator");
    assert_eq!(checked["wrong"], serde_json::json!([]));
}
