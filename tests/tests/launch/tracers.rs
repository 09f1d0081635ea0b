//! heapbpf does not trace a program that it has started when the program runs: other tracers work.

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::process::Command;

use heapbpf_tests::cgroup::Group;
use heapbpf_tests::heapbpf::{Heapbpf, Outcome, binary, text};
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::report::{Counts, Process, Report};
use heapbpf_tests::stubs::mapped;
use heapbpf_tests::target::{Target, build, run};

use super::launched::{Launched, status, wait_until};

/// LeakSanitizer and AddressSanitizer, and their exit codes for leaks.
const SANITIZERS: [(&str, i32); 2] = [("leak", 23), ("address", 1)];
const MODES: [&str; 4] = ["", "--hold never", "--engine inline", "--engine inline --hold never"];

/// Runs a command through heapbpf with these options.
#[track_caller]
fn record(options: &str, words: &[OsString], code: i32) -> (Outcome, Report) {
    let own = "--interval 1 -o out.json".split(' ').chain(options.split_ascii_whitespace());
    let own = own.chain(["--"]).map(OsString::from);
    let mut heapbpf = Heapbpf::new(own.chain(words.iter().cloned()));
    let outcome = heapbpf.run().expect_code(code);
    let report = heapbpf.report("out.json");
    (outcome, report)
}

/// Fails unless all allocations of a program are recorded.
#[track_caller]
fn assert_whole(process: &Process) {
    let functions = process.exact_by_leaf();
    assert!(process.beginning.from_first_call, "{:?}", process.beginning);
    assert_eq!(functions.get("constructs"), Some(&Counts::kept(3, 3 * 501)), "{functions:#?}");
    assert_eq!(functions.get("begins"), Some(&Counts::kept(5, 5 * 1001)), "{functions:#?}");
}

/// Each of the programs that it becomes reads who traces it, with its first calls.
#[track_caller]
fn check(recipe: &Recipe, options: &str) {
    let words = [recipe.build().into_os_string(), "3".into()];
    let (outcome, report) = record(options, &words, 7);
    assert_eq!(outcome.stdout.matches("TracerPid").count(), 4, "{recipe} {options}: {outcome:?}");
    if options.contains("inline") {
        // The engine traces a program for a short time to change it, after it has begun. An exec in that time is not stopped.
        report.assert_complete_but_for_programs();
        return report.targets.iter().for_each(assert_part);
    }
    assert_eq!(outcome.stdout.matches("TracerPid:\t0\n").count(), 4, "{recipe} {options}: {outcome:?}");
    report.assert_complete();
    assert_eq!(report.targets.len(), 4, "{recipe} {options}");
    report.targets.iter().for_each(assert_whole);
}

#[test]
fn a_program_has_no_tracer_at_the_beginning_of_main() {
    for engine in ["", "--engine inline"] {
        check(&Recipe::of("tracers.c"), engine);
        check(&Recipe::of("tracers.c").flags("-static"), engine);
        check(&Recipe::of("tracers.c").libraries("-Wl,--no-as-needed -ljemalloc"), engine);
    }
}

#[test]
fn a_musl_program_has_no_tracer_at_the_beginning_of_main() {
    check(&Recipe::of("tracers.c").compiler("musl-gcc"), "");
    check(&Recipe::of("tracers.c").compiler("musl-gcc").flags("-static"), "");
}

/// It waits for a processor before it stops, as on a busy machine.
#[test]
fn a_command_that_rarely_runs_is_recorded_whole() {
    let group = Group::slow(&format!("heapbpf-slow-{}", std::process::id()));
    let script = "echo $$ > \"$1\"; exec \"$0\" 3";
    let words = ["sh".into(), "-c".into(), script.into(), build("tracers.c").into_os_string()];
    let words: Vec<_> = words.into_iter().chain([group.processes().into_os_string()]).collect();
    let (_, report) = record("", &words, 7);
    report.assert_complete();
    let recorded: Vec<_> = report.targets.iter().filter(|process| process.command.ends_with("/tracers")).collect();
    assert_eq!(recorded.len(), 4, "{:?}", report.others);
    recorded.into_iter().for_each(assert_whole);
}

/// The kernel would not resume such a program if heapbpf were killed, so the kernel side does not stop it at its exec.
#[test]
fn a_command_that_the_kernel_would_not_resume_is_recorded_whole_or_counted() {
    let words = ["setpriv", "--pdeathsig", "clear", "sh", "-c", "exec \"$0\" 0"].map(OsString::from);
    let words: Vec<_> = words.into_iter().chain([build("tracers.c").into_os_string()]).collect();
    let (_, report) = record("", &words, 7);
    report.assert_complete_but_for_programs();
    // Held in time, or late, or missed: whichever it is, the report has it.
    let recorded: Vec<_> = report.targets.iter().filter(|process| process.command.ends_with("/tracers")).collect();
    assert!(!recorded.is_empty() || report.health.lost.get("program_missed").is_some_and(|count| *count > 0));
    recorded.into_iter().for_each(assert_part);
}

/// The dynamic linker of the program, which is traced then, ends it.
#[test]
fn a_command_without_a_library_ends_heapbpf() {
    let folder = tempfile::tempdir().expect("there is a directory for temporary files");
    let file = |name: &str| folder.path().join(name);
    let (library, program) = (file("libgone.so"), file("program"));
    std::fs::write(file("main.c"), "int main(void) { return 0; }").expect("the folder is ours");
    run(Command::new("gcc").args(["-shared", "-x", "c", "/dev/null", "-o"]).arg(&library));
    run(Command::new("gcc").arg("-Wl,--no-as-needed").args([file("main.c"), library.clone()]).arg("-o").arg(&program));
    std::fs::remove_file(library).expect("it is ours");
    for options in ["", "--hold never", "--engine inline"] {
        let words = ["sh".into(), "-c".into(), "exec \"$0\"".into(), program.clone().into_os_string()];
        let (outcome, _) = record(options, &words, 127);
        assert!(outcome.stderr.contains("libgone.so: cannot open shared object file"), "{options}: {outcome:?}");
    }
}

/// Only the first program is held until its probes are attached.
#[test]
fn a_program_that_is_never_held_has_no_tracer_either() {
    for mode in MODES {
        let words = [build("tracers.c").into_os_string(), "0".into()];
        let (outcome, report) = record(mode, &words, 7);
        assert_eq!(outcome.stdout.lines().next(), Some("TracerPid:\t0"), "{mode}: {outcome:?}");
        assert_whole(&report.targets[0]);
    }
}

/// Built with one of the sanitizers that contain LeakSanitizer.
fn sanitized(sanitizer: &str) -> OsString {
    Recipe::of("sanitized.c").flags(&format!("-fsanitize={sanitizer}")).build().into_os_string()
}

/// LeakSanitizer fails if another process traces the program.
#[track_caller]
fn assert_checked(outcome: &Outcome) {
    let text = &outcome.stderr;
    assert!(text.contains("Sanitizer: 3885 byte(s) leaked in 5 allocation(s)"), "{text}");
    assert!(!text.contains("LeakSanitizer has encountered a fatal error"), "{text}");
}

#[test]
fn leak_sanitizer_checks_a_launched_program() {
    for (sanitizer, code) in SANITIZERS {
        for mode in MODES {
            let (outcome, report) = record(mode, &[sanitized(sanitizer)], code);
            assert_checked(&outcome);
            let process = report.targets.last().expect("it was recorded");
            assert_eq!(process.exact_by_leaf()["leaks"], Counts::kept(5, 3885), "{sanitizer} {mode}");
            assert!(process.beginning.from_first_call, "{sanitizer} {mode}");
            if let Some(engine) = report.health.inline_engine {
                assert!(engine.refused.keys().all(|reason| reason.contains("LeakSanitizer")), "{engine:?}");
                assert_eq!(engine.targets, 0, "{engine:?}");
            }
        }
    }
}

#[test]
fn leak_sanitizer_checks_a_program_that_a_wrapper_executes() {
    let words = ["sh".into(), "-c".into(), "exec \"$0\"".into(), sanitized("leak")];
    let (outcome, report) = record("", &words, 23);
    assert_checked(&outcome);
    assert_eq!(report.targets.last().expect("it was recorded").exact_by_leaf()["leaks"], Counts::kept(5, 3885));
}

/// heapbpf leaves the check at the exit to it.
#[test]
fn leak_sanitizer_checks_a_program_in_place_of_heapbpf() {
    for words in [vec![], vec!["env", "A=b"]] {
        for (sanitizer, code) in SANITIZERS {
            let program = [sanitized(sanitizer)];
            let words = words.iter().map(OsString::from).chain(program);
            let mut heapbpf =
                Heapbpf::new(["leaks", "-o", "check.json", "--"].map(OsString::from).into_iter().chain(words));
            let outcome = heapbpf.run().expect_code(code);
            assert_checked(&outcome);
            assert!(
                outcome.stderr.contains("is not checked at its exit: it contains LeakSanitizer"),
                "{}",
                outcome.stderr
            );
        }
    }
}

#[test]
fn leak_sanitizer_checks_descendants_in_place_of_heapbpf() {
    let script = "\"$0\"; test $? = 1";
    let words = ["leaks", "--follow-forks", "-o", "check.json", "--", "sh", "-c", script].map(OsString::from);
    let mut heapbpf = Heapbpf::new(words.into_iter().chain([sanitized("address")]));
    let outcome = heapbpf.run();
    assert_checked(&outcome);
    assert!(outcome.stderr.contains("is not checked at its exit: it contains LeakSanitizer"), "{}", outcome.stderr);
    assert!(matches!(outcome.status.code(), Some(3 | 4)), "the shell succeeds, and is checked itself: {outcome:?}");
}

#[test]
fn a_debugger_attaches_to_a_launched_program() {
    for options in ["", "--engine inline"] {
        let mut launched = Launched::start(options, &[build("launched.c")], &[]);
        let pid = launched.command().as_raw_nonzero().to_string();
        if !options.is_empty() {
            // The engine stops the program for that, and not again.
            let number = pid.parse().expect("a number");
            wait_until("its stubs", || mapped(number) > 0);
            wait_until("the end of the stop", || status(launched.command(), "TracerPid") == "0");
        }
        let mut gdb = Command::new("gdb");
        gdb.args(["-nx", "-batch", "-ex", "print 6 * 7", "-ex", "detach", "-p", &pid]);
        let output = gdb.output().unwrap_or_else(|error| panic!("{gdb:?}: {error}: `cargo xtask test` installs it"));
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && printed.contains("= 42"), "{options}: {output:?}");
        assert!(printed.contains(&format!("process {pid}) detached")), "{options}: {printed}");
        launched.target.work("keep 77 5");
        assert_eq!(status(launched.command(), "TracerPid"), "0");
        launched.target.exit(23);
        super::assert_whole(&launched.report().targets[0], Counts::kept(5, 385), "launch", "libc");
    }
}

/// The process of a report that has executed a program.
#[track_caller]
fn process_of<'a>(report: &'a Report, program: &Path) -> &'a Process {
    let found = report.targets.iter().find(|process| Path::new(&process.command).ends_with(program));
    found.unwrap_or_else(|| panic!("{:?}", report.targets))
}

/// A program that a tool traces is not held: all that is recorded of it are whole blocks.
#[track_caller]
fn assert_part(process: &Process) {
    let functions = process.exact_by_leaf();
    for (name, size, count) in [("constructs", 501, 3), ("begins", 1001, 5)] {
        let got = functions.get(name).copied().unwrap_or_default();
        assert_eq!(got, Counts::kept(got.alloc_count, size * got.alloc_count), "{functions:#?}");
        assert!(got.alloc_count <= count, "{functions:#?}");
        assert!(got.alloc_count == count || !process.beginning.from_first_call, "{functions:#?}");
    }
}

#[test]
fn a_launched_debugger_runs_a_program() {
    let program = build("tracers.c");
    let run = ["-nx", "-batch", "-ex", "run", "-ex", "print 6 * 7", "--args"].map(OsString::from);
    let words: Vec<_> =
        [OsString::from("gdb")].into_iter().chain(run).chain([program.into_os_string(), "0".into()]).collect();
    let (outcome, report) = record("", &words, 0);
    assert!(outcome.stdout.contains("TracerPid:\t") && outcome.stdout.contains("exited with code 07"), "{outcome:?}");
    assert!(!outcome.stdout.contains("TracerPid:\t0"), "gdb traces it: {outcome:?}");
    assert_part(process_of(&report, Path::new("tracers")));
}

#[test]
fn a_launched_strace_traces_a_program() {
    let program = build("tracers.c");
    for options in ["", "--hold never"] {
        let strace = ["strace", "-f", "-e", "trace=execve,exit_group"].map(OsString::from);
        let words: Vec<_> = strace.into_iter().chain([program.clone().into_os_string(), "1".into()]).collect();
        let (outcome, report) = record(options, &words, 7);
        assert_eq!(outcome.stdout.matches("TracerPid:\t").count(), 2, "{outcome:?}");
        assert!(!outcome.stdout.contains("TracerPid:\t0"), "strace traces it: {outcome:?}");
        assert_eq!(outcome.stderr.matches("execve(").count(), 2, "{outcome:?}");
        assert!(outcome.stderr.contains("exit_group(7)"), "{outcome:?}");
        let programs = report.targets.iter().filter(|process| process.command.ends_with("/tracers"));
        programs.for_each(assert_part);
    }
}

/// strace traces heapbpf, its own processes, and the command: that is not held, but its C library is probed before its exec.
#[test]
fn a_strace_of_heapbpf_traces_the_command() {
    let folder = tempfile::tempdir().expect("there is a directory for temporary files");
    let file = |name: &str| folder.path().join(name);
    let strace = |arguments: &[&str], program: &str| {
        let mut command = Command::new("strace");
        command.args(["-f", "-o", "trace", "-e", "trace=execve,exit_group"]).arg(binary()).args(arguments);
        command.arg("--").arg(build(program)).current_dir(folder.path());
        command
    };
    let mut command = strace(&["-v", "--interval", "1", "--on-overload", "drop", "-o", "out.json"], "launched.c");
    let mut target = Target::spawn(command.stderr(File::create(file("stderr")).expect("the folder is ours")));
    wait_until("its probes", || text(&file("stderr")).contains("(launched) is being recorded"));
    target.work("keep 77 5");
    target.exit(23);
    let stderr = text(&file("stderr"));
    assert!(stderr.contains("is not held until its probes are attached, because `strace` traces it"), "{stderr}");
    let trace = text(&file("trace"));
    assert!(trace.contains("exit_group(23)") && trace.contains("/launched\""), "{trace}");
    let report = Report::read(&file("out.json"));
    assert_eq!(report.targets.len(), 1, "{:?}", report.targets);
    super::assert_whole(&report.targets[0], Counts::kept(5, 385), "exec", "libc");

    let error = Heapbpf::with_command(strace(&["leaks"], "launched.c")).run().expect_error(1);
    assert!(error.contains("cannot check a command for leaks that `strace` traces"), "{error}");
}
