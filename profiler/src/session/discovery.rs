//! Discovery of allocator functions in targets, and of the instructions to probe. Attaches nothing.

use anyhow::{Context, Result, bail};
use heapbpf_base::ids::{HookId, ModuleId, Pid};
use heapbpf_ledger::model::{InlinedHeap, Origin, UnfoundHook};
use profiler_common::mapped::Changes;
use tracing::warn;

use super::hooks::Hooks;
use super::target::Target;
use crate::allocator::hook_set::{CustomFunction, HookSet};
use crate::allocator::resolve::{LEAK_SANITIZER, NoAllocator, ResolvedHook, resolve, symbols};
use crate::allocator::selection::{GO, HeapSelection, MMAP, PAGES};
use crate::go_heap::GoHeap;
use crate::object::module::ModuleStore;
use crate::probe::calls::Calls;
use crate::probe::inlined::{Inlined, InlinedFunction};
use crate::probe::jumps::Jumps;
use crate::probe::place::PlacementMode;
use crate::probe::plan::Plan;
use crate::process::address_space::AddressSpace;
use crate::process::definitions::{Candidate, Definitions};
use crate::process::link_map::LinkMap;

pub(super) struct Discovery {
    pub(super) modules: ModuleStore,
    pub(super) plan: Plan,
    placement: PlacementMode,
    definitions: Definitions,
    jumps: Jumps,
    calls: Calls,
    inlined: Inlined,
    functions: HookSet,
    found: Vec<bool>,
    heaps: HeapSelection,
}

impl Discovery {
    pub(super) fn new(placement: PlacementMode, functions: HookSet, heaps: HeapSelection) -> Self {
        Self {
            modules: ModuleStore::default(),
            plan: if heaps.wants(PAGES) { Plan::with_pages() } else { Plan::default() },
            placement,
            definitions: Definitions::new(symbols(&functions), functions.named_modules()),
            jumps: Jumps::default(),
            calls: Calls::default(),
            inlined: Inlined::default(),
            found: vec![false; functions.functions().len()],
            functions,
            heaps,
        }
    }

    /// Mappings and hooks of heapbpf itself: most programs use the same C library.
    pub(super) fn own(&mut self) -> Option<Own> {
        let pid = Pid(std::process::id());
        let mut own = Own { space: AddressSpace::new(pid), hooks: Hooks::default() };
        own.space.refresh(&mut self.modules).ok()?;
        let candidates = self.definitions.candidates(&own.space, &self.modules, LinkMap::read(pid).as_ref());
        let found = self.find(&own.space, &candidates).ok()?;
        own.hooks.add(&found, self.placement, &self.modules, &mut self.plan).ok()?;
        own.hooks.mark_mapped(&self.plan, &own.space.modules());
        Some(own)
    }

    pub(super) fn open(&mut self, pid: Pid) -> Result<Target> {
        let mut target = Target::open(pid, Origin::Running, None)?;
        target.refresh_mappings(Changes::default, &mut self.modules);
        match self.discover(&mut target) {
            Ok(_) => Ok(target),
            Err(error) => Err(target.explain(error)),
        }
    }

    pub(super) fn discover(&mut self, target: &mut Target) -> Result<Vec<HookId>> {
        let space = &target.mappings.space;
        let candidates = self.definitions.candidates(space, &self.modules, target.mappings.link_map.as_ref());
        target.has_leak_sanitizer |= candidates.iter().any(|module| module.exported(LEAK_SANITIZER).is_some());
        if self.heaps.wants(GO) && target.go.is_none() {
            target.go = self.go_heap(space, target.beginning.origin == Origin::Running)?;
        }
        let found = match self.find(space, &candidates) {
            // Every process has pages.
            Err(_) if self.heaps.is_pages_alone() || target.go.is_some() => Ok(Vec::new()),
            Err(NoAllocator::Go(_) | NoAllocator::Static(_)) if self.heaps.wants(PAGES) => Ok(Vec::new()),
            found => found,
        };
        let found = found.with_context(|| format!("cannot profile process `{}`", target.pid))?;
        target.mappings.is_unsearched = false;
        for (function, is_found) in self.functions.functions().iter().zip(&mut self.found).filter(|(_, found)| !**found)
        {
            *is_found = found.iter().any(|hook| is_named_by(hook, function));
        }
        let ids = target.hooks.add(&found, self.placement, &self.modules, &mut self.plan)?;
        target.hooks.mark_mapped(&self.plan, &target.mappings.space.modules());
        Ok(ids)
    }

    /// The heap of the Go program that a process runs. Fails only where nothing else is to be recorded. A program that `is_running` has
    /// a profile by now, if it has one.
    fn go_heap(&mut self, space: &AddressSpace, is_running: bool) -> Result<Option<GoHeap>> {
        let pid = space.pid();
        let of_module = |id: ModuleId| {
            let module = self.modules.get(id);
            let mapped = space.mappings().iter().find(|mapped| mapped.module == Some(id))?;
            GoHeap::of(module, module.bias(mapped.mapping.start, mapped.mapping.offset)?)
        };
        let found = space.modules().into_iter().find_map(of_module);
        let has_profile = |heap: GoHeap| if is_running { heap.interval(&pid).map(|_| heap) } else { Ok(heap) };
        let found = found.map(|heap| heap.and_then(has_profile));
        match found {
            Some(Ok(heap)) => {
                self.plan.add_go();
                Ok(Some(heap))
            }
            Some(Err(error)) if self.heaps.is_go_alone() => {
                bail!("cannot record the Go heap of process `{pid}`: {error}")
            }
            Some(Err(error)) => {
                warn!("process {pid}: its Go heap is not recorded: {error}");
                Ok(None)
            }
            None => Ok(None),
        }
    }

    /// Names of all functions that are searched for.
    pub(super) fn names(&self) -> &[&'static str] {
        self.definitions.names()
    }

    /// Heaps that are not hooked because their functions are inlined.
    pub(super) fn inlined(&self) -> Vec<InlinedHeap> {
        let heaps = self.inlined.found().cloned();
        heaps
            .map(|InlinedFunction { heap, module, function, copies, advice }| InlinedHeap {
                heap,
                module,
                function: function.to_owned(),
                copies,
                advice,
            })
            .collect()
    }

    /// Functions named by the user, of selected heaps, that no target has had yet.
    pub(super) fn unfound(&self) -> Vec<UnfoundHook> {
        let functions = self.functions.functions().iter().zip(&self.found);
        functions
            .filter(|(function, found)| !**found && self.heaps.wants(&function.heap))
            .filter(|(function, _)| self.inlined.found().all(|inlined| inlined.heap != function.heap))
            .map(|(function, _)| UnfoundHook {
                heap: function.heap.clone(),
                function: function.spec.function.to_owned(),
                modules: function.modules.iter().map(ToString::to_string).collect(),
                required: function.required,
            })
            .collect()
    }

    fn find(&mut self, space: &AddressSpace, candidates: &[Candidate]) -> Result<Vec<ResolvedHook>, NoAllocator> {
        let hooks = resolve(candidates, &self.functions, &self.heaps).map_err(|error| match error {
            NoAllocator::None(_) => match Definitions::unreadable_program(space, &self.modules) {
                Some((path, error)) => NoAllocator::Unreadable(path.to_string(), error),
                None => error,
            },
            _ => error,
        })?;
        let mut hooks = self.jumps.merge(hooks, &self.modules);
        self.inlined.remove(&mut hooks, &self.functions, &self.modules);
        // Beside recorded mappings, every call is followed: see `resolve`.
        if !self.heaps.wants(MMAP) {
            self.calls.refine(&mut hooks, &self.modules);
        }
        Ok(hooks)
    }
}

/// Whether the hook is this function named by the user. A function named for two heaps belongs to the first.
fn is_named_by(hook: &ResolvedHook, function: &CustomFunction) -> bool {
    let name = function.spec.function;
    function.may_be_in(&hook.path) && (hook.spec.function == name || hook.aliases.contains(&name))
}

pub(super) struct Own {
    pub(super) space: AddressSpace,
    pub(super) hooks: Hooks,
}
