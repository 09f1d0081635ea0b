//! The C library's calls that map memory, as a heap of their own: [`MMAP`](super::selection::MMAP).
//!
//! Anonymous memory alone is counted, by the lengths that were asked for in whole pages (of huge pages: in whole huge
//! pages), whether it is touched or not. Every call is taken, at any interval, with its weight as it is.
//!
//! Not seen are direct system calls: what a program makes itself (`syscall(SYS_mmap, …)`, the Go runtime), what the C
//! library does inside itself without its own wrappers, the dynamic linker's loading of modules, and the kernel's own
//! mappings. `brk` is not watched, because its arguments do not tell where the data segment ended before; the C library's
//! `malloc` and most others call `sbrk`. A mapping that was not seen, because it is older than the recording or a file's,
//! does not enter the heap when `mremap` moves it. `MREMAP_DONTUNMAP` is taken for a move.

use super::resolve::ResolvedHook;
use super::spec::HookSpec;
use profiler_common::hook::CallShape;

/// Those that only unmap come first, as with every allocator: they are attached first.
pub(crate) const FUNCTIONS: &[HookSpec] = &[
    HookSpec::unmap("munmap", 0, 1),
    HookSpec::map("mmap", 1, 3),
    HookSpec::map("mmap64", 1, 3),
    HookSpec::remap("mremap", 0, 1, 2),
    HookSpec::break_("sbrk", 0),
];

/// The function without which a module has no such heap.
pub(crate) const DEFINING_FUNCTION: &str = "mmap";

/// Makes every call of these hooks that allocates be followed to its return, sampled or not. Needed of all hooks of a
/// process in which `mmap` is watched too: memory that an allocator maps for itself is counted where the block is that it
/// gives out, and only a call that is followed tells that it is inside.
///
/// What an allocator maps while it frees, or on a thread of its own, is not inside such a call.
pub(crate) fn follow_all(hooks: &mut [ResolvedHook]) {
    for hook in hooks.iter_mut().filter(|hook| hook.spec.shape != CallShape::Free) {
        hook.spec.delegates = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::FileOffset;
    use crate::allocator::libc;
    use crate::ids::ModuleId;

    #[test]
    fn every_call_that_allocates_is_followed() {
        let hook = |spec: HookSpec| ResolvedHook {
            spec,
            module: ModuleId(0),
            path: String::new(),
            offset: FileOffset(0),
            size_bytes: 0,
            heap: "libc".to_owned(),
            aliases: Vec::new(),
            reached_by_default: true,
            required: true,
        };
        let mut hooks: Vec<_> = libc::FUNCTIONS.iter().map(|spec| hook(spec.leaf())).collect();
        follow_all(&mut hooks);
        for hook in hooks {
            assert_eq!(hook.spec.delegates, hook.spec.shape != CallShape::Free, "{}", hook.spec.function);
        }
    }

    #[test]
    fn shapes_have_the_arguments_they_need() {
        for spec in FUNCTIONS {
            let (count, pointer) = (spec.count.is_some(), spec.pointer.is_some());
            let expected = match spec.shape {
                CallShape::Map => (true, false),
                CallShape::Unmap => (false, true),
                CallShape::Remap => (true, true),
                CallShape::Break => (false, false),
                other => panic!("{} is {other:?}", spec.function),
            };
            assert_eq!((count, pointer), expected, "{}", spec.function);
        }
    }
}
