//! Start and end of sessions, and what remains: reports, a running target, and no probes.

use std::process::Command;
use std::time::{Duration, Instant};

use heapbpf_tests::heapbpf::{Heapbpf, Outcome, binary, text};
use heapbpf_tests::kernel::{assert_no_probes, changed_code, version};
use heapbpf_tests::report::{Counts, Process};
use heapbpf_tests::target::{Target, build, copy_program};
use rustix::process::Signal;

/// 25 blocks of 1000 bytes, kept.
const KEPT: Counts = Counts::kept(25, 25_000);

fn assert_keeps(process: &Process) {
    assert_eq!(process.exact_by_leaf().get("keeps"), Some(&KEPT), "{:#?}", process.callsites);
}

/// Fails unless a summary has the target's name and its totals.
fn assert_summary(outcome: &Outcome, pid: u32) {
    assert!(outcome.stdout.contains(&pid.to_string()), "the summary lacks the target:\n{}", outcome.stdout);
    assert!(outcome.stdout.contains("keeps"), "the summary does not name the function:\n{}", outcome.stdout);
}

#[test]
fn a_duration_ends_the_session() {
    let mut target = Target::start("service.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 --duration 2s -o out.json");
    let started = Instant::now();
    let session = heapbpf.start();
    target.work("keep 1000 25");
    let outcome = session.wait().expect_code(0);
    assert!(started.elapsed() >= Duration::from_secs(2), "it ended after {:?}", started.elapsed());
    assert_summary(&outcome, target.pid());
    let report = heapbpf.report("out.json");
    assert!(report.ended_unix_ns - report.started_unix_ns >= 1_900_000_000, "{report:?}");
    assert_keeps(report.process(target.pid()));
    target.assert_running();
    assert_no_probes(target.pid());
}

#[test]
fn interrupting_writes_the_reports() {
    let mut target = Target::start("service.c");
    let mut heapbpf = Heapbpf::new(["record", "--pid", &target.pid().to_string(), "--interval", "1", "-o", "out.json"]);
    let session = heapbpf.start();
    target.work("keep 1000 25");
    assert_summary(&session.interrupt().expect_code(0), target.pid());
    assert_keeps(heapbpf.report("out.json").process(target.pid()));
    target.assert_running();
}

#[test]
fn terminating_writes_the_reports() {
    let mut target = Target::start("service.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o out.json");
    let session = heapbpf.start();
    target.work("keep 1000 25");
    assert_summary(&session.terminate().expect_code(0), target.pid());
    assert_keeps(heapbpf.report("out.json").process(target.pid()));
    target.assert_running();
}

#[test]
fn the_end_of_the_terminal_session_writes_the_reports() {
    let mut target = Target::start("service.c");
    // The tests themselves may run under `nohup`, which is inherited.
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP").arg(binary());
    command.args(["--pid", &target.pid().to_string(), "--interval", "1", "-o", "out.json"]);
    let mut heapbpf = Heapbpf::with_command(command);
    let session = heapbpf.start();
    target.work("keep 1000 25");
    session.signal(Signal::HUP);
    assert_summary(&session.wait().expect_code(0), target.pid());
    assert_keeps(heapbpf.report("out.json").process(target.pid()));
}

#[test]
fn a_targets_name_cannot_control_the_terminal() {
    let directory = tempfile::tempdir().expect("there is a directory for temporary files");
    let program = directory.path().join("a\u{1b}]0;x\u{7}b");
    copy_program(build("service.c"), &program);
    let mut target = Target::spawn(&mut Command::new(&program));
    // A separate terminal, whose output `script` writes to standard output.
    let heapbpf = format!("{} --pid {} --interval 1 --duration 2s -v", binary().display(), target.pid());
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", &heapbpf, "/dev/null"]).current_dir(directory.path());
    let output = command.output().expect("Debian's essential packages have it");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("recording a ]0;x b"), "{text:?}");
    assert!(!text.contains("\u{1b}]") && !text.contains('\u{7}'), "{text:?}");
    target.assert_running();
}

#[test]
fn a_targets_name_cannot_forge_messages() {
    let directory = tempfile::tempdir().expect("there is a directory for temporary files");
    let program = directory.path().join("a\n\u{1b}[2J\r\u{9b}b");
    std::fs::copy(build("service.c"), &program).expect("the directory is ours");
    let mut target = Target::spawn(&mut Command::new(&program));
    for arguments in ["--duration 1s -vvv -o out.json", "--duration 1s -o out.svg"] {
        let outcome = Heapbpf::of(target.pid(), arguments).run().expect_code(0);
        let text = outcome.stderr + &outcome.stdout;
        assert!(!text.contains(['\u{1b}', '\r', '\u{9b}']), "{text:?}");
        assert!(text.contains("recording a ") && !text.lines().any(|line| line.starts_with("[2J")), "{text:?}");
    }
    target.assert_running();
}

#[test]
fn a_small_stack_suffices() {
    let mut target = Target::start("service.c");
    let mut command = Command::new("sh");
    let heapbpf = format!("{} --pid {} --interval 1 -o out.json", binary().display(), target.pid());
    command.args(["-c", &format!("ulimit -s 64; exec {heapbpf}")]);
    let mut heapbpf = Heapbpf::with_command(command);
    let session = heapbpf.start();
    target.work("keep 1000 25");
    let _ = session.interrupt().expect_code(0);
    assert_keeps(heapbpf.report("out.json").process(target.pid()));
}

#[test]
fn a_report_beyond_the_file_size_limit_is_an_error_and_leaves_no_file() {
    let mut target = Target::start("exact.c");
    let mut command = Command::new("sh");
    let heapbpf = format!("{} --pid {} --interval 1 -o out.json", binary().display(), target.pid());
    command.args(["-c", &format!("ulimit -f 8; exec {heapbpf}")]);
    let mut heapbpf = Heapbpf::with_command(command);
    let session = heapbpf.start();
    target.work("go");
    let outcome = session.interrupt().expect_code(1);
    let has = |text| outcome.stderr.contains(text);
    assert!(has("cannot write `out.json`") && has("File too large"), "{}", outcome.stderr);
    assert_eq!(heapbpf.files(), [""; 0]);
    target.assert_running();
}

#[test]
fn nohup_outlives_the_terminal_session() {
    let mut target = Target::start("service.c");
    let mut command = Command::new("env");
    command.arg("--ignore-signal=HUP").arg(binary());
    command.args(["--pid", &target.pid().to_string(), "--interval", "1", "-o", "out.json"]);
    let mut heapbpf = Heapbpf::with_command(command);
    let session = heapbpf.start();
    session.signal(Signal::HUP);
    target.work("keep 1000 25");
    let _ = session.interrupt().expect_code(0);
    assert_keeps(heapbpf.report("out.json").process(target.pid()));
}

#[test]
fn the_targets_exit_ends_the_session_with_symbolized_stacks() {
    let mut target = Target::start("service.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o out.json");
    let session = heapbpf.start();
    target.work("keep 1000 25");
    target.exit(7);
    assert_summary(&session.wait().expect_code(0), target.pid());
    let report = heapbpf.report("out.json");
    let process = report.process(target.pid());
    assert_keeps(process);
    assert!(process.exited);
    // Since Linux 6.15, PIDFD_GET_INFO returns a reaped process's exit status.
    if version() >= (6, 15) {
        assert_eq!(process.exit_code, Some(7));
    } else {
        assert!(matches!(process.exit_code, None | Some(7)), "{:?}", process.exit_code);
    }
}

#[test]
fn a_target_that_is_not_reaped_ends_the_session() {
    let mut target = Target::start("service.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o out.json");
    let session = heapbpf.start();
    target.work("keep 1000 25");
    target.begin_exit(7);
    let _ = session.wait().expect_code(0);
    let report = heapbpf.report("out.json");
    let process = report.process(target.pid());
    assert_keeps(process);
    assert!(process.exited);
    assert!(matches!(process.exit_code, None | Some(7)), "{:?}", process.exit_code);
}

#[test]
fn probes_are_removed_at_the_end() {
    let mut target = Target::start("service.c");
    assert_eq!(changed_code(target.pid()), Vec::<String>::new());
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o out.json");
    let session = heapbpf.start();
    // Checks that this function can detect probes.
    let probes = changed_code(target.pid());
    assert!(probes.iter().all(|probe| probe.contains("libc.so.6")) && probes.len() >= 3, "{probes:?}");
    let _ = session.interrupt().expect_code(0);
    assert_no_probes(target.pid());
    assert_eq!(target.work("churn 100 100000").site("churns").counts.free_count, 100_000);
}

#[test]
fn killing_the_profiler_leaves_the_target_running_without_probes() {
    let mut target = Target::start("service.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o out.json");
    let session = heapbpf.start();
    target.work("keep 1000 25");
    assert!(!changed_code(target.pid()).is_empty(), "there were no probes");
    session.kill();
    assert_no_probes(target.pid());
    target.assert_running();
    assert_eq!(target.work("churn 100 100000").site("churns").counts.free_count, 100_000);

    // The target can be profiled again.
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o out.json");
    let session = heapbpf.start();
    target.work("keep 1000 25");
    let _ = session.interrupt().expect_code(0);
    assert_keeps(heapbpf.report("out.json").process(target.pid()));
}

#[test]
fn killing_the_profiler_while_the_target_allocates_does_no_harm() {
    let mut target = Target::start("service.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o out.json");
    let session = heapbpf.start();
    // Killed from another thread, at some point within the loop.
    let killer = std::thread::spawn(move || session.kill());
    assert_eq!(target.work("churn 100 100000").site("churns").counts.free_count, 100_000);
    killer.join().expect("it was killed");
    assert_no_probes(target.pid());
    target.assert_running();
}

#[test]
fn two_sessions_one_after_the_other_are_independent() {
    let mut target = Target::start("service.c");
    let mut first = Heapbpf::of(target.pid(), "--interval 1 -o out.json");
    let session = first.start();
    target.work("keep 1000 25");
    let _ = session.interrupt().expect_code(0);
    assert_keeps(first.report("out.json").process(target.pid()));
    assert_no_probes(target.pid());

    let mut second = Heapbpf::of(target.pid(), "--interval 1 -o out.json");
    let session = second.start();
    target.work("keep 7 3");
    // Frees the blocks of both sessions; the second session knows only its own.
    target.work("drop");
    let _ = session.interrupt().expect_code(0);
    let report = second.report("out.json");
    report.assert_complete();
    let keeps = report.process(target.pid()).exact_by_leaf()["keeps"];
    let expected =
        Counts { alloc_count: 3, alloc_bytes: 21, free_count: 3, free_bytes: 21, live_count: 0, live_bytes: 0 };
    assert_eq!(keeps, expected);
}

#[test]
fn two_sessions_at_once_have_the_same_profile() {
    let mut target = Target::start("service.c");
    let mut first = Heapbpf::of(target.pid(), "--interval 1 -o out.json");
    let mut second = Heapbpf::of(target.pid(), "--interval 1 -o out.json");
    let (first_session, second_session) = (first.start(), second.start());
    target.work("keep 1000 25");
    let _ = first_session.interrupt().expect_code(0);
    assert!(!changed_code(target.pid()).is_empty(), "the first session took the second's probes away");
    let _ = second_session.interrupt().expect_code(0);
    assert_keeps(first.report("out.json").process(target.pid()));
    assert_keeps(second.report("out.json").process(target.pid()));
    assert_no_probes(target.pid());
}

#[test]
fn two_targets_of_one_session_are_separate() {
    let (mut one, mut other) = (Target::start("service.c"), Target::start("service.c"));
    let mut heapbpf = Heapbpf::of(one.pid(), &format!("--pid {} --interval 1 -o out.json", other.pid()));
    let session = heapbpf.start();
    one.work("keep 1000 25");
    other.work("keep 7 3");
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    assert_keeps(report.process(one.pid()));
    let keeps = report.process(other.pid()).exact_by_leaf()["keeps"];
    assert_eq!((keeps.alloc_count, keeps.alloc_bytes), (3, 21));
}

#[test]
fn another_process_of_the_same_program_is_not_profiled() {
    let (mut target, mut bystander) = (Target::start("service.c"), Target::start("service.c"));
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o out.json");
    let session = heapbpf.start();
    bystander.work("keep 7 300");
    target.work("keep 1000 25");
    bystander.work("drop");
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    let pids: Vec<u32> = report.targets.iter().map(|target| target.pid).collect();
    assert_eq!(pids, [target.pid()]);
    assert_eq!(report.targets[0].totals.exact(), KEPT);
}

#[test]
fn the_default_output_is_named_after_the_target() {
    let mut target = Target::start("service.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1");
    let session = heapbpf.start();
    target.work("keep 1000 25");
    let outcome = session.interrupt().expect_code(0);
    let files = heapbpf.files();
    let [page, image] = files.as_slice() else { panic!("{files:?}") };
    let time = page.strip_prefix(&format!("heapbpf-service-{}-", target.pid())).expect("it is named after the target");
    let time = time.strip_suffix(".html").expect("a page");
    assert!(time.len() == 15 && time.chars().all(|c| c.is_ascii_digit() || c == '-'), "{time}");
    assert_eq!(*image, page.replace(".html", ".svg"));
    let svg = text(&heapbpf.file(image));
    assert!(svg.contains("<svg") && svg.contains("keeps"), "{svg:.1000}");
    assert!(text(&heapbpf.file(page)).contains("<html"), "not a page");
    assert!(files.iter().all(|name| outcome.stdout.contains(name)), "the paths are not printed: {outcome:?}");
}

#[test]
fn one_session_writes_several_reports() {
    let mut target = Target::start("service.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o a.svg -o b.folded -o c.json");
    let session = heapbpf.start();
    target.work("keep 1000 25");
    let _ = session.interrupt().expect_code(0);
    assert_eq!(heapbpf.files(), ["a.svg", "b.folded", "c.json"]);
    assert_keeps(heapbpf.report("c.json").process(target.pid()));
    let svg = text(&heapbpf.file("a.svg"));
    assert!(svg.contains("<svg") && svg.contains("keeps"), "{svg:.1000}");
    assert_eq!(folded_value(&text(&heapbpf.file("b.folded"))), 25_000);
}

#[test]
fn the_view_selects_the_quantity_of_stacks() {
    for (view, value) in [("live-bytes", 25_000), ("live-count", 25), ("alloc-bytes", 30_000), ("alloc-count", 75)] {
        let mut target = Target::start("service.c");
        let mut heapbpf = Heapbpf::of(target.pid(), &format!("--interval 1 --view {view} -o out.folded"));
        let session = heapbpf.start();
        target.work("keep 1000 25");
        target.work("churn 100 50");
        let _ = session.interrupt().expect_code(0);
        assert_eq!(folded_value(&text(&heapbpf.file("out.folded"))), value, "{view}");
    }
}

#[test]
fn quiet_writes_the_report_and_no_summary() {
    let mut target = Target::start("service.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 --quiet --duration 1s -o out.json");
    // Not `start`: the message that probes are attached may be suppressed.
    let outcome = heapbpf.run().expect_code(0);
    assert_eq!(outcome.stdout, "");
    assert_eq!(heapbpf.report("out.json").process(target.pid()).totals.exact(), Counts::default());
    target.assert_running();
}

/// Sums the stacks of the service's functions: root first, `;` between frames, a blank and the value at the end.
fn folded_value(folded: &str) -> u64 {
    let values = folded.lines().map(|line| {
        let (stack, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value in `{line}`"));
        let leaf = stack.rsplit(';').next().unwrap_or_default();
        assert!(["keeps", "churns"].contains(&leaf), "`{leaf}` in `{line}`");
        assert!(stack.contains("main;") && stack.contains("work;"), "`{line}` is not root first");
        value.parse::<u64>().unwrap_or_else(|error| panic!("{error} in `{line}`"))
    });
    values.sum()
}
