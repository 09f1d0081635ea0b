//! Completes resync passes before a ledger is used: at exits of processes, and at the end.

use std::time::Duration;

use super::session::Session;
use super::target::Target;
use crate::ids::Pid;

impl Session {
    pub(super) fn finish_pass(&mut self) {
        let started = self.windows.started.monotonic;
        self.resync.finish(&mut self.processes, &self.lifecycle, &mut self.probes.kernel, started);
    }

    pub(super) fn complete_pass(&mut self) {
        while self.resync.is_running() && !self.resync.is_read() {
            if self.take_records() {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        self.catch_up();
        self.finish_pass();
    }

    pub(super) fn complete_pass_for(&mut self, pid: Pid) {
        if self.resync.covers(pid) {
            self.complete_pass();
        }
    }

    pub(super) fn resync_exited(&mut self) {
        self.note_drops();
        if self.resync.is_needed_at_exit(self.processes.count() == 1) {
            self.complete_pass();
            self.resync.begin(&self.processes);
            self.complete_pass();
        }
    }

    pub(super) fn settle_drops_of(&mut self, target: &mut Target) {
        self.note_drops();
        self.resync.settle_exit(target, &mut self.probes.kernel);
    }

    pub(super) fn resync_at_end(&mut self) {
        if self.resync.is_running() {
            self.complete_pass();
        }
        // One pass is enough: no block is allocated any more, and no free is entered.
        if self.note_drops().is_some() && self.resync.is_needed() {
            self.catch_up();
            self.resync.begin(&self.processes);
            self.complete_pass();
            self.resync.close();
        }
    }
}
