//! Properties of the difference of any two profiles.

use heapbpf_ledger::model::{CallsiteProfile, Profile};
use proptest::prelude::*;
use serde_json::Value;

use super::super::{flamegraph, properties};
use super::{diff, json, render};
use crate::diff::{Diff, Widths, table};
use crate::{Format, View};

/// Growth by stack of the folded text.
fn growth_of(folded: &str) -> Vec<(String, i128)> {
    let lines = folded.lines().map(|line| {
        let mut parts = line.rsplitn(3, ' ');
        let mut number = || parts.next().and_then(|number| number.parse::<i128>().ok()).expect("a number");
        let (after, before) = (number(), number());
        (parts.next().expect("a stack").to_owned(), after - before)
    });
    lines.collect()
}

proptest! {
    #[test]
    fn a_profile_does_not_differ_from_itself(profile in properties::profile(), view in proptest::sample::select(View::ALL.to_vec())) {
        let diff = diff(&profile, &profile);
        prop_assert!(diff.callsites.iter().all(|callsite| callsite.delta.before == callsite.delta.after));
        prop_assert!(diff.callsites.iter().all(|callsite| callsite.delta.growth(view) == 0.0));
        let folded = render(&diff, Format::Folded, view, Widths::After);
        prop_assert!(growth_of(&folded).iter().all(|(_, growth)| *growth == 0));
    }

    #[test]
    fn the_reverse_difference_has_opposite_signs(
        a in properties::profile(),
        b in properties::profile(),
        view in proptest::sample::select(View::ALL.to_vec()),
    ) {
        let (there, back) = (diff(&a, &b), diff(&b, &a));
        prop_assert_eq!(there.callsites.len(), back.callsites.len());
        let growth = |diff: &Diff<'_>| {
            let mut growth: Vec<f64> = diff.callsites.iter().map(|callsite| callsite.delta.growth(view)).collect();
            growth.sort_by(f64::total_cmp);
            growth
        };
        let reversed: Vec<f64> = growth(&back).into_iter().rev().map(|growth| 0.0 - growth).collect();
        prop_assert_eq!(growth(&there), reversed);
        let [low, high] = there.total().confidence(view);
        let [back_low, back_high] = back.total().confidence(view);
        prop_assert!((low + back_high).abs() <= 1e-9 * low.abs() && (high + back_low).abs() <= 1e-9 * high.abs());
        let lines = |diff: &Diff<'_>| render(diff, Format::Folded, view, Widths::After);
        // Labels of programs with different names depend on the order of the profiles.
        if there.programs.len() != 1 || there.programs[0].names[0] == there.programs[0].names[1] {
            let reversed: Vec<(String, i128)> = growth_of(&lines(&back)).into_iter().map(|(stack, growth)| (stack, -growth)).collect();
            prop_assert_eq!(growth_of(&lines(&there)), reversed);
        }
    }

    #[test]
    fn growth_adds_up(
        a in properties::profile(),
        b in properties::profile(),
        view in proptest::sample::select(View::ALL.to_vec()),
    ) {
        let diff = diff(&a, &b);
        let sum: f64 = diff.callsites.iter().map(|callsite| callsite.delta.growth(view)).sum();
        let of = |profile: &Profile| view.estimate(&crate::describe::totals(profile));
        let total = diff.total();
        prop_assert!((total.growth(view) - sum).abs() < 1e-3, "{} is not {sum}", total.growth(view));
        prop_assert!((total.growth(view) - (of(&b) - of(&a))).abs() < 1e-3);
        if a.interval_bytes == 1 && b.interval_bytes == 1 {
            let report = json(&diff, view);
            let key = view.name().replace('-', "_");
            let growth = |value: &Value| value[&key]["growth"].as_i64().expect("an integer");
            let callsites = report["callsites"].as_array().expect("a list");
            prop_assert_eq!(callsites.iter().map(growth).sum::<i64>(), growth(&report["totals"]));
        }
        let sites = |profile: &Profile| profile.targets.iter().map(|target| target.callsites.len()).sum::<usize>();
        prop_assert!(diff.callsites.len() <= sites(&a) + sites(&b));
    }

    #[test]
    fn images_are_well_formed(
        a in properties::profile(),
        b in properties::profile(),
        view in proptest::sample::select(View::ALL.to_vec()),
        widths in proptest::sample::select(vec![Widths::Before, Widths::After]),
    ) {
        let diff = diff(&a, &b);
        let image = flamegraph::parse(&render(&diff, Format::Flamegraph, view, widths));
        prop_assert!(image.frames.iter().all(|title| title.contains(" → ")), "{:#?}", image.frames);
        let side = if widths == Widths::Before { &a } else { &b };
        let is_there = |callsite: &CallsiteProfile| view.rounded(&callsite.totals) > 0;
        let some = side.targets.iter().flat_map(|target| &target.callsites).any(is_there);
        prop_assert_eq!(!image.frames.is_empty(), some);
        let text = table(&diff, view, 10, 0, Some(80), false);
        prop_assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{:?}", text);
    }
}
