//! `heapbpf doctor`: what this kernel, user and target allow, and what a probe costs here. Changes nothing.

pub(crate) mod report;

use std::fs;

use profiler_common::limits::{PAGE_BYTES, STACK_FRAMES_MAX};
use rustix::process::{Resource, getrlimit};
use tracing::debug;

use crate::bpf::load::{BackendChoice, Kernel, KernelConfig, LinkKind, LoadError};
use crate::bpf::processes::TracepointError;
use crate::guardrail::CallCosts;
use crate::ids::Pid;
use crate::keeper::Keeper;
use crate::linux::feature::{self, Feature, Support};
use crate::linux::proc::process;
use crate::probe::cost::{self, CostError, Subject};
pub(crate) use crate::probe::cost::{Costs, TARGET_COMMAND, serve};
use crate::probe::place::PlacementMode;
use crate::probe::plan::PlannedHook;
use crate::session::{self, CallRate, Leftovers, ScopeForecast};
use crate::symbolize::sandbox;

#[derive(Debug)]
pub(crate) struct Diagnosis {
    pub kernel: String,
    pub trials: Vec<Trial>,
    pub limits: Vec<Limit>,
    /// `None` if no probe could be attached.
    pub costs: Option<Costs>,
    /// The process of `--pid`.
    pub target: Option<Target>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrialKind {
    Capabilities,
    PidNamespace,
    Feature(Feature),
    Programs,
    Attaching,
    /// Searching all processes for breakpoints of a killed heapbpf.
    Leftovers,
    Isolation,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trial {
    pub kind: TrialKind,
    pub support: Support,
    pub remark: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub name: &'static str,
    /// `None` if it cannot be read.
    pub value: Option<String>,
    pub meaning: &'static str,
}

#[derive(Debug)]
pub(crate) struct Target {
    pub pid: Pid,
    pub comm: String,
    pub hooks: Result<Vec<PlannedHook>, String>,
    /// `None` without hooks, and where no probe can be attached.
    pub scope: Option<ScopeForecast>,
    pub engines: Option<EnginesForecast>,
}

impl Target {
    fn inspect(pid: Pid, placement: PlacementMode, costs: Option<&Costs>) -> Self {
        let comm = process::comm(pid).unwrap_or_default();
        match session::inspect(pid, placement) {
            Ok((hooks, scope)) => {
                let engines = costs.and_then(|costs| EnginesForecast::of(pid, placement, &hooks, costs));
                Self { pid, comm, hooks: Ok(hooks), scope: scope.ok(), engines }
            }
            Err(error) => Self { pid, comm, hooks: Err(format!("{error:#}")), scope: None, engines: None },
        }
    }
}

/// Predicted CPU time of a process while it is recorded, as a multiple of that without.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct EnginesForecast {
    /// Per second of CPU time.
    pub allocations_per_second: f64,
    pub trap: f64,
    /// `None` if no pointer can lead to stubs.
    pub inline: Option<f64>,
    pub pointers: usize,
}

impl EnginesForecast {
    fn of(pid: Pid, placement: PlacementMode, hooks: &[PlannedHook], costs: &Costs) -> Option<Self> {
        let rate = session::call_rate(pid, placement);
        let rate = rate.inspect_err(|error| debug!("cannot count the calls of process {pid}: {error:#}")).ok()?;
        Some(Self::new(rate, pair_ns(hooks, costs)?))
    }

    /// `pair_ns` is the cost of probes for an allocation and its free.
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds below 2^53")]
    fn new(rate: CallRate, pair_ns: f64) -> Self {
        let (allocations, cpu_ns) = (rate.allocations as f64, rate.cpu_ns as f64);
        // Without the probes that counted. At least a part of the time was the program's own.
        let own_ns = (cpu_ns - allocations * pair_ns).max(cpu_ns / 50.0).max(1.0);
        let times = |pair_ns: f64| 1.0 + allocations * pair_ns / own_ns;
        let stubs = CallCosts::STUBS;
        Self {
            allocations_per_second: 1e9 * allocations / own_ns,
            trap: times(pair_ns),
            inline: (rate.pointers > 0).then(|| times(stubs.alloc_ns + stubs.free_ns)),
            pointers: rate.pointers,
        }
    }
}

/// Of the first function of each kind, which programs mostly call.
fn pair_ns(hooks: &[PlannedHook], costs: &Costs) -> Option<f64> {
    let cost = |allocates: bool| {
        let mut of_kind = hooks.iter().filter(|planned| planned.hook.spec.shape.allocates() == allocates);
        let (planned, placement) = of_kind.find_map(|planned| Some((planned, planned.placement.as_ref().ok()?)))?;
        Some(costs.expected_ns(placement.class, planned.hook.spec.shape))
    };
    Some(cost(true)? + cost(false)?)
}

impl Diagnosis {
    /// Takes about a second. Must be called within a tokio runtime, which reads the log of the debug BPF object.
    pub(crate) fn make(pid: Option<Pid>, placement: PlacementMode) -> Self {
        let (trials, costs) = run_trials();
        let target = pid.map(|pid| Target::inspect(pid, placement, costs.as_ref()));
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self { kernel: release.trim().to_owned(), trials, limits: limits(), costs, target }
    }

    pub(crate) fn works(&self) -> bool {
        let target = self.target.as_ref().is_none_or(|target| {
            target.hooks.as_ref().is_ok_and(|hooks| hooks.iter().any(|hook| hook.placement.is_ok()))
        });
        target && !self.trials.iter().any(Trial::prevents)
    }
}

fn limits() -> Vec<Limit> {
    let file = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let sysctl = |name: &str| file(&format!("/proc/sys/kernel/{name}"));
    let limit = |name, value, meaning| Limit { name, value, meaning };
    let locked_bytes = getrlimit(Resource::Memlock).current;
    vec![
        limit(
            "RLIMIT_MEMLOCK",
            Some(locked_bytes.map_or("unlimited".to_owned(), |bytes| bytes.to_string())),
            "limits BPF maps before Linux 5.11 only; heapbpf raises it",
        ),
        limit("kernel.perf_event_paranoid", sysctl("perf_event_paranoid"), "does not apply with CAP_PERFMON"),
        limit("kernel.unprivileged_bpf_disabled", sysctl("unprivileged_bpf_disabled"), "does not apply with CAP_BPF"),
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

impl TrialKind {
    fn describe(self) -> (&'static str, Option<&'static str>) {
        const SEE_REASON: &str = "see docs/kernel-support.md, and the reason in full with `heapbpf -v doctor`";
        match self {
            Self::Capabilities => (
                "capabilities",
                Some("run heapbpf as root (`sudo heapbpf …`), or give it these capabilities (`capabilities(7)`)"),
            ),
            Self::PidNamespace => {
                ("initial PID namespace", Some("run heapbpf on the host, or in a container with `--pid=host`"))
            }
            Self::Feature(Feature::BpfPrograms) => (
                "BPF system call",
                Some(
                    "boot a kernel with CONFIG_BPF_SYSCALL and CONFIG_BPF_EVENTS; in a container, let its seccomp profile allow `bpf`",
                ),
            ),
            Self::Feature(Feature::KernelBtf) => ("kernel type information (BTF)", None),
            Self::Feature(Feature::Uprobes) => (
                "uprobes",
                Some(
                    "boot a kernel with CONFIG_UPROBES and CONFIG_UPROBE_EVENTS, and mount sysfs at /sys; in a container, let its seccomp profile allow `perf_event_open`",
                ),
            ),
            Self::Feature(Feature::Cookies) => ("perf links with cookies", Some("boot Linux 5.15 or later")),
            Self::Feature(Feature::UprobeMulti) => ("uprobe_multi links", None),
            Self::Feature(Feature::UprobeSession) => ("uprobe sessions", None),
            Self::Programs => ("heapbpf's programs", Some(SEE_REASON)),
            Self::Attaching => ("attaching probes", Some(SEE_REASON)),
            Self::Leftovers => ("no breakpoints left behind", None),
            Self::Isolation => ("isolation of the symbolizer", None),
        }
    }
}

impl Trial {
    fn new(kind: TrialKind, support: Support) -> Self {
        Self { kind, support, remark: None }
    }

    fn of_parts(kind: TrialKind, present: (&str, &[String]), missing: (&str, &[String])) -> Self {
        let listed = |(prefix, parts): (&str, &[String])| format!("{prefix} {}", parts.join(", "));
        let support = if missing.1.is_empty() { Support::Yes } else { Support::No(listed(missing)) };
        Self { kind, support, remark: (!present.1.is_empty()).then(|| listed(present)) }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.kind.describe().0
    }

    pub(crate) fn is_needed(&self) -> bool {
        self.kind.describe().1.is_some()
    }

    pub(crate) fn prevents(&self) -> bool {
        self.remedy().is_some()
    }

    pub(crate) fn remedy(&self) -> Option<&'static str> {
        self.kind.describe().1.filter(|_| matches!(self.support, Support::No(_)))
    }
}

/// In an order in which each failure explains the later ones. The costs are `None` if no probe could be attached.
fn run_trials() -> (Vec<Trial>, Option<Costs>) {
    let subject = Subject::find();
    let mut trials = vec![capabilities(), pid_namespace()];
    trials.extend(Feature::ALL.map(|feature| {
        let support = match &subject {
            Ok(subject) => feature.support(subject.offset()),
            Err(error) => Support::Unknown(error.clone()),
        };
        Trial::new(TrialKind::Feature(feature), support)
    }));
    let untried = |reason: &str| unattached(Support::Unknown(reason.to_owned()), reason);
    let (programs, attaching, costs) = match subject {
        _ if trials[0].prevents() => untried("not tried without the capabilities"),
        Ok(subject) => probes(&subject),
        Err(error) => untried(&error),
    };
    let leftovers = match attaching {
        Support::Yes => leftovers(),
        _ => Trial::new(TrialKind::Leftovers, Support::Unknown("no probe can be attached".to_owned())),
    };
    trials.extend([programs, Trial::new(TrialKind::Attaching, attaching), leftovers, isolation()]);
    (trials, costs)
}

/// Without probes: why the programs and attaching were not tried, or failed.
fn unattached(programs: Support, attaching: &str) -> (Trial, Support, Option<Costs>) {
    (Trial::new(TrialKind::Programs, programs), Support::Unknown(attaching.to_owned()), None)
}

fn leftovers() -> Trial {
    let kind = LinkKind::choose(BackendChoice::Auto).map_err(|error| error.to_string());
    let found = kind.and_then(|kind| session::remove_leftovers(kind).map_err(|error| error.to_string()));
    let Leftovers { processes, removed, processes_with_removed, others, pointers } = match found {
        Ok(found) => found,
        Err(error) => return Trial::new(TrialKind::Leftovers, Support::Unknown(error)),
    };
    let mut remark = format!("{processes} processes searched");
    if removed > 0 {
        remark.push_str(&format!(", {removed} removed from {processes_with_removed} of them"));
    }
    if pointers > 0 {
        remark.push_str(&format!(", {pointers} pointers to stubs restored"));
    }
    if others > 0 {
        remark.push_str(&format!(", {others} belong to running tools"));
    }
    Trial { remark: Some(remark), ..Trial::new(TrialKind::Leftovers, Support::Yes) }
}

fn capabilities() -> Trial {
    let missing = match feature::missing() {
        Ok(missing) => missing,
        Err(error) => return Trial::new(TrialKind::Capabilities, Support::Unknown(error.to_string())),
    };
    let names = feature::CAPABILITIES.into_iter().map(|(name, ..)| name.to_owned());
    let (missing, present): (Vec<String>, Vec<String>) = names.partition(|name| missing.contains(&name.as_str()));
    Trial::of_parts(TrialKind::Capabilities, ("present:", &present), ("missing", &missing))
}

fn isolation() -> Trial {
    let confinement = match sandbox::confinement() {
        Ok(confinement) => confinement,
        Err(error) => return Trial::new(TrialKind::Isolation, Support::No(error)),
    };
    let names = |in_force: bool| -> Vec<String> {
        let parts = confinement.parts().into_iter().filter(|(_, is_in_force)| *is_in_force == in_force);
        parts.map(|(name, _)| name.replace('_', " ")).collect()
    };
    Trial::of_parts(TrialKind::Isolation, ("in force:", &names(true)), ("the kernel refuses:", &names(false)))
}

fn pid_namespace() -> Trial {
    let support = match process::in_initial_pid_namespace() {
        Ok(true) => Support::Yes,
        Ok(false) => Support::No("the kernel's process ids are not valid here".to_owned()),
        Err(error) => Support::Unknown(error.to_string()),
    };
    Trial::new(TrialKind::PidNamespace, support)
}

fn probes(subject: &Subject) -> (Trial, Support, Option<Costs>) {
    let config = KernelConfig {
        // The minimum: nothing is recorded.
        ring_bytes: u32::try_from(PAGE_BYTES).unwrap_or(4096),
        live_blocks_max: 16,
        unwind_by_tables: true,
        row_cells: 1,
        stack_seed: 0,
        raw_stacks: false,
        all_execs: false,
        throw_safe_bytes: u64::MAX,
        stubs: false,
    };
    let unloaded = |error: &LoadError| unattached(Support::No(error.to_string()), "the programs could not be loaded");
    let links = LinkKind::choose(BackendChoice::Auto).unwrap_or(LinkKind::Perf);
    let mut kernel = match Kernel::load(config, links) {
        Ok(kernel) => kernel,
        Err(error) => return unloaded(&error),
    };
    // Verifies the tracepoint programs too. Profiling works without them, except for following forks.
    let attached = kernel.attach_tracepoints();
    let stacks = if let Err(TracepointError::Load(error @ LoadError::PrivateStack(_))) = attached {
        return unloaded(&error);
    } else if kernel.stacks_verified() {
        "no private stacks"
    } else {
        "not verified to have no private stacks: the kernel hides their machine code (CAP_SYSLOG, kernel.kptr_restrict)"
    };
    let programs = Trial { kind: TrialKind::Programs, support: Support::Yes, remark: Some(stacks.to_owned()) };
    let keeper = Keeper::start().map_err(|error| CostError::Refused(error.to_string()));
    let (attaching, costs) = match keeper.and_then(|keeper| cost::measure(&mut kernel, &keeper, subject)) {
        Ok(costs) => (Support::Yes, Some(costs)),
        Err(error @ CostError::Target(_)) => (Support::Unknown(error.to_string()), None),
        Err(error) => (Support::No(error.to_string()), None),
    };
    (programs, attaching, costs)
}

#[cfg(test)]
mod tests;
