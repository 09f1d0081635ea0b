//! Checks of programs of `targets/leaks/`: running ones, and ones started by heapbpf.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use heapbpf_tests::heapbpf::{Heapbpf, Outcome, binary, text};
use heapbpf_tests::kernel::require_root;
use heapbpf_tests::target::Target;
use heapbpf_tests::unreachable::{Check, Truth};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Timeout for hangs.
const WITHIN: Duration = Duration::from_secs(120);

/// Checks a running process with these options, and expects this exit code.
#[track_caller]
pub(super) fn run_check(target: &Target, options: &str, code: i32) -> Check {
    run_check_with_output(target, options, code).0
}

/// Like [`run_check`], and returns the output.
#[track_caller]
pub(super) fn run_check_with_output(target: &Target, options: &str, code: i32) -> (Check, Outcome) {
    let pid = target.pid().to_string();
    let words = ["leaks", "--pid", &pid, "-o", "check.json"].into_iter().chain(options.split_ascii_whitespace());
    let mut heapbpf = Heapbpf::new(words);
    let outcome = heapbpf.run().expect_code(code);
    let check = Check::read(&heapbpf.file("check.json"));
    assert_eq!(check.pid, target.pid());
    (check, outcome)
}

/// Reads a program's own ledger.
#[track_caller]
pub(super) fn truth(target: &mut Target) -> Truth {
    Truth::of(target.query("truth"))
}

/// Returns bytes by leaf in a file of folded stacks.
#[track_caller]
pub(super) fn bytes_by_leaf(path: &Path) -> BTreeMap<String, u64> {
    let mut bytes = BTreeMap::new();
    for line in text(path).lines() {
        let (stack, count) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no folded line: {line}"));
        let leaf = stack.rsplit(';').next().unwrap_or(stack);
        *bytes.entry(leaf.to_owned()).or_default() += count.parse::<u64>().expect("a number");
    }
    bytes
}

/// A program started by `heapbpf leaks`, which communicates through heapbpf's streams; the target's `pid` is heapbpf's.
pub(super) struct Launch {
    pub(super) target: Target,
    folder: TempDir,
}

impl Launch {
    /// Starts it with these options, in its own process group and with no signal ignored.
    #[track_caller]
    pub(super) fn start(options: &str, program: &Path, arguments: &[&str]) -> Self {
        require_root();
        let folder = tempfile::tempdir().expect("there is a directory for temporary files");
        let stderr = File::create(folder.path().join("stderr")).expect("the folder is ours");
        let mut command = Command::new("env");
        command.arg("--default-signal").arg(binary()).args(["leaks", "-o", "check.json"]);
        command.args(options.split_ascii_whitespace()).arg("--").arg(program).args(arguments);
        command.current_dir(folder.path()).env("NO_COLOR", "1").env_remove("RUST_LOG");
        let target = Target::spawn(command.stderr(stderr).process_group(0));
        Self { target, folder }
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).expect("the folder is ours");
        let mut names: Vec<String> = entries
            .map(|entry| entry.expect("the folder is ours").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Returns standard error so far.
    pub(super) fn stderr(&self) -> String {
        text(&self.file("stderr"))
    }

    #[track_caller]
    pub(super) fn check(&self, name: &str) -> Check {
        Check::read(&self.file(name))
    }

    /// Waits until heapbpf has inspected a library that the program has loaded.
    #[track_caller]
    pub(super) fn wait_until_opened(&self, library: &Path) {
        let descriptors = format!("/proc/{}/fd", self.target.pid());
        let is_open = || {
            let mut files = fs::read_dir(&descriptors).expect("heapbpf runs").flatten();
            files.any(|file| fs::read_link(file.path()).is_ok_and(|path| path == library))
        };
        let deadline = Instant::now() + WITHIN;
        while !is_open() {
            assert!(Instant::now() < deadline, "`{}` is not inspected", library.display());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Requests a check, and waits until it is reported.
    #[track_caller]
    pub(super) fn check_now(&mut self) {
        let told = |launch: &Self| launch.stderr().matches(" unreachable out of ").count();
        let before = told(self);
        let heapbpf = i32::try_from(self.target.pid()).ok().and_then(Pid::from_raw).expect("pids are positive");
        kill_process(heapbpf, Signal::USR1).expect("it runs");
        let deadline = Instant::now() + WITHIN;
        while told(self) == before {
            assert!(Instant::now() < deadline, "no check is reported: {}", self.stderr());
            self.target.assert_running();
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Makes the program exit with this code, and waits for heapbpf's exit code.
    #[track_caller]
    pub(super) fn exit(&mut self, code: i32) -> Option<i32> {
        self.target.begin_exit(code);
        self.target.wait().code()
    }
}
