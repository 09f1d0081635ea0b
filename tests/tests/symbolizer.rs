//! Symbols from forged files: the symbolizer process opens nothing that a target chose, crashes alone, and finishes in
//! time. Every case has a report.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use heapbpf_tests::heapbpf::{Heapbpf, Outcome, Session, binary, text};
use heapbpf_tests::kernel;
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::target::{Target, run};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Maximum time for a report, on a busy machine. A hang takes longer.
const PROMPTLY: Duration = Duration::from_secs(40);
/// Runs against a library that is truncated concurrently; `HEAPBPF_TRUNCATION_RUNS` sets another number.
const TRUNCATION_RUNS: usize = 5;
/// Time after which no further run starts.
const TRUNCATION_TIME: Duration = Duration::from_secs(25);

/// A library of one test, and the program that has loaded it.
struct Hosted {
    directory: TempDir,
    library: PathBuf,
    target: Option<Target>,
}

impl Hosted {
    fn new(flags: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory for temporary files");
        let built = Recipe::of("plugin.c").flags("-DNO_HEAP -shared -fPIC -Wl,-Bsymbolic").flags(flags).build();
        let library = directory.path().join("plugin.so");
        fs::copy(built, &library).expect("the directory is ours");
        Self { directory, library, target: None }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn objcopy(&self, arguments: &[&OsStr]) {
        run(Command::new("objcopy").args(arguments).arg(&self.library));
    }

    /// Makes the library refer to a debug file.
    fn link(&self, name: &str) {
        let mut section = name.as_bytes().to_vec();
        section.push(0);
        section.resize(section.len().next_multiple_of(4), 0);
        section.extend([0; 4]);
        let file = self.path("section");
        fs::write(&file, section).expect("the directory is ours");
        self.objcopy(&["--strip-debug".as_ref()]);
        self.objcopy(&["--add-section".as_ref(), format!(".gnu_debuglink={}", file.display()).as_ref()]);
    }

    /// Adds 440 KB of debug information that takes a reader minutes: thousands of units share one line table, which is
    /// parsed for each unit.
    fn arm(&self) {
        let source = self.path("bomb.s");
        fs::write(&source, BOMB).expect("the directory is ours");
        let object = self.path("bomb.o");
        run(Command::new("gcc").arg("-c").arg(&source).arg("-o").arg(&object));
        self.objcopy(&["--strip-debug".as_ref()]);
        for section in [".debug_abbrev", ".debug_info", ".debug_line"] {
            let bytes = self.path("bytes");
            let dumped = |section: &str, file: &Path| format!("{section}={}", file.display());
            run(Command::new("objcopy").arg("--dump-section").arg(dumped(section, &bytes)).arg(&object));
            self.objcopy(&["--add-section".as_ref(), dumped(section, &bytes).as_ref()]);
        }
    }

    /// Starts the program.
    fn load(&mut self) -> u32 {
        let mut target = Target::start("host.c");
        target.work(&format!("load {}", self.library.display()));
        let pid = target.pid();
        self.target = Some(target);
        pid
    }

    /// Makes the library allocate.
    fn allocate(&mut self) {
        self.target.as_mut().expect("it was started").work("use 1000 50");
    }

    /// Records a few allocations, until the report would be written.
    fn record(&mut self) -> (Heapbpf, Session) {
        let pid = self.load();
        let mut heapbpf = Heapbpf::of(pid, "--interval 1 -o report.json");
        let session = heapbpf.start();
        self.allocate();
        (heapbpf, session)
    }
}

/// Section offsets are written as numbers, because the sections are not linked.
const BOMB: &str = "
    .section .debug_abbrev
    .byte 1, 0x11, 0, 0x10, 0x17, 0, 0, 0
    .section .debug_info
    .rept 4000
    .long 12
    .value 4
    .long 0
    .byte 8, 1
    .long 0
    .endr
    .section .debug_line
    .long end - start
start:
    .value 4
    .long program - header
header:
    .byte 1, 1, 1, -5, 14, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0
program:
    .byte 0, 9, 2
    .quad 0x1000
    .fill 370000, 1, 0x20
end:
";

fn health(heapbpf: &Heapbpf) -> Value {
    let report: Value = serde_json::from_str(&text(&heapbpf.file("report.json"))).expect("the report is JSON");
    report["health"]["symbolization"].clone()
}

/// Returns the failure of the library: its reason and the fallback for names.
#[track_caller]
fn failure(heapbpf: &Heapbpf) -> (String, String) {
    let health = health(heapbpf);
    let failures = health["failures"].as_array().expect("a list");
    let of_library = failures.iter().find(|failure| failure["module"].as_str().expect("a path").ends_with("plugin.so"));
    let of_library = of_library.unwrap_or_else(|| panic!("no failure of the library in {health}"));
    let field = |name: &str| of_library[name].as_str().expect("text").to_owned();
    (field("reason"), field("names"))
}

/// Returns the line of the first frame with this function.
fn line_of(heapbpf: &Heapbpf, function: &str) -> Option<Option<u32>> {
    let report = heapbpf.report("report.json");
    let frames = report.targets.iter().flat_map(|target| &target.callsites).flat_map(|callsite| &callsite.stack);
    frames.into_iter().find(|frame| frame.function.as_deref() == Some(function)).map(|frame| frame.line)
}

#[track_caller]
fn assert_allocations(heapbpf: &Heapbpf) {
    assert!(!heapbpf.report("report.json").targets[0].callsites.is_empty(), "the report has no callsites");
}

/// Waits for the symbolizer process.
#[track_caller]
fn symbolizer_of(session: &Session) -> Pid {
    let deadline = Instant::now() + PROMPTLY;
    loop {
        let is_it = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == "heapbpf-symbol")
        };
        if let Some(pid) = kernel::children(session.pid()).into_iter().find(is_it) {
            return i32::try_from(pid).ok().and_then(Pid::from_raw).expect("pids are positive");
        }
        assert!(Instant::now() < deadline, "there is no symbolizer");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Ends the session, which must exit soon.
#[track_caller]
fn end_promptly(session: Session) -> Outcome {
    let start = Instant::now();
    let outcome = session.wait().expect_code(0);
    assert!(start.elapsed() < PROMPTLY, "it took {:?}", start.elapsed());
    outcome
}

#[test]
fn names_are_read_by_an_isolated_process() {
    let mut hosted = Hosted::new("");
    let (heapbpf, session) = hosted.record();
    let _ = session.interrupt().expect_code(0);
    assert!(line_of(&heapbpf, "plugin_keeps").flatten().is_some(), "no line");
    let health = health(&heapbpf);
    assert_eq!(health["isolation"], serde_json::json!(["files", "capabilities", "system_calls", "limits"]), "{health}");
    assert_eq!(health["failures"], serde_json::json!([]), "{health}");
}

#[test]
fn debug_links_chosen_by_the_target_are_not_opened() {
    let links = ["fifo", "/dev/zero", "/tmp/heapbpf-secret.debug", "../secret.debug"];
    let mut hosted: Vec<Hosted> = links.iter().map(|_| Hosted::new("")).collect();
    for (hosted, link) in hosted.iter().zip(links) {
        run(Command::new("mkfifo").arg(hosted.path("fifo")));
        hosted.link(link);
    }
    let pids: Vec<u32> = hosted.iter_mut().map(Hosted::load).collect();
    let mut strace = Command::new("strace");
    strace.args(["-f", "-y", "--seccomp-bpf", "-e", "trace=open,openat,openat2", "-o", "trace"]).arg(binary());
    strace.args(pids.iter().flat_map(|pid| ["--pid".to_owned(), pid.to_string()]));
    strace.args(["--no-inventory", "--interval", "1", "--duration", "3s", "-o", "report.json"]);
    let mut heapbpf = Heapbpf::with_command(strace);
    let session = heapbpf.start();
    hosted.iter_mut().for_each(Hosted::allocate);
    let _ = end_promptly(session);
    assert!(line_of(&heapbpf, "plugin_keeps").is_some(), "no names");
    let trace = text(&heapbpf.file("trace"));
    assert!(trace.contains("plugin.so"), "strace saw nothing");
    let astray = |line: &&str| {
        let opened = !line.contains("O_PATH") && ["fifo", "secret"].iter().any(|name| line.contains(name));
        opened || line.contains("/dev/zero")
    };
    assert_eq!(trace.lines().filter(astray).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn a_file_readable_by_its_owner_only_is_symbolized() {
    let mut hosted = Hosted::new("");
    chown(&hosted.library, Some(65534), Some(65534)).expect("we are root");
    fs::set_permissions(&hosted.library, fs::Permissions::from_mode(0o500)).expect("we are root");
    let (heapbpf, session) = hosted.record();
    let _ = session.interrupt().expect_code(0);
    assert!(line_of(&heapbpf, "plugin_keeps").flatten().is_some(), "no line: {}", health(&heapbpf));
}

#[test]
fn debug_information_that_takes_too_long_is_skipped() {
    let mut hosted = Hosted::new("");
    hosted.arm();
    let (heapbpf, session) = hosted.record();
    session.signal(Signal::INT);
    let outcome = end_promptly(session);
    assert_eq!(line_of(&heapbpf, "plugin_keeps"), Some(None));
    let (reason, names) = failure(&heapbpf);
    assert_eq!((reason.as_str(), names.as_str()), ("naming it exceeded 3 s", "symbol_table"));
    assert!(outcome.stdout.contains("plugin.so: from the symbol table alone"), "{}", outcome.stdout);
}

#[test]
fn a_second_interrupt_stops_symbolization() {
    let mut hosted = Hosted::new("");
    hosted.arm();
    let (heapbpf, session) = hosted.record();
    session.signal(Signal::INT);
    let _ = symbolizer_of(&session);
    let start = Instant::now();
    session.signal(Signal::INT);
    let _ = session.wait().expect_code(0);
    assert!(start.elapsed() < Duration::from_secs(5), "it took {:?}", start.elapsed());
    assert_allocations(&heapbpf);
}

#[test]
fn a_killed_symbolizer_is_restarted() {
    let mut hosted = Hosted::new("");
    hosted.arm();
    let (heapbpf, session) = hosted.record();
    session.signal(Signal::INT);
    let symbolizer = symbolizer_of(&session);
    thread::sleep(Duration::from_millis(500));
    kill_process(symbolizer, Signal::KILL).expect("it runs");
    let _ = end_promptly(session);
    let (reason, _) = failure(&heapbpf);
    assert!(reason.contains("SIGKILL") || reason.contains("exceeded"), "{reason}");
    assert_eq!(line_of(&heapbpf, "plugin_keeps"), Some(None));
}

/// Truncates a file and restores it repeatedly, so that its size and times are mostly the original ones.
fn truncate_repeatedly(path: &Path, done: &AtomicBool) {
    let bytes = fs::read(path).expect("readable");
    let file = File::options().write(true).open(path).expect("writable");
    let modified = file.metadata().and_then(|metadata| metadata.modified()).expect("file systems have times");
    while !done.load(Ordering::Relaxed) {
        file.set_len(0).expect("writable");
        fs::write(path, &bytes).expect("writable");
        file.set_modified(modified).expect("we are root");
        thread::sleep(Duration::from_micros(300));
    }
}

/// Set on drop, also by a panic.
struct Raise<'a>(&'a AtomicBool);

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "the figure in docs/reliability.md")]
fn a_library_truncated_concurrently_loses_names_at_most() {
    let runs = std::env::var("HEAPBPF_TRUNCATION_RUNS").ok().and_then(|runs| runs.parse().ok());
    let (runs, time) = runs.map_or((TRUNCATION_RUNS, TRUNCATION_TIME), |runs| (runs, Duration::MAX));
    let start = Instant::now();
    let (mut reports, mut crashes) = (0, 0);
    while reports < runs && (reports == 0 || start.elapsed() < time) {
        // Truncation removes the library's data from the program, which cannot call it any more.
        let mut hosted = Hosted::new("");
        let (heapbpf, session) = hosted.record();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let truncating = scope.spawn(|| truncate_repeatedly(&hosted.library, &done));
            let raise = Raise(&done);
            session.signal(Signal::INT);
            let _ = end_promptly(session);
            drop(raise);
            truncating.join().expect("the file is ours");
        });
        assert_allocations(&heapbpf);
        reports += 1;
        crashes += usize::from(health(&heapbpf)["failures"].as_array().is_some_and(|list| !list.is_empty()));
    }
    println!("{reports} reports, {crashes} with names missing");
}
