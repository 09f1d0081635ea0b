//! What heapbpf, run by root, reads and shows for programs of other users.

use std::fs;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::Path;
use std::process::Command;

use heapbpf_tests::heapbpf::{Heapbpf, text};
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::target::{Target, build, copy_program};
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
fn program_of(source: &Path) -> std::path::PathBuf {
    Recipe::of("named_source.c").flags(&format!("-DSOURCE=\"{}\"", source.display())).build()
}

/// The text of the source in a page, of which each line is the same.
fn shows(heapbpf: &Heapbpf, page: &str, line: &str) -> bool {
    let script = r#"grep -o 'id="profile">[^<]*' "$1" | cut -d'>' -f2 | base64 -d | gunzip"#;
    let output = Command::new("sh").args(["-c", script, "sh"]).arg(heapbpf.file(page)).output();
    let output = output.expect("there is a shell");
    assert!(output.status.success() && output.stdout.starts_with(b"{"), "{output:?}");
    String::from_utf8_lossy(&output.stdout).contains(line)
}

#[test]
fn sources_behind_links_of_others_are_not_shown() {
    let folder = open_folder();
    let line = "int line_that_root_alone_reads;\n";
    let secret = folder.path().join("secret.c");
    fs::write(&secret, line.repeat(30)).expect("ours");
    fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).expect("ours");
    let link = folder.path().join("link.c");
    symlink(&secret, &link).expect("ours");
    for (owner, is_shown) in [(0, true), (OTHER, false)] {
        lchown(&link, Some(owner), None).expect("tests run as root");
        let mut target = Target::spawn(&mut Command::new(program_of(&link)));
        let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 --source -o x.html -o x.heapbpf");
        let session = heapbpf.start();
        target.work("go");
        let _ = session.interrupt().expect_code(0);
        assert_eq!(shows(&heapbpf, "x.html", line.trim_end()), is_shown, "a link of user {owner}");
        let convert = ["convert", "--source", "-o", "y.html", "x.heapbpf"];
        let mut converting = Command::new(heapbpf_tests::heapbpf::binary());
        let converted = converting.args(convert).current_dir(heapbpf.file("")).output().expect("it runs");
        assert!(converted.status.success(), "{converted:?}");
        assert_eq!(shows(&heapbpf, "y.html", line.trim_end()), is_shown, "a link of user {owner}, converted");
    }
}

#[test]
fn sources_that_the_programs_user_may_not_read_are_not_shown() {
    let folder = open_folder();
    let line = "int line_for_some_users;\n";
    let source = folder.path().join("source.c");
    fs::write(&source, line.repeat(30)).expect("ours");
    let program = folder.path().join("program");
    copy_program(program_of(&source), &program);
    for (mode, is_shown) in [(0o644, true), (0o600, false)] {
        fs::set_permissions(&source, PermissionsExt::from_mode(mode)).expect("ours");
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&program);
        let mut target = Target::spawn(&mut command);
        let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 --source -o x.html");
        let session = heapbpf.start();
        target.work("go");
        let _ = session.interrupt().expect_code(0);
        assert_eq!(shows(&heapbpf, "x.html", line.trim_end()), is_shown, "mode {mode:o}");
    }
}

/// As in a container or unit with few capabilities.
#[test]
fn root_without_the_right_to_change_its_user_reads_for_no_other() {
    let folder = open_folder();
    let line = "int line_for_all_users;\n";
    let source = folder.path().join("source.c");
    fs::write(&source, line.repeat(30)).expect("ours");
    let program = folder.path().join("program");
    copy_program(program_of(&source), &program);
    for (more, is_shown) in [(",+setuid,+setgid", true), (",+setuid", false), (",+setgid", false), ("", false)] {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&program);
        let mut target = Target::spawn(&mut command);
        let mut command = Command::new("setpriv");
        let few = "--bounding-set=-all,+bpf,+perfmon,+sys_ptrace,+dac_override,+checkpoint_restore,+sys_admin";
        command.arg(format!("{few}{more}")).arg(heapbpf_tests::heapbpf::binary());
        command.args(["--pid", &target.pid().to_string(), "--interval", "1", "--source", "-o", "x.html"]);
        let mut heapbpf = Heapbpf::with_command(command);
        let session = heapbpf.start();
        target.work("go");
        let _ = session.interrupt().expect_code(0);
        assert_eq!(shows(&heapbpf, "x.html", line.trim_end()), is_shown, "with{more}");
    }
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
