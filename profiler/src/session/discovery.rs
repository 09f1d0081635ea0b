//! Finds the functions that targets' calls to allocators reach, and where in them probes go. Attaches none.

use anyhow::{Context, Result};

use super::hooks::Hooks;
use super::target::Target;
use crate::allocator::hook_set::{CustomFunction, HookSet};
use crate::allocator::resolve::{NoAllocator, ResolvedHook, resolve, symbols};
use crate::allocator::selection::HeapSelection;
use crate::ids::{HookId, Pid};
use crate::model::{Origin, UnfoundHook};
use crate::object::module::ModuleStore;
use crate::probe::jumps::Jumps;
use crate::probe::place::PlacementMode;
use crate::probe::plan::{Plan, PlannedHook};
use crate::process::address_space::AddressSpace;
use crate::process::definitions::Definitions;
use crate::process::link_map::LinkMap;

/// Modules and hooks of all targets, each once.
pub(super) struct Discovery {
    pub(super) modules: ModuleStore,
    pub(super) plan: Plan,
    placement: PlacementMode,
    definitions: Definitions,
    jumps: Jumps,
    functions: HookSet,
    /// Which of those were found in some target, in their order.
    found: Vec<bool>,
    heaps: HeapSelection,
}

impl Discovery {
    /// For hooks of the known allocators and these functions, of these heaps.
    pub(super) fn new(placement: PlacementMode, functions: HookSet, heaps: HeapSelection) -> Self {
        Self {
            modules: ModuleStore::new(),
            plan: Plan::default(),
            placement,
            definitions: Definitions::new(symbols(&functions), functions.named_modules()),
            jumps: Jumps::default(),
            found: vec![false; functions.functions().len()],
            functions,
            heaps,
        }
    }

    /// Mean bytes between samples of a heap, where it has its own.
    pub(super) fn interval_bytes(&self, heap: &str) -> Option<u32> {
        self.heaps.interval_bytes(heap).or_else(|| self.functions.interval_bytes(heap))
    }

    /// What heapbpf itself maps: most programs use the same C library.
    pub(super) fn own(&mut self) -> Option<Own> {
        let pid = Pid(std::process::id());
        let mut own = Own { space: AddressSpace::new(pid), hooks: Hooks::default() };
        own.space.refresh(&mut self.modules).ok()?;
        let found = self.find(&own.space, LinkMap::read(pid).as_ref()).ok()?;
        own.hooks.add(&found, self.placement, &self.modules, &mut self.plan).ok()?;
        own.hooks.mark_mapped(&self.plan, &own.space.modules());
        Some(own)
    }

    /// A process that runs, with its allocators.
    ///
    /// # Errors
    ///
    /// When it cannot be profiled.
    pub(super) fn open(&mut self, pid: Pid) -> Result<Target> {
        let mut target = Target::open(pid, Origin::Running, None)?;
        target.refresh_space(&mut self.modules);
        self.discover(&mut target)?;
        Ok(target)
    }

    /// Adds what a target's present mappings ask for. Returns the hooks that they ask for.
    ///
    /// # Errors
    ///
    /// When no allocator is there, or hooks cannot be numbered.
    pub(super) fn discover(&mut self, target: &mut Target) -> Result<Vec<HookId>> {
        let found = self.find(&target.space, target.link_map());
        let found = found.with_context(|| format!("cannot profile process `{}`", target.pid))?;
        target.was_searched();
        for (function, is_found) in self.functions.functions().iter().zip(&mut self.found).filter(|(_, found)| !**found)
        {
            *is_found = found.iter().any(|hook| is_named_by(hook, function));
        }
        let ids = target.hooks.add(&found, self.placement, &self.modules, &mut self.plan)?;
        target.hooks.mark_mapped(&self.plan, &target.space.modules());
        Ok(ids)
    }

    /// The functions that were named, are of a heap that is selected, and were in no target yet.
    pub(super) fn unfound(&self) -> Vec<UnfoundHook> {
        let functions = self.functions.functions().iter().zip(&self.found);
        functions
            .filter(|(function, found)| !**found && self.heaps.wants(&function.heap))
            .map(|(function, _)| UnfoundHook {
                heap: function.heap.clone(),
                function: function.spec.function.to_owned(),
                modules: function.modules.iter().map(ToString::to_string).collect(),
                required: function.required,
            })
            .collect()
    }

    fn find(&mut self, space: &AddressSpace, links: Option<&LinkMap>) -> Result<Vec<ResolvedHook>, NoAllocator> {
        let candidates = self.definitions.candidates(space, &self.modules, links);
        let hooks = resolve(&candidates, &self.functions, &self.heaps).map_err(|error| match error {
            NoAllocator::None(_) => match Definitions::unreadable_program(space, &self.modules) {
                Some((path, error)) => NoAllocator::Unreadable(path.to_string(), error),
                None => error,
            },
            _ => error,
        })?;
        Ok(self.jumps.merge(hooks, &self.modules))
    }
}

/// Whether the hook is this function that a user has named. One that was named for two heaps belongs to the first.
fn is_named_by(hook: &ResolvedHook, function: &CustomFunction) -> bool {
    let name = function.spec.function;
    function.may_be_in(&hook.path) && (hook.spec.function == name || hook.aliases.contains(&name))
}

/// See [`Discovery::own`].
pub(super) struct Own {
    pub(super) space: AddressSpace,
    pub(super) hooks: Hooks,
}

/// The hooks that a recording of this process would attach. Attaches none.
///
/// # Errors
///
/// When it cannot be profiled.
pub(crate) fn hooks_of(pid: Pid, placement: PlacementMode) -> Result<Vec<PlannedHook>> {
    let mut discovery = Discovery::new(placement, HookSet::default(), HeapSelection::default());
    let target = discovery.open(pid)?;
    Ok(target.hooks.planned(&discovery.plan).cloned().collect())
}
