//! Functions that interpreters execute, in stacks.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::interpreters::{Python, VERSIONS, tested};
use heapbpf_tests::kernel;
use heapbpf_tests::python::{self, STACKS_MIN, Stack, Sums, add, interpreted, is_interpreted, recorded};
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::report::{Callsite, Frame, Process, Report};
use heapbpf_tests::target::Target;
use rustix::process::Signal;
use serde::Deserialize;

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("targets").join(name)
}

fn described(output: &Path, stacks_min: usize) -> Sums {
    let text = fs::read_to_string(output).expect("the target has written it");
    python::described(&text, stacks_min).expect("the target writes JSON")
}

/// Compares all stacks.
#[track_caller]
fn check(version: &str, expected: &Sums, recorded: &Sums) {
    let [differing, others] = python::differing(expected, recorded);
    assert!(
        differing.is_empty() && others.is_empty(),
        "{version}: {} of {} stacks differ; expected {:#?}\nnot expected {:#?}",
        differing.len(),
        expected.len(),
        &differing[..differing.len().min(3)],
        &others[..others.len().min(3)]
    );
}

/// Makes a report of the recording.
#[track_caller]
fn convert(heapbpf: &Heapbpf, name: &str) {
    let (recording, report) = (heapbpf.file("out.heapbpf"), heapbpf.file(name));
    let words = ["convert".as_ref(), recording.as_os_str(), "-o".as_ref(), report.as_os_str()];
    Heapbpf::new(words).run().expect_code(0);
}

/// Every stack equals the interpreter's own description, to the function, file and line, with the same bytes.
#[test]
fn stacks_equal_those_of_the_interpreter() {
    for version in tested(VERSIONS) {
        let python = Python::of(version);
        let (inside, output) = python.output();
        let mut target = Target::spawn(python.script(&script("frames.py")).arg(inside));
        let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o out.json -o out.heapbpf");
        let session = heapbpf.start();
        target.run_command("go");
        session.interrupt().expect_code(0);
        let report = heapbpf.report("out.json");
        check(version, &described(&output, STACKS_MIN), &recorded(report.process(target.pid())));
        // The recording contains the names.
        convert(&heapbpf, "again.json");
        check(version, &described(&output, STACKS_MIN), &recorded(heapbpf.report("again.json").process(target.pid())));
    }
}

/// Frames of the interpreter stand between Python functions only on request.
#[test]
fn the_interpreters_own_frames_are_shown_on_request() {
    let python = Python::of("3.13");
    let (inside, _output) = python.output();
    let mut target = Target::spawn(python.script(&script("frames.py")).arg(inside));
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 --native -o native.json -o out.heapbpf");
    let session = heapbpf.start();
    target.run_command("go");
    session.interrupt().expect_code(0);
    convert(&heapbpf, "plain.json");
    let [native, plain] = ["native.json", "plain.json"].map(|name| heapbpf.report(name));
    let pid = target.pid();
    assert_eq!(recorded(native.process(pid)), recorded(plain.process(pid)));
    let is_loop = |frame: &Frame| frame.function.as_deref() == Some("_PyEval_EvalFrameDefault");
    let with_loop = |report: &Report| {
        let python = report.process(pid).callsites.iter().filter(|callsite| !interpreted(callsite).is_empty());
        let (with, without): (Vec<_>, Vec<_>) = python.partition(|callsite| callsite.stack.iter().any(is_loop));
        [with.len(), without.len()]
    };
    let [with, without] = with_loop(&native);
    assert!(with > 50 && without == 0, "{with} stacks with the loop, {without} without");
    let [with, without] = with_loop(&plain);
    assert!(with == 0 && without > 50, "{with} stacks with the loop, {without} without");
}

/// Name of the frame that stands for native functions which are missing.
const NATIVE_MISSING: &str = "[native functions missing]";

/// Records a script with an engine, and returns what it has described, and the report.
#[track_caller]
fn record(python: &Python, name: &str, engine: &str) -> (Sums, Process) {
    let (inside, output) = python.output();
    let mut target = Target::spawn(python.script(&script(name)).arg(inside));
    let mut heapbpf = Heapbpf::of(target.pid(), &format!("--interval 1 --engine {engine} -o out.json"));
    let session = heapbpf.start();
    target.run_command("go");
    session.interrupt();
    let mut report = heapbpf.report("out.json");
    let index = report.targets.iter().position(|process| process.pid == target.pid()).expect("it is recorded");
    (described(&output, 5), report.targets.swap_remove(index))
}

/// Generated code that has neither unwind tables nor frame pointers, and native frames beyond the limit of a stack, hide no Python
/// function. The stack has a frame in place of the native functions that are missing.
#[test]
#[cfg(target_arch = "x86_64")]
fn python_functions_outside_of_a_cut_are_there() {
    for version in tested(VERSIONS) {
        for engine in ["trap", "inline"] {
            let case = format!("{version} {engine}");
            let (expected, mut process) = record(&Python::of(version), "beyond.py", engine);
            let mut gaps = BTreeSet::new();
            for callsite in &mut process.callsites {
                let missing = callsite.stack.iter().position(|frame| frame.is(NATIVE_MISSING));
                assert_eq!(
                    missing.is_some(),
                    callsite.end.as_deref() == Some("native_missing"),
                    "{case}: {callsite:#?}"
                );
                if let Some(missing) = missing {
                    let gap = &callsite.stack[missing - 1..=missing + 1];
                    gaps.insert(gap.iter().map(|frame| frame.function.clone().unwrap_or_default()).collect::<Vec<_>>());
                    callsite.stack.remove(missing);
                }
            }
            check(&case, &expected, &recorded(&process));
            let expected = [vec!["", NATIVE_MISSING, "kernel"], vec!["deep", NATIVE_MISSING, "deep"]];
            // Since 3.11, a call of a Python function takes no native frames.
            let expected = if version == "3.9" { &expected[..] } else { &expected[..1] };
            assert_eq!(Vec::from_iter(gaps), expected, "{case}");
        }
    }
}

/// The stack of a greenlet ends at its first function: what is outside of it on the thread's stack belongs to others.
#[test]
fn stacks_of_greenlets_end_at_their_first_function() {
    for version in tested(VERSIONS) {
        for engine in ["trap", "inline"] {
            let case = format!("{version} {engine}");
            let (expected, process) = record(&Python::of(version), "greenlets.py", engine);
            check(&case, &expected, &recorded(&process));
            let is_of_script = |callsite: &Callsite| expected.contains_key(&interpreted(callsite));
            for callsite in process.callsites.iter().filter(|callsite| is_of_script(callsite)) {
                assert_eq!(callsite.end.as_deref(), Some("complete"), "{case}: {callsite:#?}");
                let name = |frame: &Frame| frame.function.clone().unwrap_or_default();
                let first = callsite.stack.iter().position(|frame| name(frame).contains("::inner_bootstrap("));
                // Functions of Python are either of the greenlet or of the thread.
                let outermost = interpreted(callsite).pop().expect("it is expected").0;
                let is_of_greenlet = !["<module>", "Thread._bootstrap", "_bootstrap"].contains(&&*outermost);
                let expected = is_of_greenlet.then(|| callsite.stack.len() - 1);
                assert_eq!(first, expected, "{case}: {callsite:#?}");
            }
        }
    }
}

/// Device and inode of each file whose code a process has mapped.
fn modules(pid: u32) -> BTreeSet<(u64, u64)> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    let fields = maps.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<&str>>());
    let of_code =
        fields.filter(|fields| fields[1].contains('x') && fields.get(5).is_some_and(|path| path.starts_with('/')));
    of_code.filter_map(|fields| identity(&format!("/proc/{pid}/map_files/{}", fields[0]))).collect()
}

/// Device and inode of each file that a process has open.
fn open_files(pid: u32) -> BTreeSet<(u64, u64)> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").flatten();
    files.filter_map(|file| identity(file.path().to_str()?)).collect()
}

fn identity(path: &str) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// Code of modules is freed when they have been imported: from the first instruction on, names are right.
///
/// A stack through a library that was just loaded ends there: what its outer frames execute is known only at the time of the call. So the
/// script waits until heapbpf, which may be slow, has read the mappings of its libraries.
#[test]
fn a_launched_interpreter_is_named_from_its_start() {
    let python = Python::of("3.13");
    let (inside, output) = python.output();
    let (pipe_inside, pipe) = python.pipe();
    let mut command = python.script(&script("frames.py"));
    command.arg(inside).arg(pipe_inside);
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let options = ["--interval", "1", "-o", "out.json", "--"].map(AsRef::as_ref);
    let mut heapbpf = Heapbpf::new(options.into_iter().chain(words));
    let mut session = heapbpf.spawn();
    // Waits until the script opens it, which has imported its libraries then.
    let mut line = File::options().write(true).open(&pipe).expect("it is ours");
    let &[interpreter] = kernel::commands(session.pid()).as_slice() else { panic!("there is one command") };
    kernel::wait_until("heapbpf has opened all libraries", || {
        open_files(session.pid()).is_superset(&modules(interpreter))
    });
    // The dump is made after what they were opened for.
    session.signal(Signal::USR1);
    session.wait_for("out.0001.json");
    line.write_all(b"\n").expect("it waits");
    session.wait().expect_code(0);
    let report = heapbpf.report("out.json");
    let process = report.targets.iter().find(|process| !process.replaced).expect("the interpreter");
    check("launched", &described(&output, STACKS_MIN), &recorded(process));
    let bytes = |callsite: &Callsite| callsite.totals.alloc_bytes.as_u64().expect("exact");
    let has_names =
        |callsite: &&Callsite| callsite.stack.iter().filter(is_interpreted).all(|frame| frame.function.is_some());
    let python: Vec<_> = process.callsites.iter().filter(|callsite| !interpreted(callsite).is_empty()).collect();
    let named: u64 = python.iter().copied().filter(has_names).map(bytes).sum();
    let whole: u64 = python.iter().copied().map(bytes).sum();
    assert_eq!(named, whole, "all Python functions have names");
    let import = |frame: &Frame| frame.function.as_deref() == Some("_find_and_load");
    assert!(python.iter().any(|callsite| callsite.stack.iter().any(import)), "imports were recorded");
}

/// Sums by stack of what memray's hooks passed on to malloc, without what memray allocates for itself.
fn seen_through_memray(process: &Process) -> Sums {
    let is_memrays = |frame: &&Frame| frame.module.as_deref().is_some_and(|module| module.contains("memray"));
    let is_hook = |frame: &Frame| {
        frame
            .function
            .as_deref()
            .is_some_and(|name| name.contains("memray::intercept::") || name.starts_with("decltype"))
    };
    let mut sums = Sums::new();
    for callsite in &process.callsites {
        let stack = interpreted(callsite);
        let mut memrays = callsite.stack.iter().filter(is_memrays).peekable();
        let [count, bytes] =
            [&callsite.totals.alloc_count, &callsite.totals.alloc_bytes].map(|number| number.as_u64().expect("exact"));
        if count > 0 && !stack.is_empty() && memrays.peek().is_some() && memrays.all(is_hook) {
            add(&mut sums, stack, [count, bytes]);
        }
    }
    sums
}

/// memray's hooks and heapbpf observe the same calls: stacks, numbers and bytes are equal, of about 60 stacks.
#[track_caller]
fn compare_with_memray(version: &'static str) {
    #[derive(Deserialize)]
    struct Sum {
        stack: Stack,
        count: u64,
        bytes: u64,
    }
    let python = Python::of(version);
    let (inside, output) = python.output();
    let mut command = python.script_with_memray(&script("encoding.py"));
    let mut target = Target::spawn(command.arg(inside).env("PYTHONMALLOC", "malloc").stderr(Stdio::null()));
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o out.json");
    let session = heapbpf.start();
    target.run_command("work");
    session.interrupt().expect_code(0);
    target.run_command("describe");
    let text = fs::read_to_string(&output).expect("the target has written it");
    let described: Vec<Sum> = serde_json::from_str(&text).expect("the target writes JSON");
    // memray has plain names, also since 3.11.
    let plain = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    // Not all callers are in memray's stacks: those of the function that starts it.
    let up_to_work = |mut stack: Stack| {
        let end = stack.iter().position(|(name, ..)| name == "work")?;
        stack.truncate(end + 1);
        Some(stack)
    };
    let mut expected = Sums::new();
    for Sum { stack, count, bytes } in described {
        if let Some(stack) = up_to_work(stack) {
            add(&mut expected, stack, [count, bytes]);
        }
    }
    let report = heapbpf.report("out.json");
    let mut recorded = Sums::new();
    for (stack, sum) in seen_through_memray(report.process(target.pid())) {
        let stack = stack.into_iter().map(|(name, file, line)| (plain(&name), file, line)).collect();
        let Some(mut stack) = up_to_work(stack) else { continue };
        // memray learns of a function after its frame object has been allocated, and counts that for the caller.
        if !expected.contains_key(&stack) {
            stack.remove(0);
        }
        if !stack.is_empty() {
            add(&mut recorded, stack, sum);
        }
    }
    assert!(expected.len() > 20, "{version}: {} stacks", expected.len());
    let encoder = expected.keys().find(|stack| stack[0].0 == "iterencode" && stack[0].1.ends_with("encoder.py"));
    assert!(encoder.is_some(), "{version}: the C encoder was called");
    let differing: Vec<_> = expected
        .iter()
        .map(|(stack, sum)| (stack, sum, recorded.get(stack)))
        .filter(|&(_, sum, recorded)| recorded != Some(sum))
        .collect();
    assert!(differing.is_empty(), "{version}: {} of {} stacks differ: {differing:#?}", differing.len(), expected.len());
    assert_eq!(recorded.len(), expected.len(), "{version}");
}

// The symbols of memray take seconds to read: the gate takes one version. Snapshots have the frames of the others.

#[test]
#[ignore = "part of `cargo xtask nightly --suite versions`"]
fn stacks_of_3_9_equal_those_of_memray() {
    compare_with_memray("3.9");
}

#[test]
#[ignore = "part of `cargo xtask nightly --suite versions`"]
fn stacks_of_3_11_equal_those_of_memray() {
    compare_with_memray("3.11");
}

#[test]
#[ignore = "part of `cargo xtask nightly --suite versions`"]
fn stacks_of_3_14_equal_those_of_memray() {
    compare_with_memray("3.14");
}

/// What a process claims about its interpreter is not trusted: cycles, wild pointers and lengths end, and harm nobody.
#[test]
fn forged_interpreters_are_bounded() {
    let mut target = Target::spawn(&mut Command::new(Recipe::of("forged_python.c").flags("-rdynamic").build()));
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 --native -o out.json");
    let session = heapbpf.start();
    const KINDS: [&str; 6] = ["cycle", "wild", "texts", "deep", "foreign", "none"];
    for kind in KINDS {
        target.run_command(kind);
    }
    session.interrupt().expect_code(3);
    let report = heapbpf.report("out.json");
    let callsites = &report.process(target.pid()).callsites;
    let at = |function: &str| -> Vec<&Callsite> {
        let is_it = |frame: &Frame| frame.function.as_deref() == Some(function);
        callsites.iter().filter(|callsite| callsite.stack.iter().any(is_it)).collect()
    };
    for kind in KINDS {
        let found = at(kind);
        let counts: u64 = found.iter().map(|callsite| callsite.totals.alloc_count.as_u64().expect("exact")).sum();
        // A cycle fills the stack before the walk returns to native frames.
        let expected = if kind == "cycle" { 0 } else { 1 };
        assert_eq!(counts, expected, "{kind}: {found:#?}");
    }
    assert_eq!(report.health.unwind.get("truncated").copied(), Some(1), "{:?}", report.health.unwind);
    assert!(callsites.iter().all(|callsite| callsite.stack.len() <= 1100));
}
