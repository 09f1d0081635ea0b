//! Names from separate debug files: directories, debuginfod servers (Debian's, and hostile ones), and what is left without them.

mod server;
mod split;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use heapbpf_tests::heapbpf::{Heapbpf, Outcome, binary, text};
use heapbpf_tests::kernel::{self, wait_until};
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::target::{copy_program, run};
use serde_json::Value;
use tempfile::TempDir;

use self::server::{Debuginfod, Server};

const FUNCTIONS: [&str; 4] = ["adds", "fills_cache", "main", "reads_index"];

/// A stripped program, and its debug file elsewhere.
struct Split {
    directory: TempDir,
    program: PathBuf,
    build_id: String,
}

impl Split {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory for temporary files");
        let built = Recipe::of("stripped.c").flags("-Wl,--build-id").build();
        let program = directory.path().join("stripped");
        copy_program(built, &program);
        fs::create_dir(directory.path().join("files")).expect("the directory is ours");
        let split = Self { build_id: build_id(&program), program, directory };
        run(Command::new("objcopy").arg("--only-keep-debug").arg(&split.program).arg(split.debug_file()));
        run(Command::new("strip").arg(&split.program));
        split
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn debug_file(&self) -> PathBuf {
        self.path("files/stripped.debug")
    }

    /// Moves what the debug file shares with another one to a third file (dwz(1)).
    fn share(&self) {
        let other = self.path("files/other.debug");
        let source = Recipe::of("stripped.c").flags("-Wl,--build-id -O2 -DOTHER").build();
        run(Command::new("objcopy").arg("--only-keep-debug").arg(source).arg(&other));
        let shared = self.path("files/shared.debug");
        run(Command::new("dwz").arg("-m").arg(&shared).arg("-M").arg("../shared").args([&self.debug_file(), &other]));
        assert!(shared.is_file(), "dwz moved nothing");
    }

    /// Records the program with an empty home directory, and more environment.
    fn record(&self, arguments: &[&str], environment: &[(&str, &str)]) -> (Outcome, Value) {
        kernel::require_root();
        let program = self.program.to_str().expect("UTF-8");
        let words = ["--interval", "1", "--on-overload", "drop", "-o", "report.json"];
        let mut command = Command::new("env");
        command.args(environment.iter().map(|(name, value)| format!("{name}={value}"))).arg(binary());
        command.args(words).args(arguments).args(["--", program]);
        command.env("HOME", self.path("home")).env_remove("XDG_CACHE_HOME");
        let mut heapbpf = Heapbpf::with_command(command);
        let outcome = heapbpf.run().expect_code(0);
        (outcome, serde_json::from_str(&text(&heapbpf.file("report.json"))).expect("the report is JSON"))
    }
}

fn build_id(program: &Path) -> String {
    let output = Command::new("readelf").arg("-n").arg(program).output().expect("readelf runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let line = text.lines().find_map(|line| line.trim().strip_prefix("Build ID: ")).expect("a build id");
    line.trim().to_owned()
}

/// Frames of the program by function, `None` for those without a name, with the bytes of their callsites.
fn frames<'a>(report: &'a Value, module: &str) -> Vec<(Option<&'a str>, &'a Value, f64)> {
    let callsites = report["targets"].as_array().expect("targets").iter();
    let callsites = callsites.flat_map(|target| target["callsites"].as_array().expect("callsites"));
    let mut frames = Vec::new();
    for callsite in callsites {
        let bytes = callsite["alloc_bytes"].as_f64().expect("bytes");
        for frame in callsite["stack"].as_array().expect("frames") {
            if frame["module"].as_str().is_some_and(|path| path.ends_with(module)) {
                frames.push((frame["function"].as_str(), frame, bytes));
            }
        }
    }
    frames
}

fn functions(report: &Value) -> Vec<String> {
    let named = frames(report, "/stripped").into_iter().filter_map(|(name, _, _)| name.map(str::to_owned));
    let mut names: Vec<String> = named.filter(|name| name != "_start").collect();
    names.sort();
    names.dedup();
    names
}

/// Share of the bytes of frames that have a name.
fn named_share(report: &Value, module: &str) -> f64 {
    let frames = frames(report, module);
    let sum = |named: bool| -> f64 { frames.iter().filter(|it| !named || it.0.is_some()).map(|it| it.2).sum() };
    sum(true) / sum(false)
}

#[track_caller]
fn check_named(report: &Value) {
    assert_eq!(functions(report), FUNCTIONS);
    let lines =
        frames(report, "/stripped").into_iter().filter(|(name, frame, _)| *name == Some("adds") && frame["line"] == 21);
    assert!(lines.count() > 0, "no line");
    let share = named_share(report, "/stripped");
    assert!(share >= 0.99, "share of named frames: {share}");
    assert_eq!(report["health"]["symbolization"]["modules"], Value::Array(Vec::new()));
}

#[test]
fn without_debug_files_functions_are_merged_and_advice_is_given() {
    let split = Split::new();
    let (outcome, report) = split.record(&[], &[]);
    assert_eq!(functions(&report), [""; 0]);
    // Two calls of `adds` in `fills_cache` are one function.
    let mut starts: Vec<&str> = frames(&report, "/stripped")
        .iter()
        .map(|(_, frame, _)| frame["function_start"].as_str().expect("a start"))
        .collect();
    starts.sort_unstable();
    starts.dedup();
    assert!((FUNCTIONS.len()..=FUNCTIONS.len() + 1).contains(&starts.len()), "{starts:?}");
    let module = &report["health"]["symbolization"]["modules"][0];
    assert_eq!((&module["symbols"], &module["build_id"]), (&"unwind_tables".into(), &split.build_id.as_str().into()));
    let advice = format!("install the debug information of build {}, or set DEBUGINFOD_URLS", split.build_id);
    assert!(outcome.stderr.contains(&advice) || outcome.stdout.contains(&advice), "{outcome:?}");
}

#[test]
fn given_directories_are_searched_by_build_id_and_debug_link() {
    let split = Split::new();
    let (first, rest) = split.build_id.split_at(2);
    let store = split.path("store");
    let folder = store.join(".build-id").join(first);
    fs::create_dir_all(&folder).expect("the directory is ours");
    let by_id = folder.join(format!("{rest}.debug"));
    split.share();
    fs::copy(split.debug_file(), &by_id).expect("copied");
    fs::create_dir(store.join(".dwz")).expect("the directory is ours");
    fs::copy(split.path("files/shared.debug"), store.join(".dwz/shared")).expect("copied");
    let given = ["--debug-dir", "/nowhere", "--debug-dir", store.to_str().expect("UTF-8")];
    check_named(&split.record(&given, &[]).1);
    // The file of another build is not used.
    fs::copy(split.path("files/other.debug"), &by_id).expect("copied");
    assert_eq!(functions(&split.record(&given, &[]).1), [""; 0]);
    // A debug link, below the directory of the module.
    let split = Split::new();
    let below = format!("links{}", split.directory.path().display());
    fs::create_dir_all(split.path(&below)).expect("the directory is ours");
    run(Command::new("objcopy")
        .arg(format!("--add-gnu-debuglink={}", split.debug_file().display()))
        .arg(&split.program));
    fs::rename(split.debug_file(), split.path(&below).join("stripped.debug")).expect("the directory is ours");
    check_named(&split.record(&["--debug-dir", split.path("links").to_str().expect("UTF-8")], &[]).1);
}

#[test]
fn debian_debuginfod_serves_debug_files_and_shared_ones() {
    let split = Split::new();
    split.share();
    let server = Debuginfod::start(&split.path("files"), &split.build_id);
    let (outcome, report) = split.record(&["--debuginfod", &server.url()], &[]);
    check_named(&report);
    let downloads = report["health"]["symbolization"]["downloads"].as_array().expect("a list");
    assert_eq!(downloads.len(), 2, "the debug file and the shared one: {downloads:?}");
    assert!(outcome.stderr.contains("downloading debug information of `stripped`"), "{}", outcome.stderr);
    // At the place of elfutils' client.
    let cached = split.path("home/.cache/debuginfod_client").join(&split.build_id).join("debuginfo");
    assert_eq!(fs::read(&cached).expect("cached"), fs::read(split.debug_file()).expect("ours"));
    // From the cache, of a server that is gone.
    drop(server);
    let (_, report) = split.record(&[], &[("DEBUGINFOD_URLS", "http://127.0.0.1:9")]);
    check_named(&report);
    assert_eq!(report["health"]["symbolization"]["downloads"], Value::Array(Vec::new()));
    // Off without servers, whatever is cached.
    assert_eq!(functions(&split.record(&[], &[]).1), [""; 0]);
}

/// Returns why the download failed.
#[track_caller]
fn failure(split: &Split, server: &Server, environment: &[(&str, &str)]) -> String {
    let (_, report) = split.record(&["--debuginfod", &server.url()], environment);
    assert_eq!(functions(&report), [""; 0]);
    let failure = &report["health"]["symbolization"]["downloads"][0]["failure"];
    failure.as_str().unwrap_or_else(|| panic!("no failure: {failure}")).to_owned()
}

#[test]
fn hostile_servers_cost_a_bounded_time_and_give_no_names() {
    let split = Split::new();
    let other = Recipe::of("stripped.c").flags("-Wl,--build-id -O2 -DOTHER").build();
    let wrong = Server::answering(&fs::read(other).expect("built"));
    assert!(failure(&split, &wrong, &[]).contains("sent a file of another build"));
    assert!(failure(&split, &Server::answering(b"no ELF file"), &[]).contains("another build"));
    assert!(
        failure(&split, &Server::sending("HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n"), &[]).contains("status 500")
    );
    for location in ["file:///etc/passwd", "ftp://h/x", "../x"] {
        let answer = format!("HTTP/1.1 302 Found\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n");
        assert!(failure(&split, &Server::sending(&answer), &[]).contains("redirects to"), "{location}");
    }
    let cycle = Server::sending("HTTP/1.1 302 Found\r\nlocation: /again\r\ncontent-length: 0\r\n\r\n");
    assert!(failure(&split, &cycle, &[]).contains("redirects too often"));
    let limit = [("DEBUGINFOD_MAXSIZE", "100000")];
    let large = Server::sending("HTTP/1.1 200 OK\r\ncontent-length: 999999999999\r\n\r\n");
    assert!(failure(&split, &large, &limit).contains("exceeds the limit"));
    assert!(failure(&split, &Server::endless(), &limit).contains("exceeds the limit"));
    let hasty = [("DEBUGINFOD_TIMEOUT", "1")];
    assert!(failure(&split, &Server::silent(), &hasty).contains("less than 100 KiB within 1s"));
    assert!(failure(&split, &Server::endless_interim(), &hasty).contains("less than 100 KiB within 1s"));
    let stalled = Server::sending("HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\nsome");
    assert!(failure(&split, &stalled, &hasty).contains("less than 100 KiB within 1s"));
    assert!(failure(&split, &Server::endless_drops(), &hasty).contains("less than 100 KiB within 1s"));
    assert!(!split.path("home/.cache/debuginfod_client").join(&split.build_id).join("debuginfo").exists());
    let outcome = Heapbpf::new(["--debuginfod", "file:///x", "--", "true"]).run();
    assert!(outcome.expect_error(2).contains("is not the address of a debuginfod server"));
}

#[test]
fn a_file_that_is_compressed_unasked_is_decompressed() {
    let split = Split::new();
    let file = fs::read(split.debug_file()).expect("ours");
    let server = Server::compressing(&file);
    let limit = (file.len() - 1).to_string();
    assert!(failure(&split, &server, &[("DEBUGINFOD_MAXSIZE", &limit)]).contains("exceeds the limit"));
    check_named(&split.record(&["--debuginfod", &server.url()], &[]).1);
    let cached = split.path("home/.cache/debuginfod_client").join(&split.build_id).join("debuginfo");
    assert!(fs::read(&cached).expect("cached") == file, "the cache has another file");
}

#[test]
fn a_missing_file_is_requested_once_in_ten_minutes() {
    let split = Split::new();
    let server = Server::sending("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n");
    assert_eq!(failure(&split, &server, &[]), "no server has it");
    let cached = split.path("home/.cache/debuginfod_client").join(&split.build_id).join("debuginfo");
    assert_eq!(fs::metadata(&cached).expect("a mark").len(), 0);
    assert_eq!(failure(&split, &server, &[]), "no server has it");
    assert_eq!(server.requests(), 1);
    // elfutils' setting of the age.
    let setting = split.path("home/.cache/debuginfod_client/cache_miss_s");
    fs::write(&setting, "0\n").expect("the directory is ours");
    assert_eq!(failure(&split, &server, &[]), "no server has it");
    assert_eq!(server.requests(), 2);
    // A pipe in its place is not opened: nobody writes.
    fs::remove_file(&setting).expect("the directory is ours");
    run(Command::new("mkfifo").arg(&setting));
    assert_eq!(failure(&split, &server, &[]), "no server has it");
    assert_eq!(server.requests(), 2);
}

/// The program is gone, and its debug file is found by build id.
#[test]
fn names_are_added_later_to_reports_and_recordings() {
    let split = Split::new();
    let paths = ["x.json", "x.heapbpf", "x.pb.gz"].map(|name| split.path(name).display().to_string());
    let outputs: Vec<&str> = paths.iter().flat_map(|path| ["-o", path]).collect();
    let (outcome, report) = split.record(&[&["--no-symbolize"], &outputs[..]].concat(), &[]);
    assert!(frames(&report, "").iter().all(|(name, frame, _)| name.is_none() && frame["module_offset"].is_string()));
    assert_eq!(report["health"]["symbolization"]["isolation"], Value::Array(Vec::new()), "a symbolizer was started");
    assert!(!outcome.stdout.contains("DEBUGINFOD_URLS"));
    fs::remove_file(&split.program).expect("the directory is ours");
    let (first, rest) = split.build_id.split_at(2);
    let folder = split.path("store/.build-id").join(first);
    fs::create_dir_all(&folder).expect("the directory is ours");
    fs::copy(split.debug_file(), folder.join(format!("{rest}.debug"))).expect("copied");
    let store = split.path("store").display().to_string();
    let symbolize = |from: &str, to: &str| {
        let arguments = ["symbolize", "--quiet", from, "--debug-dir", &store, "-o", to];
        Heapbpf::new(arguments).run().expect_code(0);
    };
    let named = split.path("named.json").display().to_string();
    let recording = split.path("named.heapbpf").display().to_string();
    let read = || serde_json::from_str::<Value>(&text(Path::new(&named))).expect("the report is JSON");
    symbolize(&paths[0], &named);
    check_named(&read());
    symbolize(&paths[1], &named);
    check_named(&read());
    symbolize(&paths[1], &recording);
    Heapbpf::new(["convert", "--quiet", &recording, "-o", &named]).run().expect_code(0);
    check_named(&read());
    let profile = split.path("named.pb.gz").display().to_string();
    symbolize(&paths[2], &profile);
    let output = Command::new("go").args(["tool", "pprof", "-top", &profile]).output().expect("go is installed");
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(FUNCTIONS.iter().all(|function| table.contains(function)), "{table}");
    for (from, to) in [(&paths[2], "x.svg"), (&paths[0], "x.heapbpf")] {
        Heapbpf::new(["symbolize", from, "-o", to]).run().expect_error(2);
    }
}

/// Records a program of the distribution until it exits, or a server until it has created its socket, and checks its unnamed
/// functions.
fn check_merged(command: &[&str], module: &str, package: &str, socket: Option<&str>) {
    let mut heapbpf = Heapbpf::new([&["--interval", "1", "-q", "-o", "report.json", "--"], command].concat());
    let outcome = match socket {
        None => heapbpf.run(),
        Some(socket) => {
            let session = heapbpf.spawn();
            wait_until("the server listens", || Path::new(socket).exists());
            // heapbpf passes it on.
            session.terminate()
        }
    };
    outcome.expect_code(0);
    let report: Value = serde_json::from_str(&text(&heapbpf.file("report.json"))).expect("the report is JSON");
    let unnamed: Vec<_> = frames(&report, module).into_iter().filter(|(name, ..)| name.is_none()).collect();
    let bytes = |with_start: bool| -> f64 {
        let of = unnamed.iter().filter(|(_, frame, _)| !with_start || frame["function_start"].is_string());
        of.map(|(_, _, bytes)| bytes).sum()
    };
    assert!(bytes(true) >= 0.99 * bytes(false), "{module}: {} of {} bytes have a start", bytes(true), bytes(false));
    let distinct = |field: &str| {
        let mut values: Vec<&str> = unnamed.iter().filter_map(|(_, frame, _)| frame[field].as_str()).collect();
        values.sort_unstable();
        values.dedup();
        values.len()
    };
    let (functions, addresses) = (distinct("function_start"), distinct("module_offset"));
    assert!(functions * 3 <= addresses * 2, "{module}: {functions} functions, {addresses} addresses");
    let modules = report["health"]["symbolization"]["modules"].as_array().expect("a list");
    let listed = modules.iter().find(|it| it["module"].as_str().is_some_and(|path| path.ends_with(module)));
    let listed = listed.unwrap_or_else(|| panic!("{module} is not in {modules:?}"));
    assert_eq!((&listed["symbols"], &listed["package"]), (&"unwind_tables".into(), &package.into()));
}

/// Debian's debug packages are not in its main archive, so their names are not tested.
#[test]
fn stripped_programs_of_the_distribution_have_functions_and_advice() {
    let folder = tempfile::tempdir().expect("a directory for temporary files");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let git = |arguments: &[&str]| {
        run(Command::new("/usr/bin/git")
            .arg("-C")
            .arg(folder.path())
            .args(["-c", "user.name=a", "-c", "user.email=b"])
            .args(arguments));
    };
    git(&["init", "--quiet"]);
    for number in 0..20 {
        fs::write(path("file"), format!("{number}\n").repeat(100)).expect("the directory is ours");
        git(&["add", "file"]);
        git(&["commit", "--quiet", "-m", "change"]);
    }
    check_merged(&["/usr/bin/git", "-C", &path(""), "--no-pager", "log", "--stat"], "/git", "git-dbgsym", None);
    let socket = path("memcached");
    let memcached = ["memcached", "-u", "root", "-U", "0", "-p", "0", "-s", &socket];
    check_merged(&memcached, "/memcached", "memcached-dbgsym", Some(&socket));
    let socket = path("redis");
    let redis = ["redis-server", "--port", "0", "--unixsocket", &socket, "--save", "", "--dir", &path("")];
    check_merged(&redis, "/redis-check-rdb", "redis-tools-dbgsym", Some(&socket));
}

#[test]
fn redirections_within_http_are_followed() {
    let split = Split::new();
    let real = Server::answering(&fs::read(split.debug_file()).expect("ours"));
    let answer = format!("HTTP/1.1 301 Moved\r\nlocation: {}/x\r\ncontent-length: 0\r\n\r\n", real.url());
    let (_, report) = split.record(&["--debuginfod", &Server::sending(&answer).url()], &[]);
    check_named(&report);
}
