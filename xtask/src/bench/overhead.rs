//! `cargo xtask bench overhead`: what profiling costs a program, and what heapbpf itself takes. Defines the command line and the
//! parts that need no file of their own.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, ValueEnum};

use super::agent::{self, Agent};
use super::figures::{Spread, mib, verdict};
use super::process::{Output, PATIENCE, Program, bound, cpu_seconds, field_bytes, status_bytes};
use super::targets::{Churn, Steps};
use super::tool::{Setup, Tool};
use super::{Bench, Page, attach, calls, document, throughput};
use crate::{command, packages};

/// Shows what a profiled call costs compared with other tools, how much slower real programs are, how many events can be
/// processed, and how long attaching and symbolizing take.
///
/// Requires root. All compared tools alternate in one run, round by round, and figures are medians of rounds. bpftrace,
/// heaptrack and bcc's memleak are measured where they are installed.
#[derive(Parser)]
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
            Part::Attach => attach::measure(&setup),
            Part::Naming => naming(&setup),
        };
        Ok(text?.into())
    })
}

/// Threads that call the allocator.
const THREADS: u32 = 2;

/// Unwinding methods and options.
const UNWINDING: [(&str, &[&str]); 2] = [
    ("5 frames by frame pointers (`--unwind fp`)", &["--interval", "1", "--on-overload", "drop", "--unwind", "fp"]),
    ("5 frames by tables (default)", &["--interval", "1", "--on-overload", "drop"]),
];

/// Records every allocation and free of busy threads: events processed and dropped, and CPU time of the agent.
fn sustained(setup: &Setup) -> Result<String> {
    let mut rows = Vec::new();
    for (name, options) in UNWINDING {
        let churn = Churn::start(&setup.bench, "malloc", THREADS)?;
        let attached = Tool::Heapbpf(options).attach(setup, churn.pid(), &[])?;
        // Loading the programs does not count.
        let loaded = cpu_seconds(attached.agent()?)?;
        let pairs = churn.calls_per_second(setup.sustained)?;
        let report = attached.detach(churn.pid())?.context("heapbpf writes a report")?;
        eprintln!("{name}: dropped {:?}", report.health.lost);
        let (events, seconds) = (report.health.events as f64, agent::seconds(&report));
        let cpu = Duration::from_nanos(report.health.agent_cpu_ns).as_secs_f64() - loaded;
        rows.push(vec![
            name.to_owned(),
            format!("{:.0}", pairs / 1e3),
            format!("{:.0}", events / seconds / 1e3),
            agent::dropped(&report).to_string(),
            format!("{:.2}", cpu / (events / 1e6)),
            format!("{:.0} %", 100.0 * cpu / seconds),
        ]);
    }
    let head = [
        "two threads, malloc and free in a loop",
        "thousand pairs/s",
        "thousand events/s",
        "dropped",
        "agent: CPU seconds per million events",
        "of one CPU",
    ];
    let seconds = setup.sustained.as_secs();
    Ok(format!("{}\nFor {seconds} seconds each, with `--interval 1`.\n", document::table(&head, &rows)))
}

/// Blocks that are live at the same time.
const BLOCKS: u32 = 1_000_000;

/// Limit for kernel and agent together.
const BLOCK_BYTES_MAX: f64 = 160.0;

/// Size of key and value of the live set: see profiler-common/src/live.rs.
const LIVE_SET: (u64, u64) = (16, 24);

/// Bytes of the live set's map, of the agent's anonymous memory, and of the kernel's object caches.
type Memory = [u64; 3];

/// Measures memory per live block, once: it does not depend on other work of the machine.
fn memory(setup: &Setup) -> Result<String> {
    let mut target = Steps::start(&setup.bench)?;
    let attached = Tool::Heapbpf(&["--interval", "1", "--on-overload", "drop"]).attach(setup, target.pid(), &[])?;
    let before = memory_of(attached.agent()?)?;
    target.allocate(BLOCKS)?;
    let after = settled_memory_of(attached.agent()?)?;
    target.free()?;
    let dropped = attached.detach(target.pid())?.map_or(0, |report| agent::dropped(&report));
    let names = [
        "kernel: the live set's map, as the kernel accounts for it",
        "agent: its anonymous memory (RssAnon)",
        "for comparison: all object caches of the kernel (Slab)",
    ];
    let per_block = |index: usize| after[index].saturating_sub(before[index]) as f64 / f64::from(BLOCKS);
    let row = |(index, name): (usize, &str)| {
        let [before, after] = [before, after].map(|memory| format!("{:.1}", mib(memory[index])));
        vec![name.to_owned(), before, after, format!("{:.0}", per_block(index))]
    };
    let rows: Vec<_> = names.into_iter().enumerate().map(row).collect();
    let head = ["one million live blocks", "MiB before", "MiB with them", "bytes per block"];
    let sum = per_block(0) + per_block(1);
    Ok(format!(
        "{}\nTogether {sum:.0} bytes per live block, limit {BLOCK_BYTES_MAX}: {}. Events dropped: {dropped}.\n",
        document::table(&head, &rows),
        verdict(sum, BLOCK_BYTES_MAX)
    ))
}

fn memory_of(agent: u32) -> Result<Memory> {
    let maps = calls::bpf_objects(agent, "map_id", "memlock")?;
    let sizes =
        |map: &std::collections::BTreeMap<String, u64>| (map.get("key_size").copied(), map.get("value_size").copied());
    let live_set = maps.iter().find(|map| sizes(map) == (Some(LIVE_SET.0), Some(LIVE_SET.1)));
    let live_set = live_set.with_context(|| format!("no map with sizes {LIVE_SET:?}"))?["memlock"];
    let slab =
        field_bytes(&fs::read_to_string("/proc/meminfo")?, "Slab:").context("the kernel does not report Slab")?;
    Ok([live_set, status_bytes(agent, "RssAnon:")?, slab])
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

/// Measures the time from the end of a recording to its flame graph, with ten thousand callsites to be symbolized by DWARF.
fn naming(setup: &Setup) -> Result<String> {
    let program = build_sites(&setup.bench.folder)?;
    let mut seconds = Vec::new();
    for _ in 0..setup.bench.rounds {
        seconds.push(record_sites(setup, &program, "svg")?);
    }
    // Checks the content, in a recording whose duration does not count.
    record_sites(setup, &program, "json")?;
    let report = agent::read(&setup.bench.folder.join("sites.json"))?;
    let callsites = agent::callsites(&report).filter(|callsite| agent::alloc_count(callsite) > 0.0).count();
    ensure!(callsites >= SITES, "only {callsites} callsites");
    let spread = Spread::of(seconds);
    let rows = [vec![format!("{callsites} callsites of {SITES} functions"), format!("{spread:.2}")]];
    let head = ["from SIGINT until heapbpf exits, flame graph written", "s, median (extremes)"];
    let met = verdict(spread.median(), NAMING_SECONDS_MAX);
    Ok(format!("{}\nLimit {NAMING_SECONDS_MAX} s: {met}.\n", document::table(&head, &rows)))
}

/// Returns the seconds from the interrupt to the exit.
fn record_sites(setup: &Setup, program: &Path, extension: &str) -> Result<f64> {
    let mut target = Program::start(&mut bound(program), Output::Standard)?;
    target.line_after("ready")?;
    let output = setup.bench.folder.join("sites").with_extension(extension);
    let mut agent = Agent::start(setup.bench.record(target.pid()).args(["--interval", "1"]), &output)?;
    target.send("go")?;
    target.line_after("done")?;
    let stopped = Instant::now();
    agent.interrupt()?;
    agent.wait()?;
    let seconds = stopped.elapsed().as_secs_f64();
    ensure!(output.exists(), "heapbpf did not write `{}`", output.display());
    Ok(seconds)
}

/// Compiles a program of many small functions, with DWARF.
fn build_sites(folder: &Path) -> Result<PathBuf> {
    let (source, program) = (folder.join("sites.c"), folder.join("sites"));
    fs::write(&source, sites_source()?)?;
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-g", "-fno-builtin", "-fno-optimize-sibling-calls", "-o"]).arg(&program).arg(&source);
    command::run(&mut gcc)?;
    Ok(program)
}

fn sites_source() -> Result<String> {
    let mut text = String::from("#include <stdio.h>\n#include <stdlib.h>\nstatic void *volatile kept;\n");
    for site in 0..SITES {
        let size = site + 1;
        writeln!(text, "__attribute__((noinline)) static void site_{site}(void) {{\n    kept = malloc({size});\n}}")?;
    }
    let groups = SITES.div_ceil(SITES_PER_GROUP);
    for group in 0..groups {
        writeln!(text, "__attribute__((noinline)) static void group_{group}(void) {{")?;
        for site in (group * SITES_PER_GROUP..SITES).take(SITES_PER_GROUP) {
            writeln!(text, "    site_{site}();")?;
        }
        writeln!(text, "}}")?;
    }
    writeln!(text, "int main(void) {{\n    static char line[64];\n    puts(\"ready\");\n    fflush(stdout);")?;
    writeln!(text, "    while (fgets(line, sizeof line, stdin)) {{")?;
    for group in 0..groups {
        writeln!(text, "        group_{group}();")?;
    }
    writeln!(text, "        puts(\"done\");\n        fflush(stdout);\n    }}\n}}")?;
    Ok(text)
}
