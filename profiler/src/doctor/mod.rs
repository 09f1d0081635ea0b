//! Command `heapbpf doctor`: features that this kernel, user and target allow, and the cost of a probe on this machine. Changes
//! nothing.

mod environment;
mod facts;
mod json;
mod refusal;
pub(crate) mod report;
mod trial;

use profiler_common::limits::STACK_FRAMES_MAX;
use rustix::process::{Resource, getrlimit};
use tracing::debug;

use self::environment::{Environment, in_initial_pid_namespace, in_initial_user_namespace, recognize};
pub(crate) use self::facts::{ATTEMPT_COMMAND, serve_attempt};
use heapbpf_base::ids::Pid;
use heapbpf_linux::attempt::{Attempt, Errno};
use heapbpf_linux::feature::{self, Feature, Support};
use heapbpf_linux::memory::page_bytes;
use heapbpf_linux::proc::process;

use self::facts::{Answer, Facts, source};
use self::refusal::{Refusal, refusals, selected_word};
use self::trial::{Trial, TrialKind};
use crate::bpf::load::{BackendChoice, Kernel, KernelConfig, LinkKind, LoadError};
use crate::bpf::processes::{TracepointError, TracepointReason};
use crate::guardrail::CallCosts;
use crate::keeper::Keeper;
use crate::probe::cost::expected_ns;
use crate::probe::cost::{self, CostError, Subject};
pub(crate) use crate::probe::cost::{Costs, TARGET_COMMAND, serve};
use crate::probe::place::PlacementMode;
use crate::probe::plan::PlannedHook;
use crate::session::{self, CallRate, Leftovers, ScopeForecast};
use crate::symbolize::sandbox;

#[derive(Debug)]
pub(crate) struct Diagnosis {
    pub kernel: String,
    pub environments: Vec<Environment>,
    /// Refusals of the machine with their reasons; trials that fail for other reasons are not among them.
    pub refusals: Vec<Refusal>,
    pub facts: Facts,
    pub trials: Vec<Trial>,
    pub limits: Vec<Limit>,
    /// Costs of probes; `None` if no probe could be attached.
    pub costs: Option<Costs>,
    /// The process of `--pid`.
    pub target: Option<Target>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub name: &'static str,
    /// Value of the limit; `None` if it cannot be read.
    pub value: Option<String>,
    pub meaning: &'static str,
}

#[derive(Debug)]
pub(crate) struct Target {
    pub pid: Pid,
    pub comm: String,
    pub hooks: Result<Vec<PlannedHook>, String>,
    /// Scope of probes; `None` without hooks, and where no probe can be attached.
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

/// Predicted CPU time of a process while it is recorded, as a multiple of that without heapbpf.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct EnginesForecast {
    /// Number of allocations per second of CPU time.
    pub allocations_per_second: f64,
    pub trap: f64,
    /// Prediction for the inline engine; `None` if no pointer can lead to stubs.
    pub inline: Option<f64>,
    pub pointers: usize,
}

impl EnginesForecast {
    fn of(pid: Pid, placement: PlacementMode, hooks: &[PlannedHook], costs: &Costs) -> Option<Self> {
        let rate = session::call_rate(pid, placement);
        let rate = rate.inspect_err(|error| debug!("cannot count the calls of process {pid}: {error:#}")).ok()?;
        Some(Self::new(rate, pair_ns(hooks, costs)?))
    }

    /// Predicts the CPU time. `pair_ns` is the cost of probes for an allocation and its free.
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds below 2^53")]
    fn new(rate: CallRate, pair_ns: f64) -> Self {
        let (allocations, cpu_ns) = (rate.allocations as f64, rate.cpu_ns as f64);
        // The time excludes the probes that counted. At least a part of the time was the program's own.
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

/// Cost of probes for an allocation and its free, by the first function of each kind, which programs mostly call.
fn pair_ns(hooks: &[PlannedHook], costs: &Costs) -> Option<f64> {
    let cost = |allocates: bool| {
        let mut of_kind = hooks.iter().filter(|planned| planned.hook.spec.shape.allocates() == allocates);
        let (planned, placement) = of_kind.find_map(|planned| Some((planned, planned.placement.as_ref().ok()?)))?;
        Some(expected_ns(costs, placement.class, planned.hook.spec.shape))
    };
    Some(cost(true)? + cost(false)?)
}

impl Diagnosis {
    /// Diagnoses the machine, which takes about a second. Must be called within a tokio runtime, which reads the log of the debug
    /// BPF object. `command` is the command line, for advice.
    pub(crate) fn make(pid: Option<Pid>, placement: PlacementMode, command: &str) -> Self {
        let facts = Facts::collect();
        let environments = recognize(&facts);
        let (trials, costs) = run_trials(&facts);
        let mut refusals = refusals(&facts, &environments, command);
        refusals.retain(|refusal| is_seen(refusal, &trials));
        let target = pid.map(|pid| Target::inspect(pid, placement, costs.as_ref()));
        let kernel = facts.text(source::RELEASE).unwrap_or("of unknown version").to_owned();
        Self { kernel, environments, refusals, limits: limits(&facts), facts, trials, costs, target }
    }

    pub(crate) fn works(&self) -> bool {
        let target = self.target.as_ref().is_none_or(|target| {
            target.hooks.as_ref().is_ok_and(|hooks| hooks.iter().any(|hook| hook.placement.is_ok()))
        });
        target && !self.trials.iter().any(Trial::prevents) && !self.refusals.iter().any(|refusal| refusal.prevents)
    }

    /// Whether a refusal is the reason why recording is impossible, even if it would not be where the kernel has other features.
    pub(crate) fn is_decisive(&self, refusal: &Refusal) -> bool {
        let mut explained = self.trials.iter().filter(|trial| self.explanation(trial) == Some(refusal));
        refusal.prevents || explained.any(Trial::prevents)
    }

    /// Refusal that explains why a trial fails, if there is one.
    pub(crate) fn explanation(&self, trial: &Trial) -> Option<&Refusal> {
        let explains = |refusal: &&Refusal| refusal.explains.contains(&trial.kind);
        self.refusals.iter().find(explains).filter(|_| trial.support != Support::Yes)
    }
}

/// Whether any of the trials that the refusal explains fails. Trials are stronger evidence than facts.
fn is_seen(refusal: &Refusal, trials: &[Trial]) -> bool {
    let mut explained = trials.iter().filter(|trial| refusal.explains.contains(&trial.kind));
    refusal.explains.is_empty() || explained.any(|trial| trial.support != Support::Yes)
}

/// Kind of the operation that the kernel has refused to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Probes,
    Tracing,
}

/// Explains why a command fails on this machine, in one sentence with evidence and the next command; `None` if no fact does.
/// Without `refused`, explains why no recording can start.
pub(crate) fn explain(command: &str, refused: Option<Refused>) -> Option<String> {
    let facts = Facts::collect();
    let all = refusals(&facts, &recognize(&facts), command);
    let explains = |kind: TrialKind| all.iter().find(|refusal| refusal.explains.contains(&kind));
    let prevents = || all.iter().find(|refusal| refusal.prevents);
    let first = match refused {
        None => prevents(),
        Some(Refused::Probes) => prevents().or_else(|| explains(TrialKind::Attaching)),
        Some(Refused::Tracing) => explains(TrialKind::Tracing),
    };
    Some(format!("{}; `heapbpf doctor` lists all checks", first?.text()))
}

/// Whether a seccomp filter applies to this process, which may kill it at a system call. False where unknown.
pub(crate) fn is_filtered() -> bool {
    facts::seccomp_mode().is_some_and(|mode| mode != "0")
}

fn limits(facts: &Facts) -> Vec<Limit> {
    let text = |source| facts.text(source).map(str::to_owned);
    let mounted = |source| match facts.answer(source) {
        Some(Answer::Text(mount)) => mount.split(' ').next().map(str::to_owned),
        _ => None,
    };
    let limit = |name, value, meaning| Limit { name, value, meaning };
    let locked_bytes = getrlimit(Resource::Memlock).current;
    vec![
        limit(
            "RLIMIT_MEMLOCK",
            Some(locked_bytes.map_or("unlimited".to_owned(), |bytes| bytes.to_string())),
            "limits BPF maps before Linux 5.11 only; heapbpf raises it",
        ),
        limit("kernel.perf_event_paranoid", text(source::PERF_PARANOID), "does not apply with CAP_PERFMON"),
        limit("kernel.unprivileged_bpf_disabled", text(source::UNPRIVILEGED_BPF), "does not apply with CAP_BPF"),
        limit(
            "kernel.yama.ptrace_scope",
            text(source::PTRACE_SCOPE),
            "3 forbids `-- COMMAND`, `leaks` and the inline engine",
        ),
        limit(
            "kernel.kptr_restrict",
            text(source::POINTERS_HIDDEN),
            "2 hides the programs' machine code, which heapbpf verifies",
        ),
        limit("net.core.bpf_jit_enable", text(source::JIT), "0 prevents recording: the programs need the compiler"),
        limit(
            "kernel lockdown",
            facts.text(source::LOCKDOWN).map(|text| selected_word(text).to_owned()),
            "with `confidentiality`, forks are not followed, and stacks lack Python and Ruby frames; to read it: `mount -t securityfs securityfs /sys/kernel/security`",
        ),
        limit(
            "secure boot",
            text(source::SECURE_BOOT),
            "locks the kernel down on some distributions (`integrity` is no problem)",
        ),
        limit(
            "tracefs",
            mounted(source::TRACE_MOUNT),
            "lists probes of `perf probe`, nothing else: `mount -t tracefs tracefs /sys/kernel/tracing`",
        ),
        limit(
            "frames in a stack",
            Some(STACK_FRAMES_MAX.to_string()),
            "heapbpf's own limit; kernel.perf_event_max_stack does not apply",
        ),
    ]
}

/// Runs trials in an order in which each failure explains the later ones. The costs are `None` if no probe could be attached.
fn run_trials(facts: &Facts) -> (Vec<Trial>, Option<Costs>) {
    let killed = [Attempt::ReachBpf, Attempt::ReachPerfEventOpen].map(Attempt::describe);
    let killed = killed.into_iter().find(|name| facts.is_killed(name));
    let subject = match killed {
        Some(name) => Err(facts.cite(name)),
        None => Subject::find(),
    };
    let mut trials = vec![capabilities(facts), pid_namespace(facts)];
    trials.extend(Feature::ALL.map(|feature| {
        let support = match &subject {
            Ok(subject) => feature.support(subject.offset()),
            // This feature is a file, unlike the others.
            Err(_) if feature == Feature::KernelBtf => feature.support(0),
            Err(error) => Support::Unknown(error.clone()),
        };
        Trial::new(TrialKind::Feature(feature), support)
    }));
    let has_multi = trials
        .iter()
        .any(|trial| trial.kind == TrialKind::Feature(Feature::UprobeMulti) && trial.support == Support::Yes);
    for trial in &mut trials {
        // These features are for perf events, which other links do without.
        let by_perf =
            [TrialKind::Feature(Feature::Uprobes), TrialKind::Feature(Feature::Cookies)].contains(&trial.kind);
        trial.needed &= !(by_perf && has_multi);
    }
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
    let attaching = Trial::new(TrialKind::Attaching, attaching);
    trials.extend([programs, attaching, tracing(facts), leftovers, isolation()]);
    (trials, costs)
}

/// Result without probes: the reason why the programs and attaching were not tried, or failed.
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

fn capabilities(facts: &Facts) -> Trial {
    if !in_initial_user_namespace(facts) {
        let reason = "those of a user namespace do not apply to BPF and probes".to_owned();
        return Trial::new(TrialKind::Capabilities, Support::No(reason));
    }
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

fn pid_namespace(facts: &Facts) -> Trial {
    let support = match facts.answer(source::PID_NAMESPACE) {
        Some(Answer::Text(_)) if in_initial_pid_namespace(facts) => Support::Yes,
        Some(Answer::Text(_)) => Support::No("the kernel's process ids are not valid here".to_owned()),
        _ => Support::Unknown(facts.cite(source::PID_NAMESPACE)),
    };
    Trial::new(TrialKind::PidNamespace, support)
}

fn tracing(facts: &Facts) -> Trial {
    let attempt = Attempt::ReachPtrace;
    let answers = facts.error(attempt.describe()) == attempt.expected();
    let support = match facts.text(source::PTRACE_SCOPE) {
        Some("3") => Support::No(facts.cite(source::PTRACE_SCOPE)),
        _ if answers => Support::Yes,
        _ => Support::No(facts.cite_attempt(attempt)),
    };
    Trial::new(TrialKind::Tracing, support)
}

fn probes(subject: &Subject) -> (Trial, Support, Option<Costs>) {
    let config = KernelConfig {
        // The minimum is enough, because nothing is recorded.
        ring_bytes: u32::try_from(page_bytes()).unwrap_or(4096),
        back_pressure_max: 0,
        live_blocks_max: 16,
        unwind_by_tables: true,
        row_cells: 1,
        stack_seed: 0,
        raw_stacks: false,
        all_execs: false,
        throw_safe_bytes: u64::MAX,
        stubs: false,
        entries: false,
        pages: false,
    };
    let unloaded = |error: &LoadError| unattached(Support::No(with_cause(error)), "the programs could not be loaded");
    let links = match LinkKind::choose(BackendChoice::Auto) {
        Ok(links) => links,
        Err(error) => {
            let untried = Trial::new(TrialKind::Programs, Support::Unknown("no links are possible".to_owned()));
            return (untried, Support::No(error.to_string()), None);
        }
    };
    let mut kernel = match Kernel::load(config, links) {
        Ok(kernel) => kernel,
        Err(error) => return unloaded(&error),
    };
    // This attempt verifies the tracepoint programs too. Profiling works without them, except for following forks.
    let attached = kernel.attach_tracepoints();
    let stacks = if let Err(TracepointError {
        reason: TracepointReason::Load(error @ LoadError::PrivateStack(_)),
        ..
    }) = attached
    {
        return unloaded(&error);
    } else if kernel.stacks_verified() {
        "no private stacks"
    } else {
        "not verified to have no private stacks: the kernel hides their machine code (CAP_SYSLOG, kernel.kptr_restrict)"
    };
    let programs = Trial { remark: Some(stacks.to_owned()), ..Trial::new(TrialKind::Programs, Support::Yes) };
    let keeper = Keeper::start().map_err(|error| CostError::Refused(error.to_string()));
    let (attaching, costs) = match keeper.and_then(|keeper| cost::measure(&mut kernel, &keeper, subject)) {
        Ok(costs) => (Support::Yes, Some(costs)),
        Err(error @ CostError::Target(_)) => (Support::Unknown(error.to_string()), None),
        Err(error) => (Support::No(error.to_string()), None),
    };
    (programs, attaching, costs)
}

/// Text of an error with the answer of the kernel, which the error's own text may leave out.
fn with_cause(error: &LoadError) -> String {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    match causes.filter_map(|cause| cause.downcast_ref::<std::io::Error>()).last() {
        Some(cause) => format!("{error}: {}", Errno::text(cause)),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
