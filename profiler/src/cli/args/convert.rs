//! What can be typed after `heapbpf convert`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::super::quantity;
use super::PresentationArgs;

pub(super) const EXAMPLES: &str = "\
Examples:
  heapbpf convert x.heapbpf                          the table, of the whole recording
  heapbpf convert x.heapbpf -o heap.html             an interactive page, to look at first
  heapbpf convert x.heapbpf -o heap.svg -o heap.pb.gz -o heap.heaptrack.zst
  heapbpf convert x.heapbpf --by thread -o heap.svg  by thread, whether recorded so or not
  heapbpf convert x.heapbpf --to 1m -o then.svg      what was live one minute after it began
  heapbpf convert x.heapbpf --from 10m --to 20m --view alloc-bytes -o busy.svg
  heapbpf convert heap.json -o heap.pb.gz            another format of a report, as a whole

Needs no privileges, and not the machine that it was recorded on. A file that was cut or damaged is read up to there.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 done, but the recording is damaged, or events were lost while it was made.";

#[derive(Args, Clone, Debug)]
pub(in crate::cli) struct ConvertArgs {
    /// The recording (`.heapbpf`), or a JSON report.
    #[arg(value_name = "FILE")]
    pub(in crate::cli) recording: PathBuf,

    /// File to write; `-` is standard output, as folded text. May be given several times. The extension chooses the format.
    #[arg(short, long, value_name = "FILE")]
    pub(in crate::cli) output: Vec<PathBuf>,

    /// Of a recording, begin here, a time since the recording began (10s, 1m30s): allocated and freed are what was so since.
    #[arg(long, value_name = "TIME", value_parser = quantity::moment, allow_hyphen_values = true)]
    pub(in crate::cli) from: Option<Duration>,

    /// Of a recording, end here: live is what was live at that time.
    #[arg(long, value_name = "TIME", value_parser = quantity::duration, allow_hyphen_values = true)]
    pub(in crate::cli) to: Option<Duration>,

    #[command(flatten)]
    pub(in crate::cli) presentation: PresentationArgs,

    /// Rows of the table of callsites.
    #[arg(long, value_name = "ROWS", default_value_t = 10)]
    pub(in crate::cli) top: usize,

    /// Leave out frames of the language's runtime at both ends of stacks.
    #[arg(long)]
    pub(in crate::cli) trim: bool,

    /// Print nothing but errors and what is damaged.
    #[arg(short, long)]
    pub(in crate::cli) quiet: bool,
}
