//! `bench overhead --part throughput`: CPU time and wall-clock time of real programs with and without heapbpf.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result};

use super::figures::{self, Spread, ratios};
use super::targets::Churn;
use super::tool::{self, Setup, Tool, Variant};
use crate::command;
use crate::process::{Output, Program, bound, cpu_seconds};

const DEFAULT: &str = "default";

const VARIANTS: [Variant; 4] = [
    ("not profiled", Tool::Nothing),
    ("`512KiB`", Tool::Heapbpf(&["--interval", "512KiB"])),
    (DEFAULT, Tool::Heapbpf(&[])),
    ("`1`", Tool::Heapbpf(&["--interval", "1", "--on-overload", "drop"])),
];

const LOADS: [(&str, &[&str]); 3] = [
    ("SET, one at a time", &["-t", "set", "-n", "60000"]),
    ("SET, 16 in a pipeline", &["-t", "set", "-n", "300000", "-P", "16"]),
    ("LPUSH, 16 in a pipeline", &["-t", "lpush", "-n", "300000", "-P", "16"]),
];

/// A port that no well-known service has.
const PORT: &str = "47391";

enum Load {
    Churn(Churn),
    Redis { server: Program, options: &'static [&'static str] },
}

#[derive(Clone, Copy, Debug)]
struct Work {
    wall_seconds: f64,
    cpu_seconds: f64,
    /// Allocations per second of CPU time, as heapbpf has recorded them.
    allocations: Option<f64>,
}

pub(super) fn measure(setup: &Setup) -> Result<String> {
    let mut rows = Vec::new();
    for (name, allocator) in [("", "default"), (", `PYTHONMALLOC=malloc`", "malloc")] {
        let mut command = bound("/usr/bin/python3");
        command.arg(setup.bench.repository.root.join("tests/targets/documents.py")).env("PYTHONMALLOC", allocator);
        let python = Load::Churn(Churn::run(&mut command)?);
        rows.push(row(setup, &format!("python3, JSON{name}"), &python)?);
    }
    let words = setup.bench.folder.join("words");
    let source = setup.bench.repository.root.join("tests/targets/words.cpp");
    command::compile("g++", "-O2 -g -pthread", &source, &words)?;
    let words = Load::Churn(Churn::run(&mut bound(words))?);
    rows.push(row(setup, "C++, counting words in a map, 2 threads", &words)?);
    drop(words);
    for (name, options) in LOADS {
        rows.push(row(setup, &format!("redis-server (jemalloc), {name}"), &start_redis(options)?)?);
    }
    let mut head = vec!["program".to_owned(), "allocations per s of CPU, not profiled".to_owned()];
    for (name, _) in &VARIANTS[1..] {
        head.extend([format!("{name}: CPU"), format!("{name}: time")]);
    }
    let head: Vec<_> = head.iter().map(String::as_str).collect();
    Ok(format!(
        "{}\nThe program's CPU time, and the wall-clock time, for the same work, as multiples of those without heapbpf: \
         medians and extremes of {} rounds.\n",
        figures::table(&head, &rows),
        setup.bench.rounds
    ))
}

fn row(setup: &Setup, name: &str, load: &Load) -> Result<Vec<String>> {
    let measured = tool::compare(setup, load.pid(), &VARIANTS, |(variant, _), attached| {
        let cpu = cpu_seconds(load.pid())?;
        let mut work = load.work(setup)?;
        let cpu = cpu_seconds(load.pid())? - cpu;
        if let Some(report) = attached.detach(load.pid())? {
            let count: f64 = tool::callsites(&report).map(tool::alloc_count).sum();
            work.allocations = Some(count / cpu);
        }
        eprintln!("{work:.3?}, {variant}: {name}");
        Ok(work)
    })?;
    let of = |variant: usize, value: fn(&Work) -> f64| measured[variant].iter().map(value).collect::<Vec<f64>>();
    let cpu_bare = of(0, |work| work.cpu_seconds);
    let default = VARIANTS.iter().position(|(name, _)| *name == DEFAULT).context("there is a default")?;
    // The rate without heapbpf: of the recorded rate, as much more as the work took less CPU time.
    let rates = measured[default].iter().zip(&cpu_bare);
    let rates = rates.map(|(work, bare)| work.allocations.unwrap_or(0.0) * work.cpu_seconds / bare);
    let mut row = vec![name.to_owned(), format!("{:.0}", Spread::of(rates).median())];
    for variant in 1..VARIANTS.len() {
        for value in [|work: &Work| work.cpu_seconds, |work: &Work| work.wall_seconds] {
            row.push(format!("{:.2}", ratios(&of(variant, value), &of(0, value))));
        }
    }
    Ok(row)
}

impl Load {
    fn pid(&self) -> u32 {
        match self {
            Self::Churn(churn) => churn.pid(),
            Self::Redis { server, .. } => server.pid(),
        }
    }

    fn work(&self, setup: &Setup) -> Result<Work> {
        let (wall_seconds, cpu_seconds) = match self {
            Self::Churn(churn) => churn.batch_seconds(setup.window)?,
            Self::Redis { server, options } => {
                let mut load = Command::new("redis-benchmark");
                load.args(["-p", PORT, "-q", "-c", "16", "-r", "100000", "-d", "100"]).args(*options);
                let (started, cpu) = (Instant::now(), cpu_seconds(server.pid())?);
                command::output(&mut load).context("redis-benchmark")?;
                let used = (started.elapsed().as_secs_f64(), cpu_seconds(server.pid())? - cpu);
                // Otherwise the lists of LPUSH grow from round to round.
                command::output(Command::new("redis-cli").args(["-p", PORT, "flushall"]))?;
                used
            }
        };
        Ok(Work { wall_seconds, cpu_seconds, allocations: None })
    }
}

fn start_redis(options: &'static [&'static str]) -> Result<Load> {
    let mut command = bound("redis-server");
    command.args(["--port", PORT, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    let mut server = Program::start(&mut command, Output::None)?;
    server.until(|_| {
        let answer = command::output(Command::new("redis-cli").args(["-p", PORT, "ping"]));
        answer.is_ok_and(|answer| answer.trim() == "PONG").then_some(())
    })?;
    Ok(Load::Redis { server, options })
}
