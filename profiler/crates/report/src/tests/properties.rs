//! Invariants for any profile.

use std::collections::BTreeMap;

use heapbpf_ledger::model::{CallsiteProfile, FrameId, Health, Profile};
use profiler_common::stack::StackEnd;
use proptest::prelude::*;
use serde_json::Value;

use super::{flamegraph, render};
use crate::summary::summary;
use crate::testing::{self as profiles, Frames, callsite, taken};
use crate::{Format, View};

/// Names, most of them with characters that are special in some format.
fn name() -> impl Strategy<Value = Option<String>> {
    let awkward = proptest::sample::select(vec![
        ";",
        "\n",
        " ",
        "# ",
        " 12",
        " 1.5",
        "<",
        ">",
        "&",
        "\"",
        "'",
        "--",
        "]]>",
        "(",
        "{",
        "\0",
        "\u{1b}[2J",
        "\u{ffff}",
        "operator",
    ]);
    let piece = prop_oneof![awkward.prop_map(str::to_owned), "[a-z:]{1,6}", any::<String>()];
    proptest::option::of(proptest::collection::vec(piece, 0..4).prop_map(|pieces| pieces.concat()))
}

fn callsites(frames: u32, interval_bytes: u32) -> impl Strategy<Value = Vec<CallsiteProfile>> {
    let stack = proptest::collection::vec((0..frames).prop_map(FrameId), 0..5);
    let end = proptest::option::of(proptest::sample::select(StackEnd::ALL.to_vec()));
    let totals = (0..4_u64, 0..10_000_u64, 0..4_u64)
        .prop_map(move |(blocks, size, freed)| taken(interval_bytes, blocks, size, freed.min(blocks)));
    proptest::collection::vec((stack, end, totals), 0..12).prop_map(|callsites| {
        callsites.into_iter().map(|(stack, end, totals)| callsite(&stack, end, 0, totals)).collect()
    })
}

pub(super) fn profile() -> impl Strategy<Value = Profile> {
    let names = proptest::collection::vec(name(), 1..6);
    (names, name(), proptest::sample::select(vec![1_u32, 4096])).prop_flat_map(|(names, comm, interval_bytes)| {
        let count = u32::try_from(names.len()).expect("a handful");
        let targets = proptest::collection::vec(callsites(count, interval_bytes), 0..3);
        targets.prop_map(move |targets| {
            let mut frames = Frames::default();
            for name in &names {
                match name {
                    Some(name) => frames.add(name, "/bin/x"),
                    None => frames.nameless(Some("/bin/x;y"), Some(0x10)),
                };
            }
            let comm = comm.as_deref().unwrap_or("x");
            let targets = targets.into_iter().zip(1_u32..).map(|(callsites, pid)| {
                profiles::target(pid, comm, comm, vec![profiles::heap("libc", &[("malloc", None)])], callsites)
            });
            profiles::profile(u64::from(interval_bytes), targets.collect(), frames, Health::default())
        })
    })
}

/// The value of a stack in a folded line, and the stack.
fn split(line: &str) -> (&str, u64) {
    let (stack, value) = line.rsplit_once(' ').expect("a line has a value");
    (stack, value.parse().expect("the value is a whole number"))
}

proptest! {
    #[test]
    fn folded_lines_parse_back_and_add_up(profile in profile(), view in proptest::sample::select(View::ALL.to_vec())) {
        let text = render(Format::Folded, &profile, view);
        prop_assert!(text.lines().collect::<Vec<_>>().is_sorted());
        let lines: BTreeMap<&str, u64> = text.lines().map(split).collect();
        prop_assert_eq!(lines.len(), text.lines().count(), "a stack is there twice");
        prop_assert_eq!(text.matches('\n').count(), lines.len());
        prop_assert!(lines.values().all(|&value| value > 0));

        let callsites = || profile.targets.iter().flat_map(|target| &target.callsites);
        let sum: u64 = lines.values().sum();
        let exact: f64 = callsites().map(|callsite| amount(callsite, view)).sum();
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let (off, allowed) = ((sum as f64 - exact).abs(), callsites().count() as f64 / 2.0 + 1e-6);
        prop_assert!(off <= allowed, "{sum} is not {exact}");
        if profile.interval_bytes == 1 {
            prop_assert!(off < 1e-6, "{sum} is not {exact}");
        }

        // Depth: the process, the reason of an incomplete stack, the frames.
        let deepest = callsites().filter(|callsite| view.rounded(&callsite.totals) > 0).map(|callsite| {
            let is_silent = matches!(callsite.end, Some(StackEnd::Complete | StackEnd::NativeMissing));
            let said = !is_silent || callsite.stack.is_empty();
            1 + usize::from(said) + callsite.stack.len()
        });
        prop_assert_eq!(lines.keys().map(|stack| stack.split(';').count()).max(), deepest.max());
    }

    #[test]
    fn json_parses_back_with_the_totals(profile in profile(), view in proptest::sample::select(View::ALL.to_vec())) {
        let report: Value = serde_json::from_str(&render(Format::Json, &profile, view)).expect("the report is JSON");
        for (target, json) in profile.targets.iter().zip(report["targets"].as_array().expect("targets are a list")) {
            prop_assert_eq!(&json["pid"], target.facts.pid.0);
            for (field, expected) in [
                ("live_bytes", target.totals.live_bytes().to_f64()),
                ("alloc_count", target.totals.alloc_count.to_f64()),
            ] {
                let actual = json["totals"][field].as_f64().expect("a number");
                // The parser can be off by one unit in the last place.
                prop_assert!((actual - expected).abs() <= expected * 1e-15, "{field}: {actual} is not {expected}");
            }
            prop_assert_eq!(json["totals"]["alloc_bytes"].is_u64(), profile.interval_bytes == 1);
            prop_assert_eq!(json["callsites"].as_array().map(Vec::len), Some(target.callsites.len()));
        }
    }

    #[test]
    fn images_are_well_formed(profile in profile(), view in proptest::sample::select(View::ALL.to_vec())) {
        let stacks = render(Format::Folded, &profile, view).lines().count();
        let frames = flamegraph::parse_any(&render(Format::Flamegraph, &profile, view));
        prop_assert_eq!(frames == 0, stacks == 0);
    }

    #[test]
    fn summaries_have_no_characters_that_move_the_cursor(profile in profile(), width in proptest::option::of(0..200_usize)) {
        let text = summary(&profile, View::AllocCount, 10, width, false);
        prop_assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
        prop_assert!(text.ends_with(" events\n"));
    }
}

fn amount(callsite: &CallsiteProfile, view: View) -> f64 {
    let totals = &callsite.totals;
    match view {
        View::LiveBytes => totals.live_bytes().to_f64(),
        View::LiveCount => totals.live_count().to_f64(),
        View::AllocBytes => totals.alloc_bytes.to_f64(),
        View::AllocCount => totals.alloc_count.to_f64(),
    }
}
