//! JavaScript functions in stacks of Node.js: interpreted, compiled and inlined ones equal the engine's own description of the stack,
//! without a perf map, in several versions of Node.js.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;

use heapbpf_tests::heapbpf::{Heapbpf, Session};
use heapbpf_tests::interpreters::{NODE_VERSIONS, node, tested};
use heapbpf_tests::report::{Callsite, Counts, Frame, Process};
use heapbpf_tests::target::{Target, build_directory};
use rustix::process::Signal;
use serde::Deserialize;

/// Sizes of the blocks that the target describes.
const BYTES: Range<u64> = 20_000..21_600;
/// Innermost functions of each block, which the target's description lacks, are in files with this prefix.
const INTERNAL: &str = "node:";
const ANONYMOUS: &str = "(anonymous)";
/// Rounds after which compilers have compiled the target, and some before. HEAPBPF_ROUNDS replaces the first in an emulated machine.
const MANY: &str = "3000";
const FEW: &str = "20";

/// A name that the engine computes and keeps in the closure only, and what the function itself has: the name of the variable that its
/// object is assigned to.
const COMPUTED: (&str, &str) = ("computed", "object");

fn script() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/targets/javascript/calling.js"))
}

/// The versions to test, of the system's, which is the oldest, and those of `cargo xtask interpreters`.
fn versions() -> Vec<(String, PathBuf)> {
    let installed = NODE_VERSIONS.map(|version| (format!("Node.js {version}"), node(version)));
    tested([("the system's Node.js".to_owned(), PathBuf::from("/usr/bin/node"))].into_iter().chain(installed))
}

/// Whether this Node.js has all of these options.
fn knows(node: &Path, options: &str) -> bool {
    let output = Command::new(node).args(options.split_ascii_whitespace()).arg("--version").output();
    output.expect("it can be executed").status.success()
}

fn command(node: &Path, options: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(node);
    let fewer = env::var("HEAPBPF_ROUNDS").ok();
    let arguments = arguments.iter().map(|&argument| match &fewer {
        Some(fewer) if argument == MANY => fewer,
        _ => argument,
    });
    command.args(options.split_ascii_whitespace()).arg(script()).args(arguments).current_dir(build_directory());
    command
}

/// A frame as the engine describes it.
#[derive(Deserialize)]
struct Described(Option<String>, Option<String>, u32, Option<u32>);

#[derive(Deserialize)]
struct Block {
    size: u64,
    stack: Vec<Described>,
}

/// A function and its file; the innermost comes first in a stack.
type Functions = Vec<(String, Option<String>)>;
/// Lines of the frames, for each the line of the call, and the one that the function begins in.
type Lines = Vec<(u32, Option<u32>)>;

/// Stacks that have the same functions.
#[derive(Debug, Default, PartialEq)]
struct Alike {
    sum: Counts,
    /// By the lines of calls.
    sums: BTreeMap<Vec<Option<u32>>, Counts>,
}

impl Alike {
    fn add(&mut self, lines: Vec<Option<u32>>, counts: Counts) {
        self.sum.add(counts);
        self.sums.entry(lines).or_default().add(counts);
    }
}

#[derive(Debug, Default)]
struct Expected {
    stacks: BTreeMap<Functions, Alike>,
    lines: BTreeMap<Functions, BTreeSet<Lines>>,
}

/// The name of the function itself. Names of symbols are in closures only.
fn without_computed(name: &str) -> String {
    if name.starts_with('[') {
        return ANONYMOUS.to_owned();
    }
    if name == COMPUTED.0 { COMPUTED.1 } else { name }.to_owned()
}

/// Each import of a module has a query of its own.
fn without_query(file: &str) -> String {
    file.split('?').next().unwrap_or_default().to_owned()
}

/// Blocks as the engine describes them.
#[track_caller]
fn described(case: &str, lines: &[String]) -> Expected {
    let mut expected = Expected::default();
    for line in lines {
        let block: Block = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}"));
        let function = |frame: &Described| {
            (without_computed(frame.0.as_deref().unwrap_or(ANONYMOUS)), frame.1.as_deref().map(without_query))
        };
        let functions: Functions = block.stack.iter().map(function).collect();
        let lines: Lines = block.stack.iter().map(|frame| (frame.2, frame.3)).collect();
        let calls = lines.iter().map(|&(line, _)| Some(line)).collect();
        expected.lines.entry(functions.clone()).or_default().insert(lines);
        expected.stacks.entry(functions).or_default().add(calls, Counts::kept(1, block.size));
    }
    assert!(expected.stacks.len() > 60, "{case}: {} stacks", expected.stacks.len());
    expected
}

fn is_javascript(frame: &Frame) -> bool {
    frame.module.as_deref() == Some("[javascript]")
}

/// Whether the line must be that of the call: baseline code may have the function's first one. Only optimized code has inlined calls.
fn is_exact(frames: &[&Frame], index: usize) -> bool {
    let frame = frames[index];
    let caller_of_inlined = index > 0 && frames[index - 1].inlined;
    frame.kind.as_deref() == Some("interpreted") || frame.inlined || caller_of_inlined
}

/// Lines of the frames, and whether they must be those of calls.
type RecordedLines = Vec<(Option<u32>, bool)>;

/// Blocks of a recording.
#[derive(Debug, Default)]
struct Recorded {
    stacks: BTreeMap<Functions, Alike>,
    lines: BTreeMap<Functions, BTreeSet<RecordedLines>>,
    /// Node's functions that have allocated them.
    allocating: BTreeSet<Vec<String>>,
    /// Kinds of JavaScript frames, and whether they are inlined.
    kinds: BTreeSet<(String, bool)>,
}

/// Whether it is a block of the target, by its size and its caller. Other memory may have the same sizes.
fn is_block(frames: &[&Frame], counts: &Counts) -> bool {
    let caller = frames.iter().find(|frame| !frame.file.as_deref().unwrap_or_default().starts_with(INTERNAL));
    let allocates = frames.iter().any(|frame| frame.is("allocUnsafeSlow"));
    counts.alloc_bytes.checked_div(counts.alloc_count).is_some_and(|bytes| BYTES.contains(&bytes))
        && allocates
        && caller.is_some_and(|caller| caller.is("block"))
}

fn add(recorded: &mut Recorded, callsite: &Callsite, case: &str) {
    let frames: Vec<&Frame> = callsite.stack.iter().filter(|frame| is_javascript(frame)).collect();
    let counts = callsite.totals.exact();
    if !is_block(&frames, &counts) {
        return;
    }
    assert_eq!(callsite.end.as_deref(), Some("complete"), "{case}: {callsite:#?}");
    recorded.kinds.extend(frames.iter().map(|frame| (frame.kind.clone().unwrap_or_default(), frame.inlined)));
    let inner = frames.iter().take_while(|frame| !frame.is("block")).count();
    let name = |frame: &Frame| frame.function.clone().unwrap_or_else(|| "?".to_owned());
    recorded.allocating.insert(frames[..inner].iter().map(|frame| name(frame)).collect());
    let functions: Functions =
        frames[inner..].iter().map(|frame| (name(frame), frame.file.as_deref().map(without_query))).collect();
    let lines: Vec<_> = (inner..frames.len()).map(|index| (frames[index].line, is_exact(&frames, index))).collect();
    let calls = lines.iter().map(|&(line, _)| line).collect();
    recorded.lines.entry(functions.clone()).or_default().insert(lines);
    recorded.stacks.entry(functions).or_default().add(calls, counts);
}

#[track_caller]
fn recorded(case: &str, process: &Process) -> Recorded {
    let mut recorded = Recorded::default();
    process.callsites.iter().for_each(|callsite| add(&mut recorded, callsite, case));
    recorded
}

/// Whether lines are those of a stack that the engine has described.
fn agree(recorded: &RecordedLines, described: &Lines) -> bool {
    recorded
        .iter()
        .zip(described)
        .all(|(&(line, is_exact), &(call, first))| line == Some(call) || !is_exact && line == first)
}

/// Which lines are compared.
#[derive(Clone, Copy, PartialEq)]
enum Compared {
    /// All are those of calls.
    Calls,
    /// Baseline code may have the first line of a function.
    CallsOrFirst,
}

/// Parts of the blocks that must have equal stacks: the same functions, and the same lines too.
#[derive(Clone, Copy)]
struct Shares {
    is_optimized: bool,
    functions: f64,
    lines: f64,
}

impl Shares {
    /// Without optimization, all but code that runs once, such as that of `eval`, which can be freed before it is read. Optimized
    /// code can be moved or freed before it is read: its functions have no inlined ones then. And for calls in loops, Maglev and
    /// TurboFan of Node.js 24 record lines of the loop. On an idle machine, 98.4 to 100 % are equal; beside builds on all of its
    /// processors, 60 % in the first second of a program that does not wait for the agent.
    fn of(options: &str, description: Description) -> Self {
        let is_optimized = !options.contains("--jitless") && !options.contains("--no-maglev")
            || !options.contains("--jitless") && !options.contains("--no-opt");
        let (functions, lines) = match description {
            _ if !is_optimized => (0.97, 0.97),
            Description::AfterSteps => (0.95, 0.9),
            Description::During | Description::After => (0.5, 0.45),
        };
        Self { is_optimized, functions, lines }
    }
}

/// Fails unless so many blocks have equal stacks, with the same bytes.
#[track_caller]
#[expect(clippy::print_stderr, reason = "the shares, which vary")]
fn compare(case: &str, (compared, least): (Compared, Shares), expected: &Expected, recorded: &Recorded) {
    let mut differences = Vec::new();
    let (mut all, mut functions_equal, mut lines_equal) = (0, 0, 0);
    for (functions, described) in &expected.stacks {
        let count = described.sum.alloc_count;
        all += count;
        let Some(found) = recorded.stacks.get(functions) else {
            differences.push(format!("missing: {count} {functions:?}"));
            continue;
        };
        let equal = count.min(found.sum.alloc_count);
        functions_equal += equal;
        if found.sum != described.sum {
            differences.push(format!("{:?} instead of {:?} of {functions:?}", found.sum, described.sum));
        }
        let is_described = |calls: &Vec<Option<u32>>| match compared {
            Compared::Calls => described.sums.contains_key(calls),
            Compared::CallsOrFirst => recorded.lines[functions]
                .iter()
                .filter(|lines| lines.iter().map(|&(line, _)| line).eq(calls.iter().copied()))
                .all(|lines| expected.lines[functions].iter().any(|described| agree(lines, described))),
        };
        let other: u64 =
            found.sums.iter().filter(|(calls, _)| !is_described(calls)).map(|(_, sum)| sum.alloc_count).sum();
        lines_equal += equal.saturating_sub(other);
        if other > 0 {
            let [found, described] =
                [&found.sums, &described.sums].map(|sums| Vec::from_iter(sums.keys().map(|lines| show(lines))));
            differences.push(format!("lines {found:?} instead of {described:?} of {functions:?}"));
        }
    }
    let others = recorded.stacks.iter().filter(|(functions, _)| !expected.stacks.contains_key(*functions));
    differences.extend(others.map(|(functions, found)| format!("extra: {} {functions:?}", found.sum.alloc_count)));
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    let [functions, lines] = [functions_equal, lines_equal].map(|equal| equal as f64 / all as f64);
    eprintln!("{case}: {all} blocks, {:.1} % equal functions, {:.1} % equal lines", functions * 100.0, lines * 100.0);
    assert!(
        functions >= least.functions && lines >= least.lines,
        "{case}: {} differences for {} stacks:\n{}",
        differences.len(),
        expected.stacks.len(),
        differences.iter().map(|text| text.replace(env!("CARGO_MANIFEST_DIR"), "")).collect::<Vec<_>>().join("\n")
    );
    check_allocating(case, &recorded.allocating, least.is_optimized);
}

/// All blocks have the same functions of Node, except for inlined ones of optimized code that was gone before it was read.
#[track_caller]
fn check_allocating(case: &str, all: &BTreeSet<Vec<String>>, is_optimized: bool) {
    let most = all.iter().max_by_key(|functions| functions.len()).expect("there are blocks");
    for functions in all {
        assert_eq!(functions.last().map(String::as_str), Some("allocUnsafeSlow"), "{case}: {functions:?}");
        assert!(
            functions == most || is_optimized && most.ends_with(functions),
            "{case}: stacks begin in different ways: {all:?}"
        );
    }
}

fn show(lines: &[Option<u32>]) -> String {
    let numbers = lines.iter().map(|line| line.map_or_else(|| "?".to_owned(), |line| line.to_string()));
    numbers.collect::<Vec<_>>().join(" ")
}

/// When the target describes its stacks. The engine prepares line numbers of functions for their first description.
#[derive(Clone, Copy, PartialEq)]
enum Description {
    During,
    /// Of the same calls, after the recording.
    After,
    /// The same, and at each step of the target a dump makes sure that all events have been processed: code that has not been read by
    /// then may be freed.
    AfterSteps,
}

/// Runs a command of the target while it is recorded.
#[track_caller]
fn query(target: &mut Target, session: &mut Session, description: Description) -> Vec<String> {
    let command = if description == Description::During { "describe" } else { "allocate" };
    if description != Description::AfterSteps {
        return target.query_in_steps(command, || ());
    }
    let mut dumps = 0;
    target.query_in_steps(command, || {
        session.signal(Signal::USR1);
        dumps += 1;
        session.wait_for(&format!("out.{dumps:04}.json"));
    })
}

/// Records the target in every version that has these options. `inspect` gets the case, what is expected, the recording, and its PID.
#[track_caller]
fn record(
    options: &str,
    arguments: &[&str],
    description: Description,
    inspect: impl Fn(&str, &Expected, &Heapbpf, u32),
) {
    let mut failures = Vec::new();
    for (version, node) in versions().into_iter().filter(|(_, node)| knows(node, options)) {
        let case = format!("{version} {options} {arguments:?}");
        let mut target = Target::spawn(&mut command(&node, options, arguments));
        let pid = target.pid();
        let mut heapbpf = Heapbpf::of(pid, "--interval 1 -o out.json -o out.heapbpf");
        let mut session = heapbpf.start();
        let mut lines = query(&mut target, &mut session, description);
        let _ = session.interrupt();
        if description != Description::During {
            lines = target.query_in_steps("describe", || ());
        }
        drop(target);
        // All versions are tried, to show which ones fail.
        let attempt = AssertUnwindSafe(|| inspect(&case, &described(&case, &lines), &heapbpf, pid));
        if catch_unwind(attempt).is_err() {
            failures.push(case);
        }
    }
    assert!(failures.is_empty(), "{failures:?} fail, see above");
}

/// A kind of JavaScript frames, and whether they are inlined.
type Kind = (&'static str, bool);

const INTERPRETED: Kind = ("interpreted", false);
const COMPILED: Kind = ("jitted", false);
const INLINED: Kind = ("jitted", true);

struct Test<'a> {
    options: &'a str,
    arguments: &'a [&'a str],
    compared: Compared,
    /// Kinds of frames that there must be, and may be.
    required: &'a [Kind],
    optional: &'a [Kind],
}

impl Test<'_> {
    /// Fails unless stacks equal the description, with frames of all required kinds, and of no others than optional ones.
    #[track_caller]
    fn check_with(&self, description: Description) {
        record(self.options, self.arguments, description, |case, expected, heapbpf, pid| {
            let report = heapbpf.report("out.json");
            report.assert_complete();
            let seen = recorded(case, report.process(pid));
            let how = (self.compared, Shares::of(self.options, description));
            compare(case, how, expected, &seen);
            if description == Description::During {
                // The recording contains the names: the target does not run any more.
                let recording = heapbpf.file("out.heapbpf");
                let words = ["convert".as_ref(), recording.as_os_str(), "-o".as_ref(), "again.json".as_ref()];
                let mut convert = Heapbpf::new(words);
                let _ = convert.run();
                compare(case, how, expected, &recorded(case, convert.report("again.json").process(pid)));
            }
            let found: BTreeSet<_> = seen.kinds.iter().map(|(kind, inlined)| (kind.as_str(), *inlined)).collect();
            let is_known = |kind| self.required.contains(kind) || self.optional.contains(kind);
            let has_all = self.required.iter().all(|kind| found.contains(kind));
            assert!(has_all && found.iter().all(is_known), "{case}: {found:?}");
        });
    }

    #[track_caller]
    fn check(&self) {
        self.check_with(Description::After);
    }
}

const ALL: [Kind; 3] = [INTERPRETED, COMPILED, INLINED];

#[test]
fn stacks_equal_those_of_the_engine() {
    let (compared, required) = (Compared::CallsOrFirst, [COMPILED, INLINED]);
    Test { options: "", arguments: &[MANY], compared, required: &required, optional: &ALL }
        .check_with(Description::During);
}

#[test]
#[ignore = "part of `cargo xtask nightly --suite versions`"]
fn stacks_that_are_described_later_are_equal() {
    let (compared, required) = (Compared::CallsOrFirst, [COMPILED, INLINED]);
    Test { options: "", arguments: &[MANY], compared, required: &required, optional: &ALL }.check();
}

/// Functions change from the interpreter to compiled code.
#[test]
#[ignore = "part of `cargo xtask nightly --suite versions`"]
fn stacks_of_programs_that_have_just_started_are_equal() {
    for rounds in ["0", FEW, "300"] {
        let (arguments, compared) = ([rounds], Compared::CallsOrFirst);
        Test { options: "", arguments: &arguments, compared, required: &[], optional: &ALL }
            .check_with(Description::AfterSteps);
    }
}

#[test]
#[ignore = "part of `cargo xtask nightly --suite versions`"]
fn stacks_of_interpreted_functions_are_equal() {
    for options in ["--no-opt --no-sparkplug", "--no-opt --no-sparkplug --no-maglev", "--jitless"] {
        // The first is without Maglev in versions that lack it.
        let may_optimize = options == "--no-opt --no-sparkplug";
        let optional: &[Kind] = if may_optimize { &ALL } else { &[] };
        let compared = Compared::Calls;
        Test { options, arguments: &[FEW], compared, required: &[INTERPRETED], optional }.check();
        Test { options, arguments: &[FEW], compared, required: &[INTERPRETED], optional }
            .check_with(Description::During);
    }
}

#[test]
#[ignore = "part of `cargo xtask nightly --suite versions`"]
fn stacks_of_baseline_code_are_equal() {
    let compared = Compared::CallsOrFirst;
    for options in ["--always-sparkplug --no-opt", "--always-sparkplug --no-opt --no-maglev"] {
        Test { options, arguments: &[FEW], compared, required: &[COMPILED], optional: &ALL }.check();
    }
    Test { options: "--always-sparkplug", arguments: &[MANY], compared, required: &[COMPILED], optional: &ALL }.check();
}

#[test]
#[ignore = "part of `cargo xtask nightly --suite versions`"]
fn stacks_of_optimized_functions_are_equal() {
    let (compared, required) = (Compared::Calls, [COMPILED, INLINED]);
    for options in ["--no-sparkplug", "--no-sparkplug --no-maglev"] {
        Test { options, arguments: &[MANY], compared, required: &required, optional: &ALL }.check();
    }
}

#[test]
#[ignore = "part of `cargo xtask nightly --suite versions`"]
fn stacks_of_the_middle_compiler_are_equal() {
    let (compared, required) = (Compared::Calls, [COMPILED]);
    let options = "--maglev --no-sparkplug";
    Test { options, arguments: &[MANY], compared, required: &required, optional: &ALL }.check();
    // Version 24 has Maglev without the other optimizing compiler.
    let options = "--maglev --no-opt --no-sparkplug";
    Test { options, arguments: &[MANY], compared, required: &[], optional: &ALL }.check();
}

#[test]
#[ignore = "part of `cargo xtask nightly --suite versions`"]
fn stacks_of_functions_that_are_optimized_at_once_are_equal() {
    let (compared, required) = (Compared::Calls, [COMPILED]);
    // Versions have one of them.
    for options in ["--always-opt --no-sparkplug", "--always-turbofan --no-sparkplug"] {
        Test { options, arguments: &[FEW], compared, required: &required, optional: &ALL }.check();
    }
}

#[test]
#[ignore = "part of `cargo xtask nightly --suite versions`"]
fn stacks_are_equal_with_other_options_of_the_engine() {
    let compared = Compared::CallsOrFirst;
    for options in [
        "--max-lazy",
        "--stress-lazy-source-positions",
        "--no-short-builtin-calls",
        "--interpreted-frames-native-stack",
    ] {
        Test { options, arguments: &["300"], compared, required: &[], optional: &ALL }.check();
    }
}

#[test]
fn stacks_of_worker_threads_are_equal() {
    let compared = Compared::CallsOrFirst;
    Test { options: "", arguments: &[MANY, "worker"], compared, required: &[], optional: &ALL }.check();
}

#[test]
#[ignore = "part of `cargo xtask nightly --suite versions`"]
fn stacks_of_worker_threads_that_have_just_started_are_equal() {
    let compared = Compared::CallsOrFirst;
    Test { options: "", arguments: &[FEW, "worker"], compared, required: &[], optional: &ALL }.check();
}
