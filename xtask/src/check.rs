//! `cargo xtask check`: what fails in minutes, before the gate takes longer: tests that needed a second
//! try, formatting, spelling, lints, tidy, whether what is committed was built from its source, and unit tests.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::command::{self, Repository};
use crate::{flaky, typos};

/// Packages outside of the workspace, which `cargo fmt --all` does not format.
const OTHERS: [&str; 2] = ["profiler-ebpf/Cargo.toml", "fuzz/Cargo.toml"];
/// Folders of packages with unit tests, the packages' names, and what of them has the tests.
const PACKAGES: [(&str, &str, &str); 9] = [
    ("profiler/", "heapbpf", "--lib"),
    ("profiler/crates/base/", "heapbpf-base", "--lib"),
    ("profiler/crates/", "heapbpf-ledger", "--lib"),
    ("profiler/crates/linux/", "heapbpf-linux", "--lib"),
    ("profiler/crates/", "heapbpf-report", "--lib"),
    ("profiler-common/", "profiler-common", "--lib"),
    ("profiler-ebpf/", "heapbpf-ebpf-host", "--lib"),
    ("tests/src/", "heapbpf-tests", "--lib"),
    ("xtask/", "xtask", "--bins"),
];

/// Checks formatting, spelling, lints, rules and committed objects, and runs the unit tests of what has changed.
///
/// `.ci/run` begins with the same, and all unit tests are a part of it. Run this before each commit.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask check                       before a commit
  cargo xtask check --since origin/main   before a branch is merged
  cargo xtask check --no-tests            formatting, spelling, lints, rules and committed objects alone")]
pub(crate) struct Arguments {
    /// Run the unit tests of packages that differ from this commit. Changes that are not committed count.
    #[arg(long, value_name = "COMMIT", default_value = "HEAD")]
    since: String,
    /// Run no tests.
    #[arg(long)]
    no_tests: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let repository = Repository::find()?;
    let begun = Instant::now();
    flaky::check(&repository)?;
    command::run(repository.cargo().args(["fmt", "--all", "--check"]))?;
    for manifest in OTHERS {
        command::run(repository.cargo().args(["fmt", "--check", "--manifest-path", manifest]))?;
    }
    typos::check(&repository)?;
    let own = std::env::current_exe()?;
    for words in [
        &["tidy"][..],
        &["build-page", "--check", "--if-changed"],
        &["build-ebpf", "--install", "--check", "--if-changed"],
    ] {
        command::run(Command::new(&own).args(words))?;
    }
    let lints = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
    command::run(repository.cargo().args(lints))?;
    if !arguments.no_tests {
        test(&repository, &arguments.since)?;
    }
    println!("checked in {} s", begun.elapsed().as_secs());
    Ok(())
}

fn test(repository: &Repository, since: &str) -> Result<()> {
    let git = |words: &[&str]| command::output(Command::new("git").current_dir(&repository.root).args(words));
    let (tracked, new) = (git(&["diff", "--name-only", since])?, git(&["ls-files", "--others", "--exclude-standard"])?);
    let changed: BTreeSet<_> = tracked.lines().chain(new.lines()).flat_map(packages).collect();
    if changed.is_empty() {
        println!("no package with unit tests differs from `{since}`");
        return Ok(());
    }
    let failed = |(package, of): &&(&str, &str)| {
        command::run(repository.cargo().args(["test", "--locked", "--quiet", "--package", package, of])).is_err()
    };
    let failed: Vec<_> = changed.iter().filter(failed).map(|(package, _)| *package).collect();
    if failed.is_empty() { Ok(()) } else { bail!("unit tests fail: {}", failed.join(", ")) }
}

/// Returns the packages whose unit tests cover a file, and what of them has the tests.
fn packages(file: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    PACKAGES.into_iter().filter(move |(folder, ..)| file.starts_with(folder)).map(|(_, package, of)| (package, of))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_files_are_tested_by_their_packages() {
        let names = |file| packages(file).map(|(package, _)| package).collect::<Vec<_>>();
        assert_eq!(names("profiler/src/lib.rs"), ["heapbpf"]);
        // A crate's dependants have tests of it, too.
        let of_base = ["heapbpf", "heapbpf-base", "heapbpf-ledger", "heapbpf-report"];
        assert_eq!(names("profiler/crates/base/src/units.rs"), of_base);
        assert_eq!(names("profiler-common/src/counter.rs"), ["profiler-common"]);
        assert_eq!(names("tests/src/recipe.rs"), ["heapbpf-tests"]);
        assert!(names("README.md").is_empty() && names("tests/tests/keeper.rs").is_empty());
    }
}
