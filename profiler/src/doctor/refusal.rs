//! Explains the refusals of this machine: the kernel feature, the evidence, and the next command. Pure functions of facts.

mod kernel;
mod permission;

pub(crate) use self::kernel::selected_word;

use heapbpf_linux::feature::Feature;

use super::environment::{Environment, Kind};
use super::facts::{Facts, source};
use super::trial::TrialKind;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Stable name, which is a part of the JSON.
    pub id: &'static str,
    /// The feature of the kernel that is missing or refused.
    pub feature: &'static str,
    /// Whether recording is impossible.
    pub prevents: bool,
    pub reason: String,
    pub evidence: Vec<String>,
    pub remedy: String,
    /// Trials that fail for this reason.
    pub explains: &'static [TrialKind],
}

impl Refusal {
    /// Text of the refusal as that of an error: reason, evidence and remedy.
    pub(crate) fn text(&self) -> String {
        format!("{} ({}); {}", self.reason, self.evidence.join("; "), self.remedy)
    }
}

/// Refusals in an order in which each explains those after it: the first is the one to begin with. `command` is this process's
/// command line.
pub(crate) fn refusals(facts: &Facts, environments: &[Environment], command: &str) -> Vec<Refusal> {
    let known = Known { facts, environments, command };
    // Emulated kernels have no other refusals.
    if let Some(refusal) = known.gvisor().or_else(|| known.wsl1()).or_else(|| known.procfs()) {
        return vec![refusal];
    }
    let all = [
        known.user_namespace().or_else(|| known.capabilities()),
        known.pid_namespace(),
        known.seccomp_bpf(),
        known.bpf(),
        known.security_module(),
        known.lockdown(),
        known.memlock(),
        known.jit(),
        known.sysfs().or_else(|| known.uprobes()),
        known.seccomp_perf(),
        known.ptrace(),
        known.hidepid(),
        known.btf(),
    ];
    all.into_iter().flatten().collect()
}

const ALL_BPF: &[TrialKind] = &[
    TrialKind::Feature(Feature::BpfPrograms),
    TrialKind::Feature(Feature::Cookies),
    TrialKind::Feature(Feature::UprobeMulti),
    TrialKind::Feature(Feature::UprobeSession),
    TrialKind::Programs,
    TrialKind::Attaching,
];

const ALL: &[TrialKind] = &[
    TrialKind::Capabilities,
    TrialKind::PidNamespace,
    TrialKind::Feature(Feature::BpfPrograms),
    TrialKind::Feature(Feature::KernelBtf),
    TrialKind::Feature(Feature::Uprobes),
    TrialKind::Feature(Feature::Cookies),
    TrialKind::Feature(Feature::UprobeMulti),
    TrialKind::Feature(Feature::UprobeSession),
    TrialKind::Programs,
    TrialKind::Attaching,
    TrialKind::Tracing,
    TrialKind::Isolation,
];

const PROGRAMS: &[TrialKind] = &[TrialKind::Programs, TrialKind::Attaching];

struct Known<'a> {
    facts: &'a Facts,
    environments: &'a [Environment],
    command: &'a str,
}

impl Known<'_> {
    fn is(&self, kind: Kind) -> bool {
        self.environments.iter().any(|environment| environment.kind == kind)
    }

    /// Kind of the innermost container.
    fn container(&self) -> Option<Kind> {
        self.environments.iter().map(|environment| environment.kind).find(|kind| kind.is_container())
    }

    /// Text of facts as evidence. Leaves out facts that prove nothing by their absence.
    fn cite(&self, sources: &[&str]) -> Vec<String> {
        const INCIDENTAL: [&str; 7] = [
            source::COMMAND_LINE,
            source::CONFIGURATION,
            source::LABEL,
            source::LOCKDOWN,
            source::SECURE_BOOT,
            source::SECURITY_MODULES,
            source::JIT,
        ];
        let is_known = |source: &&&str| self.facts.answer(source).is_some();
        let is_empty = |source: &str| self.facts.text(source).is_none_or(str::is_empty);
        let known = sources.iter().filter(is_known);
        known
            .filter(|source| !(INCIDENTAL.contains(source) && is_empty(source)))
            .map(|source| self.facts.cite(source))
            .collect()
    }

    /// Advice for starting the container so that heapbpf works in it: one command for all that containers lack.
    fn privileged_container(&self) -> Option<String> {
        const PAGE: &str = "docs/containers.md lists smaller sets of privileges";
        Some(match self.container()? {
            Kind::Kubernetes => format!(
                "run heapbpf in a pod with `hostPID: true` and `securityContext: {{privileged: true}}`, or on the node; {PAGE}"
            ),
            Kind::Podman => format!(
                "run heapbpf on the host, or in a container of root: `sudo podman run --privileged --pid=host …`; {PAGE}"
            ),
            Kind::Docker => format!(
                "run heapbpf on the host, or start the container with `docker run --privileged --pid=host …`; {PAGE}"
            ),
            Kind::Lxc | Kind::Nspawn | Kind::Container => {
                "run heapbpf on the host, which sees the container's processes: `sudo heapbpf --cgroup NAME`".to_owned()
            }
            _ => return None,
        })
    }

    fn sudo(&self) -> String {
        format!("run `sudo {}`", self.command)
    }

    fn on_host(&self) -> String {
        let outside = || format!("leave the namespace and run `sudo {}` on the host", self.command);
        self.privileged_container().unwrap_or_else(outside)
    }

    fn other_kernel(&self, options: &str) -> String {
        if self.is(Kind::Wsl2) {
            return format!(
                "in Windows, run `wsl --update`, or build a kernel with {options} and name it in `.wslconfig` (`kernel=`)"
            );
        }
        if self.is(Kind::Firecracker) {
            return format!(
                "build the guest's kernel with {options}, and specify it as `kernel_image_path` of Firecracker's boot source; \
                 its example configurations disable CONFIG_FTRACE, on which uprobes depend"
            );
        }
        format!("boot a kernel with {options}, such as your distribution's")
    }
}
