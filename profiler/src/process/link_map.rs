//! The dynamic linker's list of loaded objects in search order (`r_debug` and `link_map` in `<link.h>`). It is in the
//! target's memory and may be anything, so walks are bounded, and an inconsistent list counts as none.

use std::fs::File;
use std::hash::Hasher;
use std::os::unix::fs::FileExt;

use heapbpf_base::ids::Pid;
use heapbpf_linux::proc::maps::executable_identity;
use heapbpf_linux::proc::mounts;
use heapbpf_linux::proc::process::{Auxv, entry_path};
use heapbpf_linux::process_memory;
use object::elf;
use rustc_hash::FxHasher;

/// Maximum number of nodes in one namespace; programs have hundreds at most.
const NODES_MAX: usize = 8192;
/// Maximum number of namespaces (`dlmopen`); glibc has sixteen.
const NAMESPACES_MAX: usize = 16;
/// Value of `r_state` while no object is being added or removed.
const RT_CONSISTENT: u64 = 0;
const HEADERS_MAX: u64 = 256;
const DYNAMIC_MAX: u64 = 1024;

/// Position in the search order. The program is the first object of the first namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LinkPosition {
    /// Number of the namespace. 0 is the program's; others are created by `dlmopen`, and contain all that they can reach.
    pub namespace: u16,
    pub index: u16,
}

const NAME_BYTES_MAX: u64 = 4096;

/// Identity of an object. Linkers reuse address and bias after an object is unloaded, so the path is included, as a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Node {
    address: u64,
    bias: u64,
    name_hash: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinkMap {
    pid: Pid,
    rendezvous: u64,
    namespaces: Vec<Vec<Node>>,
}

impl LinkMap {
    /// Reads the list of a process. `None` before the start-up, for static programs, if the linker is run as the program, or if
    /// overwritten.
    pub(crate) fn read(pid: Pid) -> Option<Self> {
        let auxv = Auxv::read(pid)?;
        // The linker has changed all other pages that are read, so that they are not pages of a file.
        let is_read = process_memory::is_in_memory(pid, auxv.get(libc::AT_PHDR)?).unwrap_or(true);
        let is_local = || mounts::is_local(pid, executable_identity(pid).ok()?.device()).then_some(());
        if is_read { Some(()) } else { is_local() }?;
        Self::read_from(pid, &ProcessMemory::open(pid)?, &auxv)
    }

    pub(crate) fn read_from(pid: Pid, memory: &impl Memory, auxv: &Auxv) -> Option<Self> {
        let rendezvous = find_rendezvous(memory, auxv)?;
        let namespaces = walk(memory, rendezvous)?;
        Some(Self { pid, rendezvous, namespaces })
    }

    /// Position of the object with this load bias; the first of several (non-PIE programs have bias 0).
    pub(crate) fn position(&self, bias: u64) -> Option<LinkPosition> {
        let in_namespace = |nodes: &Vec<Node>| nodes.iter().position(|node| node.bias == bias);
        let (namespace, index) =
            self.namespaces.iter().enumerate().find_map(|(number, nodes)| Some((number, in_namespace(nodes)?)))?;
        Some(LinkPosition { namespace: u16::try_from(namespace).ok()?, index: u16::try_from(index).ok()? })
    }

    /// Whether the list has changed. Reads 32 bytes and the path of each object. Also true when the list is unreadable, after an
    /// exec or exit.
    pub(crate) fn changed(&self) -> bool {
        let now = ProcessMemory::open(self.pid).and_then(|memory| walk(&memory, self.rendezvous));
        now.as_ref() != Some(&self.namespaces)
    }
}

/// Whether the linker states that the list is complete. musl's linker does so once all initial objects are relocated, before it
/// calls the program (`__dls3` in ldso/dynlink.c); glibc's also before it loads them.
pub(crate) fn is_complete(pid: Pid) -> bool {
    let read = || is_complete_in(&ProcessMemory::open(pid)?, &Auxv::read(pid)?);
    read().unwrap_or(false)
}

fn is_complete_in(memory: &impl Memory, auxv: &Auxv) -> Option<bool> {
    // r_version, r_map, r_brk, r_state.
    let [version, head, _, state] = memory.words(find_rendezvous(memory, auxv)?)?;
    Some(version & 0xffff_ffff != 0 && head != 0 && state & 0xffff_ffff == RT_CONSISTENT)
}

/// Memory of which a range is read completely or not at all.
pub(crate) trait Memory {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Option<()>;

    fn words<const N: usize>(&self, address: u64) -> Option<[u64; N]> {
        let mut bytes = [[0; 8]; N];
        self.read(address, bytes.as_flattened_mut())?;
        Some(bytes.map(u64::from_le_bytes))
    }
}

struct ProcessMemory(File);

impl ProcessMemory {
    fn open(pid: Pid) -> Option<Self> {
        File::open(entry_path(pid, "mem")).ok().map(Self)
    }
}

impl Memory for ProcessMemory {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Option<()> {
        self.0.read_exact_at(bytes, address).ok()
    }
}

/// Finds the address of `r_debug` through the program headers (`AT_PHDR`).
fn find_rendezvous(memory: &impl Memory, auxv: &Auxv) -> Option<u64> {
    let (headers, count) = (auxv.get(libc::AT_PHDR)?, auxv.get(libc::AT_PHNUM)?.min(HEADERS_MAX));
    let (mut bias, mut dynamic) = (None, None);
    for number in 0..count {
        // p_type and p_flags, p_offset, p_vaddr, p_paddr, p_filesz, p_memsz.
        let [kind, _, address, _, _, size_bytes] = memory.words(headers.checked_add(number * 56)?)?;
        match u32::try_from(kind & 0xffff_ffff).ok()? {
            elf::PT_PHDR => bias = Some(headers.wrapping_sub(address)),
            elf::PT_DYNAMIC => dynamic = Some((address, size_bytes)),
            _ => {}
        }
    }
    let (address, size_bytes) = dynamic?;
    let dynamic = address.wrapping_add(bias?);
    for number in 0..(size_bytes / 16).min(DYNAMIC_MAX) {
        let [tag, value] = memory.words(dynamic.checked_add(number * 16)?)?;
        match i64::from_ne_bytes(tag.to_ne_bytes()) {
            elf::DT_NULL => return None,
            // The value is 0 until the linker has run.
            elf::DT_DEBUG => return Some(value).filter(|&value| value != 0),
            _ => {}
        }
    }
    None
}

/// Reads all namespaces. `None` if a node is unreadable, or a list is cyclic or exceeds the limits.
fn walk(memory: &impl Memory, rendezvous: u64) -> Option<Vec<Vec<Node>>> {
    let mut namespaces = Vec::new();
    let mut at = rendezvous;
    // Namespaces without objects count: they may form a cycle.
    for _ in 0..NAMESPACES_MAX {
        if at == 0 {
            break;
        }
        // r_version, r_map, r_brk, r_state, r_ldbase.
        let [version, head, _, _, _] = memory.words(at)?;
        let nodes = walk_namespace(memory, head)?;
        if !nodes.is_empty() {
            namespaces.push(nodes);
        }
        // From version 2 on, glibc 2.35, r_next leads to the next namespace.
        at = if version & 0xffff_ffff >= 2 { memory.words::<1>(at.checked_add(40)?)?[0] } else { 0 };
    }
    (!namespaces.is_empty()).then_some(namespaces)
}

fn walk_namespace(memory: &impl Memory, head: u64) -> Option<Vec<Node>> {
    let mut nodes = Vec::new();
    let mut at = head;
    while at != 0 {
        // A cyclic list also ends here.
        if nodes.len() == NODES_MAX {
            return None;
        }
        // l_addr, l_name, l_ld, l_next.
        let [bias, name, _, next] = memory.words(at)?;
        nodes.push(Node { address: at, bias, name_hash: name_hash(memory, name) });
        at = next;
    }
    Some(nodes)
}

/// Hash of a path, which distinguishes paths. A path ends at unreadable memory.
fn name_hash(memory: &impl Memory, name: u64) -> u64 {
    const CHUNK: usize = 64;
    let mut hasher = FxHasher::default();
    let mut at = name;
    while at.wrapping_sub(name) < NAME_BYTES_MAX {
        // Aligned chunks lie in one page, so that a path next to unmapped memory is readable.
        let length = CHUNK - usize::try_from(at % CHUNK as u64).unwrap_or_default();
        let mut bytes = [0; CHUNK];
        let Some(()) = memory.read(at, &mut bytes[..length]) else { break };
        let end = bytes[..length].iter().position(|&byte| byte == 0);
        hasher.write(&bytes[..end.unwrap_or(length)]);
        let Some(next) = at.checked_add(length as u64).filter(|_| end.is_none()) else { break };
        at = next;
    }
    hasher.finish()
}

#[cfg(test)]
mod tests;
