//! What real programs lose by being watched: the same pieces of work unwatched and watched by turns, round after round.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::Bench;
use super::churn::Churn;
use super::descriptors::cpu_seconds;
use super::program::{Output, Program, bound};
use super::tool::Tool;
use crate::bench::document;
use crate::bench::spread::Spread;
use crate::command;

/// Ways to be watched, the first one not at all.
const WAYS: [(&str, Tool); 4] = [
    ("unwatched", Tool::Nothing),
    ("`512KiB`", Tool::Heapbpf(&["--interval", "512KiB"])),
    ("default", Tool::Heapbpf(&[])),
    ("`1`", Tool::Heapbpf(&["--interval", "1", "--on-overload", "drop"])),
];

/// What redis-benchmark does, with its name in the table.
const LOADS: [(&str, &[&str]); 3] = [
    ("SET, one at a time", &["-t", "set", "-n", "60000"]),
    ("SET, 16 in a pipeline", &["-t", "set", "-n", "300000", "-P", "16"]),
    ("LPUSH, 16 in a pipeline", &["-t", "lpush", "-n", "300000", "-P", "16"]),
];

/// What a piece of work took, in seconds.
#[derive(Clone, Copy, Debug)]
struct Piece {
    wall: f64,
    /// Of the watched program alone.
    cpu: f64,
}

/// A program under load.
trait Load {
    fn pid(&self) -> u32;
    fn piece(&self, bench: &Bench) -> Result<Piece>;
}

/// Measures all programs.
pub(super) fn measure(bench: &Bench) -> Result<String> {
    let mut rows = Vec::new();
    for (name, allocator) in [("", "default"), (", `PYTHONMALLOC=malloc`", "malloc")] {
        let mut command = bound("/usr/bin/python3");
        command.arg(bench.repository.root.join("tests/targets/documents.py")).env("PYTHONMALLOC", allocator);
        rows.push(row(bench, &format!("python3, JSON{name}"), &Churn::start_as(&mut command)?)?);
    }
    let words = Churn::start_as(&mut bound(words(bench)?))?;
    rows.push(row(bench, "C++, counting words in a map, 2 threads", &words)?);
    drop(words);
    for (name, load) in LOADS {
        rows.push(row(bench, &format!("redis-server (jemalloc), {name}"), &Redis::start(load)?)?);
    }
    let mut head = vec!["program".to_owned(), "allocations per s of CPU, unwatched".to_owned()];
    for (name, _) in &WAYS[1..] {
        head.extend([format!("{name}: CPU"), format!("{name}: time")]);
    }
    let head: Vec<_> = head.iter().map(String::as_str).collect();
    Ok(format!(
        "{}\nThe program's CPU time, and the wall-clock time, for the same work, as multiples of unwatched.\n",
        document::table(&head, &rows)
    ))
}

/// A program's row.
fn row(bench: &Bench, name: &str, load: &dyn Load) -> Result<Vec<String>> {
    let mut pieces = vec![Vec::new(); WAYS.len()];
    let mut allocations = Vec::new();
    for round in 1..=bench.rounds {
        let mut unwatched = None;
        for ((way, tool), pieces) in WAYS.iter().zip(&mut pieces) {
            let attached = tool.attach(bench, load.pid(), &[])?;
            let cpu = cpu_seconds(load.pid())?;
            let piece = load.piece(bench)?;
            let cpu = cpu_seconds(load.pid())? - cpu;
            let report = attached.detach()?;
            let factor = piece.cpu / unwatched.get_or_insert(piece).cpu;
            eprintln!("round {round} of {}: {piece:.3?}, {way}: {name}", bench.rounds);
            if let (Some(report), "default") = (report, *way) {
                let count: f64 = report.callsites().map(|callsite| callsite.alloc_count).sum();
                allocations.push(factor * count / cpu);
            }
            pieces.push(piece);
        }
    }
    let ratio = |way: usize, of: fn(&Piece) -> f64| {
        let ratios = pieces[way].iter().zip(&pieces[0]).map(|(watched, unwatched)| of(watched) / of(unwatched));
        format!("{:.2}", Spread::new(ratios.collect()).median())
    };
    let mut row = vec![name.to_owned(), format!("{:.0}", Spread::new(allocations).median())];
    for way in 1..WAYS.len() {
        row.extend([ratio(way, |piece| piece.cpu), ratio(way, |piece| piece.wall)]);
    }
    Ok(row)
}

impl Load for Churn {
    fn pid(&self) -> u32 {
        self.pid()
    }

    fn piece(&self, bench: &Bench) -> Result<Piece> {
        let (wall, cpu) = self.batch_seconds(bench.window)?;
        Ok(Piece { wall, cpu })
    }
}

/// Compiles the C++ program.
fn words(bench: &Bench) -> Result<std::path::PathBuf> {
    let program = bench.folder.join("words");
    let mut compiler = Command::new("g++");
    compiler
        .args(["-O2", "-g", "-pthread", "-o"])
        .arg(&program)
        .arg(bench.repository.root.join("tests/targets/words.cpp"));
    command::run(&mut compiler)?;
    Ok(program)
}

/// A redis-server, and what puts load on it.
struct Redis {
    server: Program,
    load: &'static [&'static str],
}

/// A port that no well-known service has.
const PORT: &str = "47391";

impl Redis {
    fn start(load: &'static [&'static str]) -> Result<Self> {
        let mut command = bound("redis-server");
        command.args(["--port", PORT, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        let server = Program::start(&mut command, Output::Standard)?;
        let began = Instant::now();
        while !answers() {
            ensure!(began.elapsed() < Duration::from_secs(20), "redis-server does not answer");
            thread::sleep(Duration::from_millis(50));
        }
        Ok(Self { server, load })
    }
}

fn answers() -> bool {
    command::output(Command::new("redis-cli").args(["-p", PORT, "ping"])).is_ok_and(|answer| answer.trim() == "PONG")
}

impl Load for Redis {
    fn pid(&self) -> u32 {
        self.server.pid()
    }

    fn piece(&self, _: &Bench) -> Result<Piece> {
        let mut load = Command::new("redis-benchmark");
        load.args(["-p", PORT, "-q", "-c", "16", "-r", "100000", "-d", "100"]).args(self.load);
        let (began, cpu) = (Instant::now(), cpu_seconds(self.pid())?);
        let _ = command::output(&mut load).context("redis-benchmark")?;
        let piece = Piece { wall: began.elapsed().as_secs_f64(), cpu: cpu_seconds(self.pid())? - cpu };
        // The lists of LPUSH would grow from piece to piece.
        let _ = command::output(Command::new("redis-cli").args(["-p", PORT, "flushall"]))?;
        Ok(piece)
    }
}
