//! Slots of a target's modules that lead to functions with stubs.

use std::sync::Arc;

use heapbpf_base::address::LinkAddr;
use heapbpf_base::ids::{HeapId, ModuleId};
use heapbpf_linux::process_memory::{is_in_memory, read_words};
use rustc_hash::FxHashMap;
use tracing::debug;

use super::previous::Previous;
use crate::keeper::SlotChange;
use crate::object::image::Image;
use crate::object::imports::slots;
use crate::object::module::{Module, ModuleStore};
use crate::process::address_space::AddressSpace;

/// Addresses of the slots of functions of interest, by module.
#[derive(Debug, Default)]
pub(super) struct Slots(FxHashMap<ModuleId, Arc<[LinkAddr]>>);

/// A function with a stub.
#[derive(Clone, Debug)]
pub(super) struct Replaced {
    pub(super) heap: HeapId,
    pub(super) names: Vec<&'static str>,
    pub(super) frees: bool,
    pub(super) address: u64,
    pub(super) stub: u64,
}

impl Slots {
    /// Finds slots whose value is the entry address of one of the functions, or a former stub of it; slots of freeing
    /// functions come first. The future values of other slots, such as those that the dynamic linker has not resolved
    /// yet, are not known. `names` are the names of all functions that may have stubs.
    pub(super) fn leading_to(
        &mut self,
        functions: &[Replaced],
        previous: &Previous,
        space: &AddressSpace,
        modules: &ModuleStore,
        names: &[&'static str],
    ) -> Vec<SlotChange> {
        let mut found: Vec<(bool, SlotChange)> = Vec::new();
        for (address, value) in self.values(space, modules, names) {
            let restored = previous.function(value).unwrap_or(value);
            if let Some(function) = functions.iter().find(|function| function.address == restored) {
                let change = SlotChange { address, before: value, after: function.stub, restored };
                found.push((!function.frees, change));
            }
        }
        found.sort_by_key(|&(allocates, _)| allocates);
        found.into_iter().map(|(_, change)| change).collect()
    }

    /// Whether modules of the process import functions with these names through slots, resolved or not.
    pub(super) fn are_in(&mut self, space: &AddressSpace, modules: &ModuleStore, names: &[&'static str]) -> bool {
        !self.addresses(space, modules, names).is_empty()
    }

    /// Finds slots that lead to former stubs, to be restored.
    pub(super) fn left(
        &mut self,
        previous: &Previous,
        space: &AddressSpace,
        modules: &ModuleStore,
        names: &[&'static str],
    ) -> Vec<SlotChange> {
        let values = self.values(space, modules, names).into_iter();
        values
            .filter_map(|(address, value)| {
                let function = previous.function(value)?;
                Some(SlotChange { address, before: function, after: value, restored: function })
            })
            .collect()
    }

    /// Addresses and values of all slots that can be read.
    fn values(&mut self, space: &AddressSpace, modules: &ModuleStore, names: &[&'static str]) -> Vec<(u64, u64)> {
        let addresses = self.addresses(space, modules, names);
        let values = read_words(space.pid(), &addresses);
        addresses.into_iter().zip(values).filter_map(|(address, value)| Some((address, value?))).collect()
    }

    fn addresses(&mut self, space: &AddressSpace, modules: &ModuleStore, names: &[&'static str]) -> Vec<u64> {
        let mut addresses = Vec::new();
        for id in space.modules() {
            let module = modules.get(id);
            let Some(bias) = bias(space, id, module) else { continue };
            let slots = self.0.entry(id).or_insert_with(|| slots_of(module, names));
            // Pages that the process has not changed would be read from the file.
            let is_distant = module.image().is_ok_and(Image::is_distant);
            let is_read = |address: &u64| !is_distant || is_in_memory(space.pid(), *address).unwrap_or(false);
            addresses.extend(slots.iter().map(|slot| slot.0.wrapping_add(bias)).filter(is_read));
        }
        addresses
    }
}

pub(super) fn bias(space: &AddressSpace, id: ModuleId, module: &Module) -> Option<u64> {
    let first = space.mappings().iter().find(|mapped| mapped.module == Some(id))?;
    module.bias(first.mapping.start, first.mapping.offset)
}

fn slots_of(module: &Module, names: &[&'static str]) -> Arc<[LinkAddr]> {
    let (Ok(image), Ok(elf)) = (module.image(), module.elf()) else { return Arc::default() };
    let found = slots(image, elf, names);
    found.inspect_err(|error| debug!("module {}: {error}", module.path())).unwrap_or_default().into()
}
