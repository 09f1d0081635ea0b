//! Programs to profile: starts them, sends them commands, and kills them at the end of the test. `recipe` builds them.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use crate::kernel;
use crate::recipe::Recipe;
use crate::report::Ledger;

/// Timeout for one command.
const ANSWER_WITHIN: Duration = Duration::from_secs(300);

/// Returns the build directory of this workspace.
pub fn build_directory() -> PathBuf {
    let program = std::env::current_exe().expect("procfs is mounted");
    // <build directory>/<profile>/deps/<test>
    program.ancestors().nth(3).expect("cargo built this test").to_owned()
}

/// Builds `targets/<source>` unless it exists, and returns the program's path. Its name is the source's without
/// extension.
#[track_caller]
pub fn build(source: &str) -> PathBuf {
    Recipe::of(source).build()
}

/// Returns the command that builds the package `rust-targets`, and the folder of its programs. Separate from the workspace, because
/// its allocators take more than a minute to compile.
pub fn rust_targets(build_directory: &Path) -> (Command, PathBuf) {
    let folder = build_directory.join("targets/rust");
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(env!("CARGO_MANIFEST_DIR")).args(["build", "--locked", "--release", "--quiet"]);
    command.args(["--package", "heapbpf-rust-targets", "--features", "jemalloc,mimalloc", "--target-dir"]);
    command.arg(&folder);
    (command, folder.join("release"))
}

/// Copies a program by another process: where this one had the copy open for writing, a child that another thread forks
/// meanwhile would keep it open, and the copy could not be executed (`ETXTBSY`).
#[track_caller]
pub fn copy_program(from: impl AsRef<Path>, to: &Path) {
    run(Command::new("cp").arg("--").arg(from.as_ref()).arg(to));
}

/// Runs a command until it exits.
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
    #[track_caller]
    pub fn start(source: &str) -> Self {
        Self::spawn(&mut Command::new(build(source)))
    }

    /// Starts a command that follows the targets' protocol and waits until it is ready. Its dynamic linker resolves all pointers at
    /// the start, so that tests with stubs know which calls pass them; `LD_BIND_NOW` without a value leaves this to the first calls.
    pub fn spawn(command: &mut Command) -> Self {
        if command.get_envs().all(|(name, _)| name != "LD_BIND_NOW") {
            command.env("LD_BIND_NOW", "1");
        }
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

    /// Its PID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the only child that is no part of heapbpf: the target itself, if it was started by another program.
    #[track_caller]
    pub fn child_pid(&self) -> u32 {
        let children = kernel::commands(self.pid());
        let [child] = children.as_slice() else { panic!("{} has children {children:?}", self.pid()) };
        *child
    }

    /// Runs one command and returns its ledger.
    #[track_caller]
    pub fn work(&mut self, line: &str) -> Ledger {
        self.send(line);
        let answer = self.read_line();
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error} in {answer}"))
    }

    /// Starts one command without waiting for its results.
    #[track_caller]
    pub fn begin_work(&mut self, line: &str) {
        self.send(line);
    }

    /// Runs one command without results.
    #[track_caller]
    pub fn run_command(&mut self, line: &str) {
        self.send(line);
        assert_eq!(self.read_line(), "done");
    }

    /// Runs one command and returns its output: the lines before `done`.
    #[track_caller]
    pub fn query(&mut self, line: &str) -> Vec<String> {
        self.send(line);
        std::iter::repeat_with(|| self.read_line()).take_while(|answer| answer != "done").collect()
    }

    /// Runs one command that prints `step` whenever it waits for a line, and returns its other output: the lines before `done`. `proceed`
    /// is called at each step.
    #[track_caller]
    pub fn query_in_steps(&mut self, line: &str, mut proceed: impl FnMut()) -> Vec<String> {
        self.send(line);
        let mut lines = Vec::new();
        loop {
            match self.read_line() {
                step if step == "step" => {
                    proceed();
                    self.send("proceed");
                }
                done if done == "done" => return lines,
                other => lines.push(other),
            }
        }
    }

    /// Makes it execute another program, and waits until that is ready.
    #[track_caller]
    pub fn exec(&mut self, line: &str) {
        self.send(line);
        assert_eq!(self.read_line(), "ready");
    }

    /// Makes it exit with this code, and reaps it.
    #[track_caller]
    pub fn exit(&mut self, code: i32) {
        self.begin_exit(code);
        let status = self.child.wait().expect("it is our child");
        assert_eq!(status.code(), Some(code), "the target ended with {status}");
    }

    /// Makes it exit with this code, without reaping it.
    #[track_caller]
    pub fn begin_exit(&mut self, code: i32) {
        self.send(&format!("exit {code}"));
    }

    /// Returns its exit status, if it has exited.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("it is our child")
    }

    /// Waits until it exits by itself.
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

    /// Kills and reaps it.
    #[track_caller]
    pub fn kill(&mut self) {
        self.child.kill().expect("it is our child");
        let status = self.child.wait().expect("it is our child");
        assert_eq!(status.signal(), Some(9), "the target ended with {status}");
    }

    /// Fails unless it runs and works.
    #[track_caller]
    pub fn assert_running(&mut self) {
        let status: Option<ExitStatus> = self.child.try_wait().expect("it is our child");
        assert!(status.is_none(), "the target ended: {status:?}, signal {:?}", status.and_then(|it| it.signal()));
    }

    #[track_caller]
    fn send(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("stdin is piped");
        // In one piece: a target that reads without a buffer would take the parts for lines.
        let written = stdin.write_all(format!("{line}\n").as_bytes());
        written.unwrap_or_else(|error| panic!("the target does not listen: {error}"));
    }

    #[track_caller]
    fn read_line(&self) -> String {
        self.lines.recv_timeout(ANSWER_WITHIN).unwrap_or_else(|error| panic!("no answer from {}: {error}", self.pid()))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
