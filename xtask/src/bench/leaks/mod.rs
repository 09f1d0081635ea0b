//! `cargo xtask bench leaks`: how long a process stands still while `heapbpf leaks` looks at it, and what looking takes. Each part is
//! a file of its own; this one runs those that are asked for and writes them down.

mod blocks;
mod hoard;
mod look;
mod pause;
mod small;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};
use clap::{Parser, ValueEnum};

use super::spread::Spread;
use super::{document, machine};
use crate::packages::Proof;
use crate::repository::{self, Repository};
use crate::{apt, command, packages};

/// Where `--write` writes.
const PAGE: &str = "docs/leaks.md";

/// The two ways to keep memory still.
const METHODS: [&str; 2] = ["read", "fork"];

/// Shows how long a process stands still while it is looked at for leaks, how late its latest request is meanwhile, and how much time and
/// memory heapbpf takes.
///
/// A program of our own holds linked structures and has leaked a known part; figures count only where that is found, and nothing
/// else. Takes root.
#[derive(Parser)]
#[command(after_help = "Examples:
  cargo xtask bench leaks                      everything: ten minutes
  cargo xtask bench leaks --write              and into docs/leaks.md
  cargo xtask bench leaks --part pause --rounds 9
HEAPBPF_BIN=PATH measures that binary instead of one that is built.")]
pub(super) struct Arguments {
    /// Measure this alone. May be given several times.
    #[arg(long, value_enum)]
    part: Vec<Part>,
    /// Rounds in which everything compared has its turn.
    #[arg(long, default_value_t = 5, value_name = "COUNT")]
    rounds: usize,
    /// Write the tables into docs/leaks.md.
    #[arg(long)]
    write: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A gibibyte of live heap.
    Pause,
    /// Small processes, with one thread and with many.
    Small,
    /// Ten million live blocks.
    Blocks,
}

/// What all parts use.
struct Bench {
    heapbpf: PathBuf,
    hoard: PathBuf,
    /// For whatever they leave behind. Removed at the end.
    folder: PathBuf,
    rounds: usize,
}

/// What a part found: text and tables, and which bars were missed.
struct Measured {
    text: String,
    missed: Vec<String>,
}

/// Measures a part and puts it in words and tables.
type Measure = fn(&Bench) -> Result<Measured>;

/// All parts, with what marks their places in the page.
const PARTS: [(Part, &str, Measure); 3] = [
    (Part::Pause, "leaks-pause", pause::measure),
    (Part::Small, "leaks-small", small::measure),
    (Part::Blocks, "leaks-blocks", blocks::measure),
];

/// Runs the verb.
pub(super) fn run(arguments: &Arguments) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("stopping and reading another process takes root: run `sudo -E cargo xtask bench leaks`");
    }
    apt::install(&packages::missing(&[packages::BENCH_LEAKS], Proof::present))?;
    let repository = Repository::find()?;
    let given = std::env::var_os("HEAPBPF_BIN").map(PathBuf::from);
    if given.is_none() {
        let mut cargo = Command::new(repository::cargo());
        command::run(cargo.current_dir(&repository.root).args(["build", "--release", "--package", "heapbpf"]))?;
    }
    let folder = tempfile::Builder::new().prefix("heapbpf-bench-").tempdir()?;
    let bench = Bench {
        heapbpf: given.unwrap_or_else(|| repository.target.join("release/heapbpf")),
        hoard: hoard::build(&repository.root, folder.path())?,
        folder: folder.path().to_owned(),
        rounds: arguments.rounds.max(1),
    };
    let mut missed = Vec::new();
    for (part, name, measure) in PARTS {
        if arguments.part.is_empty() || arguments.part.contains(&part) {
            let measured = measure(&bench)?;
            let text = format!("{}\n\n{}\n", measured.text.trim_end(), provenance()?);
            println!("\n{name}\n\n{text}");
            if arguments.write {
                document::write(&repository.root.join(Path::new(PAGE)), name, &text)?;
            }
            missed.extend(measured.missed);
        }
    }
    if !missed.is_empty() {
        bail!("not met: {}", missed.join("; "));
    }
    Ok(())
}

/// Where and when something was measured.
fn provenance() -> Result<String> {
    let day = command::output(Command::new("date").args(["--utc", "+%Y-%m-%d"]))?;
    Ok(format!("Measured on {}, {}.", machine::describe(), day.trim()))
}

/// A bar, and whether a figure is within it.
struct Bar {
    what: &'static str,
    unit: &'static str,
    most: f64,
}

impl Bar {
    /// A sentence about it, and what was missed.
    fn judge(&self, figure: f64, missed: &mut Vec<String>) -> String {
        let Self { what, unit, most } = self;
        let met = figure <= *most;
        if !met {
            missed.push(format!("{what}: {figure:.0} {unit}, at most {most:.0} {unit}"));
        }
        let verdict = if met { "met" } else { "**not met**" };
        format!("{what}: {figure:.0} {unit}, at most {most:.0} {unit} is asked for: {verdict}.")
    }
}

/// Median and worst.
fn told(values: &[f64], digits: usize) -> String {
    let spread = Spread::new(values.to_vec());
    format!("{:.digits$} ({:.digits$})", spread.median(), spread.max())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_met_or_missed() {
        let bar = Bar { what: "pause", unit: "ms", most: 50.0 };
        let mut missed = Vec::new();
        assert_eq!(bar.judge(50.0, &mut missed), "pause: 50 ms, at most 50 ms is asked for: met.");
        assert!(missed.is_empty());
        assert!(bar.judge(51.0, &mut missed).ends_with("**not met**."));
        assert_eq!(missed, ["pause: 51 ms, at most 50 ms"]);
        assert_eq!(told(&[3.0, 1.0, 2.0], 1), "2.0 (3.0)");
    }
}
