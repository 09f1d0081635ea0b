//! Completes stacks that were cut at code which their process had mapped since its mappings were last read.

use std::time::Instant;

use rustc_hash::FxHashMap;
use tracing::debug;

use super::probes::Probes;
use super::process_table::ProcessTable;
use super::resume::resume;
use super::session::Session;
use super::target::Target;
use crate::ids::Pid;
use crate::linux::clock;

impl Probes {
    /// Ends the stacks of a target's program at its exec, and permits copies of those of the new one: until its mappings are
    /// registered, the kernel side has no table for it.
    pub(super) fn begin_stacks(&mut self, pid: Pid, processes: &mut ProcessTable) {
        self.continue_stacks(pid, true, processes);
        self.copies.forget(pid);
        self.unwinding.forget(pid);
        self.unwinding.expect(pid);
    }

    /// Reads a target's mappings, and registers them if they have changed.
    fn reload(&mut self, target: &mut Target) {
        let started = Instant::now();
        target.refresh_mappings(&mut self.discovery.modules);
        target.mappings.note_reload(started.elapsed());
        if target.mappings.is_unregistered() {
            self.register(target);
        }
    }

    /// Registers targets again whose virtual machines may have generated their interpreters since.
    pub(super) fn register_starting<'a>(&mut self, targets: impl Iterator<Item = &'a mut Target>) {
        for target in targets {
            if self.unwinding.interpreters.is_starting(target.pid) {
                self.register(target);
            }
        }
    }

    /// Continues the walks of a process's cut stacks by the registered tables. Returns how many still end outside the
    /// registered mappings; these are kept for another attempt unless this is the last one.
    pub(super) fn continue_stacks(&mut self, pid: Pid, is_last: bool, processes: &mut ProcessTable) -> usize {
        let mut rules = FxHashMap::default();
        let unwinding = &self.unwinding;
        let former_at = is_last.then(|| clock::now().monotonic);
        let continued = self.copies.resume(pid, is_last, |frames, copy| {
            resume(frames, copy, |address| {
                *rules.entry(address).or_insert_with(|| unwinding.rule_at(pid, address, former_at))
            })
        });
        for (id, stack) in &continued.stacks {
            processes.complete(pid, *id, stack);
        }
        continued.unmapped
    }
}

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
            self.settle(pid);
            self.probes.unwinding.try_copies(pid);
        }
    }
}
