//! `cargo xtask bench soak`: whether heapbpf's memory stays where it is while a program holds a million blocks and turns them
//! over. This file runs it and writes it down; what is started and read is beside it.

mod agent;
mod outcome;
mod thirds;
mod turnover;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Parser;

use self::agent::{Agent, Memory};
use self::outcome::Outcome;
use self::thirds::Thirds;
use self::turnover::Turnover;
use super::recording::Heapbpf;
use super::{document, machine};
use crate::packages::Proof;
use crate::repository::Repository;
use crate::{apt, command, packages};

/// Where `--write` writes.
const PAGE: &str = "docs/overhead.md";

/// Fewest looks in a third.
const LOOKS_MIN: usize = 10;

/// Part of the rate that has to be reached, or the figures are of something else. Memory has to be flat in any case.
const RATE_PART_MIN: f64 = 0.9;

/// Shows whether the agent's memory is flat under load: the median of the last third of the time at most 2 % above the
/// middle third's, or it fails.
///
/// A program holds blocks of 192 bytes on average and turns some of them over, at 256 callsites. Takes root.
#[derive(Parser)]
#[command(after_help = "Examples:
  cargo xtask bench soak                      for 30 minutes
  cargo xtask bench soak --minutes 5          for what is run with each change
  cargo xtask bench soak --write              and into docs/overhead.md
HEAPBPF_BIN=PATH measures that binary instead of one that is built.")]
pub(super) struct Arguments {
    /// Minutes for which blocks are turned over.
    #[arg(long, default_value_t = 30, value_name = "MINUTES", value_parser = clap::value_parser!(u64).range(1..=1440))]
    minutes: u64,
    /// Blocks that the program holds.
    #[arg(long, default_value_t = 1_000_000, value_name = "COUNT")]
    blocks: u32,
    /// Blocks that it frees and allocates a second.
    #[arg(long, default_value_t = 100_000, value_name = "COUNT")]
    rate: u32,
    /// Mean bytes between samples, as heapbpf takes them.
    #[arg(long, default_value = "4KiB", value_name = "BYTES")]
    interval: String,
    /// Write the table into docs/overhead.md.
    #[arg(long)]
    write: bool,
}

/// Runs the verb.
pub(super) fn run(arguments: &Arguments) -> Result<()> {
    apt::install(&packages::missing(&[packages::BENCH_SOAK], Proof::present))?;
    let repository = Repository::find()?;
    let heapbpf = Heapbpf::find(&repository)?;
    let folder = tempfile::Builder::new().prefix("heapbpf-bench-").tempdir()?;
    let outcome = measure(arguments, &heapbpf, &repository, folder.path())?;
    let day = command::output(Command::new("date").args(["--utc", "+%Y-%m-%d"]))?;
    let text = format!("{}\n\nMeasured on {}, {}.\n", outcome.text(arguments), machine::describe(), day.trim());
    println!("\nsoak\n\n{text}");
    let is_busy = outcome.rate() < RATE_PART_MIN * f64::from(arguments.rate);
    if is_busy {
        println!("only {:.0} blocks a second were turned over: this machine has too much else to do", outcome.rate());
    }
    if arguments.write && is_busy {
        bail!("`{PAGE}` is left as it is; try again when the machine is quiet");
    }
    if arguments.write {
        document::write(&repository.root.join(Path::new(PAGE)), "soak", &text)?;
    }
    if !outcome.is_flat() {
        bail!("the agent's memory grows: {}; its own: {}", outcome.resident, outcome.anonymous);
    }
    Ok(())
}

fn measure(arguments: &Arguments, heapbpf: &Heapbpf, repository: &Repository, folder: &Path) -> Result<Outcome> {
    let mut turnover = Turnover::start(&repository.root, folder, arguments.blocks, arguments.rate)?;
    let json = folder.join("soak.json");
    let mut command = heapbpf.command(&[turnover.pid()], folder)?;
    command.args(["--interval", &arguments.interval, "-o"]).arg(&json);
    let agent = Agent::start(&mut command)?;
    let turned_before = turnover.begin()?;

    let (began, cpu_before) = (Instant::now(), agent.cpu_seconds()?);
    let duration = Duration::from_secs(60 * arguments.minutes);
    let (mut turned, mut looks) = (turned_before, Vec::new());
    while began.elapsed() < duration {
        turned = turnover.next_second()?;
        looks.push(agent.memory()?);
    }
    let (seconds, cpu) = (began.elapsed().as_secs_f64(), agent.cpu_seconds()? - cpu_before);
    // It ends with the program.
    let held_bytes = turnover.end()?;
    let report = agent.finish(&json)?;
    let thirds = |bytes: fn(&Memory) -> u64| {
        let bytes: Vec<u64> = looks.iter().map(bytes).collect();
        Thirds::of(&bytes, LOOKS_MIN).with_context(|| format!("{} looks are too few", looks.len()))
    };
    let resident = thirds(|memory| memory.resident_bytes)?;
    let anonymous = thirds(|memory| memory.anonymous_bytes)?;
    Ok(Outcome { resident, anonymous, seconds, cpu_seconds: cpu, turned: turned - turned_before, held_bytes, report })
}
