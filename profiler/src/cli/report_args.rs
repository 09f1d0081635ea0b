//! Command line options of commands that write or read reports.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::TypedValueParser;
use heapbpf_base::ids::Pid;
use heapbpf_report::diff::Widths;
use heapbpf_report::filter::Filter;
use heapbpf_report::summary::Top;
use heapbpf_report::{Format, Group, Presentation, Share, TopBy, View};
use indexmap::IndexSet;
use regex::Regex;

use super::completion;
use super::symbols::SymbolArgs;
use super::values::{self, Threshold, named};
use crate::probe::place::PlacementMode;
use crate::symbolize::trim::Trim;

pub(super) const OUTPUT: &str = "Output";

pub(super) const PLACEMENT: [(&str, PlacementMode); 2] =
    [("auto", PlacementMode::Auto), ("entry", PlacementMode::Entry)];
const WIDTHS: [(&str, Widths); 2] = [("after", Widths::After), ("before", Widths::Before)];

// Options of all commands whose exit code is 3 for incomplete profiles.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct VerdictArgs {
    /// Exit with 3 if anything is missing from the profile, however little, and with `-- COMMAND` also instead of its 0. See
    /// docs/exit-codes.md.
    #[arg(help_heading = OUTPUT, long)]
    pub(super) strict: bool,
}

// Options of all commands that write reports of one profile.
#[derive(Args, Clone, Debug)]
pub(super) struct OutputArgs {
    /// Write a report: .html, .svg, .json, .pb.gz, ….
    ///
    /// The extension of FILE selects the format. May be given several times. `-` is standard output, as folded text.
    #[arg(help_heading = OUTPUT, short, long, value_name = "FILE", add = completion::outputs())]
    pub(super) output: Vec<PathBuf>,

    #[arg(help_heading = OUTPUT, long, value_name = "FORMAT", help = format_help(), value_parser = named(Format::ALL.map(|format| (format.spec().name, format))), hide_possible_values = true)]
    pub(super) format: Option<Format>,

    /// Remove frames of the language runtime from both ends of stacks (`operator new`, `alloc::…`, `__libc_start_main`).
    #[arg(help_heading = OUTPUT, long)]
    pub(super) trim: bool,

    /// Show the interpreter's own frames between Python functions too.
    #[arg(help_heading = OUTPUT, long, hide_short_help = true)]
    pub(super) native: bool,

    /// Embed the source lines around each frame in HTML reports, from files on this machine that the program's user and you may
    /// read. Files are named by the target's debug information: check a report before you pass it on. The mode of reports is 0600
    /// then.
    #[arg(help_heading = OUTPUT, long)]
    pub(super) source: bool,

    /// Print errors only.
    #[arg(help_heading = OUTPUT, short, long)]
    pub(super) quiet: bool,
}

impl OutputArgs {
    pub(super) fn trims(&self) -> Trim {
        Trim { ends: self.trim, interpreter: !self.native }
    }
}

#[derive(Args, Clone, Debug)]
pub(super) struct PresentationArgs {
    #[arg(help_heading = OUTPUT, long, value_name = "VIEW", default_value_t = View::LiveBytes, help = VIEW_HELP, long_help = VIEW_LONG_HELP, value_parser = view(), hide_possible_values = true)]
    pub(super) view: View,

    /// Group stacks by `thread`, `command`, `cgroup` or `heap`, or by several of them separated by commas, the outermost
    /// first. Groups become frames above the process, or labels in formats that have them. `thread` must be specified when
    /// recording starts, or when a recording is converted.
    #[arg(help_heading = OUTPUT, long, value_name = "WHAT", value_delimiter = ',', value_parser = named(Group::ALL.map(|group| (group.name(), group))), hide_possible_values = true)]
    pub(super) by: Vec<Group>,

    /// Merge frames below this share of the view's total, such as 0.8%, into frames called `<other>`, level by level.
    /// Totals do not change.
    #[arg(help_heading = OUTPUT, long, value_name = "SHARE", allow_hyphen_values = true)]
    pub(super) threshold: Option<Share>,

    /// Draw flame graphs upside down, with the outermost frames at the top.
    #[arg(help_heading = OUTPUT, long)]
    pub(super) icicle: bool,

    /// Name of the recorded machine in Parquet files. While recording, its host name is the default.
    #[arg(help_heading = OUTPUT, long, value_name = "NAME")]
    pub(super) host: Option<String>,

    /// Write names into CSV as they are. By default, those that a spreadsheet would evaluate (`=…`, `+…`, `-…`, `@…`) begin with
    /// an apostrophe.
    #[arg(help_heading = OUTPUT, long)]
    pub(super) csv_raw: bool,

    /// Number of rows in the table on the terminal.
    #[arg(help_heading = OUTPUT, long, value_name = "ROWS", default_value_t = 10)]
    pub(super) top: usize,

    /// Rows of the table on the terminal: `callsite`, `function` or `module`, the last two with what they allocated
    /// themselves and with their callees.
    #[arg(help_heading = OUTPUT, long, value_name = "WHAT", default_value = "callsite", value_parser = named(TopBy::ALL.map(|by| (by.name(), by))), hide_possible_values = true)]
    pub(super) top_by: TopBy,
}

// As in pprof. Patterns are searched in names of functions, source files and modules.
#[derive(Args, Clone, Debug)]
pub(super) struct FilterArgs {
    /// Show only stacks with a matching frame.
    ///
    /// REGEX is a regular expression, searched in the names of functions, source files and modules. All totals become those of
    /// the stacks that are left.
    #[arg(help_heading = OUTPUT, long, value_name = "REGEX", value_parser = values::regex)]
    pub(super) focus: Option<Regex>,

    /// Leave out stacks with a frame that matches REGEX.
    #[arg(help_heading = OUTPUT, long, value_name = "REGEX", value_parser = values::regex)]
    pub(super) ignore: Option<Regex>,

    /// Remove frames that match REGEX from all stacks, and stacks of which nothing is left.
    #[arg(help_heading = OUTPUT, long, value_name = "REGEX", value_parser = values::regex)]
    pub(super) hide: Option<Regex>,

    /// Remove frames of modules (programs and libraries) that do not match REGEX, and stacks of which nothing is left.
    #[arg(help_heading = OUTPUT, long, value_name = "REGEX", value_parser = values::regex)]
    pub(super) only_module: Option<Regex>,
}

impl FilterArgs {
    pub(super) fn filter(&self) -> Filter {
        let Self { focus, ignore, hide, only_module } = self.clone();
        Filter { focus, ignore, hide, only_module }
    }
}

impl PresentationArgs {
    pub(super) fn by_thread(&self) -> bool {
        self.by.contains(&Group::Thread)
    }

    pub(super) fn top(&self) -> Top {
        Top { rows: self.top, by: self.top_by }
    }

    pub(super) fn presentation(&self) -> Presentation {
        let by = self.by.iter().copied().collect::<IndexSet<_>>().into_iter().collect();
        let (threshold, icicle, host, csv_raw) = (self.threshold, self.icicle, self.host.clone(), self.csv_raw);
        Presentation { view: self.view, by, threshold, icicle, host, csv_raw }
    }
}

#[derive(Args, Clone, Debug)]
pub(super) struct ConvertArgs {
    /// Recording (`.heapbpf`) or JSON report to read.
    #[arg(value_name = "FILE")]
    pub(super) recording: PathBuf,

    /// Start at TIME after the start of the recording (10s, 1m30s): allocated and freed bytes count from there.
    #[arg(long, value_name = "TIME", value_parser = values::offset, allow_hyphen_values = true)]
    pub(super) from: Option<Duration>,

    /// Stop at TIME after the start of the recording: live bytes are those at that time.
    #[arg(long, value_name = "TIME", value_parser = values::duration, allow_hyphen_values = true)]
    pub(super) to: Option<Duration>,

    /// Divide the recording into windows of this length: Parquet files get a row per callsite and window.
    #[arg(long, value_name = "TIME", value_parser = values::period)]
    pub(super) every: Option<Duration>,

    #[command(flatten)]
    pub(super) presentation: PresentationArgs,

    #[command(flatten)]
    pub(super) filter: FilterArgs,

    #[command(flatten)]
    pub(super) verdict: VerdictArgs,

    #[command(flatten)]
    pub(super) output: OutputArgs,

    #[command(flatten)]
    pub(super) symbols: SymbolArgs,
}

#[derive(Args, Clone, Debug)]
pub(super) struct DiffArgs {
    /// Earlier profile: a JSON report, or a recording (`.heapbpf`).
    #[arg(value_name = "BEFORE")]
    pub(super) before: PathBuf,

    /// Later profile.
    #[arg(value_name = "AFTER")]
    pub(super) after: PathBuf,

    #[arg(long, value_name = "VIEW", default_value_t = View::LiveBytes, help = VIEW_HELP, long_help = format!("{VIEW_LONG_HELP}. JSON has all four"), value_parser = view(), hide_possible_values = true)]
    pub(super) view: View,

    /// Write the difference to FILE; the extension selects the format: .html, .svg, .folded or .json.
    ///
    /// May be given several times. `-` is standard output, as folded text.
    #[arg(short, long, value_name = "FILE", add = completion::differences())]
    pub(super) output: Vec<PathBuf>,

    /// Take the widths of a flame graph's frames from this profile; frames that it lacks are not drawn. `after` shows new
    /// frames, `before` removed ones.
    #[arg(long, value_name = "WHICH", default_value = "after", value_parser = named(WIDTHS), hide_possible_values = true)]
    pub(super) widths: Widths,

    /// Exit with 5 if the total grew by more than LIMIT: a share of BEFORE, such as 5%, or bytes or blocks, such as 10MiB.
    ///
    /// Sampled profiles fail only if the growth exceeds LIMIT with 97.5 % confidence.
    #[arg(long, value_name = "LIMIT", value_parser = values::threshold, allow_hyphen_values = true)]
    pub(super) fail_above: Option<Threshold>,

    #[command(flatten)]
    pub(super) filter: FilterArgs,

    #[command(flatten)]
    pub(super) verdict: VerdictArgs,

    /// Draw flame graphs upside down, with the outermost frames at the top.
    #[arg(long)]
    pub(super) icicle: bool,

    /// Number of rows in each of the two tables, growth and shrinkage.
    #[arg(long, value_name = "ROWS", default_value_t = 10)]
    pub(super) top: usize,

    /// Omit callsites from the tables that changed by less than AMOUNT: bytes (with units, as in 100KiB) or blocks.
    #[arg(long, value_name = "AMOUNT", default_value = "0", hide_default_value = true, value_parser = values::size)]
    pub(super) threshold: u64,

    /// Print errors only.
    #[arg(short, long)]
    pub(super) quiet: bool,
}

#[derive(Args, Clone, Debug)]
pub(super) struct OpenArgs {
    /// Report to open: `.html` or `.svg`.
    #[arg(value_name = "REPORT", value_hint = clap::ValueHint::FilePath)]
    pub(super) report: PathBuf,
}

#[derive(Args, Clone, Debug)]
pub(super) struct DoctorArgs {
    /// Process to examine: its number, or the name of a program that runs once.
    #[arg(value_name = "PROGRAM_OR_PID", conflicts_with = "pid", add = completion::programs_and_pids())]
    pub(super) process: Option<String>,

    /// Also show which functions of the process PID would be probed, and where.
    #[arg(short, long, value_name = "PID", value_parser = values::pid, allow_hyphen_values = true, add = completion::pids())]
    pub(super) pid: Option<Pid>,

    /// Place probes at WHERE in the allocator's functions (see `heapbpf --help`).
    #[arg(long, value_name = "WHERE", default_value = "auto", value_parser = named(PLACEMENT), hide_possible_values = true)]
    pub(super) placement: PlacementMode,

    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

const VIEW_HELP: &str = "Quantity, such as alloc-bytes";
const VIEW_LONG_HELP: &str = "Quantity that flame graphs, folded text and the table show: `live-bytes` and `live-count` (not \
                              freed when recording stops), `alloc-bytes` and `alloc-count` (all allocated while recording)";

fn view() -> impl TypedValueParser<Value = View> {
    named(View::ALL.map(|view| (view.name(), view)))
}

fn format_help() -> String {
    format!(
        "Format of all reports, whatever their extensions: {}",
        listed(Format::ALL.map(|format| format.spec().name))
    )
}

pub(super) fn listed(names: impl IntoIterator<Item = &'static str>) -> String {
    names.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
