//! Names of a target's threads. Read from `/proc` between drains: milliseconds after the first allocation of a thread,
//! twice again later, because a new thread has its parent's name until it is renamed, and for each snapshot.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use heapbpf_base::ids::{Pid, Tid};
use heapbpf_ledger::ingest::event::Event;
use heapbpf_linux::proc::process::thread_name;
use rustc_hash::FxHashSet;

use crate::snapshot::ThreadNames;

/// Maximum number of threads of a target whose names are read; others are reported by number.
const THREADS_MAX: usize = 2048;
const AGAIN: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(5)];

#[derive(Debug, Default)]
pub(super) struct Threads {
    pub(super) is_enabled: bool,
    pub(super) names: Arc<ThreadNames>,
    seen: FxHashSet<Tid>,
    /// Thread of the last event: most events have the same thread as the one before.
    latest: Option<Tid>,
    new: VecDeque<Tid>,
    again: [VecDeque<(Instant, Tid)>; AGAIN.len()],
}

impl Threads {
    pub(super) fn of_child(names: &Arc<ThreadNames>) -> Self {
        Self { names: Arc::clone(names), ..Self::default() }
    }

    pub(super) fn observe(&mut self, event: &Event) {
        if !self.is_enabled {
            return;
        }
        let tid = match event {
            Event::Alloc(allocation) => allocation.tid,
            Event::Remap(remap) => remap.tid,
            _ => return,
        };
        if self.latest.replace(tid) != Some(tid) && self.seen.len() < THREADS_MAX && self.seen.insert(tid) {
            self.new.push_back(tid);
        }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        !self.new.is_empty() || self.again.iter().any(|queue| is_due(queue, now))
    }

    /// Reads the names that are due. Returns the number of reads, at most `reads_max`. The pid must not have been
    /// reused.
    pub(super) fn read(&mut self, pid: Pid, now: Instant, reads_max: usize) -> usize {
        let mut reads = 0;
        while reads < reads_max
            && let Some((tid, times)) = self.next(now)
        {
            self.read_name(pid, tid);
            if let (Some(queue), Some(&after)) = (self.again.get_mut(times), AGAIN.get(times)) {
                queue.push_back((now + after, tid));
            }
            reads += 1;
        }
        reads
    }

    /// Reads all names. Returns the number of reads, at most `reads_max`. The pid must not have been reused.
    pub(super) fn refresh(&mut self, pid: Pid, reads_max: usize) -> usize {
        let mut seen: Vec<Tid> = self.seen.iter().copied().collect();
        // The latest threads first: the others keep the names read before.
        seen.sort_unstable_by_key(|&tid| std::cmp::Reverse(tid));
        seen.truncate(reads_max);
        seen.iter().for_each(|&tid| self.read_name(pid, tid));
        seen.len()
    }

    fn next(&mut self, now: Instant) -> Option<(Tid, usize)> {
        if let Some(tid) = self.new.pop_front() {
            return Some((tid, 0));
        }
        let (at, queue) = self.again.iter_mut().enumerate().find(|(_, queue)| is_due(queue, now))?;
        queue.pop_front().map(|(_, tid)| (tid, at + 1))
    }

    fn read_name(&mut self, pid: Pid, tid: Tid) {
        if let Ok(name) = thread_name(pid, tid)
            && self.names.get(&tid).is_none_or(|known| **known != *name)
        {
            Arc::make_mut(&mut self.names).insert(tid, name.into());
        }
    }
}

fn is_due(queue: &VecDeque<(Instant, Tid)>, now: Instant) -> bool {
    queue.front().is_some_and(|(due, _)| *due <= now)
}

#[cfg(test)]
mod tests {
    use heapbpf_base::address::TargetAddr;
    use heapbpf_base::ids::{HeapId, HookId, StackId};
    use heapbpf_base::units::MonotonicNanos;
    use heapbpf_ledger::ingest::event::Allocation;
    use profiler_common::interval::Interval;

    use super::*;

    fn allocates(tid: u32) -> Event {
        Event::Alloc(Allocation {
            pid: Pid(1),
            tid: Tid(tid),
            address: TargetAddr(1),
            size_bytes: 1,
            interval: Interval::EXACT,
            stack: StackId(1),
            hook: HookId(0),
            heap: HeapId(0),
            time: MonotonicNanos(0),
            has_replaced: false,
        })
    }

    #[test]
    fn names_are_read_at_once_and_twice_again() {
        let (me, now) = (Pid(std::process::id()), Instant::now());
        let mut threads = Threads { is_enabled: true, ..Threads::default() };
        assert!(!threads.is_due(now));
        threads.observe(&allocates(me.0));
        threads.observe(&allocates(me.0));
        let comm = std::fs::read_to_string(format!("/proc/{me}/comm")).expect("this process has a name");
        assert_eq!(threads.read(me, now, 10), 1);
        assert_eq!(threads.names.get(&Tid(me.0)).map(|name| &**name), Some(comm.trim_end()));
        let named = Arc::clone(&threads.names);
        for after in AGAIN {
            assert!(!threads.is_due(now + after / 2) && threads.is_due(now + 2 * after));
            assert_eq!(threads.read(me, now + 2 * after, 10), 1);
        }
        assert!(!threads.is_due(now + Duration::from_secs(3600)));
        assert_eq!(threads.refresh(me, 10), 1);
        assert!(Arc::ptr_eq(&named, &threads.names), "unchanged names are not copied");
    }

    #[test]
    fn reads_and_threads_are_bounded() {
        let (me, now) = (Pid(std::process::id()), Instant::now());
        let mut threads = Threads { is_enabled: true, ..Threads::default() };
        for tid in 0..100_000 {
            threads.observe(&allocates(u32::MAX - tid));
        }
        assert_eq!(threads.seen.len(), THREADS_MAX);
        assert_eq!(threads.read(me, now, 100), 100);
        assert_eq!((threads.new.len(), threads.again[0].len()), (THREADS_MAX - 100, 100));
        assert!(threads.names.is_empty(), "this process has no such threads");
        assert_eq!(threads.refresh(me, 50), 50);
    }
}
