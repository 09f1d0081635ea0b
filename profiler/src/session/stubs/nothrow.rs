//! Forms of throwing allocation functions that return null instead.

use heapbpf_base::address::{FileOffset, TargetAddr};
use heapbpf_base::ids::ModuleId;
use heapbpf_linux::proc::maps::{FileIdentity, executable_identity};
use profiler_common::hook::CallShape;

use super::places::place_of;
use super::slots::bias;
use crate::keeper::{FunctionPlace, file_of};
use crate::object::imports::{LibraryNames, library_names};
use crate::object::module::{Module, ModuleStore};
use crate::object::symbols::definitions;
use crate::probe::plan::PlannedHook;
use crate::probe::stub::Nothrow;
use crate::process::address_space::AddressSpace;
use crate::session::discovery::Discovery;

/// A function of the same module that returns equivalent blocks and does not throw.
#[derive(Debug)]
pub(super) struct Form {
    pub(super) call: Nothrow,
    /// Places of the functions that the stub calls.
    pub(super) places: [FunctionPlace; 2],
}

/// Name of the function that returns the handler of failures that a program has set (`std::get_new_handler`, C++11).
const GET_HANDLER: &str = "_ZSt15get_new_handlerv";
/// Number of bytes of that function's code that are compared before it is called.
const CODE_BYTES: u64 = 8;

impl Form {
    /// Finds the form of a function that does not throw. `None` if there is no such form, or if it is not known how to
    /// find the handler of failures.
    pub(super) fn find(planned: &PlannedHook, space: &AddressSpace, discovery: &Discovery) -> Option<Self> {
        let hook = &planned.hook;
        if hook.spec.shape != CallShape::Alloc {
            return None;
        }
        let handler = get_handler(hook.module, space, &discovery.modules)?;
        let hooks = discovery.plan.hooks().iter().filter(|other| {
            let other = &other.hook;
            other.module == hook.module && other.spec.shape == CallShape::Alloc && !other.spec.may_throw
        });
        let hooks: Vec<&PlannedHook> = hooks.collect();
        let names = |planned: &PlannedHook| -> Vec<&'static str> {
            std::iter::once(planned.hook.spec.function).chain(planned.hook.aliases.iter().copied()).collect()
        };
        names(planned).into_iter().find_map(|name| {
            let found = hooks.iter().find(|other| names(other).iter().any(|form| is_form(name, form)))?;
            let place = place_of(found, space, discovery)?;
            let argument = if name.to_ascii_lowercase().contains("align") { 2 } else { 1 };
            let call = Nothrow { function: place.address, argument, get_handler: handler.address };
            Some(Self { call, places: [place, handler.clone()] })
        })
    }
}

/// Finds the function that returns the handler of failures, in the only module that defines it: the module must stay
/// loaded as long as the allocator does.
fn get_handler(allocator: ModuleId, space: &AddressSpace, modules: &ModuleStore) -> Option<FunctionPlace> {
    let executable = executable_identity(space.pid()).ok();
    let is_executable = |id: ModuleId| {
        let mut mappings = space.mappings().iter().filter(|mapped| mapped.module == Some(id));
        mappings.any(|at| Some(FileIdentity::new(at.mapping.device, at.mapping.inode)) == executable)
    };
    let mut ids = space.modules();
    ids.sort_unstable();
    ids.dedup();
    let users = ids.iter().filter(|&&id| id == allocator || is_executable(id));
    let needed: Vec<Vec<u8>> = users.flat_map(|&id| names_of(modules.get(id)).needed).collect();
    let mut found = ids.into_iter().filter_map(|id| Some((id, definition(id, space, modules)?)));
    let (id, place) = found.next()?;
    let stays = id == allocator || is_executable(id) || {
        names_of(modules.get(id)).own.is_some_and(|own| needed.contains(&own))
    };
    (stays && found.next().is_none()).then_some(place)
}

fn names_of(module: &Module) -> LibraryNames {
    let (Ok(image), Ok(elf)) = (module.image(), module.elf()) else { return LibraryNames::default() };
    library_names(image, elf)
}

fn definition(id: ModuleId, space: &AddressSpace, modules: &ModuleStore) -> Option<FunctionPlace> {
    let module = modules.get(id);
    let (image, elf) = (module.image().ok()?, module.elf().ok()?);
    let found = definitions(image, elf, &[GET_HANDLER]).into_iter().next()?.address;
    let address = TargetAddr(found.0.wrapping_add(bias(space, id, module)?));
    let mapped =
        space.mappings().iter().find(|mapped| (mapped.mapping.start..mapped.mapping.end).contains(&address))?;
    let mapping = (mapped.mapping.start.0, mapped.mapping.end.0);
    let offset: FileOffset = module.file_offset(found)?;
    let code = image.read(offset, CODE_BYTES, CODE_BYTES).ok()?;
    let file = file_of(space.pid(), mapping);
    Some(FunctionPlace { address: address.0, codes: [code.clone(), code], mapping, file })
}

/// Whether `form` has the arguments of the function, perhaps with one of type `std::nothrow_t` behind them. Forms with
/// `__hot_cold_t` have that type before their last argument.
fn is_form(function: &str, form: &str) -> bool {
    let suffix = form.strip_prefix(function);
    let is_known = matches!(suffix, Some("RKSt9nothrow_t" | "_nothrow" | "Nothrow"));
    is_known && !["hot_cold", "HotCold"].iter().any(|part| function.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_take_the_same_arguments() {
        for (function, form) in [
            ("_Znwm", "_ZnwmRKSt9nothrow_t"),
            ("_ZnamSt11align_val_t", "_ZnamSt11align_val_tRKSt9nothrow_t"),
            ("tc_newarray_aligned", "tc_newarray_aligned_nothrow"),
            ("TCMallocInternalNew", "TCMallocInternalNewNothrow"),
            ("mi_new", "mi_new_nothrow"),
        ] {
            assert!(is_form(function, form), "{function} {form}");
        }
        for (function, form) in [
            ("_Znwm", "_ZnamRKSt9nothrow_t"),
            ("_Znwm", "_ZnwmSt11align_val_tRKSt9nothrow_t"),
            ("_Znwm12__hot_cold_t", "_ZnwmRKSt9nothrow_t12__hot_cold_t"),
            ("TCMallocInternalNewHotCold", "TCMallocInternalNewHotColdNothrow"),
            ("mi_new", "mi_new_n"),
            ("mi_new", "mi_new"),
        ] {
            assert!(!is_form(function, form), "{function} {form}");
        }
    }
}
