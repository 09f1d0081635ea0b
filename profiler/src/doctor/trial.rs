//! Trials of `doctor`, and their results.

use heapbpf_linux::feature::{Feature, Support};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrialKind {
    Capabilities,
    PidNamespace,
    Feature(Feature),
    Programs,
    Attaching,
    /// Stopping and reading processes: launched commands, inventory, heap snapshots, inline engine.
    Tracing,
    /// Searching all processes for breakpoints of a killed heapbpf.
    Leftovers,
    Isolation,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trial {
    pub kind: TrialKind,
    pub support: Support,
    pub remark: Option<String>,
    /// Whether recording is impossible without the feature.
    pub needed: bool,
}

struct Description {
    name: &'static str,
    needed: bool,
    /// What a recording lacks without the feature, if that is not needed.
    without: Option<&'static str>,
    /// Remedy where no fact explains why the feature is missing.
    remedy: Option<&'static str>,
}

impl TrialKind {
    fn describe(self) -> Description {
        const SEE_REASON: &str = "see docs/kernel-support.md, and the reason in full with `heapbpf -v doctor`";
        let needed = |name, remedy| Description { name, needed: true, without: None, remedy: Some(remedy) };
        let optional = |name, without, remedy| Description { name, needed: false, without, remedy };
        match self {
            Self::Capabilities => needed(
                "capabilities",
                "run heapbpf as root (`sudo heapbpf …`), or give it these capabilities (`capabilities(7)`)",
            ),
            Self::PidNamespace => {
                needed("initial PID namespace", "run heapbpf on the host, or in a container with `--pid=host`")
            }
            Self::Feature(Feature::BpfPrograms) => needed(
                "BPF system call",
                "boot a kernel with CONFIG_BPF_SYSCALL and CONFIG_BPF_EVENTS; in a container, let its seccomp profile allow `bpf`",
            ),
            Self::Feature(Feature::KernelBtf) => optional(
                "kernel type information (BTF)",
                Some("forks are not followed, and stacks lack Python and Ruby frames"),
                Some("boot a kernel with CONFIG_DEBUG_INFO_BTF, and mount sysfs at /sys"),
            ),
            Self::Feature(Feature::Uprobes) => needed(
                "uprobes",
                "boot a kernel with CONFIG_UPROBES and CONFIG_UPROBE_EVENTS, and mount sysfs at /sys; in a container, let its seccomp profile allow `perf_event_open`",
            ),
            Self::Feature(Feature::Cookies) => optional(
                "perf links with cookies",
                Some("each hit of a probe searches two hash maps"),
                Some("boot Linux 5.15 or later"),
            ),
            Self::Feature(Feature::UprobeMulti) => optional(
                "uprobe_multi links",
                Some("attaching is slower and needs CAP_SYS_ADMIN, and there is no inline engine"),
                Some("boot Linux 6.6 or later"),
            ),
            Self::Feature(Feature::UprobeSession) => optional(
                "uprobe sessions",
                Some("unsampled calls enter the kernel twice, and functions that may throw are not hooked"),
                Some("boot Linux 6.13 or later"),
            ),
            Self::Programs => needed("heapbpf's programs", SEE_REASON),
            Self::Attaching => needed("attaching probes", SEE_REASON),
            Self::Tracing => optional(
                "tracing processes",
                Some("no `-- COMMAND`, no `leaks`, no inventory of earlier blocks, and no inline engine"),
                Some("let the seccomp profile allow `ptrace`, and set kernel.yama.ptrace_scope below 3"),
            ),
            Self::Leftovers => optional("no breakpoints left behind", None, None),
            Self::Isolation => optional(
                "isolation of the symbolizer",
                Some("files with debug information are parsed with fewer barriers"),
                Some("allow user namespaces (`sysctl user.max_user_namespaces`), or give heapbpf CAP_SYS_CHROOT"),
            ),
        }
    }
}

impl Trial {
    pub(crate) fn new(kind: TrialKind, support: Support) -> Self {
        Self { kind, support, remark: None, needed: kind.describe().needed }
    }

    pub(crate) fn of_parts(kind: TrialKind, present: (&str, &[String]), missing: (&str, &[String])) -> Self {
        let listed = |(prefix, parts): (&str, &[String])| format!("{prefix} {}", parts.join(", "));
        let support = if missing.1.is_empty() { Support::Yes } else { Support::No(listed(missing)) };
        Self { remark: (!present.1.is_empty()).then(|| listed(present)), ..Self::new(kind, support) }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.kind.describe().name
    }

    pub(crate) fn is_missing(&self) -> bool {
        matches!(self.support, Support::No(_))
    }

    pub(crate) fn prevents(&self) -> bool {
        self.needed && self.is_missing()
    }

    pub(crate) fn remedy(&self) -> Option<&'static str> {
        self.kind.describe().remedy.filter(|_| self.is_missing())
    }

    /// What a recording lacks without the feature, if recording is possible nevertheless.
    pub(crate) fn consequence(&self) -> Option<&'static str> {
        self.kind.describe().without.filter(|_| self.is_missing())
    }
}
