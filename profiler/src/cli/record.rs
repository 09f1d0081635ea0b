//! `heapbpf record`, which is also `heapbpf` alone.

use std::ffi::OsStr;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use bytesize::ByteSize;
use profiler_common::interval::Interval;
use thiserror::Error;

use super::args::{BackendArg, OverloadArg, RecordArgs, Unwind, is_recording};
use super::output::{self, Access, Output};
use super::progress::ProgressLine;
use super::stops::Stops;
use super::writing::{Style, Writing, Written};
use super::{exit, privilege, say, terminal};
use crate::allocator::hook_set::HookSet;
use crate::allocator::selection::HeapSelection;
use crate::bpf::load::LinkKind;
use crate::guardrail::Limits;
use crate::ids::Pid;
use crate::linux::inherited::Inherited;
use crate::linux::input;
use crate::linux::proc::process;
use crate::probe::attach::BackendChoice;
use crate::process::selection::Selection;
use crate::recording::write::Written as Recorded;
use crate::report::suppressions::Suppressions;
use crate::report::{Format, ReportError, summary};
use crate::session::{
    Command, Control, DumpPlan, Listener, OverloadPolicy, Progress, Session, SessionConfig, UnwindMode,
};
use crate::snapshot::Snapshot;

/// What was asked for cannot be: exit code 2.
#[derive(Debug, Error)]
#[error("{0}")]
pub(super) struct UsageError(pub(super) String);

/// Records, reports, and returns the exit code.
pub(super) fn run(args: &RecordArgs, inherited: Inherited) -> Result<u8> {
    let selection = selection(args);
    if selection.pids.is_empty() && !selection.is_open() && args.command.is_empty() {
        return Err(UsageError(
            "nothing to profile: give `--pid PID` (`pgrep -a NAME` lists processes), `--cmdline NAME`, or a command behind `--`; see `heapbpf --help`"
                .to_owned(),
        )
        .into());
    }
    // Before anything is attached, whatever would make the recording useless.
    let functions = functions(args)?;
    let suppressions = suppressions(&args.suppressions)?;
    let outputs = outputs(args, &selection)?;
    privilege::check()?;
    privilege::raise_memory_limit();
    privilege::raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start tokio")?;
    runtime.block_on(record(args, config(args, selection, functions), outputs, suppressions, inherited))
}

fn config(args: &RecordArgs, selection: Selection, functions: HookSet) -> SessionConfig {
    SessionConfig {
        selection,
        follow_forks: !args.no_follow_fork,
        functions,
        heaps: HeapSelection {
            only: args.heap.clone(),
            excluded: args.exclude_heap.clone(),
            intervals: args.heap_interval.clone(),
        },
        hold: args.hold.into(),
        interval: Interval::nearest(args.interval),
        duration: args.duration,
        dumps: DumpPlan {
            every: args.dumps.dump_every,
            growth_bytes: args.dumps.dump_on_growth,
            alloc_bytes: args.dumps.dump_on_alloc,
            mark_after: args.dumps.mark,
        },
        ring_bytes: args.ring_size,
        live_blocks_max: args.live_blocks,
        on_overload: match args.on_overload {
            OverloadArg::Drop => OverloadPolicy::Drop,
            OverloadArg::Adapt => OverloadPolicy::Adapt(Interval::nearest(args.interval_max)),
        },
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
        by_thread: args.presentation.by_thread(),
        recording: recording(args),
        older_than: args.older_than,
        limits: Limits {
            memory_bytes_max: args.max_memory,
            cpu_percent_max: args.max_cpu,
            overhead_percent_max: args.max_overhead,
        },
        ..SessionConfig::default()
    }
}

/// How reports are written.
fn style(args: &RecordArgs, suppressions: Suppressions) -> Style {
    Style {
        presentation: args.presentation.presentation(),
        format: args.presentation.format,
        trims: args.trim,
        with_peak: args.dumps.dump_at_peak,
        keeps_names: recording(args).is_some(),
        quiet: args.quiet,
        suppressions,
    }
}

async fn record(
    args: &RecordArgs,
    config: SessionConfig,
    outputs: Vec<Output>,
    suppressions: Suppressions,
    inherited: Inherited,
) -> Result<u8> {
    let mut stops = Stops::new(inherited.signals())?;
    let mut orders = Control::listen().context("cannot listen for signals")?;
    let style = style(args, suppressions);
    let mut session = Session::start(config)?;
    session.attach(async || stops.pending(None).await).await?;
    if stops.pending(None).await && !session.has_begun() {
        return Ok(exit::INTERRUPTED);
    }
    if !args.command.is_empty() {
        stops.interrupts_left = 1;
        session.launch(&args.command, inherited)?;
        // What came meanwhile was meant for the command too. Where it is enough to stop, there is a report of what was seen.
        stops.pending(session.launched()).await;
    }
    // A command's own output is not written into.
    let quiet = args.quiet || !args.command.is_empty();
    if !quiet {
        let until = if args.duration.is_none() { "; Ctrl-C stops and writes the report" } else { "" };
        say(&format!("heapbpf: recording {}{until}", session.describe()));
        if let Some(unmatched) = session.unmatched() {
            say(&format!("heapbpf: nothing that runs matches {unmatched}; what starts later is recorded"));
        }
        let unfound = session.unfound();
        if !unfound.is_empty() {
            say(&format!(
                "heapbpf: there is no function `{}` in any module yet; libraries that are loaded later are looked through",
                unfound.join("`, `")
            ));
        }
    }
    let line = ProgressLine::new(quiet);
    let forward = session.launched();
    let has_files = outputs.iter().any(|output| output.path().is_some());
    let mut audience =
        Audience { writing: Writing::start(outputs, style, line.clone())?, line, quiet: args.quiet, has_files };
    session.run(stops.wait(forward), &mut orders, &mut audience).await?;
    audience.line.clear();
    let (snapshot, command, recording) = session.finish()?;
    let mut written = audience.writing.finish(snapshot, stops.next(forward)).await?;
    let recorded = recording.map(|recording| recording.finish(std::mem::take(&mut written.names))).transpose();
    let recorded = recorded.unwrap_or_else(|error| {
        // What was reported is whole; the recording is not.
        say(&format!("heapbpf: error: {error}"));
        written.failed = true;
        None
    });
    let code = summarise(args, &written, recorded.as_ref())?;
    match command {
        // What was started is waited for, so that its end is this program's.
        Some(command) => {
            let of_command = see_off(command, &mut stops, args.quiet).await;
            Ok(if written.failed { exit::FAILED } else { of_command })
        }
        None => Ok(code),
    }
}

/// Shows what happens, and has dumps written.
struct Audience {
    writing: Writing,
    line: ProgressLine,
    quiet: bool,
    /// There is a file that dumps can be named after.
    has_files: bool,
}

impl Audience {
    fn say(&self, text: &str) {
        if !self.quiet {
            self.line.say(&format!("heapbpf: {text}"));
        }
    }
}

impl Listener for Audience {
    fn progress(&mut self, progress: &Progress) {
        self.line.show(progress);
    }

    fn dumped(&mut self, snapshot: Snapshot) {
        if self.has_files {
            self.writing.dump(snapshot);
        } else {
            self.say(
                "nothing was dumped: no report has a file that dumps could be named after; `-o heap.svg` takes them",
            );
        }
    }

    fn marked(&mut self, elapsed: Duration) {
        self.say(&format!("marked at {elapsed:.1?}; from now on dumps are relative to this moment"));
    }

    fn is_busy(&self) -> bool {
        self.writing.is_busy()
    }

    fn has_room(&self) -> bool {
        self.writing.has_room()
    }
}

/// Waits for a command whose recording is over, or for the user to have enough of that. The exit code.
pub(super) async fn see_off(mut command: Command, stops: &mut Stops, quiet: bool) -> u8 {
    let launched = command.launched();
    let tell = |text: &str| (!quiet).then(|| say(&format!("heapbpf: {launched} {text}")));
    if !stops.came && !command.has_ended() {
        tell("runs on, and is waited for; two Ctrl-C stop that");
    }
    tokio::select! {
        biased;
        code = command.wait() => code,
        () = stops.wait(Some(launched)) => {
            tell("runs on");
            exit::INTERRUPTED
        }
    }
}

/// Shows what was written. The exit code.
fn summarise(args: &RecordArgs, written: &Written, recorded: Option<&Recorded>) -> Result<u8> {
    let Written { profile, files, to_stdout, failed, .. } = written;
    if !args.quiet {
        let (width, colour) = terminal::layout();
        let mut text = summary::summary(profile, args.presentation.view, args.top, width, colour);
        for (path, format) in files {
            text.push_str(&format!("\n{} ({})", path.display(), format.description()));
        }
        if let Some(recorded) = recorded {
            let size = ByteSize(recorded.size_bytes);
            text.push_str(&format!("\n{} (recording, {size})", recorded.path.display()));
        }
        // A report on standard output must not have the table in it.
        if *to_stdout || !args.command.is_empty() {
            say(&text);
        } else if let Err(error) = writeln!(terminal::output(), "{text}")
            && error.kind() != ErrorKind::BrokenPipe
        {
            return Err(error.into());
        }
    }
    Ok(match profile.incomplete() {
        _ if *failed => exit::FAILED,
        true => exit::INCOMPLETE,
        false => exit::DONE,
    })
}

/// The processes that are meant, each number once, in the order given.
fn selection(args: &RecordArgs) -> Selection {
    let mut pids: Vec<Pid> = Vec::new();
    for &pid in &args.pid {
        if !pids.contains(&Pid(pid)) {
            pids.push(Pid(pid));
        }
    }
    Selection {
        pids,
        patterns: args.cmdline.clone(),
        cgroups: args.cgroup.clone(),
        all: args.all,
        exclude: args.exclude.clone(),
        min_rss_bytes: args.min_rss,
    }
}

/// Where to record to, and what that may take.
fn recording(args: &RecordArgs) -> Option<(PathBuf, Option<u64>)> {
    args.output.iter().find(|path| is_recording(path)).map(|path| (path.clone(), args.max_size))
}

/// The functions that the user names, on the command line before those in files.
fn functions(args: &RecordArgs) -> Result<HookSet> {
    let mut functions = HookSet::default();
    args.hook.iter().for_each(|hook| functions.add(hook.clone()));
    for file in &args.hooks {
        functions.load(file).map_err(|error| UsageError(format!("{error}")))?;
    }
    Ok(functions)
}

/// Largest file of suppressions, in bytes. Chromium's has 10 KiB.
const SUPPRESSIONS_BYTES_MAX: u64 = 16 << 20;

/// Leaks that are known.
pub(super) fn suppressions(paths: &[PathBuf]) -> Result<Suppressions> {
    let mut suppressions = Suppressions::default();
    for path in paths {
        let shown = path.display();
        let text = input::read_text(path, SUPPRESSIONS_BYTES_MAX)
            .map_err(|error| UsageError(format!("cannot read suppressions from `{shown}`: {error}")))?;
        suppressions.extend(Suppressions::parse(&text).map_err(|error| UsageError(format!("`{shown}`, {error}")))?);
    }
    Ok(suppressions)
}

/// What was asked for, or a flame graph in the current folder.
fn outputs(args: &RecordArgs, selection: &Selection) -> Result<Vec<Output>> {
    let is_once = args.output.iter().filter(|path| is_recording(path)).count() <= 1;
    if !is_once {
        let text = "`-o` names more than one recording (`.heapbpf`), and they would be the same: name one";
        return Err(UsageError(text.to_owned()).into());
    }
    if args.max_size.is_some() && recording(args).is_none() {
        let text = "`--max-size` is about a recording: name one, as in `-o x.heapbpf`";
        return Err(UsageError(text.to_owned()).into());
    }
    if let Some((path, _)) = recording(args) {
        output::check_recording(&path)?;
    }
    let is_file = |path: &PathBuf| path != Path::new("-") && !is_recording(path);
    if args.dumps.any() && !args.output.is_empty() && !args.output.iter().any(is_file) {
        let text = "dumps go to files of their own, beside that of a report: name one, as in `-o heap.svg`";
        return Err(UsageError(text.to_owned()).into());
    }
    if !args.output.is_empty() {
        let reports = args.output.iter().filter(|path| !is_recording(path));
        return reports.map(|path| open(path, args)).collect();
    }
    Ok(vec![open(&default_path(args, selection), args)?])
}

/// A file for a report that a profile is enough for.
fn open(path: &Path, args: &RecordArgs) -> Result<Output> {
    let output = Output::open(path, args.presentation.format, Access::All)?;
    if output.format().needs_recording() {
        let refused = ReportError::NeedsRecording(output.format());
        return Err(UsageError(format!("cannot write `{}`: {refused}", path.display())).into());
    }
    Ok(output)
}

fn default_path(args: &RecordArgs, selection: &Selection) -> PathBuf {
    let name = match (selection.pids.as_slice(), args.command.first()) {
        ([pid], _) => format!("{}-{pid}", process::comm(*pid).unwrap_or_default()),
        ([], Some(command)) => base_name(command).to_string_lossy().into_owned(),
        ([], None) if args.all => "all".to_owned(),
        ([], None) => {
            let patterns = args.cmdline.iter().map(ToString::to_string);
            patterns.chain(args.cgroup.iter().map(ToString::to_string)).collect::<Vec<_>>().join("-")
        }
        (pids, _) => format!("{}-processes", pids.len()),
    };
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let name: String = name.chars().map(plain).take(NAME_CHARS_MAX).collect();
    Path::new(".")
        .join(format!("heapbpf-{name}.{}", args.presentation.format.unwrap_or(Format::Flamegraph).extension()))
}

/// Characters of a file name that comes from what was asked for.
const NAME_CHARS_MAX: usize = 100;

fn base_name(command: &OsStr) -> &OsStr {
    Path::new(command).file_name().unwrap_or(command)
}
