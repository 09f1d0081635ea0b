//! Kernel features, tried because versions are unreliable: distributions backport, and administrators lock down.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use heapbpf_base::ids::Pid;
use rustix::thread::{CapabilitySet, capabilities};

use crate::arch::{heapbpf_emulated, heapbpf_emulated_returning, heapbpf_stepped, heapbpf_stepped_returning};
use crate::attempt::Errno;
use crate::bpf::{AttachType, link_perf, load_nothing, supports};
use crate::uprobe::{UPROBE_SOURCE, open_uprobe};

/// File with the kernel's BTF (Linux 5.4).
pub const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    Yes,
    No(String),
    Unknown(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// The `bpf` system call, with the permission to load a program for probes.
    BpfPrograms,
    KernelBtf,
    Uprobes,
    /// Links between programs and perf events that carry a cookie (Linux 5.15).
    Cookies,
    /// One link for many uprobes (Linux 6.6).
    UprobeMulti,
    /// One program for entry and return, which requests the return if needed (Linux 6.13).
    UprobeSession,
}

impl Feature {
    pub const ALL: [Self; 6] =
        [Self::BpfPrograms, Self::KernelBtf, Self::Uprobes, Self::Cookies, Self::UprobeMulti, Self::UprobeSession];

    /// Tries the feature. `offset` is that of an instruction in this program's own file, for a probe.
    pub fn support(self, offset: u64) -> Support {
        let tried = match self {
            Self::BpfPrograms => load_program().map(drop),
            Self::KernelBtf => std::fs::metadata(KERNEL_BTF).map(drop),
            Self::Uprobes => uprobe_event(offset).map(drop),
            Self::Cookies => load_program().and_then(|program| link_perf(program, uprobe_event(offset)?, 1)).map(drop),
            Self::UprobeMulti => has_links(AttachType::UprobeMulti),
            Self::UprobeSession => has_links(AttachType::UprobeSession),
        };
        tried.map_or_else(|error| judge(self.attempt(), &error), |()| Support::Yes)
    }

    /// Name of the attempt that is made, as evidence.
    fn attempt(self) -> &'static str {
        match self {
            Self::BpfPrograms => "bpf(BPF_PROG_LOAD)",
            Self::KernelBtf => KERNEL_BTF,
            Self::Uprobes if !Path::new(UPROBE_SOURCE).exists() => UPROBE_SOURCE,
            Self::Uprobes => "perf_event_open(2) of a uprobe",
            Self::Cookies => "bpf(BPF_LINK_CREATE) of a perf event",
            Self::UprobeMulti => "bpf(BPF_LINK_CREATE) of type BPF_TRACE_UPROBE_MULTI",
            Self::UprobeSession => "bpf(BPF_LINK_CREATE) of type BPF_TRACE_UPROBE_SESSION",
        }
    }
}

fn has_links(attach_type: AttachType) -> io::Result<()> {
    if supports(attach_type)? { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EINVAL)) }
}

/// Judges an error. Without permission to try, a failure proves nothing about the kernel.
fn judge(attempt: &str, error: &io::Error) -> Support {
    let evidence = format!("{attempt}: {}", Errno::text(error));
    match error.kind() {
        io::ErrorKind::PermissionDenied => Support::Unknown(evidence),
        _ => Support::No(evidence),
    }
}

fn load_program() -> io::Result<OwnedFd> {
    load_nothing(AttachType::PerfEvent).map_err(|refused| refused.error)
}

fn uprobe_event(offset: u64) -> io::Result<OwnedFd> {
    open_uprobe(Path::new("/proc/self/exe"), offset, Some(Pid(std::process::id())), false)
}

/// Required capabilities, and whether `CAP_SYS_ADMIN` includes them: to load programs and attach them to uprobes (before Linux
/// 5.8, `CAP_SYS_ADMIN` does), and to read another user's `/proc/PID/maps` and the files mapped there.
pub const CAPABILITIES: [(&str, CapabilitySet, bool); 3] = [
    ("CAP_BPF", CapabilitySet::BPF, true),
    ("CAP_PERFMON", CapabilitySet::PERFMON, true),
    ("CAP_SYS_PTRACE", CapabilitySet::SYS_PTRACE, false),
];

pub fn missing() -> io::Result<Vec<&'static str>> {
    Ok(missing_from(capabilities(None)?.effective))
}

/// Whether this process has `CAP_SYS_ADMIN`; true where that is unknown, so that the later system call decides.
pub fn has_admin() -> bool {
    capabilities(None).map_or(true, |sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

fn missing_from(effective: CapabilitySet) -> Vec<&'static str> {
    let admin = effective.contains(CapabilitySet::SYS_ADMIN);
    let is_missing = |(_, bit, in_admin): &(_, _, bool)| !(effective.contains(*bit) || admin && *in_admin);
    CAPABILITIES.into_iter().filter(is_missing).map(|(name, ..)| name).collect()
}

/// A function of this program on which `doctor` places probes, to test that this works and to measure its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    /// The function begins with an instruction that the kernel emulates.
    Emulated,
    EmulatedReturning,
    /// The function begins with an instruction that the kernel executes out of line.
    Stepped,
    SteppedReturning,
}

impl Spot {
    pub const ALL: [Self; 4] = [Self::Emulated, Self::EmulatedReturning, Self::Stepped, Self::SteppedReturning];

    pub fn address(self) -> u64 {
        self.function() as usize as u64
    }

    /// Calls the function `times` times, with an argument that is not the address of a block.
    pub fn call(self, times: u32) {
        let function = self.function();
        for _ in 0..times {
            function(1);
        }
    }

    fn function(self) -> extern "C" fn(u64) {
        match self {
            Self::Emulated => heapbpf_emulated,
            Self::EmulatedReturning => heapbpf_emulated_returning,
            Self::Stepped => heapbpf_stepped,
            Self::SteppedReturning => heapbpf_stepped_returning,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_permission_is_not_a_missing_feature() {
        let judge = |errno| judge("bpf(BPF_PROG_LOAD)", &io::Error::from_raw_os_error(errno));
        assert!(matches!(judge(libc::EPERM), Support::Unknown(_)));
        assert!(matches!(judge(libc::EACCES), Support::Unknown(_)));
        assert_eq!(
            judge(libc::ENOSYS),
            Support::No("bpf(BPF_PROG_LOAD): ENOSYS (Function not implemented)".to_owned())
        );
        assert!(matches!(judge(libc::EINVAL), Support::No(_)));
    }
}

#[cfg(test)]
mod capability_tests {
    use super::*;

    fn check(effective: CapabilitySet, missing: &[&str]) {
        assert_eq!(missing_from(effective), missing, "{effective:?}");
    }

    #[test]
    fn sys_admin_includes_bpf_and_perfmon_only() {
        check(CapabilitySet::empty(), &["CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE"]);
        check(CapabilitySet::SYS_ADMIN, &["CAP_SYS_PTRACE"]);
        check(CapabilitySet::BPF | CapabilitySet::SYS_PTRACE, &["CAP_PERFMON"]);
        check(CapabilitySet::BPF | CapabilitySet::PERFMON | CapabilitySet::SYS_PTRACE, &[]);
    }
}

#[cfg(test)]
mod calibration_tests {
    use super::*;

    #[test]
    fn every_spot_is_a_separate_function_that_returns() {
        let mut addresses = Spot::ALL.map(Spot::address).to_vec();
        addresses.dedup();
        assert_eq!(addresses.len(), Spot::ALL.len());
        Spot::ALL.iter().for_each(|spot| spot.call(3));
    }
}
