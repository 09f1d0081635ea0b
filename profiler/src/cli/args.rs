//! Command line options, by group.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, anyhow};
use clap::Args;
use heapbpf_base::ids::Pid;
use heapbpf_base::shown::Shown;
use heapbpf_ledger::limit::CALLSITES_MAX;
use heapbpf_ledger::model::ScopeKind;
use heapbpf_linux::files;
use heapbpf_report::suppressions::Suppressions;
use profiler_common::interval::Interval;
use profiler_common::limits::LIVE_BLOCKS_DEFAULT;

use super::completion;
use super::exit::usage;
use super::report_args::{FilterArgs, OUTPUT, OutputArgs, PLACEMENT, PresentationArgs, VerdictArgs, listed};
use super::symbols::SymbolArgs;
use super::top_settings::TopSettings;
use super::values::{self, named};
use super::views::ViewArgs;
use crate::allocator::custom::CustomHook;
use crate::allocator::hook_set::built_in_names;
use crate::allocator::resolve::ALLOCATORS;
use crate::allocator::selection::HeapInterval;
use crate::bpf::load::{BackendChoice, LinkKind};
use crate::probe::place::PlacementMode;
use crate::process::cgroup::Cgroup;
use crate::process::pattern::Pattern;
use crate::recording::write::SIZE_BYTES_MIN;
use crate::session::{Engine, Hold, OverloadPolicy, ScopeChoice, UnwindMode};
use crate::symbolize::sources::Sources;

// Headings of the help, in the order of their first options below.
const TARGETS: &str = "What to profile";
const RECORDING: &str = "Recording";
const DUMPS: &str = "Dumps";
const LIMITS: &str = "Limits";
const KERNEL: &str = "Kernel side";

/// Overload policy as a function of `--interval-max`.
type PolicyOfMaximum = fn(Interval) -> OverloadPolicy;

const HOLD: [(&str, Hold); 3] = [("never", Hold::Never), ("execs", Hold::Execs), ("forks", Hold::Forks)];
const OVERLOAD: [(&str, PolicyOfMaximum); 2] = [("drop", |_| OverloadPolicy::Drop), ("adapt", OverloadPolicy::Adapt)];
const UNWIND: [(&str, UnwindMode); 3] =
    [("auto", UnwindMode::Auto), ("dwarf", UnwindMode::Tables), ("fp", UnwindMode::FramePointer)];
const BACKEND: [(&str, BackendChoice); 4] = [
    ("auto", BackendChoice::Auto),
    ("session", BackendChoice::Only(LinkKind::Session)),
    ("multi", BackendChoice::Only(LinkKind::Multi)),
    ("perf", BackendChoice::Only(LinkKind::Perf)),
];
const SCOPE: [(&str, ScopeChoice); 3] = [
    ("auto", ScopeChoice::Auto),
    ("process", ScopeChoice::Only(ScopeKind::Process)),
    ("inode", ScopeChoice::Only(ScopeKind::Inode)),
];
const ENGINE: [(&str, Engine); 2] = [("trap", Engine::Trap), ("inline", Engine::Inline)];
const MEMORY_BYTES_MIN: u64 = 1 << 20;

#[derive(Args, Clone, Debug)]
#[command(mut_arg("output", |output| output.long_help(
    "Write a report to FILE. May be given several times. The extension selects the format; `-` is standard output, as folded \
     text; `.heapbpf`, at most once, records every event for `heapbpf convert`. Without it, a flame graph and an HTML report, \
     `heapbpf-NAME-TIME.svg` and `.html`, are written to the current directory",
)))]
#[command(mut_arg("interval", |interval| interval.default_value_if("engine", "inline", "512KiB")))]
pub(super) struct RecordArgs {
    /// Process to profile, by its number or its name.
    ///
    /// A name must be that of one running program: otherwise, heapbpf lists those that match.
    #[arg(value_name = "PROGRAM_OR_PID", conflicts_with_all = ["pid", "cmdline", "cgroup", "all"], add = completion::programs_and_pids())]
    pub(super) process: Option<String>,

    /// Profile the process PID.
    ///
    /// May be given several times.
    #[arg(help_heading = TARGETS, short, long, value_name = "PID", value_parser = values::pid, conflicts_with = "all", allow_hyphen_values = true, add = completion::pids())]
    pub(super) pid: Vec<Pid>,

    /// Profile programs by name, also those started later.
    ///
    /// The name is the last path component of argv[0], cut at `@`; `*`, `?` and `[…]` match as in a shell. A pattern with a
    /// `/` matches the whole path. May be given several times.
    #[arg(help_heading = TARGETS, short, long, value_name = "PATTERN", add = completion::programs())]
    pub(super) cmdline: Vec<Pattern>,

    /// Profile the processes of a control group and of the groups below it: a path, or the first characters (at least 6)
    /// of a container's id. May be given several times.
    #[arg(help_heading = TARGETS, long, value_name = "GROUP")]
    pub(super) cgroup: Vec<Cgroup>,

    /// Profile every process that lives longer than 50 ms.
    #[arg(help_heading = TARGETS, short, long)]
    pub(super) all: bool,

    /// Exclude programs whose name matches PATTERN from `--cmdline`, `--cgroup` and `--all`. May be given several times.
    #[arg(help_heading = TARGETS, long, value_name = "PATTERN", add = completion::programs())]
    pub(super) exclude: Vec<Pattern>,

    /// Exclude processes with less resident memory than BYTES, until they grow beyond it.
    #[arg(help_heading = TARGETS, long, value_name = "BYTES", default_value = "0", hide_default_value = true, value_parser = values::size)]
    pub(super) min_rss: u64,

    /// Do not follow forks.
    #[arg(help_heading = TARGETS, long)]
    pub(super) no_follow_fork: bool,

    /// Leave out the inventory: blocks that the targets of `--pid`, `--cmdline` and `--cgroup` allocated before the recording.
    /// By default, heapbpf walks the heap of each (glibc, musl, jemalloc), so that live bytes are those of the whole process
    /// and frees of old blocks count; the process is stopped while its memory is copied, about 0.2 s per GiB.
    #[arg(help_heading = TARGETS, long)]
    pub(super) no_inventory: bool,

    /// Do not count the objects of Python programs by type. By default, heapbpf reads the heaps of their interpreters when the
    /// recording begins, from time to time, and for each report, while they run. See docs/types.md.
    #[arg(help_heading = TARGETS, long)]
    pub(super) no_types: bool,

    /// Take no inventory of a process with more resident memory, so that it is not stopped for long.
    #[arg(help_heading = TARGETS, long, value_name = "BYTES", default_value = "1GiB", value_parser = values::size, conflicts_with = "no_inventory")]
    pub(super) inventory_max: u64,

    /// Take no inventory of a process that would be stopped for longer than TIME: about 0.35 ms per thread and 0.2 s per GiB.
    /// If the stop takes longer than predicted, it is abandoned. The report then states which TIME would suffice.
    #[arg(help_heading = TARGETS, long, value_name = "TIME", default_value = "500ms", value_parser = values::duration, conflicts_with = "no_inventory", allow_hyphen_values = true)]
    pub(super) inventory_stop_max: Duration,

    /// Stop new processes for about 10 ms until their probes are attached, so that their first allocations are recorded:
    /// `execs` stops started programs, `forks` also forked copies of targets, `never` none. With `--all`, none is stopped.
    #[arg(help_heading = TARGETS, long, value_name = "WHICH", default_value = "execs", value_parser = named(HOLD), hide_possible_values = true)]
    pub(super) hold: Hold,

    /// Start a program with its arguments and profile it. Its streams, signals and exit code pass through.
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["process", "pid", "cmdline", "cgroup", "all"])]
    pub(super) command: Vec<OsString>,

    #[arg(help_heading = TARGETS, long, value_name = "NAME", help = heap_help())]
    pub(super) heap: Vec<String>,

    /// Exclude the heap NAME. May be given several times.
    #[arg(help_heading = TARGETS, long, value_name = "NAME")]
    pub(super) exclude_heap: Vec<String>,

    /// Probe a function of a custom allocator: `[HEAP=]MODULE:FUNCTION(ptr=ret,size=arg1)`. May be given several times; see
    /// docs/hooks.md.
    #[arg(help_heading = TARGETS, long, value_name = "SPEC")]
    pub(super) hook: Vec<CustomHook>,

    #[arg(help_heading = TARGETS, long, value_name = "FILE", help = hooks_help(), add = completion::hook_sets())]
    pub(super) hooks: Vec<String>,

    #[command(flatten)]
    pub(super) common: CommonArgs,

    /// Make Java virtual machines write `/tmp/perf-PID.map`: with `--unwind fp`, and for others than HotSpot. See docs/jit.md.
    #[arg(help_heading = RECORDING, long)]
    pub(super) jvm_perfmap: bool,

    /// Sample one heap at its own interval, such as `cuda=1`. May be given several times.
    #[arg(help_heading = RECORDING, long, value_name = "NAME=BYTES")]
    pub(super) heap_interval: Vec<HeapInterval>,

    /// Behaviour under overload: `adapt` raises the sampling interval until the load drops; `drop` keeps the interval and
    /// drops events. Reports record either.
    #[arg(help_heading = RECORDING, long, value_name = "HOW", default_value = "adapt", value_parser = named(OVERLOAD), hide_possible_values = true)]
    pub(super) on_overload: PolicyOfMaximum,

    /// Maximum interval of `--on-overload adapt`.
    #[arg(help_heading = RECORDING, long, value_name = "BYTES", default_value = "16MiB", value_parser = values::interval, allow_hyphen_values = true)]
    pub(super) interval_max: Interval,

    /// Limit a recording (`-o x.heapbpf`) to BYTES. Beyond that, its oldest part is reduced to totals, within which
    /// `convert` cannot select times. Unlimited by default.
    #[arg(help_heading = OUTPUT, long, value_name = "BYTES", value_parser = values::size_from(SIZE_BYTES_MIN))]
    pub(super) max_size: Option<u64>,

    #[command(flatten)]
    pub(super) verdict: VerdictArgs,

    #[command(flatten)]
    pub(super) views: ViewArgs,

    /// Set by `heapbpf top`.
    #[arg(skip)]
    pub(super) top: Option<TopSettings>,

    #[command(flatten)]
    pub(super) dumps: DumpArgs,

    /// Stop after TIME (10s, 5m, 1h30m).
    ///
    /// By default, recording stops at Ctrl-C, or when all targets have exited and no others can match.
    #[arg(help_heading = RECORDING, short, long, value_name = "TIME", value_parser = values::duration, allow_hyphen_values = true)]
    pub(super) duration: Option<Duration>,

    #[command(flatten)]
    pub(super) presentation: PresentationArgs,

    #[command(flatten)]
    pub(super) filter: FilterArgs,

    /// Start no symbolizer: frames have module and offset. Names can be added on any machine: `heapbpf symbolize`.
    #[arg(help_heading = super::symbols::HEADING, long, conflicts_with_all = ["debug_dir", "debuginfod"])]
    pub(super) no_symbolize: bool,

    /// Show only live blocks that are at least TIME old when recording stops. Totals still include all blocks.
    #[arg(help_heading = OUTPUT, long, value_name = "TIME", value_parser = values::duration, allow_hyphen_values = true)]
    pub(super) older_than: Option<Duration>,

    /// Stop recording and write the report when heapbpf uses more than BYTES of memory, kernel maps included. Unlimited
    /// by default.
    #[arg(help_heading = LIMITS, long, value_name = "BYTES", value_parser = values::size_from(MEMORY_BYTES_MIN))]
    pub(super) max_memory: Option<u64>,

    /// Limit heapbpf's own CPU time to PERCENT of one core. Beyond that, it raises the sampling interval; if that is not
    /// enough, it stops recording and writes the report. Unlimited by default.
    #[arg(help_heading = LIMITS, long, value_name = "PERCENT", value_parser = values::percent)]
    pub(super) max_cpu: Option<f64>,

    /// Limit the CPU time of probes to PERCENT of the target's. Beyond that, heapbpf detaches from the target and reports
    /// what it recorded until then. Unlimited by default; see docs/overhead.md.
    #[arg(help_heading = LIMITS, long, value_name = "PERCENT", value_parser = values::percent)]
    pub(super) max_overhead: Option<f64>,

    /// Maximum number of callsites of a process; all processes together have at most eight times as many. Allocations by
    /// further callsites are counted as `[other callsites]`: totals stay exact, and the report states how many they are.
    #[arg(help_heading = LIMITS, long, value_name = "NUMBER", default_value_t = CALLSITES_MAX, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) callsites_max: u32,

    /// Unwind stacks with HOW: `auto` uses the modules' unwind tables (.eh_frame), and frame pointers in code without
    /// tables; `dwarf` and `fp` use one of them only.
    #[arg(help_heading = KERNEL, long, value_name = "HOW", default_value = "auto", value_parser = named(UNWIND), hide_possible_values = true)]
    pub(super) unwind: UnwindMode,

    /// Attach probes with HOW: `session`, `multi` or `perf`; `auto` uses the first that the kernel supports.
    #[arg(help_heading = KERNEL, long, value_name = "HOW", default_value = "auto", value_parser = named(BACKEND), hide_possible_values = true)]
    pub(super) backend: BackendChoice,

    /// `trap`, or the cheaper `inline`.
    ///
    /// `trap` probes each function, about 1 µs per call; `inline` redirects calls to code that counts bytes, about 2 ns per call
    /// that is not sampled.
    #[arg(help_heading = RECORDING, long, value_name = "WHICH", default_value = "trap", value_parser = named(ENGINE), hide_possible_values = true)]
    pub(super) engine: Engine,

    /// Attach probes to WHICH processes: `process` is the targets, whose calls cost more with each further target; `inode` is
    /// all that map the same file, 1 to 2 µs per call of others; `auto` chooses the cheaper, and the report states why. Functions
    /// that may throw are always probed in all that map the file.
    #[arg(help_heading = KERNEL, long, value_name = "WHICH", default_value = "auto", value_parser = named(SCOPE), hide_possible_values = true)]
    pub(super) scope: ScopeChoice,

    /// Place probes at WHERE in the allocator's functions: `auto` is the first instruction that the kernel emulates, which
    /// costs least; `entry` is the first instruction.
    #[arg(help_heading = KERNEL, long, value_name = "WHERE", default_value = "auto", value_parser = named(PLACEMENT), hide_possible_values = true)]
    pub(super) placement: PlacementMode,

    /// Limit unwind tables to BYTES of kernel memory. Beyond that, tables of unused modules are removed first.
    #[arg(help_heading = KERNEL, long, value_name = "BYTES", default_value = "256MiB", value_parser = values::size_from(MEMORY_BYTES_MIN))]
    pub(super) unwind_memory: u64,

    #[command(flatten)]
    pub(super) kernel: KernelArgs,
}

#[derive(Args, Clone, Debug)]
pub(super) struct DumpArgs {
    /// Dump every TIME (10s, 5m): writes numbered files beside those of `-o`, each covering the time since the previous
    /// dump. `kill -USR1` to heapbpf dumps at any time. See docs/dumps.md.
    #[arg(help_heading = DUMPS, long, value_name = "TIME", value_parser = values::period, allow_hyphen_values = true)]
    pub(super) dump_every: Option<Duration>,

    /// Dump when the live bytes of all targets exceed their maximum at any previous dump by BYTES.
    #[arg(help_heading = DUMPS, long, value_name = "BYTES", value_parser = values::size_from(1))]
    pub(super) dump_on_growth: Option<u64>,

    /// Dump each time BYTES more have been allocated, freed or not.
    #[arg(help_heading = DUMPS, long, value_name = "BYTES", value_parser = values::size_from(1))]
    pub(super) dump_on_alloc: Option<u64>,

    /// Write the peak of each target's live bytes to `name.peak.svg` and the like, when recording ends.
    #[arg(help_heading = DUMPS, long)]
    pub(super) dump_at_peak: bool,

    /// Set a mark after TIME: later dumps cover the time since the mark instead of since the previous dump, and the last
    /// one is written at the end. `kill -USR2` to heapbpf sets a mark at any time.
    #[arg(help_heading = DUMPS, long, value_name = "TIME", value_parser = values::duration, allow_hyphen_values = true)]
    pub(super) mark: Option<Duration>,
}

impl DumpArgs {
    /// Whether the session writes files beside those of `-o`.
    pub(super) fn any(&self) -> bool {
        let times = self.dump_every.or(self.mark).is_some();
        times || self.dump_on_growth.or(self.dump_on_alloc).is_some() || self.dump_at_peak
    }
}

// Options of all commands that attach probes.
#[derive(Args, Clone, Debug)]
pub(super) struct CommonArgs {
    /// Mean bytes between samples; 1 is exact [default: 4KiB].
    ///
    /// 1 records every allocation; a larger interval costs less and gives estimates. Units: KiB and MiB are powers of 1024, k and M of 1000
    /// [default: 4KiB; with `--engine inline`: 512KiB]
    #[arg(help_heading = RECORDING, short, long, value_name = "BYTES", default_value = "4KiB", hide_default_value = true, value_parser = values::interval, allow_hyphen_values = true)]
    pub(super) interval: Interval,

    #[command(flatten)]
    pub(super) output: OutputArgs,

    #[command(flatten)]
    pub(super) symbols: SymbolArgs,

    /// Show functions of JavaScript as they are executed, instead of the sources that their source maps have. See docs/javascript.md.
    #[arg(help_heading = super::symbols::HEADING, long)]
    pub(super) no_source_maps: bool,

    /// Read suppressions in LeakSanitizer's syntax (`leak:PATTERN`) from FILE. Growing callsites with a frame whose
    /// function, module or source file matches are not listed as leak candidates. May be given several times.
    #[arg(help_heading = OUTPUT, long, value_name = "FILE")]
    pub(super) suppressions: Vec<PathBuf>,
}

/// Maximum size of a suppressions file. Chromium's has 10 KiB.
const SUPPRESSIONS_BYTES_MAX: u64 = 16 << 20;

impl CommonArgs {
    /// Sources of names. Fails if the environment names something else than servers.
    pub(super) fn sources(&self, quiet: bool) -> Result<Sources> {
        Ok(Sources { no_source_maps: self.no_source_maps, ..self.symbols.sources(quiet)? })
    }

    pub(super) fn read_suppressions(&self) -> Result<Suppressions> {
        let mut suppressions = Suppressions::default();
        for path in &self.suppressions {
            let shown = Shown::of(path);
            let text = files::read_text(path, SUPPRESSIONS_BYTES_MAX)
                .map_err(|error| anyhow!("cannot read suppressions from `{shown}`: {error}"))?;
            suppressions.extend(Suppressions::parse(&text).map_err(|error| usage(format!("`{shown}`, {error}")))?);
        }
        Ok(suppressions)
    }
}

// Options of all commands that attach probes, last in the help.
#[derive(Args, Clone, Debug)]
pub(super) struct KernelArgs {
    /// Size of the ring buffer for events from the kernel, a power of two. A larger one absorbs longer bursts.
    #[arg(help_heading = KERNEL, long, value_name = "BYTES", default_value = "16MiB", value_parser = values::ring_size)]
    pub(super) ring_size: u32,

    /// Maximum number of sampled blocks that are live at once. Memory is used only for blocks that exist (before Linux
    /// 6.1 for all, at most a quarter of what is available).
    #[arg(help_heading = KERNEL, long, value_name = "BLOCKS", default_value_t = LIVE_BLOCKS_DEFAULT)]
    pub(super) live_blocks: u32,
}

fn heap_help() -> String {
    format!(
        "Profile the heap NAME only: {}, or another that reports name. May be given several times. The default, `all`, is \
         every heap except `mmap` (mmap, munmap, mremap and sbrk), which must be named explicitly, and the resident pages that \
         no heap has. `pages` alone records all resident pages by the stack that touched them first, and probes no function: who \
         makes memory grow, in any language. `go` reads the heap profile that the runtime of Go keeps since the program began: live \
         objects by the stack that allocated them, without a probe",
        listed(ALLOCATORS.iter().rev().map(|allocator| allocator.heap))
    )
}

fn hooks_help() -> String {
    let built_in = listed(built_in_names());
    format!("Read such functions from a TOML file, or use a built-in set: {built_in}. May be given several times")
}
