//! Processes that are meant and were not seen to begin: those that had less memory then than targets are to have, and those
//! that began while the session was being set up.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;
use tokio::time::Instant;
use tracing::debug;

use super::Session;
use super::target::Target;
use super::targets::Targets;
use crate::ids::Identity;
use crate::linux::proc::stat::Stat;
use crate::process::selection::{self, ProcessFacts, Selection};

#[derive(Debug)]
pub(super) struct PendingTargets {
    /// When processes are looked for next; `None` when those that begin are seen to do so.
    next: Option<Instant>,
    /// Matched, and could not be profiled: told once.
    declined: BTreeSet<Identity>,
}

/// How often processes are looked for that have grown. Takes some 20 µs a process.
const PERIOD: Duration = Duration::from_secs(1);

impl PendingTargets {
    /// Those that a selection may mean.
    pub(super) fn new(selection: &Selection) -> Self {
        let may_grow = selection.is_open() && !selection.matches_new();
        Self { next: may_grow.then(|| Instant::now() + PERIOD), declined: BTreeSet::new() }
    }

    /// A process that matches cannot be profiled; unless it is merely gone, reports name it.
    pub(super) fn leave(&mut self, targets: &mut Targets, identity: Identity, command: String, error: &anyhow::Error) {
        if Stat::read(identity.pid).is_ok_and(|stat| stat.is_of(identity) && !stat.has_ended()) {
            self.declined.insert(identity);
            targets.skip(identity.pid, command, format!("{error:#}"));
        } else {
            targets.others.short_lived_count += 1;
        }
    }

    /// It matches, and is not to become a target again.
    pub(super) fn decline(&mut self, identity: Identity) {
        self.declined.insert(identity);
    }

    /// Takes those out that were declined before, and forgets of whom nothing is left.
    fn sift(&mut self, found: &mut Vec<ProcessFacts>) {
        let running: BTreeSet<Identity> = found.iter().map(|facts| facts.identity).collect();
        self.declined.retain(|identity| running.contains(identity));
        found.retain(|facts| !self.declined.contains(&facts.identity));
    }
}

impl Session {
    /// Looks for pending_targets if it is time.
    pub(super) fn scan_for_pending_targets(&mut self) {
        if self.pending_targets.next.is_some_and(|next| next <= Instant::now()) {
            self.pending_targets.next = Some(Instant::now() + PERIOD);
            self.take_pending_targets();
        }
    }

    /// Makes targets of all processes that match now.
    pub(super) fn take_pending_targets(&mut self) {
        let mut found = match selection::scan(&self.config.selection) {
            Ok(found) => found,
            Err(error) => return debug!("{error}"),
        };
        self.pending_targets.sift(&mut found);
        // Whatever was seen to begin by now begins as what it is.
        while !self.drain() {}
        for facts in found {
            let pid = facts.pid();
            if self.targets.get(pid).is_some() || self.lifecycle.awaits(pid) {
                continue;
            }
            match self.probes.discovery.open(pid) {
                Ok(target) => self.take(target, facts.identity),
                Err(error) => self.leave(facts.identity, facts.command(), &error),
            }
        }
    }

    /// Puts probes on a process that was found.
    ///
    /// # Errors
    ///
    /// When that cannot be done. Nothing is left of it then.
    pub(super) fn begin_target(&mut self, mut target: Target) -> Result<()> {
        self.mark(target.pid);
        self.probes.register(&target);
        // Calls are drawn of targets alone.
        let settled = self.probes.settle(&mut target, false);
        match settled {
            Ok(()) => self.adopt(target),
            Err(_) => {
                target.close(&mut self.probes.kernel);
                self.probes.release(&mut target);
            }
        }
        settled
    }

    /// Makes a target of a process that matches, or tells why not.
    pub(super) fn take(&mut self, target: Target, identity: Identity) {
        let command = target.command.clone();
        if let Err(error) = self.begin_target(target) {
            self.leave(identity, command, &error);
        }
    }

    fn leave(&mut self, identity: Identity, command: String, error: &anyhow::Error) {
        self.pending_targets.leave(&mut self.targets, identity, command, error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Pid, StartTime};

    fn facts(pid: u32) -> ProcessFacts {
        ProcessFacts {
            identity: Identity { pid: Pid(pid), start_ticks: StartTime(7) },
            comm: String::new(),
            arguments: Vec::new(),
            executable: None,
            cgroups: Vec::new(),
        }
    }

    #[test]
    fn processes_are_looked_for_again_where_they_must_grow() {
        let selection = |all, min_rss_bytes| Selection { all, min_rss_bytes, ..Selection::default() };
        for (all, min_rss_bytes, expected) in [(true, 1, true), (true, 0, false), (false, 1, false)] {
            let pending_targets = PendingTargets::new(&selection(all, min_rss_bytes));
            assert_eq!(pending_targets.next.is_some(), expected, "{all} {min_rss_bytes}");
        }
    }

    #[test]
    fn who_was_declined_is_told_once_and_forgotten_when_it_is_gone() {
        let mut pending_targets = PendingTargets::new(&Selection::default());
        pending_targets.declined.extend([facts(1).identity, facts(2).identity]);
        let mut found = vec![facts(1), facts(3)];
        pending_targets.sift(&mut found);
        assert_eq!(found, [facts(3)]);
        assert_eq!(pending_targets.declined, BTreeSet::from([facts(1).identity]));
    }
}
