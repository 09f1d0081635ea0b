//! The diagnosis for programs. A new field does not raise the version; anything that could mislead a reader does.

use std::io;

use serde::Serialize;

use super::{Costs, Diagnosis, Limit, Target, Trial};
use crate::linux::feature::Support;
use crate::probe::place::Class;
use crate::probe::plan::PlannedHook;

/// Version of the shape.
const VERSION: u32 = 1;

/// Writes it, on one line.
pub(crate) fn write_json(diagnosis: &Diagnosis, out: &mut dyn io::Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, &Root::of(diagnosis))?;
    out.write_all(b"\n")
}

#[derive(Serialize)]
struct Root<'a> {
    version: u32,
    works: bool,
    kernel: &'a str,
    trials: Vec<TrialFields<'a>>,
    limits: Vec<LimitFields<'a>>,
    costs: Option<CostFields>,
    target: Option<TargetFields<'a>>,
}

impl<'a> Root<'a> {
    fn of(diagnosis: &'a Diagnosis) -> Self {
        Self {
            version: VERSION,
            works: diagnosis.works(),
            kernel: &diagnosis.kernel,
            trials: diagnosis.trials.iter().map(TrialFields::of).collect(),
            limits: diagnosis.limits.iter().map(LimitFields::of).collect(),
            costs: diagnosis.costs.as_ref().map(CostFields::of),
            target: diagnosis.target.as_ref().map(|target| TargetFields::of(target, diagnosis.costs.as_ref())),
        }
    }
}

#[derive(Serialize)]
struct TrialFields<'a> {
    name: &'a str,
    needed: bool,
    /// `yes`, `no` or `unknown`.
    answer: &'static str,
    reason: Option<&'a str>,
    remark: Option<&'a str>,
    remedy: Option<&'a str>,
}

impl<'a> TrialFields<'a> {
    fn of(trial: &'a Trial) -> Self {
        let (answer, reason) = match &trial.support {
            Support::Yes => ("yes", None),
            Support::No(reason) => ("no", Some(reason.as_str())),
            Support::Unknown(reason) => ("unknown", Some(reason.as_str())),
        };
        Self {
            name: trial.name(),
            needed: trial.is_needed(),
            answer,
            reason,
            remark: trial.remark.as_deref(),
            remedy: trial.remedy(),
        }
    }
}

#[derive(Serialize)]
struct LimitFields<'a> {
    name: &'a str,
    value: Option<&'a str>,
}

impl<'a> LimitFields<'a> {
    fn of(limit: &'a Limit) -> Self {
        Self { name: limit.name, value: limit.value.as_deref() }
    }
}

#[derive(Serialize)]
struct CostFields {
    emulated_ns: f64,
    single_stepped_ns: f64,
    emulated_with_return_ns: f64,
    single_stepped_with_return_ns: f64,
}

impl CostFields {
    fn of(costs: &Costs) -> Self {
        Self {
            emulated_ns: costs.emulated_ns,
            single_stepped_ns: costs.single_stepped_ns,
            emulated_with_return_ns: costs.emulated_with_return_ns,
            single_stepped_with_return_ns: costs.single_stepped_with_return_ns,
        }
    }
}

#[derive(Serialize)]
struct TargetFields<'a> {
    pid: u32,
    comm: &'a str,
    error: Option<&'a str>,
    hooks: Vec<HookFields<'a>>,
}

impl<'a> TargetFields<'a> {
    fn of(target: &'a Target, costs: Option<&Costs>) -> Self {
        let hooks = target.hooks.as_deref().unwrap_or_default();
        Self {
            pid: target.pid.0,
            comm: &target.comm,
            error: target.hooks.as_ref().err().map(String::as_str),
            hooks: hooks.iter().map(|hook| HookFields::of(hook, costs)).collect(),
        }
    }
}

#[derive(Serialize)]
struct HookFields<'a> {
    function: &'a str,
    aliases: &'a [&'static str],
    heap: &'a str,
    module: &'a str,
    /// Of the probed instruction in the module's file.
    offset: u64,
    instruction: Option<&'a str>,
    emulated: Option<bool>,
    expected_ns: Option<f64>,
    error: Option<String>,
}

impl<'a> HookFields<'a> {
    fn of(hook: &'a PlannedHook, costs: Option<&Costs>) -> Self {
        let placement = hook.placement.as_ref().ok();
        let expected = placement.zip(costs);
        Self {
            function: hook.hook.spec.function,
            aliases: &hook.hook.aliases,
            heap: &hook.hook.heap,
            module: &hook.hook.path,
            offset: hook.offset().0,
            instruction: placement.map(|placement| placement.instruction.as_str()),
            emulated: placement.map(|placement| placement.class == Class::Emulated),
            expected_ns: expected.map(|(placement, costs)| costs.expected_ns(placement.class, hook.hook.spec.shape)),
            error: hook.placement.as_ref().err().map(ToString::to_string),
        }
    }
}
