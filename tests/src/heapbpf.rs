//! The profiler as its users have it: a program that is started, signalled and waited for. Refuses to look inside.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::kernel;
use crate::report::Report;
use crate::target::build_directory;

/// Until probes are in place. Only a hang takes this long, also on a machine that does much else.
const READY_WITHIN: Duration = Duration::from_secs(120);
/// Until it has ended and written its reports. Only a hang takes this long.
const DONE_WITHIN: Duration = Duration::from_secs(300);
/// What it says once probes are in place.
const READY: &str = "heapbpf: recording";

/// The binary under test.
///
/// # Panics
///
/// When it was not built.
pub fn binary() -> PathBuf {
    let binary = std::env::var_os("HEAPBPF_BIN").map_or_else(|| build_directory().join("debug/heapbpf"), PathBuf::from);
    assert!(
        binary.is_file(),
        "`{}` does not exist: run `cargo xtask test`, which builds it, or set HEAPBPF_BIN",
        binary.display()
    );
    std::path::absolute(binary).expect("there is a current directory")
}

/// A call of heapbpf that is being put together. Runs in a directory of its own, which lasts as long as this.
#[derive(Debug)]
pub struct Heapbpf {
    command: Command,
    directory: TempDir,
}

/// Who asks for every call means every call, however slow the machine is: unless a test says otherwise, too much is lost and
/// counted instead of sampled.
fn with_every_call(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let every = arguments.windows(2).position(|pair| pair[0] == "--interval" && pair[1] == "1");
    let says = arguments.iter().any(|argument| argument == "--on-overload");
    if let (Some(at), false) = (every, says) {
        arguments.splice(at..at, ["--on-overload", "drop"].map(OsString::from));
    }
    arguments
}

impl Heapbpf {
    /// heapbpf with these arguments.
    ///
    /// # Panics
    ///
    /// When the tests do not run as root, or the binary was not built.
    pub fn new<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Self {
        kernel::require_root();
        let mut command = Command::new(binary());
        command.args(with_every_call(arguments.into_iter().map(|argument| argument.as_ref().to_owned()).collect()));
        Self::with_command(command)
    }

    /// heapbpf for a process, with further arguments parted by blanks.
    ///
    /// # Panics
    ///
    /// As [`new`](Self::new).
    pub fn of(pid: u32, arguments: &str) -> Self {
        let pid = pid.to_string();
        Self::new(["--pid", &pid].into_iter().chain(arguments.split_ascii_whitespace()))
    }

    /// A command that ends up as heapbpf.
    ///
    /// # Panics
    ///
    /// When there is no directory for temporary files.
    pub fn with_command(mut command: Command) -> Self {
        let directory = tempfile::tempdir().expect("there is a directory for temporary files");
        command.current_dir(directory.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // What the tests are run with must not colour what they read.
        command.env("NO_COLOR", "1").env_remove("RUST_LOG");
        Self { command, directory }
    }

    /// A file in the directory that it runs in.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The names of all files in the directory that it runs in, sorted.
    ///
    /// # Panics
    ///
    /// When the directory is gone.
    pub fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.directory.path()).expect("the directory is ours");
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("the directory is ours").file_name();
        let mut names: Vec<String> = entries.map(|entry| name(entry).to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Reads a JSON report in the directory that it runs in.
    #[track_caller]
    pub fn report(&self, name: &str) -> Report {
        Report::read(&self.file(name))
    }

    /// Starts it and waits until probes are in place.
    ///
    /// # Panics
    ///
    /// When it ends or hangs instead.
    #[track_caller]
    pub fn start(&mut self) -> Session {
        let mut session = self.spawn();
        session.wait_until_recording();
        session
    }

    /// Runs it to its end.
    ///
    /// # Panics
    ///
    /// When it hangs.
    #[track_caller]
    pub fn run(&mut self) -> Outcome {
        self.spawn().wait()
    }

    /// Starts it and waits for nothing.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
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
        Session { child, stderr_lines, stderr: String::new(), stdout: Some(stdout) }
    }
}

/// A running heapbpf. Killed when dropped.
#[derive(Debug)]
pub struct Session {
    child: Child,
    stderr_lines: Receiver<String>,
    stderr: String,
    stdout: Option<JoinHandle<String>>,
}

/// How a heapbpf ended.
#[derive(Debug)]
pub struct Outcome {
    /// How the process ended.
    pub status: ExitStatus,
    /// All of its stdout.
    pub stdout: String,
    /// All of its stderr.
    pub stderr: String,
}

impl Session {
    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Stops it: until [`go_on`](Self::go_on) it notices nothing.
    ///
    /// # Panics
    ///
    /// When it has ended.
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

    /// Has it go on after [`halt`](Self::halt).
    ///
    /// # Panics
    ///
    /// When it has ended.
    #[track_caller]
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends SIGINT, as Ctrl-C does, and waits for the end.
    ///
    /// # Panics
    ///
    /// When it has ended already, or hangs.
    #[track_caller]
    pub fn interrupt(self) -> Outcome {
        self.signal(Signal::INT);
        self.wait()
    }

    /// Sends SIGTERM and waits for the end.
    ///
    /// # Panics
    ///
    /// When it has ended already, or hangs.
    #[track_caller]
    pub fn terminate(self) -> Outcome {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// Sends it a signal.
    ///
    /// # Panics
    ///
    /// When it has ended.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("pids are positive");
        kill_process(pid, signal).expect("it has not been waited for");
    }

    /// Kills it the hard way.
    ///
    /// # Panics
    ///
    /// When it had ended by itself.
    #[track_caller]
    pub fn kill(self) {
        self.signal(Signal::KILL);
        let outcome = self.wait();
        assert_eq!(outcome.status.signal(), Some(9), "{outcome:?}");
    }

    /// Waits for the end.
    ///
    /// # Panics
    ///
    /// When it hangs.
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

    #[track_caller]
    fn wait_until_recording(&mut self) {
        self.wait_for_line(READY, |line| line.starts_with(READY));
    }

    /// Waits until it says a line with this text, which it has not been waited for yet.
    ///
    /// # Panics
    ///
    /// When it does not.
    #[track_caller]
    pub fn wait_for(&mut self, text: &str) {
        self.wait_for_line(text, |line| line.contains(text));
    }

    #[track_caller]
    fn wait_for_line(&mut self, what: &str, is_it: impl Fn(&str) -> bool) {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            match self.stderr_lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.keep(&line);
                    if is_it(&line) {
                        return;
                    }
                }
                Err(error) => panic!("heapbpf did not say `{what}` ({error}); its stderr:\n{}", self.stderr),
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
        // It may have ended already; then there is nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Outcome {
    /// Fails unless it ended with this exit code.
    ///
    /// # Panics
    ///
    /// When it ended in another way.
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

    /// Fails unless it failed before it recorded anything, with this exit code and an error of the agreed form. Returns
    /// the error's text.
    ///
    /// # Panics
    ///
    /// When it did otherwise.
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
        // `CAP_BPF` may begin one, `Cannot` may not.
        let mut characters = text.chars();
        let capitalised =
            characters.next().is_some_and(char::is_uppercase) && characters.next().is_some_and(char::is_lowercase);
        assert!(!capitalised, "an error begins in lower case: {text}");
        assert!(!stderr.contains("panicked"), "{stderr}");
        text.to_owned()
    }
}

/// The file's text.
///
/// # Panics
///
/// When it cannot be read.
#[track_caller]
pub fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("`{}`: {error}", path.display()))
}
