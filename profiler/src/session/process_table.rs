//! Targets of a session: running ones by pid, ended ones, and the sums of all others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::{HeapId, Identity, LedgerId, Pid, StackId};
use heapbpf_base::units::{EstimatedBytes, MonotonicNanos};
use heapbpf_ledger::ingest::event::{Allocation, Event, Free, Stack};
use heapbpf_ledger::ingest::record::Exec;
use heapbpf_ledger::model::{End, Inventory, ObjectTypes, Others, Skipped};
use heapbpf_ledger::timeline::{SampleTrigger, TimelinePoint};
use heapbpf_ledger::totals::Totals;
use heapbpf_ledger::{CallsiteLimit, Ledger, LiveAllocation};
use heapbpf_linux::proc::stat::Stat;
use profiler_common::pages::PAGE_FLAG;
use rustc_hash::FxHashSet;
use tracing::warn;

use super::config::{Engine, SessionConfig, Treatment};
use super::discovery::Discovery;
use super::target::{ForkedChild, Target};
use crate::account::{SampleTime, Sampled};
use crate::go_heap::BLOCK_FLAG;
use crate::probe::plan::Plan;
use crate::process::selection::ProcessFacts;
use crate::process::target::{Exits, Process};
use crate::recording::recorder::Recorder;
use crate::snapshot::{Base, TargetState};

#[derive(Default)]
pub(super) struct ProcessTable {
    running: BTreeMap<Pid, Target>,
    pub(super) ended: Vec<Target>,
    pub(super) others: Others,
    window: OthersWindow,
    /// `None` in tests.
    exits: Option<Exits>,
    /// Records all changes of ledgers; `None` without a recording.
    pub(super) recorder: Option<Recorder>,
    /// Stacks of processes that are not targets yet: the kernel side sends the frames of a stack once.
    early_stacks: VecDeque<Event>,
    /// Events of pages of processes that are not targets yet: a forked child's faults are recorded from the fork on.
    early_pages: VecDeque<Event>,
    /// Matching processes that cannot be profiled, or must not be again.
    declined: BTreeSet<Identity>,
    callsite_limit: CallsiteLimit,
    /// Number of unknown frees of ended targets that were folded into the totals.
    frees_unknown_folded: u64,
    pub(super) heaps_folded: BTreeSet<HeapId>,
    /// Stacks of ended targets that were folded into the totals.
    stacks_folded: Vec<StackId>,
}

#[derive(Default)]
struct OthersWindow {
    base: Others,
    /// Number of targets of the window that were folded into its totals.
    folded_count: u64,
    folded_totals: Totals,
}

/// Maximum number of ended targets that are kept individually. When there are more, those with the fewest allocations
/// are merged into totals.
const ENDED_MAX: usize = 1000;
const SKIPPED_MAX: usize = 100;

/// Gap in the inventory of a target that has ended before its heaps were walked.
const ENDED_EARLY: &str =
    "all heaps: the process exited, executed another program or was detached before they were walked";

/// Maximum number of early stacks: beyond it, the oldest are dropped. They take at most 4 MiB.
const EARLY_STACKS_MAX: usize = 4096;
/// Maximum number of events of pages to keep for processes that are not targets yet: those of 256 MiB, if every page is recorded.
const EARLY_PAGES_MAX: usize = 1 << 16;

/// Maximum number of thread names that are read at once, which takes a millisecond, and for a snapshot.
const NAMES_READ_MAX: usize = 128;
const NAMES_REFRESHED_MAX: usize = 10_000;

/// Whether the event is of a page, not of a block.
fn is_of_page(event: &Event) -> bool {
    match event {
        Event::Alloc(Allocation { address, .. }) | Event::Free(Free { address, .. }) => address.0 & PAGE_FLAG != 0,
        Event::Restore(_) | Event::Stack(..) | Event::Remap(_) => false,
    }
}

impl ProcessTable {
    pub(super) fn new(callsite_limit: CallsiteLimit) -> Result<Self> {
        let exits = Exits::new().context("cannot monitor processes for their exit")?;
        Ok(Self { exits: Some(exits), callsite_limit, ..Self::default() })
    }

    pub(super) async fn exited(&self) -> Vec<Pid> {
        match &self.exits {
            Some(exits) => exits.next().await,
            None => std::future::pending().await,
        }
    }

    pub(super) fn read_thread_names(&mut self) {
        let (now, mut left) = (Instant::now(), NAMES_READ_MAX);
        for target in self.running.values_mut().filter(|target| target.threads.is_due(now)) {
            if left > 0 && !target.is_gone() {
                left -= target.threads.read(target.pid, now, left);
            }
        }
    }

    pub(super) fn refresh_thread_names(&mut self) {
        let mut left = NAMES_REFRESHED_MAX;
        for target in self.running.values_mut().filter(|target| !target.is_gone()) {
            left -= target.threads.refresh(target.pid, left);
        }
    }

    pub(super) fn get_mut(&mut self, pid: Pid) -> Option<&mut Target> {
        self.running.get_mut(&pid)
    }

    pub(super) fn get(&self, pid: Pid) -> Option<&Target> {
        self.running.get(&pid)
    }

    pub(super) fn running(&self) -> impl Iterator<Item = &Target> {
        self.running.values()
    }

    pub(super) fn running_mut(&mut self) -> impl Iterator<Item = &mut Target> {
        self.running.values_mut()
    }

    /// PIDs of all targets, also ended ones.
    pub(super) fn pids(&self) -> FxHashSet<Pid> {
        self.ended.iter().chain(self.running.values()).map(|target| target.pid).collect()
    }

    pub(super) fn count(&self) -> usize {
        self.running.len()
    }

    pub(super) fn all(&self) -> Vec<&Target> {
        let running = self.running.values().filter(|target| target.was_recorded());
        let mut all: Vec<&Target> = self.ended.iter().chain(running).collect();
        all.sort_by_key(|target| (target.beginning.time, target.pid));
        all
    }

    /// Starts a window at these states of all targets, or of those that are not past.
    pub(super) fn start_window(&mut self, states: &[TargetState]) {
        self.window = OthersWindow { base: self.others.clone(), ..OthersWindow::default() };
        let running = self.running.values_mut().filter(|target| target.was_recorded());
        let mut all: Vec<&mut Target> = self.ended.iter_mut().chain(running).filter(|it| !it.is_past()).collect();
        all.sort_by_key(|target| (target.beginning.time, target.pid));
        let states = states.iter().filter(|state| !matches!(state.base, Base::Ended));
        for (target, state) in all.into_iter().zip(states) {
            target.start_window(Arc::clone(&state.ledger));
        }
    }

    /// Adds a target. Returns an earlier one with its pid, which must have exited unnoticed.
    pub(super) fn add(&mut self, mut target: Target) -> Option<Target> {
        let pid = target.pid;
        target.ledger.limit_callsites(&self.callsite_limit);
        if let (Some(exits), Some(process)) = (&self.exits, &target.process)
            && let Err(error) = exits.add(pid, process)
        {
            warn!("cannot monitor process {pid} for its exit: {error}");
        }
        if let Some(recorder) = &mut self.recorder {
            if target.ledger.id().is_none() {
                recorder.open(&mut target.ledger, pid);
            }
            recorder.join(pid, &target.ledger);
        }
        let (early, others): (VecDeque<Event>, _) = self.early_stacks.drain(..).partition(|stack| stack.pid() == pid);
        self.early_stacks = others;
        let earlier = self.stacks_of_earlier(pid).filter(|(id, _)| !target.ledger.has_stack(*id));
        let earlier: Vec<Event> = earlier.map(|(id, stack)| Event::Stack(pid, id, stack.clone())).collect();
        let (pages, others): (VecDeque<Event>, _) = self.early_pages.drain(..).partition(|page| page.pid() == pid);
        self.early_pages = others;
        for event in earlier.into_iter().chain(early).chain(pages) {
            Self::enter_into(&mut target, self.recorder.as_mut(), event);
        }
        let mut before = self.running.insert(pid, target)?;
        before.set_end(End::Exited { code: None });
        Some(before)
    }

    /// Frames of the latest process that had this pid. The id of a stack follows from the pid and the addresses, and the kernel side
    /// sends the frames of an id once, so a process that gets the same pid does not send those that its predecessor has sent.
    fn stacks_of_earlier(&self, pid: Pid) -> impl Iterator<Item = (StackId, &Stack)> {
        let ended = || self.ended.iter().rfind(|target| target.pid == pid);
        self.running.get(&pid).or_else(ended).into_iter().flat_map(|target| target.ledger.stacks())
    }

    /// Takes the stacks whose frames are in no ledger any more: the kernel side must send them again.
    pub(super) fn take_folded_stacks(&mut self) -> Vec<StackId> {
        std::mem::take(&mut self.stacks_folded)
    }

    /// Enters an event into the ledger of its target. Ignores events of processes that are not targets, except stacks:
    /// with shared probes, a forked child is sampled before it is a target, and with perf events, a vfork child hits
    /// its parent's probes.
    pub(super) fn enter(&mut self, event: Event) {
        if let Some(target) = self.running.get_mut(&event.pid()) {
            Self::enter_into(target, self.recorder.as_mut(), event);
        } else if matches!(event, Event::Stack(..)) {
            if self.early_stacks.len() == EARLY_STACKS_MAX {
                self.early_stacks.pop_front();
            }
            self.early_stacks.push_back(event);
        } else if is_of_page(&event) {
            if self.early_pages.len() == EARLY_PAGES_MAX {
                self.early_pages.pop_front();
            }
            self.early_pages.push_back(event);
        }
    }

    pub(super) fn pids_of_early_pages(&self) -> BTreeSet<Pid> {
        self.early_pages.iter().map(Event::pid).collect()
    }

    /// Takes the pages of processes that are not targets, and will be none, which must leave the live set.
    pub(super) fn take_early_pages(&mut self, is_gone: impl Fn(Pid) -> bool) -> Vec<(Pid, TargetAddr)> {
        let (gone, others): (VecDeque<Event>, _) =
            std::mem::take(&mut self.early_pages).into_iter().partition(|page| is_gone(page.pid()));
        self.early_pages = others;
        let page = |event: Event| match event {
            Event::Alloc(page) => Some((page.pid, page.address)),
            _ => None,
        };
        gone.into_iter().filter_map(page).collect()
    }

    /// Replaces the addresses of a stack of a process by those that stand for what is mapped there now.
    pub(super) fn place(&self, pid: Pid, stack: &mut Stack) {
        if let Some(target) = self.running.get(&pid) {
            target.mappings.space.place(stack);
        }
    }

    /// Replaces the frames of a stack that was cut, also in ledgers of children forked since.
    pub(super) fn complete(&mut self, pid: Pid, id: StackId, stack: &Stack) {
        let knows = |target: &&Target| target.pid == pid || target.ledger.has_stack(id);
        let pids: Vec<Pid> = self.running.values().filter(knows).map(|target| target.pid).collect();
        pids.into_iter().for_each(|pid| self.enter(Event::Stack(pid, id, stack.clone())));
    }

    fn enter_into(target: &mut Target, recorder: Option<&mut Recorder>, event: Event) {
        if let Some(recorder) = recorder {
            recorder.event(&event);
        }
        target.enter(event);
    }

    /// Adds the live bytes of callsites to the timelines: for a trigger to all timelines, otherwise to those that are
    /// due.
    pub(super) fn note(&mut self, time: MonotonicNanos, trigger: Option<SampleTrigger>) {
        self.record_corrections();
        for target in self.running.values_mut() {
            if trigger.is_some() || !target.awaits_inventory && target.timeline.is_due(time) {
                target.note(TimelinePoint { time, trigger }, self.recorder.as_mut());
            }
        }
    }

    /// Samples the memory of a target. `before` are the pages that have been resident since before the recording began, if pages are
    /// recorded.
    pub(super) fn sample_memory(
        &mut self,
        pid: Pid,
        plan: &Plan,
        before: Option<&[Range<u64>]>,
        has_all_blocks: bool,
        when: SampleTime,
    ) {
        let Some(target) = self.running.get_mut(&pid).filter(|target| !target.is_gone()) else { return };
        target.files.narrow();
        let began = target.beginning.from_first_call.then_some(target.beginning.time);
        let own = target.hooks.heap_ids(&target.ledger.heaps(), plan);
        let sampled =
            Sampled { pid, ledger: &target.ledger, has_all_blocks, heaps: plan.heaps(), own: &own, began, before };
        let facts = target.memory.sample(sampled, when);
        if let Some(recorder) = self.recorder.as_mut().filter(|_| !facts.points.is_empty()) {
            recorder.memory(&target.ledger, facts);
        }
    }

    pub(super) fn set_inventory(&mut self, pid: Pid, inventory: Inventory) {
        let Some(target) = self.running.get_mut(&pid) else { return };
        target.awaits_inventory = false;
        let facts = target.memory.set_inventory(inventory, &target.ledger);
        if let Some(recorder) = &mut self.recorder {
            recorder.memory(&target.ledger, facts);
        }
    }

    /// Sets the last count of the objects of a runtime.
    pub(super) fn set_objects(&mut self, pid: Pid, types: ObjectTypes) {
        let Some(target) = self.running.get_mut(&pid) else { return };
        let facts = target.memory.set_objects(types);
        if let Some(recorder) = &mut self.recorder {
            recorder.memory(&target.ledger, facts);
        }
    }

    /// Enters a page of the kernel's live set whose record was dropped.
    pub(super) fn enter_found(&mut self, pid: Pid, page: &LiveAllocation) {
        let Some(target) = self.running.get_mut(&pid) else { return };
        target.ledger.insert_found(page);
        if let Some(recorder) = &mut self.recorder {
            recorder.correct(&mut target.ledger);
        }
    }

    /// Enters a live block from before the recording, whose stack is known.
    pub(super) fn enter_open(&mut self, pid: Pid, block: &LiveAllocation) {
        let Some(target) = self.running.get_mut(&pid) else { return };
        target.ledger.enter_open(block);
        if let Some(recorder) = &mut self.recorder {
            recorder.correct(&mut target.ledger);
        }
    }

    /// Notes pages of a target whose program has ended, of which it is not known whether a hooked heap had them.
    pub(super) fn note_undecided(&mut self, target: &mut Target, pages: EstimatedBytes) {
        add_undecided(target, pages, self.recorder.as_mut());
    }

    /// As [`note_undecided`](Self::note_undecided), of a target that is running still.
    pub(super) fn note_undecided_of(&mut self, pid: Pid, pages: EstimatedBytes) {
        if let Some(target) = self.running.get_mut(&pid) {
            add_undecided(target, pages, self.recorder.as_mut());
        }
    }

    /// Records the corrections of ledgers by resync. Must precede the next event.
    pub(super) fn record_corrections(&mut self) {
        let Some(recorder) = &mut self.recorder else { return };
        self.running.values_mut().for_each(|target| recorder.correct(&mut target.ledger));
    }

    /// Records the corrections by resync of a ledger that belongs to no running target. Must precede the next event.
    pub(super) fn record_corrections_of(&mut self, ledger: &mut Ledger) {
        if let Some(recorder) = &mut self.recorder {
            recorder.correct(ledger);
        }
    }

    /// Records that a child starts with its parent's blocks, or with none if `blocks_max` or the limit of callsites is exceeded.
    pub(super) fn inherit(&mut self, parent_ledger: Option<LedgerId>, forked: &mut ForkedChild, blocks_max: usize) {
        let child = forked.fork.child;
        let is_empty = forked.ledger.live_blocks() > blocks_max || forked.ledger.exceeds_callsites();
        if is_empty {
            forked.ledger = forked.ledger.empty(child);
            self.others.not_inherited_count += 1;
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.fork(parent_ledger, &mut forked.ledger, child, is_empty);
        }
        // Until the child writes to a page, it is the parent's; and only the runtime of a program that executes on knows its heap.
        let is_others = |block: &LiveAllocation| block.address.0 & (PAGE_FLAG | BLOCK_FLAG) != 0;
        let others: Vec<LiveAllocation> = forked.ledger.live().filter(is_others).collect();
        others.iter().for_each(|block| forked.ledger.thin(block, None));
        self.record_corrections_of(&mut forked.ledger);
    }

    /// Handles the exec of a target. Returns the ledger of the previous program; `None` if the process is not a target
    /// but reuses the pid of one.
    pub(super) fn exec(&mut self, exec: &Exec) -> Option<Ledger> {
        let target = self.running.get_mut(&exec.pid)?;
        if target.process.as_ref().is_some_and(Process::is_pid_reused) {
            return None;
        }
        let mut next = target.ledger.succeed();
        if let Some(recorder) = &mut self.recorder {
            recorder.succeed(&target.ledger, &mut next);
        }
        Some(std::mem::replace(&mut target.ledger, next))
    }

    pub(super) fn remove(&mut self, pid: Pid) -> Option<Target> {
        let target = self.running.remove(&pid)?;
        if let Some(recorder) = &mut self.recorder {
            recorder.leave(pid);
        }
        Some(target)
    }

    pub(super) fn keep(&mut self, mut target: Target, plan: &Plan) {
        if (target.hooks.is_empty() || !target.was_recorded()) && target.ledger.totals().is_empty() {
            return;
        }
        if std::mem::take(&mut target.awaits_inventory) {
            let gaps = vec![ENDED_EARLY.to_owned()];
            let inventory = Inventory { gaps, interval_bytes: 1, ..Inventory::default() };
            let facts = target.memory.set_inventory(inventory, &target.ledger);
            if let Some(recorder) = &mut self.recorder {
                recorder.memory(&target.ledger, facts);
            }
        }
        if let Some(recorder) = &mut self.recorder {
            let closed = target.age_statistics.as_ref().map(|statistics| statistics.counted);
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
            self.stacks_folded.extend(folded.ledger.stacks().map(|(id, _)| id));
            self.heaps_folded.extend(folded.hooks.heap_ids(&folded.ledger.snapshot(MonotonicNanos(0)).heaps, plan));
        }
    }

    pub(super) fn skip(&mut self, pid: Pid, command: String, reason: String) {
        self.others.skipped_count += 1;
        if self.others.skipped.len() < SKIPPED_MAX {
            self.others.skipped.push(Skipped { pid, command, reason });
        }
    }

    /// Ignores the process from now on. One that has exited is only counted.
    pub(super) fn decline(&mut self, identity: Identity, command: String, error: &anyhow::Error) {
        if Stat::of_process(identity.pid).is_ok_and(|stat| stat.is_of(identity) && !stat.has_ended()) {
            self.ignore(identity);
            self.skip(identity.pid, command, format!("{error:#}"));
        } else {
            self.others.short_lived_count += 1;
        }
    }

    /// Opens a process that matches the selection. `None` if the policy skips it or it cannot be profiled.
    pub(super) fn open(
        &mut self,
        facts: &ProcessFacts,
        config: &SessionConfig,
        discovery: &mut Discovery,
    ) -> Option<Target> {
        let opened = match config.treatment(facts) {
            Treatment::Record(engine) => discovery.open(facts.pid()).map(|mut target| {
                target.traps_only = engine == Engine::Trap;
                target
            }),
            Treatment::Skip(reason) => Err(anyhow!(reason)),
        };
        opened.inspect_err(|error| self.decline(facts.identity, facts.command(), error)).ok()
    }

    pub(super) fn ignore(&mut self, identity: Identity) {
        self.declined.insert(identity);
    }

    pub(super) fn retain_new(&mut self, found: &mut Vec<ProcessFacts>) {
        let running: BTreeSet<Identity> = found.iter().map(|facts| facts.identity).collect();
        self.declined.retain(|identity| running.contains(identity));
        found.retain(|facts| !self.declined.contains(&facts.identity));
    }

    pub(super) fn others_of_window(&self) -> Others {
        let OthersWindow { base, folded_count, folded_totals } = &self.window;
        Others {
            folded_count: *folded_count,
            folded_totals: *folded_totals,
            folded_interval_bytes: None,
            ..self.others.since(base)
        }
    }

    pub(super) fn skip_unprofilable(&mut self) {
        for pid in self.running.keys().copied().collect::<Vec<_>>() {
            let Some(target) = self.running.get_mut(&pid) else { continue };
            if let Some(reason) = target.starting().and_then(|starting| starting.unprofilable.take()) {
                let command = target.command.clone();
                self.skip(pid, command, reason);
            }
        }
    }

    pub(super) fn update_exit_codes(&mut self) {
        self.ended.iter_mut().for_each(Target::update_exit_code);
    }

    pub(super) fn alloc_bytes(&self) -> EstimatedBytes {
        let kept = self.running.values().chain(&self.ended).map(|target| target.ledger.totals().alloc_bytes);
        kept.sum::<EstimatedBytes>() + self.others.folded_totals.alloc_bytes
    }

    pub(super) fn live_bytes(&self) -> EstimatedBytes {
        self.running.values().map(|target| target.ledger.totals().live_bytes()).sum()
    }

    /// Totals of all running targets.
    pub(super) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        self.running.values().for_each(|target| totals.add(target.ledger.totals()));
        totals
    }

    pub(super) fn live_blocks(&self) -> usize {
        self.running.values().map(|target| target.ledger.live_blocks()).sum()
    }

    pub(super) fn frees_unknown(&self) -> u64 {
        let kept = self.running.values().chain(&self.ended).map(|target| target.ledger.frees_unknown());
        kept.sum::<u64>() + self.frees_unknown_folded
    }
}

fn add_undecided(target: &mut Target, pages: EstimatedBytes, recorder: Option<&mut Recorder>) {
    let facts = target.memory.add_undecided(pages);
    if let Some((recorder, facts)) = recorder.zip(facts) {
        recorder.memory(&target.ledger, facts);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use heapbpf_base::address::TargetAddr;
    use heapbpf_base::ids::{HookId, StartTime, Tid};
    use heapbpf_ledger::model::Origin;
    use profiler_common::interval::Interval;
    use profiler_common::stack::StackEnd;

    use super::*;

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
    fn ignored_processes_are_dropped_from_scans_until_they_exit() {
        let mut processes = ProcessTable::default();
        processes.ignore(facts(1).identity);
        processes.ignore(facts(2).identity);
        let mut found = vec![facts(1), facts(3)];
        processes.retain_new(&mut found);
        assert_eq!(found, [facts(3)]);
        assert_eq!(processes.declined, BTreeSet::from([facts(1).identity]));
    }

    fn stack(pid: u32, id: u64) -> Event {
        let frames = Arc::from([TargetAddr(id)]);
        Event::Stack(Pid(pid), StackId(id), Stack { frames, end: StackEnd::Complete })
    }

    fn alloc(pid: u32, id: u64) -> Event {
        Event::Alloc(Allocation {
            pid: Pid(pid),
            tid: Tid(1),
            address: TargetAddr(id),
            size_bytes: 1,
            time: MonotonicNanos(id),
            stack: StackId(id),
            interval: Interval::EXACT,
            hook: HookId(0),
            heap: HeapId(0),
            has_replaced: false,
        })
    }

    #[test]
    fn stacks_sent_before_a_process_is_a_target_are_known_afterwards() {
        let mut child = Command::new("sleep").arg("100").spawn().expect("sleep starts");
        let pid = child.id();
        let target = Target::open(Pid(pid), Origin::Running, None);
        child.kill().expect("it is our child");
        child.wait().expect("it is our child");
        let mut processes = ProcessTable::default();
        for event in [stack(pid, 1), alloc(pid, 1), stack(pid + 1, 3), stack(pid, 2)] {
            processes.enter(event);
        }
        processes.add(target.expect("it can be read"));
        (1..=3).for_each(|id| processes.enter(alloc(pid, id)));
        let ledger = &processes.get(Pid(pid)).expect("added").ledger;
        assert_eq!(ledger.live_blocks(), 3);
        assert_eq!(ledger.stacks_missing(), [StackId(3)]);
        assert_eq!(processes.early_stacks.len(), 1, "the other process's");
        (0..2 * EARLY_STACKS_MAX as u64).for_each(|id| processes.enter(stack(pid + 1, id)));
        assert_eq!(processes.early_stacks.len(), EARLY_STACKS_MAX);
    }
}
