//! Limits on what profiling may cost, in the JSON report.

use serde::Serialize;

use crate::model::guardrails::{Excess, Guardrails, Overhead, ProbeCosts, Reached};

#[derive(Serialize)]
pub(super) struct GuardrailsFields {
    memory_bytes_max: Option<u64>,
    memory_bytes_highest: Option<u64>,
    cpu_percent_max: Option<f64>,
    cpu_percent_highest: Option<f64>,
    overhead_percent_max: Option<f64>,
    probe_costs: Option<CostsFields>,
    reached: Vec<ReachedFields>,
}

impl GuardrailsFields {
    pub(super) fn new(guardrails: &Guardrails) -> Self {
        Self {
            memory_bytes_max: guardrails.memory_bytes_max,
            memory_bytes_highest: guardrails.memory_bytes_highest,
            cpu_percent_max: guardrails.cpu_percent_max,
            cpu_percent_highest: guardrails.cpu_percent_highest,
            overhead_percent_max: guardrails.overhead_percent_max,
            probe_costs: guardrails.costs.as_ref().map(CostsFields::new),
            reached: guardrails.reached.iter().map(ReachedFields::new).collect(),
        }
    }
}

#[derive(Serialize)]
struct CostsFields {
    emulated_ns: f64,
    single_stepped_ns: f64,
    emulated_with_return_ns: f64,
    single_stepped_with_return_ns: f64,
}

impl CostsFields {
    fn new(costs: &ProbeCosts) -> Self {
        let ProbeCosts { emulated_ns, single_stepped_ns, emulated_with_return_ns, single_stepped_with_return_ns } =
            *costs;
        Self { emulated_ns, single_stepped_ns, emulated_with_return_ns, single_stepped_with_return_ns }
    }
}

#[derive(Serialize)]
struct ReachedFields {
    unix_ns: u64,
    /// `memory`, `cpu`, `overhead` or `keeper`.
    limit: &'static str,
    /// `stopped`, `intervals_raised` or `detached`.
    action: &'static str,
    /// The target, where it is one target's limit.
    pid: Option<u32>,
    /// Of memory.
    bytes: Option<u64>,
    /// Of anything else.
    percent: Option<f64>,
}

impl ReachedFields {
    fn new(reached: &Reached) -> Self {
        let (pid, bytes, percent) = match reached.what {
            Excess::Memory(bytes) => (None, Some(bytes), None),
            Excess::Cpu(percent) => (None, None, Some(percent)),
            Excess::Overhead(pid, percent) => (Some(pid.0), None, Some(percent)),
            Excess::Keeper => (None, None, None),
        };
        let (limit, action) = (reached.what.name(), reached.action.name());
        Self { unix_ns: reached.unix_ns, limit, action, pid, bytes, percent }
    }
}

/// A target's share of probes.
#[derive(Serialize)]
pub(super) struct OverheadFields {
    percent: f64,
    percent_highest: Option<f64>,
    probe_ns: f64,
    cpu_ns: u64,
}

impl OverheadFields {
    pub(super) fn new(overhead: &Overhead) -> Self {
        let Overhead { percent, percent_highest, probe_ns, cpu_ns } = *overhead;
        Self { percent, percent_highest, probe_ns, cpu_ns }
    }
}
