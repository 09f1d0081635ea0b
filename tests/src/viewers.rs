//! Third-party readers of heapbpf's output: where `cargo xtask viewers` installs them, and how to run scripts that use
//! them. The scripts are in `tests/viewers` and print JSON, which the tests check.

use std::ffi::OsStr;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::target::build_directory;

/// Timeout of a reader in seconds.
const SECONDS_MAX: &str = "300";

/// Returns their directory: HEAPBPF_VIEWERS, or `viewers` in the build directory.
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

/// Returns a command for one of them (`python`, `node`, `profiler-cli`), or of this machine (`go`, `ms_print`), with a
/// timeout.
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
#[track_caller]
pub fn python<S: AsRef<OsStr> + Debug>(script: &str, arguments: &[S]) -> Value {
    json(program("python").arg(path(script)).args(arguments))
}

/// Runs `tests/viewers/<script>` in node and returns the JSON that it prints. Scripts end in `.cjs`, so that they find packages
/// with `require`.
#[track_caller]
pub fn node<S: AsRef<OsStr> + Debug>(script: &str, arguments: &[S]) -> Value {
    json(program("node").arg(path(script)).args(arguments))
}

/// Runs a command and returns the JSON that it prints.
#[track_caller]
pub fn json(command: &mut Command) -> Value {
    let text = text(command);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{command:?}: {error} in {text:.2000}"))
}

/// Runs a command and returns what it prints on standard output.
#[track_caller]
pub fn text(command: &mut Command) -> String {
    let output = output(command);
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("it prints text")
}

/// Runs a command and returns its result.
#[track_caller]
pub fn output(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// The path of `tests/viewers/<script>`.
pub fn path(script: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("viewers").join(script)
}
