//! Where the code of a profile's targets lies, and in which files: what tools that name addresses themselves ask for.
//!
//! All that is mapped executably now is told, whether a stack leads there or not, because such tools look at a program's
//! first mappings to tell what it is. What was unmapped meanwhile is told where a stack leads there.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::names::Unnamed;
use crate::address::TargetAddr;
use crate::ids::ModuleId;
use crate::model::{MappingProfile, ModuleProfile};
use crate::object::module::Modules;
use crate::process::address_space::{AddressSpace, MappedModule};

/// Mappings of one target that are told, the lowest first: programs have some hundred; code that is made in so many pieces has
/// no file.
const MAPPINGS_MAX: usize = 4096;

#[derive(Clone, Debug, Default)]
pub(crate) struct Code {
    /// Files with code, each once, in the order in which targets map them.
    pub modules: Vec<ModuleProfile>,
    /// Mappings of each target, by rising address.
    pub mappings: Vec<Vec<MappingProfile>>,
}

impl Code {
    /// The code of these targets.
    pub(crate) fn of(targets: &[Unnamed<'_>], modules: &Modules) -> Self {
        let mut gathered = Gathered { modules, code: Self::default(), places: FxHashMap::default() };
        targets.iter().for_each(|target| gathered.add(target));
        gathered.code
    }
}

struct Gathered<'a> {
    modules: &'a Modules,
    code: Code,
    /// Where modules are in the list.
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

    /// `None` of generated code.
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

/// Mappings that are gone and that stacks name: of several that had an address in turn, the latest.
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
