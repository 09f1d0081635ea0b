//! Tests of what is recognized by the facts of machines of all kinds. Each test names the source of its facts.

use heapbpf_base::testing::check_table;
use heapbpf_linux::attempt::Attempt;

use super::super::environment::{Kind, recognize};
use super::super::facts::{Answer, Facts, source};
use super::super::refusal::{Refusal, refusals};

/// A machine, described by the facts in which it differs from another.
#[derive(Clone)]
struct Machine(Vec<(&'static str, Answer)>);

const ABSENT: Answer = Answer::Error(libc::ENOENT);

impl Machine {
    /// Root on a physical machine where everything works, with attempts and system files as recorded on Linux 6.18.
    fn healthy() -> Self {
        let machine = Self(Vec::new())
            .text(source::RELEASE, "6.18.44")
            .text(source::VERSION, "Linux version 6.18.44 (builder@host) (gcc (GCC) 15.3.0) #1 SMP PREEMPT_DYNAMIC")
            .text(source::PID_NAMESPACE, "pid:[4026531836]")
            .text(source::USER_NAMESPACE, "user:[4026531837]")
            .text(source::UID_MAP, "0 0 4294967295")
            .text(source::UID, "0 0 0 0")
            .text(source::EFFECTIVE, "000001ffffffffff")
            .text(source::BOUNDING, "000001ffffffffff")
            .text(source::NO_NEW_PRIVILEGES, "0")
            .text(source::SECCOMP, "0")
            .text(source::ROOT_MOUNT, "ext4")
            .text(source::PROC_MOUNT, "/proc rw,nosuid,nodev,noexec,relatime")
            .text(source::SYS_MOUNT, "/sys rw,nosuid,nodev,noexec,relatime")
            .text(source::LOCKDOWN, "[none] integrity confidentiality")
            .text(source::UPROBE_SOURCE, "9")
            .text(source::DMI_VENDOR, "Dell Inc.")
            .text(source::DMI_PRODUCT, "PowerEdge R640")
            .set(source::BTF, Answer::Exists)
            .set(source::SYSFS, Answer::Exists);
        Attempt::ALL.into_iter().fold(machine, |machine, attempt| {
            machine.answers(attempt, attempt.expected().map_or(Answer::Succeeds, Answer::Error))
        })
    }

    fn set(mut self, source: &'static str, answer: Answer) -> Self {
        self.0.retain(|(name, _)| *name != source);
        self.0.push((source, answer));
        self
    }

    fn text(self, source: &'static str, text: &str) -> Self {
        self.set(source, Answer::Text(text.to_owned()))
    }

    fn exists(self, source: &'static str) -> Self {
        self.set(source, Answer::Exists)
    }

    fn lacks(self, source: &'static str) -> Self {
        self.set(source, ABSENT)
    }

    fn answers(self, attempt: Attempt, answer: Answer) -> Self {
        self.set(attempt.describe(), answer)
    }

    fn refuses(self, attempt: Attempt, number: i32) -> Self {
        self.answers(attempt, Answer::Error(number))
    }

    /// A machine whose kernel refuses BPF to users who lack the capabilities (`bpf_prog_load`, `map_create` in
    /// kernel/bpf/syscall.c).
    fn without_bpf(self) -> Self {
        [Attempt::LoadProgram, Attempt::ReadKernelMemory, Attempt::CreateMap]
            .into_iter()
            .fold(self, |machine, attempt| machine.refuses(attempt, libc::EPERM))
    }

    fn capabilities(self, set: &str) -> Self {
        self.text(source::EFFECTIVE, set).text(source::BOUNDING, set)
    }

    fn facts(&self) -> Facts {
        Facts::of(&self.0)
    }

    fn kinds(&self) -> Vec<Kind> {
        recognize(&self.facts()).into_iter().map(|environment| environment.kind).collect()
    }

    fn refusals(&self) -> Vec<Refusal> {
        let facts = self.facts();
        refusals(&facts, &recognize(&facts), "heapbpf --pid 1234")
    }

    #[track_caller]
    fn check(&self, kinds: &[Kind], ids: &[&str]) {
        assert_eq!(self.kinds(), kinds);
        let refusals = self.refusals();
        assert_eq!(refusals.iter().map(|refusal| refusal.id).collect::<Vec<_>>(), ids, "{refusals:#?}");
        for refusal in refusals {
            assert!(!refusal.evidence.is_empty() && !refusal.remedy.is_empty(), "{refusal:?}");
            assert!(!refusal.evidence.iter().any(|evidence| evidence.ends_with("unknown")), "{refusal:?}");
        }
    }

    #[track_caller]
    fn refusal(&self, id: &str) -> Refusal {
        let refusals = self.refusals();
        refusals.iter().find(|refusal| refusal.id == id).cloned().unwrap_or_else(|| panic!("no {id}: {refusals:#?}"))
    }

    #[track_caller]
    fn remedy(&self, id: &str) -> String {
        self.refusal(id).remedy
    }
}

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is missing in: {text}");
    }
}

#[test]
fn nothing_is_refused_to_root() {
    Machine::healthy().check(&[], &[]);
}

/// An unprivileged user, recorded on Linux 6.18 with `setpriv --reuid=65534 --regid=65534 --clear-groups`.
fn unprivileged() -> Machine {
    Machine::healthy()
        .text(source::UID, "65534 65534 65534 65534")
        .text(source::EFFECTIVE, "0000000000000000")
        .text(source::UNPRIVILEGED_BPF, "2")
        .text(source::PERF_PARANOID, "2")
        .without_bpf()
}

#[test]
fn users_are_told_to_use_sudo() {
    let user = unprivileged();
    user.check(&[], &["capabilities"]);
    let refusal = user.refusal("capabilities");
    has(&refusal.text(), &["missing CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE", "run `sudo heapbpf --pid 1234`"]);
    has(&refusal.evidence.join("\n"), &["CapEff: 0000000000000000", "unprivileged_bpf_disabled: 2"]);
    // CAP_SYS_ADMIN includes two of the three capabilities.
    has(&user.text(source::EFFECTIVE, "0000000000200000").refusal("capabilities").reason, &["missing CAP_SYS_PTRACE"]);
}

#[test]
fn sudo_is_not_advised_where_it_cannot_help() {
    // Recorded with `setpriv --no-new-privs`, and with `--bounding-set=-all`.
    let no_new = unprivileged().text(source::NO_NEW_PRIVILEGES, "1");
    no_new.check(&[], &["no_new_privs"]);
    has(&no_new.remedy("no_new_privs"), &["not restricted"]);
    let bounded = unprivileged().text(source::BOUNDING, "0000000000000000");
    bounded.check(&[], &["bounding_set"]);
    has(&bounded.refusal("bounding_set").reason, &["`sudo` cannot give", "CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE"]);
    // systemd.exec(5): CapabilityBoundingSet=; services have INVOCATION_ID.
    let unit = bounded.exists(source::SYSTEMD_UNIT);
    has(&unit.remedy("bounding_set"), &["systemctl edit UNIT", "CapabilityBoundingSet=", "CAP_BPF CAP_PERFMON"]);
}

/// Docker without options: the capabilities of `DefaultCapabilities` in daemon/pkg/oci/caps/defaults.go, and the profile of
/// profiles/seccomp/default_linux.go, which allows `bpf` with CAP_BPF or CAP_SYS_ADMIN (moby/moby).
fn docker() -> Machine {
    Machine::healthy()
        .exists(source::DOCKER)
        .text(source::ROOT_MOUNT, "overlay")
        .text(source::PID_NAMESPACE, "pid:[4026532221]")
        .capabilities("00000000a80425fb")
        .text(source::SECCOMP, "2")
        .text(source::LABEL, "docker-default (enforce)")
        .without_bpf()
        .refuses(Attempt::ReachBpf, libc::EPERM)
        .refuses(Attempt::ReachPerfEventOpen, libc::EPERM)
}

#[test]
fn docker_without_privileges() {
    let docker = docker();
    docker.check(&[Kind::Docker], &["bounding_set", "pid_namespace", "seccomp_bpf", "seccomp_perf_event_open"]);
    for id in ["bounding_set", "pid_namespace"] {
        has(&docker.remedy(id), &["docker run --privileged --pid=host", "docs/containers.md"]);
    }
    let seccomp = docker.refusal("seccomp_bpf");
    has(&seccomp.remedy, &["docker run --security-opt seccomp=unconfined"]);
    has(&seccomp.evidence.join("\n"), &["EPERM", "where Linux answers E2BIG", "Seccomp: 2"]);
    // `docker run --privileged --pid=host`: no filter, all capabilities.
    let privileged = Machine::healthy().exists(source::DOCKER).text(source::ROOT_MOUNT, "overlay");
    privileged.check(&[Kind::Docker], &[]);
    // `--cap-add=all --pid=host` with AppArmor's profile: all works unless a rule refuses it.
    let confined =
        privileged.text(source::LABEL, "docker-default (enforce)").refuses(Attempt::LoadProgram, libc::EACCES);
    confined.check(&[Kind::Docker], &["security_module"]);
    has(&confined.remedy("security_module"), &["apparmor=unconfined", "label=disable"]);
}

/// Recorded on a virtual machine whose disk was made from a container image.
#[test]
fn a_left_file_of_docker_is_no_container() {
    Machine::healthy().exists(source::DOCKER).check(&[], &[]);
    // Also recorded there: a filter, and a PID namespace of `unshare --pid`.
    let filtered = Machine::healthy().exists(source::DOCKER).text(source::SECCOMP, "2");
    filtered.check(&[], &[]);
    let namespace = Machine::healthy().exists(source::DOCKER).text(source::PID_NAMESPACE, "pid:[4026532177]");
    namespace.check(&[], &["pid_namespace"]);
    has(&namespace.remedy("pid_namespace"), &["leave the namespace", "sudo heapbpf --pid 1234"]);
}

/// podman-run(1) documents `/run/.containerenv`; rootless containers are in a user namespace (user_namespaces(7)).
#[test]
fn podman_without_root() {
    let podman = Machine::healthy()
        .text(source::PODMAN, "engine=\"podman-4.9.3\" rootless=1")
        .text(source::ROOT_MOUNT, "overlay")
        .text(source::PID_NAMESPACE, "pid:[4026532330]")
        .text(source::USER_NAMESPACE, "user:[4026532261]")
        .text(source::UID_MAP, "0 1000 1")
        .capabilities("00000000800405fb")
        .text(source::SECCOMP, "2")
        .without_bpf()
        .refuses(Attempt::ReachBpf, libc::EPERM);
    podman.check(&[Kind::Podman, Kind::UserNamespace], &["user_namespace", "pid_namespace", "seccomp_bpf"]);
    has(&podman.remedy("user_namespace"), &["sudo podman run --privileged --pid=host"]);
    has(&podman.remedy("seccomp_bpf"), &["podman run --security-opt seccomp=unconfined"]);
}

/// Pods have the variable ("Discovering services" in Kubernetes' documentation), no filter by default ("Restrict a Container's
/// Syscalls with seccomp"), and containerd's default capabilities, which are Docker's.
#[test]
fn kubernetes() {
    let pod = Machine::healthy()
        .exists(source::KUBERNETES)
        .text(source::ROOT_MOUNT, "overlay")
        .text(source::PID_NAMESPACE, "pid:[4026533000]")
        .capabilities("00000000a80425fb")
        .without_bpf();
    pod.check(&[Kind::Kubernetes], &["bounding_set", "pid_namespace"]);
    has(&pod.remedy("bounding_set"), &["hostPID: true", "privileged: true"]);
    // `seccompProfile: {type: RuntimeDefault}`
    let filtered = pod.text(source::SECCOMP, "2").refuses(Attempt::ReachBpf, libc::EPERM);
    has(&filtered.remedy("seccomp_bpf"), &["seccompProfile", "Unconfined"]);
}

/// LXD's documentation has the socket ("Container runtime environment") and the map ("Idmaps for user namespace"). In such a
/// namespace, root has all capabilities.
#[test]
fn lxd_without_privileges() {
    let container = Machine::healthy()
        .exists(source::LXD)
        .text(source::CONTAINER, "lxc")
        .text(source::PID_NAMESPACE, "pid:[4026532500]")
        .text(source::USER_NAMESPACE, "user:[4026532499]")
        .text(source::UID_MAP, "0 1000000 1000000000")
        .without_bpf();
    container.check(&[Kind::Lxc, Kind::UserNamespace], &["user_namespace", "pid_namespace"]);
    has(&container.remedy("user_namespace"), &["on the host", "sudo heapbpf --cgroup"]);
    // LXC has `container=lxc` in the environment of PID 1.
    let lxc = container.lacks(source::LXD).lacks(source::CONTAINER).text(source::INIT_CONTAINER, "lxc");
    assert_eq!(lxc.kinds(), [Kind::Lxc, Kind::UserNamespace]);
}

#[test]
fn other_containers_name_themselves() {
    // systemd.io/CONTAINER_INTERFACE
    let of = |name: &str| Machine::healthy().text(source::CONTAINER, name).kinds();
    assert_eq!(of("systemd-nspawn"), [Kind::Nspawn]);
    assert_eq!(of("something"), [Kind::Container]);
    assert_eq!(of(""), []);
    assert_eq!(of("wsl"), []);
}

/// Recorded with `unshare --user --map-root-user`.
#[test]
fn user_namespaces() {
    let namespace = Machine::healthy()
        .text(source::USER_NAMESPACE, "user:[4026532177]")
        .text(source::UID_MAP, "0 0 1")
        .without_bpf();
    namespace.check(&[Kind::UserNamespace], &["user_namespace"]);
    has(&namespace.remedy("user_namespace"), &["leave the namespace", "sudo heapbpf"]);
}

/// Releases and namespaces of microsoft/WSL issues 12408 and 9270, and trentas/ptop pull request 50.
#[test]
fn wsl_2() {
    let wsl = Machine::healthy()
        .text(source::RELEASE, "5.15.167.4-microsoft-standard-WSL2")
        .text(source::PID_NAMESPACE, "pid:[4026532221]")
        .lacks(source::DMI_VENDOR)
        .exists(source::CPU_HYPERVISOR);
    wsl.check(&[Kind::Wsl2], &["pid_namespace"]);
    has(&wsl.remedy("pid_namespace"), &["wsl --debug-shell", "/proc/PID/root"]);
    // Kernels before 5.15.74 have no BTF.
    let old = wsl
        .text(source::RELEASE, "5.10.16.3-microsoft-standard-WSL2")
        .text(source::PID_NAMESPACE, "pid:[4026531836]")
        .lacks(source::BTF);
    old.check(&[Kind::Wsl2], &["no_btf"]);
    has(&old.remedy("no_btf"), &["wsl --update", ".wslconfig"]);
    assert!(!old.refusal("no_btf").prevents);
}

/// `uname -r` as of learn.microsoft.com/windows/wsl/compare-versions and microsoft/WSL issue 8742.
#[test]
fn wsl_1() {
    let wsl = Machine::healthy()
        .text(source::RELEASE, "4.4.0-22621-Microsoft")
        .refuses(Attempt::ReachBpf, libc::ENOSYS)
        .refuses(Attempt::LoadProgram, libc::ENOSYS);
    wsl.check(&[Kind::Wsl1], &["wsl1"]);
    has(&wsl.remedy("wsl1"), &["wsl --set-version DISTRIBUTION 2"]);
}

/// google/gvisor at 2026-08: pkg/sentry/kernel/version/version.go; `Bpf` in pkg/sentry/syscalls/linux/sys_ebpf.go (programs for
/// probes: `EINVAL`); linux64.go (`perf_event_open`: `ENODEV`).
#[test]
fn gvisor() {
    let sandbox = Machine::healthy()
        .exists(source::DOCKER)
        .text(source::ROOT_MOUNT, "overlay")
        .text(source::RELEASE, "4.19.0-gvisor")
        .text(source::VERSION, "Linux version 4.19.0-gvisor #1 SMP Sun Jan 10 15:06:54 PST 2016")
        .text(source::PID_NAMESPACE, "pid:[1]")
        .text(source::USER_NAMESPACE, "user:[2]")
        .refuses(Attempt::LoadProgram, libc::EINVAL)
        .refuses(Attempt::ReachPerfEventOpen, libc::ENODEV);
    sandbox.check(&[Kind::Docker, Kind::UserNamespace, Kind::Gvisor], &["gvisor"]);
    let refusal = sandbox.refusal("gvisor");
    has(&refusal.remedy, &["docker run --runtime=runc", "on the host"]);
    has(&refusal.evidence.join("\n"), &["4.19.0-gvisor", "ENODEV", "bpf(BPF_PROG_LOAD): EINVAL"]);
    // Until 2025, without capabilities: `CapError("bpf", CAP_SYS_ADMIN)`.
    let old = Machine::healthy()
        .text(source::RELEASE, "4.4.0")
        .text(source::VERSION, "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016")
        .without_bpf()
        .refuses(Attempt::ReachBpf, libc::EPERM)
        .refuses(Attempt::ReachPerfEventOpen, libc::ENODEV);
    old.check(&[Kind::Gvisor], &["gvisor"]);
    // The version can be configured.
    let renamed = Machine::healthy().refuses(Attempt::ReachPerfEventOpen, libc::ENODEV);
    renamed.check(&[Kind::Gvisor], &["gvisor"]);
    // A real 4.4 is not taken for gVisor.
    assert_eq!(Machine::healthy().text(source::RELEASE, "4.4.0").kinds(), []);
}

/// A Firecracker guest whose kernel has all that heapbpf needs, as recorded.
fn firecracker() -> Machine {
    Machine::healthy()
        .text(source::ACPI, "FIRECK")
        .text(source::COMMAND_LINE, "reboot=k panic=1")
        .lacks(source::DMI_VENDOR)
        .lacks(source::DMI_PRODUCT)
        .exists(source::CPU_HYPERVISOR)
}

#[test]
fn firecracker_guests() {
    firecracker().check(&[Kind::Firecracker], &[]);
    // Users may not read ACPI tables.
    let user = firecracker().set(source::ACPI, Answer::Error(libc::EACCES));
    user.check(&[Kind::Firecracker], &[]);
    // A kernel of resources/guest_configs/microvm-kernel-ci-x86_64-6.1.config: CONFIG_FTRACE is not set.
    let minimal = firecracker()
        .lacks(source::UPROBE_SOURCE)
        .lacks(source::BTF)
        .text(source::CONFIGURATION, "/boot/config: CONFIG_BPF_SYSCALL=y, CONFIG_FTRACE=n, CONFIG_UPROBE_EVENTS=n");
    minimal.check(&[Kind::Firecracker], &["no_uprobes", "no_btf"]);
    let refusal = minimal.refusal("no_uprobes");
    has(&refusal.remedy, &["CONFIG_FTRACE", "kernel_image_path"]);
    has(&refusal.evidence.join("\n"), &["uprobe/type: ENOENT", "CONFIG_UPROBE_EVENTS=n"]);
    // Its 6.18 configuration also has no JIT.
    let interpreted = minimal.text(source::CONFIGURATION, "/boot/config: CONFIG_BPF_SYSCALL=y, CONFIG_BPF_JIT=n");
    assert!(interpreted.refusal("no_jit").prevents);
}

#[test]
fn kernels_without_features() {
    // `SYSCALL_DEFINE3(bpf)` is not built: kernel/sys_ni.c.
    let none = Machine::healthy().refuses(Attempt::ReachBpf, libc::ENOSYS).refuses(Attempt::LoadProgram, libc::ENOSYS);
    none.check(&[], &["no_bpf"]);
    has(&none.remedy("no_bpf"), &["CONFIG_BPF_SYSCALL", "your distribution's"]);
    // Recorded on Linux 7.3 with `sysctl net.core.bpf_jit_enable=0`.
    let interpreted = Machine::healthy().text(source::JIT, "0");
    interpreted.check(&[], &["no_jit"]);
    has(&interpreted.remedy("no_jit"), &["sysctl net.core.bpf_jit_enable=1"]);
}

/// Values of sys_vendor and product_name as systemd-detect-virt(1) knows them (src/basic/virt.c).
#[test]
fn virtual_machines() {
    let name = |vendor: &str, product: &str| {
        let machine = Machine::healthy().exists(source::CPU_HYPERVISOR);
        let machine = machine.text(source::DMI_VENDOR, vendor).text(source::DMI_PRODUCT, product);
        machine.check(&[Kind::VirtualMachine], &[]);
        recognize(&machine.facts())[0].name.clone()
    };
    assert_eq!(name("Amazon EC2", "c5.large"), "virtual machine (Amazon EC2)");
    assert_eq!(name("Google", "Google Compute Engine"), "virtual machine (Google Compute Engine)");
    assert_eq!(name("QEMU", "Standard PC (Q35 + ICH9, 2009)"), "virtual machine (QEMU)");
    assert_eq!(name("Microsoft Corporation", "Virtual Machine"), "virtual machine (Hyper-V)");
    assert_eq!(name("VMware, Inc.", "VMware20,1"), "virtual machine (VMware)");
    assert_eq!(name("unknown", "unknown"), "virtual machine");
    // No hypervisor: a metal instance of EC2, and a Surface.
    assert_eq!(Machine::healthy().text(source::DMI_VENDOR, "Amazon EC2").kinds(), []);
    // Documentation/ABI/stable/sysfs-hypervisor-xen
    assert_eq!(Machine::healthy().text(source::HYPERVISOR, "xen").kinds(), [Kind::VirtualMachine]);
}

#[test]
fn kernel_lockdown() {
    // Distributions with secure boot: aquasecurity/tracee issue 295. Nothing that heapbpf needs is refused.
    let integrity =
        Machine::healthy().text(source::LOCKDOWN, "none [integrity] confidentiality").text(source::SECURE_BOOT, "on");
    integrity.check(&[], &[]);
    // Talos Linux: gma1k/podtrace issue 160. The error was recorded on Linux 6.1 and 7.3 with `lockdown=confidentiality`.
    let confidentiality = Machine::healthy()
        .text(source::LOCKDOWN, "none integrity [confidentiality]")
        .text(source::COMMAND_LINE, "lockdown=confidentiality")
        .text(source::SECURE_BOOT, "on")
        .refuses(Attempt::ReadKernelMemory, libc::EINVAL);
    confidentiality.check(&[], &["lockdown"]);
    let refusal = confidentiality.refusal("lockdown");
    has(&refusal.remedy, &["lockdown=integrity", "instead of `lockdown=confidentiality`"]);
    has(&refusal.evidence.join("\n"), &["[confidentiality]", "EINVAL", "SecureBoot"]);
    // Without securityfs, what the kernel withdraws shows it.
    let unmounted = confidentiality.lacks(source::LOCKDOWN).lacks(source::COMMAND_LINE);
    unmounted.check(&[], &["lockdown"]);
    // If no program may be loaded at all, a failure to load one that reads kernel memory is no evidence of lockdown.
    assert!(!unprivileged().lacks(source::LOCKDOWN).refusals().iter().any(|refusal| refusal.id == "lockdown"));
}

/// SELinux: containers of Fedora have this label (container_selinux(8)), and lack permissions of class `bpf`.
#[test]
fn security_modules() {
    let selinux = Machine::healthy()
        .text(source::LABEL, "system_u:system_r:container_t:s0:c1,c2")
        .text(source::SECURITY_MODULES, "lockdown,capability,yama,selinux,bpf")
        .refuses(Attempt::LoadProgram, libc::EACCES);
    selinux.check(&[], &["security_module"]);
    let refusal = selinux.refusal("security_module");
    has(&refusal.remedy, &["ausearch -m avc"]);
    has(&refusal.evidence.join("\n"), &["EACCES", "container_t"]);
}

#[test]
fn seccomp_filters() {
    // systemd.exec(5), SystemCallFilter=: without SystemCallErrorNumber=, the process is killed. Recorded with such a filter.
    let killed = Answer::Killed;
    let unit = Machine::healthy().text(source::SECCOMP, "2").exists(source::SYSTEMD_UNIT);
    let unit = Attempt::ALL
        .into_iter()
        .filter(|attempt| attempt.uses_bpf())
        .fold(unit, |unit, attempt| unit.answers(attempt, killed.clone()));
    unit.check(&[], &["seccomp_bpf"]);
    let refusal = unit.refusal("seccomp_bpf");
    has(&refusal.reason, &["kills processes that call `bpf`"]);
    has(&refusal.remedy, &["systemctl edit UNIT", "SystemCallFilter="]);
    // Recorded with a filter that refuses `ptrace` and `perf_event_open` alone, which recordings do not need.
    let others = Machine::healthy()
        .text(source::SECCOMP, "2")
        .refuses(Attempt::ReachPerfEventOpen, libc::ENOSYS)
        .refuses(Attempt::ReachPtrace, libc::EPERM);
    others.check(&[], &["seccomp_perf_event_open", "ptrace"]);
    assert!(others.refusals().iter().all(|refusal| !refusal.prevents));
}

/// Returns one machine for each refusal; those of containers come first.
fn all() -> Vec<Machine> {
    let with = |source: &'static str, text: &str| Machine::healthy().text(source, text);
    let lacking = |sources: &[&'static str]| sources.iter().fold(Machine::healthy(), |machine, at| machine.lacks(at));
    vec![
        docker(),
        with(source::USER_NAMESPACE, "user:[4026532177]").without_bpf(),
        unprivileged(),
        unprivileged().text(source::NO_NEW_PRIVILEGES, "1"),
        Machine::healthy().refuses(Attempt::LoadProgram, libc::EACCES),
        with(source::SECCOMP, "2").refuses(Attempt::ReachPtrace, libc::EPERM),
        with(source::PTRACE_SCOPE, "3"),
        with(source::LOCKDOWN, "none integrity [confidentiality]"),
        Machine::healthy().refuses(Attempt::CreateMap, libc::EPERM),
        with(source::JIT, "0"),
        Machine::healthy().refuses(Attempt::ReachBpf, libc::ENOSYS),
        lacking(&[source::UPROBE_SOURCE]),
        lacking(&[source::BTF]),
        lacking(&[source::SYSFS]),
        lacking(&[source::PID_NAMESPACE]),
        unprivileged().text(source::PROC_MOUNT, "/proc rw,hidepid=invisible"),
        with(source::VERSION, "Linux version 4.19.0-gvisor"),
        with(source::RELEASE, "4.4.0-22621-Microsoft"),
    ]
}

#[test]
fn refusals_are_documented() {
    let mut table = "| id | recording | reason | remedy |\n|---|---|---|---|\n".to_owned();
    let mut ids = Vec::new();
    for refusal in all().iter().flat_map(Machine::refusals) {
        if !ids.contains(&refusal.id) {
            ids.push(refusal.id);
            let recording = if refusal.prevents { "impossible" } else { "possible" };
            let [reason, remedy] = [&refusal.reason, &refusal.remedy].map(|text| text.replace('|', "\\|"));
            table.push_str(&format!("| `{}` | {recording} | {reason} | {remedy} |\n", refusal.id));
        }
    }
    check_table("doctor.md", "refusals", &table);
}

#[test]
fn environments_are_documented() {
    let page = include_str!("../../../../docs/doctor.md");
    for kind in [
        Kind::Gvisor,
        Kind::Wsl1,
        Kind::Wsl2,
        Kind::Kubernetes,
        Kind::Podman,
        Kind::Docker,
        Kind::Lxc,
        Kind::Nspawn,
        Kind::Container,
        Kind::UserNamespace,
        Kind::Firecracker,
        Kind::VirtualMachine,
    ] {
        assert!(page.contains(&format!("`{}`", kind.id())), "{kind:?}");
    }
}

#[test]
fn settings() {
    // Documentation/admin-guide/LSM/Yama.rst
    let yama = Machine::healthy().text(source::PTRACE_SCOPE, "3");
    yama.check(&[], &["ptrace"]);
    has(&yama.remedy("ptrace"), &["kernel.yama.ptrace_scope", "reboot"]);
    Machine::healthy().text(source::PTRACE_SCOPE, "1").check(&[], &[]);
    // Recorded with `mount -t proc -o hidepid=2`, which newer kernels list so.
    let options = "/proc rw,relatime,hidepid=invisible";
    unprivileged().text(source::PROC_MOUNT, options).check(&[], &["capabilities", "hidepid"]);
    Machine::healthy().text(source::PROC_MOUNT, options).check(&[], &[]);
    // Before Linux 5.11: `bpf_map_charge_init` in kernel/bpf/syscall.c of 5.10.
    let memlock = Machine::healthy().text(source::RELEASE, "5.10.0").refuses(Attempt::CreateMap, libc::EPERM);
    memlock.check(&[], &["memlock"]);
    has(&memlock.remedy("memlock"), &["ulimit -l unlimited", "LimitMEMLOCK=infinity"]);
}

#[test]
fn missing_mounts() {
    // Recorded with `umount -l /sys` and `umount -l /proc` in a mount namespace.
    let without_sys = Machine::healthy()
        .lacks(source::SYS_MOUNT)
        .lacks(source::SYSFS)
        .lacks(source::UPROBE_SOURCE)
        .lacks(source::BTF)
        .lacks(source::LOCKDOWN);
    without_sys.check(&[], &["sysfs"]);
    has(&without_sys.remedy("sysfs"), &["mount -t sysfs sysfs /sys"]);
    let without_proc = [source::PID_NAMESPACE, source::USER_NAMESPACE, source::EFFECTIVE, source::RELEASE]
        .into_iter()
        .fold(Machine::healthy(), Machine::lacks);
    without_proc.check(&[], &["procfs"]);
    has(&without_proc.remedy("procfs"), &["mount -t proc proc /proc"]);
    // Recorded with an empty file system at /sys/kernel/btf.
    let without_btf = Machine::healthy()
        .lacks(source::BTF)
        .text(source::CONFIGURATION, "/proc/config.gz: CONFIG_BPF_SYSCALL=y, CONFIG_DEBUG_INFO_BTF=y");
    without_btf.check(&[], &["no_btf"]);
    has(&without_btf.remedy("no_btf"), &["mount -t sysfs sysfs /sys"]);
}
