//! Leak inspection of targets during a recording.

use anyhow::{Context, Result, bail};
use profiler_common::interval::Interval;

use super::control::Listener;
use super::session::Session;
use super::snapshot::DRAINS_MAX;
use crate::check::heap_snapshot::{Coverage, HeapSnapshot, RecordedBlock, TRIES_MAX, collect_at_rest};
use crate::collect::{CollectError, Collected, Method, ThreadState, collect};
use crate::ids::Pid;
use crate::keeper::{self, Launch};
use crate::linux::clock;
use crate::model::HookStatus;

impl Session {
    /// Inspects all running targets, one after the other.
    pub fn inspect_all(&mut self, method: Method, listener: &mut dyn Listener) {
        let pids: Vec<Pid> = self.processes.running().map(|target| target.pid).collect();
        self.inspect_command(method, listener);
        let launched = self.launched().map(|launched| launched.0);
        for pid in pids.into_iter().filter(|pid| Some(*pid) != launched) {
            listener.inspected(self.inspect(pid, method));
        }
    }

    /// Inspects the launched command while all its threads are stopped; `at_exit` for the last time.
    pub(super) fn inspect_launched(&mut self, launch: &Launch, method: Method, at_exit: bool) -> Result<HeapSnapshot> {
        // An exiting process cannot be forked.
        let method = if at_exit { Method::Read } else { method };
        let pid = launch.pid();
        // One try: the threads do not run between two.
        self.inspect_by(pid, at_exit, 1, |while_stopped| {
            collect(pid, method, || launch.stopped_process(), while_stopped)
        })
    }

    /// Inspects a target: stops it, enters all its events, takes a heap snapshot and resumes it. Fails if it is not a target, has
    /// exited or cannot be collected.
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
        let counters = self.probes.counters()?;
        let mut snapshot = self.snapshot(now, &counters, None);
        snapshot.targets.retain(|state| state.facts.pid == pid && !state.facts.replaced);
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
        let is_whole = snapshot.health.lost_total() == 0 && target.beginning.from_first_call;
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
        })
    }

    /// Enters all events of a stopped target, and resyncs if records were dropped.
    fn catch_up_stopped(&mut self) {
        for _ in 0..DRAINS_MAX {
            if self.take_records() {
                break;
            }
        }
        self.resync_at_end();
    }
}
