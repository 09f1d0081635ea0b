//! Other people's readers of what heapbpf writes: where `cargo xtask viewers` put them, and how scripts that use them are
//! run. The scripts lie in `tests/viewers` and print JSON, which the tests assert on. Refuses to know any format.

use std::ffi::OsStr;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::target::build_directory;

/// Seconds that a reader may take. Only a hang takes this long.
const SECONDS_MAX: &str = "300";

/// Where they are: what HEAPBPF_VIEWERS names, or `viewers` in the build directory.
///
/// # Panics
///
/// When they were not installed.
#[track_caller]
pub fn folder() -> PathBuf {
    let folder = std::env::var_os("HEAPBPF_VIEWERS").map_or_else(|| build_directory().join("viewers"), PathBuf::from);
    assert!(
        folder.join("installed").is_file(),
        "no readers of profiles are in `{}`: run `cargo xtask viewers`, which installs them, or set HEAPBPF_VIEWERS",
        folder.display()
    );
    folder
}

/// A program of theirs (`python`, `node`, `profiler-cli`), or of this machine (`go`, `ms_print`), that is ended where it hangs.
#[track_caller]
pub fn program(name: impl AsRef<OsStr>) -> Command {
    let folder = folder();
    let own = [folder.join("venv/bin"), folder.join("node_modules/.bin")];
    let inherited = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(own.into_iter().chain(std::env::split_paths(&inherited))).expect("paths are paths");
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", SECONDS_MAX]).arg(name).env("PATH", path);
    command.env("NODE_PATH", folder.join("node_modules")).env("PYTHONDONTWRITEBYTECODE", "1").env("NO_COLOR", "1");
    command
}

/// Runs `tests/viewers/<script>` in Python and returns the JSON that it prints.
///
/// # Panics
///
/// When it fails, hangs or prints something else.
#[track_caller]
pub fn python<S: AsRef<OsStr> + Debug>(script: &str, arguments: &[S]) -> Value {
    json(program("python").arg(path(script)).args(arguments))
}

/// Runs `tests/viewers/<script>` in node and returns the JSON that it prints. Scripts end in `.cjs`, so that they find packages
/// with `require`.
///
/// # Panics
///
/// When it fails, hangs or prints something else.
#[track_caller]
pub fn node<S: AsRef<OsStr> + Debug>(script: &str, arguments: &[S]) -> Value {
    json(program("node").arg(path(script)).args(arguments))
}

/// Runs a command and returns the JSON that it prints.
///
/// # Panics
///
/// When it fails or prints something else.
#[track_caller]
pub fn json(command: &mut Command) -> Value {
    let text = text(command);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{command:?}: {error} in {text:.2000}"))
}

/// Runs a command and returns what it prints on standard output.
///
/// # Panics
///
/// When it fails or prints no UTF-8.
#[track_caller]
pub fn text(command: &mut Command) -> String {
    let output = output(command);
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("it prints text")
}

/// Runs a command and returns how it ended.
///
/// # Panics
///
/// When it cannot be started.
#[track_caller]
pub fn output(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn path(script: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("viewers").join(script)
}
