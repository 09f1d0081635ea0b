//! `heapbpf agent`: duty cycle, reloading, budgets, the stop file, and its messages.

mod pod;
mod reload;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use heapbpf_tests::heapbpf::{Heapbpf, Session, binary};
use heapbpf_tests::kernel::{assert_no_probes, changed_code, wait_until};
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::stubs::slots_to_stubs;
use heapbpf_tests::target::{Target, build, copy_program, run};
use rustix::process::Signal;
use tempfile::TempDir;

use super::push::receiver;
use super::serve::http;

/// An agent with a configuration file of its own, for one program.
struct Agent {
    heapbpf: Heapbpf,
    config: PathBuf,
    stop: PathBuf,
}

impl Agent {
    fn new(command: &str, text: &str) -> Self {
        let path = |name: &str| std::env::temp_dir().join(format!("heapbpf-{}-{command}-{name}", std::process::id()));
        let (config, stop) = (path("agent.toml"), path("agent.stop"));
        let _ = fs::remove_file(&stop);
        let agent = Self { heapbpf: Heapbpf::new(["agent", "--config", &config.display().to_string()]), config, stop };
        agent.configure(command, text);
        agent
    }

    fn configure(&self, command: &str, text: &str) {
        let (top, tables) = (self.stop.display(), text);
        let select = format!("[select]\ncommands = [\"{command}\"]\nmin-age = \"1s\"\nscan-every = \"1s\"\n");
        // Periods are so short that the attachment alone exceeds the default.
        let budget = if tables.contains("max-cpu") { "" } else { "[budget]\nmax-cpu = \"100%\"\n" };
        let text = format!("stop-file = \"{top}\"\n{select}{budget}{tables}");
        fs::write(&self.config, text).expect("it can be written");
    }

    fn start(&mut self) -> Session {
        self.heapbpf.spawn()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.config);
        let _ = fs::remove_file(&self.stop);
    }
}

/// A target of a name that only it has, which has run for long enough to be recorded.
pub(super) struct Named {
    pub(super) target: Target,
    pub(super) name: String,
    _folder: TempDir,
}

impl Named {
    fn start(source: &str, name: &str) -> Self {
        Self::start_program(&build(source), name)
    }

    fn start_program(program: &Path, name: &str) -> Self {
        let folder = tempfile::tempdir().expect("there is a directory for temporary files");
        let path = folder.path().join(name);
        copy_program(program, &path);
        let target = Target::spawn(&mut Command::new(&path));
        thread::sleep(Duration::from_millis(1200));
        Self { target, name: name.to_owned(), _folder: folder }
    }

    pub(super) fn service(name: &str) -> Self {
        Self::start("service.c", name)
    }

    /// Allocates as fast as it can.
    fn flat_out(name: &str) -> Self {
        let mut started = Self::start("flatout.c", name);
        let _ = started.target.work("start");
        started
    }

    pub(super) fn pid(&self) -> u32 {
        self.target.pid()
    }
}

#[test]
fn it_records_for_a_part_of_each_period_and_leaves_nothing_in_between() {
    let target = Named::service("agent-cycles");
    let mut agent = Agent::new(&target.name, "[duty]\nrecord = \"1s\"\nevery = \"4s\"\n");
    let mut session = agent.start();
    session.wait_for("recording 1s of each 4s");
    let began = Instant::now();
    for _ in 0..3 {
        session.wait_for("heapbpf: info: recording ");
        wait_until("probes are attached", || !changed_code(target.pid()).is_empty());
        session.wait_for("heapbpf: info: recorded 1 process for 1.");
        assert_no_probes(target.pid());
    }
    assert!(began.elapsed() > Duration::from_secs(5), "{:?}", began.elapsed());
    let outcome = session.terminate().expect_code(0);
    assert!(
        outcome.stderr.contains(" 0 dropped, 0 detached") && outcome.stderr.contains("stopped"),
        "{}",
        outcome.stderr
    );
    assert_eq!(outcome.stdout, "");
    // It writes no files.
    assert_eq!(agent.heapbpf.files(), Vec::<String>::new());
    assert_no_probes(target.pid());
}

/// With its default engine: the target verifies that each call of its libraries, which are loaded at one address in turn, reaches
/// their own functions.
#[test]
fn calls_of_reloaded_libraries_reach_their_functions() {
    let program = Recipe::of("reloading.c").flags("-rdynamic").libraries("-ldl").build();
    let mut target = Named::start_program(&program, "agent-reloading").target;
    let build = |size: &str| Recipe::of("reloaded.c").flags(&format!("-shared -fPIC -O2 {size}")).build();
    let libraries = [build(""), build("-DLARGE")];
    let mut agent = Agent::new("agent-reloading", "[duty]\nrecord = \"1m\"\nevery = \"1m\"\n");
    let mut session = agent.start();
    session.wait_for("heapbpf: info: recording ");
    wait_until("its slots lead to stubs", || slots_to_stubs(target.pid()).is_ok_and(|slots| !slots.is_empty()));
    for library in libraries.iter().cycle().take(8) {
        target.work(&format!("now {}", library.display()));
        let prefix = format!("{}+", library.display());
        let leads = |slots: Vec<String>| slots.iter().any(|slot| slot.starts_with(&prefix));
        target.work("call 100");
        wait_until("the library's slots lead to stubs", || slots_to_stubs(target.pid()).is_ok_and(leads));
        target.work("call 100");
        target.work("unload");
    }
    let _ = session.terminate().expect_code(0);
    target.exit(0);
}

#[test]
fn termination_during_a_recording_detaches() {
    let target = Named::service("agent-terminated");
    let mut agent = Agent::new(&target.name, "[duty]\nrecord = \"1m\"\nevery = \"1m\"\n");
    for signal in [Signal::TERM, Signal::INT] {
        let mut session = agent.start();
        session.wait_for("heapbpf: info: recording ");
        session.signal(signal);
        let outcome = session.wait().expect_code(0);
        assert!(outcome.stderr.contains("recorded 1 process for"), "{}", outcome.stderr);
        assert_no_probes(target.pid());
    }
}

#[test]
fn it_can_be_reloaded_and_keeps_the_old_configuration_on_mistakes() {
    let target = Named::service("agent-reloaded");
    let name = &target.name;
    let mut agent = Agent::new(name, "[duty]\nrecord = \"1m\"\nevery = \"1m\"\n");
    let mut session = agent.start();
    session.wait_for("recording without pauses");
    session.wait_for("heapbpf: info: recording ");
    agent.configure(name, "[duty]\nrecord = \"2m\"\nevery = \"1m\"\n");
    session.signal(Signal::HUP);
    session.wait_for("the configuration is unchanged: ");
    assert!(!changed_code(target.pid()).is_empty(), "it goes on recording");
    agent.configure(name, "[duty]\nrecord = \"1s\"\nevery = \"2s\"\n");
    session.signal(Signal::HUP);
    session.wait_for("recorded 1 process for");
    session.wait_for("recording 1s of each 2s");
    session.wait_for("recorded 1 process for 1.");
    let _ = session.terminate().expect_code(0);
}

#[test]
fn nothing_is_recorded_while_the_stop_file_exists() {
    let target = Named::service("agent-halted");
    let mut agent = Agent::new(&target.name, "[duty]\nrecord = \"1m\"\nevery = \"1m\"\n");
    fs::write(&agent.stop, "").expect("it can be written");
    let mut session = agent.start();
    session.wait_for("nothing is recorded while");
    assert_no_probes(target.pid());
    fs::remove_file(&agent.stop).expect("it is there");
    session.wait_for("was removed: recording again");
    session.wait_for("heapbpf: info: recording ");
    fs::write(&agent.stop, "").expect("it can be written");
    let asked = Instant::now();
    session.wait_for("recorded 1 process for");
    session.wait_for("nothing is recorded while");
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    assert_no_probes(target.pid());
    let _ = session.terminate().expect_code(0);
}

#[test]
fn a_process_beyond_its_budget_is_detached_and_then_skipped() {
    let target = Named::flat_out("agent-hot");
    let text = "[record]\nengine = \"trap\"\n[budget]\nmax-overhead = \"2%\"\nmax-cpu = \"100%\"\n[duty]\nrecord = \"5s\"\nevery = \"6s\"\n";
    let mut agent = Agent::new(&target.name, text);
    let mut session = agent.start();
    session.wait_for("detached from process");
    assert_no_probes(target.pid());
    session.wait_for(") is skipped for 3600s");
    session.wait_for("1 detached, 0 skipped");
    session.wait_for("0 detached, 1 skipped");
    assert_no_probes(target.pid());
    let _ = session.terminate().expect_code(0);
}

#[test]
fn a_process_beyond_its_budget_is_recorded_inline_where_that_is_allowed() {
    let target = Named::flat_out("agent-inlined");
    let text = "[record]\nengine = \"trap\"\n[budget]\nmax-overhead = \"60%\"\nhot = \"inline\"\nmax-cpu = \"100%\"\n[duty]\nrecord = \"4s\"\nevery = \"5s\"\n";
    let mut agent = Agent::new(&target.name, text);
    let mut session = agent.start();
    session.wait_for("1 detached, 0 skipped");
    session.wait_for("recorded 1 process for 4.");
    let outcome = session.terminate().expect_code(0);
    assert!(outcome.stderr.contains("0 detached, 0 skipped"), "{}", outcome.stderr);
    assert_no_probes(target.pid());
}

#[test]
fn pauses_are_extended_to_keep_the_cpu_budget() {
    let target = Named::service("agent-extended");
    let text = "[budget]\nmax-cpu = \"1%\"\n[duty]\nrecord = \"1s\"\nevery = \"2s\"\n";
    let mut agent = Agent::new(&target.name, text);
    let mut session = agent.start();
    session.wait_for("to keep `max-cpu`, the next period starts ");
    let _ = session.terminate().expect_code(0);
}

#[test]
fn processes_that_cannot_be_recorded_inline_are_skipped() {
    // Its calls of `malloc` do not pass through a global offset table.
    let folder = tempfile::tempdir().expect("there is a directory for temporary files");
    let (source, program) = (folder.path().join("static.c"), folder.path().join("agent-static"));
    let text =
        "#include <stdlib.h>\n#include <unistd.h>\nint main(void) { for (;;) { free(malloc(100)); usleep(100); } }\n";
    fs::write(&source, text).expect("it is ours");
    run(Command::new("gcc").args(["-static", "-O0", "-o"]).arg(&program).arg(&source));
    let mut child = Command::new(&program).spawn().expect("it was built");
    thread::sleep(Duration::from_millis(1200));
    let mut agent = Agent::new("agent-static", "[duty]\nrecord = \"2s\"\nevery = \"3s\"\n");
    let mut session = agent.start();
    session.wait_for("recorded 0 processes for 2.");
    let outcome = session.terminate().expect_code(0);
    assert!(outcome.stderr.contains("0 detached, 1 skipped"), "{}", outcome.stderr);
    child.kill().expect("it is our child");
    child.wait().expect("it is our child");
}

#[test]
fn rules_skip_processes() {
    let target = Named::service("agent-skipped");
    let name = &target.name;
    let text =
        format!("[duty]\nrecord = \"1s\"\nevery = \"2s\"\n[[rule]]\ncommands = [\"{name}\"]\nengine = \"skip\"\n");
    let mut agent = Agent::new(name, &text);
    let mut session = agent.start();
    session.wait_for("recorded 0 processes for 1.");
    let outcome = session.terminate().expect_code(0);
    assert!(outcome.stderr.contains("1 skipped"), "{}", outcome.stderr);
}

#[test]
fn the_service_manager_is_notified() {
    let folder = tempfile::tempdir().expect("there is a directory for temporary files");
    let path = folder.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).expect("it can be bound");
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("it is a socket");
    let target = Named::service("agent-ruled");
    let agent = Agent::new(&target.name, "[duty]\nrecord = \"1s\"\nevery = \"1h\"\n");
    let mut command = Command::new(binary());
    command.args(["agent", "--config"]).arg(&agent.config);
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "400000");
    let session = Heapbpf::with_command(command).spawn();
    let mut received = Vec::new();
    let expected = ["READY=1", "STATUS=next recording in ", "WATCHDOG=1"];
    while !expected.iter().all(|start| received.iter().any(|message: &String| message.starts_with(start))) {
        let mut buffer = [0; 1000];
        let length = socket.recv(&mut buffer).unwrap_or_else(|error| panic!("{error} after {received:?}"));
        received.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
    }
    let _ = session.terminate().expect_code(0);
}

#[test]
fn recordings_are_served_and_pushed() {
    let mut target = Named::service("agent-served");
    let mut receiver = receiver::Receiver::start("pyroscope", 0);
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|free| free.local_addr());
    let address: SocketAddr = free.expect("there is a free port");
    let (url, queue) =
        (format!("pyroscope+http://127.0.0.1:{}", receiver.port), tempfile::tempdir().expect("a folder"));
    let text = format!(
        "[duty]\nrecord = \"2s\"\nevery = \"6s\"\n[budget]\nmax-cpu = \"100%\"\nmax-overhead = \"100%\"\n\
         [record]\ninterval = \"1\"\n[serve]\naddress = [\"{address}\"]\n\
         [push]\nurl = \"{url}\"\nevery = \"1s\"\nqueue = \"{}\"\nlabel = [\"cluster=one\"]\n",
        queue.path().join("queue").display()
    );
    let mut agent = Agent::new(&target.name, &text);
    let session = agent.start();
    // Until the next recording, which starts at a random time, the server has the last one.
    let of_target = format!("pid=\"{}\"", target.pid());
    wait_until("the last recording is served", || {
        thread::sleep(Duration::from_millis(300));
        target.target.work("churn 100 10");
        let Some(metrics) = get(address, "/metrics") else { return false };
        let is_over = metrics.lines().any(|line| line == "heapbpf_recording 0") && metrics.contains(&of_target);
        is_over && get(address, "/api/report.folded?view=alloc-bytes").is_some_and(|text| text.contains("churns "))
    });
    let mut pushed = Vec::new();
    wait_until("windows of two recordings are pushed", || {
        thread::sleep(Duration::from_millis(300));
        target.target.work("churn 100 10");
        pushed.extend(receiver.take().into_iter().flat_map(|request| request.series));
        let profiles = pushed.iter().flat_map(|series| &series.profiles);
        let churned = profiles.filter(|profile| profile.stacks.keys().any(|stack| stack.contains("churns")));
        let times: Vec<u64> = churned.map(|profile| profile.time).collect();
        // A recording takes two seconds.
        times.iter().max().zip(times.iter().min()).is_some_and(|(last, first)| last - first > 3_000_000_000)
    });
    let _ = session.terminate().expect_code(0);
    for series in &pushed {
        assert_eq!(series.labels["cluster"], "one");
        assert_eq!(series.labels["service_name"], target.name, "{:?}", series.labels);
        assert!(series.profiles.iter().all(|profile| profile.problems.is_empty()), "{series:?}");
    }
}

#[test]
fn recordings_that_are_shorter_than_windows_are_pushed() {
    let mut target = Named::service("agent-brief");
    let mut receiver = receiver::Receiver::start("pyroscope", 0);
    let queue = tempfile::tempdir().expect("there is a directory for temporary files");
    let text = format!(
        "[duty]\nrecord = \"1s\"\nevery = \"2s\"\n[record]\ninterval = \"1\"\n\
         [push]\nurl = \"pyroscope+http://127.0.0.1:{}\"\nevery = \"1h\"\nqueue = \"{}\"\n",
        receiver.port,
        queue.path().join("queue").display()
    );
    let mut agent = Agent::new(&target.name, &text);
    let session = agent.start();
    let mut times = Vec::new();
    wait_until("windows of three recordings are pushed", || {
        target.target.work("churn 100 10");
        thread::sleep(Duration::from_millis(50));
        let series = receiver.take().into_iter().flat_map(|request| request.series);
        times.extend(series.flat_map(|series| series.profiles).map(|profile| profile.time));
        times.len() >= 3
    });
    let log = session.terminate().expect_code(0).stderr;
    let recordings = log.matches("heapbpf: info: recorded 1 process ").count();
    assert!(log.contains(&format!("push: {recordings} windows, ")), "{log}");
}

/// The text at a path, unless the agent does not serve yet or is between two recordings.
pub(super) fn get(address: SocketAddr, path: &str) -> Option<String> {
    std::net::TcpStream::connect(address).ok()?;
    let reply = http::get(address, path);
    (reply.status == 200).then(|| reply.text().to_owned())
}

#[test]
fn mistakes_are_wrong_usage() {
    let folder = tempfile::tempdir().expect("there is a directory for temporary files");
    let path = folder.path().join("agent.toml");
    fs::write(&path, "[duty]\nrecord = \"soon\"\n").expect("it is ours");
    for arguments in [&["agent", "--config"][..], &["agent", "--check", "--config"]] {
        let mut command = Command::new(binary());
        command.args(arguments).arg(&path);
        let error = Heapbpf::with_command(command).run().expect_error(2);
        assert!(error.contains("agent.toml:2: invalid value `soon`"), "{error}");
    }
    let error = Heapbpf::new(["agent", "--config", "/nowhere/agent.toml"]).run().expect_error(1);
    assert!(error.contains("`/nowhere/agent.toml`") && error.contains("--print-config"), "{error}");
    let _ = Heapbpf::new(["agent"]).run().expect_error(2);
}

#[test]
fn the_printed_configuration_is_valid() {
    let folder = tempfile::tempdir().expect("there is a directory for temporary files");
    let path = folder.path().join("agent.toml");
    let printed = Heapbpf::new(["agent", "--print-config"]).run().expect_code(0).stdout;
    assert!(printed.contains("# How a process beyond `max-overhead`"), "{printed}");
    fs::write(&path, printed).expect("it is ours");
    let mut command = Command::new(binary());
    command.args(["agent", "--check", "--config"]).arg(&path);
    let checked = Heapbpf::with_command(command).run().expect_code(0).stdout;
    assert!(checked.contains("[duty]\nrecord = \"1m\"\nevery = \"10m\"\n"), "{checked}");
}
