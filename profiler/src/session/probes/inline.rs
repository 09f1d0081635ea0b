//! Stubs of the inline engine, as the session sees them.

use tracing::{debug, warn};

use super::Probes;
use crate::guardrail::CallCosts;
use crate::linux::proc::process;
use crate::model::InlineEngine;
use crate::probe::cost::Costs;
use crate::session::rates::Rates;
use crate::session::stubs;
use crate::session::target::{ForkedChild, Target};

impl Probes {
    pub(in crate::session) fn install_stubs(&mut self, target: &Target, rates: &Rates) {
        self.stubs.install(target, &mut self.kernel, &self.links.keeper, &self.discovery, rates);
    }

    /// Takes over the stubs that a forked child has copied.
    pub(in crate::session) fn adopt_stubs(&mut self, child: &Target, rates: &Rates) {
        if self.stubs.are_copied_by(child) {
            self.install_stubs(child, rates);
        }
    }

    /// Gives a child the stubs that it has copied, in the order of events: its parent may execute another program before the child is a
    /// target. Its sampled calls are counted from here on.
    pub(in crate::session) fn copy_stubs(&mut self, child: Option<&mut ForkedChild>) {
        let Some(child) = child else { return };
        child.stubs = child.stubs.take().or_else(|| self.stubs.of(child.fork.parent));
        if child.stubs.is_some()
            && let Err(error) = self.kernel.count_stub_calls(child.fork.child)
        {
            debug!("process {}: {error}", child.fork.child);
        }
    }

    /// Returns whether targets are to have stubs.
    pub(in crate::session) fn has_stubs(&self) -> bool {
        self.stubs.is_enabled()
    }

    /// Changes a process with stubs if something is to be changed by now.
    pub(in crate::session) fn poll_stubs(&mut self, target: &Target, rates: &Rates) {
        self.stubs.poll(target, &mut self.kernel, &self.links.keeper, &self.discovery, rates);
    }

    /// Why a target has no stubs although it is to have them.
    pub(in crate::session) fn stubs_refused(&self, target: &Target) -> Option<&str> {
        self.stubs.refused(target.pid).filter(|_| !target.traps_only)
    }

    /// Costs of the unsampled calls of one of this number of targets. `None` when nothing is attached.
    pub(in crate::session) fn call_costs(&self, target: &Target, costs: &Costs, targets: usize) -> Option<CallCosts> {
        let alone = target.hooks.call_costs(&self.discovery.plan, costs)?;
        let trapped = self.links.scope.costs_among(targets, alone);
        Some(match self.stubs.trapped_share(target.pid) {
            Some(share) => CallCosts::STUBS.with_trapped(trapped, share),
            None => trapped,
        })
    }

    pub(in crate::session) fn count_pointers(&mut self, target: &Target) -> usize {
        self.stubs.count_pointers(target, &self.discovery)
    }

    pub(in crate::session) fn inline_engine(&self) -> Option<InlineEngine> {
        self.stubs.facts()
    }

    /// Number of calls that stubs have sampled and no probe has met.
    pub(in crate::session) fn stub_calls_missed(&self) -> u64 {
        self.stubs.missed(&self.kernel)
    }

    pub(in crate::session) fn update_intervals(&mut self, rates: &Rates) {
        self.stubs.update(rates);
    }

    /// Restores pointers of children that have copied stubs and were not followed, because the user did not want it, or because they
    /// were created at the end of the recording; and of targets that could not be stopped before.
    pub(in crate::session) fn restore_copies(&mut self) {
        if !self.stubs.has_installed_any() {
            return;
        }
        for pid in process::all().unwrap_or_default() {
            if !self.stubs.are_mapped_in(pid) {
                continue;
            }
            let Ok(opened) = self.discovery.open(pid) else { continue };
            if !stubs::are_left(&opened) {
                continue;
            }
            match stubs::remove_left(&opened, &self.discovery, &self.links.keeper) {
                Ok(restored) => debug!("process {pid}: restored {restored} pointers that it has copied"),
                Err(error) => warn!(
                    "stubs of heapbpf remain in process {pid}, and slow its calls down by 2 ns: {error:#}; the next recording or `heapbpf doctor` removes them"
                ),
            }
        }
    }
}
