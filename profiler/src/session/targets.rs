//! The targets of a session: those that run, by pid, and those that have ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time;

use crate::ids::{HeapId, Pid};
use crate::ingest::event::{Event, Exec};
use crate::ledger::timeline::{Instant, Occasion};
use crate::ledger::totals::Totals;
use crate::model::{Others, Skipped};
use crate::probe::plan::Plan;
use crate::process::target::{Exit, Process};
use crate::recording::recorder::{RecordedLedger, Recorder};
use crate::snapshot::{Base, TargetState};
use crate::units::{EstimatedBytes, MonotonicNanos};

use super::lifecycle::Descent;
use super::target::{End, Target};

#[derive(Default)]
pub(super) struct Targets {
    running: BTreeMap<Pid, Target>,
    ended: Vec<Target>,
    pub(super) others: Others,
    /// Is told whatever becomes of books; `None` where nothing is recorded.
    pub(super) recorder: Option<Recorder>,
    window: OthersWindow,
    /// Callsites are told apart by thread.
    by_thread: bool,
    /// It is to be known what threads are called.
    names_threads: bool,
    /// Of targets that are kept as sums alone.
    frees_unknown_folded: u64,
    /// Their heaps.
    pub(super) heaps_folded: BTreeSet<HeapId>,
}

/// What others have done in the present window.
#[derive(Default)]
struct OthersWindow {
    /// As they stood when it began.
    base: Others,
    /// Targets that were in it and are kept as sums alone.
    folded_count: u64,
    folded_totals: Totals,
}

/// Ended targets that are kept one by one. When there are more, those that allocated least are folded into sums.
const ENDED_MAX: usize = 1000;

/// Skipped processes that are named.
const SKIPPED_MAX: usize = 100;

/// Names of threads that are read in one go, so that it takes a millisecond, and when a profile is made.
const NAMES_READ_MAX: usize = 128;
const NAMES_REFRESHED_MAX: usize = 10_000;

impl Targets {
    /// None yet. `is_recorded` says that whoever reads the recording may ask for threads later.
    pub(super) fn new(by_thread: bool, is_recorded: bool) -> Self {
        Self { by_thread, names_threads: by_thread || is_recorded, ..Self::default() }
    }

    /// Reads names of threads that are due.
    pub(super) fn read_thread_names(&mut self, now: time::Instant) {
        let mut left = NAMES_READ_MAX;
        for target in self.running.values_mut() {
            left -= target.read_thread_names(now, left);
        }
    }

    /// Reads names of threads again: they may have changed.
    pub(super) fn refresh_thread_names(&mut self) {
        let mut left = NAMES_REFRESHED_MAX;
        for target in self.running.values_mut() {
            left -= target.refresh_thread_names(left);
        }
    }

    pub(super) fn get_mut(&mut self, pid: Pid) -> Option<&mut Target> {
        self.running.get_mut(&pid)
    }

    pub(super) fn get(&self, pid: Pid) -> Option<&Target> {
        self.running.get(&pid)
    }

    /// Those that have ended, as far as they are kept one by one.
    pub(super) fn ended(&self) -> &[Target] {
        &self.ended
    }

    /// Those that run.
    pub(super) fn running(&self) -> impl Iterator<Item = &Target> {
        self.running.values()
    }

    pub(super) fn running_mut(&mut self) -> impl Iterator<Item = &mut Target> {
        self.running.values_mut()
    }

    /// How many run.
    pub(super) fn count(&self) -> usize {
        self.running.len()
    }

    /// All, those that began first before the others.
    pub(super) fn all(&self) -> Vec<&Target> {
        let mut all: Vec<&Target> =
            self.ended.iter().chain(self.running.values().filter(|target| target.has_begun())).collect();
        all.sort_by_key(|target| (target.beginning.time, target.pid));
        all
    }

    /// A window begins where the targets have these states, which were just taken, of all or of those that are not past.
    pub(super) fn rebase(&mut self, states: &[TargetState]) {
        let running = self.running.values_mut().filter(|target| target.has_begun());
        let mut all: Vec<&mut Target> = self.ended.iter_mut().chain(running).filter(|it| !it.is_past()).collect();
        all.sort_by_key(|target| (target.beginning.time, target.pid));
        let states = states.iter().filter(|state| !matches!(state.base, Base::Ended));
        for (target, state) in all.into_iter().zip(states) {
            target.begin_window(Arc::clone(&state.books));
        }
    }

    /// Bytes that all have allocated since the recording began.
    pub(super) fn alloc_bytes(&self) -> EstimatedBytes {
        let kept = self.running.values().chain(&self.ended).map(|target| target.ledger.totals().alloc_bytes);
        kept.sum::<EstimatedBytes>() + self.others.folded_totals.alloc_bytes
    }

    /// A new one. Returns the one that had its number before and was not seen to end: it has.
    pub(super) fn add(&mut self, mut target: Target) -> Option<Target> {
        if self.by_thread {
            target.ledger.distinguish_threads();
        }
        if self.names_threads {
            target.threads.ask();
        }
        if let Some(recorder) = &mut self.recorder {
            if target.ledger.id().is_none() {
                recorder.open(&mut target.ledger, target.pid);
            }
            recorder.join(target.pid, &target.ledger);
        }
        let mut before = self.running.insert(target.pid, target)?;
        before.end = Some(End::Exited(Exit { code: None }));
        Some(before)
    }

    /// Takes an event to its target's books. Other processes' events are nobody's: with perf events, a vfork child runs
    /// into its parent's probes.
    pub(super) fn enter(&mut self, event: Event) {
        if let Some(target) = self.running.get_mut(&event.pid()) {
            if let Some(recorder) = &mut self.recorder {
                recorder.event(&event);
            }
            target.enter(event);
        }
    }

    /// Notes what callsites hold, of targets of which it is time to.
    pub(super) fn note_growth(&mut self, now: MonotonicNanos) {
        self.record_corrections();
        for target in self.running.values_mut() {
            if target.timeline.is_due(now) {
                target.note(Instant { time: now, occasion: None }, self.recorder.as_mut());
            }
        }
    }

    /// Notes what callsites hold now that something happens.
    pub(super) fn note_occasion(&mut self, now: MonotonicNanos, occasion: Occasion) {
        self.record_corrections();
        for target in self.running.values_mut() {
            target.note(Instant { time: now, occasion: Some(occasion) }, self.recorder.as_mut());
        }
    }

    /// Tells the recording how books were put right. To be done before the next event is taken.
    pub(super) fn record_corrections(&mut self) {
        let Some(recorder) = &mut self.recorder else { return };
        self.running.values_mut().for_each(|target| recorder.correct(&mut target.ledger));
    }

    /// How what a target makes stands to it.
    pub(super) fn descent(&self, parent: Pid) -> Option<Descent> {
        self.running.get(&parent).map(|parent| Descent { requested: parent.requested })
    }

    /// The books of the program that a target ran until now; it goes on with empty ones. `None` when it was another process
    /// that called exec, which has the number of a target that ended.
    pub(super) fn exec(&mut self, exec: &Exec) -> Option<RecordedLedger> {
        let target = self.running.get_mut(&exec.pid)?;
        if target.process.as_ref().is_some_and(Process::is_pid_reused) {
            return None;
        }
        let mut next: RecordedLedger = target.ledger.succeed().into();
        if let Some(recorder) = &mut self.recorder {
            recorder.succeed(&target.ledger, &mut next);
        }
        Some(std::mem::replace(&mut target.ledger, next))
    }

    /// Takes a running target out.
    pub(super) fn remove(&mut self, pid: Pid) -> Option<Target> {
        let target = self.running.remove(&pid)?;
        if let Some(recorder) = &mut self.recorder {
            recorder.leave(pid);
        }
        Some(target)
    }

    /// Keeps a target that has ended.
    pub(super) fn keep(&mut self, mut target: Target, plan: &Plan) {
        if target.hooks.is_empty() && target.ledger.totals().is_empty() {
            // It was never watched.
            return;
        }
        if let Some(recorder) = &mut self.recorder {
            let closed = target.age_statistics_at_end.as_ref().map(|age_statistics| age_statistics.counted);
            recorder.end_target(&mut target.ledger, closed);
        }
        self.ended.push(target);
        if self.ended.len() > ENDED_MAX {
            let smallest = (0..self.ended.len()).min_by_key(|&i| self.ended[i].ledger.totals().alloc_bytes);
            let folded = self.ended.swap_remove(smallest.unwrap_or(0));
            self.others.folded_count += 1;
            self.others.folded_totals.add(folded.ledger.totals());
            if let Some(totals) = folded.window_totals() {
                self.window.folded_count += 1;
                self.window.folded_totals.add(&totals);
            }
            self.frees_unknown_folded += folded.ledger.frees_unknown();
            self.heaps_folded.extend(folded.hooks.heap_ids(&folded.ledger.snapshot(MonotonicNanos(0)).heaps, plan));
        }
    }

    /// A process that was meant and cannot be profiled.
    pub(super) fn skip(&mut self, pid: Pid, command: String, reason: String) {
        self.others.skipped_count += 1;
        if self.others.skipped.len() < SKIPPED_MAX {
            self.others.skipped.push(Skipped { pid, command, reason });
        }
    }

    /// Those of the present window that are not kept one by one.
    pub(super) fn others_of_window(&self) -> Others {
        let OthersWindow { base, folded_count, folded_totals } = &self.window;
        Others {
            skipped: self.others.skipped.iter().skip(base.skipped.len()).cloned().collect(),
            skipped_count: self.others.skipped_count - base.skipped_count,
            short_lived_count: self.others.short_lived_count - base.short_lived_count,
            not_inherited_count: self.others.not_inherited_count - base.not_inherited_count,
            folded_count: *folded_count,
            folded_totals: *folded_totals,
            folded_interval_bytes: None,
        }
    }

    /// A window begins now.
    pub(super) fn begin_window(&mut self) {
        self.window = OthersWindow { base: self.others.clone(), ..OthersWindow::default() };
    }

    /// The recording is over: names those that run and never had probes.
    pub(super) fn skip_unprofilable(&mut self) {
        let reasons: Vec<(Pid, String, String)> = self
            .running
            .values_mut()
            .filter_map(|target| Some((target.pid, target.command.clone(), target.unprofilable.take()?)))
            .collect();
        for (pid, command, reason) in reasons {
            self.skip(pid, command, reason);
        }
    }

    /// Asks again for exit codes that were not known when targets ended.
    pub(super) fn learn_exit_codes(&mut self) {
        for target in &mut self.ended {
            if let (Some(End::Exited(exit @ Exit { code: None })), Some(process)) = (&mut target.end, &target.process)
                && let Some(known) = process.exit_now()
            {
                *exit = known;
                target.process = None;
            }
        }
    }

    /// Live bytes of all that run.
    pub(super) fn live_bytes(&self) -> EstimatedBytes {
        self.running.values().map(|target| target.ledger.totals().live_bytes()).sum()
    }

    /// Live sampled blocks of all that run.
    pub(super) fn live_blocks(&self) -> usize {
        self.running.values().map(|target| target.ledger.live_blocks()).sum()
    }

    /// Frees of blocks that no books have.
    pub(super) fn frees_unknown(&self) -> u64 {
        let kept = self.running.values().chain(&self.ended).map(|target| target.ledger.frees_unknown());
        kept.sum::<u64>() + self.frees_unknown_folded
    }
}
