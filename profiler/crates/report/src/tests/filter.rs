//! Selection of callsites and frames by regular expressions.

use heapbpf_ledger::model::{Health, Profile};
use profiler_common::stack::StackEnd;
use regex::Regex;

use super::render;
use crate::filter::Filter;
use crate::summary::{Top, summary};
use crate::testing::{self as profiles, Frames, callsite, heap, taken, target};
use crate::{Format, TopBy, View};

fn filter(parts: [&str; 4]) -> Filter {
    let pattern = |text: &str| (!text.is_empty()).then(|| Regex::new(text).expect("a pattern"));
    let [focus, ignore, hide, only_module] = parts.map(pattern);
    Filter { focus, ignore, hide, only_module }
}

fn folded(profile: &Profile) -> Vec<String> {
    render(Format::Folded, profile, View::LiveBytes).lines().map(str::to_owned).collect()
}

/// Three callsites of a program with a library, one of them inlined.
fn profile() -> Profile {
    let mut frames = Frames::default();
    let main = frames.placed("main", "/bin/x", "/src/main.c", 1);
    let serve = frames.placed("serve", "/bin/x", "/src/serve.c", 2);
    let inlined = frames.inlined("copy", "/usr/lib/libx.so.1", "/src/copy.h", 3);
    let load = frames.add("load", "/usr/lib/libx.so.1");
    let complete = Some(StackEnd::Complete);
    let callsites = vec![
        callsite(&[serve, main], complete, 0, taken(1, 1, 5, 0)),
        callsite(&[inlined, load, serve, main], complete, 0, taken(1, 1, 70, 0)),
        callsite(&[load, main], complete, 0, taken(1, 1, 900, 0)),
    ];
    let target = target(1, "x", "x", vec![heap("libc", &[])], callsites);
    profiles::profile(1, vec![target], frames, Health::default())
}

#[test]
fn patterns_have_the_meanings_of_pprof() {
    for (parts, expected) in [
        (["serve", "", "", ""], vec!["x (1);main;serve 5", "x (1);main;serve;load;copy 70"]),
        (["libx", "", "", ""], vec!["x (1);main;load 900", "x (1);main;serve;load;copy 70"]),
        (["copy\\.h", "", "", ""], vec!["x (1);main;serve;load;copy 70"]),
        (["", "serve", "", ""], vec!["x (1);main;load 900"]),
        (["load", "copy", "", ""], vec!["x (1);main;load 900"]),
        (["", "", "load|main", ""], vec!["x (1);serve 5", "x (1);serve;copy 70"]),
        (["", "", "", "^/bin/"], vec!["x (1);main 900", "x (1);main;serve 75"]),
        (["", "", "", "libx"], vec!["x (1);load 900", "x (1);load;copy 70"]),
        (["nothing", "", "", ""], vec![]),
        (["", "", ".", ""], vec![]),
    ] {
        let mut profile = profile();
        filter(parts).apply(&mut profile);
        assert_eq!(folded(&profile), expected, "{parts:?}");
    }
}

#[test]
fn totals_are_those_of_the_callsites_that_are_kept() {
    let mut profile = profile();
    let kept = filter(["serve", "", "", ""]).apply(&mut profile);
    assert_eq!(kept, [[Some(0), Some(1), None]]);
    let target = &profile.targets[0];
    for totals in [&target.totals, &target.heaps[0].totals] {
        assert_eq!(View::ALL.map(|view| view.rounded(totals)), [75, 2, 75, 2]);
    }
    let text = summary(&profile, View::LiveBytes, 10, None, false);
    assert!(text.contains("2 callsites by live bytes (focus=serve)"), "{text}");
}

#[test]
fn an_inlined_frame_whose_caller_is_hidden_is_a_call_of_its_own() {
    let mut profile = profile();
    filter(["", "", "^load$", ""]).apply(&mut profile);
    let stack = &profile.targets[0].callsites[1].stack;
    let copy = profile.frame(stack[0]);
    assert_eq!((copy.function.as_deref(), copy.inlined), (Some("copy"), false));
}

#[test]
fn an_empty_filter_changes_nothing() {
    let mut filtered = profiles::sampled();
    filter([""; 4]).apply(&mut filtered);
    let json = |profile: &Profile| render(Format::Json, profile, View::LiveBytes);
    assert_eq!(json(&filtered), json(&profiles::sampled()));
}

#[test]
fn histories_and_candidates_follow_the_callsites() {
    for profile in [profiles::exact(), profiles::sampled()] {
        for parts in [["cache", "", "", ""], ["", "main", "", ""], ["map|nothing", "", "", ""]] {
            let mut filtered = profile.clone();
            filter(parts).apply(&mut filtered);
            for target in &filtered.targets {
                let count = target.callsites.len();
                let candidates = target.leaks.iter().flat_map(|leaks| &leaks.candidates);
                assert!(candidates.into_iter().all(|candidate| candidate.callsite < count));
                let last = target.history.curve.last();
                assert!(last.is_none_or(|point| point.held.live_bytes >= 0.0));
            }
            for format in super::formats() {
                let _ = super::written(format, &filtered, View::LiveBytes);
            }
        }
    }
}

#[test]
fn tables_by_function_and_module_include_callees() {
    let table = |by| summary(&profile(), View::LiveBytes, Top { rows: 10, by }, None, false);
    let text = table(TopBy::Function);
    let row = |name: &str| {
        let line = text.lines().find(|line| line.ends_with(&format!("  {name}"))).unwrap_or_else(|| panic!("{text}"));
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row("load"), "900 B 92.3% 970 B 99.5% libx.so.1 load");
    assert_eq!(row("copy"), "70 B 7.2% 70 B 7.2% libx.so.1 copy");
    assert_eq!(row("main"), "0 B 0.0% 975 B 100.0% x main");
    let text = table(TopBy::Module);
    assert!(text.contains("2 modules by live bytes; total includes callees"), "{text}");
    assert!(text.contains("970 B  99.5%  970 B   99.5%  libx.so.1"), "{text}");
}
