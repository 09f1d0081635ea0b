//! Functions that only jump to another one (jemalloc's `new[]`): hooked at the target, a call has one probe, one sample.

use heapbpf_base::address::FileOffset;
use heapbpf_base::ids::ModuleId;
use indexmap::IndexSet;
use rustc_hash::{FxBuildHasher, FxHashMap};

use super::code::Code;
use crate::allocator::resolve::ResolvedHook;
use crate::allocator::spec::HookSpec;
use crate::object::module::ModuleStore;

/// Jump targets of functions, by module and offset; read once per session.
#[derive(Debug, Default)]
pub(crate) struct Jumps {
    known: FxHashMap<(ModuleId, FileOffset), Option<FileOffset>>,
}

impl Jumps {
    /// Turns hooks that only jump to another hook's code into aliases of the other hook, unless arguments or heaps differ.
    pub(crate) fn merge(&mut self, hooks: Vec<ResolvedHook>, modules: &ModuleStore) -> Vec<ResolvedHook> {
        let mut remaining: Vec<ResolvedHook> = Vec::with_capacity(hooks.len());
        let mut jumping = Vec::new();
        for hook in hooks {
            match self.target(&hook, modules) {
                Some(target) => jumping.push((hook, target)),
                None => remaining.push(hook),
            }
        }
        for (hook, target) in jumping {
            let same = |other: &&mut ResolvedHook| {
                other.module == hook.module
                    && other.offset == target
                    && other.heap == hook.heap
                    && takes_the_same(&other.spec, &hook.spec)
            };
            match remaining.iter_mut().find(same) {
                Some(other) => {
                    other.aliases.push(hook.spec.function);
                    other.aliases.extend(hook.aliases);
                    other.spec.may_throw |= hook.spec.may_throw;
                    other.required |= hook.required;
                    other.reached_by_default |= hook.reached_by_default;
                }
                None => remaining.push(hook),
            }
        }
        // Hooks of a module stay together, and the freeing hooks of each module come first.
        let order: IndexSet<ModuleId, FxBuildHasher> = remaining.iter().map(|hook| hook.module).collect();
        remaining.sort_by_key(|hook| (order.get_index_of(&hook.module), hook.spec.shape.allocates()));
        remaining
    }

    fn target(&mut self, hook: &ResolvedHook, modules: &ModuleStore) -> Option<FileOffset> {
        *self.known.entry((hook.module, hook.offset)).or_insert_with(|| {
            let module = modules.get(hook.module);
            let code = Code::read(module, hook.offset, hook.size_bytes).ok()?;
            module.elf().ok()?.file_offset(code.jumps_to()?)
        })
    }
}

fn takes_the_same(one: &HookSpec, other: &HookSpec) -> bool {
    let blank =
        |spec: &HookSpec| HookSpec { function: "", delegates: false, delegates_null: false, may_throw: false, ..*spec };
    blank(one) == blank(other)
}
