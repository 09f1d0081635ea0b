//! Samples where the resident memory of targets is located, within a budget of CPU time.

use std::time::{Duration, Instant};

use heapbpf_base::ids::Pid;
use heapbpf_base::units::MonotonicNanos;

use super::process_table::ProcessTable;
use super::residency::Residency;
use crate::account::SampleTime;
use crate::probe::plan::Plan;

/// Share of a core that all samples may take, except the first of each target.
const SHARE: f64 = 0.002;
/// Time that may be saved up for later samples.
const SAVED_MAX: Duration = Duration::from_millis(20);
/// Time for the last samples of all targets together.
const LAST_MAX: Duration = Duration::from_secs(1);

/// What a session knows of memory besides the ledgers of its targets.
#[derive(Clone, Copy)]
pub(super) struct MemoryScene<'a> {
    pub(super) plan: &'a Plan,
    pub(super) residency: &'a Residency,
    /// Whether the ledgers have all blocks of which there are records.
    pub(super) has_all_blocks: bool,
}

/// Samples targets within a budget of CPU time.
#[derive(Debug)]
pub(super) struct MemorySampler {
    saved_s: f64,
    updated: Instant,
    spent: Duration,
}

impl MemorySampler {
    pub(super) fn new() -> Self {
        Self { saved_s: SAVED_MAX.as_secs_f64(), updated: Instant::now(), spent: Duration::ZERO }
    }

    pub(super) fn spent(&self) -> Duration {
        self.spent
    }

    /// Samples the targets that are due, the longest due first, and all new ones.
    pub(super) fn poll(&mut self, processes: &mut ProcessTable, scene: MemoryScene<'_>, now: MonotonicNanos) {
        let elapsed = std::mem::replace(&mut self.updated, Instant::now()).elapsed();
        self.saved_s = (self.saved_s + elapsed.as_secs_f64() * SHARE).min(SAVED_MAX.as_secs_f64());
        let mut due: Vec<(bool, MonotonicNanos, Pid)> = processes
            .running()
            .filter(|target| target.was_recorded() && !target.awaits_inventory && target.memory.is_due(now))
            .map(|target| (target.memory.is_begun(), target.memory.sampled(), target.pid))
            .collect();
        due.sort_unstable();
        for (is_begun, _, pid) in due {
            if is_begun && self.saved_s <= 0.0 {
                break;
            }
            self.sample(processes, pid, scene, SampleTime::Periodic(now));
        }
    }

    /// Samples all targets, at the end or for a report.
    pub(super) fn sample_all(&mut self, processes: &mut ProcessTable, scene: MemoryScene<'_>, now: MonotonicNanos) {
        let began = Instant::now();
        let pids: Vec<Pid> = processes.running().filter(|target| target.was_recorded()).map(|it| it.pid).collect();
        for pid in pids {
            if began.elapsed() < LAST_MAX {
                self.sample(processes, pid, scene, SampleTime::Report(now));
            }
        }
    }

    /// Takes the first sample of a target, before what it allocates is inspected.
    pub(super) fn begin(
        &mut self,
        processes: &mut ProcessTable,
        pid: Pid,
        scene: MemoryScene<'_>,
        now: MonotonicNanos,
    ) {
        if processes.get(pid).is_some_and(|target| target.was_recorded() && !target.memory.is_begun()) {
            self.sample(processes, pid, scene, SampleTime::Periodic(now));
        }
    }

    fn sample(&mut self, processes: &mut ProcessTable, pid: Pid, scene: MemoryScene<'_>, when: SampleTime) {
        let began = Instant::now();
        let MemoryScene { plan, residency, has_all_blocks } = scene;
        processes.sample_memory(pid, plan, residency.before(pid), has_all_blocks, when);
        let spent = began.elapsed();
        self.saved_s -= spent.as_secs_f64();
        self.spent += spent;
    }
}
