//! Limits on the cost of profiling, and how often they were exceeded.

use serde::{Deserialize, Serialize};

use crate::ids::Pid;

/// As recordings store it: without a level for `usage`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct Guardrails {
    pub usage: Usage,
    pub reached: Vec<Reached>,
}

/// Limits, null where none was set, and peaks of what they limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Usage {
    /// Limit on the memory of heapbpf and the kernel's maps, in bytes.
    pub memory_bytes_max: Option<u64>,
    /// Peak of that memory.
    pub memory_bytes_highest: Option<u64>,
    /// Limit on the CPU usage of heapbpf, in percent of one core.
    pub cpu_percent_max: Option<f64>,
    /// Peak of that usage, over some seconds.
    pub cpu_percent_highest: Option<f64>,
    /// Limit on the probes' share of a target's CPU time, in percent.
    pub overhead_percent_max: Option<f64>,
    /// Cost of probes on this machine, where measured.
    pub probe_costs: Option<ProbeCosts>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Stored {
    memory_bytes_max: Option<u64>,
    memory_bytes_highest: Option<u64>,
    cpu_percent_max: Option<f64>,
    cpu_percent_highest: Option<f64>,
    overhead_percent_max: Option<f64>,
    costs: Option<ProbeCosts>,
    reached: Vec<Reached>,
}

impl From<Stored> for Guardrails {
    fn from(stored: Stored) -> Self {
        let Stored { memory_bytes_max, memory_bytes_highest, cpu_percent_max, .. } = stored;
        let Stored { cpu_percent_highest, overhead_percent_max, costs: probe_costs, reached, .. } = stored;
        let usage = Usage {
            memory_bytes_max,
            memory_bytes_highest,
            cpu_percent_max,
            cpu_percent_highest,
            overhead_percent_max,
            probe_costs,
        };
        Self { usage, reached }
    }
}

impl From<Guardrails> for Stored {
    fn from(Guardrails { usage, reached }: Guardrails) -> Self {
        Self {
            memory_bytes_max: usage.memory_bytes_max,
            memory_bytes_highest: usage.memory_bytes_highest,
            cpu_percent_max: usage.cpu_percent_max,
            cpu_percent_highest: usage.cpu_percent_highest,
            overhead_percent_max: usage.overhead_percent_max,
            costs: usage.probe_costs,
            reached,
        }
    }
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
