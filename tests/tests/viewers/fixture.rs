//! One run of `orchard.cpp`, recorded at an interval of 1 and another at 4 KiB, by the first test that uses it. The files stay in
//! `target/recorded` for inspection.

#![allow(dead_code, reason = "for the formats: not every one needs all of it")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use heapbpf_tests::heapbpf::{Heapbpf, binary};
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::report::{Ledger, Report};
use heapbpf_tests::target::Target;
use heapbpf_tests::{shared, viewers};
use rustix::process::Signal;
use serde_json::{Value, json};

/// The target's PID and ledgers.
const TRUTH: &str = "truth.json";

/// The commands recorded: `plant`, a dump, and the rest; see `orchard.cpp`.
#[derive(Debug)]
pub(crate) struct Fixture {
    directory: PathBuf,
    /// The recorded process. It has forked a child, which has exited.
    pub(crate) pid: u32,
    /// The process's own ledger until the dump, and for each command after it, by the functions that called the
    /// allocator.
    pub(crate) ledgers: Vec<Ledger>,
    /// The JSON report of the recording session.
    pub(crate) report: Report,
    /// The same as untyped JSON.
    pub(crate) json: Value,
}

/// A view's name, and its field in the JSON report.
pub(crate) const VIEWS: [(&str, &str); 4] = [
    ("live-bytes", "live_bytes"),
    ("live-count", "live_count"),
    ("alloc-bytes", "alloc_bytes"),
    ("alloc-count", "alloc_count"),
];

impl Fixture {
    /// Recorded at an interval of 1: all numbers are exact integers.
    #[track_caller]
    pub(crate) fn exact() -> &'static Self {
        static FIXTURE: OnceLock<Fixture> = OnceLock::new();
        FIXTURE.get_or_init(|| Self::of("exact", "1"))
    }

    /// Recorded at an interval of 4 KiB: numbers are estimates.
    #[track_caller]
    pub(crate) fn sampled() -> &'static Self {
        static FIXTURE: OnceLock<Fixture> = OnceLock::new();
        FIXTURE.get_or_init(|| Self::of("sampled", "4KiB"))
    }

    #[track_caller]
    fn of(name: &str, interval: &str) -> Self {
        let directory = shared::folder(name, &shared::of_recordings(), |directory| Self::record(directory, interval));
        let json = read(&directory.join("out.json"));
        let report = Report::read(&directory.join("out.json"));
        let (pid, ledgers) = serde_json::from_value(read(&directory.join(TRUTH))).expect("as written");
        Self { directory, pid, ledgers, report, json }
    }

    /// Records until all modules have their names: the time for these is limited, and all tests use one recording, also if it was made
    /// while the machine stood still for seconds.
    #[track_caller]
    fn record(directory: &Path, interval: &str) {
        const ATTEMPTS_MAX: usize = 5;
        for _ in 0..ATTEMPTS_MAX {
            Self::record_once(directory, interval);
            let report = read(&directory.join("out.json"));
            if report["health"]["symbolization"]["failures"] == json!([]) {
                return;
            }
            for entry in fs::read_dir(directory).expect("the build directory is ours") {
                fs::remove_file(entry.expect("it is there").path()).expect("the build directory is ours");
            }
        }
        panic!("modules without names in {ATTEMPTS_MAX} recordings");
    }

    #[track_caller]
    fn record_once(directory: &Path, interval: &str) {
        let plugin = Recipe::of("plugin.c").flags("-shared -fPIC -Wl,-Bsymbolic -DNO_HEAP").build();
        let program = Recipe::of("orchard.cpp").libraries("-ldl").build();
        let mut target = Target::spawn(Command::new(program).env("HEAPBPF_PLUGIN", plugin));
        let pid = target.pid();
        let file = |name: &str| format!("-o {}", directory.join(name).display());
        let (recording, json) = (file("out.heapbpf"), file("out.json"));
        let arguments = format!("-v --interval {interval} {recording} {json}");
        let mut heapbpf = Heapbpf::of(pid, &arguments);
        let mut session = heapbpf.start();

        let mut ledgers = vec![target.work("plant")];
        session.signal(Signal::USR1);
        session.wait_for("out.0001.json");
        ledgers.extend(["grow", "swell", "borrow"].map(|line| target.work(line)));
        target.work("fork");
        session.wait_for("is being recorded");
        target.work("keep");
        target.begin_exit(0);
        ledgers.push(target.work("keep"));
        let _ = session.interrupt().expect_code(0);

        Report::read(&directory.join("out.json")).assert_complete();
        fs::write(directory.join(TRUTH), json!([pid, ledgers]).to_string()).expect("the build directory is ours");
    }

    /// The folder of its files.
    pub(crate) fn folder(&self) -> &Path {
        &self.directory
    }

    /// The recording.
    pub(crate) fn recording(&self) -> PathBuf {
        self.directory.join("out.heapbpf")
    }

    /// The whole recording in the format with this extension (`pb.gz`), with further arguments separated by blanks, in a file of the
    /// caller's own. The first caller converts it. Panics if the conversion fails.
    #[track_caller]
    pub(crate) fn converted(&self, extension: &str, arguments: &str) -> PathBuf {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = self.directory.join(format!("{}-{number}.{extension}", std::process::id()));
        // Of an earlier process with this number.
        let _ = fs::remove_file(&path);
        fs::hard_link(self.conversion(extension, arguments), &path).expect("the build directory is ours");
        path
    }

    /// The file of all callers.
    #[track_caller]
    fn conversion(&self, extension: &str, arguments: &str) -> PathBuf {
        let name = self.name_of(extension, arguments);
        let file = format!("whole.{extension}");
        let folder = shared::folder(&name, &[self.recording(), binary()], |folder| {
            let mut convert = Command::new(binary());
            convert.env("NO_COLOR", "1").arg("convert").arg(self.recording()).arg("-o").arg(folder.join(&file));
            let _ = viewers::text(convert.args(arguments.split_ascii_whitespace()));
        });
        folder.join(file)
    }

    fn name_of(&self, extension: &str, arguments: &str) -> String {
        let fixture = self.directory.file_name().expect("it has a name").to_string_lossy();
        let word = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '_' };
        format!("{fixture}-{extension}-{}", arguments.chars().map(word).collect::<String>())
    }

    /// What `tests/viewers/<script>` reads in the whole recording in this format, for all callers: the first one runs it.
    #[track_caller]
    pub(crate) fn read_by(&self, script: &str, extension: &str, arguments: &str) -> Value {
        let converted = self.conversion(extension, arguments);
        let name = format!("{script}-{}", self.name_of(extension, arguments));
        let folder = shared::folder(&name, &[converted.clone(), viewers::path(script)], |folder| {
            let seen = viewers::python(script, &[&converted]);
            fs::write(folder.join("read.json"), seen.to_string()).expect("the build directory is ours");
        });
        read(&folder.join("read.json"))
    }

    /// Converts the recording until the dump, and since then.
    #[track_caller]
    pub(crate) fn windows(&self, extension: &str) -> [PathBuf; 2] {
        let end_ns = self.window(1)["window"]["end_unix_ns"].as_u64().expect("windows end");
        let dumped_ns = end_ns - self.report.started_unix_ns;
        [format!("--to {dumped_ns}ns"), String::new()].map(|arguments| self.converted(extension, &arguments))
    }

    /// Returns the JSON report of window 1, until the dump, or 2, since then.
    #[track_caller]
    pub(crate) fn window(&self, number: u32) -> Value {
        read(&self.directory.join(format!("out.{number:04}.json")))
    }

    /// Sums a field of the totals (`live_bytes`) over all processes. Panics if there is no such field.
    #[track_caller]
    pub(crate) fn total(&self, field: &str) -> f64 {
        let targets = self.json["targets"].as_array().expect("a report has targets");
        targets.iter().map(|target| number(&target["totals"], field)).sum()
    }

    /// All callsites of all processes.
    pub(crate) fn callsites(&self) -> impl Iterator<Item = &Value> {
        let targets = self.json["targets"].as_array().expect("a report has targets");
        targets.iter().flat_map(|target| target["callsites"].as_array().expect("targets have callsites"))
    }
}

/// Returns a numeric field of an object.
#[track_caller]
pub(crate) fn number(object: &Value, field: &str) -> f64 {
    object[field].as_f64().unwrap_or_else(|| panic!("no number `{field}` in {object:.200}"))
}

/// A JSON file.
#[track_caller]
pub(crate) fn read(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("`{}`: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("`{}`: {error}", path.display()))
}

#[test]
fn the_recording_has_difficult_cases_for_readers() {
    let exact = Fixture::exact();
    let process = exact.report.process(exact.pid);
    // Most freed blocks were allocated by an earlier command, which ledgers omit.
    let made: u64 = exact.ledgers.iter().flat_map(|ledger| &ledger.sites).map(|site| site.counts.alloc_bytes).sum();
    let ours = |name: &str| matches!(name, "picks" | "presses" | "stores" | "plugin_keeps");
    assert_eq!(process.exact_under(ours).alloc_bytes, made);
    let totals = &process.totals;
    assert!(totals.peak_bytes.as_f64() > totals.live_bytes.as_f64().map(|live| live * 1.3), "{totals:?}");
    assert!(process.callsites.len() > 500, "{} callsites", process.callsites.len());
    let frames = || process.callsites.iter().flat_map(|callsite| &callsite.stack);
    assert!(process.callsites.iter().filter(|callsite| callsite.stack.len() > 12).count() > 500);
    assert!(frames().any(|frame| frame.inlined));
    let mut names = frames().filter_map(|frame| frame.function.as_deref());
    assert!(names.any(|name| name.contains("orchard::Branch<orchard::Season<std::pair<")));
    assert_eq!(exact.report.child_of(exact.pid).exact_by_leaf()["stores"].alloc_bytes, 40 * 500);
    let grown = exact.window(2);
    assert_eq!(grown["window"]["number"], 2);
    assert!(Fixture::sampled().total("live_bytes") > 0.0);
}
