//! Configuration of a session.

use std::path::PathBuf;
use std::time::Duration;

use profiler_common::interval::Interval;
use profiler_common::limits::LIVE_BLOCKS_DEFAULT;

use super::overload::OverloadPolicy;
use super::windows::DumpPlan;
use crate::allocator::hook_set::HookSet;
use crate::allocator::selection::HeapSelection;
use crate::collect::Method;
use crate::guardrail::Limits;
use crate::model::ScopeKind;
use crate::probe::attach::BackendChoice;
use crate::probe::place::PlacementMode;
use crate::process::selection::Selection;

/// What to record, and how. The defaults are those of `heapbpf record`, without any target.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Processes to record.
    pub selection: Selection,
    /// Record children that targets fork.
    pub follow_forks: bool,
    /// Allocator functions named by the user.
    pub functions: HookSet,
    /// Heaps to record, and their intervals.
    pub heaps: HeapSelection,
    /// Which new processes are stopped until their probes are attached.
    pub hold: Hold,
    /// Mean bytes between samples.
    pub interval: Interval,
    /// Maximum duration of the recording.
    pub duration: Option<Duration>,
    /// When to dump.
    pub dumps: DumpPlan,
    /// Size of the ring buffer.
    pub ring_bytes: u32,
    /// Capacity of the live set.
    pub live_blocks_max: u32,
    /// Behaviour under overload.
    pub on_overload: OverloadPolicy,
    /// Which instruction of a function is probed.
    pub placement: PlacementMode,
    /// How stacks are unwound.
    pub unwind: UnwindMode,
    /// How probes are attached.
    pub backend: BackendChoice,
    /// Which processes meet the probes.
    pub(crate) scope: ScopeChoice,
    /// Kernel memory for unwind tables.
    pub unwind_bytes_max: u64,
    /// File to record events to, and its maximum size.
    pub recording: Option<(PathBuf, Option<u64>)>,
    /// Keep callsites of different threads apart.
    pub by_thread: bool,
    /// Minimum age of live blocks in reports; `None` for all blocks.
    pub older_than: Option<Duration>,
    /// Cost limits.
    pub limits: Limits,
    /// How to take heap snapshots of targets for leak checks on request; `None` if requests take dumps.
    pub checks: Option<Method>,
    /// Number of raw stack copies to keep for verifying the unwinder; 0 disables copying.
    pub raw_stacks_max: usize,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            selection: Selection::default(),
            follow_forks: true,
            functions: HookSet::default(),
            heaps: HeapSelection::default(),
            hold: Hold::Execs,
            interval: Interval::nearest(4 << 10),
            duration: None,
            dumps: DumpPlan::default(),
            ring_bytes: 16 << 20,
            live_blocks_max: LIVE_BLOCKS_DEFAULT,
            on_overload: OverloadPolicy::Adapt(Interval::nearest(16 << 20)),
            placement: PlacementMode::Auto,
            unwind: UnwindMode::Auto,
            backend: BackendChoice::Auto,
            scope: ScopeChoice::Auto,
            unwind_bytes_max: 256 << 20,
            recording: None,
            by_thread: false,
            older_than: None,
            limits: Limits::default(),
            checks: None,
            raw_stacks_max: 0,
        }
    }
}

/// Which new processes are stopped until their probes are attached. They are stopped by ptrace, invisibly to their parents, for
/// about ten milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// None: allocations before the probes are attached are missed.
    Never,
    /// Processes that called exec.
    Execs,
    /// Forked children as well.
    Forks,
}

/// Which processes meet the probes: see [`Scope`](super::scope::Scope).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScopeChoice {
    /// The cheaper for the machine as a whole.
    Auto,
    Only(ScopeKind),
}

/// How stacks are unwound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnwindMode {
    /// By tables built from the modules' unwind information; by frame pointers in code without it.
    Auto,
    /// By tables only.
    Tables,
    /// By frame pointers only.
    FramePointer,
}
