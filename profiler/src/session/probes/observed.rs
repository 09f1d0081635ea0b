//! Targets whose calls the probes do not see, or would not see any more.

use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::Probes;
use crate::bpf::load::LinkKind;
use crate::linux::proc::stat::first_thread_has_exited;
use crate::probe::leftover;
use crate::session::target::Target;

const FIRST_THREADS_PERIOD: Duration = Duration::from_millis(5);

impl Probes {
    /// Keeps a target recorded whose first thread has exited before others. The kernel finds the memory of a process by that thread
    /// (`uprobe_multi_link_filter` in kernel/trace/bpf_trace.c, `uprobe_perf_filter` in kernel/trace/trace_uprobe.c, up to 7.3), so
    /// links of the process reach no code that is mapped later, and with events of perf none at all. If another link of a function is
    /// detached meanwhile, the kernel removes the breakpoint from the process.
    pub(in crate::session) fn outlive_first_thread(&mut self, target: &mut Target) {
        if target.hooks.are_shared() || !target.was_recorded() || !first_thread_has_exited(target.pid) {
            return;
        }
        // Links of sessions compare processes at a hit, and have left its breakpoints in place.
        let mut is_observed = self.kernel.link_kind() == LinkKind::Session && self.count_missing(target) == 0;
        match self.share_with(target) {
            Ok(()) if is_observed => {
                info!("process {}: its main thread has exited, so its probes are shared", target.pid);
            }
            Ok(()) => warn!(
                "process {}: its main thread has exited, so its probes are shared; calls in between may be missing",
                target.pid
            ),
            Err(error) => {
                is_observed = false;
                warn!("process {} is not recorded any more: its main thread has exited: {error:#}", target.pid);
            }
        }
        if !is_observed {
            self.note_unobserved(target);
        }
    }

    /// Whether to inspect all targets' first threads before probes are detached: not for each of many processes that exit at once. What is
    /// missed in between is noticed when such a target shares probes.
    pub(in crate::session) fn are_first_threads_due(&mut self) -> bool {
        let is_due = self.first_threads.is_none_or(|last| last.elapsed() >= FIRST_THREADS_PERIOD);
        if is_due {
            self.first_threads = Some(Instant::now());
        }
        is_due
    }

    pub(in crate::session) fn unobserved_count(&self) -> u64 {
        self.unobserved.len() as u64
    }

    /// Verifies that the code of a target has the breakpoints of its probes: without them, a silent probe does not mean that the
    /// program is silent.
    pub(in crate::session) fn verify(&mut self, target: &mut Target) {
        if self.unobserved.contains(&target.pid) || target.is_gone() || self.count_missing(target) == 0 {
            return;
        }
        // It may have unmapped a module.
        target.refresh_mappings(&mut self.discovery.modules);
        let missing = self.count_missing(target);
        if missing > 0 && !target.is_gone() {
            let attached = target.hooks.attached_count();
            warn!(
                "process {} is not observed: {missing} of {attached} breakpoints are missing from its code",
                target.pid
            );
            self.note_unobserved(target);
        }
    }

    fn note_unobserved(&mut self, target: &mut Target) {
        self.unobserved.insert(target.pid);
        target.beginning.from_first_call = false;
    }

    fn count_missing(&self, target: &Target) -> usize {
        let (space, modules) = (&target.mappings.space, &self.discovery.modules);
        let places = target.hooks.attached_places(&self.discovery.plan);
        places.filter(|&place| leftover::lacks_breakpoint(space, modules, place)).count()
    }
}
