//! A profile: a snapshot with names. Every report is made from this value alone.

use std::cmp::Reverse;
use std::sync::Arc;

use heapbpf_base::ids::Tid;
use profiler_common::stack::StackEnd;
use serde::{Deserialize, Serialize};

use super::health::Health;
use super::memory::{MemoryAccount, PAGES};
use super::process::{HookKind, HookStatus, Others, TargetFacts};
pub use crate::curve::CurvePoint;
use crate::details::Details;
pub use crate::timeline::SampleTrigger;
pub use crate::timeline::TimelinePoint;
pub use crate::totals::HeapUsage;
use heapbpf_base::units::{Amounts, EstimatedBytes, MonotonicNanos, RoundedSums, Rounding};

use crate::totals::Totals;

/// A recording, or a window of it.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The requested interval, in bytes.
    pub interval_bytes: u64,
    pub started_unix_ns: u64,
    pub ended_unix_ns: u64,
    /// `CLOCK_MONOTONIC` at `started_unix_ns`, to convert the ledger's times.
    pub started_monotonic_ns: u64,
    /// The part of the recording that the profile covers; `None` for all of it.
    pub window: Option<Window>,
    /// Minimum age of the live blocks to show, in nanoseconds; `None` for all.
    pub older_than_ns: Option<u64>,
    /// The patterns that selected callsites and frames, such as `focus=cache`; `None` for all.
    pub filter: Option<String>,
    /// The live blocks are the unreachable ones only: a leak report.
    pub unreachable: bool,
    /// Anything missing makes the profile incomplete.
    pub strict: bool,
    pub targets: Vec<TargetProfile>,
    /// Processes that match the selection and are not in `targets`.
    pub others: Others,
    /// All frames, without duplicates.
    pub frames: Vec<Frame>,
    /// Files whose code the targets executed, without duplicates.
    pub modules: Vec<ModuleProfile>,
    pub health: Health,
    /// Lines of source files around frames; empty where not requested.
    pub sources: Vec<SourcePiece>,
}

/// Consecutive lines of a source file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourcePiece {
    /// As in [`Frame::file`].
    pub file: Arc<str>,
    /// Number of the first line.
    pub line: u32,
    pub text: String,
}

#[derive(Clone, Debug)]
pub struct TargetProfile {
    pub facts: TargetFacts,
    /// Over all heaps.
    pub totals: Totals,
    pub heaps: Vec<HeapProfile>,
    /// Where its modules' code was mapped, by address. Includes unmapped ranges, so ranges can overlap.
    pub mappings: Vec<MappingProfile>,
    pub threads: Vec<ThreadProfile>,
    /// Empty where unknown.
    pub history: History,
    /// Where its resident memory was; empty where unknown.
    pub memory: Arc<MemoryAccount>,
    /// Growing callsites; `None` where growth was not computed.
    pub leaks: Option<Leaks>,
    /// By stack and heap.
    pub callsites: Vec<CallsiteProfile>,
}

#[derive(Clone, Debug)]
pub struct HeapProfile {
    /// `libc`, `jemalloc`, ….
    pub name: String,
    /// Its own interval, or the recording's, in bytes. 1 where every allocation is recorded.
    pub interval_bytes: u64,
    /// Largest interval during the recording, which overload can raise.
    pub interval_bytes_max: u64,
    pub hooks: Vec<HookStatus>,
    pub totals: Totals,
}

impl HeapProfile {
    /// Name of the heap of resident pages, which no function allocates.
    pub const PAGES: &str = PAGES;

    /// Name of the heap of Go programs, as their runtime has sampled it.
    pub const GO: &str = "go";

    pub fn is_pages(&self) -> bool {
        self.name == Self::PAGES
    }

    /// Whether no function is hooked for it.
    pub fn needs_no_hooks(&self) -> bool {
        self.is_pages() || self.name == Self::GO
    }
}

/// Index into [`Profile::frames`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(pub u32);

#[derive(Clone, Debug)]
pub struct CallsiteProfile {
    /// Number in the target's ledger, by which a callsite is followed from one profile of a recording to the next. In a profile
    /// that was read from a report, its position.
    pub index: u32,
    /// Leaf first; inlined calls are frames of their own. Empty where the stack was dropped.
    pub stack: Vec<FrameId>,
    /// Why the stack ends where it does; `None` where the stack was dropped.
    pub end: Option<StackEnd>,
    pub heap: usize,
    /// Index into the target's threads, where callsites are split by thread.
    pub thread: Option<usize>,
    /// The blocks were allocated by the parent, before the fork that created this process.
    pub inherited: bool,
    pub totals: Totals,
    /// Its live blocks older than the requested age; `None` where none was requested.
    pub older: Option<Amounts>,
    /// Ages, lifetimes and sizes. Those of a heap or a process are the sum of their callsites'.
    pub details: Details,
    /// How its counts become whole numbers: see [`Profile::round_sums`].
    pub rounding: Rounding,
    /// What it held at those points in time of the target's history at which it changed.
    pub history: Vec<Change>,
}

impl CallsiteProfile {
    /// Whether this stands for all callsites of its heap of which stacks were dropped.
    pub fn has_lost_stack(&self) -> bool {
        self.stack.is_empty() && self.end.is_none()
    }
}

/// A target's heap over time. Times are of the recording; estimates have the precision of a 64-bit float.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    pub curve: Vec<CurvePoint>,
    /// Points in time of [`CallsiteProfile::history`], in the order of time.
    pub instants: Vec<TimelinePoint>,
}

/// What a callsite holds from a point in time on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Index into [`History::instants`]; changes are in that order.
    pub instant: u32,
    pub held: HeapUsage,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Demangled name.
    pub function: Option<Arc<str>>,
    /// Path as the target sees it (`[vdso]` and the like for special modules).
    pub module: Option<Arc<str>>,
    pub file: Option<Arc<str>>,
    pub line: Option<u32>,
    /// The call was inlined into the next frame.
    pub inlined: bool,
    /// Return address in the target; 0 for interpreted functions.
    pub address: u64,
    pub module_offset: Option<u64>,
    /// Start of the function in the module's file, where its name is unknown but its range is not (`.eh_frame`).
    pub function_start: Option<u64>,
    pub kind: FrameKind,
}

/// What executes the code of a frame.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, strum::IntoStaticStr, strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub enum FrameKind {
    /// The processor: machine code of a file.
    #[default]
    Native,
    /// The processor: machine code of an interpreter or a runtime.
    Runtime,
    /// An interpreter.
    Interpreted,
    /// The processor: machine code that a just-in-time compiler generated.
    Jitted,
}

/// A file of code, or code of the kernel's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleProfile {
    /// As in [`Frame::module`].
    pub path: Arc<str>,
    pub build_id: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingProfile {
    pub start: u64,
    /// Exclusive.
    pub end: u64,
    pub offset: u64,
    /// Load bias: difference between an address and the ELF headers' value, where known.
    pub bias: Option<u64>,
    /// Index into [`Profile::modules`].
    pub module: usize,
}

/// A thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct ThreadProfile {
    /// Thread id.
    #[cfg_attr(any(test, feature = "testing"), schemars(with = "u32"))]
    pub tid: Tid,
    /// The kernel's name for the thread at its first recorded allocation; null where it had exited before it was read.
    pub name: Option<Arc<str>>,
}

/// Type of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct TypeName {
    /// Demangled name.
    pub name: Arc<str>,
    /// How the type was inferred.
    pub evidence: TypeEvidence,
}

/// How a type was inferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub enum TypeEvidence {
    /// The block's first word points into this type's virtual table.
    Vtable,
    /// A function in the stack is a template over, or generic over, this type: the block holds values of it.
    Stack,
}

/// A part of a recording. Allocated and freed amounts are of this part; inherited is what was live at its start, live what is
/// live at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct Window {
    /// Number of the window, from 1; null for the state at the peak.
    pub number: Option<u32>,
    /// Why the window ended.
    pub reason: WindowReason,
    /// Start, in nanoseconds since the Unix epoch: the end of the previous window, or the mark.
    pub start_unix_ns: u64,
    /// It starts at a mark.
    pub since_mark: bool,
    /// End, in nanoseconds since the Unix epoch.
    pub end_unix_ns: u64,
    /// Number of periodic dumps that were skipped because an earlier one was still being written.
    pub merged_count: u32,
}

/// Why a window ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr, strum::VariantArray)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub enum WindowReason {
    /// The dump period elapsed.
    Time,
    /// Live bytes grew by the configured amount.
    Growth,
    /// The configured amount was allocated.
    Alloc,
    /// On a signal.
    Signal,
    /// The recording ended.
    End,
    /// Not a window: every target at its peak of live bytes.
    Peak,
}

impl WindowReason {
    pub fn name(self) -> &'static str {
        self.into()
    }
}

pub fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

impl Profile {
    pub fn hooks(&self) -> impl Iterator<Item = (&HeapProfile, &HookStatus)> {
        self.targets
            .iter()
            .flat_map(|target| &target.heaps)
            .flat_map(|heap| heap.hooks.iter().map(move |hook| (heap, hook)))
    }

    pub fn callsites(&self) -> impl Iterator<Item = (&TargetProfile, &CallsiteProfile)> {
        self.targets.iter().flat_map(|target| target.callsites.iter().map(move |callsite| (target, callsite)))
    }

    pub fn is_exact(&self) -> bool {
        let mut heaps = self.targets.iter().flat_map(|target| &target.heaps).peekable();
        let folded = self.others.folded_interval_bytes;
        if heaps.peek().is_none() && folded.is_none() {
            return self.interval_bytes <= 1;
        }
        heaps.all(HeapProfile::is_exact) && folded.is_none_or(|bytes| bytes <= 1)
    }

    /// Chooses how counts of callsites are rounded where a format has whole numbers, so that sums are those of the estimates, and stay within
    /// their intervals. Depends on amounts only, and on the order of callsites with equal ones.
    pub fn round_sums(&mut self) {
        let mut sums = RoundedSums::default();
        for target in &mut self.targets {
            let mut order: Vec<usize> = (0..target.callsites.len()).collect();
            order.sort_by_cached_key(|&at| {
                let totals = &target.callsites[at].totals;
                // Reports have floating-point numbers, whose last bits may differ.
                Reverse([totals.live(), totals.allocated()].map(|it| (it.bytes.rounded(), it.count.rounded())))
            });
            for at in order {
                let callsite = &mut target.callsites[at];
                let live = callsite.older.unwrap_or_else(|| callsite.totals.live());
                callsite.rounding = sums.next([callsite.totals.alloc_count, live.count]);
            }
        }
    }

    /// The largest interval that was requested for a target, in bytes; 1 if it is exact.
    pub fn interval_bytes_of(&self, target: &TargetProfile) -> u64 {
        target.heaps.iter().map(|heap| heap.interval_bytes).max().unwrap_or(self.interval_bytes)
    }

    /// The largest interval that was requested for any target.
    pub fn interval_bytes_of_all(&self) -> u64 {
        let targets = self.targets.iter().map(|target| self.interval_bytes_of(target));
        targets.chain(self.others.folded_interval_bytes).max().unwrap_or(self.interval_bytes)
    }

    pub fn interval_bytes_of_folded(&self) -> u64 {
        self.others.folded_interval_bytes.unwrap_or(self.interval_bytes)
    }

    pub fn is_exact_of(&self, target: &TargetProfile) -> bool {
        match target.heaps.as_slice() {
            [] => self.interval_bytes <= 1,
            heaps => heaps.iter().all(HeapProfile::is_exact),
        }
    }

    pub fn is_exact_of_folded(&self) -> bool {
        self.interval_bytes_of_folded() <= 1
    }

    pub fn unix_ns(&self, time: MonotonicNanos) -> u64 {
        // A block can be older than the session's first reading of the clocks.
        match time.0.checked_sub(self.started_monotonic_ns) {
            Some(after) => self.started_unix_ns.saturating_add(after),
            None => self.started_unix_ns.saturating_sub(self.started_monotonic_ns - time.0),
        }
    }

    /// Panics if the id is of another profile.
    pub fn frame(&self, id: FrameId) -> &Frame {
        &self.frames[id.0 as usize]
    }
}

impl HeapProfile {
    /// Whether only allocations are known, because no hook that allocates knows an address.
    pub fn has_allocations_only(&self) -> bool {
        let mut allocating = self.hooks.iter().filter(|hook| hook.kind != HookKind::Freeing).peekable();
        allocating.peek().is_some() && allocating.all(|hook| hook.kind == HookKind::WithoutAddress)
    }

    pub fn is_exact(&self) -> bool {
        self.interval_bytes <= 1 && self.interval_bytes_max <= 1
    }
}

impl Frame {
    /// The function, or its start in the module: equal for all addresses of a function, if its range is known.
    pub fn label(&self) -> String {
        match (&self.function, &self.module, self.function_start.or(self.module_offset)) {
            (Some(function), _, _) => function.to_string(),
            // Its address means nothing elsewhere: nameless code of a process is one frame.
            (None, Some(module), None) if matches!(self.kind, FrameKind::Jitted | FrameKind::Interpreted) => {
                module.to_string()
            }
            (None, Some(module), Some(offset)) => format!("{}+{offset:#x}", base_name(module)),
            (None, Some(module), None) => format!("{}+?", base_name(module)),
            (None, None, _) => format!("{:#x}", self.address),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Leaks {
    pub span_ns: u64,
    /// The recording is too short for a statement on growth.
    pub too_short: bool,
    /// Growing callsites, by falling score: at most [`CANDIDATES_MAX`](crate::leak::growth::CANDIDATES_MAX).
    pub candidates: Vec<LeakCandidate>,
    /// Number of growing callsites, including suppressed and unlisted ones.
    pub count: usize,
    #[serde(skip)]
    pub suppressed_count: u64,
    #[serde(skip)]
    pub suppressed_bytes: EstimatedBytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeakCandidate {
    /// Index into the target's callsites: those of the ledger in a snapshot, the named ones in a profile.
    pub callsite: usize,
    pub bytes_per_second: f64,
    /// Half the width of the rate's 95 % confidence interval.
    pub margin: f64,
    /// Share of the live bytes that is older than half of the recording, from 0 to 1.
    pub old_share: f64,
    /// Share of the blocks allocated in the first half that is still live, from 0 to 1; `None` where there were none.
    pub survival: Option<f64>,
    /// Rank, in bytes per second.
    pub score: f64,
}
