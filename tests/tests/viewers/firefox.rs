//! The Firefox Profiler's own parser, on its command line.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use heapbpf_tests::viewers;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::fixture::{Fixture, number, read};

/// A profile opened by the process that `profiler-cli load` would start and wait half a second for.
struct Session {
    /// Name of its socket.
    directory: TempDir,
    daemon: Child,
}

/// Maximum number of starts.
const TRIES: u32 = 4;

/// Timeout: parsing takes seconds.
const ANSWER_MAX: Duration = Duration::from_secs(60);

impl Session {
    /// Panics if the profiler rejects the profile.
    #[track_caller]
    fn open(path: &Path) -> Self {
        // Its daemon hung at startup once in some hundred times. It exits if it rejects a profile.
        (0..TRIES).find_map(|_| Self::try_open(path)).unwrap_or_else(|| panic!("the profiler does not answer"))
    }

    /// Returns `None` if it does not answer.
    #[track_caller]
    fn try_open(path: &Path) -> Option<Self> {
        let directory = tempfile::tempdir().expect("the temporary directory is ours");
        let mut daemon = Self::cli(directory.path(), "--daemon");
        daemon.arg(path).args(["--session", "own"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let daemon = daemon.spawn().expect("profiler-cli is installed");
        let mut session = Self { directory, daemon };
        let begun = Instant::now();
        // It answers once the profile is parsed, and exits if it is invalid.
        while !session.answers(begun + ANSWER_MAX) {
            let ended = session.daemon.try_wait().expect("it is our child");
            assert!(ended.is_none(), "the profiler does not read `{}`: {ended:?}", path.display());
            if begun.elapsed() > ANSWER_MAX {
                let _ = session.daemon.kill();
                return None;
            }
        }
        Some(session)
    }

    /// Whether the daemon answers before the deadline.
    fn answers(&self, deadline: Instant) -> bool {
        let mut verb = self.verb("thread list");
        let verb = verb.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut asking = verb.spawn().expect("profiler-cli is installed");
        while Instant::now() < deadline {
            if let Some(status) = asking.try_wait().expect("it is our child") {
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = asking.kill();
        let _ = asking.wait();
        false
    }

    fn cli(directory: &Path, verb: &str) -> Command {
        let mut command = viewers::program("profiler-cli");
        command.env("PROFILER_CLI_SESSION_DIR", directory).env("PROFILER_CLI_NO_SYMBOLICATE", "1");
        command.args(verb.split(' '));
        command
    }

    fn verb(&self, words: &str) -> Command {
        let mut command = Self::cli(self.directory.path(), words);
        command.args(["--session", "own"]);
        command
    }

    #[track_caller]
    fn query(&self, words: &str) -> Value {
        viewers::json(self.verb(words).arg("--json"))
    }

    /// Returns the profiler's total over all threads of a process.
    #[track_caller]
    fn total(&self, pid: &str, strategy: &str) -> f64 {
        let threads = self.query("thread list --limit 1000");
        let threads = threads["threads"].as_array().expect("there are threads").iter();
        let of_process = threads.filter(|thread| thread["pid"].to_string().trim_matches('"') == pid);
        let totals = of_process.map(|thread| {
            let handle = thread["threadHandle"].as_str().expect("threads have handles");
            let samples = self.query(&format!("thread samples --include-idle --thread {handle} --strategy {strategy}"));
            assert_eq!(samples["callTreeSummaryStrategy"], strategy, "what is summed up is there");
            number(&samples["categoryBreakdown"], "totalSamples")
        });
        totals.sum()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = Self::cli(self.directory.path(), "stop own").output();
        if self.daemon.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = kill_process(Pid::from_child(&self.daemon), Signal::TERM);
        }
        let _ = self.daemon.wait();
    }
}

#[track_caller]
fn check(actual: f64, expected: f64, what: &str) {
    assert!((actual.abs() - expected).abs() < 0.5, "{what}: {actual}, not {expected}");
}

#[test]
fn retained_allocated_and_freed_bytes_equal_the_reports() {
    let fixture = Fixture::exact();
    let session = Session::open(&fixture.converted("fxprofile.json", ""));
    for target in fixture.json["targets"].as_array().expect("a report has targets") {
        let pid = target["pid"].to_string();
        let of = |field| number(&target["totals"], field);
        check(session.total(&pid, "native-retained-allocations"), of("live_bytes"), "retained");
        check(session.total(&pid, "native-deallocations-sites"), of("free_bytes"), "freed");
        // Inherited blocks that a child still has are retained, and so must be among the allocated ones.
        let kept = (of("inherited_bytes") - of("free_bytes")).max(0.0);
        let allocated = session.total(&pid, "native-allocations");
        let (least, most) = (of("alloc_bytes") + kept, of("alloc_bytes") + of("inherited_bytes"));
        assert!((least..=most).contains(&allocated), "{allocated} of {least} to {most}");
        if of("inherited_bytes") == 0.0 {
            check(allocated, of("alloc_bytes"), "allocated");
        }
    }
}

#[test]
fn samples_have_the_weights_of_the_view() {
    let fixture = Fixture::exact();
    let session = Session::open(&fixture.converted("fxprofile.json", "--view live-count"));
    for target in fixture.json["targets"].as_array().expect("a report has targets") {
        let expected = number(&target["totals"], "live_count");
        check(session.total(&target["pid"].to_string(), "timing"), expected, "live blocks");
    }
}

#[test]
fn retained_samples_equal_the_estimate() {
    let fixture = Fixture::sampled();
    let session = Session::open(&fixture.converted("fxprofile.json", ""));
    for target in fixture.json["targets"].as_array().expect("a report has targets") {
        let callsites = target["callsites"].as_array().expect("targets have callsites");
        let expected: f64 = callsites.iter().map(|callsite| number(callsite, "live_bytes").round()).sum();
        let retained = session.total(&target["pid"].to_string(), "native-retained-allocations");
        assert!((retained - expected).abs() <= 1.0, "{retained}, not {expected}");
    }
}

#[test]
fn functions_have_their_names_modules_and_lines() {
    let fixture = Fixture::exact();
    let path = fixture.converted("fxprofile.json", "");
    let session = Session::open(&path);
    let functions = session.query("thread functions --thread t-0 --search stores --strategy native-allocations");
    let names = functions["functions"].to_string();
    assert!(names.contains("orchard!stores") || names.contains("\"stores\""), "{names:.2000}");
    let file = read(&path);
    let threads = file["threads"].as_array().expect("there are threads");
    assert!(threads.iter().any(|thread| {
        let lines = thread["frameTable"]["line"].as_array().expect("a column");
        let depths = thread["frameTable"]["inlineDepth"].as_array().expect("a column");
        lines.iter().any(Value::is_u64) && depths.iter().any(|depth| depth == 1)
    }));
    let program = file["libs"].as_array().expect("there are libraries").iter().find(|lib| lib["name"] == "orchard");
    assert!(program.is_some_and(|lib| lib["codeId"].as_str().is_some_and(|id| id.len() == 40)), "{program:?}");
}
