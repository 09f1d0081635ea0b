//! Slots of a target's modules that lead to functions with stubs.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use tracing::debug;

use super::previous::Previous;
use crate::ids::{HeapId, ModuleId};
use crate::keeper::SlotChange;
use crate::linux::process_memory::read_words;
use crate::object::imports::{Import, imports};
use crate::object::module::{Module, ModuleStore};
use crate::process::address_space::AddressSpace;

/// Slots of functions of interest by module.
#[derive(Debug, Default)]
pub(super) struct Slots(FxHashMap<ModuleId, Arc<[Import]>>);

/// A function with a stub.
#[derive(Clone, Debug)]
pub(super) struct Replaced {
    pub(super) heap: HeapId,
    pub(super) names: Vec<&'static str>,
    pub(super) frees: bool,
    /// Modules that import it by name reach it.
    pub(super) reached: bool,
    pub(super) address: u64,
    pub(super) stub: u64,
}

struct Candidate {
    address: u64,
    module: ModuleId,
    import: Import,
    value: u64,
}

impl Slots {
    /// Slots that lead to one of the functions, or to a former stub of it: those of freeing functions first. `names` are those of
    /// all functions that may have stubs.
    pub(super) fn leading_to(
        &mut self,
        functions: &[Replaced],
        previous: &Previous,
        space: &AddressSpace,
        modules: &ModuleStore,
        names: &[&'static str],
    ) -> Vec<SlotChange> {
        let mut found: Vec<(bool, SlotChange)> = Vec::new();
        for Candidate { address, module, import, value } in self.candidates(space, modules, names) {
            let is_unresolved = || import.lazy && in_module(space, module, value);
            let restored = previous.function(value).unwrap_or(value);
            let function = functions.iter().find(|function| function.address == restored).or_else(|| {
                let named = |function: &&Replaced| function.reached && function.names.contains(&import.function);
                functions.iter().find(named).filter(|_| is_unresolved())
            });
            if let Some(function) = function {
                let change = SlotChange { address, before: value, after: function.stub, restored };
                found.push((!function.frees, change));
            }
        }
        found.sort_by_key(|&(allocates, _)| allocates);
        found.into_iter().map(|(_, change)| change).collect()
    }

    /// Slots that lead to former stubs, to be restored.
    pub(super) fn left(
        &mut self,
        previous: &Previous,
        space: &AddressSpace,
        modules: &ModuleStore,
        names: &[&'static str],
    ) -> Vec<SlotChange> {
        let candidates = self.candidates(space, modules, names).into_iter();
        candidates
            .filter_map(|Candidate { address, value, .. }| {
                let function = previous.function(value)?;
                Some(SlotChange { address, before: function, after: value, restored: function })
            })
            .collect()
    }

    fn candidates(&mut self, space: &AddressSpace, modules: &ModuleStore, names: &[&'static str]) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        for id in space.modules() {
            let module = modules.get(id);
            let Some(bias) = bias(space, id, module) else { continue };
            let found = self.0.entry(id).or_insert_with(|| imports_of(module, names));
            candidates.extend(found.iter().map(|import| {
                let address = import.slot.0.wrapping_add(bias);
                Candidate { address, module: id, import: import.clone(), value: 0 }
            }));
        }
        let addresses: Vec<u64> = candidates.iter().map(|candidate| candidate.address).collect();
        let values = read_words(space.pid(), &addresses);
        let with_value = candidates.into_iter().zip(values);
        with_value.filter_map(|(candidate, value)| Some(Candidate { value: value?, ..candidate })).collect()
    }
}

fn bias(space: &AddressSpace, id: ModuleId, module: &Module) -> Option<u64> {
    let first = space.mappings().iter().find(|mapped| mapped.module == Some(id))?;
    module.bias(first.mapping.start, first.mapping.offset)
}

/// Whether an address is near the module's code: its procedure linkage table.
fn in_module(space: &AddressSpace, id: ModuleId, address: u64) -> bool {
    let mut mapped = space.mappings().iter().filter(|mapped| mapped.module == Some(id));
    mapped.any(|mapped| (mapped.mapping.start.0..mapped.mapping.end.0).contains(&address))
}

fn imports_of(module: &Module, names: &[&'static str]) -> Arc<[Import]> {
    let (Ok(image), Ok(elf)) = (module.image(), module.elf()) else { return Arc::default() };
    let found = imports(image, elf, names);
    found.inspect_err(|error| debug!("module {}: {error}", module.path())).unwrap_or_default().into()
}
