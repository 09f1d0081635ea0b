//! A target started by heapbpf.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use heapbpf_tests::heapbpf::binary;
use heapbpf_tests::kernel::require_root;
use heapbpf_tests::report::Report;
use heapbpf_tests::target::Target;
use rustix::process::Pid;
use tempfile::TempDir;

/// Timeout for hangs.
const WITHIN: Duration = Duration::from_secs(120);

/// A target started by heapbpf, which communicates through heapbpf's streams; its `pid` is heapbpf's.
pub(super) struct Launched {
    pub(super) target: Target,
    folder: TempDir,
}

impl Launched {
    /// Starts it in a session of its own and with no signal ignored.
    pub(super) fn start(arguments: &str, words: &[impl AsRef<OsStr>], environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new("setsid");
        command.arg("env");
        Self::with(command, arguments, words, environment)
    }

    /// `command` executes its arguments.
    pub(super) fn with(
        mut command: Command,
        arguments: &str,
        words: &[impl AsRef<OsStr>],
        environment: &[(&str, &str)],
    ) -> Self {
        require_root();
        let folder = tempfile::tempdir().expect("there is a directory for temporary files");
        let stderr = File::create(folder.path().join("stderr")).expect("the folder is ours");
        command.arg("--default-signal").arg(binary());
        command.args(["--interval", "1", "-o", "out.json"]).args(arguments.split_ascii_whitespace()).arg("--");
        command.args(words).envs(environment.iter().copied()).current_dir(folder.path());
        let target = Target::spawn(command.stderr(stderr));
        Self { target, folder }
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    #[track_caller]
    pub(super) fn report(&self) -> Report {
        Report::read(&self.file("out.json"))
    }

    pub(super) fn heapbpf(&self) -> Pid {
        raw_pid(self.target.pid())
    }

    /// The process that heapbpf has started.
    #[track_caller]
    pub(super) fn command(&self) -> Pid {
        raw_pid(self.target.child_pid())
    }
}

fn raw_pid(pid: u32) -> Pid {
    i32::try_from(pid).ok().and_then(Pid::from_raw).expect("pids are positive")
}

#[track_caller]
pub(super) fn wait_until(what: &str, is_so: impl FnMut() -> bool) {
    assert!(happens_within(WITHIN, is_so), "{what} does not come");
}

pub(super) fn happens_within(time: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + time;
    while !is_so() {
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Returns a line of `/proc/PID/status`.
pub(super) fn status(pid: Pid, key: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(key)).expect("the kernel writes it");
    line.trim_start_matches(':').trim().to_owned()
}
