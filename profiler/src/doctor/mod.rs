//! `heapbpf doctor`: what this kernel, this user and a target allow, and what a probe costs here. Changes nothing: probes
//! are attached to a process of its own, and detached.

pub(crate) mod report;
mod trials;

use std::fs;

use profiler_common::limits::STACK_FRAMES_MAX;
use rustix::process::{Resource, getrlimit};

pub(crate) use self::trials::Trial;

use crate::ids::Pid;
use crate::linux::proc::process;
pub(crate) use crate::probe::cost::{Costs, TARGET_COMMAND, serve};
use crate::probe::place::PlacementMode;
use crate::probe::plan::PlannedHook;
use crate::session;

#[derive(Debug)]
pub(crate) struct Diagnosis {
    /// As `uname -r` prints it.
    pub kernel: String,
    pub trials: Vec<Trial>,
    pub limits: Vec<Limit>,
    /// `None` if no probe could be attached.
    pub costs: Option<Costs>,
    /// The process of `--pid`.
    pub target: Option<Target>,
}

/// A setting of this machine that affects profiling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub name: &'static str,
    /// `None` if it cannot be read.
    pub value: Option<String>,
    /// Effect on heapbpf.
    pub meaning: &'static str,
}

#[derive(Debug)]
pub(crate) struct Target {
    pub pid: Pid,
    pub comm: String,
    /// Functions to probe, or why the process cannot be profiled.
    pub hooks: Result<Vec<PlannedHook>, String>,
}

impl Diagnosis {
    /// Runs all trials. Takes about a second, mostly waiting for probes to be detached.
    ///
    /// Must be called within a tokio runtime, which reads the log of the debug BPF object.
    pub(crate) fn make(pid: Option<Pid>, placement: PlacementMode) -> Self {
        let (trials, costs) = trials::run();
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            kernel: release.trim().to_owned(),
            trials,
            limits: limits(),
            costs,
            target: pid.map(|pid| Target {
                pid,
                comm: process::comm(pid).unwrap_or_default(),
                hooks: session::hooks_of(pid, placement).map_err(|error| format!("{error:#}")),
            }),
        }
    }

    /// Whether profiling works: no required trial failed, and at least one allocator function of the target can be probed.
    pub(crate) fn works(&self) -> bool {
        let target = self.target.as_ref().is_none_or(|target| {
            target.hooks.as_ref().is_ok_and(|hooks| hooks.iter().any(|hook| hook.placement.is_ok()))
        });
        target && !self.trials.iter().any(Trial::prevents)
    }
}

fn limits() -> Vec<Limit> {
    let file = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let limit = |name, value, meaning| Limit { name, value, meaning };
    let locked_memory = getrlimit(Resource::Memlock).current;
    vec![
        limit(
            "RLIMIT_MEMLOCK",
            Some(locked_memory.map_or_else(|| "unlimited".to_owned(), |bytes| bytes.to_string())),
            "limits BPF maps before Linux 5.11 only; heapbpf raises it",
        ),
        limit(
            "kernel.perf_event_paranoid",
            file("/proc/sys/kernel/perf_event_paranoid"),
            "does not apply with CAP_PERFMON",
        ),
        limit(
            "kernel.unprivileged_bpf_disabled",
            file("/proc/sys/kernel/unprivileged_bpf_disabled"),
            "does not apply with CAP_BPF",
        ),
        limit(
            "kernel lockdown",
            file("/sys/kernel/security/lockdown").map(|text| selected_word(&text)),
            "`confidentiality` prevents BPF programs from reading memory, which heapbpf needs",
        ),
        limit(
            "frames in a stack",
            Some(STACK_FRAMES_MAX.to_string()),
            "heapbpf's own limit; kernel.perf_event_max_stack does not apply",
        ),
    ]
}

/// Returns the word in brackets, as in `none [integrity] confidentiality`.
fn selected_word(text: &str) -> String {
    let bracketed = text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    bracketed.unwrap_or(text).to_owned()
}

#[cfg(test)]
mod tests;
