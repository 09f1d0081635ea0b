//! `cargo xtask bench unwind`: the share of complete stacks of real programs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use heapbpf_tests::report::{Callsite, Frame, Report};

use super::figures::{self};
use super::programs::{self, Workload};
use super::tool::{self, Agent};
use super::{Bench, Measured, Page, all_met};
use crate::packages;
use crate::process::mappings;

const SAMPLES_MIN: u64 = 10_000;
const COMPLETE_MIN: f64 = 0.995;
/// The start of a program differs from its steady state.
const WARM_UP: Duration = Duration::from_secs(1);

/// Shows the share of complete stacks of real programs.
///
/// Missing programs are installed (Debian: with apt-get); none is started as a service of the system. The programs run in
/// temporary folders, on loopback, and are killed afterwards. Requires root.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask bench unwind                                     everything
  cargo xtask bench unwind --write                             and into docs/unwinding.md
  cargo xtask bench unwind --program redis-server --explain    where the stacks of one program end early")]
pub(super) struct Arguments {
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

pub(super) fn run(arguments: &Arguments) -> Result<()> {
    let is_requested =
        |program: &&Workload| arguments.program.is_empty() || arguments.program.iter().any(|name| name == program.name);
    let programs: Vec<_> = programs::ALL.iter().filter(is_requested).collect();
    if programs.is_empty() {
        let names: Vec<_> = programs::ALL.iter().map(|program| program.name).collect();
        bail!("unknown program; supported are {}", names.join(", "));
    }
    let bench = Bench::new(packages::BENCH_UNWIND, 1)?;
    let page = Page::new(&bench.repository, "docs/unwinding.md", arguments.write);
    all_met(&page.publish("stacks", stacks(&bench, &programs, arguments.explain)?)?)
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

fn stacks(bench: &Bench, programs: &[&Workload], explain: bool) -> Result<Measured> {
    let (mut rows, mut missed) = (Vec::new(), Vec::new());
    for program in programs {
        let (row, report) = record(bench, program).with_context(|| format!("profiling {}", program.name))?;
        if explain {
            println!("{}: stacks that end early\n{}", program.name, early_ends(&report));
        }
        eprintln!("{}", row.cells().join(" | "));
        if !row.is_enough() {
            missed.push(format!("complete stacks of {}: `--explain` shows the others", row.name));
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

fn record(bench: &Bench, program: &Workload) -> Result<(Row, Report)> {
    eprintln!("starting {}: {}", program.name, program.load);
    let folder = bench.empty_folder(program.name)?;
    let running = (program.start)(&folder).with_context(|| format!("starting {}", program.name))?;
    thread::sleep(WARM_UP);
    let mut mapped = BTreeSet::new();
    for &pid in &running.pids {
        mapped.extend(mappings(pid)?.into_iter().map(|mapping| mapping.path));
    }
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
}
