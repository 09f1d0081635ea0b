//! `cargo xtask bench unwind`: the share of complete stacks of real programs, and the costs of unwinding by tables.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;
use heapbpf_tests::report::{Callsite, Frame, Report};
use serde::Deserialize;

use super::figures::{self, Spread, alternate, ms, ratios, verdict};
use super::programs::{self, Running, Workload};
use super::tool::{self, Agent};
use super::{Bench, Measured, Page};
use crate::process::{Program, bound, mappings, thread_cpu_ms};
use crate::{command, packages};

const SAMPLES_MIN: u64 = 10_000;
const COMPLETE_MIN: f64 = 0.995;
/// The start of a program differs from its steady state.
const WARM_UP: Duration = Duration::from_secs(1);

/// Shows the share of complete stacks, how fast unwind tables are built, how long attaching takes, and what a sampled call costs.
///
/// Missing programs are installed (Debian: with apt-get); none is started as a service of the system. The programs run in
/// temporary folders, on loopback, and are killed afterwards. Requires root.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask bench unwind                                  everything
  cargo xtask bench unwind --write                          and into docs/unwinding.md
  cargo xtask bench unwind --part stacks --program redis-server --explain
                                                            where the stacks of one program end early")]
pub(super) struct Arguments {
    /// Part to measure. May be given several times. Default: all.
    #[arg(long, value_enum)]
    part: Vec<Part>,
    /// Program to profile. May be given several times. Default: all.
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
    /// Share of complete stacks of real programs.
    Stacks,
    /// Building tables of the programs' modules.
    Tables,
    /// Attaching to postgres, with and without the cache.
    Attach,
    /// A sampled malloc, by tables and by frame pointers.
    Cost,
}

pub(super) fn run(arguments: &Arguments) -> Result<()> {
    let is_requested =
        |program: &&Workload| arguments.program.is_empty() || arguments.program.iter().any(|name| name == program.name);
    let programs: Vec<_> = programs::ALL.iter().filter(is_requested).collect();
    if programs.is_empty() {
        let names: Vec<_> = programs::ALL.iter().map(|program| program.name).collect();
        bail!("unknown program; supported are {}", names.join(", "));
    }
    let bench = Bench::new(packages::BENCH_UNWIND, 1)?;
    let mut modules = BTreeSet::new();
    let page = Page::new(&bench.repository, "docs/unwinding.md", arguments.write);
    page.run(&arguments.part, |part| match part {
        Part::Stacks => stacks(&bench, &programs, arguments.explain, &mut modules),
        Part::Tables => {
            if modules.is_empty() {
                for program in &programs {
                    modules.extend(modules_of(&start(&bench, program)?)?);
                }
            }
            Ok(tables(&bench, &modules)?.into())
        }
        Part::Attach => Ok(attach(&bench)?.into()),
        Part::Cost => Ok(cost(&bench)?.into()),
    })
}

fn is_complete(callsite: &Callsite) -> bool {
    callsite.end.as_deref() == Some("complete")
}

struct Row {
    name: &'static str,
    load: &'static str,
    modules: usize,
    ends: BTreeMap<String, u64>,
    /// Of the complete ones, the share whose outermost frame is the first of a process or thread.
    rooted: f64,
}

impl Row {
    fn samples(&self) -> u64 {
        self.ends.values().sum()
    }

    fn share(&self, end: &str) -> f64 {
        self.ends.get(end).copied().unwrap_or(0) as f64 / self.samples().max(1) as f64
    }

    fn is_enough(&self) -> bool {
        self.samples() >= SAMPLES_MIN && self.share("complete") >= COMPLETE_MIN
    }

    fn cells(&self) -> Vec<String> {
        let others = self.ends.iter().filter(|(end, count)| *end != "complete" && **count > 0);
        let others: Vec<_> = others.map(|(end, _)| format!("{end} {:.3} %", self.share(end) * 100.0)).collect();
        let verdict = match self.is_enough() {
            true => "yes",
            false if self.samples() < SAMPLES_MIN => "too few samples",
            false => "no",
        };
        vec![
            format!("{}: {}", self.name, self.load),
            self.modules.to_string(),
            self.samples().to_string(),
            format!("{:.3} %", self.share("complete") * 100.0),
            format!("{:.3} %", self.rooted * 100.0),
            if others.is_empty() { "none".to_owned() } else { others.join(", ") },
            verdict.to_owned(),
        ]
    }
}

fn stacks(bench: &Bench, programs: &[&Workload], explain: bool, modules: &mut BTreeSet<String>) -> Result<Measured> {
    let (mut rows, mut missed) = (Vec::new(), Vec::new());
    for program in programs {
        let (row, report) = record(bench, program, modules).with_context(|| format!("profiling {}", program.name))?;
        if explain {
            println!("{}: stacks that end early\n{}", program.name, early_ends(&report));
        }
        eprintln!("{}", row.cells().join(" | "));
        if !row.is_enough() {
            missed.push(format!("complete stacks of {}: `--part stacks --explain` shows the others", row.name));
        }
        rows.push(row.cells());
    }
    let head = [
        "program",
        "modules",
        "stacks",
        "complete",
        "of these from `_start` or a thread's",
        "other ends",
        "≥ 99.5 % of ≥ 10,000",
    ];
    Ok(Measured { text: figures::table(&head, &rows), missed })
}

fn start(bench: &Bench, program: &Workload) -> Result<Running> {
    eprintln!("starting {}: {}", program.name, program.load);
    let folder = bench.empty_folder(program.name)?;
    let running = (program.start)(&folder).with_context(|| format!("starting {}", program.name))?;
    thread::sleep(WARM_UP);
    Ok(running)
}

fn modules_of(running: &Running) -> Result<BTreeSet<String>> {
    let mut modules = BTreeSet::new();
    for &pid in &running.pids {
        modules.extend(mappings(pid)?.into_iter().map(|mapping| mapping.path));
    }
    Ok(modules)
}

fn record(bench: &Bench, program: &Workload, modules: &mut BTreeSet<String>) -> Result<(Row, Report)> {
    let running = start(bench, program)?;
    let mapped = modules_of(&running)?;
    let json = bench.folder.join(format!("{}.json", program.name));
    let mut command = bench.command(&bench.heapbpf);
    for pid in &running.pids {
        command.args(["--pid", &pid.to_string()]);
    }
    command.args(["--interval", &program.interval_bytes.to_string()]);
    command.args(["--duration", &format!("{}s", program.seconds), "--top", "0"]);
    let mut report = Agent::start(&mut command, &json)?.finish()?;
    drop(running);
    let ends = std::mem::take(&mut report.health.unwind);
    let rooted = rooted_share(&report);
    let row = Row { name: program.name, load: program.load, modules: mapped.len(), ends, rooted };
    modules.extend(mapped);
    Ok((row, report))
}

/// Maximum number of kinds of early ends to list, and of frames of each.
const KINDS_MAX: usize = 12;
const FRAMES_MAX: usize = 6;

fn early_ends(report: &Report) -> String {
    let name = |frame: &Frame| {
        let module = frame.module.as_deref().unwrap_or("?");
        format!("{module} {}", frame.function.as_deref().unwrap_or(&frame.address))
    };
    let mut kinds: BTreeMap<(&str, String), (f64, &Callsite)> = BTreeMap::new();
    for callsite in tool::callsites(report).filter(|callsite| !is_complete(callsite)) {
        let end = callsite.end.as_deref().unwrap_or("frames lost");
        let last = callsite.stack.last().map(name).unwrap_or_default();
        kinds.entry((end, last)).or_insert((0.0, callsite)).0 += tool::alloc_count(callsite);
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by(|(_, (a, _)), (_, (b, _))| b.total_cmp(a));
    let mut text = String::new();
    for ((end, _), (count, callsite)) in kinds.into_iter().take(KINDS_MAX) {
        text.push_str(&format!("  {count:.0} blocks: {end}, {} frames, outermost last\n", callsite.stack.len()));
        let skipped = callsite.stack.len().saturating_sub(FRAMES_MAX);
        for frame in &callsite.stack[skipped..] {
            let inlined = if frame.inlined { " (inlined)" } else { "" };
            text.push_str(&format!("      {} {}{inlined}\n", frame.address, name(frame)));
        }
    }
    if text.is_empty() { "  none\n".to_owned() } else { text }
}

/// The first functions of threads in the C libraries.
const THREAD_STARTS: [&str; 4] = ["clone3", "__clone3", "clone", "__clone"];
/// Bytes of entry code, which calls once and never returns.
const ENTRY_BYTES: u64 = 64;
const PAGE_BYTES: u64 = 4096;

/// The share of blocks with complete stacks whose outermost frame is entry code or the start of a thread. Tables that end stacks
/// too early would give a high share of complete stacks, but not of these.
fn rooted_share(report: &Report) -> f64 {
    let mut entries = HashMap::new();
    let (mut all, mut rooted) = (0.0, 0.0);
    for callsite in tool::callsites(report).filter(|callsite| is_complete(callsite)) {
        all += tool::alloc_count(callsite);
        if callsite.stack.last().is_some_and(|frame| is_root(frame, &mut entries)) {
            rooted += tool::alloc_count(callsite);
        }
    }
    if all > 0.0 { rooted / all } else { 0.0 }
}

fn is_root(frame: &Frame, entries: &mut HashMap<String, Option<u64>>) -> bool {
    if frame.function.as_deref().is_some_and(|name| THREAD_STARTS.contains(&name)) {
        return true;
    }
    let Some(module) = &frame.module else { return false };
    let entry = *entries.entry(module.clone()).or_insert_with(|| entry(module));
    let address = frame.address.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
    matches!((address, entry), (Some(address), Some(entry)) if is_in_entry(address, entry))
}

/// Whether a return address may be in entry code: modules are loaded at multiples of a page.
fn is_in_entry(address: u64, entry: u64) -> bool {
    (1..=ENTRY_BYTES).contains(&(address.wrapping_sub(entry) % PAGE_BYTES))
}

/// The entry point in an ELF header: the word at byte 24.
fn entry(module: &str) -> Option<u64> {
    let mut word = [0; 8];
    File::open(module).ok()?.read_exact_at(&mut word, 24).ok()?;
    Some(u64::from_le_bytes(word)).filter(|&entry| entry != 0)
}

/// Number of modules with a line of their own: those with most rows.
const LISTED: usize = 8;
const ROWS_PER_SECOND_MIN: f64 = 1e6;
/// Limit for a row in the kernel, with its share of pages and rules.
const ROW_BYTES_MAX: f64 = 16.0;

#[derive(Debug, Deserialize)]
struct Built {
    file: String,
    /// Rows of the module's own table.
    rows_read: u64,
    /// After equal neighbours were merged.
    rows: u64,
    rules: u64,
    /// In the kernel, including rules.
    kernel_bytes: u64,
    build_ns: u64,
}

fn tables(bench: &Bench, modules: &BTreeSet<String>) -> Result<String> {
    let program = bench.repository.example("unwind_tables")?;
    let files = modules.iter().filter(|module| Path::new(module).exists());
    let output = command::output(Command::new(program).args(files))?;
    let built: Result<Vec<Built>, _> = output.lines().map(serde_json::from_str).collect();
    tables_text(built.context("`unwind_tables` wrote no JSON")?)
}

fn tables_text(mut built: Vec<Built>) -> Result<String> {
    ensure!(!built.is_empty(), "no module has a table");
    built.sort_by_key(|module| std::cmp::Reverse(module.rows));
    let sum = |of: fn(&Built) -> u64| built.iter().map(of).sum::<u64>();
    let total = Built {
        file: format!("all {} modules", built.len()),
        rows_read: sum(|module| module.rows_read),
        rows: sum(|module| module.rows),
        rules: sum(|module| module.rules),
        kernel_bytes: sum(|module| module.kernel_bytes),
        build_ns: sum(|module| module.build_ns),
    };
    let rate = total.rows as f64 / (total.build_ns as f64 / 1e9);
    let row_bytes = total.kernel_bytes as f64 / total.rows as f64;
    let name = |module: &&Built| Path::new(&module.file).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let table = figures::columns(
        built.iter().take(LISTED).chain([&total]),
        &[
            ("module", &name),
            ("rows read", &|module| module.rows_read.to_string()),
            ("rows kept", &|module| module.rows.to_string()),
            ("rules", &|module| module.rules.to_string()),
            ("ms", &|module| format!("{:.1}", module.build_ns as f64 / 1e6)),
            ("rows kept per s", &|module| format!("{:.1} M", module.rows as f64 * 1e3 / module.build_ns as f64)),
            ("bytes per row", &|module| format!("{:.2}", module.kernel_bytes as f64 / module.rows.max(1) as f64)),
        ],
    );
    Ok(format!(
        "{table}\n{rate:.0} rows per second, at least 1,000,000 are required: {}. {row_bytes:.2} bytes per row, limit 16: {}.\n",
        verdict(-rate, -ROWS_PER_SECOND_MIN),
        verdict(row_bytes, ROW_BYTES_MAX),
    ))
}

const ATTACH_ROUNDS: usize = 7;

/// Names, whether the cache is emptied before, and the limit in milliseconds.
const CACHES: [(&str, bool, f64); 2] =
    [("tables from the cache", false, 200.0), ("tables built, empty cache", true, 1000.0)];

/// Milliseconds of one attachment: from the start of heapbpf until it records, its CPU time, building or reading tables, and
/// writing them to the kernel.
type Times = [f64; 4];

fn attach(bench: &Bench) -> Result<String> {
    let running = (programs::POSTGRES.start)(&bench.empty_folder("attach-postgres")?)?;
    let pid = running.pids[0];
    // Fills the cache, and brings files into memory.
    attach_once(bench, pid, true)?;
    let measured = alternate(ATTACH_ROUNDS, &CACHES, |(_, is_cold, _)| attach_once(bench, pid, *is_cold))?;
    let spread = |times: &[Times], index: usize| Spread::of(times.iter().map(|times| times[index]));
    let table = figures::columns(
        CACHES.iter().zip(&measured),
        &[
            ("attaching to a postgres backend", &|((name, ..), _)| (*name).to_owned()),
            ("ms in all", &|(_, times)| format!("{:.0}", spread(times, 0))),
            ("CPU time", &|(_, times)| format!("{:.0}", spread(times, 1))),
            ("tables: build or read", &|(_, times)| format!("{:.1}", spread(times, 2))),
            ("write", &|(_, times)| format!("{:.1}", spread(times, 3))),
            ("limit", &|((.., limit), _)| format!("{limit:.0}")),
            ("met", &|((.., limit), times)| if spread(times, 0).median() <= *limit { "yes" } else { "no" }.to_owned()),
        ],
    );
    Ok(format!("{table}\nMedians of {ATTACH_ROUNDS} rounds, extremes in parentheses.\n"))
}

fn attach_once(bench: &Bench, pid: u32, is_cold: bool) -> Result<Times> {
    if is_cold {
        bench.empty_folder("cache")?;
    }
    let mut command = bench.record(pid);
    command.env("RUST_LOG", "heapbpf=info").args(["--duration", "100ms"]);
    let mut agent = Agent::start(&mut command, &bench.folder.join("attach.folded"))?;
    let [building, writing] = tables_ms(&agent.log);
    let times = [ms(agent.attached_after), thread_cpu_ms(agent.pid())?, building, writing];
    agent.wait()?;
    Ok(times)
}

/// Times for tables in heapbpf's log: the sums over all targets.
fn tables_ms(log: &[String]) -> [f64; 2] {
    let mut sums = [0.0; 2];
    for line in log.iter().filter(|line| line.contains("unwind tables of process")) {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let times = words.windows(2).filter(|pair| pair[1] == "ms").filter_map(|pair| pair[0].parse::<f64>().ok());
        sums.iter_mut().zip(times).for_each(|(sum, time)| *sum += time);
    }
    sums
}

const COST_ROUNDS: usize = 9;
const FRAMES: usize = 20;
const RATIO_MAX: f64 = 3.0;

/// Names, and values of `--unwind`.
const UNWINDING: [(&str, Option<&str>); 3] = [
    ("not profiled", None),
    ("by frame pointers (`--unwind fp`)", Some("fp")),
    ("by tables (`--unwind dwarf`)", Some("dwarf")),
];

/// Measures a sampled malloc with a stack of 20 frames. The target has frame pointers, so that both methods find the same frames.
fn cost(bench: &Bench) -> Result<String> {
    let target = programs::build(bench, "nested")?;
    let ns = alternate(COST_ROUNDS, &UNWINDING, |(_, unwinding)| {
        let (mut nested, _) = Program::ready(&mut bound(&target))?;
        let Some(unwinding) = unwinding else { return call_ns(&mut nested) };
        let mut command = bench.record(nested.pid());
        command.args(["--interval", "1", "--unwind", unwinding]);
        let agent = Agent::start(&mut command, &bench.folder.join("cost.json"))?;
        let median = call_ns(&mut nested)?;
        drop(nested);
        let report = agent.finish()?;
        let complete = report.health.unwind.get("complete").copied().unwrap_or(0);
        ensure!(complete * 2 > report.health.unwind.values().sum(), "most stacks by `{unwinding}` end early");
        let by_count = |a: &&Callsite, b: &&Callsite| tool::alloc_count(a).total_cmp(&tool::alloc_count(b));
        let depth = tool::callsites(&report).max_by(by_count).map_or(0, tool::frames);
        ensure!(depth == FRAMES, "stacks by `{unwinding}` have {depth} frames instead of {FRAMES}");
        Ok(median)
    })?;
    let spreads = ns.iter().map(|ns| format!("{:.0}", Spread::of(ns.iter().copied())));
    let ratio = ratios(&ns[2], &ns[1]);
    Ok(format!(
        "{}\nBy tables ÷ by frame pointers, round by round: {ratio:.2}; limit {RATIO_MAX}: {}.\n",
        figures::pairs(
            ["one malloc with 20 frames above it", "ns, median of 9 rounds (extremes)"],
            UNWINDING.iter().map(|(name, _)| *name).zip(spreads)
        ),
        verdict(ratio.median(), RATIO_MAX)
    ))
}

fn call_ns(nested: &mut Program) -> Result<f64> {
    let line = nested.ask("go")?;
    line.parse().with_context(|| format!("the target printed `{line}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(ends: &[(&str, u64)], expected: &str) {
        let ends = ends.iter().map(|(end, count)| ((*end).to_owned(), *count)).collect();
        let row = Row { name: "a", load: "b", modules: 3, ends, rooted: 1.0 };
        assert_eq!(row.cells()[2..].join("; "), expected);
    }

    #[test]
    fn share_and_number_of_stacks_are_required() {
        check(&[("complete", 9_950), ("no_row", 50)], "10000; 99.500 %; 100.000 %; no_row 0.500 %; yes");
        check(&[("complete", 9_949), ("no_row", 51)], "10000; 99.490 %; 100.000 %; no_row 0.510 %; no");
        check(&[("complete", 9_000), ("no_row", 0)], "9000; 100.000 %; 100.000 %; none; too few samples");
        check(&[], "0; 0.000 %; 100.000 %; none; too few samples");
    }

    #[test]
    fn entry_code_is_recognized_by_its_offset_in_the_page() {
        assert!(is_in_entry(0x7f00_0012_30a1, 0x1080));
        assert!(is_in_entry(0x7f00_0012_4010, 0x0ff0));
        assert!(!is_in_entry(0x7f00_0012_3080, 0x1080));
        assert!(!is_in_entry(0x7f00_0012_30c1, 0x1080));
        let program = std::env::current_exe().expect("a test has a path");
        assert!(entry(program.to_str().expect("ASCII")).is_some());
        assert_eq!(entry("/proc/self/no-such-file"), None);
    }

    #[test]
    fn tables_have_sums_and_rates() {
        let module = |rows, build_ns| Built {
            file: "/usr/lib/a.so".to_owned(),
            rows_read: rows * 2,
            rows,
            rules: 10,
            kernel_bytes: rows * 4 + 80,
            build_ns,
        };
        let text = tables_text(vec![module(1000, 1_000_000), module(3000, 1_000_000)]).expect("there are two");
        assert!(text.contains("| a.so | 6000 | 3000 | 10 | 1.0 | 3.0 M | 4.03 |\n| a.so | 2000 | 1000 |"), "{text}");
        assert!(text.contains("| all 2 modules | 8000 | 4000 | 20 | 2.0 | 2.0 M | 4.04 |"), "{text}");
        assert!(text.contains("2000000 rows per second, at least 1,000,000 are required: met."), "{text}");
        assert!(tables_text(Vec::new()).is_err());
    }

    #[test]
    fn times_of_tables_are_read_from_the_log() {
        let log = "heapbpf: info: unwind tables of process 1: 12.5 ms to build or read, 3.0 ms to write\nheapbpf: warning: other\n\
                   heapbpf: info: unwind tables of process 2: 0.5 ms to build or read, 1.0 ms to write";
        assert_eq!(tables_ms(&log.lines().map(str::to_owned).collect::<Vec<_>>()), [13.0, 4.0]);
    }
}
