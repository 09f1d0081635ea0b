//! Looks at targets for leaks while they are recorded.

use anyhow::{Context, Result};
use profiler_common::interval::Interval;

use super::Session;
use super::dumps::DRAINS_MAX;
use super::listener::Listener;
use crate::check::look::{Look, WatchedBlock, Watching};
use crate::collect::{Method, collect};
use crate::ids::Pid;
use crate::report::profile::HookStatus;
use crate::sys::clock;

impl Session {
    /// Looks at all targets that run, one after the other.
    pub(super) fn inspect_all(&mut self, method: Method, listener: &mut dyn Listener) {
        let pids: Vec<Pid> = self.targets.running().map(|target| target.pid).collect();
        for pid in pids {
            listener.looked(self.inspect(pid, method));
        }
    }

    /// Looks at a target: stops it, takes all that it has done to the books, collects it and lets it run.
    ///
    /// # Errors
    ///
    /// When it is no target, has ended or cannot be collected.
    pub fn inspect(&mut self, pid: Pid, method: Method) -> Result<Look> {
        let mut now = clock::now();
        let collected = collect(pid, method, &mut || {
            self.catch_up_stopped();
            now = clock::now();
        })?;
        let counters = self.counters()?;
        let mut snapshot = self.snapshot(now, &counters, None);
        snapshot.targets.retain(|state| state.facts.pid == pid && !state.facts.replaced);
        let target = self.targets.get(pid).with_context(|| format!("process `{pid}` is not watched any more"))?;
        let watched = target
            .ledger
            .blocks()
            .map(|(address, size_bytes, callsite, born)| WatchedBlock::new(address, size_bytes, callsite, born));
        let is_exact = self.config.interval == Interval::EXACT && snapshot.health.interval_changes.is_empty();
        let is_whole = snapshot.health.lost_total() == 0 && target.beginning.from_first_call;
        let mut hooks = snapshot.targets.iter().flat_map(|state| &state.heaps).flat_map(|heap| &heap.hooks);
        let has_all_hooks = !hooks.any(HookStatus::is_missing);
        let watching = Watching {
            duration_ns: now.monotonic.0.saturating_sub(target.beginning.time.0),
            is_complete: is_exact && is_whole && has_all_hooks,
        };
        Ok(Look {
            collected,
            watched: watched.collect(),
            now: now.monotonic,
            snapshot,
            watching: Some(watching),
            at_exit: false,
        })
    }

    /// Takes all that a stopped target has done to the books, and puts these right where something was lost.
    fn catch_up_stopped(&mut self) {
        for _ in 0..DRAINS_MAX {
            if self.take_records() {
                break;
            }
        }
        self.resync_at_end();
    }
}
