//! Numbers hooks and heaps for a session and makes the cookies that tell the kernel side what each probe is. Pure: where
//! in its function a probe goes is the caller's to ask.

use profiler_common::hook::HookCookie;
use profiler_common::limits::HEAPS_MAX;
use rustc_hash::FxHashMap;
use thiserror::Error;

use super::place::{PlaceError, Placement};
use crate::address::FileOffset;
use crate::allocator::resolve::ResolvedHook;
use crate::ids::{HeapId, HookId, ModuleId};

/// All hooks and heaps of a session. Targets that share a module share its hooks.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    heaps: Vec<String>,
    hooks: Vec<PlannedHook>,
    /// By module and function.
    numbers: FxHashMap<(ModuleId, FileOffset), usize>,
}

/// A hook with its numbers.
#[derive(Clone, Debug)]
pub(crate) struct PlannedHook {
    /// What and where.
    pub hook: ResolvedHook,
    /// The heap.
    pub heap: HeapId,
    /// Where the probe goes, or why there is no place for one.
    pub placement: Result<Placement, PlaceError>,
    /// Its number.
    id: HookId,
}

impl PlannedHook {
    /// The probed instruction in the module's file: the function's entry where there is no place for a probe.
    pub(crate) fn offset(&self) -> FileOffset {
        let inside = self.placement.as_ref().map_or(0, |placement| placement.offset_in_function);
        FileOffset(self.hook.offset.0.saturating_add(inside))
    }

    /// What the kernel side is told.
    ///
    /// # Errors
    ///
    /// Why there is no place for a probe.
    pub(crate) fn cookie(&self) -> Result<HookCookie, &PlaceError> {
        let arguments = self.placement.as_ref()?.arguments;
        Ok(HookCookie {
            shape: self.hook.spec.shape,
            size: arguments.size,
            count: arguments.count,
            pointer: arguments.pointer,
            page_rounded: self.hook.spec.page_rounded,
            delegates: self.hook.spec.delegates,
            may_throw: self.hook.spec.may_throw,
            frees_on_failure: self.hook.spec.frees_on_failure,
            heap: self.heap.0,
            hook: self.id.0,
        })
    }
}

/// Takes in the heaps for which there is no number left. A session of all processes meets programs with allocators of
/// their own, and each has a heap by its name.
const OTHER_HEAPS: &str = "other";

/// Why a hook cannot be planned.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum PlanError {
    /// The cookie has 16 bits for the hook.
    #[error("hook `{0}` is one too many: a session has at most 65,536")]
    TooManyHooks(&'static str),
}

impl Plan {
    /// Numbers a hook, or finds its number. `place` is asked for the place of a new one's probe.
    ///
    /// # Errors
    ///
    /// See [`PlanError`]. That there is no place for a probe is noted with the hook.
    pub(crate) fn add(
        &mut self,
        hook: &ResolvedHook,
        place: impl FnOnce() -> Result<Placement, PlaceError>,
    ) -> Result<HookId, PlanError> {
        let place_in_file = (hook.module, hook.offset);
        let number = self.numbers.get(&place_in_file).copied().unwrap_or(self.hooks.len());
        let id = HookId(u16::try_from(number).map_err(|_| PlanError::TooManyHooks(hook.spec.function))?);
        if number == self.hooks.len() {
            let heap = self.heap(&hook.heap);
            self.hooks.push(PlannedHook { hook: hook.clone(), heap, placement: place(), id });
            self.numbers.insert(place_in_file, number);
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

    /// Names of all heaps, in the order of their ids.
    pub(crate) fn heaps(&self) -> &[String] {
        &self.heaps
    }

    /// The hook with this number.
    ///
    /// # Panics
    ///
    /// If the number is not of this plan.
    pub(crate) fn hook(&self, id: HookId) -> &PlannedHook {
        &self.hooks[usize::from(id.0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::libc::FUNCTIONS;
    use crate::ids::ModuleId;
    use crate::probe::place::{Arguments, Class};
    use profiler_common::hook::Register;

    fn hook(function: &str, module: u32, heap: &str) -> ResolvedHook {
        let (number, spec) =
            FUNCTIONS.iter().enumerate().find(|(_, spec)| spec.function == function).expect("in the table");
        ResolvedHook {
            spec: *spec,
            module: ModuleId(module),
            path: String::new(),
            offset: FileOffset(number as u64),
            size_bytes: 16,
            heap: heap.to_owned(),
            aliases: Vec::new(),
            reached_by_default: true,
            required: false,
        }
    }

    /// Behind the entry, with everything moved.
    fn placed() -> Result<Placement, PlaceError> {
        Ok(Placement {
            offset_in_function: 7,
            instruction: "nop".to_owned(),
            class: Class::Emulated,
            arguments: Arguments { size: Register::R8, count: Some(Register::R9), pointer: Some(Register::R10) },
        })
    }

    #[test]
    fn targets_that_share_a_module_share_its_hooks() {
        let mut plan = Plan::default();
        assert_eq!(plan.add(&hook("malloc", 0, "libc"), placed), Ok(HookId(0)));
        assert_eq!(plan.add(&hook("free", 0, "libc"), placed), Ok(HookId(1)));
        assert_eq!(plan.add(&hook("malloc", 1, "jemalloc"), placed), Ok(HookId(2)));
        let place_again = || panic!("it has its place");
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
        let cookie = planned.cookie().expect("it has its place");
        assert_eq!(cookie.size, Register::R8);
        assert_eq!(cookie.count, Some(Register::R9));
        assert_eq!(cookie.pointer, Some(Register::R10));
        assert!(cookie.delegates);
        assert_eq!((cookie.heap, cookie.hook), (0, 1));
        assert_eq!(planned.offset(), FileOffset(hook.offset.0 + 7));
    }

    #[test]
    fn a_hook_without_a_place_says_why() {
        let mut plan = Plan::default();
        let id = plan.add(&hook("malloc", 0, "libc"), || Err(PlaceError::Argument(7))).expect("fits");
        assert_eq!(plan.hook(id).cookie(), Err(&PlaceError::Argument(7)));
        assert_eq!(plan.hook(id).offset(), plan.hook(id).hook.offset);
    }

    #[test]
    fn heaps_beyond_the_last_number_share_it() {
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
