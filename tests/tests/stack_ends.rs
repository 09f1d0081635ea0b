//! Where stacks end: at the first function of a thread, which is complete, or earlier, which reports, health and the exit code
//! name.

use std::path::PathBuf;
use std::process::Command;

use heapbpf_tests::heapbpf::{Heapbpf, Outcome};
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::report::Report;
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

fn calling_go() -> PathBuf {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/targets/calling.go");
    let directory = build_directory().join("targets");
    let scratch = tempfile::tempdir_in(&directory).expect("the build directory is ours");
    let built = scratch.path().join("calling-go");
    run(Command::new("go").args(["build", "-o"]).arg(&built).arg(source).env("CGO_ENABLED", "1"));
    // Concurrent tests each build their own copy.
    let program = directory.join("calling-go");
    std::fs::rename(&built, &program).expect("both lie in one directory");
    program
}

#[test]
fn stacks_that_go_cuts_are_incomplete() {
    let mut target = Target::spawn(&mut Command::new(calling_go()));
    let (report, outcome, folded) = profile(&mut target, |target| target.run_command("go"), 3);
    assert_eq!(report.health.unwind.get("complete"), None, "{:?}", report.health.unwind);
    assert!(folded.contains(";[unwind stopped: no unwind information];runtime.asmcgocall;called_from_go "), "{folded}");
    assert!(outcome.stdout.contains("Go calls C on another stack"), "{}", outcome.stdout);
    assert!(
        outcome.stdout.contains("health: incomplete: 100.0% of stacks are cut (calling-go: no unwind information)"),
        "{}",
        outcome.stdout
    );
}

/// Records a Java program for some seconds; returns the report, its JSON and the summary.
fn java(option: &str, code: Option<i32>) -> (Value, String) {
    let classes = build_directory().join("targets/classes");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/targets/Compressing.java");
    run(Command::new("javac").arg("-d").arg(&classes).arg(source));
    let mut command = Command::new("java");
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
    let command = format!("exec {} < {}", calling_go().display(), lines.display());
    for (option, code) in [("--quiet", 0), ("--strict", 3)] {
        let arguments = [option, "--interval", "1", "-o", "out.json", "--", "sh", "-c", &command];
        let _ = Heapbpf::new(arguments).run().expect_code(code);
    }
    let failing = ["--strict", "--interval", "1", "-o", "out.json", "--", "sh", "-c", "exit 7"];
    let _ = Heapbpf::new(failing).run().expect_code(7);
}
