//! `cargo xtask test`: runs every test of the workspace, with its requirements: the built binary, programs to profile, root.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::command::{self, Privilege, Repository};
use crate::{interpreters, packages, retry, viewers};

/// How cargo starts a test as root.
const RUNNER: (&str, &str) = ("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", "sudo -E");
const INTERPRETERS: &str = "HEAPBPF_INTERPRETERS";
const OBJECT: &str = "HEAPBPF_BPF_OBJECT";

/// Runs every test of the workspace, on the real kernel.
///
/// Builds heapbpf first, because integration tests run the binary that HEAPBPF_BIN names. Profiling
/// other processes requires root: the tests of other users are started through sudo, and built files stay theirs. Missing
/// programs that the tests profile, or open profiles with, are installed (Debian: with apt-get; see also
/// `cargo xtask viewers` and `cargo xtask interpreters`).
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask test                          everything
  cargo xtask test -p heapbpf ledger        tests of one package with `ledger` in their names
  cargo xtask test -- --nocapture           with the output of tests that pass
  HEAPBPF_BPF_OBJECT=target/rebuilt-x86_64.bpf.o cargo xtask test      with another BPF object")]
pub(crate) struct Arguments {
    /// Gives tests that failed a second try, one at a time, and names them.
    ///
    /// For machines that are busy or slow. Must come first.
    #[arg(long)]
    retry: bool,
    /// Passed on to `cargo test`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    arguments: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if arguments.retry && arguments.arguments.iter().any(|argument| argument != "--locked") {
        bail!("with --retry, only --locked is passed on: the second try runs tests by their names");
    }
    let privilege = Privilege::find();
    if privilege == Privilege::Missing {
        bail!("profiling other processes requires root, and sudo is not available: run it as root");
    }
    packages::install(packages::TESTS)?;
    packages::install(packages::VIEWERS)?;
    let repository = Repository::find()?;
    command::run(repository.cargo().args(["build", "--package", "heapbpf"]))?;
    let viewers = viewers::install(&repository)?;
    let (interpreters, object) = (interpreters(&repository, &viewers)?, object()?);
    if privilege == Privilege::Sudo {
        eprintln!("profiling other processes requires root: cargo starts the tests through `{}`", RUNNER.1);
    }
    let cargo = |words: &[&str]| {
        let mut test = repository.cargo();
        test.args(words).env("HEAPBPF_BIN", repository.target.join("debug/heapbpf"));
        test.env("HEAPBPF_VIEWERS", &viewers).env(INTERPRETERS, &interpreters);
        test.envs(object.iter().map(|path| (OBJECT, path)));
        if privilege == Privilege::Sudo {
            test.env(RUNNER.0, RUNNER.1);
        }
        test
    };
    let mut test = cargo(&words(&arguments.arguments));
    if !arguments.retry {
        return command::run(&mut test);
    }
    let locked: Vec<&str> = arguments.arguments.iter().map(String::as_str).collect();
    retry::run(&mut test, |of| cargo(&[&["test"], &locked[..], of].concat()))
}

/// Returns the folder that the user has set, or installs one.
fn interpreters(repository: &Repository, viewers: &Path) -> Result<PathBuf> {
    match std::env::var_os(INTERPRETERS).filter(|given| !given.is_empty()) {
        Some(given) => Ok(std::path::absolute(given)?),
        None => interpreters::install(repository, viewers),
    }
}

fn words(arguments: &[String]) -> Vec<&str> {
    let of_cargo = arguments.iter().take_while(|argument| *argument != "--");
    let names_packages = of_cargo
        .into_iter()
        .any(|argument| argument == "--package" || argument.starts_with("--package=") || argument.starts_with("-p"));
    let mut words = vec!["test", "--no-fail-fast"];
    if !names_packages {
        words.push("--workspace");
    }
    words.extend(arguments.iter().map(String::as_str));
    words
}

/// The absolute path to another BPF object, if one is given: tests run in the folder of their package.
fn object() -> Result<Option<PathBuf>> {
    let Some(given) = std::env::var_os(OBJECT) else { return Ok(None) };
    let path = std::fs::canonicalize(&given);
    path.with_context(|| format!("{OBJECT} names `{}`, which cannot be read", given.display())).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(arguments: &str, expected: &str) {
        let arguments: Vec<_> = arguments.split_whitespace().map(String::from).collect();
        assert_eq!(words(&arguments).join(" "), expected);
    }

    #[test]
    fn the_workspace_is_tested_unless_packages_are_specified() {
        check("", "test --no-fail-fast --workspace");
        check("ledger -- --nocapture", "test --no-fail-fast --workspace ledger -- --nocapture");
        check("-p heapbpf ledger", "test --no-fail-fast -p heapbpf ledger");
        check("--package=heapbpf", "test --no-fail-fast --package=heapbpf");
        check("-- -p", "test --no-fail-fast --workspace -- -p");
    }
}
