//! `heapbpf convert`: reports made from a recording, or from a JSON report.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use super::args::ConvertArgs;
use super::output::{Access, Output};
use super::profile_file::{Contents, contents_of};
use super::record::UsageError;
use super::recorded::{How, Recorded};
use super::{exit, say, terminal};
use crate::model::Profile;
use crate::recording::span::Span;
use crate::report::summary;
use crate::symbolize::trim::trim;

/// Reads, reports, and returns the exit code.
pub(super) fn run(args: &ConvertArgs) -> Result<u8> {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let span = Span { from_ns: args.from.map(nanos), to_ns: args.to.map(nanos) };
    if let (Some(from), Some(to)) = (args.from, args.to)
        && from >= to
    {
        return Err(UsageError(format!("`--from {from:?}` must be before `--to {to:?}`")).into());
    }
    // A mistyped path costs nothing.
    let outputs = {
        let open = |path: &PathBuf| Output::open(path, args.presentation.format, Access::All);
        args.output.iter().map(open).collect::<Result<Vec<_>>>()?
    };
    let events = outputs.iter().any(|output| output.format().needs_recording());
    let by_thread = args.presentation.by_thread();
    let how = How { trims: args.trim, quiet: args.quiet, events, by_thread };
    let recorded = match contents_of(&args.recording)? {
        Contents::Recording => Recorded::read(&args.recording, span, how)?,
        Contents::Report(profile) => of_report(args, *profile, &outputs)?,
    };
    report(args, span, &recorded, outputs)?;
    let whole = !recorded.profile.incomplete() && !recorded.is_damaged;
    Ok(if whole { exit::DONE } else { exit::INCOMPLETE })
}

/// What can be made of a JSON report, which holds sums and no times.
fn of_report(args: &ConvertArgs, mut profile: Profile, outputs: &[Output]) -> Result<Recorded> {
    let name = args.recording.display();
    let refuse = |why: String| Err(UsageError(format!("`{name}` is a JSON report, {why}")).into());
    for (option, given) in [("--from", args.from.is_some()), ("--to", args.to.is_some())] {
        if given {
            return refuse(format!(
                "which has sums without the times that `{option}` picks from; convert a recording (`-o x.heapbpf`)"
            ));
        }
    }
    if let Some(output) = outputs.iter().find(|output| output.format().needs_recording()) {
        let what = output.format().name();
        return refuse(format!("and `{what}` is made of single events; convert a recording (`-o x.heapbpf`)"));
    }
    let mut callsites = profile.targets.iter().flat_map(|target| &target.callsites).peekable();
    let has_none = callsites.peek().is_some() && callsites.all(|callsite| callsite.thread.is_none());
    if args.presentation.by_thread() && has_none {
        return refuse(
            "made without `--by thread`, and does not tell threads apart; convert a recording (`-o x.heapbpf`), or profile with `--by thread`"
                .to_owned(),
        );
    }
    if args.trim {
        for callsite in profile.targets.iter_mut().flat_map(|target| &mut target.callsites) {
            callsite.stack = trim(&callsite.stack, &profile.frames).to_vec();
        }
    }
    Ok(Recorded { profile, folded_until_ns: None, is_damaged: false, events: None })
}

fn report(args: &ConvertArgs, span: Span, recorded: &Recorded, outputs: Vec<Output>) -> Result<()> {
    let profile = &recorded.profile;
    let presentation = args.presentation.presentation();
    let shown = presentation.thinned(profile);
    let (mut to_stdout, mut files) = (false, String::new());
    for output in outputs {
        let format = output.format();
        let events = recorded.events.as_ref().filter(|_| format.needs_recording());
        let written = output.write(|out| match events {
            Some(events) => events.write(&args.recording, span, args.presentation.by_thread(), &presentation, out),
            None => Ok(format.write(&shown, &presentation, out)?),
        })?;
        match written {
            Some(path) => files.push_str(&format!("\n{} ({})", path.display(), format.description())),
            None => to_stdout = true,
        }
    }
    if args.quiet {
        return Ok(());
    }
    let (width, colour) = terminal::layout();
    let mut text = summary::summary(profile, presentation.view, args.top, width, colour);
    if let Some(folded_ns) = recorded.folded_until_ns {
        text.push_str(&format!("\nfolded until {}: `--from` and `--to` can be that and later", clock(folded_ns)));
    }
    text.push_str(&files);
    // A report on standard output must not have the table in it.
    if to_stdout {
        say(&text);
    } else {
        writeln!(terminal::output(), "{text}")?;
    }
    Ok(())
}

/// `00:01:23`, rounded up to where windows can begin.
fn clock(ns: u64) -> String {
    let seconds = ns.div_ceil(1_000_000_000);
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}
