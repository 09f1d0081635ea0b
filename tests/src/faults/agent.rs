//! A run of heapbpf: its processes, output and files.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::case::{Case, Mode, Role};
use super::processes;
use super::subject::Progress;
use crate::heapbpf::binary;

/// Timeout of attaching.
const READY_WITHIN: Duration = Duration::from_secs(60);
const POLL_PERIOD: Duration = Duration::from_micros(500);
/// Start of the line that heapbpf prints when its probes are attached.
const READY: &str = "heapbpf: recording";

/// A running heapbpf. Killed when dropped.
#[derive(Debug)]
pub(super) struct Agent {
    child: Child,
    case: Case,
    room: TempDir,
    /// Of the target.
    progress: Progress,
    started: Instant,
    status: Option<ExitStatus>,
}

impl Agent {
    /// Starts heapbpf in its own directory. Unwind tables are cached in `cache`.
    pub(super) fn start(case: Case, arguments: &[OsString], cache: &Path, progress: Progress) -> Self {
        let room = tempfile::tempdir().expect("there is a directory for temporary files");
        for directory in ["work", "tmp"] {
            fs::create_dir(room.path().join(directory)).expect("the directory is ours");
        }
        let file = |name: &str| File::create(room.path().join(name)).expect("the directory is ours");
        let mut command = Command::new(binary());
        command.args(arguments).current_dir(room.path().join("work")).stdin(Stdio::null());
        command.stdout(file("stdout")).stderr(file("stderr"));
        command.env("TMPDIR", room.path().join("tmp")).env("XDG_CACHE_HOME", cache);
        command.env("NO_COLOR", "1").env_remove("RUST_LOG");
        let started = Instant::now();
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { child, case, room, progress, started, status: None }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn started(&self) -> Instant {
        self.started
    }

    /// Threads of all its processes, and their children's.
    pub(super) fn threads(&self) -> Vec<u32> {
        processes::family(self.pid()).into_iter().flat_map(processes::threads).collect()
    }

    /// The process of this role; `None` for the target.
    pub(super) fn process(&self, role: Role) -> Option<u32> {
        let name = match role {
            Role::Agent => return Some(self.pid()),
            Role::Both | Role::Keeper => "heapbpf-keeper",
            // Names have at most 15 characters.
            Role::Symbolizer => "heapbpf-symbol",
            Role::Target => return None,
        };
        let is_it = |pid: u32| processes::comm(pid).is_some_and(|comm| comm.starts_with(name));
        processes::children(self.pid()).into_iter().find(|&pid| is_it(pid))
    }

    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().expect("it is our child");
        }
        self.status
    }

    /// Waits for its exit; `None` after `limit`.
    pub(super) fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        while self.ended().is_none() && Instant::now() < deadline {
            thread::sleep(POLL_PERIOD);
        }
        self.status
    }

    /// Whether probes are attached. For a launched command, which has its own streams: whether it runs.
    pub(super) fn is_ready(&self) -> bool {
        if self.case.mode == Mode::Launch {
            return self.progress.announced().is_some();
        }
        self.stderr().contains(READY)
    }

    /// Waits until probes are attached, and returns the duration; `None` when heapbpf exits or hangs.
    pub(super) fn wait_until_ready(&mut self) -> Option<Duration> {
        let deadline = self.started + READY_WITHIN;
        while !self.is_ready() {
            if self.ended().is_some() || Instant::now() > deadline {
                return None;
            }
            thread::sleep(POLL_PERIOD);
        }
        Some(self.started.elapsed())
    }

    pub(super) fn signal(&mut self, signal: Signal) {
        if self.ended().is_none() {
            send(self.pid(), signal);
        }
    }

    pub(super) fn stderr(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.room.path().join("stderr")).unwrap_or_default()).into_owned()
    }

    /// Why the output is missing or broken.
    pub(super) fn output_fault(&self) -> Option<String> {
        let path = self.output();
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) => return Some(format!("no output: {error}; its stderr: {}", self.stderr())),
        };
        if path.extension().is_some_and(|extension| extension == "json") {
            let parsed = serde_json::from_slice::<serde_json::Value>(&bytes);
            return parsed.err().map(|error| format!("the output is not JSON: {error}"));
        }
        bytes.is_empty().then(|| "the output is empty".to_owned())
    }

    pub(super) fn has_output(&self) -> bool {
        self.output().exists()
    }

    /// Whether the output is written while recording: then it is truncated when heapbpf is killed.
    pub(super) fn keeps_partial_output(&self) -> bool {
        self.case.mode.keeps_output()
    }

    /// Files in its working and temporary directories besides the output.
    pub(super) fn other_files(&self) -> Vec<PathBuf> {
        let list = |directory: &str| {
            let entries = fs::read_dir(self.room.path().join(directory)).expect("the directory is ours");
            entries.filter_map(|entry| Some(entry.ok()?.path())).collect::<Vec<_>>()
        };
        let output = self.output();
        list("work").into_iter().chain(list("tmp")).filter(|path| *path != output).collect()
    }

    fn output(&self) -> PathBuf {
        self.room.path().join("work").join(self.case.mode.output())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if self.ended().is_none() {
            // It may have exited.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Sends a signal to a process, which may have exited.
pub(super) fn send(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}
