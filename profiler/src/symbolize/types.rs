//! Types of blocks, inferred from their first word or their allocation stack.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::element::{Told, told};
use super::vtable::Classes;
use crate::linux::proc::maps::Region;
use crate::model::{Frame, FrameId, TypeEvidence, TypeName};
use crate::object::module::Modules;
use crate::process::address_space::AddressSpace;

/// Caches results: callsites can have 100,000 blocks.
pub(crate) struct TypeNames<'a> {
    classes: Classes<'a>,
    frames: FxHashMap<FrameId, Told>,
}

impl<'a> TypeNames<'a> {
    /// `regions` are all mappings by ascending address, and `space` is the address space with these modules.
    pub(crate) fn new(regions: &'a [Region], space: &'a AddressSpace, modules: &'a Modules) -> Self {
        Self { classes: Classes::new(regions, space, modules), frames: FxHashMap::default() }
    }

    /// Returns the type of a block. `first_word` is its contents, if known; `stack` is its allocation stack, leaf
    /// first, preferably with allocator frames, and empty if unknown. `frames` must always be those of the same
    /// profile.
    pub(crate) fn of(&mut self, first_word: Option<u64>, stack: &[FrameId], frames: &[Frame]) -> Option<TypeName> {
        if let Some(name) = first_word.and_then(|word| self.classes.of(word)) {
            return Some(TypeName { name, evidence: TypeEvidence::Vtable });
        }
        let name = self.element(stack, frames)?;
        Some(TypeName { name, evidence: TypeEvidence::Stack })
    }

    fn element(&mut self, stack: &[FrameId], frames: &[Frame]) -> Option<Arc<str>> {
        for id in stack {
            let function = || frames.get(id.0 as usize)?.function.as_deref();
            let told = self.frames.entry(*id).or_insert_with(|| function().map_or(Told::Stop, told));
            match told {
                Told::Holds(name) => return Some(Arc::clone(name)),
                Told::Nothing => {}
                Told::Stop => return None,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Pid;

    #[test]
    fn a_stack_tells_where_the_first_word_does_not() {
        let names =
            ["operator new(unsigned long)", "std::vector<Foo, std::allocator<Foo> >::reserve(unsigned long)", "run()"];
        let frames: Vec<Frame> =
            names.iter().map(|name| Frame { function: Some((*name).into()), ..Frame::default() }).collect();
        let (space, modules) = (AddressSpace::new(Pid(1)), Modules::default());
        let mut types = TypeNames::new(&[], &space, &modules);
        let mut check = |stack: &[u32], expected: Option<&str>| {
            let stack: Vec<FrameId> = stack.iter().copied().map(FrameId).collect();
            let found = types.of(Some(0x1000), &stack, &frames);
            assert_eq!(found.as_ref().map(|found| &*found.name), expected, "{stack:?}");
            assert!(found.is_none_or(|found| found.evidence == TypeEvidence::Stack));
        };
        check(&[0, 1, 2], Some("Foo"));
        check(&[1], Some("Foo"));
        check(&[0, 2, 1], None);
        check(&[], None);
        check(&[99, 1], None);
    }
}
