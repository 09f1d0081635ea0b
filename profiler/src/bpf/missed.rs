//! How often the kernel did not run a program where a probe was hit, because it ran on that processor already.

use std::os::fd::{AsFd, OwnedFd};

use aya::programs::{Program, ProgramFd};

use super::load::Kernel;
use crate::sys::bpf::recursion_misses;

impl Kernel {
    /// Calls and tracepoints that the kernel counts as missed by these programs; 0 before Linux 5.12, which counts none. What is
    /// missed elsewhere, as the return of a call that is nested deeper than 64 times, it counts nowhere.
    #[must_use]
    pub fn probes_missed(&self) -> u64 {
        let own = self.link_programs().into_iter().filter_map(|program| recursion_misses(program).ok());
        let loaded = self.loaded_programs();
        let of_aya = loaded.iter().filter_map(|program| recursion_misses(program.as_fd()).ok());
        own.chain(of_aya).sum()
    }

    fn link_programs(&self) -> Vec<&OwnedFd> {
        let multi = self.multi_programs().into_iter().flat_map(|(entry, at_return)| [entry, at_return]);
        self.session_program().into_iter().chain(multi).collect()
    }

    fn loaded_programs(&self) -> Vec<ProgramFd> {
        let descriptor = |program: &Program| program.fd().ok().and_then(|fd| fd.try_clone().ok());
        self.own_programs().filter_map(descriptor).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::bpf::fixture;
    use crate::bpf::load::LinkKind;

    #[test]
    fn programs_that_never_ran_have_missed_nothing() {
        for links in [LinkKind::Perf, LinkKind::Session] {
            assert_eq!(fixture::kernel(links).probes_missed(), 0);
        }
    }
}
