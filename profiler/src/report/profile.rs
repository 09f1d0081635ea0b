//! A profile: a snapshot with names, and all that a reader must know to believe it. Every report is made from this
//! value alone.

use std::sync::Arc;

use profiler_common::stack::StackEnd;
use serde::{Deserialize, Serialize};

use super::guardrails::{Guardrails, Overhead};
use super::history::{Change, History};
use super::leaks::Leaks;
use super::text::base_name;
pub use super::window::{Window, WindowReason};
use crate::ids::Pid;
use crate::ledger::details::Details;
use crate::ledger::totals::{Amounts, Totals};
use crate::units::MonotonicNanos;
pub use beginning::{Beginning, Origin};
pub use code::{MappingProfile, ModuleProfile, ThreadProfile};
pub use intervals::{ChangeReason, IntervalChange};
pub use symbolization::{NamesFrom, Symbolization, SymbolizationFailure};

mod beginning;
mod code;
mod intervals;
mod symbolization;

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

/// A process that was meant and is not in the profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// The process.
    pub pid: Pid,
    /// `argv[0]`.
    pub command: String,
    /// Why.
    pub reason: String,
}

/// Processes that were meant and are not in the profile one by one.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Others {
    /// Those that could not be profiled: the first ones. How many there were is in `skipped_count`.
    pub skipped: Vec<Skipped>,
    /// How many could not be profiled.
    pub skipped_count: u64,
    /// How many ended before they could be watched.
    pub short_lived_count: u64,
    /// How many began as copies of a process whose blocks the live set had no room to copy.
    pub not_inherited_count: u64,
    /// How many ended processes are kept as sums alone.
    pub folded_count: u64,
    /// What those did together.
    pub folded_totals: Totals,
    /// The largest interval of their heaps, in bytes; `None` where they had none.
    pub folded_interval_bytes: Option<u64>,
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

/// What became of a hook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookStatus {
    /// The function.
    pub function: String,
    /// The module that defines it, as the target names its path.
    pub module: String,
    /// How it was attached (`perf`, …).
    pub backend: String,
    /// Offset of the probed instruction in the module's file.
    pub offset: u64,
    /// That instruction as GNU tools print it, where it was looked at.
    pub instruction: Option<String>,
    /// The kernel emulates it, which makes for a cheap probe; else it takes a single step.
    pub emulated: Option<bool>,
    /// Without it the profile is not whole.
    pub required: bool,
    /// Why it is not attached, if it is not.
    pub error: Option<String>,
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

/// What was lost, and what profiling cost.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    /// Records that the kernel side wrote.
    pub events: u64,
    /// Losses by reason; reasons with 0 are left out.
    pub lost: Vec<(String, u64)>,
    /// Stacks by how they ended.
    pub unwind: Vec<(String, u64)>,
    /// Modules that were unwound by frame pointers because they have no unwind tables.
    pub frame_pointer_modules: Vec<String>,
    /// Functions that were named, and were in no process.
    pub unfound: Vec<UnfoundHook>,
    /// How often the ledger was put right from the kernel's live set.
    pub resyncs: u64,
    /// When heaps were sampled at another interval from then on, the first first.
    pub interval_changes: Vec<IntervalChange>,
    /// CPU time of the agent, in nanoseconds.
    pub agent_cpu_ns: u64,
    /// Largest resident size of the agent, in bytes.
    pub agent_rss_bytes_max: u64,
    /// Limits on what profiling may cost.
    pub guardrails: Guardrails,
    /// How functions were named. Known when a report is made; recordings have it beside their names.
    #[serde(skip)]
    pub symbolization: Symbolization,
}

/// A function that was named, and was in no module that may have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnfoundHook {
    /// Its heap.
    pub heap: String,
    /// Its symbol.
    pub function: String,
    /// The modules that it may be in, as they were named; `*` for any.
    pub modules: Vec<String>,
    /// Without it the profile is not whole.
    pub required: bool,
}

impl Health {
    /// Adds a loss, if there was one.
    pub fn lose(&mut self, reason: &str, count: u64) {
        if count > 0 {
            self.lost.push((reason.to_owned(), count));
        }
    }

    /// What has happened since `base`, the health of the same recording earlier. What has no time stays what it is: the
    /// modules, the functions, the largest size.
    #[must_use]
    pub fn since(&self, base: &Self) -> Self {
        let since = |now: &[(String, u64)], base: &[(String, u64)]| {
            let before = |name: &String| base.iter().find(|(known, _)| known == name).map_or(0, |(_, count)| *count);
            let rest = now.iter().map(|(name, count)| (name.clone(), count.saturating_sub(before(name))));
            rest.filter(|(_, count)| *count > 0).collect()
        };
        Self {
            events: self.events.saturating_sub(base.events),
            lost: since(&self.lost, &base.lost),
            unwind: since(&self.unwind, &base.unwind),
            resyncs: self.resyncs.saturating_sub(base.resyncs),
            agent_cpu_ns: self.agent_cpu_ns.saturating_sub(base.agent_cpu_ns),
            ..self.clone()
        }
    }

    /// Everything lost, over all reasons.
    #[must_use]
    pub fn lost_total(&self) -> u64 {
        self.lost.iter().map(|(_, count)| count).sum()
    }
}

impl Profile {
    /// Whether something is missing from it: lost events, or a hook that it takes and that is not there or could not be
    /// attached, or time that was cut off by a limit. Exit code 3.
    #[must_use]
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
    #[must_use]
    pub fn is_exact(&self) -> bool {
        let mut heaps = self.targets.iter().flat_map(|target| &target.heaps).peekable();
        let folded = self.others.folded_interval_bytes;
        if heaps.peek().is_none() && folded.is_none() {
            return self.interval_bytes <= 1;
        }
        heaps.all(HeapProfile::is_exact) && folded.is_none_or(|bytes| bytes <= 1)
    }

    /// Whether the target's totals are exact.
    #[must_use]
    pub fn is_exact_of(&self, target: &TargetProfile) -> bool {
        match target.heaps.as_slice() {
            [] => self.interval_bytes <= 1,
            heaps => heaps.iter().all(HeapProfile::is_exact),
        }
    }

    /// Whether the sums over processes that are not kept one by one are exact.
    #[must_use]
    pub fn is_exact_of_folded(&self) -> bool {
        self.others.folded_interval_bytes.unwrap_or(self.interval_bytes) <= 1
    }

    /// A time of the ledger in nanoseconds since the Unix epoch.
    #[must_use]
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
    #[must_use]
    pub fn frame(&self, id: FrameId) -> &Frame {
        &self.frames[id.0 as usize]
    }
}

impl HookStatus {
    /// Whether the profile is not whole because it is not attached.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.required && self.error.is_some()
    }
}

impl HeapProfile {
    /// Whether its totals, and its callsites', are exact: it was never sampled at another interval than 1.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.interval_bytes <= 1 && self.interval_bytes_max <= 1
    }
}

impl Frame {
    /// What to call the frame: its function, else `module+0x…`, else the bare address.
    #[must_use]
    pub fn label(&self) -> String {
        match (&self.function, &self.module, self.module_offset) {
            (Some(function), _, _) => function.to_string(),
            (None, Some(module), Some(offset)) => format!("{}+{offset:#x}", base_name(module)),
            (None, Some(module), None) => format!("{}+?", base_name(module)),
            (None, None, _) => format!("{:#x}", self.address),
        }
    }
}
