//! `cargo xtask bench pages`: resident pages by the stack that touched them first.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use serde_json::Value;

use super::figures::{self, Spread, mib};
use super::{Bench, Measured, Page};
use crate::process::{Output, Program, bound};
use crate::{command, packages};

/// Measures the heap `pages`: which share of a service's growth it names, its estimates, and what a page fault costs. The page is
/// docs/resident-pages.md. Requires root.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Part to measure. May be given several times. Default: all.
    #[arg(long, value_enum)]
    part: Vec<Part>,
    /// Number of rounds of the cost of faults, and of recordings of each kind of program.
    #[arg(long, default_value_t = 10, value_name = "COUNT")]
    rounds: usize,
    /// Write the tables into docs/resident-pages.md.
    #[arg(long)]
    write: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Services of six languages that keep small objects.
    Services,
    /// Estimates, compared with what the kernel counts.
    Estimates,
    /// A page fault of a target, and of another process.
    Faults,
}

pub(super) fn run(arguments: &Arguments) -> Result<()> {
    let bench = Bench::new(packages::BENCH_PAGES, arguments.rounds)?;
    let page = Page::new(&bench.repository, "docs/resident-pages.md", arguments.write);
    page.run(&arguments.part, |part| match part {
        Part::Services => services(&bench),
        Part::Estimates => estimates(&bench),
        Part::Faults => faults(&bench),
    })
}

struct Service {
    name: &'static str,
    build: Option<&'static [&'static str]>,
    command: &'static [&'static str],
    /// What names functions and what they call: a share of all growth.
    share_min: f64,
    /// Whether the function is enough, or the collector of the runtime counts.
    by_function: bool,
}

const SERVICES: [Service; 6] = [
    Service {
        name: "Go",
        build: Some(&["go", "build", "-o", "cache", "cache.go"]),
        command: &["./cache"],
        share_min: 0.90,
        by_function: true,
    },
    Service { name: "Python", build: None, command: &["python3", "cache.py"], share_min: 0.75, by_function: true },
    Service { name: "PHP", build: None, command: &["php", "cache.php"], share_min: 0.90, by_function: true },
    Service { name: "Ruby", build: None, command: &["ruby", "cache.rb"], share_min: 0.90, by_function: true },
    Service {
        name: "Java",
        build: Some(&["javac", "Cache.java"]),
        command: &["java", "Cache"],
        share_min: 0.90,
        by_function: false,
    },
    Service { name: "Node.js", build: None, command: &["node", "cache.js"], share_min: 0.90, by_function: false },
];

/// Time for which a service runs before it is recorded.
const HEAD_START: Duration = Duration::from_millis(700);
const RECORDED: &str = "14s";

fn services(bench: &Bench) -> Result<Measured> {
    let folder = bench.empty_folder("services")?;
    for entry in fs::read_dir(bench.repository.root.join("tests/services"))? {
        let entry = entry?;
        fs::copy(entry.path(), folder.join(entry.file_name()))?;
    }
    let (mut rows, mut missed) = (Vec::new(), Vec::new());
    for service in &SERVICES {
        if let Some([program, arguments @ ..]) = service.build {
            command::run(Command::new(program).args(arguments).current_dir(&folder).env("GO111MODULE", "off"))?;
        }
        let [program, arguments @ ..] = service.command else { continue };
        let running = Program::start(bound(program).args(arguments).current_dir(&folder), Output::None)?;
        thread::sleep(HEAD_START);
        let report = record(bench, running.pid(), &["-d", RECORDED])?;
        let (grown, named, all) = shares(&report)?;
        let share = if service.by_function { named } else { all };
        if share < service.share_min {
            missed.push(format!("{:.0} % of {}", 100.0 * service.share_min, service.name));
        }
        rows.push(vec![
            service.name.to_owned(),
            format!("{grown:.0} MiB"),
            format!("{:.0} %", 100.0 * named),
            format!("{:.0} %", 100.0 * all),
        ]);
    }
    let text = figures::table(&["", "anonymous memory grew by", "`login` and what it calls", "all callsites"], &rows);
    Ok(Measured { text, missed })
}

fn record(bench: &Bench, pid: u32, options: &[&str]) -> Result<Value> {
    let output = bench.folder.join("pages.json");
    // Exits with 3 if stacks are cut.
    let _ = bench.record(pid).args(options).arg("-q").arg("-o").arg(&output).status()?;
    read(&output)
}

fn read(path: &Path) -> Result<Value> {
    let text = fs::read_to_string(path).context("heapbpf writes a report")?;
    let report: Value = serde_json::from_str(&text)?;
    ensure!(report["targets"].as_array().is_some_and(|targets| targets.len() == 1), "one process is recorded");
    Ok(report["targets"][0].clone())
}

/// MiB that the anonymous memory of a process has grown by, and the shares of it that callsites of `login` and all have as live bytes.
fn shares(target: &Value) -> Result<(f64, f64, f64)> {
    let points = target["memory"]["points"].as_array().context("the report has an account of the memory")?;
    let anonymous = |point: &Value| -> f64 {
        let parts = point["parts"].as_array().into_iter().flatten();
        parts.filter(|part| part["class"] != "files").filter_map(|part| part["bytes"].as_f64()).sum()
    };
    let [first, .., last] = points.as_slice() else { anyhow::bail!("the account has too few points") };
    let grown = anonymous(last) - anonymous(first);
    let callsites = || target["callsites"].as_array().into_iter().flatten();
    let is_named = |callsite: &&Value| {
        let mut functions =
            callsite["stack"].as_array().into_iter().flatten().filter_map(|frame| frame["function"].as_str());
        functions.any(|function| function.contains("login"))
    };
    let live = |callsite: &Value| callsite["live_bytes"].as_f64();
    let named: f64 = callsites().filter(is_named).filter_map(live).sum();
    let all: f64 = callsites().filter_map(live).sum();
    Ok((grown / f64::from(1 << 20), named / grown, all / grown))
}

/// Kinds of programs, as lines for `touching.c`.
const KINDS: [(&str, &[&str]); 6] = [
    ("pages one by one", &["touch 96"]),
    ("huge pages", &["huge 96"]),
    ("given back and touched again", &["touch 128", "return 96", "again 64"]),
    ("by the kernel, for `read`", &["receive 96"]),
    ("8 threads at once", &["together 96"]),
    ("copies of pages of a file", &["copy 96"]),
];

/// Share of estimates that should be within their 95 % interval.
const COVERED_MIN: f64 = 0.9;

fn estimates(bench: &Bench) -> Result<Measured> {
    let folder = bench.empty_folder("estimates")?;
    let program = compiled(&bench.repository.root.join("tests/targets/touching.c"), &folder)?;
    let (mut rows, mut within, mut runs) = (Vec::new(), 0, 0);
    for (name, lines) in KINDS {
        let (mut covered, mut ratios) = (0, Vec::new());
        for _ in 0..bench.rounds {
            let (grown, estimate, interval) = estimate(bench, &program, lines)?;
            covered += usize::from((interval.0..=interval.1).contains(&grown));
            ratios.push(estimate / grown);
        }
        within += covered;
        runs += bench.rounds;
        rows.push(vec![
            name.to_owned(),
            format!("{:.3}", Spread::of(ratios)),
            format!("{covered} of {}", bench.rounds),
        ]);
    }
    let mut text = figures::table(&["", "estimate / growth of RssAnon", "within the 95 % interval"], &rows);
    text += &format!("\nAll: {within} of {runs}, with `--heap pages`, at 128 KiB.\n");
    let missed = if (within as f64) < COVERED_MIN * runs as f64 {
        vec!["nine tenths within the interval".to_owned()]
    } else {
        Vec::new()
    };
    Ok(Measured { text, missed })
}

/// Growth of the anonymous memory in bytes, its estimate, and the interval of that.
fn estimate(bench: &Bench, program: &Path, lines: &[&str]) -> Result<(f64, f64, (f64, f64))> {
    let (mut target, _) = Program::ready(&mut bound(program))?;
    let output = bench.folder.join("estimate.json");
    let mut recording = bench.record(target.pid());
    recording.args(["--heap", "pages", "-o"]).arg(&output);
    let mut recording = Program::start(&mut recording, Output::Errors)?;
    let _ = recording.line_after("heapbpf: recording")?;
    let before = anonymous_bytes(target.pid())?;
    for line in lines {
        target.order(line)?;
    }
    let grown = anonymous_bytes(target.pid())? - before;
    recording.interrupt()?;
    let _ = recording.wait()?;
    let totals = &read(&output)?["totals"];
    let number = |value: &Value| value.as_f64().context("the report has estimates");
    let interval = &totals["live_bytes_95"];
    Ok((grown, number(&totals["live_bytes"])?, (number(&interval[0])?, number(&interval[1])?)))
}

fn anonymous_bytes(pid: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line =
        status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("Linux has `RssAnon` since 4.5")?;
    let kibibytes: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kibibytes * 1024.0)
}

fn compiled(source: &Path, folder: &Path) -> Result<std::path::PathBuf> {
    let program = folder.join(source.file_stem().context("it has a name")?);
    command::run(Command::new("gcc").args(["-O1", "-g", "-pthread", "-o"]).arg(&program).arg(source))?;
    Ok(program)
}

const INTERVALS: [&str; 4] = ["16MiB", "512KiB", "128KiB", "4KiB"];
const OF_TARGET_MAX: f64 = 1.10;
const OF_OTHER_MAX: f64 = 1.05;

fn faults(bench: &Bench) -> Result<Measured> {
    let folder = bench.empty_folder("faults")?;
    let program = compiled(&bench.repository.root.join("xtask/src/bench/faults.c"), &folder)?;
    let (mut target, _) = Program::ready(&mut bound(&program))?;
    let (mut other, _) = Program::ready(&mut bound(&program))?;
    let ns = |program: &mut Program| -> Result<f64> { Ok(program.ask("touch")?.trim().parse()?) };
    let variants: Vec<Option<&str>> = std::iter::once(None).chain(INTERVALS.map(Some)).collect();
    let runs = figures::alternate(bench.rounds, &variants, |interval| {
        let Some(interval) = interval else { return Ok((ns(&mut target)?, ns(&mut other)?)) };
        let mut recording = bench.record(target.pid());
        recording
            .args(["--heap", "pages", "--heap-interval", &format!("pages={interval}"), "-o"])
            .arg(bench.folder.join("faults.json"));
        let mut recording = Program::start(&mut recording, Output::Errors)?;
        let _ = recording.line_after("heapbpf: recording")?;
        let measured = (ns(&mut target)?, ns(&mut other)?);
        recording.interrupt()?;
        let _ = recording.wait()?;
        Ok(measured)
    })?;
    let column = |runs: &[(f64, f64)], of: fn(&(f64, f64)) -> f64| runs.iter().map(of).collect::<Vec<f64>>();
    let (mut rows, mut missed) = (Vec::new(), Vec::new());
    for (interval, measured) in variants.iter().zip(&runs) {
        let cells = [column(measured, |run| run.0), column(measured, |run| run.1)];
        let bases = [column(&runs[0], |run| run.0), column(&runs[0], |run| run.1)];
        let ratios = [0, 1].map(|at| figures::ratios(&cells[at], &bases[at]));
        if interval.is_some_and(|interval| interval == "128KiB") {
            let limits = [OF_TARGET_MAX, OF_OTHER_MAX].into_iter().zip(&ratios);
            missed.extend(
                limits.filter(|(limit, ratio)| ratio.median() > *limit).map(|(limit, _)| format!("{limit} times")),
            );
        }
        let text = |at: usize| match interval {
            None => format!("{:.0} ns", Spread::of(cells[at].clone()).median()),
            Some(_) => format!("{:.2} times", ratios[at].median()),
        };
        let name = interval.map_or("not recorded".to_owned(), |interval| format!("sampled every {interval}"));
        rows.push(vec![name, text(0), text(1)]);
    }
    let text = figures::table(&["a fault that makes a page resident", "of the target", "of another process"], &rows);
    Ok(Measured {
        text: format!("{text}\n{:.0} MiB are touched in each round, page by page.\n", mib(256 << 20)),
        missed,
    })
}
