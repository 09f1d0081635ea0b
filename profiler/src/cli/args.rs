//! What can be typed.

mod convert;
mod leaks;
mod presentation;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub(super) use convert::ConvertArgs;
pub(super) use leaks::LeaksArgs;
pub(super) use presentation::{PresentationArgs, view};

use super::quantity;
use crate::allocator::custom::CustomHook;
use crate::allocator::selection::HeapInterval;
use crate::doctor::TARGET_COMMAND;
use crate::probe::place::PlacementMode;
use crate::process::cgroup::Cgroup;
use crate::process::pattern::Pattern;
use crate::session::Hold;

const EXAMPLES: &str = "\
Examples:
  sudo heapbpf --pid 1234                            until Ctrl-C; writes heapbpf-<name>-1234.svg
  sudo heapbpf --pid $(pidof redis-server) --duration 10s -o heap.svg
  sudo heapbpf --pid 1234 --duration 1m -o heap.html  a page to look at first: over time, by callsite, what grows
  sudo heapbpf --pid 1234 --interval 512KiB -o heap.svg -o heap.json -o heap.pb.gz
  sudo heapbpf --pid 1234 --by thread --threshold 0.8% -o heap.svg  by thread, without the small ones
  sudo heapbpf --pid 1234 --interval 1 --duration 5s every allocation, exact to the byte
  sudo heapbpf --pid 1234 --view alloc-bytes         who allocates most, freed or not
  sudo heapbpf --cmdline 'redis*' --cmdline nginx    programs by name, also those that start later
  sudo heapbpf --cgroup 3f2a9c01d4e5                 a container, by the beginning of its id
  sudo heapbpf --pid 1234 --dump-every 10s -o heap.svg  and heap.0001.svg, … for what each 10 s left behind
  sudo heapbpf --pid 1234 --mark 1m --duration 10m   what is left of the last 9 minutes, warm-up apart: heapbpf-….0001.svg
  sudo pkill -USR1 -x heapbpf                        a dump now, while it records
  sudo heapbpf --all --duration 30s --min-rss 50MiB  every process, ranked
  sudo heapbpf -o heap.svg -- ./server --port 80     start a program and see its first allocation
  sudo heapbpf --pid 1234 --hook 'pool=libpool.so*:pool_get(ptr=ret,size=arg2)' --hook 'pool=libpool.so*:pool_put(old=arg2)'
  sudo heapbpf --pid 1234 --duration 1h -o x.heapbpf --max-size 1GiB  everything that happened, to be looked at later:
  heapbpf convert x.heapbpf -o heap.svg --from 10m --to 20m
  heapbpf diff before.json after.json -o growth.svg  what grew between two profiles
  sudo heapbpf leaks --pid 1234                      blocks that nothing holds any more, in a running process
  sudo heapbpf leaks -- ./server                     the same at its exit, each with the stack that made it
  sudo heapbpf doctor --pid 1234                     whether this would work, and what it would cost

Formats are chosen by the file's extension, or by --format: .html (interactive report), .svg (flame graph), .json (everything),
.folded (text), .pb.gz (pprof), .heap (gperftools), .perfetto-trace, .memory-infra.json (Chrome), .dhat.json, .massif.out,
.fxprofile.json (Firefox Profiler), .otlp (OpenTelemetry), .speedscope.json; .heapbpf is a recording, from which `heapbpf convert`
makes all of these and .heaptrack.zst.

Exit codes:
  0  done                                   3    done, but the profile is incomplete: it says how
  1  failed                                 130  interrupted before anything was written, or not waiting for COMMAND
  2  wrong usage                            with `-- COMMAND`: the command's own (126, 127: it did not run)

Needs root, or CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE (before Linux 6.6 CAP_SYS_ADMIN too). Only allocations made while heapbpf runs are seen.";

/// Tells which code of a running process holds its heap. Nothing is changed in the process: no restart, no preload.
#[derive(Debug, Parser)]
#[command(name = "heapbpf", version, after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Option<Command>,

    #[command(flatten)]
    pub(super) record: RecordArgs,

    /// Say more about what heapbpf does itself; twice or three times for more.
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub(super) verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Profile processes, running or started here (this is what happens without a subcommand).
    #[command(after_help = EXAMPLES)]
    Record(Box<RecordArgs>),
    /// Make reports from a recording (`-o x.heapbpf`), of all of it or of a part, or from a JSON report.
    #[command(after_help = convert::EXAMPLES)]
    Convert(ConvertArgs),
    /// Tell what this kernel, this user and a process allow, and what a probe costs here. Ends with 0 if profiling would
    /// work, else with 1.
    Doctor(DoctorArgs),
    /// Tell what grew between two profiles, callsite by callsite.
    #[command(after_help = super::diff::EXAMPLES)]
    Diff(super::diff::DiffArgs),
    /// Find blocks of a process that nothing holds any more, with the stacks that made them. Ends with 4 if there are any.
    #[command(after_help = leaks::EXAMPLES)]
    Leaks(Box<LeaksArgs>),
    /// Be the process that `doctor` probes.
    #[command(name = TARGET_COMMAND, hide = true)]
    DoctorTarget,
    /// Print a completion script: `heapbpf completions bash > /etc/bash_completion.d/heapbpf`.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page: `heapbpf man | man -l -`; of one of the commands: `heapbpf man leaks | man -l -`.
    Man {
        /// The command.
        #[arg(value_name = "NAME")]
        of: Option<String>,
    },
}

/// Groups of options, in the order in which help and manual page show them: that of each one's first option below.
const TARGETS: &str = "What to profile";
const SAMPLING: &str = "Sampling";
const OUTPUT: &str = "Output";
const DUMPS: &str = "Dumps";
const LIMITS: &str = "Limits";
const KERNEL: &str = "Kernel side";

#[derive(Args, Clone, Debug)]
pub(super) struct RecordArgs {
    /// Process to profile. May be given several times.
    #[arg(help_heading = TARGETS, short, long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    pub(super) pid: Vec<u32>,

    /// Program to profile, by its name: the last component of what it was started as (argv[0]), cut at `@`. `*`, `?` and
    /// `[…]` match as in a shell; a pattern with a `/` matches the whole path. What starts later is profiled as well.
    /// May be given several times.
    #[arg(help_heading = TARGETS, short, long, value_name = "PATTERN")]
    pub(super) cmdline: Vec<Pattern>,

    /// Control group to profile: its path, with all below it, or the beginning of a container's id (6 digits at least).
    /// May be given several times.
    #[arg(help_heading = TARGETS, long, value_name = "GROUP")]
    pub(super) cgroup: Vec<Cgroup>,

    /// Profile every process that lives longer than 50 ms.
    #[arg(help_heading = TARGETS, short, long)]
    pub(super) all: bool,

    /// Program to leave out of those that match otherwise. May be given several times.
    #[arg(help_heading = TARGETS, long, value_name = "PATTERN")]
    pub(super) exclude: Vec<Pattern>,

    /// Leave out processes whose resident memory is smaller than this. Those that grow beyond it while recording are
    /// profiled from then on.
    #[arg(help_heading = TARGETS, long, value_name = "BYTES", default_value = "0", hide_default_value = true, value_parser = quantity::size)]
    pub(super) min_rss: u64,

    /// Leave processes alone that targets make by fork.
    #[arg(help_heading = TARGETS, long)]
    pub(super) no_follow_fork: bool,

    /// Which processes that begin while recording are stopped for the ten milliseconds that probes take: `execs` (programs
    /// that start, so that their first allocation is seen), `forks` (copies of targets as well), `never`. With `--all` none is.
    #[arg(help_heading = TARGETS, long, value_name = "WHICH", default_value = "execs", hide_possible_values = true)]
    pub(super) hold: HoldArg,

    /// Program to start and profile, with its arguments. Its streams, signals and exit code pass through.
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["pid", "cmdline", "cgroup", "all"])]
    pub(super) command: Vec<OsString>,

    /// Heap to watch: `libc`, `jemalloc`, … as reports name them. May be given several times; without it, all but `mmap`
    /// (mmap, munmap, mremap and sbrk), which has to be named. `all` stands for these.
    #[arg(help_heading = TARGETS, long, value_name = "NAME")]
    pub(super) heap: Vec<String>,

    /// Heap to leave alone. May be given several times.
    #[arg(help_heading = TARGETS, long, value_name = "NAME")]
    pub(super) exclude_heap: Vec<String>,

    /// Function of an allocator of your own: `[HEAP=]MODULE:FUNCTION(ptr=ret,size=arg1)`. May be given several times; see
    /// docs/hooks.md.
    #[arg(help_heading = TARGETS, long, value_name = "SPEC")]
    pub(super) hook: Vec<CustomHook>,

    /// File with such functions in TOML, or a set that comes with heapbpf: `cuda`, `cpython`. May be given several times.
    #[arg(help_heading = TARGETS, long, value_name = "FILE")]
    pub(super) hooks: Vec<String>,

    /// Mean bytes between samples. 1 sees every allocation and is exact; larger costs less and estimates. Units: KiB and
    /// MiB are powers of 1024, k and M of 1000.
    #[arg(help_heading = SAMPLING, short, long, value_name = "BYTES", default_value = "4KiB", value_parser = quantity::interval, allow_hyphen_values = true)]
    pub(super) interval: u32,

    /// Mean bytes between samples of one heap, where that is not to be `--interval`: `cuda=1`.
    #[arg(help_heading = SAMPLING, long, value_name = "NAME=BYTES")]
    pub(super) heap_interval: Vec<HeapInterval>,

    /// What to do when there is more than can be followed: `adapt` samples less, and again as asked when there is less; `drop`
    /// keeps the interval and loses what finds no room. Both is told in reports.
    #[arg(help_heading = SAMPLING, long, value_name = "HOW", default_value = "adapt", hide_possible_values = true)]
    pub(super) on_overload: OverloadArg,

    /// The largest interval that `--on-overload adapt` goes to.
    #[arg(help_heading = SAMPLING, long, value_name = "BYTES", default_value = "16MiB", value_parser = quantity::interval, allow_hyphen_values = true)]
    pub(super) interval_max: u32,

    /// File to write; `-` is standard output, as folded text. May be given several times. The extension chooses the format;
    /// `.heapbpf`, once, is a recording of all that happens, for `heapbpf convert`.
    #[arg(help_heading = OUTPUT, short, long, value_name = "FILE")]
    pub(super) output: Vec<PathBuf>,

    /// Most bytes that a recording (`-o x.heapbpf`) may take. When it would take more, its oldest part is folded into sums: of
    /// that part, no time can be picked any more. Without it: as many as it takes.
    #[arg(help_heading = OUTPUT, long, value_name = "BYTES", value_parser = quantity::recording_size)]
    pub(super) max_size: Option<u64>,

    #[command(flatten)]
    pub(super) dumps: DumpArgs,

    /// Stop after this time (10s, 5m, 1h30m). Without it: until Ctrl-C, or until all targets have ended and none can follow.
    #[arg(help_heading = LIMITS, short, long, value_name = "TIME", value_parser = quantity::duration, allow_hyphen_values = true)]
    pub(super) duration: Option<Duration>,

    #[command(flatten)]
    pub(super) presentation: PresentationArgs,

    /// Rows of the table of callsites.
    #[arg(help_heading = OUTPUT, long, value_name = "ROWS", default_value_t = 10)]
    pub(super) top: usize,

    /// Leave out frames of the language's runtime at both ends of stacks (`operator new`, `alloc::…`, `__libc_start_main`).
    #[arg(help_heading = OUTPUT, long)]
    pub(super) trim: bool,

    /// How stacks are unwound: `auto` goes by the modules' unwind tables (.eh_frame), and by frame pointers in code that
    /// has none; `dwarf` and `fp` use one alone.
    #[arg(help_heading = KERNEL, long, value_name = "HOW", default_value = "auto", hide_possible_values = true)]
    pub(super) unwind: Unwind,

    /// How probes are attached: `session`, `multi` or `perf`; `auto` takes the first that the kernel has.
    #[arg(help_heading = KERNEL, long, value_name = "HOW", default_value = "auto", hide_possible_values = true)]
    pub(super) backend: BackendArg,

    /// Where in the allocator's functions probes go: `auto` takes the first instruction that the kernel emulates, which
    /// costs least; `entry` takes the first one.
    #[arg(help_heading = KERNEL, long, value_name = "WHERE", default_value = "auto", hide_possible_values = true)]
    pub(super) placement: Placement,

    /// Print nothing but errors.
    #[arg(help_heading = OUTPUT, short, long)]
    pub(super) quiet: bool,

    /// Room for events on their way from the kernel. A power of two; more of it survives longer bursts.
    #[arg(help_heading = KERNEL, long, value_name = "BYTES", default_value = "16MiB", value_parser = quantity::ring_size)]
    pub(super) ring_size: u32,

    /// Kernel memory that unwind tables may take. Tables of modules that no target uses go first.
    #[arg(help_heading = KERNEL, long, value_name = "BYTES", default_value = "256MiB", value_parser = quantity::memory)]
    pub(super) unwind_memory: u64,

    /// File of suppressions in LeakSanitizer's syntax (`leak:PATTERN`): growing callsites that have a frame whose function, module
    /// or source file matches are not told of. May be given several times.
    #[arg(help_heading = OUTPUT, long, value_name = "FILE")]
    pub(super) suppressions: Vec<PathBuf>,

    /// Show live blocks alone that have lived at least this long when recording stops. Totals are of all.
    #[arg(help_heading = OUTPUT, long, value_name = "TIME", value_parser = quantity::duration, allow_hyphen_values = true)]
    pub(super) older_than: Option<Duration>,

    /// Memory that heapbpf may take, its kernel maps included: beyond it, the recording ends with a report.
    #[arg(help_heading = LIMITS, long, value_name = "BYTES", value_parser = quantity::memory)]
    pub(super) max_memory: Option<u64>,

    /// CPU time that heapbpf may take, in percent of one core: beyond it, it samples less, and if that does not help the
    /// recording ends with a report.
    #[arg(help_heading = LIMITS, long, value_name = "PERCENT", value_parser = quantity::percent)]
    pub(super) max_cpu: Option<f64>,

    /// CPU time that probes may take, in percent of the target's: a target of which they take more is let go, and the
    /// report says what was seen until then. See docs/overhead.md.
    #[arg(help_heading = LIMITS, long, value_name = "PERCENT", value_parser = quantity::percent)]
    pub(super) max_overhead: Option<f64>,

    /// Sampled blocks that can be live at once. Memory is used only for those that are.
    #[arg(help_heading = KERNEL, long, value_name = "BLOCKS", default_value_t = profiler_common::limits::LIVE_BLOCKS_DEFAULT)]
    pub(super) live_blocks: u32,
}

#[derive(Args, Clone, Debug)]
pub(super) struct DumpArgs {
    /// Dump after each such time (10s, 5m): numbered files beside those of `-o`, each about the time since the dump before. See
    /// docs/dumps.md. `kill -USR1` to heapbpf dumps at any time.
    #[arg(help_heading = DUMPS, long, value_name = "TIME", value_parser = quantity::period, allow_hyphen_values = true)]
    pub(super) dump_every: Option<Duration>,

    /// Dump when live bytes of all targets are so far above the most that they were at any dump.
    #[arg(help_heading = DUMPS, long, value_name = "BYTES", value_parser = quantity::amount)]
    pub(super) dump_on_growth: Option<u64>,

    /// Dump when so many bytes more were allocated, freed or not.
    #[arg(help_heading = DUMPS, long, value_name = "BYTES", value_parser = quantity::amount)]
    pub(super) dump_on_alloc: Option<u64>,

    /// At the end, also write what each target held when it held most, to `name.peak.svg` and the like.
    #[arg(help_heading = DUMPS, long)]
    pub(super) dump_at_peak: bool,

    /// After this time, set a mark: later dumps are about all since the mark and not since the dump before. `kill -USR2` to
    /// heapbpf sets one at any time. The last dump is written at the end.
    #[arg(help_heading = DUMPS, long, value_name = "TIME", value_parser = quantity::duration, allow_hyphen_values = true)]
    pub(super) mark: Option<Duration>,
}

impl DumpArgs {
    /// Whether there is to be any file beside those of `-o`.
    pub(super) fn any(&self) -> bool {
        self.dump_every.is_some()
            || self.dump_on_growth.is_some()
            || self.dump_on_alloc.is_some()
            || self.dump_at_peak
            || self.mark.is_some()
    }
}

#[derive(Args, Clone, Debug)]
pub(super) struct DoctorArgs {
    /// Process to look at: which functions would be probed, and where.
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    pub(super) pid: Option<u32>,

    /// Where in the allocator's functions probes would go (see `heapbpf --help`).
    #[arg(long, value_name = "WHERE", default_value = "auto", hide_possible_values = true)]
    pub(super) placement: Placement,

    /// Write JSON.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum HoldArg {
    Never,
    Execs,
    Forks,
}

impl From<HoldArg> for Hold {
    fn from(hold: HoldArg) -> Self {
        match hold {
            HoldArg::Never => Self::Never,
            HoldArg::Execs => Self::Execs,
            HoldArg::Forks => Self::Forks,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum OverloadArg {
    Drop,
    Adapt,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Unwind {
    Auto,
    Dwarf,
    Fp,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum BackendArg {
    Auto,
    Session,
    Multi,
    Perf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Placement {
    Auto,
    Entry,
}

impl From<Placement> for PlacementMode {
    fn from(placement: Placement) -> Self {
        match placement {
            Placement::Auto => Self::Auto,
            Placement::Entry => Self::Entry,
        }
    }
}

/// Whether a file that is to be written is a recording.
pub(super) fn is_recording(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(RECORDING_EXTENSION))
}

/// The file name extension of recordings, without the dot.
const RECORDING_EXTENSION: &str = "heapbpf";

pub(super) fn view_help() -> String {
    "What to show: `live-bytes` and `live-count` (not freed when recording stops), `alloc-bytes` and `alloc-count` \
     (everything allocated while recording)"
        .to_owned()
}
