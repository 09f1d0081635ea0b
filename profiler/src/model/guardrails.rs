//! Limits on the cost of profiling, and how often they were exceeded.

use serde::{Deserialize, Serialize};

use crate::ids::Pid;

/// Limits, `None` where none was set, and peaks of what they limit. Recordings contain it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Guardrails {
    /// Of heapbpf and the kernel's maps.
    pub memory_bytes_max: Option<u64>,
    pub memory_bytes_highest: Option<u64>,
    /// Of heapbpf, in percent of one core.
    pub cpu_percent_max: Option<f64>,
    /// Over some seconds.
    pub cpu_percent_highest: Option<f64>,
    /// Of the probes, in percent of a target's CPU time.
    pub overhead_percent_max: Option<f64>,
    /// On this machine, where measured.
    #[serde(rename = "costs")]
    pub probe_costs: Option<ProbeCosts>,
    pub reached: Vec<Reached>,
}

/// Additional nanoseconds per unsampled call that probes cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProbeCosts {
    /// For a probe on an instruction that the kernel emulates.
    pub emulated_ns: f64,
    /// For a probe on an instruction that the kernel executes out of line.
    pub single_stepped_ns: f64,
    /// For an allocating function with a probe on an emulated instruction, and one at the return where links need it.
    pub emulated_with_return_ns: f64,
    /// For an allocating function with a probe on an instruction executed out of line, and one at the return.
    pub single_stepped_with_return_ns: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reached {
    pub unix_ns: u64,
    pub what: Excess,
    pub action: Action,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Excess {
    /// Bytes of the agent and the kernel's maps.
    Memory(u64),
    /// The agent's CPU usage, in percent of one core.
    Cpu(f64),
    /// The probes' share of this target's CPU time, in percent.
    Overhead(Pid, f64),
    /// No limit: the keeper exited prematurely.
    Keeper,
}

/// Response to an exceeded limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(inline))]
pub enum Action {
    /// The recording was stopped.
    #[serde(alias = "Stopped")]
    Stopped,
    /// The intervals of all heaps were doubled, once or several times.
    #[serde(alias = "IntervalsRaised")]
    IntervalsRaised,
    /// The target was detached.
    #[serde(alias = "Detached")]
    Detached,
}

impl Guardrails {
    /// Whether the profile is incomplete because a limit was exceeded.
    pub fn cut_short(&self) -> bool {
        self.reached.iter().any(|reached| reached.action != Action::IntervalsRaised)
    }

    pub fn stopped(&self) -> bool {
        self.reached.iter().any(|reached| reached.action == Action::Stopped)
    }
}

/// Estimated cost of a target's probes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Overhead {
    /// Share of the target's CPU time, in percent.
    pub percent: f64,
    /// Peak of that share, over some seconds; null where the target was nearly idle or not profiled long enough.
    pub percent_highest: Option<f64>,
    /// CPU time in probes, in nanoseconds.
    pub probe_ns: f64,
    /// CPU time of the target, including its probes, in nanoseconds.
    pub cpu_ns: u64,
}
