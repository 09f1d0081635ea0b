//! `heapbpf record`, which is also `heapbpf` without a subcommand.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use bytesize::ByteSize;

use super::args::{PresentationArgs, RecordArgs};
use super::config::{self, recording_path};
use super::exit::{self, usage};
use super::output::{self, Access, Output, is_recording};
use super::runtime::{Attached, run_session, wait_for_command};
use super::terminal::{self, ProgressLine, say};
use super::writing::{Options, Writer, Written};
use crate::ids::Pid;
use crate::linux::proc::process;
use crate::linux::signals::Inherited;
use crate::recording::write::Written as Recording;
use crate::report::{Format, summary};
use crate::session::{Listener, Progress, Session, SessionConfig};
use crate::snapshot::Snapshot;

/// Maximum length of the target's part of a default file name.
const NAME_CHARS_MAX: usize = 100;

pub(super) fn run(args: &RecordArgs, inherited: Inherited) -> Result<u8> {
    // All input is checked before anything is attached.
    let config = config::of_record(args)?;
    if config.selection.pids.is_empty() && !config.selection.is_open() && args.command.is_empty() {
        return Err(usage(
            "nothing to profile: specify `--pid PID` (`pgrep -a NAME` lists processes), `--cmdline NAME`, or a command after `--`; see `heapbpf --help`",
        ));
    }
    let options = Options {
        presentation: args.presentation.presentation(),
        format: args.common.output.format,
        trims: args.common.output.trim,
        with_peak: args.dumps.dump_at_peak,
        keeps_names: config.recording.is_some(),
        quiet: args.common.output.quiet,
        suppressions: config::suppressions(&args.common)?,
    };
    let outputs = outputs(args, &config.selection.pids)?;
    run_session(record(args, config, outputs, options, inherited))
}

async fn record(
    args: &RecordArgs,
    config: SessionConfig,
    outputs: Vec<Output>,
    options: Options,
    inherited: Inherited,
) -> Result<u8> {
    let Some(attached) = Attached::start(config, &args.command, inherited).await? else {
        return Ok(exit::INTERRUPTED);
    };
    let Attached { mut session, mut stops, mut control } = attached;
    let quiet = args.common.output.quiet;
    // Messages must not interrupt a command's own output.
    let is_silent = quiet || !args.command.is_empty();
    if !is_silent {
        announce(args, &session);
    }
    let line = ProgressLine::new(is_silent);
    let has_files = outputs.iter().any(|output| output.path().is_some());
    let writer = Writer::start(outputs, options, line.clone())?;
    let mut events = Events { writer, line, quiet, has_files };
    let launched = session.launched();
    session.run(stops.wait(launched), &mut control, &mut events).await?;
    events.line.clear();
    let (snapshot, command, recording) = session.finish()?;
    let mut written = events.writer.finish(snapshot, stops.next(launched)).await?;
    let recording = recording.map(|recording| recording.finish(std::mem::take(&mut written.names))).transpose();
    let recording = recording.unwrap_or_else(|error| {
        // The reports are complete; the recording is not.
        say(&format!("heapbpf: error: {error}"));
        written.failed = true;
        None
    });
    let code = summarize(args, &written, recording.as_ref())?;
    match command {
        Some(command) => {
            let command_code = wait_for_command(command, &mut stops, quiet).await;
            Ok(if written.failed { exit::FAILED } else { command_code })
        }
        None => Ok(code),
    }
}

fn announce(args: &RecordArgs, session: &Session) {
    let until = if args.duration.is_none() { "; Ctrl-C stops and writes the report" } else { "" };
    say(&format!("heapbpf: recording {}{until}", session.describe()));
    if let Some(unmatched) = session.unmatched() {
        say(&format!("heapbpf: no running process matches {unmatched}; processes started later are recorded"));
    }
    let unfound = session.unfound();
    if !unfound.is_empty() {
        say(&format!(
            "heapbpf: no function `{}` in any module yet; libraries loaded later are searched too",
            unfound.join("`, `")
        ));
    }
}

/// Shows progress, and passes dumps to the writer.
struct Events {
    writer: Writer,
    line: ProgressLine,
    quiet: bool,
    /// Some output is a file, which dumps can be named after.
    has_files: bool,
}

impl Events {
    fn say(&self, text: &str) {
        if !self.quiet {
            self.line.say(&format!("heapbpf: {text}"));
        }
    }
}

impl Listener for Events {
    fn progress(&mut self, progress: &Progress) {
        self.line.show(progress);
    }

    fn dumped(&mut self, snapshot: Snapshot) {
        if self.has_files {
            self.writer.dump(snapshot);
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
        self.writer.is_busy()
    }

    fn has_room(&self) -> bool {
        self.writer.has_room()
    }
}

/// Prints the summary and the paths of all files. Returns the exit code.
fn summarize(args: &RecordArgs, written: &Written, recording: Option<&Recording>) -> Result<u8> {
    if !args.common.output.quiet {
        let (width, colour) = terminal::layout();
        let PresentationArgs { view, top, .. } = args.presentation;
        let mut text = summary::summary(&written.profile, view, top, width, colour);
        for (path, format) in &written.files {
            text.push_str(&format!("\n{} ({})", path.display(), format.description()));
        }
        if let Some(recording) = recording {
            let size = ByteSize(recording.size_bytes);
            text.push_str(&format!("\n{} (recording, {size})", recording.path.display()));
        }
        match terminal::print(&text, written.to_stdout || !args.command.is_empty()) {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(error.into()),
            _ => {}
        }
    }
    Ok(match written.profile.incomplete() {
        _ if written.failed => exit::FAILED,
        true => exit::INCOMPLETE,
        false => exit::DONE,
    })
}

/// Opens the reports of `-o`, or a flame graph in the current directory.
fn outputs(args: &RecordArgs, pids: &[Pid]) -> Result<Vec<Output>> {
    let paths = &args.common.output.output;
    if paths.iter().filter(|path| is_recording(path)).count() > 1 {
        return Err(usage("`-o` names more than one recording (`.heapbpf`), and they would be identical: name one"));
    }
    match recording_path(args) {
        Some(path) => output::check_recording(path)?,
        None if args.max_size.is_some() => {
            return Err(usage("`--max-size` limits a recording: name one, as in `-o x.heapbpf`"));
        }
        None => {}
    }
    let is_file = |path: &PathBuf| path != Path::new("-") && !is_recording(path);
    if args.dumps.any() && !paths.is_empty() && !paths.iter().any(is_file) {
        return Err(usage("dumps are written to files beside a report's file: name one, as in `-o heap.svg`"));
    }
    let open = |path: &Path| Output::open_for_profile(path, args.common.output.format, Access::All);
    if paths.is_empty() {
        return Ok(vec![open(&default_path(args, pids))?]);
    }
    paths.iter().filter(|path| !is_recording(path)).map(|path| open(path)).collect()
}

fn default_path(args: &RecordArgs, pids: &[Pid]) -> PathBuf {
    let name = match (pids, args.command.first()) {
        ([pid], _) => format!("{}-{pid}", process::comm(*pid).unwrap_or_default()),
        ([], Some(command)) => Path::new(command).file_name().unwrap_or(command).to_string_lossy().into_owned(),
        ([], None) if args.all => "all".to_owned(),
        ([], None) => {
            let patterns = args.cmdline.iter().map(ToString::to_string);
            patterns.chain(args.cgroup.iter().map(ToString::to_string)).collect::<Vec<_>>().join("-")
        }
        (pids, _) => format!("{}-processes", pids.len()),
    };
    let sanitize = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let name: String = name.chars().map(sanitize).take(NAME_CHARS_MAX).collect();
    let format = args.common.output.format.unwrap_or(Format::Flamegraph);
    Path::new(".").join(format!("heapbpf-{name}.{}", format.extension()))
}
