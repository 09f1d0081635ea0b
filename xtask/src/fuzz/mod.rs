//! `cargo xtask fuzz`: builds the fuzz targets of `fuzz/` and runs each for some seconds. This file is the verb; finding a compiler
//! and running one target are modules of their own.

mod run;
mod toolchain;

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result, bail};

use crate::repository::Repository;
use crate::{command, packages};
use run::{Limits, Outcome};
use toolchain::Toolchain;

/// Folder of the fuzz targets, from the repository's root.
const FOLDER: &str = "fuzz";

/// Fuzzes the parsers of everything that a target process or a user's file controls.
///
/// Builds the targets in fuzz/ with coverage instrumentation and AddressSanitizer, runs each from its seeds, and prints
/// executions, coverage and findings. Fails when an input crashes a target, takes more than 10 seconds or more than 2 GiB, and prints
/// the path of that input.
#[derive(clap::Args)]
#[command(after_help = "Compilers, the first that is complete:
  1. a nightly toolchain of rustup: rustup toolchain install nightly --profile minimal
  2. the compiler that builds xtask, with RUSTC_BOOTSTRAP=1, if it comes with the sanitizers' runtimes (rustup's do)
and with either: a C++ compiler (Debian: g++, installed if it is missing)

Examples:
  cargo xtask fuzz                                  20 seconds for each target
  cargo xtask fuzz --target walks --seconds 3600    one target for an hour
  cargo xtask fuzz --if-possible                    for CI: succeeds where no compiler is suitable")]
pub(crate) struct Arguments {
    /// Seconds that each target runs.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Target to run: a file in fuzz/fuzz_targets, without its extension. May be given several times. Default: all.
    #[arg(long, value_name = "NAME")]
    target: Vec<String>,
    /// Number of targets that run at the same time.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..))]
    jobs: u8,
    /// Succeed without fuzzing where no compiler is suitable.
    #[arg(long)]
    if_possible: bool,
}

/// Runs the verb.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let toolchain = match Toolchain::find() {
        Ok(toolchain) => toolchain,
        Err(error) if arguments.if_possible => {
            println!("fuzz: nothing was run: {error:#}");
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    packages::install(&[packages::FUZZ])?;
    let repository = Repository::find()?;
    let targets = chosen(&all(&repository.root.join(FOLDER))?, &arguments.target)?;
    eprintln!("compiler: {toolchain}");
    command::run(&mut toolchain.build(&repository, &targets))?;
    let limits = Limits { seconds: arguments.seconds, input_seconds: 10, memory_mib: 2048 };
    let outcomes = run_all(&repository, &targets, limits, arguments.jobs.into())?;
    report(&outcomes)
}

/// Names of all targets, sorted.
fn all(folder: &Path) -> Result<Vec<String>> {
    let folder = folder.join("fuzz_targets");
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("could not list `{}`", folder.display()))? {
        let name = entry?.file_name();
        names.extend(name.to_string_lossy().strip_suffix(".rs").map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

/// The targets to run: those that were named, else all.
fn chosen(all: &[String], named: &[String]) -> Result<Vec<String>> {
    if let Some(unknown) = named.iter().find(|name| !all.contains(name)) {
        bail!("`{unknown}` is not a fuzz target; there are {}", all.join(", "));
    }
    Ok(if named.is_empty() { all.to_vec() } else { named.to_vec() })
}

/// Runs the targets, `jobs` at a time, and prints a line for each that is done.
fn run_all(repository: &Repository, targets: &[String], limits: Limits, jobs: usize) -> Result<Vec<Outcome>> {
    println!("{}", Outcome::HEADING);
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = run::run(repository, target, limits);
            if let Ok(outcome) = &outcome {
                println!("{outcome}");
            }
            outcomes.lock().expect("no thread panics with the lock").push(outcome);
        }
    };
    std::thread::scope(|scope| (0..jobs.min(targets.len())).for_each(|_| drop(scope.spawn(work))));
    outcomes.into_inner().expect("no thread panics with the lock").into_iter().collect()
}

/// Fails where there are findings.
fn report(outcomes: &[Outcome]) -> Result<()> {
    let executions: u64 = outcomes.iter().map(|outcome| outcome.executions).sum();
    println!("fuzz: {executions} executions of {} targets", outcomes.len());
    let findings: Vec<_> = outcomes.iter().filter_map(Outcome::finding).collect();
    if !findings.is_empty() {
        bail!("{} findings:\n{}", findings.len(), findings.join("\n"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_chosen_by_name() {
        let all = ["elf", "walks"].map(str::to_owned);
        assert_eq!(chosen(&all, &[]).expect("all"), all);
        assert_eq!(chosen(&all, &all[1..]).expect("one"), all[1..]);
        let error = chosen(&all, &["elves".to_owned()]).expect_err("unknown").to_string();
        assert!(error.contains("elf, walks"), "{error}");
    }

    #[test]
    fn every_target_is_built_and_has_seeds() {
        let folder = crate::repository::root().expect("there is a repository").join(FOLDER);
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).expect("a manifest");
        for name in all(&folder).expect("targets") {
            assert!(manifest.contains(&format!("name = \"{name}\"")), "`{name}` is not in the manifest");
            let seeds = fs::read_dir(folder.join("seeds").join(&name)).map_or(0, Iterator::count);
            assert!(seeds > 0, "`{name}` has no seeds");
        }
    }
}
