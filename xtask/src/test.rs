//! `cargo xtask test`: runs every test of the workspace, with its requirements: the built binary, programs to profile, root.

use std::ffi::OsStr;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use crate::command::{self, Privilege, Repository};
use crate::flaky;
use crate::prepare::{self, INTERPRETERS, Programs};

/// What is run, one after the other. Cargo enables features of libraries for what is selected together: with other selections,
/// it would compile most of them, and heapbpf, more than once.
const SELECTIONS: [&[&str]; 3] = [
    // Unit tests. Their profile is that of tests: without optimization.
    &["--workspace", "--lib"],
    &["--package", "xtask"],
    // What they start is optimized, and built by `BUILD`.
    &["--cargo-profile", "dev", "--workspace", "--test", "it", "--test", "internals", "--test", "unwind"],
];
const BUILD: [&str; 11] =
    ["build", "--locked", "--workspace", "--bin", "heapbpf", "--test", "it", "--test", "internals", "--test", "unwind"];
/// nextest's exit code when no test is selected (`NextestExitCode::NO_TESTS_RUN`, nextest-metadata 0.13).
const NO_TESTS: i32 = 4;
const BINARY: &str = "HEAPBPF_BIN";
/// How nextest starts a test as root.
const RUNNER: (&str, &str) = ("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", "sudo -E");
const OBJECT: &str = "HEAPBPF_BPF_OBJECT";

/// Runs every test of the workspace, on the real kernel.
///
/// Builds heapbpf and the tests first, then runs them with cargo-nextest (`.config/nextest.toml`), which is installed with
/// `cargo install` if it is missing. Integration tests run the binary that HEAPBPF_BIN names. Profiling
/// other processes requires root: the tests of other users are started through sudo, and built files stay theirs. Missing
/// programs that the tests profile, or open profiles with, are installed (Debian: with apt-get; see also
/// `cargo xtask viewers` and `cargo xtask interpreters`).
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask test                            everything
  cargo xtask test ledger                     tests with `ledger` in their names
  cargo xtask test -E 'test(/^keeper::/)'     those of tests/tests/keeper.rs
  cargo xtask test --no-capture launch::      with their output, one after the other
  cargo xtask test --profile gate             failed tests get another try, and those that pass then are errors of `cargo xtask check`
  HEAPBPF_BPF_OBJECT=target/rebuilt-x86_64.bpf.o cargo xtask test      with another BPF object")]
pub(crate) struct Arguments {
    /// Passed on to `cargo nextest run`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    arguments: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    run_with(&arguments.arguments)
}

/// Runs the tests that these arguments of nextest select.
pub(crate) fn run_with(arguments: &[impl AsRef<OsStr>]) -> Result<()> {
    let privilege = Privilege::find();
    if privilege == Privilege::Missing {
        bail!("profiling other processes requires root, and sudo is not available: run it as root");
    }
    let repository = Repository::find()?;
    prepare::tools()?;
    let object = object()?;
    // Side by side: much of the one is waiting for the network, and the other ends with a part for one processor.
    let programs = std::thread::scope(|scope| {
        let installed = scope.spawn(|| install_programs(&repository));
        command::run(repository.cargo().args(BUILD))?;
        installed.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    let binary =
        std::env::var_os(BINARY).map_or_else(|| Ok(repository.target.join("debug/heapbpf")), std::path::absolute)?;
    let test = |selected: &[&str]| {
        let mut test = repository.cargo();
        test.args(["nextest", "run", "--locked"]).args(selected).args(arguments);
        test.env(BINARY, &binary).env("HEAPBPF_VIEWERS", &programs.viewers).env(INTERPRETERS, &programs.interpreters);
        test.envs(object.iter().map(|path| (OBJECT, path)));
        if privilege == Privilege::Sudo {
            test.env(RUNNER.0, RUNNER.1);
        }
        // Each selection writes a report of its own.
        let _ = std::fs::remove_file(flaky::report(&repository.root));
        let status = command::status(&mut test)?;
        flaky::note(&repository)?;
        match status.code() {
            Some(0) => Ok(true),
            Some(NO_TESTS) => Ok(false),
            _ => bail!("`{}` failed: {status}", command::line(&test)),
        }
    };
    if privilege == Privilege::Sudo {
        eprintln!("profiling other processes requires root: nextest starts the tests through `{}`", RUNNER.1);
    }
    // All are run, whatever fails.
    let ran_tests = SELECTIONS.map(test).into_iter().collect::<Result<Vec<bool>>>()?;
    if !ran_tests.contains(&true) {
        let words: Vec<_> = arguments.iter().map(|word| word.as_ref().to_string_lossy()).collect();
        bail!("no test has been run: none is selected by `{}`", words.join(" "));
    }
    Ok(())
}

/// Installs or builds what tests start besides heapbpf and small programs of `tests/targets`.
fn install_programs(repository: &Repository) -> Result<Programs> {
    let programs = prepare::programs(repository)?;
    command::run(&mut heapbpf_tests::target::rust_targets(&repository.target).0)?;
    Ok(programs)
}

/// The absolute path to another BPF object, if one is given: tests run in the folder of their package.
fn object() -> Result<Option<PathBuf>> {
    let Some(given) = std::env::var_os(OBJECT) else { return Ok(None) };
    let path = std::fs::canonicalize(&given);
    path.with_context(|| format!("{OBJECT} names `{}`, which cannot be read", given.display())).map(Some)
}
