//! massif's format, read by ms_print.

use heapbpf_tests::viewers;
use serde_json::Value;

use super::fixture::{Fixture, number};

/// Returns the total of the snapshot with this number in ms_print's table.
fn total(text: &str, snapshot: &str) -> f64 {
    let row = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.len() == 6 && words[0] == snapshot && words[4..] == ["0", "0"]
    };
    let line = text.lines().find(row).unwrap_or_else(|| panic!("no snapshot {snapshot} in {text:.3000}"));
    let total = line.split_whitespace().nth(2).expect("it has six columns").replace(',', "");
    total.parse().unwrap_or_else(|error| panic!("{error}: {line}"))
}

/// Returns the numbers of the snapshots with details, and of the peak.
fn detailed(text: &str) -> (Vec<String>, Option<String>) {
    let list = text.split_once("Detailed snapshots: [").expect("it has a list").1.split_once(']').expect("it ends").0;
    let numbers: Vec<&str> = list.split(", ").collect();
    let peak = numbers.iter().find_map(|number| number.strip_suffix(" (peak)")).map(str::to_owned);
    (numbers.iter().map(|number| number.trim_end_matches(" (peak)").to_owned()).collect(), peak)
}

#[test]
fn the_peak_and_the_end_equal_the_reports() {
    let fixture = Fixture::exact();
    let [until_dump, _] = fixture.windows("massif.out");
    let text = viewers::text(viewers::program("ms_print").arg("--threshold=0").arg(&until_dump));
    let totals = &fixture.window(1)["targets"][0]["totals"];
    let (all, peak) = detailed(&text);
    let peak = peak.expect("one process has a peak");
    assert!((total(&text, &peak) - number(totals, "peak_bytes")).abs() < 0.5, "{text:.2000}");
    assert!((total(&text, all.last().expect("there is an end")) - number(totals, "live_bytes")).abs() < 0.5);
    assert!(text.contains("complete"), "{text:.1000}");

    let whole = fixture.converted("massif.out", "");
    let text = viewers::text(viewers::program("ms_print").arg(&whole));
    let (all, _) = detailed(&text);
    assert!((total(&text, all.last().expect("there is an end")) - fixture.total("live_bytes")).abs() < 0.5);
    let Value::Array(targets) = &fixture.json["targets"] else { panic!("a report has targets") };
    assert!(targets.len() < 2 || text.contains("orchard ("), "processes are nodes: {text:.3000}");
}
