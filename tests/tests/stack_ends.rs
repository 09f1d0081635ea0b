//! Where stacks end: at the first function of a thread, which is complete, or earlier, which reports, health and the exit code
//! name.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use heapbpf_tests::heapbpf::{Heapbpf, Outcome};
use heapbpf_tests::interpreters::java_without_description;
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::report::Report;
use heapbpf_tests::shared::java_classes;
use heapbpf_tests::target::{Target, build_directory, run};
use serde_json::{Value, json};

/// Records each allocation of one command.
fn profile(target: &mut Target, work: impl FnOnce(&mut Target), code: i32) -> (Report, Outcome, String) {
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o out.json -o out.folded");
    let session = heapbpf.start();
    work(target);
    let outcome = session.interrupt().expect_code(code);
    let folded = std::fs::read_to_string(heapbpf.file("out.folded")).expect("it was written");
    (heapbpf.report("out.json"), outcome, folded)
}

/// All stacks are complete, and a C library's function without name or unwind information calls the outermost known one.
#[track_caller]
fn check_complete(recipe: &Recipe, work: &str, outermost: &str) {
    let mut target = Target::spawn(&mut Command::new(recipe.build()));
    let (report, outcome, folded) = profile(&mut target, |target| drop(target.work(work)), 0);
    let ends: Vec<&str> = report.health.unwind.keys().map(String::as_str).collect();
    assert_eq!(ends, ["complete"], "{recipe}: {:?}", report.health.unwind);
    assert!(outcome.stdout.contains("stacks: 100.0% complete"), "{recipe}: {}", outcome.stdout);
    assert!(!folded.contains("[unwind"), "{recipe}: {folded}");
    for callsite in &report.process(target.pid()).callsites {
        let at = callsite.stack.iter().position(|frame| frame.function.as_deref() == Some(outermost));
        assert!(at.is_some_and(|at| at + 2 <= callsite.stack.len()), "{recipe}: no caller of {outermost}: {folded}");
        // glibc's function is called by `_start`; musl's is the last one with a frame.
        let callers_max = if recipe.to_string().starts_with("musl") { 1 } else { 3 };
        assert!(at.is_some_and(|at| callsite.stack.len() - at - 1 <= callers_max), "{recipe}: {folded}");
    }
}

#[test]
fn stacks_of_a_musl_program_are_complete() {
    check_complete(&Recipe::of("service.c").compiler("musl-gcc"), "keep 10 5", "main");
    check_complete(&Recipe::of("threads.c").compiler("musl-gcc"), "go", "thread");
}

#[test]
fn stacks_of_a_static_musl_program_are_complete() {
    check_complete(&Recipe::of("service.c").compiler("musl-gcc").flags("-static"), "keep 10 5", "main");
    check_complete(&Recipe::of("threads.c").compiler("musl-gcc").flags("-static"), "go", "thread");
}

#[test]
fn stacks_of_a_static_glibc_program_are_complete() {
    check_complete(&Recipe::of("service.c").flags("-static"), "keep 10 5", "main");
}

/// Concurrent tests each build their own copy.
fn calling_go(name: &str, flags: &[&str]) -> PathBuf {
    let sources = ["calling.go", "called.go"].map(|file| format!("{}/targets/{file}", env!("CARGO_MANIFEST_DIR")));
    let directory = build_directory().join("targets");
    let scratch = tempfile::tempdir_in(&directory).expect("the build directory is ours");
    let built = scratch.path().join(name);
    let mut go = Command::new("go");
    run(go.args(["build", "-o"]).arg(&built).args(flags).args(sources).env("CGO_ENABLED", "1"));
    let program = directory.join(name);
    std::fs::rename(&built, &program).expect("both lie in one directory");
    program
}

/// Go calls C on another stack, and C calls Go on that of a goroutine: all of it is one stack. Functions without names are `?`.
#[track_caller]
fn check_go(name: &str, flags: &[&str], direct: &str, nested: &str) {
    let mut target = Target::spawn(&mut Command::new(calling_go(name, flags)));
    let (report, _, folded) = profile(&mut target, |target| target.run_command("go"), 0);
    assert_eq!(report.health.unwind.keys().collect::<Vec<_>>(), ["complete"], "{:?}", report.health.unwind);
    // The hash is of the package's path.
    let known = |name: &str| match name {
        _ if name.starts_with("_cgoexp_") => "_cgoexp_called_from_c".to_owned(),
        _ if name.contains("+0x") => "?".to_owned(),
        _ => name.to_owned(),
    };
    let stacks = folded.lines().filter_map(|line| line.rsplit_once(' ')?.0.split_once(';'));
    let of_go = stacks.map(|(_, stack)| stack.split(';').map(known).collect::<Vec<_>>().join(" "));
    let found: BTreeSet<String> = of_go.filter(|stack| stack.contains("main.direct")).collect();
    assert_eq!(found, BTreeSet::from([direct, nested].map(str::to_owned)), "{folded}");
}

const DIRECT: &str =
    "runtime.goexit runtime.main main.main main.direct main._Cfunc_called_from_go runtime.asmcgocall called_from_go";
const NESTED: &str = "runtime.goexit main.main.func1 main.nested main._Cfunc_calls_go runtime.asmcgocall calls_go called_from_c \
    crosscall2 runtime.cgocallback runtime.cgocallbackg runtime.cgocallbackg runtime.cgocallbackg1 _cgoexp_called_from_c \
    main.called_from_c main.direct main._Cfunc_called_from_go runtime.asmcgocall called_from_go";

#[test]
fn stacks_of_c_code_that_go_calls_continue_in_go() {
    check_go("calling-go", &[], DIRECT, NESTED);
}

#[test]
fn stacks_of_a_position_independent_go_program_are_complete() {
    check_go("calling-go-pie", &["-buildmode=pie"], DIRECT, NESTED);
}

/// C functions that are not exported have no names then, and inlined functions none of their own.
#[test]
fn functions_of_a_stripped_go_program_have_names() {
    let stripped = |stack: &str| {
        let names = stack.split(' ').filter(|name| *name != "main.called_from_c");
        let names = names.map(|name| if ["called_from_go", "calls_go"].contains(&name) { "?" } else { name });
        names.collect::<Vec<_>>().join(" ")
    };
    check_go("calling-go-stripped", &["-ldflags=-s -w"], &stripped(DIRECT), &stripped(NESTED));
}

/// Records a Java program for some seconds, whose virtual machine does not describe its code; returns the report and the summary.
fn java(option: &str, code: Option<i32>) -> (Value, String) {
    let classes = java_classes("Compressing");
    let mut command = Command::new(java_without_description());
    command.args([option, "-cp"]).arg(classes).arg("Compressing");
    let mut target = Target::spawn(&mut command);
    // Until its methods are compiled.
    target.run_command("30000");
    let mut heapbpf = Heapbpf::of(target.pid(), "-o out.json -o out.folded --interval 64KiB");
    let session = heapbpf.start();
    target.run_command("30000");
    let outcome = session.interrupt();
    assert!(code.is_none_or(|code| outcome.status.code() == Some(code)), "{outcome:?}");
    let report = std::fs::read_to_string(heapbpf.file("out.json")).expect("it was written");
    (serde_json::from_str(&report).expect("it is JSON"), outcome.stdout)
}

#[test]
fn java_without_frame_pointers_is_recognised_and_the_advice_helps() {
    let advice = "Java: start it with `-XX:+PreserveFramePointer`";
    let (report, summary) = java("-XX:-PreserveFramePointer", Some(3));
    let cut = &report["health"]["cut_stacks"][0];
    assert_eq!((&cut["end"], &cut["module"]), (&json!("broken_chain"), &Value::Null), "{cut}");
    assert_eq!(cut["advice"], json!(advice));
    let share = |report: &Value| {
        let findings = report["health"]["verdict"]["findings"].as_array().expect("a list");
        let finding = findings.iter().find(|finding| finding["kind"] == "cut_stacks").expect("one of each kind");
        finding["share"].as_f64().expect("a number")
    };
    let before = share(&report);
    assert!(before > 0.5 && summary.contains("of stacks are cut (generated code: broken frame pointers)"), "{summary}");
    assert!(summary.lines().any(|line| line.trim() == advice), "{summary}");
    let (report, summary) = java("-XX:+PreserveFramePointer", None);
    assert!(share(&report) < before / 10.0, "{summary}");
}

#[test]
fn a_strict_recording_of_a_command_reports_an_incomplete_profile() {
    let directory = tempfile::tempdir().expect("temporary folder");
    let lines = directory.path().join("lines");
    std::fs::write(&lines, "go\n").expect("it can be written");
    let command = format!("exec {} < {}", calling_go("calling-go-cut", &[]).display(), lines.display());
    for (option, code) in [("--quiet", 0), ("--strict", 3)] {
        // Without frame pointers, stacks end in Go's code.
        let arguments = [option, "--interval", "1", "--unwind", "dwarf", "-o", "out.json", "--", "sh", "-c", &command];
        let _ = Heapbpf::new(arguments).run().expect_code(code);
    }
    let failing = ["--strict", "--interval", "1", "-o", "out.json", "--", "sh", "-c", "exit 7"];
    let _ = Heapbpf::new(failing).run().expect_code(7);
}
