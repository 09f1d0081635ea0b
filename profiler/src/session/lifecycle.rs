//! What processes do while they are watched: begin, fork, call exec, end. Keeps what is to be done about it, and when;
//! doing it is the session's.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::config::SessionConfig;
use super::hooks::Hooks;
use super::target::Target;
use super::targets::Targets;
use crate::ids::Pid;
use crate::ingest::event::{Exec, Fork};
use crate::model::Origin;
use crate::process::address_space::AddressSpace;
use crate::recording::recorder::RecordedLedger;
use crate::snapshot::ThreadNames;

/// Something that a process did and that the session has to act on.
pub(super) enum Change {
    /// A target has made a process.
    Forked(Box<Birth>),
    /// A target runs another program; with the books of the one before.
    Executed(Exec, Box<RecordedLedger>),
    /// A process that is no target has come to be what it is, in this way.
    Began(Exec, Origin, Option<Descent>),
}

/// What a child of a target was at its birth: a copy of its parent, whatever becomes of either since.
pub(super) struct Birth {
    pub(super) fork: Fork,
    /// The books that it begins with.
    pub(super) ledger: RecordedLedger,
    /// Where its code lies.
    pub(super) space: AddressSpace,
    /// What is to be hooked in it.
    pub(super) hooks: Hooks,
    /// What the threads are called whose blocks it begins with.
    pub(super) threads: Arc<ThreadNames>,
    /// Its parent was asked for by itself.
    pub(super) requested: bool,
}

impl Birth {
    /// Of a target.
    fn of(parent: &Target, fork: Fork) -> Self {
        Self {
            fork,
            ledger: parent.ledger.fork(fork.child).into(),
            space: parent.space.for_child(fork.child),
            hooks: parent.hooks.for_child(),
            threads: Arc::clone(parent.threads.names()),
            requested: parent.requested,
        }
    }

    /// Of a child that is no target yet.
    fn fork(&self, fork: Fork) -> Self {
        Self {
            fork,
            ledger: self.ledger.fork(fork.child).into(),
            space: self.space.for_child(fork.child),
            hooks: self.hooks.for_child(),
            threads: Arc::clone(&self.threads),
            requested: self.requested,
        }
    }
}

/// How a process stands to the target that has made it, and of which it never was a copy worth its own books.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descent {
    /// That target was asked for by itself: its children are meant as well, whatever they run.
    pub(super) requested: bool,
}

pub(super) struct Lifecycle {
    follow_forks: bool,
    /// Changes wait this long, so that processes which are gone by then cost nothing.
    grace: Duration,
    /// Live blocks of all targets up to which a fork may copy its parent's: the live set must have room for more.
    live_max: usize,
    changes: VecDeque<(Instant, Change)>,
    /// Children that run in targets' memory until they call exec.
    borrowers: BTreeMap<Pid, Descent>,
    /// Processes that have begun since this was last asked, where their forks are of interest before they are targets.
    beginners: Vec<Pid>,
    /// Processes that have just begun, and since when: their allocator is not mapped yet.
    settling: BTreeMap<Pid, Instant>,
    /// When those were last looked at.
    looked: Instant,
}

/// Where everything is watched, many processes are too short-lived to be worth it: most compilers' and shells' helpers.
const GRACE_OF_ALL: Duration = Duration::from_millis(50);

/// How often processes that have just begun are looked at, and how long. A dynamic linker takes about a millisecond.
const SETTLE_PERIOD: Duration = Duration::from_millis(1);
const SETTLE_OFTEN: Duration = Duration::from_millis(50);

/// A process that has not mapped an allocator by then has none.
const SETTLE_MAX: Duration = Duration::from_secs(2);

impl Lifecycle {
    pub(super) fn new(config: &SessionConfig) -> Self {
        Self {
            follow_forks: config.follow_forks,
            grace: if config.selection.all { GRACE_OF_ALL } else { Duration::ZERO },
            live_max: config.live_blocks_max as usize / 4 * 3,
            changes: VecDeque::new(),
            borrowers: BTreeMap::new(),
            beginners: Vec::new(),
            settling: BTreeMap::new(),
            looked: Instant::now(),
        }
    }

    /// Whether processes made by targets are targets.
    pub(super) fn follows_forks(&self) -> bool {
        self.follow_forks
    }

    /// Whether processes must live for a while to be looked at.
    pub(super) fn has_grace(&self) -> bool {
        !self.grace.is_zero()
    }

    /// A target has forked. Called in the order of events, so that the books that the child begins with are the parent's
    /// of that moment.
    pub(super) fn forked(&mut self, fork: Fork, targets: &mut Targets) {
        if !self.follow_forks {
            return;
        }
        // A vfork child runs in its parent's memory, and only until it calls exec.
        if fork.shares_memory {
            if let Some(descent) = targets.descent(fork.parent) {
                self.borrowers.insert(fork.child, descent);
            }
            return;
        }
        let due = Instant::now() + self.grace;
        let pending = |change: &Change| match change {
            Change::Forked(birth) => birth.fork.child == fork.parent,
            Change::Began(exec, ..) => exec.pid == fork.parent,
            Change::Executed(..) => false,
        };
        let parent = self.changes.iter().map(|(_, change)| change).find(|change| pending(change));
        let books = match (targets.get(fork.parent), parent) {
            (Some(parent), _) => parent.ledger.id(),
            (None, Some(Change::Forked(parent))) => parent.ledger.id(),
            (None, _) => None,
        };
        let mut birth = match (targets.get(fork.parent), parent) {
            (Some(parent), _) => Birth::of(parent, fork),
            (None, Some(Change::Forked(parent))) => parent.fork(fork),
            (None, Some(&Change::Began(_, _, descent))) => {
                let began = Exec { pid: fork.child, by_other_thread: false, time: fork.time };
                self.beginners.push(fork.child);
                return self.changes.push_back((due, Change::Began(began, Origin::Forked(fork.parent), descent)));
            }
            // It was no target, or is none any more.
            (None, _) => return,
        };
        let room = self.live_max.saturating_sub(targets.live_blocks() + self.unborn_blocks());
        let is_empty = birth.ledger.live_blocks() > room;
        if is_empty {
            birth.ledger = birth.ledger.empty(fork.child).into();
            targets.others.not_inherited_count += 1;
        }
        if let Some(recorder) = &mut targets.recorder {
            recorder.fork(books, &mut birth.ledger, fork.child, is_empty);
        }
        self.changes.push_back((due, Change::Forked(Box::new(birth))));
    }

    /// Blocks in the books of children that are no targets yet.
    fn unborn_blocks(&self) -> usize {
        let blocks = |(_, change): &(Instant, Change)| match change {
            Change::Forked(birth) => birth.ledger.live_blocks(),
            _ => 0,
        };
        self.changes.iter().map(blocks).sum()
    }

    /// Processes that have begun and are no targets yet.
    pub(super) fn take_beginners(&mut self) -> Vec<Pid> {
        std::mem::take(&mut self.beginners)
    }

    /// A process has called exec.
    pub(super) fn executed(&mut self, exec: Exec, targets: &mut Targets) {
        if let Some(before) = targets.exec(&exec) {
            return self.changes.push_back((Instant::now(), Change::Executed(exec, Box::new(before))));
        }
        // What it was before nobody has seen, and nobody will: between fork and exec nothing of interest happens.
        let mut descent = self.borrowers.remove(&exec.pid);
        self.changes.retain(|(_, change)| match change {
            Change::Forked(birth) if birth.fork.child == exec.pid => {
                descent = Some(Descent { requested: birth.requested });
                false
            }
            Change::Began(earlier, _, earlier_descent) if earlier.pid == exec.pid => {
                descent = *earlier_descent;
                false
            }
            _ => true,
        });
        if self.has_grace() {
            self.beginners.push(exec.pid);
        }
        self.changes.push_back((Instant::now() + self.grace, Change::Began(exec, Origin::Executed, descent)));
    }

    /// Whether a process has done something that is to be acted on.
    pub(super) fn awaits(&self, pid: Pid) -> bool {
        self.changes.iter().any(|(_, change)| match change {
            Change::Forked(birth) => birth.fork.child == pid,
            Change::Executed(exec, _) | Change::Began(exec, ..) => exec.pid == pid,
        })
    }

    /// Takes those out that ended without an exec.
    pub(super) fn take_ended_borrowers(&mut self, has_ended: impl Fn(Pid) -> bool) -> Vec<Pid> {
        let ended: Vec<Pid> = self.borrowers.keys().copied().filter(|&pid| has_ended(pid)).collect();
        self.borrowers.retain(|pid, _| !ended.contains(pid));
        ended
    }

    /// The next change whose time has come.
    pub(super) fn take_due(&mut self) -> Option<Change> {
        let now = Instant::now();
        let at = self.changes.iter().position(|(due, _)| *due <= now)?;
        self.changes.remove(at).map(|(_, change)| change)
    }

    /// The targets that have become other programs, with the books of those before.
    pub(super) fn take_executed(&mut self) -> Vec<(Exec, RecordedLedger)> {
        let (executed, others): (VecDeque<_>, _) =
            self.changes.drain(..).partition(|change| matches!(change.1, Change::Executed(..)));
        self.changes = others;
        let taken = executed.into_iter().filter_map(|(_, change)| match change {
            Change::Executed(exec, before) => Some((exec, *before)),
            _ => None,
        });
        taken.collect()
    }

    /// A process has just begun.
    pub(super) fn settle(&mut self, pid: Pid) {
        self.settling.insert(pid, Instant::now());
    }

    /// It need not be looked at often any more.
    pub(super) fn settled(&mut self, pid: Pid) {
        self.settling.remove(&pid);
    }

    /// Processes to look at now. `all` includes those that are no longer looked at often.
    pub(super) fn take_settling(&mut self, all: bool) -> Vec<Pid> {
        let now = Instant::now();
        if !all && now < self.looked + SETTLE_PERIOD {
            return Vec::new();
        }
        self.looked = now;
        let young = |since: &Instant| all || now.duration_since(*since) < SETTLE_OFTEN;
        self.settling.iter().filter(|(_, since)| young(since)).map(|(&pid, _)| pid).collect()
    }

    /// Whether a process has had its time.
    pub(super) fn is_overdue(&self, pid: Pid) -> bool {
        self.settling.get(&pid).is_none_or(|since| since.elapsed() > SETTLE_MAX)
    }

    /// Whether something is still to be done.
    pub(super) fn is_waiting(&self) -> bool {
        !self.changes.is_empty() || !self.settling.is_empty()
    }

    /// When there is something to do next.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let change = self.changes.iter().map(|(due, _)| *due).min();
        let often = self.settling.values().any(|since| since.elapsed() < SETTLE_OFTEN);
        let look = often.then(|| self.looked + SETTLE_PERIOD);
        change.into_iter().chain(look).min()
    }
}

#[cfg(test)]
mod tests;
