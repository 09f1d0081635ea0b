//! Facts about the machine: contents of files, and the kernel's answers to system calls. Each has the name of its source. Names
//! of hosts, users and paths of users are not collected: facts are part of bug reports.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};

use flate2::read::GzDecoder;
use heapbpf_base::shown;
use heapbpf_linux::attempt::{Attempt, Errno};
use heapbpf_linux::feature::KERNEL_BTF;

/// The hidden command that makes an [`Attempt`] and prints the kernel's answer: a seccomp filter may kill the caller.
pub(crate) const ATTEMPT_COMMAND: &str = "doctor-attempt";

/// Names of facts, which are mostly paths.
pub(crate) mod source {
    pub(crate) const RELEASE: &str = "/proc/sys/kernel/osrelease";
    pub(crate) const VERSION: &str = "/proc/version";
    pub(crate) const COMMAND_LINE: &str = "/proc/cmdline";
    pub(crate) const UID: &str = "/proc/self/status: Uid";
    pub(crate) const EFFECTIVE: &str = "/proc/self/status: CapEff";
    pub(crate) const BOUNDING: &str = "/proc/self/status: CapBnd";
    pub(crate) const NO_NEW_PRIVILEGES: &str = "/proc/self/status: NoNewPrivs";
    pub(crate) const SECCOMP: &str = "/proc/self/status: Seccomp";
    pub(crate) const UID_MAP: &str = "/proc/self/uid_map";
    pub(crate) const PID_NAMESPACE: &str = "/proc/self/ns/pid";
    pub(crate) const USER_NAMESPACE: &str = "/proc/self/ns/user";
    pub(crate) const LABEL: &str = "/proc/self/attr/current";
    pub(crate) const PROC_MOUNT: &str = "/proc/self/mounts: proc";
    pub(crate) const SYS_MOUNT: &str = "/proc/self/mounts: sysfs";
    pub(crate) const TRACE_MOUNT: &str = "/proc/self/mounts: tracefs";
    pub(crate) const SECURITY_MOUNT: &str = "/proc/self/mounts: securityfs";
    pub(crate) const ROOT_MOUNT: &str = "/proc/self/mounts: root";
    pub(crate) const LOCKDOWN: &str = "/sys/kernel/security/lockdown";
    pub(crate) const SECURITY_MODULES: &str = "/sys/kernel/security/lsm";
    pub(crate) const SECURE_BOOT: &str = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";
    pub(crate) const UNPRIVILEGED_BPF: &str = "/proc/sys/kernel/unprivileged_bpf_disabled";
    pub(crate) const PERF_PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";
    pub(crate) const POINTERS_HIDDEN: &str = "/proc/sys/kernel/kptr_restrict";
    pub(crate) const PTRACE_SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";
    pub(crate) const JIT: &str = "/proc/sys/net/core/bpf_jit_enable";
    pub(crate) const BTF: &str = super::KERNEL_BTF;
    pub(crate) const UPROBE_SOURCE: &str = "/sys/bus/event_source/devices/uprobe/type";
    pub(crate) const SYSFS: &str = "/sys/kernel";
    pub(crate) const CONFIGURATION: &str = "kernel configuration";
    pub(crate) const DOCKER: &str = "/.dockerenv";
    pub(crate) const PODMAN: &str = "/run/.containerenv";
    pub(crate) const KUBERNETES: &str = "environment variable KUBERNETES_SERVICE_HOST";
    pub(crate) const SYSTEMD_UNIT: &str = "environment variable INVOCATION_ID";
    pub(crate) const CONTAINER: &str = "/run/systemd/container";
    pub(crate) const INIT_CONTAINER: &str = "/proc/1/environ: container";
    pub(crate) const LXD: &str = "/dev/lxd/sock";
    pub(crate) const INCUS: &str = "/dev/incus/sock";
    pub(crate) const GVISOR: &str = "/proc/gvisor";
    pub(crate) const DMI_VENDOR: &str = "/sys/class/dmi/id/sys_vendor";
    pub(crate) const DMI_PRODUCT: &str = "/sys/class/dmi/id/product_name";
    pub(crate) const HYPERVISOR: &str = "/sys/hypervisor/type";
    pub(crate) const CPU_HYPERVISOR: &str = "/proc/cpuinfo: hypervisor";
    pub(crate) const ACPI: &str = "/sys/firmware/acpi/tables/DSDT";
}

/// Files whose first line is a fact.
const LINES: [&str; 16] = [
    source::RELEASE,
    source::VERSION,
    source::UID_MAP,
    source::LABEL,
    source::LOCKDOWN,
    source::SECURITY_MODULES,
    source::UNPRIVILEGED_BPF,
    source::PERF_PARANOID,
    source::POINTERS_HIDDEN,
    source::PTRACE_SCOPE,
    source::JIT,
    source::UPROBE_SOURCE,
    source::CONTAINER,
    source::DMI_VENDOR,
    source::DMI_PRODUCT,
    source::HYPERVISOR,
];

const MARKERS: [&str; 6] = [source::DOCKER, source::LXD, source::INCUS, source::GVISOR, source::BTF, source::SYSFS];

const VARIABLES: [(&str, &str); 2] =
    [(source::KUBERNETES, "KUBERNETES_SERVICE_HOST"), (source::SYSTEMD_UNIT, "INVOCATION_ID")];

/// Names of facts, and beginnings of their lines in `/proc/self/status`.
const STATUS: [(&str, &str); 5] = [
    (source::UID, "Uid:"),
    (source::EFFECTIVE, "CapEff:"),
    (source::BOUNDING, "CapBnd:"),
    (source::NO_NEW_PRIVILEGES, "NoNewPrivs:"),
    (source::SECCOMP, "Seccomp:"),
];

const MOUNTS: [(&str, &str, Option<&str>); 4] = [
    (source::PROC_MOUNT, "proc", Some("/proc")),
    (source::SYS_MOUNT, "sysfs", Some("/sys")),
    (source::TRACE_MOUNT, "tracefs", None),
    (source::SECURITY_MOUNT, "securityfs", None),
];

/// Parameters of the kernel's command line that affect BPF, and those that Firecracker's documentation recommends.
const PARAMETERS: [&str; 6] = ["lockdown", "lsm", "preempt", "reboot", "panic", "pci"];

/// Options of the kernel that decide whether heapbpf works: kernel/bpf/Kconfig, kernel/trace/Kconfig, lib/Kconfig.debug.
const OPTIONS: [&str; 8] = [
    "CONFIG_BPF_SYSCALL",
    "CONFIG_BPF_JIT",
    "CONFIG_PERF_EVENTS",
    "CONFIG_FTRACE",
    "CONFIG_UPROBES",
    "CONFIG_UPROBE_EVENTS",
    "CONFIG_BPF_EVENTS",
    "CONFIG_DEBUG_INFO_BTF",
];

const LINE_CHARS_MAX: usize = 240;
/// Maximum number of bytes that are read of a file: `/proc/cpuinfo` of the first processors, and the largest configuration.
const FILE_BYTES_MAX: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Text(String),
    Exists,
    Succeeds,
    Error(i32),
    /// SIGSYS has killed the process.
    Killed,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts(BTreeMap<&'static str, Answer>);

impl Facts {
    /// Collects all facts, which takes milliseconds.
    pub(crate) fn collect() -> Self {
        let mut facts = Self::default();
        for path in LINES {
            facts.add(path, line(path).map(Answer::Text));
        }
        for path in [source::PID_NAMESPACE, source::USER_NAMESPACE] {
            facts.add(path, fs::read_link(path).map(|link| Answer::Text(shown::os_text(&link).into_owned())));
        }
        for path in MARKERS {
            facts.add(path, fs::symlink_metadata(path).map(|_| Answer::Exists));
        }
        for (name, variable) in VARIABLES {
            facts.add(name, set(std::env::var_os(variable).is_some()));
        }
        let status = text("/proc/self/status");
        for (name, field) in STATUS {
            facts.add(name, parsed(&status, |text| status_field(text, field)));
        }
        let mounts = text("/proc/self/mounts");
        for (name, kind, place) in MOUNTS {
            facts.add(name, parsed(&mounts, |text| mount(text, kind, place)));
        }
        facts.add(source::ROOT_MOUNT, parsed(&mounts, root_mount));
        facts.add(source::COMMAND_LINE, parsed(&text(source::COMMAND_LINE), |text| Some(parameters(text))));
        facts.add(source::PODMAN, parsed(&text(source::PODMAN), |text| Some(podman(text))));
        facts.add(source::INIT_CONTAINER, parsed(&text("/proc/1/environ"), container_variable));
        facts.add(source::CPU_HYPERVISOR, text("/proc/cpuinfo").and_then(|text| set(has_flag(&text, "hypervisor"))));
        facts.add(source::SECURE_BOOT, bytes(source::SECURE_BOOT).and_then(|bytes| secure_boot(&bytes)));
        facts.add(source::ACPI, bytes(source::ACPI).map(|bytes| Answer::Text(acpi_vendor(&bytes))));
        facts.add(source::CONFIGURATION, configuration(facts.text(source::RELEASE).unwrap_or_default()));
        facts.attempt();
        facts
    }

    /// Creates facts as of another machine.
    #[cfg(test)]
    pub(crate) fn of(answers: &[(&'static str, Answer)]) -> Self {
        Self(answers.iter().cloned().collect())
    }

    fn add(&mut self, name: &'static str, answer: io::Result<Answer>) {
        self.0.insert(name, answer.unwrap_or_else(|error| Answer::Error(error.raw_os_error().unwrap_or(libc::EIO))));
    }

    fn attempt(&mut self) {
        // A filter may kill the caller instead of returning an error. Without a filter, the caller is never killed.
        let is_filtered = self.text(source::SECCOMP).is_none_or(|mode| mode != "0");
        for attempt in Attempt::ALL {
            let is_fatal = attempt.uses_bpf() && self.is_killed(Attempt::ReachBpf.describe());
            let answer = match () {
                () if is_fatal => Answer::Killed,
                () if is_filtered => in_child(attempt),
                () => answer(&attempt.make()),
            };
            self.0.insert(attempt.describe(), answer);
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, &Answer)> {
        self.0.iter().map(|(name, answer)| (*name, answer))
    }

    pub(crate) fn answer(&self, name: &str) -> Option<&Answer> {
        self.0.get(name)
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        match self.answer(name) {
            Some(Answer::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn error(&self, name: &str) -> Option<i32> {
        match self.answer(name) {
            Some(Answer::Error(number)) => Some(*number),
            _ => None,
        }
    }

    pub(crate) fn exists(&self, name: &str) -> bool {
        matches!(self.answer(name), Some(Answer::Exists | Answer::Text(_)))
    }

    pub(crate) fn succeeds(&self, attempt: Attempt) -> bool {
        self.answer(attempt.describe()) == Some(&Answer::Succeeds)
    }

    pub(crate) fn is_killed(&self, name: &str) -> bool {
        self.answer(name) == Some(&Answer::Killed)
    }

    /// Bits of `CAP_…` in a set of the status file.
    pub(crate) fn capabilities(&self, set: &str) -> Option<u64> {
        u64::from_str_radix(self.text(set)?, 16).ok()
    }

    /// Whether an option of the kernel is set; `None` where the kernel's configuration is not readable.
    pub(crate) fn configured(&self, option: &str) -> Option<bool> {
        let words = || self.text(source::CONFIGURATION).into_iter().flat_map(str::split_whitespace);
        words().find_map(|word| Some(word.trim_end_matches(',').strip_prefix(option)?.strip_prefix('=')? != "n"))
    }

    /// Text of a fact as evidence.
    pub(crate) fn cite(&self, name: &str) -> String {
        match self.answer(name) {
            Some(Answer::Text(text)) => format!("{name}: {text}"),
            Some(Answer::Exists) => format!("{name}: exists"),
            Some(Answer::Succeeds) => format!("{name}: succeeds"),
            Some(Answer::Error(number)) => format!("{name}: {}", Errno(*number)),
            Some(Answer::Killed) => format!("{name}: killed by SIGSYS"),
            None => format!("{name}: unknown"),
        }
    }

    /// Text of an attempt as evidence, with the answer of a kernel that does not refuse.
    pub(crate) fn cite_attempt(&self, attempt: Attempt) -> String {
        let cited = self.cite(attempt.describe());
        match attempt.expected().and_then(|expected| Errno(expected).name()) {
            Some(expected) => format!("{cited}, where Linux answers {expected}"),
            None => cited,
        }
    }
}

/// Runs the hidden command: makes an attempt and prints the number of its error, or 0.
pub(crate) fn serve_attempt(name: &str, out: &mut dyn io::Write) -> io::Result<()> {
    let attempt: Attempt = name.parse().map_err(|_| io::Error::other("unknown attempt"))?;
    let number = attempt.make().map_or_else(|error| error.raw_os_error().unwrap_or(libc::EIO), |()| 0);
    writeln!(out, "{number}")
}

fn in_child(attempt: Attempt) -> Answer {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("heapbpf").args([ATTEMPT_COMMAND, attempt.into()]).stdin(Stdio::null()).stderr(Stdio::null());
    match command.output() {
        Ok(output) if output.status.signal() == Some(libc::SIGSYS) => Answer::Killed,
        Ok(output) => match shown::text(&output.stdout).trim().parse() {
            Ok(0) => Answer::Succeeds,
            number => Answer::Error(number.unwrap_or(libc::EIO)),
        },
        Err(_) => answer(&attempt.make()),
    }
}

fn answer(result: &io::Result<()>) -> Answer {
    match result {
        Ok(()) => Answer::Succeeds,
        Err(error) => Answer::Error(error.raw_os_error().unwrap_or(libc::EIO)),
    }
}

/// Mode of seccomp(2); 0 without a filter.
pub(crate) fn seccomp_mode() -> Option<String> {
    status_field(&text("/proc/self/status").ok()?, "Seccomp:")
}

fn absent() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOENT)
}

fn set(is_set: bool) -> io::Result<Answer> {
    if is_set { Ok(Answer::Exists) } else { Err(absent()) }
}

fn bytes(path: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn text(path: &str) -> io::Result<String> {
    Ok(shown::text(&bytes(path)?).into_owned())
}

fn line(path: &str) -> io::Result<String> {
    Ok(first_line(&text(path)?))
}

/// First line of a text with single spaces, and without the zero that ends labels of security modules.
fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default().trim_end_matches('\0');
    line.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(LINE_CHARS_MAX).collect()
}

fn parsed(text: &io::Result<String>, parse: impl Fn(&str) -> Option<String>) -> io::Result<Answer> {
    match text {
        Ok(text) => parse(text).map(Answer::Text).ok_or_else(absent),
        Err(error) => Err(io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EIO))),
    }
}

fn status_field(status: &str, field: &str) -> Option<String> {
    status.lines().find_map(|line| line.strip_prefix(field)).map(first_line)
}

/// The topmost mount of a file system at its usual place (containers mount parts of procfs elsewhere), or anywhere: the mount's
/// place and its options.
fn mount(mounts: &str, kind: &str, place: Option<&str>) -> Option<String> {
    let words = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mut mounts = words.filter(|words| words.len() > 3 && words[2] == kind);
    let topmost = mounts.rfind(|words| place.is_none_or(|place| words[1] == place));
    topmost.map(|words| format!("{} {}", words[1], words[3]))
}

/// Type of the root mount alone: options of overlays are paths.
fn root_mount(mounts: &str) -> Option<String> {
    let words = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    words.filter(|words| words.len() > 3).rfind(|words| words[1] == "/").map(|words| words[2].to_owned())
}

fn parameters(command_line: &str) -> String {
    let is_known = |word: &&str| PARAMETERS.contains(&word.split('=').next().unwrap_or_default());
    command_line.split_whitespace().filter(is_known).collect::<Vec<_>>().join(" ")
}

/// The engine of podman, and whether it runs without root (podman-run(1), "/run/.containerenv").
fn podman(text: &str) -> String {
    let lines = text.lines().filter(|line| line.starts_with("engine=") || line.starts_with("rootless="));
    lines.collect::<Vec<_>>().join(" ")
}

fn container_variable(environment: &str) -> Option<String> {
    environment.split('\0').find_map(|variable| variable.strip_prefix("container=")).map(first_line)
}

fn has_flag(cpuinfo: &str, flag: &str) -> bool {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|line| line.split_whitespace().any(|word| word == flag))
}

/// State of secure boot. Four bytes of attributes precede the value (Documentation/filesystems/efivarfs.rst).
fn secure_boot(variable: &[u8]) -> io::Result<Answer> {
    let value = variable.get(4).ok_or_else(absent)?;
    Ok(Answer::Text(if *value == 1 { "on" } else { "off" }.to_owned()))
}

/// OEM id in the header of an ACPI table (`struct acpi_table_header` in include/acpi/actbl.h).
fn acpi_vendor(table: &[u8]) -> String {
    shown::text(table.get(10..16).unwrap_or_default()).trim().to_owned()
}

/// Configuration of the kernel, from the places where distributions keep it.
fn configuration(release: &str) -> io::Result<Answer> {
    let kept = [
        "/proc/config.gz".to_owned(),
        format!("/boot/config-{release}"),
        format!("/lib/modules/{release}/config"),
        format!("/usr/lib/modules/{release}/config"),
    ];
    let path = kept.iter().find(|path| Path::new(path).is_file()).ok_or_else(absent)?;
    let mut text = String::new();
    let file = fs::File::open(path)?;
    if path.ends_with(".gz") {
        GzDecoder::new(file).take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    } else {
        file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    }
    Ok(Answer::Text(format!("{path}: {}", options(&text))))
}

/// Values of the options. A disabled option is a comment, or absent where another disables it.
fn options(configuration: &str) -> String {
    let value = |option: &str| {
        let line = |line: &str| line.strip_prefix(option)?.strip_prefix('=').map(str::to_owned);
        configuration.lines().find_map(line).unwrap_or_else(|| "n".to_owned())
    };
    OPTIONS.map(|option| format!("{option}={}", value(option))).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_reduced_to_facts() {
        let mounts = "overlay / overlay rw,lowerdir=/var/lib/x 0 0\nproc /proc proc rw 0 0\n\
                      proc /proc proc rw,nosuid,hidepid=invisible 0 0\nproc /proc/sys proc ro 0 0\n";
        assert_eq!(mount(mounts, "proc", Some("/proc")).as_deref(), Some("/proc rw,nosuid,hidepid=invisible"));
        assert_eq!(mount(mounts, "sysfs", Some("/sys")), None);
        assert_eq!(root_mount(mounts).as_deref(), Some("overlay"));
        assert_eq!(
            parameters("BOOT_IMAGE=/vmlinuz root=UUID=1 ro lockdown=integrity quiet lsm=lockdown,yama\n"),
            "lockdown=integrity lsm=lockdown,yama"
        );
        let podman_file = "engine=\"podman-4.3.1\"\nname=\"secret\"\nid=\"1\"\nimage=\"x\"\nrootless=1\n";
        assert_eq!(podman(podman_file), "engine=\"podman-4.3.1\" rootless=1");
        assert_eq!(container_variable("PATH=/bin\0container=lxc\0").as_deref(), Some("lxc"));
        assert!(has_flag("processor\t: 0\nflags\t\t: fpu hypervisor\n", "hypervisor"));
        assert!(!has_flag("flags\t\t: fpu\nbugs\t\t: hypervisor\n", "hypervisor"));
        assert_eq!(status_field("CapEff:\t000001ffffffffff\nSeccomp:\t2\n", "Seccomp:").as_deref(), Some("2"));
        assert_eq!(first_line("docker-default (enforce)\n\0"), "docker-default (enforce)");
        assert_eq!(secure_boot(&[6, 0, 0, 0, 1]).expect("complete"), Answer::Text("on".to_owned()));
        assert!(secure_boot(&[6, 0, 0, 0]).is_err());
        // The first bytes of the DSDT of Firecracker 1.14.
        assert_eq!(acpi_vendor(b"DSDTS\x0f\0\0\x02wFIRECKFCVMDSDT"), "FIRECK");
        assert_eq!(acpi_vendor(b"DSDT"), "");
    }

    #[test]
    fn configurations_list_disabled_options() {
        let text = "CONFIG_BPF_SYSCALL=y\n# CONFIG_FTRACE is not set\nCONFIG_UPROBES_X=y\n";
        let facts = Facts::of(&[(source::CONFIGURATION, Answer::Text(format!("/boot/config: {}", options(text))))]);
        assert_eq!(facts.configured("CONFIG_BPF_SYSCALL"), Some(true));
        assert_eq!(facts.configured("CONFIG_FTRACE"), Some(false));
        assert_eq!(facts.configured("CONFIG_UPROBES"), Some(false));
        assert_eq!(Facts::default().configured("CONFIG_FTRACE"), None);
    }

    #[test]
    fn this_machine_has_facts() {
        let facts = Facts::collect();
        assert!(facts.text(source::RELEASE).is_some_and(|release| !release.is_empty()));
        assert!(facts.text(source::PID_NAMESPACE).is_some_and(|link| link.starts_with("pid:[")));
        assert!(facts.capabilities(source::BOUNDING).is_some());
        assert!(facts.all().any(|(name, _)| name == Attempt::LoadProgram.describe()));
    }
}
