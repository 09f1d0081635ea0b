//! Completes stacks that were cut at code which their process had mapped since its mappings were last read.

use std::time::Instant;

use heapbpf_base::ids::Pid;
use tracing::debug;

use super::Session;

impl Session {
    /// Continues the walks of cut stacks. Reloads the mappings of their processes, if not too often.
    pub(super) fn complete_stacks(&mut self) {
        for pid in self.probes.copies.pids() {
            // What is registered is not yet the program that it has executed.
            if self.lifecycle.awaits(pid) {
                continue;
            }
            // The mappings may have been reloaded since the stack was copied.
            self.probes.continue_stacks(pid, false, &mut self.processes);
            let is_due = self.processes.get(pid).is_none_or(|target| target.mappings.is_reload_due());
            if is_due && self.probes.copies.has(pid) {
                self.reload_for_stacks(pid);
            }
        }
    }

    /// Reads the mappings of processes that have mapped code whose tables the kernel side does not have.
    pub(super) fn read_new_code(&mut self) {
        for target in self.processes.running_mut().filter(|target| target.mappings.is_new_due()) {
            self.probes.reload(target);
        }
    }

    pub(super) fn complete_all_stacks(&mut self) {
        self.probes.copies.pids().into_iter().for_each(|pid| self.reload_for_stacks(pid));
    }

    fn reload_for_stacks(&mut self, pid: Pid) {
        let started = Instant::now();
        // Only what unwinding needs: the search for allocators in new modules, which takes longer, follows.
        if let Some(target) = self.processes.get_mut(pid) {
            self.probes.reload(target);
        }
        // What is not mapped now is garbage, or has been unmapped.
        let unmapped = self.probes.continue_stacks(pid, true, &mut self.processes);
        debug!("process {pid}: mappings reloaded in {:?}, {unmapped} stacks stay cut", started.elapsed());
        if unmapped > 0 {
            self.probes.unwinding.deny_copies(pid);
        }
    }

    /// Reloads the mappings of processes whose stacks contain unknown addresses.
    pub(super) fn reload_stale(&mut self) {
        let stale = self.processes.running().filter(|target| target.mappings.is_due());
        let stale: Vec<Pid> = stale.map(|target| target.pid).collect();
        for pid in stale {
            self.hook(pid);
            self.probes.unwinding.try_copies(pid);
        }
    }
}
