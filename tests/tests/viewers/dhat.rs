//! DHAT's format in valgrind's own viewer.

use heapbpf_tests::viewers;
use serde_json::Value;

use super::fixture::Fixture;

/// Parses bytes and blocks of a line of the viewer: `At t-end: 1,234 bytes (5.6%) in 78 blocks (9%), …`.
fn amounts(text: &str, name: &str) -> [f64; 2] {
    let line =
        text.lines().find_map(|line| line.split_once(name)).unwrap_or_else(|| panic!("no `{name}` in {text:.3000}")).1;
    let before = |unit: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = words.iter().position(|word| word.trim_end_matches(',') == unit).unwrap_or_else(|| panic!("{line}"));
        words[at - 1].replace(',', "").parse().unwrap_or_else(|error| panic!("{error}: {line}"))
    };
    [before("bytes"), before("blocks")]
}

fn open(fixture: &Fixture, arguments: &str) -> String {
    let path = fixture.converted("dhat.json", arguments);
    let opened = viewers::python("dhat.py", &[&path, &path.with_extension("png")]);
    assert_eq!(opened["complaints"].as_array().map(Vec::len), Some(0), "{}", opened["complaints"]);
    assert_eq!(opened["owned"], Value::Null, "a script ran that is not ours");
    opened["text"].as_str().expect("it shows text").to_owned()
}

fn sum(fixture: &Fixture, fields: [&str; 2]) -> f64 {
    fixture.total(fields[0]) + fixture.total(fields[1])
}

fn check(fixture: &Fixture, allowed: f64) {
    let text = open(fixture, "");
    let expected = [
        ("Total:", ["inherited_bytes", "alloc_bytes"], ["inherited_count", "alloc_count"]),
        ("At t-end:", ["live_bytes", "none"], ["live_count", "none"]),
        ("At t-gmax:", ["at_peak_bytes", "none"], ["at_peak_count", "none"]),
    ];
    for (name, bytes, blocks) in expected {
        let got = amounts(&text, name);
        for (got, fields) in got.into_iter().zip([bytes, blocks]) {
            let expected = if fields[1] == "none" { fixture.total(fields[0]) } else { sum(fixture, fields) };
            assert!((got - expected).abs() <= allowed, "{name} {got}, not {expected}");
        }
    }
    assert!(text.contains("avg lifetime"), "{text:.3000}");
    assert!(text.contains("complete"), "{text:.3000}");
}

#[test]
fn totals_equal_the_reports() {
    check(Fixture::exact(), 0.0);
}

#[test]
fn estimates_equal_the_reports_up_to_rounding() {
    let fixture = Fixture::sampled();
    #[expect(clippy::cast_precision_loss, reason = "some hundreds")]
    check(fixture, fixture.callsites().count() as f64);
}
