//! `heapbpf -- COMMAND`: the first allocation is recorded, and the command's streams, signals and exit code are
//! unchanged.

mod launched;
mod limits;
mod signals;
mod starting;
mod tracers;
mod wrappers;

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use heapbpf_tests::heapbpf::{Heapbpf, binary, text};
use heapbpf_tests::kernel::require_root;
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::report::{Counts, Process};
use heapbpf_tests::target::build;
use launched::Launched;
use tempfile::TempDir;

const JEMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";

/// Fails unless all allocations before `ready` and those of `keeps` are recorded.
#[track_caller]
fn assert_whole(process: &Process, keeps: Counts, origin: &str, heap: &str) {
    let functions = process.exact_by_leaf();
    let counts = |name: &str| functions.get(name).copied().unwrap_or_default();
    assert_eq!(counts("constructs"), Counts::kept(3, 3 * 501), "{functions:#?}");
    assert_eq!(counts("begins"), Counts::kept(7, 7 * 1001), "{functions:#?}");
    assert_eq!(counts("keeps"), keeps);
    assert!(process.beginning.from_first_call, "{:?}", process.beginning);
    assert_eq!(process.beginning.origin, origin);
    let ours = process.callsites.iter().filter(|callsite| callsite.has(|function| function == "begins"));
    assert!(ours.map(|callsite| callsite.heap.as_str()).eq([heap]), "{:?}", process.heaps);
}

/// Runs the command line, which executes the target in the end, and checks the report.
#[track_caller]
fn check(words: &[impl AsRef<std::ffi::OsStr>], environment: &[(&str, &str)], origin: &str, heap: &str) -> Launched {
    let mut launched = Launched::start("", words, environment);
    let ledger = launched.target.work("keep 77 5");
    launched.target.exit(23);
    let report = launched.report();
    report.assert_complete();
    let process = report.targets.last().expect("there is a target");
    assert_eq!(process.command.rsplit('/').next(), Some("launched"), "{:?}", report.targets);
    assert_whole(process, ledger.site("keeps").counts, origin, heap);
    assert_eq!(process.exact_by_leaf()["ends"], Counts::kept(2, 666), "its destructor");
    assert_eq!((process.exited, process.exit_code), (true, Some(23)));
    launched
}

#[track_caller]
fn check_build(recipe: &Recipe, heap: &str) {
    check(&[recipe.build()], &[], "launch", heap);
}

#[test]
fn the_first_allocation_of_a_glibc_program() {
    check_build(&Recipe::of("launched.c"), "libc");
}

#[test]
fn the_first_allocation_of_a_static_glibc_program() {
    check_build(&Recipe::of("launched.c").flags("-static"), "libc");
}

#[test]
fn the_first_allocation_of_a_musl_program() {
    check_build(&Recipe::of("launched.c").compiler("musl-gcc"), "musl");
}

#[test]
fn the_first_allocation_of_a_static_musl_program() {
    check_build(&Recipe::of("launched.c").compiler("musl-gcc").flags("-static"), "musl");
}

#[test]
fn the_first_allocation_under_a_preloaded_allocator() {
    check(&[build("launched.c")], &[("LD_PRELOAD", JEMALLOC)], "launch", "jemalloc");
}

#[test]
fn wrappers_are_followed_to_the_program() {
    let program = build("launched.c").into_os_string();
    let mut exec = OsString::from("exec ");
    exec.push(&program);
    let launched = check(&["env".into(), "A=b".into(), program.clone()], &[], "exec", "libc");
    assert!(launched.report().targets[0].replaced);
    check(&["sh".into(), "-c".into(), exec], &[], "exec", "libc");
    check(&["nice".into(), "env".into(), program], &[], "exec", "libc");
}

#[test]
fn scripts_are_reported_as_their_interpreter() {
    let folder = tempfile::tempdir().expect("there is a directory for temporary files");
    let program = build("launched.c");
    let script = |name: &str, text: String| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("the folder is ours");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("the folder is ours");
        path
    };
    check(&[script("direct", format!("#!{}\n", program.display()))], &[], "launch", "libc");
    let shell = format!("#!/bin/sh\nexec {} \"$@\"\n", program.display());
    check(&[script("shell", shell)], &[], "exec", "libc");
}

/// Runs heapbpf with these arguments and this input. Returns exit status, stdout, stderr and the working directory.
fn run(arguments: &[&str], input: &Path) -> (std::process::Output, TempDir) {
    require_root();
    let folder = tempfile::tempdir().expect("there is a directory for temporary files");
    let stdin = File::open(input).expect("the input is there");
    let mut command = Command::new(binary());
    let output = command.args(arguments).current_dir(folder.path()).stdin(stdin).output().expect("heapbpf starts");
    (output, folder)
}

/// Returns pseudo-random bytes.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    (0..bytes).map(|_| next()).collect()
}

#[test]
fn streams_pass_through_byte_for_byte() {
    let folder = tempfile::tempdir().expect("there is a directory for temporary files");
    let input = folder.path().join("input");
    let bytes = noise(1 << 20);
    fs::write(&input, &bytes).expect("the folder is ours");

    let (output, _folder) = run(&["-q", "-o", "out.json", "--", "tee", "/dev/stderr"], &input);
    assert!(output.status.success());
    assert!(output.stdout == bytes, "stdout is not what was written to it");
    assert!(output.stderr == bytes, "stderr is not what was written to it, and nothing more");

    let (output, _folder) = run(&["-o", "out.json", "--", "cat"], &input);
    assert!(output.stdout == bytes, "there is something of heapbpf in stdout");
}

#[test]
fn the_summary_is_printed_at_the_end_on_stderr() {
    let (output, folder) =
        run(&["--interval", "1", "--", "sh", "-c", "echo out; echo err >&2"], Path::new("/dev/null"));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "out\n");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let summary = stderr.strip_prefix("err\n").unwrap_or_else(|| panic!("something before the command's:\n{stderr}"));
    // Other tests record at the same time.
    let warning =
        summary.starts_with("heapbpf: warning: other tools have ").then(|| summary.split_once('\n')).flatten();
    let summary = warning.map_or(summary, |(_, rest)| rest);
    let is_subject = |line: &str| line.starts_with("process ") && line.contains(" (sh) · recorded for ");
    assert!(summary.lines().next().is_some_and(is_subject), "{summary}");
    assert!(summary.contains("recorded from its first allocation on"), "{summary}");
    assert!(summary.contains("health: complete"), "{summary}");
    let last: Vec<&str> = summary.lines().rev().take(2).collect();
    let path = |line: &str, kind: &str| {
        let name = line.strip_prefix("./").and_then(|line| line.strip_suffix(kind));
        folder.path().join(name.unwrap_or_else(|| panic!("{summary}")))
    };
    let (page, image) = (path(last[0], " (interactive report)"), path(last[1], " (flame graph)"));
    assert!(image.to_string_lossy().contains("/heapbpf-sh-") && text(&image).contains("<svg"), "{summary}");
    assert!(text(&page).contains("<html"), "{summary}");
}

#[test]
fn a_report_on_standard_output_follows_the_commands_own_output() {
    let (output, _folder) =
        run(&["--interval", "1", "-o", "-", "--", "sh", "-c", "echo first"], Path::new("/dev/null"));
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let folded = stdout.strip_prefix("first\n").expect("the command's comes first");
    let is_folded = |line: &str| line.rsplit_once(' ').is_some_and(|(_, count)| count.parse::<u64>().is_ok());
    assert!(folded.lines().count() > 0 && folded.lines().all(is_folded), "{stdout}");
}

#[test]
fn exit_codes_are_those_of_the_command() {
    let check = |words: &[&str], expected: i32| {
        let (output, _folder) = run(&[&["-q", "-o", "out.json", "--"], words].concat(), Path::new("/dev/null"));
        assert_eq!(output.status.code(), Some(expected), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.stdout, b"");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert_eq!(check(&["true"], 0), "");
    assert_eq!(check(&["sh", "-c", "exit 42"], 42), "");
    assert_eq!(check(&["sh", "-c", "exit 255"], 255), "");
    assert_eq!(check(&["sh", "-c", "kill -9 $$"], 137), "");
    assert_eq!(check(&["sh", "-c", "kill -15 $$"], 143), "");
    assert_eq!(check(&["sh", "-c", "kill -SEGV $$"], 139), "");
    for missing in ["no-such-program", "./no-such-program", "/no/such/program"] {
        let stderr = check(&[missing], 127);
        assert!(stderr.starts_with(&format!("heapbpf: error: cannot run `{missing}`")), "{stderr}");
    }
    let stderr = check(&["/etc/passwd"], 126);
    assert!(stderr.starts_with("heapbpf: error: cannot run `/etc/passwd`"), "{stderr}");
    assert!(check(&["/"], 126).contains("`/`"));
}

#[test]
fn a_command_that_exits_without_allocating_is_reported() {
    let mut heapbpf = Heapbpf::new(["--interval", "1", "-o", "out.json", "--", "sh", "-c", "exit 7"]);
    let outcome = heapbpf.run().expect_code(7);
    assert_eq!(outcome.stdout, "");
    let program = Recipe::of("silent.c").build();
    let mut heapbpf = Heapbpf::new([OsString::from("-oout.json"), "--".into(), program.into_os_string()]);
    let outcome = heapbpf.run().expect_code(9);
    assert!(outcome.stderr.contains("allocated nothing"), "{}", outcome.stderr);
    let report = heapbpf.report("out.json");
    let [process] = report.targets.as_slice() else { panic!("{:?}", report.targets) };
    assert_eq!((process.exited, process.exit_code), (true, Some(9)));
    assert!(!process.beginning.from_first_call, "no allocation was recorded that could show it");
}

#[test]
fn unwritable_outputs_are_reported_before_the_command_is_started() {
    let folder = tempfile::tempdir().expect("there is a directory for temporary files");
    let mark = folder.path().join("ran");
    let touch = format!("touch {}", mark.display());
    let outcome = Heapbpf::new(["-o", "missing/out.json", "--", "sh", "-c", &touch]).run();
    assert!(outcome.expect_error(1).contains("`missing/out.json`"));
    let outcome = Heapbpf::new(["-o", "out.txt", "--", "sh", "-c", &touch]).run();
    assert!(outcome.expect_error(2).contains("txt"));
    assert!(!mark.exists(), "the command was started");
}
