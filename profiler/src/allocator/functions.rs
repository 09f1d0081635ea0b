//! Allocation functions with public names: the C library's, C++'s, those that the Rust compiler calls, and mappings.

use super::spec::{HookSpec, Table};

/// Freeing functions come first in every table: they are attached first, so that no free of a tracked block is missed.
pub(crate) const C: Table = Table(&[
    // Sources: `free_…sized` is C23 7.24.3.3 and 7.24.3.4, glibc 2.42; `vfree` is from Solaris, in mimalloc and others.
    HookSpec::free("free cfree free_sized free_aligned_sized vfree", 0),
    HookSpec::alloc("malloc valloc", 0),
    HookSpec::alloc("calloc", 0).times(1),
    HookSpec::realloc("realloc", 0, 1),
    HookSpec::realloc("reallocarray", 0, 1).times(2),
    HookSpec::realloc("reallocf", 0, 1).frees_on_failure(),
    HookSpec::alloc_out("posix_memalign", 0, 2),
    HookSpec::alloc("aligned_alloc memalign", 1),
    HookSpec::alloc("pvalloc", 0).page_rounded(),
]);

/// Other names of the functions in [`C`]. Nearly always they are at the same addresses, and are then not reported.
pub(crate) const C_ALIASES: Table = Table(&[
    HookSpec::free("__libc_free __libc_cfree", 0),
    HookSpec::alloc("__libc_malloc __libc_valloc", 0),
    HookSpec::alloc("__libc_calloc", 0).times(1),
    HookSpec::realloc("__libc_realloc", 0, 1),
    HookSpec::alloc_out("__posix_memalign", 0, 2),
    HookSpec::alloc("__libc_memalign", 1),
    HookSpec::alloc("__libc_pvalloc", 0).page_rounded(),
]);

/// Functions without which the profile is incomplete; few programs call others.
pub(crate) const C_REQUIRED: &[&str] = &["malloc", "free", "calloc", "realloc"];

/// C++'s operators new and delete, as mangled by the Itanium ABI (5.1.5; `m` is `std::size_t`). They are hooked only in modules
/// that implement them on their own allocator: those of libstdc++ and libc++ call `malloc`, which is hooked anyway. Operators
/// with `__hot_cold_t` are clang's and Google's tcmalloc's. A replacement that is built without exceptions terminates the program
/// where another throws, and cannot be distinguished.
pub(crate) const OPERATORS: Table = Table(&[
    HookSpec::free(
        "_ZdlPv _ZdlPvm _ZdlPvRKSt9nothrow_t _ZdlPvSt11align_val_t _ZdlPvmSt11align_val_t \
         _ZdlPvSt11align_val_tRKSt9nothrow_t _ZdaPv _ZdaPvm _ZdaPvRKSt9nothrow_t _ZdaPvSt11align_val_t \
         _ZdaPvmSt11align_val_t _ZdaPvSt11align_val_tRKSt9nothrow_t",
        0,
    ),
    HookSpec::alloc(
        "_Znwm _ZnwmSt11align_val_t _Znam _ZnamSt11align_val_t _Znwm12__hot_cold_t \
         _ZnwmSt11align_val_t12__hot_cold_t _Znam12__hot_cold_t _ZnamSt11align_val_t12__hot_cold_t",
        0,
    )
    .may_throw(),
    HookSpec::alloc(
        "_ZnwmRKSt9nothrow_t _ZnwmSt11align_val_tRKSt9nothrow_t _ZnamRKSt9nothrow_t \
         _ZnamSt11align_val_tRKSt9nothrow_t _ZnwmRKSt9nothrow_t12__hot_cold_t \
         _ZnwmSt11align_val_tRKSt9nothrow_t12__hot_cold_t _ZnamRKSt9nothrow_t12__hot_cold_t \
         _ZnamSt11align_val_tRKSt9nothrow_t12__hot_cold_t",
        0,
    ),
]);

pub(crate) const OPERATORS_REQUIRED: &[&str] = &["_Znwm", "_Znam", "_ZdlPv", "_ZdaPv"];

/// Functions that the Rust compiler calls: `alloc(size, align)`, `dealloc(block, size, align)`,
/// `realloc(block, old size, align, size)`. They call a program's global allocator, whatever it is, so they are hooked only
/// where no known allocator is found.
/// Compilers since 1.87 mangle them (`_RNvC…7___rustc12___rust_alloc`); [`symbols`](crate::object::symbols) matches both.
pub(crate) const RUST: Table = Table(&[
    HookSpec::free("__rust_dealloc", 0),
    HookSpec::alloc("__rust_alloc __rust_alloc_zeroed", 0),
    HookSpec::realloc("__rust_realloc", 0, 3),
]);

pub(crate) const RUST_HEAP: &str = "rust";
pub(crate) const RUST_DEFINING: &str = "__rust_alloc";

/// The C library's mapping functions, as a heap of their own: [`MMAP`](super::selection::MMAP). Only anonymous memory is counted,
/// by the requested lengths in whole pages (of huge pages: in whole huge pages), touched or not. Every call is recorded, at any
/// interval, with its actual size.
///
/// Not recorded are direct system calls: those of a program (`syscall(SYS_mmap, …)`, the Go runtime), those that the C library
/// makes without its own wrappers, the dynamic linker's mappings of modules, and the kernel's own mappings. `brk` is not hooked,
/// because its arguments do not include the previous end of the data segment; the C library's `malloc` and most others call
/// `sbrk`. A mapping that was not recorded, because it is older than the recording or maps a file, does not enter the heap when
/// `mremap` moves it. `MREMAP_DONTUNMAP` counts as a move.
pub(crate) const MAPPINGS: Table = Table(&[
    HookSpec::unmap("munmap", 0, 1),
    HookSpec::map("mmap mmap64", 1, 3),
    HookSpec::remap("mremap", 0, 1, 2),
    HookSpec::break_("sbrk", 0),
]);

pub(crate) const MAPPINGS_DEFINING: &str = "mmap";

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_common::hook::CallShape;

    #[test]
    fn shapes_have_the_arguments_they_need() {
        for spec in MAPPINGS.iter() {
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
