//! Completes stacks that were cut at code which their process had mapped since its mappings were last read.

use std::sync::Arc;
use std::time::Instant;

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::Pid;
use heapbpf_linux::clock;
use rustc_hash::FxHashMap;

use super::probes::Probes;
use super::process_table::ProcessTable;
use super::resume::resume;
use super::target::Target;

impl Probes {
    /// Continues the cut stacks of a target's old program a last time at its exec, and permits stack copies of the new
    /// program: until its mappings are registered, the kernel side has no table for it.
    pub(super) fn begin_stacks(&mut self, pid: Pid, processes: &mut ProcessTable) {
        self.continue_stacks(pid, true, processes);
        self.copies.forget(pid);
        self.unwinding.forget(pid);
        self.unwinding.expect(pid);
    }

    /// Reads a target's mappings, and registers them if they have changed.
    pub(super) fn reload(&mut self, target: &mut Target) {
        let started = Instant::now();
        self.read_mappings(target);
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
        // What is registered may be newer than the stacks; what is reported is not.
        let space = processes.get(pid).map(|target| Arc::clone(&target.mappings.space));
        let find = |address: u64| match space.as_ref().and_then(|space| space.reported_file(TargetAddr(address))) {
            Some(file) => unwinding.rule_in(file, address),
            None => unwinding.rule_at(pid, address, former_at),
        };
        let continued = self.copies.resume(pid, is_last, |frames, copy| {
            resume(frames, copy, |address| *rules.entry(address).or_insert_with(|| find(address)))
        });
        for (id, mut stack) in continued.stacks {
            processes.place(pid, &mut stack);
            processes.complete(pid, id, &stack);
        }
        continued.unmapped
    }
}
