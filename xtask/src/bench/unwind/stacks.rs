//! The share of stacks that reach their thread's first frame, over real programs. Why some do not is `ends`' business.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::Bench;
use super::ends;
use super::program::{Program, Running};
use super::roots;
use crate::bench::document;
use crate::bench::process::modules as modules_of;
use crate::bench::recording::{Recording, Report};

/// Samples that a share is worth something with.
const SAMPLES_MIN: u64 = 10_000;

/// Share of complete stacks that every program must reach.
const COMPLETE_MIN: f64 = 0.995;

/// What a program does in its first moments is not what it goes on doing.
const WARM_UP: Duration = Duration::from_secs(1);

/// What one program gave.
struct Row {
    name: &'static str,
    load: &'static str,
    modules: usize,
    /// Stacks by how they end.
    ends: BTreeMap<String, u64>,
    /// Of the complete ones, the share that begins at a process's or a thread's first frame.
    rooted: f64,
}

impl Row {
    fn samples(&self) -> u64 {
        self.ends.values().sum()
    }

    #[expect(clippy::cast_precision_loss, reason = "a share for display")]
    fn share(&self, end: &str) -> f64 {
        self.ends.get(end).copied().unwrap_or(0) as f64 / self.samples().max(1) as f64
    }

    fn is_whole(&self) -> bool {
        self.samples() >= SAMPLES_MIN && self.share("complete") >= COMPLETE_MIN
    }

    fn verdict(&self) -> &'static str {
        match self.is_whole() {
            true => "yes",
            false if self.samples() < SAMPLES_MIN => "too few samples",
            false => "no",
        }
    }

    fn cells(&self) -> Vec<String> {
        let others = self.ends.iter().filter(|(end, count)| *end != "complete" && **count > 0);
        let others: Vec<_> = others.map(|(end, _)| format!("{end} {:.3} %", self.share(end) * 100.0)).collect();
        vec![
            format!("{}: {}", self.name, self.load),
            self.modules.to_string(),
            self.samples().to_string(),
            format!("{:.3} %", self.share("complete") * 100.0),
            format!("{:.3} %", self.rooted * 100.0),
            if others.is_empty() { "none".to_owned() } else { others.join(", ") },
            self.verdict().to_owned(),
        ]
    }
}

/// What the programs gave.
pub(super) struct Stacks {
    /// As a table.
    pub(super) text: String,
    /// Programs with too few stacks, or too few of them complete.
    pub(super) short: Vec<&'static str>,
    /// The modules that the programs map.
    pub(super) modules: BTreeSet<String>,
}

/// Profiles each program and says how its stacks end.
pub(super) fn measure(bench: &Bench, programs: &[&Program], explain: bool) -> Result<Stacks> {
    let (mut rows, mut short, mut modules) = (Vec::new(), Vec::new(), BTreeSet::new());
    for program in programs {
        let row =
            profile(bench, program, explain, &mut modules).with_context(|| format!("profiling {}", program.name))?;
        eprintln!("{}", row.cells().join(" | "));
        if !row.is_whole() {
            short.push(row.name);
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
    Ok(Stacks { text: document::table(&head, &rows), short, modules })
}

/// The modules that the programs map.
pub(super) fn modules(bench: &Bench, programs: &[&Program]) -> Result<BTreeSet<String>> {
    let mut modules = BTreeSet::new();
    for program in programs {
        let running = start(bench, program)?;
        modules.extend(running.pids.iter().flat_map(|&pid| modules_of(pid)));
    }
    Ok(modules)
}

fn start(bench: &Bench, program: &Program) -> Result<Running> {
    eprintln!("starting {}: {}", program.name, program.load);
    let folder = bench.folder(program.name)?;
    let running = (program.start)(&folder).with_context(|| format!("starting {}", program.name))?;
    thread::sleep(WARM_UP);
    Ok(running)
}

fn profile(bench: &Bench, program: &Program, explain: bool, modules: &mut BTreeSet<String>) -> Result<Row> {
    let running = start(bench, program)?;
    let mapped: BTreeSet<String> = running.pids.iter().flat_map(|&pid| modules_of(pid)).collect();
    let json = bench.folder.join(format!("{}.json", program.name));
    record(bench, program, &running, &json)?;
    drop(running);
    let report = Report::read(&json)?;
    if explain {
        println!("{}: stacks that end early\n{}", program.name, ends::explain(&report));
    }
    let rooted = roots::share(&report);
    let row = Row { name: program.name, load: program.load, modules: mapped.len(), ends: report.health.unwind, rooted };
    modules.extend(mapped);
    Ok(row)
}

fn record(bench: &Bench, program: &Program, running: &Running, json: &Path) -> Result<()> {
    let mut command = bench.heapbpf.command(&running.pids, &bench.cache())?;
    command.args(["--interval", &program.interval_bytes.to_string()]);
    command.args(["--duration", &format!("{}s", program.seconds), "--top", "0", "-o"]).arg(json);
    Recording::start(&mut command)?.finish()
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
    fn the_bar_asks_for_share_and_number() {
        check(&[("complete", 9_950), ("no_row", 50)], "10000; 99.500 %; 100.000 %; no_row 0.500 %; yes");
        check(&[("complete", 9_949), ("no_row", 51)], "10000; 99.490 %; 100.000 %; no_row 0.510 %; no");
        check(&[("complete", 9_000), ("no_row", 0)], "9000; 100.000 %; 100.000 %; none; too few samples");
        check(&[], "0; 0.000 %; 100.000 %; none; too few samples");
    }
}
