//! One hint at the inline engine, when the trap engine's probes take a large share of a target's CPU time.

use std::collections::BTreeMap;

use heapbpf_base::ids::Pid;
use heapbpf_linux::clock;
use heapbpf_report::text::printable;
use tracing::warn;

use super::target::Target;
use crate::guardrail::{CallCosts, OverheadMonitor, Share};

#[derive(Debug)]
pub(super) struct Hint {
    is_due: bool,
    monitors: BTreeMap<Pid, OverheadMonitor>,
}

/// Maximum number of targets that are examined.
const TARGETS_MAX: usize = 64;
/// Cost of a call through a uprobe on an emulated instruction; on physical machines it is lower (docs/overhead.md).
const TRAP: CallCosts = CallCosts { alloc_ns: 700.0, free_ns: 700.0 };
const PERCENT_MIN: f64 = 10.0;
/// CPU time that a target must have used before its share is judged.
const CPU_NS_MIN: u64 = 500_000_000;

impl Hint {
    pub(super) fn new(is_due: bool) -> Self {
        Self { is_due, monitors: BTreeMap::new() }
    }

    pub(super) fn poll<'a>(&mut self, targets: impl Iterator<Item = &'a Target>) {
        if !self.is_due {
            return;
        }
        let now = clock::now().monotonic;
        for target in targets.take(TARGETS_MAX) {
            let Some(cpu_ns) = clock::process_cpu_ns(target.pid) else { continue };
            let monitor = self.monitors.entry(target.pid).or_default();
            let _ = monitor.observe(now, target.ledger.totals(), cpu_ns, TRAP, f64::INFINITY);
            let percent = monitor.whole.and_then(percent);
            let Some(percent) = percent.filter(|percent| *percent > PERCENT_MIN) else { continue };
            warn!(
                "probes take ≈ {percent:.0} % of the CPU time of process {} ({}); with `--engine inline` it is about 1 % \
                 (docs/overhead.md)",
                target.pid,
                printable(&target.comm)
            );
            self.is_due = false;
            return;
        }
    }
}

/// Converts a share to percent, at most 100. Returns `None` as long as too little CPU time has passed.
fn percent(share: Share) -> Option<f64> {
    (share.cpu_ns >= CPU_NS_MIN).then(|| share.percent().min(100.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_known_after_half_a_second() {
        let share = |calls: f64, cpu_ns| {
            percent(Share { probe_ns: calls * TRAP.alloc_ns, margin_ns: 0.0, cpu_ns, span_ns: cpu_ns })
        };
        assert_eq!(share(1e6, 400_000_000), None);
        let percent = share(300_000.0, 1_000_000_000);
        assert!(percent.is_some_and(|percent| (percent - 21.0).abs() < 1e-9), "{percent:?}");
        assert_eq!(share(1e7, 1_000_000_000), Some(100.0));
    }
}
