//! Facts about processes: identity, lifetime and hooks.

use std::sync::Arc;

use heapbpf_base::ids::Pid;
use heapbpf_base::units::MonotonicNanos;
use heapbpf_linux::file_view::FileView;
use serde::{Deserialize, Serialize};

use super::Rights;
use super::health::Overhead;
use super::program::Program;
use crate::totals::Totals;

/// Identifies a program in a process of a recording: the kernel reuses process ids, and a process can execute another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetId {
    pub pid: Pid,
    /// [`Beginning::time`].
    pub began: MonotonicNanos,
}

/// Why a target is not recorded any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Exited {
        /// Exit code, or 128 plus the signal that killed the process; `None` if the kernel did not report it.
        code: Option<i32>,
    },
    /// The process executed another program, which is a target of its own.
    Replaced,
    /// Its probes were detached at this time because they exceeded a limit; the process runs on.
    Detached(MonotonicNanos),
}

impl End {
    /// The end that files describe by these fields, of which at most one kind is set; `None` of a target that is still recorded.
    pub fn of_fields(
        exited: bool,
        exit_code: Option<i32>,
        replaced: bool,
        detached: Option<MonotonicNanos>,
    ) -> Option<Self> {
        match (exited, replaced) {
            (true, _) => Some(Self::Exited { code: exit_code }),
            (false, true) => Some(Self::Replaced),
            (false, false) => detached.map(Self::Detached),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct TargetFacts {
    pub pid: Pid,
    /// `argv[0]`.
    pub command: String,
    /// The kernel's name for the process (`/proc/PID/comm`), at most 15 bytes.
    pub comm: String,
    /// Control group, as a path from the hierarchy's root; `None` where the kernel did not report one.
    pub cgroup: Option<Arc<str>>,
    /// The link that the program was started by, whose name reports show; `None` where it was none.
    pub program: Option<Program>,
    /// With which files of this machine are read that the process names.
    pub rights: Option<Rights>,
    /// What the process itself reads; `None` in recordings and reports, whose processes may not run.
    pub files: Option<Box<FileView>>,
    pub beginning: Beginning,
    /// `None` while the target is recorded.
    pub end: Option<End>,
    pub overhead: Option<Overhead>,
}

impl TargetFacts {
    pub fn running(pid: Pid, command: &str, comm: &str, beginning: Beginning) -> Self {
        Self {
            pid,
            command: command.to_owned(),
            comm: comm.to_owned(),
            cgroup: None,
            program: None,
            rights: None,
            files: None,
            beginning,
            end: None,
            overhead: None,
        }
    }

    pub fn id(&self) -> TargetId {
        TargetId { pid: self.pid, began: self.beginning.time }
    }

    /// Whether the program still runs; probes may have been detached from it.
    pub fn is_running(&self) -> bool {
        matches!(self.end, None | Some(End::Detached(_)))
    }

    pub fn has_exited(&self) -> bool {
        matches!(self.end, Some(End::Exited { .. }))
    }

    /// See [`End::Exited`].
    pub fn exit_code(&self) -> Option<i32> {
        match self.end {
            Some(End::Exited { code }) => code,
            _ => None,
        }
    }

    pub fn is_replaced(&self) -> bool {
        self.end == Some(End::Replaced)
    }

    /// When the probes were detached because they exceeded a limit.
    pub fn detached(&self) -> Option<MonotonicNanos> {
        match self.end {
            Some(End::Detached(time)) => Some(time),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beginning {
    pub origin: Origin,
    /// When its probes were attached.
    pub time: MonotonicNanos,
    /// How long the program, or the copy of its parent, had existed by then, where known.
    pub delay_ns: Option<u64>,
    /// The probes were attached before the first allocation.
    pub from_first_call: bool,
}

impl Beginning {
    pub fn running(time: MonotonicNanos) -> Self {
        Self { origin: Origin::Running, time, delay_ns: None, from_first_call: false }
    }
}

/// How a process became a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    Running,
    Forked(Pid),
    Executed,
    /// heapbpf started it.
    Launched,
}

/// A hooked allocator function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct HookStatus {
    /// Symbol of the function.
    pub function: String,
    /// Path of the module that defines it.
    pub module: String,
    /// Attach backend: `perf`, `multi` or `session`.
    pub backend: String,
    /// Offset of the probed instruction in the module's file, in bytes.
    pub offset: u64,
    /// The probed instruction, in the syntax of GNU tools.
    pub instruction: Option<String>,
    /// The kernel emulates the instruction, which makes the probe cheap.
    pub emulated: Option<bool>,
    /// The profile is incomplete without this hook.
    pub required: bool,
    /// Why it was not attached.
    pub error: Option<String>,
    /// What else reports of the running session need.
    #[serde(skip)]
    pub kind: HookKind,
}

/// Kinds of hooks that reports distinguish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HookKind {
    #[default]
    Other,
    /// The user has defined it, and it replaces the function's return address.
    CustomReturn,
    /// It records allocations whose addresses are not known.
    WithoutAddress,
    /// It frees blocks.
    Freeing,
}

impl HookStatus {
    pub fn is_missing(&self) -> bool {
        self.required && self.error.is_some()
    }
}

/// A process that could not be profiled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct Skipped {
    /// Process id.
    #[cfg_attr(any(test, feature = "testing"), schemars(with = "u32"))]
    pub pid: Pid,
    /// `argv[0]`.
    pub command: String,
    /// Why.
    pub reason: String,
}

/// Processes that match the selection and have no profile of their own.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Others {
    /// The first processes that could not be profiled.
    pub skipped: Vec<Skipped>,
    pub skipped_count: u64,
    /// Number of processes that exited before their probes were attached.
    pub short_lived_count: u64,
    /// Number of forked processes whose inherited blocks did not fit into the live set.
    pub not_inherited_count: u64,
    /// Number of exited processes of which only totals are kept.
    pub folded_count: u64,
    pub folded_totals: Totals,
    /// Largest interval of their heaps, in bytes; `None` where they had none.
    pub folded_interval_bytes: Option<u64>,
}

impl Others {
    /// The difference to an earlier time of the same recording; totals of exited processes are as of now.
    pub fn since(&self, base: &Self) -> Self {
        Self {
            skipped: self.skipped.iter().skip(base.skipped.len()).cloned().collect(),
            skipped_count: self.skipped_count.saturating_sub(base.skipped_count),
            short_lived_count: self.short_lived_count.saturating_sub(base.short_lived_count),
            not_inherited_count: self.not_inherited_count.saturating_sub(base.not_inherited_count),
            folded_count: self.folded_count.saturating_sub(base.folded_count),
            ..self.clone()
        }
    }
}
