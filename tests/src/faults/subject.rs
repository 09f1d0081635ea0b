//! The target of fault injection: `targets/fault_target.cpp` with private copies of its libraries: its breakpoints are in no
//! other program, and vice versa.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::processes;
use crate::recipe::Recipe;

/// Timeout of the start, of a round of all threads, and of the exit.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);
const POLL_PERIOD: Duration = Duration::from_millis(2);

/// The size of the progress file, and the indices of its numbers: see the target.
const PROGRESS_BYTES: usize = 4096;
const PROCESS: u64 = 0;
const STOP: u64 = 1;
const THREADS: u64 = 2;
const ROUNDS: u64 = 3;

/// A target. Killed when dropped.
#[derive(Debug)]
pub(super) struct Subject {
    directory: TempDir,
    program: PathBuf,
    progress: Progress,
    pid: u32,
    /// If this process started it.
    child: Option<Child>,
    status: Option<ExitStatus>,
}

impl Subject {
    /// Builds the target, and copies its files.
    pub(super) fn prepare() -> Self {
        let directory = tempfile::tempdir().expect("there is a directory for temporary files");
        let place = directory.path();
        // Unique, because it is matched by name, and short enough for `comm`.
        let unique = place.file_name().and_then(|name| name.to_str()).unwrap_or_default().trim_start_matches(".tmp");
        let program = place.join(format!("fault-{unique}"));
        let built = Recipe::of("fault_target.cpp").flags("-std=c++20 -Wl,--disable-new-dtags,-rpath,$ORIGIN").build();
        let plugin = Recipe::of("plugin.c").flags("-shared -fPIC -Wl,-Bsymbolic -DWRAPS").build();
        for library in libraries(&built) {
            copy(&library, &place.join(library.file_name().expect("libraries have names")));
        }
        copy(&built, &program);
        copy(&plugin, &place.join("plugin.so"));
        let progress = Progress::create(&place.join("progress"));
        Self { directory, program, progress, pid: 0, child: None, status: None }
    }

    /// A running target.
    pub(super) fn start() -> Self {
        let mut subject = Self::prepare();
        let words = subject.command_line();
        let mut command = Command::new(&words[0]);
        let errors = File::create(subject.directory.path().join("stderr")).expect("the directory is ours");
        command.args(&words[1..]).current_dir(subject.directory.path()).stdin(Stdio::null()).stderr(errors);
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        subject.pid = child.id();
        subject.child = Some(child);
        let deadline = Instant::now() + ANSWERS_WITHIN;
        while subject.progress.announced().is_none() {
            assert!(subject.ended().is_none() && Instant::now() < deadline, "the target does not start");
            thread::sleep(POLL_PERIOD);
        }
        subject
    }

    /// Its program and arguments.
    pub(super) fn command_line(&self) -> Vec<OsString> {
        let place = self.directory.path();
        vec![self.program.clone().into(), place.join("progress").into(), place.join("plugin.so").into()]
    }

    /// Its process; 0 before it started.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether a process is this target, by its name.
    pub(super) fn is_process(&self, pid: u32) -> bool {
        let name = self.program.file_name().and_then(|name| name.to_str());
        processes::comm(pid).is_some_and(|comm| Some(comm.as_str()) == name)
    }

    pub(super) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Takes over a process that heapbpf started, which becomes a child of this process when heapbpf exits.
    pub(super) fn adopt(&mut self, pid: u32) {
        self.pid = pid;
    }

    /// Its exit status. A process that heapbpf started counts as running until heapbpf exits.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = match &mut self.child {
                Some(child) => child.try_wait().expect("it is our child"),
                None => processes::reap(self.pid).map(|status| ExitStatus::from_raw(status.as_raw())),
            };
        }
        self.status
    }

    /// Waits until each thread has completed two more rounds; the error lists threads that have not.
    pub(super) fn make_progress(&mut self) -> Result<(), String> {
        let before = self.progress.rounds();
        let deadline = Instant::now() + ANSWERS_WITHIN;
        loop {
            let stuck: Vec<usize> = self
                .progress
                .rounds()
                .iter()
                .zip(&before)
                .enumerate()
                .filter(|(_, (now, before))| **now < **before + 2)
                .map(|(thread, _)| thread)
                .collect();
            if stuck.is_empty() {
                return Ok(());
            }
            if let Some(status) = self.ended() {
                return Err(format!("the target exited: {status}: {}", self.errors()));
            }
            if Instant::now() > deadline {
                return Err(format!("threads {stuck:?} make no progress"));
            }
            thread::sleep(POLL_PERIOD);
        }
    }

    /// Requests its exit without waiting.
    pub(super) fn request_stop(&self) {
        self.progress.0.write_all_at(&1_u64.to_ne_bytes(), STOP * 8).expect("the file is ours");
    }

    /// Requests its exit, which must be successful.
    pub(super) fn stop(&mut self) -> Result<(), String> {
        self.request_stop();
        let deadline = Instant::now() + ANSWERS_WITHIN;
        loop {
            match self.ended() {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("the target exited: {status}: {}", self.errors())),
                None if Instant::now() > deadline => return Err("the target does not exit".to_owned()),
                None => thread::sleep(POLL_PERIOD),
            }
        }
    }

    pub(super) fn kill(&self) {
        if let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) {
            // It may have exited.
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// Its standard error.
    pub(super) fn errors(&self) -> String {
        fs::read_to_string(self.directory.path().join("stderr")).unwrap_or_default().trim().to_owned()
    }

    /// Where its private libraries are.
    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let deadline = Instant::now() + ANSWERS_WITHIN;
        while self.pid != 0 && self.ended().is_none() && processes::is_alive(self.pid) && Instant::now() < deadline {
            self.kill();
            thread::sleep(POLL_PERIOD);
        }
        // Reaps a zombie.
        self.ended();
    }
}

/// The file in which a target reports its progress.
#[derive(Debug)]
pub(super) struct Progress(File);

impl Progress {
    fn create(path: &Path) -> Self {
        fs::write(path, [0; PROGRESS_BYTES]).expect("the directory is ours");
        Self(File::options().read(true).write(true).open(path).expect("the directory is ours"))
    }

    pub(super) fn duplicate(&self) -> Self {
        Self(self.0.try_clone().expect("there are descriptors left"))
    }

    /// The process ID, once all its threads run.
    pub(super) fn announced(&self) -> Option<u32> {
        u32::try_from(self.number(PROCESS)).ok().filter(|&pid| pid != 0)
    }

    fn rounds(&self) -> Vec<u64> {
        (0..self.number(THREADS)).map(|thread| self.number(ROUNDS + thread)).collect()
    }

    fn number(&self, index: u64) -> u64 {
        let mut bytes = [0; 8];
        self.0.read_exact_at(&mut bytes, index * 8).expect("the file has its whole size");
        u64::from_ne_bytes(bytes)
    }
}

/// The libraries of a program, without the loader.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let output = Command::new("ldd").arg(program).output().expect("libc-bin has it");
    let text = String::from_utf8_lossy(&output.stdout);
    let paths = text.lines().filter_map(|line| line.split_once(" => ")?.1.split_ascii_whitespace().next());
    paths.filter(|path| path.starts_with('/')).map(PathBuf::from).collect()
}

fn copy(from: &Path, to: &Path) {
    fs::copy(from, to).unwrap_or_else(|error| panic!("`{}`: {error}", from.display()));
}
