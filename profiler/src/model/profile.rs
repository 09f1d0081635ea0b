//! A profile: a snapshot with names, and all that a reader must know to believe it. Every report is made from this
//! value alone.

use std::sync::Arc;

use profiler_common::stack::StackEnd;

use super::code::base_name;
use super::guardrails::Overhead;
use super::health::Health;
use super::history::{Change, History};
use super::hook::HookStatus;
use super::leaks::Leaks;
use super::others::Others;
use super::{Beginning, MappingProfile, ModuleProfile, ThreadProfile, Window};
use crate::ids::Pid;
use crate::ledger::details::Details;
use crate::ledger::totals::{Amounts, Totals};
use crate::units::MonotonicNanos;

/// One session's result.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The interval asked for, in bytes.
    pub interval_bytes: u64,
    /// When recording began, in nanoseconds since the Unix epoch.
    pub started_unix_ns: u64,
    /// When the snapshot was taken, in nanoseconds since the Unix epoch.
    pub ended_unix_ns: u64,
    /// The value of `CLOCK_MONOTONIC` that belongs to `started_unix_ns`, to place the ledger's times.
    pub started_monotonic_ns: u64,
    /// The part of the recording that this is about; `None` where it is about all of it.
    pub window: Option<Window>,
    /// How old live blocks must be to be shown, in nanoseconds; `None` for all.
    pub older_than_ns: Option<u64>,
    /// Live blocks are those alone that nothing reached at the end.
    pub unreachable: bool,
    /// The processes.
    pub targets: Vec<TargetProfile>,
    /// Processes that were meant and are not among them.
    pub others: Others,
    /// All frames that occur, each once.
    pub frames: Vec<Frame>,
    /// Files whose code the targets ran, each once.
    pub modules: Vec<ModuleProfile>,
    /// What was lost and what it cost.
    pub health: Health,
}

/// One process of a profile.
#[derive(Clone, Debug)]
pub struct TargetProfile {
    /// The process.
    pub pid: Pid,
    /// `argv[0]`.
    pub command: String,
    /// The kernel's name for it (`/proc/PID/comm`), at most 15 bytes.
    pub comm: String,
    /// Its control group, as a path from the hierarchy's root; `None` where the kernel did not tell.
    pub cgroup: Option<Arc<str>>,
    /// Since when it was watched.
    pub beginning: Beginning,
    /// It ended while it was profiled.
    pub exited: bool,
    /// It became another program by exec, which is a target of its own.
    pub replaced: bool,
    /// Its exit status, where the kernel tells.
    pub exit_code: Option<i32>,
    /// When its probes were taken away because they cost too much: what else is said is as of then.
    pub detached: Option<MonotonicNanos>,
    /// What its probes cost it, where that is known.
    pub overhead: Option<Overhead>,
    /// Over everything.
    pub totals: Totals,
    /// By heap.
    pub heaps: Vec<HeapProfile>,
    /// Where its modules' code was mapped, in the order of addresses. What was unmapped meanwhile is in it, so ranges can overlap.
    pub mappings: Vec<MappingProfile>,
    /// Threads that callsites name.
    pub threads: Vec<ThreadProfile>,
    /// How its heap came to be what it is; empty where that is not known.
    pub history: History,
    /// Which callsites grow; `None` where nobody has looked.
    pub leaks: Option<Leaks>,
    /// By stack and heap.
    pub callsites: Vec<CallsiteProfile>,
}

/// One heap of a target.
#[derive(Clone, Debug)]
pub struct HeapProfile {
    /// The heap's name (`libc`, `jemalloc`, …).
    pub name: String,
    /// Its interval, in bytes: its own, or the recording's. 1 where every allocation is taken.
    pub interval_bytes: u64,
    /// The largest that it had meanwhile, where there was more than could be followed.
    pub interval_bytes_max: u64,
    /// Functions that were to be watched.
    pub hooks: Vec<HookStatus>,
    /// Over the heap.
    pub totals: Totals,
}

/// Index into [`Profile::frames`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(pub u32);

/// One callsite with names.
#[derive(Clone, Debug)]
pub struct CallsiteProfile {
    /// Its frames, leaf first; inlined calls are frames of their own. Empty when they were lost.
    pub stack: Vec<FrameId>,
    /// Why the stack ends where it does; `None` when it was lost.
    pub end: Option<StackEnd>,
    /// Index into the target's heaps.
    pub heap: usize,
    /// Index into the target's threads, where callsites are told apart by thread.
    pub thread: Option<usize>,
    /// Its blocks were made by the parent, before the fork that made this process a copy of it.
    pub inherited: bool,
    /// What it did.
    pub totals: Totals,
    /// What of its live blocks is older than was asked; `None` where nothing was.
    pub older: Option<Amounts>,
    /// What is known of its blocks besides. Those of a heap or a process are the sum of their callsites'.
    pub details: Details,
    /// What it held at the instants of the target's history at which that had changed.
    pub history: Vec<Change>,
}

/// One frame with what is known of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Demangled function name, if there is one.
    pub function: Option<Arc<str>>,
    /// Path of the module as the target names it (`[vdso]` and the like for special ones), if the address is in one.
    pub module: Option<Arc<str>>,
    /// Source file.
    pub file: Option<Arc<str>>,
    /// Line in it.
    pub line: Option<u32>,
    /// The call was inlined into the next frame.
    pub inlined: bool,
    /// Return address in the target.
    pub address: u64,
    /// The address as an offset into the module's file, where it is in one.
    pub module_offset: Option<u64>,
}

impl Profile {
    /// Whether something is missing from it: lost events, or a hook that it takes and that is not there or could not be
    /// attached, or time that was cut off by a limit. Exit code 3.
    pub fn incomplete(&self) -> bool {
        self.health.lost_total() > 0
            || self.health.guardrails.cut_short()
            || self.health.unfound.iter().any(|hook| hook.required)
            || self.hooks().any(|(_, hook)| hook.is_missing())
    }

    /// All hooks with their heaps.
    pub fn hooks(&self) -> impl Iterator<Item = (&HeapProfile, &HookStatus)> {
        self.targets
            .iter()
            .flat_map(|target| &target.heaps)
            .flat_map(|heap| heap.hooks.iter().map(move |hook| (heap, hook)))
    }

    /// Whether all numbers are exact: every allocation of every heap was taken.
    pub fn is_exact(&self) -> bool {
        let mut heaps = self.targets.iter().flat_map(|target| &target.heaps).peekable();
        let folded = self.others.folded_interval_bytes;
        if heaps.peek().is_none() && folded.is_none() {
            return self.interval_bytes <= 1;
        }
        heaps.all(HeapProfile::is_exact) && folded.is_none_or(|bytes| bytes <= 1)
    }

    /// Whether the target's totals are exact.
    pub fn is_exact_of(&self, target: &TargetProfile) -> bool {
        match target.heaps.as_slice() {
            [] => self.interval_bytes <= 1,
            heaps => heaps.iter().all(HeapProfile::is_exact),
        }
    }

    /// Whether the sums over processes that are not kept one by one are exact.
    pub fn is_exact_of_folded(&self) -> bool {
        self.others.folded_interval_bytes.unwrap_or(self.interval_bytes) <= 1
    }

    /// A time of the ledger in nanoseconds since the Unix epoch.
    pub fn unix_ns(&self, time: MonotonicNanos) -> u64 {
        // A block can be older than the session's first look at the clocks.
        match time.0.checked_sub(self.started_monotonic_ns) {
            Some(after) => self.started_unix_ns.saturating_add(after),
            None => self.started_unix_ns.saturating_sub(self.started_monotonic_ns - time.0),
        }
    }

    /// The frame with this id.
    ///
    /// # Panics
    ///
    /// If the id is of another profile.
    pub fn frame(&self, id: FrameId) -> &Frame {
        &self.frames[id.0 as usize]
    }
}

impl HeapProfile {
    /// Whether its totals, and its callsites', are exact: it was never sampled at another interval than 1.
    pub fn is_exact(&self) -> bool {
        self.interval_bytes <= 1 && self.interval_bytes_max <= 1
    }
}

impl Frame {
    /// What to call the frame: its function, else `module+0x…`, else the bare address.
    pub fn label(&self) -> String {
        match (&self.function, &self.module, self.module_offset) {
            (Some(function), _, _) => function.to_string(),
            (None, Some(module), Some(offset)) => format!("{}+{offset:#x}", base_name(module)),
            (None, Some(module), None) => format!("{}+?", base_name(module)),
            (None, None, _) => format!("{:#x}", self.address),
        }
    }
}
