//! `cargo xtask bench overhead`: the command line, and the parts that need no file of their own.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use heapbpf_tests::report::Report;
use procfs::Current as _;

use super::figures::{self, Spread, mib, verdict};
use super::targets::{self, Churn};
use super::tool::{self, Agent, Setup, Tool};
use super::{Bench, Page, calls, throughput};
use crate::process::{self, PATIENCE, Program, bound, cpu_seconds};
use crate::{command, packages};

/// Shows what a profiled call costs compared with other tools, how much slower real programs are, how many events can be
/// processed, and how long attaching and symbolizing take.
///
/// Requires root. All compared tools alternate in one run, round by round, and figures are medians of rounds. bpftrace,
/// heaptrack and bcc's memleak are measured where they are installed.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask bench overhead                                everything: half an hour
  cargo xtask bench overhead --write                        and into docs/overhead.md
  cargo xtask bench overhead --part calls --memleak libbpf-tools/memleak
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
    /// Another heapbpf, such as one built before a change: the part `hot-path` alternates between both.
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
    /// Real programs, with and without heapbpf.
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
            Part::HotPath => calls::measure_hot_path(&setup),
            Part::Throughput => throughput::measure(&setup),
            Part::Sustained => sustained(&setup),
            Part::Memory => memory(&setup),
            Part::Attach => throughput::measure_attaching(&setup),
            Part::Naming => naming(&setup),
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
    let mut target = targets::start(&setup.bench, "steps", &[])?;
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

/// Functions that call malloc, and how many of them another function calls.
const SITES: usize = 10_000;
const SITES_PER_GROUP: usize = 100;

const NAMING_SECONDS_MAX: f64 = 2.0;

fn naming(setup: &Setup) -> Result<String> {
    let [source, program] = ["sites.c", "sites"].map(|name| setup.bench.folder.join(name));
    fs::write(&source, sites_source())?;
    command::compile("gcc", "-O1 -g -fno-builtin -fno-optimize-sibling-calls", &source, &program)?;
    let mut seconds = Vec::new();
    for _ in 0..setup.bench.rounds {
        seconds.push(record_sites(setup, &program, "svg")?);
    }
    // Checks the content, in a recording whose duration does not count.
    record_sites(setup, &program, "json")?;
    let report: Report = tool::read(&setup.bench.folder.join("sites.json"))?;
    let callsites = tool::callsites(&report).filter(|callsite| tool::alloc_count(callsite) > 0.0).count();
    ensure!(callsites >= SITES, "only {callsites} callsites");
    let spread = Spread::of(seconds);
    let rows = [vec![format!("{callsites} callsites of {SITES} functions"), format!("{spread:.2}")]];
    let head = ["from SIGINT until heapbpf exits, flame graph written", "s, median (extremes)"];
    let met = verdict(spread.median(), NAMING_SECONDS_MAX);
    Ok(format!("{}\nLimit {NAMING_SECONDS_MAX} s: {met}.\n", figures::table(&head, &rows)))
}

fn record_sites(setup: &Setup, program: &Path, extension: &str) -> Result<f64> {
    let (mut target, _) = Program::ready(&mut bound(program))?;
    let output = setup.bench.folder.join("sites").with_extension(extension);
    let mut agent = Agent::start(setup.bench.record(target.pid()).args(["--interval", "1"]), &output)?;
    target.order("go")?;
    let stopped = Instant::now();
    agent.interrupt()?;
    agent.wait()?;
    let seconds = stopped.elapsed().as_secs_f64();
    ensure!(output.exists(), "heapbpf did not write `{}`", output.display());
    Ok(seconds)
}

fn sites_source() -> String {
    let site = |site: usize| {
        format!("__attribute__((noinline)) static void site_{site}(void) {{ kept = malloc({}); }}\n", site + 1)
    };
    let calls = |name: &str, numbers: Range<usize>| {
        numbers.map(|number| format!("    {name}_{number}();\n")).collect::<String>()
    };
    let groups = SITES.div_ceil(SITES_PER_GROUP);
    let group = |group: usize| {
        let first = group * SITES_PER_GROUP;
        let calls = calls("site", first..SITES.min(first + SITES_PER_GROUP));
        format!("__attribute__((noinline)) static void group_{group}(void) {{\n{calls}}}\n")
    };
    format!(
        "#include <stdio.h>\n#include <stdlib.h>\nstatic void *volatile kept;\n{}{}int main(void) {{\n    static char \
         line[64];\n    puts(\"ready\");\n    fflush(stdout);\n    while (fgets(line, sizeof line, stdin)) {{\n{}        \
         puts(\"done\");\n        fflush(stdout);\n    }}\n}}\n",
        (0..SITES).map(site).collect::<String>(),
        (0..groups).map(group).collect::<String>(),
        calls("group", 0..groups)
    )
}
