//! JSON of a diagnosis. `docs/doctor.schema.json` is generated from these types: the doc comment of a type or a field is its
//! description there.

use heapbpf_ledger::model::{ProbeScope, ScopeKind};
use heapbpf_linux::attempt::Errno;
use heapbpf_linux::feature::Support;
#[cfg(test)]
use schemars::JsonSchema;
use serde::Serialize;

use super::facts::Answer;
use super::{Costs, Diagnosis, EnginesForecast, Target};
use crate::probe::cost::expected_ns;
use crate::probe::place::Class;
use crate::probe::plan::PlannedHook;
use crate::session::ScopeForecast;

/// Version of the JSON. New fields keep it; changes that could mislead a reader raise it.
const VERSION: u32 = 1;

/// What `heapbpf doctor --json` prints. Fields may be added. It has no names of hosts and users; with `--pid`, it has the name of
/// the process and paths of its modules.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct Doctor<'a> {
    /// Version of this shape. Raised by incompatible changes; a new field alone does not raise it.
    version: u32,
    /// Version of heapbpf.
    heapbpf: &'static str,
    /// Architecture of heapbpf.
    arch: &'static str,
    /// Whether recording works here; with `--pid`, whether it works for the process.
    works: bool,
    /// Release of the kernel (`uname -r`).
    kernel: &'a str,
    /// Containers, emulated kernels and virtual machines around heapbpf, from the innermost to the outermost.
    environments: Vec<Environment<'a>>,
    /// What the machine refuses, with reason, evidence and remedy. Each can cause those after it.
    refusals: Vec<Refusal<'a>>,
    /// What was tried, in an order in which each failure explains the later ones.
    trials: Vec<Trial<'a>>,
    /// Settings and limits.
    limits: Vec<Limit<'a>>,
    /// What a probe costs; null if none could be attached.
    costs: Option<Costs>,
    /// The process of `--pid`.
    target: Option<TargetJson<'a>>,
    /// What environments and refusals follow from.
    facts: Vec<Fact>,
}

/// A container, an emulated kernel or a virtual machine.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
struct Environment<'a> {
    /// Stable name, such as `docker`, `gvisor` or `wsl2`.
    id: &'static str,
    /// Name for people.
    name: &'a str,
    /// Facts by which it was recognized.
    evidence: &'a [String],
}

/// Something that the machine refuses or lacks.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
struct Refusal<'a> {
    /// Stable name, such as `seccomp_bpf` or `lockdown`; docs/doctor.md lists all.
    id: &'static str,
    /// Feature of the kernel.
    feature: &'static str,
    /// Whether recording is impossible; otherwise recordings lack something.
    prevents: bool,
    /// Cause, in one sentence.
    reason: &'a str,
    /// What was tried, and what the kernel answered: `SOURCE: ANSWER`.
    evidence: &'a [String],
    /// What to do next.
    remedy: &'a str,
}

/// A feature that was tried.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
struct Trial<'a> {
    /// Name for people.
    name: &'static str,
    /// Whether recording is impossible without it.
    needed: bool,
    /// Whether it is there: `unknown` where it could not be tried.
    answer: Availability,
    /// Why not: what was tried and what the kernel answered.
    reason: Option<&'a str>,
    /// More about it.
    remark: Option<&'a str>,
    /// What to do, where it is missing.
    remedy: Option<&'a str>,
    /// What recordings lack without it, if recording is possible.
    consequence: Option<&'static str>,
    /// `id` of the refusal that explains it.
    refusal: Option<&'static str>,
}

/// Whether something is there.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(test, derive(JsonSchema), schemars(inline))]
enum Availability {
    Yes,
    No,
    Unknown,
}

/// A setting or a limit.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
struct Limit<'a> {
    /// Its name.
    name: &'static str,
    /// Null where it is not readable.
    value: Option<&'a str>,
    /// What it does to heapbpf.
    meaning: &'static str,
}

/// The process of `--pid`.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
struct TargetJson<'a> {
    /// Process id.
    pid: u32,
    /// The kernel's name for the process, at most 15 bytes.
    comm: &'a str,
    /// Why it cannot be recorded.
    error: Option<&'a str>,
    /// Functions that would be probed.
    hooks: Vec<Hook<'a>>,
    /// Which processes would meet the probes; null where no probe can be attached.
    scope: Option<Scope<'a>>,
    /// Predicted cost; null where calls could not be counted.
    engines: Option<Engines>,
}

/// A function that would be probed.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
struct Hook<'a> {
    /// Its name.
    function: &'a str,
    /// Its other names.
    aliases: &'a [&'static str],
    /// Heap to which it belongs.
    heap: &'a str,
    /// Path of the module.
    module: &'a str,
    /// Offset of the probed instruction in the module's file.
    offset: u64,
    /// The probed instruction; null if there is none.
    instruction: Option<&'a str>,
    /// Whether the kernel emulates the instruction.
    emulated: Option<bool>,
    /// Cost per call, in nanoseconds.
    expected_ns: Option<f64>,
    /// Why it cannot be probed.
    error: Option<String>,
}

/// Which processes would meet the probes.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
struct Scope<'a> {
    /// Other processes that map the hooked files.
    other_processes: u64,
    /// Probes of other tools on the hooked functions; null where the kernel does not list them.
    foreign_probes: Option<u64>,
    /// With this target alone.
    one_target: Choice<'a>,
    /// With `--all`.
    all: Choice<'a>,
}

/// A scope of probes.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
struct Choice<'a> {
    /// `process`: probes of single processes. `inode`: probes shared by all processes that map a hooked file.
    kind: ScopeKind,
    /// Why it is chosen.
    reason: &'a str,
}

/// Predicted CPU time of the process while it is recorded, as a multiple of that without heapbpf.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
struct Engines {
    /// Allocations per second of CPU time.
    allocations_per_cpu_second: f64,
    /// With `--engine trap`.
    trap: f64,
    /// With `--engine inline`; null if no pointer can lead to its functions.
    inline: Option<f64>,
    /// Pointers that lead to the functions of the inline engine.
    pointers: u64,
}

/// Content of a file, or answer to a system call.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
struct Fact {
    /// Path, part of a file, or system call.
    source: &'static str,
    /// Content, reduced to what matters; `exists`; `succeeds`; `killed by SIGSYS`; null for an error.
    value: Option<String>,
    /// Name of the error, such as `EPERM`.
    error: Option<String>,
}

impl<'a> Doctor<'a> {
    pub(super) fn new(diagnosis: &'a Diagnosis) -> Self {
        let environment = |environment: &'a super::Environment| Environment {
            id: environment.kind.id(),
            name: &environment.name,
            evidence: &environment.evidence,
        };
        let limit =
            |limit: &'a super::Limit| Limit { name: limit.name, value: limit.value.as_deref(), meaning: limit.meaning };
        Self {
            version: VERSION,
            heapbpf: env!("CARGO_PKG_VERSION"),
            arch: std::env::consts::ARCH,
            works: diagnosis.works(),
            kernel: &diagnosis.kernel,
            environments: diagnosis.environments.iter().map(environment).collect(),
            refusals: diagnosis.refusals.iter().map(Refusal::new).collect(),
            trials: diagnosis.trials.iter().map(|trial| Trial::new(trial, diagnosis)).collect(),
            limits: diagnosis.limits.iter().map(limit).collect(),
            costs: diagnosis.costs,
            target: diagnosis.target.as_ref().map(|target| TargetJson::new(target, diagnosis.costs.as_ref())),
            facts: diagnosis.facts.all().map(|(source, answer)| Fact::new(source, answer)).collect(),
        }
    }
}

impl<'a> Refusal<'a> {
    fn new(refusal: &'a super::Refusal) -> Self {
        Self {
            id: refusal.id,
            feature: refusal.feature,
            prevents: refusal.prevents,
            reason: &refusal.reason,
            evidence: &refusal.evidence,
            remedy: &refusal.remedy,
        }
    }
}

impl<'a> Trial<'a> {
    fn new(trial: &'a super::Trial, diagnosis: &'a Diagnosis) -> Self {
        let (answer, reason) = match &trial.support {
            Support::Yes => (Availability::Yes, None),
            Support::No(reason) => (Availability::No, Some(reason.as_str())),
            Support::Unknown(reason) => (Availability::Unknown, Some(reason.as_str())),
        };
        let refusal = diagnosis.explanation(trial);
        Self {
            name: trial.name(),
            needed: trial.needed,
            answer,
            reason,
            remark: trial.remark.as_deref(),
            remedy: refusal.map(|refusal| refusal.remedy.as_str()).or_else(|| trial.remedy()),
            consequence: trial.consequence(),
            refusal: refusal.map(|refusal| refusal.id),
        }
    }
}

impl<'a> TargetJson<'a> {
    fn new(target: &'a Target, costs: Option<&Costs>) -> Self {
        let hooks = target.hooks.as_deref().unwrap_or_default();
        Self {
            pid: target.pid.0,
            comm: &target.comm,
            error: target.hooks.as_ref().err().map(String::as_str),
            hooks: hooks.iter().map(|hook| Hook::new(hook, costs)).collect(),
            scope: target.scope.as_ref().map(Scope::new),
            engines: target.engines.as_ref().map(Engines::new),
        }
    }
}

impl<'a> Hook<'a> {
    fn new(planned: &'a PlannedHook, costs: Option<&Costs>) -> Self {
        let hook = &planned.hook;
        let placement = planned.placement.as_ref().ok();
        let expected = placement.zip(costs);
        Self {
            function: hook.spec.function,
            aliases: &hook.aliases,
            heap: &hook.heap,
            module: &hook.path,
            offset: planned.offset().0,
            instruction: placement.map(|placement| placement.instruction.as_str()),
            emulated: placement.map(|placement| placement.class == Class::Emulated),
            expected_ns: expected.map(|(placement, costs)| expected_ns(costs, placement.class, hook.spec.shape)),
            error: planned.placement.as_ref().err().map(ToString::to_string),
        }
    }
}

impl<'a> Scope<'a> {
    fn new(scope: &'a ScopeForecast) -> Self {
        let choice = |choice: &'a ProbeScope| Choice { kind: choice.kind, reason: &choice.reason };
        Self {
            other_processes: scope.other_processes,
            foreign_probes: scope.foreign_probes,
            one_target: choice(&scope.one_target),
            all: choice(&scope.all),
        }
    }
}

impl Engines {
    fn new(engines: &EnginesForecast) -> Self {
        Self {
            allocations_per_cpu_second: engines.allocations_per_second,
            trap: engines.trap,
            inline: engines.inline,
            pointers: engines.pointers as u64,
        }
    }
}

impl Fact {
    fn new(source: &'static str, answer: &Answer) -> Self {
        let (value, error) = match answer {
            Answer::Text(text) => (Some(text.clone()), None),
            Answer::Exists => (Some("exists".to_owned()), None),
            Answer::Succeeds => (Some("succeeds".to_owned()), None),
            Answer::Killed => (Some("killed by SIGSYS".to_owned()), None),
            Answer::Error(number) => {
                (None, Some(Errno(*number).name().map_or_else(|| Errno(*number).to_string(), str::to_owned)))
            }
        };
        Self { source, value, error }
    }
}
