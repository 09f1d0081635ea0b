//! `cargo xtask bench`: the measurements behind the figures in docs/, one file for each subject.

mod agent;
mod attach;
mod calls;
mod compared;
pub(crate) mod figures;
mod formats;
mod frameworks;
mod functions;
mod go;
mod launched;
mod leaks;
mod many;
mod overhead;
mod pages;
mod programs;
mod push;
mod tool;
mod unwind;
mod workload;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail, ensure};
use clap::builder::PossibleValue;
use clap::{Subcommand, ValueEnum};

use crate::command::{self, Repository};
use crate::packages;
use crate::process::bound;

/// Measures heapbpf on this machine.
///
/// Builds heapbpf in release mode, starts real programs under load, and prints tables. Figures are medians of several rounds,
/// in which all compared variants alternate. Other work of the machine affects them, so the tables describe the machine.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    subject: Subject,
}

#[derive(Subcommand)]
enum Subject {
    Unwind(unwind::Arguments),
    Overhead(overhead::Arguments),
    Soak(overhead::SoakArguments),
    Formats(formats::Arguments),
    Frameworks(frameworks::Arguments),
    Go(go::Arguments),
    Leaks(leaks::Arguments),
    Pages(pages::Arguments),
    Agent(agent::Arguments),
    Push(push::Arguments),
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.subject {
        Subject::Unwind(arguments) => unwind::run(arguments),
        Subject::Overhead(arguments) => overhead::run(arguments),
        Subject::Soak(arguments) => overhead::soak(arguments),
        Subject::Formats(arguments) => formats::run(arguments),
        Subject::Frameworks(arguments) => frameworks::run(arguments),
        Subject::Go(arguments) => go::run(arguments),
        Subject::Leaks(arguments) => leaks::run(arguments),
        Subject::Pages(arguments) => pages::run(arguments),
        Subject::Agent(arguments) => agent::run(arguments),
        Subject::Push(arguments) => push::run(arguments),
    }
}

struct Bench {
    repository: Repository,
    heapbpf: PathBuf,
    /// Temporary folder, which other users can enter: servers do not run as root.
    folder: PathBuf,
    rounds: usize,
    _guard: tempfile::TempDir,
}

impl Bench {
    fn new(packages: &str, rounds: usize) -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            bail!("profiling other processes requires root: run `sudo -E cargo xtask bench …`");
        }
        packages::install(packages)?;
        let repository = Repository::find()?;
        let heapbpf = repository.heapbpf()?;
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        let guard = tempfile::Builder::new().prefix("heapbpf-bench-").permissions(permissions).tempdir()?;
        let folder = guard.path().to_owned();
        std::fs::create_dir(folder.join("cache"))?;
        Ok(Self { repository, heapbpf, folder, rounds: rounds.max(1), _guard: guard })
    }

    /// A command of this or another heapbpf, with its cache of unwind tables in the temporary folder.
    fn command(&self, heapbpf: &Path) -> Command {
        let mut command = bound(heapbpf);
        command.env("XDG_CACHE_HOME", self.folder.join("cache"));
        command
    }

    fn record(&self, pid: u32) -> Command {
        let mut command = self.command(&self.heapbpf);
        command.args(["--pid", &pid.to_string()]);
        command
    }

    fn empty_folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.folder.join(name);
        command::empty_folder(&folder)?;
        std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        Ok(folder)
    }
}

struct Measured {
    text: String,
    /// Limits that are not met.
    missed: Vec<String>,
}

impl From<String> for Measured {
    fn from(text: String) -> Self {
        Self { text, missed: Vec::new() }
    }
}

struct Page<'a> {
    repository: &'a Repository,
    /// From the repository's root; `None` for printing alone.
    path: Option<&'a str>,
}

impl<'a> Page<'a> {
    fn new(repository: &'a Repository, path: &'a str, write: bool) -> Self {
        Self { repository, path: write.then_some(path) }
    }

    fn publish(&self, section: &str, measured: impl Into<Measured>) -> Result<Vec<String>> {
        let Measured { text, missed } = measured.into();
        let text = format!("{}\n\n{}\n", text.trim_end(), figures::provenance()?);
        println!("\n{section}\n\n{text}");
        if let Some(path) = self.path {
            figures::write(&self.repository.root.join(path), section, &text)?;
        }
        Ok(missed)
    }

    /// Publishes the requested parts, or all. Fails at the end if a limit is not met.
    fn run<P: ValueEnum + PartialEq>(
        &self,
        requested: &[P],
        mut measure: impl FnMut(&P) -> Result<Measured>,
    ) -> Result<()> {
        let mut missed = Vec::new();
        for part in P::value_variants().iter().filter(|part| requested.is_empty() || requested.contains(part)) {
            let measured = measure(part)?;
            let name = part.to_possible_value();
            missed.extend(self.publish(name.as_ref().map_or("", PossibleValue::get_name), measured)?);
        }
        all_met(&missed)
    }
}

fn all_met(missed: &[String]) -> Result<()> {
    ensure!(missed.is_empty(), "not met: {}", missed.join("; "));
    Ok(())
}
