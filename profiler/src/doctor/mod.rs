//! What this kernel, this user and a target allow, and what a probe costs here. Changes nothing: what is attached is
//! attached to a process of its own, and taken back.

mod json;
mod limits;
mod text;
mod trials;

use std::fs;

pub(crate) use self::json::write_json;
pub(crate) use self::limits::Limit;
pub(crate) use self::text::text;
pub(crate) use self::trials::Trial;

use crate::ids::Pid;
use crate::linux::proc::process;
pub(crate) use crate::probe::cost::{Costs, TARGET_COMMAND, serve};
use crate::probe::place::PlacementMode;
use crate::probe::plan::PlannedHook;
use crate::session;

/// Everything that was found out.
#[derive(Debug)]
pub(crate) struct Diagnosis {
    /// The kernel's release, as `uname -r` prints it.
    pub kernel: String,
    /// What was tried.
    pub trials: Vec<Trial>,
    /// Settings that bear on profiling.
    pub limits: Vec<Limit>,
    /// What a probe costs, if that could be measured.
    pub costs: Option<Costs>,
    /// The process that was asked about.
    pub target: Option<Target>,
}

/// A process, as far as it can be profiled.
#[derive(Debug)]
pub(crate) struct Target {
    /// The process.
    pub pid: Pid,
    /// The kernel's name for it.
    pub comm: String,
    /// What would be hooked, or why it cannot be profiled.
    pub hooks: Result<Vec<PlannedHook>, String>,
}

impl Diagnosis {
    /// Tries everything. Takes about a second, for the most part waiting for probes to be gone.
    ///
    /// Call it within a tokio runtime: the debug object's log is read by one.
    pub(crate) fn make(pid: Option<Pid>, placement: PlacementMode) -> Self {
        let (trials, costs) = trials::run();
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            kernel: release.trim().to_owned(),
            trials,
            limits: limits::read(),
            costs,
            target: pid.map(|pid| Target {
                pid,
                comm: process::comm(pid).unwrap_or_default(),
                hooks: session::hooks_of(pid, placement).map_err(|error| format!("{error:#}")),
            }),
        }
    }

    /// Whether profiling would work: of what it needs nothing failed, and the process, if one was asked about, has an
    /// allocator with at least one function that can be probed.
    pub(crate) fn works(&self) -> bool {
        let target = self.target.as_ref().is_none_or(|target| {
            target.hooks.as_ref().is_ok_and(|hooks| hooks.iter().any(|hook| hook.placement.is_ok()))
        });
        target && !self.trials.iter().any(Trial::prevents)
    }
}

#[cfg(test)]
mod tests;
