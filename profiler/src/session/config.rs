//! Interface between a session and its caller: configuration and requests in, progress and results out.

use std::fmt::Debug;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use bytesize::ByteSize;
use heapbpf_base::units::EstimatedBytes;
use heapbpf_ledger::CallsiteLimit;
use heapbpf_ledger::limit::{self, CALLSITES_MAX};
use heapbpf_ledger::model::ScopeKind;
use heapbpf_linux::memory;
use profiler_common::interval::Interval;
use profiler_common::limits::LIVE_BLOCKS_DEFAULT;
use profiler_common::unwind::RowCell;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tracing::warn;

use super::overload::OverloadPolicy;
use super::windows::DumpPlan;
use crate::allocator::hook_set::HookSet;
use crate::allocator::selection::HeapSelection;
use crate::bpf::footprint::{KernelMaps, live_blocks_max};
use crate::bpf::load::{BackendChoice, LinkKind, possible_cpus};
use crate::check::heap_snapshot::HeapSnapshot;
use crate::collect::Method;
use crate::guardrail::Limits;
use crate::probe::place::PlacementMode;
use crate::process::selection::{ProcessFacts, Selection};
use crate::snapshot::Snapshot;

/// Divisor of the memory left in heapbpf's control group: empty kernel maps may take a quarter of it, and callsites
/// another.
const GROUP_SHARE: u64 = 4;
/// Memory of a callsite until its report is written: 2 to 4 KiB, with stacks of 20 frames, in JSON and a flame graph.
const CALLSITE_BYTES: u64 = 4 << 10;
/// Maximum memory that is used until the recording begins, with the smallest maps: 40 MiB by the kernel, to verify
/// heapbpf's programs, and the rest by the agent. Measured on Linux 6.18: with 65 MiB, the kernel kills heapbpf
/// meanwhile.
const START_BYTES: u64 = 66 << 20;

/// Configuration of a session. The defaults are those of `heapbpf record`, without any target.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    pub selection: Selection,
    pub follow_forks: bool,
    /// Allocator functions named by the user.
    pub functions: HookSet,
    pub heaps: HeapSelection,
    pub hold: Hold,
    /// Mean bytes between samples.
    pub interval: Interval,
    pub duration: Option<Duration>,
    pub dumps: DumpPlan,
    pub ring_bytes: u32,
    pub live_blocks_max: u32,
    pub on_overload: OverloadPolicy,
    pub placement: PlacementMode,
    pub unwind: UnwindMode,
    pub backend: BackendChoice,
    pub engine: Engine,
    /// Suggest the inline engine where it would help.
    pub hints: bool,
    /// Report the overhead of probes and the callsite that grows most in [`Progress`]. Measuring a probe takes a third of a
    /// second.
    pub detailed_progress: bool,
    pub scope: ScopeChoice,
    pub unwind_bytes_max: u64,
    /// File to record events to, and its maximum size.
    pub recording: Option<(PathBuf, Option<u64>)>,
    pub by_thread: bool,
    /// Minimum age of live blocks in reports; `None` for all blocks.
    pub older_than: Option<Duration>,
    pub limits: Limits,
    /// Maximum number of callsites of a target; all targets together have four times as many. Further callsites share
    /// one per heap.
    pub callsites_max: u32,
    /// Count selected programs that were missed or recorded late as losses, as is always done for a launched command.
    pub counts_programs: bool,
    /// Maximum resident memory of a running process whose heap is walked, so that the profile contains its live blocks.
    /// 0 disables walks.
    pub inventory_bytes_max: u64,
    /// Whether objects of runtimes are counted by type.
    pub object_types: bool,
    /// Maximum time for which a process is stopped to take its inventory.
    pub inventory_stop_max: Duration,
    /// Make Java virtual machines write perf maps.
    pub jvm_perf_maps: bool,
    /// Time between scans for processes that have become large or old enough.
    pub scan_period: Duration,
    /// Decides about each selected process; `None` records all with `engine`.
    pub policy: Option<Arc<dyn Policy>>,
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
            engine: Engine::Trap,
            hints: false,
            detailed_progress: false,
            scope: ScopeChoice::Auto,
            unwind_bytes_max: 256 << 20,
            recording: None,
            by_thread: false,
            older_than: None,
            limits: Limits::default(),
            callsites_max: CALLSITES_MAX,
            counts_programs: false,
            inventory_bytes_max: 1 << 30,
            object_types: true,
            inventory_stop_max: Duration::from_millis(500),
            jvm_perf_maps: false,
            scan_period: Duration::from_secs(1),
            policy: None,
            checks: None,
            raw_stacks_max: 0,
        }
    }
}

impl SessionConfig {
    pub(super) fn treatment(&self, facts: &ProcessFacts) -> Treatment {
        self.policy.as_ref().map_or(Treatment::Record(self.engine), |policy| policy.treatment(facts))
    }

    /// Computes the sizes of the kernel's maps. Reduces the live set to what is available where it is allocated at the
    /// start, and all maps in a small control group.
    pub(super) fn kernel_maps(&mut self, row_cells: u64) -> Result<KernelMaps> {
        let is_preallocated = !LinkKind::choose(self.backend)?.features().allocation;
        let wanted = self.live_blocks_max;
        self.live_blocks_max = live_blocks_max(wanted, is_preallocated, memory::available_bytes());
        if self.live_blocks_max < wanted {
            warn!(
                "at most {} sampled blocks can be live at once, not {wanted}: this kernel allocates memory for all at the start",
                self.live_blocks_max
            );
        }
        let mut maps = KernelMaps {
            ring_bytes: self.ring_bytes.into(),
            live_blocks_max: self.live_blocks_max.into(),
            row_cells,
            cpus: possible_cpus().into(),
            is_preallocated,
        };
        let group = memory::own_group();
        if let Some(group) = group.filter(|group| group.left_bytes_max < START_BYTES) {
            let [left, limit, needed] = [group.left_bytes_max, group.limit_bytes, START_BYTES].map(ByteSize);
            bail!(
                "not enough kernel memory: heapbpf's control group has only {left} left of {limit}, and starting takes {needed}, most \
                 of it to verify heapbpf's programs; raise its limit (`memory.max`), or start heapbpf outside of it"
            );
        }
        if let Some(group) = group
            && maps.fit(group.left_bytes / GROUP_SHARE)
        {
            let [left, ring, tables] =
                [group.left_bytes, maps.ring_bytes, maps.row_cells * size_of::<RowCell>() as u64].map(ByteSize);
            let blocks = maps.live_blocks_max;
            warn!(
                "kernel maps are smaller, because heapbpf's control group has only {left} left: ring buffer {ring}, at most \
                 {blocks} live blocks, unwind tables {tables}"
            );
            self.ring_bytes = u32::try_from(maps.ring_bytes).unwrap_or(self.ring_bytes);
            self.live_blocks_max = u32::try_from(blocks).unwrap_or(self.live_blocks_max);
        }
        Ok(maps)
    }

    /// Limit of callsites, which is lower in a small control group than configured.
    pub(super) fn callsite_limit(&self) -> CallsiteLimit {
        let mut limit = CallsiteLimit::new(self.callsites_max);
        let Some(group) = memory::own_group() else { return limit };
        let before = limit.max();
        limit.lower(usize::try_from(group.left_bytes / GROUP_SHARE / CALLSITE_BYTES).unwrap_or(usize::MAX));
        if limit.max() < before {
            warn!(
                "at most {} callsites are kept apart, because heapbpf's control group has only {} left: further ones count as \
                 `{}`",
                limit.max(),
                ByteSize(group.left_bytes),
                limit::NAME
            );
        }
        limit
    }

    /// Delay of process changes: with `--all`, most helpers of compilers and shells are too short-lived to be profiled.
    pub(super) fn grace(&self) -> Duration {
        if self.selection.all { Duration::from_millis(50) } else { Duration::ZERO }
    }
}

/// Decides how processes that the selection matches are recorded. Called once for each, when it is found.
pub trait Policy: Debug + Send + Sync {
    fn treatment(&self, facts: &ProcessFacts) -> Treatment;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Treatment {
    Record(Engine),
    /// The profile lists it as skipped, for this reason.
    Skip(String),
}

/// How calls reach the kernel side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// A probe in the hooked function: every call traps.
    Trap,
    /// Stubs in the target: only sampled calls, and frees of sampled blocks, trap.
    Inline,
}

/// Which new processes are stopped (by ptrace, unseen by their parents, about 10 ms) until their probes are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// None: allocations before the probes are attached are missed.
    Never,
    Execs,
    Forks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScopeChoice {
    /// The cheaper for the machine as a whole.
    Auto,
    Only(ScopeKind),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnwindMode {
    /// Unwind by tables built from the modules' unwind information, and by frame pointers in code without it.
    Auto,
    Tables,
    FramePointer,
}

/// Maximum number of requests that wait for the session.
const REQUESTS_MAX: usize = 16;

/// Request to a running session: a signal to heapbpf, or from a view.
#[derive(Debug)]
pub enum Request {
    /// End the window and write it: `SIGUSR1`.
    Dump,
    /// Start later windows now: `SIGUSR2`.
    Mark,
    /// Take a snapshot of the whole recording so far. Ends no window.
    Snapshot(oneshot::Sender<Arc<Snapshot>>),
}

/// Source of requests to a session. While it exists, its signals do not terminate heapbpf. Pending signals of the same
/// kind count once.
#[derive(Debug, Default)]
pub struct Control {
    signals: Option<(Signal, Signal)>,
    requests: Option<mpsc::Receiver<Request>>,
}

impl Control {
    pub fn listen() -> io::Result<Self> {
        let signals = Some((signal(SignalKind::user_defined1())?, signal(SignalKind::user_defined2())?));
        Ok(Self { signals, requests: None })
    }

    /// Accepts requests from other threads, too. They fail when the session has ended and this `Control` is dropped.
    pub fn accept(&mut self) -> mpsc::Sender<Request> {
        let (sender, requests) = mpsc::channel(REQUESTS_MAX);
        self.requests = Some(requests);
        sender
    }

    pub fn none() -> Self {
        Self::default()
    }

    /// Waits for the next request. Cancellation loses none.
    pub async fn next(&mut self) -> Request {
        let Self { signals, requests } = self;
        let signalled = async {
            let Some((dump, mark)) = signals else { return std::future::pending().await };
            tokio::select! {
                biased;
                _ = dump.recv() => Request::Dump,
                _ = mark.recv() => Request::Mark,
            }
        };
        let requested = async {
            match requests {
                Some(requests) => requests.recv().await,
                None => None,
            }
        };
        tokio::select! {
            biased;
            request = signalled => request,
            Some(request) = requested => request,
            else => std::future::pending().await,
        }
    }
}

/// Callbacks for session events. The ring buffer is not drained meanwhile, so they must return immediately.
pub trait Listener {
    fn progress(&mut self, _progress: Progress) {}

    fn dumped(&mut self, _snapshot: Snapshot) {}

    fn inspected(&mut self, _inspected: Result<HeapSnapshot>) {}

    /// A mark was set at this time since the start: later windows start there.
    fn marked(&mut self, _elapsed: Duration) {}

    /// Whether earlier dumps are still being written. Dumps that were not requested by a signal wait then.
    fn is_busy(&self) -> bool {
        false
    }

    /// Whether a further dump can be queued. Requests wait otherwise; several of a kind then count once.
    fn has_room(&self) -> bool {
        true
    }
}

impl Listener for () {}

#[derive(Clone, Debug, Default)]
pub struct Progress {
    pub elapsed: Duration,
    pub duration: Option<Duration>,
    pub targets: usize,
    /// Live bytes of all running targets.
    pub live_bytes: EstimatedBytes,
    /// Bytes that running targets have allocated minus bytes that they have freed since the recording began.
    pub growth_bytes: EstimatedBytes,
    /// Allocated bytes per second since the previous progress.
    pub allocated_bytes_per_second: f64,
    /// Share of the allocations that were sampled, from 0 to 1; `None` before the first.
    pub sampled_share: Option<f64>,
    pub lost: u64,
    /// Share of the targets' CPU time that probes took lately, in percent; `None` while it is unknown.
    pub overhead_percent: Option<f64>,
    /// Only the callsite that grew most since the recording began.
    pub top_grower: Option<Box<Snapshot>>,
}
