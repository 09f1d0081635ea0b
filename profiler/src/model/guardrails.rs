//! Limits on what profiling may cost, and what became of them: values for reports.

use serde::{Deserialize, Serialize};

use crate::ids::Pid;

/// The limits of a recording, and when they were reached.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Guardrails {
    /// Bytes that the agent and the kernel's maps may take together.
    pub memory_bytes_max: Option<u64>,
    /// The most that they took while that was looked at.
    pub memory_bytes_highest: Option<u64>,
    /// Of one core, in percent: what the agent may use.
    pub cpu_percent_max: Option<f64>,
    /// The most that it used, over some seconds.
    pub cpu_percent_highest: Option<f64>,
    /// Of a target's CPU time, in percent: what its probes may use.
    pub overhead_percent_max: Option<f64>,
    /// What a call through a probe costs on this machine, where that was measured.
    pub costs: Option<ProbeCosts>,
    /// What was reached, in the order of time.
    pub reached: Vec<Reached>,
}

/// Nanoseconds that a call of a probed function takes more than one that is not probed, when it is not sampled.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbeCosts {
    /// Probed at an instruction that the kernel emulates.
    pub emulated_ns: f64,
    /// Probed at one that it executes out of line.
    pub single_stepped_ns: f64,
    /// An allocating function probed at an instruction that the kernel emulates, and at its return where links need that.
    pub emulated_with_return_ns: f64,
    /// The same at one that it executes out of line.
    pub single_stepped_with_return_ns: f64,
}

/// A limit was reached.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reached {
    /// When, in nanoseconds since the Unix epoch.
    pub unix_ns: u64,
    /// What was too much.
    pub what: Excess,
    /// What was done about it.
    pub action: Action,
}

/// What was too much.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Excess {
    /// Bytes of the agent and the kernel's maps.
    Memory(u64),
    /// The agent's share of one core, in percent.
    Cpu(f64),
    /// The share of this target's CPU time that its probes took, in percent.
    Overhead(Pid, f64),
    /// Nothing: the process that owns the probes has exited before its time.
    Keeper,
}

impl Excess {
    /// The limit's name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Memory(_) => "memory",
            Self::Cpu(_) => "cpu",
            Self::Overhead(..) => "overhead",
            Self::Keeper => "keeper",
        }
    }
}

/// What was done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// The recording was ended.
    Stopped,
    /// The intervals of all heaps were doubled, once or several times.
    IntervalsRaised,
    /// The target was left alone from then on.
    Detached,
}

impl Action {
    /// Its name in reports for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::IntervalsRaised => "intervals_raised",
            Self::Detached => "detached",
        }
    }
}

impl Guardrails {
    /// Whether there is less in the profile than was asked for because of them.
    pub fn cut_short(&self) -> bool {
        self.reached.iter().any(|reached| reached.action != Action::IntervalsRaised)
    }

    /// Whether the recording was ended by one of them.
    pub fn stopped(&self) -> bool {
        self.reached.iter().any(|reached| reached.action == Action::Stopped)
    }
}

/// What its probes took of a target's CPU time: estimates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Overhead {
    /// Over the whole time that it was watched, in percent.
    pub percent: f64,
    /// Over the seconds in which it was highest, in percent; `None` where it did little, or was not watched for that long.
    pub percent_highest: Option<f64>,
    /// Nanoseconds in probes.
    pub probe_ns: f64,
    /// The target's CPU time, with that in it, in nanoseconds.
    pub cpu_ns: u64,
}
