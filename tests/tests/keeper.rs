//! The keeper process: probes and reports after it, the agent, or both are killed. `faults.rs` does this at random
//! times.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use heapbpf_tests::heapbpf::{Heapbpf, Outcome, Session, binary};
use heapbpf_tests::kernel::{self, assert_no_probes, changed_code, children, comm, plant_breakpoint};
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::report::Counts;
use heapbpf_tests::target::Target;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

const KEPT: Counts = Counts::kept(25, 25_000);

fn keeper(session: &Session) -> Pid {
    let found = children(session.pid()).into_iter().find(|&child| comm(child) == "heapbpf-keeper");
    Pid::from_raw(found.expect("the keeper runs").cast_signed()).expect("pids are positive")
}

fn wait_until_gone(pid: Pid) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while test_kill_process(pid).is_ok() {
        assert!(Instant::now() < deadline, "process {pid:?} does not exit");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_killed_keeper_ends_the_recording_with_its_report() {
    for backend in ["auto", "perf"] {
        let mut target = Target::start("service.c");
        let mut heapbpf = Heapbpf::of(target.pid(), &format!("--interval 1 --backend {backend} -o out.json"));
        let session = heapbpf.start();
        target.work("keep 1000 25");
        kill_process(keeper(&session), Signal::KILL).expect("it runs");
        let outcome = session.wait().expect_code(3);
        assert!(outcome.stderr.contains("keeper process"), "{}", outcome.stderr);
        assert!(outcome.stdout.contains("the keeper process, which owns the probes, exited"), "{}", outcome.stdout);
        let report = heapbpf.report("out.json");
        let reached = &report.health.guardrails.reached;
        assert_eq!((reached[0].limit.as_str(), reached[0].action.as_str()), ("keeper", "stopped"), "{reached:?}");
        assert_eq!(report.process(target.pid()).exact_by_leaf()["keeps"], KEPT, "{backend}");
        // Immediately: another keeper has removed the leftover breakpoints.
        assert_eq!(changed_code(target.pid()), [""; 0]);
        target.assert_running();
    }
}

/// Kills the keeper so long after it was started.
#[track_caller]
fn kill_keeper(session: &Session, pause: Duration) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let keeper = loop {
        if let Some(keeper) = kernel::keeper(session.pid()) {
            break keeper;
        }
        assert!(Instant::now() < deadline, "there is no keeper");
        std::thread::yield_now();
    };
    std::thread::sleep(pause);
    kill_process(Pid::from_raw(keeper.cast_signed()).expect("pids are positive"), Signal::KILL).expect("it runs");
    // What it owns ends with it, which takes a while on a busy machine: until then nothing is missing.
    let has_ended = || fs::read_to_string(format!("/proc/{keeper}/stat")).map_or(true, |stat| stat.contains(") Z "));
    kernel::wait_until("the keeper has ended", has_ended);
}

/// Fails unless heapbpf has ended as documented.
#[track_caller]
fn assert_stopped_by_keeper(heapbpf: &Heapbpf, outcome: Outcome) {
    let outcome = outcome.expect_code(3);
    let text = format!("{}{}", outcome.stdout, outcome.stderr);
    assert!(text.contains("the keeper process, which owns the probes, exited"), "{text}");
    let report = heapbpf.report("out.json");
    let reached = &report.health.guardrails.reached;
    assert_eq!((reached[0].limit.as_str(), reached[0].action.as_str()), ("keeper", "stopped"), "{reached:?}");
}

/// Times between the start of the keeper and its death: from before the first probe until all are attached.
const PAUSES_MS: [u64; 5] = [0, 30, 100, 300, 1000];

#[test]
fn a_keeper_killed_during_the_start_ends_the_recording_with_its_report() {
    for options in ["", "--max-overhead 50%"] {
        for pause in PAUSES_MS.map(Duration::from_millis) {
            let mut target = Target::start("service.c");
            let mut heapbpf = Heapbpf::of(target.pid(), &format!("--interval 1 {options} -o out.json"));
            let session = heapbpf.spawn();
            kill_keeper(&session, pause);
            assert_stopped_by_keeper(&heapbpf, session.wait());
            target.work("keep 1000 25");
            assert_eq!(changed_code(target.pid()), [""; 0], "{options} {pause:?}");
        }
    }
}

#[test]
fn a_keeper_killed_during_the_start_of_a_command_ends_the_recording_with_its_report() {
    let directory = tempfile::tempdir().expect("there is a directory for temporary files");
    let line = directory.path().join("line");
    rustix::fs::mkfifoat(rustix::fs::CWD, &line, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).expect("it is ours");
    for pause in PAUSES_MS.map(Duration::from_millis) {
        // The command waits for a line, which is written after the keeper's death.
        let mut pipe = File::options().read(true).write(true).open(&line).expect("it is ours");
        let words = ["--strict", "--interval", "1", "-o", "out.json", "--", "head", "-n1"].map(OsStr::new);
        let mut heapbpf = Heapbpf::new(words.into_iter().chain([line.as_os_str()]));
        let session = heapbpf.spawn();
        kill_keeper(&session, pause);
        pipe.write_all(b"line\n").expect("it is ours");
        assert_stopped_by_keeper(&heapbpf, session.wait());
    }
}

/// A shell that heapbpf has started, and that waits at its exec because heapbpf is suspended.
struct WaitingCommand {
    heapbpf: Heapbpf,
    session: Session,
    command: u32,
    pipe: File,
    _directory: tempfile::TempDir,
}

impl WaitingCommand {
    #[track_caller]
    fn start() -> Self {
        let mut waiting = Self::with(heapbpf_tests::heapbpf::in_own_session());
        waiting.pipe.write_all(b"exec\n").expect("it is ours");
        kernel::wait_until("the shell is at its exec", || kernel::state(waiting.command) == 'T');
        assert_eq!((comm(waiting.command), kernel::tracer(waiting.command)), ("head".to_owned(), None));
        waiting
    }

    /// It executes another program after a line of input.
    #[track_caller]
    fn with(mut command: std::process::Command) -> Self {
        let directory = tempfile::tempdir().expect("there is a directory for temporary files");
        let line = directory.path().join("line");
        rustix::fs::mkfifoat(rustix::fs::CWD, &line, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
            .expect("it is ours");
        let pipe = File::options().read(true).write(true).open(&line).expect("it is ours");
        command.args(["--interval", "1", "-o", "out.json", "--", "sh", "-c"]);
        command.arg("read line <\"$0\"; exec head -n1 \"$0\"").arg(&line);
        let mut heapbpf = Heapbpf::with_command(command);
        let session = heapbpf.spawn();
        let mut command = None;
        kernel::wait_until("the shell runs", || {
            command = kernel::commands(session.pid()).into_iter().find(|&pid| comm(pid) == "sh");
            command.is_some_and(|pid| kernel::tracer(pid).is_none())
        });
        let command = command.unwrap_or_default();
        session.halt();
        Self { heapbpf, session, command, pipe, _directory: directory }
    }

    fn command(&self) -> Pid {
        Pid::from_raw(self.command.cast_signed()).expect("pids are positive")
    }
}

#[test]
fn a_command_at_its_exec_goes_on_when_heapbpf_does() {
    let mut waiting = WaitingCommand::start();
    waiting.session.resume();
    waiting.pipe.write_all(b"line\n").expect("it is ours");
    let outcome = waiting.session.wait().expect_code(0);
    assert!(outcome.stdout.starts_with("line\n"), "{outcome:?}");
    let report = waiting.heapbpf.report("out.json");
    report.assert_complete();
    let programs: Vec<_> = report.targets.iter().map(|it| (it.replaced, it.beginning.from_first_call)).collect();
    assert_eq!(programs, [(true, true), (false, true)], "sh and head");
}

#[test]
fn a_command_at_its_exec_goes_on_after_a_killed_keeper() {
    let mut waiting = WaitingCommand::start();
    kill_process(keeper(&waiting.session), Signal::KILL).expect("it runs");
    waiting.session.resume();
    waiting.pipe.write_all(b"line\n").expect("it is ours");
    let outcome = waiting.session.wait();
    assert!(outcome.stdout.starts_with("line\n"), "{outcome:?}");
    assert!(outcome.stderr.contains("keeper process"), "{outcome:?}");
}

/// The agent's output ends with that of the command.
#[test]
fn a_command_at_its_exec_goes_on_after_a_killed_agent() {
    for of_keeper in [None, Some(Signal::STOP), Some(Signal::KILL)] {
        let mut waiting = WaitingCommand::start();
        waiting.pipe.write_all(b"line\n").expect("it is ours");
        let keeper = keeper(&waiting.session);
        if let Some(signal) = of_keeper {
            kill_process(keeper, signal).expect("it runs");
        }
        let command = waiting.command();
        waiting.session.signal(Signal::KILL);
        let outcome = waiting.session.wait();
        assert!(outcome.stdout.starts_with("line\n"), "{of_keeper:?}: {outcome:?}");
        wait_until_gone(command);
        wait_until_gone(keeper);
    }
}

/// If the shell of the job exited while the command is stopped, the kernel would send SIGHUP to the job.
#[test]
fn a_command_of_a_background_job_does_not_wait_at_its_exec() {
    let mut command = std::process::Command::new(heapbpf_tests::heapbpf::binary());
    command.process_group(0);
    let mut job = WaitingCommand::with(command);
    job.pipe.write_all(b"exec\nline\n").expect("it is ours");
    kernel::wait_until("the command ends", || kernel::state(job.command) == 'Z');
    job.session.resume();
    let outcome = job.session.wait().expect_code(0);
    assert!(outcome.stdout.starts_with("line\n"), "{outcome:?}");
}

#[test]
fn a_command_that_is_ended_at_its_exec_ends_heapbpf() {
    for signal in [Signal::TERM, Signal::KILL] {
        let waiting = WaitingCommand::start();
        kill_process(waiting.command(), signal).expect("it is stopped");
        waiting.session.resume();
        waiting.session.wait().expect_code(128 + signal.as_raw());
    }
}

#[test]
fn probes_and_keeper_of_a_killed_agent_are_gone_within_two_seconds() {
    for backend in ["auto", "multi", "perf"] {
        let mut target = Target::start("service.c");
        let mut heapbpf = Heapbpf::of(target.pid(), &format!("--interval 1 --backend {backend} -o out.json"));
        let session = heapbpf.start();
        target.work("keep 1000 25");
        let keeper = keeper(&session);
        session.kill();
        wait_until_gone(keeper);
        assert_eq!(changed_code(target.pid()), [""; 0], "{backend}: the keeper exits when all is detached");
        target.work("keep 1000 25");
    }
}

#[test]
fn signals_of_terminals_and_services_do_not_end_the_keeper() {
    let mut target = Target::start("service.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o out.json");
    let session = heapbpf.start();
    for signal in [Signal::INT, Signal::QUIT, Signal::TERM, Signal::HUP, Signal::TSTP] {
        kill_process(keeper(&session), signal).expect("it runs");
    }
    target.work("keep 1000 25");
    let _ = session.interrupt().expect_code(0);
    assert_eq!(heapbpf.report("out.json").process(target.pid()).exact_by_leaf()["keeps"], KEPT);
    assert_no_probes(target.pid());
}

/// Starts a target that waits for commands, and records it once to find the probed offsets.
fn probed_once() -> (Target, Vec<String>) {
    let target = Target::start("service.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o out.json");
    let session = heapbpf.start();
    let places = changed_code(target.pid());
    assert!(places.len() > 3, "{places:?}");
    let _ = session.interrupt().expect_code(0);
    assert_no_probes(target.pid());
    (target, places)
}

#[test]
fn leftover_breakpoints_are_removed_by_the_next_recording() {
    let (mut target, places) = probed_once();
    places.iter().for_each(|place| plant_breakpoint(target.pid(), place));
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o out.json");
    let session = heapbpf.start();
    target.work("keep 1000 25");
    let outcome = session.interrupt().expect_code(0);
    let removed = format!("removed {} breakpoints from process {}", places.len(), target.pid());
    assert!(outcome.stderr.contains(&removed), "{}", outcome.stderr);
    assert_eq!(heapbpf.report("out.json").process(target.pid()).exact_by_leaf()["keeps"], KEPT);
    assert_no_probes(target.pid());
    target.work("keep 1000 25");
}

#[test]
fn leftover_breakpoints_are_removed_by_the_doctor() {
    let (mut target, places) = probed_once();
    places.iter().for_each(|place| plant_breakpoint(target.pid(), place));
    let outcome = Heapbpf::new(["doctor"]).run().expect_code(0);
    let line =
        outcome.stdout.lines().find(|line| line.contains("no breakpoints left behind")).expect("it was searched");
    assert!(line.contains(&format!("{} removed from 1 of them", places.len())), "{line}");
    assert_eq!(changed_code(target.pid()), [""; 0]);
    target.work("keep 1000 25");
}

#[test]
fn a_second_interrupt_ends_a_start_that_does_not_proceed() {
    let mut target = Target::start("service.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "-o out.json");
    let session = heapbpf.spawn();
    let mut keeper = None;
    kernel::wait_until("there is a keeper", || {
        keeper = kernel::keeper(session.pid());
        keeper.is_some()
    });
    let keeper = Pid::from_raw(keeper.unwrap_or_default().cast_signed()).expect("pids are positive");
    // heapbpf waits for its answer.
    kill_process(keeper, Signal::STOP).expect("it runs");
    session.signal(Signal::INT);
    // Both would be one if the first were still pending.
    kernel::wait_until("the first interrupt is handled", || !kernel::is_pending(session.pid(), Signal::INT));
    session.signal(Signal::INT);
    kernel::wait_until("heapbpf exits", || kernel::state(session.pid()) == 'Z');
    kill_process(keeper, Signal::CONT).expect("it waits");
    wait_until_gone(keeper);
    let outcome = session.wait();
    assert_eq!(outcome.status.code(), Some(130), "{outcome:?}");
    assert_eq!(outcome.stderr, INTERRUPTED);
    assert_eq!(heapbpf.files(), [""; 0]);
    assert_eq!(changed_code(target.pid()), [""; 0]);
    target.work("keep 1000 25");
}

const INTERRUPTED: &str = "heapbpf: interrupted before anything was recorded or written\n";

/// A copy of heapbpf whose keeper stops before its first instruction. A check takes less time than finding its keeper may.
struct StoppedKeepers {
    stopper: std::process::Child,
    lines: BufReader<ChildStdout>,
    folder: tempfile::TempDir,
}

impl StoppedKeepers {
    #[track_caller]
    fn prepare() -> Self {
        let folder = tempfile::tempdir().expect("there is a directory for temporary files");
        let copy = folder.path().join("heapbpf");
        fs::copy(binary(), &copy).expect("there is space");
        let mut stopper = Command::new(Recipe::of("stopped_at_start.c").build());
        stopper.arg(copy).arg("heapbpf-keeper").stdout(Stdio::piped());
        let mut stopper = stopper.spawn().expect("it was built");
        let lines = BufReader::new(stopper.stdout.take().expect("piped"));
        let mut stopped = Self { stopper, lines, folder };
        assert_eq!(stopped.line(), "ready");
        stopped
    }

    #[track_caller]
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("text");
        assert!(!line.is_empty(), "it has exited: {:?}", self.stopper.wait());
        line.trim_end().to_owned()
    }

    fn heapbpf(&self, arguments: &[&str]) -> Heapbpf {
        let mut command = Command::new(self.folder.path().join("heapbpf"));
        command.args(arguments);
        Heapbpf::with_command(command)
    }

    /// The keeper of a heapbpf that was started, once it is stopped.
    #[track_caller]
    fn next(&mut self) -> Pid {
        let keeper: u32 = self.line().parse().expect("a PID");
        kernel::wait_until("the keeper is stopped", || kernel::state(keeper) == 'T');
        Pid::from_raw(keeper.cast_signed()).expect("pids are positive")
    }
}

impl Drop for StoppedKeepers {
    fn drop(&mut self) {
        drop(self.stopper.kill());
        drop(self.stopper.wait());
    }
}

/// Interrupts heapbpf while it waits for its keeper, which then continues.
#[track_caller]
fn interrupted_at_the_start(keepers: &mut StoppedKeepers, arguments: &[&str], signal: Signal) {
    let mut target = Target::start("service.c");
    let pid = target.pid().to_string();
    let arguments: Vec<&str> = arguments.iter().map(|word| if *word == "PID" { &pid } else { *word }).collect();
    let mut heapbpf = keepers.heapbpf(&arguments);
    let session = heapbpf.spawn();
    let keeper = keepers.next();
    session.signal(signal);
    kernel::wait_until("the signal is handled", || !kernel::is_pending(session.pid(), signal));
    kill_process(keeper, Signal::CONT).expect("it waits");
    let outcome = session.wait();
    assert_eq!(outcome.status.code(), Some(130), "{arguments:?}: {outcome:?}");
    assert_eq!((&*outcome.stdout, &*outcome.stderr), ("", INTERRUPTED), "{arguments:?}");
    wait_until_gone(keeper);
    assert_eq!(heapbpf.files(), [""; 0], "{arguments:?}");
    assert_eq!(changed_code(target.pid()), [""; 0]);
    target.work("keep 1000 25");
}

#[test]
fn an_interrupt_before_the_recording_is_reported() {
    let keepers = &mut StoppedKeepers::prepare();
    for signal in [Signal::INT, Signal::TERM] {
        interrupted_at_the_start(keepers, &["--no-inventory", "--pid", "PID", "-o", "out.json"], signal);
        interrupted_at_the_start(keepers, &["-q", "--no-inventory", "--pid", "PID", "-o", "out.json"], signal);
        interrupted_at_the_start(keepers, &["leaks", "--pid", "PID", "-o", "out.json"], signal);
        interrupted_at_the_start(keepers, &["leaks", "--pid", "PID", "--watch", "1h"], signal);
    }
}
