//! Numbers hooks and heaps for a session and makes the cookies of probes. Pure: the caller computes placements.

use heapbpf_base::address::FileOffset;
use heapbpf_base::ids::{HeapId, HookId, ModuleId};
use profiler_common::hook::{HookCookie, NestedCallers, ProbeScope, Site};
use profiler_common::limits::HEAPS_MAX;
use profiler_common::pages::PAGES_HEAP;
use rustc_hash::FxHashMap;
use thiserror::Error;

use super::code::PlaceError;
use super::place::Placement;
use crate::allocator::resolve::ResolvedHook;
use crate::allocator::selection::{GO, PAGES};

/// All hooks and heaps of a session. Targets that share a module share its hooks.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    heaps: Vec<String>,
    hooks: Vec<PlannedHook>,
    numbers: FxHashMap<(ModuleId, FileOffset), usize>,
    /// Whether resident pages are recorded. Their heap keeps its number if they cannot be.
    has_pages: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct PlannedHook {
    pub hook: ResolvedHook,
    pub heap: HeapId,
    pub placement: Result<Placement, PlaceError>,
    id: HookId,
}

impl PlannedHook {
    /// File offset of the probed instruction: the function's entry if the hook cannot be placed.
    pub(crate) fn offset(&self) -> FileOffset {
        let inside = self.placement.as_ref().map_or(0, |placement| placement.offset_in_function);
        FileOffset(self.hook.offset.0.saturating_add(inside))
    }

    /// The return addresses that identify nested calls, for the kernel side, if there are any.
    pub(crate) fn nested_callers(&self) -> Option<(HookId, NestedCallers)> {
        let mut callers = NestedCallers::default();
        let inside = self.placement.as_ref().ok()?.offset_in_function;
        if self.hook.nested_returns.is_empty() {
            return None;
        }
        for (caller, &distance) in callers.iter_mut().zip(&self.hook.nested_returns) {
            *caller = i32::try_from(distance.checked_sub_unsigned(inside)?).ok()?;
        }
        Some((self.id, callers))
    }

    pub(crate) fn cookie(&self) -> Result<HookCookie, &PlaceError> {
        let arguments = self.placement.as_ref()?.arguments;
        Ok(HookCookie {
            shape: self.hook.spec.shape,
            size: arguments.size,
            count: arguments.count,
            pointer: arguments.pointer,
            page_rounded: self.hook.spec.page_rounded,
            delegates: self.hook.spec.delegates,
            delegates_null: self.hook.spec.delegates_null,
            has_nested_callers: self.nested_callers().is_some(),
            may_throw: self.hook.spec.may_throw,
            frees_on_failure: self.hook.spec.frees_on_failure,
            scope: ProbeScope::Any,
            site: Site::Function,
            heap: self.heap.0,
            hook: self.id.0,
        })
    }
}

const _: () = assert!(PAGES_HEAP == 0, "it is the first of a plan");

/// Name of the heap that all heaps beyond the maximum number share. With `--all`, programs may have allocators of their own, each
/// with a heap.
const OTHER_HEAPS: &str = "other";

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum PlanError {
    /// The cookie stores the hook in 16 bits.
    #[error("too many hooks: `{0}` exceeds the limit of 65,536 per session")]
    TooManyHooks(&'static str),
}

impl Plan {
    /// A plan for sessions that record resident pages, whose heap has a fixed number.
    pub(crate) fn with_pages() -> Self {
        Self { heaps: vec![PAGES.to_owned()], has_pages: true, ..Self::default() }
    }

    /// The heap of resident pages, if the session records them.
    pub(crate) fn pages(&self) -> Option<HeapId> {
        self.has_pages.then_some(HeapId(PAGES_HEAP))
    }

    /// Numbers the heap of Go programs.
    pub(crate) fn add_go(&mut self) -> HeapId {
        self.heap(GO)
    }

    /// The heap of Go programs, if a target has one.
    pub(crate) fn go(&self) -> Option<HeapId> {
        let number = self.heaps.iter().position(|heap| heap == GO)?;
        u8::try_from(number).ok().map(HeapId)
    }

    /// Notes that resident pages cannot be recorded.
    pub(crate) fn leave_out_pages(&mut self) {
        self.has_pages = false;
    }

    /// Numbers the hook if it is new; then `place` computes its placement, whose error is stored with it.
    pub(crate) fn add(
        &mut self,
        hook: &ResolvedHook,
        place: impl FnOnce() -> Result<Placement, PlaceError>,
    ) -> Result<HookId, PlanError> {
        let location = (hook.module, hook.offset);
        let number = self.numbers.get(&location).copied().unwrap_or(self.hooks.len());
        let id = HookId(u16::try_from(number).map_err(|_| PlanError::TooManyHooks(hook.spec.function))?);
        if number == self.hooks.len() {
            let heap = self.heap(&hook.heap);
            self.hooks.push(PlannedHook { hook: hook.clone(), heap, placement: place(), id });
            self.numbers.insert(location, number);
        }
        Ok(id)
    }

    fn heap(&mut self, name: &str) -> HeapId {
        let known = |name: &str| self.heaps.iter().position(|heap| heap == name);
        let is_last = self.heaps.len() + 1 >= HEAPS_MAX as usize;
        let name = if is_last && known(name).is_none() { OTHER_HEAPS } else { name };
        let number = known(name).unwrap_or_else(|| {
            self.heaps.push(name.to_owned());
            self.heaps.len() - 1
        });
        HeapId(u8::try_from(number).unwrap_or(u8::MAX))
    }

    pub(crate) fn heaps(&self) -> &[String] {
        &self.heaps
    }

    pub(crate) fn hooks(&self) -> &[PlannedHook] {
        &self.hooks
    }

    /// The hook with this number, which must be of this plan.
    pub(crate) fn hook(&self, id: HookId) -> &PlannedHook {
        &self.hooks[usize::from(id.0)]
    }
}

#[cfg(test)]
mod tests {
    use heapbpf_base::ids::ModuleId;
    use profiler_common::arch::x86_64::{R8, R9, R10};

    use super::*;
    use crate::allocator::functions;
    use crate::probe::place::{Arguments, Class};

    fn hook(function: &str, module: u32, heap: &str) -> ResolvedHook {
        let (number, spec) =
            functions::C.iter().enumerate().find(|(_, spec)| spec.function == function).expect("in the table");
        ResolvedHook {
            spec,
            module: ModuleId(module),
            path: String::new(),
            is_go: false,
            is_custom: false,
            offset: FileOffset(number as u64),
            size_bytes: 16,
            heap: heap.to_owned(),
            aliases: Vec::new(),
            calls_known: false,
            nested_returns: Vec::new(),
            reached_by_default: true,
            required: false,
        }
    }

    /// A placement behind the entry, with all arguments moved.
    fn placed() -> Result<Placement, PlaceError> {
        Ok(Placement {
            offset_in_function: 7,
            instruction: "nop".to_owned(),
            class: Class::Emulated,
            arguments: Arguments { size: R8, count: Some(R9), pointer: Some(R10) },
        })
    }

    #[test]
    fn targets_that_share_a_module_share_its_hooks() {
        let mut plan = Plan::default();
        assert_eq!(plan.add(&hook("malloc", 0, "libc"), placed), Ok(HookId(0)));
        assert_eq!(plan.add(&hook("free", 0, "libc"), placed), Ok(HookId(1)));
        assert_eq!(plan.add(&hook("malloc", 1, "jemalloc"), placed), Ok(HookId(2)));
        let place_again = || panic!("it is placed already");
        assert_eq!(plan.add(&hook("malloc", 0, "libc"), place_again), Ok(HookId(0)));
        assert_eq!(plan.heaps(), ["libc", "jemalloc"]);
        assert_eq!(plan.hook(HookId(2)).heap, HeapId(1));
    }

    #[test]
    fn cookies_name_the_registers_at_the_probed_instruction() {
        let mut plan = Plan::default();
        plan.add(&hook("malloc", 0, "libc"), placed).expect("fits");
        let hook = hook("reallocarray", 0, "libc");
        let id = plan.add(&hook, placed).expect("fits");
        let planned = plan.hook(id);
        let cookie = planned.cookie().expect("it is placed");
        assert_eq!(cookie.size, R8);
        assert_eq!(cookie.count, Some(R9));
        assert_eq!(cookie.pointer, Some(R10));
        assert!(cookie.delegates);
        assert_eq!((cookie.heap, cookie.hook), (0, 1));
        assert_eq!(planned.offset(), FileOffset(hook.offset.0 + 7));
    }

    #[test]
    fn a_hook_that_cannot_be_placed_keeps_the_error() {
        let mut plan = Plan::default();
        let id = plan.add(&hook("malloc", 0, "libc"), || Err(PlaceError::Argument(7))).expect("fits");
        assert_eq!(plan.hook(id).cookie(), Err(&PlaceError::Argument(7)));
        assert_eq!(plan.hook(id).offset(), plan.hook(id).hook.offset);
    }

    #[test]
    fn heaps_beyond_the_limit_share_one() {
        let mut plan = Plan::default();
        for number in 0..HEAPS_MAX + 5 {
            plan.add(&hook("malloc", number, &number.to_string()), placed).expect("fits");
        }
        plan.add(&hook("free", 0, "0"), placed).expect("fits");
        assert_eq!(plan.heaps().len(), HEAPS_MAX as usize);
        assert_eq!(plan.heaps().last().map(String::as_str), Some("other"));
        let heap = |id: u16| u32::from(plan.hook(HookId(id)).heap.0);
        assert_eq!((heap(62), heap(63), heap(68), heap(69)), (62, HEAPS_MAX - 1, HEAPS_MAX - 1, 0));
    }
}
