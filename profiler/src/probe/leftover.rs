//! Removes orphaned breakpoints: left by a heapbpf that was killed together with its keeper, because the kernel cannot
//! unregister a uprobe while SIGKILL is pending. They trap each call until a uprobe is registered and
//! unregistered there. Breakpoints of other tools look the same, but are not removed: one that remains has an owner.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;

use super::arch::{InstructionSet, Native};
use crate::address::FileOffset;
use crate::bpf::load::LinkKind;
use crate::ids::{ModuleId, Pid};
use crate::keeper::{Keeper, KeeperError, Site};
use crate::linux::bpf::{AttachType, load_nothing};
use crate::linux::process_memory;
use crate::object::module::ModuleStore;
use crate::process::address_space::AddressSpace;

const BREAKPOINT: &[u8] = Native::BREAKPOINT;

pub(crate) type CodeLocation = (ModuleId, FileOffset);

/// The locations where a process has a breakpoint that the file does not have. Unreadable memory counts as none, and so do files of
/// file systems that may not answer: see [`presence`](super::presence).
pub(crate) fn breakpoints(
    space: &AddressSpace,
    modules: &ModuleStore,
    locations: impl Iterator<Item = CodeLocation>,
) -> Vec<CodeLocation> {
    locations.filter(|&location| has_breakpoint(space, modules, location)).collect()
}

fn has_breakpoint(space: &AddressSpace, modules: &ModuleStore, (module, offset): CodeLocation) -> bool {
    let mapped = space.mappings().iter().filter(|mapped| mapped.module == Some(module)).find_map(|mapped| {
        let inside = offset.0.checked_sub(mapped.mapping.offset.0)?;
        let address = mapped.mapping.start.0.checked_add(inside)?;
        (address < mapped.mapping.end.0).then_some(address)
    });
    let (Some(address), Ok(image)) = (mapped, modules.get(module).image()) else { return false };
    if image.is_distant() {
        return false;
    }
    let (mut bytes, size_bytes) = ([0; BREAKPOINT.len()], BREAKPOINT.len());
    let is_breakpoint = process_memory::read(space.pid(), &[(address, size_bytes)], &mut bytes)
        .is_ok_and(|read| read == size_bytes && bytes == BREAKPOINT);
    is_breakpoint && {
        let original = image.read(offset, size_bytes as u64, size_bytes as u64);
        original.is_ok_and(|original| original != BREAKPOINT)
    }
}

/// Registers and unregisters an empty uprobe at each location, in all processes. Takes up to 100 ms per file.
pub(crate) fn remove(
    keeper: &Keeper,
    kind: LinkKind,
    modules: &ModuleStore,
    pid: Pid,
    locations: &[CodeLocation],
) -> Result<(), KeeperError> {
    let mut by_module: BTreeMap<ModuleId, Vec<u64>> = BTreeMap::new();
    for &(module, offset) in locations {
        by_module.entry(module).or_default().push(offset.0);
    }
    for (module, offsets) in by_module {
        if let Some(file) = modules.get(module).file() {
            remove_from(keeper, kind, file, &offsets, pid)?;
        }
    }
    Ok(())
}

/// As [`remove`], for one file.
pub(crate) fn remove_from(
    keeper: &Keeper,
    kind: LinkKind,
    file: &File,
    offsets: &[u64],
    pid: Pid,
) -> Result<(), KeeperError> {
    // None of the sites returns, so a session's program is not attached.
    let attach_type = if kind == LinkKind::Perf { AttachType::PerfEvent } else { AttachType::UprobeMulti };
    let program = load_nothing(attach_type).map_err(|error| KeeperError::Refused(error.to_string()))?;
    let program = program.as_fd();
    let sites = offsets.iter().map(|&offset| Site { offset, cookie: None, returns: false }).collect();
    drop(keeper.attach(kind, &[program, program], file, sites, Some(pid))?);
    keeper.settle()
}
