//! Refusals because a feature is missing in the kernel, or not mounted.

use heapbpf_linux::attempt::Attempt;
use heapbpf_linux::feature::Feature;

use super::{ALL, ALL_BPF, Known, PROGRAMS, Refusal};
use crate::doctor::environment::Kind;
use crate::doctor::facts::source;
use crate::doctor::trial::TrialKind;

impl Known<'_> {
    pub(super) fn gvisor(&self) -> Option<Refusal> {
        let gvisor = self.environments.iter().find(|environment| environment.kind == Kind::Gvisor)?;
        let mut evidence = gvisor.evidence.clone();
        evidence.extend(self.cite(&[Attempt::LoadProgram.describe()]));
        Some(Refusal {
            id: "gvisor",
            feature: "uprobes and BPF",
            prevents: true,
            reason: "gVisor emulates the kernel, without uprobes and BPF programs for them".to_owned(),
            evidence,
            remedy: "run the program with another runtime (`docker run --runtime=runc …`, or a pod without \
                     `runtimeClassName: gvisor`), and heapbpf on the host"
                .to_owned(),
            explains: ALL,
        })
    }

    pub(super) fn wsl1(&self) -> Option<Refusal> {
        self.is(Kind::Wsl1).then(|| Refusal {
            id: "wsl1",
            feature: "uprobes and BPF",
            prevents: true,
            reason: "WSL 1 translates system calls for Windows, without uprobes and BPF".to_owned(),
            evidence: self.cite(&[source::RELEASE, Attempt::LoadProgram.describe()]),
            remedy: "in Windows, run `wsl --set-version DISTRIBUTION 2` (`wsl --list` has the names)".to_owned(),
            explains: ALL,
        })
    }

    /// Refusal without procfs. `/proc/self` is missing too where `/proc` is of another PID namespace (proc(5)).
    pub(super) fn procfs(&self) -> Option<Refusal> {
        let is_missing = self.facts.error(source::PID_NAMESPACE) == Some(libc::ENOENT);
        is_missing.then(|| Refusal {
            id: "procfs",
            feature: "procfs",
            prevents: true,
            reason: "/proc is not mounted, or is that of another PID namespace".to_owned(),
            evidence: self.cite(&[source::PID_NAMESPACE, source::RELEASE]),
            remedy: "run `mount -t proc proc /proc`".to_owned(),
            explains: ALL,
        })
    }

    pub(super) fn bpf(&self) -> Option<Refusal> {
        let is_missing = self.facts.error(Attempt::ReachBpf.describe()) == Some(libc::ENOSYS)
            || self.facts.configured("CONFIG_BPF_SYSCALL") == Some(false);
        if !is_missing || self.is_intercepted(Attempt::ReachBpf) {
            return None;
        }
        Some(Refusal {
            id: "no_bpf",
            feature: "CONFIG_BPF_SYSCALL",
            prevents: true,
            reason: "this kernel has no BPF".to_owned(),
            evidence: self.cite(&[Attempt::ReachBpf.describe(), source::RELEASE, source::CONFIGURATION]),
            remedy: self.other_kernel("CONFIG_BPF_SYSCALL, CONFIG_BPF_JIT and CONFIG_BPF_EVENTS"),
            explains: ALL_BPF,
        })
    }

    /// Refusal by lockdown. `LOCKDOWN_BPF_READ_KERNEL` is above `LOCKDOWN_INTEGRITY_MAX` (include/linux/security.h): level
    /// `integrity` allows it.
    pub(super) fn lockdown(&self) -> Option<Refusal> {
        let level = self.facts.text(source::LOCKDOWN).map(selected_word);
        let withdrawn = self.facts.succeeds(Attempt::LoadProgram)
            && matches!(self.facts.error(Attempt::ReadKernelMemory.describe()), Some(libc::EINVAL | libc::EPERM));
        if level != Some("confidentiality") && !withdrawn {
            return None;
        }
        let has_parameter = self.facts.text(source::COMMAND_LINE).is_some_and(|line| line.contains("lockdown="));
        let how = if has_parameter {
            "reboot with `lockdown=integrity` instead of `lockdown=confidentiality` on the kernel's command line"
        } else {
            "reboot with `lockdown=integrity` on the kernel's command line; where secure boot locks the kernel down, use a kernel \
             that sets `integrity`, or disable secure boot"
        };
        Some(Refusal {
            id: "lockdown",
            feature: "bpf_probe_read_kernel",
            prevents: false,
            reason: "the kernel is locked down (`confidentiality`): BPF programs cannot read kernel memory, so forks are not followed, \
                     and stacks lack Python and Ruby frames"
                .to_owned(),
            evidence: self.cite(&[
                source::LOCKDOWN,
                Attempt::ReadKernelMemory.describe(),
                source::COMMAND_LINE,
                source::SECURE_BOOT,
            ]),
            remedy: format!("{how}; it cannot be changed while the kernel runs"),
            explains: &[],
        })
    }

    /// Refusal by the limit of locked memory. Before Linux 5.11, maps count as locked memory (`bpf_map_charge_init` in
    /// kernel/bpf/syscall.c).
    pub(super) fn memlock(&self) -> Option<Refusal> {
        let refused = self.facts.error(Attempt::CreateMap.describe());
        if !self.facts.succeeds(Attempt::LoadProgram) || refused != Some(libc::EPERM) {
            return None;
        }
        Some(Refusal {
            id: "memlock",
            feature: "RLIMIT_MEMLOCK",
            prevents: true,
            reason: "the limit of locked memory is too low for BPF maps, and heapbpf may not raise it".to_owned(),
            evidence: self.cite(&[Attempt::CreateMap.describe(), Attempt::LoadProgram.describe(), source::RELEASE]),
            remedy: format!(
                "run `ulimit -l unlimited` as root before heapbpf, or add CAP_SYS_RESOURCE; in a systemd unit, set \
                 LimitMEMLOCK=infinity; then run `{}` again",
                self.command
            ),
            explains: PROGRAMS,
        })
    }

    /// Refusal without the JIT compiler: the verifier refuses tail calls in programs with functions (`fixup_call_args` in
    /// kernel/bpf/verifier.c; run 7.3).
    pub(super) fn jit(&self) -> Option<Refusal> {
        let is_off = self.facts.text(source::JIT) == Some("0");
        let is_missing = self.facts.configured("CONFIG_BPF_JIT") == Some(false);
        if !is_off && !is_missing || self.facts.configured("CONFIG_BPF_SYSCALL") == Some(false) {
            return None;
        }
        Some(Refusal {
            id: "no_jit",
            feature: "BPF JIT compiler",
            prevents: true,
            reason: "the kernel's compiler for BPF programs is off or missing, and it does not interpret heapbpf's"
                .to_owned(),
            evidence: self.cite(&[source::JIT, source::CONFIGURATION]),
            remedy: if is_missing {
                self.other_kernel("CONFIG_BPF_JIT")
            } else {
                "run `sudo sysctl net.core.bpf_jit_enable=1`".to_owned()
            },
            explains: PROGRAMS,
        })
    }

    pub(super) fn sysfs(&self) -> Option<Refusal> {
        let is_missing = self.facts.error(source::SYSFS) == Some(libc::ENOENT);
        is_missing.then(|| Refusal {
            id: "sysfs",
            feature: "sysfs",
            prevents: true,
            reason: "sysfs is not mounted at /sys".to_owned(),
            evidence: self.cite(&[source::SYSFS, source::SYS_MOUNT, source::UPROBE_SOURCE]),
            remedy: "run `mount -t sysfs sysfs /sys`".to_owned(),
            explains: &[
                TrialKind::Feature(Feature::KernelBtf),
                TrialKind::Feature(Feature::Uprobes),
                TrialKind::Feature(Feature::Cookies),
                TrialKind::Programs,
                TrialKind::Attaching,
            ],
        })
    }

    /// Refusal without uprobes. `perf_uprobe_register` in kernel/events/core.c creates the directory, under CONFIG_UPROBE_EVENTS.
    pub(super) fn uprobes(&self) -> Option<Refusal> {
        (self.facts.error(source::UPROBE_SOURCE) == Some(libc::ENOENT)).then(|| Refusal {
            id: "no_uprobes",
            feature: "CONFIG_UPROBE_EVENTS",
            prevents: true,
            reason: "this kernel has no uprobes".to_owned(),
            evidence: self.cite(&[source::UPROBE_SOURCE, source::RELEASE, source::CONFIGURATION]),
            remedy: self.other_kernel("CONFIG_FTRACE, CONFIG_PERF_EVENTS, CONFIG_UPROBE_EVENTS and CONFIG_BPF_EVENTS"),
            explains: &[
                TrialKind::Feature(Feature::Uprobes),
                TrialKind::Feature(Feature::Cookies),
                TrialKind::Programs,
                TrialKind::Attaching,
            ],
        })
    }

    pub(super) fn btf(&self) -> Option<Refusal> {
        (self.facts.error(source::BTF) == Some(libc::ENOENT) && self.sysfs().is_none()).then(|| Refusal {
            id: "no_btf",
            feature: "CONFIG_DEBUG_INFO_BTF",
            prevents: false,
            reason: "the kernel's type information is missing".to_owned(),
            evidence: self.cite(&[source::BTF, source::CONFIGURATION]),
            remedy: match self.facts.configured("CONFIG_DEBUG_INFO_BTF") {
                Some(true) => "mount sysfs again: `mount -t sysfs sysfs /sys`".to_owned(),
                _ => self.other_kernel("CONFIG_DEBUG_INFO_BTF"),
            },
            explains: &[TrialKind::Feature(Feature::KernelBtf)],
        })
    }
}

/// Returns the word in brackets, as in `none [integrity] confidentiality`.
pub(crate) fn selected_word(text: &str) -> &str {
    let bracketed = text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    bracketed.unwrap_or(text)
}
