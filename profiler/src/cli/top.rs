//! Command `heapbpf top`: `heapbpf record` with a screen, or with lines for scripts.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use heapbpf_base::shown::Shown;
use heapbpf_linux::signals::Inherited;

use super::args::RecordArgs;
use super::exit::usage;
use super::top_settings::{TopSettings, term};
use super::{output, record, terminal, values};
use crate::top::script::Style;

const SCREEN: &str = "Screen";

#[derive(Args, Clone, Debug)]
#[command(mut_arg("output", |output| output.help("Also write a report when recording ends: .html, .svg, …").long_help(
    "Write a report to FILE when recording ends, as `heapbpf record` does. May be given several times. The extension selects \
     the format; `.heapbpf` records every event. Without it, only the key `s` writes reports",
)))]
pub(super) struct TopArgs {
    /// Time between refreshes: `+` and `-` change it.
    ///
    /// Rarer if a refresh would take more than 2 % of a core.
    #[arg(help_heading = SCREEN, long, value_name = "TIME", default_value = "2s", value_parser = values::period, allow_hyphen_values = true)]
    refresh: Duration,

    /// Print the tables once, after the first refresh or after `--duration`, and exit.
    #[arg(help_heading = SCREEN, long)]
    once: bool,

    /// Print a JSON object per refresh, one per line.
    #[arg(help_heading = SCREEN, long, conflicts_with = "csv")]
    json: bool,

    /// Print a CSV line per process and refresh.
    #[arg(help_heading = SCREEN, long)]
    csv: bool,

    /// Write the output of COMMAND to FILE. By default it is discarded, because the terminal shows the screen; its input is
    /// empty.
    #[arg(help_heading = SCREEN, long, value_name = "FILE", requires = "command")]
    command_output: Option<PathBuf>,

    #[command(flatten)]
    pub(super) record: RecordArgs,
}

pub(super) fn run(args: TopArgs, inherited: Inherited) -> Result<u8> {
    let style = match (args.json, args.csv, args.once) {
        (true, ..) => Some(Style::Json),
        (_, true, _) => Some(Style::Csv),
        (.., true) => Some(Style::Text),
        _ => None,
    };
    let mut record = args.record;
    if record.common.output.output.iter().any(|path| path == Path::new("-")) {
        return Err(usage("standard output has the screen: name a file, as in `-o heap.html`"));
    }
    if style.is_none() && !(terminal::output_is_terminal() && term().is_some_and(|term| term != "dumb")) {
        return Err(usage(
            "`heapbpf top` needs a terminal that can move its cursor: use `--once`, `--json` or `--csv` in scripts",
        ));
    }
    let inherited = match record.command.is_empty() {
        true => inherited,
        false => {
            inherited.with_streams(File::open("/dev/null")?.into(), command_output(args.command_output.as_deref())?)
        }
    };
    record.top = Some(TopSettings {
        period: args.refresh,
        style,
        is_once: args.once,
        has_duration: record.duration.is_some(),
        callsites_max: record.presentation.top,
        is_stoppable: !inherited.ignores(libc::SIGTSTP),
        focus: record.filter.focus.clone(),
        presentation: record.presentation.presentation(),
    });
    record::run(record, inherited)
}

fn command_output(path: Option<&Path>) -> Result<OwnedFd> {
    let path = path.unwrap_or(Path::new("/dev/null"));
    Ok(output::open_to_append(path).with_context(|| format!("cannot write `{}`", Shown::of(path)))?.into())
}
