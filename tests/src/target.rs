//! Programs to profile: starts them, talks to them, and ends them with the test. How they are built is `recipe`'s. Refuses
//! to know anything of the profiler.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use crate::kernel;
use crate::recipe::Recipe;
use crate::report::Ledger;

/// How long a target may take over one line of input. Only a hang takes this long.
const ANSWER_WITHIN: Duration = Duration::from_secs(300);

/// The build directory of this workspace, which this program was built into.
///
/// # Panics
///
/// When the program does not lie in one.
pub fn build_directory() -> PathBuf {
    let program = std::env::current_exe().expect("procfs is mounted");
    // <build directory>/<profile>/deps/<test>
    program.ancestors().nth(3).expect("cargo built this test").to_owned()
}

/// Builds `targets/<source>` unless this very source was built before, and returns the program. Its name is the source's
/// without extension.
///
/// # Panics
///
/// When it does not compile.
#[track_caller]
pub fn build(source: &str) -> PathBuf {
    Recipe::of(source).build()
}

/// Runs a command to its end.
///
/// # Panics
///
/// When it cannot be run or fails.
#[track_caller]
pub fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A running target. Killed when dropped.
#[derive(Debug)]
pub struct Target {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Target {
    /// Builds and starts a program of `targets/` and waits until it is ready.
    ///
    /// # Panics
    ///
    /// When it does not compile or does not become ready.
    #[track_caller]
    pub fn start(source: &str) -> Self {
        Self::spawn(&mut Command::new(build(source)))
    }

    /// Starts a command that follows the targets' protocol and waits until it is ready.
    ///
    /// # Panics
    ///
    /// When it does not become ready.
    pub fn spawn(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let stdin = child.stdin.take();
        let target = Self { child, stdin, lines };
        assert_eq!(target.read_line(), "ready");
        target
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The only child of what was started that is no part of heapbpf: the target itself, where a program was started that makes it.
    ///
    /// # Panics
    ///
    /// When it has another number of children.
    #[track_caller]
    pub fn child_pid(&self) -> u32 {
        let children = kernel::commands(self.pid());
        let [child] = children.as_slice() else { panic!("{} has children {children:?}", self.pid()) };
        *child
    }

    /// Has it do the work for one line of input and returns what it did.
    ///
    /// # Panics
    ///
    /// When it ends or hangs instead.
    #[track_caller]
    pub fn work(&mut self, line: &str) -> Ledger {
        self.send(line);
        let answer = self.read_line();
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error} in {answer}"))
    }

    /// Has it do what one line says, and waits until it has.
    ///
    /// # Panics
    ///
    /// When it ends or hangs instead.
    #[track_caller]
    pub fn order(&mut self, line: &str) {
        self.send(line);
        assert_eq!(self.read_line(), "done");
    }

    /// Has it say what one line asks for, and returns that: the lines before `done`.
    ///
    /// # Panics
    ///
    /// When it ends or hangs instead.
    #[track_caller]
    pub fn ask(&mut self, line: &str) -> Vec<String> {
        self.send(line);
        std::iter::repeat_with(|| self.read_line()).take_while(|answer| answer != "done").collect()
    }

    /// Has it become another program, and waits until that is ready.
    ///
    /// # Panics
    ///
    /// When it ends or hangs instead.
    #[track_caller]
    pub fn becomes(&mut self, line: &str) {
        self.send(line);
        assert_eq!(self.read_line(), "ready");
    }

    /// Has it exit with this code, and reaps it.
    ///
    /// # Panics
    ///
    /// When it ends in another way.
    #[track_caller]
    pub fn exit(&mut self, code: i32) {
        self.begin_exit(code);
        let status = self.child.wait().expect("it is our child");
        assert_eq!(status.code(), Some(code), "the target ended with {status}");
    }

    /// Has it exit with this code, but leaves it unreaped.
    ///
    /// # Panics
    ///
    /// When it is gone already.
    #[track_caller]
    pub fn begin_exit(&mut self, code: i32) {
        self.send(&format!("exit {code}"));
    }

    /// How it ended, if it has.
    ///
    /// # Panics
    ///
    /// When it is somebody else's.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("it is our child")
    }

    /// Waits until it ends by itself.
    ///
    /// # Panics
    ///
    /// When it hangs.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + ANSWER_WITHIN;
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(Instant::now() < deadline, "process {} does not end", self.pid());
            thread::yield_now();
        }
    }

    /// Kills it, and reaps it.
    ///
    /// # Panics
    ///
    /// When it had ended by itself.
    #[track_caller]
    pub fn kill(&mut self) {
        self.child.kill().expect("it is our child");
        let status = self.child.wait().expect("it is our child");
        assert_eq!(status.signal(), Some(9), "the target ended with {status}");
    }

    /// Fails unless it still runs and does its work.
    ///
    /// # Panics
    ///
    /// When it has ended.
    #[track_caller]
    pub fn assert_running(&mut self) {
        let status: Option<ExitStatus> = self.child.try_wait().expect("it is our child");
        assert!(status.is_none(), "the target ended: {status:?}, signal {:?}", status.and_then(|it| it.signal()));
    }

    #[track_caller]
    fn send(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("stdin is piped");
        writeln!(stdin, "{line}").unwrap_or_else(|error| panic!("the target does not listen: {error}"));
    }

    #[track_caller]
    fn read_line(&self) -> String {
        self.lines.recv_timeout(ANSWER_WITHIN).unwrap_or_else(|error| panic!("no answer from {}: {error}", self.pid()))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // It may have ended already; then there is nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
