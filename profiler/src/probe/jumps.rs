//! Functions that are nothing but a jump to another one, such as jemalloc's `operator new[]`: hooked there, each call costs
//! one probe and is drawn for once.

use rustc_hash::FxHashMap;

use super::code::Code;
use crate::address::FileOffset;
use crate::allocator::resolve::ResolvedHook;
use crate::allocator::spec::HookSpec;
use crate::ids::ModuleId;
use crate::object::module::ModuleStore;

/// Where functions jump to, by module and offset; read once per session.
#[derive(Debug, Default)]
pub(crate) struct Jumps {
    known: FxHashMap<(ModuleId, FileOffset), Option<FileOffset>>,
}

impl Jumps {
    /// Makes names of hooks that only jump to another hook's code aliases of that one. Those that take other arguments, or
    /// serve another heap, stay.
    pub(crate) fn merge(&mut self, hooks: Vec<ResolvedHook>, modules: &ModuleStore) -> Vec<ResolvedHook> {
        let mut kept: Vec<ResolvedHook> = Vec::with_capacity(hooks.len());
        let mut jumping = Vec::new();
        for hook in hooks {
            match self.target(&hook, modules) {
                Some(target) => jumping.push((hook, target)),
                None => kept.push(hook),
            }
        }
        for (hook, target) in jumping {
            let same = |kept: &&mut ResolvedHook| {
                kept.module == hook.module
                    && kept.offset == target
                    && kept.heap == hook.heap
                    && takes_the_same(&kept.spec, &hook.spec)
            };
            match kept.iter_mut().find(same) {
                Some(kept) => {
                    kept.aliases.push(hook.spec.function);
                    kept.aliases.extend(hook.aliases);
                    kept.spec.may_throw |= hook.spec.may_throw;
                    kept.required |= hook.required;
                    kept.reached_by_default |= hook.reached_by_default;
                }
                None => kept.push(hook),
            }
        }
        // Freeing hooks of each module stay before its others; modules stay together.
        let mut order: Vec<ModuleId> = Vec::new();
        for hook in &kept {
            if !order.contains(&hook.module) {
                order.push(hook.module);
            }
        }
        kept.sort_by_key(|hook| (order.iter().position(|&module| module == hook.module), hook.spec.shape.allocates()));
        kept
    }

    fn target(&mut self, hook: &ResolvedHook, modules: &ModuleStore) -> Option<FileOffset> {
        *self.known.entry((hook.module, hook.offset)).or_insert_with(|| {
            let module = modules.get(hook.module);
            let code = Code::read(module, hook.offset, hook.size_bytes).ok()?;
            module.file_offset(code.jumps_to()?)
        })
    }
}

fn takes_the_same(one: &HookSpec, other: &HookSpec) -> bool {
    let blank = |spec: &HookSpec| HookSpec { function: "", delegates: false, may_throw: false, ..*spec };
    blank(one) == blank(other)
}
