//! Types of the JSON report, for its writer and its reader. `docs/report.schema.json` is generated from them: the doc
//! comment of a type or a field is its description there.

use std::borrow::Cow;

use heapbpf_ledger::model::{self, HookStatus, Inventory, Overhead, Profile, Rights, Skipped, ThreadProfile, Window};
#[cfg(test)]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::memory::Memory;
use super::values::{Amount, Hex};
use super::verdict::HealthAndVerdict;

/// Version of the report's shape. Raised by incompatible changes; a new field alone does not raise it.
pub(crate) const VERSION: u32 = 1;

/// What `heapbpf -o FILE.json` writes. Fields may be added; reports of earlier versions of heapbpf can lack some of those
/// that are required here. Counts and bytes are of blocks as requested by the target; times are in nanoseconds.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct Report<'a, Targets = Vec<Target<'a>>> {
    /// Version of this shape. Raised by incompatible changes; a new field alone does not raise it.
    pub(super) version: u32,
    /// The recording's mean bytes between samples; 1 where every allocation is recorded.
    pub(super) interval_bytes: u64,
    /// Start of the recording, in nanoseconds since the Unix epoch.
    pub(super) started_unix_ns: u64,
    /// Time of the report's state, in nanoseconds since the Unix epoch.
    pub(super) ended_unix_ns: u64,
    /// With `--older-than`: minimum age of the blocks that callsites' `older_…` count, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) older_than_ns: Option<u64>,
    /// With `--focus`, `--ignore`, `--hide` or `--only-module`: the patterns that selected callsites and frames.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    pub(super) filter: Option<Cow<'a, str>>,
    /// The part of the recording that the report covers; null for all of it.
    pub(super) window: Option<Window>,
    /// The profiled processes.
    #[cfg_attr(test, schemars(with = "Vec<Target<'_>>"))]
    pub(super) targets: Targets,
    /// Processes that match the selection and are not in `targets`.
    pub(super) others: Others<'a>,
    /// Files whose code the targets executed, without duplicates.
    #[serde(default)]
    pub(super) modules: Vec<Module<'a>>,
    /// Whether the profile is complete, what is missing, and the cost of profiling.
    pub(super) health: HealthAndVerdict,
}

/// A process. A pid can occur several times: once for each program that the process executed.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct Target<'a, Callsites = Vec<Callsite<'a>>> {
    /// Process id.
    pub(super) pid: u32,
    /// `argv[0]`.
    pub(super) command: Cow<'a, str>,
    /// The kernel's name for the process, at most 15 bytes.
    #[cfg_attr(test, schemars(with = "String"))]
    pub(super) comm: Option<Cow<'a, str>>,
    /// Control group, as heapbpf sees the path; null where the kernel does not report one.
    pub(super) cgroup: Option<Cow<'a, str>>,
    /// With which rights it opened files, by which `heapbpf convert --source` opens what it names; null where they are not known.
    #[serde(default)]
    pub(super) rights: Option<Cow<'a, Rights>>,
    /// How and when the process became a target.
    pub(super) beginning: Beginning,
    /// The process exited during the recording.
    pub(super) exited: bool,
    /// Exit status, or 128 plus the signal; null while the process runs and where the kernel does not report it.
    pub(super) exit_code: Option<i32>,
    /// The process executed another program, which is a target of its own.
    #[serde(default)]
    pub(super) replaced: bool,
    /// When its probes were detached because they exceeded a limit, in nanoseconds since the Unix epoch. All other fields
    /// are as of then.
    pub(super) detached_unix_ns: Option<u64>,
    /// Cost of the probes, where known.
    pub(super) overhead: Option<Overhead>,
    /// Totals of the process.
    pub(super) totals: TotalsAndDetails,
    /// Totals by heap.
    pub(super) heaps: Vec<Heap<'a>>,
    /// Totals over time, in the order of time.
    #[serde(default)]
    pub(super) curve: Vec<CurvePoint>,
    /// Where its resident memory was; null where unknown.
    #[serde(default)]
    pub(super) memory: Option<Memory<'a>>,
    /// Blocks from before the recording; null where none were requested.
    #[serde(default)]
    pub(super) inventory: Option<Cow<'a, Inventory>>,
    /// Where the modules' code was mapped, by rising address; ranges can overlap.
    #[serde(default)]
    pub(super) mappings: Vec<Mapping>,
    /// Threads that callsites refer to.
    #[serde(default)]
    pub(super) threads: Cow<'a, [ThreadProfile]>,
    /// Growing callsites; null where growth was not computed.
    pub(super) leak_candidates: Option<LeakCandidates<'a>>,
    /// Totals by stack and heap, the largest by the view first.
    #[cfg_attr(test, schemars(with = "Vec<Callsite<'_>>"))]
    pub(super) callsites: Callsites,
}

/// How and when a process became a target.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct Beginning {
    /// `running`: it ran already. `fork`: a target forked it. `exec`: a target executed it. `launch`: heapbpf started it.
    pub(super) origin: Origin,
    /// Pid of the target that forked it.
    pub(super) parent: Option<u32>,
    /// When its probes were attached, in nanoseconds since the Unix epoch.
    pub(super) unix_ns: u64,
    /// How long the program, or the copy of its parent, had existed by then; null where unknown.
    pub(super) delay_ns: Option<u64>,
    /// The probes were attached before the first allocation.
    pub(super) from_first_call: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(test, derive(JsonSchema), schemars(inline))]
pub(crate) enum Origin {
    Running,
    Fork,
    Exec,
    Launch,
}

impl From<model::Origin> for Origin {
    fn from(origin: model::Origin) -> Self {
        match origin {
            model::Origin::Running => Self::Running,
            model::Origin::Forked(_) => Self::Fork,
            model::Origin::Executed => Self::Exec,
            model::Origin::Launched => Self::Launch,
        }
    }
}

/// Blocks and bytes allocated, freed and live. Amounts are integers where every allocation is recorded.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct Totals {
    /// Blocks live at the start: a forked process's copies of its parent's, or those from before the recording; in a window
    /// those live at its start.
    pub(super) inherited_count: Amount,
    /// Bytes of the inherited blocks.
    pub(super) inherited_bytes: Amount,
    /// Blocks allocated.
    pub(super) alloc_count: Amount,
    /// Bytes allocated.
    pub(super) alloc_bytes: Amount,
    /// Blocks freed, of those inherited or allocated during the recording.
    pub(super) free_count: Amount,
    /// Bytes freed.
    pub(super) free_bytes: Amount,
    /// Blocks live at the end: inherited + alloc − free.
    pub(super) live_count: Amount,
    /// Bytes live at the end.
    pub(super) live_bytes: Amount,
    /// Number of samples behind the allocated amounts.
    pub(super) alloc_samples: u64,
    /// Number of samples behind the live amounts.
    pub(super) live_samples: u64,
    /// 95 % confidence interval of `alloc_count`, where that is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) alloc_count_95: Option<[f64; 2]>,
    /// 95 % confidence interval of `alloc_bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) alloc_bytes_95: Option<[f64; 2]>,
    /// 95 % confidence interval of `live_count`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) live_count_95: Option<[f64; 2]>,
    /// 95 % confidence interval of `live_bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) live_bytes_95: Option<[f64; 2]>,
    /// Variance of `alloc_count`, in blocks². Variances can be summed over callsites, unlike confidence intervals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) alloc_count_variance: Option<f64>,
    /// Variance of `alloc_bytes`, in bytes².
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) alloc_bytes_variance: Option<f64>,
    /// Variance of `live_count`, in blocks².
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) live_count_variance: Option<f64>,
    /// Variance of `live_bytes`, in bytes².
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) live_bytes_variance: Option<f64>,
    /// Third cumulant of the error of `alloc_count`, in blocks³. Third cumulants can be summed like variances.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) alloc_count_third_cumulant: Option<f64>,
    /// Third cumulant of the error of `alloc_bytes`, in bytes³.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) alloc_bytes_third_cumulant: Option<f64>,
    /// Third cumulant of the error of `live_count`, in blocks³.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) live_count_third_cumulant: Option<f64>,
    /// Third cumulant of the error of `live_bytes`, in bytes³.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) live_bytes_third_cumulant: Option<f64>,
    /// Maximum of live bytes at this callsite, heap or process since the recording started.
    pub(super) peak_bytes: Amount,
    /// Blocks live at that maximum.
    #[serde(default)]
    pub(super) peak_count: Amount,
    /// Time of that maximum, in nanoseconds since the Unix epoch; null where nothing was ever live or the time is unknown.
    pub(super) peak_unix_ns: Option<u64>,
    /// Blocks live at the maximum of the process's live bytes. These sum up over callsites.
    #[serde(default)]
    pub(super) at_peak_count: Amount,
    /// Bytes live at the maximum of the process's live bytes.
    #[serde(default)]
    pub(super) at_peak_bytes: Amount,
    /// In a window: blocks live at its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) live_start_count: Option<Amount>,
    /// In a window: bytes live at its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) live_start_bytes: Option<Amount>,
    /// In a window: change of the live blocks from its start to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) delta_count: Option<Amount>,
    /// In a window: change of the live bytes from its start to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) delta_bytes: Option<Amount>,
}

/// Ages, lifetimes and sizes of blocks. Histograms are lists of buckets by rising value, without empty ones; a bucket
/// covers values up to twice its smallest one.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct Details {
    /// Age of the oldest live block, in nanoseconds; null where nothing is live.
    pub(super) age_ns_oldest: Option<u64>,
    /// Median age of the live blocks, in nanoseconds; null where nothing is live.
    pub(super) age_ns_median: Option<u64>,
    /// Sum of the ages of all live blocks, in nanoseconds.
    pub(super) age_ns_total: Amount,
    /// Live blocks by age in nanoseconds.
    pub(super) age_histogram: Vec<Bucket>,
    /// Sum of the lifetimes of all freed blocks, in nanoseconds.
    pub(super) lifetime_ns_total: Amount,
    /// Freed blocks by lifetime in nanoseconds.
    pub(super) lifetime_histogram: Vec<Bucket>,
    /// Allocated blocks by size in bytes.
    pub(super) size_histogram: Vec<Bucket>,
    /// Blocks that their thread freed before its next allocation on the same heap; null unless every allocation is
    /// recorded.
    pub(super) temporary_count: Option<u64>,
}

/// A bucket's smallest value, and the number of blocks in the bucket.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct Bucket(pub(super) u64, pub(super) Amount);

/// Totals with details of blocks.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct TotalsAndDetails {
    #[serde(flatten)]
    pub(super) totals: Totals,
    #[serde(flatten)]
    pub(super) details: Details,
}

/// Time in nanoseconds since the Unix epoch; live bytes; live blocks; bytes and blocks allocated since the recording
/// started.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct CurvePoint(
    pub(super) u64,
    pub(super) Amount,
    pub(super) Amount,
    pub(super) Amount,
    pub(super) Amount,
);

/// A heap of a target.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct Heap<'a> {
    /// `libc`, `jemalloc`, `mmap`, ….
    pub(super) name: Cow<'a, str>,
    /// Mean bytes between samples; 1 where every allocation is recorded.
    pub(super) interval_bytes: u64,
    /// Largest interval during the recording, which overload can raise.
    #[serde(default)]
    pub(super) interval_bytes_max: u64,
    /// The allocator functions of the heap.
    pub(super) hooks: Vec<Hook<'a>>,
    #[serde(flatten)]
    pub(super) amounts: TotalsAndDetails,
}

/// A hooked allocator function.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct Hook<'a> {
    #[serde(flatten)]
    pub(super) status: Cow<'a, HookStatus>,
    /// The hook was attached.
    pub(super) attached: bool,
}

/// Totals of a stack and heap.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct Callsite<'a> {
    /// Frames, leaf first. The leaf is the caller of the allocator function. Empty where the stack was dropped.
    pub(super) stack: Vec<Frame<'a>>,
    /// How unwinding ended: `complete`, or why the stack is truncated (`truncated`, `broken_chain`, …); null where the
    /// stack was dropped.
    pub(super) end: Option<Cow<'a, str>>,
    /// Name of the heap.
    pub(super) heap: Option<Cow<'a, str>>,
    /// Index into the target's `threads`; null where callsites are not split by thread.
    pub(super) thread: Option<usize>,
    /// The blocks were allocated by the parent, before the fork that created this process.
    #[serde(default)]
    pub(super) inherited: bool,
    #[serde(flatten)]
    pub(super) amounts: TotalsAndDetails,
    /// Live blocks older than `older_than_ns`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) older_count: Option<Amount>,
    /// Bytes of the live blocks older than `older_than_ns`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) older_bytes: Option<Amount>,
}

/// A stack frame.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct Frame<'a> {
    /// Demangled name of the function.
    pub(super) function: Option<Cow<'a, str>>,
    /// Path of the module as the target sees it, or `[vdso]` and the like.
    pub(super) module: Option<Cow<'a, str>>,
    /// Source file.
    pub(super) file: Option<Cow<'a, str>>,
    /// Line in the source file, from 1.
    pub(super) line: Option<u32>,
    /// The call was inlined into the next frame of the stack.
    pub(super) inlined: bool,
    /// Return address in the target, in hexadecimal. Absent from differences of profiles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) address: Option<Hex>,
    /// Offset of the address in the module's file, in hexadecimal.
    pub(super) module_offset: Option<Hex>,
    /// Offset of the function's start in the module's file, in hexadecimal; absent if the function has a name, or its start is
    /// unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) function_start: Option<Hex>,
    /// What executes the frame's code; absent if it is machine code of a file.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(super) kind: model::FrameKind,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl<'a> Frame<'a> {
    /// The stack's frames with their addresses.
    pub(crate) fn of_stack(profile: &'a Profile, stack: &[model::FrameId]) -> Vec<Self> {
        let frames = stack.iter().map(|&id| profile.frame(id));
        frames.map(|frame| Self { address: Some(Hex(frame.address)), ..Self::without_address(frame) }).collect()
    }

    pub(crate) fn without_address(frame: &'a model::Frame) -> Self {
        Self {
            function: frame.function.as_deref().map(Cow::Borrowed),
            module: frame.module.as_deref().map(Cow::Borrowed),
            file: frame.file.as_deref().map(Cow::Borrowed),
            line: frame.line,
            inlined: frame.inlined,
            kind: frame.kind,
            address: None,
            module_offset: frame.module_offset.map(Hex),
            function_start: frame.function_start.map(Hex),
        }
    }
}

/// Growing callsites of a target.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct LeakCandidates<'a> {
    /// Observed time span, in nanoseconds.
    pub(super) span_ns: u64,
    /// The recording is too short for a statement on growth.
    pub(super) too_short: bool,
    /// Number of growing callsites, including suppressed and unlisted ones.
    pub(super) growing_count: usize,
    /// Number of callsites that suppressions match.
    pub(super) suppressed_count: u64,
    /// Live bytes of the suppressed callsites.
    pub(super) suppressed_bytes: Amount,
    /// The listed callsites, by falling score.
    pub(super) candidates: Vec<LeakCandidate<'a>>,
}

/// A growing callsite.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct LeakCandidate<'a> {
    /// Index into the target's `callsites`.
    #[cfg_attr(test, schemars(with = "usize"))]
    pub(super) callsite: Option<usize>,
    /// Frames, leaf first.
    pub(super) stack: Vec<Frame<'a>>,
    /// Name of the heap.
    pub(super) heap: Option<Cow<'a, str>>,
    /// Growth rate of the live bytes.
    pub(super) bytes_per_second: f64,
    /// Half the width of the rate's 95 % confidence interval.
    pub(super) bytes_per_second_margin_95: f64,
    /// Live bytes.
    #[serde(default)]
    pub(super) live_bytes: f64,
    /// Live blocks.
    #[serde(default)]
    pub(super) live_count: f64,
    /// Age of the oldest live block, in nanoseconds.
    pub(super) age_ns_oldest: Option<u64>,
    /// Share of the live bytes that is older than half of the recording, from 0 to 1.
    pub(super) old_share: f64,
    /// Share of the blocks allocated in the first half of the recording that is still live, from 0 to 1; null where there
    /// were none.
    pub(super) survival: Option<f64>,
    /// Rank of the candidate, in bytes per second.
    pub(super) score: f64,
}

/// A mapped range of a module's code.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct Mapping {
    /// First address.
    pub(super) start: Hex,
    /// End address, exclusive.
    pub(super) end: Hex,
    /// Offset of the range in the module's file.
    pub(super) offset: Hex,
    /// Load bias: difference between an address and the file's symbol values; null where unknown.
    pub(super) bias: Option<Hex>,
    /// Index into the report's `modules`.
    pub(super) module: usize,
}

/// A mapped file with code.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct Module<'a> {
    /// Path as the targets see it.
    pub(super) path: Cow<'a, str>,
    /// GNU build id, in hexadecimal.
    pub(super) build_id: Option<Cow<'a, str>>,
}

/// Processes that match the selection and are not in `targets`.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct Others<'a> {
    /// The first processes that could not be profiled.
    pub(super) skipped: Cow<'a, [Skipped]>,
    /// Number of processes that could not be profiled.
    pub(super) skipped_count: u64,
    /// Number of processes that exited before their probes were attached.
    pub(super) short_lived_count: u64,
    /// Number of forked processes whose inherited blocks did not fit into the live set.
    pub(super) not_inherited_count: u64,
    /// Number of exited processes of which only totals are kept.
    pub(super) folded_count: u64,
    /// Largest interval of their heaps; null where they had no heaps.
    pub(super) folded_interval_bytes: Option<u64>,
    /// Totals of these processes.
    pub(super) folded_totals: Totals,
}
