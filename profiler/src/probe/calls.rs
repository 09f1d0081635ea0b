//! Finds out which hooked functions call others, from their machine code.
//!
//! An unsampled call must be followed to its return only if the function may call another hooked function: the inner call would be
//! sampled for the same block. That costs a second trap. Two kinds of functions need not be followed:
//!
//! - Leaves, from which no hooked function can be reached.
//! - Functions that reach hooked ones only by calls from their own code. The return addresses of these calls identify nested
//!   calls without following the function. (glibc's `realloc`, unless the block is null, and `posix_memalign`.)
//!
//! What a function does that never returns, such as one that reports an error and aborts, does not matter. Code that is
//! reached through pointers is unknown, as are calls of other modules except for functions that are known not to allocate.
//! If anything is unknown, the function is followed.

use gimli::{BaseAddresses, EhFrameHdr, LittleEndian};
use heapbpf_base::address::{FileOffset, LinkAddr};
use heapbpf_base::ids::ModuleId;
use profiler_common::hook::{CallShape, NESTED_CALLERS_MAX};
use rustc_hash::{FxHashMap, FxHashSet};

use super::arch::flow::{Flow, ReadCode, follow};
use super::arch::{InstructionSet, Native};
use crate::allocator::resolve::ResolvedHook;
use crate::object::imports::slots as slots_of;
use crate::object::module::{Module, ModuleStore};

/// Maximum number of instructions that are followed for one function, which takes some milliseconds.
const INSTRUCTIONS_MAX: usize = 20_000;

/// Functions of C libraries that allocate no blocks. (`__tls_get_addr` may, but not for its caller.)
const HARMLESS: &[&str] = &[
    "abort",
    "getpid",
    "madvise",
    "memcmp",
    "memcpy",
    "memmove",
    "memset",
    "mmap",
    "mmap64",
    "mprotect",
    "mremap",
    "munmap",
    "pthread_getspecific",
    "pthread_mutex_lock",
    "pthread_mutex_trylock",
    "pthread_mutex_unlock",
    "pthread_once",
    "pthread_self",
    "pthread_spin_lock",
    "pthread_spin_unlock",
    "sbrk",
    "sched_yield",
    "strlen",
    "syscall",
    "sysconf",
    "__assert_fail",
    "__errno_location",
    "__stack_chk_fail",
    "__tls_get_addr",
];

/// Calls of hooked functions, read once per session.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    known: FxHashMap<(ModuleId, FileOffset), Known>,
}

/// A function that need not be followed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Inner {
    /// Whether the function must be followed if its block is null.
    delegates_null: bool,
    /// Hooked functions that the function calls, and the addresses at which they return into it.
    calls: Vec<(u64, u64)>,
}

type Known = Option<Inner>;

impl Calls {
    /// Corrects which of a process's hooks are followed.
    pub(crate) fn refine(&mut self, hooks: &mut [ResolvedHook], modules: &ModuleStore) {
        let ids: FxHashSet<ModuleId> = hooks.iter().map(|hook| hook.module).collect();
        for id in ids {
            let module = modules.get(id);
            let of_module: Vec<usize> = (0..hooks.len()).filter(|&hook| hooks[hook].module == id).collect();
            let mut code = None;
            for &caller in of_module.iter().filter(|&&hook| may_be_refined(&hooks[hook])).collect::<Vec<_>>() {
                let inner = self.known.entry((id, hooks[caller].offset)).or_insert_with(|| {
                    let of_module = || of_module.iter().map(|&hook| &hooks[hook]);
                    code.get_or_insert_with(|| ModuleCode::new(module, of_module()))
                        .as_mut()?
                        .inner_calls(&hooks[caller])
                });
                if let Some(inner) = inner {
                    apply(inner, caller, &of_module, hooks, module);
                }
            }
        }
    }
}

fn may_be_refined(hook: &ResolvedHook) -> bool {
    let allocates = matches!(hook.spec.shape, CallShape::Alloc | CallShape::AllocOut | CallShape::Realloc);
    allocates && hook.spec.delegates
}

/// Applies the calls of a function to the hooks of its module. Changes nothing if a list of nested callers would be too long.
fn apply(inner: &Inner, caller: usize, of_module: &[usize], hooks: &mut [ResolvedHook], module: &Module) {
    let mut lists: Vec<(usize, Vec<i64>)> = Vec::new();
    for &(function, returns_to) in &inner.calls {
        let Some(&called) = of_module.iter().find(|&&hook| address(module, &hooks[hook]) == Some(function)) else {
            return;
        };
        if !lists.iter().any(|(hook, _)| *hook == called) {
            lists.push((called, hooks[called].nested_returns.clone()));
        }
        let list = lists.iter_mut().find(|(hook, _)| *hook == called);
        let distance = returns_to.wrapping_sub(function).cast_signed();
        if let Some((_, list)) = list.filter(|(_, list)| !list.contains(&distance)) {
            list.push(distance);
        }
    }
    if lists.iter().any(|(_, list)| list.len() > NESTED_CALLERS_MAX) {
        return;
    }
    for (called, list) in lists {
        hooks[called].nested_returns = list;
    }
    hooks[caller].spec.delegates = false;
    hooks[caller].spec.delegates_null = inner.delegates_null;
}

fn address(module: &Module, hook: &ResolvedHook) -> Option<u64> {
    Some(module.elf().ok()?.link_addr(hook.offset)?.0)
}

/// The code of a module with hooks.
struct ModuleCode<'a> {
    module: &'a Module,
    /// Entries of hooked functions that allocate.
    hooked: FxHashSet<u64>,
    starts: FxHashSet<u64>,
    harmless_slots: FxHashSet<u64>,
    hooked_slots: FxHashSet<u64>,
    pages: FxHashMap<u64, Vec<u8>>,
    flows: FxHashMap<u64, Flow>,
}

const PAGE_BYTES: u64 = 4096;

impl<'a> ModuleCode<'a> {
    fn new<'h>(module: &'a Module, hooks: impl Iterator<Item = &'h ResolvedHook>) -> Option<Self> {
        let (elf, image) = (module.elf().ok()?, module.image().ok()?);
        let allocating: Vec<&ResolvedHook> = hooks.filter(|hook| hook.spec.shape != CallShape::Free).collect();
        let hooked = allocating.iter().filter_map(|hook| Some(elf.link_addr(hook.offset)?.0)).collect();
        let names: Vec<&'static str> = allocating
            .iter()
            .flat_map(|hook| hook.aliases.iter().copied().chain([hook.spec.function]))
            .chain(crate::allocator::functions::C.iter().map(|spec| spec.function))
            .collect();
        let slots = |names: &[&'static str]| -> FxHashSet<u64> {
            slots_of(image, elf, names).unwrap_or_default().iter().map(|slot| slot.0).collect()
        };
        Some(Self {
            module,
            hooked,
            starts: function_starts(module),
            harmless_slots: slots(HARMLESS),
            hooked_slots: slots(&names),
            pages: FxHashMap::default(),
            flows: FxHashMap::default(),
        })
    }

    /// Calls of a hook's function; `None` if the hook must be followed.
    fn inner_calls(&mut self, hook: &ResolvedHook) -> Known {
        let start = address(self.module, hook)?;
        let body = start..start.checked_add(hook.size_bytes)?;
        let mut budget = INSTRUCTIONS_MAX;
        let block = hook.spec.pointer.filter(|_| hook.spec.shape == CallShape::Realloc);
        let not_null = block.and_then(|argument| Native::ARGUMENTS.get(argument).copied());
        let own = follow::<Native>(self, start, None, &mut budget);
        let with_block = not_null.map(|argument| follow::<Native>(self, start, Some(argument), &mut budget));
        let delegates_null = !own.hooked.is_empty();
        let flow = if delegates_null { with_block.filter(|flow| flow.hooked.is_empty())? } else { own };
        let calls = self.nested_in(&flow, &body, hook.calls_known, &mut budget)?;
        Some(Inner { delegates_null, calls })
    }

    /// The hooked functions that a function with this code calls, with the return addresses. `None` if it may reach hooked
    /// functions that are not called from its own code.
    fn nested_in(
        &mut self,
        flow: &Flow,
        body: &std::ops::Range<u64>,
        calls_known: bool,
        budget: &mut usize,
    ) -> Option<Vec<(u64, u64)>> {
        if !self.is_known(flow, calls_known) {
            return None;
        }
        let mut nested = Vec::new();
        let mut deeper = Vec::new();
        for &(target, returns_to) in &flow.calls {
            let reached = if self.hooked.contains(&target) {
                vec![target]
            } else {
                let called = self.flow(target, budget);
                if !called.returns {
                    continue;
                }
                if !self.is_known(&called, calls_known) {
                    return None;
                }
                deeper.extend(called.calls.iter().map(|(target, _)| *target));
                called.hooked
            };
            if !reached.is_empty() && !body.contains(&returns_to) {
                return None;
            }
            nested.extend(reached.into_iter().map(|function| (function, returns_to)));
        }
        self.reach_none(deeper, calls_known, budget).then_some(nested)
    }

    /// Whether no hooked function is reached by these functions and those that they call.
    fn reach_none(&mut self, mut pending: Vec<u64>, calls_known: bool, budget: &mut usize) -> bool {
        let mut seen = FxHashSet::default();
        while let Some(target) = pending.pop() {
            if self.hooked.contains(&target) {
                return false;
            }
            if !seen.insert(target) {
                continue;
            }
            if *budget == 0 {
                return calls_known;
            }
            let called = self.flow(target, budget);
            if !called.returns {
                continue;
            }
            if !called.hooked.is_empty() || !self.is_known(&called, calls_known) {
                return false;
            }
            pending.extend(called.calls.iter().map(|(target, _)| *target));
        }
        true
    }

    fn is_known(&self, flow: &Flow, calls_known: bool) -> bool {
        let is_harmless = |slot: &u64| calls_known || self.harmless_slots.contains(slot);
        (calls_known || !flow.is_incomplete)
            && !flow.slots.iter().any(|slot| self.hooked_slots.contains(slot))
            && flow.slots.iter().all(is_harmless)
    }

    fn flow(&mut self, start: u64, budget: &mut usize) -> Flow {
        if let Some(flow) = self.flows.get(&start) {
            return flow.clone();
        }
        let flow = follow::<Native>(self, start, None, budget);
        self.flows.insert(start, flow.clone());
        flow
    }

    fn read_page(&self, page: u64) -> Option<Vec<u8>> {
        let elf = self.module.elf().ok()?;
        let start =
            page.max(elf.code().find(|segment| page < segment.address.0.saturating_add(segment.size_bytes))?.address.0);
        let segment = elf.code().find(|segment| segment.contains(LinkAddr(start)))?;
        let inside = start - segment.address.0;
        let length =
            (page + PAGE_BYTES + Native::INSTRUCTION_BYTES_MAX).saturating_sub(start).min(segment.size_bytes - inside);
        let offset = FileOffset(segment.offset.0.checked_add(inside)?);
        let read = self.module.image().ok()?.read(offset, length, PAGE_BYTES + Native::INSTRUCTION_BYTES_MAX).ok()?;
        let mut bytes = vec![0; usize::try_from(start - page).ok()?];
        bytes.extend(read);
        Some(bytes)
    }
}

impl ReadCode for ModuleCode<'_> {
    fn code_at(&mut self, address: u64) -> Option<&[u8]> {
        let page = address & !(PAGE_BYTES - 1);
        if !self.pages.contains_key(&page) {
            let bytes = self.read_page(page)?;
            self.pages.insert(page, bytes);
        }
        let bytes = self.pages.get(&page)?;
        bytes.get(usize::try_from(address - page).ok()?..).filter(|bytes| !bytes.is_empty())
    }

    fn is_start(&self, address: u64) -> bool {
        self.starts.contains(&address)
    }

    fn is_hooked(&self, address: u64) -> bool {
        self.hooked.contains(&address)
    }
}

const INDEX_BYTES_MAX: u64 = 64 << 20;

/// Addresses of functions with unwind information; empty if unknown.
pub(super) fn function_starts(module: &Module) -> FxHashSet<u64> {
    let read = || {
        let (elf, image) = (module.elf().ok()?, module.image().ok()?);
        let index = elf.eh_frame_index.as_ref()?;
        let bytes = image.read(index.offset, index.size_bytes, INDEX_BYTES_MAX).ok()?;
        let bases = BaseAddresses::default().set_eh_frame_hdr(index.address.0);
        let header = EhFrameHdr::new(&bytes, LittleEndian).parse(&bases, 8).ok()?;
        let (table, mut starts) = (header.table()?, FxHashSet::default());
        let mut entries = table.iter(&bases);
        while let Some((start, _)) = entries.next().ok()? {
            starts.insert(start.direct().ok()?);
        }
        Some(starts)
    };
    read().unwrap_or_default()
}

#[cfg(test)]
mod tests;
