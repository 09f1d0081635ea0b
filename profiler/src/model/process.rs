//! Facts about processes: identity, lifetime and hooks.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Rights;
use super::health::Overhead;
use crate::ids::Pid;
use crate::ledger::totals::Totals;
use crate::linux::file_view::FileView;
use crate::process::program::Program;
use crate::units::MonotonicNanos;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetFacts {
    pub pid: Pid,
    /// `argv[0]`.
    pub command: String,
    /// The kernel's name for the process (`/proc/PID/comm`), at most 15 bytes.
    pub comm: String,
    /// Control group, as a path from the hierarchy's root; `None` where the kernel did not report one.
    #[serde(default)]
    pub cgroup: Option<Arc<str>>,
    /// The link that the program was started by, whose name reports show; `None` where it was none.
    #[serde(default, with = "in_json")]
    pub program: Option<Program>,
    /// With which files of this machine are read that the process names.
    #[serde(default, with = "in_json")]
    pub rights: Option<Rights>,
    /// What the process itself reads, which recordings and reports cannot have: it is of running processes.
    #[serde(skip)]
    pub files: Option<Box<FileView>>,
    pub beginning: Beginning,
    pub exited: bool,
    /// The process executed another program, which is a target of its own.
    pub replaced: bool,
    /// Exit status, where the kernel reports it.
    pub exit_code: Option<i32>,
    /// When its probes were detached because they exceeded a limit. The profile is as of then.
    pub detached: Option<MonotonicNanos>,
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
            exited: false,
            replaced: false,
            exit_code: None,
            detached: None,
            overhead: None,
        }
    }
}

/// A field that folds of recordings, whose layout is fixed, have elsewhere.
mod in_json {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<T: Serialize, S: Serializer>(fact: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() { fact.serialize(serializer) } else { serializer.serialize_unit() }
    }

    pub(super) fn deserialize<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
    where
        T: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        if deserializer.is_human_readable() {
            Option::deserialize(deserializer)
        } else {
            <()>::deserialize(deserializer).map(|()| None)
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Skipped {
    /// Process id.
    #[cfg_attr(test, schemars(with = "u32"))]
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
    pub(crate) fn since(&self, base: &Self) -> Self {
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
