//! Reached limits in reports.

use heapbpf_base::ids::Pid;
use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::model::{Action, End, Excess, Guardrails, Overhead, ProbeScope, Profile, Reached, ScopeKind};
use serde_json::{Value, json};

use crate::testing as profiles;
use crate::{Format, View, describe, summary};

/// A recording with all limits, two of which were reached.
pub(super) fn limited() -> Profile {
    let mut profile = profiles::exact();
    let after = |seconds: u64| profile.started_unix_ns + seconds * 1_000_000_000;
    let pid = Pid(4711);
    let guardrails = Guardrails {
        memory_bytes_max: Some(200 << 20),
        memory_bytes_highest: Some(150 << 20),
        cpu_percent_max: Some(2.5),
        cpu_percent_highest: Some(3.25),
        overhead_percent_max: Some(5.0),
        probe_costs: None,
        reached: vec![
            Reached { unix_ns: after(2), what: Excess::Cpu(3.25), action: Action::IntervalsRaised },
            Reached { unix_ns: after(4), what: Excess::Overhead(pid, 61.0), action: Action::Detached },
        ],
    };
    profile.health.guardrails = guardrails;
    profile.health.scope = Some(ProbeScope {
        kind: ScopeKind::Inode,
        reason: "for 20 targets and 7 other processes that map the hooked files, sharing is cheaper".to_owned(),
        other_processes: Some(7),
        foreign_calls: 1_234,
        foreign_probes: Some(5),
    });
    profile.targets[0].facts.end = Some(End::Detached(MonotonicNanos(profile.started_monotonic_ns + 4_000_000_000)));
    let overhead = Overhead { percent: 60.0, percent_highest: Some(61.0), probe_ns: 2.4e9, cpu_ns: 4_000_000_000 };
    profile.targets[0].facts.overhead = Some(overhead);
    profile
}

fn text(profile: &Profile) -> String {
    summary::summary(profile, View::LiveBytes, 0, None, false)
}

#[test]
fn the_summary_lists_reached_limits_and_actions() {
    let text = text(&limited());
    for expected in [
        "command: /usr/bin/cached, detached",
        "health: incomplete: 1 process detached by a limit",
        "intervals raised after 2s: heapbpf took 3.2% of a core, more than the 2.5% allowed",
        "detached after 4s: probes took ≈ 61% of the CPU time of cached (pid 4711), more than the 5.0% allowed; its numbers, including live bytes, are as of then",
        "memory: at most 150.0 MiB, kernel maps and agent, of the 200.0 MiB allowed",
        "overhead: probes took ≈ 60% of the CPU time of cached (pid 4711) (5.0% allowed)",
    ] {
        assert!(text.contains(expected), "no `{expected}` in:\n{text}");
    }
}

#[test]
fn shared_probes_and_their_cost_for_others_are_reported() {
    let text = text(&limited());
    let expected = "  probes: shared by all processes that map a hooked file (for 20 targets and 7 other processes that map the \
                    hooked files, sharing is cheaper)\n    1,234 allocating calls of processes that are not targets met them, \
                    at 1 to 2 µs each\n  other tools: 5 probes on hooked functions, which slow down the targets' calls\n";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn a_stopped_recording_has_its_reason() {
    let mut profile = limited();
    let unix_ns = profile.started_unix_ns + 9_000_000_000;
    profile.health.guardrails.reached =
        vec![Reached { unix_ns, what: Excess::Memory(201 << 20), action: Action::Stopped }];
    let text = text(&profile);
    let expected = "stopped after 9s: heapbpf and its kernel maps took 201.0 MiB, more than the 200.0 MiB allowed";
    assert!(text.contains(expected), "{text}");
    assert_eq!(describe::verdict(&profile), "incomplete: stopped by a limit, 1 process detached by a limit");
}

#[test]
fn a_profile_is_incomplete_if_a_limit_stopped_it() {
    let mut profile = limited();
    assert!(profile.incomplete());
    profile.health.guardrails.reached.truncate(1);
    assert!(!profile.incomplete(), "larger intervals leave nothing out");
    profile.health.guardrails.reached.clear();
    assert!(!profile.incomplete());
}

#[test]
fn json_has_limits_and_the_times_they_were_reached() {
    let mut bytes = Vec::new();
    Format::Json.write(&limited(), &View::LiveBytes.into(), &mut bytes).expect("memory can be written");
    let report: Value = serde_json::from_slice(&bytes).expect("it is JSON");
    let guardrails = &report["health"]["guardrails"];
    assert_eq!(guardrails["cpu_percent_max"], json!(2.5));
    assert_eq!(guardrails["probe_costs"], Value::Null);
    let started = report["started_unix_ns"].as_u64().expect("a number");
    let expected = json!({
        "unix_ns": started + 4_000_000_000, "limit": "overhead", "action": "detached",
        "pid": 4711, "bytes": null, "percent": 61.0,
    });
    assert_eq!(guardrails["reached"][1], expected);
    assert_eq!(report["targets"][0]["detached_unix_ns"], json!(started + 4_000_000_000));
    assert_eq!(report["targets"][0]["overhead"]["percent_highest"], json!(61.0));
}
