//! Stubs that processes have copied from targets by a fork.

use heapbpf_base::ids::Pid;
use heapbpf_linux::proc::maps::executable_mappings;
use tracing::debug;

use super::Stubs;
use super::installed::{CopiedStubs, Installed};
use crate::bpf::load::Kernel;
use crate::session::target::Target;

impl Stubs {
    /// Stubs of a process that forks a child now.
    pub(in crate::session) fn of(&self, pid: Pid) -> Option<CopiedStubs> {
        let installed = self.targets.get(&pid)?.installed()?;
        Some(CopiedStubs::of(installed))
    }

    /// Finds the stubs that a process has copied: those of its parent or of another target. The child's mappings are
    /// known as those of its parent, perhaps from before the parent had stubs, so they are read.
    fn original<'a>(&'a self, target: &'a Target) -> Option<&'a Installed> {
        let of_parent = target.stubs.as_ref().map(CopiedStubs::installed);
        if of_parent.is_none() && !self.targets.values().any(|state| state.installed().is_some()) {
            return None;
        }
        let mappings = executable_mappings(target.pid).ok()?;
        let mut stubs = mappings.iter().filter(|mapping| mapping.is_stubs());
        stubs.find_map(|mapping| of_parent.filter(|own| own.is_at(mapping)).or_else(|| self.owner(mapping)))
    }

    /// Whether a new process has copied stubs of a target.
    pub(in crate::session) fn are_copied_by(&self, target: &Target) -> bool {
        !self.targets.contains_key(&target.pid) && self.original(target).is_some()
    }

    /// Copies the stubs that a process has inherited from a target.
    pub(super) fn copied(&self, target: &Target, kernel: &mut Kernel) -> Option<Box<Installed>> {
        let owner = self.original(target)?;
        // The count that the process has inherited is read later, so that no sampled call is taken for a missed one.
        if let Err(error) = kernel.count_stub_calls(target.pid) {
            debug!("process {}: {error}", target.pid);
        }
        Some(Box::new(owner.of_child(target.pid, kernel)))
    }

    /// Whether a process maps stubs of this session, perhaps as the child of a target.
    pub(in crate::session) fn are_mapped_in(&self, pid: Pid) -> bool {
        let mappings = executable_mappings(pid).unwrap_or_default();
        mappings.iter().any(|mapping| mapping.is_stubs() && self.files.contains(&mapping.inode))
    }

    pub(in crate::session) fn has_installed_any(&self) -> bool {
        !self.files.is_empty()
    }
}
