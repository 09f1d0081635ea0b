//! Trials, in an order in which each failure explains the later ones.

use profiler_common::limits::PAGE_BYTES;

use crate::bpf::error::LoadError;
use crate::bpf::load::{Kernel, KernelConfig, LinkKind};
use crate::bpf::processes::TracepointError;
use crate::keeper::Keeper;
use crate::linux::feature;
use crate::linux::feature::{Feature, Support};
use crate::linux::proc::process;
use crate::probe::attach::{BackendChoice, choose};
use crate::probe::cost::{self, CostError, Costs, Subject};
use crate::session::{self, Leftovers};
use crate::symbolize::sandbox;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrialKind {
    Capabilities,
    PidNamespace,
    Feature(Feature),
    /// Loading the BPF programs.
    Programs,
    /// Attaching probes to a process of heapbpf's own.
    Attaching,
    /// Searching all processes for breakpoints of a killed heapbpf.
    Leftovers,
    /// Isolating the symbolizer process.
    Isolation,
}

/// Result of a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trial {
    pub kind: TrialKind,
    pub support: Support,
    pub remark: Option<String>,
}

impl Trial {
    fn new(kind: TrialKind, support: Support) -> Self {
        Self { kind, support, remark: None }
    }

    pub(crate) fn name(&self) -> &'static str {
        match self.kind {
            TrialKind::Capabilities => "capabilities",
            TrialKind::PidNamespace => "initial PID namespace",
            TrialKind::Feature(Feature::BpfPrograms) => "BPF system call",
            TrialKind::Feature(Feature::KernelBtf) => "kernel type information (BTF)",
            TrialKind::Feature(Feature::Uprobes) => "uprobes",
            TrialKind::Feature(Feature::Cookies) => "perf links with cookies",
            TrialKind::Feature(Feature::UprobeMulti) => "uprobe_multi links",
            TrialKind::Feature(Feature::UprobeSession) => "uprobe sessions",
            TrialKind::Programs => "heapbpf's programs",
            TrialKind::Attaching => "attaching probes",
            TrialKind::Leftovers => "no breakpoints left behind",
            TrialKind::Isolation => "isolation of the symbolizer",
        }
    }

    /// Whether profiling requires it.
    pub(crate) fn is_needed(&self) -> bool {
        !matches!(
            self.kind,
            TrialKind::Leftovers
                | TrialKind::Isolation
                | TrialKind::Feature(Feature::KernelBtf | Feature::UprobeMulti | Feature::UprobeSession)
        )
    }

    /// Whether its failure prevents profiling.
    pub(crate) fn prevents(&self) -> bool {
        self.is_needed() && matches!(self.support, Support::No(_))
    }

    /// Returns what to do if it prevents profiling.
    pub(crate) fn remedy(&self) -> Option<&'static str> {
        if !self.prevents() {
            return None;
        }
        Some(match self.kind {
            TrialKind::Capabilities => {
                "run heapbpf as root (`sudo heapbpf …`), or give it these capabilities (`capabilities(7)`)"
            }
            TrialKind::PidNamespace => "run heapbpf on the host, or in a container with `--pid=host`",
            TrialKind::Feature(Feature::BpfPrograms) => {
                "boot a kernel with CONFIG_BPF_SYSCALL and CONFIG_BPF_EVENTS; in a container, let its seccomp profile allow `bpf`"
            }
            TrialKind::Feature(Feature::Uprobes) => {
                "boot a kernel with CONFIG_UPROBES and CONFIG_UPROBE_EVENTS, and mount sysfs at /sys; in a container, let its seccomp profile allow `perf_event_open`"
            }
            TrialKind::Feature(_) => "boot Linux 5.15 or later",
            TrialKind::Programs | TrialKind::Attaching | TrialKind::Leftovers | TrialKind::Isolation => {
                "see docs/kernel-support.md, and the reason in full with `heapbpf -v doctor`"
            }
        })
    }
}

/// Runs all trials. Also returns the cost of a probe, if one could be attached.
pub(super) fn run() -> (Vec<Trial>, Option<Costs>) {
    let subject = Subject::find();
    let mut trials = vec![capabilities(), pid_namespace()];
    for feature in Feature::ALL {
        let support = match &subject {
            Ok(subject) => feature.support(subject.offset()),
            Err(error) => Support::Unknown(error.clone()),
        };
        trials.push(Trial::new(TrialKind::Feature(feature), support));
    }
    let allowed = !trials[0].prevents();
    let (programs, attaching, costs) = match (allowed, subject) {
        (true, Ok(subject)) => probes(&subject),
        (true, Err(error)) => {
            (Trial::new(TrialKind::Programs, Support::Unknown(error.clone())), Support::Unknown(error), None)
        }
        (false, _) => {
            let not_allowed = || Support::Unknown("not tried without the capabilities".to_owned());
            (Trial::new(TrialKind::Programs, not_allowed()), not_allowed(), None)
        }
    };
    trials.push(programs);
    let leftovers = match attaching {
        Support::Yes => leftovers(),
        _ => Trial::new(TrialKind::Leftovers, Support::Unknown("no probe can be attached".to_owned())),
    };
    trials.push(Trial::new(TrialKind::Attaching, attaching));
    trials.push(leftovers);
    trials.push(isolation());
    (trials, costs)
}

/// Removes breakpoints left by a heapbpf that was killed together with its keeper.
fn leftovers() -> Trial {
    let unknown = |error: &dyn std::fmt::Display| Trial::new(TrialKind::Leftovers, Support::Unknown(error.to_string()));
    let kind = match choose(BackendChoice::Auto) {
        Ok(kind) => kind,
        Err(error) => return unknown(&error),
    };
    match session::remove_leftovers(kind) {
        Err(error) => unknown(&error),
        Ok(found) => {
            let Leftovers { processes, removed, processes_with_removed, others } = found;
            let mut remark = format!("{processes} processes searched");
            if removed > 0 {
                remark.push_str(&format!(", {removed} removed from {processes_with_removed} of them"));
            }
            if others > 0 {
                remark.push_str(&format!(", {others} belong to running tools"));
            }
            Trial { remark: Some(remark), ..Trial::new(TrialKind::Leftovers, Support::Yes) }
        }
    }
}

fn capabilities() -> Trial {
    let missing = match feature::missing() {
        Ok(missing) => missing,
        Err(error) => return Trial::new(TrialKind::Capabilities, Support::Unknown(error.to_string())),
    };
    let names = feature::CAPABILITIES.into_iter().map(|(name, ..)| name);
    let present: Vec<&str> = names.filter(|name| !missing.contains(name)).collect();
    let support =
        if missing.is_empty() { Support::Yes } else { Support::No(format!("missing {}", missing.join(", "))) };
    let remark = (!present.is_empty()).then(|| format!("present: {}", present.join(", ")));
    Trial { kind: TrialKind::Capabilities, support, remark }
}

/// Starts a symbolizer process and checks its confinement.
fn isolation() -> Trial {
    let confinement = match sandbox::confinement() {
        Ok(confinement) => confinement,
        Err(error) => return Trial::new(TrialKind::Isolation, Support::No(error)),
    };
    let names = |in_force: bool| -> Vec<String> {
        let parts = confinement.parts().into_iter().filter(|(_, is_in_force)| *is_in_force == in_force);
        parts.map(|(name, _)| name.replace('_', " ")).collect()
    };
    let missing = names(false);
    let support = if missing.is_empty() {
        Support::Yes
    } else {
        Support::No(format!("the kernel refuses: {}", missing.join(", ")))
    };
    let present = names(true);
    let remark = (!present.is_empty()).then(|| format!("in force: {}", present.join(", ")));
    Trial { kind: TrialKind::Isolation, support, remark }
}

fn pid_namespace() -> Trial {
    let support = match process::in_initial_pid_namespace() {
        Ok(true) => Support::Yes,
        Ok(false) => Support::No("the kernel's process ids are not valid here".to_owned()),
        Err(error) => Support::Unknown(error.to_string()),
    };
    Trial::new(TrialKind::PidNamespace, support)
}

/// Loads the programs and attaches them to a child process.
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
    };
    let links = choose(BackendChoice::Auto).unwrap_or(LinkKind::Perf);
    let mut kernel = match Kernel::load(config, links) {
        Ok(kernel) => kernel,
        Err(error) => {
            let programs = Trial::new(TrialKind::Programs, Support::No(error.to_string()));
            return (programs, Support::Unknown("the programs could not be loaded".to_owned()), None);
        }
    };
    // Verifies the tracepoint programs too. Profiling works without them, except for following forks.
    let watched = kernel.attach_tracepoints();
    let stacks = if let Err(TracepointError::Load(error @ LoadError::PrivateStack(_))) = watched {
        let programs = Trial::new(TrialKind::Programs, Support::No(error.to_string()));
        return (programs, Support::Unknown("the programs could not be loaded".to_owned()), None);
    } else if kernel.stacks_verified() {
        "no private stacks"
    } else {
        "not verified to have no private stacks: the kernel hides their machine code (CAP_SYSLOG, kernel.kptr_restrict)"
    };
    let programs = Trial { kind: TrialKind::Programs, support: Support::Yes, remark: Some(stacks.to_owned()) };
    let (attaching, costs) = match measure(&mut kernel, subject) {
        Ok(costs) => (Support::Yes, Some(costs)),
        Err(CostError::Refused(error)) => (Support::No(error), None),
        Err(error) => (Support::Unknown(error.to_string()), None),
    };
    (programs, attaching, costs)
}

fn measure(kernel: &mut Kernel, subject: &Subject) -> Result<Costs, CostError> {
    cost::measure(kernel, &Keeper::start().map_err(|error| CostError::Refused(error.to_string()))?, subject)
}
