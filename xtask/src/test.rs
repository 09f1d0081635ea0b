//! `cargo xtask test`: runs every test of the workspace, with its requirements: the built binary, programs to profile, root.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::command::{self, Privilege, Repository};
use crate::{packages, viewers};

/// How cargo starts a test as root.
const RUNNER: (&str, &str) = ("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", "sudo -E");

/// Runs every test of the workspace, on the real kernel.
///
/// Builds heapbpf first, because integration tests run the binary that HEAPBPF_BIN names. Profiling
/// other processes requires root: the tests of other users are started through sudo, and built files stay theirs. Missing
/// programs that the tests profile, or open profiles with, are installed (Debian: with apt-get; see also
/// `cargo xtask viewers`).
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask test                          everything
  cargo xtask test -p heapbpf ledger        tests of one package with `ledger` in their names
  cargo xtask test -- --nocapture           with the output of tests that pass
  HEAPBPF_BPF_OBJECT=target/rebuilt.bpf.o cargo xtask test      with another BPF object")]
pub(crate) struct Arguments {
    /// Passed on to `cargo test`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    arguments: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let privilege = Privilege::find();
    if privilege == Privilege::Missing {
        bail!("profiling other processes requires root, and sudo is not available: run it as root");
    }
    packages::install(packages::TESTS)?;
    packages::install(packages::VIEWERS)?;
    let repository = Repository::find()?;
    command::run(repository.cargo().args(["build", "--package", "heapbpf"]))?;
    let viewers = viewers::install(&repository)?;
    let mut test = repository.cargo();
    test.args(words(&arguments.arguments)).env("HEAPBPF_BIN", repository.target.join("debug/heapbpf"));
    test.env("HEAPBPF_VIEWERS", viewers);
    absolute_object(&mut test)?;
    if privilege == Privilege::Sudo {
        eprintln!("profiling other processes requires root: cargo starts the tests through `{}`", RUNNER.1);
        test.env(RUNNER.0, RUNNER.1);
    }
    command::run(&mut test)
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

/// Makes the path to another BPF object absolute: tests run in the folder of their package.
fn absolute_object(test: &mut Command) -> Result<()> {
    const VARIABLE: &str = "HEAPBPF_BPF_OBJECT";
    let Some(given) = std::env::var_os(VARIABLE) else { return Ok(()) };
    let path = std::fs::canonicalize(&given);
    let path = path.with_context(|| format!("{VARIABLE} names `{}`, which cannot be read", given.display()))?;
    test.env(VARIABLE, path);
    Ok(())
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
