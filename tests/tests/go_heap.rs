//! The heap `go`: what the runtime of a Go program has sampled, read from outside, is what the program itself reads.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use heapbpf_tests::heapbpf::{Heapbpf, Outcome, binary};
use heapbpf_tests::report::{Process, Report};
use heapbpf_tests::target::{Target, build_directory, run};
use rustix::process::Signal;

/// Allocated, freed, and live blocks, and live bytes.
type Counts = [u64; 4];

const EXACT: &str = "1";
const COMMON: &str = "524288";

/// Builds a Go program of `targets/`. Concurrent tests each build their own copy.
fn build(source: &str, flags: &[&str]) -> PathBuf {
    let directory = build_directory().join("targets");
    std::fs::create_dir_all(&directory).expect("the build directory is ours");
    let name = format!("{}{}", source.trim_end_matches(".go"), flags.concat().replace([' ', '='], ""));
    let scratch = tempfile::tempdir_in(&directory).expect("the build directory is ours");
    let built = scratch.path().join(&name);
    let path = format!("{}/targets/{source}", env!("CARGO_MANIFEST_DIR"));
    run(Command::new("go").args(["build", "-o"]).arg(&built).args(flags).arg(path).env("CGO_ENABLED", "0"));
    let program = directory.join(&name);
    std::fs::rename(&built, &program).expect("both lie in one directory");
    program
}

fn start(flags: &[&str], rate: &str) -> Target {
    Target::spawn(Command::new(build("sessions.go", flags)).arg(rate))
}

/// What the program reads of its own profile, by its own functions, innermost first.
fn own_profile(target: &mut Target) -> BTreeMap<String, Counts> {
    let mut profile = BTreeMap::<String, Counts>::new();
    for line in target.query("profile") {
        let words: Vec<&str> = line.split(' ').collect();
        let [allocs, frees, size] = [0, 1, 2].map(|at| words[at].parse::<u64>().expect("a number"));
        let counts = profile.entry(words[3..].join(" ")).or_default();
        let live = allocs - frees;
        for (sum, value) in counts.iter_mut().zip([allocs, frees, live, live * size]) {
            *sum += value;
        }
    }
    profile
}

/// What the report has of these functions, without calls of the commands themselves.
fn reported(process: &Process) -> BTreeMap<String, Counts> {
    let mut profile = BTreeMap::<String, Counts>::new();
    for callsite in &process.callsites {
        let names = callsite.stack.iter().filter_map(|frame| frame.function.as_deref());
        let own: Vec<&str> = names.filter(|name| name.starts_with("main.")).collect();
        let exact = callsite.totals.exact();
        let sums = profile.entry(own.join(" ")).or_default();
        for (sum, value) in
            sums.iter_mut().zip([exact.alloc_count, exact.free_count, exact.live_count, exact.live_bytes])
        {
            *sum += value;
        }
    }
    profile
}

const SESSIONS: &str = "main.newSession main.addSessions main.main";
/// An inlined function.
const WORDS: &str = "main.newWord main.newSession main.addSessions main.main";

fn end(mut heapbpf: Heapbpf, act: impl FnOnce()) -> (Report, Outcome) {
    let session = heapbpf.start();
    act();
    let outcome = session.interrupt().expect_code(0);
    (heapbpf.report("out.json"), outcome)
}

/// Compares a recording that begins late, and blocks from before, with the program's own profile.
#[track_caller]
fn check(flags: &[&str], inlined: &str) {
    let mut target = start(flags, EXACT);
    ["add 3000", "drop 500", "collect"].iter().for_each(|line| target.run_command(line));
    let before = own_profile(&mut target);
    let mut after = BTreeMap::new();
    let heapbpf = Heapbpf::of(target.pid(), "--heap go -o out.json");
    let (report, outcome) = end(heapbpf, || {
        ["add 4000", "drop 1000", "collect"].iter().for_each(|line| target.run_command(line));
        after = own_profile(&mut target);
    });
    let process = report.process(target.pid());
    assert_eq!(process.heap_names(), ["go"]);
    assert!(outcome.stderr.contains("the profile of Go's runtime"), "{}", outcome.stderr);
    let reported = reported(process);
    let of = |profile: &BTreeMap<String, Counts>, name: &str| profile.get(name).copied().unwrap_or_default();
    let mut expected = BTreeMap::<&str, Counts>::new();
    for (own, name) in [(SESSIONS, SESSIONS), (WORDS, inlined)] {
        let ([allocs_before, frees_before, ..], [allocs, frees, live, bytes]) = (of(&before, own), of(&after, own));
        assert!(allocs > allocs_before && frees > frees_before && live > 0, "{own}: {after:?}");
        let counts = expected.entry(name).or_default();
        for (sum, value) in counts.iter_mut().zip([allocs - allocs_before, frees - frees_before, live, bytes]) {
            *sum += value;
        }
    }
    for (name, counts) in expected {
        assert_eq!(of(&reported, name), counts, "{name}: {reported:?}");
    }
    target.assert_running();
}

#[test]
fn a_program_that_runs_has_what_it_reads_itself() {
    check(&[], WORDS);
}

#[test]
fn a_position_independent_program_has_what_it_reads_itself() {
    check(&["-buildmode=pie"], WORDS);
}

/// Inlined functions have no names without debug information.
#[test]
fn a_stripped_program_has_what_it_reads_itself() {
    check(&["-ldflags=-s -w"], SESSIONS);
}

#[test]
fn a_launched_program_has_nothing_from_before() {
    let program = build("sessions.go", &[]).display().to_string();
    let mut heapbpf = Heapbpf::new(["--heap", "go", "-o", "out.json", "--", &program, EXACT, "commands"]);
    run(Command::new("mkfifo").arg(heapbpf.file("commands")));
    let mut session = heapbpf.spawn();
    // The program opens it when it runs.
    let mut commands = File::create(heapbpf.file("commands")).expect("the folder is ours");
    commands.write_all(b"add 3000\ncollect\ndrop 1000\ncollect\n").expect("the program reads it");
    (0..4).for_each(|_| session.wait_for("done"));
    session.signal(Signal::USR1);
    session.wait_for("wrote out.0001.json");
    let dump = heapbpf.report("out.0001.json");
    let [process] = dump.targets.as_slice() else { panic!("one process: {:?}", dump.targets) };
    assert_eq!(reported(process)[SESSIONS], [6000, 2000, 4000, 2000 * (1024 + 32)]);
    assert!(process.callsites.iter().all(|callsite| callsite.totals.inherited_count.as_u64() == Some(0)));
    commands.write_all(b"exit 0\n").expect("the program reads it");
    let outcome = session.wait().expect_code(0);
    assert!(outcome.stderr.contains("complete except for the last second of 1 Go program"), "{}", outcome.stderr);
}

/// Of one sampled block of 1 MiB each 0.86 are sampled at the runtime's own rate.
#[test]
fn sampled_blocks_are_estimated_as_pprof_does() {
    let mut target = start(&[], COMMON);
    target.run_command("add 100");
    let mut sampled = BTreeMap::new();
    let heapbpf = Heapbpf::of(target.pid(), "--heap go -o out.json");
    let (report, _) = end(heapbpf, || {
        ["add 60000", "large 300", "collect"].iter().for_each(|line| target.run_command(line));
        sampled = own_profile(&mut target);
    });
    let process = report.process(target.pid());
    assert_eq!(process.heap("go").interval_bytes, 524_288);
    let large = process.estimates_under(|name| name == "main.newLarge");
    #[expect(clippy::cast_precision_loss, reason = "small")]
    let expected = sampled["main.newLarge main.addLarge main.main"][0] as f64 / (1.0 - (-2.0_f64).exp());
    assert!((large.alloc_count - expected).abs() < 2.0, "{large:?}, not {expected}");
    let sessions = process.estimates_under(|name| name == "main.newSession");
    // 60,000 KiB are 117 samples.
    assert!((sessions.alloc_bytes / 61_440_000.0 - 1.0).abs() < 0.5, "{sessions:?}");
}

#[test]
fn a_recording_has_the_heap_of_go() {
    let mut target = start(&[], EXACT);
    ["add 1000", "collect"].iter().for_each(|line| target.run_command(line));
    let mut heapbpf = Heapbpf::of(target.pid(), "--heap go -o out.json -o out.heapbpf");
    let session = heapbpf.start();
    ["add 500", "drop 700", "collect"].iter().for_each(|line| target.run_command(line));
    let _ = session.interrupt().expect_code(0);
    let live = heapbpf.report("out.json");
    let recording = heapbpf.file("out.heapbpf").display().to_string();
    let replayed = heapbpf.file("replayed.json");
    run(Command::new(binary()).args(["convert", &recording, "-o"]).arg(&replayed));
    let replayed = Report::read(&replayed);
    assert_eq!(reported(replayed.process(target.pid())), reported(live.process(target.pid())));
}

#[test]
fn programs_without_a_profile_are_refused_by_name() {
    let silent = Target::spawn(&mut Command::new(build("silent.go", &[])));
    let refused = |pid: u32, options: &str| Heapbpf::of(pid, options).run().expect_error(1);
    let off = refused(silent.pid(), "--heap go");
    assert!(off.contains("`runtime.MemProfileRate` is 0"), "{off}");
    let other = Target::start("slots.c");
    let no_go = refused(other.pid(), "--heap go");
    assert!(no_go.contains("has none of the selected heaps (`go`)"), "{no_go}");
    let usage = |options: &str| Heapbpf::of(other.pid(), options).run().expect_error(2);
    assert!(usage("--heap go --heap pages").contains("would count twice"));
    assert!(usage("--heap go --heap-interval go=4096").contains("samples heap `go`"));
}
