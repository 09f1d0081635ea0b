//! The compiler that fuzz targets are built with, and its flags. cargo-fuzz is not needed: its flags are these.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use super::FOLDER;
use crate::command;
use crate::repository::{self, Repository};

/// The only target that heapbpf has. Named to cargo, so that the flags are not for build scripts and macros.
pub(super) const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Coverage as libFuzzer reads it, comparisons for it to solve, and AddressSanitizer, which enforces the memory limits.
const FLAGS: [&str; 7] = [
    "--cfg fuzzing",
    "-Zsanitizer=address",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// A compiler that takes unstable flags and has AddressSanitizer's runtime.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Toolchain {
    /// One of rustup's, by name.
    Nightly(String),
    /// The one that builds xtask, told to take unstable flags.
    Bootstrap,
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nightly(name) => f.write_str(name),
            Self::Bootstrap => f.write_str("the one of this xtask, with RUSTC_BOOTSTRAP=1"),
        }
    }
}

impl Toolchain {
    /// Finds one; the error says what to install.
    pub(super) fn find() -> Result<Self> {
        let listed = command::output(Command::new("rustup").args(["toolchain", "list"])).unwrap_or_default();
        let nightlies = nightlies(&listed).into_iter().map(Self::Nightly);
        match nightlies.chain([Self::Bootstrap]).find(Self::has_sanitizer) {
            Some(toolchain) => Ok(toolchain),
            None => bail!(
                "no compiler has AddressSanitizer's runtime; install one: rustup toolchain install nightly --profile minimal"
            ),
        }
    }

    fn has_sanitizer(&self) -> bool {
        let mut rustc = self.tool("rustc");
        let folder = command::output(rustc.args(["--print", "target-libdir", "--target", TARGET]));
        folder.is_ok_and(|folder| has_runtime(Path::new(folder.trim())))
    }

    /// A command of this toolchain.
    fn tool(&self, name: &str) -> Command {
        match self {
            Self::Nightly(toolchain) => {
                let mut command = Command::new("rustup");
                command.args(["run", toolchain, name]);
                command
            }
            Self::Bootstrap => {
                let mut command = if name == "cargo" { Command::new(repository::cargo()) } else { Command::new(name) };
                command.env("RUSTC_BOOTSTRAP", "1");
                command
            }
        }
    }

    /// The command that builds these targets.
    pub(super) fn build(&self, repository: &Repository, targets: &[String]) -> Command {
        let mut cargo = self.tool("cargo");
        cargo.args(["build", "--release", "--locked", "--target", TARGET]);
        cargo.arg("--manifest-path").arg(repository.root.join(FOLDER).join("Cargo.toml"));
        cargo.arg("--target-dir").arg(repository.target.join(FOLDER));
        cargo.args(targets.iter().flat_map(|target| ["--bin", target]));
        cargo.env_remove("CARGO_ENCODED_RUSTFLAGS").env("RUSTFLAGS", FLAGS.join(" "));
        cargo
    }
}

/// Names of nightly toolchains in the output of `rustup toolchain list`.
fn nightlies(listed: &str) -> Vec<String> {
    let names = listed.lines().filter_map(|line| line.split_whitespace().next());
    names.filter(|name| name.starts_with("nightly")).map(str::to_owned).collect()
}

/// Whether a compiler's folder of libraries has AddressSanitizer's runtime.
fn has_runtime(folder: &Path) -> bool {
    let Ok(entries) = fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| entry.file_name().to_string_lossy().ends_with("_rt.asan.a"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nightlies_are_found_among_toolchains() {
        let listed =
            "stable-x86_64-unknown-linux-gnu (active, default)\nnightly-2026-05-19-x86_64-unknown-linux-gnu\n1.95.0\n";
        assert_eq!(nightlies(listed), ["nightly-2026-05-19-x86_64-unknown-linux-gnu"]);
        assert!(nightlies("no installed toolchains\n").is_empty());
    }

    #[test]
    fn runtimes_are_found_by_their_file() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(!has_runtime(folder.path()));
        fs::write(folder.path().join("librustc-stable_rt.asan.a"), "").expect("a file");
        assert!(has_runtime(folder.path()));
        assert!(!has_runtime(&folder.path().join("missing")));
    }
}
