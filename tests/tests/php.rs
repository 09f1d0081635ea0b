//! Functions of PHP in stacks: they equal PHP's own description of the stack, at the same lines.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::report::{Callsite, Counts, Frame, Process, assert_equal_stacks};
use heapbpf_tests::target::{Target, build_directory};
use serde::Deserialize;
use tempfile::TempDir;

/// Smallest block that the target describes.
const BYTES_MIN: u64 = 50_000;

/// Line in which the function `wide` of the target calls itself.
const WIDE_LINE: u32 = 8;

/// Options of PHP.
const PLAIN: &str = "";
const OPCACHE: &str = "-d opcache.enable_cli=1";
/// All functions are compiled when they are loaded.
const COMPILED: &str = "-d opcache.enable_cli=1 -d opcache.jit_buffer_size=32M -d opcache.jit=1205";
/// Paths that are executed often are compiled.
const TRACED: &str = "-d opcache.enable_cli=1 -d opcache.jit_buffer_size=32M -d opcache.jit=1254";

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("targets/calling.php")
}

/// A folder for the files that the target includes.
fn folder() -> TempDir {
    tempfile::tempdir_in(build_directory()).expect("the build directory is ours")
}

/// A command that executes the target, without PHP's own allocator.
fn php(options: &str, folder: &TempDir) -> Command {
    let mut command = Command::new("php");
    command.args(options.split_ascii_whitespace()).arg(script()).arg(folder.path()).env("USE_ZEND_ALLOC", "0");
    command
}

/// Functions, files and lines, the innermost first. Functions that are in C have neither file nor line.
type Stack = Vec<(String, String, u32)>;
type Sums = BTreeMap<Stack, Counts>;

/// A block as PHP describes it.
#[derive(Deserialize)]
struct Block {
    bytes: u64,
    stack: Stack,
}

#[track_caller]
fn described(lines: &[String]) -> Sums {
    let mut sums = Sums::new();
    for line in lines {
        let block: Block = serde_json::from_str(line).expect("the target writes JSON");
        sums.entry(block.stack).or_default().add(Counts::kept(1, block.bytes));
    }
    assert!(sums.len() > 200, "{} stacks", sums.len());
    sums
}

fn is_php(frame: &&Frame) -> bool {
    frame.module.as_deref() == Some("[php]")
}

fn functions(callsite: &Callsite) -> Stack {
    let location = |frame: &Frame| {
        assert_eq!(frame.kind.as_deref(), Some("interpreted"));
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        (text(&frame.function), text(&frame.file), frame.line.unwrap_or(0))
    };
    callsite.stack.iter().filter(is_php).map(location).collect()
}

/// Large blocks by the functions of PHP.
fn recorded(process: &Process) -> Sums {
    let mut sums = Sums::new();
    for callsite in &process.callsites {
        let counts = callsite.totals.exact();
        let stack = functions(callsite);
        if !stack.is_empty() && counts.alloc_count > 0 && counts.alloc_bytes >= counts.alloc_count * BYTES_MIN {
            let sum = sums.entry(stack).or_default();
            sum.add(Counts::kept(counts.alloc_count, counts.alloc_bytes));
        }
    }
    sums
}

/// Fails unless all stacks are equal, with the same numbers and bytes.
#[track_caller]
fn compare(case: &str, expected: &Sums, recorded: &Sums) {
    // PHP's compiler allocates large blocks too.
    let is_by_script = |stack: &Stack| expected.keys().any(|known| known[0] == stack[0]);
    assert_equal_stacks(case, expected, recorded, is_by_script);
}

/// Records the target. `inspect` gets what is expected, the recording, and the target's PID.
#[track_caller]
fn record(options: &str, inspect: impl Fn(&Sums, &Heapbpf, u32)) {
    let folder = folder();
    let mut target = Target::spawn(&mut php(options, &folder));
    let pid = target.pid();
    let mut heapbpf = Heapbpf::of(pid, "--interval 1 -o out.json -o out.heapbpf");
    let session = heapbpf.start();
    target.run_command("go");
    let _ = session.interrupt().expect_code(0);
    let lines = target.query("describe");
    drop(target);
    inspect(&described(&lines), &heapbpf, pid);
}

#[track_caller]
fn check(options: &str) {
    record(options, |expected, heapbpf, pid| {
        let report = heapbpf.report("out.json");
        report.assert_complete();
        let process = report.process(pid);
        compare(options, expected, &recorded(process));
        // Pages of PHP's stack, which calls need.
        let pages: Vec<u32> =
            recorded(process).keys().filter(|stack| stack[0].0 == r"Demo\wide").map(|stack| stack[0].2).collect();
        assert!(!pages.is_empty() && pages.iter().all(|line| *line == WIDE_LINE), "{options}: {pages:?}");
        for callsite in process.callsites.iter().filter(|callsite| !functions(callsite).is_empty()) {
            assert_eq!(callsite.end.as_deref(), Some("complete"), "{callsite:#?}");
        }
    });
}

#[test]
fn stacks_equal_those_of_php() {
    check(PLAIN);
}

#[test]
fn stacks_are_equal_with_opcache() {
    check(OPCACHE);
}

#[test]
fn stacks_are_equal_with_compiled_functions() {
    check(COMPILED);
}

#[test]
fn stacks_are_equal_with_compiled_paths() {
    check(TRACED);
}

/// The target does not run any more.
#[test]
fn recordings_contain_the_names() {
    record(PLAIN, |expected, heapbpf, pid| {
        let recording = heapbpf.file("out.heapbpf");
        let words = ["convert".as_ref(), recording.as_os_str(), "-o".as_ref(), "again.json".as_ref()];
        let mut convert = Heapbpf::new(words);
        let _ = convert.run().expect_code(0);
        compare("converted", expected, &recorded(convert.report("again.json").process(pid)));
    });
}

/// Frames of the engine stand between functions of PHP only on request.
#[test]
fn the_engines_own_frames_are_shown_on_request() {
    record(PLAIN, |_, heapbpf, pid| {
        let recording = heapbpf.file("out.heapbpf");
        let words =
            ["convert".as_ref(), recording.as_os_str(), "--native".as_ref(), "-o".as_ref(), "native.json".as_ref()];
        let mut convert = Heapbpf::new(words);
        let _ = convert.run().expect_code(0);
        let [native, plain] = [convert.report("native.json"), heapbpf.report("out.json")];
        assert_eq!(recorded(native.process(pid)), recorded(plain.process(pid)));
        let names = |process: &Process| -> BTreeSet<String> {
            let outside = |callsite: &Callsite| {
                let first = callsite.stack.iter().position(|frame| is_php(&frame)).unwrap_or(callsite.stack.len());
                callsite.stack[first..]
                    .iter()
                    .filter(|frame| !is_php(frame))
                    .filter_map(|frame| frame.function.clone())
                    .collect()
            };
            process.callsites.iter().flat_map(|callsite| -> Vec<String> { outside(callsite) }).collect()
        };
        let [native, plain] = [native, plain].map(|report| names(report.process(pid)));
        for own in ["zend_call_function", "zend_execute_scripts"] {
            assert!(native.contains(own) && !plain.contains(own), "{own}: {native:?}; {plain:?}");
        }
    });
}

/// Functions are freed before the process ends: their names are known all the same.
#[test]
fn a_launched_php_is_named_to_its_end() {
    let folder = folder();
    let command = php(PLAIN, &folder);
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let options = ["--interval", "1", "-o", "out.json", "--", "env", "USE_ZEND_ALLOC=0"].map(AsRef::as_ref);
    let mut heapbpf = Heapbpf::new(options.into_iter().chain(words).chain(["once".as_ref()]));
    let output = heapbpf.run().expect_code(0);
    let lines: Vec<String> = output.stdout.lines().filter(|line| line.starts_with('{')).map(str::to_owned).collect();
    let report = heapbpf.report("out.json");
    let process = report.targets.iter().find(|process| !process.replaced).expect("PHP");
    compare("launched", &described(&lines), &recorded(process));
    let stacks = process.callsites.iter().flat_map(functions);
    assert!(stacks.into_iter().all(|(name, ..)| !name.is_empty()), "all functions have names");
}

/// What a process claims about its PHP is not trusted: cycles, wild pointers and lengths end, and harm nobody.
#[test]
fn forged_frames_are_bounded() {
    let mut target = Target::spawn(&mut Command::new(Recipe::of("forged_php.c").flags("-rdynamic").build()));
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 --native -o out.json");
    let session = heapbpf.start();
    // Functions of PHP in each stack.
    const KINDS: [(&str, usize); 7] =
        [("cycle", 1000), ("wild", 1), ("texts", 2), ("deep", 500), ("delegating", 2), ("wild_code", 3), ("none", 0)];
    for (kind, _) in KINDS {
        target.run_command(kind);
    }
    session.interrupt().expect_code(3);
    let report = heapbpf.report("out.json");
    let callsites = &report.process(target.pid()).callsites;
    for (kind, functions_min) in KINDS {
        let is_it = |frame: &Frame| frame.function.as_deref() == Some(kind);
        let found: Vec<&Callsite> = match kind {
            // A cycle fills the stack before the walk returns to native frames.
            "cycle" => callsites.iter().filter(|callsite| callsite.end.as_deref() == Some("truncated")).collect(),
            _ => callsites.iter().filter(|callsite| callsite.stack.iter().any(is_it)).collect(),
        };
        let [callsite] = found.as_slice() else { panic!("{kind}: {found:#?}") };
        let count = callsite.stack.iter().filter(is_php).count();
        assert!(count >= functions_min && callsite.stack.len() <= 1100, "{kind}: {count} functions: {callsite:#?}");
    }
    assert_eq!(report.health.unwind.get("truncated").copied(), Some(1), "{:?}", report.health.unwind);
}
