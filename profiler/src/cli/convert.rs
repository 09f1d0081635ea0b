//! `heapbpf convert` and `heapbpf diff`: reports from recordings and JSON reports.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use super::args::{ConvertArgs, DiffArgs};
use super::exit::{self, usage};
use super::output::{Access, Output, Written};
use super::profiles::{self, Input, Options, read_whole};
use super::terminal;
use crate::model::Profile;
use crate::recording::span::Span;
use crate::report::diff::{self, Diff, Drawing, Side};
use crate::report::{ReportError, summary};
use crate::symbolize::trim::trim;

pub(super) fn convert(args: &ConvertArgs) -> Result<u8> {
    if let (Some(from), Some(to)) = (args.from, args.to)
        && from >= to
    {
        return Err(usage(format!("`--from {from:?}` must be before `--to {to:?}`")));
    }
    // Mistyped output paths are reported before the recording is read.
    let open = |path: &PathBuf| Output::open(path, args.output.format, Access::All);
    let outputs = args.output.output.iter().map(open).collect::<Result<Vec<_>>>()?;
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let options = Options {
        span: Span { from_ns: args.from.map(nanos), to_ns: args.to.map(nanos) },
        by_thread: args.presentation.by_thread(),
        trims: args.output.trim,
        quiet: args.output.quiet,
        events: outputs.iter().any(|output| output.format().needs_recording()),
    };
    let input = match profiles::read_report(&args.recording)? {
        None => profiles::read_recording(&args.recording, options)?,
        Some(profile) => from_report(args, profile, &outputs)?.into(),
    };
    write(args, options, &input, outputs)?;
    let is_complete = !input.profile.incomplete() && !input.is_damaged;
    Ok(if is_complete { exit::DONE } else { exit::INCOMPLETE })
}

/// Applies the options to a JSON report, which has totals without times, and rejects those that need a recording.
fn from_report(args: &ConvertArgs, mut profile: Profile, outputs: &[Output]) -> Result<Profile> {
    let name = args.recording.display();
    let refuse = |reason: String| Err(usage(format!("`{name}` is a JSON report, {reason}")));
    for (option, given) in [("--from", args.from), ("--to", args.to)] {
        if given.is_some() {
            return refuse(format!(
                "which has totals without times, so `{option}` cannot select from it; convert a recording (`-o x.heapbpf`)"
            ));
        }
    }
    if let Some(output) = outputs.iter().find(|output| output.format().needs_recording()) {
        let format = output.format().name();
        return refuse(format!(
            "which has no single events, as `{format}` requires; convert a recording (`-o x.heapbpf`)"
        ));
    }
    let mut callsites = profile.targets.iter().flat_map(|target| &target.callsites).peekable();
    let has_no_threads = callsites.peek().is_some() && callsites.all(|callsite| callsite.thread.is_none());
    if args.presentation.by_thread() && has_no_threads {
        return refuse(
            "made without `--by thread`, so it does not separate threads; convert a recording (`-o x.heapbpf`), or profile with `--by thread`"
                .to_owned(),
        );
    }
    if args.output.trim {
        for callsite in profile.targets.iter_mut().flat_map(|target| &mut target.callsites) {
            callsite.stack = trim(&callsite.stack, &profile.frames).to_vec();
        }
    }
    Ok(profile)
}

fn write(args: &ConvertArgs, options: Options, input: &Input, outputs: Vec<Output>) -> Result<()> {
    let presentation = args.presentation.presentation();
    let shown = presentation.thinned(&input.profile);
    let mut written = Written::default();
    for output in outputs {
        written.write(output, |format, out| match input.events.as_ref().filter(|_| format.needs_recording()) {
            Some(events) => events.write(&args.recording, options, &presentation, out),
            None => Ok(format.write(&shown, &presentation, out)?),
        })?;
    }
    if args.output.quiet {
        return Ok(());
    }
    let (width, colour) = terminal::layout();
    let mut text = summary::summary(&input.profile, presentation.view, args.presentation.top, width, colour);
    if let Some(folded_ns) = input.folded_until_ns {
        text.push_str(&format!("\nfolded until {}: `--from` and `--to` must not be earlier", clock(folded_ns)));
    }
    text.push_str(&written.list(""));
    Ok(terminal::print(&text, written.to_stdout)?)
}

/// Formats a time as `00:01:23`, rounded up to the next second, where windows can begin.
fn clock(ns: u64) -> String {
    let seconds = ns.div_ceil(1_000_000_000);
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

pub(super) fn diff(args: &DiffArgs) -> Result<u8> {
    // Mistyped output paths are reported before the profiles are read.
    let outputs = args.output.iter().map(|path| open_for_diff(path)).collect::<Result<Vec<_>>>()?;
    let (before, after) = (read_whole(&args.before, args.quiet)?, read_whole(&args.after, args.quiet)?);
    let [before_name, after_name] = [&args.before, &args.after].map(|path| path.display().to_string());
    let diff = Diff::new(
        Side { name: &before_name, profile: &before.profile },
        Side { name: &after_name, profile: &after.profile },
    );
    let drawing = Drawing { widths: args.widths, icicle: args.icicle };
    let mut written = Written::default();
    for output in outputs {
        written.write(output, |format, out| Ok(diff.write(format, args.view, drawing, out)?))?;
    }
    if !args.quiet {
        let (width, colour) = terminal::layout();
        let text = diff::table(&diff, args.view, args.top, args.threshold, width, colour) + &written.list("growth, ");
        terminal::print(text.trim_end(), written.to_stdout)?;
    }
    let is_damaged = before.is_damaged || after.is_damaged;
    Ok(if diff.incomplete() || is_damaged { exit::INCOMPLETE } else { exit::DONE })
}

fn open_for_diff(path: &Path) -> Result<Output> {
    let output = Output::open(path, None, Access::All)?;
    if !diff::FORMATS.contains(&output.format()) {
        return Err(output.refuse(&ReportError::NoDifference(output.format())));
    }
    Ok(output)
}
