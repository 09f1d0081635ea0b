//! Ends of targets: exits, replaced programs, and targets that are detached.

use tracing::debug;

use super::lifecycle::{ProcessChange, UNREACHED};
use super::session::Session;
use super::target::Target;
use crate::ids::Pid;
use crate::ingest::record::Exec;
use crate::ledger::Ledger;
use crate::linux::clock;
use crate::model::{End, Origin};
use crate::process::selection;
use crate::process::target::Process;
use crate::units::MonotonicNanos;

impl Session {
    pub(super) fn close_program(&mut self, exec: &Exec, before: Ledger) {
        let Some(mut target) = self.processes.remove(exec.pid) else { return };
        self.lifecycle.count_missed(target.was_missed(self.config.counts_programs));
        let after = std::mem::replace(&mut target.ledger, before);
        if let Err(error) = self.probes.kernel.forget_blocks(exec.pid, after.live().map(|block| block.address)) {
            debug!("process {}: {error}", exec.pid);
        }
        target.set_end(End::Replaced);
        target.close(exec.time, &mut self.probes.kernel);
        self.probes.release(&mut target);
        self.processes.keep(target, &self.probes.discovery.plan);
    }

    /// At the end: closes replaced programs, and counts the processes that are not targets yet.
    pub(super) fn close_replaced(&mut self) {
        for change in self.lifecycle.take_remaining() {
            let pid = change.pid();
            let opened = match change {
                ProcessChange::Executed(exec, before) => {
                    let requested = self.processes.get(pid).is_some_and(|target| target.requested);
                    let selection = &self.config.selection;
                    let is_selected =
                        || self.config.counts_programs && selection::matches_new(pid, selection).unwrap_or(false);
                    self.lifecycle.count_missed(requested || is_selected());
                    self.close_program(&exec, *before);
                    continue;
                }
                ProcessChange::Forked(forked) => Target::open(pid, Origin::Forked(forked.fork.parent), None).map(Some),
                ProcessChange::Started(exec, origin, parent) => {
                    let is_followed = parent.is_some_and(|parent| parent.requested);
                    let opened = self.open_selected(&exec, origin, is_followed);
                    let is_selected = self.config.counts_programs && !matches!(opened, Ok(None));
                    self.lifecycle.count_missed(origin == Origin::Executed && (is_followed || is_selected));
                    opened
                }
            };
            match opened {
                Ok(Some(target)) if self.processes.get(pid).is_none() => {
                    self.processes.skip(pid, target.command, UNREACHED.to_owned());
                }
                Ok(_) => {}
                Err(error) => self.count_unopened(pid, &error),
            }
        }
    }

    /// Handles exits of targets: enters their last events and closes their ledgers.
    pub(super) fn handle_exits(&mut self, pids: Vec<Pid>) {
        self.empty_ring();
        for pid in pids {
            if self.processes.get(pid).is_some_and(Target::is_gone) {
                self.resync_exited();
            }
            self.close_if_gone(pid);
        }
    }

    /// Closes a target that has exited, whether that was reported yet or not. Its pid may be another target's by now.
    pub(super) fn close_if_gone(&mut self, pid: Pid) {
        if self.processes.get(pid).is_some_and(Target::is_gone) {
            self.close(pid, clock::now().monotonic);
        }
    }

    /// Closes a target that has exited. `ended` is the time of its last totals.
    pub(super) fn close(&mut self, pid: Pid, ended: MonotonicNanos) {
        self.lifecycle.settled(pid);
        self.complete_inventory_of(pid);
        self.complete_pass_for(pid);
        self.probes.continue_stacks(pid, true, &mut self.processes);
        let Some(mut target) = self.processes.remove(pid) else { return };
        target.poll_generated(&mut self.probes.discovery.modules);
        let was_missed = target.was_missed(self.config.counts_programs);
        let unprofilable = target.starting().and_then(|starting| starting.unprofilable.take());
        let code = target.process.as_ref().and_then(Process::exit_now).and_then(|exit| exit.code);
        target.set_end(End::Exited { code });
        self.settle_drops_of(&mut target);
        self.discard_at(&mut target, ended);
        match unprofilable {
            _ if target.was_recorded() => self.processes.keep(target, &self.probes.discovery.plan),
            Some(reason) => self.processes.skip(pid, target.command, reason),
            None => {
                self.processes.others.short_lived_count += 1;
                self.lifecycle.count_missed(was_missed);
            }
        }
    }

    pub(super) fn detach_expensive(&mut self) {
        for (pid, percent) in self.guard.check_overhead(&mut self.processes, &self.probes) {
            if self.detach_target(pid) {
                self.guard.note_detached(pid, percent);
            }
        }
    }

    /// Later allocations and frees are not recorded. False if the target has exited or executed another program.
    pub(super) fn detach_target(&mut self, pid: Pid) -> bool {
        self.probes.forget(pid);
        let now = clock::now().monotonic;
        self.empty_ring();
        // A program that was executed meanwhile has no overhead yet.
        let has_overhead = |target: &Target| !target.is_gone() && target.overhead.whole.is_some();
        if !self.processes.get(pid).is_some_and(has_overhead) {
            return false;
        }
        self.complete_pass_for(pid);
        let Some(mut target) = self.processes.remove(pid) else { return false };
        self.settle_drops_of(&mut target);
        self.lifecycle.settled(pid);
        if let Some(identity) = target.identity() {
            self.processes.ignore(identity);
        }
        target.set_end(End::Detached(now));
        self.discard(&mut target);
        self.processes.keep(target, &self.probes.discovery.plan);
        true
    }
}
