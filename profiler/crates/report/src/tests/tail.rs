//! Merging of small frames: which frames stay, their sums, and that nothing else changes.

use std::collections::BTreeMap;

use heapbpf_base::units::{EstimatedBytes, EstimatedCount};
use heapbpf_ledger::model::{Change, Health, HeapUsage, LeakCandidate, Leaks, Profile};
use heapbpf_ledger::totals::Totals;
use profiler_common::stack::StackEnd;
use proptest::prelude::*;

use super::{properties, render};
use crate::tail::OTHER;
use crate::testing::{self as profiles, Frames, callsite, taken};
use crate::{Format, Presentation, Share, View};

fn share(text: &str) -> Share {
    text.parse().expect("a share")
}

fn thinned(profile: &Profile, view: View, threshold: &str) -> Profile {
    let presentation = Presentation { view, threshold: Some(share(threshold)), ..Presentation::default() };
    presentation.thinned(profile).into_owned()
}

/// `main` of 1,000 bytes: 900 below `a`, of which 880 below `b`; the rest in small pieces.
fn pieces() -> Profile {
    let mut frames = Frames::default();
    let [main, a, b, c, d, e, f] = ["main", "a", "b", "c", "d", "e", "f"].map(|name| frames.add(name, "/bin/x"));
    let stacks: [(&[_], u64); 6] = [
        (&[b, a, main], 880),
        (&[c, a, main], 12),
        (&[d, a, main], 8),
        (&[e, main], 50),
        (&[f, main], 30),
        (&[f, c, main], 20),
    ];
    let callsites = stacks.map(|(stack, bytes)| callsite(stack, Some(StackEnd::Complete), 0, taken(1, 1, bytes, 0)));
    let heaps = vec![profiles::heap("libc", &[("malloc", None)])];
    profiles::profile(1, vec![profiles::target(1, "x", "x", heaps, callsites.into())], frames, Health::default())
}

fn check(threshold: &str, expected: &[&str]) {
    let profile = thinned(&pieces(), View::LiveBytes, threshold);
    let lines = render(Format::Folded, &profile, View::LiveBytes);
    assert_eq!(lines.lines().collect::<Vec<_>>(), expected, "{threshold}");
}

#[test]
fn callsites_with_equal_stacks_are_merged_without_a_threshold() {
    let mut profile = pieces();
    let target = &mut profile.targets[0];
    let mut cut = target.callsites[2].clone();
    cut.end = Some(StackEnd::MissingModule);
    let dropped = callsite(&[], None, 0, taken(1, 1, 5, 0));
    let same = target.callsites[1].clone();
    target.callsites.extend([same, cut, dropped.clone(), dropped]);
    let candidate =
        LeakCandidate { callsite: 6, bytes_per_second: 1.0, margin: 0.5, old_share: 0.5, survival: None, score: 1.0 };
    let other = LeakCandidate { callsite: 7, ..candidate };
    target.leaks = Some(Leaks { candidates: vec![candidate, other], ..Leaks::default() });
    let merged = Presentation::default().thinned(&profile).into_owned();
    let target = &merged.targets[0];
    let live: Vec<u64> = target.callsites.iter().map(|callsite| callsite.totals.live_bytes().rounded()).collect();
    // Other ends, and dropped stacks, stay separate.
    assert_eq!(live, [880, 24, 8, 50, 30, 20, 8, 5, 5]);
    let candidates = target.leaks.iter().flat_map(|leaks| &leaks.candidates).map(|candidate| candidate.callsite);
    assert_eq!(candidates.collect::<Vec<_>>(), [1, 6]);
}

#[test]
fn small_frames_are_merged_level_by_level() {
    check(
        "0%",
        &[
            "x (1);main;a;b 880",
            "x (1);main;a;c 12",
            "x (1);main;a;d 8",
            "x (1);main;c;f 20",
            "x (1);main;e 50",
            "x (1);main;f 30",
        ],
    );
    check(
        "1.2%",
        &[
            "x (1);main;a;<other> 8",
            "x (1);main;a;b 880",
            "x (1);main;a;c 12",
            "x (1);main;c;f 20",
            "x (1);main;e 50",
            "x (1);main;f 30",
        ],
    );
    check(
        "3%",
        &[
            "x (1);main;<other> 20",
            "x (1);main;a;<other> 20",
            "x (1);main;a;b 880",
            "x (1);main;e 50",
            "x (1);main;f 30",
        ],
    );
    check("89%", &["x (1);main;<other> 100", "x (1);main;a;<other> 900"]);
    check("100%", &["x (1);main;<other> 1000"]);
}

#[test]
fn callsites_of_different_heaps_are_not_merged() {
    let mut profile = pieces();
    profile.targets[0].heaps.push(profiles::heap("pool", &[("get", None)]));
    profile.targets[0].callsites[1].heap = 1;
    let profile = thinned(&profile, View::LiveBytes, "3%");
    let others = profile.targets[0].callsites.iter().filter(|callsite| callsite.stack.len() == 3);
    let mut heaps: Vec<_> = others.map(|callsite| (callsite.heap, callsite.totals.live_bytes().rounded())).collect();
    heaps.sort_unstable();
    assert_eq!(heaps, [(0, 8), (0, 880), (1, 12)]);
}

#[test]
fn leak_candidates_keep_their_stacks() {
    let mut profile = pieces();
    let candidate =
        LeakCandidate { callsite: 4, bytes_per_second: 1.0, margin: 0.5, old_share: 0.5, survival: None, score: 1.0 };
    let stray = LeakCandidate { callsite: 6, ..candidate };
    profile.targets[0].leaks = Some(Leaks { candidates: vec![candidate, stray], count: 1, ..Leaks::default() });
    let folded = thinned(&profile, View::LiveBytes, "40%");
    let target = &folded.targets[0];
    let candidates = &target.leaks.as_ref().expect("leaks were analysed").candidates;
    let kept = &target.callsites[candidates[0].callsite];
    assert_eq!(kept.stack, profile.targets[0].callsites[4].stack);
    assert!(target.callsites.get(candidates[1].callsite).is_none());
    let lines = render(Format::Folded, &folded, View::LiveBytes);
    assert_eq!(
        lines.lines().collect::<Vec<_>>(),
        ["x (1);main;<other> 70", "x (1);main;a;<other> 20", "x (1);main;a;b 880", "x (1);main;f 30"]
    );
}

#[test]
fn histories_and_peaks_are_merged() {
    let mut profile = pieces();
    let held = |live_bytes: f64| HeapUsage { live_bytes, live_count: 1.0, alloc_bytes: live_bytes, alloc_count: 1.0 };
    let change = |instant, live_bytes| Change { instant, held: held(live_bytes) };
    let callsites = &mut profile.targets[0].callsites;
    callsites[1].history = vec![change(0, 5.0), change(3, 12.0)];
    callsites[2].history = vec![change(1, 8.0), change(3, 6.0), change(4, 8.0)];
    callsites[2].totals.peak_bytes = EstimatedBytes::exact(30);
    callsites[2].totals.peak_count = EstimatedCount::exact(3);
    let folded = thinned(&profile, View::LiveBytes, "3%");
    let other =
        folded.targets[0].callsites.iter().find(|callsite| !callsite.history.is_empty()).expect("they are there");
    let live: Vec<_> = other.history.iter().map(|change| (change.instant, change.held.live_bytes)).collect();
    assert_eq!(live, [(0, 5.0), (1, 13.0), (3, 18.0), (4, 20.0)]);
    let Totals { peak_bytes, peak_count, .. } = other.totals;
    assert_eq!((peak_bytes.rounded(), peak_count.rounded()), (30, 3));
}

/// The value of each path of the flame graph.
fn paths(profile: &Profile, view: View) -> BTreeMap<Vec<String>, u64> {
    let mut paths = BTreeMap::<Vec<String>, u64>::new();
    for line in render(Format::Folded, profile, view).lines() {
        let (stack, value) = line.rsplit_once(' ').expect("a line has a value");
        let frames: Vec<String> = stack.split(';').map(str::to_owned).collect();
        let value: u64 = value.parse().expect("values are whole numbers");
        for depth in 1..=frames.len() {
            *paths.entry(frames[..depth].to_vec()).or_default() += value;
        }
    }
    paths
}

/// The number of leading synthetic frames.
fn roots(path: &[String]) -> usize {
    1 + usize::from(path.get(1).is_some_and(|frame| frame.starts_with('[')))
}

/// The additive amounts of all callsites of a target.
fn sum(profile: &Profile) -> Vec<(Totals, usize)> {
    let of_target = |target: &heapbpf_ledger::model::TargetProfile| {
        let mut sum = Totals::default();
        target.callsites.iter().for_each(|callsite| sum.add(&callsite.totals));
        (sum, target.heaps.len())
    };
    profile.targets.iter().map(of_target).collect()
}

proptest! {
    #[test]
    fn totals_and_large_frames_are_preserved(
        profile in properties::profile(),
        view in proptest::sample::select(View::ALL.to_vec()),
        threshold in proptest::sample::select(vec!["0%", "0.8%", "5%", "20%", "50%", "100%"]),
    ) {
        let folded = thinned(&profile, view, threshold);
        prop_assert_eq!(sum(&profile), sum(&folded));
        for (before, after) in profile.targets.iter().zip(&folded.targets) {
            prop_assert_eq!(before.totals, after.totals);
            prop_assert!(after.callsites.len() <= before.callsites.len());
        }
        // The sum of rounded estimates differs from the rounded sum.
        if profile.interval_bytes > 1 {
            return Ok(());
        }
        let (before, after) = (paths(&profile, view), paths(&folded, view));
        let whole = |paths: &BTreeMap<Vec<String>, u64>| -> u128 {
            paths.iter().filter(|(path, _)| path.len() == 1).map(|(_, value)| u128::from(*value)).sum()
        };
        let total = whole(&before);
        prop_assert_eq!(total, whole(&after));
        for (path, value) in &before {
            if share(threshold).is_reached((*value).into(), total) {
                prop_assert_eq!(after.get(path), Some(value), "{:?} is lost", path);
            }
        }
        for (path, value) in &after {
            let is_other = path.last().is_some_and(|frame| frame == OTHER);
            let is_small = !share(threshold).is_reached((*value).into(), total);
            prop_assert!(is_other || path.len() <= roots(path) || !is_small, "{:?} has {}", path, value);
        }
        let presentation = Presentation { view, threshold: Some(share(threshold)), ..Presentation::default() };
        let cut = presentation.cut(&profile);
        prop_assert_eq!(paths(&cut, view), after.clone());
        for (before, after) in profile.targets.iter().zip(&cut.targets) {
            let totals = |target: &heapbpf_ledger::model::TargetProfile| -> Vec<Totals> {
                target.callsites.iter().map(|callsite| callsite.totals).collect()
            };
            prop_assert_eq!(totals(before), totals(after));
        }
        let again = thinned(&folded, view, threshold);
        prop_assert_eq!(paths(&again, view), after);
        prop_assert_eq!(again.frames.len(), folded.frames.len());
    }
}
