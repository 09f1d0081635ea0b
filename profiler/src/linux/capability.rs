//! Which privileges the agent has.

use std::fmt;

use rustix::thread::{CapabilitySet, capabilities};

/// A privilege that profiling needs (`capabilities(7)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capability {
    /// Loads programs and makes maps (Linux 5.8; before, `CAP_SYS_ADMIN`).
    Bpf,
    /// Attaches programs to uprobes (Linux 5.8; before, `CAP_SYS_ADMIN`).
    Perfmon,
    /// Reads another user's `/proc/PID/maps` and the files mapped there.
    SysPtrace,
}

impl Capability {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::Bpf, Self::Perfmon, Self::SysPtrace];

    /// What `CAP_SYS_ADMIN` stands in for.
    fn implied_by_admin(self) -> bool {
        !matches!(self, Self::SysPtrace)
    }

    fn bit(self) -> CapabilitySet {
        match self {
            Self::Bpf => CapabilitySet::BPF,
            Self::Perfmon => CapabilitySet::PERFMON,
            Self::SysPtrace => CapabilitySet::SYS_PTRACE,
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bpf => "CAP_BPF",
            Self::Perfmon => "CAP_PERFMON",
            Self::SysPtrace => "CAP_SYS_PTRACE",
        })
    }
}

/// The capabilities that profiling needs and this process lacks.
///
/// # Errors
///
/// When the kernel does not tell, which it always should.
pub(crate) fn missing() -> std::io::Result<Vec<Capability>> {
    Ok(missing_from(capabilities(None)?.effective))
}

/// Whether this process has `CAP_SYS_ADMIN`; true where the kernel does not tell, which says no soon enough.
pub(crate) fn has_admin() -> bool {
    capabilities(None).map_or(true, |sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

fn missing_from(effective: CapabilitySet) -> Vec<Capability> {
    let admin = effective.contains(CapabilitySet::SYS_ADMIN);
    Capability::ALL
        .into_iter()
        .filter(|capability| !(effective.contains(capability.bit()) || (admin && capability.implied_by_admin())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(effective: CapabilitySet, missing: &[Capability]) {
        assert_eq!(missing_from(effective), missing, "{effective:?}");
    }

    #[test]
    fn admin_stands_in_for_bpf_and_perfmon_only() {
        use Capability::{Bpf, Perfmon, SysPtrace};
        check(CapabilitySet::empty(), &[Bpf, Perfmon, SysPtrace]);
        check(CapabilitySet::SYS_ADMIN, &[SysPtrace]);
        check(CapabilitySet::BPF | CapabilitySet::SYS_PTRACE, &[Perfmon]);
        check(CapabilitySet::BPF | CapabilitySet::PERFMON | CapabilitySet::SYS_PTRACE, &[]);
    }
}
