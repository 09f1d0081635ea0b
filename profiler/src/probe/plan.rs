//! Numbers hooks and heaps for a session and makes the cookies that tell the kernel side what each probe is. Pure.

use profiler_common::hook::{HookCookie, Register};
use profiler_common::limits::HEAPS_MAX;
use thiserror::Error;

use crate::allocator::resolve::ResolvedHook;
use crate::ids::{HeapId, HookId};

/// All hooks and heaps of a session. Targets that share a module share its hooks.
#[derive(Debug, Default)]
pub struct Plan {
    heaps: Vec<String>,
    hooks: Vec<PlannedHook>,
}

/// A hook with its numbers.
#[derive(Clone, Debug)]
pub struct PlannedHook {
    /// What and where.
    pub hook: ResolvedHook,
    /// The heap.
    pub heap: HeapId,
    /// What the kernel side is told.
    pub cookie: HookCookie,
}

/// Why a hook cannot be planned.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// The cookie has 8 bits for the heap.
    #[error("heap `{0}` is one too many: a session has at most {HEAPS_MAX}")]
    TooManyHeaps(String),
    /// The cookie has 16 bits for the hook.
    #[error("hook `{0}` is one too many: a session has at most 65,536")]
    TooManyHooks(&'static str),
    /// An argument is not passed in a register.
    #[error("`{0}` names an argument that is not passed in a register: only the first six are")]
    Argument(&'static str),
}

impl Plan {
    /// Numbers a hook, or finds its number.
    ///
    /// # Errors
    ///
    /// See [`PlanError`].
    pub fn add(&mut self, hook: &ResolvedHook) -> Result<HookId, PlanError> {
        let same = |planned: &PlannedHook| planned.hook.module == hook.module && planned.hook.offset == hook.offset;
        let number = self.hooks.iter().position(same).unwrap_or(self.hooks.len());
        let id = HookId(u16::try_from(number).map_err(|_| PlanError::TooManyHooks(hook.spec.function))?);
        if number == self.hooks.len() {
            let heap = self.heap(&hook.heap)?;
            let cookie = cookie(hook, heap, id)?;
            self.hooks.push(PlannedHook { hook: hook.clone(), heap, cookie });
        }
        Ok(id)
    }

    fn heap(&mut self, name: &str) -> Result<HeapId, PlanError> {
        let number = self.heaps.iter().position(|heap| heap == name).unwrap_or(self.heaps.len());
        let id = u8::try_from(number).ok().filter(|&id| u32::from(id) < HEAPS_MAX);
        let id = HeapId(id.ok_or_else(|| PlanError::TooManyHeaps(name.to_owned()))?);
        if number == self.heaps.len() {
            self.heaps.push(name.to_owned());
        }
        Ok(id)
    }

    /// Names of all heaps, in the order of their ids.
    #[must_use]
    pub fn heaps(&self) -> &[String] {
        &self.heaps
    }

    /// The hook with this number.
    ///
    /// # Panics
    ///
    /// If the number is not of this plan.
    #[must_use]
    pub fn hook(&self, id: HookId) -> &PlannedHook {
        &self.hooks[usize::from(id.0)]
    }
}

/// At a function's entry every argument is in its register of the calling convention.
fn cookie(hook: &ResolvedHook, heap: HeapId, id: HookId) -> Result<HookCookie, PlanError> {
    let spec = &hook.spec;
    let register =
        |argument: usize| Register::ARGUMENTS.get(argument).copied().ok_or(PlanError::Argument(spec.function));
    Ok(HookCookie {
        shape: spec.shape,
        size: register(spec.size)?,
        count: spec.count.map(register).transpose()?,
        pointer: spec.pointer.map(register).transpose()?,
        page_rounded: spec.page_rounded,
        delegates: spec.delegates,
        heap: heap.0,
        hook: id.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::FileOffset;
    use crate::allocator::libc::FUNCTIONS;
    use crate::ids::ModuleId;

    fn hook(function: &str, module: u32, heap: &str) -> ResolvedHook {
        let (number, spec) =
            FUNCTIONS.iter().enumerate().find(|(_, spec)| spec.function == function).expect("in the table");
        ResolvedHook {
            spec: *spec,
            module: ModuleId(module),
            path: String::new(),
            offset: FileOffset(number as u64),
            heap: heap.to_owned(),
            aliases: Vec::new(),
        }
    }

    #[test]
    fn targets_that_share_a_module_share_its_hooks() {
        let mut plan = Plan::default();
        assert_eq!(plan.add(&hook("malloc", 0, "libc")), Ok(HookId(0)));
        assert_eq!(plan.add(&hook("free", 0, "libc")), Ok(HookId(1)));
        assert_eq!(plan.add(&hook("malloc", 1, "jemalloc")), Ok(HookId(2)));
        assert_eq!(plan.add(&hook("malloc", 0, "libc")), Ok(HookId(0)));
        assert_eq!(plan.heaps(), ["libc", "jemalloc"]);
        assert_eq!(plan.hook(HookId(2)).heap, HeapId(1));
    }

    #[test]
    fn cookies_name_the_registers_of_the_calling_convention() {
        let mut plan = Plan::default();
        let id = plan.add(&hook("reallocarray", 0, "libc")).expect("fits");
        let cookie = plan.hook(id).cookie;
        assert_eq!(cookie.pointer, Some(Register::Rdi));
        assert_eq!(cookie.size, Register::Rsi);
        assert_eq!(cookie.count, Some(Register::Rdx));
        assert!(cookie.delegates);
    }

    #[test]
    fn heaps_are_bounded() {
        let mut plan = Plan::default();
        for number in 0..HEAPS_MAX {
            plan.add(&hook("malloc", number, &number.to_string())).expect("fits");
        }
        assert_eq!(plan.add(&hook("malloc", 99, "more")), Err(PlanError::TooManyHeaps("more".into())));
    }
}
