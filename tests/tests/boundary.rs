//! What heapbpf, run by root, reads, shows and writes where other users have programs and folders.

mod memory;
mod writing;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use heapbpf_tests::heapbpf::{Heapbpf, binary, text};
use heapbpf_tests::kernel;
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::target::{Target, build, copy_program, run};
use serde_json::Value;
use tempfile::TempDir;

/// A user that owns nothing of these tests.
const OTHER: u32 = 65534;

/// A folder that all users may search, as `/var/tmp`.
fn open_folder() -> TempDir {
    let folder = tempfile::tempdir_in("/var/tmp").expect("there is such a directory");
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("ours");
    folder
}

/// A program of root whose source is a file of this name.
fn program_of(source: &Path) -> PathBuf {
    Recipe::of("named_source.c").flags(&format!("-DSOURCE=\"{}\"", source.display())).build()
}

/// Where a program of a user has its source, and how heapbpf is started.
struct Case {
    /// The program's user.
    user: u32,
    mode: u32,
    /// The owner of a link by which the program names its source.
    link: Option<u32>,
    /// Of heapbpf; without them, it has all.
    capabilities: Option<&'static str>,
    is_shown: bool,
}

const SOURCES: [Case; 8] = [
    Case { user: 0, mode: 0o600, link: Some(0), capabilities: None, is_shown: true },
    Case { user: 0, mode: 0o600, link: Some(OTHER), capabilities: None, is_shown: false },
    Case { user: OTHER, mode: 0o644, link: None, capabilities: None, is_shown: true },
    Case { user: OTHER, mode: 0o600, link: None, capabilities: None, is_shown: false },
    // As in a container or unit with few capabilities: who cannot change his user reads for no other.
    Case { user: OTHER, mode: 0o644, link: None, capabilities: Some(",+setuid,+setgid"), is_shown: true },
    Case { user: OTHER, mode: 0o644, link: None, capabilities: Some(",+setuid"), is_shown: false },
    Case { user: OTHER, mode: 0o644, link: None, capabilities: Some(",+setgid"), is_shown: false },
    Case { user: OTHER, mode: 0o644, link: None, capabilities: Some(""), is_shown: false },
];

impl Case {
    fn check(&self, number: usize) {
        let folder = open_folder();
        let line = "int line_of_the_source;";
        let source = folder.path().join("source.c");
        fs::write(&source, format!("{line}\n").repeat(30)).expect("ours");
        fs::set_permissions(&source, PermissionsExt::from_mode(self.mode)).expect("ours");
        let named = self.link.map_or(source.clone(), |owner| {
            let link = folder.path().join("link.c");
            symlink(&source, &link).expect("ours");
            lchown(&link, Some(owner), None).expect("tests run as root");
            link
        });
        let program = folder.path().join("program");
        copy_program(program_of(&named), &program);
        let mut target = Target::spawn(&mut run_by(self.user, &program));
        let mut heapbpf = Heapbpf::with_command(self.command(target.pid()));
        let session = heapbpf.start();
        target.work("go");
        let _ = session.interrupt().expect_code(0);
        let shows = |page: &str| heapbpf.page(page).to_string().contains(line);
        assert_eq!(shows("x.html"), self.is_shown, "case {number}");
        if self.capabilities.is_none() {
            for input in INPUTS {
                assert_eq!(converted(&heapbpf, input).contains(line), self.is_shown, "case {number}, {input}");
            }
        }
    }

    fn command(&self, pid: u32) -> Command {
        let mut command = match self.capabilities {
            None => Command::new(binary()),
            Some(more) => {
                let few = "-all,+bpf,+perfmon,+sys_ptrace,+dac_override,+checkpoint_restore,+sys_admin";
                let mut command = Command::new("setpriv");
                command.arg(format!("--bounding-set={few}{more}")).arg(binary());
                command
            }
        };
        command.args([
            "--no-inventory",
            "--interval",
            "1",
            "--on-overload",
            "drop",
            "--source",
            "--pid",
            &pid.to_string(),
        ]);
        command.args(["-o", "x.html", "-o", "x.heapbpf", "-o", "x.json"]);
        command
    }
}

/// A source file of root's alone, whose lines are all the same.
fn secret_source(folder: &TempDir, line: &str) -> PathBuf {
    let source = folder.path().join("source.c");
    fs::write(&source, format!("{line}\n").repeat(30)).expect("ours");
    fs::set_permissions(&source, PermissionsExt::from_mode(0o600)).expect("ours");
    source
}

/// What `convert` reads.
const INPUTS: [&str; 2] = ["x.heapbpf", "x.json"];

/// The text of a report of a recording or JSON report, converted by root.
fn converted(heapbpf: &Heapbpf, input: &str) -> String {
    run(Command::new(binary()).args(["convert", "--source", "-o", "y.html", input]).current_dir(heapbpf.file("")));
    heapbpf.page("y.html").to_string()
}

const SECRET: &str = "int line_of_root_alone;";

#[test]
fn a_program_that_drops_its_rights_has_no_sources_by_the_earlier_ones() {
    kernel::require_root();
    let folder = open_folder();
    let program = program_of(&secret_source(&folder, SECRET));
    for (drops, is_shown) in [(false, true), (true, false)] {
        let mut target = Target::spawn(&mut Command::new(&program));
        let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 --source -o x.html -o x.heapbpf -o x.json");
        let session = heapbpf.start();
        if drops {
            target.work("drop");
        }
        target.work("go");
        let _ = session.interrupt().expect_code(0);
        assert_eq!(heapbpf.page("x.html").to_string().contains(SECRET), is_shown, "drops: {drops}");
        for input in INPUTS {
            assert_eq!(converted(&heapbpf, input).contains(SECRET), is_shown, "drops: {drops}, {input}");
        }
        target.kill();
    }
}

/// Reports of versions that did not keep the rights of programs.
#[test]
fn a_report_without_rights_has_no_sources_of_root() {
    kernel::require_root();
    let folder = open_folder();
    let mut target = Target::spawn(&mut Command::new(program_of(&secret_source(&folder, SECRET))));
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o x.json");
    let session = heapbpf.start();
    target.work("go");
    let _ = session.interrupt().expect_code(0);
    assert!(converted(&heapbpf, "x.json").contains(SECRET));
    let mut report: Value = serde_json::from_slice(&fs::read(heapbpf.file("x.json")).expect("written")).expect("JSON");
    report["targets"][0].as_object_mut().expect("a target").remove("rights").expect("it has them");
    fs::write(heapbpf.file("x.json"), report.to_string()).expect("ours");
    assert!(!converted(&heapbpf, "x.json").contains(SECRET));
    target.kill();
}

/// Root of a container names a file that this machine has at the same path.
#[test]
fn sources_of_a_container_are_its_own() {
    kernel::require_root();
    let folder = open_folder();
    let places = tempfile::tempdir_in(folder.path()).expect("ours");
    let program = program_of(&secret_source(&places, SECRET));
    let own = "int line_of_the_container;";
    let script = format!(
        "mount -t tmpfs none '{0}' && for i in $(seq 30); do echo '{own}'; done > '{0}/source.c' && exec '{1}'",
        places.path().display(),
        program.display(),
    );
    let mut target = Target::spawn(Command::new("unshare").args(["-m", "sh", "-c", &script]));
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 --source -o x.html -o x.heapbpf -o x.json");
    let session = heapbpf.start();
    target.work("go");
    let _ = session.interrupt().expect_code(0);
    let page = heapbpf.page("x.html").to_string();
    assert!(page.contains(own) && !page.contains(SECRET), "{page}");
    for input in INPUTS {
        assert!(!converted(&heapbpf, input).contains(SECRET), "{input}");
    }
    target.kill();
}

/// A command that a user runs, without other groups.
fn run_by(user: u32, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={user}"), format!("--regid={user}")]).arg("--clear-groups").arg(program);
    command
}

#[test]
fn sources_are_shown_that_the_programs_user_may_read() {
    kernel::require_root();
    SOURCES.iter().enumerate().for_each(|(number, case)| case.check(number));
}

#[test]
fn paths_in_messages_do_not_control_a_terminal() {
    let folder = open_folder();
    let program = folder.path().join("bare\x1b[31m\u{202e}");
    copy_program(Recipe::of("bare.c").build(), &program);
    let mut target = Target::spawn(&mut Command::new(&program));
    let message = Heapbpf::of(target.pid(), "").run().expect_error(1);
    assert!(message.contains("bare\\u{1b}[31m\u{fffd}"), "{message:?}");
    assert!(!message.contains(['\x1b', '\u{202e}']), "{message:?}");
    target.kill();
}

/// A name that would colour a terminal, reverse its text, ring its bell and begin a line. The first 15 bytes are the process's name.
const HOSTILE: &[u8] = b"hx\n\x1b[31m\x9b\xe2\x80\xae\x07\nheapbpf: forged";

/// What a terminal receives of a command.
fn on_a_terminal(folder: &Path, words: &[OsString]) -> Vec<u8> {
    // The words are quoted by the shell itself: names may have any byte.
    let mut command = Command::new("bash");
    command.args(["-c", r#"printf -v line "%q " "$@"; exec script -qc "$line" /dev/null"#, "bash"]).args(words);
    command.env("NO_COLOR", "1").env("HEAPBPF_CONFIG", "").env("TERM", "dumb").env("SHELL", "/bin/bash");
    let output = command.current_dir(folder).stdin(Stdio::null()).output().expect("bash can be started");
    assert!(!output.stdout.is_empty(), "{words:?}: {output:?}");
    output.stdout
}

#[test]
fn names_of_others_reach_no_terminal_as_they_are() {
    kernel::require_root();
    let folder = open_folder();
    let named = |number: u32| -> PathBuf {
        let below = folder.path().join(number.to_string());
        fs::create_dir(&below).expect("ours");
        below.join(OsStr::from_bytes(HOSTILE))
    };
    let [program, bare] = [(1, build("exact.c")), (2, Recipe::of("bare.c").build())].map(|(number, built)| {
        let path = named(number);
        copy_program(built, &path);
        path
    });
    let mut targets = [&program, &program, &bare].map(|path| Target::spawn(&mut Command::new(path)));
    let [pid, _, without_heap] = targets.each_ref().map(|target| target.pid().to_string());
    // Files of such names.
    let file = named(3);
    fs::write(&file, "not a report").expect("ours");
    let report = named(4);
    let recorded = format!("--interval 1 --duration 1s -q --no-inventory --pid {pid} -o x.json -o x.heapbpf");
    let recorded = Command::new(binary()).args(recorded.split(' ')).current_dir(folder.path()).output();
    assert!(recorded.as_ref().is_ok_and(|it| it.status.success()), "{recorded:?}");
    fs::copy(folder.path().join("x.json"), &report).expect("ours");
    for words in commands_with_names(&pid, &without_heap, file.as_os_str(), report.as_os_str()) {
        let output = on_a_terminal(folder.path(), &words);
        let shown = String::from_utf8_lossy(&output);
        for harmful in ["\x1b[31m", "\u{202e}", "\x07", "\nheapbpf: forged"] {
            assert!(!shown.contains(harmful), "{harmful:?} of {words:?}: {shown:?}");
        }
        assert!(!output.windows(2).any(|pair| pair == b"m\x9b"), "{words:?}: {shown:?}");
    }
    targets.iter_mut().for_each(Target::assert_running);
}

/// All commands that have names or paths in messages, tables, logs or statuses.
fn commands_with_names(pid: &str, without_heap: &str, file: &OsStr, report: &OsStr) -> Vec<Vec<OsString>> {
    let option = |name: &str, path: &OsStr| [name.as_bytes(), path.as_bytes()].concat();
    let commands = [
        // Without that, its resident pages are recorded.
        ("--exclude-heap=pages", vec!["--pid", without_heap]),
        ("--cmdline=hx*", vec!["--duration", "1s", "-o", "y.json"]),
        ("-vvv", vec!["--pid", pid, "--duration", "2s", "-o", "y.folded"]),
        ("hx*", vec![]),
        ("top", vec!["--once", "--pid", pid]),
        ("top", vec!["--once", "--pid", without_heap]),
        ("doctor", vec!["--pid", pid]),
        ("doctor", vec!["--pid", without_heap]),
        ("leaks", vec!["--pid", pid]),
        ("leaks", vec!["--pid", pid, "--watch", "1s"]),
        ("leaks", vec!["--pid", without_heap]),
        ("convert", vec!["x.json"]),
        ("convert", vec!["x.heapbpf"]),
        ("diff", vec!["x.json", "x.heapbpf"]),
    ]
    .map(|(first, rest)| (first, rest.into_iter().map(OsString::from).collect()))
    .into_iter()
    .chain([
        ("--help", vec![file.to_owned()]),
        ("--pid=1", vec!["-o".into(), file.to_owned()]),
        ("--pid=1", vec!["--suppressions".into(), file.to_owned()]),
        ("--pid=1", vec!["--serve=127.0.0.1:0".into(), "--token-file".into(), file.to_owned()]),
        ("--", vec![file.to_owned()]),
        ("convert", vec![file.to_owned()]),
        ("convert", vec![report.to_owned()]),
        ("convert", vec![OsString::from_vec(option("x.heapbpf\n", file))]),
        ("diff", vec![report.to_owned(), report.to_owned()]),
        ("diff", vec![file.to_owned(), report.to_owned()]),
        ("symbolize", vec![file.to_owned()]),
        ("open", vec![file.to_owned()]),
        ("agent", vec!["--check".into(), "--config".into(), file.to_owned()]),
        ("agent", vec!["--check".into(), OsString::from_vec(option("--config=/nowhere", file))]),
        ("--unknown", vec![file.to_owned()]),
    ]);
    let words =
        |(first, rest): (&str, Vec<OsString>)| [binary().into(), first.into()].into_iter().chain(rest).collect();
    commands.map(words).collect()
}

/// `café` in Latin-1.
const LATIN_1: &[u8] = b"caf\xe9";

#[test]
fn names_that_are_not_utf8_are_escaped() {
    let folder = open_folder();
    let program = folder.path().join(OsStr::from_bytes(LATIN_1));
    for flags in ["-g", "-g0"] {
        copy_program(Recipe::of("latin1.c").flags(flags).build(), &program);
        let mut target = Target::spawn(&mut Command::new(&program));
        let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 --by thread -o x.json");
        let session = heapbpf.start();
        target.work("go");
        let outcome = session.interrupt().expect_code(0);
        assert!(outcome.stderr.contains(r"recording caf\xe9 ("), "{outcome:?}");
        assert!(!outcome.stdout.contains("install") && outcome.stdout.contains(r"caf\xe9"), "{outcome:?}");
        let report: Value = serde_json::from_str(&text(&heapbpf.file("x.json"))).expect("the report is JSON");
        let process = &report["targets"][0];
        assert_eq!(process["comm"], r"caf\xe9");
        let is_path = |value: &Value| value.as_str().is_some_and(|path| path.ends_with(r"/caf\xe9"));
        assert!(is_path(&process["command"]), "{}", process["command"]);
        let threads = process["threads"].as_array().expect("a list");
        assert!(threads.iter().any(|thread| thread["name"] == r"th\xe9"), "{flags}: {threads:?}");
        let callsites = process["callsites"].as_array().expect("a list").iter();
        let mut frames = callsites.flat_map(|callsite| callsite["stack"].as_array().expect("a list"));
        let is_it = |frame: &Value| frame["function"] == r"caf\xe9" && is_path(&frame["module"]);
        assert!(frames.any(is_it), "{flags}: {report}");
    }
}

/// The rights with which its files are opened are in the same file of procfs as its name.
#[test]
fn sources_of_a_program_whose_name_is_not_utf8_are_shown() {
    let folder = open_folder();
    let line = "int line_of_a_program;\n";
    let source = folder.path().join("source.c");
    fs::write(&source, line.repeat(30)).expect("ours");
    let program = folder.path().join(OsStr::from_bytes(LATIN_1));
    copy_program(program_of(&source), &program);
    let mut target = Target::spawn(&mut Command::new(&program));
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 --source -o x.html");
    let session = heapbpf.start();
    target.work("go");
    let _ = session.interrupt().expect_code(0);
    assert!(heapbpf.page("x.html").to_string().contains(line.trim_end()));
}

#[test]
fn names_are_no_formulas_in_tables() {
    let folder = open_folder();
    let program = folder.path().join("=1+2");
    copy_program(build("exact.c"), &program);
    for (option, cell) in [("", ",'=1+2,"), ("--csv-raw", ",=1+2,")] {
        let mut target = Target::spawn(&mut Command::new(&program));
        let mut heapbpf = Heapbpf::of(target.pid(), &format!("--interval 1 -o x.csv {option}"));
        let session = heapbpf.start();
        target.work("go");
        let _ = session.interrupt().expect_code(0);
        let table = text(&heapbpf.file("x.csv"));
        assert!(table.lines().skip(1).all(|row| row.contains(cell)) && table.lines().count() > 1, "{table}");
    }
}
