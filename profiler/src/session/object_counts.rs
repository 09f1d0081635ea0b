//! Counts the objects in the heaps of targets' runtimes by type: when a recording begins, from time to time, and for reports. A thread
//! reads the memory of one process after the other, while it runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use heapbpf_base::ids::Pid;
use heapbpf_base::language::Language;
use heapbpf_ledger::model::ObjectTypes;
use heapbpf_linux::clock;
use tracing::{debug, info};

use super::interpreters::RuntimeHeap;
use super::process_table::ProcessTable;
use crate::interpreter::memory::PresentMemory;

/// Minimum time between two counts of a process.
const PERIOD: Duration = Duration::from_secs(5);
/// Time between two counts of a process, as a multiple of what one takes.
const SHARE: u32 = 100;
/// Time after which a runtime that has not started yet is read again, at first; each time twice as long.
const RETRY: Duration = Duration::from_millis(250);
/// Time for counts of all targets for a report.
const REPORT_TIME: Duration = Duration::from_secs(3);
/// A count that takes longer waits for memory that a target withholds: its process is not read again.
const COUNT_TIME: Duration = Duration::from_secs(30);
/// Processes whose first counts are kept.
const PROCESSES_MAX: usize = 256;

/// Counts of all targets.
#[derive(Debug, Default)]
pub(super) struct ObjectCounts {
    heaps: BTreeMap<(Pid, Language), Heap>,
    running: Option<Running>,
}

#[derive(Debug)]
struct Heap {
    runtime: RuntimeHeap,
    /// The first count, which growths refer to.
    first: Option<Arc<ObjectTypes>>,
    /// `None` after a count that did not end.
    due: Option<Instant>,
    retry: Duration,
}

/// A count on its thread.
#[derive(Debug)]
struct Running {
    key: (Pid, Language),
    began: Instant,
    result: Receiver<Counted>,
}

type Counted = Result<ObjectTypes, String>;

impl ObjectCounts {
    /// Begins to count the objects of a runtime, unless that has begun.
    pub(super) fn begin(&mut self, pid: Pid, runtime: RuntimeHeap) {
        let key = (pid, runtime.language);
        let is_known = self.heaps.get(&key).is_some_and(|heap| heap.runtime.is(&runtime));
        if runtime.has_types() && !is_known && self.heaps.len() < PROCESSES_MAX {
            self.heaps.insert(key, Heap { runtime, first: None, due: Some(Instant::now()), retry: RETRY });
        }
    }

    /// Forgets a program that has ended, or was replaced.
    pub(super) fn forget(&mut self, pid: Pid) {
        self.heaps.retain(|(known, _), _| *known != pid);
    }

    /// Enters a count that is complete, and starts the next one that is due.
    pub(super) fn poll(&mut self, processes: &mut ProcessTable) {
        if let Some(running) = &self.running {
            match running.result.try_recv() {
                Ok(counted) => self.enter(counted, processes),
                Err(TryRecvError::Disconnected) => self.give_up("its thread has ended"),
                Err(TryRecvError::Empty) => self.give_up_late(),
            }
        }
        if self.running.is_none() {
            let now = Instant::now();
            let due = self.heaps.iter().filter_map(|(key, heap)| Some((heap.due?, *key)));
            if let Some((_, key)) = due.filter(|(due, _)| *due <= now).min() {
                self.start(key);
            }
        }
    }

    /// Counts all targets, for a report. What takes too long keeps its last count.
    pub(super) fn count_all(&mut self, processes: &mut ProcessTable) {
        let end = Instant::now() + REPORT_TIME;
        let known = self.heaps.iter().filter(|(_, heap)| heap.due.is_some());
        let mut left: Vec<(Pid, Language)> = known.map(|(key, _)| *key).collect();
        if let Some(running) = &self.running {
            // It has begun before: its result is not that of now.
            left.retain(|key| *key != running.key);
            left.push(running.key);
        }
        loop {
            if self.running.is_some() && !self.wait(end, processes) {
                return;
            }
            let Some(key) = left.pop() else { return };
            self.start(key);
        }
    }

    /// Waits for the running count. Returns whether it is complete.
    fn wait(&mut self, end: Instant, processes: &mut ProcessTable) -> bool {
        let Some(running) = &self.running else { return true };
        match running.result.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(counted) => self.enter(counted, processes),
            Err(RecvTimeoutError::Disconnected) => self.give_up("its thread has ended"),
            Err(RecvTimeoutError::Timeout) => {
                self.give_up_late();
                return false;
            }
        }
        true
    }

    fn start(&mut self, key: (Pid, Language)) {
        let Some(heap) = self.heaps.get(&key) else { return };
        let (sender, result) = sync_channel(1);
        let (pid, runtime) = (key.0, heap.runtime.clone());
        let count = move || {
            let counted = match PresentMemory::open(pid) {
                Ok(memory) => runtime.count(pid, &memory, clock::now().monotonic),
                Err(error) => Err(error.to_string()),
            };
            // The session may have ended.
            let _ = sender.send(counted);
        };
        match thread::Builder::new().name("heapbpf-types".to_owned()).spawn(count) {
            Ok(_) => self.running = Some(Running { key, began: Instant::now(), result }),
            Err(error) => {
                debug!("process {pid}: its objects are not counted: {error}");
                if let Some(heap) = self.heaps.get_mut(&key) {
                    heap.due = Some(Instant::now() + PERIOD);
                }
            }
        }
    }

    /// Enters the result of the running count.
    fn enter(&mut self, counted: Counted, processes: &mut ProcessTable) {
        let Some(Running { key, began, .. }) = self.running.take() else { return };
        let Some(heap) = self.heaps.get_mut(&key) else { return };
        let pid = key.0;
        match counted {
            Ok(mut types) => {
                let elapsed = began.elapsed();
                heap.due = Some(Instant::now() + PERIOD.max(elapsed * SHARE));
                debug!("process {pid}: objects of {} were counted, in {elapsed:?}", key.1.name());
                match &heap.first {
                    Some(first) => types.compare(first),
                    None => heap.first = Some(Arc::new(types.clone())),
                }
                types.limit();
                processes.set_objects(pid, types);
            }
            Err(reason) => {
                if heap.retry == RETRY {
                    info!("process {pid}: objects of {} are not counted by type: {reason}", key.1.name());
                }
                heap.due = Some(Instant::now() + heap.retry);
                heap.retry = heap.retry.saturating_mul(2);
            }
        }
    }

    fn give_up_late(&mut self) {
        if self.running.as_ref().is_some_and(|running| running.began.elapsed() > COUNT_TIME) {
            self.give_up("reads of its memory do not end");
        }
    }

    /// The process of the running count is not read again.
    fn give_up(&mut self, reason: &str) {
        let Some(Running { key, .. }) = self.running.take() else { return };
        info!("process {}: its objects are not counted any more: {reason}", key.0);
        if let Some(heap) = self.heaps.get_mut(&key) {
            heap.due = None;
        }
    }
}
