//! Programs whose threads wait on stacks of which little is left: nothing changes in them but slots.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdout, Command, Stdio};

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::kernel::tasks;
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::target::{Target, build_directory, run};
use tempfile::TempDir;

use super::{EXACT, assert_passed, assert_unharmed, engine, start, wait_until};

const WAYS: [&str; 5] = ["main", "deep", "coroutine", "local", "alternate"];

/// A program whose first thread waits in this way. The kernel writes to the area of restartable sequences of idle threads too.
fn waiting(way: &str) -> Target {
    let tunables = ("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
    Target::spawn(Command::new(Recipe::of("untouched.c").build()).arg(way).env(tunables.0, tunables.1))
}

/// Makes it call the allocator, and waits until all its threads wait in a system call again.
#[track_caller]
fn settle(target: &mut Target) {
    target.run_command("work 10");
    let read = |task: u32, file: &str| {
        fs::read_to_string(format!("/proc/{}/task/{task}/{file}", target.pid())).unwrap_or_default()
    };
    let waits = |task: u32| read(task, "stat").contains(") Z ") || read(task, "syscall").starts_with("0 ");
    wait_until("its threads wait", || tasks(target.pid()).into_iter().all(waits));
}

/// Addresses of mappings of a process whose lines in `maps` are wanted.
fn mappings(pid: u32, is_wanted: impl Fn(&str) -> bool) -> Vec<Range<u64>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    let range = |line: &str| {
        let (start, end) = line.split_once(' ').and_then(|(range, _)| range.split_once('-')).expect("a range");
        let number = |digits| u64::from_str_radix(digits, 16).expect("hexadecimal");
        number(start)..number(end)
    };
    maps.lines().filter(|line| is_wanted(line)).map(range).collect()
}

fn is_writable(line: &str) -> bool {
    line.contains(" rw-p ") || line.contains(" r--p ") || line.contains(" rwxp ")
}

/// Contents of these mappings of a process. That of the kernel cannot be read.
fn contents(pid: u32, ranges: &[Range<u64>]) -> Vec<Vec<u8>> {
    let memory = File::open(format!("/proc/{pid}/mem")).expect("it runs");
    let content = |range: &Range<u64>| {
        let mut bytes = vec![0; usize::try_from(range.end - range.start).expect("fits")];
        memory.read_exact_at(&mut bytes, range.start).map_or(Vec::new(), |()| bytes)
    };
    ranges.iter().map(content).collect()
}

/// Addresses of words that differ, and what they are now.
fn changes(pid: u32, ranges: &[Range<u64>], before: &[Vec<u8>]) -> Vec<(u64, u64)> {
    let now = contents(pid, ranges);
    let changed = ranges.iter().zip(before).zip(&now).filter(|((_, before), now)| before != now);
    let words = changed.flat_map(|((range, before), now)| {
        let pairs = before.as_chunks::<8>().0.iter().zip(now.as_chunks::<8>().0);
        (range.start..).step_by(8).zip(pairs).filter(|(_, (before, now))| before != now)
    });
    words.map(|(address, (_, now))| (address, u64::from_ne_bytes(*now))).collect()
}

#[test]
fn nothing_but_slots_changes_in_an_idle_program() {
    for way in WAYS {
        let mut target = waiting(way);
        settle(&mut target);
        let pid = target.pid();
        let ranges = mappings(pid, is_writable);
        let before = contents(pid, &ranges);
        for _ in 0..2 {
            let (heapbpf, session) = start(&target, EXACT);
            let stubs = mappings(pid, |line| line.contains("heapbpf-stubs"));
            let changed = changes(pid, &ranges, &before);
            let is_stub = |word: &u64| stubs.iter().any(|range| range.contains(word));
            assert!(changed.iter().all(|(_, word)| is_stub(word)), "{way}: {changed:x?}");
            assert!(!changed.is_empty(), "{way}: slots lead to stubs");
            let _ = session.interrupt().expect_code(0);
            let report = heapbpf.report("out.json");
            assert_eq!(
                (engine(&report).targets, engine(&report).refused.len()),
                (1, 0),
                "{way}: {:?}",
                engine(&report)
            );
            assert_eq!(changes(pid, &ranges, &before), [], "{way}");
            assert_unharmed(&mut target);
        }
        target.run_command("check");
        target.exit(0);
    }
}

#[test]
fn calls_of_a_program_on_other_stacks_pass_stubs() {
    for way in WAYS {
        let mut target = waiting(way);
        target.run_command("work 10");
        for _ in 0..2 {
            let (heapbpf, session) = start(&target, EXACT);
            target.run_command("work 5000");
            // Stacks of coroutines end in code of the C library without unwind information, which makes a profile incomplete.
            let outcome = session.interrupt();
            assert!(matches!(outcome.status.code(), Some(0 | 3)), "{way}: {outcome:?}");
            assert_unharmed(&mut target);
            let report = heapbpf.report("out.json");
            assert_passed(&report, 1);
            assert_eq!(report.process(target.pid()).exact_by_leaf()["allocates"].alloc_count, 5000, "{way}");
        }
    }
}

#[test]
fn copies_change_nothing_in_an_idle_program() {
    // A process whose first thread has exited is recorded by the trap engine.
    for way in WAYS.into_iter().chain(["exited"]) {
        let mut target = waiting(way);
        settle(&mut target);
        let pid = target.pid();
        // One that has exited shows no memory.
        let thread = tasks(pid).into_iter().max().expect("it runs");
        let ranges = mappings(thread, is_writable);
        let before = contents(thread, &ranges);
        for _ in 0..3 {
            let _ = Heapbpf::new(["leaks", "--pid", &pid.to_string(), "--snapshot", "fork"]).run();
            assert_eq!(changes(thread, &ranges, &before), [], "{way}");
        }
        target.run_command("check");
    }
}

/// A program in Go, which exits with its output.
struct Goroutines(
    Child,
    BufReader<ChildStdout>,
    #[expect(dead_code, reason = "it is removed with the program")] TempDir,
);

impl Goroutines {
    fn start() -> Self {
        let source = format!("{}/targets/goroutines.go", env!("CARGO_MANIFEST_DIR"));
        let scratch = tempfile::tempdir_in(build_directory().join("targets")).expect("the build directory is ours");
        let program = scratch.path().join("goroutines");
        run(Command::new("go").args(["build", "-o"]).arg(&program).arg(source).env("CGO_ENABLED", "1"));
        let mut child = Command::new(&program).stdout(Stdio::piped()).spawn().expect("it was built");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let mut started = Self(child, output, scratch);
        started.wait_for_turns(1);
        started
    }

    /// Fails when it has ended.
    #[track_caller]
    fn wait_for_turns(&mut self, turns: usize) {
        for _ in 0..turns {
            let mut line = String::new();
            self.1.read_line(&mut line).expect("text");
            assert!(!line.is_empty(), "it has ended: {:?}", self.0.wait());
        }
    }
}

impl Drop for Goroutines {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn a_go_program_runs_on_after_each_attach() {
    let mut program = Goroutines::start();
    let pid = program.0.id();
    for _ in 0..5 {
        let mut heapbpf = Heapbpf::of(pid, "--engine inline --interval 64 -o out.json");
        let session = heapbpf.start();
        program.wait_for_turns(3);
        let _ = session.interrupt().expect_counted();
        program.wait_for_turns(3);
    }
}

#[test]
fn a_go_program_runs_on_after_each_copy() {
    let mut program = Goroutines::start();
    let pid = program.0.id().to_string();
    for _ in 0..5 {
        let outcome = Heapbpf::new(["leaks", "--pid", &pid, "--snapshot", "fork"]).run();
        assert!(!outcome.stderr.contains("cannot be made"), "{}", outcome.stderr);
        program.wait_for_turns(6);
    }
}
