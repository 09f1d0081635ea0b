//! Stubs that a process had before this session: of a recording that has ended, of one that was killed, or of a running
//! one.

use std::fs::File;
use std::io::Read;

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::Pid;
use heapbpf_linux::proc::maps::{Mapping, Region, regions};
use heapbpf_linux::proc::mounts;
use heapbpf_linux::proc::process::entry_path;
use heapbpf_linux::process_memory;
use rustc_hash::FxHashMap;
use tracing::debug;

use super::sealed::open_sealed;
use crate::bpf::load::LinkKind;
use crate::keeper::control;
use crate::keeper::{Installation, Keeper, KeeperError, Patch, SlotChange};
use crate::probe::leftover;
use crate::probe::stub;
use crate::process::address_space::AddressSpace;

/// Maximum number of mappings that are read: each killed session can leave stubs, unless it has used those of an
/// earlier one.
const MAPPED_MAX: usize = 64;

/// Previous stubs of one process, up to a maximum number.
#[derive(Debug, Default)]
pub(super) struct Previous {
    mapped: Vec<MappedStubs>,
    functions: FxHashMap<u64, u64>,
}

#[derive(Debug)]
struct MappedStubs {
    address: u64,
    image: Vec<u8>,
    data_bytes: u64,
    filter_bytes: u64,
    file: File,
    /// Offsets of probes in the stubs: those of a running session, or those that a killed one could not remove.
    breakpoints: Vec<u64>,
    /// Whether all stubs continue at their functions' entries.
    is_switched_off: bool,
}

impl Previous {
    /// Finds previous stubs, which is cheap if there are none. `is_own` recognises those of this session.
    pub(super) fn find(space: &AddressSpace, is_own: impl Fn(&Mapping) -> bool) -> Self {
        let mappings = || space.mappings().iter().map(|mapped| &mapped.mapping);
        let mut previous = Self::default();
        if !mappings().any(Mapping::is_stubs) {
            return previous;
        }
        let pid = space.pid();
        let Ok(regions) = regions(pid) else { return previous };
        // Any file can have the name of the stubs' file.
        let is_memory = |mapping: &Mapping| mapping.is_stubs() && mounts::is_local(pid, mapping.device);
        let foreign = mappings().filter(|mapping| is_memory(mapping) && !is_own(mapping));
        for mapping in foreign.take(MAPPED_MAX) {
            let Some(at) = regions.iter().position(|region| region.start == mapping.start && region.is_stubs()) else {
                continue;
            };
            match MappedStubs::read(pid, &regions[at..]) {
                Ok(Some(found)) => {
                    previous.functions.extend(stub::entries(&found.image));
                    previous.mapped.push(found);
                }
                Ok(None) => {}
                Err(error) => debug!("process {pid}: cannot read its stubs: {error}"),
            }
        }
        previous
    }

    /// Whether a running session uses stubs of the process, which hide calls from all other probes.
    pub(super) fn is_in_use(&self) -> bool {
        self.mapped.iter().any(|stubs| !stubs.breakpoints.is_empty())
    }

    /// Finds previous stubs and removes the breakpoints that a killed session has left in them; those of a running one
    /// remain.
    pub(super) fn without_breakpoints(
        space: &AddressSpace,
        is_own: impl Fn(&Mapping) -> bool,
        keeper: &Keeper,
    ) -> Result<Self, KeeperError> {
        let previous = Self::find(space, &is_own);
        if !previous.is_in_use() {
            return Ok(previous);
        }
        for stubs in previous.mapped.iter().filter(|stubs| !stubs.breakpoints.is_empty()) {
            leftover::remove_from(keeper, LinkKind::Multi, &stubs.file, &stubs.breakpoints, space.pid())?;
        }
        Ok(Self::find(space, is_own))
    }

    /// Whether there is nothing to remove: all previous stubs are switched off.
    pub(super) fn is_neutral(&self) -> bool {
        self.mapped.iter().all(|stubs| stubs.is_switched_off)
    }

    pub(super) fn function(&self, stub: u64) -> Option<u64> {
        self.functions.get(&stub).copied()
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = u64> {
        self.mapped.iter().map(|stubs| stubs.address)
    }

    /// File of equal stubs that are mapped at this address: the process may have copied their addresses.
    pub(super) fn file(&self, address: u64, image: &[u8], data_bytes: u64, filter_bytes: u64) -> Option<&File> {
        let is_same = |stubs: &&MappedStubs| {
            let places = (stubs.address, stubs.data_bytes, stubs.filter_bytes);
            places == (address, data_bytes, filter_bytes) && stubs.image == image
        };
        self.mapped.iter().find(is_same).map(|stubs| &stubs.file)
    }

    /// Installations that switch the stubs off and restore these slots.
    pub(super) fn removals(&self, pid: Pid, slots: &[SlotChange]) -> Vec<Installation> {
        let removal = |stubs: &MappedStubs| {
            let code = stubs.address..stubs.address + stubs.image.len() as u64;
            Installation {
                pid,
                address: stubs.address,
                code_bytes: stubs.image.len() as u64,
                data: Vec::new(),
                data_bytes: stubs.data_bytes,
                filter_bytes: stubs.filter_bytes,
                list: list_of(stubs.address, &stubs.image),
                functions: Vec::new(),
                is_mapped: true,
                slots: slots.iter().filter(|slot| code.contains(&slot.after)).copied().collect(),
            }
        };
        self.mapped.iter().map(removal).collect()
    }
}

impl MappedStubs {
    /// Reads stubs from the regions that begin with their code: countdowns and filter follow. `None` for a mapping of
    /// other parts.
    fn read(pid: Pid, regions: &[Region]) -> std::io::Result<Option<Self>> {
        let [code, data, filter, ..] = regions else { return Ok(None) };
        if code.offset.0 != 0 || (data.start, filter.start) != (code.end, data.end) {
            return Ok(None);
        }
        let range = format!("map_files/{:x}-{:x}", code.start, code.end);
        let Some(file) = open_sealed(&entry_path(pid, &range), code.size_bytes())? else { return Ok(None) };
        let mut image = Vec::new();
        (&file).take(code.size_bytes()).read_to_end(&mut image)?;
        if stub::entries(&image).next().is_none() {
            return Ok(None);
        }
        let mut memory = vec![0; image.len()];
        let read = process_memory::read(pid, &[(code.start.0, memory.len())], &mut memory)?;
        let size_bytes = stub::BREAKPOINT.len();
        let instructions = memory[..read].chunks_exact(size_bytes).zip(image.chunks_exact(size_bytes)).enumerate();
        let changed = instructions.filter(|(_, (now, before))| now != before && *now == stub::BREAKPOINT);
        let breakpoints = changed.map(|(number, _)| (number * size_bytes) as u64).collect();
        let mut words = [0; control::BYTES];
        let at = filter.start.0 - control::BYTES as u64;
        let is_read = process_memory::read(pid, &[(at, words.len())], &mut words)? == words.len();
        let word = |field: usize| words[field..].first_chunk::<8>().copied();
        let is_switched_off = is_read
            && word(control::BASE) == word(control::IDLE)
            && word(control::BYPASSED) == Some(control::BYPASS.to_ne_bytes());
        let (TargetAddr(address), data_bytes) = (code.start, data.size_bytes());
        Ok(Some(Self {
            address,
            image,
            data_bytes,
            filter_bytes: filter.size_bytes(),
            file,
            breakpoints,
            is_switched_off,
        }))
    }
}

/// Patch with the list that identifies an image at this address.
pub(super) fn list_of(address: u64, image: &[u8]) -> Patch {
    let (offset, list) = stub::list(image);
    Patch { address: address + offset, bytes: list.to_vec() }
}
