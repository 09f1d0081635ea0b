//! Folded stacks, read by inferno and by speedscope.

use std::collections::BTreeMap;

use heapbpf_tests::heapbpf::text;
use heapbpf_tests::viewers;

use super::fixture::{Fixture, VIEWS, read};

/// Parses a file of ours into stacks by line.
fn stacks(lines: &str) -> BTreeMap<String, u64> {
    let parse = |line: &str| {
        let (stack, value) = line.rsplit_once(' ').expect("a line ends in a number");
        (stack.to_owned(), value.parse().expect("a line ends in a number"))
    };
    lines.lines().map(parse).collect()
}

#[test]
fn the_four_views_add_up_to_the_report() {
    let fixture = Fixture::exact();
    for (view, field) in VIEWS {
        let folded = text(&fixture.converted("folded", &format!("--view {view}")));
        #[expect(clippy::cast_precision_loss, reason = "some megabytes")]
        let sum = stacks(&folded).values().sum::<u64>() as f64;
        assert!((sum - fixture.total(field)).abs() < 0.5, "{view}: {sum}, not {}", fixture.total(field));
    }
}

#[test]
fn speedscope_reads_every_stack() {
    let path = Fixture::exact().converted("folded", "");
    let expected = stacks(&text(&path));
    assert!(expected.len() > 500, "{} stacks", expected.len());
    let read = viewers::python("speedscope.py", &[&path]);
    assert_eq!(read["complaints"].as_array().map(Vec::len), Some(0), "{}", read["complaints"]);
    let mut found = BTreeMap::<String, u64>::new();
    for stack in read["profiles"][0]["stacks"].as_array().expect("it has stacks") {
        let frames = stack[0].as_array().expect("a stack has frames");
        let frames: Vec<&str> = frames.iter().map(|frame| frame.as_str().expect("frames have names")).collect();
        *found.entry(frames.join(";")).or_default() += stack[1].as_u64().expect("weights are whole");
    }
    assert!(found == expected, "{} stacks, not {}", found.len(), expected.len());
}

#[test]
fn inferno_draws_all_of_it() {
    let folded = text(&Fixture::exact().converted("folded", ""));
    let mut options = inferno::flamegraph::Options::default();
    let mut image = Vec::new();
    inferno::flamegraph::from_lines(&mut options, folded.lines(), &mut image).expect("it reads every line");
    let image = String::from_utf8(image).expect("images are text");
    let sum: u64 = stacks(&folded).values().sum();
    let digits = |title: &str| title.chars().filter(char::is_ascii_digit).collect::<String>();
    let all =
        image.split("<title>all (").nth(1).and_then(|rest| rest.split_once(' ')).expect("everything is a frame").0;
    assert_eq!(digits(all), sum.to_string());
}

#[test]
fn a_threshold_merges_small_frames_and_changes_no_total() {
    let fixture = Fixture::exact();
    let whole = stacks(&text(&fixture.converted("folded", "")));
    let thinned = stacks(&text(&fixture.converted("folded", "--threshold 1%")));
    assert!(thinned.len() * 5 < whole.len(), "{} stacks of {}", thinned.len(), whole.len());
    assert_eq!(thinned.values().sum::<u64>(), whole.values().sum::<u64>());
    assert!(thinned.keys().any(|stack| stack.ends_with("climb(int, int);<other>")));
    let report = read(&fixture.converted("json", "--threshold 1%"));
    for (target, before) in report["targets"].as_array().into_iter().flatten().zip(&fixture.report.targets) {
        assert_eq!(target["totals"]["alloc_bytes"].as_u64(), before.totals.alloc_bytes.as_u64());
        let callsites = target["callsites"].as_array().expect("targets have callsites");
        let sum: u64 = callsites.iter().filter_map(|callsite| callsite["alloc_bytes"].as_u64()).sum();
        assert_eq!(Some(sum), before.totals.alloc_bytes.as_u64());
    }
}
