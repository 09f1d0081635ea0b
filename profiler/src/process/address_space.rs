//! Executable mappings of a process. Unmapped modules are remembered, because stacks outlive `dlclose` and the process;
//! a reused address is attributed to the later one. A process that calls exec needs a new [`AddressSpace`].

use heapbpf_base::address::{FileOffset, TargetAddr};
use heapbpf_base::ids::{ModuleId, Pid};
use heapbpf_linux::proc::ProcError;
use heapbpf_linux::proc::maps::{Mapping, executable_mappings};

use crate::object::module::{ModuleStore, Modules};

/// Maximum number of remembered unmapped ranges, which just-in-time compilers create; the oldest are dropped.
const RETIRED_MAX: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    pub module: ModuleId,
    pub offset: FileOffset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeOrigin {
    Module(Location),
    Generated,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedModule {
    pub mapping: Mapping,
    /// Module of the code; `None` for generated code.
    pub module: Option<ModuleId>,
}

impl MappedModule {
    fn contains(&self, address: TargetAddr) -> bool {
        (self.mapping.start..self.mapping.end).contains(&address)
    }

    fn origin(&self, address: TargetAddr, generated: Option<ModuleId>) -> CodeOrigin {
        let inside = address.0.saturating_sub(self.mapping.start.0);
        match self.module {
            None => match generated {
                Some(module) => CodeOrigin::Module(Location { module, offset: FileOffset(address.0) }),
                None => CodeOrigin::Generated,
            },
            Some(module) => CodeOrigin::Module(Location {
                module,
                offset: FileOffset(self.mapping.offset.0.saturating_add(inside)),
            }),
        }
    }
}

#[derive(Clone, Debug)]
pub struct AddressSpace {
    pid: Pid,
    /// Present mappings by rising address, without overlaps, as of the last refresh.
    current: Vec<MappedModule>,
    /// Unmapped ranges, the oldest first.
    retired: Vec<MappedModule>,
    version: u64,
    /// The module that stands for the process's generated code, once it has any.
    generated: Option<ModuleId>,
    /// Runtimes of the process, once it is known to have them.
    interpreted: Vec<Interpreted>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// Code of a runtime, which has no addresses of its own in stacks.
pub struct Interpreted {
    /// First word that stands for the runtime's code in stacks.
    pub start: TargetAddr,
    /// End of the words that stand for the runtime's code, exclusive.
    pub end: TargetAddr,
    /// Module that stands for the code.
    pub code: ModuleId,
    /// Module that executes the code: it contains the interpreter loop, or the virtual machine.
    pub interpreter: ModuleId,
}

impl AddressSpace {
    pub fn new(pid: Pid) -> Self {
        Self { pid, current: Vec::new(), retired: Vec::new(), version: 0, generated: None, interpreted: Vec::new() }
    }

    pub fn of(pid: Pid, current: Vec<MappedModule>, retired: Vec<MappedModule>) -> Self {
        Self { pid, current, retired, version: 0, generated: None, interpreted: Vec::new() }
    }

    pub fn for_child(&self, child: Pid) -> Self {
        Self { pid: child, ..self.clone() }
    }

    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Reads the mappings again. Returns the modules that were not mapped before, in mapping order. On errors, the former
    /// mappings are kept.
    pub fn refresh(&mut self, modules: &mut ModuleStore) -> Result<Vec<ModuleId>, ProcError> {
        let mappings = executable_mappings(self.pid)?;
        if mappings.is_empty() {
            // A zombie has no memory any more. Its former mappings are needed for its stacks.
            return Ok(Vec::new());
        }
        let before = self.modules();
        let known = std::mem::take(&mut self.current);
        self.current = mappings
            .into_iter()
            .map(|mapping| {
                let same = known.binary_search_by_key(&mapping.start, |old| old.mapping.start).ok();
                let module = match same.map(|at| &known[at]).filter(|old| old.mapping == mapping) {
                    Some(old) => old.module,
                    None => modules.intern_mapping(self.pid, &mapping),
                };
                MappedModule { mapping, module }
            })
            .collect();
        if self.generated.is_none() && self.current.iter().any(|mapped| mapped.module.is_none()) {
            self.generated = Some(modules.add_generated());
        }
        self.version += u64::from(self.current != known);
        self.retire(known);
        Ok(self.modules().into_iter().filter(|module| !before.contains(module)).collect())
    }

    /// The module that stands for the process's generated code; `None` as long as there is none, and in a replay, where mappings
    /// have it.
    pub(crate) fn generated(&self) -> Option<ModuleId> {
        self.generated
    }

    /// The module that stands for the process's generated code, also in a replay.
    pub(crate) fn generated_module(&self, modules: &Modules) -> Option<ModuleId> {
        let mapped = || self.current.iter().chain(&self.retired).filter_map(|mapped| mapped.module);
        self.generated.or_else(|| mapped().find(|&id| modules.get(id).is_generated()))
    }

    /// Sets the module of generated code. A forked child has its parent's until it generates its own.
    pub(crate) fn set_generated(&mut self, module: ModuleId) {
        self.generated = Some(module);
    }

    pub fn interpreted(&self) -> &[Interpreted] {
        &self.interpreted
    }

    /// Sets a runtime. Replaces the one with the same words.
    pub fn set_interpreted(&mut self, interpreted: Interpreted) {
        self.interpreted.retain(|known| known.start != interpreted.start);
        self.interpreted.push(interpreted);
    }

    /// Whether code at this address was generated at run time.
    pub(crate) fn is_generated(&self, address: TargetAddr) -> bool {
        self.current_at(address).is_some_and(|at| at.module.is_none())
    }

    /// Origin of the code that is mapped at this address, or was mapped last.
    pub fn origin(&self, address: TargetAddr) -> Option<CodeOrigin> {
        if address.is_interpreted() {
            let contains = |it: &&Interpreted| it.start <= address && address < it.end;
            let module = self.interpreted.iter().find(contains)?.code;
            return Some(CodeOrigin::Module(Location { module, offset: FileOffset(address.0) }));
        }
        let now = self.current_at(address);
        let at = now.or_else(|| self.retired.iter().rev().find(|old| old.contains(address)));
        at.map(|at| at.origin(address, self.generated))
    }

    /// Returns the module at this address and the file offset; `None` outside of code, and in generated code without a module.
    pub fn lookup(&self, address: TargetAddr) -> Option<Location> {
        match self.origin(address)? {
            CodeOrigin::Module(location) => Some(location),
            CodeOrigin::Generated => None,
        }
    }

    /// Whether the address is in mapped code. If not, refresh once for several stacks: mappings may have changed.
    pub fn covers(&self, address: TargetAddr) -> bool {
        self.current_at(address).is_some() || address.is_interpreted()
    }

    /// Increases whenever a refresh finds other mappings than before.
    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn is_known(&self) -> bool {
        !self.current.is_empty()
    }

    pub fn mappings(&self) -> &[MappedModule] {
        &self.current
    }

    pub fn retired(&self) -> &[MappedModule] {
        &self.retired
    }

    /// Mapped modules without duplicates, in the order of their first mapping.
    pub fn modules(&self) -> Vec<ModuleId> {
        let mut seen = rustc_hash::FxHashSet::default();
        self.current.iter().filter_map(|at| at.module).filter(|&module| seen.insert(module)).collect()
    }

    fn current_at(&self, address: TargetAddr) -> Option<&MappedModule> {
        let behind = self.current.partition_point(|at| at.mapping.start <= address);
        self.current[..behind].last().filter(|at| at.contains(address))
    }

    fn retire(&mut self, known: Vec<MappedModule>) {
        let current: rustc_hash::FxHashSet<&Mapping> = self.current.iter().map(|at| &at.mapping).collect();
        let gone: Vec<MappedModule> = known.into_iter().filter(|old| !current.contains(&old.mapping)).collect();
        if gone.is_empty() {
            return;
        }
        // Ranges that are unmapped again count as new, so that repeated dlopen of a library does not grow the list.
        let again: rustc_hash::FxHashSet<&Mapping> = gone.iter().map(|old| &old.mapping).collect();
        self.retired.retain(|old| !again.contains(&old.mapping));
        self.retired.extend(gone);
        let excess = self.retired.len().saturating_sub(RETIRED_MAX);
        self.retired.drain(..excess);
    }
}

#[cfg(test)]
mod tests;
