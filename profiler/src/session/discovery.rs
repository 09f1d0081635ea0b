//! Finds the functions that targets' calls to allocators reach, and where in them probes go. Attaches none.

use anyhow::{Context, Result};

use super::hooks::Hooks;
use super::target::Target;
use crate::allocator::detect;
use crate::allocator::resolve::{Candidate, NoAllocator, ResolvedHook, resolve};
use crate::ids::ModuleId;
use crate::ids::Pid;
use crate::object::module::Module;
use crate::object::module::ModuleStore;
use crate::object::symbols::{Search, defined_functions};
use crate::probe::place::PlacementMode;
use crate::probe::plan::{Plan, PlannedHook};
use crate::proc::process;
use crate::report::profile::Origin;
use crate::target::address_space::AddressSpace;
use crate::target::link_map::LinkMap;

/// Modules and hooks of all targets, each once.
pub(super) struct Discovery {
    pub(super) modules: ModuleStore,
    pub(super) plan: Plan,
    placement: PlacementMode,
}

impl Discovery {
    pub(super) fn new(placement: PlacementMode) -> Self {
        Self { modules: ModuleStore::new(), plan: Plan::default(), placement }
    }

    /// What heapbpf itself maps: most programs use the same C library.
    pub(super) fn own(&mut self) -> Option<Own> {
        let pid = Pid(std::process::id());
        let mut own = Own { space: AddressSpace::new(pid), hooks: Hooks::default() };
        own.space.refresh(&mut self.modules).ok()?;
        let found = self.find(pid, &own.space, None).ok()?;
        own.hooks.add(&found, self.placement, &self.modules, &mut self.plan).ok()?;
        Some(own)
    }

    /// Adds what a target's present mappings ask for. True when that is something new.
    ///
    /// # Errors
    ///
    /// When no allocator is there, or hooks cannot be numbered.
    pub(super) fn discover(&mut self, target: &mut Target) -> Result<bool> {
        let found = self.find(target.pid, &target.space, target.link_map());
        let found = found.with_context(|| format!("cannot profile process `{}`", target.pid))?;
        let mapped = target.space.modules();
        target.hooks.retain_modules(&self.plan, &mapped);
        target.hooks.add(&found, self.placement, &self.modules, &mut self.plan)
    }

    fn find(&self, pid: Pid, space: &AddressSpace, _order: Option<&LinkMap>) -> Result<Vec<ResolvedHook>, NoAllocator> {
        resolve(&candidates(pid, space, &self.modules))
    }
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
pub fn hooks_of(pid: Pid, placement: PlacementMode) -> Result<Vec<PlannedHook>> {
    let mut discovery = Discovery::new(placement);
    let mut target = Target::open(pid, Origin::Running, None)?;
    target.refresh_space(&mut discovery.modules);
    discovery.discover(&mut target)?;
    Ok(target.hooks.planned(&discovery.plan).cloned().collect())
}

/// The process's modules with those functions of theirs that tell allocators.
fn candidates(pid: Pid, space: &AddressSpace, modules: &ModuleStore) -> Vec<Candidate> {
    let executable = process::executable(pid).ok();
    let names = detect::symbols();
    space
        .modules()
        .into_iter()
        .filter_map(|id| {
            let module = modules.get(id);
            let is_executable = executable.as_deref().is_some_and(|path| path.as_os_str() == &**module.path());
            candidate(id, module, is_executable, &names)
        })
        .collect()
}

fn candidate(id: ModuleId, module: &Module, is_executable: bool, names: &[&str]) -> Option<Candidate> {
    let elf = module.elf().ok()?;
    let functions = defined_functions(module, names, Search::Exported).unwrap_or_default();
    Some(Candidate {
        module: id,
        path: module.path().to_string(),
        is_executable,
        is_static: elf.is_static,
        is_go: elf.is_go,
        functions: functions.into_iter().filter(|function| function.global && !function.indirect).collect(),
    })
}
