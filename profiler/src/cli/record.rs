//! `heapbpf record`, which is also `heapbpf` alone.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use profiler_common::interval::Interval;
use terminal_size::terminal_size;
use thiserror::Error;
use tokio::signal::unix::{SignalKind, signal};

use super::args::{BackendArg, RecordArgs, Unwind};
use super::output::Output;
use super::progress::ProgressLine;
use super::{exit, privilege, say};
use crate::bpf::load::LinkKind;
use crate::ids::Pid;
use crate::probe::attach::BackendChoice;
use crate::proc::process;
use crate::report::profile::Profile;
use crate::report::summary;
use crate::session::{Session, SessionConfig, UnwindMode};

/// What was asked for cannot be: exit code 2.
#[derive(Debug, Error)]
#[error("{0}")]
pub(super) struct UsageError(String);

/// Records, reports, and returns the exit code.
pub(super) fn run(args: &RecordArgs) -> Result<u8> {
    if args.pid.is_empty() {
        return Err(UsageError(
            "nothing to profile: give `--pid PID` (`pgrep -a NAME` lists processes); see `heapbpf --help`".to_owned(),
        )
        .into());
    }
    // Before anything is attached, whatever would make the recording useless.
    let pids = pids(&args.pid);
    let outputs = outputs(args, &pids)?;
    privilege::check()?;
    privilege::raise_memory_limit();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start tokio")?;
    runtime.block_on(record(args, pids, outputs))
}

async fn record(args: &RecordArgs, pids: Vec<Pid>, outputs: Vec<Output>) -> Result<u8> {
    let mut stops = Stops::new()?;
    let config = SessionConfig {
        pids,
        interval: Interval::nearest(args.interval),
        duration: args.duration,
        trim: args.trim,
        ring_bytes: args.ring_size,
        live_blocks_max: args.live_blocks,
        placement: args.placement.into(),
        unwind: match args.unwind {
            Unwind::Auto => UnwindMode::Auto,
            Unwind::Dwarf => UnwindMode::Tables,
            Unwind::Fp => UnwindMode::FramePointer,
        },
        backend: match args.backend {
            BackendArg::Auto => BackendChoice::Auto,
            BackendArg::Session => BackendChoice::Only(LinkKind::Session),
            BackendArg::Multi => BackendChoice::Only(LinkKind::Multi),
            BackendArg::Perf => BackendChoice::Only(LinkKind::Perf),
        },
        unwind_bytes_max: args.unwind_memory,
        raw_stacks_max: 0,
    };
    let mut session = Session::start(config)?;
    if stops.pending() {
        return Ok(exit::INTERRUPTED);
    }
    if !args.quiet {
        let until = if args.duration.is_none() { "; Ctrl-C stops and writes the report" } else { "" };
        say(&format!("heapbpf: recording {}{until}", session.describe()));
    }
    let line = ProgressLine::new(args.quiet);
    session.run(stops.wait(), |progress| line.show(progress)).await?;
    line.clear();
    let profile = session.finish()?;
    report(args, &profile, outputs)
}

fn report(args: &RecordArgs, profile: &Profile, outputs: Vec<Output>) -> Result<u8> {
    let mut to_stdout = false;
    let mut written = Vec::new();
    for output in outputs {
        let format = output.format();
        match output.write(|out| Ok(format.report().write(profile, args.view, out)?))? {
            Some(path) => written.push((path, format)),
            None => to_stdout = true,
        }
    }
    if !args.quiet {
        let terminal = std::io::stdout().is_terminal();
        let width = terminal.then(|| terminal_size().map(|(width, _)| usize::from(width.0))).flatten();
        let colour = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let mut text = summary::summary(profile, args.view, args.top, width, colour);
        for (path, format) in &written {
            text.push_str(&format!("\n{} ({})", path.display(), format.description()));
        }
        // A report on standard output must not have the table in it.
        if to_stdout {
            say(&text);
        } else {
            writeln!(std::io::stdout(), "{text}")?;
        }
    }
    Ok(if profile.incomplete() { exit::INCOMPLETE } else { exit::DONE })
}

/// Each process once, in the order given.
fn pids(given: &[u32]) -> Vec<Pid> {
    let mut pids: Vec<Pid> = Vec::new();
    for &pid in given {
        if !pids.contains(&Pid(pid)) {
            pids.push(Pid(pid));
        }
    }
    pids
}

/// What was asked for, or a flame graph in the current folder.
fn outputs(args: &RecordArgs, pids: &[Pid]) -> Result<Vec<Output>> {
    if !args.output.is_empty() {
        return args.output.iter().map(|path| Output::open(path)).collect();
    }
    Ok(vec![Output::open(&default_path(pids))?])
}

fn default_path(pids: &[Pid]) -> PathBuf {
    let name = match pids {
        [pid] => {
            let comm = process::comm(*pid).unwrap_or_default();
            let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
            format!("heapbpf-{}-{pid}.svg", comm.chars().map(plain).collect::<String>())
        }
        _ => format!("heapbpf-{}-processes.svg", pids.len()),
    };
    Path::new(".").join(name)
}

/// Ctrl-C and what service managers send.
struct Stops {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl Stops {
    fn new() -> Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Whether one has come already.
    fn pending(&mut self) -> bool {
        use std::task::{Context, Poll, Waker};
        let mut context = Context::from_waker(Waker::noop());
        let mut came =
            |signal: &mut tokio::signal::unix::Signal| matches!(signal.poll_recv(&mut context), Poll::Ready(_));
        came(&mut self.interrupt) || came(&mut self.terminate)
    }
}
