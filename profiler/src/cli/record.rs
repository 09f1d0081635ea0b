//! Command `heapbpf record`, which is also `heapbpf` without a subcommand. A worker thread writes reports: a dump that fails
//! affects the exit code and does not stop the recording.

mod outputs;

use std::cell::OnceCell;
use std::collections::HashSet;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use bytesize::ByteSize;
use heapbpf_base::shown::{self, Shown};
use heapbpf_ledger::model::Profile;
use heapbpf_linux::memory::page_bytes;
use heapbpf_linux::rights::Rights;
use heapbpf_linux::signals::{ExitAtSignal, Inherited};
use heapbpf_report::suppressions::Suppressions;
use heapbpf_report::{Format, Presentation, View, describe, summary};

use self::outputs::{has_peak, outputs};
use super::args::RecordArgs;
use super::exit::{self, is_broken_pipe, usage};
use super::output::{self, Access, Output, Written, recording_path};
use super::report_args::PresentationArgs;
use super::runtime::{Stops, Worker, run_session, start_session, wait_for_command};
use super::source;
use super::terminal::{self, ProgressLine, error_message, say};
use super::top_settings::TopSettings;
use super::views::{Rendering, Views};
use crate::allocator::hook_set::HookSet;
use crate::allocator::selection::HeapSelection;
use crate::guardrail::Limits;
use crate::process::selection::Selection;
use crate::recording::entry::Names;
use crate::recording::names::names;
use crate::recording::write::Written as Recording;
use crate::session::{DumpPlan, Launched, Listener, Progress, Session, SessionConfig};
use crate::snapshot::{Scope, Snapshot};
use crate::symbolize::Resolve;
use crate::symbolize::profile::profile;
use crate::symbolize::resolver::Resolver;
use crate::symbolize::sources::Sources;
use crate::symbolize::trim::Trim;

/// Maximum number of dumps that wait to be written. Each has all callsites of its window.
const PENDING_MAX: usize = 16;

pub(super) fn run(mut args: RecordArgs, inherited: Inherited) -> Result<u8> {
    let early = exit::exit_when_interrupted()?;
    // All input is checked before anything is attached.
    if let Some(word) = args.process.take() {
        args.pid.push(super::process::find(&word, "heapbpf")?);
    }
    let quiet = args.common.output.quiet;
    args.pid.iter_mut().for_each(|pid| *pid = super::process::of_number(*pid, quiet));
    let args = &args;
    let config = config(args)?;
    if config.selection.pids.is_empty() && !config.selection.is_open() && args.command.is_empty() {
        return Err(usage(
            "nothing to profile: specify `--pid PID` or the name of a running program (`ps -e` lists them), `--cmdline NAME`, or a command after `--`; see `heapbpf --help`",
        ));
    }
    let suppressions = args.common.read_suppressions()?;
    let outputs = outputs(args, &config.selection.pids)?;
    run_session(record(args, config, outputs, suppressions, inherited, early))
}

fn config(args: &RecordArgs) -> Result<SessionConfig> {
    let mut functions = HookSet::default();
    // Hooks of `--hook` take precedence over those of `--hooks`.
    args.hook.iter().for_each(|hook| functions.add(hook.clone()));
    for file in &args.hooks {
        functions.load(file).map_err(|error| usage(error.to_string()))?;
    }
    let mut seen = HashSet::new();
    let heaps = HeapSelection {
        only: args.heap.clone(),
        excluded: args.exclude_heap.clone(),
        intervals: args.heap_interval.clone(),
        // An exact recording is one of blocks.
        has_pages: cfg!(target_arch = "x86_64") && u64::from(args.common.interval.bytes()) >= page_bytes(),
    };
    heaps.check().map_err(|error| usage(error.to_string()))?;
    Ok(SessionConfig {
        selection: Selection {
            pids: args.pid.iter().copied().filter(|pid| seen.insert(*pid)).collect(),
            patterns: args.cmdline.clone(),
            cgroups: args.cgroup.clone(),
            all: args.all,
            exclude: args.exclude.clone(),
            min_rss_bytes: args.min_rss,
            age_min: Duration::ZERO,
        },
        follow_forks: !args.no_follow_fork,
        functions,
        heaps,
        hold: args.hold,
        interval: args.common.interval,
        duration: args.duration,
        dumps: DumpPlan {
            every: args.dumps.dump_every,
            growth_bytes: args.dumps.dump_on_growth,
            alloc_bytes: args.dumps.dump_on_alloc,
            mark_after: args.dumps.mark,
        },
        ring_bytes: args.kernel.ring_size,
        live_blocks_max: args.kernel.live_blocks,
        on_overload: (args.on_overload)(args.interval_max),
        placement: args.placement,
        unwind: args.unwind,
        backend: args.backend,
        engine: args.engine,
        hints: true,
        detailed_progress: args.top.is_some() || !is_silent(args) && ProgressLine::is_possible(),
        scope: args.scope,
        unwind_bytes_max: args.unwind_memory,
        by_thread: args.presentation.by_thread(),
        jvm_perf_maps: args.jvm_perfmap,
        inventory_stop_max: args.inventory_stop_max,
        object_types: !args.no_types,
        inventory_bytes_max: if args.no_inventory { 0 } else { args.inventory_max },
        recording: recording_path(&args.common.output.output).map(|path| (path.clone(), args.max_size)),
        older_than: args.older_than,
        limits: Limits {
            memory_bytes_max: args.max_memory,
            cpu_percent_max: args.max_cpu,
            overhead_percent_max: args.max_overhead,
        },
        callsites_max: args.callsites_max,
        counts_programs: args.verdict.strict,
        ..SessionConfig::default()
    })
}

async fn record(
    args: &RecordArgs,
    config: SessionConfig,
    outputs: Vec<Output>,
    suppressions: Suppressions,
    inherited: Inherited,
    early: ExitAtSignal,
) -> Result<u8> {
    let quiet = args.common.output.quiet || args.top.is_some();
    let sources = Sources { is_off: args.no_symbolize, ..args.common.sources(args.common.output.quiet)? };
    let presentation = args.presentation.presentation();
    let rendering = Rendering { presentation, trim: args.common.output.trims(), quiet, sources: sources.clone() };
    let mut views = Views::start(&args.views, rendering, args.top.clone())?;
    let Some((mut session, mut stops, mut control)) = start_session(config, &args.command, inherited, early).await?
    else {
        return Ok(exit::interrupted());
    };
    views.iter_mut().for_each(|views| views.connect(&mut control));
    if !args.common.output.quiet && args.command.is_empty() && args.top.as_ref().is_none_or(TopSettings::is_for_scripts)
    {
        announce(args, &session);
    }
    let line = ProgressLine::new(is_silent(args));
    let has_files = outputs.iter().any(|output| output.path().is_some());
    let writer = start_writer(args, sources, outputs, suppressions, line.clone());
    let mut events = Events { writer, line, quiet, has_files, views };
    let launched = session.launched();
    let closed = Views::closed(events.views.as_ref());
    let stop = async {
        tokio::select! {
            () = stops.wait(launched) => {}
            () = closed => {}
        }
    };
    session.run(stop, &mut control, &mut events).await?;
    events.line.clear();
    let (snapshot, command, recording) = session.finish()?;
    // Views are served until the reports are written.
    let mut views = events.views.take();
    if let Some(views) = &mut views {
        drop(control);
        views.end_session(Arc::new(snapshot.clone())).await;
        views.close_screen(is_to_close(args, &mut stops, launched)).await?;
    }
    stops.note_end(launched, quiet);
    events.writer.send(Job::End(snapshot));
    let mut reports = events.writer.finish(stops.next(launched)).await?;
    let pushed = match views {
        Some(views) => views.finish(stops.next(launched)).await,
        None => None,
    };
    let recording = recording.map(|recording| recording.finish(std::mem::take(&mut reports.names))).transpose();
    let recording = recording.unwrap_or_else(|error| {
        // The reports are complete; the recording is not.
        say(&error_message(error));
        reports.failed = true;
        None
    });
    let code = summarize(args, &reports, recording.as_ref(), pushed.as_deref())?;
    match command {
        Some(command) => Ok(match wait_for_command(command, &mut stops, quiet).await {
            _ if reports.failed => exit::FAILED,
            exit::DONE if args.verdict.strict => code,
            code => code,
        }),
        None => Ok(code),
    }
}

/// Waits until the screen is to close although the user has not closed it: at once where the recording did not end by itself.
async fn is_to_close(args: &RecordArgs, stops: &mut Stops, launched: Option<Launched>) {
    if !stops.requested && !stops.terminated && args.duration.is_none() {
        stops.next(launched).await;
    }
}

/// Whether messages are suppressed, because they must not interrupt a command's own output.
fn is_silent(args: &RecordArgs) -> bool {
    args.common.output.quiet || args.top.is_some() || !args.command.is_empty()
}

fn announce(args: &RecordArgs, session: &Session) {
    let until = if args.duration.is_none() { "; Ctrl-C stops and writes the report" } else { "" };
    say(&format!("heapbpf: recording {}{until}", session.describe()));
    if let Some(unmatched) = session.unmatched() {
        say(&format!("heapbpf: no running process matches {unmatched}; processes started later are recorded"));
    }
    for inlined in session.inlined() {
        say(&format!("heapbpf: {}", describe::inlined(&inlined)));
    }
    let unfound = session.unfound();
    if !unfound.is_empty() {
        say(&format!(
            "heapbpf: no function `{}` in any module yet; libraries loaded later are searched too",
            unfound.join("`, `")
        ));
    }
}

struct Events {
    writer: Writer,
    line: ProgressLine,
    quiet: bool,
    has_files: bool,
    views: Option<Views>,
}

impl Events {
    fn say(&self, text: &str) {
        if !self.quiet {
            self.line.say(&format!("heapbpf: {text}"));
        }
    }
}

impl Listener for Events {
    fn progress(&mut self, mut progress: Progress) {
        let grower = progress.top_grower.take().filter(|_| self.writer.pending() == 0);
        if let Some(grower) = grower {
            self.writer.send(Job::Grower(*grower));
        }
        self.views.iter().for_each(|views| views.publish(&progress));
        self.line.show(&progress, "stops");
    }

    fn dumped(&mut self, snapshot: Snapshot) {
        if self.has_files {
            self.writer.send(Job::Window(snapshot));
        } else {
            self.say(
                "no dump written: dumps are named after a report's file, and no report has one; use `-o heap.svg`",
            );
        }
    }

    fn marked(&mut self, elapsed: Duration) {
        self.say(&format!("mark set at {elapsed:.1?}; later dumps cover the time since this mark"));
    }

    fn is_busy(&self) -> bool {
        self.writer.pending() > 0
    }

    fn has_room(&self) -> bool {
        self.writer.pending() < PENDING_MAX
    }
}

fn summarize(args: &RecordArgs, reports: &Reports, recording: Option<&Recording>, pushed: Option<&str>) -> Result<u8> {
    let Reports { profile, written, failed, .. } = reports;
    if !args.common.output.quiet {
        let (width, colour) = terminal::layout();
        let PresentationArgs { view, .. } = args.presentation;
        let mut text = match &args.top {
            None => summary::summary(profile, view, args.presentation.top(), width, colour) + &written.list_of(profile),
            Some(_) => written.list_of(profile).trim_start().to_owned(),
        };
        if let Some(recording) = recording {
            let size = ByteSize(recording.size_bytes);
            text.push_str(&format!("\n{} (recording, {size})", Shown::of(&recording.path)));
        }
        if let Some(pushed) = pushed {
            text.push_str(&format!("\npush: {pushed}"));
        }
        let is_redirected = written.to_stdout || !args.command.is_empty() || args.top.is_some();
        let printed = if text.is_empty() { Ok(()) } else { terminal::print(&text, is_redirected) };
        match printed {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(error.into()),
            _ => {}
        }
    }
    let counts_as_done = args.top.is_some() && written.files.is_empty() && !args.verdict.strict;
    Ok(match profile.incomplete() {
        _ if *failed => exit::FAILED,
        _ if counts_as_done => exit::DONE,
        true => exit::INCOMPLETE,
        false => exit::DONE,
    })
}

struct Reports {
    profile: Profile,
    written: Written,
    names: Names,
    failed: bool,
}

type Writer = Worker<Job, Reports>;

enum Job {
    /// Name the callsite that grows most, for the status line.
    Grower(Snapshot),
    Window(Snapshot),
    End(Snapshot),
}

fn start_writer(
    args: &RecordArgs,
    sources: Sources,
    outputs: Vec<Output>,
    suppressions: Suppressions,
    line: ProgressLine,
) -> Writer {
    let args = args.clone();
    Worker::start(sources, move |jobs, resolver| {
        let paths = outputs.iter().filter_map(Output::path).map(Into::into).collect();
        let mut presentation = args.presentation.presentation();
        presentation
            .host
            .get_or_insert_with(|| shown::text(rustix::system::uname().nodename().to_bytes()).into_owned());
        let mut state = State { paths, args, presentation, suppressions, line, resolver, failed: false };
        for (job, _pending) in jobs {
            match job {
                Job::Grower(snapshot) => state.name_grower(&snapshot),
                Job::Window(snapshot) => state.write_window(&snapshot),
                Job::End(snapshot) => return Ok(state.write_end(&snapshot, outputs)),
            }
        }
        bail!("the recording ended without a last snapshot")
    })
}

struct State {
    paths: Vec<PathBuf>,
    args: RecordArgs,
    presentation: Presentation,
    suppressions: Suppressions,
    line: ProgressLine,
    resolver: Resolver,
    failed: bool,
}

impl State {
    fn symbolize(&self, snapshot: &Snapshot, scope: Scope) -> Profile {
        let start = Instant::now();
        let mut profile = profile(snapshot, scope, &self.resolver, self.args.common.output.trims());
        tracing::debug!(elapsed = ?start.elapsed(), frames = profile.frames.len(), "symbolized");
        self.suppressions.apply(&mut profile);
        self.args.filter.filter().apply(&mut profile);
        if self.args.common.output.source {
            source::embed(&mut profile, &Rights::of_nobody(), self.args.common.output.quiet);
        }
        profile.strict = self.args.verdict.strict;
        profile
    }

    /// Writes a profile. After an interrupt, writes one with the largest callsites, which takes less than a second.
    fn report<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        scope: Scope,
        profile: &'a Profile,
        presentation: &'a Presentation,
    ) -> impl Fn(Format, &mut dyn Write) -> Result<()> + 'a {
        let short = OnceCell::new();
        move |format, out| {
            let is_late = self.resolver.is_interrupted();
            let shown = if is_late { short.get_or_init(|| self.symbolize(snapshot, scope)) } else { profile };
            Ok(format.write(&presentation.thinned(shown), presentation, out)?)
        }
    }

    fn name_grower(&self, snapshot: &Snapshot) {
        let what = Trim { ends: true, interpreter: true };
        let profile = profile(snapshot, Scope::Whole, &self.resolver, what);
        self.line.set_grower(summary::grower(&profile));
        self.resolver.release();
    }

    fn write_window(&mut self, snapshot: &Snapshot) {
        let Some(number) = snapshot.window_of(Scope::Window).and_then(|window| window.number) else { return };
        let paths = self.paths.iter().map(|path| output::window_path(path, number)).collect();
        self.write_beside(snapshot, Scope::Window, &self.presentation.clone(), paths);
        // The release keeps names between dumps, and closes the files from which they were read.
        self.resolver.release();
    }

    fn write_peak(&mut self, snapshot: &Snapshot) {
        let format = self.args.common.output.format;
        let paths =
            self.paths.iter().filter(|path| has_peak(path, format)).map(|path| output::peak_path(path)).collect();
        // Allocated bytes until the peak are not recorded.
        let view = match self.presentation.view {
            View::LiveBytes | View::AllocBytes => View::LiveBytes,
            View::LiveCount | View::AllocCount => View::LiveCount,
        };
        self.write_beside(snapshot, Scope::Peak, &Presentation { view, ..self.presentation.clone() }, paths);
    }

    fn write_beside(&mut self, snapshot: &Snapshot, scope: Scope, presentation: &Presentation, paths: Vec<PathBuf>) {
        let (mut written, mut errors) = (Vec::new(), Vec::new());
        let profile = &self.symbolize(snapshot, scope);
        let report = self.report(snapshot, scope, profile, presentation);
        let access = Access::of_report(self.args.common.output.source);
        for path in paths {
            let write = |output: Output| output.write_unless(&|| self.resolver.is_interrupted(), &report);
            match Output::open(&path, self.args.common.output.format, access).and_then(write) {
                Ok(_) => written.push(Shown::of(&path).to_string()),
                Err(error) => errors.push(error),
            }
        }
        drop(report);
        errors.iter().for_each(|error| self.fail(error));
        if !self.args.common.output.quiet && !written.is_empty() {
            self.line.say(&format!("heapbpf: wrote {} ({})", written.join(", "), describe::outcome(profile)));
        }
    }

    fn write_end(mut self, snapshot: &Snapshot, outputs: Vec<Output>) -> Reports {
        if snapshot.window.is_some() {
            self.write_window(snapshot);
        }
        if self.args.dumps.dump_at_peak {
            self.write_peak(snapshot);
        }
        let profile = self.symbolize(snapshot, Scope::Whole);
        let is_recorded = recording_path(&self.args.common.output.output).is_some();
        let names = if is_recorded { names(snapshot, &self.resolver) } else { Names::default() };
        let (mut written, mut errors) = (Written::default(), Vec::new());
        let report = self.report(snapshot, Scope::Whole, &profile, &self.presentation);
        for output in outputs {
            // Parquet files of windows are tables of one recording: with a table of the whole, a pattern for all of them would
            // count everything twice.
            if snapshot.window.is_some() && output.format() == Format::Parquet && output.path().is_some() {
                continue;
            }
            written.to_stdout |= output.path().is_none();
            errors.extend(written.write_unless(output, &|| self.resolver.is_interrupted(), &report).err());
        }
        drop(report);
        errors.iter().filter(|error| !is_broken_pipe(error)).for_each(|error| self.fail(error));
        Reports { profile, written, failed: self.failed, names }
    }

    fn fail(&mut self, error: &anyhow::Error) {
        self.failed = true;
        self.line.say(&error_message(error));
    }
}
