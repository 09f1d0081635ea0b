//! How a session begins: attaches to the processes that were found, and describes them.

use std::collections::VecDeque;

use anyhow::Result;
use tokio::time::Instant;

use super::Session;
use super::discovery::Own;
use super::target::Target;
use crate::linux::clock;
use crate::report::text::printable;

/// Processes that were found and are not attached to yet.
pub(super) struct Found {
    pub(super) targets: VecDeque<Target>,
    /// What heapbpf itself maps.
    pub(super) own: Option<Own>,
}

impl Session {
    /// Attaches to the processes that were found. When this returns, every allocation of theirs is sampled. Between two processes
    /// it ends where `is_to_stop` says so, or where the recording's time is over: then the others are listed as skipped.
    ///
    /// # Errors
    ///
    /// When a process that was requested by its number cannot be profiled at all. A hook that alone cannot be attached is listed in
    /// the profile instead, and so is a process that merely matched.
    pub async fn attach(&mut self, mut is_to_stop: impl AsyncFnMut() -> bool) -> Result<()> {
        self.watch_processes();
        if let Some(own) = self.found.own.take() {
            self.probes.learn_from(&own.hooks);
        }
        self.started = clock::now();
        self.begin_recording()?;
        self.prepare_to_seize();
        while let Some(target) = self.found.targets.pop_front() {
            self.take_records();
            if self.keeper.has_exited() || self.is_over() || is_to_stop().await {
                self.skip_found(target);
                return Ok(());
            }
            if target.requested {
                let begun = self.begin_target(target);
                if !self.keeper.has_exited() {
                    begun?;
                }
            } else if let Some(identity) = target.identity() {
                self.take(target, identity);
            }
            self.first_attached = self.first_attached.or_else(|| (self.targets.count() > 0).then(Instant::now));
        }
        // What began before processes were watched and after they were listed.
        if self.config.selection.is_open() {
            self.take_pending_targets();
        }
        Ok(())
    }

    /// Processes that were found and are not attached to.
    fn skip_found(&mut self, first: Target) {
        for target in std::iter::once(first).chain(std::mem::take(&mut self.found.targets)) {
            self.targets.skip(target.pid, target.command, "not attached to when the recording ended".to_owned());
        }
    }

    /// Whether at least one process is being recorded, or may come to be.
    pub fn has_begun(&self) -> bool {
        self.first_attached.is_some()
    }

    /// Whether the process that owns the probes has exited before its time.
    pub fn has_lost_keeper(&self) -> bool {
        self.keeper.has_exited()
    }

    /// When the recording's time is over, which counts from the first target, and at the latest from `began`.
    pub(super) fn deadline(&self, began: Instant) -> Option<Instant> {
        let first = self.first_attached.map_or(began, |first| first.min(began));
        self.config.duration.map(|duration| first + duration)
    }

    fn is_over(&self) -> bool {
        self.first_attached.is_some()
            && self.deadline(Instant::now()).is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Processes and attached hooks, in words.
    pub fn describe(&self) -> String {
        const NAMED_MAX: usize = 5;
        let mut names: Vec<_> = self
            .targets
            .running()
            .take(NAMED_MAX)
            .map(|target| format!("{} ({})", printable(&target.comm), target.pid))
            .collect();
        let more = self.targets.count().saturating_sub(NAMED_MAX);
        if more > 0 {
            names.push(format!("{more} more"));
        }
        if names.is_empty() {
            return format!("{}, of which none runs yet", self.config.selection);
        }
        let hooks: usize = self.targets.running().map(|target| target.hooks.attached()).sum();
        let heaps = self.probes.discovery.plan.heaps().join(", ");
        let later = if self.config.selection.is_open() { "; processes that start later too" } else { "" };
        format!("{}: {hooks} hooks on heap {heaps}{later}", names.join(", "))
    }

    /// What was asked for and that no process matched at the beginning, in words, where others did.
    pub fn unmatched(&self) -> Option<String> {
        (self.unmatched.is_open() && self.targets.count() > 0).then(|| self.unmatched.to_string())
    }

    /// Functions that the user has named and that none of the processes has, as far as there are any.
    pub fn unfound(&self) -> Vec<String> {
        let all = if self.targets.count() > 0 { self.probes.discovery.unfound() } else { Vec::new() };
        all.into_iter().filter(|hook| hook.required).map(|hook| hook.function).collect()
    }
}
