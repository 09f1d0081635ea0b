//! `heapbpf convert`: reports from a recording, or from a JSON report.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use super::args::ConvertArgs;
use super::exit::{self, usage};
use super::output::{Access, Output};
use super::profiles::{self, Contents, Input, Options};
use super::terminal;
use crate::model::Profile;
use crate::recording::span::Span;
use crate::report::summary;
use crate::symbolize::trim::trim;

pub(super) fn run(args: &ConvertArgs) -> Result<u8> {
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
    let input = match profiles::open(&args.recording)? {
        Contents::Recording => profiles::read_recording(&args.recording, options)?,
        Contents::Report(profile) => from_report(args, *profile, &outputs)?.into(),
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
    let (mut to_stdout, mut files) = (false, String::new());
    for output in outputs {
        let format = output.format();
        let events = input.events.as_ref().filter(|_| format.needs_recording());
        let written = output.write(|out| match events {
            Some(events) => events.write(&args.recording, options, &presentation, out),
            None => Ok(format.write(&shown, &presentation, out)?),
        })?;
        match written {
            Some(path) => files.push_str(&format!("\n{} ({})", path.display(), format.description())),
            None => to_stdout = true,
        }
    }
    if args.output.quiet {
        return Ok(());
    }
    let (width, colour) = terminal::layout();
    let mut text = summary::summary(&input.profile, presentation.view, args.presentation.top, width, colour);
    if let Some(folded_ns) = input.folded_until_ns {
        text.push_str(&format!("\nfolded until {}: `--from` and `--to` must not be earlier", clock(folded_ns)));
    }
    text.push_str(&files);
    Ok(terminal::print(&text, to_stdout)?)
}

/// Formats a time as `00:01:23`, rounded up to the next second, where windows can begin.
fn clock(ns: u64) -> String {
    let seconds = ns.div_ceil(1_000_000_000);
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}
