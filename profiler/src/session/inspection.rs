//! What `doctor` learns about processes: hooks, scope, rate of calls, and what a killed heapbpf has left behind.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use heapbpf_base::ids::Pid;
use heapbpf_linux::clock;
use profiler_common::interval::Interval;
use profiler_common::limits::INTERVAL_BYTES_MAX;

use super::config::{Engine, SessionConfig, UnwindMode};
use super::discovery::Discovery;
use super::probes::Probes;
use super::rates::Rates;
use super::scope::ScopeForecast;
use super::stubs;
use super::target::Target;
use super::unwinding::Tables;
use crate::allocator::hook_set::HookSet;
use crate::allocator::selection::HeapSelection;
use crate::bpf::load::{BackendChoice, LinkKind};
use crate::keeper::{Keeper, KeeperError};
use crate::probe::foreign;
use crate::probe::leftover::{CodeLocation, breakpoints, remove};
use crate::probe::place::PlacementMode;
use crate::probe::plan::PlannedHook;
use crate::process::selection::{self, Selection};

/// Returns the hooks of a process, and the scope that their probes would have.
pub(crate) fn inspect(pid: Pid, placement: PlacementMode) -> Result<(Vec<PlannedHook>, Result<ScopeForecast>)> {
    let mut discovery = Discovery::new(placement, HookSet::default(), HeapSelection::default());
    let target = discovery.open(pid)?;
    let plan = &discovery.plan;
    let foreign = foreign::find(&[], target.hooks.planned(plan), &discovery.modules, &BTreeSet::new());
    let scope = LinkKind::choose(BackendChoice::Auto)
        .map_err(Into::into)
        .and_then(|kind| ScopeForecast::new(kind, pid, &target.hooked_files(plan), foreign.known_count()));
    Ok((target.hooks.planned(plan).cloned().collect(), scope))
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leftovers {
    pub processes: usize,
    pub removed: usize,
    pub processes_with_removed: usize,
    /// Number of breakpoints that belong to running tools.
    pub others: usize,
    /// Number of pointers to stubs of the inline engine that were restored.
    pub pointers: usize,
}

/// Removes breakpoints of a killed heapbpf from all processes. Takes some milliseconds per process.
pub(crate) fn remove_leftovers(kind: LinkKind) -> Result<Leftovers, KeeperError> {
    let mut discovery = Discovery::new(PlacementMode::Auto, HookSet::default(), HeapSelection::default());
    let selection = Selection { all: true, ..Selection::default() };
    let mut leftovers = Leftovers::default();
    let mut keeper: Option<Keeper> = None;
    for facts in selection::scan(&selection).unwrap_or_default() {
        let pid: Pid = facts.pid();
        let Ok(target) = discovery.open(pid) else { continue };
        leftovers.processes += 1;
        leftovers.pointers += remove_stubs(&target, &discovery, &mut keeper)?;
        // With `--placement entry`, probes are at the first instruction.
        let both = |planned: &PlannedHook| [planned.offset(), planned.hook.offset].map(|at| (planned.hook.module, at));
        let mut places: Vec<CodeLocation> = target.hooks.planned(&discovery.plan).flat_map(both).collect();
        places.sort_unstable();
        places.dedup();
        let search =
            |places: Vec<CodeLocation>| breakpoints(&target.mappings.space, &discovery.modules, places.into_iter());
        let found = search(places);
        if found.is_empty() {
            continue;
        }
        remove(started(&mut keeper)?, kind, &discovery.modules, pid, &found)?;
        let count = found.len();
        let others = search(found).len();
        leftovers.others += others;
        leftovers.removed += count - others;
        leftovers.processes_with_removed += usize::from(count > others);
    }
    Ok(leftovers)
}

/// Removes stubs of a killed heapbpf. Returns the number of pointers that were restored.
fn remove_stubs(target: &Target, discovery: &Discovery, keeper: &mut Option<Keeper>) -> Result<usize, KeeperError> {
    if !stubs::are_left(target) {
        return Ok(0);
    }
    // The process may have ended.
    Ok(stubs::remove_left(target, discovery, started(keeper)?).unwrap_or(0))
}

fn started(keeper: &mut Option<Keeper>) -> Result<&Keeper, KeeperError> {
    match keeper {
        Some(keeper) => Ok(keeper),
        None => Ok(keeper.insert(Keeper::start()?)),
    }
}

/// How often a process allocates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CallRate {
    /// Number of allocations while all calls were counted by probes.
    pub allocations: u64,
    pub cpu_ns: u64,
    /// Number of pointers that would lead to stubs of the inline engine.
    pub pointers: usize,
}

const COUNTING: Duration = Duration::from_millis(200);

/// Probes a process for a short time, without recording. Requires Linux 6.6.
pub(crate) fn call_rate(pid: Pid, placement: PlacementMode) -> Result<CallRate> {
    let config = SessionConfig {
        engine: Engine::Inline,
        interval: Interval::nearest(u32::try_from(INTERVAL_BYTES_MAX)?),
        unwind: UnwindMode::FramePointer,
        placement,
        ..SessionConfig::default()
    };
    let mut discovery = Discovery::new(placement, HookSet::default(), HeapSelection::default());
    let mut target = discovery.open(pid)?;
    let mut probes = Probes::load(&config, 1, discovery, Tables::new(config.unwind, config.unwind_bytes_max))?;
    probes.mark(pid, false, false);
    probes.attach(&mut target, &mut Rates::new(&config))?;
    let cpu_ns = || clock::process_cpu_ns(pid).context("the process has ended");
    let (pointers, before) = (probes.count_pointers(&target), cpu_ns()?);
    probes.kernel.count_stub_calls(pid)?;
    thread::sleep(COUNTING);
    let (allocations, after) = (probes.kernel.stub_calls(pid)?.trapped, cpu_ns()?);
    probes.release(&mut target);
    Ok(CallRate { allocations, cpu_ns: after.saturating_sub(before), pointers })
}
