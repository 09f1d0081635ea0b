//! Folded stacks, read by inferno and by speedscope.

use std::collections::BTreeMap;

use heapbpf_tests::heapbpf::text;
use heapbpf_tests::viewers;

use crate::fixture::{Fixture, VIEWS};

/// Stacks by their line, from a file of ours.
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
