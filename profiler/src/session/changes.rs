//! Acts on what processes do: a process that begins may become a target, one that ends leaves its books.

use anyhow::Result;
use tracing::{debug, info, warn};

use super::lifecycle::{Birth, Change, Descent};
use super::target::{End, Target};
use super::{Hold, Session};
use crate::allocator::resolve::NoAllocator;
use crate::ids::Pid;
use crate::ingest::event::{Exec, Fork};
use crate::keeper::Launch;
use crate::linux::clock;
use crate::linux::proc::stat::Stat;
use crate::model::Origin;
use crate::process::selection;
use crate::process::target::{Exit, Process, TargetError};
use crate::recording::recorder::RecordedLedger;

/// In so many looks every target has its turn: what is mapped later is hooked within a second.
const LOOK_TURNS: u32 = 3;

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

    /// Tells the kernel side that a process is a target. To be done before its probes are there: what they see of others is
    /// left out.
    pub(super) fn mark(&mut self, pid: Pid) {
        self.sweep_before(pid);
        if let Err(error) = self.probes.kernel.set_target(pid, self.lifecycle.follows_forks()) {
            warn!("process {pid} is not watched as a target: {error}");
            self.targets_unmarked += 1;
        }
    }

    /// Makes a process a target that was [marked](Self::mark), whose probes are in place or soon will be.
    pub(super) fn adopt(&mut self, mut target: Target) {
        target.older_than = self.config.older_than;
        let pid = target.pid;
        if let Some(process) = &target.process
            && let Err(error) = self.ends.add(pid, process)
        {
            warn!("the end of process {pid} will not be seen: {error}");
        }
        if let Some(mut before) = self.targets.add(target) {
            before.close(&mut self.probes.kernel);
            self.probes.detach(&mut before);
            self.targets.keep(before, &self.probes.discovery.plan);
        }
    }

    /// Does what is due.
    pub(super) fn attend(&mut self) {
        // Probes for all before blocks for any: those take microseconds each.
        let mut heirs = Vec::new();
        while let Some(change) = self.lifecycle.take_due() {
            match change {
                Change::Forked(birth) => heirs.extend(self.follow_fork(*birth)),
                Change::Executed(exec, before) => self.follow_exec(&exec, *before),
                Change::Began(exec, origin, descent) => self.meet(&exec, origin, descent),
            }
            // To place probes takes long enough to fill a ring.
            self.take_records();
        }
        for heir in heirs {
            let Some(target) = self.targets.get(heir) else { continue };
            let entered = self.probes.inherit(target);
            target.announce();
            if !entered {
                self.targets.others.not_inherited_count += 1;
            }
        }
        for pid in self.lifecycle.take_settling(false) {
            self.settle(pid);
        }
    }

    /// Looks at all targets for allocators that they have mapped meanwhile.
    pub(super) fn look(&mut self) {
        self.scan_for_pending_targets();
        let now = clock::now().monotonic;
        self.targets.note_growth(now);
        let mut pids = self.lifecycle.take_settling(true);
        // A third of them each time: to ask takes some 20 µs a process.
        self.looks = self.looks.wrapping_add(1);
        let turn = self.looks;
        let due = |target: &&Target| target.is_young() || target.pid.0 % LOOK_TURNS == turn % LOOK_TURNS;
        let changed = self.targets.running().filter(due).filter(|target| target.may_have_mapped());
        pids.extend(changed.map(|target| target.pid));
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
        let running = self.targets.get_mut(pid).filter(|target| !target.is_gone());
        let Some(target) = running else { return self.lifecycle.settled(pid) };
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
        if target.requested && !target.is_gone() {
            // It may become, or make, a program that has an allocator: a wrapper, a shell without a heap of its own.
            target.unprofilable = Some(format!("{error:#}"));
            return;
        }
        if let Some(mut target) = self.targets.remove(pid) {
            target.close(&mut self.probes.kernel);
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

    /// Makes a copy of a target a target. Returns its number when it has blocks that the kernel side does not know yet.
    fn follow_fork(&mut self, birth: Birth) -> Option<Pid> {
        let Fork { child, .. } = birth.fork;
        self.close_if_gone(child);
        if self.targets.get(child).is_some() {
            // A look at all processes found it in the moment between its birth and the word of it.
            self.targets.others.not_inherited_count += 1;
            return None;
        }
        let is_to_be_held = self.config.hold == Hold::Forks && !self.lifecycle.has_grace();
        let hold = || {
            Launch::hold(self.probes.keeper(), child)
                .inspect_err(|error| info!("process {child} is not held: {error}"))
                .ok()
        };
        let held = is_to_be_held.then(hold).flatten();
        let process = match Process::open(child) {
            Ok(process) => process,
            Err(error) => {
                self.miss(child, &error);
                self.probes.forget(child);
                return None;
            }
        };
        // Of several threads only one is held.
        let alone = held.as_ref().filter(|held| held.is_alone());
        let stopped = alone.map(|_| clock::now().monotonic);
        let mut target = Target::forked(process, birth);
        // Where the kernel side had no room for it when it was made, there may be some now.
        self.mark(child);
        // While it runs, probes first: an early free of what it inherited is missed either way, its allocations are not.
        if let Err(error) = self.probes.attach(&mut target) {
            warn!("process {child}: {error:#}");
        }
        if target.is_gone() && target.hooks.first_error().is_some() {
            // It ended while probes were being placed: that is no reason to complain of those that were not.
            target.close(&mut self.probes.kernel);
            self.probes.release(&mut target);
            self.targets.others.short_lived_count += 1;
            return None;
        }
        self.probes.register(&target);
        if stopped.is_some() && !self.probes.inherit(&target) {
            self.targets.others.not_inherited_count += 1;
        }
        // What it did after it was held was seen by nobody, because it did nothing.
        target.begin(stopped.unwrap_or_else(|| clock::now().monotonic), false);
        if stopped.is_some() {
            target.announce();
        }
        self.adopt(target);
        drop(held);
        stopped.is_none().then_some(child)
    }

    /// A process that was to become a target cannot be taken hold of.
    fn miss(&mut self, pid: Pid, error: &TargetError) {
        match error {
            TargetError::NotFound(_) | TargetError::Ended(_) | TargetError::Proc(_) => {
                self.targets.others.short_lived_count += 1;
            }
            error => self.targets.skip(pid, String::new(), error.to_string()),
        }
    }

    /// A target runs another program: the one before has ended.
    fn follow_exec(&mut self, exec: &Exec, before: RecordedLedger) {
        let requested = self.targets.get(exec.pid).is_some_and(|target| target.requested);
        let seized = requested.then(|| self.seize(exec.pid)).flatten();
        let Ok(process) = Process::open(exec.pid) else {
            self.targets.others.short_lived_count += 1;
            return self.end_before(exec, before);
        };
        let Some(mut target) = self.targets.remove(exec.pid) else { return };
        let mut ended = target.replace(before, process, exec.time);
        if exec.by_other_thread {
            self.probes.lose(&mut target);
        }
        let stale = ended.ledger.live().map(|block| block.address).filter(|&address| !target.ledger.is_live(address));
        if let Err(error) = self.probes.kernel.forget_blocks(exec.pid, stale) {
            debug!("process {}: {error}", exec.pid);
        }
        ended.close_books(exec.time);
        self.targets.keep(ended, &self.probes.discovery.plan);
        self.probes.unwinding.forget(exec.pid);
        let selection = &self.config.selection;
        let meant = || selection::matches_new(exec.pid, selection).unwrap_or(false);
        let wanted = target.requested || selection.matches_new() && meant();
        if !wanted {
            target.close(&mut self.probes.kernel);
            return self.probes.release(&mut target);
        }
        self.welcome(target, seized);
    }

    /// A target has become another program, which has ended since, or is not looked at any more: what it did is not worth a
    /// target of its own.
    fn end_before(&mut self, exec: &Exec, before: RecordedLedger) {
        let Some(mut target) = self.targets.remove(exec.pid) else { return };
        let after = std::mem::replace(&mut target.ledger, before);
        if let Err(error) = self.probes.kernel.forget_blocks(exec.pid, after.live().map(|block| block.address)) {
            debug!("process {}: {error}", exec.pid);
        }
        target.close_at(exec.time, &mut self.probes.kernel);
        target.end = Some(End::Replaced);
        self.probes.release(&mut target);
        self.targets.keep(target, &self.probes.discovery.plan);
    }

    /// The recording is over: what became of targets in its last moments and was not acted on.
    pub(super) fn end_replaced(&mut self) {
        for (exec, before) in self.lifecycle.take_executed() {
            self.end_before(&exec, before);
        }
    }

    /// Puts probes on a program that has just begun, and may be stopped already.
    fn welcome(&mut self, mut target: Target, seized: Option<Launch>) {
        let pid = target.pid;
        let seized = seized.or_else(|| self.seize(pid));
        target.held_before_mapping = self.is_held_since_exec(pid);
        self.mark(pid);
        self.adopt(target);
        self.lifecycle.settle(pid);
        match seized {
            Some(seized) => return self.lead(seized),
            None if self.is_held(pid) => return,
            None => self.settle(pid),
        }
        if let Some(target) = self.targets.get_mut(pid).filter(|target| !target.has_begun()) {
            self.probes.foresee(target);
            self.settle(pid);
        }
    }

    /// A process that is no target runs a program that may be meant.
    fn meet(&mut self, exec: &Exec, origin: Origin, descent: Option<Descent>) {
        // A target may have had its number.
        self.close_if_gone(exec.pid);
        // A look at all processes may have found it first, or an earlier exec has told of it.
        if self.targets.get(exec.pid).is_some() {
            return;
        }
        // What is meant whatever it is need not be looked at first.
        let requested = descent.is_some_and(|descent| descent.requested);
        let seized = requested.then(|| self.seize(exec.pid)).flatten();
        match self.judge(exec, origin, descent) {
            Ok(Some(target)) => return self.welcome(target, seized),
            Ok(None) => {}
            Err(error) => self.miss(exec.pid, &error),
        }
        if descent.is_some() || self.lifecycle.has_grace() {
            self.probes.forget(exec.pid);
        }
    }

    /// The process if it is meant.
    ///
    /// # Errors
    ///
    /// When it is gone and was meant, or may have been.
    fn judge(&self, exec: &Exec, origin: Origin, descent: Option<Descent>) -> Result<Option<Target>, TargetError> {
        let selection = &self.config.selection;
        let requested = descent.is_some_and(|descent| descent.requested);
        if !(requested || selection.matches_new()) || exec.pid.0 == std::process::id() {
            return Ok(None);
        }
        if !requested {
            match selection::matches_new(exec.pid, selection) {
                Ok(true) => {}
                // An error: whether it was meant cannot be told any more.
                Err(error) if selection.all => return Err(error),
                Ok(false) | Err(_) => return Ok(None),
            }
        }
        let mut target = Target::open(exec.pid, origin, Some(exec.time))?;
        target.requested = requested;
        Ok(Some(target))
    }

    /// A target has ended: its last events are taken, its probes removed. Its modules stay open for their names.
    pub(super) fn end(&mut self, pid: Pid) {
        while !self.drain() {}
        if self.targets.get(pid).is_some_and(Target::is_gone) {
            self.catch_up();
        }
        // Its number may be another target's by now.
        self.close_if_gone(pid);
    }

    /// Closes the books of a target that has ended, whether that was told yet or not.
    fn close_if_gone(&mut self, pid: Pid) {
        if self.targets.get(pid).is_some_and(Target::is_gone) {
            self.close(pid);
        }
    }

    /// Closes the books of a target that has ended, or is taken to have.
    pub(super) fn close(&mut self, pid: Pid) {
        self.lifecycle.settled(pid);
        self.complete_pass_for(pid);
        let Some(mut target) = self.targets.remove(pid) else { return };
        target.end =
            Some(End::Exited(target.process.as_ref().and_then(Process::exit_now).unwrap_or(Exit { code: None })));
        self.settle_losses_of(&mut target);
        target.close(&mut self.probes.kernel);
        self.probes.release(&mut target);
        match target.unprofilable.take() {
            _ if target.has_begun() => self.targets.keep(target, &self.probes.discovery.plan),
            Some(reason) => self.targets.skip(pid, target.command, reason),
            None => self.targets.others.short_lived_count += 1,
        }
    }
}
