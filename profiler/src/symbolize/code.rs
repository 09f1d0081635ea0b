//! Mappings and files of a profile's code, for tools that symbolize addresses themselves.
//!
//! Includes all current executable mappings, whether stacks refer to them or not, because such tools identify a
//! program by its first mappings. Includes removed mappings if stacks refer to them.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::names::Unnamed;
use crate::address::TargetAddr;
use crate::ids::ModuleId;
use crate::model::{MappingProfile, ModuleProfile};
use crate::object::module::Modules;
use crate::process::address_space::{AddressSpace, MappedModule};

/// Maximum number of mappings per target, lowest first: programs have a few hundred, except for generated code, which
/// has no file.
const MAPPINGS_MAX: usize = 4096;

#[derive(Clone, Debug, Default)]
pub(crate) struct Code {
    /// Files with code, each once, in the order in which targets map them.
    pub modules: Vec<ModuleProfile>,
    /// Mappings of each target by ascending address.
    pub mappings: Vec<Vec<MappingProfile>>,
}

impl Code {
    pub(crate) fn of(targets: &[Unnamed<'_>], modules: &Modules) -> Self {
        let mut gathered = Gathered { modules, code: Self::default(), places: FxHashMap::default() };
        targets.iter().for_each(|target| gathered.add(target));
        gathered.code
    }
}

struct Gathered<'a> {
    modules: &'a Modules,
    code: Code,
    /// Indices of modules in the list.
    places: FxHashMap<ModuleId, usize>,
}

impl Gathered<'_> {
    fn add(&mut self, target: &Unnamed<'_>) {
        let gone = gone(target);
        let mut mapped: Vec<&MappedModule> = target.space.mappings().iter().chain(gone).collect();
        mapped.sort_by_key(|mapped| (mapped.mapping.start, mapped.mapping.end));
        let mappings = mapped.into_iter().filter_map(|mapped| self.mapping(mapped)).take(MAPPINGS_MAX).collect();
        self.code.mappings.push(mappings);
    }

    /// `None` for generated code.
    fn mapping(&mut self, mapped: &MappedModule) -> Option<MappingProfile> {
        let id = mapped.module?;
        let module = self.modules.get(id);
        let known = &mut self.code.modules;
        let place = *self.places.entry(id).or_insert_with(|| {
            known.push(ModuleProfile {
                path: Arc::clone(module.path()),
                build_id: module.build_id().map(|build_id| build_id.as_bytes().to_vec()),
            });
            known.len() - 1
        });
        let mapping = &mapped.mapping;
        Some(MappingProfile {
            start: mapping.start.0,
            end: mapping.end.0,
            offset: mapping.offset.0,
            bias: module.bias(mapping.start, mapping.offset),
            module: place,
        })
    }
}

/// Returns removed mappings that stacks refer to: the latest of several at the same address.
fn gone<'a>(target: &Unnamed<'a>) -> Vec<&'a MappedModule> {
    let space: &'a AddressSpace = target.space;
    let retired = space.retired();
    if retired.is_empty() {
        return Vec::new();
    }
    let stacks = target.snapshot.callsites.iter().filter_map(|callsite| callsite.stack.as_ref());
    let mut addresses: Vec<TargetAddr> = stacks
        .flat_map(|stack| stack.frames.iter().map(|address| address.inside_call()))
        .filter(|&address| !space.covers(address))
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    let mut gone = Vec::new();
    for old in retired.iter().rev() {
        let range = old.mapping.start..old.mapping.end;
        let from = addresses.partition_point(|&address| address < range.start);
        let to = addresses.partition_point(|&address| address < range.end);
        if from < to {
            addresses.drain(from..to);
            gone.push(old);
        }
    }
    gone
}

#[cfg(test)]
mod tests;
