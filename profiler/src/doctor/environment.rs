//! Recognizes the environment of heapbpf: containers, emulated kernels and virtual machines. Pure functions of facts.

use heapbpf_linux::attempt::Attempt;

use super::facts::{Facts, source};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Gvisor,
    Wsl1,
    Wsl2,
    Kubernetes,
    Podman,
    Docker,
    Lxc,
    Nspawn,
    /// Another container that names itself.
    Container,
    UserNamespace,
    Firecracker,
    VirtualMachine,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Environment {
    pub kind: Kind,
    /// Name that users know.
    pub name: String,
    pub evidence: Vec<String>,
}

impl Kind {
    /// Stable name, which is a part of the JSON.
    pub(crate) fn id(self) -> &'static str {
        match self {
            Self::Gvisor => "gvisor",
            Self::Wsl1 => "wsl1",
            Self::Wsl2 => "wsl2",
            Self::Kubernetes => "kubernetes",
            Self::Podman => "podman",
            Self::Docker => "docker",
            Self::Lxc => "lxc",
            Self::Nspawn => "systemd_nspawn",
            Self::Container => "container",
            Self::UserNamespace => "user_namespace",
            Self::Firecracker => "firecracker",
            Self::VirtualMachine => "virtual_machine",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Gvisor => "gVisor",
            Self::Wsl1 => "WSL 1",
            Self::Wsl2 => "WSL 2",
            Self::Kubernetes => "Kubernetes pod",
            Self::Podman => "Podman container",
            Self::Docker => "Docker container",
            Self::Lxc => "LXC container",
            Self::Nspawn => "systemd-nspawn container",
            Self::Container => "container",
            Self::UserNamespace => "user namespace",
            Self::Firecracker => "Firecracker microVM",
            Self::VirtualMachine => "virtual machine",
        }
    }

    pub(crate) fn is_container(self) -> bool {
        matches!(self, Self::Kubernetes | Self::Podman | Self::Docker | Self::Lxc | Self::Nspawn | Self::Container)
    }
}

/// Recognizes environments, from the innermost to the outermost.
pub(crate) fn recognize(facts: &Facts) -> Vec<Environment> {
    let environment = |kind: Kind, evidence: Option<Vec<String>>| {
        evidence.map(|evidence| Environment { kind, name: kind.name().to_owned(), evidence })
    };
    let mut all: Vec<Environment> = Vec::new();
    all.extend(environment(Kind::Kubernetes, existing(facts, source::KUBERNETES)));
    all.extend(environment(Kind::Podman, existing(facts, source::PODMAN)));
    all.extend(environment(Kind::Docker, docker(facts)));
    all.extend(environment(Kind::Lxc, lxc(facts)));
    all.extend(environment(Kind::Nspawn, named_container(facts, "systemd-nspawn")));
    if all.is_empty() {
        all.extend(environment(Kind::Container, other_container(facts)));
    }
    all.extend(environment(Kind::UserNamespace, user_namespace(facts)));
    all.extend(environment(Kind::Gvisor, gvisor(facts)));
    // Their kernels have these names: `CONFIG_LOCALVERSION` in arch/x86/configs/config-wsl of microsoft/WSL2-Linux-Kernel, and
    // `uname -r` of WSL 1 (learn.microsoft.com/windows/wsl/compare-versions).
    all.extend(environment(Kind::Wsl2, release(facts, |release| release.contains("microsoft-standard"))));
    all.extend(environment(Kind::Wsl1, release(facts, |release| release.ends_with("-Microsoft"))));
    let is_emulated = all.iter().any(|known| matches!(known.kind, Kind::Gvisor | Kind::Wsl1 | Kind::Wsl2));
    if !is_emulated {
        all.extend(environment(Kind::Firecracker, firecracker(facts)).or_else(|| virtual_machine(facts)));
    }
    all
}

fn existing(facts: &Facts, name: &str) -> Option<Vec<String>> {
    facts.exists(name).then(|| vec![facts.cite(name)])
}

fn release(facts: &Facts, is: impl Fn(&str) -> bool) -> Option<Vec<String>> {
    facts.text(source::RELEASE).filter(|release| is(release)).map(|_| vec![facts.cite(source::RELEASE)])
}

/// Recognizes Docker. Disk images of virtual machines are created from container images too, with the file, so that alone proves
/// nothing.
fn docker(facts: &Facts) -> Option<Vec<String>> {
    let is_overlay = facts.text(source::ROOT_MOUNT) == Some("overlay");
    let is_filtered = facts.text(source::SECCOMP).is_some_and(|mode| mode != "0");
    let proof: &[&str] = match () {
        () if is_overlay => &[source::ROOT_MOUNT],
        () if is_filtered && !in_initial_pid_namespace(facts) => &[source::PID_NAMESPACE, source::SECCOMP],
        () => return None,
    };
    // `Setup` in daemon/initlayer/setup_unix.go of moby/moby creates the file.
    facts.exists(source::DOCKER).then(|| [source::DOCKER].iter().chain(proof).map(|name| facts.cite(name)).collect())
}

/// Recognizes LXC. The sockets are documented by LXD and Incus ("Container runtime environment"), the variable of PID 1 by LXC.
fn lxc(facts: &Facts) -> Option<Vec<String>> {
    let sockets = [source::LXD, source::INCUS].into_iter().find(|socket| facts.exists(socket));
    sockets.map(|socket| vec![facts.cite(socket)]).or_else(|| named_container(facts, "lxc"))
}

/// Recognizes a container by the name that systemd(1) as PID 1 writes to a file (systemd.io/CONTAINER_INTERFACE).
fn named_container(facts: &Facts, name: &str) -> Option<Vec<String>> {
    let sources = [source::CONTAINER, source::INIT_CONTAINER];
    sources.into_iter().find(|source| facts.text(source) == Some(name)).map(|source| vec![facts.cite(source)])
}

fn other_container(facts: &Facts) -> Option<Vec<String>> {
    // WSL's distributions have names too.
    let is_other = |source: &&str| facts.text(source).is_some_and(|name| !name.is_empty() && name != "wsl");
    let named = [source::CONTAINER, source::INIT_CONTAINER].into_iter().find(is_other);
    named.map(|source| vec![facts.cite(source)])
}

fn user_namespace(facts: &Facts) -> Option<Vec<String>> {
    (!in_initial_user_namespace(facts)).then(|| vec![facts.cite(source::USER_NAMESPACE), facts.cite(source::UID_MAP)])
}

/// Recognizes gVisor. Its versions are constants (`LinuxRelease`, `LinuxVersion` in pkg/sentry/kernel/version/version.go of
/// google/gvisor; the release was 4.4.0 until 2025), and can be overridden. `perf_event_open` fails with `ENODEV`, whatever its
/// arguments (pkg/sentry/syscalls/linux/linux64.go). `/proc/gvisor` is optional (pkg/gvisordetect).
fn gvisor(facts: &Facts) -> Option<Vec<String>> {
    const BUILD: &str = "#1 SMP Sun Jan 10 15:06:54 PST 2016";
    let version = facts.text(source::VERSION).filter(|text| text.contains("gvisor") || text.contains(BUILD));
    let mut evidence: Vec<String> = version.map(|_| facts.cite(source::VERSION)).into_iter().collect();
    evidence.extend(existing(facts, source::GVISOR).into_iter().flatten());
    if facts.error(Attempt::ReachPerfEventOpen.describe()) == Some(libc::ENODEV) {
        evidence.push(facts.cite_attempt(Attempt::ReachPerfEventOpen));
    }
    (!evidence.is_empty()).then_some(evidence)
}

/// Recognizes Firecracker. Its tables have its OEM id (`OEM_ID` in src/vmm/src/acpi/mod.rs), but only root may read them. It has
/// no DMI, and its documentation recommends these parameters (docs/kernel-policy.md, "Boot arguments").
fn firecracker(facts: &Facts) -> Option<Vec<String>> {
    if facts.text(source::ACPI) == Some("FIRECK") {
        return Some(vec![facts.cite(source::ACPI)]);
    }
    let parameters = facts.text(source::COMMAND_LINE).unwrap_or_default();
    let has = |parameter: &str| parameters.split(' ').any(|word| word == parameter);
    let has_dmi = facts.exists(source::DMI_VENDOR);
    let is_it = facts.exists(source::CPU_HYPERVISOR) && !has_dmi && has("reboot=k") && has("panic=1");
    is_it
        .then(|| [source::COMMAND_LINE, source::DMI_VENDOR, source::CPU_HYPERVISOR].map(|name| facts.cite(name)).into())
}

/// Values of DMI, and names for the machines. Vendors of physical machines are others, except Microsoft's.
const MACHINES: [(&str, &str); 10] = [
    ("QEMU", "QEMU"),
    ("KVM", "KVM"),
    ("Amazon EC2", "Amazon EC2"),
    ("Google Compute Engine", "Google Compute Engine"),
    ("Virtual Machine", "Hyper-V"),
    ("VMware", "VMware"),
    ("VirtualBox", "VirtualBox"),
    ("Parallels", "Parallels"),
    ("Xen", "Xen"),
    ("OpenStack", "OpenStack"),
];

/// Recognizes virtual machines by the same sources as systemd-detect-virt(1).
fn virtual_machine(facts: &Facts) -> Option<Environment> {
    if !facts.exists(source::CPU_HYPERVISOR) && !facts.exists(source::HYPERVISOR) {
        return None;
    }
    let mut evidence = Vec::new();
    let mut name = None;
    for dmi in [source::DMI_PRODUCT, source::DMI_VENDOR] {
        let value = facts.text(dmi).unwrap_or_default();
        if let Some((_, known)) = MACHINES.iter().find(|(part, _)| value.contains(part)).filter(|_| name.is_none()) {
            name = Some(*known);
            evidence.push(facts.cite(dmi));
        }
    }
    let hypervisor = [source::HYPERVISOR, source::CPU_HYPERVISOR].into_iter().find(|source| facts.exists(source));
    evidence.extend(hypervisor.map(|source| facts.cite(source)));
    let kind = Kind::VirtualMachine;
    let name = name.map_or_else(|| kind.name().to_owned(), |name| format!("{} ({name})", kind.name()));
    Some(Environment { kind, name, evidence })
}

/// Whether heapbpf is in the initial PID namespace; true where that is unknown. Inodes of the initial namespaces are
/// `PROC_PID_INIT_INO` and `PROC_USER_INIT_INO` in include/linux/proc_ns.h.
pub(crate) fn in_initial_pid_namespace(facts: &Facts) -> bool {
    facts.text(source::PID_NAMESPACE).is_none_or(|link| link == "pid:[4026531836]")
}

pub(crate) fn in_initial_user_namespace(facts: &Facts) -> bool {
    facts.text(source::USER_NAMESPACE).is_none_or(|link| link == "user:[4026531837]")
}
