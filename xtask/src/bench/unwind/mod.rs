//! `cargo xtask bench unwind`: whether stacks are unwound whole, what the tables for it take, and what it costs. Each of the
//! four measurements is a file of its own; this one runs those that are asked for and writes them down.

mod attach;
mod cost;
mod ends;
mod program;
mod programs;
mod roots;
mod stacks;
mod tables;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::ValueEnum;

use super::recording::Heapbpf;
use super::{document, machine};
use crate::packages::Proof;
use crate::repository::Repository;
use crate::{apt, packages};

/// Where `--write` writes.
const PAGE: &str = "docs/unwinding.md";

/// Shows how whole stacks are, how fast unwind tables are built, how long attaching takes, and what a sampled call costs.
///
/// Programs that are missing are installed (Debian: with apt-get); none is started as a service of the system. What is
/// measured runs in folders of its own, on loopback, and is killed afterwards.
#[derive(clap::Parser)]
#[command(after_help = "Examples:
  cargo xtask bench unwind                                  everything
  cargo xtask bench unwind --write                          and into docs/unwinding.md
  cargo xtask bench unwind --part stacks --program redis-server --explain
                                                            where the stacks of one program end early")]
pub(super) struct Arguments {
    /// Measure this alone. May be given several times.
    #[arg(long, value_enum)]
    part: Vec<Part>,
    /// Profile this program alone. May be given several times.
    #[arg(long, value_name = "NAME")]
    program: Vec<String>,
    /// List the frames at which stacks end early.
    #[arg(long)]
    explain: bool,
    /// Write the tables into docs/unwinding.md.
    #[arg(long, conflicts_with_all = ["program", "explain"])]
    write: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Stacks of real programs, complete or not.
    Stacks,
    /// Building tables of the programs' modules.
    Tables,
    /// Attaching to postgres, with and without the cache.
    Attach,
    /// A sampled malloc, by tables and by frame pointers.
    Cost,
}

/// What all measurements use.
struct Bench {
    repository: Repository,
    heapbpf: Heapbpf,
    /// For whatever they leave behind. Removed at the end.
    folder: PathBuf,
}

impl Bench {
    /// An empty folder of this name, which other users can enter.
    fn folder(&self, name: &str) -> Result<PathBuf> {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = self.folder.join(name);
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        std::fs::create_dir(&folder)?;
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755))?;
        Ok(folder)
    }

    /// Where heapbpf keeps tables during this bench.
    fn cache(&self) -> PathBuf {
        self.folder.join("cache")
    }
}

/// Runs the verb.
pub(super) fn run(arguments: &Arguments) -> Result<()> {
    let programs: Vec<_> = programs::ALL
        .iter()
        .filter(|program| arguments.program.is_empty() || arguments.program.iter().any(|name| name == program.name))
        .collect();
    if programs.is_empty() {
        let names: Vec<_> = programs::ALL.iter().map(|program| program.name).collect();
        bail!("no program of that name; there are {}", names.join(", "));
    }
    apt::install(&packages::missing(&[packages::BENCH_UNWIND], Proof::present))?;
    let repository = Repository::find()?;
    let heapbpf = Heapbpf::find(&repository)?;
    let folder = temporary_folder()?;
    let bench = Bench { repository, heapbpf, folder: folder.path().to_owned() };
    let wanted = |part| arguments.part.is_empty() || arguments.part.contains(&part);
    let (mut modules, mut short) = (BTreeSet::new(), Vec::new());
    if wanted(Part::Stacks) {
        let stacks = stacks::measure(&bench, &programs, arguments.explain)?;
        tell(&bench, arguments, "stacks", &stacks.text)?;
        (modules, short) = (stacks.modules, stacks.short);
    }
    if wanted(Part::Tables) {
        if modules.is_empty() {
            modules = stacks::modules(&bench, &programs)?;
        }
        tell(&bench, arguments, "tables", &tables::measure(&bench, &modules)?)?;
    }
    if wanted(Part::Attach) {
        tell(&bench, arguments, "attach", &attach::measure(&bench)?)?;
    }
    if wanted(Part::Cost) {
        tell(&bench, arguments, "cost", &cost::measure(&bench)?)?;
    }
    // Times decide nothing: they depend on what else the machine does.
    if !short.is_empty() {
        bail!("too few complete stacks of {}; `--part stacks --explain` shows where others end", short.join(", "));
    }
    Ok(())
}

/// Prints a part's tables, and writes them down where that was asked for.
fn tell(bench: &Bench, arguments: &Arguments, part: &str, text: &str) -> Result<()> {
    let text = format!("{}\n\nMeasured on {}.\n", text.trim_end(), machine::describe());
    println!("\n{part}\n\n{text}");
    if arguments.write {
        document::write(&bench.repository.root.join(Path::new(PAGE)), part, &text)?;
    }
    Ok(())
}

/// One that other users can enter: servers do not run as root.
fn temporary_folder() -> Result<tempfile::TempDir> {
    use std::os::unix::fs::PermissionsExt as _;
    let permissions = std::fs::Permissions::from_mode(0o755);
    Ok(tempfile::Builder::new().prefix("heapbpf-bench-").permissions(permissions).tempdir()?)
}
