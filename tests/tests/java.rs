//! Java methods in stacks: interpreted, compiled, inlined and native ones equal the virtual machine's own description of the
//! stack, without options of the virtual machine and without a perf map.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::interpreters::java_home;
use heapbpf_tests::report::{Callsite, Counts, Frame, Process, assert_equal_stacks};
use heapbpf_tests::shared::java_classes;
use heapbpf_tests::target::Target;

const JVMS: &str = "/usr/lib/jvm";
/// Versions to test. A machine has at least one of them.
const VERSIONS: [u32; 3] = [17, 21, 25];
/// Smallest block that the target describes.
const BYTES_MIN: u64 = 100_000;
/// The target with virtual threads.
const VIRTUAL: &str = "Virtual";
/// The outermost function of a virtual thread that has a description.
const OUTERMOST: &str = "java.lang.VirtualThread.run";
/// The functions outside of it that are in the continuation.
const ENTERED: [&str; 3] = [
    "java.lang.VirtualThread$VThreadContinuation$1.run",
    "jdk.internal.vm.Continuation.enter0",
    "jdk.internal.vm.Continuation.enter",
];
/// Innermost Java functions of each block, which the target's description lacks.
const ALLOCATING: [&str; 3] = [
    "jdk.internal.misc.Unsafe.allocateMemory0",
    "jdk.internal.misc.Unsafe.allocateMemory",
    "sun.misc.Unsafe.allocateMemory",
];

/// Returns the virtual machines in `/usr/lib/jvm`, and the one of `cargo xtask interpreters`, by their folders. Reports versions that are not tested for lack of one.
#[track_caller]
fn jvms() -> BTreeMap<PathBuf, u32> {
    let entries = fs::read_dir(JVMS).unwrap_or_else(|error| panic!("`{JVMS}`: {error}: install a JDK"));
    // Links lead to the same folder.
    let folders = entries.filter_map(|entry| entry.ok()?.path().canonicalize().ok()).chain([java_home()]);
    let found = folders.filter_map(|folder| Some((folder.clone(), version(&folder)?)));
    let found: BTreeMap<PathBuf, u32> = found.filter(|&(_, version)| version >= VERSIONS[0]).collect();
    for absent in VERSIONS.iter().filter(|version| !found.values().any(|found| found == *version)) {
        // Not by a macro, whose output `cargo test` discards if the test passes.
        let _ = writeln!(io::stderr(), "JDK {absent} is not present in `{JVMS}`: not tested");
    }
    assert!(!found.is_empty(), "`{JVMS}` has no JDK {} or later: install default-jdk-headless", VERSIONS[0]);
    found
}

/// The major version of a virtual machine.
fn version(folder: &Path) -> Option<u32> {
    let release = fs::read_to_string(folder.join("release")).ok()?;
    let version = release.lines().find_map(|line| line.strip_prefix("JAVA_VERSION=\""))?;
    version.split(['.', '"', '-']).next()?.parse().ok()
}

/// Starts the target, which executes all of its paths before it is ready, often enough that they are compiled: HEAPBPF_ROUNDS times in
/// an emulated machine, which would take hours for the usual number.
fn start(jvm: &Path, name: &str, options: &str) -> Target {
    let usual = if name == VIRTUAL { "2000" } else { "20000" };
    let many = env::var("HEAPBPF_ROUNDS").unwrap_or_else(|_| usual.to_owned());
    let rounds = if ["-Xint", "-Xcomp"].contains(&options) { "20" } else { &many };
    let mut command = Command::new(jvm.join("bin/java"));
    command.args(["-XX:+UnlockDiagnosticVMOptions", "-XX:+ShowHiddenFrames"]).args(options.split_ascii_whitespace());
    if name == VIRTUAL {
        // The heap of the machine does not grow while it is recorded.
        command.args(["-Xms128m", "-Xmx128m", "-XX:+AlwaysPreTouch"]);
    }
    Target::spawn(command.arg("-cp").arg(java_classes(name)).args([&format!("demo.{name}"), rounds]))
}

/// Functions, files and lines, the innermost first. Native methods and generated classes have no lines.
type Stack = Vec<(String, Option<(String, u32)>)>;
type Sums = BTreeMap<Stack, Counts>;

fn add(sums: &mut Sums, stack: Stack, counts: Counts) {
    sums.entry(stack).or_default().add(counts);
}

/// A function's name without the address that ends the name of a hidden class: `Allocating$$Lambda/0x0000000800c03000.run`.
fn plain(function: &str) -> String {
    let parts = ["/0x", "+0x", ".0x"].iter().find_map(|mark| function.split_once(mark));
    let Some((class, rest)) = parts else { return function.to_owned() };
    format!("{class}{}", rest.trim_start_matches(|digit: char| digit.is_ascii_hexdigit()))
}

/// Blocks as the virtual machine describes them.
#[track_caller]
fn described(lines: &[String]) -> Sums {
    let location = |frame: &str| {
        let (function, location) = frame.strip_suffix(')')?.split_once('(')?;
        let (file, line) = location.rsplit_once(':')?;
        // Negative lines are unknown.
        Some((plain(function), line.parse().ok().map(|line| (file.to_owned(), line))))
    };
    let mut sums = Sums::new();
    for line in lines {
        let (size, stack) = line.split_once('\t').expect("a size and a stack");
        let stack = stack.split_terminator(';').map(|frame| location(frame).expect("a function, a file and a line"));
        add(&mut sums, stack.collect(), Counts::kept(1, size.parse().expect("a number")));
    }
    assert!(sums.len() > 40, "{} stacks", sums.len());
    sums
}

/// Blocks of a recording.
struct Recorded {
    sums: Sums,
    /// What has allocated them on behalf of Java functions.
    allocating: BTreeSet<Stack>,
    /// Kinds of Java frames, and whether they are inlined.
    kinds: BTreeSet<(String, bool)>,
}

fn is_java(frame: &Frame) -> bool {
    frame.module.as_deref() == Some("[java]")
}

/// The Java functions of a block of the target; `None` for other blocks, which have no such function, or are smaller. Native
/// functions that Java calls are left out.
fn java(callsite: &Callsite) -> Option<Vec<&Frame>> {
    let java: Vec<&Frame> = callsite.stack.iter().filter(|frame| is_java(frame)).collect();
    let Counts { alloc_count, alloc_bytes, .. } = callsite.totals.exact();
    (java.first()?.is(ALLOCATING[0]) && alloc_bytes >= alloc_count * BYTES_MIN).then_some(java)
}

#[track_caller]
fn recorded(process: &Process) -> Recorded {
    let location = |frame: &Frame| {
        let function = plain(frame.function.as_deref().unwrap_or("?"));
        (function, frame.line.map(|line| (frame.file.clone().unwrap_or_default(), line)))
    };
    let mut recorded = Recorded { sums: Sums::new(), allocating: BTreeSet::new(), kinds: BTreeSet::new() };
    for callsite in &process.callsites {
        let Some(java) = java(callsite) else { continue };
        assert_eq!(callsite.end.as_deref(), Some("complete"), "{callsite:#?}");
        // Frames of the virtual machine are those that Java called last, and others are hidden.
        let is_machine = |frame: &Frame| frame.module.as_deref().is_some_and(|path| path.ends_with("/libjvm.so"));
        let inner = callsite.stack.iter().take_while(|frame| is_machine(frame)).count();
        let rest = &callsite.stack[inner..];
        assert!(inner > 0 && rest.first().is_some_and(is_java), "{callsite:#?}");
        assert!(!rest.iter().any(is_machine), "{callsite:#?}");
        let kind = |frame: &Frame| (frame.kind.clone().unwrap_or_default(), frame.inlined);
        recorded.kinds.extend(java.iter().copied().map(kind));
        let mut stack: Stack = java.iter().copied().map(location).collect();
        let callers = stack.split_off(ALLOCATING.len().min(stack.len()));
        recorded.allocating.insert(stack);
        add(&mut recorded.sums, callers, callsite.totals.exact());
    }
    recorded
}

/// Fails unless all stacks are equal, with the same numbers and bytes.
#[track_caller]
fn compare(case: &str, expected: &Sums, recorded: &Recorded) {
    assert_equal_stacks(case, expected, &recorded.sums, |_| true);
    // Three functions, on the same lines in every stack. The native one has no line, and none has one in a machine without debug
    // information.
    let [allocating] = Vec::from_iter(&recorded.allocating).try_into().unwrap_or_else(|stacks: Vec<_>| {
        panic!("{case}: stacks begin in different ways: {stacks:#?}");
    });
    let functions: Vec<_> = allocating.iter().map(|(function, _)| function.as_str()).collect();
    let lines: Vec<_> = allocating.iter().map(|(_, location)| location.is_some()).collect();
    assert_eq!(functions, ALLOCATING, "{case}");
    assert!(!lines[0] && lines[1] == lines[2], "{case}: {allocating:?}");
}

/// Records the usual target in every virtual machine.
#[track_caller]
fn record(options: &str, inspect: impl Fn(&str, &Sums, &Heapbpf, u32)) {
    record_program("Allocating", (options, ""), jvms(), inspect);
}

/// Records a target in virtual machines. `inspect` gets the case, what is expected, the recording, and the target's PID.
#[track_caller]
fn record_program(
    name: &str,
    (options, arguments): (&str, &str),
    jvms: BTreeMap<PathBuf, u32>,
    inspect: impl Fn(&str, &Sums, &Heapbpf, u32),
) {
    for (jvm, version) in jvms {
        let case = format!("JDK {version} {options}");
        let mut target = start(&jvm, name, options);
        let pid = target.pid();
        let mut heapbpf = Heapbpf::of(pid, &format!("--interval 1 {arguments} -o out.json -o out.heapbpf"));
        let session = heapbpf.start();
        let lines = target.query("go");
        let _ = session.interrupt().expect_code(0);
        drop(target);
        heapbpf.report("out.json").assert_complete();
        inspect(&case, &described(&lines), &heapbpf, pid);
    }
}

/// A kind of Java frames, and whether they are inlined.
type Kind = (&'static str, bool);

const INTERPRETED: Kind = ("interpreted", false);
const COMPILED: Kind = ("jitted", false);
const INLINED: Kind = ("jitted", true);

/// Fails unless stacks equal the description, with frames of all required kinds, and of no others than optional ones.
#[track_caller]
fn check_kinds(options: &str, required: &[Kind], optional: &[Kind]) {
    record(options, |case, expected, heapbpf, pid| {
        let seen = recorded(heapbpf.report("out.json").process(pid));
        compare(case, expected, &seen);
        // The recording contains the names: the target does not run any more.
        let recording = heapbpf.file("out.heapbpf");
        let mut convert =
            Heapbpf::new(["convert".as_ref(), recording.as_os_str(), "-o".as_ref(), "again.json".as_ref()]);
        let _ = convert.run().expect_code(0);
        compare(case, expected, &recorded(convert.report("again.json").process(pid)));
        let found: BTreeSet<_> = seen.kinds.iter().map(|(kind, inlined)| (kind.as_str(), *inlined)).collect();
        let is_known = |kind| required.contains(kind) || optional.contains(kind);
        assert!(required.iter().all(|kind| found.contains(kind)) && found.iter().all(is_known), "{case}: {found:?}");
    });
}

/// Stacks up to the outermost function of a virtual thread, which all of them have, with what is outside of it.
#[track_caller]
fn of_virtual_threads(case: &str, sums: &Sums) -> (Sums, BTreeSet<Vec<String>>) {
    let (mut inside, mut outside) = (Sums::new(), BTreeSet::new());
    for (stack, &counts) in sums {
        let outermost = stack.iter().position(|(function, _)| function == OUTERMOST);
        let (stack, rest) = stack.split_at(outermost.unwrap_or_else(|| panic!("{case}: {stack:#?}")) + 1);
        add(&mut inside, stack.to_vec(), counts);
        outside.insert(rest.iter().map(|(function, _)| function.clone()).collect());
    }
    (inside, outside)
}

/// Records virtual threads, most of whose frames are in their continuations.
#[track_caller]
fn check_virtual(options: &str, arguments: &str) {
    let versions = jvms().into_iter().filter(|(_, version)| *version >= 21).collect();
    record_program(VIRTUAL, (options, arguments), versions, |case, expected, heapbpf, pid| {
        let mut seen = recorded(heapbpf.report("out.json").process(pid));
        let (expected, _) = of_virtual_threads(case, expected);
        let (inside, outside) = of_virtual_threads(case, &seen.sums);
        seen.sums = inside;
        compare(case, &expected, &seen);
        // A thread that has not waited yet was called by the one that carries it.
        let has_carrier = |rest: &&Vec<String>| rest.len() > ENTERED.len();
        assert!(outside.iter().all(|rest| rest.starts_with(&ENTERED.map(str::to_owned))), "{case}: {outside:#?}");
        let carriers: Vec<_> = outside.iter().filter(has_carrier).collect();
        let is_entered = |rest: &Vec<String>| rest[ENTERED.len()] == "jdk.internal.vm.Continuation.enterSpecial";
        assert!(carriers.iter().all(|rest| is_entered(rest)) && carriers.len() < outside.len(), "{case}: {outside:#?}");
    });
}

#[test]
fn stacks_of_virtual_threads_contain_the_frames_in_their_continuation() {
    check_virtual("", "");
    check_virtual("-XX:-UseCompressedOops", "--engine inline");
}

#[test]
#[ignore = "part of `cargo xtask nightly --suite versions`"]
fn stacks_of_virtual_threads_are_equal_with_each_compiler_and_garbage_collector() {
    for options in [
        "-Xint",
        "-Xcomp",
        "-XX:TieredStopAtLevel=1",
        "-XX:-TieredCompilation",
        "-XX:+PreserveFramePointer",
        "-XX:+UseSerialGC",
        "-XX:+UseParallelGC",
        "-XX:+UseShenandoahGC",
    ] {
        check_virtual(options, "");
    }
}

/// Some methods are compiled, some are not.
#[track_caller]
fn check(options: &str) {
    check_kinds(options, &[INTERPRETED, COMPILED, INLINED], &[]);
}

#[test]
fn stacks_equal_those_of_the_virtual_machine() {
    check("");
}

#[test]
#[ignore = "part of `cargo xtask nightly --suite versions`"]
fn stacks_of_interpreted_methods_are_equal() {
    check_kinds("-Xint", &[INTERPRETED], &[]);
}

#[test]
#[ignore = "part of `cargo xtask nightly --suite versions`"]
fn stacks_of_the_first_compiler_are_equal() {
    check("-XX:TieredStopAtLevel=1");
}

#[test]
#[ignore = "part of `cargo xtask nightly --suite versions`"]
fn stacks_of_the_second_compiler_are_equal() {
    check("-XX:-TieredCompilation");
}

/// Where compiled code is not valid any more, methods are interpreted.
#[test]
#[ignore = "part of `cargo xtask nightly --suite versions`"]
fn stacks_of_methods_that_are_compiled_at_once_are_equal() {
    check_kinds("-Xcomp", &[COMPILED, INLINED], &[INTERPRETED]);
}

#[test]
#[ignore = "part of `cargo xtask nightly --suite versions`"]
fn stacks_are_equal_with_frame_pointers() {
    check("-XX:+PreserveFramePointer");
}

#[test]
#[ignore = "part of `cargo xtask nightly --suite versions`"]
fn stacks_are_equal_with_an_undivided_code_cache() {
    check("-XX:-SegmentedCodeCache");
}

/// Methods are in other memory then.
#[test]
#[ignore = "part of `cargo xtask nightly --suite versions`"]
fn stacks_are_equal_without_shared_classes() {
    check("-Xshare:off");
}

/// Compiled methods have other prologues.
#[test]
#[ignore = "part of `cargo xtask nightly --suite versions`"]
fn stacks_are_equal_with_other_garbage_collectors() {
    for collector in ["-XX:+UseSerialGC", "-XX:+UseZGC"] {
        check(collector);
    }
}
