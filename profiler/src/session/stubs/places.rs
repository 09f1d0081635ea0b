//! Where functions are in a process, and what identifies their code.

use crate::keeper::{FunctionPlace, file_of};
use crate::probe::code::Code;
use crate::probe::plan::PlannedHook;
use crate::probe::stub::BREAKPOINT;
use crate::process::address_space::AddressSpace;
use crate::session::discovery::Discovery;

/// Finds a function in a process. `None` if the process does not map the function, or its code cannot be read.
pub(super) fn place_of(planned: &PlannedHook, space: &AddressSpace, discovery: &Discovery) -> Option<FunctionPlace> {
    let hook = &planned.hook;
    let (address, mapping) =
        space.mappings().iter().filter(|mapped| mapped.module == Some(hook.module)).find_map(|mapped| {
            let mapping = &mapped.mapping;
            let address = mapping.start.0.checked_add(hook.offset.0.checked_sub(mapping.offset.0)?)?;
            (address < mapping.end.0).then_some((address, (mapping.start.0, mapping.end.0)))
        })?;
    let code = Code::read(discovery.modules.get(hook.module), hook.offset, hook.size_bytes).ok()?;
    let probe = planned.placement.as_ref().ok()?.offset_in_function;
    let code = code.up_to(probe)?.to_vec();
    let mut probed = code.clone();
    let breakpoint = probed.get_mut(usize::try_from(probe).ok()?..)?.iter_mut().zip(BREAKPOINT);
    breakpoint.for_each(|(byte, new)| *byte = *new);
    Some(FunctionPlace { address, codes: [code, probed], mapping, file: file_of(space.pid(), mapping) })
}
