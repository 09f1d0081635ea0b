//! Refusals by capabilities, namespaces, seccomp filters and security modules.

use heapbpf_linux::attempt::Attempt;
use heapbpf_linux::feature::Feature;

use super::{ALL_BPF, Known, Refusal};
use crate::doctor::environment::{Kind, in_initial_pid_namespace, in_initial_user_namespace};
use crate::doctor::facts::source;
use crate::doctor::trial::TrialKind;

/// Names of capabilities, their bits in include/uapi/linux/capability.h, and whether CAP_SYS_ADMIN includes them.
const NEEDED: [(&str, u32, bool); 3] =
    [("CAP_BPF", 39, true), ("CAP_PERFMON", 38, true), ("CAP_SYS_PTRACE", 19, false)];
const SYS_ADMIN: u32 = 21;

const NEED_PERMISSION: &[TrialKind] = &[
    TrialKind::Capabilities,
    TrialKind::Feature(Feature::BpfPrograms),
    TrialKind::Feature(Feature::Uprobes),
    TrialKind::Feature(Feature::Cookies),
    TrialKind::Feature(Feature::UprobeMulti),
    TrialKind::Feature(Feature::UprobeSession),
    TrialKind::Programs,
    TrialKind::Attaching,
];

impl Known<'_> {
    /// Refusal in a user namespace. `bpf_capable` and `perfmon_capable` (include/linux/capability.h) check capabilities of the
    /// initial user namespace.
    pub(super) fn user_namespace(&self) -> Option<Refusal> {
        (!in_initial_user_namespace(self.facts)).then(|| Refusal {
            id: "user_namespace",
            feature: "CAP_BPF and CAP_PERFMON in the initial user namespace",
            prevents: true,
            reason: "heapbpf runs in a user namespace, where capabilities do not apply to BPF and probes".to_owned(),
            evidence: self.cite(&[
                source::USER_NAMESPACE,
                source::UID_MAP,
                source::EFFECTIVE,
                Attempt::LoadProgram.describe(),
            ]),
            remedy: self.on_host(),
            explains: NEED_PERMISSION,
        })
    }

    pub(super) fn missing_from(&self, set: &str) -> Vec<&'static str> {
        let Some(bits) = self.facts.capabilities(set) else { return Vec::new() };
        let has = |bit: u32| bits & (1 << bit) != 0;
        let is_missing = |(_, bit, in_admin): &(_, u32, bool)| !(has(*bit) || *in_admin && has(SYS_ADMIN));
        NEEDED.into_iter().filter(is_missing).map(|(name, ..)| name).collect()
    }

    /// Refusal for missing capabilities. `sudo` does not give capabilities that are not in the bounding set, and none with
    /// `no_new_privs` (capabilities(7)).
    pub(super) fn capabilities(&self) -> Option<Refusal> {
        let missing = self.missing_from(source::EFFECTIVE);
        if missing.is_empty() {
            return None;
        }
        let bounded = self.missing_from(source::BOUNDING);
        let no_new = self.facts.text(source::NO_NEW_PRIVILEGES) == Some("1");
        let names = missing.join(", ");
        let (id, why, sources, remedy) = if !bounded.is_empty() {
            let why = format!(", which `sudo` cannot give: the bounding set lacks {}", bounded.join(", "));
            ("bounding_set", why, &[source::EFFECTIVE, source::BOUNDING][..], self.unbounded(&bounded))
        } else if no_new {
            let why = ", which `sudo` cannot give: `no_new_privs` is set".to_owned();
            ("no_new_privs", why, &[source::EFFECTIVE, source::NO_NEW_PRIVILEGES][..], self.unbounded(&missing))
        } else {
            let remedy = format!("{}, or see docs/without-root.md", self.sudo());
            ("capabilities", String::new(), &[source::EFFECTIVE, source::UID][..], remedy)
        };
        let mut evidence = self.cite(sources);
        evidence.extend(self.cite(&[source::UNPRIVILEGED_BPF, source::PERF_PARANOID]));
        Some(Refusal {
            id,
            feature: "CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE",
            prevents: true,
            reason: format!("not allowed: missing {names}{why}"),
            evidence,
            remedy,
            explains: NEED_PERMISSION,
        })
    }

    pub(super) fn unbounded(&self, missing: &[&str]) -> String {
        if let Some(container) = self.privileged_container() {
            return container;
        }
        let names = missing.join(" ");
        if self.facts.exists(source::SYSTEMD_UNIT) {
            return format!(
                "in the unit (`systemctl edit UNIT`), add `{names}` to CapabilityBoundingSet= and AmbientCapabilities=, and \
                 set NoNewPrivileges=no; or run `sudo {}` in another terminal",
                self.command
            );
        }
        format!("run `sudo {}` in a shell that is not restricted (`grep Cap /proc/self/status` there)", self.command)
    }

    pub(super) fn pid_namespace(&self) -> Option<Refusal> {
        if in_initial_pid_namespace(self.facts) {
            return None;
        }
        // A distribution is a container of WSL's (microsoft/WSL issues 12115 and 12408); WSL's debug shell is outside.
        let wsl = self.is(Kind::Wsl2).then_some(
            "each distribution of WSL 2 has a PID namespace of its own: in Windows, run `wsl --debug-shell`, and there heapbpf \
             by its path below `/proc/PID/root` of a process of the distribution",
        );
        Some(Refusal {
            id: "pid_namespace",
            feature: "process ids of the initial PID namespace",
            prevents: true,
            reason: "heapbpf runs in its own PID namespace, where the kernel's process ids are not valid".to_owned(),
            evidence: self.cite(&[source::PID_NAMESPACE]),
            remedy: wsl.map_or_else(|| self.on_host(), str::to_owned),
            explains: &[TrialKind::PidNamespace],
        })
    }

    /// Whether something else than Linux answers, or ends the process.
    pub(super) fn is_intercepted(&self, attempt: Attempt) -> bool {
        let name = attempt.describe();
        let is_other = self.facts.error(name).is_some_and(|number| attempt.expected() != Some(number));
        let has_filter = self.facts.text(source::SECCOMP).is_some_and(|mode| mode != "0");
        self.facts.is_killed(name) || is_other && has_filter
    }

    pub(super) fn seccomp(&self, name: &str, attempt: Attempt) -> Option<(String, Vec<String>, String)> {
        if !self.is_intercepted(attempt) {
            return None;
        }
        let effect = if self.facts.is_killed(attempt.describe()) { "kills processes that call" } else { "refuses" };
        let mut evidence = vec![self.facts.cite_attempt(attempt)];
        evidence.extend(self.cite(&[source::SECCOMP]));
        let in_engine = |engine| {
            format!(
                "start the container with `{engine} run --security-opt seccomp=unconfined …`, or with `--privileged`"
            )
        };
        let remedy = match self.container() {
            Some(Kind::Docker) => in_engine("docker"),
            Some(Kind::Podman) => in_engine("podman"),
            Some(Kind::Kubernetes) => {
                "set `securityContext: {seccompProfile: {type: Unconfined}}` in the pod, or `privileged: true`"
                    .to_owned()
            }
            Some(_) => self.on_host(),
            None if self.facts.exists(source::SYSTEMD_UNIT) => {
                format!("in the unit (`systemctl edit UNIT`), add `{name}` to SystemCallFilter=")
            }
            None => format!("start heapbpf outside of the sandbox: `sudo {}` in another terminal", self.command),
        };
        Some((format!("a seccomp filter {effect} `{name}`"), evidence, remedy))
    }

    pub(super) fn seccomp_bpf(&self) -> Option<Refusal> {
        let (reason, evidence, remedy) = self.seccomp("bpf", Attempt::ReachBpf)?;
        Some(Refusal {
            id: "seccomp_bpf",
            feature: "bpf(2)",
            prevents: true,
            reason,
            evidence,
            remedy,
            explains: ALL_BPF,
        })
    }

    /// Refusal of perf events by seccomp. Probes by `uprobe_multi` links need no perf events.
    pub(super) fn seccomp_perf(&self) -> Option<Refusal> {
        let (reason, evidence, remedy) = self.seccomp("perf_event_open", Attempt::ReachPerfEventOpen)?;
        Some(Refusal {
            id: "seccomp_perf_event_open",
            feature: "perf_event_open(2)",
            prevents: false,
            reason,
            evidence,
            remedy,
            explains: &[
                TrialKind::Feature(Feature::Uprobes),
                TrialKind::Feature(Feature::Cookies),
                TrialKind::Attaching,
            ],
        })
    }

    /// Refusal by a security module, if there is no other reason: `security_bpf`, `security_bpf_prog` (include/linux/security.h).
    pub(super) fn security_module(&self) -> Option<Refusal> {
        let refused = self.facts.error(Attempt::LoadProgram.describe());
        let is_refused = refused.is_some_and(|number| [libc::EPERM, libc::EACCES].contains(&number));
        let is_explained = !in_initial_user_namespace(self.facts)
            || !self.missing_from(source::EFFECTIVE).is_empty()
            || self.is_intercepted(Attempt::ReachBpf);
        if !is_refused || is_explained || self.facts.capabilities(source::EFFECTIVE).is_none() {
            return None;
        }
        let (docker, podman) =
            ("docker run --security-opt apparmor=unconfined", "podman run --security-opt label=disable");
        let remedy = match self.container() {
            Some(Kind::Docker) => format!("start the container with `{docker} --security-opt label=disable …`"),
            Some(Kind::Podman) => format!("start the container with `{podman} --security-opt apparmor=unconfined …`"),
            _ => "find the rule: `ausearch -m avc -ts recent` (SELinux), `dmesg | grep -i apparmor` (AppArmor)"
                .to_owned(),
        };
        Some(Refusal {
            id: "security_module",
            feature: "bpf(2)",
            prevents: true,
            reason: "a security module refuses `bpf`, although the capabilities are there".to_owned(),
            evidence: self.cite(&[
                Attempt::LoadProgram.describe(),
                source::EFFECTIVE,
                source::LABEL,
                source::SECURITY_MODULES,
                source::LOCKDOWN,
            ]),
            remedy,
            explains: ALL_BPF,
        })
    }

    /// Refusal of tracing by Yama. Scope 3 is permanent, and forbids opening `/proc/PID/mem` too (`yama_ptrace_access_check` in
    /// security/yama/yama_lsm.c).
    pub(super) fn ptrace(&self) -> Option<Refusal> {
        let (reason, evidence, remedy) = match self.facts.text(source::PTRACE_SCOPE) {
            Some("3") => (
                "Yama forbids tracing, also to root".to_owned(),
                self.cite(&[source::PTRACE_SCOPE]),
                "set kernel.yama.ptrace_scope to 2 or less in /etc/sysctl.d, and reboot: 3 is permanent".to_owned(),
            ),
            _ => self.seccomp("ptrace", Attempt::ReachPtrace)?,
        };
        Some(Refusal {
            id: "ptrace",
            feature: "ptrace(2)",
            prevents: false,
            reason,
            evidence,
            remedy,
            explains: &[TrialKind::Tracing],
        })
    }

    /// Refusal by the mount option `hidepid` of procfs (Documentation/filesystems/proc.rst, "Mount options").
    pub(super) fn hidepid(&self) -> Option<Refusal> {
        let options = self.facts.text(source::PROC_MOUNT)?;
        let is_hidden =
            options.contains("hidepid=") && !["hidepid=0", "hidepid=off"].iter().any(|off| options.contains(off));
        let sees_all = !self.missing_from(source::EFFECTIVE).contains(&"CAP_SYS_PTRACE");
        if !is_hidden || sees_all {
            return None;
        }
        Some(Refusal {
            id: "hidepid",
            feature: "procfs",
            prevents: false,
            reason: "/proc hides the processes of other users".to_owned(),
            evidence: self.cite(&[source::PROC_MOUNT, source::EFFECTIVE]),
            remedy: format!("{}, or as root `mount -o remount,hidepid=0 /proc`", self.sudo()),
            explains: &[],
        })
    }
}
