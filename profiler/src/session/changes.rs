//! Acts on what processes do: a process that begins may become a target, one that ends leaves its books.

use anyhow::Result;
use tracing::{debug, info, warn};

use super::discovery::Discovery;
use super::lifecycle::{Change, Descent};
use super::target::{End, Target};
use super::{Hold, Session};
use crate::allocator::resolve::NoAllocator;
use crate::ids::Pid;
use crate::ingest::event::{Exec, Fork};
use crate::ledger::Ledger;
use crate::proc::stat::Stat;
use crate::report::profile::Origin;
use crate::sys::clock;
use crate::target::launch::Launch;
use crate::target::process::{Exit, Process, TargetError};
use crate::target::scan;

/// A process that runs, with its allocators.
///
/// # Errors
///
/// When it cannot be profiled.
pub(super) fn find(pid: Pid, discovery: &mut Discovery) -> Result<Target> {
    let mut target = Target::open(pid, Origin::Running, None)?;
    target.refresh_space(&mut discovery.modules);
    discovery.discover(&mut target)?;
    Ok(target)
}

impl Session {
    /// Has the kernel side tell of forks and execs. Without that, targets are those that run now.
    pub(super) fn watch_processes(&mut self) {
        if let Err(error) = self.probes.kernel.watch_processes() {
            let missed = if self.config.selection.is_open() {
                "processes that start later are not seen"
            } else {
                "forks are not followed"
            };
            warn!("{missed}: {error}");
        }
    }

    /// Makes a process a target, whose probes are in place or soon will be.
    pub(super) fn adopt(&mut self, target: Target) {
        let pid = target.pid;
        if let Err(error) = self.probes.kernel.set_target(pid, self.lifecycle.follows_forks()) {
            warn!("forks of process {pid} are not followed: {error}");
        }
        if let Some(process) = &target.process
            && let Err(error) = self.ends.add(pid, process)
        {
            warn!("the end of process {pid} will not be seen: {error}");
        }
        self.targets.add(target);
    }

    /// Does what is due.
    pub(super) fn attend(&mut self) {
        while let Some(change) = self.lifecycle.take_due() {
            match change {
                Change::Forked(fork, ledger) => self.follow_fork(&fork, ledger),
                Change::Executed(exec, before) => self.follow_exec(&exec, before),
                Change::Began(exec, descent) => self.meet(&exec, descent),
            }
        }
        for pid in self.lifecycle.take_settling(false) {
            self.settle(pid);
        }
    }

    /// Looks at all targets for allocators that they have mapped meanwhile.
    pub(super) fn look(&mut self) {
        self.look_for_latecomers();
        let mut pids = self.lifecycle.take_settling(true);
        pids.extend(self.targets.running().filter(|target| target.may_have_mapped()).map(|target| target.pid));
        pids.sort_unstable();
        pids.dedup();
        for pid in pids {
            self.settle(pid);
        }
        for pid in self.lifecycle.take_ended_borrowers(|pid| Stat::read(pid).map_or(true, |stat| stat.has_ended())) {
            self.probes.forget(pid);
        }
        self.targets.learn_exit_codes();
    }

    /// Puts probes on what a target maps now.
    pub(super) fn settle(&mut self, pid: Pid) {
        let stopped = self.is_stopped(pid);
        let Some(target) = self.targets.get_mut(pid) else { return self.lifecycle.settled(pid) };
        let Err(error) = self.probes.settle(target, stopped) else { return self.lifecycle.settled(pid) };
        let begins = matches!(error.downcast_ref(), Some(NoAllocator::None(_) | NoAllocator::NotSelected { .. }));
        if target.has_begun() {
            debug!("{error:#}");
            return self.lifecycle.settled(pid);
        }
        if begins && !self.lifecycle.is_overdue(pid) {
            return;
        }
        self.lifecycle.settled(pid);
        if let Some(mut target) = self.targets.remove(pid) {
            self.probes.release(&mut target);
            // Gone meanwhile: that is no reason to complain of it.
            if target.is_gone() {
                self.targets.others.short_lived_count += 1;
            } else {
                info!("{error:#}");
                self.targets.skip(pid, target.command, format!("{error:#}"));
            }
        }
    }

    fn follow_fork(&mut self, fork: &Fork, ledger: Ledger) {
        if self.targets.get(fork.child).is_some() {
            // A look at all processes found it in the moment between its birth and the word of it.
            self.targets.others.not_inherited_count += 1;
            return;
        }
        let held = (self.config.hold == Hold::Forks && !self.lifecycle.has_grace()).then(|| Launch::hold(fork.child));
        let (Some(parent), Ok(process)) = (self.targets.get(fork.parent), Process::open(fork.child)) else {
            self.targets.others.short_lived_count += 1;
            return self.probes.forget(fork.child);
        };
        let stopped = held.as_ref().and_then(|held| held.as_ref().ok()).map(|_| clock::now().monotonic);
        let born = fork.time;
        let mut target = Target::forked(process, parent, ledger, born);
        self.probes.inherit(&target);
        if let Err(error) = self.probes.attach(&mut target) {
            warn!("process {}: {error:#}", target.pid);
        }
        self.probes.register(&target);
        // What it did after it was held was seen by nobody, because it did nothing.
        let seen_from = stopped.unwrap_or_else(|| clock::now().monotonic);
        target.begin(seen_from, false);
        self.adopt(target);
        drop(held);
    }

    /// A target runs another program: the one before has ended.
    fn follow_exec(&mut self, exec: &Exec, before: Ledger) {
        let Some(mut target) = self.targets.remove(exec.pid) else { return };
        let Ok(process) = Process::open(exec.pid) else {
            // It has ended since. What it did after the exec is not worth a target of its own.
            target.ledger = before;
            target.end = Some(End::Replaced);
            self.probes.release(&mut target);
            self.targets.others.short_lived_count += 1;
            return self.targets.keep(target);
        };
        let mut ended = target.replace(before, process, exec.time);
        if exec.by_other_thread {
            self.probes.lose(&mut target);
        }
        let stale = ended.ledger.live().map(|block| block.address).filter(|&address| !target.ledger.is_live(address));
        if let Err(error) = self.probes.kernel.forget_blocks(exec.pid, stale) {
            debug!("process {}: {error}", exec.pid);
        }
        ended.ledger.close();
        self.targets.keep(ended);
        self.probes.unwinding.forget(exec.pid);
        let selection = &self.config.selection;
        let meant = || scan::facts(exec.pid).is_ok_and(|facts| selection.matches(&facts));
        let wanted = target.requested || selection.means_beginners() && meant();
        if !wanted {
            return self.probes.release(&mut target);
        }
        self.welcome(target);
    }

    /// Puts probes on a program that has just begun.
    fn welcome(&mut self, mut target: Target) {
        let pid = target.pid;
        target.held_before_mapping = self.is_held_since_exec(pid);
        self.adopt(target);
        self.lifecycle.settle(pid);
        if self.is_held(pid) || (!self.lifecycle.has_grace() && self.hold(pid)) {
            return;
        }
        if let Some(target) = self.targets.get_mut(pid).filter(|target| !target.has_begun()) {
            self.probes.foresee(target);
        }
        self.settle(pid);
    }

    /// A process that is no target runs a program that may be meant.
    fn meet(&mut self, exec: &Exec, descent: Option<Descent>) {
        // A look at all processes may have found it first.
        if self.targets.get(exec.pid).is_some() {
            return;
        }
        match self.judge(exec, descent) {
            Ok(Some(target)) => return self.welcome(target),
            Ok(None) => {}
            Err(_) => self.targets.others.short_lived_count += 1,
        }
        if descent.is_some() {
            self.probes.forget(exec.pid);
        }
    }

    /// The process if it is meant.
    ///
    /// # Errors
    ///
    /// When it is gone and was meant, or may have been.
    fn judge(&self, exec: &Exec, descent: Option<Descent>) -> Result<Option<Target>, TargetError> {
        let selection = &self.config.selection;
        let requested = descent.is_some_and(|descent| descent.requested);
        if !(requested || selection.means_beginners()) || exec.pid.0 == std::process::id() {
            return Ok(None);
        }
        match scan::facts(exec.pid) {
            Ok(facts) if !requested && !selection.matches(&facts) => return Ok(None),
            // Whether it was meant cannot be told any more.
            Err(_) if !requested && !selection.all => return Ok(None),
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        let mut target = Target::open(exec.pid, Origin::Executed, Some(exec.time))?;
        target.requested = requested;
        Ok(Some(target))
    }

    /// A target has ended: its last events are taken, its probes removed. Its modules stay open for their names.
    pub(super) fn end(&mut self, pid: Pid) {
        while !self.drain() {}
        self.lifecycle.settled(pid);
        let Some(mut target) = self.targets.remove(pid) else { return };
        target.end =
            Some(End::Exited(target.process.as_ref().and_then(Process::exit_now).unwrap_or(Exit { code: None })));
        target.close(&mut self.probes.kernel);
        self.probes.release(&mut target);
        if target.has_begun() {
            self.targets.keep(target);
        } else {
            self.targets.others.short_lived_count += 1;
        }
    }
}
