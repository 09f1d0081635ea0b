//! `cargo xtask bench overhead` and `bench soak`: the command lines, and the parts that need no file of their own.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;
use clap::builder::PossibleValuesParser;
use heapbpf_tests::report::Report;
use procfs::Current as _;

use super::figures::{self, Spread, mib, verdict};
use super::programs::{self, Churn};
use super::tool::{self, Agent, Setup, Tool};
use super::{Bench, Page, attach, calls, compared, functions, many, workload};
use crate::process::{self, PATIENCE, cpu_seconds};
use crate::{command, packages};

/// Compares the cost of heapbpf with that of other tools, for a call and for real programs; shows how many events can be
/// processed, and how long attaching takes.
///
/// Requires root. All compared tools alternate in one run, round by round, and figures are medians of rounds. bcc's memleak
/// is measured where it is installed.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask bench overhead                                everything: several hours
  cargo xtask bench overhead --write                        and into docs/overhead.md
  cargo xtask bench overhead --part calls --memleak libbpf-tools/memleak
  cargo xtask bench overhead --part programs --only sqlite3 git --rounds 3
  cargo xtask bench overhead --part programs --only pairs redis sqlite3 --rounds 5 --inline
  cargo xtask bench overhead --part sustained --seconds 5
  cargo xtask bench overhead --part hot-path --against ./heapbpf-before
HEAPBPF_BIN=PATH measures that binary instead of building one.")]
pub(super) struct Arguments {
    /// Part to measure. May be given several times. Default: all.
    #[arg(long, value_enum)]
    part: Vec<Part>,
    /// Number of rounds in which all compared tools alternate.
    #[arg(long, default_value_t = 9, value_name = "COUNT")]
    rounds: usize,
    /// Duration of a measurement in milliseconds.
    #[arg(long, default_value_t = 700, value_name = "MS")]
    window: u64,
    /// Duration of a recording of every allocation of two busy threads, in seconds.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    seconds: u64,
    /// memleak of bcc's libbpf-tools, where it is not in PATH.
    #[arg(long, value_name = "PATH")]
    memleak: Option<PathBuf>,
    /// Another heapbpf, such as one built before a change: the parts `hot-path`, `python` and `runtimes`
    /// alternate between both.
    #[arg(long, value_name = "PATH")]
    against: Option<PathBuf>,
    /// Program of the part `programs` to measure. May be given several times. Default: all.
    #[arg(long, num_args = 1.., value_name = "PROGRAM", conflicts_with = "write",
        value_parser = PossibleValuesParser::new(workload::ALL.map(|workload| workload.name)))]
    only: Vec<String>,
    /// Measure only the inline engine in the part `programs`: a few minutes.
    #[arg(long, conflicts_with = "write")]
    inline: bool,
    /// Write the tables into docs/overhead.md.
    #[arg(long)]
    write: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A call of the allocator, under each tool.
    Calls,
    /// A call of one busy target among up to 1,000.
    Targets,
    /// The programs in the kernel, without the traps.
    HotPath,
    /// A Python function in a sampled stack.
    Python,
    /// The same for functions of Java, JavaScript, PHP and Ruby.
    Runtimes,
    /// Real programs, under both engines and other tools. Two thirds of the time of all parts.
    Programs,
    /// Every allocation of two busy threads.
    Sustained,
    /// Memory for each live block.
    Memory,
    /// Attaching and detaching.
    Attach,
}

pub(super) fn run(arguments: &Arguments) -> Result<()> {
    let bench = Bench::new(packages::BENCH_OVERHEAD, arguments.rounds)?;
    let setup = Setup {
        against: arguments.against.clone(),
        memleak: arguments.memleak.clone().or_else(|| command::find("memleak")),
        window: Duration::from_millis(arguments.window),
        sustained: Duration::from_secs(arguments.seconds),
        bench,
    };
    let page = Page::new(&setup.bench.repository, "docs/overhead.md", arguments.write);
    page.run(&arguments.part, |part| {
        let text = match part {
            Part::Calls => calls::measure(&setup),
            Part::Targets => many::measure(&setup),
            Part::HotPath => calls::measure_hot_path(&setup),
            Part::Python => functions::measure(&setup, functions::PYTHON),
            Part::Runtimes => functions::measure(&setup, functions::RUNTIMES),
            Part::Programs => compared::measure(&setup, &arguments.only, arguments.inline),
            Part::Sustained => sustained(&setup),
            Part::Memory => memory(&setup),
            Part::Attach => attach::measure(&setup),
        };
        Ok(text?.into())
    })
}

const THREADS: u32 = 2;

const UNWINDING: [(&str, &[&str]); 2] = [
    ("5 frames by frame pointers (`--unwind fp`)", &["--interval", "1", "--on-overload", "drop", "--unwind", "fp"]),
    ("5 frames by tables (default)", &["--interval", "1", "--on-overload", "drop"]),
];

fn sustained(setup: &Setup) -> Result<String> {
    let mut runs = Vec::new();
    for (name, options) in UNWINDING {
        let churn = Churn::start(&setup.bench, "malloc", THREADS)?;
        let attached = Tool::Heapbpf(options).attach(setup, churn.pid(), &[])?;
        // Loading the programs does not count.
        let loaded = cpu_seconds(attached.agent()?)?;
        let pairs = churn.calls_per_second(setup.sustained)?;
        let report = attached.detach(churn.pid())?.context("heapbpf writes a report")?;
        eprintln!("{name}: dropped {:?}", report.health.lost);
        let cpu = Duration::from_nanos(report.health.agent_cpu_ns).as_secs_f64() - loaded;
        let (events, seconds) = (report.health.events as f64, tool::seconds(&report));
        runs.push((name, pairs, events, seconds, cpu, tool::dropped(&report)));
    }
    let table = figures::columns(
        runs,
        &[
            ("two threads, malloc and free in a loop", &|(name, ..)| (*name).to_owned()),
            ("thousand pairs/s", &|(_, pairs, ..)| format!("{:.0}", pairs / 1e3)),
            ("thousand events/s", &|(_, _, events, seconds, ..)| format!("{:.0}", events / seconds / 1e3)),
            ("dropped", &|(.., dropped)| dropped.to_string()),
            ("agent: CPU seconds per million events", &|(_, _, events, _, cpu, _)| {
                format!("{:.2}", cpu / (events / 1e6))
            }),
            ("of one CPU", &|(.., seconds, cpu, _)| format!("{:.0} %", 100.0 * cpu / seconds)),
        ],
    );
    Ok(format!("{table}\nFor {} seconds each, with `--interval 1`.\n", setup.sustained.as_secs()))
}

const BLOCKS: u32 = 1_000_000;
/// Limit for kernel and agent together.
const BLOCK_BYTES_MAX: f64 = 160.0;
/// Size of key and value of the live set: see profiler-common/src/live.rs.
const LIVE_SET: [Option<u64>; 2] = [Some(16), Some(24)];

const MEMORY: [&str; 3] = [
    "kernel: the live set's map, as the kernel accounts for it",
    "agent: its anonymous memory (RssAnon)",
    "for comparison: all object caches of the kernel (Slab)",
];
type Memory = [u64; MEMORY.len()];

/// Measures memory per live block, once: it does not depend on other work of the machine.
fn memory(setup: &Setup) -> Result<String> {
    let mut target = programs::start(&setup.bench, "steps", &[])?;
    let attached = Tool::Heapbpf(&["--interval", "1", "--on-overload", "drop"]).attach(setup, target.pid(), &[])?;
    let before = memory_of(attached.agent()?)?;
    target.order(&format!("alloc {BLOCKS}"))?;
    let after = settled_memory_of(attached.agent()?)?;
    target.order("free")?;
    let dropped = attached.detach(target.pid())?.map_or(0, |report| tool::dropped(&report));
    let per_block = |index: usize| after[index].saturating_sub(before[index]) as f64 / f64::from(BLOCKS);
    let table = figures::columns(
        0..MEMORY.len(),
        &[
            ("one million live blocks", &|index| MEMORY[*index].to_owned()),
            ("MiB before", &|index| format!("{:.1}", mib(before[*index]))),
            ("MiB with them", &|index| format!("{:.1}", mib(after[*index]))),
            ("bytes per block", &|index| format!("{:.0}", per_block(*index))),
        ],
    );
    let sum = per_block(0) + per_block(1);
    let met = verdict(sum, BLOCK_BYTES_MAX);
    Ok(format!(
        "{table}\nTogether {sum:.0} bytes per live block, limit {BLOCK_BYTES_MAX}: {met}. Events dropped: {dropped}.\n"
    ))
}

fn memory_of(agent: u32) -> Result<Memory> {
    let maps = calls::bpf_objects(agent, "map_id", "memlock")?;
    let is_live_set = |map: &&calls::Facts| ["key_size", "value_size"].map(|size| map.get(size).copied()) == LIVE_SET;
    let live_set = maps.iter().find(is_live_set).with_context(|| format!("no map with sizes {LIVE_SET:?}"))?["memlock"];
    Ok([live_set, process::memory(agent)?.anonymous, procfs::Meminfo::current()?.slab])
}

/// The same once the agent has processed all events: it has not grown for a second.
fn settled_memory_of(agent: u32) -> Result<Memory> {
    let (mut last, mut since, started) = (memory_of(agent)?, Instant::now(), Instant::now());
    while since.elapsed() < Duration::from_secs(1) && started.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(50));
        let now = memory_of(agent)?;
        if now[..2] != last[..2] {
            since = Instant::now();
        }
        last = now;
    }
    Ok(last)
}

const SAMPLES_MIN: usize = 10;
/// Minimum part of the requested rate: below it the figures describe another load. Memory must be constant in any case.
const RATE_PART_MIN: f64 = 0.9;

/// Maximum growth of the median from the middle to the last third. It may shrink: the kernel reclaims pages of files.
const GROWTH_MAX: f64 = 0.02;

/// Shows whether the agent's memory is constant under load, and fails when the median of the last third of the time exceeds
/// that of the middle third by more than 2 %.
///
/// A program has blocks of 192 bytes on average in use and replaces some of them, at 256 callsites. Requires root.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask bench soak                      for 30 minutes
  cargo xtask bench soak --minutes 2          as with each change
  cargo xtask bench soak --write              and into docs/overhead.md
HEAPBPF_BIN=PATH measures that binary instead of building one.")]
pub(super) struct SoakArguments {
    /// Duration of the load in minutes.
    #[arg(long, default_value_t = 30, value_name = "MINUTES", value_parser = clap::value_parser!(u64).range(1..=1440))]
    minutes: u64,
    /// Number of live blocks.
    #[arg(long, default_value_t = 1_000_000, value_name = "COUNT")]
    blocks: u32,
    /// Number of blocks that are replaced per second.
    #[arg(long, default_value_t = 100_000, value_name = "COUNT")]
    rate: u32,
    /// Sampling interval of heapbpf.
    #[arg(long, default_value = "4KiB", value_name = "BYTES")]
    interval: String,
    /// Write the table into docs/overhead.md.
    #[arg(long)]
    write: bool,
}

pub(super) fn soak(arguments: &SoakArguments) -> Result<()> {
    let bench = Bench::new(packages::BENCH_C, 1)?;
    let outcome = measure_soak(arguments, &bench)?;
    let is_busy = outcome.rate() < RATE_PART_MIN * f64::from(arguments.rate);
    let page = Page::new(&bench.repository, "docs/overhead.md", arguments.write && !is_busy);
    page.publish("soak", outcome.text(arguments))?;
    if is_busy {
        println!("only {:.0} blocks per second were replaced: this machine is too busy", outcome.rate());
        if arguments.write {
            bail!("docs/overhead.md is unchanged; try again when the machine is idle");
        }
    }
    if !outcome.is_constant() {
        let [resident, anonymous] = [&outcome.resident, &outcome.anonymous].map(Thirds::ratio);
        bail!("the agent's memory grows: last third ÷ middle third: {resident:.3} resident, {anonymous:.3} anonymous");
    }
    Ok(())
}

fn measure_soak(arguments: &SoakArguments, bench: &Bench) -> Result<Outcome> {
    let mut turnover = programs::start(bench, "turnover", &[arguments.blocks, arguments.rate])?;
    let mut command = bench.record(turnover.pid());
    let json = bench.folder.join("soak.json");
    let agent = Agent::start(command.args(["--interval", &arguments.interval]), &json)?;
    // Prints a line for each second's work, which takes longer on a machine that is too busy for the rate.
    let [replaced_before, _live_bytes] = programs::numbers(&turnover.ask("")?)?;
    let (started, cpu_before) = (Instant::now(), cpu_seconds(agent.pid())?);
    let duration = Duration::from_secs(60 * arguments.minutes);
    let (mut replaced, mut resident, mut anonymous) = (replaced_before, Vec::new(), Vec::new());
    while started.elapsed() < duration {
        [replaced, _] = programs::numbers(&turnover.line()?)?;
        let memory = process::memory(agent.pid())?;
        resident.push(memory.resident);
        anonymous.push(memory.anonymous);
    }
    let (seconds, cpu_seconds) = (started.elapsed().as_secs_f64(), cpu_seconds(agent.pid())? - cpu_before);
    turnover.close_input();
    let status = turnover.wait()?;
    ensure!(status.success(), "the target exited with {status}");
    let last = std::iter::from_fn(|| turnover.line().ok()).last().context("the target printed nothing at its end")?;
    let [_replaced, live_bytes] = programs::numbers(&last)?;
    // The agent exits with its target.
    let report = agent.finish()?;
    let thirds =
        |bytes: &[u64]| Thirds::of(bytes, SAMPLES_MIN).with_context(|| format!("only {} samples", bytes.len()));
    Ok(Outcome {
        resident: thirds(&resident)?,
        anonymous: thirds(&anonymous)?,
        seconds,
        cpu_seconds,
        replaced: replaced - replaced_before,
        live_bytes,
        report,
    })
}

struct Outcome {
    resident: Thirds,
    /// Without pages of files and shared pages (RssAnon).
    anonymous: Thirds,
    seconds: f64,
    cpu_seconds: f64,
    replaced: u64,
    live_bytes: u64,
    report: Report,
}

impl Outcome {
    fn rate(&self) -> f64 {
        self.replaced as f64 / self.seconds
    }

    fn is_constant(&self) -> bool {
        self.resident.is_constant() && self.anonymous.is_constant()
    }

    fn text(&self, arguments: &SoakArguments) -> String {
        let Report { targets, health, .. } = &self.report;
        let dropped = tool::dropped(&self.report);
        let live: f64 = targets.iter().filter_map(|target| target.totals.live_bytes.as_f64()).sum();
        let live_samples: u64 = targets.iter().filter_map(|target| target.totals.live_samples).sum();
        let thirds = |name: &str, thirds: &Thirds| {
            let [first, middle, last] = thirds.0.each_ref().map(|third| format!("{third:.1}"));
            [
                (format!("agent's {name}, MiB: first third"), first),
                ("middle third".to_owned(), middle),
                ("last third".to_owned(), last),
                ("last ÷ middle".to_owned(), format!("{:.3}", thirds.ratio())),
            ]
        };
        let figures = [
            ("blocks replaced, thousand/s", format!("{:.1}", self.rate() / 1e3)),
            ("events/s", format!("{:.0}", health.events as f64 / tool::seconds(&self.report))),
            ("events dropped", dropped.to_string()),
            ("agent's CPU time, of one CPU", format!("{:.1} %", 100.0 * self.cpu_seconds / self.seconds)),
            ("sampled blocks that were live at the end", live_samples.to_string()),
            (
                "estimated live bytes at the end, error",
                format!("{:+.2} %", 100.0 * (live / self.live_bytes as f64 - 1.0)),
            ),
        ];
        let memory = [thirds("memory (VmRSS)", &self.resident), thirds("anonymous memory (RssAnon)", &self.anonymous)];
        let rows = memory.into_iter().flatten().chain(figures.map(|(name, figure)| (name.to_owned(), figure)));
        let SoakArguments { minutes, blocks, rate, interval, .. } = arguments;
        let head = format!("{minutes} min at `--interval {interval}`");
        let met = if self.is_constant() { "met" } else { "**not met**" };
        let reasons: Vec<_> = health.lost.iter().filter(|(_, count)| **count > 0).collect();
        let reasons = if dropped > 0 { format!(" Dropped: {reasons:?}.") } else { String::new() };
        format!(
            "{}\n{blocks} live blocks, {rate}/s to be replaced. Median (extremes) of a sample each second; limit: the last \
             third is at most 2 % above the middle one: {met}.{reasons}",
            figures::pairs([&head, "figure, median (extremes)"], rows)
        )
    }
}

/// Memory in MiB in each third of the time: the first one includes the warm-up of the agent.
#[derive(Clone, Debug)]
struct Thirds([Spread; 3]);

impl Thirds {
    /// From samples at equal intervals. `None` with fewer than `least` for each third.
    fn of(bytes: &[u64], least: usize) -> Option<Self> {
        let each = bytes.len() / 3;
        let third = |start: usize, end: usize| Spread::of(bytes[start..end].iter().map(|&bytes| mib(bytes)));
        let has_enough = each >= least.max(1);
        has_enough.then(|| Self([third(0, each), third(each, 2 * each), third(2 * each, bytes.len())]))
    }

    /// Median of the last third as a part of that of the middle one.
    fn ratio(&self) -> f64 {
        self.0[2].median() / self.0[1].median()
    }

    fn is_constant(&self) -> bool {
        self.ratio() - 1.0 <= GROWTH_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(mib: impl Iterator<Item = u64>, constant: bool) {
        let bytes: Vec<u64> = mib.map(|mib| mib << 20).collect();
        let thirds = Thirds::of(&bytes, 3).expect("there are enough");
        assert_eq!(thirds.is_constant(), constant, "{thirds:?}");
    }

    #[test]
    fn growth_is_distinguished_from_warm_up() {
        check((0..30).map(|_| 100), true);
        check((0..30).map(|i| if i < 9 { 10 * i } else { 100 }), true);
        check((0..30).map(|i| if i % 7 == 0 { 500 } else { 100 }), true);
        check((0..30).map(|i| 100 + i), false);
        check((0..30).map(|i| 1000 - 10 * i), true);
        check((0..30).map(|i| if i < 20 { 100 } else { 103 }), false);
    }

    #[test]
    fn thirds_need_samples() {
        assert!(Thirds::of(&[1; 8], 3).is_none());
        assert!(Thirds::of(&[], 0).is_none());
        let thirds = Thirds::of(&[1 << 20, 2 << 20, 3 << 20, 5 << 20], 1).expect("one for each");
        let thirds = thirds.0.map(|third| format!("{third:.1}"));
        assert_eq!(thirds, ["1.0 (1.0 to 1.0)", "2.0 (2.0 to 2.0)", "4.0 (3.0 to 5.0)"]);
    }
}
