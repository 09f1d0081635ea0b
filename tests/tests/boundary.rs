//! What heapbpf, run by root, reads, shows and writes where other users have programs and folders.

mod writing;

use std::fs;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use heapbpf_tests::heapbpf::{Heapbpf, binary, text};
use heapbpf_tests::kernel;
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::target::{Target, build, copy_program, run};
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
            let convert = ["convert", "--source", "-o", "y.html", "x.heapbpf"];
            run(Command::new(binary()).args(convert).current_dir(heapbpf.file("")));
            assert_eq!(shows("y.html"), self.is_shown, "case {number}, converted");
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
        command.args(["-o", "x.html", "-o", "x.heapbpf"]);
        command
    }
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
    assert!(message.contains("bare\u{fffd}[31m\u{fffd}"), "{message:?}");
    assert!(!message.contains(['\x1b', '\u{202e}']), "{message:?}");
    target.kill();
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
