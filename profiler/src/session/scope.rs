//! Whether each target has probes of its own, or all processes that map a hooked file share them.
//!
//! A link that is limited to one process is a consumer of the function's uprobe, and the kernel calls every consumer
//! for every hit, in whichever process (`handler_chain` in kernel/events/uprobes.c). A session link requests the return
//! even for other processes (`uprobe_multi_link_handler` in kernel/trace/bpf_trace.c, up to 7.3). So with K targets,
//! each call costs up to K times as much. A link without a process costs the same for any number of targets, but other
//! processes that map the file pay for a trap too. This module chooses the cheaper.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use heapbpf_base::ids::Pid;
use heapbpf_ledger::model::{ProbeScope, ScopeKind};
use heapbpf_linux::clock;
use heapbpf_linux::proc::maps::{self, FileIdentity};
use heapbpf_linux::proc::process;
use heapbpf_linux::proc::stat::Stat;
use heapbpf_report::text;
use tracing::debug;

use super::config::{ScopeChoice, SessionConfig};
use crate::bpf::load::LinkKind;
use crate::guardrail::CallCosts;

#[derive(Debug)]
pub(super) struct Scope {
    facts: ProbeScope,
    /// Number of targets at which the choice is made again; `None` if it is final.
    check_at: Option<usize>,
}

/// Traps that each further target adds to a malloc/free pair: 0.10 at malloc, 0.03 at free, and the return trap that
/// the first of them adds (measured on Linux 6.18; see docs/overhead.md).
const FILTER_TRAPS: f64 = FILTER_TRAPS_ALLOC + FILTER_TRAPS_FREE;
const FILTER_TRAPS_ALLOC: f64 = 0.10;
const FILTER_TRAPS_FREE: f64 = 0.03;
const RETURN_TRAPS: f64 = 0.45;

/// Traps of a malloc/free pair of a process that is not a target. They count double: its user gets nothing for them.
const FOREIGN_TRAPS: f64 = 2.0 * 2.0;

/// Minimum share of a CPU that a process counts with: an idle process may become busy.
const ACTIVITY_MIN: f64 = 0.01;

impl Scope {
    pub(super) fn new(config: &SessionConfig, kind: LinkKind) -> Result<Self> {
        let selection = &config.selection;
        let individual = match kind {
            LinkKind::Perf => Some("perf events cannot be attached to all processes at once"),
            _ if config.limits.overhead_percent_max.is_some() => Some("--max-overhead detaches from single processes"),
            _ => None,
        };
        let (kind, reason, check_at) = match (config.scope, individual) {
            (ScopeChoice::Only(ScopeKind::Inode), Some(reason)) => bail!("cannot use `--scope inode`: {reason}"),
            (ScopeChoice::Only(kind), _) => (kind, "--scope", None),
            (ScopeChoice::Auto, Some(reason)) => (ScopeKind::Process, reason, None),
            (ScopeChoice::Auto, None)
                if selection.all && selection.exclude.is_empty() && selection.min_rss_bytes == 0 =>
            {
                (ScopeKind::Inode, "nearly all processes are targets", None)
            }
            (ScopeChoice::Auto, None) => (ScopeKind::Process, "one target", Some(2)),
        };
        Ok(Self { facts: facts(kind, reason), check_at })
    }

    /// Costs of a target's calls among this number of targets, computed from its costs as the only target.
    #[expect(clippy::cast_precision_loss, reason = "targets count by the thousand")]
    pub(super) fn costs_among(&self, targets: usize, alone: CallCosts) -> CallCosts {
        let further = targets.saturating_sub(1) as f64;
        if self.is_shared() || further == 0.0 {
            return alone;
        }
        let trap_ns = f64::midpoint(alone.alloc_ns, alone.free_ns);
        CallCosts {
            alloc_ns: alone.alloc_ns + trap_ns * (RETURN_TRAPS + FILTER_TRAPS_ALLOC * further),
            free_ns: alone.free_ns + trap_ns * FILTER_TRAPS_FREE * further,
        }
    }

    pub(super) fn is_shared(&self) -> bool {
        self.facts.kind == ScopeKind::Inode
    }

    pub(super) fn facts(&self) -> ProbeScope {
        self.facts.clone()
    }

    /// Whether [`choose`](Self::choose) is due: at two targets, and whenever their number has grown by half.
    pub(super) fn is_due(&self, targets: usize) -> bool {
        self.check_at.is_some_and(|check_at| targets >= check_at)
    }

    /// Returns whether to share probes from now on. Reads the mappings of all processes, about 0.2 ms each.
    pub(super) fn choose(&mut self, targets: &BTreeSet<Pid>, files: &[FileIdentity]) -> bool {
        let load = Load::measure(targets, files);
        let (own, shared) = load.traps();
        let others = text::counted(load.others, "other process");
        debug!(
            "traps by own probes: {own:.2}, by shared probes: {shared:.2}, for {} targets and {others}",
            load.targets
        );
        self.facts.other_processes = Some(load.others);
        let is_shared = shared < own;
        let comparison = if is_shared { "cheaper" } else { "more expensive" };
        self.facts.reason = format!(
            "for {} and {others} that map the hooked files, sharing is {comparison}",
            text::counted(load.targets, "target")
        );
        if is_shared {
            self.facts.kind = ScopeKind::Inode;
        }
        self.check_at = (!is_shared).then_some(targets.len() + targets.len().div_ceil(2));
        is_shared
    }

    pub(super) fn reason(&self) -> &str {
        &self.facts.reason
    }

    pub(super) fn refuse(&mut self, reason: &str) {
        self.facts = facts(ScopeKind::Process, reason);
        self.check_at = None;
    }
}

fn facts(kind: ScopeKind, reason: &str) -> ProbeScope {
    ProbeScope { kind, reason: reason.to_owned(), other_processes: None, foreign_calls: 0, foreign_probes: None }
}

/// What determines the scope of recordings of a process.
#[derive(Debug)]
pub(crate) struct ScopeForecast {
    pub other_processes: u64,
    pub foreign_probes: Option<u64>,
    /// Scope of a recording of this process alone.
    pub one_target: ProbeScope,
    /// Scope of a recording of all processes.
    pub all: ProbeScope,
}

impl ScopeForecast {
    pub(super) fn new(kind: LinkKind, pid: Pid, files: &[FileIdentity], foreign_probes: Option<u64>) -> Result<Self> {
        let mut config = SessionConfig::default();
        let one_target = Scope::new(&config, kind)?.facts;
        config.selection.all = true;
        let other_processes = Load::measure(&BTreeSet::from([pid]), files).others;
        Ok(Self { other_processes, foreign_probes, one_target, all: Scope::new(&config, kind)?.facts })
    }
}

/// Processes that map the hooked files, and their mean CPU use: how often they allocate is not known yet.
#[derive(Debug, Default)]
struct Load {
    targets: u64,
    others: u64,
    targets_cpus: f64,
    others_cpus: f64,
}

impl Load {
    fn measure(targets: &BTreeSet<Pid>, files: &[FileIdentity]) -> Self {
        let mut load = Self::default();
        let boot_ns = clock::boot_ns();
        for pid in process::all().unwrap_or_default() {
            let Ok(stat) = Stat::of_process(pid) else { continue };
            if stat.kernel_thread || stat.has_ended() {
                continue;
            }
            let cpus = stat.cpus(boot_ns).max(ACTIVITY_MIN);
            if targets.contains(&pid) {
                load.targets += 1;
                load.targets_cpus += cpus;
            } else if maps_any(pid, files) {
                load.others += 1;
                load.others_cpus += cpus;
            }
        }
        load
    }

    /// Additional traps per malloc/free pair, weighted by CPUs: with probes of single processes, and with shared ones.
    #[expect(clippy::cast_precision_loss, reason = "processes count by the thousand")]
    fn traps(&self) -> (f64, f64) {
        let further = self.targets.saturating_sub(1);
        let own = if further == 0 { 0.0 } else { self.targets_cpus * (RETURN_TRAPS + FILTER_TRAPS * further as f64) };
        (own, self.others_cpus * FOREIGN_TRAPS)
    }
}

/// Whether a process maps any of the files. Mappings that cannot be read count: a process of another user may map the
/// files.
fn maps_any(pid: Pid, files: &[FileIdentity]) -> bool {
    let mapped = maps::executable_mappings(pid);
    mapped.map_or(true, |mapped| mapped.iter().any(|at| files.contains(&FileIdentity::new(at.device, at.inode))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(targets: u64, targets_cpus: f64, others: u64, others_cpus: f64) -> Load {
        Load { targets, others, targets_cpus, others_cpus }
    }

    #[test]
    fn one_target_never_shares() {
        let (own, shared) = load(1, 1.0, 0, 0.0).traps();
        assert!(own <= shared);
    }

    #[test]
    fn many_targets_share_among_idle_processes() {
        // A busy target among 99 idle ones, and 200 idle processes.
        let (own, shared) = load(100, 1.99, 200, 2.0).traps();
        assert!(shared < own, "{shared} {own}");
    }

    #[test]
    fn few_idle_targets_do_not_slow_down_busy_processes() {
        let (own, shared) = load(3, 0.03, 2, 1.5).traps();
        assert!(own < shared, "{own} {shared}");
    }

    #[test]
    fn all_processes_share_from_the_start_unless_some_can_be_left_out() {
        let mut config = SessionConfig::default();
        config.selection.all = true;
        assert!(Scope::new(&config, LinkKind::Session).expect("possible").is_shared());
        assert!(!Scope::new(&config, LinkKind::Perf).expect("possible").is_shared());
        config.selection.min_rss_bytes = 1;
        let scope = Scope::new(&config, LinkKind::Multi).expect("possible");
        assert!(!scope.is_shared() && scope.is_due(2) && !scope.is_due(1));
    }

    #[test]
    fn calls_cost_more_among_targets_with_probes_of_their_own() {
        let config = SessionConfig::default();
        let scope = Scope::new(&config, LinkKind::Session).expect("possible");
        let pair = |targets| {
            let costs = scope.costs_among(targets, CallCosts { alloc_ns: 500.0, free_ns: 400.0 });
            (costs.alloc_ns + costs.free_ns).round()
        };
        // As measured: docs/overhead.md, "Many targets".
        assert_eq!([1, 20, 100].map(pair), [900.0, 2214.0, 6894.0]);
        let mut all = SessionConfig::default();
        all.selection.all = true;
        let shared = Scope::new(&all, LinkKind::Session).expect("possible");
        let alone = CallCosts { alloc_ns: 500.0, free_ns: 400.0 };
        assert_eq!(shared.costs_among(100, alone), alone);
    }

    #[test]
    fn a_request_is_final_or_refused() {
        let only = |kind| SessionConfig { scope: ScopeChoice::Only(kind), ..SessionConfig::default() };
        let own = Scope::new(&only(ScopeKind::Process), LinkKind::Session).expect("possible");
        assert!(!own.is_shared() && !own.is_due(1000));
        let shared = Scope::new(&only(ScopeKind::Inode), LinkKind::Session).expect("possible");
        assert!(shared.is_shared());
        let error = Scope::new(&only(ScopeKind::Inode), LinkKind::Perf).expect_err("impossible");
        assert!(error.to_string().contains("perf events"), "{error}");
    }
}
