//! Runs the profiler as a black box: starts it, sends signals and waits for it.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::kernel;
use crate::report::Report;
use crate::target::build_directory;

/// Timeout until probes are attached, on a busy machine too.
const READY_WITHIN: Duration = Duration::from_secs(120);
/// Timeout until it has exited and written its reports.
const DONE_WITHIN: Duration = Duration::from_secs(300);
/// Message once probes are attached.
const READY: &str = "heapbpf: recording";

/// The binary under test.
pub fn binary() -> PathBuf {
    let binary = std::env::var_os("HEAPBPF_BIN").map_or_else(|| build_directory().join("debug/heapbpf"), PathBuf::from);
    assert!(
        binary.is_file(),
        "`{}` does not exist: run `cargo xtask test`, which builds it, or set HEAPBPF_BIN",
        binary.display()
    );
    std::path::absolute(binary).expect("there is a current directory")
}

/// A call of heapbpf. Runs in its own directory, which is removed when this and its sessions are dropped.
#[derive(Debug)]
pub struct Heapbpf {
    command: Command,
    directory: Arc<TempDir>,
}

/// Tests at an interval of 1 expect every call, on slow machines too: unless a test overrides this, overload drops and
/// counts events instead of sampling.
fn with_every_call(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let every = arguments.windows(2).position(|pair| pair[0] == "--interval" && pair[1] == "1");
    let says = arguments.iter().any(|argument| argument == "--on-overload");
    if let (Some(at), false) = (every, says) {
        arguments.splice(at..at, ["--on-overload", "drop"].map(OsString::from));
    }
    arguments
}

/// Tests of recordings expect what happens during the recording: unless a test is about earlier blocks, they are left out.
fn without_inventory(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let own = arguments.iter().take_while(|argument| *argument != "--");
    let selects = own.filter_map(|argument| argument.to_str()).any(|argument| {
        ["--pid", "--cmdline", "--cgroup"].iter().any(|option| argument.split('=').next() == Some(option))
    });
    let is_record = arguments.first().is_some_and(|first| first == "record");
    let is_command = arguments.first().and_then(|first| first.to_str()).is_some_and(|first| !first.starts_with('-'));
    if selects && (is_record || !is_command) {
        arguments.insert(usize::from(is_record), "--no-inventory".into());
    }
    arguments
}

/// Leaves resident pages out of recordings of all heaps: most tests compare blocks.
fn without_pages(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let options = || arguments.iter().take_while(|argument| *argument != "--").filter_map(|argument| argument.to_str());
    let is_of = |argument: &str, names: &[&str]| names.contains(&argument.split('=').next().unwrap_or_default());
    let selects = arguments.iter().any(|argument| argument == "--")
        || options().any(|argument| is_of(argument, &["--pid", "-p", "--cmdline", "--cgroup", "--all"]));
    let names_heaps =
        options().any(|argument| is_of(argument, &["--heap", "--exclude-heap"]) || argument.contains("pages"));
    let first = arguments.first().and_then(|first| first.to_str()).unwrap_or_default();
    let is_record = first == "record";
    if selects && !names_heaps && (is_record || first.starts_with('-')) {
        let at = usize::from(is_record);
        arguments.splice(at..at, ["--exclude-heap".into(), "pages".into()]);
    }
    arguments
}

/// heapbpf in a session of its own, as services have: in the group of a background job, it does not stop what it starts.
pub fn in_own_session() -> Command {
    let mut command = Command::new("setsid");
    command.arg(binary());
    command
}

impl Heapbpf {
    /// Prepares heapbpf for a process, with further arguments separated by blanks. The profile has an inventory of earlier
    /// blocks.
    pub fn with_inventory(pid: u32, arguments: &str) -> Self {
        kernel::require_root();
        let words = ["--pid", &pid.to_string()].map(OsString::from).into_iter();
        let arguments = words.chain(arguments.split_ascii_whitespace().map(OsString::from)).collect();
        let mut command = Command::new(binary());
        command.args(with_every_call(without_pages(arguments)));
        Self::with_command(command)
    }

    /// Prepares heapbpf with these arguments. Panics unless the tests run as root and the binary exists.
    pub fn new<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Self {
        kernel::require_root();
        let arguments = arguments.into_iter().map(|argument| argument.as_ref().to_owned()).collect::<Vec<OsString>>();
        let starts = arguments.iter().any(|argument| argument == "--");
        let mut command = if starts { in_own_session() } else { Command::new(binary()) };
        command.args(with_every_call(without_inventory(without_pages(arguments))));
        Self::with_command(command)
    }

    /// Prepares heapbpf for a process, with further arguments separated by blanks. The profile has the resident pages that no hooked heap
    /// has.
    pub fn with_pages(pid: u32, arguments: &str) -> Self {
        kernel::require_root();
        let words = ["--pid", &pid.to_string()].map(OsString::from).into_iter();
        let arguments = words.chain(arguments.split_ascii_whitespace().map(OsString::from)).collect();
        let mut command = Command::new(binary());
        command.args(with_every_call(without_inventory(arguments)));
        Self::with_command(command)
    }

    /// Prepares heapbpf for a process, with further arguments separated by blanks.
    pub fn of(pid: u32, arguments: &str) -> Self {
        let pid = pid.to_string();
        Self::new(["--pid", &pid].into_iter().chain(arguments.split_ascii_whitespace()))
    }

    /// Prepares a command that executes heapbpf in the end.
    pub fn with_command(mut command: Command) -> Self {
        let directory = Arc::new(tempfile::tempdir().expect("there is a directory for temporary files"));
        command.current_dir(directory.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The environment of the tests must neither enable colours nor change defaults.
        command.env("NO_COLOR", "1").env("HEAPBPF_CONFIG", "").env_remove("RUST_LOG").env_remove("DEBUGINFOD_URLS");
        Self { command, directory }
    }

    /// Returns the path of a file in its directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the sorted names of all files in its directory.
    pub fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.directory.path()).expect("the directory is ours");
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("the directory is ours").file_name();
        let mut names: Vec<String> = entries.map(|entry| name(entry).to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Reads a JSON report in its directory.
    #[track_caller]
    pub fn report(&self, name: &str) -> Report {
        Report::read(&self.file(name))
    }

    /// Decodes the data of a page in its directory, by other programs.
    #[track_caller]
    pub fn page(&self, name: &str) -> serde_json::Value {
        let script = r#"grep -o 'id="profile">[^<]*' "$1" | cut -d'>' -f2 | base64 -d | gunzip"#;
        let output = Command::new("sh").args(["-c", script, "sh"]).arg(self.file(name)).output();
        let output = output.expect("there is a shell");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("`{name}`: {error}: {output:?}"))
    }

    /// Starts it and waits until probes are attached.
    #[track_caller]
    pub fn start(&mut self) -> Session {
        let mut session = self.spawn();
        session.wait_until_recording();
        session
    }

    /// Runs it until it exits.
    #[track_caller]
    pub fn run(&mut self) -> Outcome {
        self.spawn().wait()
    }

    /// Starts it without waiting.
    #[track_caller]
    pub fn spawn(&mut self) -> Session {
        let mut child = self.command.spawn().unwrap_or_else(|error| panic!("{:?}: {error}", self.command));
        let (sender, stderr_lines) = mpsc::channel();
        let stderr = BufReader::new(child.stderr.take().expect("stderr is piped"));
        thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut stdout = child.stdout.take().expect("stdout is piped");
        let stdout = thread::spawn(move || {
            let mut text = Vec::new();
            stdout.read_to_end(&mut text).expect("pipes can be read");
            String::from_utf8(text).expect("the summary is text")
        });
        Session {
            child,
            stderr_lines,
            stderr: String::new(),
            stdout: Some(stdout),
            _directory: Arc::clone(&self.directory),
        }
    }
}

/// A running heapbpf. Killed when dropped.
#[derive(Debug)]
pub struct Session {
    child: Child,
    stderr_lines: Receiver<String>,
    stderr: String,
    stdout: Option<JoinHandle<String>>,
    _directory: Arc<TempDir>,
}

/// Result of a run of heapbpf.
#[derive(Debug)]
pub struct Outcome {
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Session {
    /// Its PID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Stops it with SIGSTOP, until [`resume`](Self::resume).
    #[track_caller]
    pub fn halt(&self) {
        self.signal(Signal::STOP);
        let stopped = || kernel::state(self.pid()) == 'T';
        let deadline = Instant::now() + READY_WITHIN;
        while !stopped() {
            assert!(Instant::now() < deadline, "it does not stop");
            thread::yield_now();
        }
    }

    /// Continues it after [`halt`](Self::halt).
    #[track_caller]
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends SIGINT, as Ctrl-C does, and waits for the exit.
    #[track_caller]
    pub fn interrupt(self) -> Outcome {
        self.signal(Signal::INT);
        self.wait()
    }

    /// Sends SIGTERM and waits for the exit.
    #[track_caller]
    pub fn terminate(self) -> Outcome {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// Sends a signal.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("pids are positive");
        kill_process(pid, signal).expect("it has not been waited for");
    }

    /// Sends SIGKILL.
    #[track_caller]
    pub fn kill(self) {
        self.signal(Signal::KILL);
        let outcome = self.wait();
        assert_eq!(outcome.status.signal(), Some(9), "{outcome:?}");
    }

    /// Waits for the exit.
    #[track_caller]
    pub fn wait(mut self) -> Outcome {
        let deadline = Instant::now() + DONE_WITHIN;
        loop {
            match self.stderr_lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => self.keep(&line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("heapbpf does not end; its stderr:\n{}", self.stderr),
            }
        }
        let status = self.child.wait().expect("it is our child");
        let stdout = self.stdout.take().expect("nobody else waits").join().expect("the reader does not panic");
        Outcome { status, stdout, stderr: std::mem::take(&mut self.stderr) }
    }

    /// Returns what it has printed on standard error until now.
    pub fn printed(&mut self) -> &str {
        while let Ok(line) = self.stderr_lines.try_recv() {
            self.keep(&line);
        }
        &self.stderr
    }

    /// Whether it has exited.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_some()
    }

    #[track_caller]
    fn wait_until_recording(&mut self) {
        self.wait_for_line(READY, |line| line.starts_with(READY));
    }

    /// Waits for a line with this text on standard error, after those waited for before.
    #[track_caller]
    pub fn wait_for(&mut self, text: &str) {
        self.wait_for_line(text, |line| line.contains(text));
    }

    /// Waits for a line with this text on standard error, and returns what follows the text.
    #[track_caller]
    pub fn wait_for_rest(&mut self, text: &str) -> String {
        let line = self.wait_for_line(text, |line| line.contains(text));
        line.split_once(text).map(|(_, rest)| rest.to_owned()).unwrap_or_default()
    }

    #[track_caller]
    fn wait_for_line(&mut self, what: &str, is_it: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            match self.stderr_lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.keep(&line);
                    if is_it(&line) {
                        return line;
                    }
                }
                Err(error) => panic!("heapbpf did not print `{what}` ({error}); its stderr:\n{}", self.stderr),
            }
        }
    }

    fn keep(&mut self, line: &str) {
        self.stderr.push_str(line);
        self.stderr.push('\n');
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Outcome {
    /// Fails unless it exited with this code.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Self {
        assert_eq!(
            self.status.code(),
            Some(code),
            "{}\nstdout:\n{}\nstderr:\n{}",
            self.status,
            self.stdout,
            self.stderr
        );
        self
    }

    /// Fails unless every event was counted. Stacks through modules that a program has just loaded may be cut, with exit code 3.
    #[track_caller]
    pub fn expect_counted(self) -> Self {
        let verdict = self.stdout.lines().find(|line| line.starts_with("health: ")).unwrap_or_default();
        let only_cut = verdict.strip_prefix("health: incomplete: ").is_some_and(|missing| {
            let of_callsites = missing.contains("% of stacks are cut (") && missing.ends_with(": no table)");
            (of_callsites || missing.ends_with("% of stacks are cut")) && !missing.contains(", ")
        });
        let code = if only_cut { 3 } else { 0 };
        self.expect_code(code)
    }

    /// Fails unless it failed before it recorded anything, with this exit code and a well-formed error. Returns the
    /// error message.
    #[track_caller]
    pub fn expect_error(self, code: i32) -> String {
        let outcome = self.expect_code(code);
        let stderr = outcome.stderr;
        assert!(!stderr.contains(READY), "it attached first:\n{stderr}");
        assert_eq!(outcome.stdout, "", "errors go to stderr");
        let start = stderr.find("error: ").unwrap_or_else(|| panic!("no `error: ` in:\n{stderr}"));
        let prefix = &stderr[..start];
        assert!(
            prefix.is_empty() || prefix == "heapbpf: " || prefix.ends_with('\n') || prefix.ends_with("\nheapbpf: "),
            "`{prefix}` before the error:\n{stderr}"
        );
        let text = &stderr[start + "error: ".len()..];
        // `CAP_BPF` may start one, `Cannot` may not.
        let mut characters = text.chars();
        let capitalised =
            characters.next().is_some_and(char::is_uppercase) && characters.next().is_some_and(char::is_lowercase);
        assert!(!capitalised, "an error begins in lower case: {text}");
        assert!(!stderr.contains("panicked"), "{stderr}");
        text.to_owned()
    }
}

/// Reads a file.
#[track_caller]
pub fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("`{}`: {error}", path.display()))
}
