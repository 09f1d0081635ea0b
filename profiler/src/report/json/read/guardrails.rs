//! Limits on what profiling may cost, as they stand in a report.

use serde::Deserialize;

use crate::ids::Pid;
use crate::model::guardrails::{Action, Excess, Guardrails, Overhead, ProbeCosts, Reached};
use crate::report::text;

#[derive(Default, Deserialize)]
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
    pub(super) fn into_guardrails(self) -> Result<Guardrails, String> {
        Ok(Guardrails {
            memory_bytes_max: self.memory_bytes_max,
            memory_bytes_highest: self.memory_bytes_highest,
            cpu_percent_max: self.cpu_percent_max,
            cpu_percent_highest: self.cpu_percent_highest,
            overhead_percent_max: self.overhead_percent_max,
            costs: self.probe_costs.map(ProbeCosts::from),
            reached: self.reached.into_iter().map(ReachedFields::into_reached).collect::<Result<_, _>>()?,
        })
    }
}

#[derive(Deserialize)]
struct CostsFields {
    emulated_ns: f64,
    single_stepped_ns: f64,
    emulated_with_return_ns: f64,
    single_stepped_with_return_ns: f64,
}

impl From<CostsFields> for ProbeCosts {
    fn from(costs: CostsFields) -> Self {
        let CostsFields { emulated_ns, single_stepped_ns, emulated_with_return_ns, single_stepped_with_return_ns } =
            costs;
        Self { emulated_ns, single_stepped_ns, emulated_with_return_ns, single_stepped_with_return_ns }
    }
}

#[derive(Deserialize)]
struct ReachedFields {
    unix_ns: u64,
    limit: String,
    action: String,
    pid: Option<u32>,
    bytes: Option<u64>,
    percent: Option<f64>,
}

impl ReachedFields {
    fn into_reached(self) -> Result<Reached, String> {
        let what = match (self.limit.as_str(), self.pid, self.bytes, self.percent) {
            ("memory", _, Some(bytes), _) => Excess::Memory(bytes),
            ("cpu", _, _, Some(percent)) => Excess::Cpu(percent),
            ("overhead", Some(pid), _, Some(percent)) => Excess::Overhead(Pid(pid), percent),
            ("keeper", ..) => Excess::Keeper,
            (limit, ..) => return Err(format!("`{}` is no limit that is reached so", text::printable(limit))),
        };
        let actions = [Action::Stopped, Action::IntervalsRaised, Action::Detached];
        let action = actions.into_iter().find(|action| action.name() == self.action);
        let action = action.ok_or_else(|| format!("`{}` is no answer to a limit", text::printable(&self.action)))?;
        Ok(Reached { unix_ns: self.unix_ns, what, action })
    }
}

/// A target's share of probes.
#[derive(Deserialize)]
pub(super) struct OverheadFields {
    percent: f64,
    percent_highest: Option<f64>,
    probe_ns: f64,
    cpu_ns: u64,
}

impl From<OverheadFields> for Overhead {
    fn from(overhead: OverheadFields) -> Self {
        let OverheadFields { percent, percent_highest, probe_ns, cpu_ns } = overhead;
        Self { percent, percent_highest, probe_ns, cpu_ns }
    }
}
