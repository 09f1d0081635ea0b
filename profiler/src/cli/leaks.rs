//! Command `heapbpf leaks`: takes heap snapshots, and checks them on a worker thread.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use bytesize::ByteSize;
use clap::Args;
use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::Pid;
use heapbpf_linux::rights::Rights;
use heapbpf_linux::signals::{ExitAtSignal, Inherited};
use heapbpf_report::text::printable;
use heapbpf_report::unreachable::text::{Style, write_text};
use heapbpf_report::unreachable::{Unreachable, write_json};
use heapbpf_report::{Format, Presentation, View};

use super::args::{CommonArgs, KernelArgs};
use super::completion;
use super::exit::{self, is_broken_pipe, usage};
use super::output::{self, Access, Output};
use super::runtime::{Worker, async_runtime, run_session, start_session, wait_for_command};
use super::source;
use super::terminal::{self, ProgressLine, say};
use super::values::{self, named};
use crate::check::heap_snapshot::HeapSnapshot;
use crate::check::{Plan, absence, check, heap_snapshot};
use crate::collect::Method;
use crate::keeper::Keeper;
use crate::process::selection::Selection;
use crate::session::{Command, Listener, OverloadPolicy, Progress, SessionConfig};
use crate::symbolize::resolver::Resolver;
use crate::symbolize::sources::Sources;

const SNAPSHOT: [(&str, Method); 2] = [("read", Method::Read), ("fork", Method::Fork)];

#[derive(Args, Clone, Debug)]
#[command(
    mut_arg("interval", |interval| interval.default_value("1").hide_default_value(false).help(
        "Mean bytes between recorded allocations",
    ).long_help(
        "Mean bytes between recorded allocations. 1 records each; others cost less, and leave leaked blocks without a stack",
    )),
    mut_arg("ring_size", |size| size.default_value("64MiB")),
    mut_arg("live_blocks", |blocks| blocks.default_value("16777216")),
    mut_arg("suppressions", |suppressions| suppressions.help(
        "Read suppressions in LeakSanitizer's syntax (`leak:PATTERN`) from FILE. Leaks with a frame whose function, module \
         or source file matches, and blocks reachable from them, are counted and not listed. May be given several times",
    )),
    mut_arg("output", |output| output.long_help(
        "Write a report to FILE; `-` is standard output, as folded text. May be given several times. The extension selects \
         the format: `.json` lists each leak; all others (`.svg`, `.html`, `.pb.gz`, …) show leaked bytes by callsite",
    )),
)]
pub(super) struct LeaksArgs {
    /// Process to check: its number, or the name of a program that runs once.
    #[arg(value_name = "PROGRAM_OR_PID", conflicts_with_all = ["pid", "command"], add = completion::programs_and_pids())]
    pub(super) process: Option<String>,

    /// Check the process PID.
    #[arg(short, long, value_name = "PID", value_parser = values::pid, conflicts_with = "command", allow_hyphen_values = true, add = completion::pids())]
    pub(super) pid: Option<Pid>,

    /// Record allocations for TIME (30s, 10m) before the check.
    ///
    /// Blocks allocated meanwhile have a stack and an age. Ctrl-C ends it early. Without it, no probe is attached.
    #[arg(short, long, value_name = "TIME", value_parser = values::period, allow_hyphen_values = true, conflicts_with = "command")]
    pub(super) watch: Option<Duration>,

    /// Maximum number of leaks to list, the largest first. All are counted.
    #[arg(short, long, value_name = "LEAKS", default_value_t = 100)]
    pub(super) limit: usize,

    /// Take the heap snapshot with HOW: `read`, or `fork`, for a short pause.
    ///
    /// `read` copies memory while the process is stopped; `fork` makes the process fork and reads the copy, which shortens the
    /// pause for large heaps and costs memory for pages written meanwhile.
    #[arg(long, value_name = "HOW", default_value = "read", value_parser = named(SNAPSHOT), hide_possible_values = true)]
    pub(super) snapshot: Method,

    /// Print the first 32 bytes of leaked blocks, which may contain secrets.
    #[arg(long)]
    pub(super) contents: bool,

    /// Also check each process that COMMAND creates, directly or not, when it exits. Without it, they are counted.
    #[arg(long, requires = "command")]
    pub(super) follow_forks: bool,

    #[command(flatten)]
    pub(super) common: CommonArgs,

    #[command(flatten)]
    pub(super) kernel: KernelArgs,

    /// Start a program with its arguments and check it when it exits.
    #[arg(last = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

type Checker = Worker<HeapSnapshot, Option<Verdict>>;

pub(super) fn run(mut args: LeaksArgs, inherited: Inherited) -> Result<u8> {
    let early = exit::exit_when_interrupted()?;
    if let Some(word) = args.process.take() {
        args.pid = Some(super::process::find(&word, "heapbpf leaks")?);
    }
    args.pid = args.pid.map(|pid| super::process::of_number(pid, args.common.output.quiet));
    let args = &args;
    if args.pid.is_none() && args.command.is_empty() {
        return Err(usage(
            "nothing to check: specify `--pid PID` or the name of a running program (`ps -e` lists them), or a command after `--`; see `heapbpf leaks --help`",
        ));
    }
    let common = &args.common.output;
    let plan = Plan {
        limit: args.limit,
        suppressions: args.common.read_suppressions()?,
        with_contents: args.contents,
        trim: common.trims(),
    };
    output::check_distinct(&common.output)?;
    let open = |path: &PathBuf| Output::open_for_profile(path, common.format, Access::Owner);
    let outputs = common.output.iter().map(open).collect::<Result<Vec<_>>>()?;
    let reports = Reports {
        outputs,
        format: common.format,
        quiet: common.quiet,
        source: common.source,
        to_stderr: !args.command.is_empty(),
        sources: args.common.sources(common.quiet)?,
    };
    match (args.pid, args.watch) {
        // An interrupt exits until all reports are written.
        (Some(pid), None) => async_runtime()?.block_on(check_unrecorded(pid, args.snapshot, plan, reports)),
        _ => run_session(record(args, plan, reports, inherited, early)),
    }
}

async fn check_unrecorded(pid: Pid, method: Method, plan: Plan, reports: Reports) -> Result<u8> {
    let keeper = Keeper::start()?;
    let checker = start_checker(plan, reports);
    checker.send(heap_snapshot::take_unrecorded(pid, method, &keeper)?);
    exit_code(checker.finish(std::future::pending()).await?, exit::DONE)
}

async fn record(
    args: &LeaksArgs,
    plan: Plan,
    reports: Reports,
    inherited: Inherited,
    early: ExitAtSignal,
) -> Result<u8> {
    let config = SessionConfig {
        selection: Selection { pids: args.pid.into_iter().collect(), ..Selection::default() },
        follow_forks: args.follow_forks,
        interval: args.common.interval,
        duration: args.watch,
        ring_bytes: args.kernel.ring_size,
        live_blocks_max: args.kernel.live_blocks,
        // At a higher interval, more blocks would have no stack.
        on_overload: OverloadPolicy::Drop,
        inventory_bytes_max: 0,
        object_types: false,
        checks: Some(args.snapshot),
        ..SessionConfig::default()
    };
    let Some((mut session, mut stops, mut control)) = start_session(config, &args.command, inherited, early).await?
    else {
        return Ok(exit::interrupted());
    };
    let quiet = args.common.output.quiet;
    let is_launched = !args.command.is_empty();
    if stops.requested && !is_launched {
        return Ok(exit::interrupted());
    }
    if !is_launched && !quiet {
        say(&format!("heapbpf: recording {}; Ctrl-C checks for leaks at once", session.describe()));
    }
    let line = ProgressLine::new(quiet || is_launched);
    let mut events = Events { checker: start_checker(plan, reports), line, failure: None };
    let launched = session.launched();
    session.run(stops.wait(launched), &mut control, &mut events).await?;
    events.line.clear();
    // A launched command that has exited was inspected at its exit, and is no longer a target.
    session.inspect_all(args.snapshot, &mut events);
    let has_lost_keeper = session.has_lost_keeper();
    let (_, command, _) = session.finish()?;
    let gave_way = command.as_ref().is_some_and(Command::gave_way);
    let code = match command {
        Some(command) => wait_for_command(command, &mut stops, quiet).await,
        None if has_lost_keeper => exit::INCOMPLETE,
        None => exit::DONE,
    };
    stops.note_end(launched, quiet);
    let verdict = events.checker.finish(stops.next(None)).await;
    match events.failure {
        Some(error) => Err(error),
        // The warning states why.
        None if gave_way && verdict.as_ref().is_ok_and(Option::is_none) => {
            Ok(if code == exit::DONE { exit::INCOMPLETE } else { code })
        }
        None => exit_code(verdict?, code),
    }
}

/// Result of the last check of each process.
#[derive(Clone, Copy, Debug)]
struct Verdict {
    has_leaks: bool,
    /// Whether nothing is known of children of the command.
    is_incomplete: bool,
}

fn exit_code(verdict: Option<Verdict>, without_leaks: u8) -> Result<u8> {
    match verdict {
        Some(Verdict { has_leaks: true, .. }) => Ok(exit::LEAKS),
        Some(Verdict { is_incomplete: true, .. }) if without_leaks == exit::DONE => Ok(exit::INCOMPLETE),
        Some(_) => Ok(without_leaks),
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
    fn progress(&mut self, progress: Progress) {
        self.line.show(&progress, "checks now");
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
    /// Outputs of the last check; earlier checks are written to numbered files beside them.
    outputs: Vec<Output>,
    /// Format of all files, whatever their extensions.
    format: Option<Format>,
    quiet: bool,
    /// Whether HTML reports contain lines of source files.
    source: bool,
    /// Whether the text report goes to standard error, because standard output is a command's.
    to_stderr: bool,
    sources: Sources,
}

fn start_checker(plan: Plan, reports: Reports) -> Checker {
    Worker::start(reports.sources.clone(), move |snapshots, resolver| {
        let mut last: Option<Unreachable> = None;
        let mut leaking: BTreeMap<Pid, bool> = BTreeMap::new();
        let mut is_incomplete = false;
        for ((snapshot, _pending), count) in snapshots.into_iter().zip(0..) {
            if let Some(earlier) = last.take() {
                reports.write_numbered(&earlier, count, plan.with_contents)?;
            }
            let mut found = check_snapshot(snapshot, &plan, &resolver, reports.quiet || reports.to_stderr)?;
            if reports.source {
                source::embed(&mut found.profile, &Rights::of_nobody(), reports.quiet || reports.to_stderr);
            }
            reports.print(&found, count == 0, plan.with_contents)?;
            leaking.insert(found.target().map_or(Pid(0), |target| target.facts.pid), found.leak_count > 0);
            is_incomplete |= found.unchecked_children > 0;
            last = Some(found);
            resolver.release();
        }
        let Some(found) = last else { return Ok(None) };
        for output in reports.outputs {
            write(output, &found, plan.with_contents)?;
        }
        Ok(Some(Verdict { has_leaks: leaking.values().any(|leaks| *leaks), is_incomplete }))
    })
}

fn check_snapshot(snapshot: HeapSnapshot, plan: &Plan, resolver: &Resolver, quiet: bool) -> Result<Unreachable> {
    let line = ProgressLine::new(quiet);
    let parts = snapshot.collected.memory.present(TargetAddr(0)..TargetAddr(u64::MAX));
    let bytes: u64 = parts.iter().map(|part| part.end.0 - part.start.0).sum();
    let comm = snapshot.state.targets.first().map_or("the process", |target| target.facts.comm.as_str());
    if let Some(why) = absence::explain(&snapshot) {
        return Err(anyhow!(why));
    }
    line.begin(&format!("searching {} of {}'s memory for leaks", ByteSize(bytes), printable(comm)));
    let found = check(snapshot, plan, resolver);
    line.clear();
    Ok(found?)
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
            // The last line of a command's own output may lack its line end.
            if !is_first || self.to_stderr {
                writeln!(out)?;
            }
            write_text(found, style, out)
        };
        if to_stderr {
            // The report is written like all messages, whose errors are ignored.
            let _ = write_text(&mut terminal::errors());
            return Ok(());
        }
        match write_text(&mut terminal::coloured_output()).map_err(anyhow::Error::from) {
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
