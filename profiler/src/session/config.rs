//! What a session is to do.

use std::path::PathBuf;
use std::time::Duration;

use profiler_common::interval::Interval;

use super::overload::OverloadPolicy;
use super::triggers::DumpPlan;
use crate::allocator::hook_set::HookSet;
use crate::allocator::selection::HeapSelection;
use crate::collect::Method;
use crate::guardrail::Limits;
use crate::probe::attach::BackendChoice;
use crate::probe::place::PlacementMode;
use crate::process::selection::Selection;
use crate::units::EstimatedBytes;

/// What to record.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// The processes.
    pub selection: Selection,
    /// Processes that targets make by fork are targets too.
    pub follow_forks: bool,
    /// Functions of allocators that the user names.
    pub functions: HookSet,
    /// Heaps to watch.
    pub heaps: HeapSelection,
    /// Which processes that begin are held until their probes are in place.
    pub hold: Hold,
    /// Mean bytes between samples.
    pub interval: Interval,
    /// When to stop by itself, beside the end of all targets.
    pub duration: Option<Duration>,
    /// When to dump by itself.
    pub dumps: DumpPlan,
    /// Bytes of the ring buffer.
    pub ring_bytes: u32,
    /// Room in the live set.
    pub live_blocks_max: u32,
    /// What to do when there is more than can be followed.
    pub on_overload: OverloadPolicy,
    /// Where in their functions probes go.
    pub placement: PlacementMode,
    /// How stacks are unwound.
    pub unwind: UnwindMode,
    /// How probes are attached.
    pub backend: BackendChoice,
    /// Bytes that unwind tables may take in the kernel.
    pub unwind_bytes_max: u64,
    /// File to record to, and the bytes that it may take.
    pub recording: Option<(PathBuf, Option<u64>)>,
    /// Callsites are told apart by the threads that allocate.
    pub by_thread: bool,
    /// How old live blocks must be to be shown; `None` for all.
    pub older_than: Option<Duration>,
    /// What it may cost.
    pub limits: Limits,
    /// How targets are looked at for leaks when that is asked for; `None` where a request is for a dump.
    pub checks: Option<Method>,
    /// Copies of stacks to keep at a time, for checking the unwinder; 0 in any other recording, where none are made.
    pub raw_stacks_max: usize,
}

/// Which processes that begin are held until their probes are in place. To hold is to stop them by ptrace, unseen by their
/// parents, for the ten milliseconds or so that the kernel takes to place probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// None: what they allocate meanwhile is not seen.
    Never,
    /// Those that have called exec.
    Execs,
    /// Those that were made by a fork as well.
    Forks,
}

/// How stacks are unwound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnwindMode {
    /// By tables made from the modules' unwind information; by frame pointers in code that has none.
    Auto,
    /// By tables alone.
    Tables,
    /// By frame pointers alone.
    FramePointer,
}

/// Where a recording is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Since it began.
    pub elapsed: Duration,
    /// When it will stop.
    pub duration: Option<Duration>,
    /// Targets that run.
    pub targets: usize,
    /// Over the last period.
    pub events_per_second: f64,
    /// Of all targets.
    pub live_bytes: EstimatedBytes,
    /// Events lost, all reasons.
    pub lost: u64,
}
