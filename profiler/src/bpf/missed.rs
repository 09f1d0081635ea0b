//! How often the kernel did not run a program where a probe was hit, because it ran on that processor already.

use std::os::fd::{AsFd, BorrowedFd};

use super::load::{Kernel, PERF_PROGRAMS};
use crate::linux::bpf::recursion_misses;

impl Kernel {
    /// Calls, forks and execs that the kernel counts as missed; 0 before Linux 5.12, which counts none.
    /// What is missed elsewhere, as the return of a call that is nested deeper than 64 times, it counts nowhere.
    pub fn probes_missed(&self) -> u64 {
        let of_links = self.programs_of_links().into_iter().filter_map(|program| recursion_misses(program).ok());
        of_links.sum::<u64>() + self.tracepoints_missed()
    }

    /// Programs that are attached to probes.
    fn programs_of_links(&self) -> Vec<BorrowedFd<'_>> {
        self.hook_programs().unwrap_or_default()
    }

    /// A program of aya's, if it is loaded.
    pub(super) fn own_program(&self, name: &str) -> Option<BorrowedFd<'_>> {
        Some(self.own_programs().find(|(its, _)| *its == name)?.1.fd().ok()?.as_fd())
    }

    /// Every program that is loaded.
    pub(super) fn all_programs(&self) -> Vec<BorrowedFd<'_>> {
        let of_tracepoints = self.own_programs().filter(|(name, _)| !PERF_PROGRAMS.contains(name));
        let of_tracepoints = of_tracepoints.filter_map(|(_, program)| Some(program.fd().ok()?.as_fd()));
        self.programs_of_links().into_iter().chain(of_tracepoints).collect()
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
