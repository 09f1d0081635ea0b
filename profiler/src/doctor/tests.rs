//! Tests of the text and JSON of synthetic diagnoses.

mod machines;

use heapbpf_base::address::FileOffset;
use heapbpf_base::ids::ModuleId;
use heapbpf_base::testing::schema::{check_reports, check_schema};
use heapbpf_ledger::model::{ProbeScope, ScopeKind};
use profiler_common::arch::ARGUMENTS;
use serde_json::Value;

use super::report::{text, write_json};
use super::*;
use crate::allocator::functions;
use crate::allocator::resolve::ResolvedHook;
use crate::probe::code::PlaceError;
use crate::probe::place::{Arguments, Class, Placement};
use crate::probe::plan::Plan;

fn trial(kind: TrialKind, support: Support) -> Trial {
    Trial::new(kind, support)
}

/// A diagnosis in which everything works, for a process with a cheap `free`, an expensive `malloc` and a `calloc` that cannot be
/// probed.
fn healthy() -> Diagnosis {
    let mut trials: Vec<Trial> =
        Feature::ALL.iter().map(|&feature| trial(TrialKind::Feature(feature), Support::Yes)).collect();
    trials.push(trial(TrialKind::Capabilities, Support::Yes));
    Diagnosis {
        kernel: "6.99.1-synthetic".to_owned(),
        environments: vec![Environment {
            kind: environment::Kind::Docker,
            name: "Docker container".to_owned(),
            evidence: vec!["/.dockerenv: exists".to_owned()],
        }],
        refusals: Vec::new(),
        facts: Facts::of(&[
            (source::DOCKER, Answer::Exists),
            (source::BTF, Answer::Error(libc::ENOENT)),
            (source::RELEASE, Answer::Text("6.99.1-synthetic".to_owned())),
        ]),
        trials,
        limits: vec![Limit { name: "kernel lockdown", value: None, meaning: "something" }],
        costs: Some(Costs {
            emulated_ns: 612.4,
            single_stepped_ns: 12_345.6,
            emulated_with_return_ns: 1_234.5,
            single_stepped_with_return_ns: 13_579.0,
        }),
        target: Some(Target {
            pid: Pid(42),
            comm: "evil\x1b[2Jname".to_owned(),
            hooks: Ok(hooks()),
            scope: Some(scope()),
            engines: Some(engines()),
        }),
    }
}

/// The forecast for a process that allocated 100,000 times in 0.2 s, most of which the probes took.
fn engines() -> EnginesForecast {
    EnginesForecast::new(CallRate { allocations: 100_000, cpu_ns: 200_000_000, pointers: 19 }, 1_900.0)
}

#[test]
fn engines_are_compared_by_the_programs_own_time() {
    // The program itself took 10 ms.
    let forecast = engines();
    assert_eq!((forecast.allocations_per_second, forecast.pointers), (1e7, 19));
    assert_eq!((forecast.trap, forecast.inline), (20.0, Some(1.03)));
    let text = text(&healthy(), false);
    assert!(text.contains("CPU time with `--engine trap`: more than 10 times"), "{text}");
    assert!(text.contains("CPU time with `--engine inline`: ≈ 1.03 times (19 pointers"), "{text}");
    let none = EnginesForecast::new(CallRate { allocations: 0, cpu_ns: 0, pointers: 0 }, 1_900.0);
    assert_eq!((none.trap, none.inline), (1.0, None));
}

fn scope() -> ScopeForecast {
    let choice = |kind, reason: &str| ProbeScope {
        kind,
        reason: reason.to_owned(),
        other_processes: None,
        foreign_calls: 0,
        foreign_probes: None,
    };
    ScopeForecast {
        other_processes: 12,
        foreign_probes: Some(3),
        one_target: choice(ScopeKind::Process, "one target"),
        all: choice(ScopeKind::Inode, "nearly all"),
    }
}

fn hooks() -> Vec<PlannedHook> {
    let mut plan = Plan::default();
    let mut planned = |function: &str, placement: Result<Placement, PlaceError>| {
        let spec = functions::C.iter().find(|spec| spec.function == function).expect("in the table");
        let hook = ResolvedHook {
            spec,
            module: ModuleId(0),
            path: "/lib/pool\nA.so".to_owned(),
            is_go: false,
            is_custom: false,
            offset: FileOffset(0x1000 + plan.heaps().len() as u64 + u64::from(function.as_bytes()[0])),
            size_bytes: 16,
            heap: "libc".to_owned(),
            aliases: Vec::new(),
            calls_known: false,
            nested_returns: Vec::new(),
            reached_by_default: true,
            required: true,
        };
        let id = plan.add(&hook, || placement).expect("fits");
        plan.hook(id).clone()
    };
    let arguments = Arguments { size: ARGUMENTS[0], count: None, pointer: Some(ARGUMENTS[0]) };
    let placement = |offset_in_function, instruction: &str, class| Placement {
        offset_in_function,
        instruction: instruction.to_owned(),
        class,
        arguments,
    };
    vec![
        planned("free", Ok(placement(3, "je 0x1010", Class::Emulated))),
        planned("malloc", Ok(placement(0, "endbr64", Class::SingleStepped))),
        planned("calloc", Err(PlaceError::Undecodable("06".to_owned()))),
    ]
}

fn json(diagnosis: &Diagnosis) -> Value {
    let mut bytes = Vec::new();
    write_json(diagnosis, &mut bytes).expect("vectors accept all bytes");
    serde_json::from_slice(&bytes).expect("it is JSON")
}

/// Returns the line that starts with `start`, with single spaces.
#[track_caller]
fn line(text: &str, start: &str) -> String {
    let lines = || text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("no line `{start}…` in:\n{text}"))
}

#[test]
fn text_shows_trials_and_costs() {
    let diagnosis = healthy();
    assert!(diagnosis.works());
    let text = text(&diagnosis, false);
    assert!(text.contains("6.99.1-synthetic"), "{text}");
    assert!(text.ends_with("profiling works here\n"), "{text}");
    assert_eq!(line(&text, "emulated by"), "emulated by the kernel 610 ns 1230 ns");
    assert_eq!(line(&text, "single-stepped"), "single-stepped 12 µs 14 µs");
    assert_eq!(line(&text, "free"), "free 0x1069 je 0x1010 emulated 610 ns /lib/pool A.so");
    assert_eq!(line(&text, "malloc 0x"), "malloc 0x106e endbr64 single-stepped 14 µs /lib/pool A.so");
    assert!(line(&text, "calloc").contains("`06`"), "{text}");
    assert_eq!(line(&text, "other processes"), "other processes that map these files: 12");
    assert_eq!(line(&text, "probes of other"), "probes of other tools on these functions: 3");
    assert_eq!(line(&text, "with this"), "with this target alone: probes of single processes (one target)");
    assert_eq!(
        line(&text, "with `--all`"),
        "with `--all`: probes shared by all processes that map these files (nearly all)"
    );
    assert_eq!(line(&text, "kernel lockdown"), "kernel lockdown not readable something");
}

#[test]
fn control_characters_of_targets_are_removed() {
    let plain = text(&healthy(), false);
    assert!(!plain.contains('\x1b'), "{plain}");
    // Colours are escapes too; the target's are removed.
    let coloured = text(&healthy(), true);
    assert!(coloured.contains("\x1b[") && !coloured.contains("\x1b[2J"), "{coloured:?}");
}

#[test]
fn json_has_trials_costs_and_hooks() {
    let json = json(&healthy());
    assert_eq!(json["version"], 1);
    assert_eq!(json["works"], true);
    assert_eq!(json["costs"]["emulated_ns"], 612.4);
    let hooks = json["target"]["hooks"].as_array().expect("a list");
    assert_eq!(hooks.len(), 3);
    assert_eq!(hooks[0]["instruction"], "je 0x1010");
    assert_eq!((&hooks[0]["emulated"], &hooks[0]["expected_ns"]), (&Value::from(true), &Value::from(612.4)));
    assert_eq!((&hooks[1]["emulated"], &hooks[1]["expected_ns"]), (&Value::from(false), &Value::from(13_579.0)));
    assert_eq!((&hooks[2]["instruction"], &hooks[2]["expected_ns"]), (&Value::Null, &Value::Null));
    assert!(hooks[2]["error"].as_str().is_some_and(|error| error.contains("`06`")));
    let scope = &json["target"]["scope"];
    assert_eq!((&scope["other_processes"], &scope["foreign_probes"]), (&Value::from(12), &Value::from(3)));
    assert_eq!(scope["all"], serde_json::json!({ "kind": "inode", "reason": "nearly all" }));
}

#[test]
fn only_required_trials_prevent_profiling() {
    let with = |kind, support| Diagnosis { trials: vec![trial(kind, support)], ..healthy() };
    let no = || Support::No("broken".to_owned());
    for (kind, prevents) in [
        (TrialKind::Capabilities, true),
        (TrialKind::PidNamespace, true),
        (TrialKind::Programs, true),
        (TrialKind::Attaching, true),
        (TrialKind::Feature(Feature::BpfPrograms), true),
        (TrialKind::Feature(Feature::Uprobes), true),
        (TrialKind::Feature(Feature::Cookies), false),
        (TrialKind::Isolation, false),
        (TrialKind::Feature(Feature::KernelBtf), false),
        (TrialKind::Feature(Feature::UprobeMulti), false),
        (TrialKind::Feature(Feature::UprobeSession), false),
    ] {
        let diagnosis = with(kind, no());
        assert_eq!(diagnosis.works(), !prevents, "{kind:?}");
        let trial = &diagnosis.trials[0];
        let text = text(&diagnosis, false);
        assert!(text.contains("broken"), "{text}");
        assert_eq!(trial.prevents(), prevents);
        assert!(trial.remedy().is_some_and(|remedy| text.contains(remedy)), "{text}");
        // What recordings lack matters where they are possible.
        assert_eq!(trial.consequence().is_some_and(|consequence| text.contains(consequence)), !prevents, "{text}");
        assert!(with(kind, Support::Unknown("anything".to_owned())).works(), "{kind:?}");
    }
}

#[test]
fn a_process_that_cannot_be_profiled_is_a_failure() {
    let target = |hooks| Some(Target { pid: Pid(42), comm: String::new(), hooks, scope: None, engines: None });
    let refused = Diagnosis { target: target(Err("no process `42`".to_owned())), ..healthy() };
    assert!(!refused.works());
    assert!(text(&refused, false).contains("no process `42`"));
    assert_eq!(json(&refused)["target"]["error"], "no process `42`");
    let unprobed = Diagnosis { target: target(Ok(hooks().split_off(2))), ..healthy() };
    assert!(!unprobed.works());
    assert!(Diagnosis { target: None, ..healthy() }.works());
}

#[test]
fn the_probed_process_answers_each_request() {
    let mut answers = Vec::new();
    serve(&b"0 10\n3 1\n"[..], &mut answers).expect("valid requests");
    let answers = String::from_utf8(answers).expect("text");
    assert_eq!(answers.lines().map(|line| line.parse::<u32>().is_ok()).collect::<Vec<_>>(), [true, true]);
    for line in ["4 1", "0", "x 1", "0 -1", ""] {
        assert!(serve(format!("{line}\n").as_bytes(), &mut Vec::new()).is_err(), "{line}");
    }
}

/// A diagnosis of a process with a filter that refuses `bpf`, so that the programs cannot be loaded.
fn filtered() -> Diagnosis {
    let refusal = Refusal {
        id: "seccomp_bpf",
        feature: "bpf(2)",
        prevents: true,
        reason: "a seccomp filter refuses `bpf`".to_owned(),
        evidence: vec!["bpf(2): EPERM".to_owned(), "Seccomp: 2".to_owned()],
        remedy: "start it elsewhere".to_owned(),
        explains: &[TrialKind::Programs],
    };
    let programs = trial(TrialKind::Programs, Support::No("map `EVENTS`".to_owned()));
    Diagnosis { refusals: vec![refusal], trials: vec![programs], costs: None, target: None, ..healthy() }
}

#[test]
fn refusals_have_feature_evidence_and_remedy() {
    let diagnosis = filtered();
    assert!(!diagnosis.works());
    let text = text(&diagnosis, false);
    let verdict = text.split("profiling does not work here\n").nth(1).expect("it does not work");
    assert_eq!(
        verdict,
        "  a seccomp filter refuses `bpf`\n    feature:  bpf(2)\n    evidence: bpf(2): EPERM\n              Seccomp: 2\n    \
         remedy:   start it elsewhere\n"
    );
    assert_eq!(line(&text, "Docker"), "Docker container /.dockerenv: exists");
    let json = json(&diagnosis);
    let refusal = &json["refusals"][0];
    assert_eq!((&refusal["id"], &refusal["prevents"]), (&Value::from("seccomp_bpf"), &Value::from(true)));
    assert_eq!(refusal["evidence"], serde_json::json!(["bpf(2): EPERM", "Seccomp: 2"]));
    let trial = &json["trials"][0];
    assert_eq!((&trial["refusal"], &trial["remedy"]), (&refusal["id"], &refusal["remedy"]));
    assert_eq!(json["environments"][0]["id"], "docker");
    let facts = json["facts"].as_array().expect("a list");
    let fact = |source: &str| facts.iter().find(|fact| fact["source"] == source).expect("it is known");
    assert_eq!((&fact(source::DOCKER)["value"], &fact(source::DOCKER)["error"]), (&"exists".into(), &Value::Null));
    assert_eq!((&fact(source::BTF)["value"], &fact(source::BTF)["error"]), (&Value::Null, &"ENOENT".into()));
}

#[test]
fn what_is_not_needed_is_listed_where_profiling_works() {
    let mut diagnosis = filtered();
    diagnosis.refusals[0].prevents = false;
    diagnosis.refusals[0].explains = &[TrialKind::Tracing];
    diagnosis.trials = vec![trial(TrialKind::Tracing, Support::No("EPERM".to_owned()))];
    assert!(diagnosis.works());
    let shown = text(&diagnosis, false);
    let missing = shown.split("what is missing, but not needed\n").nth(1).expect("it is listed");
    assert!(missing.contains("a seccomp filter refuses `bpf`") && missing.contains("no `-- COMMAND`"), "{shown}");
    // The same refusal prevents recording where the kernel has no alternative.
    diagnosis.refusals[0].explains = &[TrialKind::Attaching];
    diagnosis.trials = vec![trial(TrialKind::Attaching, Support::No("EPERM".to_owned()))];
    assert!(!diagnosis.works());
    let shown = text(&diagnosis, false);
    assert!(shown.contains("not work here\n  a seccomp filter refuses `bpf`\n"), "{shown}");
}

#[test]
fn trials_are_stronger_than_facts() {
    let refusal = &filtered().refusals[0];
    assert!(is_seen(refusal, &[trial(TrialKind::Programs, Support::No(String::new()))]));
    assert!(is_seen(refusal, &[trial(TrialKind::Programs, Support::Unknown(String::new()))]));
    assert!(!is_seen(refusal, &[trial(TrialKind::Programs, Support::Yes)]));
}

#[test]
fn the_json_conforms_to_its_schema_and_has_all_its_fields() {
    let schema = check_schema::<json::Doctor<'_>>("doctor", "heapbpf's JSON diagnosis");
    let without_probes = Diagnosis { costs: None, ..healthy() };
    let reports = [healthy(), filtered(), without_probes].map(|diagnosis| json(&diagnosis));
    check_reports(&schema, &reports, &Value::Null);
}

#[test]
fn the_selected_word_is_in_brackets() {
    assert_eq!(selected_word("none [integrity] confidentiality"), "integrity");
    assert_eq!(selected_word("[none] integrity confidentiality"), "none");
    assert_eq!(selected_word("anything"), "anything");
}
