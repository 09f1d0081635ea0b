//! The C library's allocation functions, which every general-purpose allocator defines, some or all of them.

use super::spec::HookSpec;

/// Freeing functions come first: they are attached first, so that no block that is tracked can be freed unseen.
pub(crate) const FUNCTIONS: &[HookSpec] = &[
    HookSpec::free("free", 0),
    HookSpec::free("cfree", 0),
    // C23 7.24.3.3 and 7.24.3.4; glibc 2.42.
    HookSpec::free("free_sized", 0),
    HookSpec::free("free_aligned_sized", 0),
    // Solaris'; mimalloc and others bring it along.
    HookSpec::free("vfree", 0),
    HookSpec::alloc("malloc", 0),
    HookSpec::alloc("calloc", 0).times(1),
    HookSpec::realloc("realloc", 0, 1),
    HookSpec::realloc("reallocarray", 0, 1).times(2),
    // BSD's.
    HookSpec::realloc("reallocf", 0, 1).frees_on_failure(),
    HookSpec::alloc_out("posix_memalign", 0, 2),
    HookSpec::alloc("aligned_alloc", 1),
    HookSpec::alloc("memalign", 1),
    HookSpec::alloc("valloc", 0),
    HookSpec::alloc("pvalloc", 0).page_rounded(),
];

/// Names under which glibc exports the same functions once more, and allocators that replace it do too. Nearly always
/// they are at the addresses of [`FUNCTIONS`]; what is told of a hook does not name them then.
pub(crate) const SECOND_NAMES: &[HookSpec] = &[
    HookSpec::free("__libc_free", 0),
    HookSpec::free("__libc_cfree", 0),
    HookSpec::alloc("__libc_malloc", 0),
    HookSpec::alloc("__libc_calloc", 0).times(1),
    HookSpec::realloc("__libc_realloc", 0, 1),
    HookSpec::alloc_out("__posix_memalign", 0, 2),
    HookSpec::alloc("__libc_memalign", 1),
    HookSpec::alloc("__libc_valloc", 0),
    HookSpec::alloc("__libc_pvalloc", 0).page_rounded(),
];

/// The function without which a module is no allocator.
pub(crate) const DEFINING_FUNCTION: &str = "malloc";

/// Without these of an allocator's the profile is not whole; the rest are called by few programs.
pub(crate) const REQUIRED_FUNCTIONS: &[&str] = &["malloc", "free", "calloc", "realloc"];
