//! Where a process's code lies: which module is at which address. Owned by the target's task; knows no symbols.
//!
//! What was mapped once is remembered, because stacks outlive `dlclose` and the process. An address that two modules had
//! in turn is taken for the later one's. A process that calls exec needs a new value of this type.

use crate::address::{FileOffset, TargetAddr};
use crate::ids::{ModuleId, Pid};
use crate::linux::proc::ProcError;
use crate::linux::proc::maps::{Mapping, executable_mappings};
use crate::object::module::ModuleStore;

/// Most mappings that are remembered after they were unmapped. Just-in-time compilers come and go; the oldest are
/// forgotten.
const RETIRED_MAX: usize = 4096;

/// A place in a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// The module.
    pub module: ModuleId,
    /// Offset in its file.
    pub offset: FileOffset,
}

/// What kind of code is at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Code of a module.
    Module(Location),
    /// Executable memory without a file: generated code.
    Generated,
}

/// An executable mapping and what it maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedModule {
    /// The mapping.
    pub mapping: Mapping,
    /// Its module; `None` for anonymous memory.
    pub module: Option<ModuleId>,
}

impl MappedModule {
    fn contains(&self, address: TargetAddr) -> bool {
        (self.mapping.start..self.mapping.end).contains(&address)
    }

    fn place(&self, address: TargetAddr) -> Place {
        let inside = address.0.saturating_sub(self.mapping.start.0);
        match self.module {
            None => Place::Generated,
            Some(module) => {
                Place::Module(Location { module, offset: FileOffset(self.mapping.offset.0.saturating_add(inside)) })
            }
        }
    }
}

/// The executable mappings of one process.
#[derive(Clone, Debug)]
pub struct AddressSpace {
    pid: Pid,
    /// By rising address, without overlaps, as of the last refresh.
    current: Vec<MappedModule>,
    /// No longer mapped, oldest first.
    retired: Vec<MappedModule>,
}

impl AddressSpace {
    /// The address space of a process, nothing of which is known yet.
    pub fn new(pid: Pid) -> Self {
        Self { pid, current: Vec::new(), retired: Vec::new() }
    }

    /// What was known of an address space: what was mapped at last, by rising address, and what was mapped before, the
    /// oldest first.
    pub fn of(pid: Pid, current: Vec<MappedModule>, retired: Vec<MappedModule>) -> Self {
        Self { pid, current, retired }
    }

    /// The same mappings for a process that is a copy of this one, made by a fork.
    pub fn for_child(&self, child: Pid) -> Self {
        Self { pid: child, ..self.clone() }
    }

    /// The process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Reads the mappings again and opens the modules that are new. Tells which modules were not mapped before, in
    /// mapping order.
    ///
    /// # Errors
    ///
    /// If the process has ended or may not be read; what was known stays known then.
    pub fn refresh(&mut self, modules: &mut ModuleStore) -> Result<Vec<ModuleId>, ProcError> {
        let mappings = executable_mappings(self.pid)?;
        if mappings.is_empty() {
            // A zombie has no memory any more. What it had is what its stacks are about.
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
        self.retire(known);
        Ok(self.modules().into_iter().filter(|module| !before.contains(module)).collect())
    }

    /// What is at this address: now or, where nothing is now, at last.
    pub fn place(&self, address: TargetAddr) -> Option<Place> {
        let now = self.current_at(address);
        now.or_else(|| self.retired.iter().rev().find(|old| old.contains(address))).map(|at| at.place(address))
    }

    /// The module at this address and where in its file the address lies; `None` in generated code and outside code.
    pub fn lookup(&self, address: TargetAddr) -> Option<Location> {
        match self.place(address)? {
            Place::Module(location) => Some(location),
            Place::Generated => None,
        }
    }

    /// Whether the address lies in code that is known to be mapped now. If it does not, the mappings may have changed
    /// since the last [`refresh`](Self::refresh) — or the address is no code, so refresh once for several such stacks.
    pub fn covers(&self, address: TargetAddr) -> bool {
        self.current_at(address).is_some()
    }

    /// Whether anything is known: not if the process ended before its mappings were read.
    pub fn is_known(&self) -> bool {
        !self.current.is_empty()
    }

    /// The executable mappings of the last refresh, by rising address.
    pub fn mappings(&self) -> &[MappedModule] {
        &self.current
    }

    /// Executable mappings that went meanwhile, the oldest first.
    pub fn retired(&self) -> &[MappedModule] {
        &self.retired
    }

    /// The modules mapped now, each once, in the order of their first mapping.
    pub fn modules(&self) -> Vec<ModuleId> {
        let mut seen = rustc_hash::FxHashSet::default();
        self.current.iter().filter_map(|at| at.module).filter(|&module| seen.insert(module)).collect()
    }

    fn current_at(&self, address: TargetAddr) -> Option<&MappedModule> {
        let behind = self.current.partition_point(|at| at.mapping.start <= address);
        self.current[..behind].last().filter(|at| at.contains(address))
    }

    /// Remembers what was mapped and is not any more.
    fn retire(&mut self, known: Vec<MappedModule>) {
        let current: rustc_hash::FxHashSet<&Mapping> = self.current.iter().map(|at| &at.mapping).collect();
        let gone: Vec<MappedModule> = known.into_iter().filter(|old| !current.contains(&old.mapping)).collect();
        if gone.is_empty() {
            return;
        }
        // What is unmapped again counts as new, so that the list does not grow with every dlopen of the same library.
        let again: rustc_hash::FxHashSet<&Mapping> = gone.iter().map(|old| &old.mapping).collect();
        self.retired.retain(|old| !again.contains(&old.mapping));
        self.retired.extend(gone);
        let excess = self.retired.len().saturating_sub(RETIRED_MAX);
        self.retired.drain(..excess);
    }
}

#[cfg(test)]
mod tests;
