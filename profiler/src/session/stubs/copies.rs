//! Stubs that processes have copied from targets by a fork.

use tracing::debug;

use super::Stubs;
use super::installed::Installed;
use crate::bpf::load::Kernel;
use crate::ids::Pid;
use crate::linux::proc::maps::executable_mappings;
use crate::session::target::Target;

impl Stubs {
    /// A target whose stubs a process has copied. The child's mappings are known as those of its parent, perhaps before that had stubs,
    /// so they are read.
    fn owner_of_copy(&self, pid: Pid) -> Option<&Installed> {
        if !self.targets.values().any(|state| state.installed().is_some()) {
            return None;
        }
        let mappings = executable_mappings(pid).ok()?;
        mappings.iter().filter(|mapping| mapping.is_stubs()).find_map(|mapping| self.owner(mapping))
    }

    /// Whether a new process has copied stubs of a target.
    pub(in crate::session) fn are_copied_by(&self, pid: Pid) -> bool {
        !self.targets.contains_key(&pid) && self.owner_of_copy(pid).is_some()
    }

    /// The stubs that a process has copied from a target.
    pub(super) fn copied(&self, target: &Target, kernel: &mut Kernel) -> Option<Box<Installed>> {
        let owner = self.owner_of_copy(target.pid)?;
        // Before the calls are read that it has inherited the count of, so that no sampled call is taken for a missed one.
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
