//! `heapbpf leaks`: takes heap snapshots, and checks them on a worker thread.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use bytesize::ByteSize;

use super::args::{CommonArgs, LeaksArgs};
use super::exit::{self, is_broken_pipe, usage};
use super::output::{self, Access, Output};
use super::runtime::{Worker, async_runtime, run_session, start_session, wait_for_command};
use super::terminal::{self, ProgressLine, say};
use crate::address::TargetAddr;
use crate::check::heap_snapshot::HeapSnapshot;
use crate::check::{Plan, check, heap_snapshot};
use crate::collect::Method;
use crate::ids::Pid;
use crate::keeper::Keeper;
use crate::linux::signals::Inherited;
use crate::process::selection::Selection;
use crate::report::text::printable;
use crate::report::unreachable::text::{Style, write_text};
use crate::report::unreachable::{Unreachable, write_json};
use crate::report::{Format, Presentation, View};
use crate::session::{Listener, OverloadPolicy, Progress, SessionConfig};
use crate::symbolize::resolver::Resolver;
use crate::walk;

type Checker = Worker<HeapSnapshot, Option<bool>>;

pub(super) fn run(args: &LeaksArgs, inherited: Inherited) -> Result<u8> {
    if args.pid.is_none() && args.command.is_empty() {
        return Err(usage(
            "nothing to check: specify `--pid PID` (`pgrep -a NAME` lists processes), or a command after `--`; see `heapbpf leaks --help`",
        ));
    }
    let CommonArgs { output, .. } = &args.common;
    let plan = Plan {
        limit: args.limit,
        suppressions: args.common.read_suppressions()?,
        with_contents: !args.no_contents,
        trims: output.trim,
    };
    let open = |path: &PathBuf| Output::open_for_profile(path, output.format, Access::Owner);
    let outputs = output.output.iter().map(open).collect::<Result<Vec<_>>>()?;
    let reports = Reports { outputs, format: output.format, quiet: output.quiet, to_stderr: !args.command.is_empty() };
    match (args.pid, args.watch) {
        (Some(pid), None) => async_runtime()?.block_on(check_unrecorded(pid, args.snapshot, plan, reports)),
        _ => run_session(record(args, plan, reports, inherited)),
    }
}

async fn check_unrecorded(pid: Pid, method: Method, plan: Plan, reports: Reports) -> Result<u8> {
    let keeper = Keeper::start()?;
    let checker = start_checker(plan, reports);
    checker.send(heap_snapshot::take_unrecorded(pid, method, &keeper)?);
    exit_code(checker.finish(std::future::pending()).await?, exit::DONE)
}

async fn record(args: &LeaksArgs, plan: Plan, reports: Reports, inherited: Inherited) -> Result<u8> {
    let config = SessionConfig {
        selection: Selection { pids: args.pid.into_iter().collect(), ..Selection::default() },
        follow_forks: false,
        interval: args.common.interval,
        duration: args.watch,
        ring_bytes: args.kernel.ring_size,
        live_blocks_max: args.kernel.live_blocks,
        // At a higher interval, more blocks would have no stack.
        on_overload: OverloadPolicy::Drop,
        checks: Some(args.snapshot),
        ..SessionConfig::default()
    };
    let Some((mut session, mut stops, mut control)) = start_session(config, &args.command, inherited).await? else {
        return Ok(exit::INTERRUPTED);
    };
    let quiet = args.common.output.quiet;
    let is_launched = !args.command.is_empty();
    if stops.requested && !is_launched {
        return Ok(exit::INTERRUPTED);
    }
    if !is_launched && !quiet {
        say(&format!("heapbpf: recording {}; Ctrl-C checks for leaks at once", session.describe()));
    }
    let line = ProgressLine::new(quiet || is_launched);
    let mut events = Events { checker: start_checker(plan, reports), line, failure: None };
    session.run(stops.wait(session.launched()), &mut control, &mut events).await?;
    events.line.clear();
    // A launched command that has exited was inspected at its exit, and is no longer a target.
    session.inspect_all(args.snapshot, &mut events);
    let has_lost_keeper = session.has_lost_keeper();
    let (_, command, _) = session.finish()?;
    let code = match command {
        Some(command) => wait_for_command(command, &mut stops, quiet).await,
        None if has_lost_keeper => exit::INCOMPLETE,
        None => exit::DONE,
    };
    let has_leaks = events.checker.finish(stops.next(None)).await;
    match events.failure {
        Some(error) => Err(error),
        None => exit_code(has_leaks?, code),
    }
}

fn exit_code(has_leaks: Option<bool>, without_leaks: u8) -> Result<u8> {
    match has_leaks {
        Some(true) => Ok(exit::LEAKS),
        Some(false) => Ok(without_leaks),
        None if without_leaks == exit::INCOMPLETE => bail!("no heap was inspected: the keeper process exited before"),
        None => bail!("no heap was inspected: the process exited before"),
    }
}

struct Events {
    checker: Checker,
    line: ProgressLine,
    /// Error of the last heap snapshot that failed.
    failure: Option<anyhow::Error>,
}

impl Listener for Events {
    fn progress(&mut self, progress: &Progress) {
        self.line.show(progress);
    }

    fn inspected(&mut self, snapshot: Result<HeapSnapshot>) {
        match snapshot {
            Ok(snapshot) => self.checker.send(snapshot),
            Err(error) => self.failure = Some(error),
        }
    }

    /// At most one heap snapshot is pending: each has a copy of the process's memory.
    fn has_room(&self) -> bool {
        self.checker.pending() == 0
    }
}

struct Reports {
    /// For the last check; earlier checks are written to numbered files beside them.
    outputs: Vec<Output>,
    /// Format of all files, whatever their extensions.
    format: Option<Format>,
    quiet: bool,
    /// The text report goes to standard error, because standard output is a command's.
    to_stderr: bool,
}

fn start_checker(plan: Plan, reports: Reports) -> Checker {
    Worker::start(move |snapshots, resolver| {
        let mut last: Option<Unreachable> = None;
        for ((snapshot, _pending), count) in snapshots.into_iter().zip(0..) {
            if let Some(earlier) = last.take() {
                reports.write_numbered(&earlier, count, plan.with_contents)?;
            }
            let found = check_snapshot(snapshot, &plan, &resolver, reports.quiet || reports.to_stderr)?;
            reports.print(&found, count == 0, plan.with_contents)?;
            last = Some(found);
            resolver.release();
        }
        let Some(found) = last else { return Ok(None) };
        for output in reports.outputs {
            write(output, &found, plan.with_contents)?;
        }
        Ok(Some(found.leak_count > 0))
    })
}

fn check_snapshot(snapshot: HeapSnapshot, plan: &Plan, resolver: &Resolver, quiet: bool) -> Result<Unreachable> {
    let line = ProgressLine::new(quiet);
    let parts = snapshot.collected.memory.present(TargetAddr(0)..TargetAddr(u64::MAX));
    let bytes: u64 = parts.iter().map(|part| part.end.0 - part.start.0).sum();
    let comm = snapshot.state.targets.first().map_or("the process", |target| target.facts.comm.as_str());
    line.begin(format!("searching {} of {}'s memory for leaks", ByteSize(bytes), printable(comm)));
    let found = check(snapshot, plan, resolver);
    line.clear();
    let found = found?;
    if found.watched_ns.is_none() && found.known.count == 0 {
        let pid = found.target().map_or(Pid(0), |target| target.facts.pid);
        let gaps: Vec<&str> = found.heaps.iter().flat_map(|heap| &heap.gaps).map(String::as_str).collect();
        let reason = if gaps.is_empty() {
            format!("unsupported allocator: heapbpf can walk heaps of {}", walk::allocators())
        } else {
            gaps.join("; ")
        };
        return Err(anyhow!(
            "no block of process `{pid}` is known: {reason}; to record its allocations first: `heapbpf leaks --pid {pid} --watch 60s`"
        ));
    }
    Ok(found)
}

impl Reports {
    fn write_numbered(&self, found: &Unreachable, number: u32, contents: bool) -> Result<()> {
        for path in self.outputs.iter().filter_map(Output::path) {
            let path = output::window_path(path, number);
            write(Output::open(&path, self.format, Access::Owner)?, found, contents)?;
        }
        Ok(())
    }

    fn print(&self, found: &Unreachable, is_first: bool, contents: bool) -> Result<()> {
        if self.quiet {
            return Ok(());
        }
        let to_stderr = self.to_stderr || self.outputs.iter().any(|output| output.path().is_none());
        let (width, colour) = terminal::layout();
        let style = Style { width, colour: colour && !to_stderr, contents };
        let write_text = |out: &mut dyn Write| {
            if !is_first {
                writeln!(out)?;
            }
            write_text(found, style, out)
        };
        if to_stderr {
            // Like all messages: nobody needs to read them.
            let _ = write_text(&mut terminal::errors());
            return Ok(());
        }
        match write_text(&mut terminal::output()).map_err(anyhow::Error::from) {
            Err(error) if is_broken_pipe(&error) => Ok(()),
            written => written,
        }
    }
}

fn write(output: Output, found: &Unreachable, contents: bool) -> Result<()> {
    output.write(|format, out| match format {
        Format::Json => Ok(write_json(found, contents, out)?),
        _ => Ok(format.write(&found.profile, &Presentation::from(View::LiveBytes), out)?),
    })?;
    Ok(())
}
