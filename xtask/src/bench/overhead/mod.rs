//! `cargo xtask bench overhead`: what being watched costs a program, and what watching costs. Each part is a file of its
//! own; this one runs those that are asked for and writes them down.

mod attach;
mod breakpoints;
mod calls;
mod churn;
mod crowd;
mod descriptors;
mod hot_path;
mod memory;
mod naming;
mod program;
mod report;
mod steps;
mod sustained;
mod throughput;
mod tool;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Parser, ValueEnum};

use super::{document, machine};
use crate::packages::Proof;
use crate::repository::{self, Repository};
use crate::{apt, command, packages};

/// Where `--write` writes.
const PAGE: &str = "docs/overhead.md";

/// Frames of the targets' stacks.
const DEPTH: usize = 5;

/// Shows what a watched call costs beside other tools, what real programs lose, how many events can be taken, and how long
/// attaching and naming take.
///
/// Takes root. Everything compared takes turns in one run, round after round, and figures are medians of rounds. bpftrace,
/// heaptrack and bcc's memleak are measured where they are installed.
#[derive(Parser)]
#[command(after_help = "Examples:
  cargo xtask bench overhead                                everything: half an hour
  cargo xtask bench overhead --write                        and into docs/overhead.md
  cargo xtask bench overhead --part calls --memleak libbpf-tools/memleak
  cargo xtask bench overhead --part sustained --seconds 5
  cargo xtask bench overhead --part hot-path --against ./heapbpf-before
HEAPBPF_BIN=PATH measures that binary instead of one that is built.")]
pub(super) struct Arguments {
    /// Measure this alone. May be given several times.
    #[arg(long, value_enum)]
    part: Vec<Part>,
    /// Rounds in which everything compared has its turn.
    #[arg(long, default_value_t = 9, value_name = "COUNT")]
    rounds: usize,
    /// Milliseconds for which each turn is timed.
    #[arg(long, default_value_t = 700, value_name = "MS")]
    window: u64,
    /// Seconds for which every allocation of two busy threads is recorded.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    seconds: u64,
    /// memleak of bcc's libbpf-tools, where it is not in PATH.
    #[arg(long, value_name = "PATH")]
    memleak: Option<PathBuf>,
    /// Another heapbpf, such as one built before a change: the hot path is measured with both by turns.
    #[arg(long, value_name = "PATH")]
    against: Option<PathBuf>,
    /// Write the tables into docs/overhead.md.
    #[arg(long)]
    write: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A call of the allocator, under each tool.
    Calls,
    /// The programs in the kernel, without the traps.
    HotPath,
    /// Real programs, with and without.
    Throughput,
    /// Every allocation of two busy threads.
    Sustained,
    /// Memory for each live block.
    Memory,
    /// Attaching and detaching.
    Attach,
    /// From the end of a recording to its flame graph.
    Naming,
}

/// What all parts use.
struct Bench {
    repository: Repository,
    heapbpf: PathBuf,
    against: Option<PathBuf>,
    floor: PathBuf,
    memleak: Option<PathBuf>,
    /// For whatever they leave behind. Removed at the end.
    folder: PathBuf,
    rounds: usize,
    window: Duration,
    sustained: Duration,
}

impl Bench {
    /// A command that profiles a process, with its cache of unwind tables in this bench's folder.
    fn heapbpf(&self, pid: u32) -> Command {
        self.profile_with(&self.heapbpf, pid)
    }

    fn profile_with(&self, heapbpf: &Path, pid: u32) -> Command {
        let mut command = program::bound(heapbpf);
        command.env("XDG_CACHE_HOME", self.folder.join("cache")).args(["--pid", &pid.to_string()]);
        command
    }
}

/// Measures a part and puts it in words and tables.
type Measure = fn(&Bench) -> Result<String>;

/// All parts, with what marks their places in the page.
const PARTS: [(Part, &str, Measure); 7] = [
    (Part::Calls, "calls", calls::measure),
    (Part::HotPath, "hot-path", hot_path::measure),
    (Part::Throughput, "throughput", throughput::measure),
    (Part::Sustained, "sustained", sustained::measure),
    (Part::Memory, "memory", memory::measure),
    (Part::Attach, "attach", attach::measure),
    (Part::Naming, "naming", naming::measure),
];

/// Runs the verb.
pub(super) fn run(arguments: &Arguments) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("reading the code of watched processes takes root: run `sudo -E cargo xtask bench overhead`");
    }
    apt::install(&packages::missing(&[packages::BENCH_OVERHEAD], Proof::present))?;
    let repository = Repository::find()?;
    let mut cargo = Command::new(repository::cargo());
    cargo.current_dir(&repository.root).args(["build", "--release", "--package", "heapbpf"]);
    command::run(cargo.args(["--bin", "heapbpf", "--example", "floor"]))?;
    let folder = tempfile::Builder::new().prefix("heapbpf-bench-").tempdir()?;
    let bench = Bench {
        heapbpf: std::env::var_os("HEAPBPF_BIN")
            .map_or_else(|| repository.target.join("release/heapbpf"), PathBuf::from),
        against: arguments.against.clone(),
        floor: repository.target.join("release/examples/floor"),
        memleak: arguments.memleak.clone().or_else(|| command::find("memleak")),
        folder: folder.path().to_owned(),
        rounds: arguments.rounds.max(1),
        window: Duration::from_millis(arguments.window),
        sustained: Duration::from_secs(arguments.seconds),
        repository,
    };
    std::fs::create_dir(bench.folder.join("cache"))?;
    for (part, name, measure) in PARTS {
        if arguments.part.is_empty() || arguments.part.contains(&part) {
            let text = format!("{}\n\n{}\n", measure(&bench)?.trim_end(), provenance()?);
            println!("\n{name}\n\n{text}");
            if arguments.write {
                document::write(&bench.repository.root.join(Path::new(PAGE)), name, &text)?;
            }
        }
    }
    Ok(())
}

/// Where and when something was measured.
fn provenance() -> Result<String> {
    let day = command::output(Command::new("date").args(["--utc", "+%Y-%m-%d"]))?;
    Ok(format!("Measured on {}, {}.", machine::describe(), day.trim()))
}

/// Whether a figure is at most what is asked for.
fn verdict(figure: f64, limit: f64) -> &'static str {
    if figure <= limit { "met" } else { "**not met**" }
}
