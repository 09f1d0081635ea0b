//! Checks whether silent probes mean silent programs: first threads that exit, breakpoints that are missing, and
//! processes that run in the memory of others.

use heapbpf_base::ids::Pid;
use heapbpf_ledger::model::Origin;
use heapbpf_linux::proc::stat::waiting_threads;
use heapbpf_linux::process_memory::share_memory;
use tracing::{debug, warn};

use super::Session;
use super::following::POLL_TURNS;
use crate::bpf::load::LinkKind;
use crate::session::config::Engine;
use crate::session::target::Target;

impl Session {
    /// Inspects a part of the targets, which `turn` selects.
    pub(super) fn observe(&mut self, turn: u32) {
        let is_due = |target: &Target| target.is_young() || target.pid.0 % POLL_TURNS == turn % POLL_TURNS;
        for target in self.processes.running_mut().filter(|target| target.was_recorded() && is_due(target)) {
            self.probes.outlive_first_thread(target);
            if !target.is_verified {
                target.is_verified = true;
                self.probes.verify(target);
            }
        }
    }

    /// Keeps targets recorded whose first threads have exited. Skips targets with shared probes: they are many, and do
    /// not depend on that thread.
    pub(super) fn outlive_first_threads(&mut self) {
        if !self.probes.are_first_threads_due() {
            return;
        }
        for target in self.processes.running_mut().filter(|target| !target.hooks.are_shared()) {
            self.probes.outlive_first_thread(target);
        }
    }

    /// Verifies all probes at the end of a recording. Without the keeper, there are no probes.
    pub(super) fn verify_probes(&mut self) {
        if self.has_lost_keeper() {
            return;
        }
        for target in self.processes.running_mut().filter(|target| target.was_recorded()) {
            self.probes.verify(target);
        }
    }

    /// Finds processes that run in the memory of a target as its threads do. The kernel side takes them for children of `vfork`, for
    /// which their parents wait, and records no calls of those.
    pub(super) fn find_sharing(&mut self) {
        let is_sharing = |child: Pid, of: Pid| share_memory(child, of) && waiting_threads(of).is_empty();
        for (child, of) in self.lifecycle.take_sharing(is_sharing) {
            warn!("process {child} runs in the memory of process {of}: frees of blocks of the other are not recorded");
            self.record_sharing(child, of);
        }
    }

    /// Makes a process a target that runs in the memory of another. Only links of sessions distinguish the two, and stubs do not.
    fn record_sharing(&mut self, child: Pid, of: Pid) {
        let Some(requested) = self.processes.get(of).map(|parent| parent.requested) else { return };
        let is_distinguished = self.probes.kernel.link_kind() == LinkKind::Session;
        if self.config.engine != Engine::Trap || !is_distinguished || self.processes.get(child).is_some() {
            return;
        }
        let begun =
            Target::open(child, Origin::Forked(of), None).map_err(anyhow::Error::from).and_then(|mut target| {
                target.requested = requested;
                self.begin_target(target)
            });
        if let Err(error) = begun {
            debug!("process {child}: {error:#}");
        }
    }
}
