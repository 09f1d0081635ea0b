//! Signals, stops, and commands that outlive heapbpf or their first process.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use heapbpf_tests::heapbpf::{binary, text};
use heapbpf_tests::kernel::assert_no_probes;
use heapbpf_tests::report::Counts;
use heapbpf_tests::target::build;
use rustix::process::{Signal, kill_process, kill_process_group, test_kill_process};

use super::assert_whole;
use super::launched::{Launched, happens_within, status, wait_until};

#[test]
fn sigterm_goes_to_the_command() {
    let mut launched = Launched::start("", &[build("launched.c")], &[]);
    launched.target.work("keep 77 5");
    kill_process(launched.heapbpf(), Signal::TERM).expect("it runs");
    assert_eq!(launched.target.wait().code(), Some(143));
    let report = launched.report();
    report.assert_complete();
    assert_whole(&report.targets[0], Counts::kept(5, 385), "launch", "libc");
    assert!(report.targets[0].exited);
}

#[test]
fn sigint_and_sighup_sent_to_heapbpf_are_forwarded_to_the_command() {
    let mut launched = Launched::start("", &[build("launched.c")], &[]);
    launched.target.work("catch");
    kill_process(launched.heapbpf(), Signal::INT).expect("it runs");
    assert_eq!(launched.target.wait().code(), Some(0), "the command's, in good order");
    assert_eq!(launched.report().targets[0].exact_by_leaf()["ends"], Counts::kept(2, 666));

    let mut launched = Launched::start("", &[build("launched.c")], &[]);
    launched.target.work("keep 77 5");
    kill_process(launched.heapbpf(), Signal::HUP).expect("it runs");
    assert_eq!(launched.target.wait().code(), Some(129), "killed by it");
    assert_whole(&launched.report().targets[0], Counts::kept(5, 385), "launch", "libc");
}

/// A terminal sends Ctrl-C to the command too, so heapbpf must not forward it.
#[test]
fn ctrl_c_at_a_terminal_reaches_the_command_once() {
    let folder = tempfile::tempdir().expect("there is a directory for temporary files");
    // Without `exec`, a shell that waits for its command would receive Ctrl-C too, and exit with 130.
    let heapbpf = format!("exec {} -q -o out.json -- {}", binary().display(), build("interrupted.c").display());
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--flush", "--command", &heapbpf, "/dev/null"]).current_dir(folder.path());
    let mut terminal =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("Debian's essential packages have it");
    let mut lines = BufReader::new(terminal.stdout.take().expect("it is piped")).lines();
    assert!(lines.any(|line| line.expect("it is text").trim_end() == "ready"), "the command does not start");
    let mut keys = terminal.stdin.take().expect("it is piped");
    keys.write_all(b"\x03").expect("it is read");
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    assert_eq!(terminal.wait().expect("it ends").code(), Some(41), "{rest:?}");
}

#[test]
fn ctrl_c_ends_the_command_and_the_report_includes_its_exit() {
    let mut launched = Launched::start("", &[build("launched.c")], &[]);
    launched.target.work("catch");
    kill_process_group(launched.heapbpf(), Signal::INT).expect("it runs");
    assert_eq!(launched.target.wait().code(), Some(0), "the command's");
    let report = launched.report();
    report.assert_complete();
    assert_eq!(report.targets[0].exact_by_leaf()["ends"], Counts::kept(2, 666));
    assert!(text(&launched.file("stderr")).contains("health: complete"));

    let mut launched = Launched::start("-q", &[build("launched.c")], &[]);
    kill_process_group(launched.heapbpf(), Signal::INT).expect("it runs");
    assert_eq!(launched.target.wait().code(), Some(130), "killed by it");
    assert_whole(&launched.report().targets[0], Counts::default(), "launch", "libc");
}

#[test]
fn a_second_ctrl_c_stops_waiting_for_a_running_command() {
    let mut launched = Launched::start("", &[build("launched.c")], &[]);
    launched.target.work("ignore");
    let command = launched.command();
    kill_process_group(launched.heapbpf(), Signal::INT).expect("it runs");
    launched.target.work("keep 77 5");
    launched.target.assert_running();
    // Simultaneous signals are merged, so the next one could have been part of the first.
    let mut status = None;
    let ends = (0..2).any(|_| {
        kill_process_group(launched.heapbpf(), Signal::INT).expect("it runs");
        happens_within(Duration::from_secs(10), || {
            status = launched.target.ended();
            status.is_some()
        })
    });
    assert!(ends, "heapbpf waits on");
    assert_eq!(status.and_then(|status| status.code()), Some(130));
    assert_whole(&launched.report().targets[0], Counts::kept(5, 385), "launch", "libc");
    let stderr = text(&launched.file("stderr"));
    assert!(stderr.contains("is still running"), "{stderr}");
    // It still works, independently of heapbpf.
    launched.target.work("keep 77 5");
    assert_no_probes(command.as_raw_nonzero().get().unsigned_abs());
    assert_eq!(super::launched::status(command, "TracerPid"), "0");
    launched.target.begin_exit(0);
}

#[test]
fn after_the_duration_the_report_is_written_and_the_command_waited_for() {
    let mut launched = Launched::start("--duration 1s", &[build("launched.c")], &[]);
    launched.target.work("keep 77 5");
    wait_until("the report", || launched.file("out.json").exists());
    launched.target.assert_running();
    let report = launched.report();
    report.assert_complete();
    assert_whole(&report.targets[0], Counts::kept(5, 385), "launch", "libc");
    assert!(!report.targets[0].exited);
    wait_until("word of it", || text(&launched.file("stderr")).contains("waiting for it to exit"));
    launched.target.work("keep 77 5");
    launched.target.exit(23);
}

#[test]
fn signals_still_reach_the_command_after_the_report() {
    let mut launched = Launched::start("--duration 1s", &[build("launched.c")], &[]);
    wait_until("the report", || launched.file("out.json").exists());
    kill_process(launched.heapbpf(), Signal::TERM).expect("it runs");
    assert_eq!(launched.target.wait().code(), Some(143));

    let mut launched = Launched::start("--duration 1s", &[build("launched.c")], &[]);
    launched.target.work("catch");
    wait_until("the report", || launched.file("out.json").exists());
    kill_process_group(launched.heapbpf(), Signal::INT).expect("it runs");
    assert_eq!(launched.target.wait().code(), Some(0));
}

#[test]
fn children_are_recorded_and_the_recording_ends_with_the_command() {
    let mut launched = Launched::start("-v", &[build("family.c")], &[]);
    launched.target.work("keep 100 30");
    launched.target.work("fork");
    let is_watched = |launched: &Launched| text(&launched.file("stderr")).matches("is being recorded").count();
    wait_until("the child's probes", || is_watched(&launched) == 2);
    launched.target.work("keep 64 2");
    launched.target.begin_exit(0);
    launched.target.work("keep 7 1");
    launched.target.exit(3);
    let report = launched.report();
    report.assert_complete();
    let [parent, child] = report.targets.as_slice() else { panic!("{:?}", report.targets) };
    assert_eq!(parent.exact_by_leaf()["keeps"], Counts::kept(31, 3007));
    assert_eq!((parent.exit_code, child.exit_code), (Some(3), Some(0)));
    assert_eq!(child.beginning.parent, Some(parent.pid));
    assert_eq!(child.totals.exact().alloc_bytes, 128);
}

#[test]
fn background_processes_of_a_command_are_not_waited_for() {
    let mut launched = Launched::start("", &[build("launched.c")], &[]);
    launched.target.work("daemonize");
    assert_eq!(launched.target.wait().code(), Some(0));
    let report = launched.report();
    assert!(report.targets.iter().any(|process| process.beginning.from_first_call && process.exited));
    // The daemon works without heapbpf.
    launched.target.work("keep 77 5");
    launched.target.begin_exit(0);
}

#[test]
fn ctrl_z_stops_the_command_and_sigcont_continues_it() {
    // In a process group of its own, as a shell with job control starts it.
    let mut job = Command::new("env");
    job.process_group(0);
    let mut launched = Launched::with(job, "", &[build("launched.c")], &[]);
    let command = launched.command();
    let stop_and_go = |launched: &mut Launched| {
        kill_process(command, Signal::TSTP).expect("it runs");
        wait_until("the stop", || status(command, "State").to_lowercase().starts_with('t'));
        kill_process(command, Signal::CONT).expect("it is there");
        launched.target.work("keep 77 5")
    };
    stop_and_go(&mut launched);
    wait_until("the command to be detached", || status(command, "TracerPid") == "0");
    stop_and_go(&mut launched);
    launched.target.exit(23);
    assert_whole(&launched.report().targets[0], Counts::kept(10, 770), "launch", "libc");
    assert!(test_kill_process(command).is_err(), "it is reaped");
}

#[test]
fn a_command_stopped_at_detach_stays_stopped() {
    let mut launched = Launched::start("", &[build("launched.c")], &[]);
    let command = launched.command();
    kill_process(command, Signal::STOP).expect("it runs");
    wait_until("the command to be detached", || status(command, "TracerPid") == "0");
    wait_until("the stop", || status(command, "State").starts_with('T'));
    kill_process(command, Signal::CONT).expect("it is there");
    launched.target.work("keep 77 5");
    launched.target.exit(23);
    assert_whole(&launched.report().targets[0], Counts::kept(5, 385), "launch", "libc");
}
