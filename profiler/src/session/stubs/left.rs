//! Stubs that a process still has although no recording uses them.

use anyhow::Result;

use super::previous::Previous;
use super::slots::Slots;
use crate::keeper::Keeper;
use crate::session::discovery::Discovery;
use crate::session::target::Target;

/// Whether a killed heapbpf has left stubs that are not neutral.
pub(in crate::session) fn are_left(target: &Target) -> bool {
    !Previous::find(&target.mappings.space, |_| false).is_neutral()
}

/// Makes stubs neutral that a killed heapbpf has left, and restores the pointers to them. Returns the number of
/// pointers.
pub(in crate::session) fn remove_left(target: &Target, discovery: &Discovery, keeper: &Keeper) -> Result<usize> {
    let previous = Previous::without_breakpoints(&target.mappings.space, |_| false, keeper)?;
    if previous.is_in_use() { Ok(0) } else { restore(target, &previous, discovery, keeper) }
}

/// Switches stubs off, and restores the pointers to them. Returns the number of pointers.
pub(super) fn restore(target: &Target, previous: &Previous, discovery: &Discovery, keeper: &Keeper) -> Result<usize> {
    let space = &*target.mappings.space;
    let left = Slots::default().left(previous, space, &discovery.modules, discovery.names());
    for removal in previous.removals(target.pid, &left) {
        keeper.remove_left_stubs(removal)?;
    }
    Ok(left.len())
}
