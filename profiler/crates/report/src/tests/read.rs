//! Reports read back: the same profile, or an error.

use heapbpf_ledger::model::{History, LeakCandidate, Leaks, Profile, Window, WindowReason};
use heapbpf_ledger::totals::Totals;
use proptest::prelude::*;
use serde_json::{Value, json};
use strum::VariantArray as _;

use super::{formats, guardrails, properties, render, written};
use crate::json::read::read;
use crate::summary::summary;
use crate::testing as profiles;
use crate::{Format, View};

#[track_caller]
fn read_back(profile: &Profile) -> Profile {
    read(render(Format::Json, profile, View::LiveBytes).as_bytes()).expect("reports are readable")
}

/// Reports have no history of callsites.
fn without_history(mut profile: Profile) -> Profile {
    for target in &mut profile.targets {
        target.history = History::default();
        target.callsites.iter_mut().for_each(|callsite| callsite.history.clear());
    }
    profile
}

/// Formats that sort. Others keep the order of callsites, which a JSON report changes to the largest first.
const SORTED: [Format; 3] = [Format::Flamegraph, Format::Folded, Format::Json];

#[test]
fn a_profile_read_back_is_written_identically() {
    for (name, profile) in profiles::named().into_iter().chain([("limited", guardrails::limited())]) {
        let profile = without_history(profile);
        let again = read_back(&profile);
        assert_eq!(again.modules, profile.modules, "{name}");
        for (again, target) in again.targets.iter().zip(&profile.targets) {
            assert_eq!(again.mappings, target.mappings, "{name}");
            assert_eq!((&again.threads, &again.facts.cgroup), (&target.threads, &target.facts.cgroup), "{name}");
            assert_eq!(again.facts.rights, target.facts.rights, "{name}");
        }
        for format in formats() {
            let before = if SORTED.contains(&format) { &profile } else { &read_back(&again) };
            for view in View::ALL {
                assert!(written(format, &again, view) == written(format, before, view), "{name}, {format:?}, {view}");
            }
        }
        assert_eq!(
            summary(&again, View::LiveBytes, 10, None, false),
            summary(&profile, View::LiveBytes, 10, None, false)
        );
    }
}

#[test]
fn totals_of_exited_processes_are_read_back() {
    let mut profile = profiles::sampled();
    profile.others.folded_count = 5;
    profile.others.folded_totals = profiles::taken(4096, 12, 300, 4);
    profile.others.folded_interval_bytes = Some(4096);
    let again = read_back(&profile);
    assert_eq!(render(Format::Json, &again, View::LiveBytes), render(Format::Json, &profile, View::LiveBytes));
    let (again, folded) = (again.others.folded_totals, profile.others.folded_totals);
    assert_eq!((again.live(), again.alloc_variance), (folded.live(), folded.alloc_variance));
}

#[test]
fn curves_are_read_back_and_invalid_ones_are_refused() {
    for profile in [profiles::exact(), profiles::sampled(), profiles::mixed()] {
        let again = read_back(&profile);
        let json = |profile| render(Format::Json, profile, View::LiveBytes);
        assert!(json(&again) == json(&profile));
        for (again, target) in again.targets.iter().zip(&profile.targets) {
            let (again, curve) = (&again.history.curve, &target.history.curve);
            assert!(again.len() == curve.len() && again.is_sorted_by_key(|moment| moment.time));
        }
    }
    let check = |curve: Value, expected: &str| {
        let mut report: Value =
            serde_json::from_str(&render(Format::Json, &profiles::exact(), View::LiveBytes)).expect("JSON");
        report["targets"][0]["curve"] = curve;
        let error = read(report.to_string().as_bytes()).expect_err("invalid").to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(json!([[7, 1, 1, 1, 1], [6, 1, 1, 1, 1]]), "not in the order of time: `6`");
    check(json!(vec![[7, 1, 1, 1, 1]; 5000]), "`5000` points");
    check(json!([[7, 1e40, 1, 1, 1]]), "exceeds the limit");
    check(json!([[7, 1]]), "it is not a report");
}

#[test]
fn windows_are_read_back() {
    let mut profile = profiles::sampled();
    for (number, reason) in (1..).zip(WindowReason::VARIANTS.iter().copied()) {
        profile.window = Some(Window {
            number: (reason != WindowReason::Peak).then_some(number),
            reason,
            start_unix_ns: profile.started_unix_ns + 5,
            since_mark: number == 2,
            end_unix_ns: profile.ended_unix_ns,
            merged_count: number - 1,
        });
        let again = read_back(&profile);
        assert_eq!(again.window, profile.window);
        assert_eq!(render(Format::Json, &again, View::LiveBytes), render(Format::Json, &profile, View::LiveBytes));
    }
}

/// With `--trim` or inherited blocks, callsites can have equal stacks.
#[test]
fn growing_callsites_and_old_blocks_are_read_back() {
    let mut profile = profiles::sampled();
    profile.older_than_ns = Some(5_000_000_000);
    for callsite in profile.targets.iter_mut().flat_map(|target| &mut target.callsites) {
        callsite.older = Some(profiles::taken(4096, 1, 77, 0).live());
    }
    let target = &mut profile.targets[0];
    let mut duplicate = target.callsites[0].clone();
    (duplicate.inherited, duplicate.totals) = (true, profiles::taken(4096, 3, 100, 0));
    target.callsites.insert(0, duplicate.clone());
    duplicate.totals = profiles::taken(4096, 99, 100, 0);
    target.callsites.push(duplicate);
    profile.round_sums();
    let target = &mut profile.targets[0];
    let grows = |callsite: usize, score: f64| LeakCandidate {
        callsite,
        bytes_per_second: 1234.5,
        margin: 17.25,
        old_share: 0.5,
        survival: (callsite == 1).then_some(0.75),
        score,
    };
    let last = target.callsites.len() - 1;
    target.leaks = Some(Leaks {
        span_ns: 30_000_000_000,
        too_short: false,
        candidates: vec![grows(last, 1000.0), grows(1, 99.5), grows(0, 3.0), grows(4, 1.0)],
        count: 12,
        suppressed_count: 2,
        suppressed_bytes: heapbpf_base::units::EstimatedBytes::exact(4096),
    });
    for view in View::ALL {
        let text = render(Format::Json, &profile, view);
        let again = read(text.as_bytes()).expect("reports are readable");
        assert!(render(Format::Json, &again, view) == text, "{view}");
        let text_of = |profile: &Profile| summary(profile, view, 10, None, false);
        assert_eq!(text_of(&again), text_of(&profile), "{view}");
        assert_eq!(render(Format::Folded, &again, view), render(Format::Folded, &profile, view));
    }
}

/// Reads the report of a profile after a change.
fn changed(profile: &Profile, change: impl FnOnce(&mut Value)) -> Result<Profile, String> {
    let mut report = serde_json::from_str(&render(Format::Json, profile, View::LiveBytes)).expect("the report is JSON");
    change(&mut report);
    read(report.to_string().as_bytes())
}

/// The interval of reports without variances (Wilson, 1927): each bound is 1.96 of its own standard deviations away.
fn score_interval(estimate: f64, variance: f64) -> [f64; 2] {
    if estimate <= 0.0 {
        return [estimate; 2];
    }
    let half_shift = 1.959_963_984_540_054_f64.powi(2) * variance / estimate / 2.0;
    let margin = (2.0 * half_shift * estimate + half_shift * half_shift).sqrt();
    [estimate + half_shift - margin, estimate + half_shift + margin]
}

#[test]
fn reports_without_later_fields_are_read() {
    let again = changed(&profiles::sampled(), |report| {
        report.as_object_mut().expect("an object").remove("modules");
        for target in report["targets"].as_array_mut().expect("a list") {
            for field in ["comm", "cgroup", "mappings", "threads"] {
                target.as_object_mut().expect("an object").remove(field);
            }
            for callsite in target["callsites"].as_array_mut().expect("a list") {
                let fields = callsite.as_object_mut().expect("an object");
                for view in View::ALL.map(|view| view.name().replace('-', "_")) {
                    let number = |field: &str| fields[field].as_f64().expect("a number");
                    let interval = score_interval(number(&view), number(&format!("{view}_variance")));
                    fields.insert(format!("{view}_95"), json!(interval));
                }
                let is_later = |field: &str| field.ends_with("_variance") || field.ends_with("_third_cumulant");
                fields.retain(|field, _| !is_later(field) && field != "thread");
            }
        }
    });
    let again = again.expect("readable");
    assert_eq!(again.targets[0].facts.comm, "app --flag");
    let profile = read_back(&profiles::sampled());
    for (callsite, same) in again.targets[0].callsites.iter().zip(&profile.targets[0].callsites) {
        for view in View::ALL {
            let [actual, expected] = [callsite, same].map(|callsite| view.variance(&callsite.totals).to_f64());
            assert!((actual - expected).abs() <= 1e-6 * expected.max(1.0), "{view}: {actual} is not {expected}");
        }
    }
}

#[test]
fn unknown_fields_are_ignored() {
    let again = changed(&profiles::exact(), |report| {
        report["surprise"] = json!({ "deep": [1, 2, { "er": null }] });
        report["targets"][0]["callsites"][0]["sizes"] = json!([[1, 2], [3, 4]]);
    });
    assert_eq!(again.expect("readable").targets[0].callsites.len(), 5);
}

#[test]
fn invalid_values_are_refused() {
    let check = |path: &str, value: Value, reason: &str| {
        let read = changed(&profiles::sampled(), |report| {
            *report.pointer_mut(path).unwrap_or_else(|| panic!("no {path}")) = value.clone();
        });
        let error = read.expect_err("invalid").to_string();
        assert!(error.contains(reason), "`{error}` does not contain `{reason}`");
    };
    check("/targets/0/callsites/0/live_bytes", json!(1e300), "`1e300` exceeds the limit");
    check("/targets/0/callsites/0/live_bytes_variance", json!(-1e200), "exceeds the limit");
    check("/targets/0/callsites/0/stack/0/address", json!("here\u{1b}[2J"), "`here [2J` is not a hexadecimal address");
    check("/targets/0/callsites/0/end", json!("soon"), "`soon` is not a valid end of a stack");
    check("/targets/0/beginning/origin", json!("egg"), "unknown variant `egg`");
    check("/targets/0/mappings/0/module", json!(17), "a mapping refers to module `17` of");
    check("/targets/0/mappings/0/start", json!("0xffffffffffffffff"), "after its end `0x555510000000`");
    check("/targets/0/mappings/0/bias", json!("x"), "`x` is not a hexadecimal address");
    check("/targets/0/callsites/0/thread", json!(0), "a callsite refers to thread `0` of 0");
    check("/targets/0/pid", json!(-1), "-1");
    check("/health/lost", json!({ "a": u64::MAX, "b": 1 }), "the sum of the counts exceeds 64 bits");
    check("/version", json!(2), "version 2");
    check("/targets", json!({}), "not a report of heapbpf");
    for id in ["", "abc", "0g", "é0"] {
        check("/modules/0/build_id", json!(id), &format!("`{id}` is not a build id"));
    }
    let text = render(Format::Json, &profiles::exact(), View::LiveBytes);
    let half = read(&text.as_bytes()[..text.len() / 2]).expect_err("half a report").to_string();
    assert!(half.starts_with("it is not JSON, or truncated"), "{half}");
    let nested = "[".repeat(100_000);
    assert!(read(nested.as_bytes()).is_err());
}

proptest! {
    #[test]
    fn any_profile_is_read_back(profile in properties::profile(), view in proptest::sample::select(View::ALL.to_vec())) {
        let text = render(Format::Json, &profile, view);
        let again = read(text.as_bytes()).expect("reports are readable");
        prop_assert!(render(Format::Json, &again, view) == text);
        prop_assert_eq!(render(Format::Folded, &again, view), render(Format::Folded, &profile, view));
    }

    #[test]
    fn any_text_is_read_or_refused(at in 0.0..1.0_f64, bytes in proptest::collection::vec(any::<u8>(), 1..8)) {
        let mut text = render(Format::Json, &profiles::sampled(), View::LiveBytes).into_bytes();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a place in it")]
        let at = (at * text.len() as f64) as usize;
        text.splice(at..(at + bytes.len()).min(text.len()), bytes);
        if let Ok(profile) = read(&text) {
            for format in formats() {
                written(format, &profile, View::LiveBytes);
            }
        }
    }

    #[test]
    fn variances_follow_from_confidence_intervals(estimate in 1.0..1e12_f64, samples in 1.0..1e6_f64) {
        let variance = estimate * estimate / samples;
        let back = Totals::variance_of(estimate, score_interval(estimate, variance));
        prop_assert!((back - variance).abs() <= 1e-6 * variance, "{back} is not {variance}");
    }
}
