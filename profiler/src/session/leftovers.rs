//! Breakpoints of a killed heapbpf in any process of the machine.

use crate::allocator::hook_set::HookSet;
use crate::allocator::selection::HeapSelection;
use crate::bpf::load::LinkKind;
use crate::ids::Pid;
use crate::keeper::{Keeper, KeeperError};
use crate::probe::leftover::{Place, breakpoints, remove};
use crate::probe::place::PlacementMode;
use crate::probe::plan::PlannedHook;
use crate::process::selection::{self, Selection};

use super::discovery::Discovery;

/// What was found, and what became of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leftovers {
    /// Processes that were searched.
    pub processes: usize,
    /// Breakpoints without an owner, now removed.
    pub removed: usize,
    /// The processes that had them.
    pub processes_with_removed: usize,
    /// Breakpoints of running tools.
    pub others: usize,
}

/// Searches all processes for breakpoints at the functions that a recording would probe, and removes those without an owner. Takes some
/// milliseconds for each process.
///
/// # Errors
///
/// When there are breakpoints, and probes cannot be attached to remove them.
pub(crate) fn remove_leftovers(kind: LinkKind) -> Result<Leftovers, KeeperError> {
    let mut discovery = Discovery::new(PlacementMode::Auto, HookSet::default(), HeapSelection::default());
    let selection = Selection { all: true, ..Selection::default() };
    let mut leftovers = Leftovers::default();
    let mut keeper: Option<Keeper> = None;
    for facts in selection::scan(&selection).unwrap_or_default() {
        let pid: Pid = facts.pid();
        // One without an allocator, or that has exited, has no probes.
        let Ok(target) = discovery.open(pid) else { continue };
        leftovers.processes += 1;
        // With `--placement entry`, probes were at the first instructions.
        let both = |planned: &PlannedHook| [planned.offset(), planned.hook.offset].map(|at| (planned.hook.module, at));
        let mut places: Vec<Place> = target.hooks.planned(&discovery.plan).flat_map(both).collect();
        places.sort_unstable();
        places.dedup();
        let search = |places: Vec<Place>| breakpoints(&target.space, &discovery.modules, places.into_iter());
        let found = search(places);
        if found.is_empty() {
            continue;
        }
        if keeper.is_none() {
            keeper = Some(Keeper::start()?);
        }
        if let Some(keeper) = &keeper {
            remove(keeper, kind, &discovery.modules, pid, &found)?;
        }
        let count = found.len();
        let others = search(found).len();
        leftovers.others += others;
        leftovers.removed += count - others;
        leftovers.processes_with_removed += usize::from(count > others);
    }
    Ok(leftovers)
}
