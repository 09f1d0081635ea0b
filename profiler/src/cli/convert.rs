//! `heapbpf convert`: reports made from a recording.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::{Context, Result};
use terminal_size::terminal_size;

use super::args::ConvertArgs;
use super::output::Output;
use super::record::UsageError;
use super::{exit, say};
use crate::recording::modules::{self, Found};
use crate::recording::names::RecordedNames;
use crate::recording::read;
use crate::recording::span::{Span, SpanError, Spanned};
use crate::report::profile::Profile;
use crate::report::summary;
use crate::report::text::count;
use crate::snapshot::Scope;
use crate::symbolize::profile::profile;
use crate::symbolize::resolver::Resolver;

/// Modules that are named one by one where they are not found.
const MISSING_NAMED_MAX: usize = 5;

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
    let outputs = args.output.iter().map(|path| Output::open(path)).collect::<Result<Vec<_>>>()?;
    let name = args.recording.display();
    let mut reading = read::read(&args.recording).with_context(|| format!("`{name}`"))?;
    let mut names = RecordedNames::new(Resolver::new());
    let spanned = match Spanned::read(&mut reading, span, |places| names.add(places)) {
        Ok(spanned) => spanned,
        Err(error) => return Err(refuse(args, &error)),
    };
    let damage = reading.damage().map(|damage| tell_damage(args, damage, &spanned));
    if reading.passed_over() > 0 {
        let passed_over = count(reading.passed_over());
        say(&format!("heapbpf: `{name}`: {passed_over} entries of a later version of heapbpf were passed over"));
    }
    let Found { modules, missing } = modules::find(spanned.modules(), names.is_empty());
    tell_missing(args, &missing);
    let snapshot = spanned.snapshot(modules);
    let profile = profile(&snapshot, Scope::Window, &names, args.trim);
    report(args, &profile, outputs, &spanned)?;
    let whole = !profile.incomplete() && damage.is_none();
    Ok(if whole { exit::DONE } else { exit::INCOMPLETE })
}

/// What cannot be had of this recording.
fn refuse(args: &ConvertArgs, error: &SpanError) -> anyhow::Error {
    UsageError(format!("`{}`: {error}", args.recording.display())).into()
}

fn tell_damage(args: &ConvertArgs, damage: &read::Damage, spanned: &Spanned) {
    let read = Duration::from_nanos(spanned.length_ns());
    say(&format!(
        "heapbpf: warning: `{}`: damaged at byte {}: {}; read up to {:.1} s, {} events",
        args.recording.display(),
        count(damage.position),
        damage.reason,
        read.as_secs_f64(),
        count(spanned.events()),
    ));
}

fn tell_missing(args: &ConvertArgs, missing: &[(String, &'static str)]) {
    if missing.is_empty() || args.quiet {
        return;
    }
    let named: Vec<_> = missing.iter().take(MISSING_NAMED_MAX).map(|(path, why)| format!("`{path}` ({why})")).collect();
    let more = match missing.len().saturating_sub(MISSING_NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    say(&format!(
        "heapbpf: the recording has no names, and these modules are not on this machine as they were: {}{more}; their frames are told as module+offset",
        named.join(", ")
    ));
}

fn report(args: &ConvertArgs, profile: &Profile, outputs: Vec<Output>, spanned: &Spanned) -> Result<()> {
    let (mut to_stdout, mut files) = (false, String::new());
    for output in outputs {
        let format = output.format();
        match output.write(|out| Ok(format.report().write(profile, args.view, out)?))? {
            Some(path) => files.push_str(&format!("\n{} ({})", path.display(), format.description())),
            None => to_stdout = true,
        }
    }
    if args.quiet {
        return Ok(());
    }
    let terminal = std::io::stdout().is_terminal();
    let width = terminal.then(|| terminal_size().map(|(width, _)| usize::from(width.0))).flatten();
    let colour = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut text = summary::summary(profile, args.view, args.top, width, colour);
    if let Some(folded_ns) = spanned.folded_until_ns() {
        text.push_str(&format!("\nfolded until {}: `--from` and `--to` can be that and later", clock(folded_ns)));
    }
    text.push_str(&files);
    // A report on standard output must not have the table in it.
    if to_stdout {
        say(&text);
    } else {
        writeln!(std::io::stdout(), "{text}")?;
    }
    Ok(())
}

/// `00:01:23`, rounded up to where windows can begin.
fn clock(ns: u64) -> String {
    let seconds = ns.div_ceil(1_000_000_000);
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}
