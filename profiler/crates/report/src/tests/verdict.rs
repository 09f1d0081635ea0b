//! The verdict: what makes a profile incomplete, in all reports and in docs/exit-codes.md.

use std::sync::Arc;

use heapbpf_base::ids::Pid;
use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::model::{
    Defect, Health, InterpreterFrames, Inventory, LanguageFunctions, Loss, MemoryAccount, MemoryClass, MemoryFacts,
    MemoryPart, MemoryPoint, Origin, Profile, Window, WindowReason,
};
use serde_json::{Value, json};
use strum::VariantArray as _;

use super::render;
use crate::testing as profiles;
use crate::{Format, View, describe, summary};
use heapbpf_base::testing::check_table;

#[track_caller]
fn check(profile: &Profile, verdict: &str) {
    assert_eq!(describe::verdict(profile), verdict);
    assert_eq!(profile.incomplete(), verdict.starts_with("incomplete"), "{verdict}");
    let text = summary::summary(profile, View::LiveBytes, 0, None, false);
    let first = text.lines().find(|line| line.starts_with("health: "));
    assert_eq!(first, Some(format!("health: {verdict}").as_str()), "{text}");
    let report: Value = serde_json::from_str(&render(Format::Json, profile, View::LiveBytes)).expect("it is JSON");
    let reported = &report["health"]["verdict"];
    assert_eq!(reported["statement"], json!(verdict));
    assert_eq!(reported["complete"], json!(!profile.incomplete()));
    assert_eq!(reported["strict"], json!(profile.strict));
    let findings = reported["findings"].as_array().expect("a list");
    assert_eq!(findings.len(), Defect::VARIANTS.len());
    assert_eq!(findings.iter().any(|finding| finding["exceeded"] == json!(true)), profile.incomplete());
}

fn strict(profile: &Profile) -> Profile {
    Profile { strict: true, ..profile.clone() }
}

fn lossy(events: u64, reason: Loss, count: u64) -> Profile {
    let mut profile = profiles::exact();
    (profile.health.events, profile.health.lost) = (events, vec![(reason, count)]);
    profile
}

#[test]
fn few_dropped_events_are_tolerated() {
    check(&profiles::exact(), "complete");
    check(&strict(&profiles::exact()), "complete");
    let one = lossy(135_000, Loss::MissedFree, 1);
    check(&one, "complete except for 1 event dropped (<0.1%)");
    check(&strict(&one), "incomplete: 1 event dropped (<0.1%)");
    check(&lossy(9_990, Loss::RingFull, 10), "complete except for 10 events dropped (0.1%)");
    check(&lossy(9_989, Loss::RingFull, 11), "incomplete: 11 events dropped (0.1%)");
    check(&lossy(1_000_000, Loss::ForkMissed, 1), "incomplete: 1 process missed");
    check(&lossy(1_000_000, Loss::ProcessSkipped, 2), "incomplete: 2 processes not recorded");
    check(&lossy(1_000_000, Loss::Unmonitored, 1), "incomplete: forks and execs not reported by the kernel");
}

/// What a forked child has at the fork is its parent's, so this is no reason to call a profile incomplete.
#[test]
fn first_calls_of_forked_processes_are_in_the_verdict() {
    let forked = |delays: &[Option<u64>]| {
        let mut profile = profiles::exact();
        let one = profile.targets.remove(0);
        profile.targets = delays.iter().map(|_| one.clone()).collect();
        for (target, &delay_ns) in profile.targets.iter_mut().zip(delays) {
            let beginning = &mut target.facts.beginning;
            (beginning.origin, beginning.delay_ns, beginning.from_first_call) =
                (Origin::Forked(Pid(1)), delay_ns, false);
        }
        profile
    };
    check(&forked(&[None, Some(0)]), "complete");
    let late = forked(&[Some(3_400_000), Some(1_200_000), None]);
    check(&late, "complete except for the first 3ms of 2 forked processes");
    check(&strict(&late), "complete except for the first 3ms of 2 forked processes");
    let mut later = late;
    later.window = Some(Window {
        number: Some(2),
        reason: WindowReason::Time,
        start_unix_ns: later.unix_ns(MonotonicNanos(u64::MAX)),
        since_mark: false,
        end_unix_ns: later.ended_unix_ns,
        merged_count: 0,
    });
    let verdict = describe::verdict(&later);
    assert_eq!(verdict, "complete", "they were forked before this window");
}

#[test]
fn losses_that_last_are_in_each_window() {
    let health = |dropped| Health {
        lost: vec![(Loss::Unmonitored, 1), (Loss::RingFull, dropped), (Loss::Unobserved, 2)],
        ..Health::default()
    };
    let window = health(7).since(&health(5));
    let lost = [Loss::Unmonitored, Loss::RingFull, Loss::Unobserved].map(|loss| window.lost_by(&loss));
    assert_eq!(lost, [1, 2, 2]);
    assert_eq!(window.lost.len(), 3, "each once: {:?}", window.lost);
}

/// They are no reason to call a profile incomplete, but "complete" alone would hide them.
#[test]
fn missing_names_of_interpreters_are_in_the_verdict() {
    let with = |interpreters: InterpreterFrames| {
        let mut profile = profiles::exact();
        profile.health.interpreters = Some(interpreters);
        profile
    };
    let functions = |unnamed_reasons: &[(&str, u64)]| LanguageFunctions {
        functions: 400,
        unnamed: unnamed_reasons.iter().map(|(_, count)| count).sum(),
        unnamed_reasons: unnamed_reasons.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect(),
    };
    let unnamed = with(InterpreterFrames {
        languages: [
            ("JavaScript".to_owned(), functions(&[("more than are kept", 2), ("replaced before they were read", 10)])),
            ("Python".to_owned(), functions(&[])),
        ]
        .into(),
        ..InterpreterFrames::default()
    });
    let expected = "names of 3.0% of JavaScript functions (replaced before they were read; see docs/javascript.md)";
    check(&unnamed, &format!("complete except for {expected}"));
    check(&strict(&unnamed), &format!("complete except for {expected}"));
    let unsupported = with(InterpreterFrames {
        unsupported: [("CPython 3.15 is not supported".to_owned(), 1)].into(),
        ..InterpreterFrames::default()
    });
    check(
        &unsupported,
        "complete except for functions of the interpreter in 1 process (CPython 3.15 is not supported)",
    );
}

#[test]
fn crashes_of_the_symbolizer_are_in_the_verdict() {
    let mut profile = profiles::exact();
    profile.health.symbolization.crashes = 16;
    check(&profile, "complete except for names of functions (the symbolizer crashed 16 times)");
    check(&strict(&profile), "complete except for names of functions (the symbolizer crashed 16 times)");
}

#[test]
fn few_cut_stacks_are_tolerated() {
    let cut = |complete: u64, no_row: u64| {
        let mut profile = profiles::exact();
        profile.health.unwind = vec![("complete".to_owned(), complete), ("no_row".to_owned(), no_row)];
        profile
    };
    check(&cut(99, 1), "complete except for 1.0% of stacks are cut");
    check(&strict(&cut(99, 1)), "incomplete: 1.0% of stacks are cut");
    check(&cut(25, 975), "incomplete: 97.5% of stacks are cut");
}

#[test]
fn growth_that_is_not_recorded_makes_a_profile_incomplete() {
    let grown = |hooked: u64, other: u64| {
        let part = |class, bytes| MemoryPart { class, name: None, bytes };
        let point = |seconds: u64, parts| MemoryPoint {
            time: MonotonicNanos(seconds * 1_000_000_000),
            pss_bytes: 0,
            swap_bytes: 0,
            parts,
        };
        let end = vec![part(MemoryClass::LiveBlocks, hooked), part(MemoryClass::Unexplained, other)];
        let mut account = MemoryAccount::default();
        account.extend(MemoryFacts { points: vec![point(1, Vec::new()), point(2, end)], ..MemoryFacts::default() });
        let mut profile = profiles::exact();
        profile.targets[0].memory = Arc::new(account);
        profile
    };
    check(&grown(0, (16 << 20) - 1), "complete");
    check(&grown(4 << 20, 12 << 20), "incomplete: 75.0% of a growth in memory is unexplained");
    let half = grown(16 << 20, 16 << 20);
    check(&half, "complete except for 50.0% of a growth in memory is unexplained");
    check(&strict(&half), "incomplete: 50.0% of a growth in memory is unexplained");
    check(&strict(&grown(95 << 20, 5 << 20)), "complete except for 5.0% of a growth in memory is unexplained");
}

#[test]
fn an_inventory_with_gaps_makes_a_profile_incomplete() {
    let with = |gaps: &[String], error: Option<&str>| {
        let inventory = Inventory { gaps: gaps.to_vec(), error: error.map(str::to_owned), ..Inventory::default() };
        let mut account = MemoryAccount::default();
        account.extend(MemoryFacts { inventory: Some(inventory), ..MemoryFacts::default() });
        let mut profile = profiles::exact();
        profile.targets[0].memory = Arc::new(account);
        profile
    };
    let gap = "heap libc: the allocator counts 2 blocks, and 1 was found".to_owned();
    let unsupported = Inventory::unsupported("pool");
    let expected = "incomplete: some blocks from before the recording are unknown in 1 process";
    check(&with(&[], None), "complete");
    check(&with(std::slice::from_ref(&gap), None), expected);
    check(&with(&[unsupported.clone(), gap.clone()], None), expected);
    // Nothing is claimed of these.
    check(&strict(&with(&[unsupported], None)), "complete");
    check(&with(&[gap], Some("its heap is damaged")), "complete");
}

#[test]
fn a_profile_without_processes_or_hooks_is_incomplete() {
    check(&profiles::nobody(), "incomplete: no process was profiled");
    let mut profile = profiles::empty();
    profile.targets[0].heaps.clear();
    check(&profile, "incomplete: no allocator is hooked in 1 process");
    profile.targets.push(profiles::empty().targets.remove(0));
    check(&profile, "complete except for no allocator is hooked in 1 process");
    check(&strict(&profile), "incomplete: no allocator is hooked in 1 process");
    check(&profiles::unhooked(), "incomplete: no allocator is hooked in 1 process, 2 hooks not attached");
}

#[test]
fn the_documented_table_is_that_of_the_code() {
    let percent = |share: f64| if share == 0.0 { "any".to_owned() } else { format!("{} %", 100.0 * share) };
    let row = |defect: &Defect| {
        let threshold = defect.threshold();
        let (max, strict) = (percent(threshold.share_max), percent(threshold.strict_share_max));
        format!("| `{}` | {} | {max} | {strict} |\n", defect.name(), threshold.measure)
    };
    let rows: String = Defect::VARIANTS.iter().map(row).collect();
    let table = format!("| kind | what is missing | incomplete above | with `--strict` |\n|---|---|---:|---:|\n{rows}");
    check_table("exit-codes.md", "table of thresholds", &table);
}
