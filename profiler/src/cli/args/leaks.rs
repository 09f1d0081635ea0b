//! What can be typed after `heapbpf leaks`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::super::quantity;
use crate::collect::Method;
use crate::report::Format;

pub(super) const EXAMPLES: &str = "\
Examples:
  sudo heapbpf leaks --pid 1234                      at once: no probes, so no stacks; glibc, musl, jemalloc
  sudo heapbpf leaks --pid 1234 --watch 60s          watch for a minute first: what is made meanwhile has a stack
  sudo heapbpf leaks --pid 1234 --watch 1h --interval 64KiB   cheaper: a stack for one block in many, all blocks found
  sudo heapbpf leaks -- ./server --port 80           from the first call to the exit, every block with its stack
  sudo pkill -USR1 -x heapbpf                        a check now, while it watches
  sudo heapbpf leaks --pid 1234 --snapshot fork      for large heaps: a pause of milliseconds
  sudo heapbpf leaks -o leaks.json -o leaks.svg -- ./test    for programs, and as a flame graph of leaked bytes
  sudo heapbpf leaks --suppressions known.supp -- ./test     leaks that are known are counted, not told

A leak is a block that can be reached from no register, stack, global variable or mapped memory, over any number of other blocks.
What holds a pointer in another form (compressed, xor'ed, in a file) looks leaked; a number that looks like a pointer hides a leak.
The process is stopped while it is looked at, and told of for how long. See docs/leaks.md.

Exit codes:
  0  no leaks, or with `-- COMMAND` the command's own        2    wrong usage
  1  failed                                                  4    leaks found
                                                             130  interrupted before anything was looked at";

#[derive(Args, Clone, Debug)]
pub(in crate::cli) struct LeaksArgs {
    /// Process to look at.
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)), conflicts_with = "command")]
    pub(in crate::cli) pid: Option<u32>,

    /// Watch allocations for this time (30s, 10m) before looking, so that blocks made meanwhile have a stack and an age. Ctrl-C ends it
    /// sooner. Without it no probe is attached.
    #[arg(short, long, value_name = "TIME", value_parser = quantity::period, allow_hyphen_values = true, conflicts_with = "command")]
    pub(in crate::cli) watch: Option<Duration>,

    /// Most leaks to tell one by one, the largest first. All are counted.
    #[arg(short, long, value_name = "LEAKS", default_value_t = 100)]
    pub(in crate::cli) limit: usize,

    /// File of suppressions in LeakSanitizer's syntax (`leak:PATTERN`): leaks that have a frame whose function, module or source file
    /// matches are counted and not told, and so is all that hangs on them. May be given several times.
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) suppressions: Vec<PathBuf>,

    /// How memory is kept still: `read` copies it while the process is stopped; `fork` makes the process fork, and reads the copy while it
    /// runs on: a shorter pause for large heaps, and memory for what it writes meanwhile.
    #[arg(long, value_name = "HOW", default_value = "read", hide_possible_values = true)]
    pub(in crate::cli) snapshot: SnapshotArg,

    /// Do not tell how leaked blocks begin: they may hold secrets.
    #[arg(long)]
    pub(in crate::cli) no_contents: bool,

    /// Mean bytes between allocations that are watched. 1 watches each; larger costs less, and leaves leaked blocks without a stack.
    #[arg(short, long, value_name = "BYTES", default_value = "1", value_parser = quantity::interval, allow_hyphen_values = true)]
    pub(in crate::cli) interval: u32,

    /// File to write; `-` is standard output, as folded text. May be given several times. The extension chooses the format: `.json` tells each
    /// leak; all others (`.svg`, `.html`, `.pb.gz`, …) show leaked bytes by callsite.
    #[arg(short, long, value_name = "FILE")]
    pub(in crate::cli) output: Vec<PathBuf>,

    /// Format of all files, whatever they are called.
    #[arg(long, value_name = "FORMAT", value_parser = super::presentation::format(), hide_possible_values = true)]
    pub(in crate::cli) format: Option<Format>,

    /// Leave out frames of the language's runtime at both ends of stacks.
    #[arg(long)]
    pub(in crate::cli) trim: bool,

    /// Room for events on their way from the kernel. A power of two.
    #[arg(long, value_name = "BYTES", default_value = "64MiB", value_parser = quantity::ring_size)]
    pub(in crate::cli) ring_size: u32,

    /// Blocks that can be watched at once. Memory is used only for those that are.
    #[arg(long, value_name = "BLOCKS", default_value_t = 1 << 24)]
    pub(in crate::cli) live_blocks: u32,

    /// Print nothing but errors.
    #[arg(short, long)]
    pub(in crate::cli) quiet: bool,

    /// Program to start and to look at when it exits, and its arguments.
    #[arg(last = true, value_name = "COMMAND")]
    pub(in crate::cli) command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(in crate::cli) enum SnapshotArg {
    Read,
    Fork,
}

impl From<SnapshotArg> for Method {
    fn from(snapshot: SnapshotArg) -> Self {
        match snapshot {
            SnapshotArg::Read => Self::Read,
            SnapshotArg::Fork => Self::Fork,
        }
    }
}
