//! What a sampled malloc costs with a stack of 20 frames: unwound by tables, and by frame pointers, by turns.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use super::Bench;
use crate::bench::document;
use crate::bench::process::{Guarded, bound};
use crate::bench::recording::{Recording, Report};
use crate::bench::spread::Spread;
use crate::command;

/// Turns of each.
const ROUNDS: usize = 9;

/// Frames of the stack, the caller of malloc and the outermost one included.
const FRAMES: usize = 20;

/// What tables may cost, as a multiple of frame pointers.
const RATIO_MAX: f64 = 3.0;

/// Ways to unwind, as the command line names them.
const WAYS: [&str; 2] = ["fp", "dwarf"];

/// Measures by turns.
pub(super) fn measure(bench: &Bench) -> Result<String> {
    let target = build(bench)?;
    let bare = Spread::new((0..ROUNDS).map(|_| Nested::start(&target)?.work()).collect::<Result<_>>()?);
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (way, times) in WAYS.iter().zip(&mut times) {
            times.push(profiled(bench, &target, way)?);
        }
    }
    let ratios = Spread::new(times[0].iter().zip(&times[1]).map(|(fp, tables)| tables / fp).collect());
    let [fp, tables] = times.map(Spread::new);
    let row = |name: &str, spread: &Spread| vec![name.to_owned(), format!("{spread:.0}")];
    let rows = [
        row("not profiled", &bare),
        row("by frame pointers (`--unwind fp`)", &fp),
        row("by tables (`--unwind dwarf`)", &tables),
    ];
    let met = if ratios.median() <= RATIO_MAX { "met" } else { "not met" };
    Ok(format!(
        "{}\nBy tables ÷ by frame pointers, turn by turn: {ratios:.2}; at most {RATIO_MAX} is asked for: {met}.\n",
        document::table(&["one malloc with 20 frames above it", "ns, median of 9 turns (extremes)"], &rows)
    ))
}

/// Compiles the target with frame pointers, so that both ways see the same frames.
fn build(bench: &Bench) -> Result<PathBuf> {
    let source = bench.repository.root.join("tests/targets/nested.c");
    let program = bench.folder.join("nested");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-o"]).arg(&program).arg(source);
    command::run(&mut gcc)?;
    Ok(program)
}

/// One turn: the median of one process's calls, in nanoseconds.
fn profiled(bench: &Bench, target: &Path, way: &str) -> Result<f64> {
    let mut target = Nested::start(target)?;
    let json = bench.folder.join("cost.json");
    let mut command = bench.heapbpf.command(&[target.guarded.pid()], &bench.cache())?;
    command.args(["--interval", "1", "--unwind", way, "-o"]).arg(&json);
    let recording = Recording::start(&mut command)?;
    let median = target.work()?;
    drop(target);
    recording.finish()?;
    let report = Report::read(&json)?;
    let callsites = report.targets.iter().flat_map(|target| &target.callsites);
    let most = callsites.max_by(|a, b| a.alloc_count.total_cmp(&b.alloc_count)).context("nothing was sampled")?;
    let frames = most.stack.iter().filter(|frame| !frame.inlined).count();
    ensure!(frames == FRAMES, "stacks by `{way}` have {frames} frames and not {FRAMES}: there is nothing to compare");
    ensure!(most.end.as_deref() == Some("complete"), "stacks by `{way}` end early: {:?}", most.end);
    Ok(median)
}

/// The target, which measures itself.
struct Nested {
    guarded: Guarded,
}

impl Nested {
    fn start(program: &Path) -> Result<Self> {
        let guarded = Guarded::spawn(bound(program).stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let mut nested = Self { guarded };
        let ready = nested.read_line()?;
        ensure!(ready == "ready", "the target said `{ready}`");
        Ok(nested)
    }

    /// Has it do its calls and returns their median, in nanoseconds.
    fn work(&mut self) -> Result<f64> {
        let child = self.guarded.child();
        writeln!(child.stdin.as_mut().context("its input was asked for")?, "go")?;
        let line = self.read_line()?;
        line.parse().with_context(|| format!("the target said `{line}`"))
    }

    /// It says one line at a time, so that a reader may be thrown away.
    fn read_line(&mut self) -> Result<String> {
        let output = self.guarded.child().stdout.as_mut().context("its output was asked for")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}
