//! Ruby methods and blocks in stacks equal Ruby's own description of the stack, without options of the program.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::report::{Callsite, Counts, Frame, Process};
use heapbpf_tests::target::Target;

/// Smallest block that the target describes.
const BYTES_MIN: u64 = 100_000;
/// Root directories with other versions of CRuby, in folders that have the version as their name: `3.4`.
const ROOTS: &str = "HEAPBPF_RUBIES";

/// A CRuby: that of this system, or one in a root directory.
struct Ruby {
    version: String,
    root: Option<PathBuf>,
}

impl Ruby {
    fn all() -> Vec<Self> {
        let version =
            Command::new("ruby").args(["-e", "print RUBY_VERSION"]).output().expect("Ruby is installed: install ruby");
        let mut all = vec![Self { version: String::from_utf8(version.stdout).expect("a version"), root: None }];
        let Some(roots) = std::env::var_os(ROOTS) else {
            // Not by a macro, whose output `cargo test` discards if the test passes.
            let _ = writeln!(io::stderr(), "{ROOTS} is not set: only CRuby {} is tested", all[0].version);
            return all;
        };
        for entry in fs::read_dir(roots).expect("it is a folder") {
            let root = entry.expect("readable").path();
            let name = root.file_name().expect("a name").to_string_lossy().into_owned();
            all.push(Self { version: name, root: Some(root) });
        }
        all
    }

    /// Returns a command that executes a script, which is copied into the root directory.
    fn script(&self, options: &[&str], arguments: &[&str]) -> Command {
        let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/targets/calling.rb"));
        let mut command = match &self.root {
            None => Command::new("ruby"),
            Some(root) => {
                // Several tests copy the same file at once: it is replaced as a whole.
                let copy = tempfile::NamedTempFile::new_in(root.join("tmp")).expect("the folder is ours");
                fs::copy(source, copy.path()).expect("the script can be read");
                copy.persist(root.join("tmp/calling.rb")).expect("the folder is ours");
                let mut command = Command::new("chroot");
                command.arg(root).arg(format!("ruby{}", self.version));
                command
            }
        };
        let script = if self.root.is_some() { Path::new("/tmp/calling.rb") } else { source };
        command.args(options).arg(script).args(arguments);
        command
    }

    /// Whether it was built with this compiler.
    fn compiles(&self, option: &str) -> bool {
        let mut command = self.script(&[option, "-e", "exit !!(defined?(RubyVM::YJIT) && RubyVM::YJIT.enabled?)"], &[]);
        command.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }

    /// Whether names have the class of the method.
    fn names_owners(&self) -> bool {
        let mut parts = self.version.split('.').filter_map(|part| part.parse::<u32>().ok());
        (parts.next(), parts.next()) >= (Some(3), Some(4))
    }
}

/// Functions, and files and lines of those that are not in C, the innermost first.
type Stack = Vec<(String, Option<(String, u32)>)>;
type Sums = BTreeMap<Stack, Counts>;

fn is_ruby(frame: &Frame) -> bool {
    frame.module.as_deref() == Some("[ruby]")
}

/// Blocks as Ruby describes them. It gives methods in C the file and line of their callers.
#[track_caller]
fn described(lines: &[String]) -> BTreeMap<Vec<(String, String, u32)>, Counts> {
    let mut sums = BTreeMap::<_, Counts>::new();
    for line in lines {
        let (size, stack) = line.split_once('\t').expect("a size and a stack");
        let frame = |frame: &str| {
            let mut parts = frame.splitn(3, '\u{1b}').map(str::to_owned);
            let [label, file, line] = [(); 3].map(|()| parts.next().expect("label, file and line"));
            (label, file, line.parse().expect("a number"))
        };
        let counts = Counts::kept(1, size.parse().expect("a number"));
        sums.entry(stack.split('\t').map(frame).collect()).or_default().add(counts);
    }
    assert!(sums.len() > 80, "{} stacks", sums.len());
    sums
}

/// The Ruby frames of a block of the target; `None` for other blocks, which are smaller.
fn ruby(callsite: &Callsite) -> Option<Vec<&Frame>> {
    let ruby: Vec<&Frame> = callsite.stack.iter().filter(|frame| is_ruby(frame)).collect();
    let Counts { alloc_count, alloc_bytes, .. } = callsite.totals.exact();
    let is_described = alloc_bytes >= alloc_count * BYTES_MIN
        && ["*", "String#*"].iter().any(|name| ruby.first().is_some_and(|frame| frame.is(name)));
    is_described.then_some(ruby)
}

/// The recorded stacks, without the method that allocates.
#[track_caller]
fn recorded(process: &Process, is_compiled: bool) -> Sums {
    let location = |frame: &&Frame| {
        let function = frame.function.clone().unwrap_or_else(|| "?".to_owned());
        (function, frame.line.map(|line| (frame.file.clone().unwrap_or_default(), line)))
    };
    let mut sums = Sums::new();
    for callsite in &process.callsites {
        let Some(ruby) = ruby(callsite) else { continue };
        assert!(ruby.iter().all(|frame| frame.kind.as_deref() == Some("interpreted")), "{callsite:#?}");
        // Stacks can be cut in compiled code; Ruby's frames are there.
        assert!(is_compiled || callsite.end.as_deref() == Some("complete"), "{callsite:#?}");
        // Frames of the interpreter are those that Ruby called last, and others are hidden.
        let inner = callsite.stack.iter().take_while(|frame| !is_ruby(frame)).count();
        assert!(!callsite.stack[inner..].iter().any(is_interpreter), "{callsite:#?}");
        sums.entry(ruby[1..].iter().map(location).collect()).or_default().add(callsite.totals.exact());
    }
    sums
}

fn is_interpreter(frame: &Frame) -> bool {
    frame.module.as_deref().is_some_and(|path| path.contains("/libruby"))
}

/// Fails unless all stacks are equal, with the same numbers and bytes. Frames without a line are methods in C.
#[track_caller]
fn compare(ruby: &Ruby, lines: &[String], process: &Process, is_compiled: bool) {
    let expected = described(lines);
    let mut recorded = recorded(process, is_compiled);
    let mut missing = Vec::new();
    for (stack, counts) in &expected {
        let is_same = |found: &Stack| {
            found.len() == stack.len()
                && found.iter().zip(stack).all(|((function, place), (label, file, line))| {
                    function == label && place.as_ref().is_none_or(|(found, at)| (found, at) == (file, line))
                })
        };
        let found =
            recorded.iter().find(|(found, sum)| is_same(found) && *sum == counts).map(|(found, _)| found.clone());
        match found {
            Some(found) => drop(recorded.remove(&found)),
            None => missing.push((stack, counts)),
        }
    }
    assert!(
        missing.is_empty() && recorded.is_empty(),
        "Ruby {}: {} of {} stacks differ; expected {:#?}\nnot expected {:#?}",
        ruby.version,
        missing.len(),
        expected.len(),
        &missing[..missing.len().min(3)],
        recorded.iter().take(3).collect::<Vec<_>>()
    );
    let _ = writeln!(io::stderr(), "Ruby {}: {} stacks are equal", ruby.version, expected.len());
}

/// Records the target. `--yjit` compiles methods at their second call.
#[track_caller]
fn check(ruby: &Ruby, options: &[&str], arguments: &[&str]) {
    let mut target = Target::spawn(&mut ruby.script(options, arguments));
    let pid = target.pid();
    let mut heapbpf = Heapbpf::of(pid, "--interval 1 -o out.json");
    let session = heapbpf.start();
    let lines = target.query("go");
    let session = session.interrupt();
    drop(target);
    let report = heapbpf.report("out.json");
    let is_compiled = !options.is_empty();
    if !is_compiled {
        let _ = session.expect_code(0);
        report.assert_complete();
    }
    compare(ruby, &lines, report.process(pid), is_compiled);
    assert_eq!(lines.iter().any(|line| line.contains("Shapes::Shape#draw")), ruby.names_owners());
}

#[test]
fn stacks_equal_those_of_ruby() {
    Ruby::all().iter().for_each(|ruby| check(ruby, &[], &[]));
}

/// Compiled code has Ruby's own frames, too.
#[test]
fn stacks_are_equal_with_a_compiler() {
    for ruby in Ruby::all().iter().filter(|ruby| ruby.compiles("--yjit")) {
        check(ruby, &["--yjit", "--yjit-call-threshold=2"], &[]);
    }
}

/// Instruction sequences and their texts move, too.
#[test]
fn stacks_are_equal_while_objects_move() {
    Ruby::all().iter().for_each(|ruby| check(ruby, &[], &["compact"]));
}

/// Code of files is freed when they have been executed: from the first instruction on, names are right.
#[test]
fn a_launched_interpreter_is_named_from_its_start() {
    for ruby in Ruby::all() {
        let command = ruby.script(&[], &["once"]);
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let options = ["--interval", "1", "-o", "out.json", "--"].map(AsRef::as_ref);
        let mut heapbpf = Heapbpf::new(options.into_iter().chain(words));
        heapbpf.run().expect_code(0);
        let report = heapbpf.report("out.json");
        let process = report.targets.iter().find(|process| !process.replaced).expect("the interpreter");
        let frames = || process.callsites.iter().flat_map(|callsite| &callsite.stack).filter(|frame| is_ruby(frame));
        let unnamed = frames().filter(|frame| frame.function.is_none()).count();
        assert_eq!(unnamed, 0, "Ruby {}: of {} frames", ruby.version, frames().count());
        let has = |name: &str| frames().any(|frame| frame.is(name) && frame.line.is_some());
        assert!(has("<top (required)>") && has("<main>"), "Ruby {}", ruby.version);
    }
}

/// The interpreter's own functions are shown on request, also later.
#[test]
fn native_frames_are_shown_on_request() {
    let [ruby, ..] = &*Ruby::all() else { unreachable!("one is installed") };
    let mut target = Target::spawn(&mut ruby.script(&[], &[]));
    let pid = target.pid();
    let mut heapbpf = Heapbpf::of(pid, "--interval 1 --native -o out.json");
    let session = heapbpf.start();
    let _ = target.query("go");
    session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    let callsites = report.process(pid).callsites.iter().filter(|callsite| ruby_frames(callsite) > 2);
    let shown = callsites.map(|callsite| {
        let inner = callsite.stack.iter().position(is_ruby).expect("there are some");
        callsite.stack[inner..].iter().filter(|frame| is_interpreter(frame)).count()
    });
    let shown: Vec<usize> = shown.collect();
    // A fiber's only frames can be at its end.
    assert!(shown.len() > 50 && shown.iter().filter(|count| **count > 0).count() > shown.len() / 2, "{shown:?}");
}

fn ruby_frames(callsite: &Callsite) -> usize {
    callsite.stack.iter().filter(|frame| is_ruby(frame)).count()
}
