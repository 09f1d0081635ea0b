//! `heapbpf diff`: two profiles in, what grew out.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, ValueEnum};

use super::output::{Access, Output};
use super::profile_file::profile_of;
use super::record::UsageError;
use super::{args, exit, quantity, say, terminal};
use crate::report::diff::{self, Diff, Drawing, Side};
use crate::report::{ReportError, View};

pub(super) const EXAMPLES: &str = "\
Examples:
  sudo heapbpf --pid 1234 --duration 1m -o before.json      make two profiles,
  sudo heapbpf --pid 1234 --duration 1m -o after.json
  heapbpf diff before.json after.json                       and see which callsites grew
  heapbpf diff before.json after.json -o growth.svg         red grew, blue shrank; frames as wide as they are after
  heapbpf diff before.json after.json -o gone.svg --widths before
  heapbpf diff v1.json v2.json --view alloc-bytes           two builds of a program: what the new one allocates more
  heapbpf diff before.json after.json --top 50 --threshold 100KiB
  heapbpf diff before.json after.json -q -o -               folded, two values a line: before, after
  heapbpf diff monday.heapbpf tuesday.heapbpf               recordings, each as a whole
  heapbpf diff before.json after.json -o growth.json        everything, for programs

Formats are chosen by the extension: .svg, .folded, .json. In an HTML report, two windows of one recording are compared.

Callsites are the same where program, heap and all functions with their modules have the same names; pids, addresses and lines
do not matter. See docs/diff.md.

Exit codes:
  0  done          1  failed          2  wrong usage          3  done, but one of the profiles is incomplete: it says how";

#[derive(Args, Clone, Debug)]
pub(super) struct DiffArgs {
    /// Profile from which on growth is counted: a JSON report, or a recording (`.heapbpf`).
    #[arg(value_name = "BEFORE")]
    before: PathBuf,

    /// Profile up to which growth is counted.
    #[arg(value_name = "AFTER")]
    after: PathBuf,

    /// What flame graphs, folded text and the table show. JSON has all four.
    #[arg(long, default_value_t = View::LiveBytes, value_name = "VIEW", help = args::view_help(), value_parser = args::view(), hide_possible_values = true)]
    view: View,

    /// File to write; `-` is standard output, as folded text. May be given several times. The extension chooses the format.
    #[arg(short, long, value_name = "FILE")]
    output: Vec<PathBuf>,

    /// Which profile gives the frames of a flame graph their widths. What is not in it is not drawn: `after` shows what is new,
    /// `before` what has vanished.
    #[arg(long, value_name = "WHICH", default_value = "after", hide_possible_values = true)]
    widths: WidthsArg,

    /// Draw flame graphs upside down, the outermost frames at the top.
    #[arg(long)]
    icicle: bool,

    /// Rows of each table, of what grew and of what shrank.
    #[arg(long, value_name = "ROWS", default_value_t = 10)]
    top: usize,

    /// Leave callsites out of the tables that changed by less: bytes (units as in 100KiB), or blocks.
    #[arg(long, value_name = "AMOUNT", default_value = "0", hide_default_value = true, value_parser = quantity::size)]
    threshold: u64,

    /// Print nothing but errors.
    #[arg(short, long)]
    quiet: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum WidthsArg {
    After,
    Before,
}

impl From<WidthsArg> for diff::Widths {
    fn from(widths: WidthsArg) -> Self {
        match widths {
            WidthsArg::After => Self::After,
            WidthsArg::Before => Self::Before,
        }
    }
}

/// The file, of a format that can hold a difference.
fn open(path: &Path) -> Result<Output> {
    let output = Output::open(path, None, Access::All)?;
    if !diff::FORMATS.contains(&output.format()) {
        let refused = ReportError::NoDifference(output.format());
        return Err(UsageError(format!("cannot write `{}`: {refused}", path.display())).into());
    }
    Ok(output)
}

/// Reads both, compares them, tells, and returns the exit code.
pub(super) fn run(args: &DiffArgs) -> Result<u8> {
    // What cannot be written is said before what takes time is done.
    let outputs = args.output.iter().map(|path| open(path)).collect::<Result<Vec<_>>>()?;
    let (before, after) = (profile_of(&args.before, args.quiet)?, profile_of(&args.after, args.quiet)?);
    let is_damaged = before.is_damaged || after.is_damaged;
    let (before, after) = (before.profile, after.profile);
    let [before_name, after_name] = [&args.before, &args.after].map(|path| path.display().to_string());
    let diff = Diff::new(Side { name: &before_name, profile: &before }, Side { name: &after_name, profile: &after });
    let drawing = Drawing { widths: args.widths.into(), icicle: args.icicle };
    let mut to_stdout = false;
    let mut written = Vec::new();
    for output in outputs {
        let format = output.format();
        match output.write(|out| Ok(diff.write(format, args.view, drawing, out)?))? {
            Some(path) => written.push((path, format)),
            None => to_stdout = true,
        }
    }
    if !args.quiet {
        let (width, colour) = terminal::layout();
        let mut text = diff::table(&diff, args.view, args.top, args.threshold, width, colour);
        for (path, format) in &written {
            text.push_str(&format!("\n{} (growth, {})\n", path.display(), format.description()));
        }
        // What goes to standard output must not have the tables in it.
        if to_stdout {
            say(text.trim_end());
        } else {
            write!(terminal::output(), "{text}")?;
        }
    }
    Ok(if diff.incomplete() || is_damaged { exit::INCOMPLETE } else { exit::DONE })
}
