//! The profiler under measurement: starts the built heapbpf, and reads its JSON report.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use heapbpf_tests::report::{Callsite, Report};

use super::process::{Output, Program};

/// Exit codes of a recording: complete, and incomplete with a list of what is missing.
const DONE: [i32; 2] = [0, 3];

/// Start of the line that heapbpf prints once its probes are attached.
const RECORDING: &str = "heapbpf: recording";

/// A recording heapbpf. Killed when dropped.
pub(super) struct Agent {
    program: Program,
    report: PathBuf,
    /// From the start until it recorded.
    pub(super) attached_after: Duration,
    /// Lines of standard error until then.
    pub(super) log: Vec<String>,
}

impl Agent {
    /// Starts a command of heapbpf, which writes to `report`, and waits until its probes are attached.
    pub(super) fn start(command: &mut Command, report: &Path) -> Result<Self> {
        let started = Instant::now();
        let program = Program::start(command.arg("-o").arg(report), Output::Errors)?;
        let log = program.lines_until(RECORDING)?;
        Ok(Self { program, report: report.to_owned(), attached_after: started.elapsed(), log })
    }

    pub(super) fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// Interrupts it, as Ctrl-C does.
    pub(super) fn interrupt(&self) -> Result<()> {
        self.program.interrupt()
    }

    /// Waits for its exit: after its duration, an interrupt, or the exit of its targets.
    pub(super) fn wait(&mut self) -> Result<()> {
        let status = self.program.wait()?;
        if !status.code().is_some_and(|code| DONE.contains(&code)) {
            bail!("heapbpf failed: {status}: {}", self.program.lines_so_far().join("\n"));
        }
        Ok(())
    }

    /// Waits for its exit and reads the report.
    pub(super) fn finish(mut self) -> Result<Report> {
        self.wait()?;
        read(&self.report)
    }
}

/// Reads a report.
pub(super) fn read(path: &Path) -> Result<Report> {
    let file = File::open(path).with_context(|| format!("could not open `{}`", path.display()))?;
    let report = serde_json::from_reader(BufReader::new(file));
    report.with_context(|| format!("`{}` is not a valid report", path.display()))
}

pub(super) fn callsites(report: &Report) -> impl Iterator<Item = &Callsite> {
    report.targets.iter().flat_map(|target| &target.callsites)
}

/// Number of allocations of a callsite.
pub(super) fn alloc_count(callsite: &Callsite) -> f64 {
    callsite.totals.alloc_count.as_f64().unwrap_or(0.0)
}

/// Number of functions on the stack, without inlined ones.
pub(super) fn depth(callsite: &Callsite) -> usize {
    callsite.stack.iter().filter(|frame| !frame.inlined).count()
}

/// Events dropped for any reason.
pub(super) fn dropped(report: &Report) -> u64 {
    report.health.lost.values().sum()
}

/// Duration of the recording.
pub(super) fn seconds(report: &Report) -> f64 {
    Duration::from_nanos(report.ended_unix_ns.saturating_sub(report.started_unix_ns)).as_secs_f64()
}
