//! Removes orphaned breakpoints: left by a heapbpf that was killed together with its keeper, because the kernel cannot
//! unregister a uprobe while SIGKILL is pending. They trap each call until a uprobe is registered and
//! unregistered there. Breakpoints of other tools look the same, but are not removed: one that remains has an owner.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;

use heapbpf_base::address::FileOffset;
use heapbpf_base::ids::{ModuleId, Pid};
use heapbpf_linux::bpf::{AttachType, load_nothing};
use heapbpf_linux::proc::stat::first_thread_has_exited;
use heapbpf_linux::process_memory;

use super::arch::{InstructionSet, Native};
use crate::bpf::load::LinkKind;
use crate::keeper::{Keeper, KeeperError, Site};
use crate::object::module::ModuleStore;
use crate::process::address_space::AddressSpace;

const BREAKPOINT: &[u8] = Native::BREAKPOINT;
/// Number of bytes of code that are compared: at least those of an instruction.
const CODE_BYTES: usize = 8;

pub(crate) type CodeLocation = (ModuleId, FileOffset);

/// Finds the locations where a process has a breakpoint that the file does not have. Unreadable memory counts as no breakpoint,
/// as do files of file systems that may not answer: see [`presence`](super::presence).
pub(crate) fn breakpoints(
    space: &AddressSpace,
    modules: &ModuleStore,
    locations: impl Iterator<Item = CodeLocation>,
) -> Vec<CodeLocation> {
    locations.filter(|&location| has_breakpoint(space, modules, location)).collect()
}

fn has_breakpoint(space: &AddressSpace, modules: &ModuleStore, location: CodeLocation) -> bool {
    read(space, modules, location)
        .is_some_and(|[mapped, original]| mapped.starts_with(BREAKPOINT) && !original.starts_with(BREAKPOINT))
}

/// Whether the code of a process equals the file's where a probe should have replaced it by a breakpoint.
pub(crate) fn lacks_breakpoint(space: &AddressSpace, modules: &ModuleStore, location: CodeLocation) -> bool {
    read(space, modules, location)
        .is_some_and(|[mapped, original]| mapped == original && !original.starts_with(BREAKPOINT))
}

/// Code in the memory of a process and in the file. `None` if it is not mapped or cannot be read.
fn read(space: &AddressSpace, modules: &ModuleStore, (module, offset): CodeLocation) -> Option<[[u8; CODE_BYTES]; 2]> {
    let mapped = space.mappings().iter().filter(|mapped| mapped.module == Some(module)).find_map(|mapped| {
        let inside = offset.0.checked_sub(mapped.mapping.offset.0)?;
        let address = mapped.mapping.start.0.checked_add(inside)?;
        (address < mapped.mapping.end.0).then_some(address)
    });
    let image = modules.get(module).image().ok().filter(|image| !image.is_distant())?;
    let mut bytes = [0; CODE_BYTES];
    let read = process_memory::read(space.pid(), &[(mapped?, CODE_BYTES)], &mut bytes).ok()?;
    let original = image.read(offset, CODE_BYTES as u64, CODE_BYTES as u64).ok()?;
    (read == CODE_BYTES).then_some([bytes, original.as_slice().try_into().ok()?])
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

/// Registers and unregisters an empty uprobe at each offset of one file. Takes up to 100 ms.
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
    // The kernel finds the memory of a process by its first thread.
    let of = (!first_thread_has_exited(pid)).then_some(pid);
    drop(keeper.attach(kind, &[program, program], file, sites, of)?);
    keeper.finish_closing()
}
