//! Handling of process changes: new processes become targets, and exits, execs and limits close ledgers, after the last events and
//! corrections have been entered.

use std::time::{Duration, Instant};

use anyhow::Result;
use heapbpf_base::ids::{Identity, Pid};
use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::Ledger;
use heapbpf_ledger::ingest::record::{Exec, Fork};
use heapbpf_ledger::model::{End, Origin};
use heapbpf_linux::clock;
use heapbpf_linux::proc::maps::executable_identity;
use heapbpf_linux::proc::stat::Stat;
use tracing::{debug, info, warn};

use super::Session;
use super::launching::log_release;
use crate::allocator::resolve::NoAllocator;
use crate::keeper::Launch;
use crate::object::ObjectError;
use crate::process::selection;
use crate::process::target::{Process, TargetError};
use crate::session::config::Hold;
use crate::session::go_profile::Program;
use crate::session::lifecycle::{ParentTarget, ProcessChange, UNREACHED};
use crate::session::memory::MemoryScene;
use crate::session::target::{ForkedChild, Target};

/// Number of polls in which every target is polled once, so that modules mapped later are hooked within a second.
pub(super) const POLL_TURNS: u32 = 3;
/// Number of drains in which the stubs of all targets are polled, and minimum number of targets polled per drain.
/// Polling one takes about 10 µs.
const STUBS_TURNS: usize = 12;
const STUBS_POLLED_MIN: usize = 8;

/// Time limit per call for handling changes, so that exits and signals are handled in between: targets may fork faster
/// than probes are attached to their children.
const CHANGES_TIME_MAX: Duration = Duration::from_millis(100);

impl Session {
    /// Makes the kernel side sample a process. Must precede attaching its probes: they ignore other processes.
    /// `shares` is whether the process has shared probes although others have their own.
    pub(super) fn mark(&mut self, pid: Pid, shares: bool) {
        self.resync.sweep(pid, &mut self.probes.kernel);
        self.probes.mark(pid, self.config.follow_forks || self.counts_children(), shares);
    }

    /// Whether children of targets are counted for the report: those of a command, in a leak check.
    pub(super) fn counts_children(&self) -> bool {
        self.config.checks.is_some() && self.config.selection.pids.is_empty()
    }

    /// Adds a target that was [marked](Self::mark), whose probes are or soon will be attached.
    pub(super) fn add_target(&mut self, mut target: Target) {
        target.older_than = self.config.older_than;
        if self.config.by_thread {
            target.ledger.distinguish_threads();
        }
        // The reader of a recording may want threads later.
        if self.config.by_thread || self.config.recording.is_some() {
            target.threads.is_enabled = true;
        }
        if let Some(mut before) = self.processes.add(target) {
            before.close(clock::now().monotonic, &mut self.probes.kernel);
            before.hooks.detach();
            self.processes.keep(before, &self.probes.discovery.plan);
        }
    }

    /// Attaches to a process that was found. If that fails, nothing of it remains.
    pub(super) fn begin_target(&mut self, mut target: Target) -> Result<()> {
        self.mark(target.pid, target.hooks.are_shared());
        // From here on, the kernel side reports its execs.
        target.refresh_names();
        self.probes.register(&mut target);
        if let Err(error) = self.probes.hook(&mut target, false, &mut self.rates) {
            let error = target.explain(error);
            self.discard(&mut target);
            return Err(error);
        }
        self.residency.begin(&target, self.probes.kernel.records_pages());
        let pid = target.pid;
        self.add_target(target);
        self.begin_go(pid);
        Ok(())
    }

    /// Begins to read the heap profile of a Go program. What it has allocated since its start is of the recording, if that has seen it.
    fn begin_go(&mut self, pid: Pid) {
        let is_new = |target: &&Target| target.was_recorded() && !self.go.has(pid);
        let Some(target) = self.processes.get(pid).filter(is_new) else { return };
        let (Some(heap), Some(id)) = (target.go.clone(), self.probes.discovery.plan.go()) else { return };
        let is_whole = target.beginning.from_first_call || target.born.is_some() && !target.is_copy();
        self.go.begin(pid, Program { heap, id, is_whole }, &mut self.processes, clock::now().monotonic);
    }

    /// Counts objects of the runtimes that targets have.
    fn poll_objects(&mut self) {
        if !self.config.object_types {
            return;
        }
        let interpreters = &self.probes.unwinding.interpreters;
        for target in self.processes.running().filter(|target| target.was_recorded() && !target.is_gone()) {
            for heap in interpreters.heaps(target.pid) {
                self.objects.begin(target.pid, heap.clone());
            }
        }
        self.objects.poll(&mut self.processes);
    }

    pub(super) fn begin_found(&mut self, target: Target, identity: Identity) {
        let command = target.command.clone();
        if let Err(error) = self.begin_target(target) {
            self.processes.decline(identity, command, &error);
        }
    }

    pub(super) fn discard(&mut self, target: &mut Target) {
        self.discard_at(target, clock::now().monotonic);
    }

    /// Closes a target and releases its probes. `ended` is the time of its last totals.
    pub(super) fn discard_at(&mut self, target: &mut Target, ended: MonotonicNanos) {
        target.close(ended, &mut self.probes.kernel);
        // Detaching the target's probes has the kernel ask the others' whether they are of each process with a
        // breakpoint there.
        self.outlive_first_threads();
        self.probes.release(target);
    }

    pub(super) fn scan(&mut self) {
        let mut found = match selection::scan(&self.config.selection) {
            Ok(found) => found,
            Err(error) => return debug!("{error}"),
        };
        self.processes.retain_new(&mut found);
        // Processes whose start was reported are handled as such.
        self.empty_ring();
        for facts in found {
            let pid = facts.pid();
            if self.processes.get(pid).is_some() || self.lifecycle.awaits(pid) {
                continue;
            }
            if let Some(target) = self.processes.open(&facts, &self.config, &mut self.probes.discovery) {
                self.begin_found(target, facts.identity);
            }
        }
    }

    /// Handles process changes within a time limit. Remaining changes are
    /// [due](crate::session::lifecycle::Lifecycle::next_due) at once.
    pub(super) fn handle_changes(&mut self) {
        let end = Instant::now() + CHANGES_TIME_MAX;
        for pid in self.lifecycle.take_unfollowed() {
            self.probes.forget(pid);
        }
        // Attaches probes of all children before entering blocks of any, which takes microseconds each.
        let mut children = Vec::new();
        while let Some(change) = self.next_change(end) {
            match change {
                ProcessChange::Forked(forked) => children.extend(self.follow_fork(*forked)),
                ProcessChange::Executed(exec, before) => {
                    self.follow_exec(&exec, *before);
                    self.resume_unattended_command();
                }
                ProcessChange::Started(exec, origin, parent) => self.consider(&exec, origin, parent),
            }
            // Attaching takes long enough to fill a ring buffer.
            self.take_records();
        }
        for (child, is_recorded) in children {
            // A program that it has executed meanwhile has no block of its parent, and those of its own are in the live set.
            let is_copy = |target: &&Target| target.is_copy() && !self.lifecycle.awaits(target.pid);
            let Some(target) = self.processes.get(child).filter(is_copy) else { continue };
            let is_whole = self.probes.inherit(target);
            self.probes.adopt_stubs(target, &self.rates);
            if is_recorded {
                target.log_start();
            }
            if !is_whole {
                self.processes.others.not_inherited_count += 1;
            }
            if let Some(target) = self.processes.get_mut(child) {
                target.awaits_blocks = false;
            }
        }
        for pid in self.lifecycle.due_for_hooks(false) {
            self.hook(pid);
        }
    }

    /// Takes the next due change. After `end`, takes only a change of the held process, which is released when its
    /// changes are handled. A command that waits at an exec waits until no other process is held, to be held then.
    fn next_change(&mut self, end: Instant) -> Option<ProcessChange> {
        // A child's blocks are entered into the live set as they are in its ledger, and a parent's that are being thinned are in neither.
        if self.resync.is_thinning() && self.lifecycle.awaits_forks() {
            self.complete_pass();
        }
        let Some(held) = self.held else {
            return (Instant::now() < end).then(|| self.lifecycle.take_due(|_| true)).flatten();
        };
        let is_in_time = Instant::now() < end;
        let stopped = self.stopped_command();
        self.lifecycle.take_due(|pid| pid == held.pid || is_in_time && Some(pid) != stopped)
    }

    pub(super) fn poll_targets(&mut self) {
        if self.lifecycle.is_scan_due(&self.config) {
            self.scan();
        }
        self.probes.choose_scope(self.processes.running_mut(), std::iter::empty());
        self.probes.check_foreign(false);
        if self.config.policy.is_some() {
            self.skip_refused();
        }
        self.hint.poll(self.processes.running());
        self.jvm_maps.poll(self.processes.running(), &self.probes.discovery.modules);
        self.poll_generated();
        self.probes.register_starting(self.processes.running_mut());
        self.probes.unwinding.interpreters.forget_others(&self.probes.discovery.modules, || self.processes.pids());
        // Resident memory is compared with ledgers: what has been allocated since the last drain would be unexplained.
        self.catch_up();
        let now = clock::now().monotonic;
        self.processes.note(now, None);
        let has_all_blocks = self.has_all_blocks();
        let scene = MemoryScene { plan: &self.probes.discovery.plan, residency: &self.residency, has_all_blocks };
        self.memory.poll(&mut self.processes, scene, now);
        self.poll_pages();
        self.go.poll(&mut self.processes, now);
        self.poll_objects();
        let mut pids = self.lifecycle.due_for_hooks(true);
        // A third of the targets each time: polling takes about 20 µs per process.
        self.polls = self.polls.wrapping_add(1);
        let turn = self.polls;
        let due = |target: &&Target| target.is_young() || target.pid.0 % POLL_TURNS == turn % POLL_TURNS;
        let changed = self.processes.running().filter(due).filter(|target| target.may_have_mapped());
        pids.extend(changed.map(|target| target.pid));
        pids.sort_unstable();
        pids.dedup();
        for pid in pids {
            self.hook(pid);
        }
        self.observe(turn);
        self.forget_borrowers();
        self.processes.update_exit_codes();
    }

    /// Forgets processes that have ended in the memory of their parents, as children of `vfork` do whose exec fails.
    pub(super) fn forget_borrowers(&mut self) {
        for pid in
            self.lifecycle.take_exited_vfork_children(|pid| Stat::of_process(pid).map_or(true, |stat| stat.has_ended()))
        {
            self.probes.forget(pid);
        }
    }

    /// Polls the stubs of the next few processes. A program that resolves a pointer by its first call traps until the
    /// pointer is changed.
    pub(super) fn poll_some_stubs(&mut self) {
        if !self.probes.has_stubs() {
            return;
        }
        let recorded = || self.processes.running().filter(|target| target.was_recorded());
        let later = recorded().filter(|target| target.pid > self.stubs_polled);
        let count = recorded().count();
        let part = count.div_ceil(STUBS_TURNS).max(STUBS_POLLED_MIN).min(count);
        let turn: Vec<Pid> = later.chain(recorded()).take(part).map(|target| target.pid).collect();
        for pid in turn {
            self.stubs_polled = pid;
            if let Some(target) = self.processes.get(pid) {
                self.probes.poll_stubs(target, &self.rates);
            }
        }
    }

    /// Reads generated code, and searches for the files that name it, as long as the processes live.
    pub(super) fn poll_generated(&mut self) {
        self.probes.unwinding.interpreters.read_pending(&self.probes.discovery.modules);
        for target in self.processes.running_mut() {
            target.poll_generated(&mut self.probes.discovery.modules);
        }
    }

    /// Detaches from processes that the inline engine refuses although the policy chose it for them: probes are
    /// expensive among many targets.
    fn skip_refused(&mut self) {
        let refused = |target: &Target| {
            let reason = self.probes.stubs_refused(target)?;
            Some((target.pid, format!("the inline engine cannot record it: {reason}")))
        };
        let refused: Vec<_> = self.processes.running().filter_map(refused).collect();
        for (pid, reason) in refused {
            let Some(mut target) = self.processes.remove(pid) else { continue };
            self.lifecycle.stop_polling(pid);
            self.discard(&mut target);
            if let Some(identity) = target.identity() {
                self.processes.ignore(identity);
            }
            self.processes.skip(pid, target.command, reason);
        }
    }

    /// Attaches the hooks of a target, or tries again later if its allocator may not be mapped yet.
    pub(super) fn hook(&mut self, pid: Pid) {
        self.attach_hooks(pid);
        self.begin_go(pid);
    }

    fn attach_hooks(&mut self, pid: Pid) {
        let is_stopped = self.held.is_some_and(|held| held.pid == pid && held.is_alone);
        let running = self.processes.get_mut(pid).filter(|target| !target.is_gone());
        let Some(target) = running else { return self.lifecycle.stop_polling(pid) };
        let was_recorded = target.was_recorded();
        let is_superseded = target.starting().is_some_and(|starting| starting.is_superseded);
        let hooked = self.probes.hook(target, is_stopped, &mut self.rates);
        if !was_recorded && target.was_recorded() {
            self.residency.begin(target, self.probes.kernel.records_pages());
            self.lifecycle.count_begun(is_superseded, target.is_late(self.config.counts_programs));
        }
        let Err(error) = hooked else { return self.lifecycle.stop_polling(pid) };
        let is_early = matches!(error.downcast_ref(), Some(NoAllocator::None(_) | NoAllocator::NotSelected { .. }));
        let is_gone = target.is_gone();
        let requested = target.requested;
        let was_missed = target.was_missed(self.config.counts_programs);
        let Some(starting) = target.starting() else {
            debug!("{error:#}");
            return self.lifecycle.stop_polling(pid);
        };
        if is_early && !self.lifecycle.is_overdue(pid) {
            return;
        }
        self.lifecycle.stop_polling(pid);
        if requested && !is_gone {
            // The process may execute or fork a program with an allocator: it may be a wrapper, or a shell without a
            // heap of its own.
            let before = starting.unprofilable.replace(format!("{error:#}"));
            if before.is_none()
                && matches!(error.downcast_ref(), Some(NoAllocator::Unreadable(_, ObjectError::Is32Bit)))
            {
                info!("process {pid} is not recorded: {error:#}");
                self.lifecycle.count_32_bits();
            }
            return;
        }
        if let Some(mut target) = self.processes.remove(pid) {
            self.discard(&mut target);
            if target.is_gone() {
                self.processes.others.short_lived_count += 1;
                self.lifecycle.count_missed(was_missed);
            } else {
                info!("{error:#}");
                self.processes.skip(pid, target.command, format!("{error:#}"));
            }
        }
    }

    /// Makes a forked child a target. Returns its pid if its blocks must still be entered into the live set, and whether it is recorded
    /// then.
    fn follow_fork(&mut self, forked: ForkedChild) -> Option<(Pid, bool)> {
        let Fork { child, parent, .. } = forked.fork;
        self.close_if_gone(child);
        if self.processes.get(child).is_some() {
            self.processes.others.not_inherited_count += 1;
            return None;
        }
        // Drops before the fork may have been noted only now.
        self.note_drops();
        self.resync.note_child(forked.fork.time);
        let is_to_be_held = self.config.hold == Hold::Forks && self.config.grace().is_zero();
        let has_executed = || executable_identity(child).ok() != executable_identity(forked.fork.parent).ok();
        let is_left = (self.followed.is_some() || is_to_be_held)
            && (forked.has_leak_sanitizer || has_executed() && self.may_trace_itself(child));
        let held = match &mut self.followed {
            _ if is_left => None,
            Some(followed) => followed.hold(self.probes.keeper(), child),
            None if is_to_be_held => Launch::hold(self.probes.keeper(), child)
                .inspect_err(|error| info!("process {child} is not held: {error}"))
                .ok(),
            None => None,
        };
        let process = match Process::open(child) {
            Ok(process) => process,
            Err(error) => {
                self.count_unopened(child, &error);
                self.probes.forget(child);
                return None;
            }
        };
        // Only one of several threads is stopped.
        let alone = held.as_ref().filter(|held| held.is_alone());
        let stopped = alone.map(|_| clock::now().monotonic);
        let mut target = Target::forked(process, forked);
        // If the kernel's map of targets was full at the fork, it may have room now.
        self.mark(child, target.hooks.are_shared());
        // A running child is probed first: an early free of an inherited block is missed anyway.
        if let Err(error) = self.probes.attach(&mut target, &mut self.rates) {
            warn!("process {child}: {error:#}");
        }
        if target.is_gone() && target.hooks.first_error().is_some() {
            self.discard(&mut target);
            self.processes.others.short_lived_count += 1;
            return None;
        }
        self.probes.register(&mut target);
        target.awaits_blocks = stopped.is_none();
        if stopped.is_some() && !self.probes.inherit(&target) {
            self.processes.others.not_inherited_count += 1;
        }
        // No allocation since the child was stopped was missed.
        let is_recorded = self.add_child(target, parent, stopped.unwrap_or_else(|| clock::now().monotonic));
        if let Some(target) = self.processes.get(child).filter(|_| stopped.is_some()) {
            self.probes.adopt_stubs(target, &self.rates);
            if is_recorded {
                target.log_start();
            }
        }
        match held {
            Some(held) if self.followed.is_some() => self.follow_child(held),
            Some(mut held) => log_release(held.release()),
            None => {}
        }
        stopped.is_none().then_some((child, is_recorded))
    }

    /// Adds a forked child, which is recorded from `time` on. Returns false if its hooks are not known yet, because its parent had only
    /// begun another program at the fork.
    fn add_child(&mut self, mut target: Target, parent: Pid, time: MonotonicNanos) -> bool {
        let child = target.pid;
        let has_none = |parent: &Target| parent.hooks.attached_count() == 0 && !self.lifecycle.is_polled(parent.pid);
        let is_recorded = target.hooks.attached_count() > 0
            || target.hooks.first_error().is_some()
            || self.processes.get(parent).is_some_and(has_none);
        if is_recorded {
            target.start_recording(time, false);
        }
        self.add_target(target);
        if !is_recorded {
            self.lifecycle.poll_for_hooks(child);
            self.hook(child);
        }
        is_recorded
    }

    pub(super) fn count_unopened(&mut self, pid: Pid, error: &TargetError) {
        match error {
            TargetError::NotFound(_) | TargetError::Ended(_) | TargetError::Proc(_) => {
                self.processes.others.short_lived_count += 1;
            }
            error => self.processes.skip(pid, String::new(), error.to_string()),
        }
    }

    /// Handles the exec of a target: closes the old program's ledger, and starts the new program as a target.
    fn follow_exec(&mut self, exec: &Exec, mut before: Ledger) {
        self.complete_pass_of_replaced(exec.pid, &mut before);
        let requested = self.processes.get(exec.pid).is_some_and(|target| target.requested);
        let held = requested.then(|| self.hold(exec.pid)).flatten();
        let Ok(process) = Process::open(exec.pid) else {
            self.processes.others.short_lived_count += 1;
            self.lifecycle.count_missed(requested);
            return self.close_program(exec, before);
        };
        let Some(mut target) = self.processes.remove(exec.pid) else { return };
        self.lifecycle.count_missed(target.was_missed(self.config.counts_programs));
        let mut ended = target.replace(before, process, exec.time);
        self.correct_replaced(&mut ended, exec.time);
        if let Some(starting) = target.starting() {
            starting.is_superseded = requested && self.lifecycle.awaits(exec.pid);
        }
        if exec.by_other_thread {
            self.probes.reset(&mut target);
        }
        let stale = ended.ledger.live().map(|block| block.address).filter(|&address| !target.ledger.is_live(address));
        if let Err(error) = self.probes.kernel.forget_blocks(exec.pid, stale) {
            debug!("process {}: {error}", exec.pid);
        }
        ended.close_ledger(exec.time);
        self.processes.keep(ended, &self.probes.discovery.plan);
        self.probes.replace_program(exec.pid);
        let selection = &self.config.selection;
        let is_selected = || selection::matches_new(exec.pid, selection).unwrap_or(false);
        if !(target.requested || selection.matches_new() && is_selected()) {
            return self.discard(&mut target);
        }
        self.begin_program(target, held);
    }

    fn begin_program(&mut self, mut target: Target, held: Option<Launch>) {
        let pid = target.pid;
        let held = held.or_else(|| self.hold(pid));
        let stepped = self.held.filter(|held| held.pid == pid);
        if let Some(starting) = target.starting() {
            starting.is_held_before_mapping = stepped.is_some_and(|held| held.since_exec);
        }
        self.mark(pid, target.hooks.are_shared());
        self.add_target(target);
        self.lifecycle.poll_for_hooks(pid);
        match held {
            Some(held) => return self.step_and_release(held),
            None if stepped.is_some() => return,
            None => self.hook(pid),
        }
        if let Some(target) = self.processes.get_mut(pid).filter(|target| !target.was_recorded()) {
            self.probes.probe_ahead(target, &mut self.rates);
            self.hook(pid);
        }
    }

    fn consider(&mut self, exec: &Exec, origin: Origin, parent: Option<ParentTarget>) {
        // The pid may have been a target's.
        self.close_if_gone(exec.pid);
        // A scan or an earlier exec may have made it a target already.
        if self.processes.get(exec.pid).is_some() {
            return;
        }
        // A descendant is a target whatever it executes, so it is stopped before it is examined.
        let requested = parent.is_some_and(|parent| parent.requested);
        let held = requested.then(|| self.hold(exec.pid)).flatten();
        match self.open_selected(exec, origin, requested) {
            Ok(Some(mut target)) => {
                target.is_descendant = parent.is_some();
                return self.begin_program(target, held);
            }
            Ok(None) => {}
            Err(error) => {
                let is_counted = requested || self.config.counts_programs;
                self.lifecycle.count_missed(is_counted && origin == Origin::Executed);
                self.count_unopened(exec.pid, &error);
            }
        }
        if parent.is_some() || !self.config.grace().is_zero() {
            self.probes.forget(exec.pid);
        }
    }

    pub(super) fn open_selected(
        &self,
        exec: &Exec,
        origin: Origin,
        requested: bool,
    ) -> Result<Option<Target>, TargetError> {
        let selection = &self.config.selection;
        if !(requested || selection.matches_new()) || exec.pid.0 == std::process::id() {
            return Ok(None);
        }
        if !requested {
            match selection::matches_new(exec.pid, selection) {
                Ok(true) => {}
                // If the process cannot be examined, `--all` has probably selected it.
                Err(error) if selection.all => return Err(error),
                Ok(false) | Err(_) => return Ok(None),
            }
        }
        let mut target = Target::open(exec.pid, origin, Some(exec.time))?;
        target.requested = requested;
        Ok(Some(target))
    }

    pub(super) fn close_program(&mut self, exec: &Exec, before: Ledger) {
        let Some(mut target) = self.processes.remove(exec.pid) else { return };
        self.lifecycle.count_missed(target.was_missed(self.config.counts_programs));
        let after = std::mem::replace(&mut target.ledger, before);
        if let Err(error) = self.probes.kernel.forget_blocks(exec.pid, after.live().map(|block| block.address)) {
            debug!("process {}: {error}", exec.pid);
        }
        target.set_end(End::Replaced);
        self.correct_replaced(&mut target, exec.time);
        target.close(exec.time, &mut self.probes.kernel);
        self.probes.release(&mut target);
        self.processes.keep(target, &self.probes.discovery.plan);
    }

    /// Closes replaced programs, and counts the processes that are not targets yet, at the end of a recording.
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
        self.lifecycle.stop_polling(pid);
        self.complete_inventory_of(pid);
        self.complete_pass_for(pid);
        self.probes.continue_stacks(pid, true, &mut self.processes);
        if self.probes.kernel.records_pages() {
            self.remove_hooked(pid);
        }
        let Some(mut target) = self.processes.remove(pid) else { return };
        target.poll_generated(&mut self.probes.discovery.modules);
        let was_missed = target.was_missed(self.config.counts_programs);
        let unprofilable = target.starting().and_then(|starting| starting.unprofilable.take());
        let code = target.process.as_ref().and_then(Process::exit_now).and_then(|exit| exit.code);
        target.set_end(End::Exited { code });
        self.go.forget(pid);
        self.objects.forget(pid);
        self.correct_drops_of(&mut target);
        self.forget_pages_of(&mut target);
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

    /// Detaches from a target: later allocations and frees are not recorded. Returns false if the target has exited or
    /// executed another program.
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
        self.correct_drops_of(&mut target);
        self.lifecycle.stop_polling(pid);
        if let Some(identity) = target.identity() {
            self.processes.ignore(identity);
        }
        target.set_end(End::Detached(now));
        self.discard(&mut target);
        self.processes.keep(target, &self.probes.discovery.plan);
        true
    }

    pub(super) fn finish_pass(&mut self) {
        let started = self.windows.started.monotonic;
        let Self { resync, processes, lifecycle, residency, .. } = self;
        resync.finish(processes, lifecycle, residency, &mut self.probes.kernel, started);
    }

    pub(super) fn complete_pass(&mut self) {
        self.await_pass();
        self.finish_pass();
    }

    /// Waits until the pass has read the live set, and enters all events up to then.
    fn await_pass(&mut self) {
        while self.resync.is_running() && !self.resync.is_read() {
            if self.take_records() {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        self.catch_up();
    }

    /// Completes a pass that may have thinned blocks of the program that a process had before an exec, whose ledger is `before`.
    fn complete_pass_of_replaced(&mut self, pid: Pid, before: &mut Ledger) {
        if !self.resync.covers(pid) {
            return;
        }
        self.await_pass();
        let exchange = |session: &mut Self, ledger: &mut Ledger| {
            if let Some(target) = session.processes.get_mut(pid) {
                std::mem::swap(&mut target.ledger, ledger);
            }
        };
        exchange(self, before);
        self.finish_pass();
        exchange(self, before);
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

    pub(super) fn correct_drops_of(&mut self, target: &mut Target) {
        self.note_drops();
        self.resync.correct_at_exit(target, &mut self.residency, &mut self.probes.kernel);
    }

    /// Corrects the ledger of a program whose process has executed another one at `time`.
    fn correct_replaced(&mut self, target: &mut Target, time: MonotonicNanos) {
        self.note_drops();
        let undecided = self.resync.correct_at_exec(target, &self.residency, time);
        self.processes.note_undecided(target, undecided);
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
