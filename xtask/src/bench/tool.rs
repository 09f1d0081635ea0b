//! Profilers under measurement, attached to a running process: heapbpf, empty probes, and other tools. Breakpoints in
//! the process's code show when a tool is attached and detached.

use std::fs::File;
use std::io::BufReader;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use heapbpf_tests::kernel;
use heapbpf_tests::report::{Callsite, Hook, Report};
use serde::de::DeserializeOwned;

use super::Bench;
use super::figures::alternate;
use crate::process::{Output, PATIENCE, Program, bound, mappings};

const POLL_PERIOD: Duration = Duration::from_millis(50);
/// `int3`.
const BREAKPOINT: u8 = 0xcc;
/// Exit codes of a recording: complete, and incomplete with a list of what is missing.
const DONE: [i32; 2] = [0, 3];
/// Start of the line that heapbpf prints once its probes are attached.
const RECORDING: &str = "heapbpf: recording";

pub(super) struct Agent {
    program: Program,
    report: PathBuf,
    /// From the start until it recorded.
    pub(super) attached_after: Duration,
}

impl Agent {
    /// Starts a command of heapbpf, which writes to `report`, and waits until its probes are attached.
    pub(super) fn start(command: &mut Command, report: &Path) -> Result<Self> {
        let started = Instant::now();
        let program = Program::start(command.arg("-o").arg(report), Output::Errors)?;
        program.line_after(RECORDING)?;
        Ok(Self { program, report: report.to_owned(), attached_after: started.elapsed() })
    }

    pub(super) fn pid(&self) -> u32 {
        self.program.pid()
    }

    pub(super) fn interrupt(&self) -> Result<()> {
        self.program.interrupt()
    }

    pub(super) fn wait(&mut self) -> Result<()> {
        let status = self.program.wait()?;
        let is_done = status.code().is_some_and(|code| DONE.contains(&code));
        ensure!(is_done, "heapbpf failed: {status}: {}", self.program.lines_so_far().join("\n"));
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Report> {
        self.wait()?;
        read(&self.report)
    }
}

pub(super) fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let file = File::open(path).with_context(|| format!("could not open `{}`", path.display()))?;
    let report = serde_json::from_reader(BufReader::new(file));
    report.with_context(|| format!("`{}` is not a valid report", path.display()))
}

pub(super) fn callsites(report: &Report) -> impl Iterator<Item = &Callsite> {
    report.targets.iter().flat_map(|target| &target.callsites)
}

pub(super) fn alloc_count(callsite: &Callsite) -> f64 {
    callsite.totals.alloc_count.as_f64().unwrap_or(0.0)
}

/// Number of functions on the stack, without inlined ones.
pub(super) fn frames(callsite: &Callsite) -> usize {
    callsite.stack.iter().filter(|frame| !frame.inlined).count()
}

pub(super) fn dropped(report: &Report) -> u64 {
    report.health.lost.values().sum()
}

pub(super) fn seconds(report: &Report) -> f64 {
    Duration::from_nanos(report.ended_unix_ns.saturating_sub(report.started_unix_ns)).as_secs_f64()
}

pub(super) struct Setup {
    pub(super) bench: Bench,
    pub(super) against: Option<PathBuf>,
    pub(super) memleak: Option<PathBuf>,
    pub(super) window: Duration,
    pub(super) sustained: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tool {
    Nothing,
    /// Empty programs at the places of heapbpf's probes. Functions that free have plain entry probes.
    Floor,
    /// The same, with all probes as entries of one session, as heapbpf attaches them.
    SessionFloor,
    Heapbpf(&'static [&'static str]),
    /// The heapbpf of `--against` with these options.
    Against(&'static [&'static str]),
    Memleak(&'static [&'static str]),
}

pub(super) type Variant = (&'static str, Tool);

pub(super) enum Attached {
    Nothing,
    Agent(Agent),
    /// Detaches when its input is closed.
    Floor(Program),
    Memleak(Program),
}

impl Tool {
    pub(super) fn missing(self, setup: &Setup) -> Option<&'static str> {
        match self {
            Self::Against(_) if setup.against.is_none() => Some("no other heapbpf is specified (`--against PATH`)"),
            Self::Memleak(_) if setup.memleak.is_none() => Some("memleak of bcc's libbpf-tools is not installed"),
            _ => None,
        }
    }

    /// Attaches the tool to a process and waits until its probes are in place. Fails when another tool has probes there.
    pub(super) fn attach(self, setup: &Setup, pid: u32, hooks: &[Hook]) -> Result<Attached> {
        let foreign = breakpoints(pid)?;
        ensure!(foreign == 0, "process {pid} has {foreign} breakpoints of another tool, which would be measured, too");
        let report = setup.bench.folder.join("tool.json");
        let attached = match self {
            Self::Nothing => return Ok(Attached::Nothing),
            Self::Heapbpf(options) => Attached::Agent(Agent::start(setup.bench.record(pid).args(options), &report)?),
            Self::Against(options) => {
                let heapbpf = setup.against.as_ref().context("the tool is missing")?;
                let mut command = setup.bench.command(heapbpf);
                Attached::Agent(Agent::start(command.args(["--pid", &pid.to_string()]).args(options), &report)?)
            }
            Self::Floor | Self::SessionFloor => {
                Attached::Floor(Program::ready(&mut self.floor_command(setup, pid, hooks)?)?.0)
            }
            Self::Memleak(options) => {
                let mut command = bound(setup.memleak.as_ref().context("the tool is missing")?);
                // The last argument is the interval of its reports in seconds: longer than the measurement.
                command.args(["-p", &pid.to_string()]).args(options).arg("3600");
                let memleak = Program::start(&mut command, Output::Errors)?;
                wait_until_attached(pid)?;
                Attached::Memleak(memleak)
            }
        };
        Ok(attached)
    }

    fn floor_command(self, setup: &Setup, pid: u32, hooks: &[Hook]) -> Result<Command> {
        let module = &hooks.first().context("heapbpf has attached no hook")?.module;
        ensure!(hooks.iter().all(|hook| hook.module == *module), "the hooks belong to several modules");
        let mut command = bound(setup.bench.repository.example("floor")?);
        command.arg(pid.to_string()).arg(module);
        let mut offsets = Vec::new();
        for hook in hooks {
            // Aliases of a function share its probe.
            if !offsets.contains(&hook.offset) {
                offsets.push(hook.offset);
                let is_entry = self == Self::Floor && hook.function.contains("free");
                command.arg(format!("{}={}", if is_entry { "ENTRY" } else { "SESSION" }, hook.offset));
            }
        }
        Ok(command)
    }
}

impl Attached {
    pub(super) fn agent(&self) -> Result<u32> {
        match self {
            Self::Agent(agent) => Ok(agent.pid()),
            _ => bail!("heapbpf is not attached"),
        }
    }

    /// Detaches the tool, and waits until the process has its original code. Returns heapbpf's report.
    pub(super) fn detach(self, pid: u32) -> Result<Option<Report>> {
        if let Self::Agent(agent) = &self {
            agent.interrupt()?;
        }
        let report = self.finish()?;
        wait_until_detached(pid)?;
        Ok(report)
    }

    /// Waits until the tool has finished after the process has exited. Returns heapbpf's report.
    pub(super) fn finish(self) -> Result<Option<Report>> {
        match self {
            Self::Nothing => Ok(None),
            Self::Agent(agent) => agent.finish().map(Some),
            Self::Floor(mut program) => {
                program.close_input();
                program.wait().map(|_| None)
            }
            Self::Memleak(mut program) => {
                program.interrupt()?;
                program.wait().map(|_| None)
            }
        }
    }
}

/// Measures a running process under each tool, in alternation. `measure` detaches the tool.
pub(super) fn compare<T>(
    setup: &Setup,
    pid: u32,
    variants: &[Variant],
    mut measure: impl FnMut(&Variant, Attached) -> Result<T>,
) -> Result<Vec<Vec<T>>> {
    let hooks = hooks(setup, pid)?;
    alternate(setup.bench.rounds, variants, |variant| {
        let (name, tool) = variant;
        let attached = tool.attach(setup, pid, &hooks).with_context(|| format!("attaching: {name}"))?;
        measure(variant, attached).with_context(|| format!("measuring: {name}"))
    })
}

pub(super) fn hooks(setup: &Setup, pid: u32) -> Result<Vec<Hook>> {
    let attached = Tool::Heapbpf(&["--interval", "1GiB"]).attach(setup, pid, &[])?;
    let mut report = attached.detach(pid)?.context("heapbpf writes a report")?;
    let heaps = report.targets.iter_mut().flat_map(|target| &mut target.heaps);
    Ok(heaps.flat_map(|heap| std::mem::take(&mut heap.hooks)).filter(|hook| hook.attached).collect())
}

/// Number of bytes in the code of a process that its files do not have: breakpoints.
fn breakpoints(pid: u32) -> Result<usize> {
    let changed = kernel::changed_code_in(pid, |_| true);
    Ok(changed.with_context(|| format!("reading the code of process {pid} requires root"))?.len())
}

fn memory(pid: u32) -> Result<File> {
    File::open(format!("/proc/{pid}/mem")).context("reading the memory of another process requires root")
}

/// Waits until there are breakpoints, and their number has not changed for a second.
fn wait_until_attached(pid: u32) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let (mut before, mut since) = (0, Instant::now());
    while before == 0 || since.elapsed() < Duration::from_secs(1) {
        ensure!(Instant::now() < deadline, "the breakpoints in process {pid} still change after {PATIENCE:?}");
        thread::sleep(POLL_PERIOD);
        let count = breakpoints(pid)?;
        if count != before {
            (before, since) = (count, Instant::now());
        }
    }
    Ok(())
}

pub(super) fn wait_until_detached(pid: u32) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while breakpoints(pid)? > 0 {
        ensure!(Instant::now() < deadline, "process {pid} still has breakpoints after {PATIENCE:?}");
        thread::sleep(POLL_PERIOD);
    }
    Ok(())
}

/// The probed instruction of a hook in a process: the memory, and the address.
pub(super) fn instruction(pid: u32, hook: &Hook) -> Result<(File, u64)> {
    let address = mappings(pid)?.into_iter().find_map(|mapping| {
        let inside = hook.offset.checked_sub(mapping.file_offset)?;
        (mapping.path == hook.module && inside < mapping.bytes as u64).then_some(mapping.start + inside)
    });
    Ok((memory(pid)?, address.with_context(|| format!("process {pid} has not mapped `{}`", hook.module))?))
}

pub(super) fn is_breakpoint((memory, address): &(File, u64)) -> Result<bool> {
    let mut byte = [0];
    memory.read_exact_at(&mut byte, *address)?;
    Ok(byte == [BREAKPOINT])
}

/// Fails unless nearly all stacks have this depth: figures are published for a number of frames.
pub(super) fn check_depth(report: &Report, depth: usize) -> Result<()> {
    let count = |is_counted: &dyn Fn(usize) -> bool| -> f64 {
        let callsites = callsites(report).filter(|callsite| is_counted(frames(callsite)));
        callsites.map(alloc_count).sum()
    };
    ensure!(count(&|it| it == depth) > 0.99 * count(&|_| true), "not all stacks have {depth} frames");
    Ok(())
}
