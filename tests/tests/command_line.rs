//! Wrong command lines, their messages and exit codes, compared with the table in docs/command-line.md;
//! `UPDATE_GOLDEN=1` rewrites it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use heapbpf_tests::heapbpf::binary;
use heapbpf_tests::target::copy_program;

/// Each must fail before anything is attached or written, without privileges, and the same on any machine.
const WRONG: [&str; 33] = [
    "",
    "recrod",
    "leak --pid 1",
    "no-such-program",
    "0",
    "--pid redis",
    "--pid 0",
    "--pid 1 --all",
    "1 --pid 2",
    "--pids 1",
    "ls -R",
    "1 -o heap.png",
    "1 -o heap",
    "1 -o heap.svg -o ./heap.svg",
    "1 -o - -o -",
    "1 -o missing/heap.svg",
    "1 -o heap.heaptrack.zst",
    "1 --interval many",
    "1 --duration soon",
    "1 --view sideways",
    "1 --by threads",
    "1 --focus a(",
    "1 --engine fast",
    "1 --max-size 1GiB",
    "1 --suppressions missing.supp",
    "leaks",
    "convert missing.heapbpf",
    "convert missing.heapbpf -o heap.xyz",
    "diff before.json",
    "diff before.json after.json -o growth.pb.gz",
    "diff before.json after.json --fail-above five",
    "doctor --pid 99999999",
    "open missing.html",
];

fn row(line: &str) -> String {
    let folder = tempfile::tempdir().expect("there is a directory for temporary files");
    let mut command = Command::new(binary());
    command.args(line.split_ascii_whitespace()).current_dir(folder.path());
    command.env("HEAPBPF_CONFIG", "").env("NO_COLOR", "1").env_remove("RUST_LOG");
    let output = command.output().expect("it can be started");
    let stderr = String::from_utf8(output.stderr).expect("messages are text");
    let message = stderr.strip_prefix("heapbpf: error: ").unwrap_or_else(|| panic!("`{line}`: {stderr}"));
    assert_eq!(message.trim_end().lines().count(), 1, "`{line}`: {stderr}");
    assert!(output.stdout.is_empty(), "`{line}`: errors belong to stderr");
    assert_eq!(fs::read_dir(folder.path()).expect("ours").count(), 0, "`{line}` has written a file");
    let code = output.status.code().expect("it exits");
    assert!((1..=2).contains(&code), "`{line}`: exit code {code}");
    let line = format!("heapbpf {line}");
    format!("| `{}` | {code} | {} |\n", line.trim_end(), in_markdown(message.trim_end()))
}

/// Outside of backticks, `<` would start a tag.
fn in_markdown(text: &str) -> String {
    let text = text.replace('|', "\\|");
    let parts = text.split('`').enumerate();
    let escaped = parts.map(|(at, part)| if at % 2 == 0 { part.replace('<', "&lt;") } else { part.to_owned() });
    escaped.collect::<Vec<_>>().join("`")
}

#[test]
fn wrong_command_lines_are_documented_with_their_messages() {
    let table = WRONG.map(row).concat();
    let table = format!("| command line | code | message |\n|---|---:|---|\n{table}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/command-line.md");
    let text = fs::read_to_string(&path).expect("it is in docs");
    let mark = "<!-- table of errors: generated -->\n";
    let (start, rest) = text.split_once(mark).expect("the mark before the table");
    let (documented, end) = rest.split_once("<!-- end -->").expect("the mark after the table");
    if std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1") {
        fs::write(&path, format!("{start}{mark}{table}<!-- end -->{end}")).expect("docs can be written to");
    } else {
        assert!(documented == table, "{} has another table; UPDATE_GOLDEN=1 rewrites it:\n{table}", path.display());
    }
}

/// `sudo setpriv --reuid=… heapbpf` leaves `HOME` at root's folder, which the user cannot search.
#[test]
fn a_home_of_another_user_is_no_error() {
    let folder = tempfile::tempdir().expect("there is a directory for temporary files");
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
    let (home, copy) = (folder.path().join("home"), folder.path().join("heapbpf"));
    fs::create_dir(&home).expect("the folder is ours");
    copy_program(binary(), &copy);
    mode(folder.path(), 0o755);
    mode(&copy, 0o755);
    mode(&home, 0o700);
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy).args(["convert", "missing.heapbpf"]);
    let output = command.current_dir("/").env("HOME", &home).env_remove("XDG_CONFIG_HOME").env_remove("HEAPBPF_CONFIG");
    let stderr = String::from_utf8(output.output().expect("it can be started").stderr).expect("messages are text");
    assert!(stderr.contains("missing.heapbpf") && !stderr.contains("config"), "{stderr}");
}
