//! One hint at the inline engine, when the trap engine's probes take a large share of a target's CPU time.

use std::collections::BTreeMap;

use tracing::warn;

use super::target::Target;
use crate::ids::Pid;
use crate::linux::clock;
use crate::report::text::printable;

#[derive(Debug)]
pub(super) struct Hint {
    is_due: bool,
    first: BTreeMap<Pid, Point>,
}

#[derive(Clone, Copy, Debug)]
struct Point {
    cpu_ns: u64,
    calls: f64,
}

/// Targets that are examined.
const TARGETS_MAX: usize = 64;
/// A uprobe on an emulated instruction; on physical machines it costs less (docs/overhead.md).
const TRAP_NS: f64 = 700.0;
const PERCENT_MIN: f64 = 10.0;
/// CPU time of a target before it is judged.
const CPU_NS_MIN: u64 = 500_000_000;

impl Hint {
    pub(super) fn new(is_due: bool) -> Self {
        Self { is_due, first: BTreeMap::new() }
    }

    pub(super) fn poll<'a>(&mut self, targets: impl Iterator<Item = &'a Target>) {
        if !self.is_due {
            return;
        }
        for target in targets.take(TARGETS_MAX) {
            let Some(cpu_ns) = clock::process_cpu_ns(target.pid) else { continue };
            let totals = target.ledger.totals();
            let now = Point { cpu_ns, calls: totals.alloc_count.to_f64() + totals.free_count.to_f64() };
            let first = *self.first.entry(target.pid).or_insert(now);
            let Some(percent) = now.percent_since(first).filter(|percent| *percent > PERCENT_MIN) else { continue };
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

impl Point {
    /// `None` as long as too little CPU time has passed.
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds below 2^53")]
    fn percent_since(self, first: Self) -> Option<f64> {
        let cpu_ns = self.cpu_ns.saturating_sub(first.cpu_ns);
        (cpu_ns >= CPU_NS_MIN).then(|| (100.0 * (self.calls - first.calls) * TRAP_NS / cpu_ns as f64).min(100.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_known_after_half_a_second() {
        let point = |cpu_ns, calls| Point { cpu_ns, calls };
        let first = point(1_000_000_000, 500.0);
        assert_eq!(point(1_400_000_000, 1e6).percent_since(first), None);
        let percent = point(2_000_000_000, 300_500.0).percent_since(first);
        assert!(percent.is_some_and(|percent| (percent - 21.0).abs() < 1e-9), "{percent:?}");
        assert_eq!(point(2_000_000_000, 1e7).percent_since(first), Some(100.0));
    }
}
