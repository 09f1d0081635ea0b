//! Allocation functions of the C library and C++, some or all of which every general-purpose allocator defines.

use super::spec::HookSpec;

/// Freeing functions come first: they are attached first, so that no free of a tracked block is missed.
pub(crate) const FUNCTIONS: &[HookSpec] = &[
    HookSpec::free("free", 0),
    HookSpec::free("cfree", 0),
    // C23 7.24.3.3 and 7.24.3.4; glibc 2.42.
    HookSpec::free("free_sized", 0),
    HookSpec::free("free_aligned_sized", 0),
    // From Solaris; mimalloc and others define it.
    HookSpec::free("vfree", 0),
    HookSpec::alloc("malloc", 0),
    HookSpec::alloc("calloc", 0).times(1),
    HookSpec::realloc("realloc", 0, 1),
    HookSpec::realloc("reallocarray", 0, 1).times(2),
    // From BSD.
    HookSpec::realloc("reallocf", 0, 1).frees_on_failure(),
    HookSpec::alloc_out("posix_memalign", 0, 2),
    HookSpec::alloc("aligned_alloc", 1),
    HookSpec::alloc("memalign", 1),
    HookSpec::alloc("valloc", 0),
    HookSpec::alloc("pvalloc", 0).page_rounded(),
];

/// Additional names of the same functions in glibc and in allocators that replace it. Nearly always they are at the addresses of
/// [`FUNCTIONS`], and are then not reported.
pub(crate) const ALIASES: &[HookSpec] = &[
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

/// Without these, the profile is incomplete; few programs call the others.
pub(crate) const REQUIRED_FUNCTIONS: &[&str] = &["malloc", "free", "calloc", "realloc"];

/// C++'s operators new and delete, as mangled by the Itanium ABI (5.1.5; `m` is `std::size_t`). Hooked only in modules that
/// implement them on their own allocator: those of libstdc++ and libc++ call `malloc`, which is hooked anyway.
///
/// Those with `__hot_cold_t` are clang's and Google's tcmalloc's. A replacement that is built without exceptions terminates the
/// program where another throws, and cannot be distinguished.
pub(crate) const OPERATORS: &[HookSpec] = &[
    HookSpec::free("_ZdlPv", 0),
    HookSpec::free("_ZdlPvm", 0),
    HookSpec::free("_ZdlPvRKSt9nothrow_t", 0),
    HookSpec::free("_ZdlPvSt11align_val_t", 0),
    HookSpec::free("_ZdlPvmSt11align_val_t", 0),
    HookSpec::free("_ZdlPvSt11align_val_tRKSt9nothrow_t", 0),
    HookSpec::free("_ZdaPv", 0),
    HookSpec::free("_ZdaPvm", 0),
    HookSpec::free("_ZdaPvRKSt9nothrow_t", 0),
    HookSpec::free("_ZdaPvSt11align_val_t", 0),
    HookSpec::free("_ZdaPvmSt11align_val_t", 0),
    HookSpec::free("_ZdaPvSt11align_val_tRKSt9nothrow_t", 0),
    HookSpec::alloc("_Znwm", 0).may_throw(),
    HookSpec::alloc("_ZnwmRKSt9nothrow_t", 0),
    HookSpec::alloc("_ZnwmSt11align_val_t", 0).may_throw(),
    HookSpec::alloc("_ZnwmSt11align_val_tRKSt9nothrow_t", 0),
    HookSpec::alloc("_Znam", 0).may_throw(),
    HookSpec::alloc("_ZnamRKSt9nothrow_t", 0),
    HookSpec::alloc("_ZnamSt11align_val_t", 0).may_throw(),
    HookSpec::alloc("_ZnamSt11align_val_tRKSt9nothrow_t", 0),
    HookSpec::alloc("_Znwm12__hot_cold_t", 0).may_throw(),
    HookSpec::alloc("_ZnwmRKSt9nothrow_t12__hot_cold_t", 0),
    HookSpec::alloc("_ZnwmSt11align_val_t12__hot_cold_t", 0).may_throw(),
    HookSpec::alloc("_ZnwmSt11align_val_tRKSt9nothrow_t12__hot_cold_t", 0),
    HookSpec::alloc("_Znam12__hot_cold_t", 0).may_throw(),
    HookSpec::alloc("_ZnamRKSt9nothrow_t12__hot_cold_t", 0),
    HookSpec::alloc("_ZnamSt11align_val_t12__hot_cold_t", 0).may_throw(),
    HookSpec::alloc("_ZnamSt11align_val_tRKSt9nothrow_t12__hot_cold_t", 0),
];

/// Without these, the profile of a program that uses operators is incomplete.
pub(crate) const REQUIRED_OPERATORS: &[&str] = &["_Znwm", "_Znam", "_ZdlPv", "_ZdaPv"];
