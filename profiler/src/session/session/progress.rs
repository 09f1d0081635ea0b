//! What a session reports while it records.

use std::collections::HashSet;
use std::sync::Arc;

use heapbpf_ledger::model::{Leaks, MemoryAccount};
use heapbpf_ledger::snapshot::TargetSnapshot;
use heapbpf_ledger::timeline::Timeline;
use heapbpf_linux::clock;
use heapbpf_report::text::{counted, printable};
use tokio::time::Instant;

use super::Session;
use crate::allocator::selection::{GO, PAGES};
use crate::bpf::counters::Counters;
use crate::session::config::Progress;
use crate::session::meter::ProgressMeter;
use crate::session::target::Target;
use crate::snapshot::{Base, Snapshot, TargetState};

impl Session {
    pub fn describe(&self) -> String {
        const NAMED_MAX: usize = 5;
        let running = self.processes.running().take(NAMED_MAX);
        let mut names: Vec<_> = running.map(|target| format!("{} ({})", printable(&target.comm), target.pid)).collect();
        let more = self.processes.count().saturating_sub(NAMED_MAX);
        if more > 0 {
            names.push(format!("{more} more"));
        }
        if names.is_empty() {
            return format!("{}, of which none runs yet", self.config.selection);
        }
        let heaps = self.probes.discovery.plan.heaps().iter().map(String::as_str);
        let hooked: Vec<&str> = heaps.filter(|heap| ![PAGES, GO].contains(heap)).collect();
        let functions = || {
            let count = counted(self.functions_hooked() as u64, "function");
            format!("{count} of heap {}", hooked.join(", "))
        };
        let pages = self.probes.kernel.records_pages().then(|| "resident pages".to_owned());
        let go = self.probes.discovery.plan.go().map(|_| "the profile of Go's runtime".to_owned());
        let is_hooked = !hooked.is_empty() || pages.is_none() && go.is_none();
        let what: Vec<String> = is_hooked.then(functions).into_iter().chain(pages).chain(go).collect();
        let what = what.join(", and ");
        let later = if self.config.selection.is_open() { "; processes that start later too" } else { "" };
        format!("{}: {what}{later}", names.join(", "))
    }

    /// Number of different functions that are hooked in any process, as the report counts them.
    fn functions_hooked(&self) -> usize {
        let mut functions = HashSet::new();
        for target in self.processes.running() {
            for heap in target.heaps(&target.ledger.heaps(), &self.probes.discovery.plan, &self.rates) {
                let attached = heap.hooks.into_iter().filter(|hook| hook.error.is_none());
                functions.extend(attached.map(|hook| (heap.name.clone(), hook.module, hook.function)));
            }
        }
        functions.len()
    }

    pub(super) fn progress(&self, began: Instant, counters: &Counters, meter: &mut ProgressMeter) -> Progress {
        let now = Instant::now();
        let totals = self.processes.totals();
        Progress {
            elapsed: began.elapsed(),
            duration: self.config.duration,
            targets: self.processes.count(),
            live_bytes: totals.live_bytes(),
            growth_bytes: totals.delta_bytes(),
            allocated_bytes_per_second: meter.rate(now, totals.alloc_bytes.to_f64()),
            sampled_share: sampled_share(totals.alloc_samples, totals.alloc_count.to_f64()),
            lost: counters.losses().map(|(_, count)| count).sum(),
            overhead_percent: self.guard.overhead_percent,
            top_grower: self.top_grower(now, meter).map(Box::new),
        }
    }

    fn top_grower(&self, now: Instant, meter: &mut ProgressMeter) -> Option<Snapshot> {
        if !self.config.detailed_progress || !meter.is_grower_due(now) {
            return None;
        }
        let growers = self.processes.running().filter_map(|target| Some((target, target.ledger.top_grower()?)));
        let (target, callsite) =
            growers.max_by(|(_, a), (_, b)| a.totals.delta_bytes().cmp(&b.totals.delta_bytes()))?;
        let totals = callsite.totals;
        let heaps = vec![(callsite.heap, totals)];
        let ledger = TargetSnapshot { pid: target.pid, totals, heaps, callsites: vec![callsite] };
        Some(self.snapshot_of(target, ledger))
    }

    /// Snapshot of one target without any data over time.
    fn snapshot_of(&self, target: &Target, ledger: TargetSnapshot) -> Snapshot {
        let state = TargetState {
            facts: target.facts(),
            space: Arc::clone(&target.mappings.space),
            threads: Arc::default(),
            heaps: target.heaps(&ledger.heaps, &self.probes.discovery.plan, &self.rates),
            ledger: Arc::new(ledger),
            growths: Leaks::default(),
            curve: Vec::new(),
            timeline: Arc::new(Timeline::default()),
            memory: Arc::new(MemoryAccount::default()),
            until: clock::now().monotonic,
            older: None,
            base: Base::Beginning,
        };
        let modules = self.probes.discovery.modules.share();
        Snapshot { targets: vec![state], modules, ..Snapshot::default() }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share for display")]
fn sampled_share(samples: u64, allocations: f64) -> Option<f64> {
    (allocations > 0.0).then(|| (samples as f64 / allocations).min(1.0))
}
