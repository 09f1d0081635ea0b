//! Recordings: conversion gives the session's own report, and a truncated recording is read up to the damage.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use heapbpf_tests::heapbpf::{Heapbpf, Session, binary};
use heapbpf_tests::report::Report;
use heapbpf_tests::target::{Target, run};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::{TempDir, tempdir};

/// Maximum loss of `kill -9`.
const LOSABLE: Duration = Duration::from_secs(1);

/// Records and reports a target at an interval of 1.
fn recorded(source: &str, arguments: &str) -> (Target, Heapbpf, Session) {
    let target = Target::start(source);
    let arguments = format!("-v --interval 1 -o out.heapbpf -o out.json {arguments}");
    let mut heapbpf = Heapbpf::of(target.pid(), &arguments);
    let session = heapbpf.start();
    (target, heapbpf, session)
}

/// A recording converted to JSON, in its own directory.
struct Converted {
    directory: TempDir,
    output: Output,
}

impl Converted {
    #[track_caller]
    fn of(recording: &Path, arguments: &[String]) -> Self {
        let directory = tempdir().expect("there is a directory for temporary files");
        let mut command = Command::new(binary());
        command.current_dir(directory.path()).env("NO_COLOR", "1").env_remove("RUST_LOG");
        command.arg("convert").arg(recording).args(["-o", "out.json"]).args(arguments);
        let output = command.output().expect("it can be started");
        Self { directory, output }
    }

    fn stderr(&self) -> String {
        String::from_utf8(self.output.stderr.clone()).expect("messages are text")
    }

    fn stdout(&self) -> String {
        String::from_utf8(self.output.stdout.clone()).expect("the summary is text")
    }

    /// Fails unless it exited with this code.
    #[track_caller]
    fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.output.status.code(), Some(code), "{}\n{}", self.stdout(), self.stderr());
        self
    }

    #[track_caller]
    fn report(&self) -> Report {
        Report::read(&self.directory.path().join("out.json"))
    }

    #[track_caller]
    fn json(&self) -> Value {
        json(&self.directory.path().join("out.json"))
    }
}

#[track_caller]
fn json(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("`{}`: {error}", path.display()));
    serde_json::from_str(&text).expect("it is JSON")
}

/// Fails unless the JSON made from the recording equals the session's own.
#[track_caller]
fn assert_same(heapbpf: &Heapbpf, arguments: &[String]) -> Converted {
    assert_same_with_code(heapbpf, arguments, 0)
}

#[track_caller]
fn assert_same_with_code(heapbpf: &Heapbpf, arguments: &[String], code: i32) -> Converted {
    let converted = Converted::of(&heapbpf.file("out.heapbpf"), arguments).expect_code(code);
    let (own, again) = (json(&heapbpf.file("out.json")), converted.json());
    let keys = |value: &Value| value.as_object().map(|object| object.keys().cloned().collect::<Vec<_>>());
    assert_eq!(keys(&own), keys(&again));
    for (key, value) in own.as_object().expect("a report is an object") {
        assert_eq!(value, &again[key], "`{key}` differs");
    }
    converted
}

/// Requests a dump. Returns the time of its end since the start of the recording, by the recording's clock, as an argument: what was
/// recorded before is earlier, and what follows is later.
#[track_caller]
fn divide(session: &mut Session, heapbpf: &Heapbpf, number: u32) -> String {
    let name = format!("out.{number:04}.json");
    session.signal(Signal::USR1);
    session.wait_for(&name);
    let dump = heapbpf.report(&name);
    format!("{}ns", dump.ended_unix_ns - dump.started_unix_ns)
}

#[test]
fn a_converted_recording_equals_the_sessions_report() {
    let (mut target, heapbpf, session) = recorded("exact.c", "");
    let ledger = target.work("go");
    let outcome = session.interrupt().expect_code(0);
    assert!(outcome.stdout.contains("out.heapbpf (recording, "), "{}", outcome.stdout);
    let converted = assert_same(&heapbpf, &[]);
    converted.report().process(target.pid()).assert_matches(&ledger);
}

#[test]
fn a_recording_replaces_a_link_and_is_private() {
    let directory = tempdir().expect("there is a directory for temporary files");
    let (precious, link) = (directory.path().join("precious"), directory.path().join("out.heapbpf"));
    fs::write(&precious, "precious").expect("the directory is ours");
    symlink(&precious, &link).expect("the directory is ours");
    let mut target = Target::start("exact.c");
    let mut heapbpf = Heapbpf::of(target.pid(), &format!("--interval 1 -o {}", link.display()));
    let session = heapbpf.start();
    target.work("go");
    let _ = session.interrupt().expect_code(0);
    assert_eq!(fs::read_to_string(&precious).expect("it is there"), "precious");
    let metadata = link.symlink_metadata().expect("it is there");
    assert!(metadata.is_file());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
}

#[test]
fn estimates_and_mapped_memory_are_converted() {
    let mut target = Target::start("exact.c");
    let arguments = "--interval 4KiB --heap all --trim -o out.heapbpf -o out.json";
    let mut heapbpf = Heapbpf::of(target.pid(), arguments);
    let session = heapbpf.start();
    target.work("go");
    let _ = session.interrupt().expect_code(0);
    assert_same(&heapbpf, &["--trim".to_owned()]);
}

#[test]
fn forks_and_execs_are_replayed() {
    let (mut target, heapbpf, mut session) = recorded("family.c", "");
    target.work("keep 100 30");
    target.work("fork");
    session.wait_for("is being recorded");
    target.work("keep 7 5");
    target.work("drop");
    target.work("keep 9 4");
    target.begin_exit(0);
    target.work("keep 11 2");
    target.exec(&format!("exec {}", heapbpf_tests::target::build("family.c").display()));
    session.wait_for("is being recorded");
    target.work("keep 13 3");
    let outcome = session.interrupt().expect_counted();
    let code = outcome.status.code().expect("it was not killed");
    let report = assert_same_with_code(&heapbpf, &[], code).report();
    assert_eq!(report.targets.len(), 3, "{:?}", report.targets);
    let child = report.child_of(target.pid());
    assert_eq!(child.totals.inherited_bytes.as_u64(), Some(3000));
    assert_eq!(child.totals.exact().live_bytes, 36);
}

#[test]
fn resyncs_after_drops_are_replayed() {
    let (mut target, heapbpf, session) = recorded("steps.c", "--ring-size 64KiB --on-overload drop");
    // Events during its sleep exceed the ring buffer.
    session.halt();
    target.run_command("alloc 20000");
    session.resume();
    target.run_command("alloc 1000");
    let _ = session.interrupt().expect_code(3);
    let report = assert_same_with_code(&heapbpf, &[], 3).report();
    assert!(report.health.lost["ring_full"] > 10_000, "{:?}", report.health.lost);
    assert_eq!(report.process(target.pid()).totals.exact().live_count, 21_000);
}

#[test]
fn thinning_of_live_blocks_is_replayed() {
    let mut target = Target::start("steps.c");
    let arguments = "--interval 16 --live-blocks 2048 --ring-size 64MiB -o out.heapbpf -o out.json";
    let mut heapbpf = Heapbpf::of(target.pid(), arguments);
    let session = heapbpf.start();
    for _ in 0..20 {
        target.run_command("alloc 500");
    }
    let outcome = session.interrupt();
    assert_same_with_code(&heapbpf, &[], outcome.status.code().expect("it was not killed"));
}

#[test]
fn a_window_starts_with_live_blocks_and_counts_later_ones() {
    let (mut target, heapbpf, mut session) = recorded("family.c", "");
    target.work("keep 100 30");
    let first = divide(&mut session, &heapbpf, 1);
    target.work("keep 7 5");
    target.work("drop");
    target.work("keep 9 4");
    let second = divide(&mut session, &heapbpf, 2);
    target.work("keep 11 2");
    let _ = session.interrupt().expect_code(0);
    let moments = [first, second];
    let convert = |arguments: &[&str]| {
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        Converted::of(&heapbpf.file("out.heapbpf"), &arguments).expect_code(0).report()
    };

    let totals = convert(&["--from", &moments[0], "--to", &moments[1]]).process(target.pid()).totals.exact();
    assert_eq!((totals.alloc_count, totals.alloc_bytes), (9, 5 * 7 + 4 * 9));
    assert_eq!((totals.free_count, totals.free_bytes), (35, 3000 + 35));
    assert_eq!((totals.live_count, totals.live_bytes), (4, 36));

    let totals = convert(&["--to", &moments[0]]).process(target.pid()).totals.exact();
    assert_eq!((totals.alloc_count, totals.free_count, totals.live_bytes), (30, 0, 3000));

    let totals = convert(&["--from", &moments[1]]).process(target.pid()).totals.exact();
    assert_eq!((totals.alloc_count, totals.free_count, totals.live_bytes), (2, 0, 36 + 22));

    let behind = Converted::of(&heapbpf.file("out.heapbpf"), &["--from".to_owned(), "9h".to_owned()]).expect_code(2);
    assert!(behind.stderr().contains("`--from` is after the end of the recording"), "{}", behind.stderr());
}

#[test]
fn killing_heapbpf_loses_at_most_the_last_second() {
    let (mut target, heapbpf, session) = recorded("exact.c", "");
    let ledger = target.work("go");
    // Maximum time until an event is in the file.
    thread::sleep(LOSABLE);
    session.kill();
    let converted = Converted::of(&heapbpf.file("out.heapbpf"), &[]).expect_code(3);
    let stderr = converted.stderr();
    assert!(stderr.contains("the file ends here, before the recording did; read up to "), "{stderr}");
    // Symbolized with the modules on this machine: the recording has no names yet.
    converted.report().process(target.pid()).assert_matches(&ledger);
}

#[test]
fn a_truncated_or_damaged_file_is_read_up_to_the_damage() {
    let (mut target, heapbpf, session) = recorded("family.c", "");
    target.work("keep 100 30");
    // The block with this is written by then.
    thread::sleep(LOSABLE);
    target.work("keep 7 5");
    thread::sleep(LOSABLE);
    let _ = session.interrupt().expect_code(0);
    let whole = fs::read(heapbpf.file("out.heapbpf")).expect("readable");
    let check = |bytes: &[u8], reason: &str| {
        let path = heapbpf.file("damaged.heapbpf");
        fs::write(&path, bytes).expect("writable");
        let converted = Converted::of(&path, &[]).expect_code(3);
        let stderr = converted.stderr();
        assert!(stderr.contains("damaged.heapbpf`: damaged at byte ") && stderr.contains(reason), "{stderr}");
        assert!(stderr.contains("; read up to "), "{stderr}");
    };
    check(&whole[..whole.len() - 1], "the file ends within a block");
    let mut flipped = whole.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    check(&flipped, "");
    let path = heapbpf.file("foreign.heapbpf");
    fs::write(&path, b"<svg></svg>").expect("writable");
    let stderr = Converted::of(&path, &[]).expect_code(1).stderr();
    assert!(stderr.contains("foreign.heapbpf`: it is an image"), "{stderr}");
}

#[test]
fn a_limited_file_is_folded_and_totals_are_kept() {
    const LIMIT_BYTES: u64 = 256 << 10;
    let (mut target, heapbpf, session) = recorded("steps.c", "--max-size 256KiB --ring-size 64MiB");
    let mut sent = 0;
    while sent < 40 {
        target.run_command("alloc 10000");
        target.run_command("free");
        sent += 1;
    }
    target.run_command("alloc 1000");
    let _ = session.interrupt().expect_code(0);
    let size = File::open(heapbpf.file("out.heapbpf")).and_then(|file| file.metadata()).expect("there").len();
    assert!(size <= LIMIT_BYTES, "{size}");
    assert_eq!(heapbpf.files(), ["out.heapbpf", "out.json"], "no temporary file is left");
    let converted = assert_same(&heapbpf, &[]);
    assert!(converted.stdout().contains("folded until 00:"), "{}", converted.stdout());
    let totals = converted.report().process(target.pid()).totals.exact();
    assert_eq!((totals.alloc_count, totals.live_count), (401_000, 1000));
    let before = Converted::of(&heapbpf.file("out.heapbpf"), &["--from".to_owned(), "1ms".to_owned()]).expect_code(2);
    assert!(before.stderr().contains("were folded (`--max-size`)"), "{}", before.stderr());
}

#[test]
fn a_limit_too_small_for_the_live_blocks_is_reported() {
    let (mut target, heapbpf, session) = recorded("steps.c", "--max-size 256KiB --ring-size 64MiB");
    for _ in 0..45 {
        target.run_command("alloc 20000");
    }
    let outcome = session.interrupt().expect_code(1);
    assert!(outcome.stderr.contains("the state of live blocks alone takes "), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("more than `--max-size` 256.0 KiB; raise it"), "{}", outcome.stderr);
    let report = heapbpf.report("out.json");
    assert_eq!(report.process(target.pid()).totals.exact().live_count, 900_000, "the session goes on");
}

/// A small file system, mounted until drop.
struct Small(TempDir);

impl Small {
    fn mount() -> Self {
        let directory = tempdir().expect("there is a directory for temporary files");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "none"]).arg(directory.path()));
        Self(directory)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_ends_the_recording_and_not_the_session() {
    let disk = Small::mount();
    let recording = disk.0.path().join("full.heapbpf");
    let mut target = Target::start("steps.c");
    let mut heapbpf =
        Heapbpf::of(target.pid(), &format!("--interval 1 --ring-size 64MiB -o {} -o out.json", recording.display()));
    let mut session = heapbpf.start();
    for _ in 0..10 {
        target.run_command("alloc 10000");
    }
    session.wait_for(&format!("recording to `{}` stopped: No space left on device", recording.display()));
    target.run_command("alloc 10000");
    let outcome = session.interrupt().expect_code(1);
    assert!(outcome.stderr.contains("is incomplete: No space left on device"), "{}", outcome.stderr);
    assert_eq!(heapbpf.report("out.json").process(target.pid()).totals.exact().live_count, 110_000);
    // Everything written is complete.
    let converted = Converted::of(&recording, &[]).expect_code(3);
    assert!(converted.stderr().contains("the file ends here"), "{}", converted.stderr());
}

#[test]
fn contradictory_options_are_rejected_before_anything_is_attached() {
    let target = Target::start("family.c");
    for (arguments, reason) in [
        ("-o a.heapbpf -o b.heapbpf", "more than one recording"),
        ("--max-size 1MiB -o a.svg", "`--max-size` limits a recording"),
        ("--max-size 1KiB -o a.heapbpf", "must be at least 256.0 KiB"),
    ] {
        let error = Heapbpf::of(target.pid(), arguments).run().expect_error(2);
        assert!(error.contains(reason), "{error}");
    }
    let mut heapbpf = Heapbpf::of(target.pid(), "-o missing/a.heapbpf");
    assert!(heapbpf.run().expect_error(1).contains("does not exist"));
    let missing = Converted::of(Path::new("/nowhere.heapbpf"), &[]).expect_code(1).stderr();
    assert!(missing.contains("cannot read a profile from `/nowhere.heapbpf`: No such file"), "{missing}");
}

#[test]
fn options_of_all_commands_may_precede_the_command() {
    let (mut target, heapbpf, session) = recorded("service.c", "");
    target.work("keep 1000 25");
    let _ = session.interrupt().expect_code(0);
    let input = heapbpf.file("out.heapbpf").display().to_string();
    for leading in [&["-q"][..], &["--quiet"], &["-q", "-v"]] {
        let mut converting = Heapbpf::new(leading.iter().copied().chain(["convert", &input, "-o", "again.json"]));
        let outcome = converting.run().expect_code(0);
        assert_eq!(outcome.stdout, "", "{leading:?}");
        assert_eq!(converting.report("again.json").process(target.pid()).exact_by_leaf()["keeps"].alloc_count, 25);
    }
}
