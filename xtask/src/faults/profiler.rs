//! A run of heapbpf during the attack.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{iter, thread};

use anyhow::{Context as _, Result, bail};
use heapbpf_tests::stubs::slots_to_stubs;
use rustix::process::{Pid, Signal, kill_process};

use crate::process::descendants;

const READY: &str = "heapbpf: recording";
const READY_WITHIN: Duration = Duration::from_secs(60);
pub(super) const EXITS_WITHIN: Duration = Duration::from_secs(60);
const POLL_PERIOD: Duration = Duration::from_millis(1);

/// A running heapbpf in a folder of its own. Killed when dropped.
pub(super) struct Profiler {
    child: Child,
    folder: PathBuf,
}

/// How a run ended.
pub(super) enum Ended {
    /// It has recorded; whether calls went through stubs.
    Recorded { inline: bool },
    /// It was interrupted before.
    Early,
    /// It has refused the process, for this reason.
    Refused(String),
}

impl Profiler {
    pub(super) fn spawn(binary: &Path, arguments: &[OsString], folder: &Path) -> Result<Self> {
        let _ = fs::remove_file(folder.join("out.json"));
        let mut command = Self::command(binary);
        command.args(arguments).current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(folder.join("stderr"))?);
        let child = command.spawn().with_context(|| format!("`{}`", binary.display()))?;
        Ok(Self { child, folder: folder.to_owned() })
    }

    /// heapbpf without settings of the user.
    fn command(binary: &Path) -> Command {
        let mut command = Command::new(binary);
        command.env("NO_COLOR", "1").env("HEAPBPF_CONFIG", "").env_remove("RUST_LOG").env_remove("DEBUGINFOD_URLS");
        command
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has not been waited for and is no zombie.
    pub(super) fn exists(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    pub(super) fn stderr(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.folder.join("stderr")).unwrap_or_default()).into_owned()
    }

    /// Waits until probes are attached; false when it ends before.
    pub(super) fn wait_until_ready(&mut self) -> Result<bool> {
        let deadline = Instant::now() + READY_WITHIN;
        while !self.stderr().contains(READY) {
            if self.child.try_wait()?.is_some() {
                return Ok(false);
            }
            if Instant::now() > deadline {
                bail!("heapbpf does not attach: {}", self.stderr());
            }
            thread::sleep(POLL_PERIOD);
        }
        Ok(true)
    }

    pub(super) fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Waits for its exit.
    pub(super) fn wait(&mut self) -> Result<ExitStatus> {
        let deadline = Instant::now() + EXITS_WITHIN;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("heapbpf does not exit: {}waiting in {}", self.stderr(), waits(self.pid()).join(", "));
            }
            thread::sleep(POLL_PERIOD);
        }
    }

    /// Interrupts it, as Ctrl-C does.
    pub(super) fn end(&mut self) -> Result<Ended> {
        self.signal(Signal::INT);
        let status = self.wait()?;
        // It may not have installed its handler yet.
        if status.signal() == Some(Signal::INT.as_raw()) {
            return Ok(Ended::Early);
        }
        match status.code() {
            Some(0 | 3) => Ok(Ended::Recorded { inline: self.has_passed() }),
            Some(130) => Ok(Ended::Early),
            Some(1) if self.stderr().contains("error: ") => Ok(Ended::Refused(self.reason())),
            _ => bail!("heapbpf ended: {status}: {}", self.stderr()),
        }
    }

    /// The message of its error, without numbers, which differ.
    fn reason(&self) -> String {
        let text = self.stderr();
        let (_, reason) = text.split_once("error: ").unwrap_or_default();
        let first = reason.lines().next().unwrap_or_default();
        first.chars().filter(|character| !character.is_ascii_digit()).take(160).collect()
    }

    /// Whether stubs recorded a process, by its report.
    fn has_passed(&self) -> bool {
        let text = fs::read_to_string(self.folder.join("out.json")).unwrap_or_default();
        let report: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        report["health"]["inline_engine"]["targets"].as_u64().is_some_and(|targets| targets > 0)
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        // It may have exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where the kernel has put the threads of a process and of its descendants to sleep (`/proc/PID/task/TID/wchan`; 0: nowhere).
fn waits(pid: u32) -> Vec<String> {
    let text = |path: PathBuf| fs::read_to_string(path).unwrap_or_default().trim_end().to_owned();
    let wait = |task: fs::DirEntry| format!("{}: {}", text(task.path().join("comm")), text(task.path().join("wchan")));
    let tasks = |pid: u32| fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    iter::once(pid).chain(descendants(pid)).flat_map(tasks).map(wait).collect()
}

/// Sends a signal to a process, which may have exited.
pub(super) fn send(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Number of pointers in the processes and their descendants that lead to stubs. Processes may have exited.
pub(super) fn slots_left(pids: &[u32]) -> usize {
    let all = pids.iter().flat_map(|&pid| iter::once(pid).chain(descendants(pid)));
    all.map(|pid| slots_to_stubs(pid).map_or(0, |slots| slots.len())).sum()
}
