//! Tools that watch a process: heapbpf in its variants, probes that do nothing, and what else there is. Starts them, waits
//! until they are attached, and takes them off. Measures nothing.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use super::program::{Output, Program, bound};
use super::report::{Hook, Report};
use super::{Bench, breakpoints};
use crate::command;

/// heapbpf's exit codes for a profile: whole, or lacking something that it names.
const DONE: [i32; 2] = [0, 3];

/// What heapbpf says once its probes are in place.
const RECORDING: &str = "heapbpf: recording";

/// A tool, with how it is told to work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tool {
    /// None.
    Nothing,
    /// Empty programs where heapbpf's probes are. Frees need no return: those of heapbpf are entries of a session, these
    /// are plain entries.
    Floor,
    /// The same, all of them entries of one session, as heapbpf attaches them.
    SessionFloor,
    /// heapbpf with these arguments.
    Heapbpf(&'static [&'static str]),
    /// The heapbpf of `--against` with these arguments.
    Against(&'static [&'static str]),
    /// bcc's memleak with these arguments.
    Memleak(&'static [&'static str]),
    /// bpftrace, counting calls and returns of malloc, and calls of free.
    Bpftrace,
}

/// A tool at work. Killed when dropped.
pub(super) struct Attached {
    pid: u32,
    program: Option<Program>,
    report: Option<PathBuf>,
    stops_at_end_of_input: bool,
}

impl Tool {
    /// Why the tool is not to be had here.
    pub(super) fn missing(self, bench: &Bench) -> Option<&'static str> {
        match self {
            Self::Against(_) if bench.against.is_none() => Some("no other heapbpf is given (`--against PATH`)"),
            Self::Memleak(_) if bench.memleak.is_none() => Some("memleak of bcc's libbpf-tools is not installed"),
            Self::Bpftrace if command::find("bpftrace").is_none() => Some("bpftrace is not installed"),
            _ => None,
        }
    }

    /// Attaches it to a process and returns when its probes are in place.
    pub(super) fn attach(self, bench: &Bench, pid: u32, hooks: &[Hook]) -> Result<Attached> {
        let mut attached = Attached { pid, program: None, report: None, stops_at_end_of_input: false };
        match self {
            Self::Nothing => {}
            Self::Heapbpf(arguments) | Self::Against(arguments) => {
                let report = bench.folder.join("watched.json");
                let mut command = match (self, &bench.against) {
                    (Self::Against(_), Some(against)) => bench.profile_with(against, pid),
                    _ => bench.heapbpf(pid),
                };
                command.args(arguments).arg("-o").arg(&report);
                let program = Program::start(&mut command, Output::Errors)?;
                program.line_after(RECORDING)?;
                (attached.program, attached.report) = (Some(program), Some(report));
            }
            Self::Floor | Self::SessionFloor => {
                let program = Program::start(&mut floor(bench, pid, hooks, self)?, Output::Standard)?;
                program.line_after("ready")?;
                (attached.program, attached.stops_at_end_of_input) = (Some(program), true);
            }
            Self::Memleak(arguments) => {
                let memleak = bench.memleak.as_ref().context("the tool is missing")?;
                let mut command = bound(memleak);
                // It reports at this interval, in seconds: not while it is measured.
                command.args(["-p", &pid.to_string()]).args(arguments).arg("3600");
                attached.program = Some(Program::start(&mut command, Output::Errors)?);
                breakpoints::wait_until_settled(pid)?;
            }
            Self::Bpftrace => {
                let mut command = bound("bpftrace");
                command.args(["-p", &pid.to_string(), "-e", &bpftrace_program(hooks)?]);
                attached.program = Some(Program::start(&mut command, Output::Errors)?);
                breakpoints::wait_until_settled(pid)?;
            }
        }
        Ok(attached)
    }
}

/// Empty programs at the places of heapbpf's probes.
fn floor(bench: &Bench, pid: u32, hooks: &[Hook], tool: Tool) -> Result<Command> {
    let module = &hooks.first().context("heapbpf has attached nothing")?.module;
    ensure!(hooks.iter().all(|hook| hook.module == *module), "the hooks are of several modules");
    let mut command = bound(&bench.floor);
    command.arg(pid.to_string()).arg(module);
    let mut offsets = Vec::new();
    for hook in hooks.iter().filter(|hook| hook.attached) {
        // Names of one function share its probe.
        if offsets.contains(&hook.offset) {
            continue;
        }
        offsets.push(hook.offset);
        let kind = if tool == Tool::Floor && hook.function.contains("free") { "ENTRY" } else { "SESSION" };
        command.arg(format!("{kind}={}", hook.offset));
    }
    Ok(command)
}

fn bpftrace_program(hooks: &[Hook]) -> Result<String> {
    let module = &hooks.first().context("heapbpf has attached nothing")?.module;
    Ok(format!(
        "uprobe:{module}:malloc {{ @calls = count(); }} uretprobe:{module}:malloc {{ @returns = count(); }} \
         uprobe:{module}:free {{ @frees = count(); }}"
    ))
}

impl Attached {
    /// The tool's process.
    pub(super) fn tool_pid(&self) -> Result<u32> {
        Ok(self.program.as_ref().context("nothing is attached")?.pid())
    }

    /// Takes it off, and waits until the process has its own code again. heapbpf's report, if it was heapbpf.
    pub(super) fn detach(mut self) -> Result<Option<Report>> {
        if let Some(mut program) = self.program.take() {
            if self.stops_at_end_of_input {
                program.close_input();
            } else {
                program.interrupt()?;
            }
            let status = program.wait()?;
            if self.report.is_some() && !status.code().is_some_and(|code| DONE.contains(&code)) {
                bail!("heapbpf failed: {status}: {}", program.lines_so_far().join("\n"));
            }
        }
        breakpoints::wait_until_gone(self.pid)?;
        self.report.as_deref().map(Report::read).transpose()
    }
}

/// The hooks that heapbpf attaches in a process.
pub(super) fn hooks(bench: &Bench, pid: u32) -> Result<Vec<Hook>> {
    let report = Tool::Heapbpf(&["--interval", "1GiB"]).attach(bench, pid, &[])?.detach()?;
    Ok(report.context("heapbpf writes a report")?.hooks())
}
