//! The C library's mapping functions, as a heap of their own: [`MMAP`](super::selection::MMAP).
//!
//! Only anonymous memory is counted, by the requested lengths in whole pages (of huge pages: in whole huge pages), touched or
//! not. Every call is recorded, at any interval, with its actual size.
//!
//! Not recorded are direct system calls: those of a program (`syscall(SYS_mmap, …)`, the Go runtime), those that the C library
//! makes without its own wrappers, the dynamic linker's mappings of modules, and the kernel's own mappings. `brk` is not hooked,
//! because its arguments do not include the previous end of the data segment; the C library's `malloc` and most others call
//! `sbrk`. A mapping that was not recorded, because it is older than the recording or maps a file, does not enter the heap when
//! `mremap` moves it. `MREMAP_DONTUNMAP` counts as a move.

use super::spec::HookSpec;

/// Unmapping functions come first, as freeing functions in every table: they are attached first.
pub(crate) const FUNCTIONS: &[HookSpec] = &[
    HookSpec::unmap("munmap", 0, 1),
    HookSpec::map("mmap", 1, 3),
    HookSpec::map("mmap64", 1, 3),
    HookSpec::remap("mremap", 0, 1, 2),
    HookSpec::break_("sbrk", 0),
];

/// A module that does not define it has no such heap.
pub(crate) const DEFINING_FUNCTION: &str = "mmap";

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_common::hook::CallShape;

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
