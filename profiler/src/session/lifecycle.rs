//! Queue of process changes (forks, execs, new processes) that the session has to act on, and when.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use heapbpf_base::ids::Pid;
use heapbpf_ledger::Ledger;
use heapbpf_ledger::ingest::record::{Exec, Fork};
use heapbpf_ledger::model::Origin;
use tokio::time::Instant;

use super::config::SessionConfig;
use super::process_table::ProcessTable;
use super::target::ForkedChild;

/// Reason for listing a process as skipped.
pub(super) const UNREACHED: &str = "recording ended before heapbpf attached to it";

/// The target that a process was forked from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ParentTarget {
    /// Whether the parent was selected individually: its children are targets whatever they execute.
    pub(super) requested: bool,
}

pub(super) enum ProcessChange {
    Forked(Box<ForkedChild>),
    /// A target executed another program; the ledger is that of the previous program.
    Executed(Exec, Box<Ledger>),
    Started(Exec, Origin, Option<ParentTarget>),
}

impl ProcessChange {
    pub(super) fn pid(&self) -> Pid {
        match self {
            Self::Forked(forked) => forked.fork.child,
            Self::Executed(exec, _) | Self::Started(exec, ..) => exec.pid,
        }
    }
}

/// A child that runs in the memory of its parent.
struct Borrower {
    of: Pid,
    since: Instant,
    /// Whether the parent did not wait for the child when that was last examined.
    shares: bool,
}

impl Borrower {
    fn of(parent: Pid) -> Self {
        Self { of: parent, since: Instant::now(), shares: false }
    }
}

/// Number of programs that ran without probes: of those that descend from individually selected targets, and if the configuration
/// counts programs, also of those that match the selection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UnprobedPrograms {
    /// Number of programs without probes until they ended or executed another program.
    pub(super) missed: u64,
    /// Number of programs without probes for a time after their exec.
    pub(super) late: u64,
    /// Number of 32-bit programs, to which no probe can be attached.
    pub(super) of_32_bits: u64,
}

pub(super) struct Lifecycle {
    changes: VecDeque<(Instant, ProcessChange)>,
    /// Children that run in a target's memory until they call exec.
    vfork_children: BTreeMap<Pid, ParentTarget>,
    /// The children in `vfork_children`, with the target that they were forked from and since when; without those that
    /// were found to share its memory for longer.
    borrowers: BTreeMap<Pid, Borrower>,
    /// Number of processes that run in the memory of a target.
    sharing_count: u64,
    /// Number of processes that have ended in the memory of a target, without an exec. [`sharing_count`](Self::sharing_count) does not
    /// include them.
    pub(super) borrowed_count: u64,
    /// Processes that ended recently in the memory of a target, and when that was found: the record of an exec may still be unread.
    ended_borrowers: BTreeMap<Pid, Instant>,
    /// Processes started since the last [`take_started`](Self::take_started). Their forks matter before they are
    /// targets.
    started: Vec<Pid>,
    /// New processes whose allocator is not mapped yet, and since when they are polled.
    unhooked: BTreeMap<Pid, Instant>,
    /// Children of targets that do not become targets, since the last [`take_unfollowed`](Self::take_unfollowed).
    unfollowed: Vec<Pid>,
    /// Number of processes that targets have created; with followed forks, also their descendants.
    created_count: u64,
    unprobed: UnprobedPrograms,
    /// Whether the kernel reports all forks and execs that may lead to a target.
    pub(super) monitors_all: bool,
    polled: Instant,
    next_scan: Instant,
}

/// Period and duration of polling new processes often. A dynamic linker takes about a millisecond.
const HOOK_PERIOD: Duration = Duration::from_millis(1);
const HOOK_OFTEN: Duration = Duration::from_millis(50);

/// Time in the memory of its parent after which a child is not expected to execute a program.
const BORROWED_MAX: Duration = Duration::from_millis(30);
/// Records are read within this time after a process has ended.
const UNREAD_MAX: Duration = Duration::from_secs(1);

/// A process without an allocator after this time has none.
const UNHOOKED_MAX: Duration = Duration::from_secs(2);

impl Lifecycle {
    pub(super) fn new() -> Self {
        Self {
            changes: VecDeque::new(),
            vfork_children: BTreeMap::new(),
            borrowers: BTreeMap::new(),
            sharing_count: 0,
            borrowed_count: 0,
            ended_borrowers: BTreeMap::new(),
            started: Vec::new(),
            unhooked: BTreeMap::new(),
            unfollowed: Vec::new(),
            created_count: 0,
            unprobed: UnprobedPrograms::default(),
            monitors_all: true,
            polled: Instant::now(),
            next_scan: Instant::now() + Duration::from_secs(1),
        }
    }

    /// Handles a fork. Must be called in the order of events: the child inherits the parent's current ledger. Returns
    /// the child if it starts with that ledger.
    pub(super) fn forked(
        &mut self,
        fork: Fork,
        processes: &mut ProcessTable,
        config: &SessionConfig,
    ) -> Option<&mut ForkedChild> {
        if !config.follow_forks {
            self.unfollowed.push(fork.child);
            self.created_count += u64::from(processes.get(fork.parent).is_some());
            return None;
        }
        self.created_count += 1;
        // The process that had this number has ended.
        if self.vfork_children.remove(&fork.child).is_some() {
            self.end_borrower(fork.child);
        }
        self.ended_borrowers.remove(&fork.child);
        // A vfork child runs in its parent's memory until it calls exec.
        if fork.shares_memory {
            self.vfork_children.insert(fork.child, self.parent_target(fork.parent, processes));
            self.borrowers.insert(fork.child, Borrower::of(fork.parent));
            return None;
        }
        let due = Instant::now() + config.grace();
        let pending =
            |change: &&ProcessChange| change.pid() == fork.parent && !matches!(change, ProcessChange::Executed(..));
        let parent = self.changes.iter().map(|(_, change)| change).find(pending);
        let (parent_ledger, mut forked) = match (processes.get(fork.parent), parent) {
            (Some(parent), _) => (parent.ledger.id(), ForkedChild::of(parent, fork)),
            (None, Some(ProcessChange::Forked(parent))) => (parent.ledger.id(), parent.fork(fork)),
            (None, pending) => {
                let parent = match pending {
                    Some(&ProcessChange::Started(_, _, parent)) => parent,
                    // The parent was a target at the fork, and has ended before the fork was read. What the child has
                    // inherited is unknown.
                    _ => Some(ParentTarget { requested: true }),
                };
                let started = Exec { pid: fork.child, by_other_thread: false, time: fork.time };
                self.started.push(fork.child);
                let change = ProcessChange::Started(started, Origin::Forked(fork.parent), parent);
                self.changes.push_back((due, change));
                return None;
            }
        };
        // The live set must have room for more than inherited blocks.
        let live_max = config.live_blocks_max as usize / 4 * 3;
        let room = live_max.saturating_sub(processes.live_blocks() + self.pending_blocks());
        processes.inherit(parent_ledger, &mut forked, room);
        self.changes.push_back((due, ProcessChange::Forked(Box::new(forked))));
        match self.changes.back_mut() {
            Some((_, ProcessChange::Forked(forked))) => Some(forked),
            _ => None,
        }
    }

    /// Returns what children of a process inherit from it, which may not be a target yet.
    fn parent_target(&self, parent: Pid, processes: &ProcessTable) -> ParentTarget {
        let pending = || {
            let pending = self.changes.iter().map(|(_, change)| change).find(|change| change.pid() == parent)?;
            match pending {
                ProcessChange::Forked(forked) => Some(ParentTarget { requested: forked.requested }),
                // A program that matches the selection is followed as such a target is.
                ProcessChange::Started(_, _, of) => Some(of.unwrap_or(ParentTarget { requested: false })),
                ProcessChange::Executed(..) => None,
            }
        };
        let known = processes.get(parent).map(|target| ParentTarget { requested: target.requested });
        let known = known.or_else(pending).or_else(|| self.vfork_children.get(&parent).copied());
        // The parent was a target at the fork, and has ended before the fork was read.
        known.unwrap_or(ParentTarget { requested: true })
    }

    /// The ledgers of programs that were replaced and are not closed yet, with their processes. Of several of one process, the oldest.
    pub(super) fn replaced(&mut self) -> Vec<(Pid, &mut Ledger)> {
        let mut seen = BTreeSet::new();
        let ledgers = self.changes.iter_mut().filter_map(|(_, change)| match change {
            ProcessChange::Executed(exec, before) if seen.insert(exec.pid) => Some((exec.pid, &mut **before)),
            _ => None,
        });
        ledgers.collect()
    }

    /// The ledgers of forked children that are not targets yet, with the process whose blocks they have inherited.
    pub(super) fn inherited(&mut self) -> Vec<(Pid, &mut Ledger)> {
        let forks = |(_, change): &(Instant, ProcessChange)| match change {
            ProcessChange::Forked(forked) => Some((forked.fork.child, forked.fork.parent)),
            _ => None,
        };
        let parents: BTreeMap<Pid, Pid> = self.changes.iter().filter_map(forks).collect();
        let root = |child: Pid| {
            // A number can be that of a descendant, too.
            let ancestors = std::iter::successors(Some(child), |pid| parents.get(pid).copied());
            ancestors.take(parents.len() + 1).last().unwrap_or(child)
        };
        let ledgers = self.changes.iter_mut().filter_map(|(_, change)| match change {
            ProcessChange::Forked(forked) => Some((root(forked.fork.child), &mut forked.ledger)),
            _ => None,
        });
        ledgers.collect()
    }

    /// Whether forks are due.
    pub(super) fn awaits_forks(&self) -> bool {
        let now = Instant::now();
        self.changes.iter().any(|(due, change)| *due <= now && matches!(change, ProcessChange::Forked(_)))
    }

    fn pending_blocks(&self) -> usize {
        let blocks = |(_, change): &(Instant, ProcessChange)| match change {
            ProcessChange::Forked(forked) => forked.ledger.live_blocks(),
            _ => 0,
        };
        self.changes.iter().map(blocks).sum()
    }

    pub(super) fn take_started(&mut self) -> Vec<Pid> {
        std::mem::take(&mut self.started)
    }

    /// Takes the children that do not become targets: the kernel side records them until the session forgets them.
    pub(super) fn take_unfollowed(&mut self) -> Vec<Pid> {
        std::mem::take(&mut self.unfollowed)
    }

    pub(super) fn created_count(&self) -> u64 {
        self.created_count
    }

    /// Handles an exec. `grace` is the time that a process must live to become a target.
    pub(super) fn executed(&mut self, exec: Exec, processes: &mut ProcessTable, grace: Duration) {
        if let Some(before) = processes.exec(&exec) {
            return self.changes.push_back((Instant::now(), ProcessChange::Executed(exec, Box::new(before))));
        }
        // Supersedes earlier changes of the process: nothing of interest happens between fork and exec.
        let mut parent = self.vfork_children.remove(&exec.pid);
        self.borrowers.remove(&exec.pid);
        // It had ended before the record of its exec was read.
        self.borrowed_count -= u64::from(self.ended_borrowers.remove(&exec.pid).is_some());
        self.changes.retain(|(_, change)| match change {
            ProcessChange::Forked(forked) if forked.fork.child == exec.pid => {
                parent = Some(ParentTarget { requested: forked.requested });
                false
            }
            ProcessChange::Started(earlier, origin, earlier_parent) if earlier.pid == exec.pid => {
                parent = *earlier_parent;
                let is_program = *origin == Origin::Executed && parent.is_some_and(|parent| parent.requested);
                self.unprobed.missed += u64::from(is_program && grace.is_zero());
                false
            }
            _ => true,
        });
        if !grace.is_zero() {
            self.started.push(exec.pid);
        }
        let change = ProcessChange::Started(exec, Origin::Executed, parent);
        self.changes.push_back((Instant::now() + grace, change));
    }

    pub(super) fn unprobed(&self) -> UnprobedPrograms {
        self.unprobed
    }

    pub(super) fn count_missed(&mut self, was_missed: bool) {
        self.unprobed.missed += u64::from(was_missed);
    }

    pub(super) fn count_32_bits(&mut self) {
        self.unprobed.of_32_bits += 1;
    }

    /// Counts a program whose recording begins.
    pub(super) fn count_begun(&mut self, is_superseded: bool, is_late: bool) {
        self.unprobed.missed += u64::from(is_superseded);
        self.unprobed.late += u64::from(is_late && !is_superseded);
    }

    pub(super) fn awaits(&self, pid: Pid) -> bool {
        self.changes.iter().any(|(_, change)| change.pid() == pid)
    }

    pub(super) fn take_exited_vfork_children(&mut self, has_exited: impl Fn(Pid) -> bool) -> Vec<Pid> {
        let exited: Vec<Pid> = self.vfork_children.keys().copied().filter(|&pid| has_exited(pid)).collect();
        self.vfork_children.retain(|pid, _| !exited.contains(pid));
        self.ended_borrowers.retain(|_, found| found.elapsed() < UNREAD_MAX);
        exited.iter().for_each(|&pid| self.end_borrower(pid));
        exited
    }

    fn end_borrower(&mut self, pid: Pid) {
        if self.borrowers.remove(&pid).is_some() {
            self.borrowed_count += 1;
            self.ended_borrowers.insert(pid, Instant::now());
        }
    }

    /// Takes the children that share the memory of their parents, with their parents. `is_sharing` returns whether a
    /// child was not created by `vfork`, for which its parent would wait; it must return true twice in a row, because a
    /// parent that is preempted does not wait yet.
    pub(super) fn take_sharing(&mut self, is_sharing: impl Fn(Pid, Pid) -> bool) -> Vec<(Pid, Pid)> {
        let mut found = Vec::new();
        self.borrowers.retain(|&child, borrower| {
            let is_old = borrower.since.elapsed() >= BORROWED_MAX;
            let was_sharing = std::mem::replace(&mut borrower.shares, is_old && is_sharing(child, borrower.of));
            let is_found = was_sharing && borrower.shares;
            found.extend(is_found.then_some((child, borrower.of)));
            !is_found
        });
        self.sharing_count += found.len() as u64;
        found
    }

    pub(super) fn sharing_count(&self) -> u64 {
        self.sharing_count
    }

    pub(super) fn take_due(&mut self, is_wanted: impl Fn(Pid) -> bool) -> Option<ProcessChange> {
        let now = Instant::now();
        let at = self.changes.iter().position(|(due, change)| *due <= now && is_wanted(change.pid()))?;
        self.changes.remove(at).map(|(_, change)| change)
    }

    /// Takes all changes that are due, and drops the others.
    pub(super) fn take_remaining(&mut self) -> Vec<ProcessChange> {
        let now = Instant::now();
        let changes = self.changes.drain(..).filter(|(due, _)| *due <= now);
        changes.map(|(_, change)| change).collect()
    }

    /// Starts [polling](Self::due_for_hooks) a process until it has an allocator.
    pub(super) fn poll_for_hooks(&mut self, pid: Pid) {
        self.unhooked.insert(pid, Instant::now());
    }

    pub(super) fn is_polled(&self, pid: Pid) -> bool {
        self.unhooked.contains_key(&pid)
    }

    /// Ends the polling that [`poll_for_hooks`](Self::poll_for_hooks) has started.
    pub(super) fn stop_polling(&mut self, pid: Pid) {
        self.unhooked.remove(&pid);
    }

    /// Returns the new processes to poll now. `all` includes those that are not polled often any more.
    pub(super) fn due_for_hooks(&mut self, all: bool) -> Vec<Pid> {
        let now = Instant::now();
        if !all && now < self.polled + HOOK_PERIOD {
            return Vec::new();
        }
        self.polled = now;
        let young = |since: &Instant| all || now.duration_since(*since) < HOOK_OFTEN;
        self.unhooked.iter().filter(|(_, since)| young(since)).map(|(&pid, _)| pid).collect()
    }

    pub(super) fn is_overdue(&self, pid: Pid) -> bool {
        self.unhooked.get(&pid).is_none_or(|since| since.elapsed() > UNHOOKED_MAX)
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.changes.is_empty() || !self.unhooked.is_empty()
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        let change = self.changes.iter().map(|(due, _)| *due).min();
        let often = self.unhooked.values().any(|since| since.elapsed() < HOOK_OFTEN);
        let poll = often.then(|| self.polled + HOOK_PERIOD);
        change.into_iter().chain(poll).min()
    }

    /// Whether to scan now for matching processes that have become large or old enough; never if processes are selected when
    /// they start. A scan takes about 20 µs per process.
    pub(super) fn is_scan_due(&mut self, config: &SessionConfig) -> bool {
        let selection = &config.selection;
        let may_grow = selection.is_open() && !selection.matches_new();
        let is_due = may_grow && self.next_scan <= Instant::now();
        if is_due {
            self.next_scan = Instant::now() + config.scan_period;
        }
        is_due
    }
}

#[cfg(test)]
mod tests;
