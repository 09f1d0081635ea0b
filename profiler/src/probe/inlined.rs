//! Finds hooked functions that the compiler has inlined in the rest of their module, where no probe sees their calls.
//!
//! CPython's functions reach the allocator through pointers that `PyMem_SetAllocator` may change. Other functions that read
//! the same pointers contain copies of them: more than a hundred in builds with link-time optimization, such as Debian's;
//! in other builds a handful, which set or compare the pointers.

use std::collections::BTreeSet;

use heapbpf_base::address::LinkAddr;
use heapbpf_base::ids::ModuleId;
use rustc_hash::{FxHashMap, FxHashSet};

use super::arch::{InstructionSet, Native, PointerPlace};
use super::calls::function_starts;
use crate::allocator::hook_set::HookSet;
use crate::allocator::resolve::ResolvedHook;
use crate::object::elf::{Elf, Segment};
use crate::object::module::{Module, ModuleStore};

/// Number of copies from which on a function counts as inlined.
const COPIES_MIN: u64 = 16;
/// Number of instructions in which a function reads its pointers. Copies of the function read all of them.
const HEAD_INSTRUCTIONS: usize = 12;
/// Maximum size of code, which is more than any interpreter has.
const CODE_BYTES_MAX: u64 = 256 << 20;
/// Sections with addresses of objects, which functions read for whatever purpose.
const GLOBAL_OFFSET_TABLES: [&str; 2] = [".got", ".got.plt"];

/// A function that is inlined, which is why its heap is not hooked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InlinedFunction {
    pub heap: String,
    /// Path of the module.
    pub module: String,
    pub function: &'static str,
    /// Number of other functions with a copy of it.
    pub copies: u64,
    /// Advice for the user.
    pub advice: String,
}

/// Inlined functions of modules, read once per session.
#[derive(Debug, Default)]
pub(crate) struct Inlined {
    known: FxHashMap<(ModuleId, String), Option<InlinedFunction>>,
}

impl Inlined {
    /// Removes hooks of heaps that are to be checked, if one of the heap's functions in the module is inlined.
    pub(crate) fn remove(&mut self, hooks: &mut Vec<ResolvedHook>, functions: &HookSet, modules: &ModuleStore) {
        let checked: BTreeSet<(ModuleId, String)> = hooks
            .iter()
            .filter(|hook| functions.advice_if_inlined(&hook.heap).is_some())
            .map(|hook| (hook.module, hook.heap.clone()))
            .collect();
        for (id, heap) in checked {
            let of_heap = |hook: &&ResolvedHook| hook.module == id && hook.heap == heap;
            let found = self.known.entry((id, heap.clone())).or_insert_with(|| {
                let (function, copies) = most_copied(hooks.iter().filter(of_heap), modules.get(id))?;
                Some(InlinedFunction {
                    heap: heap.clone(),
                    module: modules.get(id).path().to_string(),
                    function,
                    copies,
                    advice: functions.advice_if_inlined(&heap)?.to_owned(),
                })
            });
            if found.is_some() {
                hooks.retain(|hook| !of_heap(&hook));
            }
        }
    }

    pub(crate) fn found(&self) -> impl Iterator<Item = &InlinedFunction> {
        self.known.values().flatten()
    }
}

/// The function that most others contain, if it is inlined.
fn most_copied<'a>(hooks: impl Iterator<Item = &'a ResolvedHook>, module: &Module) -> Option<(&'static str, u64)> {
    let elf = module.elf().ok()?;
    let code = Code::read(module, elf)?;
    let mut readers: FxHashMap<PointerPlace, FxHashSet<u64>> = FxHashMap::default();
    let mut heads = Vec::new();
    for hook in hooks {
        let Some(start) = elf.link_addr(hook.offset) else { continue };
        let read = Native::pointers_read(code.function(start)?, start.0, HEAD_INSTRUCTIONS);
        let pointers: Vec<PointerPlace> = read.into_iter().filter(|place| !is_linkage(elf, *place)).collect();
        readers.extend(pointers.iter().map(|place| (*place, FxHashSet::default())));
        heads.push((hook.spec.function, start.0, pointers));
    }
    for &start in &code.starts {
        // Unwind information may be about data.
        let Some(function) = code.function(LinkAddr(start)) else { continue };
        for place in Native::pointers_read(function, start, usize::MAX) {
            if let Some(readers) = readers.get_mut(&place) {
                readers.insert(start);
            }
        }
    }
    let copies = |(function, start, pointers): &(&'static str, u64, Vec<PointerPlace>)| {
        let read_all = |reader: &u64| reader != start && pointers.iter().all(|place| readers[place].contains(reader));
        let candidates = pointers.first().map(|place| &readers[place]).into_iter().flatten();
        (*function, candidates.filter(|reader| read_all(reader)).count() as u64)
    };
    heads.iter().map(copies).filter(|(_, copies)| *copies >= COPIES_MIN).max_by_key(|(_, copies)| *copies)
}

/// The code of a module, by function.
struct Code<'a> {
    segments: Vec<(&'a Segment, Vec<u8>)>,
    /// Addresses at which functions start, in rising order.
    starts: Vec<u64>,
}

impl<'a> Code<'a> {
    fn read(module: &Module, elf: &'a Elf) -> Option<Self> {
        let image = module.image().ok()?;
        let read = |segment: &'a Segment| {
            Some((segment, image.read(segment.offset, segment.size_bytes, CODE_BYTES_MAX).ok()?))
        };
        let mut starts: Vec<u64> = function_starts(module).into_iter().collect();
        starts.sort_unstable();
        Some(Self { segments: elf.code().map(read).collect::<Option<_>>()?, starts })
    }

    /// Code of the function at `start`, up to the next function.
    fn function(&self, start: LinkAddr) -> Option<&[u8]> {
        let (segment, bytes) = self.segments.iter().find(|(segment, _)| segment.contains(start))?;
        let next = self.starts.get(self.starts.partition_point(|other| *other <= start.0));
        let offset = |address: u64| usize::try_from(address.saturating_sub(segment.address.0)).unwrap_or(usize::MAX);
        let end = next.map_or(bytes.len(), |next| offset(*next).min(bytes.len()));
        bytes.get(offset(start.0)..end)
    }
}

fn is_linkage(elf: &Elf, place: PointerPlace) -> bool {
    let PointerPlace::At(address) = place else { return false };
    let tables = GLOBAL_OFFSET_TABLES.iter().filter_map(|name| elf.section(name));
    tables.into_iter().any(|section| section.contains(LinkAddr(address)))
}

#[cfg(test)]
mod tests;
