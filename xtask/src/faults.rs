//! `cargo xtask faults`: configures the integration test `faults`, and writes its table into docs/. With `--engine inline`: the
//! differential attack.

mod attack;
mod kills;
mod memory;
mod profiler;
mod programs;
mod server;
mod subject;
mod tally;

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};
use std::{env, fs};

use anyhow::{Context as _, Result, bail};
use heapbpf_tests::faults::{Backend, Mode, Role};
use heapbpf_tests::kernel;
use rustix::process::Signal;

use crate::bench::figures;
use crate::command::{self, Privilege, Repository};
use crate::packages;

const PAGE: &str = "docs/reliability.md";
/// Kills of the attack.
const ATTACK_KILLS: usize = 500;

/// Kills heapbpf or its target at random points in time, and checks that nothing else is harmed.
///
/// Uses a release build, or the binary that HEAPBPF_BIN names. Prints the seed of the run, and for each fault the command that
/// repeats it. Fails when any kill does harm.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask faults                                   60 kills of all kinds
  cargo xtask faults --long --write                    1,600 kills; counts go to docs/reliability.md
  cargo xtask faults --mode leaks-fork --role agent    one mode
  cargo xtask faults --mode record --backend perf --role agent --at detach+50000us --kills 20
  cargo xtask faults --engine inline                   2,000 cycles and 500 kills with programs of many kinds
  cargo xtask faults --engine inline --cycles 50 --kills 0 --programs go-cgo,preload-jemalloc")]
pub(crate) struct Arguments {
    /// Number of kills, of all roles together.
    #[arg(long, value_name = "N", conflicts_with = "long")]
    kills: Option<usize>,

    /// 1,000 kills of the agent, 200 each of keeper and symbolizer, 100 each of the target, and of agent and keeper at once.
    #[arg(long)]
    long: bool,

    /// Seed of the random numbers. Without it: the time.
    #[arg(long)]
    seed: Option<u64>,

    /// Use of heapbpf: `exact`, `record`, `inline`, `inline-exact`, `recording`, `cmdline`, `launch`, `hold-forks`, `leaks-read`, `leaks-fork` or
    /// `leaks-watch`.
    #[arg(long, value_name = "NAME")]
    mode: Option<Mode>,

    /// How probes are attached: `session`, `multi` or `perf`; `auto` for leaks.
    #[arg(long, value_name = "NAME")]
    backend: Option<Backend>,

    /// Process to kill: `agent`, `keeper`, `symbolizer`, `both` (agent and keeper) or `target`.
    #[arg(long, value_name = "NAME")]
    role: Option<Role>,

    /// Point in time of all kills: `start+MICROSECONDSus`, `steady+…us` or `detach+…us`.
    #[arg(long, value_name = "TIME")]
    at: Option<String>,

    /// Write the tables into docs/reliability.md.
    #[arg(long)]
    write: bool,

    /// Attack this engine: programs of many kinds compute results while heapbpf attaches and detaches at random times. Reports
    /// results that differ from those without heapbpf, deaths, changed memory, and slots that lead to stubs.
    #[arg(long, value_enum, value_name = "NAME", conflicts_with_all = ["mode", "backend", "role", "at", "long"])]
    engine: Option<Engine>,

    /// Number of times that heapbpf attaches, of all programs together.
    #[arg(long, value_name = "N", default_value_t = 2000, requires = "engine")]
    cycles: usize,

    /// Programs to attack, separated by commas. Without it: all.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "engine")]
    programs: Vec<String>,
}

/// An engine that can be attacked.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Engine {
    Inline,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if Privilege::find() != Privilege::Root {
        bail!("profiling other processes requires root: run it as root");
    }
    heed_interrupts()?;
    let repository = Repository::find()?;
    if let Some(Engine::Inline) = arguments.engine {
        return attack(arguments, &repository);
    }
    let binary = repository.heapbpf()?;
    let folder = tempfile::tempdir()?;
    let table = folder.path().join("table.md");
    let mut test = repository.cargo();
    test.args(["test", "--quiet", "--package", "heapbpf-tests", "--test", "it", "--", "--nocapture", "faults::"]);
    test.env("HEAPBPF_FAULTS_RANDOM", "1").env("HEAPBPF_BIN", binary).env("HEAPBPF_FAULTS_TABLE", &table);
    let variables = [
        ("KILLS", arguments.kills.map(|it| it.to_string())),
        ("LONG", arguments.long.then(|| "1".to_owned())),
        ("SEED", arguments.seed.map(|it| it.to_string())),
        ("MODE", arguments.mode.map(|it| it.to_string())),
        ("BACKEND", arguments.backend.map(|it| it.to_string())),
        ("ROLE", arguments.role.map(|it| it.to_string())),
        ("AT", arguments.at.clone()),
    ];
    for (name, value) in variables.into_iter().filter_map(|(name, value)| Some((name, value?))) {
        test.env(format!("HEAPBPF_FAULTS_{name}"), value);
    }
    let outcome = command::run(&mut test);
    // Also written when there was harm, which the counts include.
    if let Ok(text) = fs::read_to_string(&table) {
        println!("{text}");
        if arguments.write {
            let text = format!("{}\n\n{text}", figures::provenance()?);
            figures::write(&repository.root.join(PAGE), "faults", &text).context("the table was not written")?;
        }
    }
    outcome
}

/// Fails on any difference, and if a program could not be run.
fn attack(arguments: &Arguments, repository: &Repository) -> Result<()> {
    // Programs that are missing are reported as not run.
    if let Err(error) = packages::install(packages::FAULTS) {
        eprintln!("packages are missing: {error:#}");
    }
    // The run prints its seed.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_secs());
    let seed = arguments.seed.unwrap_or(now);
    let plan = attack::Plan {
        binary: repository.heapbpf()?,
        sources: repository.root.join("tests/targets"),
        cycles: arguments.cycles,
        kills: arguments.kills.unwrap_or(ATTACK_KILLS),
        seed,
        programs: arguments.programs.clone(),
    };
    eprintln!("faults: {} cycles and {} kills, seed {seed}", plan.cycles, plan.kills);
    let tally = attack::run(&plan)?;
    println!("{tally}");
    if arguments.write {
        let text = format!("{} Seed {seed}.\n\n{tally}", figures::provenance()?);
        figures::write(&repository.root.join(PAGE), "attack", &text).context("the table was not written")?;
    }
    let not_run = tally.not_run();
    match (tally.faults(), not_run.as_slice()) {
        (0, []) => Ok(()),
        (0, not_run) => bail!("not run: {}; seed {seed}", not_run.join(", ")),
        (faults, []) => bail!("{faults} faults; seed {seed}"),
        (faults, not_run) => bail!("{faults} faults, and not run: {}; seed {seed}", not_run.join(", ")),
    }
}

/// Starts this program again with the default action for SIGINT if it is ignored, as in background jobs of scripts. heapbpf would inherit
/// that, and would ignore interrupts until it has installed its handler, as any program does.
fn heed_interrupts() -> Result<()> {
    if !kernel::ignores(std::process::id(), Signal::INT) {
        return Ok(());
    }
    let mut again = Command::new("env");
    again.arg("--default-signal=INT").arg(env::current_exe()?).args(env::args_os().skip(1));
    Err(again.exec()).context("cannot start `env`, which resets ignored signals")
}
