//! Output of a session. Contains addresses only: symbolization takes long and the ring buffer fills meanwhile.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use heapbpf_base::ids::Pid;
use heapbpf_base::shown;
use heapbpf_ledger::model::{
    Health, HookStatus, InlinedHeap, InterpreterFrames, Loss, Others, Symbolization, Unaccounted, Window, WindowReason,
};
use heapbpf_ledger::timeline::SampleTrigger;
use heapbpf_linux::clock;
use profiler_common::counter::Counter;
use profiler_common::interval::Interval;
use tracing::debug;

use super::Session;
use crate::bpf::counters::Counters;
use crate::check::heap_snapshot::{Coverage, HeapSnapshot, RecordedBlock, TRIES_MAX, collect_at_rest};
use crate::collect::{CollectError, Collected, Method, ThreadState, collect};
use crate::keeper::{self, Launch};
use crate::recording::entry::{HealthFacts, SessionFacts, TargetRecord};
use crate::recording::recorder::Recorder;
use crate::session::command::Command;
use crate::session::config::{Listener, Request};
use crate::session::followed::Followed;
use crate::session::memory::MemoryScene;
use crate::session::target::Target;
use crate::session::windows::Status;
use crate::snapshot::{Snapshot, TargetState};

impl Session {
    /// The part of the selection that no process matched at the start, if others did.
    pub fn unmatched(&self) -> Option<String> {
        let unmatched = &self.selected.unmatched;
        (unmatched.is_open() && self.processes.count() > 0).then(|| unmatched.to_string())
    }

    /// Required functions named by the user that no target has, if there are targets.
    pub fn unfound(&self) -> Vec<String> {
        let all = if self.processes.count() > 0 { self.probes.discovery.unfound() } else { Vec::new() };
        all.into_iter().filter(|hook| hook.required).map(|hook| hook.function).collect()
    }

    pub fn inlined(&self) -> Vec<InlinedHeap> {
        self.probes.discovery.inlined()
    }

    pub(super) fn handle_request(&mut self, request: Request, listener: &mut dyn Listener) -> Result<()> {
        match request {
            Request::Dump if let Some(method) = self.config.checks => {
                self.inspect_all(method, listener);
                Ok(())
            }
            Request::Dump => self.dump(WindowReason::Signal, listener),
            Request::Mark => self.set_mark(listener),
            Request::Snapshot(reply) => {
                if !reply.is_closed() {
                    // A view that no longer waits needs no reply.
                    let _ = reply.send(self.view()?);
                }
                Ok(())
            }
        }
    }

    pub(super) fn dump_if_due(&mut self, listener: &mut dyn Listener) -> Result<()> {
        let status = self.status();
        if self.windows.is_mark_due(&self.config.dumps, status.elapsed) {
            self.set_mark(listener)?;
        }
        match self.windows.due(&self.config.dumps, &status, listener.is_busy()) {
            Some(reason) => self.dump(reason, listener),
            None => Ok(()),
        }
    }

    pub(super) fn last_window(&mut self, ended: clock::Instant) -> Option<Window> {
        self.windows.has_last().then(|| self.end_window(WindowReason::End, ended))
    }

    fn end_window(&mut self, reason: WindowReason, now: clock::Instant) -> Window {
        let window = self.windows.end(reason, now, &self.status());
        self.go.read_all(&mut self.processes, now.monotonic);
        self.objects.count_all(&mut self.processes);
        let has_all_blocks = self.has_all_blocks();
        let scene = MemoryScene { plan: &self.probes.discovery.plan, residency: &self.residency, has_all_blocks };
        self.memory.sample_all(&mut self.processes, scene, now.monotonic);
        self.remove_hooked_pages();
        self.processes.note(now.monotonic, Some(SampleTrigger::Dump(self.windows.ended)));
        window
    }

    /// Counters of the kernel side, without missed frees that were no losses.
    pub(super) fn counters(&self) -> Result<Counters> {
        let mut counters = self.probes.counters()?;
        counters.subtract(Counter::MissedFree, self.inventories.replaced());
        Ok(counters)
    }

    fn dump(&mut self, reason: WindowReason, listener: &mut dyn Listener) -> Result<()> {
        self.complete_inventory(false);
        self.empty_ring();
        let (now, counters) = (clock::now(), self.counters()?);
        self.processes.refresh_thread_names();
        self.poll_generated();
        let window = self.end_window(reason, now);
        self.record_mark(now, reason.name());
        let snapshot = self.snapshot(now, &counters, Some(window));
        if self.windows.start_next(now, &snapshot.health) {
            self.processes.start_window(&snapshot.targets);
        }
        let paused = clock::now().monotonic.since(now.monotonic);
        debug!("window {} held the session for {paused:?}", self.windows.ended);
        listener.dumped(snapshot);
        Ok(())
    }

    /// Snapshot of the whole recording so far, for views. Neither ends a window nor waits for inventories.
    fn view(&mut self) -> Result<Arc<Snapshot>> {
        let begun = clock::now().monotonic;
        if let Some(latest) = self.views.reusable(begun) {
            return Ok(latest);
        }
        self.empty_ring();
        let (now, counters) = (clock::now(), self.counters()?);
        self.processes.refresh_thread_names();
        self.poll_generated();
        let snapshot = Arc::new(self.snapshot(now, &counters, None));
        self.views.keep(Arc::clone(&snapshot), now.monotonic, clock::now().monotonic);
        Ok(snapshot)
    }

    fn set_mark(&mut self, listener: &mut dyn Listener) -> Result<()> {
        self.complete_inventory(false);
        self.empty_ring();
        let (now, counters) = (clock::now(), self.counters()?);
        self.processes.note(now.monotonic, Some(SampleTrigger::Mark));
        self.record_mark(now, "mark");
        self.windows.set_mark(now, self.health(&counters));
        let states = self.states(now, true);
        self.processes.start_window(&states);
        listener.marked(self.windows.elapsed(now));
        Ok(())
    }

    fn status(&self) -> Status {
        Status {
            elapsed: self.windows.elapsed(clock::now()),
            live_bytes: self.processes.live_bytes(),
            alloc_bytes: self.processes.alloc_bytes(),
        }
    }

    /// Takes a snapshot of a window, or of the whole recording if there is no window or it is the last.
    pub(super) fn snapshot(&self, now: clock::Instant, counters: &Counters, window: Option<Window>) -> Snapshot {
        let health = self.health(counters);
        let is_whole = window.as_ref().is_none_or(|window| window.reason == WindowReason::End);
        let others = self.others_of(self.processes.others_of_window());
        let started = self.windows.started;
        Snapshot {
            interval_bytes: u64::from(self.config.interval.bytes()),
            started_unix_ns: started.unix_ns,
            started_monotonic_ns: started.monotonic.0,
            ended_unix_ns: now.unix_ns,
            older_than: self.config.older_than,
            targets: self.states(now, !is_whole),
            window: window.map(|window| self.windows.facts(window, others, &health)),
            others: self.others(),
            modules: self.probes.discovery.modules.share(),
            health,
        }
    }

    fn others(&self) -> Others {
        self.others_of(self.processes.others.clone())
    }

    fn others_of(&self, others: Others) -> Others {
        let interval_bytes = self.processes.heaps_folded.iter().map(|&heap| self.rates.interval_bytes_max(heap));
        Others { folded_interval_bytes: interval_bytes.max(), ..others }
    }

    fn states(&self, now: clock::Instant, of_window: bool) -> Vec<TargetState> {
        let targets = self.processes.all().into_iter().filter(|target| !(of_window && target.is_past()));
        targets.map(|target| target.state(now.monotonic, &self.probes.discovery.plan, &self.rates)).collect()
    }

    /// Amounts that the ledgers lack. A block that the live set had no place for may be live; a block whose record was
    /// dropped is found there. Sizes are up to the target.
    fn unaccounted(&self, counters: &Counters) -> Unaccounted {
        let (live_bytes, live_count) = (counters.get(Counter::UntrackedBytes), counters.get(Counter::UntrackedBlocks));
        Unaccounted {
            alloc_bytes: live_bytes.saturating_add(counters.get(Counter::UnwrittenBytes)),
            alloc_count: live_count.saturating_add(counters.get(Counter::UnwrittenBlocks)),
            live_bytes,
            live_count,
            is_live_behind: self.resync.is_behind() || self.processes.others.not_inherited_count > 0,
        }
    }

    fn interpreter_frames(&self, counters: &Counters) -> Option<InterpreterFrames> {
        let targets = self.processes.all();
        let stacks = targets.iter().flat_map(|target| target.ledger.stacks()).map(|(_, stack)| stack);
        self.probes.unwinding.interpreters.frames(counters, stacks, &self.probes.discovery.modules)
    }

    fn health(&self, counters: &Counters) -> Health {
        let mut lost: Vec<_> = counters.losses().map(|(counter, count)| (Loss::of(counter), count)).collect();
        let own =
            [(Loss::UnreadableRecord, self.intake.unreadable()), (Loss::UnknownFree, self.processes.frees_unknown())];
        lost.extend(own.into_iter().filter(|(_, count)| *count > 0));
        let inline_engine = self.probes.inline_engine();
        let mut health = Health {
            events: counters.get(Counter::Events),
            lost,
            unwind: counters.stack_ends().map(|(counter, count)| (counter.name().to_owned(), count)).collect(),
            frame_pointer_modules: self.probes.by_frame_pointer().to_vec(),
            unfound: self.probes.discovery.unfound(),
            inlined_heaps: self.probes.discovery.inlined(),
            resyncs: self.resync.completed,
            interval_changes: self.rates.changes(self.windows.started),
            agent_cpu_ns: clock::cpu_ns(),
            memory_sampling_ns: u64::try_from(self.memory.spent().as_nanos()).unwrap_or(u64::MAX),
            agent_rss_bytes_max: clock::rss_bytes_max(),
            guardrails: self.guard.report(),
            scope: Some(self.probes.scope(counters.get(Counter::ForeignCalls))),
            inline_engine,
            interpreters: self.interpreter_frames(counters),
            unaccounted: self.unaccounted(counters),
            symbolization: Symbolization::default(),
        };
        let without_frames = self.processes.all().into_iter().map(|target| target.ledger.blocks_without_frames());
        health.add_loss(Loss::StackLost, without_frames.fold(0, u64::saturating_add));
        health.add_loss(Loss::ProbeMissed, self.probes.kernel.probes_missed());
        health.add_loss(Loss::MappingMissed, self.probes.kernel.mappings_missed());
        health.add_loss(Loss::StubMissed, self.probes.stub_calls_missed());
        let programs = self.lifecycle.unprobed();
        health.add_loss(Loss::ProcessSkipped, self.selected.unrecorded.count());
        health.add_loss(Loss::Program32Bit, programs.of_32_bits);
        health.add_loss(Loss::MemoryShared, self.lifecycle.sharing_count());
        health.add_loss(Loss::MemoryBorrowed, self.lifecycle.borrowed_count);
        health.add_loss(Loss::Unobserved, self.probes.unobserved_count());
        health.add_loss(Loss::NotInherited, self.processes.others.not_inherited_count);
        health.add_loss(Loss::Unmonitored, u64::from(!self.lifecycle.monitors_all));
        if self.config.counts_programs || self.command.is_some() {
            health.add_loss(Loss::ProgramMissed, programs.missed);
        }
        health.add_loss(Loss::ProgramLate, programs.late);
        health
    }

    pub(super) fn start_recorder(&mut self) -> Result<()> {
        let Some((path, size_bytes_max)) = &self.config.recording else { return Ok(()) };
        let started = self.windows.started;
        let facts = SessionFacts {
            started_unix_ns: started.unix_ns,
            started_monotonic_ns: started.monotonic.0,
            interval_bytes: u64::from(self.config.interval.bytes()),
            by_thread: self.config.by_thread,
            arguments: std::env::args_os().map(|argument| shown::os_text(&argument).into_owned()).collect(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        self.processes.recorder = Some(Recorder::create(path, *size_bytes_max, facts)?);
        Ok(())
    }

    pub(super) fn record_facts(&mut self) {
        let Some(recorder) = &mut self.processes.recorder else { return };
        if !recorder.is_due() {
            return recorder.send();
        }
        match self.counters() {
            Ok(counters) => {
                let facts = health_facts(clock::now(), self.health(&counters), self.others());
                self.record_all(facts, false);
            }
            Err(error) => debug!("{error:#}"),
        }
    }

    fn record_mark(&mut self, now: clock::Instant, reason: &str) {
        if let Some(recorder) = &mut self.processes.recorder {
            recorder.mark(now.monotonic, reason);
        }
    }

    /// Records the final facts, which equal those of the last snapshot. Then the recording lacks only names.
    pub(super) fn end_recorder(&mut self, snapshot: &Snapshot, ended: clock::Instant) -> Option<Recorder> {
        self.record_all(health_facts(ended, snapshot.health.clone(), snapshot.others.clone()), true);
        self.processes.recorder.take().map(|recorder| recorder.end(ended.monotonic))
    }

    /// Records modules, targets and health. `is_last` includes ended targets that were recorded before.
    fn record_all(&mut self, facts: HealthFacts, is_last: bool) {
        self.processes.record_corrections();
        let Some(mut recorder) = self.processes.recorder.take() else { return };
        recorder.modules(&self.probes.discovery.modules);
        let ended = self.processes.ended.iter();
        let ended = ended.filter(|target| is_last || !recorder.is_complete(&target.ledger));
        let changed: Vec<&Target> = ended.chain(self.processes.running()).collect();
        for target in changed {
            let heaps = target.heaps(&target.ledger.heaps(), &self.probes.discovery.plan, &self.rates);
            let known = TargetRecord { facts: target.facts(), begun: target.was_recorded(), heaps };
            recorder.target(&target.ledger, known, &target.mappings.space, &target.threads.names);
        }
        recorder.forget_removed(|| {
            let kept = self.processes.ended.iter().chain(self.processes.running());
            kept.filter_map(|target| target.ledger.id()).collect()
        });
        recorder.health(facts);
        recorder.send();
        self.processes.recorder = Some(recorder);
    }

    pub fn inspect_all(&mut self, method: Method, listener: &mut dyn Listener) {
        let pids: Vec<Pid> = self.processes.running().map(|target| target.pid).collect();
        let launched = self.command.as_ref().and_then(Command::traced);
        self.inspect_command(method, listener);
        self.inspect_followed(method, listener);
        let is_followed = |pid: Pid| self.followed.as_ref().is_some_and(|followed| followed.contains(pid));
        let others: Vec<Pid> = pids.into_iter().filter(|pid| Some(*pid) != launched && !is_followed(*pid)).collect();
        for pid in others {
            listener.inspected(self.inspect(pid, method));
        }
    }

    pub(super) fn inspect_launched(&mut self, launch: &Launch, method: Method, at_exit: bool) -> Result<HeapSnapshot> {
        // An exiting process cannot be forked.
        let method = if at_exit { Method::Read } else { method };
        let pid = launch.pid();
        // One try: the threads do not run between two.
        self.inspect_by(pid, at_exit, 1, |while_stopped| {
            collect(pid, method, || launch.stopped_process(), while_stopped)
        })
    }

    /// Stops the target, enters its events and takes a heap snapshot. Fails if it is not a target or has exited.
    pub fn inspect(&mut self, pid: Pid, method: Method) -> Result<HeapSnapshot> {
        let keeper = self.probes.keeper().clone();
        self.inspect_by(pid, false, TRIES_MAX, |while_stopped| {
            collect(pid, method, || keeper::stop(&keeper, pid), while_stopped)
        })
    }

    fn inspect_by(
        &mut self,
        pid: Pid,
        at_exit: bool,
        tries_max: u32,
        mut collect: impl FnMut(&mut dyn FnMut(&[ThreadState])) -> Result<Collected, CollectError>,
    ) -> Result<HeapSnapshot> {
        let mut now = clock::now();
        let (collected, walks) = collect_at_rest(tries_max, || {
            collect(&mut |_| {
                self.catch_up_stopped();
                now = clock::now();
            })
        })?;
        let counters = self.counters()?;
        let mut snapshot = self.snapshot(now, &counters, None);
        snapshot.targets.retain(|state| state.facts.pid == pid && !state.facts.is_replaced());
        if snapshot.targets.is_empty() {
            bail!(
                "cannot check process `{pid}` for leaks: no function of an allocator could be probed in it (is it \
                 stripped and statically linked?); `heapbpf leaks --pid` walks the heap of such a process while it runs"
            );
        }
        let target = self.processes.get(pid).with_context(|| format!("process `{pid}` is no longer recorded"))?;
        let blocks = target
            .ledger
            .blocks()
            .map(|(address, size_bytes, callsite, born)| RecordedBlock::new(address, size_bytes, callsite, born));
        let is_exact = self.config.interval == Interval::EXACT && snapshot.health.interval_changes.is_empty();
        let is_whole = snapshot.health.lost_of_targets() == 0 && target.beginning.from_first_call;
        let mut hooks = snapshot.targets.iter().flat_map(|state| &state.heaps).flat_map(|heap| &heap.hooks);
        let has_all_hooks = !hooks.any(HookStatus::is_missing);
        let coverage = Coverage {
            duration_ns: now.monotonic.0.saturating_sub(target.beginning.time.0),
            is_complete: is_exact && is_whole && has_all_hooks,
        };
        Ok(HeapSnapshot {
            collected,
            walks,
            recorded: blocks.collect(),
            now: now.monotonic,
            state: snapshot,
            coverage: Some(coverage),
            at_exit,
            unchecked_children: self.unchecked_children(),
        })
    }

    /// Number of processes that the command has created, and that were not checked at their exit.
    fn unchecked_children(&self) -> u64 {
        let checked = self.followed.as_ref().map_or(0, Followed::checked_count);
        if self.counts_children() { self.lifecycle.created_count().saturating_sub(checked) } else { 0 }
    }

    fn catch_up_stopped(&mut self) {
        self.catch_up();
        self.resync_at_end();
    }
}

fn health_facts(now: clock::Instant, health: Health, others: Others) -> HealthFacts {
    HealthFacts { monotonic_ns: now.monotonic.0, unix_ns: now.unix_ns, health, others }
}
